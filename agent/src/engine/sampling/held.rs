//! Samples that wait with a copy of their stack for tables: walked on when these are there.

use super::Engine;
use crate::bpf::RawSample;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::engine::held::HeldSample;
use crate::engine::walked::{Published, walk_on};
use crate::limits::{HELD_TRY_INTERVAL_NS, POLL_BUSY_MS};
use agent_ebpf::Outcome;
use std::time::Duration;

impl Engine {
    /// Walks held samples on, whose tables came. What waited long enough goes as it is. What still waits when a
    /// window closes is in the next one, with its own time.
    pub(super) fn walk_held(&mut self) {
        let now = monotonic_now();
        for mut held in self.intake.held.take() {
            let last = now >= held.until;
            let Some(whole) = self.try_held(&mut held, now, last) else {
                self.intake.held.keep(held);
                continue;
            };
            self.intake.held.let_go(&held.sample, whole);
            self.intake.sample(&held.sample);
        }
    }

    /// The clocks stand: what is held still gets its tables, within its time.
    pub(super) fn wait_for_held(&mut self) {
        while !self.intake.held.is_empty() {
            self.looks.begin_poll();
            self.state_needs();
            self.publisher.refresh(&mut self.intake.processes, self.tables.as_mut());
            self.walk_held();
            if !self.intake.held.is_empty() {
                std::thread::sleep(Duration::from_millis(POLL_BUSY_MS));
            }
        }
    }

    /// Walks one on, if that may lead further or its time is over (`last`): true if it is whole. `None` if it waits on.
    pub(super) fn try_held(
        &mut self,
        held: &mut HeldSample,
        now: MonotonicNs,
        last: bool,
    ) -> Option<bool> {
        // The records of its mappings came before it, and their tables may be there.
        let new = held.tried.is_none_or(|tried| {
            !self.intake.processes.is_behind(held.sample.pid, tried)
                && now.since(tried) >= HELD_TRY_INTERVAL_NS
        });
        if !last && !new {
            return None;
        }
        held.tried = Some(now);
        match self.walk_on(&mut held.sample, false) {
            Ok(()) => return Some(true),
            Err(Outcome::TablePending) if last && held.extend() => return None,
            Err(_) if !last => return None,
            Err(_) => {}
        }
        Some(self.walk_on(&mut held.sample, true).is_ok())
    }

    /// Walks a copied stack on by the tables that are there now, which it may want more of. `last`: what is found is
    /// kept all the same.
    fn walk_on(&mut self, sample: &mut RawSample, last: bool) -> Result<(), Outcome> {
        let attribution = self.intake.processes.attribute_held(sample);
        let Some(set) = attribution.mappings else { return Err(Outcome::ProcessUnknown) };
        let process = attribution.process.key();
        let mappings = &self.publisher.walk_mappings(&set, process, false);
        walk_on(sample, &Published { mappings, tables: self.tables.as_ref() }, last)
    }
}
