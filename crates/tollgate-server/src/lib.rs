//! Tollgate as a service: HTTP, configuration, and the life of the process.

mod activity;
mod admin;
pub mod audit;
mod background;
pub mod config;
mod control;
pub mod http;
mod listen;
mod reload;
mod serve;
mod stores;
mod telemetry;

pub use control::{ControlStartError, migrate};
pub use serve::{ServeError, run};
