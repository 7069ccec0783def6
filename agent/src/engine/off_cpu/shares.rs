//! How the time of a thread in one window is shared out among the stacks that were taken. Pure arithmetic; why it is
//! right is in `ARCHITECTURE.md` ("Weights of waits"), and `tests.rs` holds it against a simulation.

use crate::aggregate::WaitSum;
use agent_ebpf::wait::CHANCE_ONE;

/// The part of one wait that lies in the window, of a wait whose stack was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Nanoseconds, and 1 if it ended in the window.
    pub(crate) sum: WaitSum,
    /// The chance that the stack had, in parts of `CHANCE_ONE`, never 0.
    pub(crate) chance: u32,
}

impl Part {
    /// For how many waits that were not taken this one stands on average: 1 / chance - 1, in parts of
    /// `CHANCE_ONE`.
    fn others(self) -> u128 {
        let one = u128::from(CHANCE_ONE);
        let chance = u128::from(self.chance.clamp(1, CHANCE_ONE));
        (one - chance) * one / chance
    }
}

/// Shares `rest`, the exact time of the waits without a stack, out among the parts: each gets as much as it stands
/// for, or less where that is more than there is. Answers the rest that no part stands for.
pub(crate) fn share_out(parts: &mut [Part], rest: WaitSum) -> WaitSum {
    let by_time: Vec<u128> =
        parts.iter().map(|part| part.others() * u128::from(part.sum.ns)).collect();
    let by_count: Vec<u128> =
        parts.iter().map(|part| part.others() * u128::from(part.sum.count)).collect();
    WaitSum {
        ns: spread(&by_time, rest.ns, parts, |sum| &mut sum.ns),
        count: spread(&by_count, rest.count, parts, |sum| &mut sum.count),
    }
}

/// Adds of `amount` to the parts what their weights say, scaled down if that is more; answers what is left. Weights
/// are in parts of `CHANCE_ONE`.
fn spread(
    weights: &[u128],
    amount: u64,
    parts: &mut [Part],
    of: impl Fn(&mut WaitSum) -> &mut u64,
) -> u64 {
    let all: u128 = weights.iter().sum();
    let stood_for = u64::try_from(all / u128::from(CHANCE_ONE)).unwrap_or(u64::MAX);
    let (given_out, left) = match amount.checked_sub(stood_for) {
        Some(left) => (stood_for, left),
        None => (amount, 0),
    };
    if all == 0 {
        return amount;
    }
    // Each boundary is rounded, not each share: so the errors do not add up.
    let (mut up_to, mut given) = (0u128, 0u64);
    for (weight, part) in weights.iter().zip(parts) {
        up_to += weight;
        let until = mul_div(given_out, up_to, all);
        *of(&mut part.sum) += until - given;
        given = until;
    }
    left
}

/// `amount * part / whole`, `part` being at most `whole`.
fn mul_div(amount: u64, part: u128, whole: u128) -> u64 {
    // Weights have up to 64 + 32 bits each: beyond what 128 bits hold together with the amount, their low
    // bits say nothing.
    let shift = (128 - whole.leading_zeros()).saturating_sub(64);
    let (part, whole) = (part >> shift, (whole >> shift).max(1));
    u64::try_from(u128::from(amount) * part.min(whole) / whole).unwrap_or(amount)
}
