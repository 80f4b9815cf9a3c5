//! The gateway over real sockets: real servers behind it, and some that misbehave on purpose.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod bad_upstreams;
mod choice;
mod decisions;
mod framing;
mod ground;
mod headers;
mod http2;
mod queue;
mod queued_charges;
mod streaming;
mod unread;
mod upgrades;
