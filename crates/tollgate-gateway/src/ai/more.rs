//! More tokens for a stream that outruns what was reserved for it.
//!
//! Nothing waits for the answer: where it is not there at once, it is left where the next piece of the stream finds it,
//! and so many tokens pass meanwhile, and no more.

use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tollgate_tower::{Asked, Bill, Decide, Ruling, Unsent, in_background};

use crate::gateway::Gateway;

/// The least that is asked for at a time: asking costs something too.
const LEAST_MORE: u64 = 64;

/// The most, unless more has passed already: what is reserved and not used is missing elsewhere.
const MOST_MORE: u64 = 4_096;

/// Tokens that pass while an answer is awaited. A stream that is faster than that is stopped.
const MOST_UNGRANTED: u64 = 4_096;

/// What came of asking.
#[derive(Debug)]
pub(crate) enum More {
    /// There is more; what it was charged, if anything counts it.
    Granted(Option<Bill>),
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
pub(crate) fn asker<D: Decide>(gateway: &Arc<Gateway<D>>, asked: &Asked) -> AskMore {
    let (gateway, asked) = (Arc::clone(gateway), Asked { is_more: true, ..asked.clone() });
    Box::new(move |tokens| {
        let asked = Asked { tokens: Some(tokens), ..asked.clone() };
        if let Some(ruling) = gateway.decide.decide_now(&asked, &HeaderMap::new()) {
            return Answer::Now(outcome(ruling));
        }
        let (sender, receiver) = oneshot::channel();
        let gateway = Arc::clone(&gateway);
        let asking = async move {
            let more = outcome(gateway.decide.decide(&asked, &HeaderMap::new()).await);
            // Nobody wants it any more: it is given back.
            if let Err(More::Granted(bill)) = sender.send(more) {
                drop(Unsent::new(bill));
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
    let refusal = match ruling {
        Ruling::Pass(pass) => return More::Granted(pass.bill),
        Ruling::Refuse(refusal) => refusal,
        Ruling::Queue(postponed) => postponed.refusal,
    };
    let body: serde_json::Value = serde_json::from_slice(refusal.body()).unwrap_or_default();
    let said = body.get("error").and_then(|error| error.get("message"));
    let said = said.or_else(|| body.get("detail")).and_then(serde_json::Value::as_str);
    More::Refused(said.unwrap_or("it was refused").to_owned())
}

/// An answer that is on its way.
#[derive(Debug)]
struct Pending {
    answer: oneshot::Receiver<More>,
    tokens: u64,
    /// How much had been written when it was asked for.
    written: u64,
}

/// What a stream may still bring.
pub(crate) struct TopUps {
    ask: AskMore,
    /// Tokens of the answer that are reserved by now.
    reserved: u64,
    pending: Option<Pending>,
}

impl TopUps {
    pub(crate) const fn new(ask: AskMore, reserved: u64) -> Self {
        Self { ask, reserved, pending: None }
    }

    /// Whether a stream that has brought so much may go on; `slack` times what is reserved passes unasked. What was
    /// charged for it is added to `bills`. Else, why not.
    pub(crate) fn cover(
        &mut self,
        written: u64,
        slack: u64,
        bills: &mut Vec<Bill>,
    ) -> Result<(), String> {
        loop {
            if let Some(pending) = &mut self.pending {
                let more = match pending.answer.try_recv() {
                    Ok(more) => more,
                    Err(TryRecvError::Empty) if written - pending.written <= MOST_UNGRANTED => {
                        return Ok(());
                    }
                    Err(TryRecvError::Empty) => {
                        return Err(format!(
                            "the limits did not answer before {MOST_UNGRANTED} tokens had passed"
                        ));
                    }
                    Err(TryRecvError::Closed) => More::Refused("nobody answered".to_owned()),
                };
                let tokens = pending.tokens;
                self.pending = None;
                self.take(more, tokens, bills)?;
            }
            let missing = written.div_ceil(slack.max(1)).saturating_sub(self.reserved);
            if missing == 0 {
                return Ok(());
            }
            // As much again as there was: long streams ask seldom.
            let tokens = self.reserved.clamp(LEAST_MORE, MOST_MORE).max(missing);
            match (self.ask)(tokens) {
                Answer::Now(more) => self.take(more, tokens, bills)?,
                Answer::Later(answer) => {
                    self.pending = Some(Pending { answer, tokens, written });
                }
            }
        }
    }

    fn take(&mut self, more: More, tokens: u64, bills: &mut Vec<Bill>) -> Result<(), String> {
        match more {
            More::Granted(bill) => {
                self.reserved = self.reserved.saturating_add(tokens);
                bills.extend(bill);
                Ok(())
            }
            More::Refused(why) => Err(why),
        }
    }

    /// Nothing more is wanted. What was granted meanwhile is settled with the rest; what is granted from now on is
    /// given back by whoever asked.
    pub(crate) fn end(&mut self, bills: &mut Vec<Bill>) {
        let Some(mut pending) = self.pending.take() else { return };
        pending.answer.close();
        if let Ok(More::Granted(bill)) = pending.answer.try_recv() {
            bills.extend(bill);
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
    use tollgate_tower::Account;

    use super::*;

    struct Nothing;

    impl Account for Nothing {
        fn settle(self: Box<Self>, _: u64) {}

        fn release(self: Box<Self>) {}
    }

    fn granted(tokens: u64) -> More {
        More::Granted(Some(Bill::new(Nothing, tokens)))
    }

    type Asked = Arc<Mutex<Vec<u64>>>;

    /// Gives these answers in turn, and notes what was asked for.
    fn asking(answers: Vec<Answer>, reserved: u64) -> (TopUps, Asked) {
        let (answers, asked) = (Mutex::new(VecDeque::from(answers)), Asked::default());
        let noted = Arc::clone(&asked);
        let ask: AskMore = Box::new(move |tokens| {
            noted.lock().push(tokens);
            answers.lock().pop_front().unwrap()
        });
        (TopUps::new(ask, reserved), asked)
    }

    #[test]
    fn as_much_again_is_asked_for_within_bounds() {
        let many = |count| (0..count).map(|_| Answer::Now(granted(1))).collect();
        let (mut more, asked) = asking(many(4), 100);
        let mut bills = Vec::new();
        for (written, reserved) in
            [(200, 100), (201, 200), (400, 200), (401, 400), (1_000_000, 500_000)]
        {
            more.cover(written, 2, &mut bills).unwrap();
            assert_eq!(more.reserved(), reserved, "{written}");
        }
        assert_eq!(*asked.lock(), [100, 200, 499_600], "or what has passed already");
        let (mut more, asked) = asking(many(1), 1);
        more.cover(2, 1, &mut bills).unwrap();
        let (mut most, asked_most) = asking(many(1), 1_000_000);
        most.cover(1_000_001, 1, &mut bills).unwrap();
        assert_eq!((&**asked.lock(), &**asked_most.lock()), (&[LEAST_MORE][..], &[MOST_MORE][..]));
        assert_eq!(bills.len(), 5);
    }

    #[test]
    fn a_bounded_number_of_tokens_passes_while_an_answer_is_awaited() {
        let (sender, receiver) = oneshot::channel();
        let (mut more, asked) = asking(vec![Answer::Later(receiver)], 100);
        let mut bills = Vec::new();
        for written in [101, 150, 101 + MOST_UNGRANTED] {
            more.cover(written, 1, &mut bills).unwrap();
        }
        assert!(more.cover(102 + MOST_UNGRANTED, 1, &mut bills).is_err());
        assert_eq!(asked.lock().len(), 1, "asked once");
        assert!(bills.is_empty() && sender.send(granted(100)).is_ok());
        more.end(&mut bills);
        assert_eq!(bills.len(), 1, "what was granted is not forgotten");
    }

    #[test]
    fn an_answer_is_found_by_the_next_piece() {
        let (sender, receiver) = oneshot::channel();
        let refused = Answer::Now(More::Refused("no room".to_owned()));
        let (mut more, asked) = asking(vec![Answer::Later(receiver), refused], 100);
        let mut bills = Vec::new();
        more.cover(101, 1, &mut bills).unwrap();
        sender.send(granted(100)).unwrap();
        more.cover(150, 1, &mut bills).unwrap();
        assert_eq!((more.reserved(), bills.len()), (200, 1));
        assert_eq!(more.cover(201, 1, &mut bills), Err("no room".to_owned()));
        assert_eq!(*asked.lock(), [100, 200]);
    }

    #[test]
    fn what_is_granted_to_nobody_comes_back() {
        let (sender, receiver) = oneshot::channel();
        let (mut more, _) = asking(vec![Answer::Later(receiver)], 1);
        let mut bills = Vec::new();
        more.cover(2, 1, &mut bills).unwrap();
        more.end(&mut bills);
        assert!(bills.is_empty());
        assert!(sender.send(granted(64)).is_err(), "whoever asked gives it back");
        // A task that died grants nothing.
        let (sender, receiver) = oneshot::channel();
        let (mut more, _) = asking(vec![Answer::Later(receiver)], 1);
        more.cover(2, 1, &mut bills).unwrap();
        drop(sender);
        assert!(more.cover(3, 1, &mut bills).is_err());
    }
}
