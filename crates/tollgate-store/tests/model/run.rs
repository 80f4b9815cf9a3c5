//! Plays many histories, and reports the first that fails.

use std::fmt::{Display, Write as _};
use std::ops::Range;

use crate::driver::Mismatch;
use crate::history::History;
use crate::minimize::minimize;
use crate::nodes::NodeHistory;
use crate::shrink::{simpler, simpler_node_op};

/// How many histories a test plays, and the seed of the first.
pub fn seeds(unless_set: u64) -> Range<u64> {
    let set =
        |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let first = set("TOLLGATE_MODEL_SEED").unwrap_or(0);
    first..first + set("TOLLGATE_MODEL_HISTORIES").unwrap_or(unless_set)
}

/// A history that can be made smaller.
pub trait Story: Display + Sized {
    /// The smallest form found that still fails.
    fn shrink(&self, tries: u32, fails: impl FnMut(&Self) -> bool) -> Self;
}

impl Story for History {
    fn shrink(&self, tries: u32, mut fails: impl FnMut(&Self) -> bool) -> Self {
        let with = |ops: Vec<_>| Self { ops, ..self.clone() };
        with(minimize(self.ops.clone(), tries, simpler, |ops| fails(&with(ops.to_vec()))))
    }
}

impl Story for NodeHistory {
    fn shrink(&self, tries: u32, mut fails: impl FnMut(&Self) -> bool) -> Self {
        let with = |ops: Vec<_>| Self { ops, ..self.clone() };
        with(minimize(self.ops.clone(), tries, simpler_node_op, |ops| fails(&with(ops.to_vec()))))
    }
}

/// Plays a history of every seed, and panics with the smallest form of the first that fails.
pub fn check<H: Story>(
    seeds: Range<u64>,
    history: impl Fn(u64) -> H,
    shrink_tries: u32,
    mut play: impl FnMut(&H) -> Result<(), Mismatch>,
) {
    for seed in seeds {
        let history = history(seed);
        let Err(first) = play(&history) else { continue };
        let small = history.shrink(shrink_tries, |candidate| play(candidate).is_err());
        let mut report = format!("the store and the oracle differ.\n{small}");
        if let Err(Mismatch { step, what }) = play(&small) {
            let _ = write!(report, "after step {}: {what}", step + 1);
        } else {
            let Mismatch { step, what } = first;
            let step = step + 1;
            let _ = write!(
                report,
                "it did not fail again, as it first did after step {step}: {what}\n{history}"
            );
        }
        panic!("{report}");
    }
}
