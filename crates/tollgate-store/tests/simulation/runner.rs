//! Many seeds, on all cores, each on one thread.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::plan::Plan;
use crate::shrink::shrink;
use crate::world::run;

/// So many seeds that fail are listed.
const MAX_LISTED: usize = 20;

/// So many of the last events of a run that fails are printed.
pub const MAX_EVENTS: usize = 600;

/// What is known of the runs of one shape.
#[derive(Debug, Default, Clone)]
struct Figures {
    runs: u64,
    /// The most that was admitted, in thousandths of the limit, and the seed that did.
    worst: (u64, u64),
    warm: u64,
    waits: u64,
    /// The longest decision, in thousandths of what a call may take, and its seed.
    longest: (u64, u64),
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    seeds: u64,
    took: Duration,
    by_shape: BTreeMap<String, Figures>,
    /// Seeds that failed, and why.
    pub failed: BTreeMap<u64, Vec<String>>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.seeds as f64 / self.took.as_secs_f64().max(1e-9);
        writeln!(f, "{} seeds, {per_second:.0} seeds per second", self.seeds)?;
        for (shape, figures) in &self.by_shape {
            let Figures { runs, worst: (thousandths, seed), warm, waits, longest } = figures;
            let worst = *thousandths as f64 / 1000.0;
            write!(f, "  {shape}: {runs} runs, at worst {worst:.3} of the limit (seed {seed})")?;
            let (longest, seed) = (longest.0 as f64 / 1000.0, longest.1);
            write!(f, ", no decision longer than {longest:.3} timeouts (seed {seed})")?;
            if shape == "FarStore" {
                write!(f, ", {waits} of {warm} steady requests waited")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "  {} failed", self.failed.len())?;
        for (seed, broken) in self.failed.iter().take(MAX_LISTED) {
            writeln!(f, "    seed {seed}: {}", broken.join("; "))?;
        }
        Ok(())
    }
}

/// Runs seeds from `first` on.
#[allow(clippy::disallowed_methods, reason = "seeds per second are real seconds")]
pub fn run_seeds(first: u64, seeds: u64) -> Summary {
    let began = std::time::Instant::now();
    let (next, summary) = (AtomicU64::new(0), Mutex::new(Summary::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= seeds {
                        break;
                    }
                    let seed = first + number;
                    let plan = Plan::draw(seed);
                    let outcome = run(&plan, false);
                    let mut summary = summary.lock();
                    summary.seeds += 1;
                    let figures = summary.by_shape.entry(format!("{:?}", plan.shape)).or_default();
                    figures.runs += 1;
                    figures.worst = figures.worst.max((outcome.worst, seed));
                    figures.longest = figures.longest.max((outcome.longest, seed));
                    (figures.warm, figures.waits) =
                        (figures.warm + outcome.warm, figures.waits + outcome.waits);
                    if !outcome.broken.is_empty() {
                        summary.failed.insert(seed, outcome.broken);
                    }
                }
            });
        }
    });
    Summary { took: began.elapsed(), ..summary.into_inner() }
}

/// The events of a plan that fails, after it was made smaller.
pub fn explain(plan: &Plan) -> String {
    let smaller = shrink(plan.clone(), &|plan| !run(plan, false).broken.is_empty());
    let (calls, faults) = (plan.calls.len(), plan.faults.len());
    let mut text = trace(&smaller, MAX_EVENTS);
    let _ =
        write!(text, "(made smaller from {} nodes, {calls} calls, {faults} faults)", plan.nodes);
    text
}

/// A plan, and the last events under it.
pub fn trace(plan: &Plan, max_events: usize) -> String {
    let outcome = run(plan, true);
    let mut text = plan.text();
    let left_out = outcome.notes.len().saturating_sub(max_events);
    if left_out > 0 {
        let _ = write!(text, "\n  ({left_out} earlier events are left out)");
    }
    for note in outcome.notes.iter().skip(left_out) {
        let _ = write!(text, "\n{note}");
    }
    for broken in &outcome.broken {
        let _ = write!(text, "\nBROKEN: {broken}");
    }
    text.push('\n');
    text
}
