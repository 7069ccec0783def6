//! What the records of a poll say of tables, for the publisher: which were used, which a stack missed. It asks for none.

use crate::address::{FileId, Pid};
use crate::bpf::RawSample;
use crate::clock::MonotonicNs;
use crate::normalize::Frame;
use crate::process::table::ProcessTable;
use agent_ebpf::Outcome;
use hashbrown::{HashMap, HashSet};

/// What records say of the tables, for the publisher.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Files that stacks went through, and when last.
    pub(super) used: HashMap<FileId, MonotonicNs>,
    /// Files whose table a stack met and did not find.
    pub(super) wanted: HashSet<FileId>,
    /// Processes with a stack that could not be walked, since when.
    pub(super) missed: Vec<(Pid, MonotonicNs)>,
}

impl Needs {
    /// What one sample says.
    pub(super) fn state(&mut self, sample: &RawSample, frames: &[Frame], processes: &ProcessTable) {
        let mut last = None;
        let native = frames.iter().filter_map(|frame| match frame {
            Frame::Native { file, .. } => Some(file.id),
            _ => None,
        });
        for file in native {
            // Neighbours are mostly of one file.
            if last != Some(file) {
                self.used.insert(file, sample.time);
                last = Some(file);
            }
        }
        match sample.outcome {
            Outcome::TablePending => self.wanted.extend(last),
            Outcome::ProcessUnknown | Outcome::MappingUnknown => {}
            _ => return,
        }
        // What was published since the walk is not missing any more.
        if processes.is_behind(sample.pid, sample.time) {
            self.missed.push((sample.pid, sample.time));
        }
    }
}
