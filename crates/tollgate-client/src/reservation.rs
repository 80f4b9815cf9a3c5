//! Reservations: quota that is held for a request whose true cost is known only later.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::decision::{Decision, instant};

/// A request that was asked to be held, and until when it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// What was decided; if it was allowed, its `reservation_id` names the reservation.
    pub decision: Decision,
    /// When it is settled at its estimate unless something else was said.
    pub expires_at: Option<SystemTime>,
}

/// The truth about a request whose cost was estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Actual {
    /// What it cost on rules of unit tokens; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// What it cost on rules of unit cost; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
}

/// What settling or releasing did; the first answer, however often it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settled {
    /// Tokens that were reserved and not used.
    pub refunded_tokens: u64,
    /// Tokens that were used beyond what was reserved.
    pub extra_tokens: u64,
    /// Cost that was reserved and not used.
    pub refunded_cost: u64,
    /// Cost that was used beyond what was reserved.
    pub extra_cost: u64,
}

/// What renewing did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Renewed {
    /// False if a slot of it had expired.
    pub renewed: bool,
    /// When it expires now.
    #[serde(default, deserialize_with = "instant")]
    pub expires_at: Option<SystemTime>,
}
