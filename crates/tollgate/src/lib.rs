#![doc = include_str!("../README.md")]

mod client;
mod clock;
mod error;
mod gate;
mod hold;
mod housekeeping;
#[cfg(feature = "tower")]
mod layer;
mod limiter;
mod missing_key;
mod outcome;
mod quota;
mod rule;
mod rule_files;
mod store;
mod verdict;

pub use client::Client;
pub use clock::TestClock;
pub use error::Error;
pub use gate::{Gate, GateBuilder};
pub use hold::{Hold, Unsettled, Usage};
#[cfg(feature = "tower")]
pub use layer::{GateLayer, GateService};
pub use limiter::{DEFAULT_MAX_COUNTERS, Limiter};
pub use missing_key::MissingKey;
pub use outcome::{Pass, Refusal};
pub use quota::{Quota, WindowError};
pub use rule::Rule;
#[cfg(feature = "redis")]
pub use store::Redis;
pub use store::{Memory, Storage};
pub use tollgate_engine::{Clock, SystemClock};
#[cfg(feature = "tower")]
pub use tollgate_tower::{Peer, identity};
pub use verdict::{Denial, Verdict};
