//! What settled requests used, for a ledger: each is reported under the id of its settlement, so that a report that is
//! repeated can be recognised.

use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::Nanos;
use tollgate_policy::Known;
use tollgate_policy::prices::{Money, Price, TokenKind, Usage};
use tollgate_store::Store;

use crate::decision::Decision;
use crate::ending::How;
use crate::receipts::Receipts;
use crate::request::{Refunds, Request};
use crate::reservations::MAX_RESERVATION_TTL;
use crate::{Actual, Amounts, Engine};

/// Resolves when a usage is stored where it survives this process.
pub type Appending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Stores what settled requests used.
pub trait UsageLedger: Send + Sync {
    /// What stands for an API key that is no virtual one. Never the key itself.
    fn conceal(&self, api_key: &str) -> String;

    /// Takes a usage, and waits for nothing.
    fn note(&self, usage: SettledUsage);

    /// Takes a usage before its request is settled in a store that others share. Resolves when the usage survives this
    /// process, or soon where that cannot be.
    fn append(&self, usage: SettledUsage) -> Appending<'_>;

    /// A request was admitted on this estimate, and is to be settled until then, or later if it is said again. Waits for
    /// nothing.
    fn opened(&self, estimate: SettledUsage, expires_at: Nanos);

    /// What was admitted is given back. Waits for nothing.
    fn released(&self, id: u128, at: Nanos);

    /// A request was refused. Waits for nothing.
    fn refused(&self, spender: Spender, at: Nanos);
}

/// Who uses something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Spender {
    /// The id of a virtual key, or what stands for another API key.
    pub api_key_id: Option<String>,
    /// The tenant.
    pub tenant_id: Option<String>,
    /// The user.
    pub user_id: Option<String>,
    /// The model.
    pub model_id: Option<String>,
}

/// What one settled request used.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledUsage {
    /// The same for every report of this settlement, and for no other. Not the id of a reservation: that ends it.
    pub id: u128,
    /// When it was settled.
    pub at: Nanos,
    /// Who used it.
    pub spender: Spender,
    /// 0 for more of a request that is counted by itself.
    pub requests: u64,
    /// All tokens.
    pub tokens: u64,
    /// Tokens by kind, where they are known.
    pub usage: Usage,
    /// What it cost, where that is known.
    pub money: Option<Money>,
}

/// What a ledger needs to know of an admitted request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spend {
    spender: Spender,
    /// The price at admission, where the charges have none.
    price: Option<Box<Price>>,
    estimate: Actual,
    is_more: bool,
}

/// The longest text of a record.
const MAX_TEXT_BYTES: usize = crate::MAX_VALUE_BYTES;

impl Spend {
    /// Appends it to the bytes of a record.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let Spender { api_key_id, tenant_id, user_id, model_id } = &self.spender;
        for text in [api_key_id, tenant_id, user_id, model_id] {
            push_text(bytes, text.as_deref().map(str::as_bytes));
        }
        bytes.push(u8::from(self.is_more));
        push_text(bytes, Some(&How::Settle(self.estimate).encode()));
        bytes.push(u8::from(self.price.is_some()));
        if let Some(price) = &self.price {
            price.write(bytes);
        }
    }

    /// Reads it off the beginning of bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (api_key_id, bytes) = take_name(bytes)?;
        let (tenant_id, bytes) = take_name(bytes)?;
        let (user_id, bytes) = take_name(bytes)?;
        let (model_id, bytes) = take_name(bytes)?;
        let (is_more, bytes) = bytes.split_first()?;
        let (estimate, bytes) = take_text(bytes)?;
        let How::Settle(estimate) = How::decode(estimate?)? else { return None };
        let (price, bytes) = match bytes.split_first()? {
            (0, rest) => (None, rest),
            (1, rest) => {
                let (price, rest) = Price::read(rest)?;
                (Some(Box::new(price)), rest)
            }
            _ => return None,
        };
        let spender = Spender { api_key_id, tenant_id, user_id, model_id };
        Some((Self { spender, price, estimate, is_more: *is_more == 1 }, bytes))
    }
}

/// A text after its length, which is one more than it has bytes; 0: there is none.
fn push_text(bytes: &mut Vec<u8>, text: Option<&[u8]>) {
    let text = text.map(|text| text.get(..MAX_TEXT_BYTES).unwrap_or(text));
    let length = text.map_or(0, |text| text.len() + 1);
    bytes.extend_from_slice(&u16::try_from(length).unwrap_or(0).to_le_bytes());
    bytes.extend_from_slice(text.unwrap_or_default());
}

fn take_text(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    match usize::from(u16::from_le_bytes(*length)) {
        0 => Some((None, rest)),
        length => rest.split_at_checked(length - 1).map(|(text, rest)| (Some(text), rest)),
    }
}

fn take_name(bytes: &[u8]) -> Option<(Option<String>, &[u8])> {
    let (text, rest) = take_text(bytes)?;
    Some((text.map(|text| String::from_utf8_lossy(text).into_owned()), rest))
}

/// Tokens by kind of amounts that were stated by unit.
fn usage_of(amounts: &Amounts) -> Usage {
    let [input, output, cached] =
        [amounts.input_tokens, amounts.output_tokens, amounts.cached_tokens]
            .map(Option::unwrap_or_default);
    Usage::new(input.max(cached), output).with(TokenKind::CachedRead, cached)
}

/// The id of a settlement as the ledger knows it.
fn event_id(id: u128) -> u128 {
    xxhash_rust::xxh3::xxh3_128(&id.to_le_bytes())
}

fn states_tokens(actual: &Actual) -> bool {
    let Amounts { tokens, input_tokens, output_tokens, cached_tokens, .. } = actual.amounts;
    actual.usage.is_some() || tokens.or(input_tokens).or(output_tokens).or(cached_tokens).is_some()
}

impl Receipts {
    /// Whether a ledger is to know of its settlement.
    pub const fn has_spend(&self) -> bool {
        self.spend.is_some()
    }

    /// What settling it with this truth comes to, for a ledger. Money is what the counters of money hold, where there are
    /// any.
    fn settled_usage(&self, id: u128, at: Nanos, actual: &Actual) -> Option<SettledUsage> {
        let spend = self.spend.as_deref()?;
        let Spend { spender, price, estimate, is_more } = spend;
        let used = if states_tokens(actual) {
            *actual
        } else {
            Actual { amounts: actual.amounts.or(estimate.amounts), usage: estimate.usage }
        };
        let usage = used.usage.unwrap_or_else(|| usage_of(&used.amounts));
        let price = price.as_deref();
        let money = if self.currency.is_some() {
            self.truth(actual).money.or_else(|| self.money())
        } else {
            let priced = || used.amounts.priced(price?, used.usage);
            used.amounts.money.or_else(priced).or(estimate.amounts.money)
        };
        Some(SettledUsage {
            id: event_id(id),
            at,
            spender: spender.clone(),
            requests: u64::from(!is_more),
            tokens: used.amounts.tokens.unwrap_or(0).max(usage.total()),
            usage,
            money,
        })
    }
}

impl<S> Engine<S> {
    /// The same engine, whose settlements go to a ledger.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Option<Arc<dyn UsageLedger>>) -> Self {
        self.ledger = ledger;
        self
    }
}

impl<S: Store> Engine<S> {
    /// What the ledger needs to know of a request that is settled later.
    pub(crate) fn spend(
        &self,
        request: &Request<'_>,
        decision: &Decision<'_>,
    ) -> Option<Box<Spend>> {
        let ledger = self.ledger.as_deref()?;
        // More of a request of a caller that keeps the receipts is settled with the request.
        let is_settled = request.refunds == Refunds::Always && !request.is_more;
        if request.reserve.is_none() && !is_settled {
            return None;
        }
        let estimate = Actual { amounts: request.amounts, usage: request.usage };
        let rules = self.rules();
        let table = || {
            let model = request.attributes.get(Known::ModelId)?;
            rules.prices.price(model, decision.now)
        };
        let price = decision.price.or_else(table).map(|price| {
            let mut price = Box::new(price.clone());
            if request.is_more {
                price.per_request = 0;
            }
            price
        });
        let spender = self.spender(ledger, request);
        Some(Box::new(Spend { spender, price, estimate, is_more: request.is_more }))
    }

    fn spender(&self, ledger: &dyn UsageLedger, request: &Request<'_>) -> Spender {
        let own = |name| request.attributes.get(name).map(str::to_owned);
        let rules = self.rules();
        let key = |key: &str| match rules.set.virtual_keys().get(key) {
            Some(_) => key.to_owned(),
            None => ledger.conceal(key),
        };
        Spender {
            api_key_id: request.attributes.get(Known::ApiKey).map(key),
            tenant_id: own(Known::TenantId),
            user_id: own(Known::UserId),
            model_id: own(Known::ModelId),
        }
    }

    /// Counts a request that was to be settled later and is refused.
    pub fn note_refusal(&self, request: &Request<'_>) {
        if let Some(ledger) = self.ledger.as_deref().filter(|_| !request.is_more) {
            ledger.refused(self.spender(ledger, request), self.clock().now());
        }
    }

    /// Reports what was admitted and is to be settled until then.
    pub(crate) fn note_open(&self, id: u128, receipts: &Receipts, expires_at: Nanos) {
        let Some(ledger) = &self.ledger else { return };
        let now = self.clock().now();
        if let Some(estimate) = receipts.settled_usage(id, now, &Actual::default()) {
            ledger.opened(estimate, expires_at);
        }
    }

    /// Reports a request that is settled by its receipts under this id. If this process is killed, the request counts as
    /// estimated a day later.
    pub fn note_admitted(&self, id: u128, receipts: &Receipts) {
        let expires_at = self.clock().now().saturating_add(MAX_RESERVATION_TTL);
        self.note_open(id, receipts, expires_at);
    }

    /// Reports that what was admitted is given back.
    pub(crate) fn note_released(&self, id: u128, receipts: &Receipts) {
        if let Some(ledger) = self.ledger.as_deref().filter(|_| receipts.has_spend()) {
            ledger.released(event_id(id), self.clock().now());
        }
    }

    /// Reports what is about to be settled. It is reported first: a node that dies in between leaves an estimate charged,
    /// and no usage is lost.
    pub(crate) async fn append_usage(&self, id: u128, receipts: &Receipts, actual: &Actual) {
        let Some(ledger) = &self.ledger else { return };
        if let Some(usage) = receipts.settled_usage(id, self.clock().now(), actual) {
            ledger.append(usage).await;
        }
    }

    /// Reports what was settled in this process.
    pub(crate) fn note_usage(&self, id: u128, receipts: &Receipts, actual: &Actual) {
        let Some(ledger) = &self.ledger else { return };
        if let Some(usage) = receipts.settled_usage(id, self.clock().now(), actual) {
            ledger.note(usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_policy::prices::Currency;

    use super::*;

    fn spend() -> Spend {
        let spender = Spender {
            api_key_id: Some("vk_1".to_owned()),
            tenant_id: None,
            user_id: Some(String::new()),
            model_id: Some("é".repeat(100)),
        };
        let usage = Usage::new(5, 7).with(TokenKind::Reasoning, 3);
        let estimate = Actual::of_usage(usage);
        let price = Some(Box::new(Price::free(Currency::USD)));
        Spend { spender, price, estimate, is_more: true }
    }

    #[test]
    fn what_a_record_says_is_read_and_nothing_less() {
        for spend in [spend(), Spend { price: None, is_more: false, ..spend() }] {
            let mut bytes = Vec::new();
            spend.write(&mut bytes);
            let length = bytes.len();
            bytes.extend_from_slice(b"rest");
            assert_eq!(Spend::read(&bytes), Some((spend, &b"rest"[..])));
            for length in 0..length {
                assert_eq!(Spend::read(&bytes[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn what_is_not_stated_stays_as_estimated() {
        let mut price = Price::free(Currency::USD);
        price.per_request = 3;
        let spend = Spend { price: Some(Box::new(price)), is_more: false, ..spend() };
        let receipts = Receipts { spend: Some(Box::new(spend)), ..Receipts::default() };
        let of = |actual: Actual| receipts.settled_usage(1, 2, &actual).unwrap();
        let plain = of(Actual::default());
        assert_eq!((plain.tokens, plain.requests), (12, 1));
        assert_eq!(plain.money.unwrap().nanos, 3);
        assert_ne!(plain.id, 1, "the id of a reservation ends it");
        assert_eq!(of(Amounts::tokens(4).into()).tokens, 4);
        assert_eq!(of(Amounts::tokens(4).into()).usage.total(), 0, "of no known kind");
        let kinds = Amounts { input_tokens: Some(2), cached_tokens: Some(9), ..Amounts::NONE };
        assert_eq!(of(kinds.into()).tokens, 9);
        let money = Money { currency: Currency::USD, nanos: 8 };
        let stated = of(Amounts { money: Some(money), ..Amounts::NONE }.into());
        assert_eq!((stated.tokens, stated.money), (12, Some(money)));
        assert_eq!(of(Actual::of_usage(Usage::new(1, 1))).tokens, 2);
    }

    #[test]
    fn what_is_settled_without_a_ledger_is_not_reported() {
        assert!(!Receipts::default().has_spend());
        assert_eq!(Receipts::default().settled_usage(1, 2, &Actual::default()), None);
    }
}
