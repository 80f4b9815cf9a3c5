//! Measures an answer on its way to the client, and settles what it truly used.
//!
//! However the answer ends (properly, cut by the upstream, left by the client, with the gateway), the meter is dropped,
//! and what it knows then is what is paid: what the upstream said was used, else what was counted.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tollgate_tower::Bill;

use super::ask::Call;
use super::expect::Expectations;
use super::more::{AskMore, TopUps};
use super::options::Overrun;
use super::scan::Scan;
use super::sse::Events;
use super::text::TextSink;
use super::usage::{self, Told, Usage};

/// What is known of a request before its answer.
pub(crate) struct Estimate {
    pub(crate) call: Call,
    /// What rules know the model as.
    pub(crate) model: String,
    /// Under what its length is learned.
    pub(crate) lesson: String,
    /// Of the prompt alone.
    pub(crate) prompt: u64,
    /// Of all answers together.
    pub(crate) output: u64,
    /// How many answers there are.
    pub(crate) answers: u64,
    /// Counts what is written.
    pub(crate) sink: TextSink,
    /// Whether we ask what a stream used, and the client does not.
    pub(crate) hides_usage: bool,
}

impl Estimate {
    /// What is charged in advance.
    pub(crate) const fn total(&self) -> u64 {
        self.prompt.saturating_add(self.output)
    }
}

enum Reading {
    /// An answer that has not begun, or brings nothing to count.
    Nothing,
    Events(Events),
    Json(Scan),
}

/// Measures one answer.
pub(crate) struct Meter {
    /// What was charged, in the order in which it was.
    bills: Vec<Bill>,
    estimate: Estimate,
    expectations: Option<Arc<Expectations>>,
    overrun: Overrun,
    /// Who is asked for more, where that is wanted.
    more: Option<TopUps>,
    reading: Reading,
    told: Told,
    /// Nothing was made use of but the request itself.
    is_free: bool,
    is_settled: bool,
    /// The stream was ended by us.
    pub(crate) is_stopped: bool,
}

impl Meter {
    pub(crate) fn new(
        bill: Option<Bill>,
        estimate: Estimate,
        expectations: Option<Arc<Expectations>>,
        overrun: Overrun,
        more: Option<AskMore>,
    ) -> Self {
        let more = more.map(|ask| TopUps::new(ask, estimate.output));
        Self {
            bills: bill.into_iter().collect(),
            estimate,
            expectations,
            overrun,
            more,
            reading: Reading::Nothing,
            told: Told::default(),
            is_free: false,
            is_settled: false,
            is_stopped: false,
        }
    }

    /// It was never sent: everything is given back.
    pub(crate) fn not_sent(mut self) {
        self.bills.drain(..).for_each(Bill::release);
    }

    /// The upstream served nothing: tokens are given back, and the request counts.
    pub(crate) const fn not_served(&mut self) {
        self.is_free = true;
    }

    /// A good answer that cannot be read here: what was estimated is taken for what was used.
    pub(crate) fn unreadable(&mut self) {
        let (total, output) = (self.estimate.total(), self.estimate.output);
        self.told.usage = Some(Usage { total, output });
        self.expectations = None;
    }

    /// A good answer begins.
    pub(crate) fn begins(&mut self, is_stream: bool) {
        self.reading = if is_stream {
            let may_change = self.estimate.hides_usage || self.overrun != Overrun::Run;
            Reading::Events(Events::new(may_change))
        } else {
            Reading::Json(Scan::default())
        };
    }

    /// Whether the answer may get another length.
    pub(crate) const fn may_change(&self) -> bool {
        matches!(self.reading, Reading::Events(_))
            && (self.estimate.hides_usage || !matches!(self.overrun, Overrun::Run))
    }

    /// Looks at a piece of the answer, and gives what the client gets of it.
    pub(crate) fn pass(&mut self, piece: Bytes) -> Bytes {
        let Self { estimate, told, .. } = self;
        let (call, hides, sink) = (estimate.call, estimate.hides_usage, &mut estimate.sink);
        match &mut self.reading {
            Reading::Nothing => piece,
            Reading::Json(scan) => {
                scan.take(&piece);
                piece
            }
            Reading::Events(events) => {
                let out =
                    events.pass(&piece, &mut |data| usage::event(call, data, hides, told, sink));
                if let Err(why) = self.stays_within() {
                    return self.stop(&out, &why);
                }
                if self.told.is_done {
                    // The client may be back before the connection says that this was all.
                    self.settle();
                }
                out
            }
        }
    }

    /// Whether the stream keeps to what is reserved for it, or more could be; else, why not.
    fn stays_within(&mut self) -> Result<(), String> {
        if self.overrun == Overrun::Run || self.told.is_final || self.told.is_done {
            return Ok(());
        }
        let needed = self.needed();
        if let Some(more) = &mut self.more {
            return more.cover(needed, &mut self.bills);
        }
        if needed > self.estimate.output {
            return Err("ask for more with max_tokens".to_owned());
        }
        Ok(())
    }

    /// What must be reserved for what has been written: as it was counted, which tells it only roughly, or as the
    /// upstream says in between.
    fn needed(&self) -> u64 {
        let sink = &self.estimate.sink;
        let counted = sink.total().div_ceil(sink.slack().max(1));
        counted.max(self.told.usage.map_or(0, |usage| usage.output))
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
        let reserved = self.more.as_ref().map_or(self.estimate.output, TopUps::reserved);
        let message = format!(
            "this answer is longer than the {reserved} tokens that were reserved for it and was stopped: {why}"
        );
        let error = serde_json::json!({"error": {"message": message, "type": "tokens",
            "param": "max_tokens", "code": "reservation_exceeded"}});
        let mut all = BytesMut::from(&**out);
        all.extend_from_slice(format!("data: {error}\n\n").as_bytes());
        all.freeze()
    }

    /// The answer has come to its end. What was kept back goes on.
    pub(crate) fn ends(mut self: Box<Self>) -> Bytes {
        match &mut self.reading {
            Reading::Events(events) => events.rest(),
            _ => Bytes::new(),
        }
    }

    /// What was used, as far as it is known.
    fn used(&mut self) -> Usage {
        if let Reading::Json(scan) = &mut self.reading {
            self.told.usage = scan.usage();
            self.estimate.sink.characters(scan.written());
        }
        self.told.usage.unwrap_or_else(|| {
            let output = self.estimate.sink.total();
            Usage { total: self.estimate.prompt.saturating_add(output), output }
        })
    }

    /// Pays what was used, once.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let used = if self.is_free { Usage { total: 0, output: 0 } } else { self.used() };
        let is_known = self.told.usage.is_some() || self.told.is_done;
        if let Some(expectations) = self.expectations.take()
            && is_known
            && self.estimate.call != Call::Embeddings
        {
            let each = used.output.div_ceil(self.estimate.answers.max(1));
            expectations.note(&self.estimate.lesson, each);
        }
        if let Some(more) = &mut self.more {
            more.end(&mut self.bills);
        }
        pay(std::mem::take(&mut self.bills), used.total);
    }
}

/// Settles several charges of one request: what was used came out of the first, then out of the next; what none of them
/// holds is owed on the last.
fn pay(bills: Vec<Bill>, used: u64) {
    let (mut left, mut bills) = (used, bills.into_iter().peekable());
    while let Some(bill) = bills.next() {
        let part = if bills.peek().is_some() { left.min(bill.tokens()) } else { left };
        left -= part;
        bill.settle(part);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tollgate_tower::Account;

    use super::super::more::{Answer, More};
    use super::super::text::Tariff;
    use super::*;

    /// What became of a charge, each time something did.
    #[derive(Clone, Default)]
    struct Book(Arc<Mutex<Vec<Option<u64>>>>);

    impl Account for Book {
        fn settle(self: Box<Self>, tokens: u64) {
            self.0.lock().push(Some(tokens));
        }

        fn release(self: Box<Self>) {
            self.0.lock().push(None);
        }
    }

    fn meter(book: &Book, hides_usage: bool, overrun: Overrun) -> Box<Meter> {
        let estimate = Estimate {
            call: Call::Chat,
            model: "m".to_owned(),
            lesson: "m".to_owned(),
            prompt: 10,
            output: 3,
            answers: 1,
            sink: TextSink::new(Tariff::default()),
            hides_usage,
        };
        Box::new(Meter::new(Some(Bill::new(book.clone(), 13)), estimate, None, overrun, None))
    }

    fn token() -> Bytes {
        Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"abcd\"}}]}\n\n")
    }

    const USED: Bytes =
        Bytes::from_static(b"data: {\"choices\":[],\"usage\":{\"total_tokens\":21}}\n\n");
    const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

    #[test]
    fn a_stream_is_settled_once_at_its_last_word() {
        let book = Book::default();
        let mut meter = meter(&book, true, Overrun::Run);
        meter.begins(true);
        assert_eq!(meter.pass(token()), token());
        assert_eq!(meter.pass(USED), Bytes::new());
        assert!(book.0.lock().is_empty());
        assert_eq!(meter.pass(DONE), DONE);
        assert_eq!(*book.0.lock(), [Some(21)], "before the connection says that this was all");
        assert!(meter.ends().is_empty());
        assert_eq!(book.0.lock().len(), 1);
    }

    #[test]
    fn however_it_ends_it_is_settled_once() {
        let book = Book::default();
        let mut left = meter(&book, true, Overrun::Run);
        left.begins(true);
        left.pass(token());
        left.pass(token().slice(..20));
        drop(left);
        assert_eq!(*book.0.lock(), [Some(11)], "the prompt, and what came whole");
        let book = Book::default();
        meter(&book, true, Overrun::Run).not_sent();
        assert_eq!(*book.0.lock(), [None]);
        let book = Book::default();
        let mut failed = meter(&book, true, Overrun::Run);
        failed.not_served();
        drop(failed);
        assert_eq!(*book.0.lock(), [Some(0)]);
        let book = Book::default();
        drop(meter(&book, true, Overrun::Run));
        assert_eq!(*book.0.lock(), [Some(10)], "it may have been read before the client left");
    }

    #[test]
    fn a_plain_answer_is_settled_at_its_usage_or_its_words() {
        for (body, used) in [
            (r#"{"choices":[{"message":{"content":"abcdefgh"}}],"usage":{"total_tokens":33}}"#, 33),
            (r#"{"choices":[{"message":{"content":"abcdefgh"}}]}"#, 12),
            ("", 10),
        ] {
            let book = Book::default();
            let mut meter = meter(&book, false, Overrun::Run);
            meter.begins(false);
            for byte in body.bytes() {
                assert_eq!(&*meter.pass(Bytes::from(vec![byte])), [byte]);
            }
            meter.ends();
            assert_eq!(*book.0.lock(), [Some(used)], "{body}");
        }
    }

    #[test]
    fn a_stream_is_stopped_where_it_outruns_what_was_reserved() {
        let book = Book::default();
        let mut meter = meter(&book, false, Overrun::Stop);
        meter.begins(true);
        // Characters tell tokens only roughly: it may have twice as many.
        for _ in 0..6 {
            assert_eq!(meter.pass(token()), token());
        }
        let last = meter.pass(token());
        assert!(meter.is_stopped);
        let text = String::from_utf8_lossy(&last).into_owned();
        assert!(text.contains("reservation_exceeded") && text.ends_with("\n\n"), "{text}");
        drop(meter);
        assert_eq!(*book.0.lock(), [Some(17)]);
    }

    /// Grants so many times, then refuses.
    fn topped_up(book: &Book, times: u64) -> Box<Meter> {
        let (own, left) = (book.clone(), Mutex::new(times));
        let ask: AskMore = Box::new(move |tokens| {
            let mut left = left.lock();
            if *left == 0 {
                return Answer::Now(More::Refused("rule \"r\" has no room".to_owned()));
            }
            *left -= 1;
            Answer::Now(More::Granted(Some(Bill::new(own.clone(), tokens))))
        });
        let mut meter = meter(book, true, Overrun::TopUp);
        meter.more = Some(TopUps::new(ask, 3));
        meter.begins(true);
        meter
    }

    #[test]
    fn a_stream_that_is_topped_up_goes_on_and_is_settled_over_all_charges() {
        let book = Book::default();
        let mut meter = topped_up(&book, 2);
        // Six tokens pass with three that are reserved; 64 more are reserved with the seventh.
        for _ in 0..20 {
            assert_eq!(meter.pass(token()), token());
        }
        assert!(book.0.lock().is_empty() && !meter.is_stopped);
        meter.pass(USED);
        meter.pass(DONE);
        drop(meter);
        assert_eq!(*book.0.lock(), [Some(13), Some(8)], "21 in all, each charge once");
    }

    #[test]
    fn what_no_charge_holds_is_owed_on_the_last() {
        let book = Book::default();
        let bills = [10, 20, 30].map(|tokens| Bill::new(book.clone(), tokens));
        pay(bills.into_iter().collect(), 70);
        assert_eq!(*book.0.lock(), [Some(10), Some(20), Some(40)]);
        book.0.lock().clear();
        let bills = [10, 20, 30].map(|tokens| Bill::new(book.clone(), tokens));
        pay(bills.into_iter().collect(), 5);
        assert_eq!(*book.0.lock(), [Some(5), Some(0), Some(0)]);
        pay(Vec::new(), 5);
    }

    #[test]
    fn where_there_is_no_more_the_stream_is_stopped_and_says_why() {
        let book = Book::default();
        let mut meter = topped_up(&book, 1);
        let mut passed = 0;
        let last = loop {
            let out = meter.pass(token());
            if meter.is_stopped {
                break out;
            }
            passed += 1;
        };
        assert_eq!(passed, 2 * (3 + 64));
        let text = String::from_utf8_lossy(&last).into_owned();
        assert!(text.contains("67 tokens") && text.contains("has no room"), "{text}");
        drop(meter);
        assert_eq!(*book.0.lock(), [Some(13), Some(10 + 135 - 13)]);
    }

    #[test]
    fn what_is_said_to_be_used_in_between_counts_too() {
        let piece = |tokens: u64| {
            let usage = format!("{{\"prompt_tokens\":10,\"completion_tokens\":{tokens}}}");
            let data = format!("data: {{\"choices\":[{{\"delta\":{{}}}}],\"usage\":{usage}}}\n\n");
            Bytes::from(data)
        };
        let book = Book::default();
        let mut meter = meter(&book, false, Overrun::Stop);
        meter.begins(true);
        for tokens in 1..=3 {
            assert_eq!(meter.pass(piece(tokens)), piece(tokens));
        }
        meter.pass(piece(4));
        assert!(meter.is_stopped, "more than the three that were reserved");
        drop(meter);
        assert_eq!(*book.0.lock(), [Some(14)]);
        let book = Book::default();
        let mut topped = topped_up(&book, 1);
        topped.pass(piece(4));
        topped.pass(piece(67));
        assert!(!topped.is_stopped);
        topped.pass(piece(68));
        assert!(topped.is_stopped);
        // The last word about it may be anything: it is paid, and nothing is left to stop.
        let mut last = topped_up(&Book::default(), 0);
        last.pass(Bytes::from_static(
            b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":900}}\n\n",
        ));
        assert!(!last.is_stopped);
    }

    #[test]
    fn lengths_of_answers_are_learned() {
        let known = Arc::new(Expectations::default());
        for _ in 0..20 {
            let mut meter = meter(&Book::default(), true, Overrun::Run);
            meter.expectations = Some(Arc::clone(&known));
            meter.begins(true);
            meter.pass(token());
            meter.pass(DONE);
        }
        assert_eq!(known.expected("m"), Some(1));
    }
}
