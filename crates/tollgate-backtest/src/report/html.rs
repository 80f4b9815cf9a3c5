//! The report as a page: one file, no script, nothing loaded from anywhere. All text of the traffic and of
//! rules is escaped, and a policy in the page forbids scripts besides.

use std::fmt::Write as _;

use super::plot::{Chart, Curve, Mark};
use super::text::notes;
use super::units::{count, escaped, figure, length, percent, plural, share};
use super::words::axis_time;
use super::{CountRow, Report, TimeRow};
use crate::recommend::Recommendation;

const STYLE: &str = include_str!("page.css");

/// So many charts of recommended limits are drawn.
const MAX_CURVES: usize = 24;

pub(super) fn page(report: &Report, made_at: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Backtest of {}</title><style>{STYLE}</style></head><body><main>",
        escaped(&report.rules)
    );
    header(report, made_at, &mut page);
    figures(report, &mut page);
    times(report, &mut page);
    clients(report, &mut page);
    rules(report, &mut page);
    page.push_str("<div class=\"two\">");
    counts("Endpoints", "endpoint", &report.by_endpoint, report.baseline.is_some(), &mut page);
    counts("Tenants", "tenant", &report.by_tenant, report.baseline.is_some(), &mut page);
    page.push_str("</div>");
    recommendations(report, &mut page);
    shadows(report, &mut page);
    input(report, &mut page);
    page.push_str("</main></body></html>\n");
    page
}

fn header(report: &Report, made_at: &str, page: &mut String) {
    let baseline = match &report.baseline {
        Some(baseline) => format!("compared with {}", escaped(baseline)),
        None => "without a baseline".to_owned(),
    };
    let _ = write!(
        page,
        "<header><h1>Backtest of {}</h1><p class=\"muted\">{baseline} · {} of {} · {} to {} · made {}</p></header>",
        escaped(&report.rules),
        plural(report.requests, "request", "requests"),
        plural(report.clients, "client", "clients"),
        escaped(&report.from),
        escaped(&report.until),
        escaped(made_at)
    );
    for guard in &report.guards {
        let (class, label) = if guard.is_broken { ("bad", "Failed") } else { ("good", "Passed") };
        let _ = write!(
            page,
            "<p class=\"guard {class}\"><b>{label}</b> {} <span>the figure is {}</span></p>",
            escaped(&guard.guard),
            figure(guard.value)
        );
    }
    page.push_str("<section class=\"lead\">");
    for (place, sentence) in report.sentences.iter().enumerate() {
        let class = if place == 0 { " class=\"first\"" } else { "" };
        let _ = write!(page, "<p{class}>{}</p>", escaped(sentence));
    }
    page.push_str("</section>");
}

fn figures(report: &Report, page: &mut String) {
    let after = &report.after;
    let before = report.before.as_ref();
    let mut cards = vec![
        ("requests", count(report.requests), ""),
        ("refused", percent(after.refused_share), if after.refused > 0 { "bad" } else { "good" }),
    ];
    if let Some(before) = before {
        cards.push(("refused by the baseline", percent(before.refused_share), ""));
    }
    cards.push((
        "clients refused",
        format!("{} of {}", count(after.refused_clients), count(report.clients)),
        "",
    ));
    if before.is_some() {
        let class = if report.newly_refused_clients > 0 { "bad" } else { "good" };
        cards.push(("of these newly refused", count(report.newly_refused_clients), class));
    }
    cards.push(("most of one client refused", percent(after.max_client_refused_share), ""));
    if after.throttled > 0 {
        cards.push(("made to wait", percent(after.throttled_share), ""));
    }
    page.push_str("<div class=\"figures\">");
    for (name, figure, class) in cards {
        let _ = write!(page, "<div><b class=\"{class}\">{figure}</b><span>{name}</span></div>");
    }
    page.push_str("</div>");
}

fn times(report: &Report, page: &mut String) {
    let rows = &report.by_time;
    let span = match (rows.first(), rows.last()) {
        (Some(first), Some(last)) => last.second - first.second,
        _ => return,
    };
    let x_label = |at: f64| axis_time(at as u64, span);
    let y_label = |value: f64| short(value);
    let points = |figure: fn(&TimeRow) -> u64| with_gaps(rows, report.interval_seconds, figure);
    let requests = Curve {
        class: "one",
        name: "requests",
        points: points(|row| row.requests),
        is_filled: true,
    };
    let mut refused = Vec::new();
    if report.baseline.is_some() {
        refused.push(Curve {
            class: "two",
            name: "refused by the baseline",
            points: points(|row| row.before_refused),
            is_filled: false,
        });
    }
    refused.push(Curve {
        class: "three",
        name: "refused by these rules",
        points: points(|row| row.after_refused),
        is_filled: true,
    });
    let every = length(report.interval_seconds as f64);
    page.push_str("<div class=\"two\">");
    for (title, curves) in [("Requests", vec![requests]), ("Refused requests", refused)] {
        let (x_label, y_label) = (&x_label, &y_label);
        let chart = Chart { title, curves, marks: Vec::new(), x_label, y_label, least_y: 4.0 };
        let _ = write!(
            page,
            "<section><h2>{title}</h2><p class=\"muted\">in each {every}, UTC</p>{}</section>",
            chart.svg()
        );
    }
    page.push_str("</div>");
}

/// The figures of all intervals; where nothing happened they are 0.
fn with_gaps(rows: &[TimeRow], width: u64, figure: fn(&TimeRow) -> u64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut last: Option<u64> = None;
    for row in rows {
        if let Some(last) = last
            && row.second > last + width
        {
            points.push(((last + width) as f64, 0.0));
            points.push(((row.second - width) as f64, 0.0));
        }
        points.push((row.second as f64, figure(row) as f64));
        last = Some(row.second);
    }
    points
}

/// A count in thousands or millions.
fn short(value: f64) -> String {
    let text = |value: f64, unit: &str| {
        let text = format!("{value:.1}");
        format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match value {
        value if value < 10_000.0 => text(value, ""),
        value if value < 1_000_000.0 => text(value / 1_000.0, " k"),
        value => text(value / 1_000_000.0, " M"),
    }
}

/// A bar next to a figure.
fn bar(part: f64, class: &str) -> String {
    let width = (part.clamp(0.0, 1.0) * 100.0).max(if part > 0.0 { 1.5 } else { 0.0 });
    format!("<span class=\"bar\"><i class=\"{class}\" style=\"width:{width:.1}%\"></i></span>")
}

fn table(head: &[&str], rows: &[Vec<String>], page: &mut String) {
    page.push_str("<div class=\"scroll\"><table><thead><tr>");
    for cell in head {
        let _ = write!(page, "<th>{cell}</th>");
    }
    page.push_str("</tr></thead><tbody>");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{cell}</td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

fn name(text: &str) -> String {
    let text = escaped(text);
    format!("<span class=\"name\" title=\"{text}\">{text}</span>")
}

fn clients(report: &Report, page: &mut String) {
    page.push_str("<section><h2>Clients that would notice</h2>");
    if report.affected_clients.is_empty() {
        page.push_str(
            "<p class=\"muted\">None: no client is refused more often than before.</p></section>",
        );
        return;
    }
    page.push_str(
        "<p class=\"muted\">Refused more often than before. Ranked by the share of requests that are refused, \
         times the most refusals in a row.</p>",
    );
    let has_baseline = report.baseline.is_some();
    let mut head = vec![
        "client",
        "share refused",
        "",
        "requests",
        "refused",
        "in a row",
        "longest outage",
        "rule",
    ];
    if has_baseline {
        head.insert(5, "before");
    }
    let row = |client: &super::ClientRow| {
        let rule = client.rule_id.as_deref().map(name).unwrap_or_default();
        let mut cells = vec![
            name(&client.client),
            bar(client.refused_share, "three"),
            percent(client.refused_share),
            count(client.requests),
            count(client.after_refused),
            count(u64::from(client.longest_run)),
            length(client.longest_outage_seconds),
            rule,
        ];
        if has_baseline {
            let new = if client.before_refused == 0 { " <em>new</em>" } else { "" };
            cells.insert(5, format!("{}{new}", count(client.before_refused)));
        }
        cells
    };
    let rows: Vec<_> = report.affected_clients.iter().map(row).collect();
    table(&head, &rows, page);
    page.push_str("</section>");
}

fn rules(report: &Report, page: &mut String) {
    let has_baseline = report.baseline.is_some();
    let most = |row: &super::RuleRow| row.after_refused.max(row.before_refused.unwrap_or(0));
    let most = report.by_rule.iter().map(most).max().unwrap_or(0);
    let has_log_only = report.by_rule.iter().any(|rule| rule.would_deny > 0);
    let mut head = vec!["rule", "refused", "", "requests", "peak use"];
    if has_log_only {
        head.push("log_only would refuse");
    }
    if has_baseline {
        head.insert(3, "before");
    }
    let row = |rule: &super::RuleRow| {
        let peak = rule.peak.as_ref().map_or_else(String::new, |peak| {
            format!("{} of {} at {}", count(peak.used), count(peak.capacity), escaped(&peak.at))
        });
        let before = rule.before_refused.unwrap_or(0);
        let mut bars = bar(share(rule.after_refused, most), "three");
        if has_baseline {
            bars = format!("{}{bars}", bar(share(before, most), "two"));
        }
        let mut cells =
            vec![name(&rule.rule_id), bars, count(rule.after_refused), count(rule.requests), peak];
        if has_log_only {
            cells.push(count(rule.would_deny));
        }
        if has_baseline {
            cells.insert(3, count(before));
        }
        cells
    };
    let rows: Vec<_> = report.by_rule.iter().map(row).collect();
    page.push_str("<section><h2>Rules</h2>");
    if has_baseline {
        page.push_str(
            "<ul class=\"key\"><li><i class=\"two\"></i>refused by the baseline</li>\
             <li><i class=\"three\"></i>refused by these rules</li></ul>",
        );
    }
    table(&head, &rows, page);
    page.push_str("</section>");
}

fn counts(title: &str, one: &str, rows: &[CountRow], has_baseline: bool, page: &mut String) {
    if rows.is_empty() {
        return;
    }
    let mut head = vec![one, "share refused", "", "requests", "refused"];
    if has_baseline {
        head.push("before");
    }
    let row = |row: &CountRow| {
        let refused = share(row.after_refused, row.requests);
        let mut cells = vec![
            name(&row.name),
            bar(refused, "three"),
            percent(refused),
            count(row.requests),
            count(row.after_refused),
        ];
        if has_baseline {
            cells.push(count(row.before_refused));
        }
        cells
    };
    let rows: Vec<_> = rows.iter().take(15).map(row).collect();
    let _ = write!(page, "<section><h2>{title}</h2>");
    table(&head, &rows, page);
    page.push_str("</section>");
}

fn recommendations(report: &Report, page: &mut String) {
    if report.recommendations.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<h2 class=\"group\">Recommended limits</h2><p class=\"muted\">The lowest limits that {}. Each limit \
         is asked alone, as if no other rule refused anything.</p><div class=\"two\">",
        escaped(&report.aim.to_string())
    );
    for one in report.recommendations.iter().take(MAX_CURVES) {
        recommendation(one, page);
    }
    page.push_str("</div>");
}

fn recommendation(one: &Recommendation, page: &mut String) {
    let recommended = match one.recommended {
        Some(limit) => format!("<b>{}</b>", count(limit)),
        None => "<b>none</b>".to_owned(),
    };
    let then = one.recommended_refused_share.map(percent).unwrap_or_default();
    let _ = write!(
        page,
        "<section><h2>{}</h2><p class=\"muted\">{}, {}</p><p class=\"change\">{} → {recommended}</p>\
         <p class=\"muted\">refuses {} now, {then} then</p>",
        escaped(&one.rule_id),
        escaped(&one.limit),
        escaped(one.unit),
        count(one.current),
        percent(one.current_refused_share),
    );
    if let Some(note) = &one.note {
        let _ = write!(page, "<p class=\"note\">{}</p>", escaped(note));
    }
    // Far from both limits the curve says nothing, and would hide what is near.
    let widest = 3 * one.current.max(one.recommended.unwrap_or(one.current));
    let shown = || one.curve.iter().filter(|point| point.limit <= widest);
    let points = |figure: fn(&crate::CurvePoint) -> f64| -> Vec<(f64, f64)> {
        shown().map(|point| (point.limit as f64, figure(point))).collect()
    };
    let mut marks = vec![Mark {
        at: one.current as f64,
        class: "two",
        name: format!("limit now: {}", count(one.current)),
    }];
    if let Some(limit) = one.recommended {
        let name = format!("recommended: {}", count(limit));
        marks.push(Mark { at: limit as f64, class: "good", name });
    }
    let curves = vec![
        Curve {
            class: "odd",
            name: "most of one client",
            points: points(|point| point.client_refused_share),
            is_filled: false,
        },
        Curve {
            class: "three",
            name: "share refused",
            points: points(|point| point.refused_share),
            is_filled: true,
        },
    ];
    let chart = Chart {
        title: "Share refused by limit",
        curves,
        marks,
        x_label: &|limit| short(limit.round()),
        y_label: &percent,
        least_y: 0.01,
    };
    let _ = write!(page, "{}</section>", chart.svg());
}

fn shadows(report: &Report, page: &mut String) {
    if report.shadows.is_empty() && report.unmet_rules.is_empty() {
        return;
    }
    page.push_str("<section><h2>Rules that do not decide</h2>");
    if !report.shadows.is_empty() {
        page.push_str("<p class=\"muted\">One in 16 requests was looked at.</p>");
        let row = |shadow: &crate::Shadow| {
            let complete = if shadow.is_complete { "never decides" } else { "" };
            let why = shadow.why.replace('_', " ");
            let cells = [name(&shadow.rule_id), name(&shadow.by), why, complete.to_owned()];
            let mut cells = cells.to_vec();
            cells.push(count(shadow.sampled_requests));
            cells
        };
        let rows: Vec<_> = report.shadows.iter().take(30).map(row).collect();
        table(&["rule", "because of", "why", "", "requests"], &rows, page);
    }
    if !report.unmet_rules.is_empty() {
        let _ = write!(
            page,
            "<p>No request met these rules: {}</p>",
            escaped(&report.unmet_rules.join(", "))
        );
    }
    page.push_str("</section>");
}

fn input(report: &Report, page: &mut String) {
    let input = &report.input;
    let _ = write!(
        page,
        "<section><h2>How the traffic was read</h2><p>{} of {}; {} malformed ({}), {} sorted by time, {} too \
         late to be sorted (decided at the time that was reached). {} had been answered with 429.</p>",
        plural(input.lines, "line", "lines"),
        plural(input.files, "file", "files"),
        count(input.malformed),
        percent(input.malformed_share()),
        count(input.reordered),
        count(input.late),
        plural(report.logged_429, "request", "requests")
    );
    for note in notes(report) {
        let _ = write!(page, "<p class=\"note\">{}</p>", escaped(&note));
    }
    if !input.malformed_lines.is_empty() {
        let row = |line: &super::MalformedLine| {
            let place = format!("{}:{}", line.file, line.line);
            vec![
                name(&place),
                escaped(&line.reason),
                format!("<code>{}</code>", escaped(&line.text)),
            ]
        };
        let rows: Vec<_> = input.malformed_lines.iter().map(row).collect();
        page.push_str("<div class=\"text\">");
        table(&["line", "why", "begins with"], &rows, page);
        page.push_str("</div>");
    }
    page.push_str("</section>");
}
