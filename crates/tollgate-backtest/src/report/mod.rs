//! What a backtest found.

mod build;
mod html;
mod plot;
mod text;
mod units;
mod words;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::guard::{Aim, GuardResult};
use crate::recommend::Recommendation;
use crate::shadows::Shadow;

pub(crate) use build::build;
pub(crate) use units::{instant, percent};

/// What a backtest found. As JSON it has the same fields.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The change in sentences.
    pub sentences: Vec<String>,
    /// The rules that were tested.
    pub rules: String,
    /// The rules that they were compared with.
    pub baseline: Option<String>,
    /// Requests that were decided.
    pub requests: u64,
    /// Clients that sent them: by API key, user or address.
    pub clients: u64,
    /// Whether there were more clients than are counted one by one.
    pub has_more_clients: bool,
    /// The time of the first request, RFC 3339.
    pub from: String,
    /// The time of the last request.
    pub until: String,
    /// Requests that had been answered with 429 when they were logged.
    pub logged_429: u64,
    /// Decisions that a node has recorded with their verdict.
    pub recorded: u64,
    /// Those of them that the baseline, or without one the rules, decide differently.
    pub recorded_differently: u64,
    /// What the baseline did.
    pub before: Option<Figures>,
    /// What the rules that were tested did.
    pub after: Figures,
    /// Clients that the rules refuse and the baseline does not.
    pub newly_refused_clients: u64,
    /// Clients that the baseline refuses and the rules do not.
    pub no_longer_refused_clients: u64,
    /// Clients that are refused more often than by the baseline, those that notice it most first.
    pub affected_clients: Vec<ClientRow>,
    /// What each rule did.
    pub by_rule: Vec<RuleRow>,
    /// By tenant, those with the most refusals first.
    pub by_tenant: Vec<CountRow>,
    /// By endpoint, those with the most refusals first.
    pub by_endpoint: Vec<CountRow>,
    /// By time.
    pub by_time: Vec<TimeRow>,
    /// The length of one interval of `by_time`.
    pub interval_seconds: u64,
    /// The second and the minute with the most requests.
    pub peaks: Vec<Peak>,
    /// What recommended limits keep to.
    pub aim: Aim,
    /// The limits that meet the aim.
    pub recommendations: Vec<Recommendation>,
    /// Rules that others keep from deciding.
    pub shadows: Vec<Shadow>,
    /// Rules that no request met.
    pub unmet_rules: Vec<String>,
    /// How the traffic was read.
    pub input: Input,
    /// How the guards ended.
    pub guards: Vec<GuardResult>,
}

impl Report {
    /// Whether a guard is broken.
    pub fn is_guard_broken(&self) -> bool {
        self.guards.iter().any(|guard| guard.is_broken)
    }

    /// The report for a terminal.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// The report as one page with charts, which needs nothing else.
    pub fn html(&self, made_at: &str) -> String {
        html::page(self, made_at)
    }
}

/// What one rule set did to all requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that it refused.
    pub refused: u64,
    /// Their share of all.
    pub refused_share: f64,
    /// Requests that it let wait.
    pub throttled: u64,
    /// Their share of all.
    pub throttled_share: f64,
    /// Requests that it put into the queue.
    pub queued: u64,
    /// Requests that `log_only` rules would refuse.
    pub would_deny: u64,
    /// Clients that it refused at least once.
    pub refused_clients: u64,
    /// The largest share of one client's requests that it refused.
    pub max_client_refused_share: f64,
    /// Requests that could not be decided.
    pub undecided: u64,
    /// Counters that were evicted for want of memory.
    pub evicted_counters: u64,
}

/// A client that is refused more often than by the baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientRow {
    /// Its kind and name; API keys are hashed.
    pub client: String,
    /// Its requests.
    pub requests: u64,
    /// How many the baseline refused.
    pub before_refused: u64,
    /// How many the rules refused.
    pub after_refused: u64,
    /// Their share of its requests.
    pub refused_share: f64,
    /// The most refusals in a row.
    pub longest_run: u32,
    /// The longest time from a refusal to the next request that passed.
    pub longest_outage_seconds: f64,
    /// The rule that refused it most.
    pub rule_id: Option<String>,
}

/// What one rule did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleRow {
    /// The rule.
    pub rule_id: String,
    /// Requests that it applied to.
    pub requests: u64,
    /// Requests that it refused under the baseline.
    pub before_refused: Option<u64>,
    /// Requests that it refused.
    pub after_refused: u64,
    /// Requests that it let wait, or queued.
    pub throttled: u64,
    /// Requests that it would refuse if it were enforced.
    pub would_deny: u64,
    /// The most of its limit that was used.
    pub peak: Option<LimitPeak>,
}

/// The most of a limit that was used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitPeak {
    /// How much.
    pub used: u64,
    /// Of how much.
    pub capacity: u64,
    /// When.
    pub at: String,
}

/// Requests of one tenant or endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CountRow {
    /// The tenant or the endpoint.
    pub name: String,
    /// Its requests.
    pub requests: u64,
    /// How many the baseline refused.
    pub before_refused: u64,
    /// How many the rules refused.
    pub after_refused: u64,
}

/// Requests in one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TimeRow {
    /// The second since 1970 that it begins at.
    pub second: u64,
    /// Its requests.
    pub requests: u64,
    /// How many the baseline refused.
    pub before_refused: u64,
    /// How many the rules refused.
    pub after_refused: u64,
}

/// The interval with the most requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// The length of the interval.
    pub seconds: u64,
    /// Its requests.
    pub requests: u64,
    /// When it began.
    pub at: String,
}

/// How the traffic was read.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Input {
    /// Files.
    pub files: u64,
    /// Lines that are not empty.
    pub lines: u64,
    /// Lines that were not replayed.
    pub malformed: u64,
    /// How many for which reason.
    pub malformed_by_reason: BTreeMap<&'static str, u64>,
    /// The first of them.
    pub malformed_lines: Vec<MalformedLine>,
    /// Lines that came later than others with a later time, and were sorted.
    pub reordered: u64,
    /// Lines that came too late to be sorted; they were decided at the time that was reached.
    pub late: u64,
    /// What else went wrong.
    pub notes: Vec<String>,
}

impl Input {
    /// The share of lines that were not replayed.
    pub fn malformed_share(&self) -> f64 {
        self.malformed as f64 / self.lines.max(1) as f64
    }
}

/// A line that was not replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MalformedLine {
    /// The file.
    pub file: String,
    /// The number of the line.
    pub line: u64,
    /// Why.
    pub reason: String,
    /// How it begins.
    pub text: String,
}
