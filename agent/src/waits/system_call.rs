//! What a system call waits for, by its number; where that says nothing, by the functions of the kernel. Numbers
//! of Linux 6.18 (`arch/x86/entry/syscalls/syscall_64.tbl`, `scripts/syscall.tbl` for aarch64).

use super::WaitReason;
use crate::address::AbsAddr;
use agent_ebpf::wait::SYSCALL_CLASSES;
use agent_ebpf::{WaitClass, WaitFacts};

/// Whose numbers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Machine {
    /// The one that this program is compiled for.
    pub const THIS: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };
}

/// A system call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Whose number it is.
    pub machine: Machine,
    /// Its number.
    pub number: u64,
    /// Its first three arguments.
    pub arguments: [u64; 3],
}

impl From<&WaitFacts> for SystemCall {
    /// The one that the kernel side found a thread in.
    fn from(facts: &WaitFacts) -> Self {
        let WaitFacts { syscall: number, arguments, .. } = *facts;
        Self { machine: Machine::THIS, number, arguments }
    }
}

/// The class of a system call of this machine, as the kernel side has it.
#[must_use]
pub fn class_of_system_call(number: u64) -> WaitClass {
    let class = usize::try_from(number).ok().and_then(|number| SYSCALL_CLASSES.get(number));
    class.and_then(|class| WaitClass::from_number(u32::from(*class))).unwrap_or(WaitClass::Other)
}

/// A futex wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Futex {
    /// `FUTEX_WAIT` and others, without flags.
    pub(super) operation: u32,
    /// The word.
    pub(super) word: AbsAddr,
    /// What it must hold for the thread to wait.
    pub(super) expected: u32,
}

impl SystemCall {
    /// The futex wait that this is.
    pub(super) fn futex(self) -> Option<Futex> {
        /// Without `FUTEX_PRIVATE_FLAG` and `FUTEX_CLOCK_REALTIME` (include/uapi/linux/futex.h).
        const OPERATION: u32 = 0x7f;
        (self.number == self.one_of(202, 98)).then(|| Futex {
            operation: low32(self.arguments[1]) & OPERATION,
            word: AbsAddr(self.arguments[0]),
            expected: low32(self.arguments[2]),
        })
    }

    /// The number on each machine.
    fn one_of(self, x86_64: u64, aarch64: u64) -> u64 {
        match self.machine {
            Machine::X86_64 => x86_64,
            Machine::Aarch64 => aarch64,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits of these arguments")]
fn low32(value: u64) -> u32 {
    value as u32
}

/// What the thread waits for in the kernel; [`WaitReason::Futex`] says that the rest is for user functions to tell.
pub(super) fn reason(call: Option<SystemCall>, kernel: &[&str]) -> WaitReason {
    if kernel.iter().any(|name| FAULTS.contains(name)) {
        return WaitReason::PageFault;
    }
    if let Some(reason) = call.and_then(by_number) {
        return reason;
    }
    let told = kernel.iter().find_map(|name| {
        KERNEL.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, reason)| *reason)
    });
    told.unwrap_or(WaitReason::Other)
}

/// Entries of page faults (arch/x86/mm/fault.c, arch/arm64/mm/fault.c).
const FAULTS: [&str; 5] =
    ["exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "do_page_fault", "el0_da"];

/// Functions of the kernel that say it where no number does: a call that was restarted, or none.
const KERNEL: [(&str, WaitReason); 10] = [
    ("io_schedule", WaitReason::Io),
    ("folio_wait", WaitReason::Io),
    ("futex_wait", WaitReason::Futex),
    ("do_futex", WaitReason::Futex),
    ("do_nanosleep", WaitReason::Sleep),
    ("hrtimer_nanosleep", WaitReason::Sleep),
    ("do_sys_poll", WaitReason::Poll),
    ("do_poll", WaitReason::Poll),
    ("do_select", WaitReason::Poll),
    ("ep_poll", WaitReason::Poll),
];

fn by_number(call: SystemCall) -> Option<WaitReason> {
    let found = numbers(call.machine).iter().find(|(_, numbers)| numbers.contains(&call.number));
    found.map(|(reason, _)| *reason)
}

const fn numbers(machine: Machine) -> &'static Numbers {
    match machine {
        Machine::X86_64 => &X86_64,
        Machine::Aarch64 => &AARCH64,
    }
}

/// How many reasons claim the number.
#[cfg(test)]
pub(super) fn reasons_of(call: SystemCall) -> usize {
    numbers(call.machine).iter().filter(|(_, numbers)| numbers.contains(&call.number)).count()
}

type Numbers = [(WaitReason, &'static [u64]); 5];

/// futex, `futex_wait` (one that `futex_waitv` waits for may be any of several); nanosleep, `clock_nanosleep`; poll,
/// select, pselect6, ppoll, `epoll_wait`, `epoll_pwait`, `epoll_pwait2`; semop, semtimedop; then everything that waits
/// for a device, a file system or a peer.
#[rustfmt::skip]
const X86_64: Numbers = [
    (WaitReason::Futex, &[202, 449, 455]),
    (WaitReason::Sleep, &[35, 230]),
    (WaitReason::Poll, &[7, 23, 232, 270, 271, 281, 441]),
    (WaitReason::Semaphore, &[65, 220]),
    (WaitReason::Io, &[
        0, 1, 2, 3, 4, 5, 6, 8, 17, 18, 19, 20, 26, 40, 42, 43, 44, 45, 46, 47, 69, 70, 72, 73, 74, 75, 76, 77, 78,
        82, 83, 84, 85, 86, 87, 88, 89, 162, 187, 206, 208, 209, 217, 242, 243, 257, 258, 262, 263, 264, 267, 275,
        276, 277, 278, 285, 288, 295, 296, 299, 306, 307, 316, 326, 327, 328, 332, 333, 426, 437,
    ]),
];
#[rustfmt::skip]
const AARCH64: Numbers = [
    (WaitReason::Futex, &[98, 449, 455]),
    (WaitReason::Sleep, &[101, 115]),
    (WaitReason::Poll, &[22, 72, 73, 441]),
    (WaitReason::Semaphore, &[192, 193]),
    (WaitReason::Io, &[
        0, 2, 4, 25, 32, 34, 35, 36, 37, 38, 45, 46, 47, 56, 57, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 75,
        76, 77, 78, 79, 80, 81, 82, 83, 84, 182, 183, 188, 189, 202, 203, 206, 207, 211, 212, 213, 227, 242, 243,
        267, 269, 276, 285, 286, 287, 291, 292, 426, 437,
    ]),
];
