//! The regions that one perf map names: text in, ranges without overlaps out. Of two entries for one
//! address the later one counts, as in the memory of the program that wrote them. Not where the text
//! comes from.

use super::shown::MapName;
use crate::limits::{
    PERF_MAP_ENTRIES_MAX, PERF_MAP_ENTRY_BYTES_MAX, PERF_MAP_LINE_BYTES_MAX,
    PERF_MAP_NAMES_BYTES_MAX,
};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// First address that is no user's, with five-level paging.
const USER_END: u64 = 1 << 56;
/// What a region costs in the tree, bytes: 28 of them, and nodes are two thirds full.
const REGION_BYTES: usize = 40;

/// One named range, its start is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    end: u64,
    /// Place of the name.
    at: u32,
    name_bytes: u16,
}

/// Everything that one map names.
#[derive(Debug, Default)]
pub(super) struct Regions {
    regions: BTreeMap<u64, Region>,
    names: Vec<u8>,
    /// Bytes of `names` that belong to regions that were written over.
    dead: usize,
    /// Lines that are no entries.
    pub(super) malformed: u64,
    /// Entries left out because of a limit.
    pub(super) left_out: u64,
}

impl Regions {
    /// Takes whole lines, and answers how many bytes that were; the rest of `text` is the beginning of a
    /// line. A line that is longer than any sensible one is skipped in pieces.
    pub(super) fn take(&mut self, text: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(length) =
            text.get(taken..).and_then(|rest| rest.iter().position(|&byte| byte == b'\n'))
        {
            let line = text.get(taken..taken + length).unwrap_or_default();
            taken += length + 1;
            if line.is_empty() {
                continue;
            }
            match entry(line) {
                Some((start, end, name)) => self.insert(start, end, name),
                None => self.malformed += 1,
            }
        }
        if text.len() - taken > PERF_MAP_LINE_BYTES_MAX {
            self.malformed += 1;
            return text.len();
        }
        taken
    }

    /// The name at `address`, as the program wrote it.
    pub(super) fn find(&self, address: u64) -> Option<MapName<'_>> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then(|| MapName(self.name(region)))
    }

    /// Ranges with a name that `wanted` likes, neighbours joined: at most `max`, and the first address of
    /// each.
    pub(super) fn ranges(
        &self,
        max: usize,
        wanted: impl Fn(MapName<'_>) -> bool,
    ) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let regions = self.regions.iter().filter(|(_, region)| wanted(MapName(self.name(region))));
        for (&start, region) in regions {
            // Trampolines are aligned; what lies between two of them is no other code.
            let near = ranges.last_mut().filter(|last| start.saturating_sub(last.1) <= 64);
            if let Some(last) = near {
                last.1 = region.end;
            } else if ranges.len() < max {
                ranges.push((start, region.end));
            } else {
                break;
            }
        }
        ranges
    }

    /// Named ranges.
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of memory.
    pub(super) fn weight(&self) -> usize {
        self.regions.len() * REGION_BYTES + self.names.capacity()
    }

    fn name(&self, region: &Region) -> &[u8] {
        let at = usize::try_from(region.at).unwrap_or(usize::MAX);
        self.names.get(at..at.saturating_add(usize::from(region.name_bytes))).unwrap_or_default()
    }

    fn insert(&mut self, start: u64, end: u64, name: &[u8]) {
        // A quarter at least, or a hostile map would have everything copied for each of its lines.
        let worth = self.dead >= PERF_MAP_NAMES_BYTES_MAX / 4;
        if worth && self.names.len() + name.len() > PERF_MAP_NAMES_BYTES_MAX {
            self.compact();
        }
        let place = (u32::try_from(self.names.len()), u16::try_from(name.len()));
        let fits = self.regions.len() + 2 <= PERF_MAP_ENTRIES_MAX
            && self.names.len() + name.len() <= PERF_MAP_NAMES_BYTES_MAX;
        let (true, (Ok(at), Ok(name_bytes))) = (fits, place) else {
            self.left_out += 1;
            return;
        };
        self.clear(start, end);
        self.names.extend_from_slice(name);
        self.regions.insert(start, Region { end, at, name_bytes });
    }

    /// Takes `start..end` out of what was there.
    fn clear(&mut self, start: u64, end: u64) {
        if let Some((&before, region)) = self.regions.range_mut(..start).next_back()
            && region.end > start
        {
            let old = *region;
            region.end = start;
            debug_assert!(before < start, "the range excludes it");
            if old.end > end {
                self.regions.insert(end, old);
            }
        }
        while let Some((&at, &old)) = self.regions.range(start..end).next() {
            self.regions.remove(&at);
            if old.end > end {
                self.regions.insert(end, old);
            } else {
                self.dead += usize::from(old.name_bytes);
            }
        }
    }

    /// Writes the names again without those that nobody needs. Parts of a region that was cut share theirs.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.names);
        let mut moved: HashMap<u32, u32> = HashMap::new();
        for region in self.regions.values_mut() {
            let place = *moved.entry(region.at).or_insert_with(|| {
                let at = usize::try_from(region.at).unwrap_or(usize::MAX);
                let end = at.saturating_add(usize::from(region.name_bytes));
                let place = self.names.len();
                self.names.extend_from_slice(old.get(at..end).unwrap_or_default());
                u32::try_from(place).expect("not longer than before, where all places had 32 bits")
            });
            region.at = place;
        }
        self.dead = 0;
    }
}

/// `HEXSTART HEXSIZE name`: the format of the kernel's tools/perf/Documentation/jit-interface.txt.
fn entry(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > PERF_MAP_LINE_BYTES_MAX {
        return None;
    }
    let (start, rest) = hexadecimal(line)?;
    let (size, name) = hexadecimal(rest)?;
    let end = start.checked_add(size)?;
    let sound = size > 0 && size <= PERF_MAP_ENTRY_BYTES_MAX && end <= USER_END;
    (sound && !name.is_empty()).then_some((start, end, name))
}

/// A number up to the next space, and what follows the spaces.
fn hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let end = text.iter().position(|&byte| byte == b' ')?;
    let digits = text.get(..end)?;
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    // `from_str_radix` takes a sign.
    let plain = digits.first().is_some_and(u8::is_ascii_hexdigit);
    plain.then(|| (number, text.get(end..).unwrap_or_default().trim_ascii_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(text: &str) -> Regions {
        let mut regions = Regions::default();
        assert_eq!(regions.take(text.as_bytes()), text.len());
        regions
    }

    fn shown(regions: &Regions) -> Vec<String> {
        let show = |(start, region): (&u64, &Region)| {
            let name = String::from_utf8_lossy(regions.name(region));
            format!("{start:x}-{:x} {name}", region.end)
        };
        regions.regions.iter().map(show).collect()
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(shown(&regions(text)), expected, "{text:?}");
    }

    #[test]
    fn the_later_entry_counts() {
        check("10 10 a\n30 10 b\n", &["10-20 a", "30-40 b"]);
        check("10 10 a\n10 10 b\n", &["10-20 b"]);
        check("10 30 a\n20 10 b\n", &["10-20 a", "20-30 b", "30-40 a"]);
        check("20 10 a\n10 30 b\n", &["10-40 b"]);
        check("10 20 a\n20 20 b\n", &["10-20 a", "20-40 b"]);
        check("20 20 a\n10 20 b\n", &["10-30 b", "30-40 a"]);
        check(
            "10 10 a\n20 10 b\n30 10 c\n18 10 d\n",
            &["10-18 a", "18-28 d", "28-30 b", "30-40 c"],
        );
    }

    #[test]
    fn entries_as_programs_write_them() {
        check(
            "0x7f10 0x20 Lfoo/Bar;::run with spaces\n",
            &["7f10-7f30 Lfoo/Bar;::run with spaces"],
        );
        check("7F10 20   padded\r\n", &["7f10-7f30 padded"]);
        check("7f10 20 grüße\n", &["7f10-7f30 grüße"]);
        check("\n\n", &[]);
    }

    #[test]
    fn hostile_lines_are_counted_and_name_nothing() {
        let long = "x".repeat(PERF_MAP_LINE_BYTES_MAX);
        for line in [
            "10 10",
            "10 10 ",
            "10",
            "x 10 a",
            "10 y a",
            "+10 10 a",
            "-10 10 a",
            "10 0 a",
            "ffffffffffffffff 10 a",
            "ffffffff81000000 10 kernel",
            "10 ffffffffffff everything",
            "11111111111111111 10 a",
            "\0\0\0",
            " 10 10 a",
            &format!("10 10 {long}"),
        ] {
            let regions = regions(&format!("{line}\n"));
            assert_eq!((regions.len(), regions.malformed), (0, 1), "{line:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_whole_yet_is_left() {
        let mut regions = Regions::default();
        assert_eq!(regions.take(b"10 10 a\n20 10 beg"), 8);
        assert_eq!(shown(&regions), ["10-20 a"]);
        let endless = vec![b'x'; PERF_MAP_LINE_BYTES_MAX + 1];
        assert_eq!(regions.take(&endless), endless.len());
        assert_eq!(regions.malformed, 1);
    }

    #[test]
    fn memory_is_bounded() {
        let mut regions = Regions::default();
        let name = "n".repeat(1000);
        for at in 0..PERF_MAP_NAMES_BYTES_MAX as u64 / 500 {
            regions.take(format!("{:x} 10 {name}\n", at * 16).as_bytes());
        }
        assert!(regions.names.len() <= PERF_MAP_NAMES_BYTES_MAX);
        assert!(regions.left_out > 0);
        // Code that moves is named again and again, in the place of other code.
        let mut regions = Regions::default();
        for at in 0..PERF_MAP_NAMES_BYTES_MAX as u64 / 250 {
            regions.take(format!("{:x} 10 {at}{name}\n", at % 100 * 16).as_bytes());
        }
        assert_eq!((regions.len(), regions.left_out), (100, 0));
        assert!(regions.names.len() <= PERF_MAP_NAMES_BYTES_MAX);
    }
}
