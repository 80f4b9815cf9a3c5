//! A load generator for Tollgate, and its report.
//!
//! With a rate, requests follow a timetable whether or not earlier ones came back, and latency counts
//! from the instant a request was due: a server that stalls cannot make the generator forget the requests
//! it did not send meanwhile. Without a rate, each connection sends the next request when it has its answer.
//!
//! ```no_run
//! let plan = tollgate_load::Plan::new("http://127.0.0.1:8080");
//! let report = tollgate_load::run(&plan, &tollgate_load::Halt::default(), |_| {})?;
//! println!("{} requests/s", report.requests_per_second);
//! # Ok::<(), tollgate_load::RunError>(())
//! ```
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures for people: counts are far below 2^52, and none is negative"
)]

mod deadline;
mod endpoint;
mod fields;
mod grpc;
mod headers;
mod http;
mod json;
mod keys;
mod lane;
mod message;
mod outcome;
mod pacer;
mod plan;
mod random;
mod recorder;
mod report;
mod run;
mod timer;
mod timetable;
mod worker;

pub use fields::{Attribute, Field};
pub use plan::{
    Distribution, Length, MAX_BATCH, MAX_CONNECTIONS, MAX_DURATION, MAX_EXPONENT, MAX_KEYS,
    MAX_RATE_PER_SECOND, MAX_STREAMS, MAX_THREADS, MAX_TIMEOUT, Plan, PlanError, Target,
};
pub use report::{Bin, Generator, Latency, Report, Row, Schedule};
pub use run::{Halt, Progress, RunError, run};
