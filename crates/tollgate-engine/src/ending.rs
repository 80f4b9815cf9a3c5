//! How reservations end, as bytes: what is written down before the charges change, and the answer after.
//!
//! Bytes of cost and tokens alone are those that nodes before money wrote, so that nodes of both versions can finish
//! what the other began. Those of other units are a format of their own, which older nodes refuse.

use tollgate_policy::Unit;
use tollgate_policy::prices::{Currency, Money, TokenKind, Unstated, Usage};

use crate::receipts::Settled;
use crate::{Actual, Amounts};

/// How a reservation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It was settled.
    Settled,
    /// It was released.
    Released,
}

impl Ending {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Released => "released",
        }
    }
}

/// How a reservation is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Settle(Actual),
    Release,
}

/// Changes when the bytes of [`How`] and of answers do.
const FORMAT: u8 = 1;

/// The format of a [`How`] with other units than cost and tokens.
const FORMAT_UNITS: u8 = 2;

/// The byte of a truth without a usage; that of one says how its kinds are to be read.
const NO_USAGE: u8 = 0;

/// In the order of their bytes.
const UNSTATED: [Unstated; 5] = [
    Unstated::Plain,
    Unstated::Unknown { may_hear: false, may_speak: false },
    Unstated::Unknown { may_hear: true, may_speak: false },
    Unstated::Unknown { may_hear: false, may_speak: true },
    Unstated::Unknown { may_hear: true, may_speak: true },
];

/// The units that came with money, in the order of their bytes.
const LATER_UNITS: [Unit; 4] =
    [Unit::InputTokens, Unit::OutputTokens, Unit::CachedTokens, Unit::Money];

impl How {
    pub(crate) const fn ending(self) -> Ending {
        match self {
            Self::Settle(_) => Ending::Settled,
            Self::Release => Ending::Released,
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, self.ending() as u8];
        let Self::Settle(Actual { amounts, usage }) = self else { return bytes };
        push_optional(&mut bytes, amounts.tokens);
        push_optional(&mut bytes, amounts.cost);
        let has_later = LATER_UNITS.iter().any(|unit| amounts.get(*unit).is_some());
        if !has_later && usage.is_none() {
            return bytes;
        }
        if let Some(format) = bytes.first_mut() {
            *format = FORMAT_UNITS;
        }
        for unit in LATER_UNITS {
            push_optional(&mut bytes, amounts.get(unit));
        }
        amounts.money.map_or(Currency::USD, |money| money.currency).write(&mut bytes);
        bytes.push(usage.map_or(NO_USAGE, |usage| kinds_byte(usage.unstated())));
        if let Some(usage) = usage {
            for kind in TokenKind::ALL {
                bytes.extend_from_slice(&usage.tokens(kind).to_le_bytes());
            }
            bytes.extend_from_slice(&usage.images().to_le_bytes());
            bytes.extend_from_slice(&usage.requests().to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        if *head == [FORMAT, 1] {
            return rest.is_empty().then_some(Self::Release);
        }
        let has_later = match head {
            [FORMAT, 0] => false,
            [FORMAT_UNITS, 0] => true,
            _ => return None,
        };
        let (tokens, rest) = take_optional(rest)?;
        let (cost, rest) = take_optional(rest)?;
        let amounts = Amounts { cost, tokens, ..Amounts::NONE };
        if !has_later {
            return rest.is_empty().then_some(Self::Settle(amounts.into()));
        }
        let (input_tokens, rest) = take_optional(rest)?;
        let (output_tokens, rest) = take_optional(rest)?;
        let (cached_tokens, rest) = take_optional(rest)?;
        let (nanos, rest) = take_optional(rest)?;
        let (currency, rest) = Currency::read(rest)?;
        let money = nanos.map(|nanos| Money { currency, nanos });
        let amounts = Amounts { input_tokens, output_tokens, cached_tokens, money, ..amounts };
        let (has_usage, rest) = rest.split_first()?;
        let usage = match (*has_usage, rest) {
            (NO_USAGE, []) => None,
            (kinds, rest) => Some(take_usage(rest)?.with_unstated(kinds_of(kinds)?)),
        };
        Some(Self::Settle(Actual { amounts, usage }))
    }
}

/// Of which kinds the tokens of a usage are that no part states. Older nodes refuse all but the first.
fn kinds_byte(unstated: Unstated) -> u8 {
    let mut places = UNSTATED.iter().zip(NO_USAGE + 1..);
    places.find(|(known, _)| **known == unstated).map_or(NO_USAGE + 1, |it| it.1)
}

fn kinds_of(byte: u8) -> Option<Unstated> {
    let place = byte.checked_sub(NO_USAGE + 1)?;
    UNSTATED.get(usize::from(place)).copied()
}

fn push_optional(bytes: &mut Vec<u8>, figure: Option<u64>) {
    bytes.push(u8::from(figure.is_some()));
    bytes.extend_from_slice(&figure.unwrap_or(0).to_le_bytes());
}

fn take_optional(bytes: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let (is_given, rest) = bytes.split_first()?;
    let (figure, rest) = rest.split_first_chunk()?;
    Some(((*is_given == 1).then(|| u64::from_le_bytes(*figure)), rest))
}

/// A usage that is all of these bytes.
fn take_usage(bytes: &[u8]) -> Option<Usage> {
    let (figures, []) = bytes.as_chunks::<8>() else { return None };
    let (kinds, [images, requests]) = figures.split_last_chunk()?;
    if kinds.len() != TokenKind::ALL.len() {
        return None;
    }
    let (images, requests) = (u64::from_le_bytes(*images), u64::from_le_bytes(*requests));
    let usage = Usage::default().with_images(images).with_requests(requests);
    let with = |usage: Usage, (kind, tokens): (TokenKind, &[u8; 8])| {
        usage.with(kind, u64::from_le_bytes(*tokens))
    };
    Some(TokenKind::ALL.into_iter().zip(kinds).fold(usage, with))
}

/// Older nodes read the first four figures, and leave the others.
pub(crate) fn encode_answer(ending: Ending, settled: &Settled) -> Vec<u8> {
    let Settled { refunded, extra } = settled;
    let mut bytes = vec![FORMAT, ending as u8];
    for unit in [Unit::Tokens, Unit::Cost] {
        bytes.extend_from_slice(&refunded.of(unit).to_le_bytes());
        bytes.extend_from_slice(&extra.of(unit).to_le_bytes());
    }
    if LATER_UNITS.iter().all(|unit| refunded.of(*unit) == 0 && extra.of(*unit) == 0) {
        return bytes;
    }
    for unit in LATER_UNITS {
        bytes.extend_from_slice(&refunded.of(unit).to_le_bytes());
        bytes.extend_from_slice(&extra.of(unit).to_le_bytes());
    }
    let money = refunded.money.or(extra.money);
    money.map_or(Currency::USD, |money| money.currency).write(&mut bytes);
    bytes
}

pub(crate) fn decode_answer(bytes: &[u8]) -> Option<(Ending, Settled)> {
    let ([FORMAT, ending], rest) = bytes.split_first_chunk()? else { return None };
    let ending = match ending {
        0 => Ending::Settled,
        1 => Ending::Released,
        _ => return None,
    };
    let (first, rest) = take_pairs::<2>(rest)?;
    let (later, currency) = match rest {
        [] => ([(0, 0); 4], Currency::USD),
        rest => {
            let (later, rest) = take_pairs::<4>(rest)?;
            let (currency, []) = Currency::read(rest)? else { return None };
            (later, currency)
        }
    };
    let [tokens, cost] = first;
    let [input, output, cached, money] = later;
    let amounts = |of: fn((u64, u64)) -> u64| {
        let of = |pair| Some(of(pair)).filter(|amount| *amount > 0);
        Amounts {
            tokens: of(tokens),
            cost: of(cost),
            input_tokens: of(input),
            output_tokens: of(output),
            cached_tokens: of(cached),
            money: of(money).map(|nanos| Money { currency, nanos }),
        }
    };
    Some((ending, Settled { refunded: amounts(|pair| pair.0), extra: amounts(|pair| pair.1) }))
}

/// What was refunded, and what was used beyond the reservation.
type Pair = (u64, u64);

/// So many pairs.
fn take_pairs<const N: usize>(bytes: &[u8]) -> Option<([Pair; N], &[u8])> {
    let mut pairs = [(0, 0); N];
    let mut rest = bytes;
    for pair in &mut pairs {
        let (refunded, after) = rest.split_first_chunk()?;
        let (extra, after) = after.split_first_chunk()?;
        *pair = (u64::from_le_bytes(*refunded), u64::from_le_bytes(*extra));
        rest = after;
    }
    Some((pairs, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MONEY: Money = Money { currency: Currency::USD, nanos: 12_300_000 };

    #[test]
    fn how_and_answers_survive_their_bytes() {
        let settle = |tokens, cost| How::Settle(Amounts { cost, tokens, ..Amounts::NONE }.into());
        let usage = Usage::new(5, 7).with(TokenKind::Reasoning, 3).with_images(2);
        let unknown = |may_speak| {
            let unstated = Unstated::Unknown { may_hear: true, may_speak };
            How::Settle(Actual::of_usage(usage.with_unstated(unstated)))
        };
        let with_money = Amounts { money: Some(MONEY), input_tokens: Some(0), ..Amounts::NONE };
        for how in [
            How::Release,
            settle(None, None),
            settle(Some(0), None),
            settle(None, Some(9)),
            How::Settle(with_money.into()),
            How::Settle(Actual::of_usage(usage)),
            unknown(false),
            unknown(true),
            How::Settle(Actual { amounts: with_money, usage: Some(usage) }),
        ] {
            let bytes = how.encode();
            assert_eq!(How::decode(&bytes), Some(how));
            for length in 0..bytes.len() {
                assert_eq!(How::decode(&bytes[..length]), None);
            }
        }
        let refunded = Amounts { tokens: Some(1), cost: Some(3), ..Amounts::NONE };
        let extra = Amounts { tokens: Some(2), cost: Some(u64::MAX), ..Amounts::NONE };
        let plain = Settled { refunded, extra };
        let priced = Settled {
            refunded: Amounts { money: Some(MONEY), ..refunded },
            extra: Amounts { cached_tokens: Some(4), ..extra },
        };
        for (ending, settled) in [(Ending::Settled, plain), (Ending::Released, priced)] {
            let bytes = encode_answer(ending, &settled);
            assert_eq!(decode_answer(&bytes), Some((ending, settled)));
        }
        assert_eq!(decode_answer(&encode_answer(Ending::Settled, &plain)[..33]), None);
    }

    /// What nodes before money wrote, and what they read.
    #[test]
    fn bytes_of_cost_and_tokens_are_those_of_older_nodes() {
        let how = How::Settle(Amounts { tokens: Some(5), ..Amounts::NONE }.into());
        let mut written = vec![1, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0];
        written.extend_from_slice(&[0; 9]);
        assert_eq!(how.encode(), written);
        assert_eq!(How::decode(&written), Some(how));
        let priced =
            Actual { amounts: Amounts { money: Some(MONEY), ..Amounts::NONE }, usage: None };
        assert_eq!(How::Settle(priced).encode()[..2], [2, 0], "older nodes refuse it");

        let refunded = Amounts { tokens: Some(1), money: Some(MONEY), ..Amounts::NONE };
        let settled = Settled { refunded, extra: Amounts::NONE };
        let bytes = encode_answer(Ending::Settled, &settled);
        assert_eq!(bytes[..10], [1, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let older = decode_answer(&bytes[..34]).unwrap().1;
        assert_eq!(older.refunded, Amounts::tokens(1));
    }
}
