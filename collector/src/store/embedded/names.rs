//! The tree of functions of one service, and for each node of its location trie the function node where it
//! ends: addresses of one function become one node, inlined functions stand below the one that they were
//! inlined into. It is derived from trie and symbols, extended as they grow, and built anew when better
//! names of a location that it holds arrive (a symbol epoch).

use super::symbols::Symbols;
use super::trie::Trie;
use crate::limits;
use hashbrown::{HashMap, HashTable};
use xxhash_rust::xxh3::xxh3_64;

/// Nodes added while the locks are held: some 10 ms.
const STEP: usize = 1 << 16;

/// The tree. Node 0 is the root; parents stand before children.
#[derive(Debug)]
pub(super) struct NameTree {
    /// Function node of each location node.
    pub(super) node_of: Vec<u32>,
    pub(super) parent: Vec<u32>,
    pub(super) function: Vec<u32>,
    /// True if it was seen only inlined into its parent.
    pub(super) inlined: Vec<bool>,
    /// True if the same function stands above it: totals of functions skip it.
    pub(super) repeated: Vec<bool>,
    /// Of the root: 0.
    depth: Vec<u32>,
    children: HashTable<u32>,
    /// Where the newest node stands.
    way: Way,
    nodes_max: usize,
    /// True if frames had no room: what ends there counts for its caller.
    pub(super) is_full: bool,
    /// How much of `Symbols::renamed` is taken into account.
    epoch: usize,
}

impl Default for NameTree {
    /// The root alone, for the root of the trie.
    fn default() -> Self {
        Self {
            node_of: vec![0],
            parent: vec![0],
            function: vec![u32::MAX],
            inlined: vec![false],
            repeated: vec![false],
            depth: vec![0],
            children: HashTable::new(),
            way: Way::default(),
            nodes_max: limits::NAME_NODES_MAX,
            is_full: false,
            epoch: 0,
        }
    }
}

/// The nodes from below the root to one node, and how often each function is among them. Stacks come one
/// after the other, and new nodes of one follow each other: to move from node to node costs no more than the
/// frames that were sent.
#[derive(Debug, Default)]
struct Way {
    nodes: Vec<u32>,
    functions: HashMap<u32, u32>,
}

fn edge_hash(parent: u32, function: u32) -> u64 {
    xxh3_64(&(u64::from(parent) << 32 | u64::from(function)).to_le_bytes())
}

impl NameTree {
    /// True if it covers the trie with the newest names.
    pub(super) fn is_current(&self, trie: &Trie, symbols: &Symbols) -> bool {
        self.node_of.len() == trie.len() && self.epoch == symbols.renamed.len()
    }

    /// Brings it closer to the trie and the newest names; true if it is up to date then.
    pub(super) fn update(&mut self, trie: &Trie, symbols: &Symbols) -> bool {
        if self.holds_any(&symbols.renamed[self.epoch..], trie, symbols) {
            *self = Self { nodes_max: self.nodes_max, ..Self::default() };
        }
        self.epoch = symbols.renamed.len();
        let from = self.node_of.len();
        let to = trie.len().min(from + STEP);
        for node in from..to {
            let location = &symbols.locations[trie.locations()[node] as usize];
            let mut at = self.node_of[trie.parents()[node] as usize];
            for (depth, line) in location.lines.iter().rev().enumerate() {
                at = self.child(at, line.function, depth > 0);
            }
            self.node_of.push(at);
        }
        to == trie.len()
    }

    /// True if a node of the tree stands for one of these locations.
    fn holds_any(&self, renamed: &[u32], trie: &Trie, symbols: &Symbols) -> bool {
        if renamed.is_empty() {
            return false;
        }
        let mut wanted = vec![false; symbols.locations.len()];
        renamed.iter().for_each(|&location| wanted[location as usize] = true);
        let mine = &trie.locations()[1..self.node_of.len()];
        mine.iter().any(|&location| wanted[location as usize])
    }

    fn child(&mut self, parent: u32, function: u32, inlined: bool) -> u32 {
        let hash = edge_hash(parent, function);
        let (parents, functions) = (&self.parent, &self.function);
        let is_it =
            |&node: &u32| parents[node as usize] == parent && functions[node as usize] == function;
        if let Some(&node) = self.children.find(hash, is_it) {
            self.inlined[node as usize] &= inlined;
            return node;
        }
        if self.parent.len() >= self.nodes_max {
            self.is_full = true;
            return parent;
        }
        let node = u32::try_from(self.parent.len()).unwrap_or(u32::MAX);
        self.go_to(parent);
        self.repeated.push(self.way.functions.contains_key(&function));
        self.depth.push(self.depth[parent as usize] + 1);
        self.parent.push(parent);
        self.function.push(function);
        self.inlined.push(inlined);
        let (parents, functions) = (&self.parent, &self.function);
        self.children.insert_unique(hash, node, |&node| {
            edge_hash(parents[node as usize], functions[node as usize])
        });
        node
    }

    /// Makes the way lead to `node`.
    fn go_to(&mut self, node: u32) {
        let mut missing = Vec::new();
        let mut at = node;
        while at != 0 && self.way.nodes.get(self.depth[at as usize] as usize - 1) != Some(&at) {
            missing.push(at);
            at = self.parent[at as usize];
        }
        let Way { nodes, functions } = &mut self.way;
        for left in nodes.drain(self.depth[at as usize] as usize..) {
            let function = self.function[left as usize];
            match functions.get_mut(&function) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(functions.remove(&function)),
            }
        }
        for entered in missing.into_iter().rev() {
            nodes.push(entered);
            *functions.entry(self.function[entered as usize]).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_above(tree: &NameTree, mut node: u32, function: u32) -> bool {
        while node != 0 && tree.function[node as usize] != function {
            node = tree.parent[node as usize];
        }
        node != 0
    }

    proptest! {
        #[test]
        fn a_node_knows_whether_its_function_stands_above_it(
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..5), 1..200),
        ) {
            let mut tree = NameTree::default();
            for (parent, function) in steps {
                let parent = u32::try_from(parent.index(tree.parent.len())).unwrap();
                tree.child(parent, function, false);
            }
            for node in 1..tree.parent.len() {
                let above = is_above(&tree, tree.parent[node], tree.function[node]);
                prop_assert_eq!(tree.repeated[node], above, "node {}", node);
            }
        }
    }

    /// The deepest stacks that are stored, all functions distinct, each with one frame of its own: linear in
    /// frames, which a walk to the root for each new node was not.
    #[test]
    fn deep_stacks_take_no_time_to_speak_of() {
        let begun = std::time::Instant::now();
        let mut tree = NameTree::default();
        let depth = u32::try_from(limits::STACK_FRAMES_MAX).unwrap();
        for branch in 0..200 {
            let mut at = tree.child(0, 1_000_000 + branch % 2, false);
            for function in 0..depth {
                at = tree.child(at, function + depth * branch, false);
            }
        }
        assert_eq!(tree.parent.len(), 3 + 200 * limits::STACK_FRAMES_MAX);
        let seconds = begun.elapsed().as_secs_f64();
        assert!(seconds < 5.0, "{seconds} s; a walk for each would take 200 * 4096^2 / 2 steps");
    }

    #[test]
    fn without_room_a_frame_counts_for_its_caller() {
        let mut tree = NameTree { nodes_max: 3, ..NameTree::default() };
        let a = tree.child(0, 1, false);
        let b = tree.child(a, 2, false);
        assert!(!tree.is_full);
        assert_eq!(tree.child(b, 3, false), b);
        assert!(tree.is_full);
        assert_eq!((tree.child(0, 1, false), tree.parent.len()), (a, 3));
    }
}
