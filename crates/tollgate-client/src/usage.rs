//! What a request uses by kind, and what it costs in money.

use serde::{Deserialize, Serialize};
use tollgate_proto::v1;

/// An amount of money.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Money {
    /// Its code of ISO 4217, such as `USD`.
    pub currency: String,
    /// A decimal string such as `0.0123`, with at most 9 digits after the point.
    pub amount: String,
}

impl Money {
    /// So much of a currency.
    pub fn new(currency: impl Into<String>, amount: impl Into<String>) -> Self {
        Self { currency: currency.into(), amount: amount.into() }
    }

    pub(crate) fn into_message(self) -> v1::Money {
        v1::Money { currency: self.currency, amount: self.amount }
    }

    pub(crate) fn of_message(message: v1::Money) -> Self {
        Self { currency: message.currency, amount: message.amount }
    }
}

/// What a request used. The kinds after `output` are parts of input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// All input tokens.
    pub input: u64,
    /// All output tokens.
    pub output: u64,
    /// Input tokens that were read from a cache.
    pub cached_read: u64,
    /// Input tokens that were written to a cache.
    pub cached_write: u64,
    /// Output tokens that the model did not show.
    pub reasoning: u64,
    /// Input tokens that are sound.
    pub audio_input: u64,
    /// Output tokens that are sound.
    pub audio_output: u64,
    /// Images that have a price of their own.
    pub images: u64,
}

impl Usage {
    pub(crate) const fn into_message(self) -> v1::Usage {
        v1::Usage {
            input: self.input,
            output: self.output,
            cached_read: self.cached_read,
            cached_write: self.cached_write,
            reasoning: self.reasoning,
            audio_input: self.audio_input,
            audio_output: self.audio_output,
            images: self.images,
        }
    }
}

/// Amounts of the units besides cost and tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OtherUnits {
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Cached tokens.
    pub cached_tokens: u64,
    /// Money.
    pub money: Option<Money>,
}

impl OtherUnits {
    pub(crate) fn of_message(message: Option<v1::OtherUnits>) -> Self {
        let message = message.unwrap_or_default();
        Self {
            input_tokens: message.input_tokens,
            output_tokens: message.output_tokens,
            cached_tokens: message.cached_tokens,
            money: message.money.map(Money::of_message),
        }
    }
}
