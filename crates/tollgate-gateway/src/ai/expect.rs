//! What is learned of each model and tenant: how long answers usually are, and how far prompts are from their estimates.
//!
//! A client that sets no bound is charged in advance what answers of the model have seldom gone beyond. That is a high
//! quantile of what was seen, in which older answers count less and less.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use super::allowance::{Allowance, WholeAnswer};

/// The share of answers that are to be at most as long as expected, in hundredths.
const QUANTILE_PERCENT: u64 = 90;

/// So many answers are seen before they say something.
const MIN_SEEN: u64 = 20;

/// When so many have been seen, all count half.
const HALVED_AT: u64 = 1_000;

/// Steps in each doubling: an expectation is at most a quarter above the quantile.
const STEPS: u64 = 4;

/// Lengths beyond 2^32 tokens share the last place.
const PLACES: usize = 32 * STEPS as usize;

/// The most pairs of tenant and model that are learned about.
const MAX_PAIRS: usize = 10_000;

/// So many are forgotten together when there is no room: choosing them takes a look at all.
const FORGOTTEN_TOGETHER: usize = MAX_PAIRS / 16;

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

/// Prompts are corrected after so many.
const MIN_PROMPTS: u64 = 8;

/// When so many have been seen, all count half.
const PROMPTS_HALVED_AT: u64 = 64;

/// Prompts below this say little: what a template adds outweighs their text.
const MIN_PROMPT_TOKENS: u64 = 16;

/// No correction goes below half of an estimate: cheap prompts must not make expensive ones pass.
const MIN_CORRECTION: u64 = 500;

/// Nor above four times.
const MAX_CORRECTION: u64 = 4_000;

/// Longer prompts never lower a correction: servers cut what does not fit into the context.
const MAX_CERTAIN_TOKENS: u64 = 2_000;

/// No correction, in thousandths.
const UNCORRECTED: u64 = 1_000;

/// The estimate of a prompt whose true length says something about texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LearnedPrompt {
    pub(crate) estimated: u64,
    /// Whether every upstream reads all of it. Otherwise it can only raise a correction.
    pub(crate) is_certain: bool,
}

/// How far the true lengths of prompts are from their estimates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Correction {
    count: u64,
    /// The sum of true lengths in thousandths of their estimates, each within bounds.
    thousandths: u64,
}

impl Correction {
    fn note(&mut self, prompt: LearnedPrompt, used: u64) {
        let LearnedPrompt { estimated, is_certain } = prompt;
        if estimated < MIN_PROMPT_TOKENS || used == 0 {
            return;
        }
        let each = used.saturating_mul(1_000) / estimated;
        // A part that the upstream did not read must not make other prompts cheaper.
        let is_certain = is_certain && estimated <= MAX_CERTAIN_TOKENS;
        if !is_certain && each < self.thousandths() {
            return;
        }
        // One prompt moves the mean only so far, whatever an upstream says of it.
        self.thousandths += each.clamp(MIN_CORRECTION / 2, 2 * MAX_CORRECTION);
        self.count += 1;
        if self.count >= PROMPTS_HALVED_AT {
            self.count /= 2;
            self.thousandths /= 2;
        }
    }

    /// By how many thousandths estimates are to be multiplied.
    pub(crate) fn thousandths(&self) -> u64 {
        if self.count < MIN_PROMPTS {
            return UNCORRECTED;
        }
        (self.thousandths / self.count).clamp(MIN_CORRECTION, MAX_CORRECTION)
    }
}

#[derive(Debug, Default)]
struct Learned {
    lengths: Lengths,
    prompts: Correction,
    allowance: Allowance,
    /// The value of [`Pairs::uses`] when it was used last.
    last_use: u64,
}

/// The name of a model and who asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct HistoryKey {
    pub(crate) model: String,
    pub(crate) tenant: String,
}

/// What is learned of each pair.
#[derive(Debug, Default)]
struct Pairs {
    known: HashMap<HistoryKey, Learned>,
    uses: u64,
}

impl Pairs {
    fn get(&mut self, key: &HistoryKey) -> Option<&mut Learned> {
        let learned = self.known.get_mut(key)?;
        self.uses += 1;
        learned.last_use = self.uses;
        Some(learned)
    }

    fn get_or_add(&mut self, key: &HistoryKey) -> &mut Learned {
        if !self.known.contains_key(key) && self.known.len() >= MAX_PAIRS {
            self.make_room();
        }
        self.uses += 1;
        let learned = self.known.entry(key.clone()).or_default();
        learned.last_use = self.uses;
        learned
    }

    /// Forgets pairs of the tenants that have the most, the least recently used ones first. A tenant that invents models
    /// forgets its own.
    fn make_room(&mut self) {
        let mut newest: Vec<(u64, &HistoryKey)> =
            self.known.iter().map(|(key, learned)| (learned.last_use, key)).collect();
        newest.sort_unstable_by_key(|(last_use, _)| Reverse(*last_use));
        let mut seen: HashMap<&str, usize> = HashMap::new();
        // How many more recent ones the same tenant has, and when this one was used.
        let mut ranked: Vec<(usize, Reverse<u64>)> = Vec::with_capacity(newest.len());
        for (last_use, key) in newest {
            let more_recent = seen.entry(&key.tenant).or_default();
            ranked.push((*more_recent, Reverse(last_use)));
            *more_recent += 1;
        }
        ranked.sort_unstable_by_key(|rank| Reverse(*rank));
        let forgotten: HashSet<u64> =
            ranked.into_iter().take(FORGOTTEN_TOGETHER).map(|(_, Reverse(use_))| use_).collect();
        self.known.retain(|_, learned| !forgotten.contains(&learned.last_use));
    }
}

/// What is learned, in this process: by model and tenant, so that nobody is charged by what others ask for.
#[derive(Debug, Default)]
pub(crate) struct Expectations(Mutex<Pairs>, Mutex<HashMap<String, bool>>);

/// The most models of which it is known whether they use tokens that no client sees.
const MAX_MODELS: usize = 10_000;

impl Expectations {
    /// Notes an answer that was read to its end. A model that once used much more than it showed has hidden tokens, such as
    /// its thinking, for every tenant and for as long as the process lives.
    pub(crate) fn note_whole(&self, key: &HistoryKey, answer: WholeAnswer) {
        let is_hiding = answer.is_hiding();
        let mut models = self.1.lock();
        if let Some(known) = models.get_mut(&key.model) {
            *known |= is_hiding;
        } else if models.len() < MAX_MODELS {
            models.insert(key.model.clone(), is_hiding);
        }
        drop(models);
        if !is_hiding {
            self.0.lock().get_or_add(key).allowance.earn(answer.used.min(answer.counted));
        }
    }

    /// Whether a tenant may leave an answer of which so much is reserved and not seen, and pay what it has seen. What is
    /// not seen is taken from its allowance.
    pub(crate) fn spend_allowance(&self, key: &HistoryKey, unseen: u64) -> bool {
        let is_hiding = self.1.lock().get(&key.model).copied().unwrap_or(true);
        !is_hiding && self.0.lock().get(key).is_some_and(|it| it.allowance.spend(unseen))
    }

    pub(crate) fn note(&self, key: &HistoryKey, tokens: u64) {
        self.0.lock().get_or_add(key).lengths.note(tokens);
    }

    /// Notes how long a prompt was that was estimated at so much.
    pub(crate) fn note_prompt(&self, key: &HistoryKey, prompt: Option<LearnedPrompt>, used: u64) {
        if let Some(prompt) = prompt {
            self.0.lock().get_or_add(key).prompts.note(prompt, used);
        }
    }

    pub(crate) fn expected(&self, key: &HistoryKey) -> Option<u64> {
        self.0.lock().get(key)?.lengths.expected()
    }

    /// By how many thousandths the estimates of prompts are to be multiplied.
    pub(crate) fn correction(&self, key: &HistoryKey) -> u64 {
        self.0.lock().get(key).map_or(UNCORRECTED, |learned| learned.prompts.thousandths())
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

    const fn prompt(estimated: u64) -> LearnedPrompt {
        LearnedPrompt { estimated, is_certain: true }
    }

    fn key(model: &str, tenant: &str) -> HistoryKey {
        HistoryKey { model: model.to_owned(), tenant: tenant.to_owned() }
    }

    #[test]
    fn a_tenant_that_invents_models_forgets_its_own() {
        let known = Expectations::default();
        for _ in 0..MIN_SEEN {
            known.note(&key("m", "early"), 7);
        }
        for model in 0..3 * MAX_PAIRS {
            known.note(&key(&model.to_string(), "hostile"), 1);
            assert!(known.0.lock().known.len() <= MAX_PAIRS);
        }
        assert_eq!(known.expected(&key("m", "early")), Some(7), "nobody forgets another's");
        for _ in 0..MIN_PROMPTS {
            known.note_prompt(&key("m", "late"), Some(prompt(100)), 200);
        }
        assert_eq!(known.correction(&key("m", "late")), 2_000, "there is room for others");
    }

    fn whole(used: u64, counted: u64) -> WholeAnswer {
        WholeAnswer { used, counted, reasoning: 0 }
    }

    /// An answer that is left costs what was seen of it only as far as whole answers were paid before, whatever those hid.
    #[test]
    fn harmless_answers_do_not_pay_for_what_others_hide() {
        let known = Expectations::default();
        let own = key("m", "a");
        assert!(!known.spend_allowance(&own, 0), "nothing is known of it");
        for _ in 0..100 {
            known.note_whole(&own, whole(6, 6));
        }
        assert!(!known.spend_allowance(&own, 10_000), "600 tokens stand for no 10,000");
        assert!(known.spend_allowance(&own, 200) && !known.spend_allowance(&own, 200));
        assert!(!known.spend_allowance(&key("m", "b"), 0), "nobody spends another's");
        assert!(!known.spend_allowance(&key("n", "a"), 0), "nor that of another model");
        let other = key("m", "c");
        known.note_whole(&other, whole(1_000 + 250 + 65, 1_000));
        assert!(!known.spend_allowance(&own, 1), "it hid something from anybody");
        known.note_whole(&own, whole(6, 6));
        assert!(!known.spend_allowance(&own, 1), "which is not forgotten");
    }

    #[test]
    fn the_models_that_are_known_are_bounded() {
        let known = Expectations::default();
        for model in 0..2 * MAX_MODELS {
            known.note_whole(&key(&model.to_string(), "a"), whole(1, 1));
        }
        assert_eq!(known.1.lock().len(), MAX_MODELS);
        assert!(!known.spend_allowance(&key(&(MAX_MODELS + 1).to_string(), "a"), 0));
    }

    /// What an upstream did not read, or cut, teaches nothing: only a prompt that it certainly read lowers an estimate.
    #[test]
    fn padding_teaches_nothing() {
        let known = Expectations::default();
        let padded = Some(LearnedPrompt { estimated: 1_000, is_certain: false });
        let cut = Some(LearnedPrompt { estimated: MAX_CERTAIN_TOKENS + 1, is_certain: true });
        for _ in 0..70 {
            known.note_prompt(&key("m", "a"), padded, 100);
            known.note_prompt(&key("m", "a"), cut, 100);
        }
        assert_eq!(known.correction(&key("m", "a")), UNCORRECTED);
        for _ in 0..MIN_PROMPTS {
            known.note_prompt(&key("m", "a"), Some(prompt(100)), 200);
        }
        for _ in 0..70 {
            known.note_prompt(&key("m", "a"), padded, 1_000);
        }
        assert_eq!(known.correction(&key("m", "a")), 2_000, "nor does it take a correction back");
        for _ in 0..70 {
            known.note_prompt(&key("m", "a"), padded, 3_000);
        }
        assert!(known.correction(&key("m", "a")) > 2_900, "more is believed");
    }

    #[test]
    fn among_many_tenants_the_least_recently_used_is_forgotten() {
        let known = Expectations::default();
        for _ in 0..MIN_SEEN {
            known.note(&key("m", "active"), 7);
        }
        for tenant in 0..2 * MAX_PAIRS {
            known.note(&key("m", &tenant.to_string()), 1);
            assert_eq!(known.expected(&key("m", "active")), Some(7), "{tenant}");
        }
        assert!(known.0.lock().known.len() <= MAX_PAIRS);
    }

    #[test]
    fn prompts_are_corrected_within_bounds_and_for_their_tenant_alone() {
        let known = Expectations::default();
        for _ in 0..MIN_PROMPTS - 1 {
            known.note_prompt(&key("m", "a"), Some(prompt(100)), 200);
        }
        assert_eq!(known.correction(&key("m", "a")), 1_000, "a few say nothing");
        known.note_prompt(&key("m", "a"), Some(prompt(100)), 200);
        assert_eq!(known.correction(&key("m", "a")), 2_000);
        assert_eq!(known.correction(&key("m", "b")), 1_000, "nobody changes another's");
        for _ in 0..1_000 {
            known.note_prompt(&key("m", "a"), Some(prompt(2_000)), 1);
            known.note_prompt(&key("m", "b"), Some(prompt(100)), u64::MAX);
            known.note_prompt(&key("m", "c"), Some(prompt(1)), 1_000);
            known.note_prompt(&key("m", "c"), None, 1_000);
        }
        assert_eq!(known.correction(&key("m", "a")), MIN_CORRECTION, "never below half");
        assert_eq!(known.correction(&key("m", "b")), MAX_CORRECTION);
        assert_eq!(known.correction(&key("m", "c")), 1_000, "a few words say nothing");
    }
}
