//! Time that may be spent: so much at once, and a part of all time from then on.

use std::time::{Duration, Instant};

/// Time that was spent and has not been earned since.
#[derive(Debug)]
pub(super) struct Purse {
    most: Duration,
    /// Each second brings back this part of a second.
    divisor: u32,
    owed: Duration,
    at: Instant,
}

impl Purse {
    pub(super) fn new(most: Duration, divisor: u32) -> Self {
        Self { most, divisor, owed: Duration::ZERO, at: Instant::now() }
    }

    /// True if there is some left at `now`.
    pub(super) fn is_left(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at) / self.divisor;
        self.owed = self.owed.saturating_sub(earned);
        self.at = now;
        self.owed < self.most
    }

    pub(super) fn spend(&mut self, time: Duration) {
        self.owed = self.owed.saturating_add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{DEBUG_INFO_WORK_DIVISOR, DEBUG_INFO_WORK_MAX};

    #[test]
    fn files_without_end_take_a_hundredth_of_a_cpu() {
        let begin = Instant::now();
        let mut work = Purse::new(DEBUG_INFO_WORK_MAX, DEBUG_INFO_WORK_DIVISOR);
        let file = Duration::from_millis(30);
        // A new file twenty times a second, for ten minutes.
        let (mut used, mut put_off) = (Duration::ZERO, 0);
        for turn in 0..20 * 600 {
            if work.is_left(begin + Duration::from_millis(50) * turn) {
                work.spend(file);
                used += file;
            } else {
                put_off += 1;
            }
        }
        let allowed = DEBUG_INFO_WORK_MAX + Duration::from_secs(600) / DEBUG_INFO_WORK_DIVISOR;
        let away = used.abs_diff(allowed);
        assert!(away < 2 * file && put_off > 10_000, "{used:?} of {allowed:?}, {put_off} put off");
        assert!(work.is_left(begin + Duration::from_secs(700)));
    }
}
