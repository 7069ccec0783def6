//! One service of a project: its trie of locations and the tree of names over it.

use super::names::NameTree;
use super::trie::Trie;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The service. Lock order: symbols of the project, then `trie`, then `names`.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: Arc<str>,
    /// Written by appends.
    trie: RwLock<Trie>,
    /// Written by queries that find it behind the trie; appends never wait for it.
    names: RwLock<NameTree>,
}

impl Service {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self::with_trie(name, Trie::default())
    }

    pub(super) fn with_trie(name: Arc<str>, trie: Trie) -> Self {
        Self { name, trie: RwLock::new(trie), names: RwLock::default() }
    }

    pub(super) fn trie(&self) -> RwLockReadGuard<'_, Trie> {
        self.trie.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn trie_mut(&self) -> RwLockWriteGuard<'_, Trie> {
        self.trie.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn names(&self) -> RwLockReadGuard<'_, NameTree> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn names_mut(&self) -> RwLockWriteGuard<'_, NameTree> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }
}
