//! The ledger: what was used on each day, by key, tenant, user and model.

use serde::{Deserialize, Serialize};

use crate::Millis;

/// Milliseconds of a day.
const DAY: Millis = 86_400_000;

/// How much was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageAmounts {
    /// Requests that were settled.
    pub requests: u64,
    /// Requests that were refused.
    pub refusals: u64,
    /// All tokens.
    pub tokens: u64,
    /// Tokens that models read, cached ones and sound included.
    pub input_tokens: u64,
    /// Tokens that models wrote, reasoning and sound included.
    pub output_tokens: u64,
    /// Tokens that were read from a cache.
    pub cached_read_tokens: u64,
    /// Tokens that were written to a cache.
    pub cached_write_tokens: u64,
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
    /// Tokens of sound, read and written.
    pub audio_tokens: u64,
    /// Images.
    pub images: u64,
    /// Money, in 1e-9 of a unit.
    pub nanos: u64,
}

impl UsageAmounts {
    /// The names, as columns and in reports.
    pub const NAMES: [&'static str; 11] = [
        "requests",
        "refusals",
        "tokens",
        "input_tokens",
        "output_tokens",
        "cached_read_tokens",
        "cached_write_tokens",
        "reasoning_tokens",
        "audio_tokens",
        "images",
        "nanos",
    ];

    /// The figures in the order of [`Self::NAMES`].
    pub const fn figures(&self) -> [u64; 11] {
        [
            self.requests,
            self.refusals,
            self.tokens,
            self.input_tokens,
            self.output_tokens,
            self.cached_read_tokens,
            self.cached_write_tokens,
            self.reasoning_tokens,
            self.audio_tokens,
            self.images,
            self.nanos,
        ]
    }

    /// The amounts of these figures.
    pub(crate) const fn of(figures: [u64; 11]) -> Self {
        let [
            requests,
            refusals,
            tokens,
            input_tokens,
            output_tokens,
            cached_read_tokens,
            cached_write_tokens,
            reasoning_tokens,
            audio_tokens,
            images,
            nanos,
        ] = figures;
        Self {
            requests,
            refusals,
            tokens,
            input_tokens,
            output_tokens,
            cached_read_tokens,
            cached_write_tokens,
            reasoning_tokens,
            audio_tokens,
            images,
            nanos,
        }
    }

    /// Adds another to it.
    pub fn add(&mut self, other: &Self) {
        let (mut sum, others) = (self.figures(), other.figures());
        for (figure, more) in sum.iter_mut().zip(others) {
            *figure = figure.saturating_add(more);
        }
        *self = Self::of(sum);
    }
}

/// Something that was used, on its way to the ledger. Nodes of neighbouring versions send it to each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageEvent {
    /// Unique and stable: an event that is delivered again has the same id, and is counted once.
    pub event_id: String,
    /// When it was settled.
    pub at: Millis,
    /// The id of the virtual key, or the hash of another API key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_key_id: String,
    /// The tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
    /// The user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_id: String,
    /// The model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model_id: String,
    /// The currency of the money; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
    /// How much; of what is open, as estimated.
    pub amounts: UsageAmounts,
    /// Until when it is open, where it has not been settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    /// It was given back: nothing was used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_released: bool,
}

impl UsageEvent {
    /// The day in UTC, as days since 1970-01-01.
    pub const fn day(&self) -> i64 {
        self.at.div_euclid(DAY)
    }
}

/// What a report is grouped by. The currency always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageDimension {
    /// The day in UTC.
    Day,
    /// The tenant.
    Tenant,
    /// The API key.
    Key,
    /// The user.
    User,
    /// The model.
    Model,
}

impl UsageDimension {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Day, Self::Tenant, Self::Key, Self::User, Self::Model];

    /// The name in `group_by`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Tenant => "tenant",
            Self::Key => "key",
            Self::User => "user",
            Self::Model => "model",
        }
    }

    /// The column, and the name in reports.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Tenant => "tenant_id",
            Self::Key => "api_key_id",
            Self::User => "user_id",
            Self::Model => "model_id",
        }
    }
}

/// Which usage is wanted, and how it is grouped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// What it is grouped by.
    pub group_by: Vec<UsageDimension>,
    /// The first day.
    pub from_day: i64,
    /// The day after the last.
    pub until_day: i64,
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// Of this API key.
    pub api_key_id: Option<String>,
    /// Of this user.
    pub user_id: Option<String>,
    /// Of this model.
    pub model_id: Option<String>,
    /// At most so many rows.
    pub limit: u32,
}

/// A row of a report: values of what it is not grouped by are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    /// The day, as days since 1970-01-01.
    pub day: Option<i64>,
    /// The tenant; empty: none.
    pub tenant_id: Option<String>,
    /// The API key; empty: none.
    pub api_key_id: Option<String>,
    /// The user; empty: none.
    pub user_id: Option<String>,
    /// The model; empty: none.
    pub model_id: Option<String>,
    /// The currency of the money; empty: none.
    pub currency: String,
    /// How much, in the order of [`UsageAmounts::NAMES`].
    pub amounts: [u128; 11],
}

/// What is open is counted as estimated when it has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageSweep {
    /// Where it expired before this time.
    pub expired_before: Millis,
    /// At most so many at once.
    pub most: u32,
    /// How many rows one day may have.
    pub max_rows_per_day: u32,
}

/// How much of the ledger is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageRetention {
    /// Days before this one are removed.
    pub before_day: i64,
    /// Ids of events that were recorded before this time are forgotten.
    pub ids_before: Millis,
    /// At most so many rows of each at once.
    pub most: u32,
}
