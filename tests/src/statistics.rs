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

/// A count as a number to divide.
#[must_use]
pub fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("counts of a test fit 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::share_is;

    #[test]
    fn shares() {
        assert!(share_is(500, 1000, 0.5).is_ok());
        assert!(share_is(580, 1000, 0.5).is_ok());
        assert!(share_is(590, 1000, 0.5).is_err());
        assert!(share_is(0, 1000, 0.05).is_err());
    }
}
