//! Recurring windows of time in which a rule or a limit holds (`active_when`).
//!
//! Windows are by the wall clock of a time zone. One that crosses midnight belongs to the day that it begins on. When a
//! clock is set forward, times that do not occur are in no window; when it is set back, times that occur twice are in
//! their window twice.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use tollgate_core::Nanos;

use crate::check::plain;
use crate::fields::Fields;
use crate::node::{Node, Spot};
use crate::problem::Report;
use crate::raw::{At, Text, Texts};

/// The most windows of one rule or limit.
pub const MAX_ACTIVE_WINDOWS: usize = 32;

pub(crate) const WINDOW_FIELDS: &[&str] = &["days", "from", "to", "timezone"];

/// The longest name of a time zone.
const MAX_ZONE_BYTES: usize = 64;

const MINUTES_PER_DAY: u16 = 24 * 60;

/// The names of days in rule files, Monday first.
pub(crate) const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Windows as typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawWindow {
    pub(crate) at: Spot,
    /// Its path in the rule, such as `active_when[0]`.
    pub(crate) path: String,
    pub(crate) days: Texts,
    pub(crate) from: Text,
    pub(crate) to: Text,
    pub(crate) timezone: Text,
}

/// Recurring windows: active in any of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule(Vec<Window>);

#[derive(Debug, Clone)]
struct Window {
    /// A bit for every day that it begins on, Monday first.
    days: u8,
    /// Minutes of the day. Where the end is not after the start, it is on the next day.
    from: u16,
    to: u16,
    zone_name: String,
    zone: TimeZone,
}

impl PartialEq for Window {
    fn eq(&self, other: &Self) -> bool {
        let own = (self.days, self.from, self.to, &self.zone_name);
        own == (other.days, other.from, other.to, &other.zone_name)
    }
}

impl Eq for Window {}

const ALL_DAYS: u8 = 0b111_1111;

impl Window {
    fn is_active(&self, now: Timestamp) -> bool {
        let local = self.zone.to_datetime(now);
        let (hour, minute) = (local.hour().unsigned_abs(), local.minute().unsigned_abs());
        let minute = u16::from(hour) * 60 + u16::from(minute);
        let begins_on = |day: Weekday| self.days >> day.to_monday_zero_offset() & 1 == 1;
        let today = local.weekday();
        if self.from < self.to {
            return begins_on(today) && (self.from..self.to).contains(&minute);
        }
        (begins_on(today) && minute >= self.from)
            || (begins_on(today.previous()) && minute < self.to)
    }
}

impl Schedule {
    /// Whether it is active at this instant.
    pub fn is_active(&self, now: Nanos) -> bool {
        // The last instant that can be named is centuries from now.
        let now = Timestamp::from_nanosecond(i128::from(now)).unwrap_or(Timestamp::MAX);
        self.0.iter().any(|window| window.is_active(now))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, window) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            let days = (0..7).filter(|day| window.days >> day & 1 == 1);
            let days: Vec<&str> = days.filter_map(|day| DAYS.get(day).copied()).collect();
            if window.days == ALL_DAYS {
                f.write_str("daily")?;
            } else {
                f.write_str(&days.join("+"))?;
            }
            let (from, to) = (window.from, window.to);
            write!(f, " {:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)?;
            write!(f, " {}", window.zone_name)?;
        }
        Ok(())
    }
}

/// Reads the windows of a rule or a limit; `None` where it has none.
pub(crate) fn read_windows(fields: &Fields<'_>, report: &mut Report) -> Option<At<Vec<RawWindow>>> {
    let node = fields.node("active_when")?;
    let items = fields.list("active_when", report)?;
    let name = fields.path("active_when");
    let windows = items.iter().enumerate();
    let windows =
        windows.filter_map(|(index, item)| read_window(item, format!("{name}[{index}]"), report));
    Some(At { at: node.at, value: windows.collect() })
}

fn read_window(item: &Node, path: String, report: &mut Report) -> Option<RawWindow> {
    let fields = Fields::open(item, &path, WINDOW_FIELDS, report)?;
    Some(RawWindow {
        at: fields.at,
        days: fields.texts("days", report),
        from: fields.text("from", report),
        to: fields.text("to", report),
        timezone: fields.text("timezone", report),
        path,
    })
}

/// Checks windows. The result is whole only if nothing was reported.
pub(crate) fn compile_windows(
    raw: Option<&At<Vec<RawWindow>>>,
    prefix: &str,
    report: &mut Report,
) -> Option<Box<Schedule>> {
    let raw = raw?;
    let field = format!("{prefix}active_when");
    if raw.value.is_empty() {
        report.add(
            raw.at,
            Some(&field),
            "must have at least one window; leave it out to be always active",
        );
    }
    if raw.value.len() > MAX_ACTIVE_WINDOWS {
        let message = format!("must not have more than {MAX_ACTIVE_WINDOWS} windows");
        report.add(raw.at, Some(&field), message);
        return None;
    }
    let windows = raw.value.iter().filter_map(|window| compile_window(window, report));
    Some(Box::new(Schedule(windows.collect())))
}

fn compile_window(raw: &RawWindow, report: &mut Report) -> Option<Window> {
    let path = |name: &str| format!("{}.{name}", raw.path);
    if raw.days.is_none() && raw.from.is_none() && raw.to.is_none() {
        report.add(raw.at, Some(&raw.path), "says nothing; give days, from or to");
        return None;
    }
    let from = time(raw.from.as_ref(), 0, &path("from"), report);
    let to = time(raw.to.as_ref(), MINUTES_PER_DAY, &path("to"), report);
    let days = days(raw, &path("days"), report);
    let name = raw.timezone.as_ref().map_or("UTC", |zone| zone.value.as_str());
    let is_plain = raw
        .timezone
        .as_ref()
        .is_none_or(|zone| plain(zone, &path("timezone"), MAX_ZONE_BYTES, report));
    let zone = is_plain.then(|| TimeZone::get(name).ok()).flatten();
    if is_plain && zone.is_none() {
        let message = "is no IANA time zone, such as Europe/Berlin or UTC";
        report.add(
            raw.timezone.as_ref().map_or(raw.at, |zone| zone.at),
            Some(&path("timezone")),
            message,
        );
    }
    let (from, to, days, zone) = (from?, to?, days, zone?);
    if from == MINUTES_PER_DAY {
        report.add(raw.at, Some(&path("from")), "must be before 24:00");
        return None;
    }
    // From and to alike is a whole day, which begins at that time.
    Some(Window { days, from, to, zone_name: name.to_owned(), zone })
}

fn days(raw: &RawWindow, path: &str, report: &mut Report) -> u8 {
    let Some(days) = &raw.days else { return ALL_DAYS };
    let mut bits = 0;
    for day in &days.value {
        let name = day.value.to_ascii_lowercase();
        let place = DAYS.iter().position(|known| {
            *known == name
                || (name.len() > 3 && FULL_DAYS.contains(&name.as_str()) && name.starts_with(known))
        });
        match place {
            Some(place) => bits |= 1 << place,
            None => {
                report.add(day.at, Some(path), "must be days: mon, tue, wed, thu, fri, sat, sun");
            }
        }
    }
    if days.value.is_empty() {
        report.add(days.at, Some(path), "must name at least one day; leave it out for every day");
    }
    bits
}

const FULL_DAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// A time of the day in minutes.
fn time(raw: Option<&At<String>>, absent: u16, path: &str, report: &mut Report) -> Option<u16> {
    let Some(raw) = raw else { return Some(absent) };
    let digits = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    let parsed = raw.value.split_once(':').and_then(|(hour, minute)| {
        let minutes = digits(hour)? * 60 + digits(minute).filter(|minute| *minute < 60)?;
        (minutes <= MINUTES_PER_DAY).then_some(minutes)
    });
    if parsed.is_none() {
        report.add(
            raw.at,
            Some(path),
            "must be a time such as \"08:30\", up to \"24:00\", in quotes",
        );
    }
    parsed
}

#[cfg(test)]
mod tests {
    use tollgate_core::SECOND;

    use crate::{Attributes, Known, RuleSet, RuleVerdict};

    /// Nanoseconds since 1970 of an instant.
    fn at(text: &str) -> u64 {
        text.parse::<jiff::Timestamp>().unwrap().as_second().cast_unsigned() * SECOND
    }

    fn rules(windows: &str) -> Result<RuleSet, String> {
        let text = format!(
            "default: none\nrules:\n  - {{rule_id: a, limit: 1, window: 1m, active_when: {windows}}}\n"
        );
        RuleSet::from_yaml(&text, "rules").map_err(|problems| problems.to_string())
    }

    fn is_active(set: &RuleSet, now: &str) -> bool {
        let resolution = set.resolve(&Attributes::default(), at(now));
        !resolution.enforced.is_empty()
    }

    #[track_caller]
    fn check(windows: &str, times: &[(&str, bool)]) {
        let set = rules(windows).unwrap();
        for (now, expected) in times {
            assert_eq!(is_active(&set, now), *expected, "{windows} at {now}");
        }
    }

    #[test]
    fn windows_are_by_the_wall_clock_of_their_zone() {
        // Berlin is two hours ahead of UTC in summer, one in winter. 2026-07-06 is a Monday.
        let office =
            "[{days: [mon, tue], from: \"08:00\", to: \"18:00\", timezone: Europe/Berlin}]";
        check(
            office,
            &[
                ("2026-07-06T05:59:59Z", false),
                ("2026-07-06T06:00:00Z", true),
                ("2026-07-06T15:59:59Z", true),
                ("2026-07-06T16:00:00Z", false),
                ("2026-07-08T10:00:00Z", false),
                ("2026-01-05T06:59:00Z", false),
                ("2026-01-05T07:00:00Z", true),
            ],
        );
        // The day is that of the zone: in Auckland it is Tuesday already.
        check(
            "[{days: tuesday, timezone: Pacific/Auckland}]",
            &[("2026-07-06T12:00:00Z", true), ("2026-07-07T12:00:00Z", false)],
        );
    }

    #[test]
    fn a_window_across_midnight_belongs_to_the_day_it_begins_on() {
        let night = "[{days: [fri], from: \"22:00\", to: \"06:00\"}]";
        check(
            night,
            &[
                ("2026-07-10T21:59:59Z", false),
                ("2026-07-10T22:00:00Z", true),
                ("2026-07-11T05:59:59Z", true),
                ("2026-07-11T06:00:00Z", false),
                ("2026-07-10T03:00:00Z", false),
                ("2026-07-11T23:00:00Z", false),
            ],
        );
        // A whole day that begins in the evening, and a day to its end.
        check(
            "[{days: [sat], from: \"20:00\", to: \"20:00\"}]",
            &[
                ("2026-07-11T19:59:00Z", false),
                ("2026-07-11T20:00:00Z", true),
                ("2026-07-12T19:59:00Z", true),
                ("2026-07-12T20:00:00Z", false),
            ],
        );
        check(
            "[{from: \"23:00\", to: \"24:00\"}]",
            &[("2026-07-11T23:59:59Z", true), ("2026-07-12T00:00:00Z", false)],
        );
    }

    #[test]
    fn clock_changes_skip_and_repeat_times() {
        let early = "[{from: \"02:00\", to: \"03:00\", timezone: Europe/Berlin}]";
        // On 2026-03-29 02:00 becomes 03:00: that hour does not occur.
        check(
            early,
            &[
                ("2026-03-28T01:30:00Z", true),
                ("2026-03-29T00:59:59Z", false),
                ("2026-03-29T01:00:00Z", false),
                ("2026-03-29T01:30:00Z", false),
                ("2026-03-30T00:30:00Z", true),
            ],
        );
        // On 2026-10-25 03:00 becomes 02:00: that hour occurs twice.
        check(
            early,
            &[
                ("2026-10-24T23:59:59Z", false),
                ("2026-10-25T00:00:00Z", true),
                ("2026-10-25T01:59:59Z", true),
                ("2026-10-25T02:00:00Z", false),
            ],
        );
    }

    #[test]
    fn limits_have_windows_of_their_own() {
        let text = "default: none\nrules:\n  - rule_id: a\n    limits:\n      - {limit: 5, window: 1m}\n      \
                    - {limit: 2, window: 1h, active_when: [{from: \"22:00\", to: \"06:00\"}]}\n";
        let set = RuleSet::from_yaml(text, "rules").unwrap();
        let limits = &set.rules()[0].limits;
        let active = |now: &str| -> Vec<bool> {
            limits.iter().map(|limit| limit.is_active(at(now))).collect()
        };
        assert_eq!(active("2026-07-10T12:00:00Z"), [true, false]);
        assert_eq!(active("2026-07-10T23:00:00Z"), [true, true]);
    }

    #[test]
    fn a_rule_outside_its_windows_is_explained() {
        let set = rules("[{days: [sat, sun], timezone: Asia/Tokyo}]").unwrap();
        let mut request = Attributes::default();
        request.set(Known::UserId, "ann");
        let explained = set.explain(&request, at("2026-07-08T00:00:00Z"), 9);
        assert_eq!(explained.rules[0].verdict, RuleVerdict::Misses { field: "active_when" });
        let schedule = set.rules()[0].active_when.as_ref().unwrap();
        assert_eq!(schedule.to_string(), "sat+sun 00:00-24:00 Asia/Tokyo");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (windows, expected) in [
            ("[]", "at least one window"),
            ("[{}]", "says nothing"),
            ("[{timezone: Europe/Berlin}]", "says nothing"),
            ("[{from: \"8:00\"}]", "must be a time such as"),
            ("[{from: \"08:60\"}]", "must be a time such as"),
            ("[{to: \"24:01\"}]", "must be a time such as"),
            ("[{from: \"24:00\"}]", "must be before 24:00"),
            ("[{days: [mo]}]", "must be days: mon"),
            ("[{days: []}]", "at least one day"),
            ("[{days: {a: b}}]", "a list of texts"),
            ("[{days: [mon], timezone: Europe/Berlim}]", "no IANA time zone"),
            ("[{days: [mon], until: \"08:00\"}]", "until"),
            ("{days: [mon]}", "active_when"),
        ] {
            let problems = rules(windows).unwrap_err();
            assert!(problems.contains(expected), "{windows}: {problems}");
            assert!(problems.contains("active_when"), "{windows}: {problems}");
        }
        let many = vec!["{days: [mon]}"; 33].join(", ");
        assert!(rules(&format!("[{many}]")).unwrap_err().contains("more than 32"));
    }
}
