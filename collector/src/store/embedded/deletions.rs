//! What was deleted but may still lie in files: it is hidden from every answer until no file holds it. Not
//! responsible for removing it: `erase` decides what has to be written anew.
//!
//! Deletions are numbered in the order in which they reached the log. Whatever holds rows (a memtable, a segment) knows
//! the number that it is **clean to**: deletions up to there have taken their rows out of it, or came before its rows.
//! Only later ones hide rows of it, so a row that arrives after a deletion is never taken for an old one.

use super::codec::{Malformed, Reader, Writer};
use super::memtable::{Memtable, ProjectRows, Rows, write_shard};
use crate::limits;
use crate::profile::ProjectName;
use crate::query::{Intervals, TimeRange};
use crate::store::{Deletion, DeletionId};
use std::collections::BTreeSet;

/// All deletions that matter, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Deletions {
    all: Vec<Numbered>,
}

/// A deletion in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) deletion: Deletion,
    /// No file holds rows of it any more.
    pub(super) is_erased: bool,
}

/// Rows of one service, or the reports of a project, that a deletion may hide.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of<'a> {
    Service(&'a str),
    /// Reported time says which hosts were watched, not by which service: only what goes for all services takes it.
    Reports,
}

impl Numbered {
    pub(super) fn encode(&self, writer: &mut Writer) {
        let Deletion { id, project, service, before_ms } = &self.deletion;
        writer.number(self.number);
        writer.wide(id.0);
        writer.text(&project.0);
        writer.byte(u8::from(service.is_some()));
        writer.text(service.as_deref().unwrap_or_default());
        writer.signed(*before_ms);
        writer.byte(u8::from(self.is_erased));
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, id) = (reader.number()?, DeletionId(reader.wide()?));
        let project = ProjectName(reader.shared_text()?);
        let has_service = reader.byte()? != 0;
        let service = Some(reader.shared_text()?).filter(|_| has_service);
        let before_ms = reader.signed()?;
        let deletion = Deletion { id, project, service, before_ms };
        Ok(Self { number, deletion, is_erased: reader.byte()? != 0 })
    }

    fn is_of(&self, project: &ProjectName, of: Of<'_>) -> bool {
        let fits = match (&self.deletion.service, of) {
            (None, _) => true,
            (Some(_), Of::Reports) => false,
            (Some(service), Of::Service(name)) => **service == *name,
        };
        fits && self.deletion.project == *project
    }
}

impl Deletions {
    /// A deletion; the last record of it if a log has two.
    pub(super) fn get(&self, id: DeletionId) -> Option<&Numbered> {
        self.all.iter().rfind(|one| one.deletion.id == id)
    }

    /// Those whose rows may still lie in files.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Numbered> {
        self.all.iter().filter(|one| !one.is_erased)
    }

    /// The number of the latest.
    pub(super) fn number(&self) -> u64 {
        self.all.last().map_or(0, |one| one.number)
    }

    /// The first time that is not hidden of rows that are clean to a number. What is erased hides nothing: no rows of it
    /// are left.
    pub(super) fn shown_from_ms(&self, project: &ProjectName, of: Of<'_>, clean_to: u64) -> i64 {
        let later = self.pending().filter(|one| one.number > clean_to && one.is_of(project, of));
        later.map(|one| one.deletion.before_ms).max().unwrap_or(i64::MIN)
    }

    /// Adds one that is not there. One that the log has as well stays as it is: it is erased only after the rows before it
    /// went from the log to segments, and from these.
    pub(super) fn add(&mut self, new: Numbered) {
        let is_it = |one: &Numbered| one.number == new.number && one.deletion.id == new.deletion.id;
        if !self.all.iter().any(is_it) {
            let at = self.all.partition_point(|one| one.number <= new.number);
            self.all.insert(at, new);
        }
    }

    /// Marks some as erased, by their numbers. The last ones are remembered, so that asking for one again is not
    /// another deletion.
    pub(super) fn mark_erased(&mut self, numbers: &BTreeSet<u64>) {
        let erased = self.all.iter_mut().filter(|one| numbers.contains(&one.number));
        erased.for_each(|one| one.is_erased = true);
        let mut surplus = self.all.len().saturating_sub(limits::DELETIONS_KNOWN_MAX);
        self.all.retain(|one| {
            let goes = one.is_erased && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.length(self.all.len());
        self.all.iter().for_each(|one| one.encode(writer));
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.count(22)?;
        let all = (0..count).map(|_| Numbered::decode(reader)).collect::<Result<Vec<_>, _>>()?;
        // A log of an earlier version may have given a number twice.
        if !all.is_sorted_by_key(|one| one.number) {
            return Err(Malformed("the deletions are not sorted"));
        }
        Ok(Self { all })
    }
}

/// A range without what is hidden before a time.
pub(super) fn shown(range: TimeRange, shown_from_ms: i64) -> TimeRange {
    TimeRange { from_ms: range.from_ms.max(shown_from_ms), ..range }
}

/// A span without what is hidden before a time.
pub(super) fn shown_span((start_ms, end_ms): (i64, i64), shown_from_ms: i64) -> Option<(i64, i64)> {
    (end_ms > shown_from_ms).then(|| (start_ms.max(shown_from_ms), end_ms))
}

impl Memtable {
    /// Takes the rows of a deletion out. Only the writer calls it.
    pub(super) fn forget(&self, one: &Numbered, service: Option<u32>) {
        let Deletion { project, service: name, before_ms, .. } = &one.deletion;
        if let Some(rows) = self.project(project) {
            // Nothing goes if no profile of the service ever came.
            let is_of = |number| name.is_none() || service == Some(number);
            self.uncount(rows.forget(is_of, *before_ms));
            if name.is_none() {
                rows.forget_reports(*before_ms);
            }
        }
        self.set_clean_to(one.number);
    }
}

impl ProjectRows {
    /// Answers how many rows went.
    fn forget(&self, is_of: impl Fn(u32) -> bool, before_ms: i64) -> u64 {
        let mut gone = 0;
        for (_, shard) in self.shards().into_iter().filter(|(number, _)| is_of(*number)) {
            let mut shard = write_shard(&shard);
            shard.values_mut().for_each(|rows| gone += rows.forget(before_ms));
            shard.retain(|_, rows| !rows.times.is_empty());
        }
        gone
    }

    fn forget_reports(&self, before_ms: i64) {
        let mut reports = self.reports();
        for intervals in reports.values_mut() {
            let mut left = Intervals::default();
            let spans = intervals.spans().iter();
            for (start_ms, end_ms) in spans.filter_map(|&span| shown_span(span, before_ms)) {
                left.add(start_ms, end_ms);
            }
            *intervals = left;
        }
        reports.retain(|_, intervals| !intervals.spans().is_empty());
    }
}

impl Rows {
    /// Takes the rows before a time out; answers how many.
    fn forget(&mut self, before_ms: i64) -> u64 {
        if self.first_ms >= before_ms {
            return 0;
        }
        let stays: Vec<bool> = self.times.iter().map(|&time_ms| time_ms >= before_ms).collect();
        retain(&mut self.nodes, &stays);
        retain(&mut self.values, &stays);
        retain(&mut self.sets, &stays);
        retain(&mut self.times, &stays);
        self.first_ms = self.times.iter().copied().min().unwrap_or(i64::MAX);
        self.last_ms = self.times.iter().copied().max().unwrap_or(i64::MIN);
        stays.iter().filter(|&&stays| !stays).count() as u64
    }
}

fn retain<T>(column: &mut Vec<T>, stays: &[bool]) {
    let mut stays = stays.iter();
    column.retain(|_| stays.next().is_some_and(|&stays| stays));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn numbered(number: u64, service: Option<&str>, before_ms: i64) -> Numbered {
        let project = ProjectName("p".into());
        let service = service.map(Arc::from);
        let deletion = Deletion { id: DeletionId(number.into()), project, service, before_ms };
        Numbered { number, deletion, is_erased: false }
    }

    #[test]
    fn only_later_deletions_of_the_same_rows_hide() {
        let mut all = Deletions::default();
        all.add(numbered(3, Some("api"), 30));
        all.add(numbered(1, None, 10));
        all.add(numbered(2, Some("db"), 20));
        let (here, there) = (ProjectName("p".into()), ProjectName("q".into()));
        let rows = [
            (&here, Of::Service("api"), 0, 30),
            (&here, Of::Service("api"), 2, 30),
            (&here, Of::Service("api"), 3, i64::MIN),
            (&here, Of::Service("db"), 0, 20),
            (&here, Of::Service("db"), 2, i64::MIN),
            (&here, Of::Service("other"), 0, 10),
            (&here, Of::Reports, 0, 10),
            (&here, Of::Reports, 1, i64::MIN),
            (&there, Of::Service("api"), 0, i64::MIN),
        ];
        for (project, of, clean_to, from_ms) in rows {
            assert_eq!(all.shown_from_ms(project, of, clean_to), from_ms, "{of:?} {clean_to}");
        }
        all.mark_erased(&[1, 2].into());
        assert_eq!(all.pending().map(|one| one.number).collect::<Vec<_>>(), [3]);
        let mut writer = Writer::default();
        all.encode(&mut writer);
        assert_eq!(Deletions::decode(&mut Reader::new(&writer.bytes)), Ok(all));
    }

    /// As logs of earlier versions may have them.
    #[test]
    fn one_number_of_two_deletions_hides_what_both_take() {
        let mut all = Deletions::default();
        let (one, other) = (numbered(1, Some("api"), 10), numbered(1, Some("api"), 20));
        let other =
            Numbered { deletion: Deletion { id: DeletionId(9), ..other.deletion }, ..other };
        [&one, &other, &one].into_iter().for_each(|it| all.add(it.clone()));
        assert_eq!(all.pending().collect::<Vec<_>>(), [&one, &other]);
        assert_eq!(all.shown_from_ms(&one.deletion.project, Of::Service("api"), 0), 20);
        let mut writer = Writer::default();
        all.encode(&mut writer);
        assert_eq!(Deletions::decode(&mut Reader::new(&writer.bytes)), Ok(all));
    }

    #[test]
    fn erased_ones_are_forgotten_and_pending_ones_are_not() {
        let mut all = Deletions::default();
        let max = limits::DELETIONS_KNOWN_MAX as u64;
        (1..=max + 5).for_each(|number| all.add(numbered(number, None, 0)));
        all.mark_erased(&[1, 2, 3].into());
        let left: Vec<u64> = all.all.iter().map(|one| one.number).collect();
        assert_eq!((left[0], left.len() as u64), (4, max + 2));
        assert_eq!(all.number(), max + 5);
    }
}
