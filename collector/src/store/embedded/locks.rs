//! Lock waits by lock, in two passes over the samples: the first finds the locks with the longest waits, the
//! second adds up who waits for these and who holds them. So the memory is that of the sums, however many
//! locks there are and however long their names.

use super::engine::Engine;
use super::names::NameTree;
use super::scan::{Asker, Chunk, Need, Plan};
use super::symbols::{Series, Symbols};
use crate::limits;
use crate::query::{
    HostValues, LockDetail, LockKey, LockKind, LockRanking, LockSample, LockSums, Locks,
    LocksQuery, Measure, caller_position, finish_locks, is_lock_frame,
};
use crate::store::StoreError;
use hashbrown::HashMap;

/// Sums by (place among the rows, node of the service's location trie).
type NodeSums = HashMap<(usize, u32), LockSums>;

/// The question while it is answered.
struct Asking<'a> {
    query: &'a LocksQuery,
    /// The place of each chosen lock among the rows.
    chosen: HashMap<u128, usize>,
    details: Vec<LockDetail>,
    total: LockSums,
    /// Stacks that are told apart, over all services.
    stacks: usize,
    /// True if there were more.
    full: bool,
}

impl Engine {
    pub(super) fn locks(&self, query: &LocksQuery, asker: &Asker) -> Result<Locks, StoreError> {
        let plan =
            |measure: Measure| Some((measure, self.plan(&query.selection_of(measure), asker)?));
        let mut plans: Vec<(Measure, Plan)> = Measure::ALL.into_iter().filter_map(plan).collect();
        // One type may be kept for less time than the others: a row is of one time.
        let from_ms = plans.iter().map(|(_, plan)| plan.selection.range.from_ms).max();
        for (_, plan) in &mut plans {
            plan.selection.range.from_ms = from_ms.unwrap_or(i64::MIN);
        }
        let mut ranking = LockRanking::default();
        for (measure, plan) in &plans {
            rank(&mut ranking, query, *measure, plan)?;
        }
        let chosen = ranking.top(query.rows_max);
        let details = chosen.iter().map(|_| LockDetail::default()).collect();
        let total = LockSums::default();
        let mut asking = Asking { query, chosen, details, total, stacks: 0, full: false };
        for (measure, plan) in &plans {
            for &service in &plan.services {
                asking.add_service(*measure, plan, service)?;
            }
        }
        let mut warnings = asking.warnings(ranking.full);
        let mut reported = HostValues::default();
        if let Some((_, plan)) = plans.iter().find(|(measure, _)| *measure == Measure::Wait) {
            reported = plan.reported()?;
        }
        let mut rows = Vec::with_capacity(asking.details.len());
        if let Some((_, plan)) = plans.first() {
            let symbols = plan.project.symbols();
            for detail in asking.details {
                rows.extend(detail.row(query, &*symbols, &reported)?);
            }
        }
        warnings.extend(asker.warnings());
        Ok(finish_locks(rows, ranking.len(), asking.total, warnings)?)
    }
}

/// Adds all samples of a plan to the sums of their locks.
fn rank(
    ranking: &mut LockRanking,
    query: &LocksQuery,
    measure: Measure,
    plan: &Plan,
) -> Result<(), StoreError> {
    plan.scan(Need::Rows, &mut |series: &Series, chunk: Chunk<'_>| {
        let identities: Vec<u128> = chunk
            .dictionary
            .iter()
            .map(|set| LockKey::of(&series.labels, set).identity())
            .collect();
        for (&set, &value) in chunk.sets.iter().zip(chunk.values) {
            ranking.add(query.locks_max, identities[set as usize], measure, value);
        }
        Ok(())
    })
}

impl Asking<'_> {
    /// Adds the samples of one service: sums first, then their stacks under the newest names.
    fn add_service(
        &mut self,
        measure: Measure,
        plan: &Plan,
        number: u32,
    ) -> Result<(), StoreError> {
        let mut nodes = NodeSums::new();
        plan.scan_service(number, Need::Rows, &mut |series: &Series, chunk: Chunk<'_>| {
            let keys: Vec<(LockKey, LockKind, Option<usize>)> = chunk
                .dictionary
                .iter()
                .map(|set| {
                    let key = LockKey::of(&series.labels, set);
                    let place = self.chosen.get(&key.identity()).copied();
                    (key, LockKind::of(set), place)
                })
                .collect();
            for (at, (&set, &value)) in chunk.sets.iter().zip(chunk.values).enumerate() {
                self.total.add(measure, value);
                let (key, kind, place) = &keys[set as usize];
                let Some(place) = *place else { continue };
                let sample = LockSample { key, kind: *kind, labels: &series.labels };
                self.details[place].add(&sample, measure, value);
                self.add_node(&mut nodes, (place, chunk.nodes[at]), measure, value);
            }
            Ok(())
        })?;
        if nodes.is_empty() {
            return Ok(());
        }
        let service = plan.service(number);
        // Only brought up to date here: the order of locks is symbols, then names.
        drop(plan.names(&service));
        let symbols = plan.project.symbols();
        let paths = Paths::new(&service.names(), &symbols).of(nodes.keys().map(|&(_, node)| node));
        for ((place, node), sums) in nodes {
            if let Some(path) = paths.get(&node) {
                self.details[place].add_stack(path, sums);
            }
        }
        Ok(())
    }

    fn add_node(&mut self, nodes: &mut NodeSums, at: (usize, u32), measure: Measure, value: i64) {
        if let Some(sums) = nodes.get_mut(&at) {
            sums.add(measure, value);
        } else if self.stacks < self.query.stacks_max {
            self.stacks += 1;
            nodes.entry(at).or_default().add(measure, value);
        } else {
            self.full = true;
        }
    }

    fn warnings(&self, more_locks: bool) -> Vec<String> {
        let LocksQuery { locks_max, stacks_max, .. } = self.query;
        let mut warnings = Vec::new();
        if more_locks {
            warnings.push(format!(
                "more than {locks_max} locks: those beyond are in the total and no row; choose a shorter range or a narrower filter"
            ));
        }
        if self.full {
            warnings.push(format!(
                "more than {stacks_max} stacks: waiters and holders are incomplete, sums are not; choose a shorter range or a narrower filter"
            ));
        }
        warnings
    }
}

/// Ways from the caller of a lock to the root, by node of the location trie.
struct Paths<'a> {
    names: &'a NameTree,
    symbols: &'a Symbols,
    /// By function, whether it belongs to the lock.
    is_lock: HashMap<u32, bool>,
}

impl<'a> Paths<'a> {
    fn new(names: &'a NameTree, symbols: &'a Symbols) -> Self {
        Self { names, symbols, is_lock: HashMap::new() }
    }

    /// The ways of these nodes; none for one without frames, and for one that came after the names.
    fn of(mut self, nodes: impl Iterator<Item = u32>) -> HashMap<u32, Vec<u32>> {
        let mut paths = HashMap::new();
        for node in nodes {
            if let Some(&at) = self.names.node_of.get(node as usize)
                && at != 0
                && !paths.contains_key(&node)
            {
                paths.insert(node, self.path(at));
            }
        }
        paths
    }

    fn path(&mut self, mut at: u32) -> Vec<u32> {
        let mut functions = Vec::new();
        while at != 0 {
            functions.push(self.names.function[at as usize]);
            at = self.names.parent[at as usize];
        }
        let symbols = self.symbols;
        let mut is_lock = |&function: &u32| {
            *self.is_lock.entry(function).or_insert_with(|| {
                let known = symbols.functions.get(function as usize);
                known.is_some_and(|known| is_lock_frame(&known.info))
            })
        };
        let caller = caller_position(functions.iter().map(&mut is_lock));
        let from = if caller < functions.len() { caller } else { 0 };
        functions.drain(..from);
        functions.truncate(limits::LOCK_STACK_FRAMES_MAX);
        functions
    }
}
