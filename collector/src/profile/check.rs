//! The checks a batch must pass before a store sees it: every index points into its own table and every
//! table is within its limit. Not responsible for the meaning of a field; that is the ingest's duty.

use super::{LocationDef, ProfileDef, WriteBatch};
use crate::limits;

/// Why a batch cannot be stored. It is the sender's or the ingest's fault, never the store's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// An index points behind the end of its table.
    #[error("{what} {index} is outside its table of {len}")]
    Index {
        /// Which index.
        what: &'static str,
        /// Its value.
        index: u64,
        /// Entries of the table.
        len: u64,
    },
    /// A table or a field is longer than a named limit.
    #[error("{what}: {value} exceeds the limit of {max}")]
    Limit {
        /// Which table or field.
        what: &'static str,
        /// What was found.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// A time, a duration or a field has a value that cannot be meant.
    #[error("{0}")]
    Value(&'static str),
}

impl WriteBatch {
    /// Checks every index and every limit of `limits.rs` that concerns a batch.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), BatchError> {
        self.check_beside(0)
    }

    /// The same where samples may also refer to `known` stacks, which are numbered behind the batch's own.
    pub(crate) fn check_beside(&self, known: usize) -> Result<(), BatchError> {
        at_most("project name bytes", self.project.0.len(), limits::PROJECT_NAME_BYTES_MAX)?;
        if self.project.0.is_empty() {
            return Err(BatchError::Value("the project has no name"));
        }
        at_most("mappings in a batch", self.mappings.len(), limits::BATCH_MAPPINGS_MAX)?;
        at_most("functions in a batch", self.functions.len(), limits::BATCH_FUNCTIONS_MAX)?;
        at_most("locations in a batch", self.locations.len(), limits::BATCH_LOCATIONS_MAX)?;
        at_most("stacks in a batch", self.stacks.len(), limits::BATCH_STACKS_MAX)?;
        at_most("attribute sets", self.attribute_sets.len(), limits::BATCH_ATTRIBUTE_SETS_MAX)?;
        at_most("profiles in a batch", self.profiles.len(), limits::BATCH_PROFILES_MAX)?;
        for mapping in &self.mappings {
            at_most("mapping name bytes", mapping.filename.len(), limits::STRING_BYTES_MAX)?;
        }
        for function in &self.functions {
            at_most("function name bytes", function.name.len(), limits::STRING_BYTES_MAX)?;
            at_most("linkage name bytes", function.system_name.len(), limits::STRING_BYTES_MAX)?;
            at_most("source file bytes", function.file.len(), limits::STRING_BYTES_MAX)?;
        }
        self.locations.iter().try_for_each(|location| self.check_location(location))?;
        for stack in &self.stacks {
            at_most("frames in a stack", stack.len(), limits::STACK_FRAMES_MAX)?;
            for &location in stack {
                inside("location of a stack", location, self.locations.len())?;
            }
        }
        self.check_attributes()?;
        let stacks = self.stacks.len().saturating_add(known);
        self.profiles.iter().try_for_each(|profile| self.check_profile(profile, stacks))
    }

    /// Samples of all profiles.
    #[must_use]
    pub fn sample_count(&self) -> usize {
        self.profiles.iter().map(|profile| profile.samples.len()).sum()
    }

    fn check_location(&self, location: &LocationDef) -> Result<(), BatchError> {
        if let Some(mapping) = location.mapping {
            inside("mapping of a location", mapping, self.mappings.len())?;
        }
        at_most("inlined frames of a location", location.lines.len(), limits::LOCATION_LINES_MAX)?;
        location
            .lines
            .iter()
            .try_for_each(|line| inside("function of a line", line.function, self.functions.len()))
    }

    fn check_attributes(&self) -> Result<(), BatchError> {
        for set in &self.attribute_sets {
            at_most("attributes of a sample", set.len(), limits::SAMPLE_ATTRIBUTES_MAX)?;
            for attribute in set {
                at_most("attribute name bytes", attribute.key.len(), limits::LABEL_BYTES_MAX)?;
                if let super::AttributeValue::Text(text) = &attribute.value {
                    at_most("attribute value bytes", text.len(), limits::LABEL_BYTES_MAX)?;
                }
            }
            if !set.is_sorted_by(|a, b| a.key < b.key) {
                return Err(BatchError::Value("attributes of a sample are not sorted by key"));
            }
        }
        Ok(())
    }

    fn check_profile(&self, profile: &ProfileDef, stacks: usize) -> Result<(), BatchError> {
        for (_, value) in profile.labels.each() {
            at_most("label value bytes", value.len(), limits::LABEL_BYTES_MAX)?;
        }
        for text in [
            &profile.sample_type.kind,
            &profile.sample_type.unit,
            &profile.period_type.kind,
            &profile.period_type.unit,
        ] {
            at_most("profile type bytes", text.len(), limits::LABEL_BYTES_MAX)?;
        }
        if profile.sample_type.kind.is_empty() {
            return Err(BatchError::Value("the sample type has no name"));
        }
        if !(0..=limits::PROFILE_DURATION_MS_MAX).contains(&profile.duration_ms) {
            return Err(BatchError::Value("the duration of a profile is negative or too long"));
        }
        if !storable(profile.time_ms) {
            return Err(BatchError::Value("the time of a profile is outside the storable range"));
        }
        for sample in &profile.samples {
            inside("stack of a sample", sample.stack, stacks)?;
            inside("attribute set of a sample", sample.attributes, self.attribute_sets.len())?;
            if !storable(sample.time_ms) {
                return Err(BatchError::Value(
                    "the time of a sample is outside the storable range",
                ));
            }
        }
        Ok(())
    }
}

fn storable(time_ms: i64) -> bool {
    (limits::TIME_MS_MIN..=limits::TIME_MS_MAX).contains(&time_ms)
}

fn at_most(what: &'static str, value: usize, max: usize) -> Result<(), BatchError> {
    if value > max {
        return Err(BatchError::Limit { what, value: value as u64, max: max as u64 });
    }
    Ok(())
}

fn inside(what: &'static str, index: u32, len: usize) -> Result<(), BatchError> {
    if index as usize >= len {
        return Err(BatchError::Index { what, index: u64::from(index), len: len as u64 });
    }
    Ok(())
}
