//! Goal: a file holds its place as long as it has locks and is mapped, and no order is lost. Method: made-up libraries, and
//! orders that the test reads.

use super::*;
use crate::address::{FileOffset, Pid, Tid};
use crate::limits::PROBED_CALLS_MAX;
use crate::process::fake::{FakeFiles, FakeHost, FakeProcess};
use crate::process::files::Backing;
use crate::process::host::{Host as _, Task};
use agent_ebpf::LockForm;

/// So many C libraries that are mapped as long as the second value is there.
fn libraries(count: u32) -> (Arc<Files>, Vec<Backing>) {
    let host: Arc<FakeHost> = Arc::default();
    let files = Arc::new(Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles)));
    let task = Task { pid: Pid(1), tid: Tid(1) };
    host.processes().insert(task.pid, FakeProcess::new(0, "/bin/a", &[]));
    let take = |number| {
        let path = format!("/lib/libc.so.{number}").into_bytes();
        files.take_opened(host.open_path(task, &path).unwrap(), &path)
    };
    let mapped = (0..count).map(take).collect();
    (files, mapped)
}

/// A keeper, and the thread's ends.
fn keeper(
    orders_max: usize,
    files_max: usize,
) -> (LockKeeper, Receiver<Order>, Sender<(FileId, Answer)>) {
    let (orders, received) = sync_channel(orders_max);
    let (answer, answers) = channel();
    let both = vec![LockOwner::Go, LockOwner::Libc];
    let end = End { stop: Arc::default(), done: channel().1 };
    (LockKeeper::new(orders, answers, Arc::default(), (both, files_max), end), received, answer)
}

/// Orders that came: the file, and whether it is to be probed.
fn received(orders: &Receiver<Order>) -> Vec<(u32, bool)> {
    let of = |order| match order {
        Order::Probe(id, _) => (id.0, true),
        Order::Leave(id) => (id.0, false),
    };
    let mut found: Vec<_> = orders.try_iter().map(of).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_forgotten_file_is_left_alone_once_there_is_room_for_the_order() {
    let (files, mapped) = libraries(1);
    let (mut keeper, orders, _answer) = keeper(1, 8);
    keeper.look(&files);
    drop(mapped);
    files.forget_unused();
    // The first order is still there.
    keeper.tidy(&files);
    assert_eq!(keeper.probed.len(), 1);
    assert_eq!(received(&orders), [(0, true)]);
    keeper.tidy(&files);
    assert_eq!(received(&orders), [(0, false)]);
    assert_eq!(keeper.probed.len(), 0);
}

#[test]
fn a_file_without_locks_makes_room_for_one_that_waits() {
    let (files, mapped) = libraries(6);
    let (mut keeper, orders, answer) = keeper(8, 2);
    keeper.look(&files);
    // Two wait, and the others are too many.
    assert_eq!(received(&orders), [(0, true), (1, true)]);
    assert_eq!(keeper.counts().refused, 4);
    keeper.tidy(&files);
    assert_eq!(received(&orders), []);
    answer.send((FileId(0), Answer::Useless)).unwrap();
    keeper.tidy(&files);
    assert_eq!(received(&orders), [(0, false), (2, true)]);
    assert!(!keeper.is_probed(FileId(0)) && keeper.is_probed(FileId(2)));
    // What waits may be gone when there is room.
    drop(mapped);
    files.forget_unused();
    keeper.tidy(&files);
    assert_eq!(received(&orders), [(1, false), (2, false)]);
    assert!(keeper.probed.is_empty() && keeper.waiting.is_empty());
}

#[test]
fn a_file_whose_places_find_no_room_is_probed_later() {
    let (files, _mapped) = libraries(1);
    let (mut keeper, orders, answer) = keeper(8, 8);
    keeper.look(&files);
    answer.send((FileId(0), Answer::Later)).unwrap();
    keeper.tidy(&files);
    assert_eq!(received(&orders), [(0, false), (0, true)]);
    for _ in 1..PROBE_PAUSE_WINDOWS {
        assert!(!keeper.is_probed(FileId(0)));
        keeper.tidy(&files);
    }
    assert_eq!(received(&orders), [(0, true)]);
}

#[test]
fn a_file_that_the_kernel_refuses_is_tried_again_and_not_for_ever() {
    let (files, _mapped) = libraries(1);
    let (mut keeper, orders, answer) = keeper(8, 8);
    keeper.look(&files);
    for _ in 1..PROBE_REFUSALS_MAX {
        assert!(keeper.is_probed(FileId(0)));
        assert_eq!(received(&orders), [(0, true)]);
        answer.send((FileId(0), Answer::Refused)).unwrap();
        for _ in 0..PROBE_PAUSE_WINDOWS - 1 {
            keeper.tidy(&files);
            assert!(!keeper.is_probed(FileId(0)));
        }
        assert_eq!(received(&orders), [(0, false)]);
        keeper.tidy(&files);
    }
    assert_eq!(received(&orders), [(0, true)]);
    answer.send((FileId(0), Answer::Refused)).unwrap();
    keeper.tidy(&files);
    assert_eq!(received(&orders), [(0, false)]);
    assert!(keeper.probed.is_empty());
}

/// The thread itself, on a kernel that takes no probe.
#[test]
fn the_thread_says_what_has_nothing_to_probe() {
    let (files, _mapped) = libraries(3);
    let mut keeper = LockKeeper::start(Probes::default(), Arc::clone(&files) as _).unwrap();
    keeper.look(&files);
    assert!(keeper.probed.is_empty(), "what nobody probes takes no place");
    (keeper.seen, keeper.owners) = (0, vec![LockOwner::Libc]);
    keeper.look(&files);
    assert_eq!(keeper.probed.len(), 3);
    for _ in 0..1000 {
        keeper.tidy(&files);
        if keeper.probed.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(keeper.probed.is_empty(), "{:?}", keeper.probed);
    assert_eq!(keeper.counts().without, 0, "nobody has looked into them");
}

/// A thread that has so many places to probe.
fn work(places: usize) -> (Work, Receiver<(FileId, Answer)>) {
    let (answer, answers) = channel();
    let call = WaitingCall { place: FileOffset(0), form: LockForm::GlibcMutex };
    let calls = vec![call; places];
    let work = Work {
        probes: Probes::default(),
        files: libraries(0).0,
        counts: Arc::default(),
        answer,
        attached: HashMap::new(),
        leaving: HashMap::new(),
        steps: 0,
        stop: Arc::default(),
        unfinished: [Unfinished { id: FileId(7), calls, attached: Attached::default() }].into(),
    };
    (work, answers)
}

#[test]
fn places_of_all_files_are_limited() {
    let (work, _answers) = self::work(PROBED_PLACES_MAX - PROBED_CALLS_MAX);
    assert!(work.room(LockOwner::Libc).is_ok());
    let (mut work, answers) = self::work(PROBED_PLACES_MAX - PROBED_CALLS_MAX + 1);
    assert!(work.room(LockOwner::Go).is_ok());
    let error = work.room(LockOwner::Libc).unwrap_err();
    work.fail(FileId(1), LockOwner::Libc, &error);
    assert_eq!(answers.try_recv(), Ok((FileId(1), Answer::Later)));
    assert_eq!(work.counts.refused.load(Ordering::Relaxed), 1);
    work.obey(Order::Leave(FileId(7)));
    assert!(work.room(LockOwner::Libc).is_ok());
}

#[test]
fn descriptors_of_all_files_are_limited() {
    let forms = LockForm::ALL.len();
    for (descriptors, go, libc) in [
        (PROBED_DESCRIPTORS_MAX - forms, true, true),
        (PROBED_DESCRIPTORS_MAX - forms + 1, true, false),
        (PROBED_DESCRIPTORS_MAX - 2, true, false),
        (PROBED_DESCRIPTORS_MAX - 1, false, false),
    ] {
        let (mut work, _answers) = self::work(0);
        let attached = Attached::of_nothing(descriptors, descriptors);
        work.attached.insert(FileId(3), (LockOwner::Libc, attached));
        let room = [LockOwner::Go, LockOwner::Libc].map(|owner| work.room(owner).is_ok());
        assert_eq!(room, [go, libc], "{descriptors}");
    }
}

/// A thread that is to leave a file which takes all descriptors.
fn full_work() -> (Work, Receiver<(FileId, Answer)>) {
    let (mut work, answers) = self::work(0);
    let attached = Attached::of_nothing(PROBED_DESCRIPTORS_MAX, PROBED_DESCRIPTORS_MAX);
    work.attached.insert(FileId(3), (LockOwner::Go, attached));
    work.obey(Order::Leave(FileId(3)));
    work.count();
    (work, answers)
}

#[test]
fn what_is_to_be_left_takes_room_and_makes_it_when_it_is_needed() {
    let (mut work, _answers) = full_work();
    assert_eq!(work.counts.programs.load(Ordering::Relaxed), 1, "its probes are still met");
    assert!(work.room(LockOwner::Go).is_err());
    assert!(work.make_room(LockOwner::Go).is_ok());
    work.count();
    assert!(work.leaving.is_empty());
    assert_eq!(work.counts.programs.load(Ordering::Relaxed), 0);
    // What is taken back was counted all the time: nothing finds room beside it.
    let (mut work, _answers) = full_work();
    work.obey(Order::Probe(FileId(3), LockOwner::Go));
    assert!(work.make_room(LockOwner::Go).is_err());
    assert_eq!(work.taken().descriptors, PROBED_DESCRIPTORS_MAX);
}

#[test]
fn what_is_to_be_left_goes_though_orders_keep_coming() {
    let (mut work, _answers) = full_work();
    for step in 0..PROBE_LEAVING_STEPS_MAX {
        assert_eq!(work.leaving.len(), 1, "{step}");
        work.obey(Order::Leave(FileId(4)));
        work.end_overdue();
    }
    assert!(work.leaving.is_empty());
}

#[test]
fn what_is_to_be_left_goes_before_a_library_is_searched() {
    let (mut work, _answers) = full_work();
    assert!(matches!(work.look_for_calls(FileId(4)), Err(ProbeError::Gone)));
    assert!(work.leaving.is_empty());
}

#[test]
fn a_file_that_is_to_be_probed_again_before_it_was_left_stays_probed() {
    let (mut work, _answers) = self::work(0);
    let id = FileId(3);
    work.attached.insert(id, (LockOwner::Go, Attached::default()));
    work.obey(Order::Leave(id));
    assert!(work.attached.is_empty() && work.leaving.contains_key(&id));
    work.obey(Order::Probe(id, LockOwner::Go));
    assert!(work.attached.contains_key(&id) && work.leaving.is_empty());
    work.obey(Order::Leave(id));
    work.go_on(); // the library that is there has no places left
    work.go_on();
    assert!(work.leaving.is_empty() && !work.attached.contains_key(&id));
}

#[test]
fn failures_of_go_and_of_c_libraries_are_counted_apart() {
    let (work, answers) = self::work(0);
    let limit = || ProbeError::File(ForeignFileError::Limit { what: "calls", max: 1 });
    work.fail(FileId(1), LockOwner::Libc, &limit());
    work.fail(FileId(2), LockOwner::Libc, &ProbeError::Gone);
    work.fail(FileId(3), LockOwner::Go, &limit());
    let refused = BpfError::Full { what: "places", limit: 1 };
    work.fail(FileId(4), LockOwner::Go, &ProbeError::Kernel(refused));
    let Counts { programs_failed, libraries_failed, refused, .. } = &*work.counts;
    let counts = [programs_failed, libraries_failed, refused];
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [2, 2, 0]);
    // Who has the file again may have it probed; what cannot be understood never can.
    let useless = |id| (FileId(id), Answer::Useless);
    let answers: Vec<_> = answers.try_iter().collect();
    assert_eq!(answers, [useless(1), useless(3), (FileId(4), Answer::Refused)]);
}
