//! What executables say of themselves, by other programs than the one under test: entry points by the ELF header, names
//! by `nm`.

use crate::workload;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Bytes that the entry function of an executable has at most (musl's and glibc's have 22 and 38).
const ENTRY_BYTES_MAX: u64 = 64;

/// Files, each read when it is first asked for.
#[derive(Debug, Default)]
pub struct Files {
    entries: HashMap<String, Option<u64>>,
    symbols: HashMap<String, Vec<(u64, u64)>>,
}

impl Files {
    /// True if the address is in the entry function of an executable.
    pub fn is_entry(&mut self, path: &str, address: u64) -> bool {
        let entry = match self.entries.get(path) {
            Some(entry) => *entry,
            None => {
                let entry = entry(Path::new(path));
                self.entries.insert(path.to_owned(), entry);
                entry
            }
        };
        entry.is_some_and(|entry| (entry..entry + ENTRY_BYTES_MAX).contains(&address))
    }

    /// True if `nm` knows a function with a size that covers the address.
    pub fn covers(&mut self, path: &str, address: u64) -> bool {
        if !self.symbols.contains_key(path) {
            self.symbols.insert(path.to_owned(), functions(path));
        }
        let functions = &self.symbols[path];
        // Sorted by address; nested functions are rare, a few steps back find them.
        let behind = functions.partition_point(|(start, _)| *start <= address);
        functions[behind.saturating_sub(16)..behind].iter().any(|(_, end)| address < *end)
    }
}

/// `e_entry` of a 64-bit ELF file.
fn entry(path: &Path) -> Option<u64> {
    use std::os::unix::fs::FileExt as _;
    let mut header = [0; 64];
    std::fs::File::open(path).ok()?.read_exact_at(&mut header, 0).ok()?;
    let entry = u64::from_le_bytes(header[24..32].try_into().ok()?);
    (header[..5] == *b"\x7fELF\x02" && entry != 0).then_some(entry)
}

/// Starts and ends of the functions in both symbol tables, in order.
fn functions(path: &str) -> Vec<(u64, u64)> {
    let mut functions = Vec::new();
    for table in [&["--dynamic"][..], &[]] {
        let mut command = Command::new("nm");
        command.args(["--print-size", "--defined-only"]).args(table).arg(path);
        let Ok(output) = command.output() else { continue };
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split(' ');
            let mut number = || u64::from_str_radix(words.next()?, 16).ok();
            let (Some(start), Some(size)) = (number(), number()) else { continue };
            if matches!(words.next(), Some("T" | "t" | "W" | "w" | "i" | "u")) {
                functions.push((start, start.saturating_add(size)));
            }
        }
    }
    functions.sort_unstable();
    functions
}

/// Where the C library begins a thread: file name and address of the outermost frame, by the compiler's own
/// unwinder.
#[must_use]
pub fn thread_root() -> Option<(String, u64)> {
    #[derive(Deserialize)]
    struct Printed {
        root: workload::Root,
    }
    let program = workload::c("leaderless", &["-pthread"])?;
    let mut command = Command::new(program);
    command.arg("1");
    let printed = crate::Running::start(command).finish(Duration::from_secs(10));
    let Printed { root } = serde_json::from_str(&printed).ok()?;
    Some((root.file, root.address))
}
