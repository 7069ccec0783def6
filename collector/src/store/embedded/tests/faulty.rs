//! Files on a machine that loses power: what was not synced is lost, names that no folder sync covered are
//! undone. And a disk that fills up or fails.

use crate::store::embedded::files::{AppendFile, Disk, Files};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The files.
#[derive(Clone, Debug, Default)]
pub(super) struct Faulty {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Length that survives, by file.
    synced: BTreeMap<PathBuf, u64>,
    /// Changes of names that no sync of their folder covered, oldest first: the path and what it held.
    unsynced_names: Vec<(PathBuf, Option<Vec<u8>>)>,
    /// Operations until the power goes; nothing if it stays.
    until_cut: Option<u64>,
    is_cut: bool,
    /// Operations until `failure` happens, and how often then.
    failures: Option<(u64, u64, Failure)>,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Half of the bytes are written, then the disk is full.
    Full,
    /// A sync fails and what it should have made durable is lost.
    Sync,
    /// A sync fails, and so does cutting what it should have made durable.
    Uncut,
    /// The sync of a folder fails, though the names in it are changed.
    Folder,
}

impl Faulty {
    /// The power goes at this operation from now.
    pub(super) fn cut_after(&self, operations: u64) {
        self.state.lock().unwrap().until_cut = Some(operations);
    }

    /// After some appends or syncs, this many fail.
    pub(super) fn fail_after(&self, operations: u64, times: u64, failure: Failure) {
        self.state.lock().unwrap().failures = Some((operations, times, failure));
    }

    pub(super) fn is_cut(&self) -> bool {
        self.state.lock().unwrap().is_cut
    }

    /// What the disk holds when the power is back.
    pub(super) fn power_on(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_cut = false;
        state.until_cut = None;
        for (path, before) in std::mem::take(&mut state.unsynced_names).into_iter().rev() {
            match before {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap_or(()),
            }
        }
        for (path, &length) in &state.synced {
            if let Ok(file) = std::fs::OpenOptions::new().write(true).open(path)
                && file.metadata().unwrap().len() > length
            {
                file.set_len(length).unwrap();
            }
        }
    }

    fn step(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        match &mut state.until_cut {
            Some(0) => state.is_cut = true,
            Some(left) => *left -= 1,
            None => {}
        }
        if state.is_cut { Err(io::Error::other("the power is gone")) } else { Ok(()) }
    }

    fn fails(&self, wanted: Failure) -> bool {
        let mut state = self.state.lock().unwrap();
        match &mut state.failures {
            Some((0, times, failure)) if *failure == wanted && *times > 0 => {
                *times -= 1;
                true
            }
            Some((left, _, failure)) if *failure == wanted => {
                *left = left.saturating_sub(1);
                false
            }
            _ => false,
        }
    }

    fn note_name(&self, path: &Path) {
        let before = std::fs::read(path).ok().map(|mut bytes| {
            let synced = self.state.lock().unwrap().synced.get(path).copied();
            bytes.truncate(synced.map_or(bytes.len(), |length| usize::try_from(length).unwrap()));
            bytes
        });
        self.state.lock().unwrap().unsynced_names.push((path.to_owned(), before));
    }
}

struct FaultyFile {
    files: Faulty,
    path: PathBuf,
    length: u64,
    inner: Box<dyn AppendFile>,
}

impl Files for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        self.step()?;
        self.note_name(path);
        let inner = Disk.create(path)?;
        self.state.lock().unwrap().synced.insert(path.to_owned(), 0);
        Ok(Box::new(FaultyFile { files: self.clone(), path: path.to_owned(), length: 0, inner }))
    }

    fn open(&self, path: &Path, length: u64) -> io::Result<Box<dyn AppendFile>> {
        self.step()?;
        if !path.exists() {
            self.note_name(path);
        }
        let inner = Disk.open(path, length)?;
        self.state.lock().unwrap().synced.entry(path.to_owned()).or_insert(length);
        Ok(Box::new(FaultyFile { files: self.clone(), path: path.to_owned(), length, inner }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.note_name(to);
        self.note_name(from);
        Disk.rename(from, to)?;
        let mut state = self.state.lock().unwrap();
        let length = state.synced.remove(from).unwrap_or(0);
        state.synced.insert(to.to_owned(), length);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        if path.exists() {
            self.note_name(path);
        }
        self.state.lock().unwrap().synced.remove(path);
        Disk.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        if self.fails(Failure::Folder) {
            return Err(io::Error::other("the sync of the folder failed"));
        }
        let mut state = self.state.lock().unwrap();
        state.unsynced_names.retain(|(changed, _)| changed.parent() != Some(path));
        Ok(())
    }
}

impl AppendFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.files.step()?;
        if self.files.fails(Failure::Full) {
            self.inner.append(&bytes[..bytes.len() / 2])?;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.inner.append(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.step()?;
        if self.files.fails(Failure::Sync) || self.files.fails(Failure::Uncut) {
            return Err(io::Error::other("the sync failed"));
        }
        // Real syncs would only make the test slow: the test process itself does not lose power.
        self.files.state.lock().unwrap().synced.insert(self.path.clone(), self.length);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.files.step()?;
        if self.files.fails(Failure::Uncut) {
            return Err(io::Error::other("the file cannot be cut"));
        }
        self.length = length;
        self.inner.truncate(length)
    }
}
