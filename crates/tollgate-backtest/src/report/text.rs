//! The report for a terminal.

use std::fmt::Write as _;

use super::units::{count, figure, length, percent, plural};
use super::{CountRow, Report};

/// So many rows of each table are shown; the page and JSON have more.
const MAX_ROWS: usize = 10;

/// Cells are cut after so many characters.
const MAX_CELL_CHARS: usize = 48;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for sentence in &report.sentences {
        let _ = writeln!(text, "{sentence}");
    }
    rules(report, &mut text);
    clients(report, &mut text);
    counts("Endpoint", &report.by_endpoint, report.baseline.is_some(), &mut text);
    counts("Tenant", &report.by_tenant, report.baseline.is_some(), &mut text);
    recommendations(report, &mut text);
    shadows(report, &mut text);
    input(report, &mut text);
    guards(report, &mut text);
    text
}

fn before(report: &Report, refused: u64) -> Option<String> {
    report.baseline.as_ref().map(|_| count(refused))
}

fn rules(report: &Report, text: &mut String) {
    let mut table =
        Table::new(&["Rule", "requests", "before", "after", "would refuse", "peak use"]);
    for row in report.by_rule.iter().take(MAX_ROWS) {
        let peak = row.peak.as_ref();
        let peak = peak.map(|peak| format!("{} of {}", count(peak.used), count(peak.capacity)));
        table.row([
            Some(row.rule_id.clone()),
            Some(count(row.requests)),
            row.before_refused.map(count),
            Some(count(row.after_refused)),
            (row.would_deny > 0).then(|| count(row.would_deny)),
            peak,
        ]);
    }
    table.write("Refused by rule", report.by_rule.len(), text);
}

fn clients(report: &Report, text: &mut String) {
    let mut table = Table::new(&[
        "Client", "requests", "before", "after", "share", "in a row", "outage", "rule",
    ]);
    for row in report.affected_clients.iter().take(MAX_ROWS) {
        table.row([
            Some(row.client.clone()),
            Some(count(row.requests)),
            before(report, row.before_refused),
            Some(count(row.after_refused)),
            Some(percent(row.refused_share)),
            Some(count(u64::from(row.longest_run))),
            Some(length(row.longest_outage_seconds)),
            row.rule_id.clone(),
        ]);
    }
    table.write(
        "Clients that would notice, the most affected first",
        report.affected_clients.len(),
        text,
    );
}

fn counts(name: &str, rows: &[CountRow], has_baseline: bool, text: &mut String) {
    let mut table = Table::new(&[name, "requests", "before", "after"]);
    for row in rows.iter().take(MAX_ROWS) {
        table.row([
            Some(row.name.clone()),
            Some(count(row.requests)),
            has_baseline.then(|| count(row.before_refused)),
            Some(count(row.after_refused)),
        ]);
    }
    table.write(&format!("Refused by {}", name.to_lowercase()), rows.len(), text);
}

fn recommendations(report: &Report, text: &mut String) {
    let mut table =
        Table::new(&["Rule", "limit", "now", "refuses", "recommended", "would refuse", "note"]);
    for row in report.recommendations.iter().take(MAX_ROWS) {
        table.row([
            Some(row.rule_id.clone()),
            Some(row.limit.clone()),
            Some(count(row.current)),
            Some(percent(row.current_refused_share)),
            Some(row.recommended.map_or_else(|| "none".to_owned(), count)),
            row.recommended_refused_share.map(percent),
            row.note.clone(),
        ]);
    }
    table.write(
        &format!("Lowest limits that {}, each limit alone", report.aim),
        report.recommendations.len(),
        text,
    );
}

fn shadows(report: &Report, text: &mut String) {
    let mut table =
        Table::new(&["Rule", "does not decide because of", "why", "requests (1 in 16)"]);
    for row in report.shadows.iter().take(MAX_ROWS) {
        let complete = if row.is_complete { ", never decides" } else { "" };
        table.row([
            Some(row.rule_id.clone()),
            Some(row.by.clone()),
            Some(format!("{}{complete}", row.why.replace('_', " "))),
            Some(count(row.sampled_requests)),
        ]);
    }
    table.write("Rules that others come before", report.shadows.len(), text);
    if !report.unmet_rules.is_empty() {
        let shown =
            report.unmet_rules.iter().take(MAX_ROWS).cloned().collect::<Vec<_>>().join(", ");
        let more = report.unmet_rules.len().saturating_sub(MAX_ROWS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(text, "\nNo request met these rules: {shown}{more}");
    }
}

fn input(report: &Report, text: &mut String) {
    let input = &report.input;
    let (lines, files) =
        (plural(input.lines, "line", "lines"), plural(input.files, "file", "files"));
    let _ = write!(text, "\nRead {lines} of {files}");
    for (number, what) in [
        (input.malformed, "malformed"),
        (input.reordered, "sorted by time"),
        (input.late, "too late to be sorted"),
        (report.logged_429, "answered with 429 when logged"),
    ] {
        if number > 0 {
            let _ = write!(text, ", {} {what}", count(number));
        }
    }
    text.push_str(".\n");
    for line in &input.malformed_lines {
        let _ = writeln!(text, "  {}:{}: {}: {}", line.file, line.line, line.reason, line.text);
    }
    for note in notes(report) {
        let _ = writeln!(text, "Note: {note}");
    }
}

/// What makes figures less exact.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = report.input.notes.clone();
    if report.recorded > 0 {
        notes.push(format!(
            "of {} recorded decisions, {} are not what the nodes decided then",
            count(report.recorded),
            count(report.recorded_differently)
        ));
    }
    if report.has_more_clients {
        notes.push(
            "there are more clients than are counted one by one; the others count together"
                .to_owned(),
        );
    }
    for (figures, name) in
        [(report.before.as_ref(), "the baseline"), (Some(&report.after), "the rules")]
    {
        let Some(figures) = figures else { continue };
        if figures.evicted_counters > 0 {
            let evicted = count(figures.evicted_counters);
            notes.push(format!(
                "{name}: {evicted} counters were evicted, so that too few requests are refused"
            ));
        }
        if figures.undecided > 0 {
            notes.push(format!(
                "{name}: {} requests could not be decided",
                count(figures.undecided)
            ));
        }
    }
    notes
}

fn guards(report: &Report, text: &mut String) {
    for guard in &report.guards {
        let (label, relation) =
            if guard.is_broken { ("FAILED", "is true") } else { ("passed", "is not true") };
        let _ = writeln!(
            text,
            "\nGuard {label}: {} {relation}: the figure is {}",
            guard.guard,
            figure(guard.value)
        );
    }
}

/// A table whose empty columns are left out.
struct Table<const N: usize> {
    head: [String; N],
    rows: Vec<[Option<String>; N]>,
}

impl<const N: usize> Table<N> {
    fn new(head: &[&str; N]) -> Self {
        Self { head: head.map(str::to_owned), rows: Vec::new() }
    }

    fn row(&mut self, row: [Option<String>; N]) {
        self.rows.push(row.map(|cell| cell.map(|cell| cut(&cell))));
    }

    fn write(&self, title: &str, all: usize, text: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let more = if all > self.rows.len() {
            format!(" ({} of {})", self.rows.len(), count(all as u64))
        } else {
            String::new()
        };
        let _ = writeln!(text, "\n{title}{more}");
        let column = |place: usize| {
            self.rows.iter().map(move |row| row.get(place).and_then(Option::as_deref))
        };
        let is_used: Vec<bool> =
            (0..N).map(|place| column(place).any(|cell| cell.is_some())).collect();
        let widths: Vec<usize> = (0..N)
            .map(|place| {
                let head = self.head.get(place).map_or(0, |head| head.chars().count());
                let cells = column(place).map(|cell| cell.map_or(0, |cell| cell.chars().count()));
                cells.max().unwrap_or(0).max(head)
            })
            .collect();
        let mut line = |cells: Vec<&str>| {
            let mut line = String::from(" ");
            for ((cell, &width), &is_used) in cells.into_iter().zip(&widths).zip(&is_used) {
                if is_used {
                    let _ = write!(line, " {cell:width$} ");
                }
            }
            let _ = writeln!(text, "{}", line.trim_end());
        };
        line(self.head.iter().map(String::as_str).collect());
        for row in &self.rows {
            line(row.iter().map(|cell| cell.as_deref().unwrap_or("")).collect());
        }
    }
}

fn cut(cell: &str) -> String {
    match cell.char_indices().nth(MAX_CELL_CHARS) {
        Some((end, _)) => format!("{}…", cell.get(..end).unwrap_or(cell)),
        None => cell.to_owned(),
    }
}
