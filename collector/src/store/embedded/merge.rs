//! Merged trees and function sums: values of stacks are added through the remap of names, dense by service,
//! then totals in one pass from children to parents.

use super::engine::Engine;
use super::names::NameTree;
use super::scan::{Asker, Chunk, Need, Plan};
use super::service::Service;
use super::symbols::Series;
use crate::limits;
use crate::query::{
    FlameTree, FunctionRow, MergeQuery, MergedTree, Overflow, Selection, ShapeOptions, rows_by_self,
};
use crate::store::StoreError;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::sync::{Arc, RwLockReadGuard};

/// What the merged samples have in common.
#[derive(Debug, Default)]
struct Facts {
    samples: u64,
    periods: BTreeSet<u64>,
}

impl Engine {
    pub(super) fn merge(&self, query: &MergeQuery, asker: &Asker) -> Result<FlameTree, StoreError> {
        if query.nodes_max > limits::QUERY_NODES_MAX {
            let max = limits::QUERY_NODES_MAX as u64;
            return Err(StoreError::Limit { what: "nodes of a flame graph", max });
        }
        let options =
            ShapeOptions { nodes_max: query.nodes_max, keep_self_top: query.keep_self_top };
        let mut merger = Merger::default();
        let Some(plan) = self.plan(&query.selection, asker) else {
            return Ok(merger.tree.shape(&super::symbols::Symbols::default(), options)?);
        };
        let mut facts = Facts::default();
        for &number in &plan.services {
            let service = plan.service(number);
            let names = plan.names(&service);
            if let Some(sums) = plan.sums(number, &names, &mut facts)? {
                merger.add(&names, &sums)?;
            }
        }
        let mut answer = merger.tree.shape(&*plan.project.symbols(), options)?;
        answer.samples = facts.samples;
        answer.period_ns = match (facts.periods.len(), facts.periods.first()) {
            (1, Some(&period)) => period,
            _ => 0,
        };
        plan.unit.as_ref().clone_into(&mut answer.unit);
        answer.warnings = plan.warnings();
        Ok(answer)
    }

    pub(super) fn functions(
        &self,
        selection: &Selection,
        limit: usize,
        asker: &Asker,
    ) -> Result<Vec<FunctionRow>, StoreError> {
        let Some(plan) = self.plan(selection, asker) else {
            return Ok(Vec::new());
        };
        let mut functions = FunctionSums::default();
        for &number in &plan.services {
            let service = plan.service(number);
            let names = plan.names(&service);
            if let Some(sums) = plan.sums(number, &names, &mut Facts::default())? {
                functions.add(&names, &sums);
            }
        }
        Ok(rows_by_self(functions.rows(), &*plan.project.symbols(), limit)?)
    }
}

impl Plan {
    pub(super) fn service(&self, number: u32) -> Arc<Service> {
        Arc::clone(&self.project.symbols().services[number as usize])
    }

    /// The service's names, as new as the moment of the call. They grow in steps, because an append that
    /// brings new names waits for each.
    pub(super) fn names<'s>(&self, service: &'s Service) -> RwLockReadGuard<'s, NameTree> {
        loop {
            let symbols = self.project.symbols();
            let trie = service.trie();
            let names = service.names();
            if names.is_current(&trie, &symbols) {
                return names;
            }
            drop(names);
            if service.names_mut().update(&trie, &symbols) {
                return service.names();
            }
        }
    }

    /// Sums by function node of one service; `None` if no sample is selected.
    fn sums(
        &self,
        number: u32,
        names: &NameTree,
        facts: &mut Facts,
    ) -> Result<Option<Sums>, StoreError> {
        let mut narrow: Cells<i64> = Cells::new(names);
        let mut found = Facts::default();
        self.scan_service(number, Need::Stacks, &mut |series: &Series, chunk: Chunk<'_>| {
            let later = narrow.add(names, &chunk);
            found.samples += chunk.samples - later;
            if chunk.samples > later {
                found.periods.insert(series.period_ns);
            }
            Ok(())
        })?;
        facts.samples += found.samples;
        facts.periods.append(&mut found.periods);
        if narrow.magnitude <= i64::MAX.unsigned_abs().into() {
            // No partial sum can have left 64 bits, whatever the order.
            return Ok(Sums::of(narrow.values, narrow.live, names));
        }
        let mut wide: Cells<i128> = Cells::new(names);
        self.scan_service(number, Need::Stacks, &mut |_: &Series, chunk: Chunk<'_>| {
            wide.add(names, &chunk);
            Ok(())
        })?;
        let values = wide.values.into_iter().map(|sum| Overflow::check(sum, "the flame graph"));
        Ok(Sums::of(values.collect::<Result<_, _>>()?, wide.live, names))
    }
}

/// A sum while it grows: 64 bits that may wrap, checked afterwards, or 128 bits.
trait Cell: Copy + Default {
    fn add(&mut self, value: i64);
}

impl Cell for i64 {
    fn add(&mut self, value: i64) {
        *self = self.wrapping_add(value);
    }
}

impl Cell for i128 {
    fn add(&mut self, value: i64) {
        *self += Self::from(value);
    }
}

/// Sums by function node while they grow.
struct Cells<T> {
    values: Vec<T>,
    /// True if a selected sample ends at the node.
    live: Vec<bool>,
    /// Sum of the magnitudes: what no sum of any of the values can exceed.
    magnitude: u128,
}

impl<T: Cell> Cells<T> {
    fn new(names: &NameTree) -> Self {
        let nodes = names.parent.len();
        Self { values: vec![T::default(); nodes], live: vec![false; nodes], magnitude: 0 }
    }

    /// Adds the values of stacks; answers how many are newer than the names: such samples were not
    /// acknowledged when the question came.
    fn add(&mut self, names: &NameTree, chunk: &Chunk<'_>) -> u64 {
        let mut later = 0;
        for (&node, &value) in chunk.nodes.iter().zip(chunk.values) {
            match names.node_of.get(node as usize) {
                Some(&at) => {
                    self.values[at as usize].add(value);
                    self.live[at as usize] = true;
                }
                None => later += 1,
            }
        }
        let sizes = chunk.values.iter().map(|value| u128::from(value.unsigned_abs()));
        self.magnitude += sizes.sum::<u128>();
        later
    }
}

/// Sums by function node.
#[derive(Debug)]
struct Sums {
    values: Vec<i64>,
    /// True if a selected sample ends at the node or below.
    live: Vec<bool>,
}

impl Sums {
    /// `None` if nothing is live.
    fn of(values: Vec<i64>, mut live: Vec<bool>, names: &NameTree) -> Option<Self> {
        for node in (1..live.len()).rev() {
            if live[node] {
                live[names.parent[node] as usize] = true;
            }
        }
        live[0].then_some(Self { values, live })
    }
}

/// Self and total by function, over services.
#[derive(Debug, Default)]
struct FunctionSums {
    /// By the number of the function: index into `sums` + 1, 0 if it has none.
    places: Vec<u32>,
    sums: Vec<(u32, i128, i128)>,
}

impl FunctionSums {
    fn add(&mut self, names: &NameTree, sums: &Sums) {
        let mut totals: Vec<i128> = sums.values.iter().map(|&value| value.into()).collect();
        for node in (1..totals.len()).rev().filter(|&node| sums.live[node]) {
            totals[names.parent[node] as usize] += totals[node];
            let (_, own, total) = self.of(names.function[node]);
            *own += i128::from(sums.values[node]);
            // A function that is called by itself counts where it stands highest.
            if !names.repeated[node] {
                *total += totals[node];
            }
        }
    }

    fn of(&mut self, function: u32) -> &mut (u32, i128, i128) {
        let index = function as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.sums.push((function, 0, 0));
            self.places[index] = u32::try_from(self.sums.len()).unwrap_or(u32::MAX);
        }
        &mut self.sums[self.places[index] as usize - 1]
    }

    fn rows(self) -> Vec<(u32, i128, i128)> {
        self.sums
    }
}

/// Trees of several services become one, by function.
struct Merger {
    tree: MergedTree,
    children: HashMap<(u32, u32), u32>,
    services: usize,
}

impl Default for Merger {
    /// A root alone.
    fn default() -> Self {
        let tree = MergedTree {
            parent: vec![0],
            function: vec![u32::MAX],
            self_value: vec![0],
            inlined: vec![false],
        };
        Self { tree, children: HashMap::new(), services: 0 }
    }
}

impl Merger {
    fn add(&mut self, names: &NameTree, sums: &Sums) -> Result<(), StoreError> {
        let is_alone = self.services == 0;
        if self.services == 1 {
            let tree = &self.tree;
            let edges = (1_u32..).zip(tree.parent.iter().zip(&tree.function).skip(1));
            self.children =
                edges.map(|(node, (&parent, &function))| ((parent, function), node)).collect();
        }
        self.services += 1;
        let mut at = vec![0_u32; names.parent.len()];
        for node in (0..names.parent.len()).filter(|&node| sums.live[node]) {
            if node > 0 {
                let parent = at[names.parent[node] as usize];
                let (function, inlined) = (names.function[node], names.inlined[node]);
                at[node] = if is_alone {
                    push(&mut self.tree, parent, function, inlined)
                } else {
                    self.child(parent, function, inlined)
                };
            }
            let sum = &mut self.tree.self_value[at[node] as usize];
            let added = i128::from(*sum) + i128::from(sums.values[node]);
            *sum = Overflow::check(added, "the flame graph")?;
        }
        Ok(())
    }

    fn child(&mut self, parent: u32, function: u32, inlined: bool) -> u32 {
        let tree = &mut self.tree;
        let new = || push(tree, parent, function, true);
        let node = *self.children.entry((parent, function)).or_insert_with(new);
        self.tree.inlined[node as usize] &= inlined;
        node
    }
}

fn push(tree: &mut MergedTree, parent: u32, function: u32, inlined: bool) -> u32 {
    tree.parent.push(parent);
    tree.function.push(function);
    tree.self_value.push(0);
    tree.inlined.push(inlined);
    u32::try_from(tree.parent.len() - 1).unwrap_or(u32::MAX)
}
