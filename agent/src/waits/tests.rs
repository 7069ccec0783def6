//! Goal: each rule says what threads really waited for. Method: stacks of programs that know what they wait for
//! (`fixtures.tsv`), and small ones made by hand for what no program of this machine shows.

use super::rules::{self, Word};
use super::{
    LockKind, Machine, Owners, SystemCall, ToldBy, Wait, WaitFacts, WaitFrame, WaitReason, tell,
};
use crate::address::{AbsAddr, Tid};
use agent_ebpf::wait::{LockWords, SYSCALL_CLASSES};
use agent_ebpf::{LockForm, WaitClass};
use std::collections::BTreeSet;

const FIXTURES: &str = include_str!("fixtures.tsv");

struct Fixture<'t> {
    case: &'t str,
    call: SystemCall,
    user: Vec<WaitFrame<'t>>,
    expected: String,
}

fn number(text: &str) -> u64 {
    text.strip_prefix("0x")
        .map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16))
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn fixtures() -> impl Iterator<Item = Fixture<'static>> {
    let lines = FIXTURES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let &[case, call, word, stack, reason, kind, lock] = &columns[..] else { panic!("{line}") };
        let call: Vec<u64> = call.split(' ').map(number).collect();
        Fixture {
            case,
            call: x86(call[0], [number(word), call[1], call[2]]),
            user: stack.split('<').map(|function| frame(function, "")).collect(),
            expected: format!("{reason} {kind} {lock}"),
        }
    })
}

fn x86(number: u64, arguments: [u64; 3]) -> SystemCall {
    SystemCall { machine: Machine::X86_64, number, arguments }
}

fn frame<'t>(function: &'t str, file: &'t str) -> WaitFrame<'t> {
    WaitFrame { function, file }
}

fn shown(wait: Wait) -> String {
    assert_eq!(wait.reason == WaitReason::Lock, wait.lock.is_some());
    let Some(lock) = wait.lock else { return format!("{} - -", wait.reason.name()) };
    let address =
        lock.address.map_or_else(|| "-".to_owned(), |address| format!("{:#x}", address.0));
    format!("{} {} {address}", wait.reason.name(), lock.kind.name())
}

#[test]
fn threads_waited_for_what_the_program_says() {
    for fixture in fixtures() {
        let facts = WaitFacts {
            system_call: Some(fixture.call),
            user: &fixture.user,
            ..WaitFacts::default()
        };
        let wait = tell(&facts);
        assert_eq!(shown(wait), fixture.expected, "{}: {:?}", fixture.case, fixture.user);
        assert!(wait.lock.is_none_or(|lock| lock.told_by == ToldBy::Rule), "{}", fixture.case);
    }
}

#[test]
fn each_rule_is_shown_by_a_stack_or_says_that_it_is_not() {
    let rules = rules::parse(rules::TEXT).unwrap();
    let mut unproven = Vec::new();
    let cases: BTreeSet<&str> = fixtures().map(|fixture| fixture.case).collect();
    for rule in &rules {
        if rule.proof == "unproven" {
            unproven.push(format!("{} {}", rule.library, rule.function));
            continue;
        }
        assert!(cases.contains(rule.proof), "{rule:?}: no such case");
        let met = fixtures()
            .filter(|fixture| fixture.case == rule.proof)
            .any(|fixture| fixture.user.iter().any(|frame| rules::is_of(rule, frame.function)));
        assert!(met, "{rule:?}: the case does not go through this function");
    }
    expect_test::expect![[r#"
        c internal_syscall_cancel
        c syscall_cancel*
        c lll_timedlock_wait*
        c lll_clocklock_wait*
        c call_once
        c sem_wait*
        c sem_timedwait*
        c sem_clockwait*
        c do_sem_wait*
        c pthread_timedjoin*
        musl __lock
        musl __lockfile
        musl pthread_mutex_lock
        rust *std::sync::*Condvar*::wait*
        rust std::sync::poison::once::Once::*
        rust std::sync::mpmc::*
        rust std::sync::mpsc::*
        parking_lot <parking_lot_core::*
        parking_lot parking_lot_core::*
        parking_lot parking_lot::raw_fair_mutex::*
        parking_lot parking_lot::raw_rwlock::RawRwLock::lock_upgradable_slow
        parking_lot parking_lot::raw_rwlock::RawRwLock::upgrade_slow
        hotspot PlatformEvent::park*
        hotspot PlatformMonitor::wait
        hotspot ObjectMonitor::ReenterI
        hotspot ObjectMonitor::reenter*
        hotspot os::sleep
        hotspot Monitor::wait*
        go runtime.lock2
        go runtime.lockWithRank
        go runtime.findrunnable
        go runtime.usleep*
        go runtime.gopark
        go runtime.goparkunlock
        go runtime.semacquire1
        go sync.runtime_SemacquireMutex
        go internal/sync.runtime_SemacquireMutex
        go sync.runtime_SemacquireRWMutexR
        go sync.runtime_SemacquireRWMutex
        go-sync sync.(*Mutex).lockSlow
        go-sync sync.(*RWMutex).RLock
        go-sync sync.(*RWMutex).rLockSlow
        go-sync sync.(*RWMutex).Lock
        python PySemaphore_*
        python PyParkingLot_Park*
        python PyMutex_LockTimed
        absl absl::*PerThreadSem*
        absl AbslInternalPerThreadSemWait*
        absl absl::*Waiter::*
        absl absl::*Mutex::*
        absl absl::*CondVar::*"#]]
    .assert_eq(&unproven.join("\n"));
}

#[track_caller]
fn check(call: Option<SystemCall>, kernel: &[&str], user: &[(&str, &str)], expected: &str) {
    let user: Vec<WaitFrame<'_>> =
        user.iter().map(|(function, file)| frame(function, file)).collect();
    let facts = WaitFacts { system_call: call, kernel, user: &user, ..WaitFacts::default() };
    assert_eq!(shown(tell(&facts)), expected);
}

const FUTEX: u64 = 202;
const PRIVATE: u64 = 128;

fn futex(operation: u64, expected: u64) -> Option<SystemCall> {
    Some(x86(FUTEX, [0x1008, operation | PRIVATE, expected]))
}

#[test]
fn a_stripped_c_library_tells_by_what_it_exports() {
    let libc = "libc.so.6";
    let stack = [("", libc), ("", libc), ("pthread_cond_wait", libc), ("work", "a")];
    check(futex(9, 0), &[], &stack, "condvar - -");
    // The mutex is taken again after a signal.
    check(futex(0, 2), &[], &stack, "lock mutex 0x1008");
    let stack = [("", libc), ("pthread_mutex_lock", libc), ("work", "a")];
    check(futex(0, 2), &[], &stack, "lock mutex 0x1008");
    let stack = [("", libc), ("", libc), ("pthread_rwlock_rdlock", libc), ("work", "a")];
    check(futex(9, 3), &[], &stack, "lock rwlock 0x1000");
    // A lock of the library's own, below malloc.
    check(futex(0, 2), &[], &[("", libc), ("malloc", libc), ("work", "a")], "lock mutex 0x1008");
    let musl = "ld-musl-x86_64.so.1";
    let stack = [("", musl), ("", musl), ("pthread_mutex_timedlock", musl), ("work", "a")];
    check(futex(0, 0x8000_0010), &[], &stack, "lock mutex 0x1004");
    let stack = [("", musl), ("pthread_cond_timedwait", musl), ("work", "a")];
    check(futex(0, 2), &[], &stack, "condvar - -");
}

#[test]
fn a_rule_counts_only_where_the_wait_begins() {
    // The program's own lock, called by what runs once.
    let stack = [("syscall", "libc.so.6"), ("my_lock", "a"), ("pthread_once", "libc.so.6")];
    check(futex(0, 7), &[], &stack, "futex - -");
    check(futex(0, 7), &[], &[("", "a"), ("pthread_mutex_lock", "libc.so.6")], "futex - -");
    // A monitor inside of what waits for another.
    let stack = [
        ("pthread_cond_wait", "libc.so.6"),
        ("os::PlatformEvent::park", "libjvm.so"),
        ("ObjectMonitor::enter", "libjvm.so"),
        ("ObjectMonitor::wait", "libjvm.so"),
    ];
    check(futex(9, 0), &[], &stack, "lock monitor -");
}

#[test]
fn without_names_only_what_is_certain_is_a_lock() {
    check(futex(6, 0), &[], &[], "lock mutex 0x1008");
    check(futex(13, 0), &[], &[], "lock mutex 0x1008");
    check(futex(11, 0), &[], &[], "condvar - -");
    check(futex(9, 2), &[], &[("", "program")], "lock unknown 0x1008");
    check(futex(0, 2), &[], &[("", "libc.so.6")], "lock mutex 0x1008");
    // musl's pthread_join waits for 2 as well.
    check(futex(0, 2), &[], &[("", "program")], "futex - -");
    check(futex(0, 0x8000_0010), &[], &[], "lock mutex 0x1004");
    check(futex(0, 0xffff_ffff), &[], &[], "futex - -");
    check(futex(0, 1), &[], &[], "futex - -");
    check(futex(9, 0), &[], &[], "futex - -");
    check(Some(x86(449, [0; 3])), &[], &[], "futex - -");
}

#[test]
fn system_calls_tell_what_they_wait_for() {
    let call = |number| Some(x86(number, [0; 3]));
    let arm = |number| {
        Some(SystemCall { machine: Machine::Aarch64, number, arguments: [0x1008, PRIVATE, 2] })
    };
    check(call(35), &[], &[], "sleep - -");
    check(call(230), &[], &[], "sleep - -");
    check(call(0), &[], &[], "io - -");
    check(call(232), &[], &[], "poll - -");
    check(call(65), &[], &[], "semaphore - -");
    check(call(61), &[], &[], "other - -");
    check(arm(115), &[], &[], "sleep - -");
    check(arm(63), &[], &[], "io - -");
    check(arm(22), &[], &[], "poll - -");
    check(arm(98), &[], &[("", "libc.so.6")], "lock mutex 0x1008");
    // Restarted calls have lost their arguments.
    check(call(219), &["schedule", "do_nanosleep"], &[], "sleep - -");
    check(call(219), &["schedule", "futex_wait"], &[("sem_wait", "")], "semaphore - -");
    check(None, &["io_schedule", "filemap_fault", "asm_exc_page_fault"], &[], "page_fault - -");
    check(call(0), &["io_schedule", "exc_page_fault", "copy_to_user"], &[], "page_fault - -");
    check(None, &["schedule", "do_signal_stop"], &[], "other - -");
    check(None, &[], &[], "other - -");
    let preempted = WaitFacts { system_call: call(0), preempted: true, ..WaitFacts::default() };
    assert_eq!(tell(&preempted), Wait { reason: WaitReason::Preempted, lock: None });
}

/// The kernel side sums by class what is named by reason here.
#[test]
fn classes_are_those_of_the_reasons() {
    for (number, class) in (0..).zip(SYSCALL_CLASSES) {
        let facts = WaitFacts { system_call: Some(x86(number, [0; 3])), ..WaitFacts::default() };
        let expected = match tell(&facts).reason {
            WaitReason::Sleep => WaitClass::Sleep,
            WaitReason::Io => WaitClass::Io,
            WaitReason::Poll => WaitClass::Poll,
            WaitReason::Futex | WaitReason::Lock => WaitClass::Futex,
            _ => WaitClass::Other,
        };
        assert_eq!(class, expected as u8, "system call {number}");
    }
}

#[test]
fn the_holder_is_where_the_lock_keeps_it() {
    let words = LockWords([11 | 1 << 31, 0, 12, 13, 14, 0, 16, 0]);
    let check = |user: &[(&str, &str)], operation: u64, expected: u64, word: u64, owner: &[u32]| {
        let call = x86(202, [word, operation, expected]);
        let user: Vec<WaitFrame<'_>> = user.iter().map(|&(name, file)| frame(name, file)).collect();
        let owners =
            Owners::of(call, &words).threads(|number| (number != 13).then_some(Tid(number)));
        let facts =
            WaitFacts { system_call: Some(call), user: &user, owners, ..Default::default() };
        let told = tell(&facts).lock.and_then(|lock| lock.owner);
        assert_eq!(told.as_ref().map(|tid| tid.0).as_slice(), owner, "{user:?}");
    };
    let libc = "libc.so.6";
    // The innermost function knows a word alone, its caller the mutex.
    check(&[("__lll_lock_wait", libc), ("pthread_mutex_lock", libc)], 0x80, 2, 0x1000, &[12]);
    check(&[("__lll_lock_wait", libc), ("fwrite", libc)], 0x80, 2, 0x1000, &[]);
    check(&[("pthread_mutex_lock", libc)], 0x86, 0, 0x1000, &[11]);
    check(&[("", libc)], 0x86, 0, 0x1000, &[11]);
    // Waited on at 8, 12 and 0 bytes from its start; the thread at 12 is none.
    check(&[("pthread_rwlock_rdlock", libc)], 0x80, 3, 0x1008, &[14]);
    check(&[("pthread_rwlock_wrlock", libc)], 0x80, 3, 0x100c, &[]);
    check(&[("pthread_rwlock_rdlock", libc)], 0x80, 8, 0x1000, &[16]);
    check(&[("__timedwait", ""), ("pthread_mutex_timedlock", "")], 0x80, 3, 0x1004, &[11]);
    check(&[("std::sys::sync::mutex::futex::Mutex::lock_contended", "")], 0x89, 2, 0x1000, &[]);
    check(&[("pthread_cond_wait", libc)], 0x80, 8, 0x1000, &[]);
}

#[test]
fn a_probe_tells_what_no_name_does() {
    let words = LockWords([11, 0, 12, 13, 14, 0, 16, 0]);
    let check =
        |form, user: &[(&str, &str)], (word, expected): (u64, u64), shown_as: &str, owner| {
            let call = x86(202, [word, 0x80, expected]);
            let user: Vec<WaitFrame<'_>> =
                user.iter().map(|&(name, file)| frame(name, file)).collect();
            let owners = Owners::of(call, &words).threads(|number| Some(Tid(number)));
            let system_call = Some(call);
            let facts = WaitFacts { system_call, user: &user, owners, form, ..Default::default() };
            let told = tell(&facts);
            assert_eq!(shown(told), shown_as, "{form:?} {user:?}");
            assert_eq!(told.lock.and_then(|lock| lock.owner).map(|tid| tid.0), owner, "{form:?}");
        };
    let nameless = &[("", "program"), ("", "program")];
    check(Some(LockForm::GlibcMutex), nameless, (0x1000, 2), "lock mutex 0x1000", Some(12));
    check(Some(LockForm::GlibcRwLock), nameless, (0x1008, 3), "lock rwlock 0x1000", Some(14));
    check(Some(LockForm::MuslMutex), nameless, (0x1004, 5), "lock mutex 0x1000", Some(11));
    check(Some(LockForm::MuslRwLock), nameless, (0x1000, 5), "lock rwlock 0x1000", None);
    check(None, nameless, (0x1000, 2), "futex - -", None);
    // The mutex of a condition variable is taken again; a rule knows of what the lock is part.
    let wait = &[("", "libc.so.6"), ("pthread_cond_wait", "libc.so.6")];
    check(Some(LockForm::GlibcMutex), wait, (0x1000, 2), "lock mutex 0x1000", Some(12));
    let once = &[("pthread_once", "libc.so.6")];
    check(Some(LockForm::GlibcMutex), once, (0x1000, 2), "lock unknown 0x1000", None);
}

#[test]
fn no_number_stands_for_two_reasons() {
    for machine in [Machine::X86_64, Machine::Aarch64] {
        for number in 0..500 {
            let count =
                super::system_call::reasons_of(SystemCall { machine, number, arguments: [0; 3] });
            assert!(count <= 1, "{machine:?} {number}");
        }
    }
}

#[test]
fn rules_that_are_damaged_are_refused() {
    let good = "c\tf\tlock\tmutex\t+0\t-\tunproven";
    assert_eq!(rules::parse(good).unwrap()[0].told.unwrap().lock.unwrap().word, Word::At(0));
    for bad in [
        "c\tf\tlock\t-\t-\t-\tunproven",
        "c\tf\tcondvar\tmutex\t+0\t-\tunproven",
        "c\tf\tcondvar\t-\t-\tmutex\tunproven",
        "c\tf\t-\tmutex\t+0\t-\tunproven",
        "c\tf\tlock\tmutex\t0\t-\tunproven",
        "c\tf\tlock\tmutex\t+0\tme\tunproven",
        "c\tf\tlocks\tmutex\t+0\t-\tunproven",
        "c\tf\tlock\tmutex\t+0\t-",
        "c\tf\tlock\tmutex\t+0\t-\tunproven\t",
    ] {
        assert!(rules::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_probe_names_the_lock_by_its_callers() {
    let user = [frame("internal/sync.runtime_SemacquireMutex", "program")];
    let lock = super::lock_of(&user, AbsAddr(0x2004)).unwrap();
    assert_eq!((lock.kind, lock.address), (LockKind::Mutex, Some(AbsAddr(0x2000))));
    let user = [frame("sync.runtime_SemacquireRWMutexR", "program")];
    let lock = super::lock_of(&user, AbsAddr(0x200c)).unwrap();
    assert_eq!((lock.kind, lock.address), (LockKind::RwLock, Some(AbsAddr(0x2000))));
    // Until Go 1.19 the callers tell.
    let user = ["sync.runtime_SemacquireMutex", "sync.(*RWMutex).RLock"];
    let lock = super::lock_of(&user.map(|name| frame(name, "program")), AbsAddr(0x200c)).unwrap();
    assert_eq!((lock.kind, lock.address), (LockKind::RwLock, Some(AbsAddr(0x2000))));
    let user = ["sync.runtime_SemacquireMutex", "main.work"]; // inlined
    let lock = super::lock_of(&user.map(|name| frame(name, "program")), AbsAddr(0x200c)).unwrap();
    assert_eq!((lock.kind, lock.address), (LockKind::RwLock, Some(AbsAddr(0x2000))));
    let user = ["sync.runtime_SemacquireMutex", "sync.(*Mutex).lockSlow", "sync.(*RWMutex).Lock"];
    let lock = super::lock_of(&user.map(|name| frame(name, "program")), AbsAddr(0x2004)).unwrap();
    assert_eq!((lock.kind, lock.address), (LockKind::Mutex, Some(AbsAddr(0x2000))));
    assert_eq!(super::lock_of(&[frame("sync.runtime_Semacquire", "program")], AbsAddr(0)), None);
}
