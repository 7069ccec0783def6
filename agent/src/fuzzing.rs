//! Doors for the fuzz targets of tests/fuzz to parsers that are private otherwise, with what must hold of
//! their answers whatever the bytes are. Compiled with `--cfg fuzzing` alone. A panic is a finding.

mod walk;

pub use walk::walk;

use crate::address::ElfAddr;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::{bpf, elf, process, symbolize, unwind};

/// Addresses looked at in each file: enough to meet every kind of answer, few enough to stay fast.
const ADDRESSES_MAX: usize = 16;

/// A whole file.
pub fn elf(bytes: &[u8]) {
    let source = Source::memory(bytes);
    let facts = elf::inspect_bytes(source);
    let rows = unwind::unwind_rows_from_bytes(bytes);
    if let Ok(rows) = &rows {
        check_rows(rows);
    }
    let Ok(parsed) = Elf::parse(source) else { return };
    let segments = facts.map(|facts| facts.segments).unwrap_or_default();
    let of_segments = segments.iter().map(|segment| segment.address.0);
    let addresses: Vec<ElfAddr> =
        of_segments.chain([parsed.entry, 0, u64::MAX]).take(ADDRESSES_MAX).map(ElfAddr).collect();
    symbolize::native::names_in_bytes(&parsed, &addresses);
}

/// A section that rows are made of: the first byte chooses `.eh_frame`, `.debug_frame`, or code.
pub fn call_frame_information(bytes: &[u8]) {
    let Some((&choice, section)) = bytes.split_first() else { return };
    let name: &[u8] = match choice & 3 {
        0 => b".eh_frame",
        1 | 3 => b".debug_frame",
        _ => b".text",
    };
    if let Ok(rows) = unwind::unwind_rows_from_bytes(&file_with(name, section)) {
        check_rows(&rows);
    }
}

/// The text of `/proc/PID/maps`.
pub fn maps(bytes: &[u8]) {
    let maps = process::maps::Maps::read(bytes).expect("memory is always readable");
    for entry in &maps.entries {
        assert!(entry.start < entry.end, "an empty or reversed mapping was kept");
    }
}

/// The text of a perf map; the first byte says where it is torn in two.
pub fn perf_map(bytes: &[u8]) {
    let Some((&tear, text)) = bytes.split_first() else { return };
    symbolize::perf_maps::take_text(text, text.len() * usize::from(tear) / 256);
}

/// One record: of the ring buffer (first byte even) or of a lifecycle ring.
pub fn record(bytes: &[u8]) {
    let Some((&choice, record)) = bytes.split_first() else { return };
    bpf::decode_any(record, choice & 1 == 1);
}

fn check_rows(table: &unwind::RowTable) {
    assert!(table.rows().is_sorted_by(|a, b| a.0 < b.0), "rows out of order");
    assert_eq!(table.rows().count(), table.len());
    for (_, index) in table.rows() {
        assert!(usize::from(index) < table.rules().len(), "a row without a rule");
    }
}

/// A file with one executable segment of 64 KiB at address 0x1000 and one section.
fn file_with(name: &[u8], section: &[u8]) -> Vec<u8> {
    const TEXT: u64 = 0x1000;
    const HEADERS: usize = 64 + 56;
    let mut names = vec![0];
    names.extend_from_slice(name);
    let own_name = names.len() + 1;
    names.extend_from_slice(b"\0.shstrtab\0");
    let names_at = HEADERS + section.len();
    let headers_at = (names_at + names.len()).next_multiple_of(8);
    let mut file = Vec::with_capacity(headers_at + 3 * 64);
    file.extend_from_slice(b"\x7fELF\x02\x01\x01");
    file.resize(16, 0);
    file.extend_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, EM_X86_64
    words(&mut file, &[TEXT, 64, headers_at as u64]);
    file.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
    file.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD, R and X
    words(&mut file, &[0, TEXT, TEXT, headers_at as u64, 0x10000, 0x1000]);
    file.extend_from_slice(section);
    file.extend_from_slice(&names);
    file.resize(headers_at + 64, 0); // the null section
    // Code lies where the segment says, with SHF_ALLOC and SHF_EXECINSTR.
    let (address, flags) =
        if name == b".text" { (TEXT + HEADERS as u64, 6) } else { (0x20_0000, 0) };
    let first = (1, HEADERS, section.len(), address, flags);
    for (name, offset, size, address, flags) in [first, (own_name, names_at, names.len(), 0, 0)] {
        let kind = if address == 0 { 3 } else { 1 }; // SHT_STRTAB, SHT_PROGBITS
        file.extend_from_slice(&u32::try_from(name).expect("below 64").to_le_bytes());
        file.extend_from_slice(&u32::to_le_bytes(kind));
        words(&mut file, &[flags, address, offset as u64, size as u64, 0, 1, 0]);
    }
    file
}

fn words(file: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
}
