//! Which part of the traffic is recorded.

use serde::{Deserialize, Serialize};

/// A million: the share of everything.
const WHOLE: u32 = 1_000_000;

/// A part of the traffic: whole histories of some values of one attribute.
///
/// Whether a value belongs to it depends on the value alone, so that all nodes, and all restarts, record the same ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// How many values of a million.
    pub per_million: u32,
    /// The attribute; `None` where all is recorded.
    pub by: Option<String>,
}

impl Sample {
    /// All of the traffic.
    pub const ALL: Self = Self { per_million: WHOLE, by: None };

    /// Whether this is all of the traffic.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.per_million >= WHOLE
    }

    /// The share of values, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        f64::from(self.per_million) / f64::from(WHOLE)
    }

    /// Whether requests with this value of the attribute are recorded. Those without it are a value of their own.
    #[must_use]
    pub fn has(&self, value: &str) -> bool {
        self.is_all()
            || xxhash_rust::xxh3::xxh3_64(value.as_bytes()) % u64::from(WHOLE)
                < u64::from(self.per_million)
    }
}
