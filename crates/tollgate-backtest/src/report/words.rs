//! The change in sentences that need no knowledge of rate limiting.

use super::Report;
use super::units::{count, length, percent, plural, second};

/// The sentences, the most important first.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let mut sentences = vec![clients(report), requests(report)];
    sentences.extend(most_affected(report));
    sentences.extend(relieved(report));
    sentences.extend(would_deny(report));
    sentences.push(peak(report));
    sentences.extend(recommendation(report));
    sentences
}

fn clients(report: &Report) -> String {
    let all = count(report.clients);
    let more = if report.has_more_clients { "more than " } else { "" };
    let refused = report.after.refused_clients;
    let subject = if report.baseline.is_some() { "With the new rules" } else { "With these rules" };
    if refused == 0 {
        return format!("{subject}, none of {more}{all} clients would be refused.");
    }
    let newly = match (&report.before, report.newly_refused_clients) {
        (None, _) => String::new(),
        (Some(_), 0) => "; all of them are refused by the baseline, too".to_owned(),
        (Some(_), newly) if newly == refused => "; the baseline refuses none of them".to_owned(),
        (Some(_), newly) => format!("; for {} of them that is new", count(newly)),
    };
    format!(
        "{subject}, {} of {more}{all} clients would be refused at least once{newly}.",
        count(refused)
    )
}

fn requests(report: &Report) -> String {
    let after = &report.after;
    let figure = format!(
        "{} of {} requests ({}) would be refused",
        count(after.refused),
        count(report.requests),
        percent(after.refused_share)
    );
    match &report.before {
        None => format!("{figure}."),
        Some(before) if before.refused == after.refused => {
            format!("{figure}, as many as by the baseline.")
        }
        Some(before) => {
            let difference = after.refused.abs_diff(before.refused);
            let direction = if after.refused > before.refused { "more" } else { "fewer" };
            format!(
                "{figure}: {} {direction} than by the baseline ({}, {}).",
                count(difference),
                count(before.refused),
                percent(before.refused_share)
            )
        }
    }
}

fn most_affected(report: &Report) -> Option<String> {
    let client = report.affected_clients.first()?;
    let run = match client.longest_run {
        0 | 1 => "never two in a row".to_owned(),
        run => format!(
            "up to {} in a row, and for up to {} without a request that passes",
            count(u64::from(run)),
            length(client.longest_outage_seconds)
        ),
    };
    Some(format!(
        "The client that would notice most is {}: {} of its {} refused ({}), {run}.",
        client.client,
        count(client.after_refused),
        plural(client.requests, "request", "requests"),
        percent(client.refused_share)
    ))
}

fn relieved(report: &Report) -> Option<String> {
    let relieved = report.no_longer_refused_clients;
    (relieved > 0).then(|| {
        let clients = plural(relieved, "client", "clients");
        let verb = if relieved == 1 { "is" } else { "are" };
        format!("{clients} that {verb} refused by the baseline would not be refused any more.")
    })
}

fn would_deny(report: &Report) -> Option<String> {
    let would_deny = report.after.would_deny;
    (would_deny > 0).then(|| {
        let requests = plural(would_deny, "request", "requests");
        format!(
            "Rules that are only logged (log_only) would refuse {requests} if they were enforced."
        )
    })
}

fn peak(report: &Report) -> String {
    let (from, until) = (&report.from, &report.until);
    let peak = |seconds: u64| report.peaks.iter().find(|peak| peak.seconds == seconds);
    let busiest = match (peak(1), peak(60)) {
        (Some(second), Some(minute)) => format!(
            " The busiest second has {} and the busiest minute {}.",
            plural(second.requests, "request", "requests"),
            count(minute.requests)
        ),
        _ => String::new(),
    };
    format!("The traffic is from {from} to {until}.{busiest}")
}

fn recommendation(report: &Report) -> Option<String> {
    let changed =
        |one: &&crate::Recommendation| one.recommended.is_some_and(|new| new > one.current);
    let mut tight = report.recommendations.iter().filter(changed);
    let first = tight.next()?;
    let more = match tight.count() as u64 {
        0 => String::new(),
        others => format!(" See below for {}.", plural(others, "other limit", "other limits")),
    };
    Some(format!(
        "To {}, rule {} would need a limit of {} instead of {}.{more}",
        report.aim,
        first.rule_id,
        count(first.recommended.unwrap_or(first.current)),
        count(first.current)
    ))
}

/// The time of an interval on an axis that spans so many seconds.
pub(super) fn axis_time(at: u64, span_seconds: u64) -> String {
    let format = match span_seconds {
        0..=600 => "%H:%M:%S",
        601..=172_800 => "%H:%M",
        172_801..=31_536_000 => "%b %d",
        _ => "%Y-%m",
    };
    second(at, format)
}
