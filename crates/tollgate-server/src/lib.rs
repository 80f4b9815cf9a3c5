//! Tollgate as a service: HTTP, configuration, and the life of the process.

// The road from a gateway's socket to a Redis is one future, and deep.
#![recursion_limit = "256"]

mod activity;
mod addresses;
mod admin;
pub mod audit;
mod background;
mod banner;
mod buffered;
mod busy_body;
mod callers;
mod certificate_end;
mod check_files;
pub mod config;
mod control;
mod edge;
pub mod envoy;
pub mod grpc;
pub mod http;
mod ledger;
mod listen;
mod log_level;
mod own_certificate;
mod recorder;
mod reload;
pub mod reservation_shares;
mod runtime;
mod serve;
mod shards;
mod signals;
mod stores;
pub mod telemetry;
mod tls;
mod workers;

pub use callers::CallerId;
pub use check_files::{FileReport, check_files};
pub use control::{ControlStartError, migrate};
pub use log_level::on_log_level;
pub use serve::{ServeError, run, run_gateway};
pub use signals::EarlySignals;
