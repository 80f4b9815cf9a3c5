//! From tallies to the report.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use tollgate_core::SECOND;
use tollgate_policy::{Known, RuleSet};

use super::units::{instant, share};
use super::words::sentences;
use super::{ClientRow, CountRow, Figures, Input, LimitPeak, Peak, Report, RuleRow, TimeRow};
use crate::error::BacktestError;
use crate::recommend::recommend;
use crate::recorded_rules;
use crate::replay::{Options, Replay};
use crate::side::Side;
use crate::table::{Table, sanitized};
use crate::tally::{AFTER, BEFORE, ClientStats, Counts, RuleStats, Tally};

/// So many clients, tenants and endpoints are listed.
const MAX_ROWS: usize = 50;

/// So many limits are recommended, those with the most requests first.
const MAX_RECOMMENDATIONS: usize = 64;

/// API keys are hashed with this prefix: equal in all reports, and not the ids that servers use.
const KEY_PREFIX: &[u8] = b"tollgate backtest";

/// How many bytes of the hash stand for an API key.
const KEY_ID_BYTES: usize = 6;

pub(crate) fn build(
    options: &Options,
    replay: Replay,
    input: Input,
) -> Result<Report, BacktestError> {
    let Replay { before, after, tally, trace, shadows, recorded, .. } = replay;
    let Some(first) = tally.first else {
        return Err(BacktestError::NothingReplayed { details: details(&input) });
    };
    let is_newly = |stats: &&ClientStats| refused(stats, AFTER) > 0 && refused(stats, BEFORE) == 0;
    let is_relieved =
        |stats: &&ClientStats| refused(stats, BEFORE) > 0 && refused(stats, AFTER) == 0;
    let clients = || tally.clients.iter().map(|(_, stats)| stats);
    let mut limits = trace.limits;
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.events.len()));
    limits.truncate(MAX_RECOMMENDATIONS);
    let mut recommendations: Vec<_> =
        limits.iter_mut().map(|limit| recommend(limit, options.aim)).collect();
    recommendations
        .sort_by(|one, other| (&one.rule_id, one.current).cmp(&(&other.rule_id, other.current)));
    let mut report = Report {
        sentences: Vec::new(),
        rules: sanitized(&options.rules_name),
        baseline: baseline_name(options, recorded.is_used),
        requests: tally.requests,
        clients: tally.clients.len() as u64,
        has_more_clients: tally.clients.is_full,
        from: instant(first),
        until: instant(tally.last),
        logged_429: tally.logged_429,
        recorded: tally.recorded,
        recorded_differently: tally.recorded_differently,
        newly_refused_clients: clients().filter(is_newly).count() as u64,
        no_longer_refused_clients: clients().filter(is_relieved).count() as u64,
        affected_clients: affected(&tally.clients, &after.tally.rules),
        before: before.as_ref().map(|side| figures(side, BEFORE, &tally)),
        after: figures(&after, AFTER, &tally),
        by_rule: by_rule(before.as_ref(), &after),
        by_tenant: rows(&tally.tenants, "(other tenants)"),
        by_endpoint: rows(&tally.endpoints, "(other endpoints)"),
        by_time: by_time(&tally),
        interval_seconds: tally.series.width_seconds(),
        peaks: peaks(&tally),
        aim: options.aim,
        recommendations,
        shadows: shadows.finish(),
        unmet_rules: unmet(&options.rules, &after),
        input,
        guards: Vec::new(),
    };
    report.sentences = sentences(&report);
    report.guards = options.guards.iter().map(|guard| guard.test(&report)).collect();
    Ok(report)
}

fn baseline_name(options: &Options, is_recorded: bool) -> Option<String> {
    match &options.baseline {
        Some((_, name)) => Some(sanitized(name)),
        None => is_recorded.then(|| recorded_rules::NAME.to_owned()),
    }
}

/// What was wrong with the first lines, and what to do.
fn details(input: &Input) -> String {
    match input.malformed_lines.first() {
        Some(first) => format!(
            "all {} lines are malformed. {}:{}: {}: {}\nstate the format with --format, or which field is \
             which attribute with --map",
            input.lines, first.file, first.line, first.reason, first.text
        ),
        None => "the files of --traffic are empty".to_owned(),
    }
}

fn refused(stats: &ClientStats, side: usize) -> u64 {
    stats.counts.refused.get(side).copied().unwrap_or(0)
}

fn figures(side: &Side, place: usize, tally: &Tally) -> Figures {
    let requests = tally.requests;
    let clients = || tally.clients.iter().map(|(_, stats)| stats);
    let client_share = |stats: &ClientStats| share(refused(stats, place), stats.counts.requests);
    Figures {
        refused: side.tally.refused,
        refused_share: share(side.tally.refused, requests),
        throttled: side.tally.throttled,
        throttled_share: share(side.tally.throttled, requests),
        queued: side.tally.queued,
        would_deny: side.tally.would_deny,
        refused_clients: clients().filter(|stats| refused(stats, place) > 0).count() as u64,
        max_client_refused_share: clients().map(client_share).fold(0.0, f64::max),
        undecided: side.tally.undecided,
        evicted_counters: side.evicted(),
    }
}

/// How much a client notices: the share of its requests that are refused, times the longest run of them.
fn notice(stats: &ClientStats) -> f64 {
    share(refused(stats, AFTER), stats.counts.requests) * f64::from(stats.longest_run)
}

fn affected(clients: &Table<ClientStats>, rules: &[RuleStats]) -> Vec<ClientRow> {
    let is_affected = |stats: &ClientStats| refused(stats, AFTER) > refused(stats, BEFORE);
    let mut found: Vec<(&str, &ClientStats)> =
        clients.iter().filter(|(_, stats)| is_affected(stats)).collect();
    found.sort_by(|(one_name, one), (other_name, other)| {
        let order = notice(other).total_cmp(&notice(one));
        let order = order.then_with(|| refused(other, AFTER).cmp(&refused(one, AFTER)));
        order.then_with(|| one_name.cmp(other_name))
    });
    let row = |(name, stats): (&str, &ClientStats)| ClientRow {
        client: client_name(name),
        requests: stats.counts.requests,
        before_refused: refused(stats, BEFORE),
        after_refused: refused(stats, AFTER),
        refused_share: share(refused(stats, AFTER), stats.counts.requests),
        longest_run: stats.longest_run,
        longest_outage_seconds: stats.longest_outage as f64 / SECOND as f64,
        rule_id: rules.get(stats.rule as usize).map(|rule| sanitized(&rule.id)),
    };
    found.into_iter().take(MAX_ROWS).map(row).collect()
}

/// A client as a report may show it: API keys are secrets.
fn client_name(name: &str) -> String {
    match name.split_once(' ') {
        Some((kind, key)) if kind == Known::ApiKey.name() => {
            let hash = Sha256::new().chain_update(KEY_PREFIX).chain_update(key).finalize();
            let digits = hash.iter().take(KEY_ID_BYTES).map(|byte| format!("{byte:02x}"));
            format!("{kind} #{}", digits.collect::<String>())
        }
        _ => sanitized(name),
    }
}

fn by_rule(before: Option<&Side>, after: &Side) -> Vec<RuleRow> {
    let mut rows: BTreeMap<String, RuleRow> = BTreeMap::new();
    let zero = before.map(|_| 0);
    for stats in &after.tally.rules {
        let peak =
            stats.peak.map(|(used, capacity, at)| LimitPeak { used, capacity, at: instant(at) });
        let row = RuleRow {
            rule_id: sanitized(&stats.id),
            requests: stats.requests,
            before_refused: zero,
            after_refused: stats.refused,
            throttled: stats.throttled,
            would_deny: stats.would_deny,
            peak,
        };
        rows.insert(stats.id.clone(), row);
    }
    for stats in before.iter().flat_map(|side| &side.tally.rules) {
        let row = rows.entry(stats.id.clone()).or_insert_with(|| RuleRow {
            rule_id: sanitized(&stats.id),
            requests: 0,
            before_refused: zero,
            after_refused: 0,
            throttled: 0,
            would_deny: 0,
            peak: None,
        });
        row.before_refused = Some(stats.refused);
    }
    let mut rows: Vec<RuleRow> = rows.into_values().collect();
    rows.sort_by_key(|row| {
        let most = row.after_refused.max(row.before_refused.unwrap_or(0));
        std::cmp::Reverse((most, row.would_deny, row.requests))
    });
    rows
}

fn rows(table: &Table<Counts>, others: &str) -> Vec<CountRow> {
    let row = |(name, counts): (&str, &Counts)| {
        let [before_refused, after_refused] = counts.refused;
        CountRow { name: sanitized(name), requests: counts.requests, before_refused, after_refused }
    };
    let mut rows: Vec<CountRow> = table.iter().map(row).collect();
    rows.sort_by(|one, other| {
        let rank = |row: &CountRow| (row.after_refused, row.before_refused, row.requests);
        rank(other).cmp(&rank(one)).then_with(|| one.name.cmp(&other.name))
    });
    rows.truncate(MAX_ROWS);
    if table.is_full {
        rows.push(row((others, &table.others)));
    }
    rows
}

fn by_time(tally: &Tally) -> Vec<TimeRow> {
    let row = |(second, interval): (u64, crate::series::Interval)| {
        let [before_refused, after_refused] = interval.refused;
        TimeRow { second, requests: interval.requests, before_refused, after_refused }
    };
    tally.series.iter().map(row).collect()
}

fn peaks(tally: &Tally) -> Vec<Peak> {
    [(1, tally.busiest_second), (60, tally.busiest_minute)]
        .into_iter()
        .map(|(seconds, busiest)| Peak {
            seconds,
            requests: busiest.highest,
            at: instant(busiest.second * SECOND),
        })
        .collect()
}

fn unmet(rules: &RuleSet, after: &Side) -> Vec<String> {
    let is_met =
        |id: &str| after.tally.rules.iter().any(|stats| stats.id == id && stats.requests > 0);
    rules.rules().iter().filter(|rule| !is_met(&rule.id)).map(|rule| sanitized(&rule.id)).collect()
}
