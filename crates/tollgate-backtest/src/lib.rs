//! Replays recorded traffic through rules, and reports who would be refused.
//!
//! Lines of access logs become requests ([`Mapping`] says which field is which attribute). They are
//! merged by time and decided by the real engine on a virtual clock, once by the rules to test and
//! once by a baseline. What comes out is a [`Report`]: figures, the clients that would notice, the
//! limit that meets an [`Aim`], and sentences that need no knowledge of rate limiting.
//!
//! Memory is bounded: tables of clients, endpoints and tenants, the window in which lines are sorted,
//! and the events that limits are recommended from all have a named maximum, and the report says when
//! one of them was reached.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "shares and figures for people: counts are far below 2^52, and none is negative"
)]

mod clock;
mod error;
mod extract;
mod format;
mod guard;
mod holds;
mod lines;
mod mapping;
mod recommend;
mod record;
mod recorded;
mod recorded_rules;
mod replay;
mod report;
mod series;
mod shadows;
mod side;
mod table;
mod tally;
mod time;
mod trace;
mod traffic;

pub use error::{BacktestError, OptionError};
pub use extract::Extract;
pub use format::Format;
pub use guard::{Aim, Guard, GuardResult};
pub use lines::MAX_LINE_BYTES;
pub use mapping::Mapping;
pub use recommend::{CurvePoint, Recommendation};
pub use replay::{Options, Progress, run, run_observed};
pub use report::{
    ClientRow, CountRow, Figures, Input, LimitPeak, MalformedLine, Peak, Report, RuleRow, TimeRow,
};
pub use shadows::Shadow;
pub use tollgate_recording::EXTENSION as RECORDING_EXTENSION;
pub use traffic::{MAX_FILES, REORDER_WINDOW};
