//! What requests cost in money: a price table, and the price of a request's usage.
//!
//! All amounts are integers of 1e-9 currency units ("nanos"). A request's money is summed exactly and rounded up
//! once, so that a budget is never charged less than the table says.

mod bytes;
mod currency;
mod decimal;
mod price;
mod read;
mod table;

pub use currency::Currency;
pub use decimal::{AmountError, MAX_AMOUNT_NANOS, NANOS_PER_UNIT, format_nanos, parse_nanos};
pub use price::{MAX_LONG_CONTEXT_TIERS, MAX_PRICE_NANOS, Price, TokenKind, Unstated, Usage};
pub use table::{MAX_MODEL_BYTES, MAX_PRICES, PriceTable};

/// An amount of one currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Money {
    /// Its currency.
    pub currency: Currency,
    /// How much, in 1e-9 of a unit.
    pub nanos: u64,
}

impl std::fmt::Display for Money {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", format_nanos(self.nanos), self.currency)
    }
}
