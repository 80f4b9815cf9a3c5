use parking_lot::Mutex;
use tollgate_tower::Account;

use super::super::ask::Call;
use super::super::expect::HistoryKey;
use super::super::more::{Answer, More};
use super::super::text::{Tariff, TextSink};
use super::*;

/// What became of a charge, each time something did.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Vec<Option<u64>>>>);

impl Account for Book {
    fn settle(self: Box<Self>, used: Usage, top_ups: Vec<PendingCharge>) {
        self.0.lock().push(Some(used.total()));
        top_ups.into_iter().for_each(PendingCharge::release);
    }

    fn release(self: Box<Self>) {
        self.0.lock().push(None);
    }
}

fn meter(book: &Book, hides_usage: bool, overrun: Overrun) -> Box<Meter> {
    let estimate = Estimate {
        call: Call::Chat,
        model: "m".to_owned(),
        history_key: HistoryKey::default(),
        prompt: 10,
        uncorrected: 10,
        output: 3,
        bound: None,
        thinking: 0,
        asks_thinking: false,
        answers: 1,
        prompts: 1,
        sink: TextSink::new(Tariff::default()),
        is_extended: false,
        may_hear: false,
        may_speak: false,
        hides_usage,
    };
    let sent = SentFlag::default();
    sent.set();
    // Enough whole answers hid nothing.
    let known = Expectations::default();
    earn(&known, 1_000);
    let how = Metering {
        expectations: Some(Arc::new(known)),
        learns: true,
        overrun,
        more: None,
        sent,
        max_usage: 10_000,
        shown_name: None,
        ending: Ending::Settle,
    };
    Box::new(Meter::new(Some(PendingCharge::new(book.clone(), 13)), estimate, how))
}

/// So many tokens of allowance.
fn earn(known: &Expectations, tokens: u64) {
    let answer = WholeAnswer { used: tokens / 4, counted: tokens / 4, reasoning: 0 };
    for _ in 0..8 {
        known.note_whole(&HistoryKey::default(), answer);
    }
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
    assert_eq!(*book.0.lock(), [Some(11)], "what was counted: the model is not known to use more");
    let book = Book::default();
    meter(&book, true, Overrun::Run).not_sent();
    assert_eq!(*book.0.lock(), [None]);
    let book = Book::default();
    let mut failed = meter(&book, true, Overrun::Run);
    failed.not_served();
    drop(failed);
    assert_eq!(*book.0.lock(), [Some(0)]);
    let book = Book::default();
    let mut failed = meter(&book, true, Overrun::Run);
    failed.fails();
    failed.pass(Bytes::from_static(br#"{"error":{"message":"no"}}"#));
    drop(failed);
    assert_eq!(*book.0.lock(), [Some(10)], "a model may have read it before it failed");
    let book = Book::default();
    let mut failed = meter(&book, true, Overrun::Run);
    failed.fails();
    let error: &[u8] = br#"{"error":{},"usage":{"prompt_tokens":30,"completion_tokens":12}}"#;
    failed.pass(Bytes::from_static(error));
    drop(failed);
    assert_eq!(*book.0.lock(), [Some(42)], "what an error says was used");
    let book = Book::default();
    drop(meter(&book, true, Overrun::Run));
    assert_eq!(*book.0.lock(), [Some(10)], "it may have been read before the client left");
    let book = Book::default();
    let mut unknown = meter(&book, true, Overrun::Run);
    unknown.expectations = Some(Arc::default());
    drop(unknown);
    assert_eq!(*book.0.lock(), [Some(13)], "and a model of which nothing is known may have worked");
    let book = Book::default();
    let mut failed = meter(&book, true, Overrun::Run);
    failed.expectations = Some(Arc::default());
    failed.breaks();
    drop(failed);
    assert_eq!(*book.0.lock(), [Some(10)], "the upstream gave up, and no client");
}

/// The prompt as its beginning stated it. Where the upstream adds to it by itself, at least the estimate.
#[test]
fn a_message_that_is_cut_pays_the_prompt_that_was_stated() {
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":2,"cache_read_input_tokens":5,"output_tokens":1}}}"#;
    let text = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"abcd"}}"#;
    let end = r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":9}}"#;
    for (is_extended, events, used) in [
        (false, &[start][..], 7),
        (false, &[start, text, text], 7 + 2),
        (false, &[text], 10 + 1),
        (false, &[start, text, end], 7 + 9),
        (true, &[start, text], 10 + 1),
        (true, &[start, text, end], 7 + 9),
    ] {
        let book = Book::default();
        let mut left = meter(&book, false, Overrun::Run);
        left.estimate.call = Call::Messages;
        left.estimate.is_extended = is_extended;
        left.begins(true);
        for event in events {
            left.pass(Bytes::from(format!("event: x\ndata: {event}\n\n")));
        }
        drop(left);
        assert_eq!(*book.0.lock(), [Some(used)], "{is_extended} {events:?}");
    }
}

#[test]
fn an_error_pays_what_it_states_whatever_its_status() {
    for (body, used) in [
        (r#"{"error":{"message":"no"}}"#, 0),
        (r#"{"error":{"message":"no","content":"abcdefgh"}}"#, 0),
        (r#"{"error":{},"usage":{"total_tokens":0}}"#, 0),
        (r#"{"error":{},"usage":{"total_tokens":10001}}"#, 0),
        (r#"{"error":{},"usage":{"prompt_tokens":30,"completion_tokens":12}}"#, 42),
        (r#"{"error":{"failed_generation":"abcdefgh"}}"#, 12),
    ] {
        let book = Book::default();
        let mut refused = meter(&book, true, Overrun::Run);
        refused.not_served();
        refused.pass(Bytes::from(body));
        drop(refused);
        assert_eq!(*book.0.lock(), [Some(used)], "{body}");
    }
}

#[test]
fn content_after_the_usage_counts() {
    let usage = |choices: &str| {
        let usage = r#"{"prompt_tokens":30,"completion_tokens":1}"#;
        Bytes::from(format!("data: {{\"choices\":[{choices}],\"usage\":{usage}}}\n\n"))
    };
    let end =
        Bytes::from_static(b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    for first in [usage(""), usage(r#"{"delta":{}}"#)] {
        for (tokens, used) in [(20, 31 + 20), (0, 31)] {
            let book = Book::default();
            let mut meter = meter(&book, false, Overrun::Run);
            meter.begins(true);
            meter.pass(first.clone());
            for _ in 0..tokens {
                meter.pass(token());
            }
            meter.pass(end.clone());
            meter.pass(DONE);
            drop(meter);
            assert_eq!(*book.0.lock(), [Some(used)], "{first:?} and {tokens}");
        }
    }
    let book = Book::default();
    let mut stopped = meter(&book, false, Overrun::Stop);
    stopped.begins(true);
    stopped.pass(usage(""));
    for _ in 0..20 {
        stopped.pass(token());
    }
    assert!(stopped.is_stopped, "the reservation holds after a usage, too");
}

#[test]
fn nothing_is_owed_before_anything_was_sent() {
    let book = Book::default();
    let mut meter = meter(&book, true, Overrun::Run);
    meter.sent = SentFlag::default();
    drop(meter);
    assert_eq!(*book.0.lock(), [None]);
}

#[test]
fn a_stream_that_is_left_pays_for_what_passed_since_its_usage_was_stated() {
    let book = Book::default();
    let mut meter = meter(&book, false, Overrun::Run);
    meter.begins(true);
    let first =
        r#"data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":30,"completion_tokens":1}}"#;
    meter.pass(Bytes::from(format!("{first}\n\n")));
    for _ in 0..20 {
        meter.pass(token());
    }
    drop(meter);
    assert_eq!(*book.0.lock(), [Some(31 + 20)]);
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
fn usage_that_cannot_be_is_not_believed() {
    for (usage, plain_used, stream_used) in [
        // At least what was reserved.
        (r#"{"total_tokens":10001}"#, 13, 13),
        (r#"{"total_tokens":-1}"#, 12, 11),
        (r#"{"prompt_tokens":30,"completion_tokens":3,"total_tokens":4}"#, 12, 11),
        (r#"{"total_tokens":0}"#, 12, 11),
    ] {
        let book = Book::default();
        let mut plain = meter(&book, false, Overrun::Run);
        plain.begins(false);
        let body =
            format!(r#"{{"choices":[{{"message":{{"content":"abcdefgh"}}}}],"usage":{usage}}}"#);
        plain.pass(Bytes::from(body));
        plain.ends();
        assert_eq!(*book.0.lock(), [Some(plain_used)], "{usage}");
        let book = Book::default();
        let mut stream = meter(&book, true, Overrun::Run);
        stream.begins(true);
        stream.pass(token());
        let last = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
        assert!(
            stream.pass(Bytes::from(last)).is_empty(),
            "not shown to a client that did not ask"
        );
        stream.pass(DONE);
        assert_eq!(*book.0.lock(), [Some(stream_used)], "{usage}");
    }
}

#[test]
fn the_upstreams_name_for_a_model_is_hidden() {
    let book = Book::default();
    let mut plain = meter(&book, false, Overrun::Run);
    plain.shown_name = Some(r#""m""#.to_owned());
    plain.begins(false);
    assert!(plain.may_change());
    let out = plain.pass(Bytes::from_static(br#"{"model":"org/x","usage":{"total_tokens":5}}"#));
    assert_eq!(out, br#"{"model":"m","usage":{"total_tokens":5}}"#[..]);
    drop(plain);
    assert_eq!(*book.0.lock(), [Some(5)]);
    let mut stream = meter(&book, false, Overrun::Run);
    stream.shown_name = Some(r#""m""#.to_owned());
    stream.begins(true);
    assert!(stream.may_change());
    let out = stream.pass(Bytes::from_static(b"data: {\"model\":\"org/x\",\"choices\":[]}\n\n"));
    assert_eq!(out, b"data: {\"model\":\"m\",\"choices\":[]}\n\n"[..]);
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
        Answer::Now(More::Granted(Some(PendingCharge::new(own.clone(), tokens))))
    });
    let mut meter = meter(book, true, Overrun::TopUp);
    meter.more = Some(TopUps::new(ask, 3, false));
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
    assert_eq!(
        *book.0.lock(),
        [Some(21), None],
        "all on the first charge, the top-up is given back"
    );
}

#[test]
fn all_is_settled_on_the_first_charge() {
    let book = Book::default();
    let pending_charges = [10, 20, 30].map(|tokens| PendingCharge::new(book.clone(), tokens));
    pay(pending_charges.into_iter().collect(), Usage::new(10, 60));
    assert_eq!(*book.0.lock(), [Some(70), None, None]);
    pay(Vec::new(), Usage::new(5, 0));
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
    assert_eq!(*book.0.lock(), [Some(10 + 135), None]);
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

fn in_background(book: &Book, is_wanted: bool) -> (Box<Meter>, Arc<Background>, Owner) {
    let known = Arc::new(Background::new(std::time::Duration::from_secs(60)));
    let owner = Owner::of(&tollgate_tower::Identity::default());
    let mut meter = meter(book, false, Overrun::Run);
    meter.estimate.call = Call::Responses;
    let source = Source { pool: 0, prompt: 10, max_usage: 10_000, shown_name: None };
    let background = Arc::clone(&known);
    meter.ending = Ending::Keep { background, owner: owner.clone(), source, is_wanted };
    (meter, known, owner)
}

#[test]
fn a_response_in_the_background_keeps_its_reservation() {
    let queued = r#"{"id":"r1","status":"queued","usage":null}"#;
    let created = "data: {\"type\":\"response.created\",\"response\":{\"id\":\"r1\"}}\n\n";
    for (is_stream, text) in [(false, queued), (true, created)] {
        let book = Book::default();
        let (mut meter, known, owner) = in_background(&book, true);
        meter.begins(is_stream);
        meter.pass(Bytes::from(text));
        drop(meter);
        assert!(book.0.lock().is_empty(), "{text}");
        assert!(matches!(known.find("r1", &owner), background::Found::Own(_)));
        let mut poll = self::meter(&Book::default(), false, Overrun::Run);
        poll.ending = Ending::Follow { background: Arc::clone(&known), id: "r1".to_owned() };
        poll.begins(false);
        poll.pass(Bytes::from_static(
            br#"{"id":"r1","status":"completed","usage":{"total_tokens":21}}"#,
        ));
        drop(poll);
        assert_eq!(*book.0.lock(), [Some(21)]);
    }
}

#[test]
fn what_is_left_of_a_background_response_stays_as_it_was_estimated() {
    // Left before the answer began, or without an id to ask for: nothing is refunded.
    let book = Book::default();
    let (left, ..) = in_background(&book, true);
    drop(left);
    let (mut nameless, ..) = in_background(&book, true);
    nameless.begins(false);
    nameless.pass(Bytes::from_static(br#"{"status":"queued"}"#));
    drop(nameless);
    assert!(book.0.lock().is_empty());
    // What has ended, or was never in the background, is settled as usual.
    for (is_wanted, text, used) in [
        (true, r#"{"id":"r","status":"completed","usage":{"total_tokens":21}}"#, 21),
        (false, r#"{"id":"r","status":"completed"}"#, 10),
        (false, "", 10),
    ] {
        let book = Book::default();
        let (mut meter, ..) = in_background(&book, is_wanted);
        meter.begins(false);
        meter.pass(Bytes::from(text));
        drop(meter);
        assert_eq!(*book.0.lock(), [Some(used)], "{text}");
    }
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
    assert_eq!(known.expected(&HistoryKey::default()), Some(1));
}

mod left;
