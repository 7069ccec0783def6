//! Which profiles were stored before. An agent numbers its windows: a mark and the gaps below it are enough
//! for each boot of it, for 30 days. Other senders' ids are kept whole, for 24 hours. Ages are counted in
//! the time of arrival.

use super::codec::{Malformed, Reader, Writer};
use crate::limits;
use crate::profile::{ProfileId, ProjectName};
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};

/// The marks of all projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    projects: BTreeMap<ProjectName, Marks>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    boots: HashMap<u64, Boot>,
    foreign: HashMap<[u8; 16], i64>,
    /// Foreign ids in order of arrival.
    arrivals: VecDeque<(i64, [u8; 16])>,
}

/// What one boot of an agent sent: everything below `next` but the gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Boot {
    next: u64,
    /// First missing sequence to the one behind the last.
    gaps: BTreeMap<u64, u64>,
    last_ms: i64,
}

impl Seen {
    /// True if the profile was stored before.
    pub(super) fn contains(&self, project: &ProjectName, id: &ProfileId) -> bool {
        let Some(marks) = self.projects.get(project) else {
            return false;
        };
        match id {
            ProfileId::None => false,
            ProfileId::Foreign(id) => marks.foreign.contains_key(id),
            ProfileId::Agent { boot, sequence } => {
                marks.boots.get(boot).is_some_and(|boot| boot.contains(*sequence))
            }
        }
    }

    /// Marks a profile as stored.
    pub(super) fn mark(&mut self, project: &ProjectName, id: &ProfileId, now_ms: i64) {
        let marks = match self.projects.get_mut(project) {
            Some(marks) => marks,
            None => self.projects.entry(project.clone()).or_default(),
        };
        match id {
            ProfileId::None => {}
            ProfileId::Foreign(id) => marks.mark_foreign(*id, now_ms),
            ProfileId::Agent { boot, sequence } => {
                let boot = marks.boots.entry(*boot).or_default();
                boot.mark(*sequence);
                boot.last_ms = boot.last_ms.max(now_ms);
            }
        }
    }

    /// Forgets what is too old, and the oldest where there is too much.
    pub(super) fn expire(&mut self, now_ms: i64) {
        for marks in self.projects.values_mut() {
            let oldest_ms = now_ms.saturating_sub(limits::SEEN_BOOT_MS);
            marks.boots.retain(|_, boot| boot.last_ms >= oldest_ms);
            if marks.boots.len() > limits::SEEN_BOOTS_MAX {
                let mut ages: Vec<i64> = marks.boots.values().map(|boot| boot.last_ms).collect();
                ages.sort_unstable();
                let keep_from = ages[ages.len() - limits::SEEN_BOOTS_MAX];
                marks.boots.retain(|_, boot| boot.last_ms > keep_from);
            }
            marks.expire_foreign(now_ms);
        }
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.length(self.projects.len());
        for (project, marks) in &self.projects {
            writer.text(&project.0);
            writer.length(marks.boots.len());
            for (id, boot) in &marks.boots {
                writer.raw(&id.to_le_bytes());
                writer.number(boot.next);
                writer.signed(boot.last_ms);
                writer.length(boot.gaps.len());
                for (&first, &behind) in &boot.gaps {
                    writer.number(first);
                    writer.number(behind - first);
                }
            }
            writer.length(marks.arrivals.len());
            for (arrived_ms, id) in &marks.arrivals {
                writer.signed(*arrived_ms);
                writer.raw(id);
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut seen = Self::default();
        for _ in 0..reader.count(3)? {
            let project = ProjectName(reader.shared_text()?);
            let marks = seen.projects.entry(project).or_default();
            for _ in 0..reader.count(11)? {
                let mut id = [0; 8];
                id.copy_from_slice(reader.raw(8)?);
                let mut boot =
                    Boot { next: reader.number()?, last_ms: reader.signed()?, ..Boot::default() };
                for _ in 0..reader.count(2)? {
                    let first = reader.number()?;
                    let behind = first.checked_add(reader.number()?);
                    boot.gaps.insert(first, behind.ok_or(Malformed("a gap is too long"))?);
                }
                marks.boots.insert(u64::from_le_bytes(id), boot);
            }
            for _ in 0..reader.count(17)? {
                let arrived_ms = reader.signed()?;
                let mut id = [0; 16];
                id.copy_from_slice(reader.raw(16)?);
                marks.mark_foreign(id, arrived_ms);
            }
        }
        Ok(seen)
    }
}

impl Marks {
    fn mark_foreign(&mut self, id: [u8; 16], now_ms: i64) {
        if self.foreign.insert(id, now_ms).is_none() {
            self.arrivals.push_back((now_ms, id));
        }
        self.expire_foreign(now_ms);
    }

    fn expire_foreign(&mut self, now_ms: i64) {
        let oldest_ms = now_ms.saturating_sub(limits::SEEN_FOREIGN_MS);
        while let Some(&(arrived_ms, id)) = self.arrivals.front()
            && (arrived_ms < oldest_ms || self.arrivals.len() > limits::SEEN_FOREIGN_MAX)
        {
            self.arrivals.pop_front();
            self.foreign.remove(&id);
        }
    }
}

impl Boot {
    fn contains(&self, sequence: u64) -> bool {
        let gap = self.gaps.range(..=sequence).next_back();
        sequence < self.next && gap.is_none_or(|(_, &behind)| sequence >= behind)
    }

    fn mark(&mut self, sequence: u64) {
        if sequence >= self.next {
            if sequence > self.next {
                self.gaps.insert(self.next, sequence);
            }
            self.next = sequence.saturating_add(1);
        } else if let Some((&first, &behind)) = self.gaps.range(..=sequence).next_back()
            && sequence < behind
        {
            self.gaps.remove(&first);
            if first < sequence {
                self.gaps.insert(first, sequence);
            }
            if sequence + 1 < behind {
                self.gaps.insert(sequence + 1, behind);
            }
        }
        while self.gaps.len() > limits::SEEN_GAPS_MAX {
            // What is missing longest is given up: it counts as seen from now on.
            self.gaps.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agent(boot: u64, sequence: u64) -> ProfileId {
        ProfileId::Agent { boot, sequence }
    }

    fn project() -> ProjectName {
        ProjectName("p".into())
    }

    proptest! {
        #[test]
        fn marks_and_gaps_equal_a_set(sequences in prop::collection::vec(0_u64..40, 0..60)) {
            let mut seen = Seen::default();
            let mut set = std::collections::BTreeSet::new();
            for sequence in sequences {
                prop_assert_eq!(seen.contains(&project(), &agent(1, sequence)), !set.insert(sequence));
                seen.mark(&project(), &agent(1, sequence), 0);
            }
            for sequence in 0..50 {
                let contains = seen.contains(&project(), &agent(1, sequence));
                prop_assert_eq!(contains, set.contains(&sequence));
            }
            let mut writer = Writer::default();
            seen.encode(&mut writer);
            prop_assert_eq!(Seen::decode(&mut Reader::new(&writer.bytes)), Ok(seen));
        }
    }

    #[test]
    fn ids_are_forgotten_after_their_time() {
        let (mut seen, foreign) = (Seen::default(), ProfileId::Foreign([7; 16]));
        seen.mark(&project(), &foreign, 0);
        seen.mark(&project(), &agent(1, 5), 0);
        seen.expire(limits::SEEN_FOREIGN_MS);
        assert!(seen.contains(&project(), &foreign));
        seen.expire(limits::SEEN_FOREIGN_MS + 1);
        assert!(!seen.contains(&project(), &foreign));
        assert!(seen.contains(&project(), &agent(1, 5)));
        seen.expire(limits::SEEN_BOOT_MS + 1);
        assert!(!seen.contains(&project(), &agent(1, 5)));
    }

    #[test]
    fn extremes_of_sequences_and_many_gaps_stay_bounded() {
        let mut seen = Seen::default();
        for sequence in (0..3 * limits::SEEN_GAPS_MAX as u64).step_by(2) {
            seen.mark(&project(), &agent(1, sequence), 0);
        }
        assert_eq!(seen.projects[&project()].boots[&1].gaps.len(), limits::SEEN_GAPS_MAX);
        seen.mark(&project(), &agent(2, u64::MAX), 0);
        assert!(!seen.contains(&project(), &agent(2, 3)));
    }
}
