//! The user registers that a walk starts from. x86-64 only.

use super::maps::{TASK_STACK_OFFSET, USER_REGISTERS};
use agent_ebpf::UserRegisters;
use aya_ebpf::bindings::{bpf_perf_event_data, pt_regs};
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs,
};

use core::mem::offset_of;

/// The registers that unwinding needs.
#[derive(Clone, Copy)]
pub(super) struct Registers {
    pub(super) ip: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    pub(super) cs: u64,
}

impl Registers {
    /// True if these are the registers of user code; a kernel thread has none.
    #[inline(always)]
    pub(super) fn of_user(self) -> bool {
        self.cs & 3 == 3 && self.ip != 0
    }

    /// True for a process that runs 32-bit code (`__USER32_CS`, kernel arch/x86/include/asm/segment.h).
    #[inline(always)]
    pub(super) fn compat(self) -> bool {
        self.cs == 0x23
    }
}

/// Loads a field of a structure that the kernel owns.
#[inline(always)]
unsafe fn load(field: *const u64) -> u64 {
    // SAFETY: the caller's pointer is one that the verifier knows and bounds. Volatile, so that LLVM
    // neither merges nor reorders loads into a form that the verifier refuses.
    unsafe { field.read_volatile() }
}

#[inline(always)]
unsafe fn registers_at(regs: *const pt_regs) -> Registers {
    let regs = regs.cast::<u64>();
    // SAFETY: the caller's structure holds these fields.
    let field = |offset: usize| unsafe { load(regs.wrapping_byte_add(offset)) };
    Registers {
        ip: field(offset_of!(pt_regs, rip)),
        sp: field(offset_of!(pt_regs, rsp)),
        bp: field(offset_of!(pt_regs, rbp)),
        cs: field(offset_of!(pt_regs, cs)),
    }
}

/// The registers at the interrupt.
#[inline(always)]
pub(super) fn interrupted(ctx: *const bpf_perf_event_data) -> Registers {
    // SAFETY: `regs` is the first field of the context that the kernel hands to the program.
    unsafe { registers_at(ctx.cast()) }
}

/// The registers with which the current task entered the kernel.
#[inline(always)]
pub(super) fn at_kernel_entry() -> Registers {
    if USER_REGISTERS.load() == UserRegisters::Helper as u32 {
        // SAFETY: helpers without preconditions; the current task has registers as long as it runs.
        let task = unsafe { bpf_get_current_task_btf() };
        // SAFETY: as above. The result is a trusted pointer, whose fields can be loaded directly.
        let regs = unsafe { bpf_task_pt_regs(task) } as *const pt_regs;
        // SAFETY: as above.
        return unsafe { registers_at(regs) };
    }
    from_kernel_stack()
}

/// For kernels before 5.15, where the helper is missing: the registers lie at the top of the kernel
/// stack, 16 KiB on x86-64 (`THREAD_SIZE`, `task_pt_regs`, arch/x86/include/asm/processor.h).
#[inline(always)]
fn from_kernel_stack() -> Registers {
    const TOP: u64 = 16384 - size_of::<pt_regs>() as u64;
    let none = Registers { ip: 0, sp: 0, bp: 0, cs: 0 };
    // SAFETY: a helper without preconditions.
    let task = unsafe { bpf_get_current_task() };
    let stack = read_kernel(task.wrapping_add(u64::from(TASK_STACK_OFFSET.load())));
    if stack == 0 {
        return none;
    }
    let top = stack.wrapping_add(TOP);
    Registers {
        ip: read_kernel(top.wrapping_add(offset_of!(pt_regs, rip) as u64)),
        sp: read_kernel(top.wrapping_add(offset_of!(pt_regs, rsp) as u64)),
        bp: read_kernel(top.wrapping_add(offset_of!(pt_regs, rbp) as u64)),
        cs: read_kernel(top.wrapping_add(offset_of!(pt_regs, cs) as u64)),
    }
}

/// Eight bytes of kernel memory, 0 if they cannot be read.
#[inline(always)]
fn read_kernel(address: u64) -> u64 {
    let mut value = 0u64;
    // SAFETY: the helper checks the address and writes eight bytes to a variable of that size.
    let result = unsafe {
        bpf_probe_read_kernel((&raw mut value).cast(), 8, address as *const core::ffi::c_void)
    };
    if result == 0 { value } else { 0 }
}
