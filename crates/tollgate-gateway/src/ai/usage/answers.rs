//! Usage of a stream with several answers. Some servers state it once for all of them, and some once for each.

use std::collections::BTreeMap;

use tollgate_policy::prices::{TokenKind, Usage};

use super::{Doubt, output_of};

/// The most answers of which it is known apart what they used. What others state is added up.
const MAX_ANSWERS: usize = 1_024;

/// What was stated of each answer, and of all together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StatedByAnswer {
    /// By the index of the answer; each is stated from the beginning of that answer.
    by_index: BTreeMap<u64, Usage>,
    /// The sum of what was stated of further answers.
    further: Option<Usage>,
    /// The sum of what was stated of no answer in particular: a server may do that once for each.
    unnamed: Option<Usage>,
    /// A statement that is not believed makes the sum of the others too low.
    doubt: Option<Doubt>,
}

fn sum(one: Usage, other: Usage) -> Usage {
    TokenKind::ALL
        .into_iter()
        .fold(one, |sum, kind| sum.with(kind, one.tokens(kind).saturating_add(other.tokens(kind))))
}

fn add_to(known: &mut Option<Usage>, usage: Usage) {
    *known = Some(known.map_or(usage, |known| sum(known, usage)));
}

impl StatedByAnswer {
    /// Adds what was stated of the answer with this index, or of none in particular. Gives what all used by now.
    pub(crate) fn add(
        &mut self,
        index: Option<u64>,
        stated: Result<Usage, Doubt>,
    ) -> Result<Usage, Doubt> {
        match stated {
            Err(doubt) => self.doubt = Some(doubt),
            Ok(usage) => match index {
                Some(index) if self.has_room(index) => {
                    let known = self.by_index.entry(index).or_insert(usage);
                    if known.total() < usage.total() {
                        *known = usage;
                    }
                }
                Some(_) => add_to(&mut self.further, usage),
                None => add_to(&mut self.unnamed, usage),
            },
        }
        self.doubt.map_or_else(|| Ok(self.total()), Err)
    }

    fn has_room(&self, index: u64) -> bool {
        self.by_index.len() < MAX_ANSWERS || self.by_index.contains_key(&index)
    }

    /// Where both were stated, the one of no answer in particular is about all, and the prompt was counted with each answer.
    fn total(&self) -> Usage {
        let each = self.by_index.values().copied().chain(self.further);
        let by_index = each.reduce(sum).unwrap_or_default();
        let Some(unnamed) = self.unnamed else { return by_index };
        if output_of(&by_index) > output_of(&unnamed) {
            return unnamed.with(TokenKind::Output, output_of(&by_index));
        }
        unnamed
    }

    /// Whether so many answers have stated what they used.
    pub(crate) fn is_complete(&self, answers: u64) -> bool {
        let is_full = self.by_index.len() == MAX_ANSWERS;
        let known = u64::try_from(self.by_index.len()).unwrap_or(u64::MAX);
        self.unnamed.is_some() || is_full || known >= answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(stated: &mut StatedByAnswer, index: Option<u64>, input: u64, output: u64) -> (u64, u64) {
        let usage = stated.add(index, Ok(Usage::new(input, output))).expect("it is believed");
        (usage.tokens(TokenKind::Input), usage.tokens(TokenKind::Output))
    }

    #[test]
    fn what_each_answer_states_is_added_up() {
        let mut stated = StatedByAnswer::default();
        assert_eq!(add(&mut stated, Some(0), 10, 3), (10, 3));
        assert_eq!(add(&mut stated, Some(1), 20, 5), (30, 8));
        assert_eq!(add(&mut stated, Some(0), 10, 7), (30, 12), "from its beginning");
        assert_eq!(add(&mut stated, Some(0), 10, 1), (30, 12), "a smaller one takes nothing back");
        assert!(stated.is_complete(2) && !stated.is_complete(3));
    }

    #[test]
    fn what_is_stated_of_all_holds_once_and_is_added_up_otherwise() {
        let mut stated = StatedByAnswer::default();
        add(&mut stated, Some(0), 10, 3);
        add(&mut stated, Some(1), 10, 4);
        assert_eq!(add(&mut stated, None, 10, 7), (10, 7), "the prompt counts once");
        let mut stated = StatedByAnswer::default();
        add(&mut stated, None, 10, 3);
        assert_eq!(add(&mut stated, None, 10, 4), (20, 7));
    }

    #[test]
    fn one_that_is_not_believed_spoils_the_sum() {
        let mut stated = StatedByAnswer::default();
        assert_eq!(stated.add(Some(0), Err(Doubt::TooMuch)), Err(Doubt::TooMuch));
        assert_eq!(stated.add(Some(1), Ok(Usage::new(1, 1))), Err(Doubt::TooMuch));
    }

    #[test]
    fn many_answers_take_bounded_room() {
        let mut stated = StatedByAnswer::default();
        let most = u64::try_from(MAX_ANSWERS).expect("a small number");
        for index in 0..2 * most {
            add(&mut stated, Some(index), 1, 1);
        }
        assert_eq!(stated.by_index.len(), MAX_ANSWERS);
        assert_eq!(stated.total(), Usage::new(2 * most, 2 * most));
    }
}
