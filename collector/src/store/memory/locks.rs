//! The oracle's answer about locks: all samples of a lock side by side, each figure from all of them.

use super::{Profile, Project, Sample};
use crate::limits;
use crate::query::{
    LockCaller, LockFigures, LockKey, LockKind, LockRow, Locks, LocksQuery, Measure, Overflow,
    Selection, is_lock_frame,
};
use crate::store::StoreError;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Observation<'a> = (Measure, &'a Profile, &'a Sample);

/// Wait, contentions, samples of holders.
type Triple = (i128, i128, i128);

fn triple<'a>(all: impl IntoIterator<Item = &'a Observation<'a>>) -> Triple {
    all.into_iter().fold((0, 0, 0), |(wait, contentions, held), (measure, _, sample)| {
        let value = i128::from(sample.value);
        match measure {
            Measure::Wait => (wait + value, contentions, held),
            Measure::Contentions => (wait, contentions + value, held),
            Measure::Holders => (wait, contentions, held + value),
        }
    })
}

fn figures((wait, contentions, held): Triple) -> Result<LockFigures, Overflow> {
    Ok(LockFigures {
        wait_ns: Overflow::check(wait, "lock waits")?,
        contentions: Overflow::check(contentions, "lock contentions")?,
        held: Overflow::check(held, "samples of lock holders")?,
    })
}

fn minus(a: Triple, b: Triple) -> Triple {
    (a.0 - b.0, a.1 - b.1, a.2 - b.2)
}

impl Project {
    pub(super) fn locks(&self, query: &LocksQuery) -> Result<Locks, StoreError> {
        let selections = Measure::ALL.map(|measure| (measure, query.selection_of(measure)));
        let all: Vec<Observation<'_>> = selections
            .iter()
            .flat_map(|(measure, selection)| {
                self.selected(selection).map(|(profile, sample)| (*measure, profile, sample))
            })
            .collect();
        let mut locks: BTreeMap<LockKey, Vec<Observation<'_>>> = BTreeMap::new();
        for &(measure, profile, sample) in &all {
            let key = LockKey::of(&profile.labels, &sample.attributes);
            locks.entry(key).or_default().push((measure, profile, sample));
        }
        let count = locks.len() as u64;
        let mut ranked: Vec<(LockKey, Vec<Observation<'_>>)> = locks.into_iter().collect();
        ranked.sort_by_key(|(key, samples)| (Reverse(triple(samples)), key.identity()));
        ranked.truncate(query.rows_max);
        let total = triple(&all);
        let shown = triple(ranked.iter().flat_map(|(_, samples)| samples));
        let mut rows = Vec::new();
        for (key, samples) in ranked {
            rows.push(self.lock_row(query, &selections[0].1, key, &samples)?);
        }
        Ok(Locks {
            rows,
            locks: count,
            total: figures(total)?,
            others: figures(minus(total, shown))?,
            warnings: vec![],
        })
    }

    fn lock_row(
        &self,
        query: &LocksQuery,
        waits: &Selection,
        key: LockKey,
        samples: &[Observation<'_>],
    ) -> Result<LockRow, StoreError> {
        let waits_by = |label: fn(&Profile) -> &Arc<str>| {
            let mut sums: BTreeMap<Arc<str>, i128> = BTreeMap::new();
            for (measure, profile, sample) in samples {
                let wait = if *measure == Measure::Wait { i128::from(sample.value) } else { 0 };
                *sums.entry(Arc::clone(label(profile))).or_default() += wait;
            }
            sums
        };
        let services = waits_by(|profile| &profile.labels.service);
        let hosts = waits_by(|profile| &profile.labels.host);
        let service = services.iter().max_by_key(|&(name, wait)| (*wait, Reverse(name)));
        let kinds = [LockKind::Mutex, LockKind::Rwlock, LockKind::Monitor].into_iter();
        let kind = kinds
            .filter_map(|kind| {
                let told = |one: &&Observation<'_>| LockKind::of(&one.2.attributes) == kind;
                let mut told = samples.iter().filter(told).peekable();
                told.peek()?;
                Some((Reverse(triple(told).0), kind))
            })
            .min();
        let sums = triple(samples);
        let (waiters, waited) = self.callers(samples, query.callers_max, false)?;
        let (holders, held) = self.callers(samples, query.callers_max, true)?;
        Ok(LockRow {
            key,
            kind: kind.map(|(_, kind)| kind).unwrap_or_default(),
            service: service.map(|(name, _)| Arc::clone(name)).unwrap_or_default(),
            services: services.len() as u64,
            figures: figures(sums)?,
            threads: self
                .reported(waits)
                .cores(hosts.iter().map(|(host, &wait)| (host, wait)), waits.range),
            waiters,
            holders,
            others: figures(minus(sums, (waited.0, waited.1, held.2)))?,
        })
    }

    /// The heaviest callers of waits, or of holders, and the sums of those.
    fn callers(
        &self,
        samples: &[Observation<'_>],
        max: usize,
        of_holders: bool,
    ) -> Result<(Vec<LockCaller>, Triple), StoreError> {
        let mut by_function: BTreeMap<u128, Vec<(Vec<u128>, Observation<'_>)>> = BTreeMap::new();
        for one in samples.iter().filter(|one| (one.0 == Measure::Holders) == of_holders) {
            let way = self.way_to_root(one.2);
            if let Some(&function) = way.first() {
                by_function.entry(function).or_default().push((way, *one));
            }
        }
        let mut rows = Vec::new();
        for (function, samples) in by_function {
            let sums = triple(samples.iter().map(|(_, one)| one));
            if sums == (0, 0, 0) {
                continue;
            }
            let ways: BTreeSet<&Vec<u128>> = samples.iter().map(|(way, _)| way).collect();
            let heaviest = ways.into_iter().filter_map(|way| {
                let mine = samples.iter().filter(|(other, _)| other == way).map(|(_, one)| one);
                let sums = triple(mine);
                (sums != (0, 0, 0)).then(|| (Reverse(sums), self.shown(way)))
            });
            let stack = heaviest.min().map(|(_, stack)| stack).unwrap_or_default();
            rows.push(((Reverse(sums), self.names.info(function), function), stack));
        }
        rows.sort();
        rows.truncate(max);
        let mut shown = (0, 0, 0);
        let mut callers = Vec::new();
        for ((Reverse(sums), function, _), stack) in rows {
            shown = (shown.0 + sums.0, shown.1 + sums.1, shown.2 + sums.2);
            callers.push(LockCaller { function: function.clone(), figures: figures(sums)?, stack });
        }
        Ok((callers, shown))
    }

    /// Functions of a stack from the first that does not belong to the lock, or from the leaf if all do.
    fn way_to_root(&self, sample: &Sample) -> Vec<u128> {
        let functions = self.names.of_stack(&sample.stack);
        let of_lock = |&function: &u128| is_lock_frame(self.names.info(function));
        let mut way: Vec<u128> = functions.iter().copied().skip_while(of_lock).collect();
        if way.is_empty() {
            way = functions;
        }
        way.truncate(limits::LOCK_STACK_FRAMES_MAX);
        way
    }

    fn shown(&self, way: &[u128]) -> Vec<Arc<str>> {
        way.iter().map(|&function| Arc::clone(&self.names.info(function).name)).collect()
    }
}
