//! What a probe costs whoever meets it: measured on functions of this program's own, whose instructions are like those
//! that are probed. Emulated instructions cost a tenth of those that the kernel steps through one by one, and machines
//! differ more than that.

use super::{Attached, BpfError, LibcProbes, LockProbes};
use crate::address::FileOffset;
use crate::clock::thread_cpu_ns;
use crate::limits::PROBE_COST_CALLS;
use crate::probes::ProbedFunction;
use crate::probes::libc::WaitingCall;
use agent_ebpf::LockForm;
use std::fs::File;
use std::os::fd::AsFd as _;

// Go's functions begin by comparing the stack pointer with memory. Those of C libraries are probed where they call.
core::arch::global_asm!(
    ".pushsection .text.vesta_probed, \"ax\", @progbits",
    ".globl vesta_probed",
    ".type vesta_probed, @function",
    "vesta_probed:",
    "cmp rsp, qword ptr [rsp]",
    "vesta_probed_return:",
    "ret",
    ".size vesta_probed, . - vesta_probed",
    ".globl vesta_calls",
    ".type vesta_calls, @function",
    "vesta_calls:",
    "call vesta_probed_return",
    "ret",
    ".size vesta_calls, . - vesta_calls",
    ".popsection",
);

unsafe extern "C" {
    fn vesta_probed();
    fn vesta_calls();
}

/// Bytes of the comparison.
const RETURN_AT: u64 = 4;

/// What probes cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCost {
    /// Nanoseconds that one hit takes, its program included.
    pub ns: u64,
    /// Hits by which that was measured: the programs counted them too.
    pub hits: u64,
}

impl LockProbes {
    /// Measures what one hit of a probe takes.
    ///
    /// # Errors
    /// If the kernel refuses a probe, or this program's own mapping is not to be found.
    pub fn cost_ns(&self) -> Result<ProbeCost, BpfError> {
        let (file, entry) = own_place(vesta_probed as *const () as u64)?;
        let function = ProbedFunction {
            name: "vesta_probed",
            entry: FileOffset(entry),
            returns: vec![FileOffset(entry + RETURN_AT)],
        };
        // The first program at both places: the other one would send what it finds.
        let attached = self.attach_first(file.as_fd(), &function)?;
        // SAFETY: the function compares and returns; it changes nothing but flags.
        Ok(measured(attached, 2, || unsafe { vesta_probed() }))
    }
}

impl LibcProbes {
    /// Measures what one hit of a probe takes.
    ///
    /// # Errors
    /// If the kernel refuses a probe, or this program's own mapping is not to be found.
    pub fn cost_ns(&self) -> Result<ProbeCost, BpfError> {
        let (file, place) = own_place(vesta_calls as *const () as u64)?;
        let call = WaitingCall { place: FileOffset(place), form: LockForm::GlibcMutex };
        let mut attached = Attached::default();
        self.attach_next(file.as_fd(), &mut vec![call], &mut attached)?;
        // SAFETY: the function calls a return and returns; it changes nothing.
        Ok(measured(attached, 1, || unsafe { vesta_calls() }))
    }
}

/// What a hit takes, of so many in each call: by the time of this thread, from which others take no part.
fn measured(attached: Attached, hits: u64, call: impl Fn()) -> ProbeCost {
    let begin_ns = thread_cpu_ns();
    for _ in 0..PROBE_COST_CALLS {
        call();
    }
    let taken_ns = thread_cpu_ns().saturating_sub(begin_ns);
    drop(attached);
    let hits = hits * u64::from(PROBE_COST_CALLS);
    ProbeCost { ns: taken_ns / hits, hits }
}

/// This program's file, and where in it a function of its own lies.
fn own_place(address: u64) -> Result<(File, u64), BpfError> {
    let own = "/proc/self/exe";
    let failed = |call| move |source| BpfError::System { call, source };
    let file = File::open(own).map_err(failed(own))?;
    Ok((file, own_offset(address).map_err(failed("/proc/self/maps"))?))
}

/// Where in its file the function lies.
fn own_offset(address: u64) -> std::io::Result<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let found = maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        let offset = hex(fields.nth(1)?)?;
        (start..end).contains(&address).then(|| address - start + offset)
    });
    found.ok_or_else(|| std::io::Error::other("no mapping has this program's own code"))
}
