//! Three chains with a known share of CPU time, in a second thread.
//! rustc -O -C force-frame-pointers=no -o split-rust split.rs
//! Usage: split-rust SECONDS SEED; prints the truth as one line of JSON when done. See split.h for the method.

use std::ffi::{c_int, c_void};
use std::hint::black_box;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// dladdr(3).
#[repr(C)]
struct DlInfo {
    file: *const i8,
    base: *const c_void,
    symbol: *const i8,
    address: *const c_void,
}

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    fn qsort(
        base: *mut c_void,
        count: usize,
        size: usize,
        compare: extern "C" fn(*const c_void, *const c_void) -> c_int,
    );
    fn _Unwind_Backtrace(
        frame: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

const MONOTONIC: c_int = 1;
const THREAD_CPU: c_int = 3;

fn clock_ns(clock: c_int) -> u64 {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    unsafe { clock_gettime(clock, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

#[inline(always)]
fn churn(mut value: u64, iterations: u64) -> u64 {
    for i in 0..iterations {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
    value
}

#[inline(never)]
fn leaf_a(n: u64) -> u64 {
    churn(1, n)
}
#[inline(never)]
fn middle_a(n: u64) -> u64 {
    black_box(leaf_a(n)) + 1
}
#[inline(never)]
fn chain_a(n: u64) -> u64 {
    black_box(middle_a(n)) ^ 1
}

#[inline(never)]
fn leaf_b(n: u64) -> u64 {
    let room = black_box([n as u8; 3000]);
    churn(2, n) + u64::from(room[(n % 3000) as usize])
}
#[inline(never)]
fn middle_b(n: u64) -> u64 {
    black_box(leaf_b(n)) ^ 1
}
#[inline(never)]
fn chain_b(n: u64) -> u64 {
    black_box(middle_b(n)) ^ 1
}

static COMPARE_ITERATIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

#[inline(never)]
extern "C" fn leaf_c(left: *const c_void, right: *const c_void) -> c_int {
    black_box(churn(3, COMPARE_ITERATIONS.load(std::sync::atomic::Ordering::Relaxed)));
    unsafe { *left.cast::<c_int>() - *right.cast::<c_int>() }
}
#[inline(never)]
fn middle_c(n: u64) -> u64 {
    let mut numbers: [c_int; 16] = std::array::from_fn(|i| (i as c_int * 7) % 16);
    COMPARE_ITERATIONS.store(n / 45, std::sync::atomic::Ordering::Relaxed);
    unsafe { qsort(numbers.as_mut_ptr().cast(), 16, 4, leaf_c) };
    black_box(numbers)[3] as u64
}
#[inline(never)]
fn chain_c(n: u64) -> u64 {
    black_box(middle_c(n)) ^ 1
}

extern "C" fn root_frame(context: *mut c_void, root: *mut c_void) -> c_int {
    let address = unsafe { _Unwind_GetIP(context) };
    if address != 0 {
        unsafe { *root.cast::<usize>() = address };
    }
    0
}

/// Where the language's own unwinder says that this thread's stack ends.
fn root() -> (String, usize) {
    let mut root = 0usize;
    unsafe { _Unwind_Backtrace(root_frame, (&raw mut root).cast()) };
    let mut info =
        DlInfo { file: std::ptr::null(), base: std::ptr::null(), symbol: std::ptr::null(), address: std::ptr::null() };
    if unsafe { dladdr(root as *const c_void, &mut info) } == 0 {
        return (String::new(), root);
    }
    let file = unsafe { std::ffi::CStr::from_ptr(info.file.cast()) }.to_string_lossy().into_owned();
    (file.rsplit('/').next().unwrap_or_default().to_owned(), root - info.base as usize)
}

fn split(seconds: u64, seed: u64) {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(88_172_645_463_325_252);
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let chains: [fn(u64) -> u64; 3] = [chain_a, chain_b, chain_c];
    let mut chain_ns = [0u64; 3];
    let (mut late_ns, mut per_ms) = (0u64, 1_000_000u64);
    let start = clock_ns(MONOTONIC);
    loop {
        let now = clock_ns(MONOTONIC);
        if now >= start + seconds * 1_000_000_000 {
            break;
        }
        let chain = match random() % 10 {
            0..5 => 0,
            5..8 => 1,
            _ => 2,
        };
        let iterations = per_ms * (100 + random() % 400) / 100;
        let before = clock_ns(THREAD_CPU);
        black_box(chains[chain](iterations));
        let took = clock_ns(THREAD_CPU) - before;
        chain_ns[chain] += took;
        if now >= start + 1_000_000_000 {
            late_ns += took;
        }
        if took > 0 && now < start + 100_000_000 {
            per_ms = iterations * 1_000_000 / took + 1;
        }
    }
    let ([a, b, c], (file, address)) = (chain_ns, root());
    println!(
        "{{\"language\":\"rust\",\"seed\":{seed},\"chains\":{{\"a\":{a},\"b\":{b},\"c\":{c}}},\
         \"late_ns\":{late_ns},\"root\":{{\"file\":\"{file}\",\"address\":{address}}}}}"
    );
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [seconds, seed] = numbers[..] else { std::process::exit(2) };
    std::thread::spawn(move || split(seconds, seed)).join().expect("the worker ends well");
}
