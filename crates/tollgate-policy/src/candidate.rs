//! Candidates: other limits of a rule, tried next to those that are in force.
//!
//! A candidate's limits are among those of its rule, marked, and count on counters of their own. For each request either
//! the rule's own limits enforce or the candidate's; the others count what passes, and report what they would refuse.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Nanos;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::check::{MAX_NAME_BYTES, MAX_VALUE_BYTES, instant, plain};
use crate::compile_limit::{Shared, compile_limits};
use crate::fields::Fields;
use crate::model::{Action, BudgetMode, Quota, RuleLimit, Unit};
use crate::node::{Node, Spot};
use crate::problem::Report;
use crate::raw::{At, RawLimit, RawRule, Text, Texts};
use crate::read::{LIMIT_FIELDS, read_limit};

/// The most tenants that a rollout names.
pub const MAX_ROLLOUT_TENANTS: usize = 1_000;
/// The most steps of a scheduled rollout.
pub const MAX_ROLLOUT_STEPS: usize = 32;
/// The highest generation of a rule's counters.
pub const MAX_GENERATION: u32 = 1_000_000;

/// A share of all keys, in hundredths of a per cent.
const ALL_KEYS: u16 = 10_000;

pub(crate) const CANDIDATE_FIELDS: &[&str] = &[
    "limit",
    "limits",
    "window_seconds",
    "window_ms",
    "window",
    "calendar",
    "timezone",
    "anchor_day",
    "algorithm",
    "burst",
    "tier_limits",
    "rollout",
];
pub(crate) const ROLLOUT_FIELDS: &[&str] = &["percent", "tenants", "schedule", "salt"];
pub(crate) const STEP_FIELDS: &[&str] = &["percent", "from"];

/// A candidate as typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawCandidate {
    pub(crate) at: Spot,
    limit: RawLimit,
    limits: Option<At<Vec<RawLimit>>>,
    percent: Option<At<f64>>,
    tenants: Texts,
    schedule: Option<At<Vec<RawStep>>>,
    salt: Text,
}

#[derive(Debug, Clone)]
struct RawStep {
    at: Spot,
    path: String,
    percent: Option<At<f64>>,
    from: Text,
}

/// For whom a candidate enforces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rollout {
    /// This share of all keys, in hundredths of a per cent.
    Share(u16),
    /// These tenants.
    Tenants(Vec<String>),
    /// Shares, each from an instant on.
    Schedule(Vec<(Nanos, u16)>),
}

impl Rollout {
    /// The share of keys at this instant, in hundredths of a per cent; `None` for tenants.
    pub fn share(&self, now: Nanos) -> Option<u16> {
        match self {
            Self::Share(share) => Some(*share),
            Self::Tenants(_) => None,
            Self::Schedule(steps) => {
                let begun = steps.iter().rev().find(|(from, _)| *from <= now);
                Some(begun.map_or(0, |(_, share)| *share))
            }
        }
    }
}

/// How often a candidate and the limits in force agreed.
#[derive(Debug, Default)]
pub struct Agreement {
    both_allow: AtomicU64,
    both_refuse: AtomicU64,
    only_live_refuses: AtomicU64,
    only_candidate_refuses: AtomicU64,
}

/// How often a candidate and the limits in force agreed, at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgreementCounts {
    /// Neither refuses.
    pub both_allow: u64,
    /// Both refuse.
    pub both_refuse: u64,
    /// The limits in force refuse, and the candidate would not.
    pub only_live_refuses: u64,
    /// The candidate refuses, and the limits in force would not.
    pub only_candidate_refuses: u64,
}

impl Agreement {
    /// Notes one decision.
    pub fn note(&self, live_refuses: bool, candidate_refuses: bool) {
        let counter = match (live_refuses, candidate_refuses) {
            (false, false) => &self.both_allow,
            (true, true) => &self.both_refuse,
            (true, false) => &self.only_live_refuses,
            (false, true) => &self.only_candidate_refuses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn counts(&self) -> AgreementCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AgreementCounts {
            both_allow: of(&self.both_allow),
            both_refuse: of(&self.both_refuse),
            only_live_refuses: of(&self.only_live_refuses),
            only_candidate_refuses: of(&self.only_candidate_refuses),
        }
    }
}

/// A candidate, checked and ready. Its limits are among those of its rule ([`RuleLimit::is_candidate`]).
#[derive(Debug, Clone)]
pub struct Candidate {
    /// For whom it enforces.
    pub rollout: Rollout,
    /// How often it agreed with the limits in force, on this node.
    pub agreement: Arc<Agreement>,
    seed: u64,
}

impl Candidate {
    /// Whether it is a step of the same rollout.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.seed == other.seed
    }

    /// Whether the candidate enforces for a request with this key, instead of the rule's own limits. It is the same on
    /// every node and after every restart.
    pub fn enforces(&self, key: &[&str], tenant: Option<&str>, now: Nanos) -> bool {
        match &self.rollout {
            Rollout::Tenants(tenants) => {
                tenant.is_some_and(|tenant| tenants.iter().any(|one| one == tenant))
            }
            rollout => match rollout.share(now).unwrap_or(0) {
                0 => false,
                ALL_KEYS.. => true,
                share => place_of(self.seed, key) < u64::from(share),
            },
        }
    }
}

/// The place of a key among all, from 0 to 9,999.
fn place_of(seed: u64, key: &[&str]) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    for part in key {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.digest() % u64::from(ALL_KEYS)
}

/// Reads the candidate of a rule.
pub(crate) fn read_candidate(
    fields: &Fields<'_>,
    is_money: bool,
    report: &mut Report,
) -> Option<Box<RawCandidate>> {
    const NAME: &str = "candidate";
    let node = fields.node(NAME)?;
    let own = Fields::open(node, NAME, CANDIDATE_FIELDS, report)?;
    let limit = read_limit(&own, format!("{NAME}."), is_money, report);
    let mut raw = RawCandidate { at: node.at, limit, ..RawCandidate::default() };
    if let (Some(node), Some(items)) = (own.node("limits"), own.list("limits", report)) {
        let limits = items.iter().enumerate().filter_map(|(index, item)| {
            let name = format!("{NAME}.limits[{index}]");
            let inner = Fields::open(item, &name, LIMIT_FIELDS, report)?;
            Some(read_limit(&inner, format!("{name}."), is_money, report))
        });
        raw.limits = Some(At { at: node.at, value: limits.collect() });
    }
    if let Some(node) = own.node("rollout") {
        read_rollout(node, &mut raw, report);
    }
    Some(Box::new(raw))
}

fn read_rollout(node: &Node, raw: &mut RawCandidate, report: &mut Report) {
    const NAME: &str = "candidate.rollout";
    let Some(own) = Fields::open(node, NAME, ROLLOUT_FIELDS, report) else { return };
    raw.percent = own.share("percent", report);
    raw.tenants = own.texts("tenants", report);
    raw.salt = own.text("salt", report);
    if let (Some(node), Some(items)) = (own.node("schedule"), own.list("schedule", report)) {
        let steps = items.iter().enumerate().filter_map(|(index, item)| {
            let path = format!("{NAME}.schedule[{index}]");
            let step = Fields::open(item, &path, STEP_FIELDS, report)?;
            let (percent, from) = (step.share("percent", report), step.text("from", report));
            Some(RawStep { at: item.at, path, percent, from })
        });
        raw.schedule = Some(At { at: node.at, value: steps.collect() });
    }
}

/// What a candidate must fit.
pub(crate) struct Live<'r> {
    pub(crate) unit: Unit,
    pub(crate) action: Action,
    pub(crate) budget_mode: BudgetMode,
    pub(crate) has_key: bool,
    pub(crate) shared: Shared<'r>,
}

/// The generation of a rule's counters: promoting a candidate raises it, so that the rule continues its counters.
pub(crate) fn generation(raw: &RawRule, report: &mut Report) -> u32 {
    let Some(given) = &raw.generation else { return 0 };
    let value = u32::try_from(given.value).ok().filter(|value| *value <= MAX_GENERATION);
    value.unwrap_or_else(|| {
        let message = format!("must be from 0 to {MAX_GENERATION}");
        report.add(given.at, Some("generation"), message);
        0
    })
}

/// Checks the candidate of a rule, and returns it with its limits.
pub(crate) fn compile_candidate(
    rule: &RawRule,
    live: &Live<'_>,
    report: &mut Report,
) -> Option<(Candidate, Vec<RuleLimit>)> {
    let raw = rule.candidate.as_deref()?;
    let refused = match live {
        Live { action: Action::LogOnly, .. } => Some("a rule that is only logged has no candidate"),
        Live { unit: Unit::Concurrency, .. } => Some("slots cannot be counted twice"),
        Live { budget_mode: BudgetMode::Hard, .. } => Some("a hard budget has no candidate"),
        _ if rule.quota_mode.as_ref().is_some_and(|flag| flag.value) => {
            Some("members of the quota group have no candidate")
        }
        _ => None,
    };
    if let Some(message) = refused {
        report.add(raw.at, Some("candidate"), format!("{message}; leave it out"));
        return None;
    }
    let typed = as_promoted(rule, raw);
    let rule_id = live.shared.rule_id;
    let mut limits = compile_limits(&typed, &live.shared, report);
    for limit in &mut limits {
        limit.is_candidate = true;
    }
    let rollout = rollout(raw, live.has_key, report);
    let seed = seed(rule_id, raw, &limits, report);
    Some((Candidate { rollout, agreement: Arc::default(), seed }, limits))
}

/// The rule's limits as they are when the candidate is promoted: what the candidate does not state is the rule's.
/// `Control::promote_candidate` does the same to the stored rule.
fn as_promoted(rule: &RawRule, raw: &RawCandidate) -> RawRule {
    let (own, live) = (&raw.limit, &rule.limit);
    let algorithm = own.algorithm.clone().or_else(|| live.algorithm.clone());
    let mut typed = RawRule { at: raw.at, limits: raw.limits.clone(), ..RawRule::default() };
    if raw.limits.is_some() {
        typed.limit = RawLimit { algorithm, ..own.clone() };
        return typed;
    }
    let mut limit = RawLimit { algorithm, ..own.clone() };
    if rule.limits.is_none() {
        limit.limit = limit.limit.or_else(|| live.limit.clone());
        limit.tier_limits = limit.tier_limits.or_else(|| live.tier_limits.clone());
        if own.algorithm.is_none() {
            limit.burst = limit.burst.or_else(|| live.burst.clone());
        }
        let has_window = own.window_seconds.is_some()
            || own.window_ms.is_some()
            || own.window.is_some()
            || own.calendar.is_some();
        if !has_window {
            limit.window_seconds.clone_from(&live.window_seconds);
            limit.window_ms.clone_from(&live.window_ms);
            limit.window.clone_from(&live.window);
            limit.calendar.clone_from(&live.calendar);
            limit.timezone = limit.timezone.or_else(|| live.timezone.clone());
            limit.anchor_day = limit.anchor_day.or_else(|| live.anchor_day.clone());
        }
    }
    typed.limit = limit;
    typed
}

fn rollout(raw: &RawCandidate, has_key: bool, report: &mut Report) -> Rollout {
    const PERCENT: &str = "candidate.rollout.percent";
    let given = [
        raw.percent.as_ref().map(|it| (it.at, "percent")),
        raw.tenants.as_ref().map(|it| (it.at, "tenants")),
        raw.schedule.as_ref().map(|it| (it.at, "schedule")),
    ];
    if let [Some(_), Some((at, name)), ..]
    | [Some(_), None, Some((at, name))]
    | [None, Some(_), Some((at, name))] = given
    {
        let field = format!("candidate.rollout.{name}");
        report.add(at, Some(&field), "give only one of percent, tenants and schedule");
    }
    if let Some(tenants) = &raw.tenants {
        return Rollout::Tenants(check_tenants(tenants, report));
    }
    if let Some(steps) = &raw.schedule {
        return Rollout::Schedule(check_steps(steps, has_key, report));
    }
    Rollout::Share(share(raw.percent.as_ref(), PERCENT, has_key, report))
}

fn check_tenants(tenants: &At<Vec<At<String>>>, report: &mut Report) -> Vec<String> {
    const TENANTS: &str = "candidate.rollout.tenants";
    if tenants.value.is_empty() || tenants.value.len() > MAX_ROLLOUT_TENANTS {
        let message = format!("must have 1 to {MAX_ROLLOUT_TENANTS} entries");
        report.add(tenants.at, Some(TENANTS), message);
    }
    for tenant in &tenants.value {
        plain(tenant, TENANTS, MAX_VALUE_BYTES, report);
    }
    tenants.value.iter().map(|tenant| tenant.value.clone()).collect()
}

fn check_steps(steps: &At<Vec<RawStep>>, has_key: bool, report: &mut Report) -> Vec<(Nanos, u16)> {
    const SCHEDULE: &str = "candidate.rollout.schedule";
    if steps.value.is_empty() || steps.value.len() > MAX_ROLLOUT_STEPS {
        let message = format!("must have 1 to {MAX_ROLLOUT_STEPS} entries");
        report.add(steps.at, Some(SCHEDULE), message);
        return Vec::new();
    }
    let mut checked: Vec<(Nanos, u16)> = Vec::new();
    for step in &steps.value {
        let path = |name: &str| format!("{}.{name}", step.path);
        if step.from.is_none() {
            report.add(step.at, Some(&path("from")), "is missing; say when the step begins");
        }
        if step.percent.is_none() {
            report.add(step.at, Some(&path("percent")), "is missing; say for how many keys");
        }
        let Some(from) = instant(step.from.as_ref(), &path("from"), report) else { continue };
        let share = share(step.percent.as_ref(), &path("percent"), has_key, report);
        if checked.last().is_some_and(|(before, _)| *before >= from) {
            report.add(step.at, Some(&path("from")), "must be after the step before");
        }
        checked.push((from, share));
    }
    checked
}

/// A share of the keys, in hundredths of a per cent.
fn share(percent: Option<&At<f64>>, field: &str, has_key: bool, report: &mut Report) -> u16 {
    let Some(At { at, value }) = percent else { return 0 };
    let hundredths = (value * 100.0).round();
    if !(0.0..=f64::from(ALL_KEYS)).contains(&hundredths) || !(0.0..=100.0).contains(value) {
        report.add(*at, Some(field), "must be from 0 to 100");
        return 0;
    }
    #[expect(clippy::cast_sign_loss, reason = "between 0 and ten thousand")]
    let share = hundredths as u16;
    if !has_key && share > 0 && share < ALL_KEYS {
        let message = "a rule without a key has one counter for all, and cannot be rolled out by share; \
                       use 0 or 100, or tenants";
        report.add(*at, Some(field), message);
    }
    share
}

/// Which keys come first. Every rollout has other ones: what it names differs, or its limits do.
fn seed(rule_id: &str, raw: &RawCandidate, limits: &[RuleLimit], report: &mut Report) -> u64 {
    let mut text = format!("{}:{rule_id}", rule_id.len());
    match &raw.salt {
        Some(salt) => {
            plain(salt, "candidate.rollout.salt", MAX_NAME_BYTES, report);
            text.push_str(&salt.value);
        }
        None => {
            for limit in limits {
                let quota = limit.base.as_ref().and_then(Quota::limit);
                let quota = quota.map_or(u64::MAX, tollgate_core::Limit::quota);
                // A String takes all that is written.
                let _ = write!(text, "{}:{}={quota};", limit.tag.len(), limit.tag);
            }
        }
    }
    xxh3_64(text.as_bytes())
}
