//! Measures an answer on its way to the client, and settles what it truly used.
//!
//! However the answer ends (properly, cut by the upstream, left by the client, with the gateway), the meter is dropped,
//! and what it knows then is what is paid: what the upstream said was used, else what was counted.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tollgate_policy::prices::{TokenKind, Usage};
use tollgate_tower::{PendingCharge, is_stopping};

use super::allowance::WholeAnswer;
use super::background::{self, Background, Owner, Source};
use super::doubts;
use super::expect::Expectations;
use super::more::{AskMore, TopUps};
use super::options::Overrun;
use super::rename::Renamer;
use super::scan::Scan;
use super::sse::Events;
use super::unread::event_scan;
use super::usage::{self, Doubt, Plausible, StreamReport, input_of, output_of};
use crate::forward::SentFlag;

pub(crate) use estimate::Estimate;

enum Reading {
    /// An answer that has not begun, or brings nothing to count.
    Nothing,
    Events(Events),
    Json(Scan),
}

impl Reading {
    /// Whether what was stated of an answer's usage is about all of it.
    const fn is_over(&self, reported: &StreamReport) -> bool {
        let is_last = (reported.is_final || reported.is_done) && !reported.is_outdated;
        !matches!(self, Self::Events(_)) || is_last
    }
}

/// How an answer is measured.
pub(crate) struct Metering {
    /// What is known of models.
    pub(crate) expectations: Option<Arc<Expectations>>,
    /// Whether lengths of prompts and answers are learned.
    pub(crate) learns: bool,
    /// What becomes of a stream that outruns what is reserved for it.
    pub(crate) overrun: Overrun,
    /// Who is asked for more, where that is wanted.
    pub(crate) more: Option<AskMore>,
    /// Whether the request may have reached an upstream.
    pub(crate) sent: SentFlag,
    /// The most that a request of this model can use. More is not believed.
    pub(crate) max_usage: u64,
    /// The name that clients know the model by, as JSON, where the upstream's own is hidden.
    pub(crate) shown_name: Option<String>,
    /// What becomes of the charge.
    pub(crate) ending: Ending,
}

/// What becomes of a charge when its answer has ended.
pub(crate) enum Ending {
    /// It is settled.
    Settle,
    /// The same, unless a response is made in the background: then it is kept until that is over.
    Keep {
        background: Arc<Background>,
        owner: Owner,
        source: Source,
        /// Whether the client asked for the background.
        is_wanted: bool,
    },
    /// The answer is about the response with this id, which was made in the background.
    Follow { background: Arc<Background>, id: String },
}

/// What an upstream did for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// It answers.
    Answered,
    /// It answered with an error, and may have worked before.
    Failed,
    /// Nothing was made use of but the request itself.
    None,
}

/// Measures one answer.
#[expect(clippy::struct_excessive_bools, reason = "each is a statement by itself")]
pub(crate) struct Meter {
    /// What was charged, in the order in which it was.
    pending_charges: Vec<PendingCharge>,
    estimate: Estimate,
    expectations: Option<Arc<Expectations>>,
    learns: bool,
    overrun: Overrun,
    /// Who is asked for more, where that is wanted.
    more: Option<TopUps>,
    /// Dropped before this is set, the request owes nothing.
    sent: SentFlag,
    plausible: Plausible,
    shown_name: Option<String>,
    ending: Ending,
    renamer: Option<Renamer>,
    reading: Reading,
    reported: StreamReport,
    work: Work,
    is_settled: bool,
    /// Whether the answer came to its end, or was broken off by the upstream: else the client left it.
    has_ended: bool,
    /// Whether a client that leaves pays what was reserved, as the model may use tokens which nobody sees. Decided once.
    may_hide: Option<bool>,
    /// The stream was ended by us.
    pub(crate) is_stopped: bool,
}

impl Meter {
    pub(crate) fn new(pending: Option<PendingCharge>, estimate: Estimate, how: Metering) -> Self {
        let Metering { expectations, learns, overrun, more, sent, max_usage, shown_name, ending } =
            how;
        let more = more.map(|ask| TopUps::new(ask, estimate.output, estimate.bound.is_some()));
        let least = estimate.prompt.min(1);
        let prompt = if estimate.call.has_answer() { estimate.prompt } else { u64::MAX };
        let most = max_usage.saturating_mul(estimate.answers.max(1));
        Self {
            pending_charges: pending.into_iter().collect(),
            estimate,
            expectations,
            learns,
            overrun,
            more,
            sent,
            plausible: Plausible { least, most, prompt },
            shown_name,
            ending,
            renamer: None,
            reading: Reading::Nothing,
            reported: StreamReport::default(),
            work: Work::Answered,
            is_settled: false,
            has_ended: false,
            may_hide: None,
            is_stopped: false,
        }
    }

    /// It was never sent: everything is given back.
    pub(crate) fn not_sent(mut self) {
        self.pending_charges.drain(..).for_each(PendingCharge::release);
    }

    /// The upstream served nothing: tokens are given back, and the request counts. What the error says was used or written
    /// nevertheless is paid.
    pub(crate) fn not_served(&mut self) {
        self.work = Work::None;
        self.reading = Reading::Json(Scan::default());
    }

    /// The upstream failed, and may have worked until then: the prompt is paid, or what the error says was used.
    pub(crate) fn fails(&mut self) {
        self.work = Work::Failed;
        self.reading = Reading::Json(Scan::default());
    }

    /// A good answer begins.
    pub(crate) fn begins(&mut self, is_stream: bool) {
        self.reading = if is_stream {
            let scan = event_scan(self.estimate.call);
            Reading::Events(Events::new(self.changes_streams(), scan))
        } else {
            self.renamer = self.shown_name.as_deref().map(Renamer::new);
            Reading::Json(Scan::new(self.estimate.call.protocol()))
        };
    }

    const fn changes_streams(&self) -> bool {
        self.estimate.hides_usage
            || self.shown_name.is_some()
            || !matches!(self.overrun, Overrun::Run)
    }

    /// Whether the answer may get another length.
    pub(crate) const fn may_change(&self) -> bool {
        match self.reading {
            Reading::Nothing => false,
            // Nothing passes after its end.
            Reading::Events(_) => true,
            Reading::Json(_) => self.renamer.is_some(),
        }
    }

    /// Looks at a piece of the answer, and gives what the client gets of it.
    pub(crate) fn pass(&mut self, piece: Bytes) -> Bytes {
        let Self { estimate, reported, plausible, shown_name, renamer, .. } = self;
        match &mut self.reading {
            Reading::Nothing => piece,
            Reading::Json(scan) => {
                scan.take(&piece);
                renamer.as_mut().map_or(piece.clone(), |renamer| renamer.pass(&piece))
            }
            Reading::Events(events) => {
                let view = estimate.view(shown_name.as_deref(), *plausible);
                let sink = &mut estimate.sink;
                let out =
                    events.pass(&piece, &mut |event| usage::event(&view, event, reported, sink));
                if let Err(why) = self.stays_within() {
                    return self.stop(&out, &why);
                }
                if self.reported.is_done {
                    // The client may be back before the connection says that this was all.
                    self.settle();
                }
                out
            }
        }
    }

    /// Whether the stream keeps to what is reserved for it, or more could be; else, why not.
    fn stays_within(&mut self) -> Result<(), String> {
        if self.overrun == Overrun::Run || self.reported.is_final || self.reported.is_done {
            return Ok(());
        }
        let needed = self.needed();
        if let Some(more) = &mut self.more {
            return more.cover(needed, &mut self.pending_charges);
        }
        if needed > self.estimate.output {
            return Err("ask for more with max_tokens".to_owned());
        }
        Ok(())
    }

    /// What must be reserved for what has been written: as it was counted, which is an estimate, or as the upstream
    /// reports in between.
    fn needed(&self) -> u64 {
        let (sink, reported) = (&self.estimate.sink, &self.reported);
        let least = |counted: u64| counted.div_ceil(sink.slack().max(1));
        let stated = reported.usage.as_ref().map_or(0, output_of);
        let since = reported.written_since(sink.total());
        least(sink.total()).max(stated.saturating_add(least(since)))
    }

    /// What an answer costs of which so much was counted, and nothing reported. Thinking that it was allowed may have been
    /// done and not shown: a client that leaves before the report pays for it, within what is reserved.
    fn unreported_output(&self, counted: u64) -> u64 {
        if self.work != Work::Answered {
            return counted;
        }
        let with_thinking = counted.saturating_add(self.estimate.thinking);
        counted.max(with_thinking.min(self.reserved_output()))
    }

    /// Tokens of the answer that are reserved by now.
    fn reserved_output(&self) -> u64 {
        self.more.as_ref().map_or(self.estimate.output, TopUps::reserved)
    }

    /// Ready when the next piece may come: a stream that is far ahead of what is reserved for it is held. With the last
    /// words to the client, where that is all.
    pub(crate) fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(more) = &mut self.more else { return Poll::Ready(None) };
        std::task::ready!(more.poll_answer(context));
        if !more.has_arrived() {
            return Poll::Ready(None);
        }
        let stays = self.stays_within();
        Poll::Ready(stays.err().map(|why| self.stop(&Bytes::new(), &why)))
    }

    /// The last that a client gets: what came, and why no more does.
    fn stop(&mut self, out: &Bytes, why: &str) -> Bytes {
        self.is_stopped = true;
        let reserved = self.reserved_output();
        let message = format!(
            "this answer is longer than the {reserved} tokens that were reserved for it and was stopped: {why}"
        );
        let event = self.estimate.call.protocol().stop_event(&message);
        let mut all = BytesMut::from(&**out);
        all.extend_from_slice(event.as_bytes());
        all.freeze()
    }

    /// The answer has come to its end. What was kept back goes on.
    pub(crate) fn ends(mut self: Box<Self>) -> Bytes {
        self.has_ended = true;
        let Self { estimate, reported, plausible, shown_name, reading, .. } = &mut *self;
        let Reading::Events(events) = reading else { return Bytes::new() };
        let view = estimate.view(shown_name.as_deref(), *plausible);
        events.end(&mut |event| usage::event(&view, event, reported, &mut estimate.sink))
    }

    /// What was used, as far as it is known.
    fn used(&mut self) -> Usage {
        if let Reading::Json(scan) = &mut self.reading {
            self.reported.take(scan.usage(self.plausible));
            scan.count_into(&mut self.estimate.sink);
        }
        self.count_partial_event();
        let counted = self.estimate.sink.total();
        match self.reported.usage.map(|usage| self.of_all_answers(usage)) {
            Some(usage) if self.reading.is_over(&self.reported) => usage,
            // Stated before the end: what was written since then comes on top.
            Some(usage) => {
                let since = self.reported.written_since(counted);
                let output = self.least_output(output_of(&usage).saturating_add(since));
                usage.with(TokenKind::Output, output)
            }
            None if self.work == Work::None && !self.has_failed_generation() => {
                Usage::new(0, 0).with_requests(0)
            }
            // More than can be believed is no reason to pay less than was reserved.
            None if self.reported.doubt == Some(Doubt::TooMuch) => {
                let prompt =
                    self.estimate.unreported_prompt().max(self.reported.prompt.unwrap_or(0));
                Usage::new(prompt, counted.max(self.reserved_output()))
            }
            None => {
                let prompt = self.estimate.cut_prompt(self.reported.prompt);
                let output = self.least_output(counted).max(self.unreported_output(counted));
                Usage::new(prompt, output)
            }
        }
    }

    /// Whether an error shows what a model wrote.
    const fn has_failed_generation(&self) -> bool {
        matches!(&self.reading, Reading::Json(scan) if scan.has_failed_generation())
    }

    /// Pays what was used, once.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        if !self.sent.is_set() {
            self.pending_charges.drain(..).for_each(PendingCharge::release);
            return;
        }
        let used = self.used();
        if let Ending::Follow { background, id } = &self.ending {
            let used = background::used(
                self.progress(),
                self.reported.usage,
                self.estimate.unreported_prompt(),
            );
            if let Some(used) = used.filter(|_| self.work == Work::Answered) {
                background.settle(id, used);
            }
            return;
        }
        if self.is_under_way() {
            self.keep();
            return;
        }
        if let Some(doubt) = self.reported.doubt {
            doubts::report(&self.estimate.model, doubt, used.total());
        }
        let is_known = self.reported.usage.is_some() || self.reported.is_done;
        // Of several prompts it may be the length of one.
        if self.learns
            && self.estimate.prompts <= 1
            && let (Some(expectations), Some(usage)) = (&self.expectations, self.reported.usage)
        {
            expectations.note_prompt(
                &self.estimate.history_key,
                self.estimate.sink.prompt(),
                input_of(&usage),
            );
        }
        if let Some(expectations) = self.expectations.take()
            && is_known
            && self.estimate.call.has_answer()
        {
            if self.learns {
                let each = output_of(&used).div_ceil(self.estimate.answers.max(1));
                expectations.note(&self.estimate.history_key, each);
            }
            if self.reported.usage.is_some() && self.reading.is_over(&self.reported) {
                let reasoning = used.tokens(TokenKind::Reasoning);
                let counted = self.estimate.sink.total();
                let answer = WholeAnswer { used: output_of(&used), counted, reasoning };
                expectations.note_whole(&self.estimate.history_key, answer);
            }
        }
        if let Some(more) = &mut self.more {
            more.end(&mut self.pending_charges);
        }
        pay(std::mem::take(&mut self.pending_charges), self.with_kinds(used));
    }
}

/// Settles the charges of one request: all on the first, and what was charged on top is given back.
pub(super) fn pay(pending_charges: Vec<PendingCharge>, used: Usage) {
    let mut pending_charges = pending_charges.into_iter();
    if let Some(first) = pending_charges.next() {
        first.settle_with(used, pending_charges.collect());
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Then it is the server that ends it, and no client.
        self.has_ended |= is_stopping();
        self.settle();
    }
}

mod estimate;
mod kept;
mod left;
#[cfg(test)]
mod tests;
