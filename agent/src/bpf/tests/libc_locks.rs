//! Goal: a thread that begins to wait for a lock of its C library is told, and none that only takes one. Method: a
//! stripped static program, whose copy of glibc nobody else runs, probed on this machine's kernel, as root.

use super::run::cannot_run;
use super::target::{Target, build_c};
use crate::bpf::{Attached, LibcProbes, Options, Record, Sampler, Statistics};
use crate::kernel::KernelVersion;
use crate::probes::libc::{WaitingCall, waiting_calls};
use agent_ebpf::{LockForm, WaitClass};
use aya::programs::loaded_links;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// Takes a mutex that nobody else wants five million times; with an argument also one that is held 20 ms and free 1 ms,
/// 40 times. Prints how often it waited for more than a moment.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <time.h>
static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER, wanted = PTHREAD_MUTEX_INITIALIZER;
static volatile int stop;
static void rest(long ns) { const struct timespec t = {0, ns}; nanosleep(&t, NULL); }
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void *hold(void *unused) {
    while (!stop) {
        pthread_mutex_lock(&wanted);
        rest(20000000);
        pthread_mutex_unlock(&wanted);
        rest(1000000);
    }
    return unused;
}
int main(int count, char **arguments) {
    (void)arguments;
    for (int i = 0; i < 5000000; i++) {
        pthread_mutex_lock(&alone);
        pthread_mutex_unlock(&alone);
    }
    int waits = 0;
    if (count > 1) {
        pthread_t holder;
        pthread_create(&holder, NULL, hold, NULL);
        for (int i = 0; i < 40; i++) {
            rest(500000);
            const long before = now();
            pthread_mutex_lock(&wanted);
            waits += now() - before > 1000000;
            pthread_mutex_unlock(&wanted);
        }
        stop = 1;
        pthread_join(holder, NULL);
    }
    printf("%d", waits);
    return 0;
}
"#;

/// Waits as the program says, marks, and waits for a lock with a stack.
fn run(arguments: &[&str]) -> Option<(u64, Statistics, u64)> {
    if cannot_run() {
        return None;
    }
    let program = build_c(PROGRAM, &["-O2", "-static", "-no-pie", "-pthread", "-s"]);
    let options = Options { off_cpu: true, libc_locks: true, ..Options::default() };
    let (mut sampler, _tables) = Sampler::load(&options).unwrap();
    let file = File::open(&program.file).unwrap();
    let calls = waiting_calls(file.as_fd()).unwrap();
    assert!(!calls.is_empty());
    let probes = sampler.libc_probes().expect("this kernel takes the programs");
    let attached = attach(&probes, &file, &calls);
    let mut target = Target::run(program, arguments);
    let pid = target.pid();
    let mut told = 0;
    let mut count = |record| {
        if let Record::Wait(wait) = record
            && wait.sample.pid == pid
            && wait.class == WaitClass::Lock
        {
            assert_eq!(wait.facts.form, LockForm::GlibcMutex as u64, "{wait:?}");
            told += 1;
        }
    };
    for _ in 0..20 {
        sampler.poll(Duration::from_millis(100), &mut count).unwrap();
    }
    let waits = target.output().parse().expect("a number");
    sampler.flush(&mut count);
    let statistics = sampler.statistics().unwrap();
    drop(attached);
    Some((waits, statistics, told))
}

#[test]
fn a_lock_that_nobody_else_wants_meets_no_probe() {
    let Some((waits, statistics, told)) = run(&[]) else { return };
    let counters = statistics.locks;
    assert_eq!((waits, counters.marked, told), (0, 0, 0), "{counters:?}");
}

#[test]
fn threads_that_wait_for_a_lock_are_told() {
    let Some((waits, statistics, told)) = run(&["1"]) else { return };
    let counters = statistics.locks;
    eprintln!("figure: {waits} waits, {} marks, {told} with a stack", counters.marked);
    assert!(waits >= 10, "{waits}");
    // Both threads may find it held for a moment only.
    assert!((waits..=2 * waits + 40).contains(&counters.marked), "{counters:?}, {waits} waits");
    assert_eq!(counters.marks_refused, 0);
    // On a host that switches much, some have no stack.
    assert!(told > 0 && told <= counters.marked, "{told} of {waits}");
}

#[test]
fn the_cost_of_a_probe_is_measured() {
    if cannot_run() {
        return;
    }
    let options = Options { off_cpu: true, libc_locks: true, ..Options::default() };
    let (sampler, _tables) = Sampler::load(&options).unwrap();
    let cost = sampler.libc_probes().expect("this kernel takes the programs").cost_ns().unwrap();
    eprintln!("figure: {} ns a hit", cost.ns);
    assert_eq!(sampler.statistics().unwrap().locks.marked, cost.hits);
    assert!((100..1_000_000).contains(&cost.ns), "{cost:?}");
}

/// Files that are probed at one time.
const FILES: usize = 60;
/// Of these, so many are left one after the other, to see what that takes.
const ONE_BY_ONE: usize = 6;

/// Ids of the links behind descriptors of this process.
fn link_ids(attached: &[Attached]) -> Vec<u32> {
    let of = |fd: &i32| {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let id = text.lines().find_map(|line| line.strip_prefix("link_id:"));
        id.expect("a link").trim().parse().unwrap()
    };
    attached.iter().flat_map(Attached::numbers).map(|fd| of(&fd)).collect()
}

/// Probes all calls of a file.
fn attach(probes: &LibcProbes, file: &File, calls: &[WaitingCall]) -> Attached {
    let (mut calls, mut attached) = (calls.to_vec(), Attached::default());
    while !calls.is_empty() {
        probes.attach_next(file.as_fd(), &mut calls, &mut attached).unwrap();
    }
    attached
}

/// A sampler, and probes that are linked; `None` where the kernel has no links.
fn linked() -> Option<(Sampler, LibcProbes)> {
    if cannot_run() {
        return None;
    }
    if !KernelVersion::running().is_some_and(KernelVersion::links_probes) {
        eprintln!("skipped: links of many probes need Linux 6.12");
        return None;
    }
    let options = Options { off_cpu: true, libc_locks: true, ..Options::default() };
    let (sampler, _tables) = Sampler::load(&options).unwrap();
    let probes = sampler.libc_probes().expect("this kernel takes the programs");
    assert!(probes.are_linked(), "a kernel of this version has links");
    Some((sampler, probes))
}

/// This process's own C library, if it has one: a copy, which nobody maps.
#[test]
fn a_library_takes_one_link_for_each_form_of_locks() {
    let Some((_sampler, probes)) = linked() else { return };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| Some(&line[line.find('/')?..]).filter(is_glibc));
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libc.so.6");
    std::fs::copy(path.expect("tests are linked to glibc"), &copy).unwrap();
    let file = File::open(copy).unwrap();
    let calls = waiting_calls(file.as_fd()).unwrap();
    let of = |form| calls.iter().filter(|call| call.form == form).count();
    let (mutexes, rwlocks) = (of(LockForm::GlibcMutex), of(LockForm::GlibcRwLock));
    let attached = attach(&probes, &file, &calls);
    eprintln!("figure: {mutexes} places of mutexes, {rwlocks} of rwlocks");
    assert!(mutexes > 1 && rwlocks > 1, "{calls:?}");
    assert_eq!((attached.descriptors(), attached.places()), (2, mutexes + rwlocks));
    assert_eq!(link_ids(&[attached]).len(), 2);
}

fn is_glibc(path: &&str) -> bool {
    path.ends_with("/libc.so.6")
}

#[test]
fn a_link_has_all_places_and_nothing_is_left() {
    let Some((_sampler, probes)) = linked() else { return };
    let program = build_c(PROGRAM, &["-O2", "-static", "-no-pie", "-pthread", "-s"]);
    let folder = tempfile::tempdir().unwrap();
    let copies = (0..FILES).map(|number| {
        let copy = folder.path().join(number.to_string());
        std::fs::copy(&program.file, &copy).unwrap();
        File::open(copy).unwrap()
    });
    let copies: Vec<File> = copies.collect();
    let calls = waiting_calls(copies[0].as_fd()).unwrap();
    let forms = calls.iter().map(|call| call.form).collect::<std::collections::BTreeSet<_>>();
    let begin = Instant::now();
    let attached = copies.iter().map(|file| attach(&probes, file, &calls));
    let mut attached: Vec<Attached> = attached.collect();
    let attaching = begin.elapsed();
    assert!(attached.iter().all(|it| it.places() == calls.len()));
    let links = link_ids(&attached);
    assert_eq!(links.len(), FILES * forms.len());
    let loaded = || loaded_links().flatten().map(|link| link.id()).collect::<Vec<_>>();
    assert!(links.iter().all(|id| loaded().contains(id)));
    let begin = Instant::now();
    attached.drain(..ONE_BY_ONE).for_each(drop);
    let each = begin.elapsed() / u32::try_from(ONE_BY_ONE * forms.len()).unwrap();
    let left = u32::try_from(attached.len() * forms.len()).unwrap();
    let begin = Instant::now();
    Attached::end(attached);
    let ending = begin.elapsed();
    let places = calls.len();
    eprintln!(
        "figure: {places} places in {FILES} files: {attaching:?}; a link is gone in {each:?}, {left} in {ending:?}"
    );
    assert!(!loaded().iter().any(|id| links.contains(id)));
    assert!(ending < left * each / 3, "{left} links in {ending:?}, one in {each:?}");
}
