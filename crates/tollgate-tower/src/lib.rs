//! A tower layer that limits any HTTP service.
//!
//! [`identity`] finds out who calls; [`Decide`] decides, in this process ([`InProcess`]) or on a
//! server ([`Remote`]); [`headers`] and [`refusal`] render it in HTTP. The gateway uses the same parts.

mod background;
mod bill;
mod body;
pub mod decide;
mod engine;
pub mod headers;
mod held;
pub mod identity;
pub mod layer;
pub mod openai;
pub mod refusal;
mod remote;
mod remote_hold;
pub mod service;

pub use background::{in_background, unfinished};
pub use bill::{Account, Bill, Sent, Unsent};
pub use body::LimitedBody;
pub use decide::{Asked, Decide, Dialect, Line, Pass, Postponed, Refused, Ruling};
pub use engine::{InProcess, TakePlace};
pub use headers::{HeaderFamilies, HeaderLines};
pub use held::Held;
pub use identity::{Identifier, Identity};
pub use layer::{Peer, TollgateLayer};
pub use remote::Remote;
pub use service::TollgateService;
pub use tollgate_engine::TRACE_TARGET;
