//! Answers that end before their usage is known: left by the client, broken off by the upstream, or not to be read.

use tollgate_policy::prices::{TokenKind, Unstated, Usage};

use super::{Ending, Estimate, Meter, Overrun, Reading, Scan, Work, input_of, output_of};

impl Meter {
    /// The client has left: nothing more is asked for.
    pub(crate) fn leaves(&mut self) {
        if let Some(mut more) = self.more.take() {
            self.estimate.output = self.estimate.output.max(more.reserved());
            more.end(&mut self.pending_charges);
        }
        self.overrun = Overrun::Run;
    }

    /// The upstream broke the answer off.
    pub(crate) const fn breaks(&mut self) {
        self.has_ended = true;
    }

    /// What all of several answers used, where this is the largest statement. If it is less than their text can be, it is
    /// about one of them: they are paid as they were read.
    pub(super) fn of_all_answers(&self, stated: Usage) -> Usage {
        let Estimate { answers, prompts, sink, .. } = &self.estimate;
        if *answers <= 1 {
            return stated;
        }
        let text = sink.text_total();
        let total = self.reported.by_answer.total(text, *prompts);
        let (usage, is_known) = (total.unwrap_or(stated), total.is_some());
        let is_stream = matches!(self.reading, Reading::Events(_));
        if text.div_ceil(sink.slack().max(1)) <= output_of(&usage) && (is_known || !is_stream) {
            return usage;
        }
        let prompt = if *prompts > 1 { self.estimate.unreported_prompt() } else { 0 };
        usage
            .with(TokenKind::Input, input_of(&usage).max(prompt))
            .with(TokenKind::Output, output_of(&usage).max(text))
    }

    /// The same with the kinds that its tokens may be of. Where the upstream did not state them for all of the answer, they
    /// are paid at the dearest that they may be: a client that leaves early must not pay less than one that stays.
    pub(super) fn with_kinds(&self, used: Usage) -> Usage {
        if self.reported.usage.is_some() && self.reading.is_over(&self.reported) {
            return used;
        }
        let Estimate { may_hear, may_speak, bound, prompt, .. } = self.estimate;
        let mut used = used;
        if bound.is_some() && self.work == Work::Answered {
            // A hard budget never pays less than was used: what is not known is as much as it can be.
            let reserved = self.reserved_output().max(self.needed());
            used = Usage::new(input_of(&used).max(prompt), output_of(&used).max(reserved));
        }
        used.with_unstated(Unstated::Unknown { may_hear, may_speak })
    }

    /// Counts what the client has got of an event whose end has not come.
    pub(super) fn count_partial_event(&mut self) {
        let Reading::Events(events) = &mut self.reading else { return };
        if let Some(scan) = events.partial() {
            scan.count_into(&mut self.estimate.sink);
        }
    }

    /// Whether a client that leaves now leaves an answer of which it is not known what it used, of a model that may use
    /// more than it shows: it is read on.
    pub(crate) fn wants_rest(&mut self) -> bool {
        let is_good = self.work == Work::Answered && !matches!(self.reading, Reading::Nothing);
        let is_open = !self.is_settled && !self.is_stopped && !self.has_ended;
        let is_settled_here =
            matches!(self.ending, Ending::Settle | Ending::Keep { is_wanted: false, .. });
        is_good && is_open && is_settled_here && self.sent.is_set() && self.may_hide()
    }

    /// Whether a client that leaves pays what is reserved. The tenant's allowance pays for it where neither the request
    /// nor the model is known to hide anything.
    fn may_hide(&mut self) -> bool {
        if let Some(may_hide) = self.may_hide {
            return may_hide;
        }
        let unseen = self.reserved_output().saturating_sub(self.estimate.sink.total());
        let key = &self.estimate.history_key;
        let is_covered =
            || self.expectations.as_ref().is_some_and(|known| known.spend_allowance(key, unseen));
        let may_hide = unseen > 0 && (self.estimate.asks_thinking || !is_covered());
        self.may_hide = Some(may_hide);
        may_hide
    }

    /// What must be paid at least for an answer whose usage was not stated: as much as was reserved where a part of it could
    /// not be read, or a client left it, before it began or later, of a model that may use tokens which nobody sees.
    pub(super) fn least_output(&mut self, counted: u64) -> u64 {
        let is_broken = |scan: &Scan| self.has_ended && scan.is_broken();
        let is_unread = match &self.reading {
            Reading::Nothing => false,
            Reading::Events(_) => self.reported.is_unread,
            Reading::Json(scan) => is_broken(scan),
        };
        let is_left = !self.has_ended && !self.reported.is_done;
        if self.work == Work::Answered && (is_unread || is_left && self.may_hide()) {
            counted.max(self.reserved_output())
        } else {
            counted
        }
    }
}
