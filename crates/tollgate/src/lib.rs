#![doc = include_str!("../README.md")]

mod limiter;
mod outcome;
mod quota;

pub use limiter::{DEFAULT_MAX_COUNTERS, Limiter};
pub use outcome::{Pass, Refusal};
pub use quota::{Quota, WindowError};
/// A clock that moves only when a test moves it. See [`Limiter::with_clock`].
pub use tollgate_engine::ManualClock as TestClock;
pub use tollgate_engine::{Clock, SystemClock};
