//! A price as bytes, so that a reservation is settled at the price of its admission, on any node.

use super::price::{MAX_LONG_CONTEXT_TIERS, Prices, TokenKind};
use super::{Currency, Price};

/// The letters of a currency's code.
const CODE_BYTES: usize = 3;

impl Currency {
    /// Appends its code.
    pub fn write(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.code().as_bytes());
    }

    /// Reads a code, and returns what follows.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (code, rest) = bytes.split_at_checked(CODE_BYTES)?;
        Some((Self::from_code(std::str::from_utf8(code).ok()?)?, rest))
    }
}

impl Price {
    /// Appends the price.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        self.currency.write(bytes);
        bytes.extend_from_slice(&self.per_request.to_le_bytes());
        bytes.extend_from_slice(&self.per_image.to_le_bytes());
        write_prices(bytes, &self.per_million);
        // The reader of price files allows far fewer than 255.
        bytes.push(u8::try_from(self.long_context.len()).unwrap_or(u8::MAX));
        for (above, prices) in &self.long_context {
            bytes.extend_from_slice(&above.to_le_bytes());
            write_prices(bytes, prices);
        }
    }

    /// Reads a price, and returns what follows.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (currency, bytes) = Currency::read(bytes)?;
        let (per_request, bytes) = read_u64(bytes)?;
        let (per_image, bytes) = read_u64(bytes)?;
        let (per_million, bytes) = read_prices(bytes)?;
        let (&tiers, mut bytes) = bytes.split_first()?;
        if usize::from(tiers) > MAX_LONG_CONTEXT_TIERS {
            return None;
        }
        let mut long_context = Vec::with_capacity(usize::from(tiers));
        for _ in 0..tiers {
            let (above, rest) = read_u64(bytes)?;
            let (prices, rest) = read_prices(rest)?;
            long_context.push((above, prices));
            bytes = rest;
        }
        Some((Self { currency, per_request, per_image, per_million, long_context }, bytes))
    }
}

fn write_prices(bytes: &mut Vec<u8>, prices: &Prices) {
    for price in prices {
        bytes.push(u8::from(price.is_some()));
        bytes.extend_from_slice(&price.unwrap_or(0).to_le_bytes());
    }
}

fn read_prices(mut bytes: &[u8]) -> Option<(Prices, &[u8])> {
    let mut prices: Prices = [None; TokenKind::ALL.len()];
    for price in &mut prices {
        let (&is_given, rest) = bytes.split_first()?;
        let (nanos, rest) = read_u64(rest)?;
        *price = match is_given {
            0 => None,
            1 => Some(nanos),
            _ => return None,
        };
        bytes = rest;
    }
    Some((prices, bytes))
}

fn read_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}
