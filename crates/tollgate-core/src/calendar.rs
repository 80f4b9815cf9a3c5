//! Calendar windows: minutes to years in a time zone.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use crate::{LATEST, Nanos, SECOND};

/// The length of a calendar window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// A minute of the wall clock.
    Minute,
    /// An hour of the wall clock.
    Hour,
    /// Midnight to midnight.
    Day,
    /// Monday to Monday.
    Week,
    /// A month, from the anchor day on.
    Month,
    /// 1 January to 1 January.
    Year,
}

impl CalendarUnit {
    /// Every unit.
    pub const ALL: [Self; 6] =
        [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The name in rules and keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    const fn nominal_seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }
}

/// Why a calendar window cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The IANA database has no such time zone.
    #[error("there is no time zone {0:?}; use an IANA name such as \"Europe/Berlin\" or \"UTC\"")]
    UnknownTimeZone(String),
    /// A day no month has.
    #[error("anchor_day must be from 1 to 31, not {0}")]
    AnchorDay(u8),
    /// An anchor day without a month to anchor.
    #[error("anchor_day is for calendar: month only")]
    AnchorNotTaken,
}

/// A calendar period in a time zone.
#[derive(Debug)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    zone_name: String,
    anchor_day: i8,
    /// The window that was asked for last, packed: a pure function remembered, not state.
    memo: AtomicU64,
}

impl Clone for Calendar {
    fn clone(&self) -> Self {
        Self {
            unit: self.unit,
            zone: self.zone.clone(),
            zone_name: self.zone_name.clone(),
            anchor_day: self.anchor_day,
            memo: AtomicU64::new(self.memo.load(Ordering::Relaxed)),
        }
    }
}

/// In the memo, the low bits hold the window's seconds (a year needs 25), the rest its start.
const LENGTH_BITS: u32 = 26;

impl Calendar {
    /// A calendar window in the IANA time zone `zone`. `anchor_day` (default 1) is the day a month
    /// starts at; in shorter months it is the last day.
    pub fn new(
        unit: CalendarUnit,
        zone: &str,
        anchor_day: Option<u8>,
    ) -> Result<Self, CalendarError> {
        let found = TimeZone::get(zone)
            .map_err(|_| CalendarError::UnknownTimeZone(zone.chars().take(64).collect()))?;
        let anchor = match anchor_day {
            None => 1,
            Some(_) if unit != CalendarUnit::Month => return Err(CalendarError::AnchorNotTaken),
            Some(day @ 1..=31) => i8::try_from(day).unwrap_or(1),
            Some(day) => return Err(CalendarError::AnchorDay(day)),
        };
        let zone_name = found.iana_name().unwrap_or(zone).to_owned();
        Ok(Self { unit, zone: found, zone_name, anchor_day: anchor, memo: AtomicU64::new(0) })
    }

    /// The unit.
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The IANA name of the time zone.
    pub fn zone_name(&self) -> &str {
        &self.zone_name
    }

    /// The day a month starts at.
    pub const fn anchor_day(&self) -> u8 {
        self.anchor_day.unsigned_abs()
    }

    /// The usual length of the unit (30 days for a month, 365 for a year).
    pub const fn nominal_nanos(&self) -> Nanos {
        self.unit.nominal_seconds() * SECOND
    }

    /// Start and end of the window that `now` falls in.
    pub fn bounds(&self, now: Nanos) -> (Nanos, Nanos) {
        let now = now.min(LATEST);
        let memo = self.memo.load(Ordering::Relaxed);
        let start = (memo >> LENGTH_BITS) * SECOND;
        let end = start + (memo & ((1 << LENGTH_BITS) - 1)) * SECOND;
        if start <= now && now < end {
            return (start, end);
        }
        let seconds = now / SECOND;
        // The calendar ends in the year 9999, time here in 2262: the fallback is for the type.
        let (start, end) = self.compute(seconds).unwrap_or_else(|| {
            let length = self.unit.nominal_seconds();
            (seconds - seconds % length, seconds - seconds % length + length)
        });
        self.memo.store(start << LENGTH_BITS | (end - start), Ordering::Relaxed);
        (start * SECOND, end * SECOND)
    }

    fn compute(&self, seconds: u64) -> Option<(u64, u64)> {
        let at = Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
        let (start, end) = match self.unit {
            CalendarUnit::Minute | CalendarUnit::Hour => self.clock_window(at)?,
            _ => self.day_window(at)?,
        };
        // Before 1970 there is no time here: a window that began earlier starts at the epoch.
        let (start, end) = (u64::try_from(start).unwrap_or(0), u64::try_from(end).ok()?);
        (start <= seconds && seconds < end).then_some((start, end))
    }

    /// A minute or an hour of the wall clock, cut where the zone's offset changes inside it.
    fn clock_window(&self, at: Timestamp) -> Option<(i64, i64)> {
        let length = i64::try_from(self.unit.nominal_seconds()).ok()?;
        let local = at.as_second() + i64::from(self.zone.to_offset(at).seconds());
        let start = at.as_second() - local.rem_euclid(length);
        let end = start + length;
        let just_after = Timestamp::from_second(at.as_second() + 1).ok()?;
        // A transition may change no more than the zone's abbreviation.
        let moves_the_clock = |at: &i64| {
            let offset = |second| Timestamp::from_second(second).map(|at| self.zone.to_offset(at));
            offset(*at - 1).ok() != offset(*at).ok()
        };
        let before = self.zone.preceding(just_after).map(|t| t.timestamp().as_second());
        let after = self.zone.following(at).map(|t| t.timestamp().as_second());
        let before = before.take_while(|at| *at > start).find(moves_the_clock);
        let after = after.take_while(|at| *at < end).find(moves_the_clock);
        Some((before.unwrap_or(start), after.unwrap_or(end)))
    }

    /// The days of the window that `at` falls in. Where the clock is set back across midnight a
    /// date returns after its successor began; what it shows then belongs to the successor.
    fn day_window(&self, at: Timestamp) -> Option<(i64, i64)> {
        let (mut first, mut next) = self.days(self.zone.to_datetime(at).date())?;
        while self.midnight(next)? <= at.as_second() {
            (first, next) = self.days(next)?;
        }
        Some((self.midnight(first)?, self.midnight(next)?))
    }

    /// The first day of the window that `day` is in, and of the next one.
    fn days(&self, day: Date) -> Option<(Date, Date)> {
        match self.unit {
            CalendarUnit::Week => {
                let back = i64::from(day.weekday().to_monday_zero_offset());
                let first = day.checked_sub(back.days()).ok()?;
                Some((first, first.checked_add(7.days()).ok()?))
            }
            CalendarUnit::Month => {
                let anchored = |month: Date| {
                    let length = month.days_in_month();
                    month.with().day(self.anchor_day.min(length)).build().ok()
                };
                let this_month = day.first_of_month();
                let here = anchored(this_month)?;
                if day >= here {
                    Some((here, anchored(this_month.checked_add(1.month()).ok()?)?))
                } else {
                    Some((anchored(this_month.checked_sub(1.month()).ok()?)?, here))
                }
            }
            CalendarUnit::Year => {
                let first = day.first_of_year();
                Some((first, first.checked_add(1.year()).ok()?))
            }
            _ => Some((day, day.checked_add(1.day()).ok()?)),
        }
    }

    /// The first instant of a day: its first 00:00, or the transition that skips it.
    fn midnight(&self, day: Date) -> Option<i64> {
        let start = self.zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0));
        let is_skipped = matches!(start.offset(), AmbiguousOffset::Gap { .. });
        let start = start.compatible().ok()?;
        if is_skipped {
            // In a gap the compatible instant lies after the transition, by as much as 00:00 lies
            // inside the gap.
            let just_after = Timestamp::from_second(start.as_second() + 1).ok()?;
            return Some(self.zone.preceding(just_after).next()?.timestamp().as_second());
        }
        Some(start.as_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No zone since 1970 has skipped a midnight that was not the start of its gap; one may.
    #[test]
    fn a_day_whose_midnight_lies_inside_a_gap_starts_at_the_transition() {
        // From 23:30 to 00:30 on the last Saturday of March: 2024-03-30T23:30Z.
        let zone = TimeZone::posix("STD0DST-1,M3.5.6/23:30,M10.5.0/3").unwrap();
        let calendar = || Calendar {
            unit: CalendarUnit::Day,
            zone: zone.clone(),
            zone_name: String::new(),
            anchor_day: 1,
            memo: AtomicU64::new(0),
        };
        let seconds = |at: &str| at.parse::<Timestamp>().unwrap().as_second().unsigned_abs();
        let transition = seconds("2024-03-30T23:30Z") * SECOND;
        let (before, after) =
            (seconds("2024-03-30T00:00Z") * SECOND, seconds("2024-03-31T23:00Z") * SECOND);
        assert_eq!(calendar().bounds(transition - 1), (before, transition));
        assert_eq!(calendar().bounds(transition), (transition, after));
        assert_eq!(calendar().bounds(transition + 1_000 * SECOND), (transition, after));
    }
}
