//! Random numbers that follow from a seed.

/// A stream of numbers: the same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// A stream of its own for every `purpose`, so that more draws for one do not move the others.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut draw = Self(seed);
        let mixed = draw.next() ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Self(mixed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// From 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// From `first` to `last`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// True `millionths` times in a million.
    pub fn chance(&mut self, millionths: u64) -> bool {
        self.below(1_000_000) < millionths
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
