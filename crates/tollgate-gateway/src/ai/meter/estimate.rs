//! What a request is charged before its answer, and what it pays where its usage never becomes known.

use super::super::ask::Call;
use super::super::expect::HistoryKey;
use super::super::text::TextSink;
use super::super::usage::{Plausible, View};

/// What is known of a request before its answer.
#[expect(clippy::struct_excessive_bools, reason = "each is a statement by itself")]
pub(crate) struct Estimate {
    pub(crate) call: Call,
    /// What rules know the model as.
    pub(crate) model: String,
    /// The key under which the lengths of its prompt and answer are learned.
    pub(crate) history_key: HistoryKey,
    /// Of the prompt alone.
    pub(crate) prompt: u64,
    /// Of the prompt alone, by its text and not by what earlier ones had.
    pub(crate) uncorrected: u64,
    /// Of all answers together.
    pub(crate) output: u64,
    /// The longest that one answer may become, where a hard budget has to hold: no more is asked of the upstream.
    pub(crate) bound: Option<u64>,
    /// Of the thinking in it, which the upstream may not show.
    pub(crate) thinking: u64,
    /// Whether the request or the model's name asks for thinking, with or without a budget.
    pub(crate) asks_thinking: bool,
    /// How many answers there are.
    pub(crate) answers: u64,
    /// How many prompts they are made of.
    pub(crate) prompts: u64,
    /// Counts what is written.
    pub(crate) sink: TextSink,
    /// Whether we ask what a stream used, and the client does not.
    pub(crate) hides_usage: bool,
    /// Whether the upstream adds to the prompt by itself while it answers.
    pub(crate) is_extended: bool,
    /// Whether the prompt may hold sound, and the answer may be sound.
    pub(crate) may_hear: bool,
    pub(crate) may_speak: bool,
}

impl Estimate {
    /// What is charged in advance.
    pub(crate) const fn total(&self) -> u64 {
        self.prompt.saturating_add(self.output)
    }

    /// How the events of its answer are read.
    pub(super) fn view<'v>(&self, model: Option<&'v str>, plausible: Plausible) -> View<'v> {
        let (call, hides_usage, answers) = (self.call, self.hides_usage, self.answers);
        View { call, hides_usage, model, plausible, answers }
    }

    /// What the prompt costs if its true length never becomes known. Earlier prompts do not make it cheaper: a client could
    /// send short ones first, and leave early from the long ones.
    pub(crate) fn unreported_prompt(&self) -> u64 {
        self.prompt.max(self.uncorrected)
    }

    /// The same, where the upstream stated a length before the answer. What it adds afterwards is not in it.
    pub(super) fn cut_prompt(&self, stated: Option<u64>) -> u64 {
        match stated {
            Some(stated) if !self.is_extended => stated,
            stated => self.unreported_prompt().max(stated.unwrap_or(0)),
        }
    }
}
