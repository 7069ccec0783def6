//! Which frames of a wait belong to the lock and not to who wants it: the way through a lock library into the
//! kernel. The innermost frame behind them is the caller that a reader looks for.

use super::FunctionInfo;
use proto::FrameKind;

/// Beginnings of the names of functions that take, wait for or hand over locks, by where they come from. Names
/// only: libraries are linked statically and inlined, so the file says little.
const LOCK_FUNCTIONS: [&str; 63] = [
    // glibc and musl.
    "pthread_mutex_",
    "__pthread_mutex_",
    "___pthread_mutex_",
    "pthread_rwlock_",
    "__pthread_rwlock_",
    "___pthread_rwlock_",
    "pthread_spin_lock",
    "__lll_",
    "lll_",
    "__futex_",
    "futex_",
    "__timedwait",
    "__lock",
    "__wait",
    "syscall",
    "__syscall",
    // Rust's std, parking_lot and what they are written with.
    "std::sys::sync::",
    "std::sys::pal::unix::futex",
    "std::sys::unix::futex",
    "std::sys::unix::locks",
    "std::sync::mutex::",
    "std::sync::poison::",
    "std::sync::rwlock::",
    "std::sync::reentrant_lock::",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "parking_lot::",
    "parking_lot_core::",
    "lock_api::",
    "<parking_lot::",
    "<lock_api::",
    // C++: the standard libraries, Abseil.
    "std::mutex::",
    "std::timed_mutex::",
    "std::recursive_mutex::",
    "std::shared_mutex::",
    "std::__shared_mutex",
    "std::lock_guard<",
    "std::unique_lock<",
    "std::shared_lock<",
    "std::scoped_lock<",
    "std::__1::mutex::",
    "__gthread_mutex",
    "absl::Mutex",
    "absl::lts_",
    "absl::synchronization_internal::",
    "absl::base_internal::SpinLock",
    // Go.
    "sync.(*Mutex).",
    "sync.(*RWMutex).",
    "sync.runtime_",
    "internal/sync.",
    "runtime.semacquire",
    "runtime.gopark",
    "runtime.goparkunlock",
    "runtime.mcall",
    "runtime.futex",
    "runtime.lock",
    "runtime.unlock",
    // HotSpot.
    "ObjectMonitor::",
    "ObjectSynchronizer::",
    "PlatformMonitor::",
    "PlatformEvent::",
    "os::PlatformEvent",
    "Parker::",
];

/// Functions of `HotSpot` between Java code and its monitor.
const LOCK_ENTRIES: [&str; 3] = [
    "SharedRuntime::complete_monitor_locking_C",
    "SharedRuntime::monitor_enter_helper",
    "InterpreterRuntime::monitorenter",
];

/// Beginnings of the file names of C libraries: a frame without a name in one of them, on the way from a wait
/// to its caller, is a waiting path that the library does not export.
const C_LIBRARIES: [&str; 4] = ["libc.so", "libc-2.", "libpthread", "ld-musl"];

/// True for kernel code and for the library's part of a wait.
#[must_use]
pub fn is_lock_frame(function: &FunctionInfo) -> bool {
    let FunctionInfo { name, kind, module, named, .. } = function;
    if *kind == FrameKind::Kernel {
        return true;
    }
    if !named {
        return C_LIBRARIES.iter().any(|library| module.starts_with(library));
    }
    LOCK_FUNCTIONS.iter().any(|start| name.starts_with(start))
        || LOCK_ENTRIES.iter().any(|entry| name.starts_with(entry))
}

/// Position of the caller in a stack (leaf first) whose frames are or are not lock frames: the first that is
/// none. Where all are, the leaf stands for it: better than nothing.
pub fn caller_position(is_lock: impl Iterator<Item = bool>) -> usize {
    is_lock.take_while(|&is_lock| is_lock).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_behind_the_library() {
        use FrameKind::{Go, Kernel, Native};
        type Frame = (&'static str, &'static str, FrameKind);
        let rows: [(&[Frame], &str); 9] = [
            (
                &[
                    ("futex_wait", "vmlinux", Kernel),
                    ("libc.so.6+0x98f10", "libc.so.6", Native),
                    ("pthread_mutex_lock", "libc.so.6", Native),
                    ("enqueue", "app", Native),
                ],
                "enqueue",
            ),
            // An allocator that waits for its arena is the caller: it is what the program did.
            (
                &[
                    ("__lll_lock_wait_private", "libc.so.6", Native),
                    ("malloc", "libc.so.6", Native),
                ],
                "malloc",
            ),
            (
                &[
                    ("syscall", "libc.so.6", Native),
                    ("std::sys::sync::mutex::futex::Mutex::lock_contended", "app", Native),
                    ("std::sync::poison::mutex::Mutex<T>::lock", "app", Native),
                    ("app::queue::push", "app", Native),
                ],
                "app::queue::push",
            ),
            (
                &[
                    ("parking_lot_core::parking_lot::park", "app", Native),
                    ("<parking_lot::raw_mutex::RawMutex>::lock_slow", "app", Native),
                    ("work", "app", Native),
                ],
                "work",
            ),
            (
                &[
                    ("runtime.gopark", "app", Go),
                    ("runtime.semacquire1", "app", Go),
                    ("internal/sync.runtime_SemacquireMutex", "app", Go),
                    ("sync.(*Mutex).lockSlow", "app", Go),
                    ("main.work", "app", Go),
                ],
                "main.work",
            ),
            (
                &[
                    ("ObjectMonitor::enter(JavaThread*)", "libjvm.so", Native),
                    ("SharedRuntime::complete_monitor_locking_C", "libjvm.so", Native),
                    ("Shop.buy", "", FrameKind::Jvm),
                ],
                "Shop.buy",
            ),
            (&[("app+0x12", "app", Native), ("main", "app", Native)], "app+0x12"),
            (&[("lock_the_door", "app", Native)], "lock_the_door"),
            (&[("futex_wait", "", Kernel), ("__lll_lock_wait", "libc.so.6", Native)], ""),
        ];
        for (stack, caller) in rows {
            let info = |&(name, module, kind): &Frame| FunctionInfo {
                name: name.into(),
                file: "".into(),
                line: 0,
                kind,
                module: module.into(),
                named: !name.contains("+0x"),
            };
            let at = caller_position(stack.iter().map(|frame| is_lock_frame(&info(frame))));
            assert_eq!(stack.get(at).map_or("", |(name, ..)| name), caller, "{stack:?}");
        }
    }
}
