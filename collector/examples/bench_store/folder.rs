//! The folder of a measurement: the store, the peer's data, and how far they are.

use anyhow::{Context as _, Result, ensure};
use rustix::fs::Advice;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder, and what belongs in it.
pub(crate) struct Folder {
    root: PathBuf,
    /// Which set.
    set: String,
    _temporary: Option<Temporary>,
}

/// Goes with all that is in it.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A folder for temporary files that stays is seen by who looks there.
        drop(fs::remove_dir_all(&self.0));
    }
}

impl Folder {
    /// One that is kept, or a temporary one.
    pub(crate) fn new(kept: Option<PathBuf>, set: String) -> Result<Self> {
        let name = format!("vesta-bench-store-{}", std::process::id());
        let (root, temporary) = match kept {
            // What is begun anew there is removed: nothing of others may stand below.
            Some(root) => (root.join("vesta-bench-store"), None),
            None => {
                let root = std::env::temp_dir().join(name);
                (root.clone(), Some(Temporary(root)))
            }
        };
        fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
        Ok(Self { root, set, _temporary: temporary })
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub(crate) fn peer(&self) -> PathBuf {
        self.root.join("chdb")
    }

    /// A folder for a collector, empty.
    pub(crate) fn collector(&self) -> Result<PathBuf> {
        let path = self.root.join("collector");
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// How much of the set is in segments: samples and batches.
    pub(crate) fn written(&self) -> Result<(usize, u64)> {
        if !self.is_begun("store.written", &self.store())? {
            return Ok((0, 0));
        }
        let text = fs::read_to_string(self.root.join("store.written"))?;
        let numbers = text.lines().nth(1).and_then(|line| line.split_once(' '));
        let (samples, batches) = numbers.context("store.written says nothing")?;
        Ok((samples.parse()?, batches.parse()?))
    }

    pub(crate) fn mark_written(&self, samples: usize, batches: u64) -> Result<()> {
        self.mark("store.written", &format!("{samples} {batches}"))
    }

    pub(crate) fn is_merged(&self) -> bool {
        self.root.join("store.merged").exists()
    }

    pub(crate) fn mark_merged(&self) -> Result<()> {
        self.mark("store.merged", "")
    }

    /// Whether all of the set is in the peer.
    pub(crate) fn has_peer(&self) -> Result<bool> {
        self.is_begun("chdb.written", &self.peer())
    }

    pub(crate) fn mark_peer(&self) -> Result<()> {
        self.mark("chdb.written", "")
    }

    /// Whoever reads it finds the old text or the new one.
    fn mark(&self, name: &str, how_far: &str) -> Result<()> {
        let new = self.root.join("new");
        fs::write(&new, format!("{}\n{how_far}\n", self.set))?;
        Ok(fs::rename(&new, self.root.join(name))?)
    }

    /// False if there is nothing of the set yet; what is left of an attempt is removed.
    fn is_begun(&self, name: &str, data: &Path) -> Result<bool> {
        if let Ok(text) = fs::read_to_string(self.root.join(name)) {
            let (set, root) = (text.lines().next().unwrap_or_default(), self.root.display());
            ensure!(set == self.set, "{root} holds another set ({set}, not {})", self.set);
            return Ok(true);
        }
        if data.exists() {
            fs::remove_dir_all(data).with_context(|| format!("remove {}", data.display()))?;
        }
        Ok(false)
    }
}

/// Every file below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut pending) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() { pending.push(path) } else { found.push(path) }
        }
    }
    Ok(found)
}

/// Bytes of all files below a folder.
pub(crate) fn bytes_below(folder: &Path) -> Result<u64> {
    files(folder)?.iter().try_fold(0, |sum, path| Ok(sum + fs::metadata(path)?.len()))
}

/// Has the kernel drop what it keeps in memory of the files below a folder; all of them are durable.
pub(crate) fn forget_pages(folder: &Path) -> Result<()> {
    for path in files(folder)? {
        let file = fs::File::open(&path)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}
