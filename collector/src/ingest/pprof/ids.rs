//! Ids of a table's entries to their positions. Writers count from 1, so most ids are positions; others (the
//! format permits any) are looked up.

use super::fault::Fault;
use hashbrown::HashMap;

/// The ids of one table.
pub(super) struct Ids {
    table: &'static str,
    /// Position by id, for ids up to twice the number of entries.
    near: Vec<Option<u32>>,
    far: HashMap<u64, u32>,
}

impl Ids {
    pub(super) fn new(table: &'static str, entries: usize) -> Self {
        Self { table, near: vec![None; 2 * entries + 1], far: HashMap::new() }
    }

    pub(super) fn insert(&mut self, id: u64, position: u32) -> Result<(), Fault> {
        let slot = usize::try_from(id).ok().and_then(|at| self.near.get_mut(at));
        let is_new = match slot {
            Some(slot) => slot.replace(position).is_none() && id != 0,
            None => self.far.insert(id, position).is_none(),
        };
        if is_new { Ok(()) } else { Err(Fault::Id { table: self.table, id }) }
    }

    pub(super) fn get(&self, id: u64, field: &'static str) -> Result<u32, Fault> {
        let near = usize::try_from(id).ok().and_then(|at| self.near.get(at)).copied().flatten();
        let found = near.or_else(|| self.far.get(&id).copied());
        found.ok_or(Fault::Reference { field, id, table: self.table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far_ids() {
        let mut ids = Ids::new("thing", 2);
        for (position, id) in [1, 4, 5, u64::MAX].into_iter().enumerate() {
            ids.insert(id, u32::try_from(position).unwrap()).unwrap();
        }
        for (position, id) in [1, 4, 5, u64::MAX].into_iter().enumerate() {
            assert_eq!(ids.get(id, "field"), Ok(u32::try_from(position).unwrap()));
            assert_eq!(ids.insert(id, 9), Err(Fault::Id { table: "thing", id }));
        }
        assert_eq!(ids.insert(0, 9), Err(Fault::Id { table: "thing", id: 0 }));
        for id in [2, 6] {
            let fault = Fault::Reference { field: "field", id, table: "thing" };
            assert_eq!(ids.get(id, "field"), Err(fault));
        }
    }
}
