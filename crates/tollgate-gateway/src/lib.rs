//! A reverse proxy that decides before it forwards.
//!
//! [`Gateway`] is what all threads share: routes, pools, the state of targets. Each runtime makes a
//! [`Worker`] of its own from it, because a pooled connection belongs to the runtime that made it. A
//! worker answers requests; [`gateway`] lists the phases of a request. Listeners, TLS towards clients
//! and configuration files are left to the caller.

pub mod ai;
mod balance;
mod body;
mod connect;
mod connections;
mod cors;
mod decode;
mod error;
pub mod fair;
mod forward;
mod forwarded;
mod framing;
pub mod gateway;
mod headers;
mod health;
mod host;
mod http1;
mod hygiene;
mod idle;
pub mod options;
mod pace;
mod places;
mod postpone;
mod replay;
mod respond;
mod rest;
mod routes;
mod target;
mod tls;
pub mod unread;
mod upgrade;
mod waiting;
mod worker;

pub use body::{BodyError, GatewayBody, RequestBody};
pub use error::GatewayError;
pub use framing::{FramingWatch, WatchedStream};
pub use gateway::{
    ConnectionInfo, Gateway, PoolPlaces, PoolStatus, RESPONSE_CLASSES, TargetStatus,
};
pub use options::GatewayOptions;
pub use places::{Party, Places};
pub use postpone::{Postpone, PostponeError};
pub use worker::Worker;
