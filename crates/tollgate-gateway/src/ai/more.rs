//! More tokens for a stream that outruns what was reserved for it.
//!
//! Where the answer is not there at once, it is left where the next piece of the stream finds it. So many tokens pass
//! meanwhile; then the stream is held until it is there, which it is by the deadline of every decision.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tollgate_tower::{Decide, EdgeRequest, PendingCharge, Ruling, in_background};

use crate::gateway::Gateway;

/// The least that is asked for at a time: asking costs something too.
const LEAST_MORE: u64 = 64;

/// The most, unless more has passed already: what is reserved and not used is not available to other requests.
const MAX_MORE: u64 = 4_096;

/// Tokens that pass while an answer is awaited. A stream that is faster than that is held.
const MAX_UNRESERVED_TOKENS: u64 = 4_096;

/// What came of asking.
#[derive(Debug)]
pub(crate) enum More {
    /// There is more; what it was charged, if anything counts it.
    Granted(Option<PendingCharge>),
    /// There is not, and why.
    Refused(String),
}

/// The answer, or where it will be.
#[derive(Debug)]
pub(crate) enum Answer {
    Now(More),
    Later(oneshot::Receiver<More>),
}

/// Asks the limits that let a request pass for so many tokens more.
pub(crate) type AskMore = Box<dyn Fn(u64) -> Answer + Send + Sync>;

/// Asks on behalf of this request.
pub(crate) fn asker<D: Decide>(gateway: &Arc<Gateway<D>>, asked: &EdgeRequest) -> AskMore {
    let (gateway, asked) = (Arc::clone(gateway), EdgeRequest { is_more: true, ..asked.clone() });
    Box::new(move |tokens| {
        let asked = EdgeRequest { tokens: Some(tokens), ..asked.clone() };
        if let Some(ruling) = gateway.decide.decide_now(&asked) {
            return Answer::Now(outcome(ruling));
        }
        let (sender, receiver) = oneshot::channel();
        let gateway = Arc::clone(&gateway);
        let asking = async move {
            let more = outcome(gateway.decide.decide(&asked).await);
            // Nobody wants it any more: it is given back.
            if let Err(More::Granted(Some(pending))) = sender.send(more) {
                pending.release();
            }
        };
        if in_background(asking) {
            Answer::Later(receiver)
        } else {
            Answer::Now(More::Refused("there is nobody to ask".to_owned()))
        }
    })
}

fn outcome(ruling: Ruling) -> More {
    match ruling.passed() {
        Ok(pass) => More::Granted(pass.charge.sent().take_pending()),
        Err(rejection) => More::Refused(rejection.message.into_owned()),
    }
}

fn nobody() -> More {
    More::Refused("nobody answered".to_owned())
}

/// An answer that is on its way.
#[derive(Debug)]
struct Pending {
    answer: oneshot::Receiver<More>,
    tokens: u64,
    /// How much was needed when it was asked for.
    needed: u64,
}

/// What a stream may still bring.
pub(crate) struct TopUps {
    ask: AskMore,
    /// Tokens of the answer that are reserved by now.
    reserved: u64,
    pending: Option<Pending>,
    /// What came of what is pending.
    arrived: Option<More>,
    /// Too much has passed without an answer.
    is_held: bool,
    /// Nothing passes without one: a hard budget has to hold.
    is_hard: bool,
    /// As much as before was refused: this much is asked for.
    less: Option<u64>,
}

impl TopUps {
    pub(crate) const fn new(ask: AskMore, reserved: u64, is_hard: bool) -> Self {
        Self { ask, reserved, pending: None, arrived: None, is_held: false, is_hard, less: None }
    }

    /// Whether a stream that needs so much in all may go on. What was charged for it is added to `pending_charges`. Else, why
    /// not.
    pub(crate) fn cover(
        &mut self,
        needed: u64,
        pending_charges: &mut Vec<PendingCharge>,
    ) -> Result<(), String> {
        loop {
            let missing = needed.saturating_sub(self.reserved);
            let (more, tokens) = if let Some(mut pending) = self.pending.take() {
                let arrived = self.arrived.take().map_or_else(|| pending.answer.try_recv(), Ok);
                match arrived {
                    Ok(more) => (more, pending.tokens),
                    Err(TryRecvError::Closed) => (nobody(), 0),
                    Err(TryRecvError::Empty) => {
                        let unreserved = needed.saturating_sub(pending.needed);
                        self.is_held = self.is_hard || unreserved > MAX_UNRESERVED_TOKENS;
                        self.pending = Some(pending);
                        return Ok(());
                    }
                }
            } else if missing == 0 {
                return Ok(());
            } else {
                // As much again as there was: long streams ask seldom.
                let again = || self.reserved.clamp(LEAST_MORE, MAX_MORE).max(missing);
                let tokens = self.less.take().unwrap_or_else(again);
                match (self.ask)(tokens) {
                    Answer::Now(more) => (more, tokens),
                    Answer::Later(answer) => {
                        self.pending = Some(Pending { answer, tokens, needed });
                        continue;
                    }
                }
            };
            self.is_held = false;
            match more {
                More::Granted(pending) => {
                    self.reserved = self.reserved.saturating_add(tokens);
                    pending_charges.extend(pending);
                }
                // There may be room for what it needs, if not for more.
                More::Refused(why) => {
                    let mut less = [missing.max(LEAST_MORE), missing].into_iter();
                    self.less = Some(less.find(|less| *less < tokens).ok_or(why)?);
                }
            }
        }
    }

    /// Ready when the stream may bring its next piece.
    pub(crate) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pending) = self.pending.as_mut().filter(|_| self.is_held) {
            let answer = std::task::ready!(Pin::new(&mut pending.answer).poll(context));
            self.arrived = Some(answer.unwrap_or_else(|_| nobody()));
            self.is_held = false;
        }
        Poll::Ready(())
    }

    /// Whether an answer has come that was waited for.
    pub(crate) const fn has_arrived(&self) -> bool {
        self.arrived.is_some()
    }

    /// Nothing more is wanted. What was granted meanwhile is settled with the rest; what is granted from now on is
    /// refunded by the task that asked.
    pub(crate) fn end(&mut self, pending_charges: &mut Vec<PendingCharge>) {
        let Some(mut pending) = self.pending.take() else { return };
        pending.answer.close();
        let arrived = self.arrived.take().map_or_else(|| pending.answer.try_recv(), Ok);
        if let Ok(More::Granted(pending)) = arrived {
            pending_charges.extend(pending);
        }
    }

    /// Tokens of the answer that are reserved by now.
    pub(crate) const fn reserved(&self) -> u64 {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use parking_lot::Mutex;
    use tollgate_policy::prices::Usage;
    use tollgate_tower::Account;

    use super::*;

    struct Nothing;

    impl Account for Nothing {
        fn settle(self: Box<Self>, _: Usage, _: Vec<PendingCharge>) {}

        fn release(self: Box<Self>) {}
    }

    fn granted(tokens: u64) -> More {
        More::Granted(Some(PendingCharge::new(Nothing, tokens)))
    }

    type EdgeRequest = Arc<Mutex<Vec<u64>>>;

    /// Gives these answers in turn, and notes what was asked for.
    fn asking(answers: Vec<Answer>, reserved: u64) -> (TopUps, EdgeRequest) {
        let (answers, asked) = (Mutex::new(VecDeque::from(answers)), EdgeRequest::default());
        let noted = Arc::clone(&asked);
        let ask: AskMore = Box::new(move |tokens| {
            noted.lock().push(tokens);
            answers.lock().pop_front().unwrap()
        });
        (TopUps::new(ask, reserved, false), asked)
    }

    #[test]
    fn as_much_again_is_asked_for_within_bounds() {
        let many = |count| (0..count).map(|_| Answer::Now(granted(1))).collect();
        let (mut more, asked) = asking(many(4), 100);
        let mut pending_charges = Vec::new();
        for (needed, reserved) in
            [(100, 100), (101, 200), (200, 200), (201, 400), (500_000, 500_000)]
        {
            more.cover(needed, &mut pending_charges).unwrap();
            assert_eq!(more.reserved(), reserved, "{needed}");
        }
        assert_eq!(*asked.lock(), [100, 200, 499_600], "or what has passed already");
        let (mut more, asked) = asking(many(1), 1);
        more.cover(2, &mut pending_charges).unwrap();
        let (mut most, asked_most) = asking(many(1), 1_000_000);
        most.cover(1_000_001, &mut pending_charges).unwrap();
        assert_eq!((&**asked.lock(), &**asked_most.lock()), (&[LEAST_MORE][..], &[MAX_MORE][..]));
        assert_eq!(pending_charges.len(), 5);
    }

    fn refused(why: &str) -> Answer {
        Answer::Now(More::Refused(why.to_owned()))
    }

    #[test]
    fn where_there_is_less_than_as_much_again_less_is_taken() {
        let answers =
            vec![refused("a"), Answer::Now(granted(64)), refused("b"), refused("c"), refused("d")];
        let (mut more, asked) = asking(answers, 1_000);
        let mut pending_charges = Vec::new();
        more.cover(1_010, &mut pending_charges).unwrap();
        assert_eq!(more.reserved(), 1_064);
        assert_eq!(
            more.cover(1_065, &mut pending_charges),
            Err("d".to_owned()),
            "not even what it needs"
        );
        assert_eq!(*asked.lock(), [1_000, 64, 1_064, 64, 1]);
    }

    #[test]
    fn a_stream_is_held_when_much_has_passed_without_an_answer() {
        let (sender, receiver) = oneshot::channel();
        let (mut more, asked) = asking(vec![Answer::Later(receiver)], 100);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut pending_charges = Vec::new();
        for needed in [101, 150, 101 + MAX_UNRESERVED_TOKENS] {
            more.cover(needed, &mut pending_charges).unwrap();
            assert!(more.poll_answer(&mut context).is_ready(), "{needed}");
        }
        more.cover(102 + MAX_UNRESERVED_TOKENS, &mut pending_charges).unwrap();
        assert!(more.poll_answer(&mut context).is_pending(), "and goes on when it has come");
        assert!(pending_charges.is_empty() && sender.send(granted(100)).is_ok());
        assert!(more.poll_answer(&mut context).is_ready() && more.has_arrived());
        assert_eq!(asked.lock().len(), 1, "asked once");
        more.end(&mut pending_charges);
        assert_eq!(pending_charges.len(), 1, "what was granted is not forgotten");
    }

    #[test]
    fn a_stream_on_a_hard_budget_is_held_at_once() {
        let (sender, receiver) = oneshot::channel();
        let (mut more, _) = asking(vec![Answer::Later(receiver)], 100);
        more.is_hard = true;
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut pending_charges = Vec::new();
        more.cover(100, &mut pending_charges).unwrap();
        assert!(more.poll_answer(&mut context).is_ready(), "within what is reserved");
        more.cover(101, &mut pending_charges).unwrap();
        assert!(more.poll_answer(&mut context).is_pending());
        sender.send(granted(100)).unwrap();
        assert!(more.poll_answer(&mut context).is_ready() && more.has_arrived());
        more.cover(101, &mut pending_charges).unwrap();
        assert_eq!((more.reserved(), pending_charges.len()), (200, 1));
    }

    #[test]
    fn an_answer_is_found_by_the_next_piece() {
        let (sender, receiver) = oneshot::channel();
        let answers = vec![Answer::Later(receiver), refused("a"), refused("b"), refused("no room")];
        let (mut more, asked) = asking(answers, 100);
        let mut pending_charges = Vec::new();
        more.cover(101, &mut pending_charges).unwrap();
        sender.send(granted(100)).unwrap();
        more.cover(150, &mut pending_charges).unwrap();
        assert_eq!((more.reserved(), pending_charges.len()), (200, 1));
        assert_eq!(more.cover(201, &mut pending_charges), Err("no room".to_owned()));
        assert_eq!(*asked.lock(), [100, 200, 64, 1]);
    }

    #[test]
    fn what_is_granted_to_nobody_comes_back() {
        let (sender, receiver) = oneshot::channel();
        let (mut more, _) = asking(vec![Answer::Later(receiver)], 1);
        let mut pending_charges = Vec::new();
        more.cover(2, &mut pending_charges).unwrap();
        more.end(&mut pending_charges);
        assert!(pending_charges.is_empty());
        assert!(sender.send(granted(64)).is_err(), "the task that asked refunds it");
        // A task that died grants nothing.
        let (sender, receiver) = oneshot::channel();
        let (mut more, _) = asking(vec![Answer::Later(receiver)], 1);
        more.cover(2, &mut pending_charges).unwrap();
        drop(sender);
        assert!(more.cover(3, &mut pending_charges).is_err());
    }
}
