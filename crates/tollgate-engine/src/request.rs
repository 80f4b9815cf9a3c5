//! What is asked of the engine, and its bounds.

use std::net::IpAddr;

use tollgate_core::Nanos;
use tollgate_policy::Attributes;
use tollgate_policy::prices::Usage;

use crate::Amounts;

/// The longest value of one attribute.
pub const MAX_VALUE_BYTES: usize = 256;

/// The most attributes a request may carry beside the known ones.
pub const MAX_ATTRIBUTES: usize = 32;

/// The largest cost or token count: what a Redis script can still count exactly.
pub const MAX_COST: u64 = (1 << 53) - 1;

/// Whether the caller keeps the receipts of a request ([`crate::Engine::receipts`]) for a refund. A reservation is
/// refundable without being asked. Charges to buckets that are not refundable cost less, and are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refunds {
    /// It keeps none.
    #[default]
    Never,
    /// It refunds a request that does not wait for its turn to the end.
    WhileWaiting,
    /// It settles or releases the request.
    Always,
}

/// A request to be decided. The endpoint among its attributes is normalised already
/// ([`tollgate_policy::RequestPath`]).
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// What is known of it.
    pub attributes: Attributes<'a>,
    /// How much it uses, by unit. The default is 0 for tokens, and for requests and cost what the rule says, else 1. Money
    /// that is not stated is the price of the usage.
    pub amounts: Amounts,
    /// What it uses by kind of token, where money is to be priced by the table. Without it, tokens
    /// are priced by their unit, and those of unknown kind at the dearer of input and output.
    pub usage: Option<Usage>,
    /// Makes the call idempotent.
    pub request_id: Option<&'a str>,
    /// The call is a reservation, to be settled within so long: what it costs is an estimate.
    pub reserve: Option<Nanos>,
    /// Whether its receipts are kept for a refund.
    pub refunds: Refunds,
    /// More of a request that was allowed before: only limits of usage (tokens and money) are checked and charged,
    /// and the observer does not see another request. It does not wait.
    pub is_more: bool,
    /// Limits of usage are neither asked nor charged: the request uses nothing that they count, so that a caller who has
    /// overdrawn one of them may still send it.
    pub uses_nothing: bool,
    /// Nobody would release a slot: a request that a rule of unit concurrency applies to is
    /// [`EngineError::SlotNotHeld`](crate::EngineError::SlotNotHeld), and nothing is charged.
    pub refuses_slots: bool,
    /// Who makes the call, if authenticated: request ids of different callers do not meet.
    pub caller: &'a str,
    /// From where a caller that is not authenticated makes the call. Observers tell callers apart by it.
    pub caller_address: Option<IpAddr>,
}
