//! Random numbers that are the same for the same seed, on every machine and in every version.

/// The odd constant by which the state steps: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A small fast generator (`SplitMix64`). Not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// One whose numbers depend on the seed and on the place it is used at.
    pub(crate) const fn new(seed: u64, place: u64) -> Self {
        let mut mixed = Self(seed ^ place.wrapping_mul(STEP));
        // Seeds that are close must not give numbers that are.
        Self(mixed.next())
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, and 32 further random bits that do not depend on it.
    pub(crate) const fn below(&mut self, bound: u32) -> (u32, u32) {
        let drawn = self.next();
        let place = ((drawn >> 32) * bound as u64) >> 32;
        (place as u32, drawn as u32)
    }
}
