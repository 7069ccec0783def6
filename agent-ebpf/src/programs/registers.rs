//! The user registers that a walk starts from. x86-64 only.

use super::maps::{Scratch, TASK_STACK_OFFSET, USER_REGISTERS};
use agent_ebpf::verifier::limit32;
use agent_ebpf::walk::Registers;
use agent_ebpf::{UserRegisters, WaitFacts};
use aya_ebpf::bindings::{bpf_perf_event_data, pt_regs};
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs,
};
use core::mem::offset_of;

/// True if these are the registers of user code; a kernel thread has none.
#[inline(always)]
pub(super) fn of_user(registers: &Registers) -> bool {
    registers.cs & 3 == 3 && registers.ip != 0
}

/// True for a process that runs 32-bit code (`__USER32_CS`, kernel arch/x86/include/asm/segment.h).
#[inline(always)]
pub(super) fn compat(registers: &Registers) -> bool {
    registers.cs == 0x23
}

/// Loads a field of a structure that the kernel owns.
///
/// # Safety
/// The structure is one that the verifier knows, and has a word at that offset.
#[inline(always)]
pub(super) unsafe fn field(regs: *const u64, offset: usize) -> u64 {
    // SAFETY: the caller's promise. Volatile, so that LLVM neither merges nor reorders loads into a form
    // that the verifier refuses.
    unsafe { regs.wrapping_byte_add(offset).read_volatile() }
}

/// Copies the registers out of a `pt_regs`.
///
/// # Safety
/// `regs` points to a `pt_regs`, in a way that the verifier knows.
#[inline(always)]
pub(super) unsafe fn copy(regs: *const u64, to: &mut Registers) {
    // SAFETY: the offsets are those of fields.
    let load = |offset| unsafe { field(regs, offset) };
    to.general[0] = load(offset_of!(pt_regs, rax));
    to.general[1] = load(offset_of!(pt_regs, rdx));
    to.general[2] = load(offset_of!(pt_regs, rcx));
    to.general[3] = load(offset_of!(pt_regs, rbx));
    to.general[4] = load(offset_of!(pt_regs, rsi));
    to.general[5] = load(offset_of!(pt_regs, rdi));
    to.general[Registers::BP] = load(offset_of!(pt_regs, rbp));
    to.general[Registers::SP] = load(offset_of!(pt_regs, rsp));
    to.general[8] = load(offset_of!(pt_regs, r8));
    to.general[9] = load(offset_of!(pt_regs, r9));
    to.general[10] = load(offset_of!(pt_regs, r10));
    to.general[11] = load(offset_of!(pt_regs, r11));
    to.general[12] = load(offset_of!(pt_regs, r12));
    to.general[13] = load(offset_of!(pt_regs, r13));
    to.general[14] = load(offset_of!(pt_regs, r14));
    to.general[15] = load(offset_of!(pt_regs, r15));
    to.ip = load(offset_of!(pt_regs, rip));
    to.cs = load(offset_of!(pt_regs, cs));
}

/// The user registers of the current task; true if the clock interrupted the kernel.
#[inline(always)]
pub(super) fn read(ctx: *const bpf_perf_event_data, scratch: *mut Scratch) -> bool {
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let to = unsafe { &mut (*scratch).state.walk.registers };
    // `regs` is the first field of the context that the kernel hands to the program.
    let interrupted: *const u64 = ctx.cast();
    // SAFETY: as above.
    let ip = unsafe { field(interrupted, offset_of!(pt_regs, rip)) };
    if ip >> 63 == 0 {
        // SAFETY: as above.
        unsafe { copy(interrupted, to) };
        return false;
    }
    read_current(scratch);
    true
}

/// The user registers of the current task, while it is in the kernel.
#[inline(always)]
pub(super) fn read_current(scratch: *mut Scratch) {
    // SAFETY: a value of the scratch map, which only this CPU's program uses.
    let to = unsafe { &mut (*scratch).state.walk.registers };
    if USER_REGISTERS.load() == UserRegisters::Helper as u32 {
        // SAFETY: helpers without preconditions; the current task has registers as long as it runs.
        let task = unsafe { bpf_get_current_task_btf() };
        // SAFETY: as above. The result is a trusted pointer, whose fields can be loaded directly.
        let regs = unsafe { bpf_task_pt_regs(task) } as *const u64;
        // SAFETY: as above.
        unsafe { copy(regs, to) };
    } else {
        from_kernel_stack(scratch);
    }
}

/// The system call that the current task is in and its arguments; true if it is one of a 32-bit program, whose
/// numbers are others. The number is -1 outside (arch/x86/entry, `ORIG_RAX`).
#[inline(always)]
pub(super) fn of_syscall(facts: &mut WaitFacts) -> bool {
    let offsets = [
        offset_of!(pt_regs, orig_rax),
        offset_of!(pt_regs, rdi),
        offset_of!(pt_regs, rsi),
        offset_of!(pt_regs, rdx),
        offset_of!(pt_regs, rsp),
        offset_of!(pt_regs, rip),
        offset_of!(pt_regs, cs),
    ];
    let mut words = [0u64; 7];
    if USER_REGISTERS.load() == UserRegisters::Helper as u32 {
        // SAFETY: helpers without preconditions; the current task has registers as long as it runs.
        let task = unsafe { bpf_get_current_task_btf() };
        // SAFETY: as above. The result is a trusted pointer, whose fields can be loaded directly.
        let regs = unsafe { bpf_task_pt_regs(task) } as *const u64;
        for (word, offset) in words.iter_mut().zip(offsets) {
            // SAFETY: the offset of a field.
            *word = unsafe { field(regs, offset) };
        }
    } else {
        let regs = on_kernel_stack();
        for (word, offset) in words.iter_mut().zip(offsets) {
            *word = read_kernel(regs.wrapping_add(offset as u64));
        }
    }
    let [number, first, second, third, stack_pointer, ip, cs] = words;
    facts.syscall = number;
    facts.arguments = [first, second, third];
    facts.stack_pointer = stack_pointer;
    facts.ip = ip;
    cs == 0x23
}

/// Where the user registers lie on the kernel stack of the current task.
#[inline(always)]
fn on_kernel_stack() -> u64 {
    const TOP: u64 = 16384 - size_of::<pt_regs>() as u64;
    // SAFETY: a helper without preconditions.
    let task = unsafe { bpf_get_current_task() };
    read_kernel(task.wrapping_add(u64::from(TASK_STACK_OFFSET.load()))).wrapping_add(TOP)
}

/// For kernels before 5.15, where the helper is missing: the registers lie at the top of the kernel
/// stack, 16 KiB on x86-64 (`THREAD_SIZE`, `task_pt_regs`, arch/x86/include/asm/processor.h).
#[inline(always)]
fn from_kernel_stack(scratch: *mut Scratch) {
    const BYTES: usize = size_of::<pt_regs>();
    const TOP: u64 = 16384 - BYTES as u64;
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let to = unsafe { &mut (*scratch).state.walk.registers };
    // SAFETY: only an address is taken; the record is not begun yet, so its frames are free.
    let buffer = unsafe { &raw mut (*scratch).record.frames };
    // SAFETY: a helper without preconditions.
    let task = unsafe { bpf_get_current_task() };
    let stack = read_kernel(task.wrapping_add(u64::from(TASK_STACK_OFFSET.load())));
    // SAFETY: the helper checks the address and writes that many bytes; the frames are longer.
    let result = unsafe {
        bpf_probe_read_kernel(
            buffer.cast(),
            const { limit32(BYTES) },
            stack.wrapping_add(TOP) as *const core::ffi::c_void,
        )
    };
    if stack == 0 || result != 0 {
        to.ip = 0;
        return;
    }
    // SAFETY: it was just read.
    unsafe { copy(buffer.cast(), to) };
}

/// Eight bytes of kernel memory, 0 if they cannot be read.
#[inline(always)]
pub(super) fn read_kernel(address: u64) -> u64 {
    let mut value = 0u64;
    // SAFETY: the helper checks the address and writes eight bytes to a variable of that size.
    let result = unsafe {
        bpf_probe_read_kernel((&raw mut value).cast(), 8, address as *const core::ffi::c_void)
    };
    if result == 0 { value } else { 0 }
}
