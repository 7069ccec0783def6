use super::{Backing, Location, Mapping, MappingSet};
use crate::address::{AbsAddr, ElfAddr, FileId, FileOffset};
use crate::elf::{ExecutableSegment, FileFacts, Runtime};
use crate::normalize::MappedFile;
use proto::BuildId;
use std::sync::Arc;

/// A file with these executable segments: (`p_vaddr`, `p_offset`, `p_memsz`).
fn file(id: u32, segments: &[(u64, u64, u64)], runtime: Runtime) -> Arc<MappedFile> {
    let segments = segments
        .iter()
        .map(|&(address, file_offset, size)| ExecutableSegment {
            address: ElfAddr(address),
            file_offset: FileOffset(file_offset),
            size,
        })
        .collect();
    Arc::new(MappedFile {
        id: FileId(id),
        path: format!("/file/{id}"),
        facts: Some(FileFacts {
            segments,
            data: Vec::new(),
            gnu_build_id: None,
            go_build_id: None,
            htlhash: BuildId::new(&[1]).unwrap(),
            is_static: false,
            runtime,
        }),
        kernel_build_id: None,
    })
}

fn mapping(start: u64, end: u64, offset: u64, file: &Arc<MappedFile>) -> Mapping {
    let backing = Backing::File(Arc::clone(file));
    Mapping::new(AbsAddr(start), AbsAddr(end), FileOffset(offset), backing)
}

fn anonymous(start: u64, end: u64) -> Mapping {
    Mapping::new(AbsAddr(start), AbsAddr(end), FileOffset(0), Backing::Anonymous)
}

#[track_caller]
fn check_elf_address(map: Mapping, address: u64, expected: Option<u64>) {
    let set = MappingSet::new([map]);
    match (set.locate(AbsAddr(address)), expected) {
        (Location::File(_, found), Some(expected)) => {
            assert_eq!(found, ElfAddr(expected), "{address:#x}");
        }
        (Location::File(..), None) => panic!("{address:#x} has an ELF address"),
        (other, Some(_)) => panic!("{address:#x} is {other:?}"),
        (_, None) => {}
    }
}

#[test]
fn elf_addresses_of_known_layouts() {
    // A position-independent executable of GNU ld: offset = address.
    let plain = file(1, &[(0x1000, 0x1000, 0x3000)], Runtime::Native);
    check_elf_address(
        mapping(0x5555_0000_1000, 0x5555_0000_4000, 0x1000, &plain),
        0x5555_0000_1234,
        Some(0x1234),
    );
    // A fixed executable.
    let fixed = file(2, &[(0x40_1000, 0x1000, 0x500)], Runtime::Native);
    check_elf_address(mapping(0x40_1000, 0x40_2000, 0x1000, &fixed), 0x40_1010, Some(0x40_1010));
    // lld: the segment begins within a page, and its address is one page further than its offset.
    let lld = file(3, &[(0x2_4c40, 0x2_3c40, 0x8_0000)], Runtime::Native);
    check_elf_address(
        mapping(0x7f00_0002_4000, 0x7f00_000a_5000, 0x2_3000, &lld),
        0x7f00_0002_4c50,
        Some(0x2_4c50),
    );
    // Only a later part of the segment is mapped executable.
    check_elf_address(
        mapping(0x7f00_0003_0000, 0x7f00_0003_1000, 0x2_f000, &lld),
        0x7f00_0003_0010,
        Some(0x3_0010),
    );
    // Two executable segments share a page of the file: the one that fills the mapping counts.
    let two = file(4, &[(0x1000, 0x1000, 0x1800), (0x5800, 0x2800, 0x4000)], Runtime::Native);
    check_elf_address(
        mapping(0x7f00_0000_1000, 0x7f00_0000_3000, 0x1000, &two),
        0x7f00_0000_1100,
        Some(0x1100),
    );
    check_elf_address(
        mapping(0x7f00_0000_5000, 0x7f00_0000_a000, 0x2000, &two),
        0x7f00_0000_5900,
        Some(0x5900),
    );
    // Mapped from a place where no executable segment is.
    check_elf_address(
        mapping(0x7f00_0000_0000, 0x7f00_0000_1000, 0x10_0000, &two),
        0x7f00_0000_0010,
        None,
    );
    // Offsets at the end of the number space do no harm.
    let hostile = file(5, &[(u64::MAX, u64::MAX, u64::MAX)], Runtime::Native);
    let map = mapping(0x1000, u64::MAX, u64::MAX - 10, &hostile);
    let _placed = MappingSet::new([map]).locate(AbsAddr(0x2000));
}

#[test]
fn unreadable_files_keep_their_offset() {
    let unread = Arc::new(MappedFile {
        id: FileId(9),
        path: "/gone".into(),
        facts: None,
        kernel_build_id: None,
    });
    let set = MappingSet::new([mapping(0x1000, 0x3000, 0x8000, &unread)]);
    match set.locate(AbsAddr(0x2010)) {
        Location::Unplaced(file, offset) => {
            assert_eq!((file.id, offset), (FileId(9), FileOffset(0x9010)));
        }
        other => panic!("{other:?}"),
    }
}

/// `start-end@offset file` for each mapping.
fn shown(set: &MappingSet) -> String {
    let line = |map: &Mapping| {
        let file = map.file.as_ref().map_or("-".into(), |file| file.id.0.to_string());
        format!("{:x}-{:x}@{:x} {file}", map.start.0, map.end.0, map.file_offset.0)
    };
    set.mappings().iter().map(line).collect::<Vec<_>>().join(", ")
}

#[test]
fn later_mappings_cover_earlier_ones() {
    let (a, b) = (file(1, &[], Runtime::Native), file(2, &[], Runtime::Native));
    let base = MappingSet::new([mapping(0x1000, 0x5000, 0x100, &a)]);
    for (added, expected) in [
        (mapping(0x6000, 0x7000, 0, &b), "1000-5000@100 1, 6000-7000@0 2"),
        (mapping(0x0, 0x1000, 0, &b), "0-1000@0 2, 1000-5000@100 1"),
        (mapping(0x2000, 0x3000, 0, &b), "1000-2000@100 1, 2000-3000@0 2, 3000-5000@2100 1"),
        (mapping(0x1000, 0x5000, 0, &b), "1000-5000@0 2"),
        (mapping(0x0, 0x9000, 0, &b), "0-9000@0 2"),
        (mapping(0x4000, 0x6000, 0, &b), "1000-4000@100 1, 4000-6000@0 2"),
        (anonymous(0x1000, 0x2000), "1000-2000@0 -, 2000-5000@1100 1"),
    ] {
        assert_eq!(shown(&base.with([added])), expected);
    }
    assert_eq!(shown(&base), "1000-5000@100 1", "a set never changes");
    let both = base.with([mapping(0x8000, 0x9000, 0, &b), mapping(0x2000, 0x8800, 0, &a)]);
    assert_eq!(shown(&both), "1000-2000@100 1, 2000-8800@0 1, 8800-9000@800 2");
}

#[test]
fn addresses_outside_belong_to_nobody() {
    let a = file(1, &[(0, 0, 0x10000)], Runtime::Python);
    let set =
        MappingSet::new([mapping(0x1000, 0x2000, 0, &a), mapping(0x3000, 0x4000, 0x1000, &a)]);
    for (address, inside) in [
        (0, false),
        (0xfff, false),
        (0x1000, true),
        (0x1fff, true),
        (0x2000, false),
        (0x3000, true),
        (0x4000, false),
        (u64::MAX, false),
    ] {
        assert_eq!(set.mapping(AbsAddr(address)).is_some(), inside, "{address:#x}");
    }
    assert_eq!(set.runtime(), Runtime::Python);
    assert_eq!(MappingSet::default().runtime(), Runtime::Native);
}

#[test]
fn a_variable_lies_behind_the_code_of_its_file() {
    let code = |id, start| {
        let MappedFile { facts, .. } =
            Arc::into_inner(file(id, &[(0x1000, 0x1000, 0x1000)], Runtime::Native)).unwrap();
        let facts =
            facts.map(|facts| FileFacts { data: vec![0x3000..0x3400, 0x3800..0x3900], ..facts });
        let path = format!("/file/{id}");
        let file = MappedFile { id: FileId(id), path, facts, kernel_build_id: None };
        mapping(start, start + 0x1000, 0x1000, &Arc::new(file))
    };
    let set =
        MappingSet::new([code(1, 0x50_1000), code(2, 0x60_1000), anonymous(0x70_0000, 0x70_1000)]);
    let place =
        |address| set.locate_data(AbsAddr(address)).map(|(file, place)| (file.id.0, place.0));
    assert_eq!(place(0x50_3010), Some((1, 0x3010)));
    assert_eq!(place(0x60_33ff), Some((2, 0x33ff)));
    // Code, what lies between, behind all, before all.
    let nowhere = [0x50_1010, 0x50_2fff, 0x60_3400, 0x70_3010, 0x1000];
    assert_eq!(nowhere.map(place), [None; 5]);
}
