//! Times as logs write them.

use tollgate_core::{LATEST, Nanos, SECOND};

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Numbers below are seconds since 1970 (until the year 5138), below the next bound milliseconds, and
/// so on: no two units can be confused for times from 1973 on.
const MAX_SECONDS: u64 = 100_000_000_000;

/// Digits of a second that are read; further ones are dropped.
const FRACTION_DIGITS: usize = 9;

/// A time in any of the forms that logs use.
pub(crate) fn parse(text: &str) -> Option<Nanos> {
    let bytes = text.trim().trim_matches(['[', ']']).as_bytes();
    match (bytes.get(2), bytes.get(4)) {
        (Some(b'/'), _) => parse_clf(bytes),
        (_, Some(b'-')) => parse_iso(bytes),
        _ => parse_epoch(bytes),
    }
}

/// `10/Oct/2000:13:55:36 -0700`, with a fraction of a second or without.
pub(crate) fn parse_clf(text: &[u8]) -> Option<Nanos> {
    let day = number(text.get(..2)?)?;
    let name = text.get(3..6)?;
    let month = MONTHS.iter().position(|month| month.eq_ignore_ascii_case(name))? as u64 + 1;
    let year = number(text.get(7..11)?)?;
    let marks = [(2, b'/'), (6, b'/'), (11, b':')];
    if marks.iter().any(|(place, mark)| text.get(*place) != Some(mark)) {
        return None;
    }
    instant((year, month, day), text.get(12..)?)
}

/// `2026-11-16T13:55:36.123Z`, with an offset or a space instead of the `T` too.
fn parse_iso(text: &[u8]) -> Option<Nanos> {
    let year = number(text.get(..4)?)?;
    let month = number(text.get(5..7)?)?;
    let day = number(text.get(8..10)?)?;
    let is_separated = text.get(7) == Some(&b'-') && matches!(text.get(10)?, b'T' | b't' | b' ');
    if !is_separated {
        return None;
    }
    instant((year, month, day), text.get(11..)?)
}

/// Seconds, milliseconds, microseconds or nanoseconds since 1970.
fn parse_epoch(text: &[u8]) -> Option<Nanos> {
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let whole = number(text.get(..dot)?)?;
    let nanos_per_unit = if whole < MAX_SECONDS {
        SECOND
    } else if whole < MAX_SECONDS * 1_000 {
        SECOND / 1_000
    } else if whole < MAX_SECONDS * 1_000_000 {
        1_000
    } else {
        1
    };
    let fraction = text.get(dot + 1..).map_or(Some(0), fraction)?;
    let part = u128::from(fraction) * u128::from(nanos_per_unit) / u128::from(SECOND);
    bounded(u128::from(whole) * u128::from(nanos_per_unit) + part)
}

/// A date, and the rest from the hours on.
fn instant((year, month, day): (u64, u64, u64), rest: &[u8]) -> Option<Nanos> {
    let (hour, minute) = (number(rest.get(..2)?)?, number(rest.get(3..5)?)?);
    let second = number(rest.get(6..8)?)?;
    let is_valid = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && year >= 1970
        && hour < 24
        && minute < 60
        // A leap second is the last one of its minute.
        && second <= 60
        && rest.get(2) == Some(&b':')
        && rest.get(5) == Some(&b':');
    if !is_valid {
        return None;
    }
    let rest = rest.get(8..)?;
    let (nanos, rest) = match rest.split_first() {
        Some((b'.' | b',', digits)) => {
            let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (fraction(digits.get(..length)?)?, digits.get(length..)?)
        }
        _ => (0, rest),
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60;
    let seconds = seconds + second.min(59);
    let utc = seconds.checked_add_signed(-offset_seconds(rest)?)?;
    bounded(u128::from(utc) * u128::from(SECOND) + u128::from(nanos))
}

/// `Z`, `+02:00`, `-0700` or nothing, which is UTC.
fn offset_seconds(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii();
    let (sign, digits) = match text.split_first() {
        None | Some((b'Z' | b'z', [])) => return Some(0),
        Some((b'+', digits)) => (1, digits),
        Some((b'-', digits)) => (-1, digits),
        Some(_) => return None,
    };
    let hours = number(digits.get(..2)?)?;
    let minutes = match digits.get(2..)? {
        [] => 0,
        [b':', minutes @ ..] | minutes => number(minutes)?,
    };
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3_600 + minutes * 60).cast_signed())
}

/// Digits after the dot, as billionths.
fn fraction(digits: &[u8]) -> Option<u64> {
    let kept = digits.get(..digits.len().min(FRACTION_DIGITS))?;
    let missing = FRACTION_DIGITS - kept.len();
    if kept.is_empty() {
        return Some(0);
    }
    Some(number(kept)? * 10_u64.pow(missing as u32))
}

fn bounded(nanos: u128) -> Option<Nanos> {
    u64::try_from(nanos).ok().filter(|nanos| *nanos <= LATEST)
}

/// A whole number of at most 19 digits.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
    }
    Some(value)
}

fn days_in(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the civil calendar, by years that begin in March.
const fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year % 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    // 719,468 days lie between the first of March of the year 0 and 1970. Years before 1970 are
    // rejected above; January and February of 1970 count to 1969.
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_one_instant_is_that_instant() {
        let seconds = 971_211_336 * SECOND;
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "[10/Oct/2000:20:55:36 +0000]",
            "2000-10-10T20:55:36Z",
            "2000-10-10 20:55:36",
            "2000-10-10T22:55:36+02:00",
            "2000-10-11T02:25:36.000+0530",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "971211336000000000",
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        let parts = seconds + 123_456_789;
        assert_eq!(parse("2000-10-10T20:55:36.123456789Z"), Some(parts));
        assert_eq!(parse("971211336.123456789"), Some(parts));
        assert_eq!(parse("971211336123.456789"), Some(parts));
        assert_eq!(parse("2000-10-10T20:55:36,123Z"), Some(seconds + 123_000_000));
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse("2024-02-29T00:00:00Z"), Some(1_709_164_800 * SECOND));
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2016-12-31T23:59:59Z"));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "x",
            "10/Okt/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 +0000",
            "2023-02-29T00:00:00Z",
            "2000-13-10T20:55:36Z",
            "2000-10-10T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "9999-01-01T00:00:00Z",
            "99999999999999999999",
            "-5",
            "2000-10-10T20:55:36 CET",
            "[",
            "2000-10-10T20:55",
            "1é/Oct/2000:13:55:36 +0000",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
