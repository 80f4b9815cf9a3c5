//! Tollgate as a service: HTTP, configuration, and the life of the process.

mod activity;
mod background;
pub mod config;
pub mod http;
mod listen;
mod reload;
mod serve;
mod stores;
mod telemetry;

pub use serve::{ServeError, run};
