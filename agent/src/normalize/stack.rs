//! One stack: absolute addresses to frames, markers included.

use super::{Frame, KernelRegion, Marker};
use crate::address::AbsAddr;
use crate::bpf::{RawSample, UserFrame};
use crate::elf::Runtime;
use crate::process::mappings::{Location, MappingSet};
use agent_ebpf::Outcome;
use std::sync::Arc;

/// The frames of a sample, leaf first: kernel, user, marker. The marker of a walk that ended early stands
/// where frames are missing: at the root end, or in front of the root frames that the walker knew anyway.
/// Without a set of mappings (the process was not known in time, or the addresses are of another program)
/// user frames say nothing and are left out.
#[must_use]
pub fn frames(sample: &RawSample, mappings: Option<&MappingSet>) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(sample.kernel.len() + sample.user.len() + 2);
    frames.extend(sample.kernel.iter().enumerate().map(|(at, &address)| Frame::Kernel {
        // The leaf is the interrupted instruction, all others are return addresses.
        address: if at == 0 { address } else { before(address) },
        region: KernelRegion::default(),
    }));
    let stopped = match outcome(sample, mappings) {
        // A kernel thread has no user stack, and nothing is missing.
        Outcome::Complete | Outcome::NoUserStack => None,
        outcome => Some(Frame::Marker(Marker::Stopped(outcome))),
    };
    match mappings {
        Some(mappings) => user_frames(&mut frames, sample, mappings, stopped),
        None => frames.extend(stopped),
    }
    frames
}

/// How the walk of a sample ended, for the frames and for the account: a walk that was complete is of no
/// use where nobody knows any more what its addresses meant.
#[must_use]
pub fn outcome(sample: &RawSample, mappings: Option<&MappingSet>) -> Outcome {
    match sample.outcome {
        Outcome::Complete if mappings.is_none() && !sample.user.is_empty() => {
            Outcome::ProcessUnknown
        }
        outcome => outcome,
    }
}

/// A return address points behind the call; the call is what is looked up.
const fn before(address: AbsAddr) -> AbsAddr {
    AbsAddr(address.0.saturating_sub(1))
}

fn user_frames(
    frames: &mut Vec<Frame>,
    sample: &RawSample,
    mappings: &MappingSet,
    mut stopped: Option<Frame>,
) {
    let user: &[UserFrame] = &sample.user;
    let roots_at = user.len().saturating_sub(usize::from(sample.root_frames));
    let first = frames.len();
    // In the middle of an exec the registers are still the old program's.
    let unknown = sample.outcome == Outcome::ProcessUnknown;
    let lost = sample.outcome == Outcome::MappingUnknown;
    let runtime = mappings.runtime();
    let interpreted = matches!(runtime, Runtime::Python | Runtime::Node | Runtime::Java);
    // Behind which frame (counted from `first`) the marker stands.
    let mut marker_behind = None;
    let mut own_frames_behind = None;
    for (at, frame) in user.iter().enumerate() {
        if at == roots_at {
            frames.extend(stopped.take());
        }
        let address = if frame.exact { frame.address } else { before(frame.address) };
        if unknown && mappings.mapping(address).is_none() {
            continue;
        }
        // Code without unwind information and without frame pointers has any number in rbp: what the walk found
        // there and did not get beyond is no frame, the marker alone says so.
        let guessed = !frame.exact && at + 1 == user.len();
        if guessed && lost && mappings.mapping(address).is_none() {
            continue;
        }
        match mappings.locate(address) {
            Location::File(file, address) => {
                let own = file.facts.as_ref().is_some_and(|facts| facts.runtime == runtime);
                frames.push(Frame::Native { file: Arc::clone(file), address });
                // The outermost frame of an executable is its start-up code, not its interpreter.
                if interpreted && own && at + 1 < user.len() {
                    own_frames_behind = Some(frames.len());
                }
            }
            Location::Unplaced(file, offset) => {
                frames.push(Frame::Unplaced { file: Arc::clone(file), offset });
            }
            // Frames that the interpreter's compiler made: where nothing names them, the marker alone
            // stays (`aggregate` decides).
            Location::Anonymous => {
                let runtime = if interpreted { runtime } else { Runtime::Native };
                frames.push(Frame::Anonymous { runtime, address });
                if interpreted {
                    marker_behind = Some(frames.len());
                }
            }
        }
    }
    frames.extend(stopped);
    // CPython runs every program in its own loop; a JVM and V8 run theirs in code that no file backs.
    let at = match runtime {
        Runtime::Python => marker_behind.max(own_frames_behind),
        _ => marker_behind,
    };
    if let Some(at) = at {
        frames.insert(at.max(first), Frame::Marker(Marker::Interpreter(runtime)));
    }
}

#[cfg(test)]
mod tests;
