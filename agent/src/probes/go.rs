//! The waiting paths of Go's locks. A goroutine that waits gives its thread to others, so no switch of a thread
//! tells of it; it comes through these functions of the runtime, and through them only when it waits. They are found by
//! Go's own tables, which stripped programs have too.

use super::{ProbedFunction, code};
use crate::elf::ForeignFileError;
use crate::elf::go::GoTable;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::limits::{GO_PLACES_MAX, PROBED_RETURNS_MAX};
use rustix::fd::BorrowedFd;

/// Mutexes wait in the first one since Go 1.24 and in the second before; rwlocks in the others since 1.20,
/// and in the second before (runtime/sema.go). `sync.runtime_Semacquire` is of wait groups and
/// `sync.runtime_notifyListWait` of conditions: no locks.
const FUNCTIONS: [&str; 4] = [
    "internal/sync.runtime_SemacquireMutex",
    "sync.runtime_SemacquireMutex",
    "sync.runtime_SemacquireRWMutexR",
    "sync.runtime_SemacquireRWMutex",
];

const _: () = assert!(GO_PLACES_MAX == FUNCTIONS.len() * (1 + PROBED_RETURNS_MAX));

/// Where the locks of a Go program wait; nothing in a file that is none, or does not use them.
///
/// # Errors
/// See [`ForeignFileError`].
pub fn lock_functions(file: BorrowedFd<'_>) -> Result<Vec<ProbedFunction>, ForeignFileError> {
    let elf = Elf::parse(Source::file(file)?)?;
    Ok(GoTable::find(&elf)?.map(|table| functions(&elf, &table)).unwrap_or_default())
}

fn functions(elf: &Elf<'_>, table: &GoTable<'_, '_>) -> Vec<ProbedFunction> {
    let named = table.named(&FUNCTIONS).into_iter();
    let probed = named.filter_map(|(name, function)| {
        let entry = code::file_offset(elf, function.entry)?;
        let returns = code::returns(elf, &(function.entry..function.bound))?;
        Some(ProbedFunction { name: FUNCTIONS[name], entry, returns })
    });
    probed.collect()
}
