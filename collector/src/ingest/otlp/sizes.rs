//! What the samples of one profile would add to a batch, against the limits of a request: frames of stacks
//! and bytes of attribute sets. Many samples share a stack and a set, so what every sample would add alone
//! is but a bound; only a profile whose bound is above a limit is counted exactly.

use super::convert::{WireSet, WireSets};
use super::dictionary::{Copies, Dictionary};
use super::fault::{Fault, cap};
use crate::limits::{REQUEST_FRAMES_MAX, REQUEST_SETS_BYTES_MAX};
use crate::profile::Attribute;
use hashbrown::HashSet;
use proto::opentelemetry_proto::tonic::profiles::v1development as otlp;

/// Bytes of trace and span of a link as two attributes.
const LINK_BYTES: usize = 2 * size_of::<Attribute>() + 80;

/// What a batch has, or what would be added to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) frames: usize,
    pub(super) sets_bytes: usize,
}

impl Sizes {
    fn add(&mut self, other: Self) {
        self.frames = self.frames.saturating_add(other.frames);
        self.sets_bytes = self.sets_bytes.saturating_add(other.sets_bytes);
    }

    fn check(self) -> Result<(), Fault> {
        cap("the frames of all stacks", self.frames, REQUEST_FRAMES_MAX)?;
        cap("the attributes of all samples, in bytes,", self.sets_bytes, REQUEST_SETS_BYTES_MAX)
    }
}

/// Measures the samples of one profile.
pub(super) struct Measure<'a> {
    pub(super) dictionary: &'a Dictionary<'a>,
    pub(super) copies: &'a Copies<'a>,
    pub(super) sets: &'a WireSets<'a>,
    /// Bytes of the attributes of the resource.
    pub(super) origin_bytes: usize,
    /// What the batch has.
    pub(super) sizes: Sizes,
}

impl<'a> Measure<'a> {
    /// Refuses a profile, whose indices are checked, that would take the batch above a limit.
    pub(super) fn check(&self, profile: &'a otlp::Profile) -> Result<(), Fault> {
        let mut bound = self.sizes;
        for sample in &profile.samples {
            bound.add(self.stack(sample.stack_index));
            bound.add(self.set(wire_set(profile, sample)));
        }
        if bound.check().is_ok() {
            return Ok(());
        }
        let (mut stacks, mut sets) = (HashSet::new(), HashSet::new());
        let mut exact = self.sizes;
        for sample in &profile.samples {
            if stacks.insert(sample.stack_index) {
                exact.add(self.stack(sample.stack_index));
            }
            let set = wire_set(profile, sample);
            if sets.insert(set) {
                exact.add(self.set(set));
            }
        }
        exact.check()
    }

    fn stack(&self, index: i32) -> Sizes {
        let known = self.copies.has_stack(index);
        Sizes { frames: if known { 0 } else { self.dictionary.depth(index) }, sets_bytes: 0 }
    }

    fn set(&self, set: WireSet<'_>) -> Sizes {
        if self.sets.contains_key(&set) {
            return Sizes::default();
        }
        let (of_profile, of_sample, _) = set;
        let indices = of_profile.iter().chain(of_sample);
        let attributes = indices.filter_map(|&index| self.dictionary.attribute(index));
        let bytes = attributes.fold(self.origin_bytes + LINK_BYTES, |sum, attribute| {
            sum.saturating_add(attribute.bytes())
        });
        Sizes { frames: 0, sets_bytes: bytes }
    }
}

/// What tells the attribute set of a sample on the wire.
pub(super) fn wire_set<'a>(profile: &'a otlp::Profile, sample: &'a otlp::Sample) -> WireSet<'a> {
    (&profile.attribute_indices, &sample.attribute_indices, sample.link_index)
}
