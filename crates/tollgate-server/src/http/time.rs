//! Instants as people and headers write them.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate_core::Nanos;

/// An instant in RFC 3339, to the millisecond, rounded up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rfc3339(pub(crate) Nanos);

/// The length of every instant's text: a number of nanoseconds ends in the year 2554.
const TEXT_BYTES: usize = 24;

const MILLIS_A_DAY: u64 = 24 * 60 * 60 * 1_000;

/// Days from the first of March of the year 0 to the epoch. Years that begin in March have their leap day at
/// the end, where it shifts nothing.
const DAYS_BEFORE_EPOCH: u64 = 719_468;
const DAYS_A_YEAR: u64 = 365;
const DAYS_IN_4_YEARS: u64 = 4 * DAYS_A_YEAR + 1;
const DAYS_IN_100_YEARS: u64 = 25 * DAYS_IN_4_YEARS - 1;
const DAYS_IN_400_YEARS: u64 = 4 * DAYS_IN_100_YEARS + 1;
/// From March on months come in groups of five with as many days.
const DAYS_IN_5_MONTHS: u64 = 153;

impl Rfc3339 {
    /// The text, such as `2026-11-16T09:30:00.250Z`. It stands in every answer several times, hence by
    /// hand.
    pub(crate) fn text(self) -> [u8; TEXT_BYTES] {
        let millis = self.0.div_ceil(1_000_000);
        let (days, of_day) = (millis / MILLIS_A_DAY, millis % MILLIS_A_DAY);
        let (year, month, day) = date(days);
        let (seconds, millis) = (of_day / 1_000, of_day % 1_000);
        let (minutes, second) = (seconds / 60, seconds % 60);
        let [y1, y2] = digits(year / 100);
        let [y3, y4] = digits(year % 100);
        let [m1, m2] = digits(month);
        let [d1, d2] = digits(day);
        let [h1, h2] = digits(minutes / 60);
        let [n1, n2] = digits(minutes % 60);
        let [s1, s2] = digits(second);
        let [_, f1] = digits(millis / 100);
        let [f2, f3] = digits(millis % 100);
        [
            y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2,
            b'.', f1, f2, f3, b'Z',
        ]
    }
}

/// Two decimal digits.
const fn digits(number: u64) -> [u8; 2] {
    [b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]
}

/// Year, month and day of a day since the epoch, in the Gregorian calendar.
const fn date(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_BEFORE_EPOCH;
    let (rounds, of_round) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    // Without its leap days every year is as long as the others.
    let leaps = of_round / (DAYS_IN_4_YEARS - 1) - of_round / DAYS_IN_100_YEARS
        + of_round / (DAYS_IN_400_YEARS - 1);
    let year = (of_round - leaps) / DAYS_A_YEAR;
    let of_year = of_round - (year * DAYS_A_YEAR + year / 4 - year / 100);
    let month = (5 * of_year + 2) / DAYS_IN_5_MONTHS;
    let day = of_year - (DAYS_IN_5_MONTHS * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let month = if is_next_year { month - 9 } else { month + 3 };
    (rounds * 400 + year + is_next_year as u64, month, day)
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::fmt::temporal::DateTimePrinter;
    use proptest::prelude::*;

    use super::*;

    fn known(at: Nanos) -> String {
        let printer = DateTimePrinter::new().precision(Some(3));
        let millis = i64::try_from(at.div_ceil(1_000_000)).unwrap();
        printer.timestamp_to_string(&Timestamp::from_millisecond(millis).unwrap())
    }

    /// Every day there is, and the instants around its beginning.
    #[test]
    fn every_day_is_written_as_the_library_writes_it() {
        let day = MILLIS_A_DAY * 1_000_000;
        for begins in (0..=u64::MAX / day).map(|number| number * day) {
            for at in [begins, begins.saturating_sub(1), begins.saturating_add(43_200_000_000_000)]
            {
                assert_eq!(Rfc3339(at).to_string(), known(at));
            }
        }
        assert_eq!(Rfc3339(u64::MAX).to_string(), known(u64::MAX));
    }

    proptest! {
        #[test]
        fn every_instant_is_written_as_the_library_writes_it(at: Nanos) {
            prop_assert_eq!(Rfc3339(at).to_string(), known(at));
        }
    }
}
