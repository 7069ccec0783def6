//! Facts of real files and of small ones compiled here; damaged files give errors.

use super::headers::Elf;
use super::source::Source;
use super::{FileFacts, ForeignFileError, ForeignFiles as _, LocalFiles, Runtime};
use crate::address::{ElfAddr, FileId};
use crate::unwind::{RowTable, unwind_rows_from_bytes};
use agent_ebpf::{RuleKind, UnwindRule};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

fn facts(path: &Path) -> FileFacts {
    LocalFiles::new().inspect(&File::open(path).unwrap().into()).unwrap()
}

/// Compiles C with `arguments`.
fn compile(directory: &Path, source: &str, arguments: &[&str]) -> PathBuf {
    let input = directory.join("program.c");
    std::fs::write(&input, source).unwrap();
    let output = directory.join("program");
    let status = Command::new("gcc").args(arguments).arg("-o").arg(&output).arg(&input).status();
    assert!(status.unwrap().success(), "gcc {arguments:?}");
    output
}

const PROGRAM: &str = "
int work(int a) { volatile int x[16] = {a}; return x[a & 15] * 3; }
int main(int c, char **v) { return work(c) + 1; }
";

#[test]
fn facts_agree_with_the_object_crate() {
    let mut files: Vec<PathBuf> = vec![std::env::current_exe().unwrap()];
    files.extend(["/usr/bin/bash", "/lib/x86_64-linux-gnu/libc.so.6"].map(PathBuf::from));
    for path in files.iter().filter(|path| path.exists()) {
        let bytes = std::fs::read(path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let facts = facts(path);
        let id = facts.gnu_build_id.as_ref().map(|id| id.as_bytes());
        assert_eq!(id, file.build_id().unwrap(), "{}", path.display());
        let segments: Vec<(u64, u64, u64)> = file
            .segments()
            .filter(|segment| segment.permissions().executable())
            .map(|segment| (segment.address(), segment.file_range().0, segment.size()))
            .collect();
        let ours: Vec<(u64, u64, u64)> =
            facts.segments.iter().map(|s| (s.address.0, s.file_offset.0, s.size)).collect();
        assert_eq!(ours, segments, "{}", path.display());
        let mut hashed = bytes[..4096].to_vec();
        hashed.extend(&bytes[bytes.len() - 4096..]);
        hashed.extend((bytes.len() as u64).to_be_bytes());
        assert_eq!(facts.htlhash.as_bytes(), &Sha256::digest(&hashed)[..16]);
    }
}

#[test]
fn runtimes_are_told_by_content() {
    let files = [
        ("/usr/bin/bash", Runtime::Native),
        ("/usr/bin/node", Runtime::Node),
        ("/usr/bin/python3.11", Runtime::Python),
        ("/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", Runtime::Java),
        ("/usr/local/go/bin/go", Runtime::Go),
        ("/lib/x86_64-linux-gnu/libc.so.6", Runtime::Native),
    ];
    for (path, runtime) in files {
        if Path::new(path).exists() {
            assert_eq!(facts(Path::new(path)).runtime, runtime, "{path}");
        } else {
            eprintln!("not on this machine, not looked at: {path}");
        }
    }
}

/// Takes the section table away, as `sstrip` does.
fn without_sections(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[40..48].fill(0); // e_shoff
    bytes[60..64].fill(0); // e_shnum, e_shstrndx
    bytes
}

/// The rows of both, but for those from code: only sections say where code lies.
fn same_rows(sectionless: &[u8], whole: &Path) {
    let sectionless = unwind_rows_from_bytes(sectionless).unwrap();
    let whole = unwind_rows_from_bytes(&std::fs::read(whole).unwrap()).unwrap();
    assert_eq!(sectionless.base(), whole.base());
    for (pc, _) in sectionless.rows().chain(whole.rows()) {
        let address = whole.base() + u64::from(pc);
        let rule = sectionless.rule_at(address);
        if rule != Some(UnwindRule::plain(RuleKind::NoInfo)) {
            assert_eq!(rule, whole.rule_at(address), "{address:#x}");
        }
    }
}

#[test]
fn a_file_without_sections_has_the_same_rows_and_ids() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), PROGRAM, &["-O1", "-Wl,--build-id"]);
    let bytes = without_sections(&path);
    let elf = Elf::parse(Source::memory(&bytes)).unwrap();
    assert!(elf.sections.is_empty());
    let sectionless = directory.path().join("sectionless");
    std::fs::write(&sectionless, &bytes).unwrap();
    assert!(facts(&path).gnu_build_id.is_some());
    assert_eq!(facts(&sectionless).gnu_build_id, facts(&path).gnu_build_id);
    same_rows(&bytes, &path);
}

#[test]
fn a_go_program_without_sections_is_known_and_has_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = crate::unwind::build_go(directory.path(), "chain", &["-ldflags=-s -w"]) else {
        return;
    };
    let bytes = without_sections(&path);
    let sectionless = directory.path().join("sectionless");
    std::fs::write(&sectionless, &bytes).unwrap();
    assert_eq!(facts(&sectionless).runtime, Runtime::Go);
    same_rows(&bytes, &path);
}

/// The address of a symbol.
fn symbol(path: &Path, name: &str) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap().address()
}

fn rows(path: &Path) -> RowTable {
    unwind_rows_from_bytes(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn debug_frame_serves_where_there_is_no_eh_frame_compressed_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let base = ["-O1", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let expected = UnwindRule { offset: 8, ..UnwindRule::plain(RuleKind::RspOffset) };
    for compression in ["-gz=none", "-gz=zlib", "-gz=zstd"] {
        let mut arguments = base.to_vec();
        arguments.push(compression);
        let mut probe = Command::new("gcc");
        probe.args(["-xc", "-c", compression, "-o", "/dev/null", "/dev/null"]);
        if !probe.output().unwrap().status.success() {
            eprintln!("gcc of this machine does not know {compression}");
            continue;
        }
        let path = compile(directory.path(), PROGRAM, &arguments);
        let rule = rows(&path).rule_at(symbol(&path, "work"));
        assert_eq!(rule, Some(expected), "{compression}");
    }
}

#[test]
fn bolts_original_eh_frame_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), PROGRAM, &["-O1"]);
    let renamed = directory.path().join("renamed");
    let status = Command::new("objcopy")
        .args(["--rename-section", ".eh_frame=.bolt.org.eh_frame"])
        .args([&path, &renamed])
        .status();
    assert!(status.unwrap().success());
    assert_eq!(rows(&renamed), rows(&path));
}

#[test]
fn an_entry_function_without_information_is_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        void _start(void);
        __asm__(\".globl _start\\n_start: xor %rbp,%rbp\\n mov %rsp,%rdi\\n call begin\\n hlt\\n\");
        void begin(long *p) { for (;;) __asm__ volatile(\"\" :: \"r\"(p)); }
    ";
    let path = compile(directory.path(), source, &["-O1", "-nostdlib", "-static"]);
    let table = rows(&path);
    let end = UnwindRule::plain(RuleKind::End);
    assert_eq!(table.rule_at(symbol(&path, "_start")), Some(end));
    assert_ne!(table.rule_at(symbol(&path, "begin")), Some(end));
}

#[test]
fn what_is_no_elf_file_is_refused() {
    for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0; 4096]] {
        assert!(matches!(unwind_rows_from_bytes(bytes), Err(ForeignFileError::Malformed { .. })));
    }
    let directory: std::os::fd::OwnedFd = File::open("/").unwrap().into();
    assert!(matches!(
        LocalFiles::new().inspect(&directory),
        Err(ForeignFileError::Malformed { what: "file", .. })
    ));
}

/// A claim of size costs no memory: the limit is checked first.
#[test]
fn sizes_beyond_the_limits_are_refused_before_reading() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), PROGRAM, &["-O1"]);
    let mut bytes = std::fs::read(&path).unwrap();
    let table = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    let count = usize::from(u16::from_le_bytes(bytes[60..62].try_into().unwrap()));
    for section in 1..count {
        let size = table + section * 64 + 32;
        bytes[size..size + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    }
    let elf = Elf::parse(Source::memory(&bytes)).unwrap();
    let section = elf.sections[1];
    assert!(matches!(
        elf.section_bytes("section", &section, 1 << 20),
        Err(ForeignFileError::Limit { what: "section", max: 1_048_576 })
    ));
}

static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), PROGRAM, &["-O1", "-g", "-Wl,--build-id"]);
    std::fs::read(path).unwrap()
});

/// Everything that is read of a file. Errors are fine, panics and unsound tables are not.
fn read_all(bytes: &[u8]) {
    if let Ok(table) = unwind_rows_from_bytes(bytes) {
        assert!(table.rows().is_sorted_by(|a, b| a.0 < b.0));
        assert!(table.rows().all(|(_, index)| usize::from(index) < table.rules().len()));
    }
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    let file = file.into();
    let files = LocalFiles::new();
    drop(files.inspect(&file));
    let addresses: Vec<ElfAddr> =
        (0..64).map(|index| ElfAddr(0x1000 + index * 16)).chain([ElfAddr(u64::MAX)]).collect();
    assert_eq!(files.names(FileId(1), &file, &addresses).len(), addresses.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn truncated_files_give_errors(length in 0..SMALL.len()) {
        read_all(&SMALL[..length]);
    }

    #[test]
    fn files_with_changed_words_give_errors(
        changes in prop::collection::vec((0..SMALL.len() / 8, prop_oneof![
            Just(0u64), Just(u64::MAX), Just(1 << 63), 0..0x8000u64, any::<u64>(),
        ]), 1..8),
    ) {
        let mut bytes = SMALL.clone();
        for (word, value) in changes {
            bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        read_all(&bytes);
    }

    #[test]
    fn files_with_changed_headers_give_errors(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
    ) {
        let mut bytes = SMALL.clone();
        let sections = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
        // The ELF header, the program headers, the section headers.
        let headers: Vec<usize> = (5..1024).chain(sections..bytes.len()).collect();
        for (at, value) in changes {
            bytes[headers[at.index(headers.len())]] = value;
        }
        read_all(&bytes);
    }
}

static GO: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let path = crate::unwind::build_go(directory.path(), "chain", &["-ldflags=-s -w"])?;
    Some(std::fs::read(path).unwrap())
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn go_tables_with_changed_bytes_give_errors(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 1..64),
        in_header in any::<bool>(),
    ) {
        let Some(bytes) = &*GO else { return Ok(()) };
        let mut bytes = bytes.clone();
        let table = {
            let elf = Elf::parse(Source::memory(&bytes)).unwrap();
            let section = elf.section(".gopclntab").unwrap();
            usize::try_from(section.offset).unwrap()..usize::try_from(section.offset + section.size).unwrap()
        };
        let length = if in_header { 72 } else { table.len() - 4 };
        for (at, value) in changes {
            let at = table.start + at.index(length);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let found = unwind_rows_from_bytes(&bytes);
        let elf = Elf::parse(Source::memory(&bytes)).unwrap();
        if let Ok(Some(table)) = super::go::GoTable::find(&elf) {
            for address in (0x40_1000..0x4a_0000).step_by(0x1001) {
                table.lines(address);
            }
        }
        drop(found);
    }
}
