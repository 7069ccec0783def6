//! When a measured share is right.

/// Standard deviations that a share may be away from the truth: one false alarm in 26 million, for each
/// share that a run checks.
pub const SIGMAS: f64 = 5.5;

/// Checks `hits` of `count` samples against the true share; the error says how far it is away.
///
/// Samples of a clock that runs free of the phases are as good as independent draws (the phases are
/// shorter than the run by far and their lengths random), so the share is binomial.
///
/// # Errors
/// If the share is more than [`SIGMAS`] away.
pub fn share_is(hits: usize, count: usize, truth: f64) -> Result<(), String> {
    let (hits, count) = (as_f64(hits), as_f64(count));
    let sigma = (truth * (1.0 - truth) / count).sqrt();
    let share = hits / count;
    let away = (share - truth).abs() / sigma;
    if away <= SIGMAS {
        return Ok(());
    }
    Err(format!("share {share:.4} of {count} samples, truth {truth:.4}: {away:.1} sigma away"))
}

/// Checks that `count` samples are what a clock takes that expects so many, 2 % for its own faults aside.
///
/// A process that has its CPU for itself is met by every tick. One that shares it is met by chance: of `n` ticks
/// at a share `u` of the CPU, `n u` with a variance of `n u (1 - u)`.
///
/// # Errors
/// If the count is more than [`SIGMAS`] away.
pub fn count_is(count: usize, expected: f64, cpu_share: f64) -> Result<(), String> {
    let sigma = (expected * (1.0 - cpu_share.min(1.0))).sqrt();
    let allowed = 0.02 * expected + SIGMAS * sigma;
    let count = as_f64(count);
    if (count - expected).abs() <= allowed {
        return Ok(());
    }
    Err(format!("{count} samples of the {expected:.0} of the clock, {allowed:.0} away at most"))
}

/// A count as a number to divide.
#[must_use]
pub fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("counts of a test fit 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::{count_is, share_is};

    #[test]
    fn counts() {
        assert!(count_is(985, 1000.0, 1.0).is_ok());
        assert!(count_is(975, 1000.0, 1.0).is_err());
        assert!(count_is(53, 59.0, 0.2).is_ok());
        assert!(count_is(10, 59.0, 0.2).is_err());
    }

    #[test]
    fn shares() {
        assert!(share_is(500, 1000, 0.5).is_ok());
        assert!(share_is(580, 1000, 0.5).is_ok());
        assert!(share_is(590, 1000, 0.5).is_err());
        assert!(share_is(0, 1000, 0.05).is_err());
    }
}
