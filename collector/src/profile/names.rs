//! Names that come later than the samples: what the file that holds the code says of its addresses. They take the
//! place of the names that senders gave, also of better-looking ones, and of what is stored already.

use super::identity::{self, BatchIdentities, NameSource};
use super::{BatchError, FunctionDef, LocationDef, MappingDef, ProjectName, WriteBatch};

/// Names of locations in files with a build id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNames(WriteBatch);

impl NewNames {
    /// Names of `locations`, each at an address of a mapping with a build id.
    ///
    /// # Errors
    /// The first index outside its table or value above its limit; a location that no file defines.
    pub fn new(
        project: ProjectName,
        mappings: Vec<MappingDef>,
        functions: Vec<FunctionDef>,
        locations: Vec<LocationDef>,
    ) -> Result<Self, BatchError> {
        let (stacks, attribute_sets, profiles) = Default::default();
        Self::of(WriteBatch {
            project,
            mappings,
            functions,
            locations,
            stacks,
            attribute_sets,
            profiles,
        })
    }

    /// Names in a batch that has nothing else.
    pub(crate) fn of(batch: WriteBatch) -> Result<Self, BatchError> {
        batch.check()?;
        let has_nothing_else =
            batch.stacks.is_empty() && batch.attribute_sets.is_empty() && batch.profiles.is_empty();
        if !has_nothing_else {
            return Err(BatchError::Value("names with stacks, attributes or profiles"));
        }
        let has_place = |location: &LocationDef| {
            let mapping = location.mapping.map(|at| &batch.mappings[at as usize]);
            location.address != 0
                && identity::has_stable_addresses(location.kind)
                && mapping.is_some_and(|mapping| mapping.build_id.is_some())
        };
        if !batch.locations.iter().all(has_place) {
            return Err(BatchError::Value("names of a location that no file defines"));
        }
        Ok(Self(batch))
    }

    pub(crate) fn batch(&self) -> &WriteBatch {
        &self.0
    }

    pub(crate) fn into_batch(self) -> WriteBatch {
        self.0
    }

    /// The identities of the locations, with names of a quality that no sender's have.
    pub(crate) fn identities(&self) -> BatchIdentities {
        let mut identities = BatchIdentities::of(&self.0);
        for quality in identities.qualities.iter_mut().filter(|quality| quality.named > 0) {
            quality.source = NameSource::DebugFile;
        }
        identities
    }
}
