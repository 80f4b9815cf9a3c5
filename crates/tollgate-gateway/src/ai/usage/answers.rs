//! Usage of several answers. Some servers state it once for all of them, some once for each, and some state with every
//! piece what all have used by then. Which one it is, the text shows.

use std::collections::BTreeMap;

use tollgate_policy::prices::{TokenKind, Usage};

use super::{Doubt, output_of};

/// The most answers of which it is known apart what they used. What others state is added up.
const MAX_ANSWERS: usize = 1_024;

/// What was stated of each answer, and of none in particular.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StatedByAnswer {
    /// By the index of the answer; each is stated from the beginning.
    by_index: BTreeMap<u64, Usage>,
    /// What was stated of further answers.
    further: Sum,
    /// What was stated of no answer in particular.
    unnamed: Sum,
    /// The largest of all statements.
    largest: Option<Usage>,
    /// The total of the last one, and whether one was not more than the one before: what all have used grows.
    last: u64,
    is_repeated: bool,
    /// Whether one of them is not believed: the sum of the others is too low.
    is_doubtful: bool,
}

/// A sum of usages, and how many they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    usage: Usage,
    count: u64,
}

impl Sum {
    fn add(&mut self, usage: Usage) {
        for kind in TokenKind::ALL {
            let sum = self.usage.tokens(kind).saturating_add(usage.tokens(kind));
            self.usage = self.usage.with(kind, sum);
        }
        self.count = self.count.saturating_add(1);
    }

    /// What answers to so many prompts used, where each stated the length of its prompt.
    fn of_prompts(self, prompts: u64) -> Usage {
        let each = self.count.checked_div(prompts).unwrap_or(1).max(1);
        TokenKind::ALL
            .into_iter()
            .filter(|kind| kind.whole() == TokenKind::Input)
            .fold(self.usage, |usage, kind| {
                usage.with(kind, self.usage.tokens(kind).div_ceil(each))
            })
    }
}

impl StatedByAnswer {
    /// Notes what was stated of the answer with this index, or of none in particular.
    pub(crate) fn note(&mut self, index: Option<u64>, stated: Result<Usage, Doubt>) {
        let Ok(usage) = stated else {
            self.is_doubtful = true;
            return;
        };
        self.is_repeated |= usage.total() <= self.last;
        self.last = usage.total();
        if self.largest.is_none_or(|largest| largest.total() < usage.total()) {
            self.largest = Some(usage);
        }
        match index {
            Some(index) if self.has_room(index) => {
                let known = self.by_index.entry(index).or_insert(usage);
                if known.total() < usage.total() {
                    *known = usage;
                }
            }
            Some(_) => self.further.add(usage),
            None => self.unnamed.add(usage),
        }
    }

    fn has_room(&self, index: u64) -> bool {
        self.by_index.len() < MAX_ANSWERS || self.by_index.contains_key(&index)
    }

    /// What the answers to so many prompts used, where so much text of them was counted: the largest statement, or the sum
    /// where that is closer to the text. If most of it is not shown, the text says nothing, and statements that do not grow
    /// are about one answer each. None where nothing was stated or not all of it is believed.
    pub(crate) fn total(&self, counted: u64, prompts: u64) -> Option<Usage> {
        let largest = self.largest.filter(|_| !self.is_doubtful)?;
        let mut sum = self.unnamed;
        if sum.count == 0 {
            sum = self.further;
            self.by_index.values().for_each(|usage| sum.add(*usage));
        }
        let sum = sum.of_prompts(prompts);
        let (one, all) = (output_of(&largest), output_of(&sum));
        let is_sum = if counted.saturating_mul(2) < one {
            self.is_repeated
        } else {
            // In proportion, and not by difference: the text is known by a factor.
            u128::from(counted) * u128::from(counted) > u128::from(one) * u128::from(all)
        };
        Some(if is_sum && all > one { sum } else { largest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(all: &[(Option<u64>, u64, u64)]) -> StatedByAnswer {
        let mut stated = StatedByAnswer::default();
        for (index, input, output) in all.iter().copied() {
            stated.note(index, Ok(Usage::new(input, output)));
        }
        stated
    }

    fn total(all: &[(Option<u64>, u64, u64)], counted: u64, prompts: u64) -> (u64, u64) {
        let usage = stated(all).total(counted, prompts).expect("all are believed");
        (usage.tokens(TokenKind::Input), usage.tokens(TokenKind::Output))
    }

    #[test]
    fn what_each_answer_states_is_added_up() {
        let each = [(Some(0), 10, 30), (Some(1), 20, 50), (Some(0), 10, 70), (Some(0), 10, 1)];
        assert_eq!(total(&each, 130, 2), (30, 120), "two prompts");
        let each = [(Some(0), 10, 30), (Some(1), 10, 50), (Some(2), 10, 40)];
        assert_eq!(total(&each, 110, 1), (10, 120), "three answers to one prompt");
        assert_eq!(total(&[(None, 10, 30), (None, 10, 50)], 90, 1), (10, 80));
    }

    #[test]
    fn what_is_stated_of_all_holds() {
        let with_end = [(Some(0), 10, 30), (Some(1), 10, 40), (None, 10, 70)];
        assert_eq!(total(&with_end, 90, 1), (10, 70));
        // All that was used by then, with every piece.
        let growing = [(Some(0), 10, 30), (Some(1), 10, 60), (Some(0), 10, 90), (Some(1), 10, 100)];
        assert_eq!(total(&growing, 120, 1), (10, 100));
        assert_eq!(total(&[(None, 10, 50), (None, 10, 100), (None, 10, 100)], 120, 1), (10, 100));
    }

    #[test]
    fn what_is_not_shown_is_added_up_where_it_does_not_grow() {
        let each: Vec<_> = (0..20).map(|index| (Some(index), 1_000, 500)).collect();
        assert_eq!(total(&each, 20, 20), (20_000, 10_000));
        assert_eq!(total(&each, 20, 1), (1_000, 10_000));
        let growing: Vec<_> = (1..20).map(|count| (Some(count % 2), 10, 100 * count)).collect();
        assert_eq!(total(&growing, 20, 1), (10, 1_900));
    }

    #[test]
    fn one_that_is_not_believed_spoils_the_others() {
        let mut stated = stated(&[(Some(0), 1, 1)]);
        stated.note(Some(1), Err(Doubt::TooMuch));
        assert_eq!(stated.total(2, 1), None);
    }

    #[test]
    fn many_answers_take_bounded_room() {
        let most = u64::try_from(MAX_ANSWERS).expect("a small number");
        let all: Vec<_> = (0..2 * most).map(|index| (Some(index), 1, 1)).collect();
        assert_eq!(stated(&all).by_index.len(), MAX_ANSWERS);
        assert_eq!(total(&all, 2 * most, 2 * most), (2 * most, 2 * most));
    }
}
