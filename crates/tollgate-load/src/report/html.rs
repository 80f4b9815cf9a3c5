//! The report as a page: one file, no script, nothing loaded from anywhere.

use std::fmt::Write as _;

use super::plot::{Axis, Plot, shares};
use super::units::{bytes, count, escaped, percent, seconds, time};
use super::{Latency, Report, Row};

const STYLE: &str = include_str!("page.css");

/// The first and the last second of a run may be cut short; less than this is not plotted.
const LEAST_PLOTTED_SECONDS: f64 = 0.5;

pub(super) fn page(report: &Report, made_at: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Load report</title><style>{STYLE}</style></head><body><main>"
    );
    let parameter = |name| report.parameters.get(name).map_or("", String::as_str);
    let rate = match report.parameters.get("rate") {
        Some(rate) => format!("open loop at {rate}/s"),
        None => "closed loop".to_owned(),
    };
    let broken_off = if report.was_halted { ", broken off" } else { "" };
    let _ = write!(
        page,
        "<h1>Load report</h1><p class=\"muted\">{} · {} · {rate} · {} connections · {}{broken_off} · {}</p>",
        escaped(parameter("target")),
        escaped(parameter("url")),
        escaped(parameter("connections")),
        seconds(report.seconds),
        escaped(made_at)
    );
    page += &figures(report);
    for note in &report.generator.notes {
        let _ = write!(page, "<p class=\"note\">{}</p>", escaped(note));
    }
    let rows = plotted(&report.series);
    page += "<div class=\"plots\">";
    page += &throughput(&rows);
    page += &latency(&rows, report);
    page += &distribution(report);
    page += &outcomes(report);
    page += &latencies(report);
    page += &parameters(report);
    page += "</div></main></body></html>\n";
    page
}

/// The figures that everybody looks at first.
fn figures(report: &Report) -> String {
    let figures = [
        ("requests/s", count(report.requests_per_second)),
        ("decisions/s", count(report.decisions_per_second)),
        ("latency p50", time(report.latency_micros.p50)),
        ("latency p99", time(report.latency_micros.p99)),
        ("refused", percent(report.refused, report.decisions)),
        ("errors", count(report.errors as f64)),
    ];
    let mut text = "<div class=\"figures\">".to_owned();
    for (name, figure) in figures {
        let _ = write!(text, "<div><b>{figure}</b><span>{name}</span></div>");
    }
    text + "</div>"
}

/// The seconds that are whole enough to be compared; all if none is.
fn plotted(series: &[Row]) -> Vec<&Row> {
    let whole: Vec<&Row> =
        series.iter().filter(|row| row.seconds >= LEAST_PLOTTED_SECONDS).collect();
    if whole.is_empty() { series.iter().filter(|row| row.seconds > 0.0).collect() } else { whole }
}

/// A second is plotted where it ends.
fn end(row: &Row) -> f64 {
    row.second as f64 + row.seconds
}

fn time_axis(rows: &[&Row]) -> Axis {
    let (first, last) =
        (rows.first().map_or(0.0, |row| end(row)), rows.last().map_or(1.0, |row| end(row)));
    Axis::exact(first, last, seconds)
}

fn section(title: &str, subtitle: &str, content: &str) -> String {
    format!("<section><h2>{title}</h2><p class=\"muted\">{subtitle}</p>{content}</section>")
}

/// What the colours mean.
fn key(entries: &[(&str, String)]) -> String {
    let mut text = "<ul class=\"key\">".to_owned();
    for (class, name) in entries {
        let _ = write!(
            text,
            "<li><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"10\" height=\"10\" rx=\"2\"/></svg>{}</li>",
            escaped(name)
        );
    }
    text + "</ul>"
}

fn throughput(rows: &[&Row]) -> String {
    let rate = |row: &&Row| (end(row), row.requests as f64 / row.seconds.max(f64::MIN_POSITIVE));
    let points: Vec<(f64, f64)> = rows.iter().map(rate).collect();
    let most = points.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let title = "Requests per second, over time";
    let mut plot = Plot::new(title, time_axis(rows), Axis::linear(most, count));
    plot.curve("one", &points, true);
    section("Throughput", title, &plot.end())
}

fn latency(rows: &[&Row], report: &Report) -> String {
    let of = |row: &Row| {
        let Latency { p50, p90, p99, .. } = row.latency_micros;
        [p50, p90, p99]
    };
    let all = rows.iter().flat_map(|row| of(row)).filter(|micros| *micros > 0.0);
    let (least, most) =
        all.fold((f64::MAX, 1.0_f64), |(least, most), it| (it.min(least), it.max(most)));
    let title = if report.schedule.is_some() {
        "From when a request was due to its answer, over time"
    } else {
        "From request to answer, over time"
    };
    let y = Axis::logarithmic(least.min(most), most, time);
    let mut plot = Plot::new(title, time_axis(rows), y);
    for (place, class) in ["one", "two", "three"].into_iter().enumerate() {
        let value = |row: &&Row| (end(row), of(row).get(place).copied().unwrap_or(0.0));
        let points: Vec<(f64, f64)> = rows.iter().map(value).collect();
        plot.curve(class, &points, false);
    }
    let names = [("dot one", "p50"), ("dot two", "p90"), ("dot three", "p99")];
    let names = names.map(|(class, name)| (class, name.to_owned()));
    section("Latency", title, &(plot.end() + &key(&names)))
}

fn distribution(report: &Report) -> String {
    let bins = &report.distribution;
    let least = bins.first().map_or(1.0, |bin| bin.from_micros);
    let most = bins.last().map_or(10.0, |bin| bin.to_micros);
    let highest = bins.iter().map(|bin| bin.count).max().unwrap_or(1);
    let title = "How many requests took how long; both axes are logarithmic";
    let x = Axis::logarithmic(least, most, time);
    let mut plot = Plot::new(title, x, Axis::logarithmic(1.0, highest as f64, count));
    for bin in bins {
        let range = format!("{} to {}: {}", time(bin.from_micros), time(bin.to_micros), bin.count);
        // A single one must show, although the axis begins at one.
        plot.bar(bin.from_micros, bin.to_micros, bin.count as f64 * 1.02, &range);
    }
    let latency = &report.latency_micros;
    for (row, (word, at)) in [("p50", latency.p50), ("p99", latency.p99)].into_iter().enumerate() {
        plot.mark(at, word, row as u8);
    }
    section("Distribution", title, &plot.end())
}

fn outcomes(report: &Report) -> String {
    let Report { allowed, refused, errors, .. } = *report;
    let sum = allowed + refused + errors;
    let parts =
        [("good", "allowed", allowed), ("bad", "refused", refused), ("odd", "errors", errors)];
    let names = parts.map(|(class, name, part)| {
        (class, format!("{name} {} ({})", count(part as f64), percent(part, sum)))
    });
    let mut rows = String::new();
    for (kind, count) in &report.errors_by_kind {
        let _ = write!(rows, "<tr><td>error: {}</td><td>{count}</td></tr>", escaped(kind));
    }
    let more = [
        ("requests", report.requests.to_string()),
        ("decisions", report.decisions.to_string()),
        ("sent", bytes(report.sent_bytes)),
        ("received", bytes(report.received_bytes)),
    ];
    for (name, figure) in more {
        let _ = write!(rows, "<tr><td>{name}</td><td>{figure}</td></tr>");
    }
    if let Some(schedule) = &report.schedule {
        let _ = write!(
            rows,
            "<tr><td>due</td><td>{}</td></tr><tr><td>due, never sent</td><td>{}</td></tr>",
            schedule.scheduled, schedule.unsent
        );
    }
    let title = "What was decided";
    let content = shares(title, &parts) + &key(&names) + &format!("<table>{rows}</table>");
    section("Outcomes", title, &content)
}

/// One figure of several.
type Figure = fn(&Latency) -> f64;

/// Upright, so that it fits a narrow page.
fn latencies(report: &Report) -> String {
    let mut columns = vec![("service time", &report.service_micros)];
    if let Some(schedule) = &report.schedule {
        columns.insert(0, ("from schedule", &report.latency_micros));
        columns.push(("generator lag", &schedule.lag_micros));
    }
    let mut rows = "<tr><th></th>".to_owned();
    for (name, _) in &columns {
        let _ = write!(rows, "<th>{name}</th>");
    }
    rows.push_str("</tr>");
    let figures: [(&str, Figure); 7] = [
        ("mean", |latency| latency.mean),
        ("p50", |latency| latency.p50),
        ("p90", |latency| latency.p90),
        ("p95", |latency| latency.p95),
        ("p99", |latency| latency.p99),
        ("p99.9", |latency| latency.p999),
        ("max", |latency| latency.max),
    ];
    for (name, figure) in figures {
        let _ = write!(rows, "<tr><td>{name}</td>");
        for (_, latency) in &columns {
            let _ = write!(rows, "<td>{}</td>", time(figure(latency)));
        }
        rows.push_str("</tr>");
    }
    section("Latencies", "Over the whole run", &format!("<table>{rows}</table>"))
}

fn parameters(report: &Report) -> String {
    let mut rows = String::new();
    for (name, value) in &report.parameters {
        let _ = write!(rows, "<tr><td>{name}</td><td>{}</td></tr>", escaped(value));
    }
    let busiest = report.generator.busiest_thread_share * 100.0;
    let _ = write!(rows, "<tr><td>busiest thread</td><td>{busiest:.0} % of a core</td></tr>");
    let table = format!("<table class=\"parameters\">{rows}</table>");
    section("Parameters", "What made this report", &table)
}
