//! One model for every store: random histories, each step compared with a plain list of charges.
//!
//! | file | what |
//! |---|---|
//! | `oracle.rs` | what every figure must be |
//! | `history.rs`, `maker.rs` | random histories, each the same for its seed |
//! | `driver.rs`, `changes.rs`, `records.rs` | play one on a store and on the oracle |
//! | `memory.rs`, `redis.rs` | the stores that are exact |
//! | `nodes.rs`, `fleet.rs` | histories of several nodes on one Redis |
//! | `steps.rs` | a clock that steps back and forward mints no quota |
//! | `leased.rs`, `resilient.rs`, `cut.rs` | the stores that promise a bound |
//! | `minimize.rs`, `shrink.rs` | make a failing history small |
//! | `run.rs` | plays many, and prints the first that fails |
//!
//! `TOLLGATE_MODEL_HISTORIES` says how many histories each test plays, `TOLLGATE_MODEL_SEED` from which seed
//! on: a failure names its seed, and one history from that seed repeats it.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

mod changes;
mod cut;
mod draw;
mod driver;
mod fleet;
mod history;
mod leased;
mod maker;
mod memory;
mod minimize;
mod nodes;
mod oracle;
mod records;
mod redis;
#[path = "../redis_support/mod.rs"]
mod redis_support;
mod resilient;
mod run;
mod shrink;
mod steps;
