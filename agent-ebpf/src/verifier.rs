//! Arithmetic and memory access in the form that the verifier accepts; elsewhere plain Rust that gives the
//! same. Nothing here knows a profile.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

/// 1 if `a <= b`, else 0; both below 2^63.
///
/// In assembly, because a compare that compiles to a branch doubles the verifier's work at each step of
/// a binary search (measured: over a million instructions and 15 s, refused; like this 30 thousand and
/// 50 ms).
#[must_use]
#[inline(always)]
pub fn at_most(a: u64, b: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut result = a;
        // SAFETY: three ALU instructions on registers; no memory, no stack, no side effect.
        unsafe {
            asm!("{r} -= {b}", "{r} += -1", "{r} >>= 63", r = inout(reg) result, b = in(reg) b,
                options(pure, nomem, nostack));
        }
        result
    }
    #[cfg(not(target_arch = "bpf"))]
    // As the assembly, also where one of them is not below 2^63.
    (a.wrapping_sub(b).wrapping_sub(1) >> 63)
}

/// `value` modulo `N`, a power of two. In assembly: LLVM drops a mask that a compare before it makes
/// redundant, and the verifier, which does not follow that reasoning, then sees an unbounded access.
#[must_use]
#[inline(always)]
pub fn below<const N: usize>(value: u64) -> u64 {
    const { assert!(N.is_power_of_two() && N <= 1 << 30) };
    #[cfg(target_arch = "bpf")]
    {
        let mut result = value;
        // SAFETY: one ALU instruction on a register.
        unsafe {
            asm!("{r} &= {m}", r = inout(reg) result, m = const N - 1,
                options(pure, nomem, nostack));
        }
        result
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        value & (N as u64 - 1)
    }
}

/// Adds to a number that others add to in the same way. In assembly: Rust has no atomics for BPF.
///
/// # Safety
/// `number` is aligned, and can be read and written.
#[inline(always)]
pub unsafe fn add_atomic(number: *mut u64, value: u64) {
    #[cfg(target_arch = "bpf")]
    // SAFETY: one atomic instruction (`BPF_XADD`, in every kernel) on memory that the caller vouches for.
    unsafe {
        asm!("lock *(u64 *)({p} + 0) += {v}", p = in(reg) number, v = in(reg) value,
            options(nostack));
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        // SAFETY: the caller's promise.
        let number = unsafe { core::sync::atomic::AtomicU64::from_ptr(number) };
        number.fetch_add(value, core::sync::atomic::Ordering::Relaxed);
    }
}

/// Puts a number in place of another, which it answers, at once. Kernel 5.12 and newer.
///
/// # Safety
/// As for [`add_atomic`].
#[must_use]
#[inline(always)]
pub unsafe fn swap_atomic(number: *mut u64, value: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut result = value;
        // SAFETY: one atomic instruction (`BPF_XCHG`) on memory that the caller vouches for.
        unsafe {
            asm!("{v} = xchg_64({p} + 0, {v})", p = in(reg) number, v = inout(reg) result,
                options(nostack));
        }
        result
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        // SAFETY: the caller's promise.
        let number = unsafe { core::sync::atomic::AtomicU64::from_ptr(number) };
        number.swap(value, core::sync::atomic::Ordering::Relaxed)
    }
}

/// Where element `index` modulo `N` of an array lies, `array` bytes into the structure `base`.
///
/// # Safety
/// The structure has an array of at least `N` elements there.
#[must_use]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "BPF and the host that lints it have 64 bits")]
pub unsafe fn place<const N: usize, T, S>(base: *const S, array: usize, index: u64) -> *const T {
    let offset = array as u64 + below::<N>(index) * size_of::<T>() as u64;
    // SAFETY: the element lies inside the caller's structure.
    unsafe { base.byte_add(offset as usize) }.cast()
}

/// Reads the element that [`place`] finds.
///
/// # Safety
/// As for [`place`].
#[must_use]
#[inline(always)]
pub unsafe fn element<const N: usize, T: Copy, S>(base: *const S, array: usize, index: u64) -> T {
    // SAFETY: the caller's promise is the same.
    let element = unsafe { place::<N, T, S>(base, array, index) };
    // SAFETY: there is an element of that type.
    unsafe { element.read() }
}

/// The low 32 bits.
#[must_use]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low half is asked for")]
pub fn low32(value: u64) -> u32 {
    value as u32
}

/// A limit as the helpers want it, checked by the compiler.
///
/// # Panics
/// If the limit does not fit; used in constants, that is an error of the compiler.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub const fn limit32(limit: usize) -> u32 {
    assert!(limit <= u32::MAX as usize);
    limit as u32
}
