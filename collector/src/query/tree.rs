//! A merged tree of functions and how it becomes an answer: totals, pruning, order. Pruning comes last,
//! when all addresses of a function are one node: pruned earlier, many small addresses of one hot function
//! would vanish. Every choice depends on values and identities alone, never on the order of nodes.

mod pruning;

use super::{FlameTree, FunctionInfo, FunctionNames, Overflow};
use crate::limits::FUNCTIONS_MAX;
use hashbrown::HashMap;
use proto::FrameKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Index of a node in a [`MergedTree`].
pub type NodeId = u32;

/// A tree of functions: parents before children, node 0 is the root. Every node lies on the path of at
/// least one selected sample.
#[derive(Clone, Debug, Default)]
pub struct MergedTree {
    /// Parent of each node; of the root: 0.
    pub parent: Vec<NodeId>,
    /// Function of each node, in the numbers of the engine; of the root: ignored.
    pub function: Vec<u32>,
    /// Sum of the samples that end at the node.
    pub self_value: Vec<i64>,
    /// True where the function was inlined into the parent.
    pub inlined: Vec<bool>,
}

/// How to shape the answer.
#[derive(Clone, Copy, Debug)]
pub struct ShapeOptions {
    /// Nodes in the answer at most; the root is always there.
    pub nodes_max: usize,
    /// Functions with the largest self values whose heaviest node survives, with its ancestors.
    pub keep_self_top: usize,
}

impl MergedTree {
    /// Nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parent.len()
    }

    /// True if not even a root is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parent.is_empty()
    }

    /// Totals: each node with everything below.
    ///
    /// # Errors
    /// If the total of any node leaves 64 bits.
    pub fn totals(&self) -> Result<Vec<i64>, Overflow> {
        let magnitude: u128 =
            self.self_value.iter().map(|value| u128::from(value.unsigned_abs())).sum();
        if magnitude <= i64::MAX.unsigned_abs().into() {
            // No partial sum can leave 64 bits, whatever the order.
            let mut totals = self.self_value.clone();
            for node in (1..totals.len()).rev() {
                totals[self.parent[node] as usize] += totals[node];
            }
            return Ok(totals);
        }
        let mut totals: Vec<i128> = self.self_value.iter().map(|&value| value.into()).collect();
        for node in (1..totals.len()).rev() {
            totals[self.parent[node] as usize] += totals[node];
        }
        totals.into_iter().map(|total| Overflow::check(total, "the flame graph")).collect()
    }

    /// The answer: at most `nodes_max` nodes in preorder, the heaviest child first. At each node, total =
    /// self + totals of its children in the answer + hidden.
    ///
    /// # Errors
    /// If the total of any node leaves 64 bits.
    pub fn shape(
        &self,
        names: &dyn FunctionNames,
        options: ShapeOptions,
    ) -> Result<FlameTree, Overflow> {
        let totals = self.totals()?;
        let kept = Kept::of(self, &totals, &pruning::kept(self, &totals, names, options));
        let children = Children::of(&kept, names);
        let mut answer = Answer::new(&kept);
        let mut pending = vec![(0_u32, 0_u32)];
        while let Some((node, depth)) = pending.pop() {
            answer.push(node, depth, children.hidden(&kept, node)?, names);
            let from = pending.len();
            pending.extend(children.of_node(node).iter().map(|&child| (child, depth + 1)));
            pending[from..].reverse();
        }
        answer.tree.cut = self.cut(&totals, names)?;
        answer.tree.hidden_nodes = (self.len() - answer.tree.node_total.len()) as u64;
        Ok(answer.tree)
    }

    /// What does not reach its root, by marker: a stack has one at most.
    fn cut(
        &self,
        totals: &[i64],
        names: &dyn FunctionNames,
    ) -> Result<Vec<(Arc<str>, i64)>, Overflow> {
        let mut markers: ByFunction<bool> = ByFunction::default();
        let mut sums: BTreeMap<Arc<str>, i128> = BTreeMap::new();
        for (&function, &total) in self.function.iter().zip(totals).skip(1) {
            if *markers.get_or_make(function, || names.is_marker(function))
                && let Some(marker) = marker_of_cut(names, function)
            {
                *sums.entry(marker).or_default() += i128::from(total);
            }
        }
        let narrow = |(marker, sum)| Ok((marker, Overflow::check(sum, "what was cut")?));
        let mut cut = sums.into_iter().map(narrow).collect::<Result<Vec<_>, Overflow>>()?;
        cut.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
        Ok(cut)
    }

    /// Sum of the magnitudes of a node and everything below: unlike totals it never grows downwards,
    /// whatever the signs, so the heaviest nodes always include their ancestors.
    fn weights(&self) -> Vec<u64> {
        let mut weights: Vec<u64> =
            self.self_value.iter().map(|value| value.unsigned_abs()).collect();
        for node in (1..weights.len()).rev() {
            let parent = self.parent[node] as usize;
            weights[parent] = weights[parent].saturating_add(weights[node]);
        }
        weights
    }
}

/// Something for each function of a tree, by its number. Numbers of engines are dense, and every node asks;
/// those of leaves lie far above, and are few.
struct ByFunction<T> {
    near: Vec<Option<T>>,
    far: HashMap<u32, T>,
}

impl<T> Default for ByFunction<T> {
    fn default() -> Self {
        Self { near: Vec::new(), far: HashMap::new() }
    }
}

impl<T> ByFunction<T> {
    fn get_or_make(&mut self, function: u32, make: impl FnOnce() -> T) -> &mut T {
        let at = function as usize;
        if at >= FUNCTIONS_MAX {
            return self.far.entry(function).or_insert_with(make);
        }
        if at >= self.near.len() {
            self.near.resize_with(at + 1, || None);
        }
        self.near[at].get_or_insert_with(make)
    }

    fn get_mut(&mut self, function: u32) -> Option<&mut T> {
        match function as usize {
            at if at >= FUNCTIONS_MAX => self.far.get_mut(&function),
            at => self.near.get_mut(at)?.as_mut(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let near =
            (0..).zip(&self.near).filter_map(|(function, it)| Some((function, it.as_ref()?)));
        near.chain(self.far.iter().map(|(&function, it)| (function, it)))
    }
}

/// The name of a function that marks a stack as cut.
fn marker_of_cut(names: &dyn FunctionNames, function: u32) -> Option<Arc<str>> {
    let FunctionInfo { name, kind, module, .. } = names.info(function);
    if !module.is_empty() {
        return None; // the value of a label, which may say anything
    }
    let cut = *name == *"[truncated]" || name.starts_with("[unwind: ");
    (kind == FrameKind::Marker && cut).then_some(name)
}

/// The nodes that survive pruning, numbered anew in the same order.
struct Kept {
    parent: Vec<NodeId>,
    function: Vec<u32>,
    self_value: Vec<i64>,
    total: Vec<i64>,
    inlined: Vec<bool>,
}

impl Kept {
    fn of(tree: &MergedTree, totals: &[i64], kept: &[bool]) -> Self {
        let nodes: Vec<usize> = (0..tree.len()).filter(|&node| kept[node]).collect();
        // Untouched places of this table take no memory.
        let mut numbers = vec![0_u32; tree.len()];
        let parent = |(number, &node): (u32, &usize)| {
            numbers[node] = number;
            numbers[tree.parent[node] as usize]
        };
        Self {
            parent: (0..).zip(&nodes).map(parent).collect(),
            function: nodes.iter().map(|&node| tree.function[node]).collect(),
            self_value: nodes.iter().map(|&node| tree.self_value[node]).collect(),
            total: nodes.iter().map(|&node| totals[node]).collect(),
            inlined: nodes.iter().map(|&node| tree.inlined[node]).collect(),
        }
    }

    fn len(&self) -> usize {
        self.parent.len()
    }
}

/// Children of every node, heaviest first.
struct Children {
    /// Where the children of node i begin in `list`; one entry more than nodes.
    start: Vec<u32>,
    list: Vec<NodeId>,
}

impl Children {
    fn of(kept: &Kept, names: &dyn FunctionNames) -> Self {
        let mut start = vec![0_u32; kept.len() + 1];
        kept.parent.iter().skip(1).for_each(|&parent| start[parent as usize + 1] += 1);
        for node in 0..kept.len() {
            start[node + 1] += start[node];
        }
        let mut next = start.clone();
        let mut list = vec![0; start[kept.len()] as usize];
        for (node, &parent) in (0_u32..).zip(&kept.parent).skip(1) {
            let at = &mut next[parent as usize];
            list[*at as usize] = node;
            *at += 1;
        }
        for range in start.windows(2) {
            list[range[0] as usize..range[1] as usize].sort_unstable_by(|&a, &b| {
                let [a, b] = [a as usize, b as usize];
                let by_total = kept.total[b].cmp(&kept.total[a]);
                by_total.then_with(|| names.compare(kept.function[a], kept.function[b]))
            });
        }
        Self { start, list }
    }

    fn of_node(&self, node: NodeId) -> &[NodeId] {
        let node = node as usize;
        &self.list[self.start[node] as usize..self.start[node + 1] as usize]
    }

    /// What a node has beside itself and these children.
    fn hidden(&self, kept: &Kept, node: NodeId) -> Result<i64, Overflow> {
        let at = node as usize;
        let shown = self.of_node(node).iter().map(|&child| i128::from(kept.total[child as usize]));
        let below = i128::from(kept.total[at]) - i128::from(kept.self_value[at]);
        Overflow::check(below - shown.sum::<i128>(), "hidden nodes")
    }
}

/// The answer under construction.
struct Answer<'a> {
    source: &'a Kept,
    numbers: ByFunction<u32>,
    tree: FlameTree,
}

impl<'a> Answer<'a> {
    fn new(source: &'a Kept) -> Self {
        let root = FunctionInfo {
            name: Arc::from("total"),
            file: Arc::from(""),
            line: 0,
            kind: FrameKind::Unknown,
            module: Arc::from(""),
            named: true,
        };
        let nodes = source.len();
        let tree = FlameTree {
            functions: vec![root],
            node_function: Vec::with_capacity(nodes),
            node_total: Vec::with_capacity(nodes),
            node_self: Vec::with_capacity(nodes),
            node_depth: Vec::with_capacity(nodes),
            node_hidden: Vec::with_capacity(nodes),
            node_inlined: Vec::with_capacity(nodes),
            ..FlameTree::default()
        };
        Self { source, numbers: ByFunction::default(), tree }
    }

    fn push(&mut self, node: NodeId, depth: u32, hidden: i64, names: &dyn FunctionNames) {
        let index = node as usize;
        let number = if node == 0 {
            0
        } else {
            let functions = &mut self.tree.functions;
            let function = self.source.function[index];
            *self.numbers.get_or_make(function, || {
                functions.push(names.info(function));
                u32::try_from(functions.len() - 1).unwrap_or(u32::MAX)
            })
        };
        self.tree.node_function.push(number);
        self.tree.node_total.push(self.source.total[index]);
        self.tree.node_self.push(self.source.self_value[index]);
        self.tree.node_depth.push(depth);
        self.tree.node_hidden.push(hidden);
        self.tree.node_inlined.push(self.source.inlined[index]);
    }
}

#[cfg(test)]
mod tests;
