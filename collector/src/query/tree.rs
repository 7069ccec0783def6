//! A merged tree of functions and how it becomes an answer: totals, pruning, order. Pruning comes last,
//! when all addresses of a function are one node: pruned earlier, many small addresses of one hot function
//! would vanish. Every choice depends on values and identities alone, never on the order of nodes.

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
        let kept = Selection::of(self, names, options).kept;
        let mut children = Children::of(self, &kept, &totals, names);
        let mut answer = Answer::new(self, &totals, children.list.len() + 1);
        let mut pending = vec![(0_u32, 0_u32)];
        while let Some((node, depth)) = pending.pop() {
            let hidden = children.hidden(node)?;
            answer.push(node, depth, hidden, names);
            let from = pending.len();
            pending.extend(children.take(node).iter().map(|&child| (child, depth + 1)));
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
        let mut markers: ByFunction<Option<Arc<str>>> = ByFunction::default();
        let mut sums: BTreeMap<Arc<str>, i128> = BTreeMap::new();
        for (&function, &total) in self.function.iter().zip(totals).skip(1) {
            let marker = markers.get_or_make(function, || marker_of_cut(names, function));
            if let Some(marker) = marker {
                *sums.entry(Arc::clone(marker)).or_default() += i128::from(total);
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

/// Which nodes survive pruning.
struct Selection {
    kept: Vec<bool>,
}

impl Selection {
    fn of(tree: &MergedTree, names: &dyn FunctionNames, options: ShapeOptions) -> Self {
        let budget = options.nodes_max.max(1);
        if tree.len() <= budget {
            return Self { kept: vec![true; tree.len()] };
        }
        let paths = Paths::of(tree, names);
        let mut selection = Self { kept: vec![false; tree.len()] };
        selection.kept[0] = true;
        let mut left = budget - 1;
        for node in heaviest_nodes(tree, names, &paths, options.keep_self_top) {
            left = selection.keep_with_ancestors(tree, node, left);
        }
        selection.fill(tree, &paths, left);
        selection
    }

    /// Keeps a node and its ancestors if all of them fit into what is left; answers what is left then.
    fn keep_with_ancestors(&mut self, tree: &MergedTree, node: NodeId, left: usize) -> usize {
        let mut missing = Vec::new();
        let mut at = node as usize;
        while !self.kept[at] {
            missing.push(at);
            at = tree.parent[at] as usize;
        }
        if missing.len() > left {
            return left;
        }
        let count = missing.len();
        missing.into_iter().for_each(|index| self.kept[index] = true);
        left - count
    }

    /// Fills up with the heaviest nodes; of equally heavy ones the shallower first, then by path.
    fn fill(&mut self, tree: &MergedTree, paths: &Paths, left: usize) {
        if left == 0 {
            return;
        }
        let weights = tree.weights();
        let mut candidates: Vec<u32> =
            (0..).zip(&self.kept).filter_map(|(node, kept)| (!kept).then_some(node)).collect();
        let key = |&node: &u32| {
            let node = node as usize;
            (std::cmp::Reverse(weights[node]), paths.depth[node], paths.hash[node])
        };
        if left < candidates.len() {
            candidates.select_nth_unstable_by_key(left, key);
            candidates.truncate(left);
        }
        candidates.into_iter().for_each(|node| self.kept[node as usize] = true);
    }
}

/// For each of the functions with the largest self values, its node with the largest.
fn heaviest_nodes(
    tree: &MergedTree,
    names: &dyn FunctionNames,
    paths: &Paths,
    keep_self_top: usize,
) -> Vec<NodeId> {
    let mut functions: HashMap<u32, (i128, u32)> = HashMap::new();
    for (node, &value) in (0..).zip(&tree.self_value).skip(1).filter(|&(_, &value)| value != 0) {
        let (sum, best) = functions.entry(tree.function[node as usize]).or_insert((0, node));
        *sum += i128::from(value);
        let rank = |node: u32| {
            let node = node as usize;
            (tree.self_value[node].unsigned_abs(), paths.hash[node])
        };
        if rank(node) > rank(*best) {
            *best = node;
        }
    }
    let mut ranked: Vec<_> = functions
        .into_iter()
        .map(|(function, (sum, node))| (sum.unsigned_abs(), names.identity(function), node))
        .collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    ranked.into_iter().take(keep_self_top).map(|(_, _, node)| node).collect()
}

/// Depth and a hash of the functions on the way from the root, for each node.
struct Paths {
    depth: Vec<u32>,
    hash: Vec<u64>,
}

impl Paths {
    fn of(tree: &MergedTree, names: &dyn FunctionNames) -> Self {
        let mut depth = vec![0_u32; tree.len()];
        let mut hash = vec![0_u64; tree.len()];
        let mut identities: ByFunction<[u8; 16]> = ByFunction::default();
        for node in 1..tree.len() {
            let parent = tree.parent[node] as usize;
            depth[node] = depth[parent] + 1;
            let function = tree.function[node];
            let identity =
                identities.get_or_make(function, || names.identity(function).to_le_bytes());
            hash[node] = xxhash_rust::xxh3::xxh3_64_with_seed(identity, hash[parent]);
        }
        Self { depth, hash }
    }
}

/// Kept children of every node, heaviest first, and what is hidden below it.
struct Children {
    /// Where the children of node i begin in `list`; one entry more than nodes.
    start: Vec<u32>,
    list: Vec<NodeId>,
    /// Empty if nothing is.
    hidden: Vec<i128>,
}

impl Children {
    fn of(tree: &MergedTree, kept: &[bool], totals: &[i64], names: &dyn FunctionNames) -> Self {
        let mut start = vec![0_u32; tree.len() + 1];
        let mut hidden = Vec::new();
        for node in 1..tree.len() {
            let parent = tree.parent[node] as usize;
            if kept[node] {
                start[parent + 1] += 1;
            } else if kept[parent] {
                hidden.resize(tree.len(), 0_i128);
                hidden[parent] += i128::from(totals[node]);
            }
        }
        for node in 0..tree.len() {
            start[node + 1] += start[node];
        }
        let mut next = start.clone();
        let mut list = vec![0; start[tree.len()] as usize];
        for node in (1..tree.len()).filter(|&node| kept[node]) {
            let at = &mut next[tree.parent[node] as usize];
            list[*at as usize] = u32::try_from(node).unwrap_or(u32::MAX);
            *at += 1;
        }
        let mut children = Self { start, list, hidden };
        for node in (0..tree.len()).filter(|&node| kept[node]) {
            let range = children.start[node] as usize..children.start[node + 1] as usize;
            children.list[range].sort_unstable_by(|&a, &b| {
                let function = |node: u32| tree.function[node as usize];
                let by_total = totals[b as usize].cmp(&totals[a as usize]);
                by_total.then_with(|| names.compare(function(a), function(b)))
            });
        }
        children
    }

    fn take(&mut self, node: NodeId) -> &[NodeId] {
        let node = node as usize;
        &self.list[self.start[node] as usize..self.start[node + 1] as usize]
    }

    fn hidden(&self, node: NodeId) -> Result<i64, Overflow> {
        let hidden = self.hidden.get(node as usize);
        Overflow::check(hidden.copied().unwrap_or(0), "hidden nodes")
    }
}

/// The answer under construction.
struct Answer<'a> {
    source: &'a MergedTree,
    totals: &'a [i64],
    numbers: ByFunction<u32>,
    tree: FlameTree,
}

impl<'a> Answer<'a> {
    fn new(source: &'a MergedTree, totals: &'a [i64], nodes: usize) -> Self {
        let root = FunctionInfo {
            name: Arc::from("total"),
            file: Arc::from(""),
            line: 0,
            kind: FrameKind::Unknown,
            module: Arc::from(""),
            named: true,
        };
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
        Self { source, totals, numbers: ByFunction::default(), tree }
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
        self.tree.node_total.push(self.totals[index]);
        self.tree.node_self.push(self.source.self_value[index]);
        self.tree.node_depth.push(depth);
        self.tree.node_hidden.push(hidden);
        self.tree.node_inlined.push(self.source.inlined[index]);
    }
}

#[cfg(test)]
mod tests;
