//! Rate-limiting algorithms as pure integer transitions.
//!
//! This crate knows no clock, no I/O, no async and no wire format. Time is an argument, in
//! nanoseconds since the Unix epoch; state goes in, state comes out. The store that owns the state
//! owns atomicity.
//!
//! The one entry point is [`Limit`]: [`Limit::examine`] says whether a charge would pass,
//! [`Limit::charge`] makes it and returns a [`Receipt`], [`Limit::give_back`] undoes a receipt, and
//! [`Limit::status`] reports the figures a caller sees.

mod algorithm;
mod bucket;
mod calendar;
mod fixed_window;
mod limit;
mod micros;
mod open_bucket;
mod pace;
mod refund;
mod share;
mod sliding_counter;
mod sliding_log;
mod slots;
mod span;
mod state;

pub use algorithm::{Algorithm, StateKind};
pub use bucket::Bucket;
pub use calendar::{Calendar, CalendarError, CalendarUnit};
pub use fixed_window::FixedWindow;
pub use limit::{Limit, LimitError, LimitSpec, Window};
pub use micros::{MAX_MICROS, MICRO, MicroPace, MicroSpan};
pub use open_bucket::{BRIEF, MAX_OPEN_CHARGES, OpenBucket, OpenCharge};
pub use refund::smallest_part;
pub use share::share_of;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::{LogEntry, SlidingLog};
pub use slots::{Slot, Slots};
pub use span::Span;
pub use state::{Ask, Examination, Outcome, Receipt, Refundable, SlotId, Small, State, Status};

/// Nanoseconds: an instant since the Unix epoch, or a length of time.
pub type Nanos = u64;

/// The last instant the algorithms tell apart (the year 2262); later ones count as this one.
pub const LATEST: Nanos = i64::MAX as u64;

/// The longest window, burst or slot lifetime a limit may have (about 73 years). With [`LATEST`] it
/// keeps every sum below within `u64`.
pub const LONGEST: Nanos = 1 << 61;

/// Nanoseconds in one second.
pub const SECOND: Nanos = 1_000_000_000;
