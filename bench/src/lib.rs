//! Load scenarios and peers, side by side in one run.
//!
//! A benchmark here prints figures for people on standard output, and appends a [`record::Record`]
//! for each target to the results file, from which the table in `docs/benchmarks.md` is made.

pub mod grpc;
pub mod http;
pub mod limiters;
pub mod nginx;
pub mod once;
pub mod process;
pub mod record;
pub mod rules;
pub mod work;
