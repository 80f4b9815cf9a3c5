//! Reservations: quota that is held for a request whose true cost is known only later.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::decision::{Decision, instant};
use crate::usage::{Money, OtherUnits, Usage};

/// A request that was asked to be held, and until when it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// What was decided; if it was allowed, its `reservation_id` names the reservation.
    pub decision: Decision,
    /// When it is settled at its estimate unless something else was said.
    pub expires_at: Option<SystemTime>,
}

/// The truth about a request whose cost was estimated.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Actual {
    /// What it cost on rules of unit tokens; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// What it cost on rules of unit cost; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// What it cost on rules of unit `input_tokens`; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// What it cost on rules of unit `output_tokens`; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// What it cost on rules of unit `cached_tokens`; as estimated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// What it cost on rules of unit money; if absent, the price of the usage, else as estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
    /// What it used by kind; the server prices it as when it was reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

impl Actual {
    /// So many tokens.
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens: Some(tokens), ..Self::default() }
    }

    /// What it used by kind.
    pub fn usage(usage: Usage) -> Self {
        Self { usage: Some(usage), ..Self::default() }
    }
}

/// What settling or releasing did; the first answer, however often it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
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
    /// What was reserved and not used in other units.
    pub refunded: OtherUnits,
    /// What was used beyond what was reserved in other units.
    pub extra: OtherUnits,
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
