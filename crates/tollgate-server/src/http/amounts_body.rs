//! What a request uses, as bodies of both protocols state it: by unit, as money, or as a usage report.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tollgate_engine::{Actual, Amounts, MAX_COST, Scope};
use tollgate_policy::prices::{Currency, Money, TokenKind, Usage, format_nanos, parse_nanos};
use utoipa::ToSchema;

use super::respond::ApiError;

/// An amount of money.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoneyBody<'a> {
    /// Its code of ISO 4217.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 3, max_length = 3, example = "USD")]
    pub(crate) currency: Cow<'a, str>,
    /// A decimal string with at most 9 digits after the point.
    #[serde(borrow)]
    #[schema(value_type = String, example = "0.0123")]
    pub(crate) amount: Cow<'a, str>,
}

/// What a request used, by kind. `input` counts all input tokens, `output` all output tokens; the other kinds are parts
/// of them. The server prices it by the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UsageBody {
    /// All input tokens.
    pub(crate) input: Option<u64>,
    /// All output tokens.
    pub(crate) output: Option<u64>,
    /// Input tokens that were read from a cache.
    pub(crate) cached_read: Option<u64>,
    /// Input tokens that were written to a cache.
    pub(crate) cached_write: Option<u64>,
    /// Output tokens that the model did not show.
    pub(crate) reasoning: Option<u64>,
    /// Input tokens that are sound.
    pub(crate) audio_input: Option<u64>,
    /// Output tokens that are sound.
    pub(crate) audio_output: Option<u64>,
    /// Images that have a price of their own.
    pub(crate) images: Option<u64>,
}

/// The names of a usage's figures, for diagnosis.
pub(crate) const USAGE_FIELDS: [&str; 8] = [
    "input",
    "output",
    "cachedRead",
    "cachedWrite",
    "reasoning",
    "audioInput",
    "audioOutput",
    "images",
];

impl UsageBody {
    pub(crate) const fn kinds(&self) -> [(TokenKind, Option<u64>); 7] {
        [
            (TokenKind::Input, self.input),
            (TokenKind::Output, self.output),
            (TokenKind::CachedRead, self.cached_read),
            (TokenKind::CachedWrite, self.cached_write),
            (TokenKind::Reasoning, self.reasoning),
            (TokenKind::AudioInput, self.audio_input),
            (TokenKind::AudioOutput, self.audio_output),
        ]
    }

    fn check(&self) -> Result<Usage, ApiError> {
        let mut usage = Usage::default().with_images(self.images.unwrap_or(0));
        for (kind, tokens) in self.kinds() {
            usage = usage.with(kind, tokens.unwrap_or(0));
        }
        let figures = self.kinds().map(|(_, tokens)| tokens).into_iter().chain([self.images]);
        for (name, figure) in USAGE_FIELDS.into_iter().zip(figures) {
            if figure.is_some_and(|figure| figure > MAX_COST) {
                return Err(too_large(&format!("usage.{name}")));
            }
        }
        Ok(usage)
    }
}

/// All that a body states of amounts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AmountsBody<'a> {
    pub(crate) cost: Option<u64>,
    pub(crate) tokens: Option<u64>,
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) money: Option<MoneyBody<'a>>,
    pub(crate) usage: Option<UsageBody>,
}

impl AmountsBody<'_> {
    /// The amounts within their bounds. Token units that are not stated follow from the usage; money does by the price
    /// of the model.
    #[inline]
    pub(crate) fn check(&self) -> Result<Actual, ApiError> {
        let Self { cost, tokens, input_tokens, output_tokens, cached_tokens, .. } = *self;
        let stated = [
            ("cost", cost),
            ("tokens", tokens),
            ("inputTokens", input_tokens),
            ("outputTokens", output_tokens),
            ("cachedTokens", cached_tokens),
        ];
        for (field, value) in stated {
            if value.is_some_and(|value| value > MAX_COST) {
                return Err(too_large(field));
            }
        }
        let money = self.money.as_ref().map(money).transpose()?;
        let usage = self.usage.as_ref().map(UsageBody::check).transpose()?;
        let own = Amounts { cost, tokens, input_tokens, output_tokens, cached_tokens, money };
        let amounts = match &usage {
            Some(usage) => own.or(bounded(Amounts::of_usage(usage))),
            None => own,
        };
        Ok(Actual { amounts, usage })
    }
}

/// Sums of a usage may exceed what counters hold.
fn bounded(amounts: Amounts) -> Amounts {
    let most = |amount: Option<u64>| amount.map(|amount| amount.min(MAX_COST));
    Amounts {
        tokens: most(amounts.tokens),
        input_tokens: most(amounts.input_tokens),
        output_tokens: most(amounts.output_tokens),
        ..amounts
    }
}

fn money(body: &MoneyBody<'_>) -> Result<Money, ApiError> {
    let currency = Currency::from_code(&body.currency).ok_or_else(|| {
        let message = "is not a currency code of ISO 4217, such as USD or EUR";
        ApiError::invalid("money.currency", message)
    })?;
    let nanos = parse_nanos(&body.amount)
        .map_err(|error| ApiError::invalid("money.amount", error.to_string()))?;
    Ok(Money { currency, nanos })
}

fn too_large(field: &str) -> ApiError {
    ApiError::invalid(field, format!("must not be above {MAX_COST}"))
}

/// Amounts of input, output and cached tokens and of money.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OtherUnits {
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<MoneyFigure>,
}

/// An amount of money, exactly.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MoneyFigure {
    #[schema(example = "USD")]
    currency: &'static str,
    #[schema(example = "0.0123")]
    amount: String,
}

impl OtherUnits {
    pub(crate) fn new(amounts: &Amounts) -> Self {
        let money = |money: Money| MoneyFigure {
            currency: money.currency.code(),
            amount: format_nanos(money.nanos),
        };
        Self {
            input_tokens: amounts.input_tokens,
            output_tokens: amounts.output_tokens,
            cached_tokens: amounts.cached_tokens,
            money: amounts.money.map(money),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The figures of a money limit as decimals.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MoneyFigures {
    #[schema(example = "USD")]
    currency: &'static str,
    #[schema(example = "5.25")]
    limit: String,
    current: String,
    remaining: String,
}

impl MoneyFigures {
    pub(crate) fn of(scope: &Scope<'_>) -> Option<Self> {
        let status = &scope.outcome.status;
        Some(Self {
            currency: scope.rule.currency?.code(),
            limit: format_nanos(scope.quota),
            current: format_nanos(status.used),
            remaining: format_nanos(status.remaining),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(body: &AmountsBody<'_>) -> String {
        match body.check() {
            Err(ApiError::Invalid { field, .. }) => field.unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn amounts_follow_from_the_usage_unless_they_are_stated() {
        let usage = UsageBody {
            input: Some(10),
            output: Some(5),
            cached_read: Some(4),
            ..UsageBody::default()
        };
        let body = AmountsBody { tokens: Some(99), usage: Some(usage), ..AmountsBody::default() };
        let actual = body.check().unwrap();
        let expected = Amounts {
            tokens: Some(99),
            input_tokens: Some(10),
            output_tokens: Some(5),
            cached_tokens: Some(4),
            ..Amounts::NONE
        };
        assert_eq!(actual.amounts, expected);
        assert_eq!(actual.usage, Some(Usage::new(10, 5).with(TokenKind::CachedRead, 4)));
    }

    #[test]
    fn wrong_amounts_are_named() {
        let money = |currency: &'static str, amount: &'static str| AmountsBody {
            money: Some(MoneyBody { currency: currency.into(), amount: amount.into() }),
            ..AmountsBody::default()
        };
        assert_eq!(wrong(&money("BTC", "1")), "money.currency");
        for amount in ["-1", "one", "1e3", "0.0000000001", "9007200", ""] {
            assert_eq!(wrong(&money("USD", amount)), "money.amount", "{amount}");
        }
        let large = Some(MAX_COST + 1);
        assert_eq!(
            wrong(&AmountsBody { cached_tokens: large, ..AmountsBody::default() }),
            "cachedTokens"
        );
        let usage = UsageBody { audio_output: large, ..UsageBody::default() };
        let body = AmountsBody { usage: Some(usage), ..AmountsBody::default() };
        assert_eq!(wrong(&body), "usage.audioOutput");
    }
}
