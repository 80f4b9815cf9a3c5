//! Figures as people read them, and text that a page may hold.

/// Microseconds in the unit that reads best.
pub(super) fn time(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{} µs", short(micros)),
        micros if micros < 1_000_000.0 => format!("{} ms", short(micros / 1_000.0)),
        micros => format!("{} s", short(micros / 1_000_000.0)),
    }
}

/// A count in thousands or millions.
pub(super) fn count(count: f64) -> String {
    match count {
        count if count < 10_000.0 => format!("{}", count.round()),
        count if count < 1_000_000.0 => format!("{} k", short(count / 1_000.0)),
        count => format!("{} M", short(count / 1_000_000.0)),
    }
}

/// Bytes in the unit that reads best.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes < 1e6 => format!("{} kB", short(bytes / 1e3)),
        bytes if bytes < 1e9 => format!("{} MB", short(bytes / 1e6)),
        bytes => format!("{} GB", short(bytes / 1e9)),
    }
}

/// Seconds of a run.
pub(super) fn seconds(seconds: f64) -> String {
    format!("{} s", short(seconds))
}

/// Per cent of a whole.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = super::share(part, whole) * 100.0;
    if part > 0 && share < 0.01 { "< 0.01 %".to_owned() } else { format!("{} %", short(share)) }
}

/// Three digits, and no zeros that say nothing.
fn short(figure: f64) -> String {
    let text = match figure {
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    };
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text in a page.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(time(0.0), "0 µs");
        assert_eq!(time(31.25), "31.2 µs");
        assert_eq!(time(1_500.0), "1.5 ms");
        assert_eq!(time(2_000_000.0), "2 s");
        assert_eq!(count(9_999.4), "9999");
        assert_eq!(count(120_000.0), "120 k");
        assert_eq!(bytes(2_500_000), "2.5 MB");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 1_000_000), "< 0.01 %");
    }
}
