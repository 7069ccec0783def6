//! Names for Go code from Go's own tables, which are there in stripped programs too.

use super::UnnamedReason;
use crate::address::ElfAddr;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::go::{GoLine, GoTable};
use crate::elf::headers::Elf;
use crate::elf::{Names, SourceLine};
use crate::limits::GO_BATCH_STEPS_MAX;

/// One answer for each address; C code of the same file has no symbol here. Nothing if the file is no Go
/// program or its tables are damaged. What is not looked up before `until`, or within the steps of one
/// batch, is cut short.
pub(super) fn names(
    elf: &Elf<'_>,
    addresses: &[ElfAddr],
    until: MonotonicNs,
) -> Option<Vec<Names>> {
    match GoTable::find(elf) {
        Ok(table) => {
            let table = table?;
            let mut steps = 0usize;
            let name = |address: &ElfAddr| {
                if steps > GO_BATCH_STEPS_MAX || monotonic_now() > until {
                    return Err(UnnamedReason::Limit);
                }
                let names = lines(&table, *address);
                steps = steps.saturating_add(table.walked());
                names
            };
            Some(addresses.iter().map(name).collect())
        }
        Err(error) => {
            tracing::debug!(%error, "Go tables not readable");
            None
        }
    }
}

fn lines(table: &GoTable<'_, '_>, address: ElfAddr) -> Names {
    let line = |GoLine { function, file, line }| SourceLine {
        function,
        system_name: String::new(),
        file,
        line,
    };
    let lines: Vec<SourceLine> = table.lines(address.0).into_iter().map(line).collect();
    if lines.is_empty() { Err(UnnamedReason::NoSymbol) } else { Ok(lines) }
}
