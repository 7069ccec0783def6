//! What every stack of a workload of tests/workloads/stacks must look like, as the program itself printed it,
//! and how one sample is held against that. Nothing here starts a program.

use crate::observation::{Frame, Observation};
use serde::Deserialize;
use std::sync::Arc;

/// What a chain printed when it was done.
#[derive(Clone, Debug, Deserialize)]
pub struct Chain {
    /// File name of the executable.
    pub executable: String,
    /// Unix nanoseconds from which on samples count.
    pub late_from_ns: u64,
    /// Unix nanoseconds up to which samples count.
    pub late_until_ns: u64,
    /// CPU time of the working thread between the two.
    pub late_cpu_ns: u64,
    /// Where the thread's stack begins.
    pub root: Place,
    /// Leaf first.
    pub frames: Vec<Call>,
}

/// A place in a file.
#[derive(Clone, Debug, Deserialize)]
pub struct Place {
    /// File name of the mapping, empty for memory that no file backs.
    pub file: String,
    /// ELF address.
    pub address: u64,
}

/// One frame of the truth.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    /// Name of the function, empty where the program does not know it.
    pub function: String,
    /// File name of the mapping.
    pub file: String,
    /// Return address, 0 for any address of the function.
    pub address: u64,
}

/// Bytes behind the entry of an executable that count as its first function; glibc's `_start` has 34.
const ENTRY_BYTES: u64 = 64;

/// Frames of the vDSO or the C library that may stand in the leaf's place while its loop looks at the clock.
const CLOCK_FRAMES_MAX: usize = 4;

/// How a stack compares with the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The leaf of the chain is in the stack, with all its callers.
    pub in_leaf: bool,
    /// Every caller of the chain is there, in order.
    pub under_callers: bool,
    /// The same, the stack goes on up to the root, and there is no marker.
    pub complete: bool,
    /// Frames that should have a name.
    pub nameable: usize,
    /// Frames that have the right one.
    pub named: usize,
    /// Frames that have another one.
    pub misnamed: usize,
    /// User frames.
    pub depth: usize,
    /// Frames from the leaf on that the truth has as well, in the order of the truth.
    pub true_frames: usize,
}

impl Call {
    fn is_at(&self, frame: &Frame) -> bool {
        if self.file.is_empty() {
            // Memory that no file backs has no ELF addresses, so none is sent.
            return frame.file.is_empty();
        }
        // The agent sends return addresses as they are or, as is usual, one byte earlier.
        frame.file == self.file && self.address.wrapping_sub(frame.address) <= 1
    }

    /// True if it says at which address.
    const fn is_exact(&self) -> bool {
        self.address != 0
    }
}

impl Chain {
    /// The truth in what a program printed: its last line.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let line = text.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// True if the sample was taken while the chain counted.
    #[must_use]
    pub const fn counts(&self, sample: &Observation) -> bool {
        self.late_from_ns <= sample.time_ns && sample.time_ns < self.late_until_ns
    }

    /// Holds a stack against the truth. So many frames of others, which the chain's leaf called, may stand there.
    #[must_use]
    pub fn judge(&self, sample: &Observation, foreign_max: usize) -> Judgement {
        let user: Vec<&Frame> = sample.user().collect();
        let mut judgement = Judgement { depth: user.len(), ..Judgement::default() };
        let Some(Match { pairs, in_leaf, whole }) = self.match_frames(&user, foreign_max) else {
            return judgement;
        };
        judgement.in_leaf = in_leaf;
        judgement.true_frames = pairs.len();
        let marked = sample.markers().next().is_some();
        judgement.under_callers = whole;
        judgement.complete = whole && !marked && user.last().is_some_and(|it| self.is_root(it));
        for (frame, call) in pairs {
            name(&mut judgement, frame, call);
        }
        judgement
    }

    /// True if the stack is the truth with its middle cut out: from the leaf on every frame is the truth's, then comes the
    /// marker, then the truth's outermost frames up to the root.
    #[must_use]
    pub fn is_truncated(&self, sample: &Observation, marker: &str) -> bool {
        let is_cut = |frame: &Frame| frame.functions.iter().any(|text| text == marker);
        let mut halves = sample.frames.split(|frame| is_cut(frame));
        let (Some(inner), Some(outer), None) = (halves.next(), halves.next(), halves.next()) else {
            return false;
        };
        let user = |half: &'_ [Arc<Frame>]| -> Vec<Arc<Frame>> {
            half.iter().filter(|frame| frame.is_user()).cloned().collect()
        };
        let (inner, outer) = (user(inner), user(outer));
        let inner: Vec<&Frame> = inner.iter().map(Arc::as_ref).collect();
        let Some(Match { pairs, .. }) = self.match_frames(&inner, 0) else { return false };
        let foreign = inner.len() - pairs.len();
        let Some(last) = self.frames.last() else { return false };
        let Some(at) = outer.iter().position(|frame| last.is_at(frame)) else { return false };
        let back = outer[..=at].iter().rev().zip(self.frames.iter().rev());
        let fits = |(frame, call): (&Arc<Frame>, &Call)| !call.is_exact() || call.is_at(frame);
        foreign <= CLOCK_FRAMES_MAX
            && back.into_iter().all(fits)
            && outer.last().is_some_and(|frame| self.is_root(frame))
    }

    /// Lays the truth over the stack. The leaf's own address is not known, the one it returns to is; while
    /// the loop around the leaf looks at its clock, that is not in the stack either.
    fn match_frames<'a>(&'a self, user: &[&'a Frame], foreign_max: usize) -> Option<Match<'a>> {
        let fits = |&(frame, call): &(&Frame, &Call)| !call.is_exact() || call.is_at(frame);
        let leaf = self.frames.iter().position(Call::is_exact)?;
        // The loop is the leaf's caller, or that one's.
        let places = [
            (true, leaf, foreign_max),
            (false, leaf + 1, CLOCK_FRAMES_MAX),
            (false, leaf + 2, CLOCK_FRAMES_MAX),
        ];
        for (in_leaf, from, others) in places {
            let Some(call) = self.frames.get(from) else { continue };
            let mut at = (from..=from + others).chain(0..from);
            let found = at.find(|&at| user.get(at).is_some_and(|it| call.is_at(it)));
            let Some(at) = found else { continue };
            // A leaf whose caller is missing is not at its clock.
            let is_leaf =
                |frame: &&Frame| self.frames.first().is_some_and(|it| frame.is(&it.function));
            if !in_leaf && user[..at].iter().any(is_leaf) {
                return None;
            }
            let aligned = in_leaf && at == from;
            let (at, from) = if aligned { (0, 0) } else { (at, from) };
            let pairs = user.iter().skip(at).copied().zip(&self.frames[from..]);
            let pairs: Vec<_> = pairs.take_while(fits).collect();
            return Some(Match { whole: from + pairs.len() == self.frames.len(), pairs, in_leaf });
        }
        None
    }

    fn is_root(&self, frame: &Frame) -> bool {
        let bytes = frame.address.checked_sub(self.root.address.wrapping_sub(1));
        frame.file == self.root.file && bytes.is_some_and(|bytes| bytes <= ENTRY_BYTES)
    }
}

/// The part of a stack that the truth has as well.
struct Match<'a> {
    pairs: Vec<(&'a Frame, &'a Call)>,
    /// It begins with the leaf.
    in_leaf: bool,
    /// It ends with the truth's last frame.
    whole: bool,
}

fn name(judgement: &mut Judgement, frame: &Frame, call: &Call) {
    if call.function.is_empty() {
        return;
    }
    judgement.nameable += 1;
    if frame.is(&call.function) {
        judgement.named += 1;
    } else if !frame.functions.is_empty() {
        judgement.misnamed += 1;
    }
}

#[cfg(test)]
mod tests;
