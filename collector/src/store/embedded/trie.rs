//! Stacks of one service as leaves of an append-only trie over locations, parents before children. A stack
//! is the number of its leaf. A hash of the whole stack finds known ones without a walk (0.2 us instead of
//! 10 us, measured); the table of children is only needed for new stacks and built when the first comes.

use super::prepared::KnownStack;
use hashbrown::{HashMap, HashTable};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The root: the leaf of the empty stack.
pub(super) const ROOT: u32 = 0;

/// The trie.
#[derive(Debug)]
pub(super) struct Trie {
    parent: Vec<u32>,
    location: Vec<u32>,
    stacks: HashMap<u128, u32>,
    children: Option<HashTable<u32>>,
    /// `stacks` has every node that there was when `recall` first searched all of them.
    all_hashed: bool,
}

/// The hash that finds a stack: of the identities of its locations, so that it means the same in every trie and
/// after every start. The stack says where they stand, leaf first; `bytes` is room for its canonical bytes.
pub(super) fn stack_hash(stack: &[u32], identities: &[u128], bytes: &mut Vec<u8>) -> u128 {
    bytes.clear();
    let of = |&at: &u32| identities[at as usize].to_le_bytes();
    stack.iter().for_each(|at| bytes.extend_from_slice(&of(at)));
    xxh3_128(bytes)
}

impl Default for Trie {
    /// The root alone.
    fn default() -> Self {
        Self {
            parent: vec![ROOT],
            location: vec![u32::MAX],
            stacks: HashMap::new(),
            children: None,
            all_hashed: false,
        }
    }
}

fn edge_hash(parent: u32, location: u32) -> u64 {
    xxh3_64(&(u64::from(parent) << 32 | u64::from(location)).to_le_bytes())
}

impl Trie {
    /// Nodes, the root included.
    pub(super) fn len(&self) -> usize {
        self.parent.len()
    }

    /// Parents of all nodes.
    pub(super) fn parents(&self) -> &[u32] {
        &self.parent
    }

    /// Locations of all nodes; of the root: `u32::MAX`.
    pub(super) fn locations(&self) -> &[u32] {
        &self.location
    }

    /// The node of the stack with this hash, if it came before.
    pub(super) fn find(&self, hash: u128) -> Option<u32> {
        self.stacks.get(&hash).copied()
    }

    /// Finds the stack with this hash at the node where it once was, or anywhere: nodes are not the same after a
    /// crash that left an unacknowledged batch in the log. `identity_of` tells the identity of a location.
    pub(super) fn recall(
        &mut self,
        known: KnownStack,
        identity_of: &dyn Fn(u32) -> u128,
    ) -> Option<u32> {
        if let Some(node) = self.find(known.hash) {
            return Some(node);
        }
        let mut bytes = Vec::new();
        let node = known.node;
        if (node as usize) < self.len() && self.hash_at(node, &mut bytes, identity_of) == known.hash
        {
            self.stacks.insert(known.hash, node);
            return Some(node);
        }
        if !std::mem::replace(&mut self.all_hashed, true) {
            for node in (0..).take(self.len()) {
                let hash = self.hash_at(node, &mut bytes, identity_of);
                self.stacks.insert(hash, node);
            }
        }
        self.find(known.hash)
    }

    /// The hash of the stack that ends at a node.
    fn hash_at(&self, node: u32, bytes: &mut Vec<u8>, identity_of: &dyn Fn(u32) -> u128) -> u128 {
        bytes.clear();
        let mut at = node as usize;
        while at != ROOT as usize {
            bytes.extend_from_slice(&identity_of(self.location[at]).to_le_bytes());
            at = self.parent[at] as usize;
        }
        xxh3_128(bytes)
    }

    /// The node of a stack, leaf first; it is added if it is new.
    pub(super) fn intern(&mut self, hash: u128, stack: &[u32]) -> u32 {
        if let Some(&node) = self.stacks.get(&hash) {
            return node;
        }
        let mut node = ROOT;
        for &location in stack.iter().rev() {
            node = self.child(node, location);
        }
        self.stacks.insert(hash, node);
        node
    }

    /// Adds a node that was stored; false if it cannot stand here.
    pub(super) fn restore(&mut self, parent: u32, location: u32) -> bool {
        if parent as usize >= self.len() {
            return false;
        }
        self.parent.push(parent);
        self.location.push(location);
        self.children = None;
        true
    }

    fn child(&mut self, parent: u32, location: u32) -> u32 {
        let (parents, locations) = (&mut self.parent, &mut self.location);
        let hash_of = |node: u32| edge_hash(parents[node as usize], locations[node as usize]);
        let children = self.children.get_or_insert_with(|| {
            let mut table = HashTable::with_capacity(parents.len());
            for node in (1..).take(parents.len() - 1) {
                table.insert_unique(hash_of(node), node, |&node| hash_of(node));
            }
            table
        });
        let hash = edge_hash(parent, location);
        let is_it =
            |&node: &u32| parents[node as usize] == parent && locations[node as usize] == location;
        if let Some(&node) = children.find(hash, is_it) {
            return node;
        }
        // Below the limit of nodes in a trie, which is checked before a batch is accepted.
        let node = u32::try_from(parents.len()).unwrap_or(u32::MAX);
        parents.push(parent);
        locations.push(location);
        let (parents, locations) = (&self.parent, &self.location);
        children.insert_unique(hash, node, |&node| {
            edge_hash(parents[node as usize], locations[node as usize])
        });
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identities of locations 0 to 9.
    fn identities() -> Vec<u128> {
        (100..110).collect()
    }

    fn hash(stack: &[u32]) -> u128 {
        stack_hash(stack, &identities(), &mut Vec::new())
    }

    fn intern(trie: &mut Trie, stack: &[u32]) -> u32 {
        trie.intern(hash(stack), stack)
    }

    #[test]
    fn stacks_share_their_callers_and_are_found_again() {
        let mut trie = Trie::default();
        let (a, b) = (intern(&mut trie, &[3, 2, 1]), intern(&mut trie, &[4, 2, 1]));
        assert_eq!((a, b, trie.len()), (3, 4, 5));
        assert_eq!(intern(&mut trie, &[]), ROOT);
        assert_eq!(intern(&mut trie, &[2, 1]), 2);
        assert_eq!((trie.find(hash(&[4, 2, 1])), trie.find(hash(&[4, 1]))), (Some(b), None));
        let mut restored = Trie::default();
        for node in 1..trie.len() {
            assert!(restored.restore(trie.parent[node], trie.location[node]));
        }
        assert!(!restored.restore(99, 1));
        let again = (intern(&mut restored, &[3, 2, 1]), intern(&mut restored, &[5, 2, 1]));
        assert_eq!(again, (a, 5));
    }

    #[test]
    fn a_known_stack_is_recalled_by_its_hash_wherever_it_is_now() {
        let mut trie = Trie::default();
        for (parent, location) in [(0, 1), (1, 2), (2, 3), (2, 4)] {
            assert!(trie.restore(parent, location));
        }
        let identities = identities();
        let identity_of = |location: u32| identities[location as usize];
        let mut recall = |stack: &[u32], node| {
            let found = trie.recall(KnownStack { hash: hash(stack), node }, &identity_of);
            (found, trie.all_hashed)
        };
        assert_eq!(recall(&[3, 2, 1], 3), (Some(3), false));
        assert_eq!(recall(&[3, 2, 1], 99), (Some(3), false));
        assert_eq!(recall(&[], 0), (Some(0), false));
        assert_eq!(recall(&[4, 2, 1], 3), (Some(4), true));
        assert_eq!(recall(&[2, 1], 99), (Some(2), true));
        assert_eq!(recall(&[4, 1], 1), (None, true));
    }
}
