//! A cpio archive of the form `newc`, which the kernel unpacks as its first file system (Linux
//! Documentation/driver-api/early-userspace/buffer-format.rst). Only what that needs.

use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// An archive in the making.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

/// Kinds and rights, as stat(2) has them.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

impl Archive {
    /// The file on this machine `from`, as the file `path` there.
    pub(crate) fn program(&mut self, path: &str, from: &Path) -> Result<()> {
        let contents = std::fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.folder_of(path);
        self.entry(path, PROGRAM, (0, 0), &contents)
    }

    /// A character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.folder_of(path);
        self.entry(path, CHARACTER_DEVICE, (major, minor), &[])
    }

    /// The archive, closed.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.bytes)
    }

    /// Makes the folders above `path`.
    fn folder_of(&mut self, path: &str) {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            if self.folders.insert(path[..at].to_owned()) {
                let empty = self.entry(&path[..at], FOLDER, (0, 0), &[]);
                debug_assert!(empty.is_ok(), "an empty entry is not too long");
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        let size = u32::try_from(contents.len()).with_context(|| format!("{path} is too long"))?;
        let name_size = u32::try_from(path.len() + 1)?;
        self.entries += 1;
        let (major, minor) = device;
        // inode, mode, owner, group, links, time, size, device of the file system, of the file, name, sum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
        Ok(())
    }

    /// Headers and contents begin at multiples of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn entries_are_aligned_and_closed() {
        let mut archive = Archive::default();
        archive.device("/dev/console", 5, 1).unwrap();
        archive.program("/init", std::path::Path::new("/proc/self/comm")).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let headers: Vec<usize> =
            (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"070701")).collect();
        assert!(headers.iter().all(|at| at % 4 == 0));
        let names: Vec<String> = headers
            .iter()
            .map(|at| {
                bytes[at + 110..]
                    .iter()
                    .take_while(|&&byte| byte != 0)
                    .map(|&byte| char::from(byte))
                    .collect()
            })
            .collect();
        assert_eq!(names, ["dev", "dev/console", "init", "TRAILER!!!"]);
        assert_eq!(&bytes[headers[1] + 78..headers[1] + 94], b"0000000500000001");
    }
}
