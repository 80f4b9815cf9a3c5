//! Stores the figures of this node where others read them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{
    FORMAT, Installation, MAX_PART_BYTES, MAX_STATE_BYTES, MAX_TOP_BYTES, STATE, TOP_HOURS,
    TOP_MINUTES, part_field,
};
use crate::control::Keeper;
use crate::telemetry::decisions::{RESULTS, Window};
use crate::telemetry::history::Resolution;
use crate::telemetry::history_part::PART_STEPS;
use crate::telemetry::process::cpu_seconds;

/// How often a node reports its state.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Short steps after which the keys of the last hours are stored again.
const STEPS_PER_HOURS: u64 = 6;
/// The last report of a process must not delay its end.
const LAST_REPORT: Duration = Duration::from_millis(500);
/// Looks that the speed is measured over.
const SPEED_LOOKS: usize = 5;

/// How fast this node decides, and how many processors it uses: over the last few seconds.
#[derive(Debug, Default)]
pub(super) struct Speed {
    looks: VecDeque<(Instant, u64, f64)>,
}

impl Speed {
    fn look(&mut self, now: Instant, decisions: u64, cpu_seconds: f64) {
        if self.looks.len() > SPEED_LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back((now, decisions, cpu_seconds));
    }

    /// Decisions a second, and processors.
    pub(super) fn latest(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return (0.0, 0.0);
        };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
        let decisions = last.1.saturating_sub(first.1) as f64;
        let round = |value: f64| (value * 1e3).round() / 1e3;
        (round(decisions / seconds), round((last.2 - first.2).max(0.0) / seconds))
    }
}

/// What has been stored: the steps before these numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    short: u64,
    long: u64,
}

impl Installation {
    /// Measures the speed of this node.
    fn look(&self) {
        let decisions = self.observed.witness.tally().totals().iter().take(RESULTS.len()).sum();
        self.speed.lock().look(Instant::now(), decisions, cpu_seconds());
    }

    /// What is to be stored now, by field.
    fn fields(&self, stored: Stored) -> (Vec<(String, String)>, Stored) {
        let mut fields = Vec::new();
        self.put_state(&mut fields, false);
        let mut next = stored;
        for (resolution, done) in
            [(Resolution::Short, &mut next.short), (Resolution::Long, &mut next.long)]
        {
            let (first, end) = self.observed.history.numbers(resolution);
            if end <= *done {
                // Also after a clock was set back.
                *done = end;
                continue;
            }
            let first = first.max(*done);
            for number in first / PART_STEPS..=(end - 1) / PART_STEPS {
                let begin = number * PART_STEPS;
                if let Some(part) =
                    self.observed.history.part(resolution, begin, begin + PART_STEPS)
                {
                    let text = FORMAT.to_owned() + &part.into_text(MAX_PART_BYTES - FORMAT.len());
                    fields.push((part_field(resolution, number), text));
                }
            }
            *done = end;
        }
        if next.short != stored.short {
            self.put_top(&mut fields, TOP_MINUTES, Window::Minutes);
        }
        if next.short / STEPS_PER_HOURS != stored.short / STEPS_PER_HOURS {
            self.put_top(&mut fields, TOP_HOURS, Window::Hours);
        }
        (fields, next)
    }

    fn put_state(&self, fields: &mut Vec<(String, String)>, is_stopped: bool) {
        let state = self.own_state();
        let state = if is_stopped { state.stopped() } else { state };
        // Numbers and text in memory: this does not fail.
        let text = FORMAT.to_owned() + &serde_json::to_string(&state).unwrap_or_default();
        if text.len() <= MAX_STATE_BYTES {
            fields.push((STATE.to_owned(), text));
        }
    }

    fn put_top(&self, fields: &mut Vec<(String, String)>, field: &str, window: Window) {
        let top = self.observed.witness.tops().read(window, None);
        let text = FORMAT.to_owned() + &top.to_text(MAX_TOP_BYTES - FORMAT.len());
        fields.push((field.to_owned(), text));
    }

    /// Reports that this process ends.
    pub(in crate::control) async fn report_end(&self) {
        let Some(exchange) = &self.exchange else { return };
        let (mut fields, _) = self.fields(Stored { short: 0, long: 0 });
        fields.retain(|(field, _)| field != STATE);
        self.put_state(&mut fields, true);
        let _ = tokio::time::timeout(LAST_REPORT, exchange.put(self.roll.node(), &fields)).await;
    }
}

impl Keeper {
    /// Stores the figures of this node every second. While that fails, what is to be stored waits.
    pub(in crate::control) async fn publish_figures(self: Arc<Self>) {
        let installation = &self.installation;
        let mut stored = Stored::default();
        let mut trouble: Option<String> = None;
        loop {
            installation.look();
            if let Some(exchange) = &installation.exchange {
                let (fields, next) = installation.fields(stored);
                let problem = match exchange.put(self.roll.node(), &fields).await {
                    Ok(true) => {
                        stored = next;
                        None
                    }
                    Ok(false) => Some("there are figures of too many nodes".to_owned()),
                    Err(problem) => Some(problem),
                };
                if let Some(problem) = problem.as_ref().filter(|_| trouble.is_none()) {
                    tracing::warn!(problem, "the figures of this node cannot be stored for others");
                }
                trouble = problem;
            }
            tokio::time::sleep(REPORT_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let mut speed = Speed::default();
        assert_eq!(speed.latest(), (0.0, 0.0));
        let start = Instant::now();
        for second in 0..20_u64 {
            let decisions = if second < 10 { second * 1_000 } else { 10_000 + second * 10 };
            #[expect(clippy::cast_precision_loss, reason = "small")]
            speed.look(start + Duration::from_secs(second), decisions, second as f64 / 2.0);
        }
        assert_eq!(speed.latest(), (10.0, 0.5));
    }
}
