//! Seeded random numbers: small, the same everywhere.

/// `SplitMix64`.
pub(crate) struct Random {
    state: u64,
}

/// Ranks by popularity, zipf with the exponent 1.05, approximated by its inverse.
#[derive(Clone, Copy)]
pub(crate) struct Zipf {
    ranks: usize,
    /// What the rarest rank leaves of the mass.
    tail: f64,
}

impl Zipf {
    const EXCESS: f64 = 0.05;

    pub(crate) fn new(ranks: usize) -> Self {
        Self { ranks, tail: crate::float(ranks).powf(-Self::EXCESS) }
    }
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// 0 to 1, without 1.
    pub(crate) fn float(&mut self) -> f64 {
        crate::precise(self.next() >> 11) / crate::precise(1 << 53)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        truncated(self.float() * f64::from(bound))
    }

    pub(crate) fn zipf(&mut self, zipf: Zipf) -> u32 {
        let mass = 1.0 - self.float() * (1.0 - zipf.tail);
        let rank = truncated(mass.powf(-1.0 / Zipf::EXCESS) - 1.0);
        rank.min(u32::try_from(zipf.ranks - 1).unwrap_or(u32::MAX))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small positive floats become counts"
)]
pub(crate) fn truncated(value: f64) -> u32 {
    value as u32
}
