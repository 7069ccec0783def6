//! What probes take of the kernel, which is limited: places, and the descriptors that hold them.

use super::Probes;
use crate::bpf::{Attached, LibcProbes, LockProbes};
use crate::limits::{GO_PLACES_MAX, PROBED_CALLS_MAX};
use crate::probes::libc::WaitingCall;
use crate::process::files::LockOwner;
use agent_ebpf::LockForm;

/// What probes take of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) places: usize,
    /// Links, or events.
    pub(super) descriptors: usize,
}

impl Taken {
    pub(super) fn of(attached: &Attached) -> Self {
        Self { places: attached.places(), descriptors: attached.descriptors() }
    }

    pub(super) fn and(self, more: Self) -> Self {
        Self { places: self.places + more.places, descriptors: self.descriptors + more.descriptors }
    }
}

impl Probes {
    /// What so many places in one file take, which are of so many programs: where there are links one has all places of a
    /// program, elsewhere each place is an event.
    fn taken(&self, owner: LockOwner, places: usize, programs: usize) -> Taken {
        let linked = match owner {
            LockOwner::Go => self.go.as_ref().is_none_or(LockProbes::are_linked),
            LockOwner::Libc => self.libc.as_ref().is_none_or(LibcProbes::are_linked),
        };
        Taken { places, descriptors: if linked { programs } else { places } }
    }

    /// What a file takes at most: Go's locks have a program for entries and one for returns.
    pub(super) fn taken_at_most(&self, owner: LockOwner) -> Taken {
        match owner {
            LockOwner::Go => self.taken(owner, GO_PLACES_MAX, 2),
            LockOwner::Libc => self.taken(owner, PROBED_CALLS_MAX, LockForm::ALL.len()),
        }
    }

    /// What these calls will take.
    pub(super) fn taken_by(&self, calls: &[WaitingCall]) -> Taken {
        let is_there = |form: &&LockForm| calls.iter().any(|call| call.form == **form);
        self.taken(LockOwner::Libc, calls.len(), LockForm::ALL.iter().filter(is_there).count())
    }
}
