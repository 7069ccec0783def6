//! Where threads wait for locks of a C library: at calls of functions that it does not export, found from those that it
//! does, or by what they do where it is linked into a program and stripped. An uncontended lock does not come there, so a
//! probe costs it nothing. The probe stands at the call, not in what is called: the kernel carries a call out by itself,
//! where it steps through most first instructions of functions, which takes ten times as long; and the caller says what
//! the lock is.

use super::code;
use super::effort::Effort;
use super::functions::Functions;
use crate::address::FileOffset;
use crate::elf::ForeignFileError;
use crate::elf::dynamic::DynamicSymbols;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::limits::{PROBED_CALLS_MAX, PROBED_CODE_BYTES_MAX};
use agent_ebpf::LockForm;
use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use object::elf;
use rustix::fd::BorrowedFd;
use std::collections::BTreeSet;
use std::ops::Range;

/// `futex` on x86-64.
const FUTEX: u64 = 202;
/// `mov $202, %eax`, as compilers write it.
const LOADS_FUTEX: [u8; 5] = [0xb8, 202, 0, 0, 0];
/// glibc's word of a lock that somebody waits for.
const CONTENDED: u64 = 2;

/// A call of a function that waits, by its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingCall {
    /// The instruction.
    pub place: FileOffset,
    /// What is waited for.
    pub form: LockForm,
}

/// Finds them; none in what is no C library, in one whose functions are built otherwise, and in a program that is linked
/// to one statically if that is musl's.
///
/// # Errors
/// See [`ForeignFileError`]; a limit too, where a file has more of them than any C library, or takes longer.
pub fn waiting_calls(file: BorrowedFd<'_>) -> Result<Vec<WaitingCall>, ForeignFileError> {
    let elf = Elf::parse(Source::file(file)?)?;
    let effort = Effort::begin();
    let found = search(&elf, &effort)?;
    effort.end()?;
    if found.len() > PROBED_CALLS_MAX {
        let max = PROBED_CALLS_MAX as u64;
        return Err(ForeignFileError::Limit { what: "calls that wait", max });
    }
    Ok(found)
}

/// What is found until the effort is too much.
pub(super) fn search(elf: &Elf<'_>, effort: &Effort) -> Result<Vec<WaitingCall>, ForeignFileError> {
    let Some(symbols) = DynamicSymbols::of(elf) else { return linked_glibc(elf, effort) };
    let found = glibc(elf, &symbols, effort)?;
    Ok(if found.is_empty() { musl(elf, &symbols) } else { found })
}

/// glibc describes each of its functions for unwinding, exported or not.
fn glibc(
    elf: &Elf<'_>,
    symbols: &DynamicSymbols<'_, '_>,
    effort: &Effort,
) -> Result<Vec<WaitingCall>, ForeignFileError> {
    let Some((lock, _)) = symbols.symbol("pthread_mutex_lock") else { return Ok(Vec::new()) };
    let library = Library::of(elf, effort)?;
    let waits = |called: &u64| library.function(*called).is_some_and(|body| is_futex_call(&body));
    // The only one that it calls and that makes the system call itself: `__lll_lock_wait`.
    let called = library.at(lock).map(|body| calls(&body)).unwrap_or_default();
    let targets: Vec<u64> = called.into_iter().filter(waits).collect();
    let [wait] = targets[..] else { return Ok(Vec::new()) };
    let mut found = library.calls_of(wait, LockForm::GlibcMutex);
    found.extend(glibc_rwlocks(&library, symbols));
    Ok(found)
}

/// Calls of what those that wait to read and to write have in common and that leads to the system call:
/// `__futex_abstimed_wait64`, since 2.34.
fn glibc_rwlocks(library: &Library<'_, '_>, symbols: &DynamicSymbols<'_, '_>) -> Vec<WaitingCall> {
    const NAMES: [&str; 6] = [
        "pthread_rwlock_rdlock",
        "pthread_rwlock_wrlock",
        "pthread_rwlock_timedrdlock",
        "pthread_rwlock_timedwrlock",
        "pthread_rwlock_clockrdlock",
        "pthread_rwlock_clockwrlock",
    ];
    let bodies: Vec<Vec<Instruction>> =
        NAMES.iter().filter_map(|name| library.at(symbols.symbol(name)?.0)).collect();
    let leads = |called: &u64| {
        let Some(body) = library.function(*called) else { return false };
        let jump = body.iter().find(|it| it.flow_control() == FlowControl::UnconditionalBranch);
        let behind = jump.and_then(|jump| library.function(jump.near_branch_target()));
        is_futex_call(&body) || behind.is_some_and(|body| is_futex_call(&body))
    };
    let common = common(bodies.iter().map(|body| calls(body)));
    let targets: Vec<u64> = common.into_iter().filter(leads).collect();
    let [wait] = targets[..] else { return Vec::new() };
    let form = LockForm::GlibcRwLock;
    bodies.iter().flat_map(|body| places(library.elf, body, wait, form)).collect()
}

/// In a program that names nothing: whoever calls a function that marks a word as waited for and waits as long as it is.
fn linked_glibc(elf: &Elf<'_>, effort: &Effort) -> Result<Vec<WaitingCall>, ForeignFileError> {
    let library = Library::of(elf, effort)?;
    let (mut seen, mut waits) = (BTreeSet::new(), Vec::new());
    for (start, bytes) in &library.code {
        for at in memchr::memmem::find_iter(bytes, &LOADS_FUTEX) {
            let Some(range) = library.functions.at(start.saturating_add(at as u64)) else {
                continue;
            };
            // A function may load the number as often as it has room for.
            if !seen.insert(range.start) {
                continue;
            }
            if library.body(&range).is_some_and(|body| is_lock_wait(&body)) {
                waits.push(range.start);
            }
        }
    }
    let [wait] = waits[..] else { return Ok(Vec::new()) };
    Ok(library.calls_of(wait, LockForm::GlibcMutex))
}

/// What the functions that wait for a mutex, to read and to write have in common: one call, of `__timedwait`. musl
/// describes nothing, but its exported functions have sizes.
fn musl(elf: &Elf<'_>, symbols: &DynamicSymbols<'_, '_>) -> Vec<WaitingCall> {
    let names = [
        ("pthread_mutex_timedlock", LockForm::MuslMutex),
        ("pthread_rwlock_timedrdlock", LockForm::MuslRwLock),
        ("pthread_rwlock_timedwrlock", LockForm::MuslRwLock),
    ];
    let body = |name: &str| {
        let (start, size) = symbols.symbol(name)?;
        code::instructions(elf, &(start..start.checked_add(size)?))
    };
    let bodies: Option<Vec<_>> =
        names.iter().map(|(name, form)| Some((body(name)?, form))).collect();
    let Some(bodies) = bodies else { return Vec::new() };
    // What is exported besides is no waiting path: what tries to lock.
    let exported = names.map(|(name, _)| symbols.symbol(name).map(|(start, _)| start));
    let common = common(bodies.iter().map(|(body, _)| calls(body)));
    let targets: Vec<u64> =
        common.into_iter().filter(|target| !exported.contains(&Some(*target))).collect();
    let [wait] = targets[..] else { return Vec::new() };
    bodies.iter().flat_map(|(body, form)| places(elf, body, wait, **form)).collect()
}

/// A library whose functions are described.
struct Library<'e, 'a> {
    elf: &'e Elf<'a>,
    functions: Functions,
    effort: &'e Effort,
    /// The bytes of its code, with their addresses.
    code: Vec<(u64, Vec<u8>)>,
}

impl<'e, 'a> Library<'e, 'a> {
    /// Fails where there is more code than any C library's. Code that is not in the file is left out.
    fn of(elf: &'e Elf<'a>, effort: &'e Effort) -> Result<Self, ForeignFileError> {
        let segments = elf
            .segments
            .iter()
            .filter(|segment| segment.kind == elf::PT_LOAD.0 && segment.flags & elf::PF_X.0 != 0);
        // Of all together: segments may share their bytes.
        let (mut code, mut left) = (Vec::new(), PROBED_CODE_BYTES_MAX);
        for segment in segments {
            let (at, length) = (segment.address, segment.file_size);
            match elf.read_address("code", at, length, left) {
                Ok(bytes) => {
                    left = left.saturating_sub(length);
                    code.push((at, bytes));
                }
                Err(ForeignFileError::Limit { what, .. }) => {
                    return Err(ForeignFileError::Limit { what, max: PROBED_CODE_BYTES_MAX });
                }
                Err(_) => {}
            }
        }
        Ok(Self { elf, functions: Functions::of(elf, effort), effort, code })
    }

    /// The instructions of the function at that address.
    fn at(&self, address: u64) -> Option<Vec<Instruction>> {
        self.body(&self.functions.at(address)?)
    }

    /// The same, if it begins there.
    fn function(&self, start: u64) -> Option<Vec<Instruction>> {
        self.body(&self.functions.at(start).filter(|range| range.start == start)?)
    }

    /// The instructions of a function, as long as the effort goes on.
    fn body(&self, range: &Range<u64>) -> Option<Vec<Instruction>> {
        if !self.effort.goes_on_to_function() {
            return None;
        }
        code::instructions(self.elf, range)
    }

    /// All calls of a function, wherever they are, or one more than a C library has.
    fn calls_of(&self, target: u64, form: LockForm) -> Vec<WaitingCall> {
        const CALL: u8 = 0xe8;
        const CALL_BYTES: u64 = 5;
        let mut callers = BTreeSet::new();
        for (start, bytes) in &self.code {
            for at in memchr::memchr_iter(CALL, bytes) {
                let Some(offset) = bytes.get(at + 1..).and_then(<[u8]>::first_chunk) else { break };
                let behind = start.saturating_add(at as u64 + CALL_BYTES);
                let offset = i64::from(i32::from_le_bytes(*offset)).cast_unsigned();
                if behind.wrapping_add(offset) == target {
                    callers.extend(self.functions.at(behind - CALL_BYTES).map(|it| it.start));
                }
            }
        }
        // The bytes may be part of another instruction: what was decoded from a function's start on is none.
        let bodies = callers.into_iter().filter_map(|start| self.function(start));
        let found = bodies.flat_map(|body| places(self.elf, &body, target, form));
        found.take(PROBED_CALLS_MAX + 1).collect()
    }
}

/// The calls of `target`.
fn places(elf: &Elf<'_>, body: &[Instruction], target: u64, form: LockForm) -> Vec<WaitingCall> {
    let calls = body.iter().filter(|it| direct_call(it) == Some(target));
    let places = calls.filter_map(|call| code::file_offset(elf, call.ip()));
    places.map(|place| WaitingCall { place, form }).collect()
}

/// Targets of direct calls.
fn calls(body: &[Instruction]) -> BTreeSet<u64> {
    body.iter().filter_map(direct_call).collect()
}

fn direct_call(instruction: &Instruction) -> Option<u64> {
    let is_direct = instruction.flow_control() == FlowControl::Call
        && instruction.op0_kind() == OpKind::NearBranch64;
    is_direct.then(|| instruction.near_branch_target())
}

/// What is in all of them.
fn common(sets: impl Iterator<Item = BTreeSet<u64>>) -> BTreeSet<u64> {
    sets.reduce(|common, set| common.intersection(&set).copied().collect()).unwrap_or_default()
}

/// True if the code loads the number and makes a system call.
fn is_futex_call(body: &[Instruction]) -> bool {
    body.iter().any(|it| loads(it, Register::EAX, FUTEX))
        && body.iter().any(|it| it.code() == Code::Syscall)
}

/// True for the body of `__lll_lock_wait(word, private)`: it puts 2 into the word that its first argument points to,
/// waits while it holds 2, and is told who shares the word. `__lll_lock_wait_private`, for locks within the library
/// itself, is not told.
fn is_lock_wait(body: &[Instruction]) -> bool {
    let exchanges = |it: &Instruction| {
        it.code() == Code::Xchg_rm32_r32
            && it.memory_base() == Register::RDI
            && it.memory_displacement64() == 0
    };
    is_futex_call(body)
        && body.iter().any(|it| loads(it, Register::EDX, CONTENDED))
        && body.iter().any(exchanges)
        && !body
            .iter()
            .any(|it| it.code() == Code::Mov_r32_imm32 && it.op0_register() == Register::ESI)
}

fn loads(instruction: &Instruction, register: Register, value: u64) -> bool {
    instruction.code() == Code::Mov_r32_imm32
        && instruction.op0_register() == register
        && instruction.immediate(1) == value
}
