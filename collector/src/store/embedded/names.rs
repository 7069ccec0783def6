//! The tree of functions of one service, and for each node of its location trie the function node where it
//! ends: addresses of one function become one node, inlined functions stand below the one that they were
//! inlined into. It is derived from trie and symbols, extended as they grow, and built anew when better
//! names of a location that it holds arrive (a symbol epoch).

use super::symbols::Symbols;
use super::trie::Trie;
use hashbrown::HashTable;
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
    /// One bit per function on the path, by its number: a quick "surely not above".
    above: Vec<u64>,
    children: HashTable<u32>,
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
            above: vec![0],
            children: HashTable::new(),
            epoch: 0,
        }
    }
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
            *self = Self::default();
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
        // A function tree has at most as many nodes as lines in the trie; its limit leaves room for them.
        let node = u32::try_from(self.parent.len()).unwrap_or(u32::MAX);
        let bit = 1_u64 << (function % 64);
        let maybe_above = self.above[parent as usize] & bit != 0;
        self.repeated.push(maybe_above && self.is_above(parent, function));
        self.above.push(self.above[parent as usize] | bit);
        self.parent.push(parent);
        self.function.push(function);
        self.inlined.push(inlined);
        let (parents, functions) = (&self.parent, &self.function);
        self.children.insert_unique(hash, node, |&node| {
            edge_hash(parents[node as usize], functions[node as usize])
        });
        node
    }

    fn is_above(&self, mut node: u32, function: u32) -> bool {
        while node != 0 {
            if self.function[node as usize] == function {
                return true;
            }
            node = self.parent[node as usize];
        }
        false
    }
}
