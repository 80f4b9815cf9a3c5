//! Charts as inline SVG.

use std::fmt::Write as _;

use super::units::escaped;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// So many lines of the grid are drawn at most, and labels under them.
const MAX_TICKS: usize = 5;

/// One curve of a chart.
pub(super) struct Curve {
    /// Its class, which has a colour.
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether the area under it is filled.
    pub(super) is_filled: bool,
}

/// A vertical line with a text.
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) class: &'static str,
    pub(super) name: String,
}

/// Curves over one axis.
pub(super) struct Chart<'c> {
    pub(super) title: &'c str,
    pub(super) curves: Vec<Curve>,
    pub(super) marks: Vec<Mark>,
    pub(super) x_label: &'c dyn Fn(f64) -> String,
    pub(super) y_label: &'c dyn Fn(f64) -> String,
    /// The axis ends here at least.
    pub(super) least_y: f64,
}

impl Chart<'_> {
    /// The chart as SVG with a legend; nothing without points.
    pub(super) fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let xs = || points().map(|(x, _)| *x).chain(self.marks.iter().map(|mark| mark.at));
        let (low, high) =
            (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
        if !low.is_finite() {
            return String::new();
        }
        let high = if high > low { high } else { low + 1.0 };
        let top = nice(points().map(|(_, y)| *y).fold(self.least_y, f64::max));
        let scale = Scale { low, high, top };
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escaped(self.title)
        );
        self.grid(&scale, &mut svg);
        for curve in &self.curves {
            draw(curve, &scale, &mut svg);
        }
        for mark in &self.marks {
            draw_mark(mark, &scale, &mut svg);
        }
        svg.push_str("</svg>");
        self.legend(&mut svg);
        svg
    }

    fn grid(&self, scale: &Scale, svg: &mut String) {
        for step in 0..MAX_TICKS {
            let part = step as f64 / (MAX_TICKS - 1) as f64;
            let value = scale.top * part;
            let y = scale.y(value);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                escaped(&(self.y_label)(value))
            );
            let x = scale.low + (scale.high - scale.low) * part;
            let anchor = match step {
                0 => "start",
                step if step + 1 == MAX_TICKS => "end",
                _ => "middle",
            };
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                scale.x(x),
                HEIGHT - 12.0,
                escaped(&(self.x_label)(x))
            );
        }
    }

    fn legend(&self, svg: &mut String) {
        svg.push_str("<ul class=\"key\">");
        for curve in &self.curves {
            let _ =
                write!(svg, "<li><i class=\"{}\"></i>{}</li>", curve.class, escaped(curve.name));
        }
        for mark in &self.marks {
            let _ = write!(
                svg,
                "<li><i class=\"line {}\"></i>{}</li>",
                mark.class,
                escaped(&mark.name)
            );
        }
        svg.push_str("</ul>");
    }
}

struct Scale {
    low: f64,
    high: f64,
    top: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

fn draw(curve: &Curve, scale: &Scale, svg: &mut String) {
    let mut path = String::new();
    for (x, y) in &curve.points {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", scale.x(*x), scale.y(*y));
    }
    let (Some((first, _)), Some((last, _))) = (curve.points.first(), curve.points.last()) else {
        return;
    };
    if curve.is_filled {
        let _ = write!(
            svg,
            "<path class=\"area {}\" d=\"{path}L{:.1} {:.1}L{:.1} {:.1}Z\"/>",
            curve.class,
            scale.x(*last),
            scale.y(0.0),
            scale.x(*first),
            scale.y(0.0)
        );
    }
    let _ = write!(svg, "<path class=\"curve {}\" d=\"{path}\"/>", curve.class);
}

fn draw_mark(mark: &Mark, scale: &Scale, svg: &mut String) {
    let x = scale.x(mark.at);
    let _ = write!(
        svg,
        "<line class=\"mark {}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>",
        mark.class,
        HEIGHT - BOTTOM
    );
}

/// The next of 1, 2, 4, 6, 8 and 10 times a power of ten: it divides well into four parts.
fn nice(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].into_iter().find(|factor| factor * power >= value);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in [(0.0, 1.0), (1.0, 1.0), (1.5, 2.0), (37.0, 40.0), (900.0, 1_000.0)] {
            assert!((nice(value) - end).abs() < 1e-9, "{value}");
        }
    }
}
