//! Plots as SVG: axes, lines and bars, drawn here so that a page needs no script.

use std::fmt::Write as _;

use super::units;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 508.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 218.0;
/// Where the words under the axis stand.
const LABELS: f64 = 240.0;
/// About how many lines a linear axis has.
const TICKS: f64 = 5.0;
/// Beyond this many points single dots would be a smear.
const MAX_DOTS: usize = 60;

/// An axis from a least to a most value.
pub(super) struct Axis {
    least: f64,
    most: f64,
    is_logarithmic: bool,
    label: fn(f64) -> String,
}

impl Axis {
    /// From 0 to at least `most`, to a round number.
    pub(super) fn linear(most: f64, label: fn(f64) -> String) -> Self {
        let step = step(most);
        let most = (most / step).ceil().max(1.0) * step;
        Self { least: 0.0, most, is_logarithmic: false, label }
    }

    /// Exactly from one to the other.
    pub(super) fn exact(least: f64, most: f64, label: fn(f64) -> String) -> Self {
        let most = if most > least { most } else { least + 1.0 };
        Self { least, most, is_logarithmic: false, label }
    }

    /// By powers of ten that hold both.
    pub(super) fn logarithmic(least: f64, most: f64, label: fn(f64) -> String) -> Self {
        let least = least.max(0.1).log10().floor();
        let most = most.max(0.2).log10().ceil().max(least + 1.0);
        let (least, most) = (10_f64.powf(least), 10_f64.powf(most));
        Self { least, most, is_logarithmic: true, label }
    }

    /// Where a value is, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = if self.is_logarithmic {
            (value.max(self.least) / self.least).log10() / (self.most / self.least).log10()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        place.clamp(0.0, 1.0)
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.place(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.place(value) * (BOTTOM - TOP)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = (self.most / self.least).log10().round() as i32;
            return (0..=decades).map(|decade| self.least * 10_f64.powi(decade)).collect();
        }
        let step = step(self.most - self.least).max(if self.least > 0.0 { 1.0 } else { 0.0 });
        let first = (self.least / step).ceil() as u64;
        let last = (self.most / step + 1e-9).floor() as u64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

/// A round step that gives a span about [`TICKS`] lines.
fn step(span: f64) -> f64 {
    let rough = (span / TICKS).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough);
    factor.unwrap_or(10.0) * power
}

/// A plot under construction.
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    svg: String,
}

impl Plot {
    pub(super) fn new(title: &str, x: Axis, y: Axis) -> Self {
        let mut svg = format!(
            r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
            units::escaped(title)
        );
        for tick in y.ticks() {
            let at = y.y(tick);
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 8.0,
                at + 4.0,
                (y.label)(tick)
            );
        }
        for tick in x.ticks() {
            let at = x.x(tick);
            // The words of the last one would stand over the edge.
            let anchor = if at > RIGHT - 20.0 { "end" } else { "middle" };
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{BOTTOM}" y2="{:.1}"/><text x="{at:.1}" y="{LABELS}" text-anchor="{anchor}">{}</text>"#,
                BOTTOM + 5.0,
                (x.label)(tick)
            );
        }
        Self { x, y, svg }
    }

    /// A line through points, with a dot for each where there is room.
    pub(super) fn curve(&mut self, class: &str, points: &[(f64, f64)], has_area: bool) {
        let at = |(x, y): &(f64, f64)| format!("{:.1},{:.1}", self.x.x(*x), self.y.y(*y));
        let path: Vec<String> = points.iter().map(at).collect();
        let path = path.join(" ");
        if has_area && let (Some(first), Some(last)) = (points.first(), points.last()) {
            let _ = write!(
                self.svg,
                r#"<polygon class="area" points="{:.1},{BOTTOM} {path} {:.1},{BOTTOM}"/>"#,
                self.x.x(first.0),
                self.x.x(last.0)
            );
        }
        let _ = write!(self.svg, r#"<polyline class="curve {class}" points="{path}"/>"#);
        if points.len() > MAX_DOTS {
            return;
        }
        for (x, y) in points {
            let _ = write!(
                self.svg,
                r#"<circle class="dot {class}" cx="{:.1}" cy="{:.1}" r="3"><title>{}: {}</title></circle>"#,
                self.x.x(*x),
                self.y.y(*y),
                (self.x.label)(*x),
                (self.y.label)(*y)
            );
        }
    }

    /// A bar between two places of the x axis.
    pub(super) fn bar(&mut self, from: f64, to: f64, height: f64, title: &str) {
        if height <= 0.0 {
            return;
        }
        let (left, right, top) = (self.x.x(from), self.x.x(to), self.y.y(height));
        let _ = write!(
            self.svg,
            r#"<rect class="bar" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            (right - left - 0.6).max(0.6),
            (BOTTOM - top).max(1.0),
            units::escaped(title)
        );
    }

    /// An upright line with a word beside it; `row` keeps the words of several apart.
    pub(super) fn mark(&mut self, at: f64, word: &str, row: u8) {
        let x = self.x.x(at);
        let (anchor, beside) = if x > RIGHT - 60.0 { ("end", -5.0) } else { ("start", 5.0) };
        let _ = write!(
            self.svg,
            r#"<line class="mark" x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{BOTTOM}"/><text x="{:.1}" y="{:.1}" text-anchor="{anchor}">{word}</text>"#,
            x + beside,
            TOP + 10.0 + 20.0 * f64::from(row)
        );
    }

    pub(super) fn end(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

/// Parts of a whole as one bar.
pub(super) fn shares(title: &str, parts: &[(&str, &str, u64)]) -> String {
    const BAR: f64 = 34.0;
    let sum: u64 = parts.iter().map(|(_, _, count)| count).sum();
    let mut svg = format!(
        r#"<svg viewBox="0 0 {WIDTH} {BAR}" role="img" aria-label="{}">"#,
        units::escaped(title)
    );
    let mut left = 0.0;
    for (class, name, count) in parts.iter().filter(|(_, _, count)| *count > 0) {
        let width = *count as f64 / sum as f64 * WIDTH;
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{left:.2}" y="0" width="{width:.2}" height="{BAR}"><title>{}: {count}</title></rect>"#,
            units::escaped(name)
        );
        left += width;
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        let label = |value: f64| value.to_string();
        assert_eq!(Axis::linear(4.2, label).ticks(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(Axis::linear(97_000.0, label).ticks().last(), Some(&100_000.0));
        assert_eq!(
            Axis::logarithmic(30.0, 2_500.0, label).ticks(),
            [10.0, 100.0, 1_000.0, 10_000.0]
        );
        assert!(Axis::linear(0.0, label).place(0.0).abs() < 1e-9);
        assert!(Axis::exact(3.0, 3.0, label).place(3.5) > 0.4);
    }
}
