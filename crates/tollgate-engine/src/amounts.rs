//! How much a request uses, by unit.

use tollgate_policy::Unit;
use tollgate_policy::prices::{Money, Price, TokenKind, Usage};

/// How much of each unit. What is absent is not stated: its default applies, or nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// On rules of unit requests or cost.
    pub cost: Option<u64>,
    /// On rules of unit tokens.
    pub tokens: Option<u64>,
    /// On rules of unit `input_tokens`.
    pub input_tokens: Option<u64>,
    /// On rules of unit `output_tokens`.
    pub output_tokens: Option<u64>,
    /// On rules of unit `cached_tokens`.
    pub cached_tokens: Option<u64>,
    /// On rules of unit money.
    pub money: Option<Money>,
}

impl Amounts {
    /// Nothing stated.
    pub const NONE: Self = Self {
        cost: None,
        tokens: None,
        input_tokens: None,
        output_tokens: None,
        cached_tokens: None,
        money: None,
    };

    /// So many tokens, and nothing else stated.
    pub const fn tokens(tokens: u64) -> Self {
        Self { tokens: Some(tokens), ..Self::NONE }
    }

    /// Such a cost, and nothing else stated.
    pub const fn cost(cost: u64) -> Self {
        Self { cost: Some(cost), ..Self::NONE }
    }

    /// The tokens of a usage. Its money follows from the price of the model.
    pub fn of_usage(usage: &Usage) -> Self {
        let (input, output) = (usage.whole(TokenKind::Input), usage.whole(TokenKind::Output));
        Self {
            tokens: Some(input.saturating_add(output)),
            input_tokens: Some(input),
            output_tokens: Some(output),
            cached_tokens: Some(usage.tokens(TokenKind::CachedRead)),
            ..Self::NONE
        }
    }

    /// The same, and what is absent from another.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        const fn first(one: Option<u64>, other: Option<u64>) -> Option<u64> {
            if one.is_some() { one } else { other }
        }
        Self {
            cost: first(self.cost, other.cost),
            tokens: first(self.tokens, other.tokens),
            input_tokens: first(self.input_tokens, other.input_tokens),
            output_tokens: first(self.output_tokens, other.output_tokens),
            cached_tokens: first(self.cached_tokens, other.cached_tokens),
            money: if self.money.is_some() { self.money } else { other.money },
        }
    }

    /// What one request costs by a price: by its usage, else by its tokens. Those of which the kind is not known cost the
    /// dearer of input and output. None where nothing is stated.
    pub(crate) fn priced(&self, price: &Price, usage: Option<Usage>) -> Option<Money> {
        if let Some(usage) = usage {
            return Some(price.money(&usage));
        }
        let Self { tokens, input_tokens, output_tokens, cached_tokens, .. } = *self;
        tokens.or(input_tokens).or(output_tokens).or(cached_tokens)?;
        let (input, output) = (input_tokens.unwrap_or(0), output_tokens.unwrap_or(0));
        let cached = cached_tokens.unwrap_or(0);
        let known = Usage::new(input.max(cached), output).with(TokenKind::CachedRead, cached);
        let unknown = tokens.unwrap_or(0).saturating_sub(known.total());
        let with = |kind| known.with(kind, known.tokens(kind).saturating_add(unknown));
        let readings = [TokenKind::Input, TokenKind::Output].map(|kind| price.money(&with(kind)));
        readings.into_iter().max_by_key(|money| money.nanos)
    }

    /// What is stated for rules of a unit; of money the nanos.
    pub const fn get(&self, unit: Unit) -> Option<u64> {
        match unit {
            Unit::Requests | Unit::Cost => self.cost,
            Unit::Tokens => self.tokens,
            Unit::InputTokens => self.input_tokens,
            Unit::OutputTokens => self.output_tokens,
            Unit::CachedTokens => self.cached_tokens,
            Unit::Money => match self.money {
                Some(money) => Some(money.nanos),
                None => None,
            },
            Unit::Concurrency => None,
        }
    }

    /// The same, 0 if absent.
    pub const fn of(&self, unit: Unit) -> u64 {
        match self.get(unit) {
            Some(amount) => amount,
            None => 0,
        }
    }
}

/// The truth about a request whose cost was estimated. What is absent stays as estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Actual {
    /// What it used, by unit.
    pub amounts: Amounts,
    /// What it used by kind of token: money that is not stated follows from it, at the price of admission.
    pub usage: Option<Usage>,
}

impl Actual {
    /// The truth by a usage report.
    pub fn of_usage(usage: Usage) -> Self {
        Self { amounts: Amounts::of_usage(&usage), usage: Some(usage) }
    }
}

impl From<Amounts> for Actual {
    fn from(amounts: Amounts) -> Self {
        Self { amounts, usage: None }
    }
}
