//! A file of nine million rows is compiled in bounded memory, whatever the order of its functions.

use super::made_files::Frames;
use super::unwind_rows;
use crate::elf::source::Source;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::time::Instant;

/// The file that the child compiles.
const FILE: &str = "VESTA_TEST_ROWS_FILE";
const ROWS: usize = 9_000_000;
const ROWS_PER_FUNCTION: usize = 9;
const FUNCTION_BYTES: u64 = 64;
/// Memory that the compilation may take, MiB: beside 54 MB of rows in the kernel, tables of a whole host
/// and the agent itself it has to stay below 200.
const MEMORY_MIB_MAX: u64 = 60;

/// Writes a file with `rows` rows: functions of nine, in the order that `place` gives.
fn write(path: &std::path::Path, rows: usize, place: impl Fn(u64, u64) -> u64) {
    let functions = (rows / ROWS_PER_FUNCTION) as u64;
    let mut frames = Frames::new(0);
    for number in 0..functions {
        let place = place(number, functions);
        let mut instructions = Vec::new();
        for step in 1..ROWS_PER_FUNCTION as u64 {
            // DW_CFA_advance_loc by 5, DW_CFA_def_cfa_offset
            let depth = (place % 7 + step) * 8 % 104 + 16;
            instructions.extend([0x45, 0x0e, u8::try_from(depth).unwrap()]);
        }
        let start = 0x1000 + place * FUNCTION_BYTES;
        frames.function(start, u32::try_from(FUNCTION_BYTES).unwrap(), &instructions);
    }
    std::fs::write(path, frames.file(functions * FUNCTION_BYTES)).unwrap();
}

fn high_water_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Not a test of its own: what the others run as a process, whose memory is measured.
#[test]
fn child() {
    let Ok(path) = std::env::var(FILE) else { return };
    let file: OwnedFd = File::open(path).unwrap().into();
    let before = high_water_kib();
    let start = Instant::now();
    let table = unwind_rows(Source::file(file.as_fd()).unwrap()).unwrap();
    let time = start.elapsed();
    let grown = high_water_kib() - before;
    assert_eq!(table.losses(), super::RowLosses::default());
    println!(
        "rows {} ms {} KiB {grown} table {}",
        table.len(),
        time.as_millis(),
        table.memory_bytes()
    );
}

/// Compiles the file in a process of its own: (rows, milliseconds, KiB).
fn compile(path: &std::path::Path) -> (usize, u64, u64) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "unwind::size_tests::child", "--nocapture"])
        .env(FILE, path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line =
        text.lines().find_map(|line| line.split_once("rows ").map(|(_, rest)| rest)).unwrap();
    eprintln!("{}: rows {line}", path.display());
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[0].parse().unwrap(), words[2].parse().unwrap(), words[4].parse().unwrap())
}

#[test]
fn nine_million_rows_take_bounded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sorted");
    write(&path, ROWS, |number, _| number);
    let (rows, _, kib) = compile(&path);
    assert!(rows > ROWS / 100 * 99, "{rows}");
    assert!(kib < MEMORY_MIB_MAX * 1024, "{kib} KiB");
}

#[test]
fn functions_in_any_order_give_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    let [sorted, shuffled] = ["sorted", "shuffled"].map(|name| directory.path().join(name));
    write(&sorted, ROWS / 9, |number, _| number);
    // A step that shares no factor with the number of functions visits each once.
    write(&shuffled, ROWS / 9, |number, functions| number * 48_271 % functions);
    let tables = [&sorted, &shuffled].map(|path| {
        let file = File::open(path).unwrap();
        let table = unwind_rows(Source::file(file.as_fd()).unwrap()).unwrap();
        assert_eq!(table.losses(), super::RowLosses::default());
        table
    });
    assert!(tables[0] == tables[1], "{} and {} rows", tables[0].len(), tables[1].len());
    compile(&sorted);
    compile(&shuffled);
}
