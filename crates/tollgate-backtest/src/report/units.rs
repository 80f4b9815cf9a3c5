//! Figures as people read them, and text that a page may hold.

use tollgate_core::{Nanos, SECOND};

/// A whole number with commas between thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as per cent, with as many digits as say something.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let text = match percent {
        0.0 => return "0 %".to_owned(),
        percent if percent < 0.001 => return "less than 0.001 %".to_owned(),
        percent if percent < 0.1 => format!("{percent:.3}"),
        percent if percent < 10.0 => format!("{percent:.2}"),
        percent if percent < 100.0 => format!("{percent:.1}"),
        percent => format!("{percent:.0}"),
    };
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

/// A figure with at most six digits after the point.
pub(super) fn figure(value: f64) -> String {
    format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A part of a whole as a share.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A length of time in the unit that reads best.
pub(super) fn length(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1_000.0),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3_600.0),
        seconds => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// An instant in RFC 3339.
pub(crate) fn instant(nanos: Nanos) -> String {
    second(nanos / SECOND, "%Y-%m-%dT%H:%M:%SZ")
}

/// An instant in UTC, for people.
pub(super) fn second(second: u64, format: &str) -> String {
    let second = i64::try_from(second).unwrap_or(i64::MAX);
    let Ok(at) = jiff::Timestamp::from_second(second) else { return "?".to_owned() };
    at.strftime(format).to_string()
}

/// One thing or several.
pub(super) fn plural(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { several })
}

/// Text in a page.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(count(1_204), "1,204");
        assert_eq!(count(1_000_000), "1,000,000");
        assert_eq!(count(12), "12");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.001), "0.1 %");
        assert_eq!(percent(0.12345), "12.3 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(percent(0.000_000_1), "less than 0.001 %");
        assert_eq!(length(0.25), "250 ms");
        assert_eq!(length(5_400.0), "90 min");
        assert_eq!(instant(971_211_336_250_000_000), "2000-10-10T20:55:36Z");
    }
}
