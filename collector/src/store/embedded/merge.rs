//! Merged trees and function sums: values are added by stack, dense by service, then through the remap of names;
//! totals in one pass from children to parents.

use super::answers::attribute_text;
use super::engine::Engine;
use super::names::NameTree;
use super::scan::{Asker, Chunk, Need, Plan};
use super::service::Service;
use super::symbols::Series;
use crate::limits;
use crate::profile::Attribute;
use crate::query::{
    FlameTree, FunctionRow, LabelKind, Leaves, MergeQuery, MergedTree, Overflow, Selection,
    ShapeOptions, rows_by_self,
};
use crate::store::StoreError;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLockReadGuard};

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
        let Some(plan) = self.plan(&query.selection, asker) else {
            let nothing = Merger::default().tree;
            return Ok(nothing.shape(&super::symbols::Symbols::default(), options)?);
        };
        let mut leaves = Leaves::new(query.leaf.as_deref().unwrap_or_default());
        let (merger, facts) = match &query.leaf {
            Some(label) => plan.merge_leaves(label, &mut leaves)?,
            None => plan.merge_services()?,
        };
        let mut answer = {
            let symbols = plan.project.symbols();
            merger.tree.shape(&leaves.names(&*symbols), options)?
        };
        answer.samples = facts.samples;
        answer.period_ns = match (facts.periods.len(), facts.periods.first()) {
            (1, Some(&period)) => period,
            _ => 0,
        };
        plan.unit.as_ref().clone_into(&mut answer.unit);
        answer.warnings = asker.warnings();
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
            if let Some(stacks) = plan.stacks(number, &mut Facts::default())? {
                let service = plan.service(number);
                let names = plan.names(&service);
                functions.add(&names, &stacks.by_name(&names)?);
            }
        }
        Ok(rows_by_self(functions.rows(), &*plan.project.symbols(), limit)?)
    }
}

impl Facts {
    fn add(&mut self, series: &Series, chunk: &Chunk<'_>) {
        self.samples += chunk.samples;
        if chunk.samples > 0 {
            self.periods.insert(series.period_ns);
        }
    }
}

impl Plan {
    pub(super) fn service(&self, number: u32) -> Arc<Service> {
        Arc::clone(&self.project.symbols().services[number as usize])
    }

    /// The service's names, as new as the moment of the call: asked for behind a scan they cover all that it
    /// met, and no scan holds them while another question waits to extend them. They grow in steps, because
    /// an append that brings new names waits for each.
    pub(super) fn names<'s>(&self, service: &'s Service) -> RwLockReadGuard<'s, NameTree> {
        loop {
            let symbols = self.project.symbols();
            let trie = service.trie();
            let names = service.names();
            if names.is_current(&trie, &symbols) {
                return self.told(service, names);
            }
            drop(names);
            if service.names_mut().update(&trie, &symbols) {
                return self.told(service, service.names());
            }
        }
    }

    /// Says if names are not all there.
    fn told<'s>(
        &self,
        service: &Service,
        names: RwLockReadGuard<'s, NameTree>,
    ) -> RwLockReadGuard<'s, NameTree> {
        if names.is_full {
            let (name, max) = (&service.name, limits::NAME_NODES_MAX);
            self.warn(format!(
                "{name} has more than {max} frames: further ones count for their callers"
            ));
        }
        names
    }

    /// The trees of all services, with leaves below their stacks.
    fn merge_leaves(
        &self,
        label: &str,
        leaves: &mut Leaves,
    ) -> Result<(Merger, Facts), StoreError> {
        let (mut merger, mut facts) = (Merger::default(), Facts::default());
        for &number in &self.services {
            let stacks = self.leaf_stacks(number, label, leaves, &mut facts)?;
            let service = self.service(number);
            merger.add_leaves(&self.names(&service), stacks)?;
        }
        Ok((merger, facts))
    }

    /// The trees of all services. Some are scanned at once; they become one tree one after the other, in any
    /// order: no answer depends on it.
    fn merge_services(&self) -> Result<(Merger, Facts), StoreError> {
        let merged = Mutex::new((Merger::default(), Facts::default()));
        let waiting = Mutex::new(self.services.iter());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || -> Result<(), StoreError> {
            while let Some(&number) = next() {
                let mut found = Facts::default();
                let Some(stacks) = self.stacks(number, &mut found)? else { continue };
                let service = self.service(number);
                let names = self.names(&service);
                let sums = stacks.by_name(&names)?;
                let (merger, facts) = &mut *merged.lock().unwrap_or_else(PoisonError::into_inner);
                merger.add(&names, &sums)?;
                facts.samples += found.samples;
                facts.periods.append(&mut found.periods);
            }
            Ok(())
        };
        let others = self.services.len().min(limits::QUERY_THREADS_MAX).saturating_sub(1);
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
            let mine = work();
            let panicked = |_| Err(StoreError::Busy("a part of the question failed".to_owned()));
            others.into_iter().fold(mine, |result, other| {
                let other = other.join().unwrap_or_else(panicked);
                result.and(other)
            })
        })?;
        Ok(merged.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sums by stack of one service; `None` if no sample is selected.
    fn stacks(&self, number: u32, facts: &mut Facts) -> Result<Option<Stacks>, StoreError> {
        let mut narrow: Cells<i64> = Cells::default();
        let mut found = Facts::default();
        self.scan_service(number, Need::Service, &mut |series: &Series, chunk: Chunk<'_>| {
            narrow.add(&chunk);
            found.add(series, &chunk);
            Ok(())
        })?;
        facts.samples += found.samples;
        facts.periods.append(&mut found.periods);
        if found.samples == 0 {
            return Ok(None);
        }
        if narrow.magnitude <= i64::MAX.unsigned_abs().into() {
            // No partial sum can have left 64 bits, whatever the order.
            return Ok(Some(Stacks::Narrow(narrow)));
        }
        let mut wide: Cells<i128> = Cells::default();
        self.scan_service(number, Need::Service, &mut |_: &Series, chunk: Chunk<'_>| {
            wide.add(&chunk);
            Ok(())
        })?;
        Ok(Some(Stacks::Wide(wide)))
    }

    /// Sums by (node of the location trie, leaf) of one service.
    fn leaf_stacks(
        &self,
        number: u32,
        label: &str,
        leaves: &mut Leaves,
        facts: &mut Facts,
    ) -> Result<HashMap<(u32, u32), i128>, StoreError> {
        let mut sums: HashMap<(u32, u32), i128> = HashMap::new();
        let kind = LabelKind::of(label);
        let need = if kind == LabelKind::Series { Need::Stacks } else { Need::Rows };
        self.scan_service(number, need, &mut |series: &Series, chunk: Chunk<'_>| {
            facts.add(series, &chunk);
            let of_series = series.labels.get(label).map(|value| leaves.number(value));
            let by_set: Vec<u32> = match of_series {
                Some(_) => Vec::new(),
                None => {
                    let mut used = vec![false; chunk.dictionary.len()];
                    chunk.sets.iter().for_each(|&set| used[set as usize] = true);
                    let sets = chunk.dictionary.iter().zip(used);
                    let number = |(set, used): (&Arc<[Attribute]>, bool)| {
                        if used { leaves.number(&attribute_text(set, label)) } else { 0 }
                    };
                    sets.map(number).collect()
                }
            };
            for (at, (&node, &value)) in chunk.nodes.iter().zip(chunk.values).enumerate() {
                let leaf = of_series.unwrap_or_else(|| by_set[chunk.sets[at] as usize]);
                *sums.entry((node, leaf)).or_default() += i128::from(value);
            }
            if sums.len() > limits::LEAF_STACKS_MAX {
                let max = limits::LEAF_STACKS_MAX as u64;
                return Err(StoreError::Limit { what: "stacks by label", max });
            }
            Ok(())
        })?;
        Ok(sums)
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

/// Sums by node of the location trie while they grow.
#[derive(Default)]
struct Cells<T> {
    values: Vec<T>,
    /// True if a selected sample ends at the node.
    live: Vec<bool>,
    /// Sum of the magnitudes: what no sum of any of the values can exceed.
    magnitude: u128,
}

impl<T: Cell> Cells<T> {
    /// Adds the values of stacks.
    fn add(&mut self, chunk: &Chunk<'_>) {
        let last = chunk.nodes.iter().max().map_or(0, |&node| node as usize);
        // A stack beyond what a trie may hold is none: no file may decide how much memory is taken.
        let last = last.min(limits::TRIE_NODES_MAX - 1);
        if last >= self.values.len() {
            self.values.resize(last + 1, T::default());
            self.live.resize(last + 1, false);
        }
        for (&node, &value) in chunk.nodes.iter().zip(chunk.values) {
            if let Some(sum) = self.values.get_mut(node as usize) {
                sum.add(value);
                self.live[node as usize] = true;
            }
        }
        let sizes = chunk.values.iter().map(|value| u128::from(value.unsigned_abs()));
        self.magnitude += sizes.sum::<u128>();
    }

    /// Calls `each` with the function node and the sum of each live stack.
    fn each(&self, names: &NameTree, mut each: impl FnMut(usize, T)) {
        let ends = self.values.iter().zip(&self.live).zip(&names.node_of);
        for ((&value, _), &node) in ends.filter(|((_, live), _)| **live) {
            each(node as usize, value);
        }
    }
}

/// Sums by stack, as wide as they must be.
enum Stacks {
    Narrow(Cells<i64>),
    Wide(Cells<i128>),
}

impl Stacks {
    /// Sums by function node.
    fn by_name(&self, names: &NameTree) -> Result<Sums, Overflow> {
        let nodes = names.parent.len();
        let mut live = vec![false; nodes];
        let values = match self {
            Self::Narrow(cells) => {
                let mut values = vec![0_i64; nodes];
                cells.each(names, |node, value| {
                    values[node] += value;
                    live[node] = true;
                });
                values
            }
            Self::Wide(cells) => {
                let mut values = vec![0_i128; nodes];
                cells.each(names, |node, value| {
                    values[node] += value;
                    live[node] = true;
                });
                let narrow = |sum| Overflow::check(sum, "the flame graph");
                values.into_iter().map(narrow).collect::<Result<_, _>>()?
            }
        };
        Ok(Sums::of(values, live, names))
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
    fn of(values: Vec<i64>, mut live: Vec<bool>, names: &NameTree) -> Self {
        for node in (1..live.len()).rev() {
            if live[node] {
                live[names.parent[node] as usize] = true;
            }
        }
        Self { values, live }
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
    /// Of the first nodes, so many as these are: the tree of the last service is never asked for.
    siblings: Siblings,
    /// Nodes by parent and function, where a service asked for children of the parent: services share few nodes.
    children: HashMap<(u32, u32), u32>,
    /// The newest child of each parent that is in `children`.
    indexed: HashMap<u32, u32>,
}

/// Children of nodes as chains from the newest to the oldest; 0 ends them.
#[derive(Default)]
struct Siblings {
    newest_child: Vec<u32>,
    older: Vec<u32>,
}

impl Siblings {
    fn len(&self) -> usize {
        self.older.len()
    }

    /// Takes in the nodes that are new.
    fn extend(&mut self, tree: &MergedTree) {
        let from = self.len();
        self.newest_child.resize(tree.len(), 0);
        self.older.resize(tree.len(), 0);
        // The root is nobody's child.
        for (node, &parent) in tree.parent.iter().enumerate().skip(from.max(1)) {
            let newest = &mut self.newest_child[parent as usize];
            self.older[node] = std::mem::replace(newest, u32::try_from(node).unwrap_or(u32::MAX));
        }
    }

    /// Children of a node from the newest on.
    fn children(&self, parent: u32) -> impl Iterator<Item = u32> {
        let newest = self.newest_child[parent as usize];
        let older = |&node: &u32| Some(self.older[node as usize]);
        std::iter::successors(Some(newest), older).take_while(|&node| node != 0)
    }
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
        let (siblings, children) = (Siblings::default(), HashMap::new());
        Self { tree, siblings, children, indexed: HashMap::new() }
    }
}

impl Merger {
    /// Adds the tree of a service; answers where its nodes are.
    fn add(&mut self, names: &NameTree, sums: &Sums) -> Result<Vec<u32>, StoreError> {
        self.siblings.extend(&self.tree);
        self.reserve(sums.live.iter().filter(|&&live| live).count());
        let mut at = vec![0_u32; names.parent.len()];
        for node in (0..names.parent.len()).filter(|&node| sums.live[node]) {
            if node > 0 {
                let parent = at[names.parent[node] as usize];
                let (function, inlined) = (names.function[node], names.inlined[node]);
                at[node] = self.child(parent, function, inlined);
            }
            let sum = &mut self.tree.self_value[at[node] as usize];
            let added = i128::from(*sum) + i128::from(sums.values[node]);
            *sum = Overflow::check(added, "the flame graph")?;
        }
        Ok(at)
    }

    /// Adds the tree of a service with leaves below its stacks: sums by (node of the location trie, leaf).
    fn add_leaves(
        &mut self,
        names: &NameTree,
        stacks: HashMap<(u32, u32), i128>,
    ) -> Result<(), StoreError> {
        if stacks.is_empty() {
            return Ok(());
        }
        let nodes = names.parent.len();
        let mut live = vec![false; nodes];
        let mut leaves: HashMap<(u32, u32), i128> = HashMap::new();
        for ((stack, leaf), sum) in stacks {
            // Names asked for behind the scan cover all that it met.
            let Some(&node) = names.node_of.get(stack as usize) else { continue };
            live[node as usize] = true;
            *leaves.entry((node, leaf)).or_default() += sum;
        }
        let at = self.add(names, &Sums::of(vec![0; nodes], live, names))?;
        for ((node, leaf), sum) in leaves {
            let parent = at[node as usize];
            let node = self.child(parent, leaf, false);
            let value = &mut self.tree.self_value[node as usize];
            *value = Overflow::check(i128::from(*value) + sum, "the flame graph")?;
        }
        Ok(())
    }

    /// Makes room for the nodes of a service, rather than double what is there again and again.
    fn reserve(&mut self, nodes: usize) {
        let MergedTree { parent, function, self_value, inlined } = &mut self.tree;
        parent.reserve(nodes);
        function.reserve(nodes);
        self_value.reserve(nodes);
        inlined.reserve(nodes);
    }

    /// The child with this function. One service asks for each once, so below its own new nodes there is none.
    fn child(&mut self, parent: u32, function: u32, inlined: bool) -> u32 {
        let is_shared = (parent as usize) < self.siblings.len();
        match is_shared.then(|| self.find(parent, function)).flatten() {
            Some(node) => {
                self.tree.inlined[node as usize] &= inlined;
                node
            }
            None => push(&mut self.tree, parent, function, inlined),
        }
    }

    /// The child with this function that came with an earlier service.
    fn find(&mut self, parent: u32, function: u32) -> Option<u32> {
        let Self { tree, siblings, children, indexed } = self;
        let newest = siblings.newest_child[parent as usize];
        let before = indexed.insert(parent, newest).unwrap_or(0);
        for node in siblings.children(parent).take_while(|&node| node != before) {
            children.insert((parent, tree.function[node as usize]), node);
        }
        children.get(&(parent, function)).copied()
    }
}

fn push(tree: &mut MergedTree, parent: u32, function: u32, inlined: bool) -> u32 {
    tree.parent.push(parent);
    tree.function.push(function);
    tree.self_value.push(0);
    tree.inlined.push(inlined);
    u32::try_from(tree.parent.len() - 1).unwrap_or(u32::MAX)
}
