//! How long a model's answers usually are.
//!
//! A client that sets no bound is charged in advance what answers of the model have seldom gone beyond. That is a high
//! quantile of what was seen, in which older answers count less and less.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The share of answers that are to be at most as long as expected, in hundredths.
const QUANTILE_PERCENT: u64 = 90;

/// So many answers are seen before they say something.
const MIN_SEEN: u64 = 20;

/// When so many have been seen, all count half.
const HALVED_AT: u64 = 1_000;

/// Steps in each doubling: an expectation is at most a quarter above the quantile.
const STEPS: u64 = 4;

/// Beyond 2^32 tokens nothing is told apart.
const PLACES: usize = 32 * STEPS as usize;

/// The most models, for each tenant, that are learned about. Those that come later get the default.
const MAX_MODELS: usize = 10_000;

/// Lengths of answers, the recent ones counting most.
#[derive(Debug, Clone)]
pub(crate) struct Lengths {
    seen: [u32; PLACES],
    total: u64,
}

impl Default for Lengths {
    fn default() -> Self {
        Self { seen: [0; PLACES], total: 0 }
    }
}

impl Lengths {
    /// Notes how long an answer was.
    pub(crate) fn note(&mut self, tokens: u64) {
        if let Some(count) = self.seen.get_mut(place(tokens)) {
            *count += 1;
            self.total += 1;
        }
        if self.total >= HALVED_AT {
            self.seen.iter_mut().for_each(|count| *count /= 2);
            self.total = self.seen.iter().copied().map(u64::from).sum();
        }
    }

    /// How long the next will be at most, most likely.
    pub(crate) fn expected(&self) -> Option<u64> {
        if self.total < MIN_SEEN {
            return None;
        }
        let wanted = (self.total * QUANTILE_PERCENT).div_ceil(100);
        let mut below = 0;
        self.seen
            .iter()
            .position(|count| {
                below += u64::from(*count);
                below >= wanted
            })
            .map(most)
    }
}

/// The place of a length: doublings, in equal steps.
fn place(tokens: u64) -> usize {
    let tokens = tokens.clamp(1, u64::from(u32::MAX));
    let doublings = u64::from(tokens.ilog2());
    // How far it is to the next doubling, in steps.
    let step = ((tokens - (1 << doublings)) * STEPS) >> doublings;
    ((doublings * STEPS + step) as usize).min(PLACES - 1)
}

/// The greatest length of a place.
fn most(place: usize) -> u64 {
    let place = place as u64 + 1;
    let (doublings, step) = (place / STEPS, place % STEPS);
    let start = 1_u64 << doublings;
    // The least of the next place, less one.
    (start + (start * step).div_ceil(STEPS)).saturating_sub(1).max(1)
}

/// What is known of every model's answers, in this process.
#[derive(Debug, Default)]
pub(crate) struct Expectations(Mutex<HashMap<String, Lengths>>);

impl Expectations {
    pub(crate) fn note(&self, model: &str, tokens: u64) {
        let mut models = self.0.lock();
        if let Some(lengths) = models.get_mut(model) {
            lengths.note(tokens);
        } else if models.len() < MAX_MODELS {
            models.entry(model.to_owned()).or_default().note(tokens);
        }
    }

    pub(crate) fn expected(&self, model: &str) -> Option<u64> {
        self.0.lock().get(model)?.expected()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_place_holds_what_it_says(tokens in 1_u64..1 << 31) {
            let at = place(tokens);
            prop_assert!(most(at) >= tokens, "{tokens} at {at}, which ends at {}", most(at));
            if at > 0 && most(at - 1) != most(at) {
                prop_assert!(most(at - 1) < tokens, "{tokens} at {at}");
            }
            prop_assert!(most(at) <= tokens + tokens.div_ceil(STEPS));
        }

        #[test]
        fn nine_in_ten_fit(lengths in prop::collection::vec(1_u64..100_000, 20..200)) {
            let mut known = Lengths::default();
            for length in &lengths {
                known.note(*length);
            }
            let expected = known.expected().unwrap();
            let fitting = lengths.iter().filter(|length| **length <= expected).count();
            prop_assert!(fitting * 10 >= lengths.len() * 9);
        }
    }

    #[test]
    fn nothing_is_expected_of_a_few() {
        let mut known = Lengths::default();
        for _ in 0..MIN_SEEN - 1 {
            known.note(7);
        }
        assert_eq!(known.expected(), None);
        known.note(7);
        assert_eq!(known.expected(), Some(7));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut known = Lengths::default();
        for _ in 0..10_000 {
            known.note(4_000);
        }
        assert!(known.expected().unwrap() >= 4_000);
        for _ in 0..5_000 {
            known.note(10);
        }
        assert!(known.expected().unwrap() < 20, "{:?}", known.expected());
    }

    #[test]
    fn no_number_of_models_makes_it_grow() {
        let known = Expectations::default();
        for model in 0..MAX_MODELS + 10 {
            known.note(&model.to_string(), 1);
        }
        assert_eq!(known.0.lock().len(), MAX_MODELS);
        known.note("0", u64::MAX);
    }
}
