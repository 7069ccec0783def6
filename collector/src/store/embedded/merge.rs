//! Merged trees and function sums: values of stacks are added through the remap of names, dense by service,
//! then totals in one pass from children to parents.

use super::engine::Engine;
use super::names::NameTree;
use super::scan::{Chunk, Need, Plan};
use super::service::Service;
use super::symbols::Series;
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
    pub(super) fn merge(&self, query: &MergeQuery) -> Result<FlameTree, StoreError> {
        let options =
            ShapeOptions { nodes_max: query.nodes_max, keep_self_top: query.keep_self_top };
        let mut merger = Merger::default();
        let Some(plan) = self.plan(&query.selection) else {
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
    ) -> Result<Vec<FunctionRow>, StoreError> {
        let Some(plan) = self.plan(selection) else {
            return Ok(Vec::new());
        };
        let mut functions: HashMap<u32, (i128, i128)> = HashMap::new();
        for &number in &plan.services {
            let service = plan.service(number);
            let names = plan.names(&service);
            let Some(sums) = plan.sums(number, &names, &mut Facts::default())? else { continue };
            let mut totals = sums.values.clone();
            for node in (1..totals.len()).rev().filter(|&node| sums.live[node]) {
                totals[names.parent[node] as usize] += totals[node];
                let (own, total) = functions.entry(names.function[node]).or_default();
                *own += sums.values[node];
                if !names.repeated[node] {
                    *total += totals[node];
                }
            }
        }
        let values = functions.into_iter().map(|(function, (own, total))| (function, own, total));
        Ok(rows_by_self(values, &*plan.project.symbols(), limit)?)
    }
}

impl Plan {
    pub(super) fn service(&self, number: u32) -> Arc<Service> {
        Arc::clone(&self.project.symbols().services[number as usize])
    }

    /// The service's names, as new as the moment of the call.
    pub(super) fn names<'s>(&self, service: &'s Service) -> RwLockReadGuard<'s, NameTree> {
        let symbols = self.project.symbols();
        let trie = service.trie();
        {
            let names = service.names();
            if names.is_current(&trie, &symbols) {
                return names;
            }
        }
        service.names_mut().update(&trie, &symbols);
        service.names()
    }

    /// Sums by function node of one service; `None` if no sample is selected.
    fn sums(
        &self,
        number: u32,
        names: &NameTree,
        facts: &mut Facts,
    ) -> Result<Option<Sums>, StoreError> {
        let mut sums = Sums::new(names);
        self.scan_service(number, Need::Stacks, &mut |series: &Series, chunk: Chunk<'_>| {
            let later = sums.add(names, &chunk);
            facts.samples += chunk.samples - later;
            if chunk.samples > later {
                facts.periods.insert(series.period_ns);
            }
            Ok(())
        })?;
        Ok(sums.finish(names))
    }
}

/// Sums by function node.
#[derive(Debug)]
struct Sums {
    values: Vec<i128>,
    /// True if a selected sample ends at the node or below.
    live: Vec<bool>,
}

impl Sums {
    fn new(names: &NameTree) -> Self {
        Self { values: vec![0; names.parent.len()], live: vec![false; names.parent.len()] }
    }

    /// Adds the values of stacks; answers how many are newer than the names: such samples were not
    /// acknowledged when the question came.
    fn add(&mut self, names: &NameTree, chunk: &Chunk<'_>) -> u64 {
        let mut later = 0;
        for (&node, &value) in chunk.nodes.iter().zip(chunk.values) {
            match names.node_of.get(node as usize) {
                Some(&at) => {
                    self.values[at as usize] += i128::from(value);
                    self.live[at as usize] = true;
                }
                None => later += 1,
            }
        }
        later
    }

    fn finish(mut self, names: &NameTree) -> Option<Self> {
        for node in (1..self.live.len()).rev() {
            if self.live[node] {
                self.live[names.parent[node] as usize] = true;
            }
        }
        self.live[0].then_some(self)
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
        let mut at = vec![0_u32; names.parent.len()];
        for node in (0..names.parent.len()).filter(|&node| sums.live[node]) {
            if node > 0 {
                let parent = at[names.parent[node] as usize];
                at[node] = self.child(parent, names.function[node], names.inlined[node]);
            }
            let total = &mut self.tree.self_value[at[node] as usize];
            let sum = i128::from(*total) + sums.values[node];
            *total = Overflow::check(sum, "the flame graph")?;
        }
        self.services += 1;
        Ok(())
    }

    fn child(&mut self, parent: u32, function: u32, inlined: bool) -> u32 {
        let tree = &mut self.tree;
        let node = *self.children.entry((parent, function)).or_insert_with(|| {
            tree.parent.push(parent);
            tree.function.push(function);
            tree.self_value.push(0);
            tree.inlined.push(true);
            u32::try_from(tree.parent.len() - 1).unwrap_or(u32::MAX)
        });
        self.tree.inlined[node as usize] &= inlined;
        node
    }
}
