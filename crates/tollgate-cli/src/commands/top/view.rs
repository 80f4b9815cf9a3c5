//! How a node is shown on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

use super::seen::{Key, Seen};

/// The height of the charts.
const CHART_LINES: u16 = 6;
/// How wide a bar beside a key is at most.
const BAR_WIDTH: usize = 12;
/// Rules that are listed.
const MAX_RULES: usize = 6;

/// What is on the screen.
pub(super) struct Shown {
    seen: Seen,
    /// The rule whose keys are shown, by its id: rules change places.
    selected: Option<String>,
    pub(super) hours: bool,
    /// Why the figures are old.
    pub(super) trouble: Option<String>,
}

impl Shown {
    pub(super) const fn new(seen: Seen, hours: bool) -> Self {
        Self { seen, selected: None, hours, trouble: None }
    }

    pub(super) fn update(&mut self, seen: Seen) {
        self.seen = seen;
        self.trouble = None;
    }

    fn place(&self) -> usize {
        let fits = |id: &String| self.seen.rules.iter().position(|rule| rule.id == *id);
        self.selected.as_ref().and_then(fits).unwrap_or(0)
    }

    pub(super) fn select_next(&mut self) {
        self.select(self.place() + 1);
    }

    pub(super) fn select_previous(&mut self) {
        self.select(self.place().saturating_sub(1));
    }

    fn select(&mut self, place: usize) {
        if let Some(rule) = self.seen.rules.get(place) {
            self.selected = Some(rule.id.clone());
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let seen = &shown.seen;
    let stores = u16::try_from(seen.stores.len()).unwrap_or(0).min(4);
    let rules = u16::try_from(seen.rules.len().clamp(1, MAX_RULES)).unwrap_or(1);
    let [head, figures, charts, health, list, keys, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(CHART_LINES),
        Constraint::Length(1 + stores),
        Constraint::Length(rules + 3),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title(seen), head);
    frame.render_widget(rates(seen), figures);
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(charts);
    chart(frame, left, "allowed", &seen.allowed, Color::Green);
    chart(frame, right, "refused", &seen.refused, Color::Red);
    frame.render_widget(Paragraph::new(stores_text(seen)), health);
    rule_list(frame, list, shown);
    key_tables(frame, keys, shown);
    frame.render_widget(footer(shown), foot);
}

fn title(seen: &Seen) -> Line<'_> {
    let enforcement = if seen.enforcement == "on" {
        Span::raw("enforcement on")
    } else {
        Span::raw(format!("enforcement {}", seen.enforcement)).yellow().bold()
    };
    Line::from(vec![
        Span::raw("tollgate ").bold(),
        Span::raw(&seen.version).bold(),
        Span::raw(format!("  {}  up {}  ", seen.node, seen.uptime)),
        enforcement,
        Span::raw(format!("  {} rules, revision {}", seen.rule_count, seen.revision)),
    ])
}

fn rates(seen: &Seen) -> Line<'_> {
    let (allowed, refused) = seen.rates();
    let share = seen.refused_percent();
    let share_style = if share > 5.0 { Style::new().red().bold() } else { Style::new() };
    let millis = |one: Option<f64>| one.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
    let [p50, p95, p99] = seen.latencies_ms.map(millis);
    Line::from(vec![
        Span::raw(format!("{allowed:>9.1}/s allowed")).green(),
        Span::raw(format!("  {refused:>9.1}/s refused")).red(),
        Span::styled(format!("  {share:>5.1} %"), share_style),
        Span::raw(format!("   p50 {p50}  p95 {p95}  p99 {p99} ms")),
    ])
}

/// The last five minutes; the newest on the right.
fn chart(frame: &mut Frame<'_>, area: Rect, name: &str, steps: &[u64], color: Color) {
    let highest = steps.iter().copied().max().unwrap_or_default();
    let title = format!(" {name}, five minutes (most {highest} in a step) ");
    let block = Block::bordered().title(title).border_style(Style::new().dark_gray());
    let room = usize::from(block.inner(area).width);
    let newest = steps.get(steps.len().saturating_sub(room)..).unwrap_or_default();
    let mut data = vec![0; room.saturating_sub(newest.len())];
    data.extend_from_slice(newest);
    frame.render_widget(Sparkline::default().block(block).data(data).style(color), area);
}

fn stores_text(seen: &Seen) -> Vec<Line<'_>> {
    let memory = Line::from(format!("memory   {} counters", seen.counters));
    let stores = seen.stores.iter().map(|store| {
        let is_well = !store.is_lost && store.open_breakers == 0;
        let style = if is_well { Style::new().green() } else { Style::new().red().bold() };
        Line::from(vec![
            Span::raw(format!("{:<8} ", store.name)),
            Span::styled(store.health(), style),
        ])
    });
    std::iter::once(memory).chain(stores).collect()
}

fn rule_list(frame: &mut Frame<'_>, area: Rect, shown: &Shown) {
    let seen = &shown.seen;
    let place = shown.place();
    let first = place.saturating_sub(MAX_RULES - 1);
    let rows = seen.rules.iter().enumerate().skip(first).take(MAX_RULES).map(|(index, rule)| {
        let row = Row::new([
            Cell::from(rule.id.as_str()),
            Cell::from(format!("{:>12}", rule.consumed)),
            Cell::from(format!("{:>12}", rule.refused)).style(Color::Red),
        ]);
        if index == place { row.style(Modifier::REVERSED) } else { row }
    });
    let widths = [Constraint::Fill(1), Constraint::Length(12), Constraint::Length(12)];
    let head = Row::new(["RULE", "    CONSUMED", "     REFUSED"]).style(Modifier::BOLD);
    let since = format!(" rules, last {} s{} ", seen.seconds, sampled(seen));
    let block = Block::bordered().title(since).border_style(Style::new().dark_gray());
    frame.render_widget(Table::new(rows, widths).header(head).block(block), area);
}

fn sampled(seen: &Seen) -> String {
    match seen.sampled {
        1 => String::new(),
        many => format!(", one decision in {many} looked at"),
    }
}

fn key_tables(frame: &mut Frame<'_>, area: Rect, shown: &Shown) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let Some(rule) = shown.seen.rules.get(shown.place()) else {
        let block = Block::bordered().border_style(Style::new().dark_gray());
        let text = Paragraph::new("no keys yet: no rule was met lately").block(block);
        frame.render_widget(text, area);
        return;
    };
    key_table(frame, left, "consume most", &rule.top_allowed, rule.consumed, Color::Green);
    key_table(frame, right, "refused most", &rule.top_refused, rule.refused, Color::Red);
}

fn key_table(
    frame: &mut Frame<'_>,
    area: Rect,
    name: &str,
    keys: &[Key],
    total: u64,
    color: Color,
) {
    let rows = keys.iter().map(|key| {
        let share = u128::from(key.count) * BAR_WIDTH as u128 / u128::from(total.max(1));
        let filled = usize::try_from(share).unwrap_or(BAR_WIDTH).min(BAR_WIDTH);
        Row::new([
            Cell::from(key.name.as_str()),
            Cell::from(format!("{:>10}", key.count)),
            Cell::from("█".repeat(filled)).style(color),
        ])
    });
    let bar = u16::try_from(BAR_WIDTH).unwrap_or(0);
    let widths = [Constraint::Fill(1), Constraint::Length(10), Constraint::Length(bar)];
    let block = Block::bordered().title(format!(" {name} ")).border_style(Style::new().dark_gray());
    frame.render_widget(Table::new(rows, widths).block(block), area);
}

fn footer(shown: &Shown) -> Line<'_> {
    if let Some(trouble) = &shown.trouble {
        return Line::from(format!("figures are old: {trouble}")).red().bold();
    }
    let window = if shown.hours { "hours" } else { "minutes" };
    Line::from(format!("q quit   ↑↓ rule   w window ({window})   r now")).dark_gray()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn report() -> serde_json::Value {
        json!({
            "node": {
                "node": "node-a", "version": "0.1.0", "uptime_seconds": 3_725, "enforcement": "shadow",
                "rules": {"count": 12, "revision": 7},
                "memory": {"counters": 4_321},
                "stores": [
                    {"name": "redis", "is_lost": true, "open_breakers": 1, "nodes": 3},
                    {"name": "global", "is_lost": false, "open_breakers": 0, "nodes": 3},
                ],
            },
            "history": {
                "step_seconds": 5,
                "all": {
                    "allowed": [10, 40], "throttled": [0, 10], "denied": [5, 50], "queued": [0, 0],
                    "p50_ms": [0.01, 0.02], "p95_ms": [0.1, 0.2], "p99_ms": [0.5, null],
                },
            },
            "top": {
                "seconds": 75, "sampled_one_in": 4,
                "rules": [
                    {"rule_id": "per-user", "consumed": 90, "refused": 55,
                     "top_allowed": [{"key": "user_id=ann", "count": 60}, {"key": "user_id=bob", "count": 30}],
                     "top_refused": [{"key": "user_id=eve\u{1b}[2J", "count": 55}]},
                    {"rule_id": "per-tenant", "consumed": 10, "refused": 0, "top_allowed": [], "top_refused": []},
                ],
            },
        })
    }

    fn screen(shown: &Shown, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, shown)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_that_is_reported_is_on_the_screen() {
        let shown = Shown::new(Seen::read(&report()), false);
        let text = screen(&shown, 110, 32);
        for part in [
            "tollgate 0.1.0",
            "node-a",
            "enforcement shadow",
            "revision 7",
            "10.0/s allowed",
            "10.0/s refused",
            "50.0 %",
            "p99 0.500",
            "LOST, fallbacks decide",
            "well, 3 nodes",
            "per-user",
            "user_id=ann",
            "one decision in 4 looked at",
            "████",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "nothing of a key reaches the terminal as a command");
    }

    #[test]
    fn a_rule_is_chosen_by_keys_and_stays_chosen_when_rules_change_places() {
        let mut shown = Shown::new(Seen::read(&report()), false);
        assert!(screen(&shown, 110, 32).contains("user_id=bob"));
        shown.select_next();
        assert!(!screen(&shown, 110, 32).contains("user_id=bob"));
        let mut other = report();
        other["top"]["rules"].as_array_mut().unwrap().reverse();
        shown.update(Seen::read(&other));
        assert!(!screen(&shown, 110, 32).contains("user_id=bob"));
        shown.select_next();
        assert!(screen(&shown, 110, 32).contains("user_id=bob"));
        shown.select_next();
        shown.select_previous();
        assert!(!screen(&shown, 110, 32).contains("user_id=bob"));
    }

    #[test]
    fn no_reports_and_a_small_screen_are_no_trouble() {
        let mut shown = Shown::new(Seen::read(&json!({})), true);
        for (width, height) in [(1, 1), (20, 5), (40, 12), (80, 24), (300, 100)] {
            let _ = screen(&shown, width, height);
        }
        shown.trouble = Some("no connection".to_owned());
        assert!(screen(&shown, 80, 24).contains("figures are old: no connection"));
        assert!(screen(&shown, 80, 24).contains("no keys yet"));
    }
}
