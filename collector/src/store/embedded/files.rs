//! The file operations that durability hangs on, behind one trait, so that tests can lose what was not
//! synced, fill the disk or fail a sync. Reading needs no seam: it uses `std::fs` and positional reads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// A file that grows at its end.
pub(super) trait AppendFile: Send {
    /// Writes all of the bytes at the end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Waits until everything written is durable (fdatasync: the size is durable too, times are not).
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file; the next append continues there.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// What writes files.
pub(super) trait Files: Send + Sync + std::fmt::Debug {
    /// Makes an empty file; an existing one is an error.
    fn create(&self, path: &Path) -> io::Result<Box<dyn AppendFile>>;
    /// Opens a file to append behind `length` bytes, cutting what follows; makes it if it is missing.
    fn open(&self, path: &Path, length: u64) -> io::Result<Box<dyn AppendFile>>;
    /// Replaces `to` by `from`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file; a missing one is no error.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// The real ones.
#[derive(Debug)]
pub(super) struct Disk;

struct DiskFile {
    file: File,
}

impl Files for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Box::new(DiskFile { file }))
    }

    fn open(&self, path: &Path, length: u64) -> io::Result<Box<dyn AppendFile>> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        if file.metadata()?.len() < length {
            let detail = format!("{} is shorter than the {length} bytes it had", path.display());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, detail));
        }
        file.set_len(length)?;
        Ok(Box::new(DiskFile { file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

impl AppendFile for DiskFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
}

/// Makes a folder and its missing parents durable.
pub(super) fn create_dir(files: &dyn Files, path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_dir(files, parent)?;
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => files.sync_dir(parent)?,
        }
    }
    Ok(())
}

/// Writes a whole file so that it is there complete or not at all, also after a power cut.
pub(super) fn write_whole(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    files.remove(&temporary)?;
    let mut file = files.create(&temporary)?;
    file.append(bytes)?;
    file.sync()?;
    files.rename(&temporary, path)?;
    path.parent().map_or(Ok(()), |parent| files.sync_dir(parent))
}
