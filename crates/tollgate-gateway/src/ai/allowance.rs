//! Answers that a client leaves before their usage is known, of models that may use tokens which nobody sees.
//!
//! That a model hid nothing in one answer says nothing about the next: it may think about a hard question and not about an
//! easy one. So whole answers earn a tenant an allowance in tokens. An answer that is left is paid as far as it was seen only
//! while the allowance covers the rest of its reservation. What stays unpaid that way is less than a fixed part of what the
//! same tenant paid for whole answers of the same model.

/// So many whole answers are needed before there is an allowance.
const MIN_WHOLE: u64 = 8;

/// Of the tokens of whole answers, one in so many is allowed.
const TOKENS_PER_ALLOWED: u64 = 2;

/// The largest allowance.
const MAX_ALLOWANCE: u64 = 65_536;

/// Tokens beyond a quarter of an answer by which its estimate may be wrong.
const HIDDEN_SLACK: u64 = 64;

/// What an answer used that was read to its end, and what was seen of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WholeAnswer {
    pub(crate) used: u64,
    /// What was counted of its text.
    pub(crate) counted: u64,
    /// The thinking that its usage states.
    pub(crate) reasoning: u64,
}

impl WholeAnswer {
    /// Whether it used more than was seen of it. Where its usage states thinking, there is no slack.
    pub(super) const fn is_hiding(self) -> bool {
        let slack = if self.reasoning > 0 { 0 } else { HIDDEN_SLACK };
        let seen = self.counted.saturating_add(self.counted / 4).saturating_add(slack);
        self.used > seen
    }
}

/// What a tenant may leave unseen of answers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Allowance {
    whole: u64,
    tokens: u64,
}

impl Allowance {
    /// A whole answer of so many tokens was paid, and hid nothing.
    pub(super) fn earn(&mut self, used: u64) {
        self.whole = self.whole.saturating_add(1);
        let earned = self.tokens.saturating_add(used / TOKENS_PER_ALLOWED);
        self.tokens = earned.min(MAX_ALLOWANCE);
    }

    /// Takes so many tokens, if there are as many.
    pub(super) const fn spend(&mut self, tokens: u64) -> bool {
        if self.whole < MIN_WHOLE || self.tokens < tokens {
            return false;
        }
        self.tokens -= tokens;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_a_part_of_what_was_paid() {
        let mut own = Allowance::default();
        for _ in 0..MIN_WHOLE - 1 {
            own.earn(1_000);
        }
        assert!(!own.spend(1), "a few answers say nothing");
        own.earn(1_000);
        assert!(own.spend(4_000) && !own.spend(1), "half of 8,000");
        own.earn(u64::MAX);
        assert!(own.spend(MAX_ALLOWANCE) && !own.spend(1), "bounded");
    }

    #[test]
    fn thinking_that_is_stated_is_not_taken_for_an_error_of_the_estimate() {
        let is_hiding =
            |used, counted, reasoning| WholeAnswer { used, counted, reasoning }.is_hiding();
        assert!(!is_hiding(74, 10, 0) && is_hiding(77, 10, 0));
        assert!(is_hiding(74, 10, 64), "short thinking");
        assert!(!is_hiding(74, 70, 64), "thinking that was shown");
    }
}
