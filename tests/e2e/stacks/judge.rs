//! Samples of one case against its truth: a row for the table, and everything that is wrong.

use super::case::{Case, Expect};
use super::opinion::Depth;
use super::table::Row;
use tests::chain::{Chain, Judgement};
use tests::observation::Observation;
use tests::statistics::{SIGMAS, as_f64, count_is};
use tests::workload::seconds;

/// Samples of a second and CPU. A prime, so that it walks in step with nothing.
pub(super) const FREQUENCY_HZ: u32 = 997;

/// Share of frames that must have their true name; none may have another.
const NAMED_SHARE_MIN: f64 = 0.995;

/// Share of samples in the chain's leaf: the rest looks at its clock.
const LEAF_SHARE_MIN: f64 = 0.95;

/// Stacks may be shallower than somebody else finds them by so much.
const DEPTH_SHARE_MAX: f64 = 0.02;

/// The row, and what is wrong with it.
pub(super) fn judge(
    case: &Case,
    chain: &Chain,
    all: &[Observation],
    (pid, depth): (u32, Option<&Depth>),
) -> (Row, Vec<String>) {
    let of_it = |sample: &&Observation| {
        sample.executable == chain.executable && (!case.has_children || sample.pid == pid)
    };
    let samples: Vec<&Observation> =
        all.iter().filter(of_it).filter(|sample| chain.counts(sample)).collect();
    let judged: Vec<(&Observation, Judgement)> =
        samples.iter().map(|&sample| (sample, chain.judge(sample, case.foreign_max))).collect();
    let row = row(case, &judged, depth);
    let mut wrong = Vec::new();
    let late = seconds(chain.late_cpu_ns);
    let wall = seconds(chain.late_until_ns - chain.late_from_ns);
    let expected = late * f64::from(FREQUENCY_HZ);
    wrong.extend(count_is(samples.len(), expected, late / wall).err());
    match case.expect {
        Expect::Complete => wrong.extend(complete(&judged, &row, case.right_min)),
        Expect::Truncated(marker) => {
            let so = |sample: &Observation, _: &Judgement| chain.is_truncated(sample, marker);
            wrong.extend(most(&judged, case.right_min, "cut in the middle alone", so));
            wrong.extend(named(&judged, &row));
        }
        Expect::Stops(marker) => wrong.extend(stops(&judged, marker)),
    }
    if let Some(depth) = depth
        && row.depth < depth.frames * (1.0 - DEPTH_SHARE_MAX) - SIGMAS * depth.error
    {
        wrong.push(format!("depth {:.2}, by {} {:.2}", row.depth, depth.by, depth.frames));
    }
    (row, wrong.into_iter().map(|wrong| format!("{}: {wrong}", case.name)).collect())
}

fn row(case: &Case, judged: &[(&Observation, Judgement)], depth: Option<&Depth>) -> Row {
    let sum = |of: fn(&Judgement) -> usize| judged.iter().map(|(_, it)| of(it)).sum::<usize>();
    let share = |part: usize, all: usize| as_f64(part) / as_f64(all.max(1));
    Row {
        name: case.name.to_owned(),
        what: case.what.to_owned(),
        samples: judged.len(),
        complete: share(sum(|it| usize::from(it.complete)), judged.len()),
        named: share(sum(|it| it.named), sum(|it| it.nameable)),
        depth: share(sum(|it| it.depth), judged.len()),
        opinion: depth.map_or_else(String::new, |it| format!("{} {:.2}", it.by, it.frames)),
    }
}

/// Every stack reaches its root under its true callers, and is named by them.
fn complete(judged: &[(&Observation, Judgement)], row: &Row, right_min: f64) -> Vec<String> {
    let mut wrong = most(judged, right_min, "complete", |_, it| it.complete);
    wrong.extend(named(judged, row));
    wrong
}

/// Enough of the stacks are so.
fn most(
    judged: &[(&Observation, Judgement)],
    right_min: f64,
    what: &str,
    so: impl Fn(&Observation, &Judgement) -> bool,
) -> Vec<String> {
    let not_so: Vec<&Observation> =
        judged.iter().filter(|(sample, it)| !so(sample, it)).map(|(sample, _)| *sample).collect();
    let share = 1.0 - as_f64(not_so.len()) / as_f64(judged.len().max(1));
    if share >= right_min {
        return Vec::new();
    }
    let first = not_so.first().map(|sample| sample.shown()).unwrap_or_default();
    vec![format!("{share:.4} {what}; not so: {first}")]
}

/// The samples are in the chain's leaf, and its frames have their true names.
fn named(judged: &[(&Observation, Judgement)], row: &Row) -> Vec<String> {
    let mut wrong = Vec::new();
    let in_leaf = judged.iter().filter(|(_, it)| it.in_leaf).count();
    if as_f64(in_leaf) < LEAF_SHARE_MIN * as_f64(judged.len()) {
        wrong.push(format!("{in_leaf} of {} samples are in the leaf", judged.len()));
    }
    if row.named < NAMED_SHARE_MIN {
        wrong.push(format!("{:.4} of the frames are named", row.named));
    }
    if let Some((sample, _)) = judged.iter().find(|(_, it)| it.misnamed > 0) {
        wrong.push(format!("a wrong name: {}", sample.shown()));
    }
    wrong
}

/// No stack has a frame that the truth does not have, and every one says why it ends.
fn stops(judged: &[(&Observation, Judgement)], marker: &str) -> Option<String> {
    let honest = |(sample, it): &&(&Observation, Judgement)| {
        // The leaf, whose address the truth does not know, or the loop that called it.
        let true_frames = it.true_frames.max(1);
        sample.markers().any(|text| text == marker) && it.depth == true_frames && it.misnamed == 0
    };
    let wrong = judged.iter().find(|judged| !honest(judged))?;
    let count = judged.iter().filter(honest).count();
    Some(format!("{count} of {} stop honestly; not so: {}", judged.len(), wrong.0.shown()))
}
