//! Names for Go code from Go's own tables, which are there in stripped programs too.

use crate::address::ElfAddr;
use crate::elf::SourceLine;
use crate::elf::go::{GoLine, GoTable};
use crate::elf::headers::Elf;

/// One answer for each address, empty for what is not Go's code (C code of the same file). Nothing if
/// the file is no Go program or its tables are damaged.
pub(super) fn names(elf: &Elf<'_>, addresses: &[ElfAddr]) -> Option<Vec<Vec<SourceLine>>> {
    match GoTable::find(elf) {
        Ok(table) => {
            let table = table?;
            Some(addresses.iter().map(|address| lines(&table, *address)).collect())
        }
        Err(error) => {
            tracing::debug!(%error, "Go tables not readable");
            None
        }
    }
}

fn lines(table: &GoTable<'_, '_>, address: ElfAddr) -> Vec<SourceLine> {
    let line = |GoLine { function, file, line }| SourceLine {
        function,
        system_name: String::new(),
        file,
        line,
    };
    table.lines(address.0).into_iter().map(line).collect()
}
