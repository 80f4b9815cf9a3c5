//! Small checks that several parts of the compiler share.

use jiff::Timestamp;
use tollgate_core::{LATEST, Nanos, SECOND};

use crate::node::Spot;
use crate::prices::Currency;
use crate::problem::Report;
use crate::raw::At;

/// The longest window: ten years.
pub const MAX_WINDOW: Nanos = 3_653 * 86_400 * SECOND;
/// The longest rule id.
pub const MAX_RULE_ID_BYTES: usize = 128;
/// The longest scope, tier, store or attribute name.
pub const MAX_NAME_BYTES: usize = 128;
/// The longest description or reason.
pub const MAX_DESCRIPTION_BYTES: usize = 4_096;
/// The longest value that is compared with an attribute.
pub const MAX_VALUE_BYTES: usize = 256;

/// A length of time such as `500ms`, `5s`, `1m`, `1h`, `1d` or `1w`.
pub fn parse_duration(text: &str) -> Result<Nanos, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(split).unwrap_or((text, ""));
    let nanos = match unit {
        "ms" => SECOND / 1_000,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        "d" => 86_400 * SECOND,
        "w" => 7 * 86_400 * SECOND,
        _ => 0,
    };
    if nanos == 0 || digits.is_empty() {
        return Err("must be a number and a unit, such as 500ms, 5s, 1m, 1h, 1d or 1w".into());
    }
    let number = digits.parse::<u64>().unwrap_or(u64::MAX);
    window_length(i128::from(number) * i128::from(nanos))
}

/// A window of this many nanoseconds, if it may be.
pub(crate) fn window_length(nanos: i128) -> Result<Nanos, String> {
    match u64::try_from(nanos) {
        Ok(0) | Err(_) if nanos <= 0 => Err("must be longer than zero".into()),
        Ok(nanos) if nanos <= MAX_WINDOW => Ok(nanos),
        _ => Err("must not be longer than ten years".into()),
    }
}

/// An instant in RFC 3339.
pub(crate) fn instant(
    value: Option<&At<String>>,
    field: &str,
    report: &mut Report,
) -> Option<Nanos> {
    let At { at, value } = value?;
    let Ok(timestamp) = value.parse::<Timestamp>() else {
        let message = "must be an instant with its offset, such as 2026-01-31T08:00:00Z";
        report.add(*at, Some(field), message);
        return None;
    };
    let Ok(nanos) = u128::try_from(timestamp.as_nanosecond()) else {
        report.add(*at, Some(field), "must not be before 1970");
        return None;
    };
    Some(u64::try_from(nanos).unwrap_or(LATEST).min(LATEST))
}

/// One of several names.
pub(crate) fn choice<T: Copy>(
    value: Option<&At<String>>,
    field: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    report: &mut Report,
) -> Option<T> {
    let At { at, value } = value?;
    let found = all.iter().copied().find(|one| name(*one) == value);
    if found.is_none() {
        let names: Vec<&str> = all.iter().copied().map(name).collect();
        let short: String = value.chars().take(40).collect();
        let message = format!("{short:?} is unknown; use one of {}", names.join(", "));
        report.add(*at, Some(field), message);
    }
    found
}

/// A currency by its code.
pub(crate) fn currency(code: &At<String>, field: &str, report: &mut Report) -> Option<Currency> {
    let currency = Currency::from_code(&code.value);
    if currency.is_none() {
        let message = "is not a currency code of ISO 4217, such as USD or EUR";
        report.add(code.at, Some(field), message);
    }
    currency
}

/// A field that must be there.
pub(crate) fn require<'f>(
    value: Option<&'f At<String>>,
    at: Spot,
    field: &str,
    report: &mut Report,
) -> Option<&'f At<String>> {
    if value.is_none() {
        report.add(at, Some(field), "is missing");
    }
    value
}

/// A share of one, in millionths.
pub(crate) fn share_ppm(value: Option<&At<f64>>, field: &str, report: &mut Report) -> Option<u32> {
    const MILLION: f64 = 1_000_000.0;
    let At { at, value } = value?;
    let ppm = (value * MILLION).round();
    if (1.0..=MILLION).contains(&ppm) && *value <= 1.0 {
        #[expect(clippy::cast_sign_loss, reason = "between 1 and a million")]
        return Some(ppm as u32);
    }
    report.add(*at, Some(field), "must be above 0 and at most 1, such as 0.8");
    None
}

/// Text that is not empty, not too long and free of control characters.
pub(crate) fn plain(value: &At<String>, field: &str, most: usize, report: &mut Report) -> bool {
    let text = &value.value;
    let message = if text.trim().is_empty() {
        "must not be empty".to_owned()
    } else if text.len() > most {
        format!("must not be longer than {most} bytes")
    } else if text.chars().any(char::is_control) {
        "must not hold control characters".to_owned()
    } else {
        return true;
    };
    report.add(value.at, Some(field), message);
    false
}
