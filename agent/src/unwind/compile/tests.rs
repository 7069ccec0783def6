//! Two threads make the same rows as one.

use super::*;
use crate::limits::UNWIND_BLOCK_ROWS_MAX;
use crate::unwind::made_files::Frames;
use agent_ebpf::{RuleKind, UnwindRule};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};

/// The rows by one thread, and as [`merge`] makes them.
fn both(source: Source<'_>) -> [RowTable; 2] {
    [true, false].map(|alone| {
        let elf = Elf::parse(source).unwrap();
        let mut builder = Builder::new(elf.executable_segments());
        describe_roots(&elf, &mut builder).unwrap();
        let mut decompressed = Vec::new();
        let sections = frame_sections(&elf, &mut decompressed, &mut builder.losses).unwrap();
        let entries = Entries::find(sections, &builder).unwrap();
        if alone {
            in_order(builder, cfi::Compiler::new(None), entries, None, None).unwrap()
        } else {
            merge(builder, cfi::Compiler::new(None), entries, None).unwrap()
        }
    })
}

#[test]
fn blocks_that_are_read_ahead_give_the_same_rows() {
    const BYTES: u64 = 64;
    let count = 3 * UNWIND_HELPED_FUNCTIONS_MIN as u64 + 77;
    let mut frames = Frames::new(0);
    for number in 0..count {
        // A step that shares no factor with their number visits each once.
        let place = number * 48_271 % count;
        let instructions = match place % 1000 {
            // No such instruction; one that lies about its operand.
            998 => vec![0x45, 0x3f],
            999 => vec![0x0f, 0xff, 0xff, 0x7f],
            // More rows than a block has room for: DW_CFA_advance_loc by 0, and two depths in turn.
            500 if place < 10_000 => {
                [0x41, 0x0e, 16, 0x41, 0x0e, 24].repeat(UNWIND_BLOCK_ROWS_MAX / 3)
            }
            rest => {
                let depth = u8::try_from(rest * 8 % 104 + 16).unwrap();
                vec![0x45, 0x0e, depth, 0x44, 0x0e, 8]
            }
        };
        // Some overlap the next one, some leave a gap.
        let bytes = match place % 7 {
            0 => BYTES + 8,
            1 => BYTES - 20,
            _ => BYTES,
        };
        frames.function(0x1000 + place * BYTES, u32::try_from(bytes).unwrap(), &instructions);
    }
    let file = frames.file(count * BYTES);
    let [alone, helped] = both(Source::memory(&file));
    assert!(alone.len() as u64 > 2 * count, "{}", alone.len());
    assert!(alone.losses().damaged > 0, "{:?}", alone.losses());
    assert!(alone == helped, "{:?} and {:?}", alone.losses(), helped.losses());
}

#[test]
fn the_compilers_own_library_has_the_same_rows_either_way() {
    let root = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let folder = std::path::PathBuf::from(String::from_utf8(root.stdout).unwrap().trim());
    let mut files = std::fs::read_dir(folder.join("lib")).unwrap().filter_map(Result::ok);
    let library = files.find(|file| file.file_name().to_string_lossy().contains("librustc_driver"));
    let Some(library) = library else {
        eprintln!("skipped: no librustc_driver");
        return;
    };
    let file: OwnedFd = File::open(library.path()).unwrap().into();
    let [alone, helped] = both(Source::file(file.as_fd()).unwrap());
    assert!(alone.len() > 500_000 && alone == helped, "{} and {} rows", alone.len(), helped.len());
}

/// V8's built-in functions, which nothing describes, are a stretch of 1.5 MB.
#[test]
fn what_comes_before_the_rows_of_code_stays_so() {
    let Ok(file) = File::open("/usr/bin/node") else {
        eprintln!("skipped: no node");
        return;
    };
    let file = OwnedFd::from(file);
    let source = Source::file(file.as_fd()).unwrap();
    let soon = unwind_rows_soon(source).unwrap();
    let whole = unwind_rows(source).unwrap();
    let (rows, all, put_off) = (soon.len(), whole.len(), soon.code_put_off());
    eprintln!("{rows} of {all} rows first, {put_off} bytes of code put off");
    assert!(soon.code_put_off() > UNWIND_CODE_SOON_BYTES && whole.code_put_off() == 0);
    assert!(whole.is_from_code() && whole.len() > soon.len());
    let no_info = UnwindRule::plain(RuleKind::NoInfo);
    for (pc, rule) in soon.rows() {
        let rule = soon.rules()[usize::from(rule)];
        let address = soon.base() + u64::from(pc);
        assert!(rule == no_info || whole.rule_at(address) == Some(rule), "{address:x} {rule:?}");
    }
}
