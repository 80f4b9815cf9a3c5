//! A report for people.

use std::fmt::Write as _;
use std::io::stdout;

use tollgate_load::{Latency, Report};

use crate::output::{self, Colour};

/// How wide the names of figures are.
const NAME_WIDTH: usize = 14;

/// The figures, a block for each question that people have.
pub(super) fn text(report: &Report) -> String {
    let parameter = |name| report.parameters.get(name).map_or("", String::as_str);
    let mut text = format!(
        "{} {}, {} connections, {} threads, {:.1} s{}\n\n",
        parameter("target"),
        parameter("url"),
        parameter("connections"),
        parameter("threads"),
        report.seconds,
        if report.was_halted { ", broken off" } else { "" }
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:NAME_WIDTH$}{value}");
    };
    let rate = |count, per_second: f64| format!("{count:<12} {per_second:.0}/s");
    line("requests", rate(report.requests, report.requests_per_second));
    line("decisions", rate(report.decisions, report.decisions_per_second));
    line("allowed", part(report.allowed, report.decisions));
    line("refused", part(report.refused, report.decisions));
    let errors = report.errors.to_string();
    let errors = match report.errors {
        0 => errors,
        _ => output::coloured(&errors, Colour::Red, &stdout()),
    };
    let kinds: Vec<String> =
        report.errors_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    line("errors", format!("{errors:<12} {}", kinds.join(", ")).trim_end().to_owned());
    if report.unfinished > 0 {
        line("unfinished", report.unfinished.to_string());
    }
    line("sent", bytes(report.sent_bytes));
    line("received", bytes(report.received_bytes));
    text.push('\n');
    text += &latencies(report);
    if let Some(schedule) = &report.schedule {
        let lag = &schedule.lag_micros;
        let _ = writeln!(
            text,
            "\n{:NAME_WIDTH$}{} due, {} never sent, {:.1} % due while no connection was free\n\
             {:NAME_WIDTH$}p50 {}, p99 {}, max {}",
            "schedule",
            schedule.scheduled,
            schedule.unsent,
            schedule.waited_share * 100.0,
            "generator lag",
            time(lag.p50),
            time(lag.p99),
            time(lag.max),
        );
    }
    text
}

fn latencies(report: &Report) -> String {
    let row = |name: &str, latency: &Latency| {
        let Latency { mean, p50, p90, p95, p99, p999, max } = *latency;
        let figures = [mean, p50, p90, p95, p99, p999, max].map(time);
        let [mean, p50, p90, p95, p99, p999, max] = figures;
        [name.to_owned(), mean, p50, p90, p95, p99, p999, max]
    };
    let mut rows = Vec::new();
    if report.schedule.is_some() {
        rows.push(row("from schedule", &report.latency_micros));
    }
    rows.push(row("service time", &report.service_micros));
    output::table(["LATENCY", "MEAN", "P50", "P90", "P95", "P99", "P99.9", "MAX"], &rows)
}

/// A count, and its share of the whole.
fn part(count: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { count as f64 / whole as f64 * 100.0 };
    format!("{count:<12} {share:.1} %")
}

/// Microseconds in the unit that reads best.
fn time(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 1_000_000.0 => format!("{:.2} ms", micros / 1_000.0),
        micros => format!("{:.2} s", micros / 1_000_000.0),
    }
}

fn bytes(count: u64) -> String {
    match count {
        count if count < 1 << 20 => format!("{:.1} KiB", count as f64 / 1024.0),
        count if count < 1 << 30 => format!("{:.1} MiB", count as f64 / f64::from(1 << 20)),
        count => format!("{:.2} GiB", count as f64 / f64::from(1 << 30)),
    }
}
