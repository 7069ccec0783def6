//! Is a wait kept whose end no switch told. The kernel tells every switch here, so the thread is said to wait while
//! it runs: it is the same to the programs.

use crate::report::{Report, Verdict};
use agent::address::Tid;
use agent::bpf::{Record, Sampler};
use agent::clock::monotonic_now;
use agent_ebpf::{WaitClass, WaitingThread};
use anyhow::{Context as _, Result, anyhow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A thread that was interrupted already is known to the programs: another one is taken, so often at most.
const THREADS_MAX: usize = 20;
/// How long the thread runs.
const RUN: Duration = Duration::from_millis(50);
/// How long its last words may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// It never waits so.
const CLASS: WaitClass = WaitClass::Sleep;

/// Says of a running thread that it waits, and looks what became of that. Records are handed on.
pub(crate) fn check(
    report: Report,
    sampler: &mut Sampler,
    each: &mut dyn FnMut(Record),
) -> Result<()> {
    let before = unseen(sampler)?;
    let begin = monotonic_now();
    let tid = said_to_wait(sampler)?.context("every thread was interrupted at once")?;
    let mut end = None;
    let start = Instant::now();
    while end.is_none() && start.elapsed() < PATIENCE {
        sampler.poll(Duration::from_millis(50), &mut |record| {
            if let Record::ThreadEnd { tid: ended, time, thread } = &record
                && *ended == tid
            {
                end = Some((time.since(begin), thread.sums[CLASS as usize]));
            }
            each(record);
        })?;
    }
    let unseen = unseen(sampler)? - before;
    let (life_ns, sums) = end.unwrap_or_default();
    report.line(
        "unseen_end",
        Verdict::of(unseen >= 1 && sums.count == 1 && sums.ns <= life_ns),
        &[("unseen", &unseen), ("waits", &sums.count), ("ns", &sums.ns), ("life_ns", &life_ns)],
    );
    Ok(())
}

fn unseen(sampler: &Sampler) -> Result<u64> {
    Ok(sampler.statistics()?.waits.unwrap_or_default().ends_unseen)
}

/// A thread that ran all the time, and is gone.
fn said_to_wait(sampler: &mut Sampler) -> Result<Option<Tid>> {
    for _ in 0..THREADS_MAX {
        let (tell, told) = mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("runner".to_owned()).spawn(move || {
            // SAFETY: the call has no preconditions.
            let tid = unsafe { libc::gettid() };
            if tell.send(tid).is_ok() {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        })?;
        let tid = Tid(told.recv()?.cast_unsigned());
        let waits = WaitingThread {
            tgid: std::process::id(),
            class: CLASS as u32,
            since_ns: monotonic_now().0,
            ..WaitingThread::default()
        };
        let is_new = sampler.begin_wait(tid, &waits);
        if is_new {
            std::thread::sleep(RUN);
        }
        over.store(true, Ordering::Relaxed);
        thread.join().map_err(|_panic| anyhow!("the thread panicked"))?;
        if is_new {
            return Ok(Some(tid));
        }
    }
    Ok(None)
}
