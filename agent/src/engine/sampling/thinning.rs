//! Of how many waits of goroutines one is followed, so that probes cost no more than they may. What takes the stack costs
//! most of it, and is spared for those that are not followed; a hit of a probe is not, whatever its program does.
//!
//! A wait is followed by chance, one in n, before anything is known of it, and stands for n then: sums are right on
//! average, of whatever part of the waits, as n depends on earlier windows alone.

use crate::address::Pid;
use agent_ebpf::limits::{THIN_SHIFT_MAX, THINNED_PROCESSES_MAX};
use hashbrown::HashMap;

/// What one wait costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitCost {
    /// Its hits of probes.
    pub(super) hits_ns: u64,
    /// Its stack.
    pub(super) stack_ns: u64,
}

impl WaitCost {
    /// What so many waits cost, if one in `1 << shift` is followed.
    fn of(self, waits: u64, shift: u32) -> u64 {
        let hits_ns = waits.saturating_mul(self.hits_ns);
        hits_ns.saturating_add((waits >> shift).saturating_mul(self.stack_ns))
    }
}

/// By process: one wait in how many, as a power of two; those that are missing keep all. The dearest are thinned first, and
/// no more than is needed.
pub(super) fn shifts(
    waits: &HashMap<Pid, u64>,
    cost: WaitCost,
    budget_ns: u64,
) -> HashMap<Pid, u32> {
    let mut dearest: Vec<(Pid, u64)> = waits.iter().map(|(pid, waits)| (*pid, *waits)).collect();
    dearest.sort_unstable_by_key(|(pid, waits)| (std::cmp::Reverse(*waits), *pid));
    let mut all_ns =
        dearest.iter().fold(0, |sum: u64, (_, waits)| sum.saturating_add(cost.of(*waits, 0)));
    let mut shifts = HashMap::new();
    for (pid, waits) in dearest.into_iter().take(THINNED_PROCESSES_MAX) {
        if all_ns <= budget_ns {
            break;
        }
        let others_ns = all_ns.saturating_sub(cost.of(waits, 0));
        let fits = |shift: &u32| others_ns.saturating_add(cost.of(waits, *shift)) <= budget_ns;
        let shift = (1..=THIN_SHIFT_MAX).find(fits).unwrap_or(THIN_SHIFT_MAX);
        all_ns = others_ns.saturating_add(cost.of(waits, shift));
        shifts.insert(pid, shift);
    }
    shifts
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: WaitCost = WaitCost { hits_ns: 2, stack_ns: 8 };

    #[test]
    fn the_dearest_are_thinned_as_far_as_is_needed() {
        let check = |waits: &[(u32, u64)], budget_ns: u64, expected: &[(u32, u32)]| {
            let waits = waits.iter().map(|&(pid, waits)| (Pid(pid), waits)).collect();
            let shifts = shifts(&waits, COST, budget_ns);
            let mut found: Vec<(u32, u32)> =
                shifts.iter().map(|(pid, shift)| (pid.0, *shift)).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{budget_ns}");
            let cost =
                |(pid, waits): (&Pid, &u64)| COST.of(*waits, shifts.get(pid).copied().unwrap_or(0));
            let cost_ns: u64 = waits.iter().map(cost).sum();
            assert!(cost_ns <= budget_ns || shifts.len() == waits.len(), "{cost_ns}");
        };
        check(&[(1, 1000), (2, 100)], 11_000, &[]);
        check(&[(1, 1000), (2, 100)], 10_999, &[(1, 1)]);
        check(&[(1, 1000), (2, 100)], 5_000, &[(1, 2)]);
        check(&[(1, 1000), (2, 100)], 3_000, &[(1, 8), (2, 1)]);
        // More than hits alone cost is not to be had.
        check(&[(1, 1000), (2, 100)], 2_000, &[(1, 8), (2, 8)]);
        check(&[], 0, &[]);
    }

    /// What is followed stands for what is not: sums over many windows are the truth, whatever the waits are like and
    /// however the choice of one window depends on those before.
    #[test]
    fn sums_of_thinned_waits_are_right_on_average() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 11
        };
        let (mut truth, mut told, mut variance) = (0_f64, 0_f64, 0_f64);
        let mut shift = 0;
        for window in 0..400_u64 {
            let waits = if window % 3 == 0 { 400 } else { 40 };
            let mut estimated = 0;
            for number in 0..waits {
                // One in ten is long.
                let ns = if number % 10 == 0 { 1000.0 } else { 10.0 };
                let weight = 1_u64 << shift;
                truth += ns;
                variance += ns * ns * (weight - 1) as f64;
                if random() & (weight - 1) == 0 {
                    told += ns * weight as f64;
                    estimated += weight;
                }
            }
            let waits = HashMap::from([(Pid(1), estimated)]);
            shift = shifts(&waits, COST, 1_000).get(&Pid(1)).copied().unwrap_or(0);
        }
        let sigmas = (told - truth) / variance.sqrt();
        eprintln!("figure: {told} of {truth}, {sigmas:.2} sigma");
        assert!(variance > 0.0 && sigmas.abs() < 5.5, "{told} of {truth}: {sigmas} sigma");
    }
}
