//! A map that forgets what was not used lately, in two generations: cheap, and bounded by weight.

use hashbrown::HashMap;
use std::hash::Hash;

/// Keeps at most twice `weight_max` of weight. What was not asked for while one generation filled is
/// forgotten with it.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    young_weight: usize,
    weight_max: usize,
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    pub(super) fn new(weight_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_weight: 0, weight_max }
    }

    /// The value, which counts as use.
    pub(super) fn get(&mut self, key: &K) -> Option<V> {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, (value, weight)) = self.old.remove_entry(key)?;
        self.insert(key, value.clone(), weight);
        Some(value)
    }

    /// Adds a value; a full generation ages.
    pub(super) fn insert(&mut self, key: K, value: V, weight: usize) {
        if !self.young.is_empty() && self.young_weight.saturating_add(weight) > self.weight_max {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.old.remove(&key);
        self.young_weight = self.young_weight.saturating_add(weight);
        if let Some((_, replaced)) = self.young.insert(key, (value, weight)) {
            self.young_weight = self.young_weight.saturating_sub(replaced);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
