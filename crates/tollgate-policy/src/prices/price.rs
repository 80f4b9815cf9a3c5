//! The price of one model, and what a usage costs by it.

use super::decimal::MAX_AMOUNT_NANOS;
use super::{Currency, Money};

/// The highest price of a million tokens, a request or an image.
pub const MAX_PRICE_NANOS: u64 = MAX_AMOUNT_NANOS;

/// The most `long_context` tiers of a price.
pub const MAX_LONG_CONTEXT_TIERS: usize = 8;

/// Prices are for so many tokens.
const TOKENS_PER_PRICE: u128 = 1_000_000;

/// A kind of tokens that may have a price of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// What the model reads.
    Input,
    /// What it writes.
    Output,
    /// Input that was read from a cache.
    CachedRead,
    /// Input that was written to a cache.
    CachedWrite,
    /// Output that the model did not show.
    Reasoning,
    /// Input that is sound.
    AudioInput,
    /// Output that is sound.
    AudioOutput,
}

impl TokenKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Input,
        Self::Output,
        Self::CachedRead,
        Self::CachedWrite,
        Self::Reasoning,
        Self::AudioInput,
        Self::AudioOutput,
    ];

    /// The name in price files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::CachedRead => "cached_read",
            Self::CachedWrite => "cached_write",
            Self::Reasoning => "reasoning",
            Self::AudioInput => "audio_input",
            Self::AudioOutput => "audio_output",
        }
    }

    /// What it is a part of: input or output, which are part of nothing else.
    #[must_use]
    pub const fn whole(self) -> Self {
        match self {
            Self::Input | Self::CachedRead | Self::CachedWrite | Self::AudioInput => Self::Input,
            Self::Output | Self::Reasoning | Self::AudioOutput => Self::Output,
        }
    }
}

/// Of which kinds the input and output of a usage are that none of its parts states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Unstated {
    /// Plain input and output: the usage states all of its kinds.
    #[default]
    Plain,
    /// Any kind that the price knows, so the dearest is charged: an estimate, or an answer whose usage was not reported.
    Unknown {
        /// Whether input may be sound.
        may_hear: bool,
        /// Whether output may be sound.
        may_speak: bool,
    },
}

impl Unstated {
    /// Whether these tokens may be of a kind.
    fn may_be(self, kind: TokenKind) -> bool {
        match self {
            Self::Plain => kind == kind.whole(),
            Self::Unknown { may_hear, may_speak } => match kind {
                TokenKind::AudioInput => may_hear,
                TokenKind::AudioOutput => may_speak,
                _ => true,
            },
        }
    }
}

/// What a request used. The input counts all input tokens, cached ones and sound included; the output counts all
/// output tokens, reasoning and sound included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Usage {
    tokens: [u64; TokenKind::ALL.len()],
    images: u64,
    requests: u64,
    unstated: Unstated,
    /// Input of the same request that was paid before: it only makes the request longer.
    earlier_input: u64,
}

/// One request that used nothing.
impl Default for Usage {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl Usage {
    /// One request with input and output alone.
    pub const fn new(input: u64, output: u64) -> Self {
        Self {
            tokens: [input, output, 0, 0, 0, 0, 0],
            images: 0,
            requests: 1,
            unstated: Unstated::Plain,
            earlier_input: 0,
        }
    }

    /// The same, where tokens that no part states are of these kinds.
    #[must_use]
    pub const fn with_unstated(mut self, unstated: Unstated) -> Self {
        self.unstated = unstated;
        self
    }

    /// The same of a request with so much input that was paid before.
    #[must_use]
    pub const fn with_earlier_input(mut self, input: u64) -> Self {
        self.earlier_input = input;
        self
    }

    /// Of which kinds tokens are that no part states.
    pub const fn unstated(&self) -> Unstated {
        self.unstated
    }

    /// The same with so many tokens of a kind.
    #[must_use]
    pub fn with(mut self, kind: TokenKind, tokens: u64) -> Self {
        if let Some(place) = self.tokens.get_mut(kind as usize) {
            *place = tokens;
        }
        self
    }

    /// The same with so many images that have a price of their own.
    #[must_use]
    pub const fn with_images(mut self, images: u64) -> Self {
        self.images = images;
        self
    }

    /// The same of so many requests; 0 where it is more of a request that was counted before.
    #[must_use]
    pub const fn with_requests(mut self, requests: u64) -> Self {
        self.requests = requests;
        self
    }

    /// How many requests it is of.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// The images that have a price of their own.
    pub const fn images(&self) -> u64 {
        self.images
    }

    /// The tokens of a kind as they were reported.
    pub fn tokens(&self, kind: TokenKind) -> u64 {
        self.tokens.get(kind as usize).copied().unwrap_or(0)
    }

    /// All input and output tokens.
    pub fn total(&self) -> u64 {
        self.whole(TokenKind::Input).saturating_add(self.whole(TokenKind::Output))
    }

    /// All input or output: as reported, or its parts where they exceed it.
    pub fn whole(&self, kind: TokenKind) -> u64 {
        let whole = kind.whole();
        u64::try_from(self.parts(whole)).unwrap_or(u64::MAX).max(self.tokens(whole))
    }

    /// The parts of input or output that were reported, added up.
    fn parts(&self, whole: TokenKind) -> u128 {
        let parts =
            TokenKind::ALL.into_iter().filter(|kind| kind.whole() == whole && *kind != whole);
        parts.map(|kind| u128::from(self.tokens(kind))).sum()
    }
}

/// Prices of a million tokens by kind; a kind without one has the price of its whole.
pub(super) type Prices = [Option<u64>; TokenKind::ALL.len()];

/// The price of one model. All amounts are nanos.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Its currency.
    pub currency: Currency,
    /// For each request.
    pub per_request: u64,
    /// For each image.
    pub per_image: u64,
    pub(super) per_million: Prices,
    /// Prices of requests with more input than so much, the highest bound first.
    pub(super) long_context: Vec<(u64, Prices)>,
}

impl Price {
    /// A price that asks for nothing.
    pub const fn free(currency: Currency) -> Self {
        let per_million = [None; TokenKind::ALL.len()];
        Self { currency, per_request: 0, per_image: 0, per_million, long_context: Vec::new() }
    }

    /// The price of a million tokens of a kind, for a request with so much input.
    pub fn per_million(&self, kind: TokenKind, input: u64) -> u64 {
        let tier = self.long_context.iter().find(|(above, _)| input > *above);
        let own = |kind: TokenKind| {
            let of = |prices: &Prices| prices.get(kind as usize).copied().flatten();
            tier.and_then(|(_, prices)| of(prices)).or_else(|| of(&self.per_million))
        };
        own(kind).or_else(|| own(kind.whole())).unwrap_or(0)
    }

    /// What a usage costs: summed exactly, rounded up once, at most [`MAX_AMOUNT_NANOS`].
    ///
    /// Each part (cached, reasoning, sound) is charged at its own price and the rest of input and output at theirs, or
    /// at the dearest kind that it may be ([`Unstated`]). If the parts exceed their whole, the report contradicts
    /// itself: the dearer of the parts alone and the whole alone is charged.
    pub fn money(&self, usage: &Usage) -> Money {
        let images = u128::from(usage.images) * u128::from(self.per_image);
        let nanos = self
            .tokens_cost(usage)
            .div_ceil(TOKENS_PER_PRICE)
            .saturating_add(images)
            .saturating_add(u128::from(usage.requests) * u128::from(self.per_request));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).min(MAX_AMOUNT_NANOS);
        Money { currency: self.currency, nanos }
    }

    /// What all tokens cost, in millionths of a nano.
    fn tokens_cost(&self, usage: &Usage) -> u128 {
        // Parts that exceed the input make a request longer than it says.
        let length = usage.whole(TokenKind::Input).saturating_add(usage.earlier_input);
        let cost = |usage: &Usage, length| {
            let wholes = [TokenKind::Input, TokenKind::Output].into_iter();
            wholes
                .map(|whole| self.cost_of(usage, whole, length))
                .fold(0_u128, u128::saturating_add)
        };
        let whole = cost(usage, length);
        if usage.unstated == Unstated::Plain {
            return whole;
        }
        // It may turn out shorter than it is thought to be, and a shorter request may be dearer.
        let shorter = self.long_context.iter().map(|(above, _)| *above);
        shorter
            .filter(|above| *above < length)
            .map(|above| {
                let input = above.saturating_sub(usage.earlier_input);
                cost(&usage.with(TokenKind::Input, input), above)
            })
            .fold(whole, u128::max)
    }

    /// What input or output costs, in millionths of a nano.
    fn cost_of(&self, usage: &Usage, whole: TokenKind, length: u64) -> u128 {
        let price = |kind| u128::from(self.per_million(kind, length));
        let kinds = || TokenKind::ALL.into_iter().filter(|kind| kind.whole() == whole);
        let parts = kinds()
            .filter(|kind| *kind != whole)
            .map(|kind| u128::from(usage.tokens(kind)).saturating_mul(price(kind)))
            .fold(0, u128::saturating_add);
        let rest_price = kinds().filter(|kind| usage.unstated.may_be(*kind)).map(price).max();
        let rest_price = rest_price.unwrap_or(0);
        let tokens = u128::from(usage.tokens(whole));
        match tokens.checked_sub(usage.parts(whole)) {
            Some(rest) => parts.saturating_add(rest.saturating_mul(rest_price)),
            None => parts.max(tokens.saturating_mul(rest_price)),
        }
    }
}
