//! Instants as people give them and like to see them.

use anyhow::anyhow;
use jiff::Timestamp;
use tollgate_engine::{Clock as _, SystemClock};

use crate::failure::Failure;

/// Which way a length of time is meant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    Past,
    Future,
}

/// The time now, in whole seconds.
fn now() -> i64 {
    (SystemClock::new().now() / 1_000_000_000).cast_signed()
}

/// An instant in RFC 3339: given as such, or as a length of time before or after now.
pub(crate) fn instant(flag: &str, text: &str, direction: Direction) -> Result<String, Failure> {
    let wrong = || {
        let message =
            "must be an instant such as 2027-01-31T12:00:00Z, or a time such as 90m or 7d";
        Failure::usage(anyhow!("--{flag}: {text:?} {message}"))
    };
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.to_string());
    }
    let seconds = seconds(text).ok_or_else(wrong)?;
    let at = match direction {
        Direction::Past => now().checked_sub(seconds),
        Direction::Future => now().checked_add(seconds),
    };
    let at = at.and_then(|at| Timestamp::from_second(at).ok()).ok_or_else(wrong)?;
    Ok(at.to_string())
}

/// A length of time such as `90m`.
fn seconds(text: &str) -> Option<i64> {
    let unit = text.chars().next_back()?;
    let count: i64 = text.strip_suffix(unit)?.parse().ok().filter(|count| *count >= 0)?;
    count.checked_mul(match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return None,
    })
}

/// An instant of the API to the second, as tables have it: `2027-01-31 12:00:00Z`.
pub(crate) fn shown(text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => text.to_owned(),
    }
}

/// A number of seconds in the largest unit that divides it.
pub(crate) fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let found = units.iter().find(|(size, _)| seconds > 0 && seconds.is_multiple_of(*size));
    found.map_or_else(|| "0s".to_owned(), |(size, name)| format!("{}{name}", seconds / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        assert_eq!(seconds("90m"), Some(5_400));
        assert_eq!(seconds("2w"), Some(1_209_600));
        for wrong in ["", "m", "-1h", "1", "1x", "99999999999999999999d", "9223372036854775807d"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
        assert_eq!((span(3_600), span(90), span(0)), ("1h".into(), "90s".into(), "0s".into()));
        assert_eq!(shown("2027-01-31T12:00:00.123Z"), "2027-01-31 12:00:00Z");
        assert_eq!(shown("soon"), "soon");
    }

    #[test]
    fn instants_stay_and_spans_count_from_now() {
        let at = instant("until", "2027-01-31T13:00:00+01:00", Direction::Future).unwrap();
        assert_eq!(at, "2027-01-31T12:00:00Z");
        let (past, future) =
            (instant("s", "1h", Direction::Past), instant("u", "1h", Direction::Future));
        assert!(past.unwrap() < future.unwrap());
        assert!(instant("since", "yesterday", Direction::Past).is_err());
    }
}
