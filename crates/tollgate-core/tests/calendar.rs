//! Calendar windows against civil dates walked day by day.
//!
//! Whatever a zone does, windows partition time: each instant is in one, and all instants of one
//! agree about it.

#![allow(clippy::unwrap_used)]

mod support;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use proptest::sample::select;
use support::config;
use tollgate_core::{
    Algorithm, Ask, Calendar, CalendarError, CalendarUnit, Examination, Limit, LimitSpec, SECOND,
    Window,
};

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "America/St_Johns",
    "America/Havana",
    "Africa/Monrovia",
    "Africa/Casablanca",
    "Asia/Pyongyang",
    "Antarctica/Troll",
    "Asia/Tehran",
    "America/Scoresbysund",
];

fn date_at(zone: &TimeZone, second: i64) -> Date {
    zone.to_datetime(Timestamp::from_second(second).unwrap()).date()
}

/// The first second at which the wall shows `day` or a later one: found by halving around noon UTC.
fn first_second_of(zone: &TimeZone, day: Date) -> i64 {
    let noon = day.at(12, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp().as_second();
    // The date may go back and forth near midnight, so walk to the first, minute by minute.
    let mut second = noon - 30 * 3_600;
    while date_at(zone, second) < day {
        second += 60;
    }
    let mut exact = second - 60;
    while date_at(zone, exact) < day {
        exact += 1;
    }
    exact
}

fn starts_a_window(unit: CalendarUnit, anchor: i8, day: Date) -> bool {
    match unit {
        CalendarUnit::Week => day.weekday() == Weekday::Monday,
        CalendarUnit::Month => {
            day.day() == anchor || (day.day() < anchor && day.tomorrow().unwrap().day() == 1)
        }
        CalendarUnit::Year => day.day_of_year() == 1,
        _ => true,
    }
}

/// The window of whole days that a second is in, walking from its date.
fn walked(zone: &TimeZone, unit: CalendarUnit, anchor: i8, second: i64) -> (i64, i64) {
    // Two days on, so that a date that comes twice is walked past.
    let mut day = date_at(zone, second).checked_add(2.days()).unwrap();
    let mut end = None;
    loop {
        if starts_a_window(unit, anchor, day) {
            let first = first_second_of(zone, day);
            if first <= second {
                break (first, end.unwrap());
            }
            end = Some(first);
        }
        if end.is_none() {
            // No start among the days just ahead: look on for the next one.
            let mut ahead = day.tomorrow().unwrap();
            while !starts_a_window(unit, anchor, ahead) {
                ahead = ahead.tomorrow().unwrap();
            }
            end = Some(first_second_of(zone, ahead));
        }
        day = day.yesterday().unwrap();
    }
}

fn bounds_at(calendar: &Calendar, second: i64) -> (i64, i64) {
    let (start, end) = calendar.bounds(second.cast_unsigned() * SECOND + 999_999_999);
    assert_eq!((start % SECOND, end % SECOND), (0, 0));
    ((start / SECOND).cast_signed(), (end / SECOND).cast_signed())
}

fn check_partition(fresh: impl Fn() -> Calendar, second: i64) -> Result<(), TestCaseError> {
    let (start, end) = bounds_at(&fresh(), second);
    prop_assert!(start <= second && second < end, "{} in {}..{}", second, start, end);
    for inside in [start, start + 1, i64::midpoint(start, end), end - 1] {
        let inside = inside.min(end - 1);
        prop_assert_eq!(bounds_at(&fresh(), inside), (start, end), "inside, at {}", inside);
    }
    let calendar = fresh();
    prop_assert_eq!(bounds_at(&calendar, end).0, end, "the next one starts where it ends");
    if start > 0 {
        prop_assert_eq!(bounds_at(&calendar, start - 1).1, start, "as it does with the one before");
    }
    Ok(())
}

/// Seconds from 1970 to 2100, near transitions of the zone more often than not.
fn near_transitions(zone: &TimeZone, raw: u64, near: i64) -> i64 {
    let any = (raw % (130 * 31_556_952)).cast_signed();
    let at = Timestamp::from_second(any).unwrap();
    match (near, zone.following(at).next()) {
        (-100_000..=100_000, Some(transition)) => {
            (transition.timestamp().as_second() + near).max(0)
        }
        _ => any,
    }
}

fn near() -> impl Strategy<Value = i64> {
    prop_oneof![-2..=2i64, -5_000..=5_000i64, -90_000..=90_000i64, Just(i64::MAX)]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn days_are_walked_dates(
        zone in select(ZONES),
        unit in select(&[CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month][..]),
        anchor in prop_oneof![Just(1u8), 28..=31u8, 1..=31u8],
        raw in any::<u64>(),
        near in near(),
    ) {
        let tz = TimeZone::get(zone).unwrap();
        let anchor_day = (unit == CalendarUnit::Month).then_some(anchor);
        let calendar = Calendar::new(unit, zone, anchor_day).unwrap();
        let second = near_transitions(&tz, raw, near);
        let (start, end) = walked(&tz, unit, anchor.cast_signed(), second);
        prop_assert_eq!(bounds_at(&calendar, second), (start.max(0), end));
    }

    #[test]
    fn windows_partition_time(
        zone in select(ZONES),
        unit in select(&CalendarUnit::ALL[..]),
        anchor in 1..=31u8,
        raw in any::<u64>(),
        near in near(),
    ) {
        let tz = TimeZone::get(zone).unwrap();
        let anchor = (unit == CalendarUnit::Month).then_some(anchor);
        let second = near_transitions(&tz, raw, near);
        check_partition(|| Calendar::new(unit, zone, anchor).unwrap(), second)?;
    }

    /// A minute or an hour is one of the wall clock: inside it the wall shows the same one and the
    /// offset does not change; it ends because the one or the other does.
    #[test]
    fn clock_windows_are_of_the_wall(
        zone in select(ZONES),
        is_hour in any::<bool>(),
        raw in any::<u64>(),
        near in near(),
    ) {
        let tz = TimeZone::get(zone).unwrap();
        let unit = if is_hour { CalendarUnit::Hour } else { CalendarUnit::Minute };
        let second = near_transitions(&tz, raw, near);
        let wall = |second: i64| {
            let at = Timestamp::from_second(second).unwrap();
            let civil = tz.to_datetime(at);
            let minute = if is_hour { 0 } else { civil.minute() };
            (civil.date(), civil.hour(), minute, tz.to_offset(at))
        };
        let (start, end) = bounds_at(&Calendar::new(unit, zone, None).unwrap(), second);
        prop_assert!(start <= second && second < end);
        for inside in [start, i64::midpoint(start, second), i64::midpoint(second, end), end - 1] {
            prop_assert_eq!(wall(inside), wall(second));
        }
        prop_assert_ne!(wall(end), wall(second));
        if start > 0 {
            prop_assert_ne!(wall(start - 1), wall(second));
        }
    }
}

/// Every transition of every zone from 1970 to 2040, on both sides of it and a day around.
#[test]
fn windows_partition_time_at_every_transition_of_every_zone() {
    let last = Timestamp::from_second(70 * 31_556_952).unwrap();
    let mut seen = 0;
    for name in jiff::tz::db().available() {
        let Ok(zone) = TimeZone::get(name.as_str()) else { continue };
        let units = [CalendarUnit::Minute, CalendarUnit::Hour, CalendarUnit::Day];
        let fresh = units.map(|unit| Calendar::new(unit, name.as_str(), None).unwrap());
        for transition in zone.following(Timestamp::UNIX_EPOCH).take_while(|t| t.timestamp() < last)
        {
            let at = transition.timestamp().as_second();
            for second in [at - 3_600, at - 1, at, at + 1, at + 1_799, at + 3_600] {
                for calendar in &fresh {
                    check_partition(|| calendar.clone(), second.max(0))
                        .unwrap_or_else(|error| panic!("{name} {:?} {error}", calendar.unit()));
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 100_000, "{seen}");
}

fn seconds_of(timestamp: &str) -> i64 {
    timestamp.parse::<Timestamp>().unwrap().as_second()
}

#[track_caller]
fn assert_window(unit: CalendarUnit, zone: &str, anchor: Option<u8>, at: &str, is: (&str, &str)) {
    let calendar = Calendar::new(unit, zone, anchor).unwrap();
    let (start, end) = bounds_at(&calendar, seconds_of(at));
    assert_eq!((start, end), (seconds_of(is.0), seconds_of(is.1)), "{zone} {at}");
}

#[test]
fn days_that_zones_bend() {
    use CalendarUnit::{Day, Month, Week, Year};
    let cases = [
        (
            Day,
            "Europe/Berlin",
            None,
            "2024-03-31T12:00Z",
            ("2024-03-30T23:00Z", "2024-03-31T22:00Z"),
        ),
        (
            Day,
            "Europe/Berlin",
            None,
            "2024-10-27T12:00Z",
            ("2024-10-26T22:00Z", "2024-10-27T23:00Z"),
        ),
        // The 30th never was.
        (
            Day,
            "Pacific/Apia",
            None,
            "2011-12-30T09:59:59Z",
            ("2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        ),
        (
            Day,
            "Pacific/Apia",
            None,
            "2011-12-30T10:00:00Z",
            ("2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        ),
        (
            Month,
            "Pacific/Apia",
            Some(30),
            "2011-12-30T10:00Z",
            ("2011-12-30T10:00Z", "2012-01-29T10:00Z"),
        ),
        // Midnight was skipped: the day starts at 01:00.
        (
            Day,
            "America/Sao_Paulo",
            None,
            "2017-10-15T12:00Z",
            ("2017-10-15T03:00Z", "2017-10-16T02:00Z"),
        ),
        // Midnight came, went back to 23:01, and came again: the day starts the first time.
        (
            Day,
            "America/St_Johns",
            None,
            "2006-10-29T02:31:30Z",
            ("2006-10-29T02:30Z", "2006-10-30T03:30Z"),
        ),
        (Week, "UTC", None, "2024-01-07T23:59:59Z", ("2024-01-01T00:00Z", "2024-01-08T00:00Z")),
        (Month, "UTC", Some(31), "2024-02-29T00:00Z", ("2024-02-29T00:00Z", "2024-03-31T00:00Z")),
        (Month, "UTC", Some(31), "2023-02-27T23:59Z", ("2023-01-31T00:00Z", "2023-02-28T00:00Z")),
        (Month, "UTC", Some(30), "2024-02-28T00:00Z", ("2024-01-30T00:00Z", "2024-02-29T00:00Z")),
        (Month, "UTC", Some(15), "2024-01-01T00:00Z", ("2023-12-15T00:00Z", "2024-01-15T00:00Z")),
        (
            Year,
            "America/New_York",
            None,
            "2024-07-01T00:00Z",
            ("2024-01-01T05:00Z", "2025-01-01T05:00Z"),
        ),
    ];
    for (unit, zone, anchor, at, is) in cases {
        assert_window(unit, zone, anchor, at, is);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let new = |unit, zone, anchor| Calendar::new(unit, zone, anchor).map(|_| ()).unwrap_err();
    let unknown = new(CalendarUnit::Day, "Europe/Nowhere", None);
    assert_eq!(unknown, CalendarError::UnknownTimeZone("Europe/Nowhere".to_owned()));
    assert_eq!(new(CalendarUnit::Month, "UTC", Some(32)), CalendarError::AnchorDay(32));
    assert_eq!(new(CalendarUnit::Month, "UTC", Some(0)), CalendarError::AnchorDay(0));
    assert_eq!(new(CalendarUnit::Day, "UTC", Some(1)), CalendarError::AnchorNotTaken);
}

#[test]
fn a_day_of_25_hours_is_one_window() {
    let calendar = Calendar::new(CalendarUnit::Day, "Europe/Berlin", None).unwrap();
    let spec = LimitSpec {
        algorithm: Algorithm::FixedWindow,
        quota: 2,
        window: Window::Calendar(calendar),
        burst: None,
        slot_ttl: 0,
    };
    let limit = Limit::new(spec).unwrap();
    let mut state = limit.fresh();
    let nanos = |at| seconds_of(at).cast_unsigned() * SECOND;
    let (first, last) = (nanos("2024-10-26T22:00Z"), nanos("2024-10-27T22:59:59Z"));
    let midnight = nanos("2024-10-27T23:00Z");
    assert!(limit.decide(&mut state, &Ask::cost(1), first).examination.admits());
    assert!(limit.decide(&mut state, &Ask::cost(1), last).examination.admits());
    let refused = Examination::Refuse { retry_at: Some(midnight) };
    assert_eq!(limit.examine(&state, &Ask::cost(1), first), refused);
    assert_eq!(limit.examine(&state, &Ask::cost(1), midnight - 1), refused);
    assert!(limit.examine(&state, &Ask::cost(2), midnight).admits());
    assert_eq!(limit.fresh_at(&state), midnight);
}
