//! Stacks deeper than a walk may go, on the kernel of this machine, as root.

use super::programs::VERY_DEEP;
use super::run::{BOTH_FORMS, cannot_run, options, outcomes, samples_of};
use super::target::Target;
use crate::bpf::{FormChoice, RawSample, UserFrame};
use agent_ebpf::Outcome;
use agent_ebpf::limits::{ROOT_FRAMES_MAX, USER_FRAMES_MAX, USER_FRAMES_TAIL_CALLS_MAX};

/// A program that recurses so deep, and its outermost three frames: the C library's two and `_start`.
fn recursion(depth: usize) -> (Target, Vec<UserFrame>) {
    let depth = format!("-DDEPTH={depth}");
    let target = Target::compile_and_run(VERY_DEEP, &["-O2", "-fomit-frame-pointer", &depth]);
    let (samples, _, _) = samples_of(&target, &options(FormChoice::BpfLoop, target.pid()));
    let shallow = samples.iter().filter(|sample| sample.user.len() < 8);
    let complete = shallow.into_iter().find(|sample| sample.outcome == Outcome::Complete);
    let complete = complete.expect("a tenth of the time is spent near the root");
    let root = complete.user[complete.user.len() - 3..].to_vec();
    (target, root)
}

#[test]
fn recursion_of_3000_frames_keeps_its_root() {
    if cannot_run() {
        return;
    }
    let (target, root) = recursion(3000);
    for (form, frames, roots) in [
        (FormChoice::BpfLoop, USER_FRAMES_MAX, ROOT_FRAMES_MAX..=ROOT_FRAMES_MAX),
        // As many as the first whole walk met: in `main`, or on the way down.
        (FormChoice::TailCalls, USER_FRAMES_TAIL_CALLS_MAX, root.len()..=ROOT_FRAMES_MAX),
    ] {
        let (samples, statistics, _) = samples_of(&target, &options(form, target.pid()));
        let cut = |sample: &&RawSample| {
            matches!(sample.outcome, Outcome::DepthLimit | Outcome::TimeLimit)
        };
        let cut: Vec<_> = samples.iter().filter(cut).collect();
        assert!(cut.len() * 2 > samples.len(), "{:?}", outcomes(&samples));
        for sample in &cut {
            let walked = sample.user.len() - usize::from(sample.root_frames);
            assert!(walked <= frames, "{walked}");
            assert!(walked == frames || sample.outcome == Outcome::TimeLimit, "{walked}");
        }
        let rooted: Vec<_> = cut.iter().filter(|sample| sample.root_frames > 0).collect();
        // Until its root is known: with `bpf_loop` the first walks, with tail calls the first walk in `shallow`.
        assert!(rooted.len() * 10 > cut.len() * 7, "{} of {}", rooted.len(), cut.len());
        for sample in rooted {
            assert!(sample.user.ends_with(&root), "{:?}", sample.user.last());
            assert!(roots.contains(&usize::from(sample.root_frames)), "{}", sample.root_frames);
        }
        let total = statistics.total().counters;
        assert_eq!(total.roots + total.roots_unknown, cut.len() as u64, "{total:?}");
        eprintln!("{form:?}: {} cut, {} with root", cut.len(), total.roots);
    }
}

#[test]
fn recursion_of_300_frames_is_whole_with_bpf_loop_and_keeps_its_root_with_tail_calls() {
    if cannot_run() {
        return;
    }
    let (target, root) = recursion(300);
    for form in BOTH_FORMS {
        let (samples, _, _) = samples_of(&target, &options(form, target.pid()));
        let deepest = samples.iter().map(|sample| sample.user.len()).max();
        if form == FormChoice::BpfLoop {
            assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::Complete]);
            // `down` 301 times, main, two of the C library and _start.
            assert_eq!(deepest, Some(305));
            assert!(samples.iter().all(|sample| sample.user.ends_with(&root)));
        } else {
            let cut = samples.iter().filter(|sample| sample.outcome == Outcome::DepthLimit);
            let rooted = cut.clone().filter(|sample| sample.root_frames > 0);
            assert!(rooted.clone().count() * 10 > cut.count() * 7);
            assert!(rooted.into_iter().all(|sample| sample.user.ends_with(&root)));
        }
    }
}

#[test]
fn a_root_that_begins_where_the_walk_was_cut_makes_it_whole() {
    if cannot_run() {
        return;
    }
    // 1,024 frames and 4 more: `down` 1,024 times, main, two of the C library and _start.
    let (target, root) = recursion(USER_FRAMES_MAX - 1);
    let (samples, _, _) = samples_of(&target, &options(FormChoice::BpfLoop, target.pid()));
    let complete = samples.iter().filter(|sample| sample.outcome == Outcome::Complete);
    assert!(complete.clone().count() * 10 > samples.len() * 9, "{:?}", outcomes(&samples));
    for sample in complete {
        assert!(sample.user.ends_with(&root) && sample.root_frames == 0);
    }
    let deepest = samples.iter().map(|sample| sample.user.len()).max();
    assert_eq!(deepest, Some(USER_FRAMES_MAX + 4));
}
