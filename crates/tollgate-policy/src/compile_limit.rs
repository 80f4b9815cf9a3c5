//! The limits of a rule: algorithm, window, quotas.

use hashbrown::HashSet;
use tollgate_core::{
    Algorithm, Calendar, CalendarError, CalendarUnit, Limit, LimitError, LimitSpec, Nanos, SECOND,
    StateKind, Window,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::check::{choice, parse_duration, window_length};
use crate::model::{Quota, RuleLimit, Unit};
use crate::prices::Currency;
use crate::problem::Report;
use crate::raw::{At, RawLimit, RawQuota, RawRule};
use crate::schedule::compile_windows;

/// The highest quota: Redis scripts count in doubles, which are exact up to here.
pub const MAX_QUOTA: u64 = (1 << 53) - 1;
/// The highest quota of a sliding log, which keeps every admitted request.
pub const MAX_LOG_QUOTA: u64 = 1_000_000;
/// The highest quota of a concurrency limit, which keeps every held slot.
pub const MAX_SLOTS: u64 = 100_000;
/// The most limits a rule may have.
pub const MAX_LIMITS: usize = 16;
/// How long a slot is held unless the rule says so or it is renewed.
pub const DEFAULT_SLOT_TTL: Nanos = 60 * SECOND;

const NEGATIVE: &str = "must not be negative; 0 suspends";

/// What the limits of a rule share.
pub(crate) struct Shared<'f> {
    pub(crate) rule_id: &'f str,
    pub(crate) unit: Unit,
    /// Of a rule that counts money.
    pub(crate) currency: Option<Currency>,
    pub(crate) slot_ttl: Nanos,
    /// The tiers of the file, where it lists them.
    pub(crate) tiers: Option<&'f HashSet<&'f str>>,
    /// Which of the rule's counters they use.
    pub(crate) generation: u32,
}

/// The limits of a rule. Where one cannot be, it is reported and left out.
pub(crate) fn compile_limits(
    raw: &RawRule,
    shared: &Shared<'_>,
    report: &mut Report,
) -> Vec<RuleLimit> {
    let Some(limits) = &raw.limits else {
        return compile_limit(&raw.limit, None, shared, report).into_iter().collect();
    };
    for (name, at) in given(&raw.limit) {
        if name != "algorithm" {
            let message = "belongs into the entries of limits; a rule has either limit or limits";
            report.add(at, Some(name), message);
        }
    }
    if limits.value.is_empty() {
        report.add(limits.at, Some("limits"), "must have at least one entry");
    }
    if limits.value.len() > MAX_LIMITS {
        let message = format!("must not have more than {MAX_LIMITS} entries");
        report.add(limits.at, Some("limits"), message);
        return Vec::new();
    }
    let mut compiled: Vec<RuleLimit> = Vec::new();
    for entry in &limits.value {
        let algorithm = raw.limit.algorithm.as_ref();
        let Some(limit) = compile_limit(entry, algorithm, shared, report) else { continue };
        if compiled.iter().any(|other| other.tag == limit.tag) {
            let field = entry.prefix.trim_end_matches('.');
            let message = format!(
                "another limit of this rule is {} too; give it another window or algorithm",
                limit.tag
            );
            report.add(entry.at, Some(field), message);
        }
        compiled.push(limit);
    }
    compiled
}

/// The limit fields that are there.
fn given(raw: &RawLimit) -> impl Iterator<Item = (&'static str, crate::node::Spot)> {
    let int = |value: &Option<At<i128>>| value.as_ref().map(|value| value.at);
    let text = |value: &Option<At<String>>| value.as_ref().map(|value| value.at);
    [
        ("limit", raw.limit.as_ref().map(|value| value.at)),
        ("window_seconds", int(&raw.window_seconds)),
        ("window_ms", int(&raw.window_ms)),
        ("window", text(&raw.window)),
        ("calendar", text(&raw.calendar)),
        ("timezone", text(&raw.timezone)),
        ("anchor_day", int(&raw.anchor_day)),
        ("algorithm", text(&raw.algorithm)),
        ("burst", int(&raw.burst)),
        ("tier_limits", raw.tier_limits.as_ref().map(|value| value.at)),
    ]
    .into_iter()
    .filter_map(|(name, at)| at.map(|at| (name, at)))
}

fn compile_limit(
    raw: &RawLimit,
    inherited: Option<&At<String>>,
    shared: &Shared<'_>,
    report: &mut Report,
) -> Option<RuleLimit> {
    let path = |name: &str| format!("{}{name}", raw.prefix);
    let algorithm = algorithm(raw, inherited, shared.unit, report);
    let window = window(raw, algorithm, report);
    let burst = burst(raw, algorithm, report);
    let has_tiers = raw.tier_limits.as_ref().is_some_and(|tiers| !tiers.value.is_empty());
    if raw.limit.is_none() && !has_tiers {
        let message = "is missing; give a number, \"unlimited\", or tier_limits";
        report.add(raw.at, Some(&path("limit")), message);
    }
    let (Some(algorithm), Some(window), Ok(burst)) = (algorithm, window, burst) else {
        check_signs(raw, report);
        return None;
    };
    let mut quota = |raw_quota: &At<RawQuota>, field: &str| {
        let window = window.clone();
        let spec = LimitSpec { algorithm, quota: 0, window, burst, slot_ttl: shared.slot_ttl };
        compile_quota(raw_quota, spec, field, report)
    };
    let base = match &raw.limit {
        Some(limit) => Some(quota(limit, &path("limit"))?),
        None => None,
    };
    let mut tiers = Vec::new();
    for (tier, value) in raw.tier_limits.iter().flat_map(|tiers| &tiers.value) {
        if let Some(quota) = quota(value, &path(&format!("tier_limits.{tier}"))) {
            tiers.push((tier.clone(), quota));
        }
    }
    for (tier, value) in raw.tier_limits.iter().flat_map(|tiers| &tiers.value) {
        if shared.tiers.is_some_and(|tiers| !tiers.contains(tier.as_str())) {
            let message = "is not among tiers; add it there or correct the name";
            report.add(value.at, Some(&path(&format!("tier_limits.{tier}"))), message);
        }
    }
    let mut tag = tag(algorithm, &window);
    // Amounts of different currencies are never added up.
    if let Some(currency) = shared.currency {
        tag = format!("{tag}+{currency}");
    }
    // Counters that a promoted candidate has begun.
    if shared.generation > 0 {
        tag = format!("{tag}~{}", shared.generation);
    }
    let salt = salt(shared.rule_id, &tag);
    let window_seconds = match (&window, algorithm) {
        (_, Algorithm::Concurrency) => 0,
        (Window::Every(nanos), _) => nanos.div_ceil(SECOND),
        (Window::Calendar(calendar), _) => calendar.nominal_nanos() / SECOND,
    };
    let active_when = compile_windows(raw.active_when.as_ref(), &raw.prefix, report);
    let is_candidate = false;
    Some(RuleLimit { tag, salt, window_seconds, base, tiers, active_when, is_candidate })
}

/// What can be said of quotas before algorithm and window are known.
fn check_signs(raw: &RawLimit, report: &mut Report) {
    let base = raw.limit.iter().map(|quota| ("limit".to_owned(), quota));
    let tiers = raw.tier_limits.iter().flat_map(|tiers| &tiers.value);
    let tiers = tiers.map(|(tier, quota)| (format!("tier_limits.{tier}"), quota));
    for (name, quota) in base.chain(tiers) {
        if matches!(quota.value, RawQuota::Number(..0)) {
            report.add(quota.at, Some(&format!("{}{name}", raw.prefix)), NEGATIVE);
        }
    }
}

fn algorithm(
    raw: &RawLimit,
    inherited: Option<&At<String>>,
    unit: Unit,
    report: &mut Report,
) -> Option<Algorithm> {
    let field = format!("{}algorithm", raw.prefix);
    let Some(given) = raw.algorithm.as_ref().or(inherited) else {
        return Some(match unit {
            Unit::Concurrency => Algorithm::Concurrency,
            _ if raw.calendar.is_some() => Algorithm::FixedWindow,
            _ => Algorithm::TokenBucket,
        });
    };
    // Some write the names as constants.
    let lower = At { at: given.at, value: given.value.to_ascii_lowercase() };
    let found = choice(Some(&lower), &field, &Algorithm::ALL, Algorithm::name, report)?;
    match (unit == Unit::Concurrency, found == Algorithm::Concurrency) {
        (true, false) => {
            let message = "unit concurrency goes with algorithm concurrency only; leave it out";
            report.add(given.at, Some(&field), message);
            None
        }
        (false, true) => {
            report.add(given.at, Some(&field), "algorithm concurrency needs unit: concurrency");
            None
        }
        _ if unit == Unit::Money && found == Algorithm::SlidingWindowLog => {
            let message = "money does not go with sliding_window_log, which keeps every amount; use \
                           sliding_window_counter or fixed_window";
            report.add(given.at, Some(&field), message);
            None
        }
        _ => Some(found),
    }
}

fn window(raw: &RawLimit, algorithm: Option<Algorithm>, report: &mut Report) -> Option<Window> {
    const NAMES: [&str; 4] = ["window_seconds", "window_ms", "window", "calendar"];
    let path = |name: &str| format!("{}{name}", raw.prefix);
    for (name, at) in given(raw) {
        let needs_calendar = matches!(name, "timezone" | "anchor_day");
        if needs_calendar && raw.calendar.is_none() {
            report.add(at, Some(&path(name)), "goes with calendar only");
        }
    }
    let windows: Vec<_> = given(raw).filter(|(name, _)| NAMES.contains(name)).collect();
    if algorithm == Some(Algorithm::Concurrency) {
        for (name, at) in windows {
            let message =
                "a concurrency limit has no window; slot_ttl says how long a slot is held";
            report.add(at, Some(&path(name)), message);
        }
        return Some(Window::Every(0));
    }
    match windows.as_slice() {
        [_] => {}
        [] => {
            // Without a known algorithm it may be a concurrency limit, which needs none.
            if algorithm.is_some() {
                let message = "is missing; give window_seconds, window_ms, window or calendar";
                report.add(raw.at, Some(&path("window")), message);
            }
            return None;
        }
        [_, (name, at), ..] => {
            let message = format!("give only one of {}", NAMES.join(", "));
            report.add(*at, Some(&path(name)), message);
            return None;
        }
    }
    if let Some(unit) = &raw.calendar {
        return calendar(raw, unit, algorithm, report).map(Window::Calendar);
    }
    let whole = |value: &At<i128>, unit: u64| {
        (value.at, window_length(value.value.saturating_mul(i128::from(unit))))
    };
    let (name, (at, length)) = match (&raw.window_seconds, &raw.window_ms, &raw.window) {
        (Some(seconds), _, _) => ("window_seconds", whole(seconds, SECOND)),
        (_, Some(millis), _) => ("window_ms", whole(millis, SECOND / 1_000)),
        (_, _, Some(text)) => ("window", (text.at, parse_duration(&text.value))),
        _ => return None,
    };
    match length {
        Ok(nanos) => Some(Window::Every(nanos)),
        Err(message) => {
            report.add(at, Some(&path(name)), message);
            None
        }
    }
}

fn calendar(
    raw: &RawLimit,
    unit: &At<String>,
    algorithm: Option<Algorithm>,
    report: &mut Report,
) -> Option<Calendar> {
    let path = |name: &str| format!("{}{name}", raw.prefix);
    let field = path("calendar");
    if algorithm.is_some_and(|algorithm| algorithm != Algorithm::FixedWindow) {
        report.add(unit.at, Some(&field), "calendar windows need algorithm fixed_window");
    }
    let unit = choice(Some(unit), &field, &CalendarUnit::ALL, CalendarUnit::name, report)?;
    let zone = raw.timezone.as_ref().map_or("UTC", |zone| zone.value.as_str());
    let anchor = raw.anchor_day.as_ref().map(|day| u8::try_from(day.value).unwrap_or(u8::MAX));
    match Calendar::new(unit, zone, anchor) {
        Ok(calendar) => {
            (algorithm.is_none() || algorithm == Some(Algorithm::FixedWindow)).then_some(calendar)
        }
        Err(error) => {
            let (name, at) = match &error {
                CalendarError::UnknownTimeZone(_) => {
                    ("timezone", raw.timezone.as_ref().map(|zone| zone.at))
                }
                _ => ("anchor_day", raw.anchor_day.as_ref().map(|day| day.at)),
            };
            report.add(at.unwrap_or(raw.at), Some(&path(name)), error.to_string());
            None
        }
    }
}

/// The burst, if one is given. An error has been reported.
fn burst(
    raw: &RawLimit,
    algorithm: Option<Algorithm>,
    report: &mut Report,
) -> Result<Option<u64>, ()> {
    let Some(burst) = &raw.burst else { return Ok(None) };
    let message = match u64::try_from(burst.value) {
        _ if algorithm.is_some_and(|algorithm| !algorithm.is_bucket()) => {
            "goes with token_bucket, leaky_bucket and gcra only; leave it out".to_owned()
        }
        Ok(value @ 1..=MAX_QUOTA) => return Ok(Some(value)),
        _ if burst.value <= 0 => "must be at least 1; a limit of 0 suspends".to_owned(),
        _ => format!("must not be above {MAX_QUOTA}"),
    };
    report.add(burst.at, Some(&format!("{}burst", raw.prefix)), message);
    Err(())
}

fn compile_quota(
    raw: &At<RawQuota>,
    spec: LimitSpec,
    field: &str,
    report: &mut Report,
) -> Option<Quota> {
    let RawQuota::Number(number) = raw.value else { return Some(Quota::Unlimited) };
    let most = most_of(spec.algorithm);
    let message = match u64::try_from(number) {
        Err(_) if number < 0 => NEGATIVE.to_owned(),
        Ok(quota) if quota <= most => {
            match Limit::new(LimitSpec { quota, ..spec }) {
                Ok(limit) => return Some(Quota::Limited(limit)),
                Err(LimitError::BurstTooLong) => {
                    "is too small for this burst and window: filling the burst would take more than 73 years".into()
                }
                Err(error) => error.to_string(),
            }
        }
        _ => format!("must not be above {most} for {}", spec.algorithm),
    };
    report.add(raw.at, Some(field), message);
    None
}

/// The highest quota of limits that count like this.
pub(crate) const fn most_of(algorithm: Algorithm) -> u64 {
    match algorithm.state_kind() {
        StateKind::SlidingLog => MAX_LOG_QUOTA,
        StateKind::Slots => MAX_SLOTS,
        StateKind::FixedWindow | StateKind::SlidingCounter | StateKind::Bucket => MAX_QUOTA,
    }
}

fn tag(algorithm: Algorithm, window: &Window) -> String {
    match window {
        _ if algorithm == Algorithm::Concurrency => algorithm.name().to_owned(),
        Window::Every(nanos) if nanos % SECOND == 0 => format!("{algorithm}+{}s", nanos / SECOND),
        Window::Every(nanos) => format!("{algorithm}+{}ms", nanos / (SECOND / 1_000)),
        Window::Calendar(calendar) => {
            let (unit, zone) = (calendar.unit().name(), calendar.zone_name());
            match calendar.anchor_day() {
                1 => format!("{algorithm}+{unit}@{zone}"),
                day => format!("{algorithm}+{unit}@{zone}#{day}"),
            }
        }
    }
}

/// Length-prefixed, so that no rule id can imitate another one with a tag.
fn salt(rule_id: &str, tag: &str) -> u128 {
    let mut bytes = Vec::with_capacity(rule_id.len() + tag.len() + 16);
    for part in [rule_id, tag] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    xxh3_128(&bytes)
}
