//! What the programs of locks counted: those of Go and those of C libraries, of which a kernel may take some alone.

use super::{BpfError, loader};
use agent_ebpf::LockCounters;
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};

/// The counters of all CPUs.
pub(super) struct Counted(PerCpuArray<MapData, LockCounters>);

impl Counted {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        loader::take_map(ebpf, "LOCK_COUNTERS").map(Self)
    }

    /// The sums of all CPUs.
    pub(super) fn read(&self) -> Result<LockCounters, BpfError> {
        let all = self.0.get(&0, 0).map_err(BpfError::map("LOCK_COUNTERS"))?;
        Ok(all.iter().fold(LockCounters::default(), |sum, one| LockCounters {
            hits: sum.hits + one.hits,
            refused: sum.refused + one.refused,
            thinned: sum.thinned + one.thinned,
            unmatched: sum.unmatched + one.unmatched,
            busy: sum.busy + one.busy,
            sent: sum.sent + one.sent,
            lost: sum.lost + one.lost,
            run_ns: sum.run_ns + one.run_ns,
            marked: sum.marked + one.marked,
            marks_refused: sum.marks_refused + one.marks_refused,
        }))
    }
}
