//! Where threads wait in a C library: functions that it does not export, found from those that it does. An
//! uncontended lock does not come there, so a probe costs it nothing.

use super::code;
use crate::address::FileOffset;
use crate::elf::ForeignFileError;
use crate::elf::dynamic::DynamicSymbols;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::symbolize::native::functions::containing as function_range;
use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use rustix::fd::BorrowedFd;
use std::collections::BTreeSet;

/// `futex` on x86-64.
const FUTEX: u64 = 202;

/// The function that waits, by its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibcWait {
    /// glibc's `__lll_lock_wait(word, private)`: contended mutexes.
    Glibc(FileOffset),
    /// musl's `__timedwait(word, value, clock, time, private)`: contended mutexes and rwlocks.
    Musl(FileOffset),
}

/// Finds it; `None` in what is no C library, or one whose functions are built otherwise.
///
/// # Errors
/// See [`ForeignFileError`].
pub fn lock_wait(file: BorrowedFd<'_>) -> Result<Option<LibcWait>, ForeignFileError> {
    let elf = Elf::parse(Source::file(file)?)?;
    let Some(symbols) = DynamicSymbols::of(&elf) else { return Ok(None) };
    let glibc = glibc(&elf, &symbols).map(LibcWait::Glibc);
    Ok(glibc.or_else(|| musl(&elf, &symbols).map(LibcWait::Musl)))
}

/// The only function that `pthread_mutex_lock` calls and that makes the system call itself. glibc describes each of its
/// functions for unwinding, exported or not.
fn glibc(elf: &Elf<'_>, symbols: &DynamicSymbols<'_, '_>) -> Option<FileOffset> {
    let (lock, _) = symbols.symbol("pthread_mutex_lock")?;
    let body = code::instructions(elf, &function_range(elf, lock)?)?;
    let waits = |target: &u64| {
        let range = function_range(elf, *target).filter(|range| range.start == *target)?;
        makes_futex_call(&code::instructions(elf, &range)?).then_some(())
    };
    let targets: Vec<u64> = calls(&body).into_iter().filter(|it| waits(it).is_some()).collect();
    only(elf, &targets)
}

/// What the functions that wait for a mutex, to read and to write have in common: one call. musl describes nothing, but
/// its exported functions have sizes.
fn musl(elf: &Elf<'_>, symbols: &DynamicSymbols<'_, '_>) -> Option<FileOffset> {
    let names =
        ["pthread_mutex_timedlock", "pthread_rwlock_timedrdlock", "pthread_rwlock_timedwrlock"];
    let mut common: Option<BTreeSet<u64>> = None;
    for name in names {
        let (start, size) = symbols.symbol(name)?;
        let body = code::instructions(elf, &(start..start.checked_add(size)?))?;
        let called = calls(&body);
        common = Some(match common {
            Some(common) => common.intersection(&called).copied().collect(),
            None => called,
        });
    }
    // What is exported besides is no waiting path: what tries to lock.
    let exported = names.map(|name| symbols.symbol(name).map(|(start, _)| start));
    let common: Vec<u64> =
        common?.into_iter().filter(|target| !exported.contains(&Some(*target))).collect();
    only(elf, &common)
}

/// The place of the only one.
fn only(elf: &Elf<'_>, targets: &[u64]) -> Option<FileOffset> {
    match targets {
        [target] => code::file_offset(elf, *target),
        _ => None,
    }
}

/// Targets of direct calls.
fn calls(body: &[Instruction]) -> BTreeSet<u64> {
    let calls = body.iter().filter(|instruction| instruction.flow_control() == FlowControl::Call);
    let direct = calls.filter(|instruction| instruction.op0_kind() == OpKind::NearBranch64);
    direct.map(Instruction::near_branch_target).collect()
}

/// True if the code loads the number and makes a system call.
fn makes_futex_call(body: &[Instruction]) -> bool {
    let number = body.iter().any(|instruction| {
        instruction.code() == Code::Mov_r32_imm32
            && instruction.op0_register() == Register::EAX
            && instruction.immediate(1) == FUTEX
    });
    number && body.iter().any(|instruction| instruction.code() == Code::Syscall)
}
