//! A tower layer that limits any HTTP service.
//!
//! [`identity`] finds out who calls; [`Decide`] decides, in this process ([`InProcess`]) or on a
//! server (`Remote`, with the feature `remote`); [`Rejection`] and [`headers`] say what came of it, and [`render`] writes it as HTTP. The gateway uses the same parts.

mod anthropic;
mod background;
mod body;
pub mod decide;
mod dialect;
mod engine;
pub mod headers;
mod held;
pub mod identity;
pub mod layer;
mod openai;
mod pending_charge;
mod rejection;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote")]
mod remote_hold;
pub mod render;
pub mod service;

pub use background::{in_background, is_stopping, set_stopping, unfinished};
pub use body::LimitedBody;
pub use decide::{Decide, EdgeRequest, EdgeUsage, Line, Pass, Postponed, Ruling};
pub use dialect::Dialect;
pub use engine::{InProcess, TakePlace};
pub use headers::{HeaderFamilies, HeaderLines};
pub use held::Held;
pub use identity::{Identifier, Identity};
pub use layer::{Peer, TollgateLayer, peer_of};
pub use pending_charge::{Account, PendingCharge, Sent, Unsent};
pub use rejection::{RefusedBy, Rejection};
#[cfg(feature = "remote")]
pub use remote::Remote;
pub use render::Format;
pub use service::{TollgateService, edge_request};
pub use tollgate_engine::TRACE_TARGET;
pub use tollgate_policy::prices::Usage;
