//! `/proc/PID/maps`, line by line: executable mappings only, bounded in bytes and in number. What stands
//! behind a mapping is found out elsewhere.

use crate::address::{AbsAddr, FileOffset};
use crate::limits::{MAPPINGS_PER_PROCESS_MAX, MAPS_BYTES_MAX, MAPS_LINE_BYTES_MAX};
use std::io::{self, BufRead};

/// One executable mapping as the kernel states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsEntry {
    /// First address.
    pub start: AbsAddr,
    /// First address behind it.
    pub end: AbsAddr,
    /// Offset in the file, bytes.
    pub file_offset: FileOffset,
    /// Inode, 0 if no file stands behind it.
    pub inode: u64,
    /// Path as the process sees it, `[vdso]` and the like, or empty.
    pub path: Vec<u8>,
}

/// The executable mappings of one process, ascending by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// The mappings.
    pub entries: Vec<MapsEntry>,
    /// Executable mappings that were left out because of a limit. If the file itself was longer than
    /// its limit, this counts one more for the rest.
    pub left_out: u64,
}

impl Maps {
    /// Reads the text of `/proc/PID/maps`.
    ///
    /// # Errors
    /// When reading fails. Lines that cannot be understood are counted as left out.
    pub fn read(text: impl BufRead) -> io::Result<Self> {
        let mut text = text.take(MAPS_BYTES_MAX);
        let mut maps = Self::default();
        let mut line = Vec::with_capacity(256);
        while read_line(&mut text, &mut line, MAPS_LINE_BYTES_MAX)? {
            match parse_line(&line) {
                Line::Executable(entry) if maps.entries.len() < MAPPINGS_PER_PROCESS_MAX => {
                    maps.entries.push(entry);
                }
                Line::Executable(_) | Line::Malformed => maps.left_out += 1,
                Line::Other => {}
            }
        }
        maps.left_out += u64::from(text.limit() == 0);
        Ok(maps)
    }
}

/// Reads one line without its newline; what is longer than `bytes_max` is cut off. False at the end.
pub(crate) fn read_line(
    text: &mut impl BufRead,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> io::Result<bool> {
    line.clear();
    loop {
        let available = text.fill_buf()?;
        if available.is_empty() {
            return Ok(!line.is_empty());
        }
        let newline = available.iter().position(|&byte| byte == b'\n');
        let piece = available.get(..newline.unwrap_or(available.len())).unwrap_or_default();
        let room = bytes_max.saturating_sub(line.len());
        line.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
        let used = piece.len() + usize::from(newline.is_some());
        text.consume(used);
        if newline.is_some() {
            return Ok(true);
        }
    }
}

enum Line {
    Executable(MapsEntry),
    Other,
    Malformed,
}

/// `start-end perms offset dev inode   path` (`proc_pid_maps(5)`).
fn parse_line(line: &[u8]) -> Line {
    let mut rest = line;
    let mut field = || {
        let at = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (field, tail) = rest.split_at(at);
        rest = tail.trim_ascii_start();
        field
    };
    let (range, permissions, offset, _device, inode) =
        (field(), field(), field(), field(), field());
    if permissions.get(2) != Some(&b'x') {
        return if permissions.len() == 4 { Line::Other } else { Line::Malformed };
    }
    let entry = || {
        let dash = range.iter().position(|&byte| byte == b'-')?;
        let start = number(range.get(..dash)?, 16)?;
        let end = number(range.get(dash + 1..)?, 16)?;
        Some(MapsEntry {
            start: AbsAddr(start),
            end: AbsAddr(Some(end).filter(|&end| end > start)?),
            file_offset: FileOffset(number(offset, 16)?),
            inode: number(inode, 10)?,
            path: unescape_newlines(rest),
        })
    };
    // The kernel's own page: a call into it traps and is emulated (arch/x86/entry/vsyscall, 6.18), nothing
    // ever runs there.
    if rest == b"[vsyscall]" {
        return Line::Other;
    }
    // A line that was cut at its limit has no whole path.
    if line.len() >= MAPS_LINE_BYTES_MAX {
        return Line::Malformed;
    }
    entry().map_or(Line::Malformed, Line::Executable)
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// The kernel writes a newline in a path as `\012` and escapes nothing else (`fs/proc/task_mmu.c`,
/// `show_map_vma`, Linux 6.18).
fn unescape_newlines(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = behind;
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{Maps, MapsEntry};
    use crate::address::{AbsAddr, FileOffset};
    use crate::limits::MAPPINGS_PER_PROCESS_MAX;

    fn entry(start: u64, end: u64, file_offset: u64, inode: u64, path: &str) -> MapsEntry {
        MapsEntry {
            start: AbsAddr(start),
            end: AbsAddr(end),
            file_offset: FileOffset(file_offset),
            inode,
            path: path.into(),
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &[MapsEntry], left_out: u64) {
        let maps = Maps::read(text.as_bytes()).unwrap();
        assert_eq!(maps.entries, expected, "{text}");
        assert_eq!(maps.left_out, left_out, "{text}");
    }

    #[test]
    fn executable_lines_only() {
        check(
            "55d0c0000000-55d0c0001000 r--p 00000000 fe:00 1234                       /bin/a\n\
             55d0c0001000-55d0c0004000 r-xp 00001000 fe:00 1234                       /bin/a\n\
             7f0000000000-7f0000001000 rwxp 00000000 00:00 0 \n\
             7ffd1c9d3000-7ffd1c9d5000 r-xp 00000000 00:00 0                          [vdso]\n\
             ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n",
            &[
                entry(0x55d0_c000_1000, 0x55d0_c000_4000, 0x1000, 1234, "/bin/a"),
                entry(0x7f00_0000_0000, 0x7f00_0000_1000, 0, 0, ""),
                entry(0x7ffd_1c9d_3000, 0x7ffd_1c9d_5000, 0, 0, "[vdso]"),
            ],
            0,
        );
    }

    #[test]
    fn odd_paths_and_broken_lines() {
        check(
            "1000-2000 r-xp 0 fe:00 9 /a b/c\\012d (deleted)",
            &[entry(0x1000, 0x2000, 0, 9, "/a b/c\nd (deleted)")],
            0,
        );
        check("1000-1000 r-xp 0 fe:00 9 /a\n", &[], 1);
        check("2000-1000 r-xp 0 fe:00 9 /a\n", &[], 1);
        check("zz-1000 r-xp 0 fe:00 9 /a\n", &[], 1);
        check("1000-2000 r-xp\n", &[], 1);
        check("nonsense\n\n", &[], 2);
        check("", &[], 0);
        check(&format!("1000-2000 r-xp 0 fe:00 9 /{}\n", "x".repeat(20_000)), &[], 1);
    }

    #[test]
    fn number_is_bounded_and_counted() {
        let text: String = (0..MAPPINGS_PER_PROCESS_MAX + 5)
            .map(|at| format!("{:x}-{:x} r-xp 0 00:00 0\n", (at + 1) << 12, (at + 2) << 12))
            .collect();
        let maps = Maps::read(text.as_bytes()).unwrap();
        assert_eq!(maps.entries.len(), MAPPINGS_PER_PROCESS_MAX);
        assert_eq!(maps.left_out, 5);
    }

    #[test]
    fn own_maps_are_read() {
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let maps = Maps::read(std::io::BufReader::new(file)).unwrap();
        let here = AbsAddr(own_maps_are_read as *const () as u64);
        assert!(
            maps.entries.iter().any(|map| map.start <= here && here < map.end && map.inode > 0)
        );
        assert!(maps.entries.iter().any(|map| map.path == b"[vdso]"));
        assert_eq!(maps.left_out, 0);
    }
}
