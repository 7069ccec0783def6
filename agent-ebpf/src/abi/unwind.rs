//! Unwind rules: how to get from one frame to its caller. x86-64; the return address is always at
//! CFA - 8, after the step rsp = CFA.

/// Size of one rule in the rule map.
pub const RULE_BYTES: usize = size_of::<UnwindRule>();

/// How the CFA is computed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleKind {
    /// No unwind information covers the address: the walker falls back to frame pointers.
    NoInfo = 0,
    /// CFA = rsp + `offset`.
    RspOffset = 1,
    /// CFA = rbp + `offset`.
    RbpOffset = 2,
    /// Lazy-binding stub: CFA = rsp + 8 + (((rip & 15) >= `addend`) << 3).
    Plt = 3,
    /// CFA = *(rbp + `offset`) + `addend` (dynamically realigned frames).
    DerefRbp = 4,
    /// CFA = *(rsp + `offset`) + `addend` (OpenSSL's assembly).
    DerefRsp = 5,
    /// Signal frame: rip, rsp and rbp come from the ucontext at rsp + `offset`
    /// (kernel `arch/x86/include/uapi/asm/sigcontext.h`): rbp at +120, rsp at +160, rip at +168 for
    /// `offset` = 0. The address found is exact.
    Signal = 6,
    /// The outermost frame: the return address is undefined.
    End = 7,
    /// A row exists that the walker cannot follow.
    Unsupported = 8,
    /// The caller is reached by the frame-pointer chain, whatever the frame looks like
    /// (Go's functions with frame pointers, JIT regions).
    ///
    /// With `addend` 1 the row holds for exactly these instructions, and the chain may lead to another
    /// stack, above or below (Go's `systemstack`, `asmcgocall`, `cgocallback`).
    FramePointer = 9,
    /// CFA = rsp + `offset`, and the return address is in register `addend` (vfork of the C library, which
    /// shares its stack with the child). Only in the innermost frame, whose registers are known.
    ReturnRegister = 10,
    /// CFA = register `addend` + `offset` (assembly that keeps the old stack pointer in another register).
    /// Only in the innermost frame. Registers have the numbers of DWARF (System V ABI for x86-64, figure
    /// 3.36), below [`REGISTERS`].
    LeafRegister = 11,
    /// CFA = rbx + `addend`, in a function that keeps its frame in rbx across a call (`_dl_runtime_resolve` of
    /// glibc). Its callee saves rbx at rsp + `offset`, below the frame: there it is read, unless that lies below
    /// the stack pointer of the innermost frame. Then rbx is not saved yet, or restored: it is the thread's.
    SavedRegister = 12,
    /// CFA = rsp + `offset`, in the thread that made another one. In that one, whose rax is 0 as long as its frame is
    /// the innermost, nobody called (behind the system call in `clone` of the C library).
    ReturnsTwice = 13,
}

impl RuleKind {
    /// The kind with the highest number.
    pub const LAST: Self = Self::ReturnsTwice;
}

/// General registers, by the numbers of DWARF: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
pub const REGISTERS: usize = 16;

/// One rule: 12 bytes, shared by all rows that say the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnwindRule {
    /// A [`RuleKind`].
    pub kind: u8,
    /// Where the caller's rbp lies, in units of 8 bytes: 0 means unchanged, unless `rbp_from_rbp` is 1.
    pub rbp: i8,
    /// 0: `rbp` is relative to the CFA. 1: `rbp` is relative to rbp itself (realigned frames).
    pub rbp_from_rbp: u8,
    /// Zero in tables. The walk marks the rule of a whole mapping (code made at run time) with 1.
    pub reserved: u8,
    /// Bytes, see [`RuleKind`]. Frames of 540,080 bytes exist, so 16 bits are not enough.
    pub offset: i32,
    /// Bytes, see [`RuleKind`].
    pub addend: i32,
}

impl UnwindRule {
    /// A rule without operands.
    #[must_use]
    pub const fn plain(kind: RuleKind) -> Self {
        Self { kind: kind as u8, rbp: 0, rbp_from_rbp: 0, reserved: 0, offset: 0, addend: 0 }
    }
}

const _: () = assert!(size_of::<UnwindRule>() == 12);
