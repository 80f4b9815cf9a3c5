//! Models behind the gateway, in the words of the API that a route is for (`protocol`).
//!
//! ```text
//! 0 access     who may ask, and for what                                          access, paths, other_calls
//! 1 read       the body, whole and bounded; its few fields that matter here        intake, ask, choosers, bounds, thinking, json
//! 2 model      which it is, who serves it, under what name                         models
//! 3 estimate   prompt and longest answer, in tokens                                prompt, messages, labels, certain, replayed, media, resolution, tools, text, bound, expect
//! 4 decision   requests, tokens and slots in one step, on the estimate             tollgate-tower
//! 5 turn       a place among those that the pool serves at once                    turn, lanes, crate::fair
//! 6 forward    the client's bytes, changed only where they must be                 serve, crate::forward
//!   follow     responses that are made in the background, later                     background, follow
//! 7 meter      what comes back is counted as it passes; what was used is settled   answer, meter, allowance, more, sse, usage, scan, rename
//! ```

mod access;
mod allowance;
mod answer;
mod anthropic;
mod ask;
mod background;
pub mod bound;
mod bounds;
mod call;
mod certain;
mod choosers;
mod classes;
mod doubts;
mod expect;
mod fields;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzed;
pub(crate) mod intake;
mod json;
mod labels;
mod lanes;
mod list;
mod media;
mod messages;
mod meter;
mod models;
mod more;
mod names;
mod openai;
pub mod options;
mod other_calls;
mod outgoing;
mod paths;
mod prompt;
mod protocol;
mod rename;
mod replayed;
mod resolution;
mod rewrite;
mod scan;
mod serve;
mod sniff;
mod sse;
#[cfg(test)]
mod tests;
mod text;
mod thinking;
mod tools;
pub(crate) mod turn;
mod unread;
mod usage;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_tower::{EdgeRequest, Identifier, Identity};

pub use protocol::Protocol;
pub use text::{EstimateMode, Tariff, Tokenizer};

pub(crate) use access::{clean_headers, no_key, restrict_query, unknown_call};
pub(crate) use answer::hide_account;
pub(crate) use list::list_of;
pub(crate) use meter::Meter;
pub(crate) use serve::call_of;

use background::Background;
use expect::Expectations;
use intake::Room;
use lanes::Lanes;
use models::Models;
use options::{AiOptions, Anonymous};

/// Whether more is known of a caller than its address.
const fn is_verified(identity: &Identity) -> bool {
    identity.api_key.is_some() || identity.user_id.is_some() || identity.tenant_id.is_some()
}

/// What all routes of models share.
#[derive(Debug)]
pub(crate) struct Ai {
    pub(crate) options: AiOptions,
    models: Models,
    expectations: Arc<Expectations>,
    lanes: Arc<Lanes>,
    background: Arc<Background>,
    /// For bodies.
    room: Arc<Room>,
}

impl Ai {
    pub(crate) fn new(options: AiOptions, pools: &BTreeMap<&str, usize>) -> Result<Self, String> {
        other_calls::check(&options)?;
        let models = Models::new(&options, pools)?;
        let lanes = Arc::new(Lanes::new(options.max_waiting));
        let room = Room::new(options.max_buffered_bytes, options.max_body_bytes);
        let background = Arc::new(Background::new(options.background_ttl));
        let expectations = Arc::default();
        Ok(Self { options, models, expectations, lanes, background, room })
    }

    /// Whether a call whose tokens nobody counts goes to the upstream.
    pub(crate) fn forwards_others(&self, protocol: Protocol, asked: &EdgeRequest) -> bool {
        let path = asked.endpoint.as_deref().unwrap_or("/");
        other_calls::is_forwarded(&self.options, protocol, asked.method.as_deref(), path)
    }

    /// Whether the connection of a call whose tokens nobody counts may change its protocol.
    pub(crate) fn may_upgrade(&self, asked: &EdgeRequest) -> bool {
        other_calls::is_named(&self.options, asked.endpoint.as_deref().unwrap_or("/"))
    }

    /// Whether a caller is refused because nothing is known of it.
    pub(crate) fn refuses(&self, identity: &Identity, identifier: &Identifier) -> bool {
        let refuses = match self.options.anonymous {
            Anonymous::Allow => false,
            Anonymous::Refuse => true,
            Anonymous::Auto => identifier.knows_clients(),
        };
        refuses && !is_verified(identity)
    }
}
