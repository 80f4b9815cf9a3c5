//! The durable queue: one suite over all stores, its worker, and what each store survives.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

mod ground;
mod redis;
mod sqlite;
mod storm;
mod suite;
mod supervised;
mod worker;
