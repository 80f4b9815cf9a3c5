//! How far a run is, on a terminal.

use std::io::{IsTerminal as _, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tollgate_load::Progress;

/// The bar counts thousandths.
const WHOLE: f64 = 1_000.0;

/// A bar on standard error; nothing where that is no terminal.
pub(super) struct Shown(Option<ProgressBar>);

impl Shown {
    pub(super) fn new() -> Self {
        if !stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(Some(WHOLE as u64), ProgressDrawTarget::stderr());
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let bar_style = if colour { "{bar:32.green}" } else { "{bar:32}" };
        let style = ProgressStyle::with_template(&format!("{bar_style} {{percent:>3}} %  {{msg}}"));
        Self(Some(match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }))
    }

    pub(super) fn update(&mut self, progress: Progress) {
        let Some(bar) = &self.0 else { return };
        bar.set_position((progress.share * WHOLE) as u64);
        let seconds = progress.elapsed.as_secs();
        bar.set_message(if progress.is_warmup {
            format!("{seconds} s, warming up")
        } else {
            format!(
                "{seconds} s, {} requests, {}/s, {} errors",
                progress.requests, progress.requests_per_second, progress.errors
            )
        });
    }

    pub(super) fn clear(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
