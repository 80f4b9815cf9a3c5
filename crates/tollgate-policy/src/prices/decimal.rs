//! Amounts of money as decimal strings, such as `"0.0123"`, and as integers of 1e-9.

/// How many nanos one currency unit has.
pub const NANOS_PER_UNIT: u64 = 1_000_000_000;

/// The highest amount: Redis scripts count in doubles, which are exact up to here.
pub const MAX_AMOUNT_NANOS: u64 = (1 << 53) - 1;

/// The digits after the point that nanos hold.
const DECIMALS: usize = 9;

/// Why a text is not an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// It is not digits with at most one point.
    #[error("must be a decimal number in quotes, such as \"5.00\" or \"0.0123\"")]
    NotDecimal,
    /// It is below zero.
    #[error("must not be negative")]
    Negative,
    /// A part of it is below 1e-9.
    #[error("must not have more than 9 digits after the point")]
    TooPrecise,
    /// It is above [`MAX_AMOUNT_NANOS`].
    #[error("must not be above 9007199.254740991, the highest amount that is counted exactly")]
    TooLarge,
}

/// The amount that a text such as `5`, `5.00` or `0.0123` states, in nanos.
pub fn parse_nanos(text: &str) -> Result<u64, AmountError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (units, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(units) || !is_number(fraction) {
        return Err(AmountError::NotDecimal);
    }
    if digits.len() < text.len() {
        return Err(AmountError::Negative);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > DECIMALS {
        return Err(AmountError::TooPrecise);
    }
    // Digits alone: what cannot be parsed is too large.
    let units: u64 = units.parse().map_err(|_| AmountError::TooLarge)?;
    let nanos: u64 =
        format!("{fraction:0<DECIMALS$}").parse().map_err(|_| AmountError::TooLarge)?;
    let whole = units.checked_mul(NANOS_PER_UNIT).and_then(|whole| whole.checked_add(nanos));
    whole.filter(|whole| *whole <= MAX_AMOUNT_NANOS).ok_or(AmountError::TooLarge)
}

/// An amount as the shortest text that states it: `5`, `0.0123`.
pub fn format_nanos(nanos: u64) -> String {
    let (units, fraction) = (nanos / NANOS_PER_UNIT, nanos % NANOS_PER_UNIT);
    if fraction == 0 {
        return units.to_string();
    }
    format!("{units}.{fraction:0DECIMALS$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_exactly() {
        for (text, nanos) in [
            ("0", 0),
            ("5", 5_000_000_000),
            ("5.00", 5_000_000_000),
            ("0.0123", 12_300_000),
            ("0.000000001", 1),
            ("1.0000000010000", 1_000_000_001),
            ("007.5", 7_500_000_000),
            ("9007199.254740991", MAX_AMOUNT_NANOS),
        ] {
            assert_eq!(parse_nanos(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        use AmountError::{Negative, NotDecimal, TooLarge, TooPrecise};
        for (text, error) in [
            ("", NotDecimal),
            (".", NotDecimal),
            (".5", NotDecimal),
            ("5.", NotDecimal),
            ("1e3", NotDecimal),
            ("+1", NotDecimal),
            (" 1", NotDecimal),
            ("1,000", NotDecimal),
            ("1.2.3", NotDecimal),
            ("five", NotDecimal),
            ("--1", NotDecimal),
            ("٣", NotDecimal),
            ("-1", Negative),
            ("-0.5", Negative),
            ("0.0000000001", TooPrecise),
            ("9007199.254740992", TooLarge),
            ("99999999999999999999999999", TooLarge),
        ] {
            assert_eq!(parse_nanos(text), Err(error), "{text}");
        }
    }

    #[test]
    fn amounts_survive_their_text() {
        for nanos in [0, 1, 10, 12_300_000, 999_999_999, 5_000_000_000, MAX_AMOUNT_NANOS] {
            assert_eq!(parse_nanos(&format_nanos(nanos)), Ok(nanos));
        }
        assert_eq!(format_nanos(12_300_000), "0.0123");
        assert_eq!(format_nanos(u64::MAX), "18446744073.709551615");
    }
}
