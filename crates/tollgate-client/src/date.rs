//! Dates as HTTP and JSON have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const SECONDS_PER_DAY: u64 = 86_400;

/// From the first of March of year 0 to 1970.
const DAYS_TO_EPOCH: u64 = 719_468;

/// Digits of a nanosecond.
const NANO_DIGITS: usize = 9;

/// A date and time of day, UTC.
#[derive(Default)]
struct Moment {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Moment {
    fn since_epoch(&self) -> Option<Duration> {
        let is_sound = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            // A leap second is the last second once more.
            && self.second <= 60;
        if !is_sound {
            return None;
        }
        // Years begin in March, so that the leap day comes last.
        let (year, month) = match self.month {
            1 | 2 => (self.year - 1, self.month + 9),
            month => (self.year, month - 3),
        };
        let days = 365 * year + year / 4 - year / 100 + year / 400;
        let days = days + (153 * month + 2) / 5 + self.day - 1;
        let days = days.checked_sub(DAYS_TO_EPOCH)?;
        let seconds = self.hour * 3600 + self.minute * 60 + self.second.min(59);
        Some(Duration::from_secs(days * SECONDS_PER_DAY + seconds))
    }
}

/// A date as in `Retry-After` and `Date`, in any of the three forms that HTTP has had.
pub(crate) fn http_date(text: &str) -> Option<SystemTime> {
    let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let mut moment = Moment::default();
    let time = match words.as_slice() {
        // Sunday, 06-Nov-94 08:49:37 GMT
        [_, date, time, "GMT"] => {
            let mut parts = date.split('-');
            moment.day = number(parts.next()?)?;
            moment.month = month_of(parts.next()?)?;
            let year = number(parts.next()?)?;
            moment.year = year + if year < 70 { 2000 } else { 1900 };
            time
        }
        // Sun, 06 Nov 1994 08:49:37 GMT, and Sun Nov  6 08:49:37 1994
        [_, day, month, year, time, "GMT"] | [_, month, day, time, year] => {
            (moment.day, moment.month, moment.year) =
                (number(day)?, month_of(month)?, number(year)?);
            time
        }
        _ => return None,
    };
    set_time(&mut moment, time)?;
    Some(UNIX_EPOCH + moment.since_epoch()?)
}

/// A time as in JSON: `2026-01-02T03:04:05.678Z`.
pub(crate) fn rfc3339(text: &str) -> Option<SystemTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut parts = date.split('-');
    let mut moment = Moment {
        year: number(parts.next()?)?,
        month: number(parts.next()?)?,
        day: number(parts.next()?)?,
        ..Moment::default()
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    set_time(&mut moment, time)?;
    let nanos = match fraction {
        "" => 0,
        digits if digits.len() <= NANO_DIGITS => number(&format!("{digits:0<NANO_DIGITS$}"))?,
        _ => return None,
    };
    Some(UNIX_EPOCH + moment.since_epoch()? + Duration::from_nanos(nanos))
}

fn set_time(moment: &mut Moment, time: &str) -> Option<()> {
    let mut parts = time.split(':');
    moment.hour = number(parts.next()?)?;
    moment.minute = number(parts.next()?)?;
    moment.second = number(parts.next()?)?;
    parts.next().is_none().then_some(())
}

fn month_of(name: &str) -> Option<u64> {
    MONTHS.iter().position(|month| *month == name).map(|place| place as u64 + 1)
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn all_three_forms_of_http_are_read() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(seconds(http_date(text).unwrap()), 784_111_777, "{text}");
        }
        assert_eq!(seconds(http_date("Thu, 29 Feb 2024 00:00:00 GMT").unwrap()), 1_709_164_800);
        for wrong in ["", "soon", "06 Nov 1994", "Sun, 06 Nov 1994 08:49:37 CET", "1", "-1"] {
            assert!(http_date(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn times_of_json_are_read() {
        let time = rfc3339("2026-11-15T19:26:00.123Z").unwrap();
        assert_eq!(time.duration_since(UNIX_EPOCH).unwrap().as_millis(), 1_794_770_760_123);
        assert_eq!(seconds(rfc3339("1970-01-01T00:00:00Z").unwrap()), 0);
        for wrong in ["", "2026-11-15", "2026-13-01T00:00:00Z", "2026-11-15T24:00:00Z", "T:Z"] {
            assert!(rfc3339(wrong).is_none(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,40}|[0-9A-Za-z:,\\- TZ.]{0,40}") {
            let _ = (http_date(&text), rfc3339(&text));
        }

        #[test]
        fn days_follow_each_other(days in 0..100_000_u64) {
            // Counted forward from 1970, one day at a time would be slow; month lengths are not.
            let (mut year, mut month, mut rest) = (1970_u64, 0_usize, days);
            let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
            loop {
                let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
                if rest < lengths[month] {
                    break;
                }
                rest -= lengths[month];
                month += 1;
                if month == 12 {
                    (year, month) = (year + 1, 0);
                }
            }
            let text = format!("{year:04}-{:02}-{:02}T00:00:00Z", month + 1, rest + 1);
            prop_assert_eq!(seconds(rfc3339(&text).unwrap()), days * SECONDS_PER_DAY);
        }
    }
}
