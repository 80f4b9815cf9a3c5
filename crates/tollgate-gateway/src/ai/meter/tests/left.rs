use super::*;

fn stated(output: u64, reasoning: u64) -> Bytes {
    let details = format!(r#""completion_tokens_details":{{"reasoning_tokens":{reasoning}}}"#);
    let usage = format!(r#"{{"prompt_tokens":10,"completion_tokens":{output},{details}}}"#);
    Bytes::from(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"))
}

/// An answer that is read to its end.
fn read_whole(known: &Arc<Expectations>, tokens: u64, usage: Bytes) {
    let mut whole = meter(&Book::default(), true, Overrun::Run);
    whole.expectations = Some(Arc::clone(known));
    whole.begins(true);
    (0..tokens).for_each(|_| _ = whole.pass(token()));
    whole.pass(usage);
    whole.pass(DONE);
    whole.ends();
}

/// What a client pays that leaves an answer with so much reserved after one token, and whether the answer is read on.
fn left(known: &Arc<Expectations>, reserved: u64, asks_thinking: bool) -> (Option<u64>, bool) {
    let book = Book::default();
    let mut left = meter(&book, true, Overrun::Run);
    left.expectations = Some(Arc::clone(known));
    (left.estimate.output, left.estimate.asks_thinking) = (reserved, asks_thinking);
    left.begins(true);
    left.pass(token());
    let is_read_on = left.wants_rest();
    drop(left);
    let paid = book.0.lock().first().copied().flatten();
    (paid, is_read_on)
}

/// Harmless answers that hide nothing do not make those free that hide something: a client that leaves pays what it has seen
/// only as far as whole answers have earned it.
#[test]
fn a_client_that_leaves_pays_for_what_it_may_have_used() {
    let known = Arc::new(Expectations::default());
    assert_eq!(left(&known, 1_000, false), (Some(1_010), true), "nothing is known");
    for _ in 0..20 {
        read_whole(&known, 1, stated(1, 0));
    }
    assert_eq!(left(&known, 1_000, false), (Some(1_010), true), "20 tokens pay for no 1,000");
    for _ in 0..20 {
        read_whole(&known, 200, stated(200, 0));
    }
    assert_eq!(left(&known, 1_000, true), (Some(1_010), true), "it asks for thinking");
    assert_eq!(left(&known, 1_000, false), (Some(11), false), "earned by 4,000 tokens");
    assert_eq!(left(&known, 1_000, false), (Some(11), false));
    assert_eq!(left(&known, 1_000, false), (Some(1_010), true), "and spent");
    assert_eq!(left(&known, 1, false), (Some(11), false), "nothing can be hidden");
    for usage in [stated(900, 0), stated(64, 60)] {
        let known = Arc::new(Expectations::default());
        earn(&known, 10_000);
        read_whole(&known, 1, usage);
        earn(&known, 10_000);
        assert_eq!(left(&known, 1_000, false), (Some(1_010), true), "it has hidden something");
    }
    let book = Book::default();
    let mut broken = meter(&book, true, Overrun::Run);
    broken.expectations = Some(Arc::default());
    broken.begins(true);
    broken.pass(token());
    broken.breaks();
    assert!(!broken.wants_rest());
    drop(broken);
    assert_eq!(*book.0.lock(), [Some(11)], "the upstream broke it off");
}

/// A client that leaves at any point pays at least its prompt, and never less than it has seen.
#[test]
fn a_client_that_leaves_at_any_point_pays_its_prompt_and_what_it_has_seen() {
    for is_earned in [false, true] {
        for pieces in 0..10 {
            for cut in [0, 1, 30] {
                let known = Expectations::default();
                if is_earned {
                    earn(&known, 1_000);
                }
                let book = Book::default();
                let mut left = meter(&book, false, Overrun::Run);
                left.expectations = Some(Arc::new(known));
                left.begins(true);
                (0..pieces).for_each(|_| _ = left.pass(token()));
                left.pass(token().slice(..cut));
                drop(left);
                let paid = book.0.lock()[0].unwrap();
                let least = if is_earned { pieces } else { pieces.max(3) };
                assert!(paid >= 10 + least, "{is_earned} {pieces} {cut}: {paid}");
            }
        }
    }
}

/// What follows the end of an answer would be counted by nobody: it does not reach the client.
#[test]
fn nothing_passes_after_the_end_of_an_answer() {
    for hides_usage in [false, true] {
        let book = Book::default();
        let mut stream = meter(&book, hides_usage, Overrun::Run);
        stream.begins(true);
        assert!(stream.may_change(), "it has no length that is known before");
        stream.pass(token());
        let last = [&USED[..], &DONE, &token(), &DONE].concat();
        let seen = stream.pass(Bytes::from(last));
        assert!(!seen.windows(4).any(|it| it == b"abcd"), "{seen:?}");
        assert!(seen.ends_with(&DONE));
        assert!(stream.pass(token()).is_empty());
        assert!(stream.pass(token().slice(..9)).is_empty() && stream.ends().is_empty());
        assert_eq!(*book.0.lock(), [Some(21)]);
    }
}

#[test]
fn what_could_not_be_read_is_paid_as_it_was_reserved() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let chat = format!("data: {{\"choices\":[{{\"delta\":{{\"x\":{deep}}}}}]}}\n\n");
    let long =
        format!("data: {{\"x\":\"{}\"}}", " ".repeat(super::super::super::sse::MAX_EVENT_BYTES));
    for parts in [[chat.as_str(), ""], ["data: no JSON\n\n", ""], [long.as_str(), "\n\n"]] {
        let book = Book::default();
        let mut stream = meter(&book, true, Overrun::Run);
        stream.estimate.output = 500_000;
        stream.begins(true);
        for part in parts {
            let _ = stream.pass(Bytes::from((*part).to_owned()));
        }
        stream.pass(DONE);
        stream.ends();
        assert_eq!(*book.0.lock(), [Some(500_010)]);
    }
    for (body, used) in [("<html>", 13), (r#"{"choices":["#, 13), (r#"{"choices":[]}"#, 10)] {
        let book = Book::default();
        let mut plain = meter(&book, false, Overrun::Run);
        plain.begins(false);
        plain.pass(Bytes::from(body));
        plain.ends();
        assert_eq!(*book.0.lock(), [Some(used)], "{body}");
    }
}

/// More than a request can use is not believed, and no reason to pay less than was reserved, or than was stated before.
#[test]
fn a_message_that_states_too_much_pays_what_was_reserved() {
    for (prompt, used) in [(7, 10 + 3), (50, 50 + 3)] {
        let book = Book::default();
        let mut stream = meter(&book, false, Overrun::Run);
        stream.estimate.call = Call::Messages;
        stream.begins(true);
        for event in [
            format!(
                r#"{{"type":"message_start","message":{{"usage":{{"input_tokens":{prompt}}}}}}}"#
            ),
            r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":99999999}}"#.to_owned(),
            r#"{"type":"message_stop"}"#.to_owned(),
        ] {
            stream.pass(Bytes::from(format!("data: {event}\n\n")));
        }
        stream.ends();
        assert_eq!(*book.0.lock(), [Some(used)], "{prompt}");
    }
}

#[test]
fn the_larger_of_two_usages_is_paid() {
    let book = Book::default();
    let mut stream = meter(&book, true, Overrun::Run);
    stream.begins(true);
    stream.pass(USED);
    stream.pass(Bytes::from_static(b"data: {\"choices\":[],\"usage\":{\"total_tokens\":1}}\n\n"));
    stream.pass(DONE);
    assert_eq!(*book.0.lock(), [Some(21)]);
}

/// An upstream that states usage early and continues: what comes then is counted in full, on top.
#[test]
fn what_is_written_after_a_stated_usage_comes_on_top() {
    for (events, used) in [
        (&[USED, token(), token(), token(), token(), DONE][..], 21 + 4),
        (&[USED, token(), token(), token(), token()], 21 + 4),
        // One that is smaller does not cover what was written since.
        (&[USED, token(), token(), EARLY, DONE], 21 + 2),
        (&[EARLY, token(), token(), USED, DONE], 21),
    ] {
        let book = Book::default();
        let mut stream = meter(&book, true, Overrun::Run);
        stream.begins(true);
        for event in events {
            stream.pass(event.clone());
        }
        stream.ends();
        assert_eq!(*book.0.lock(), [Some(used)], "{events:?}");
    }
}

const EARLY: Bytes = Bytes::from_static(
    b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":0}}\n\n",
);

/// The last event counts, and is hidden, also without the empty line that ends it.
#[test]
fn the_last_event_is_read_without_its_empty_line() {
    let book = Book::default();
    let mut stream = meter(&book, true, Overrun::Run);
    stream.begins(true);
    stream.pass(token());
    stream.pass(USED.slice(..USED.len() - 2));
    assert!(stream.ends().is_empty(), "nobody asked for it");
    assert_eq!(*book.0.lock(), [Some(21)]);
    let book = Book::default();
    let mut stream = meter(&book, true, Overrun::Run);
    stream.begins(true);
    let last = token().slice(..token().len() - 1);
    stream.pass(last.clone());
    assert_eq!(stream.ends(), last);
    assert_eq!(*book.0.lock(), [Some(11)]);
}

/// What has reached a client of an event whose end has not come is paid.
#[test]
fn a_part_of_an_event_that_passed_is_paid() {
    let book = Book::default();
    let mut stream = meter(&book, false, Overrun::Run);
    stream.begins(true);
    stream.pass(token());
    stream.pass(token().slice(..token().len() - 6));
    drop(stream);
    assert_eq!(*book.0.lock(), [Some(12)]);
    let book = Book::default();
    let mut stream = meter(&book, true, Overrun::Run);
    stream.begins(true);
    let long = "abcd".repeat(super::super::super::sse::MAX_EVENT_BYTES / 4);
    stream.pass(Bytes::from(format!("data: {{\"choices\":[{{\"text\":\"{long}")));
    drop(stream);
    assert_eq!(*book.0.lock(), [Some(10 + long.len() as u64 / 4)]);
}

/// Of several answers one has stated its usage, and their text is more than that: they are paid as they were read.
#[test]
fn answers_that_stated_nothing_are_paid_next_to_one_that_did() {
    let stated = Bytes::from_static(
        b"data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1}}\n\n",
    );
    for (prompts, used) in [(1, 15), (2, 15)] {
        let book = Book::default();
        let mut stream = meter(&book, true, Overrun::Run);
        (stream.estimate.answers, stream.estimate.prompts) = (5, prompts);
        stream.begins(true);
        for _ in 0..5 {
            stream.pass(token());
        }
        stream.pass(stated.clone());
        stream.pass(DONE);
        assert_eq!(*book.0.lock(), [Some(used)], "{prompts}");
    }
    // Some servers state of a plain answer what its first part used.
    let choice = r#"{"message":{"content":"eight characters"}}"#;
    let choices = [choice; 10].join(",");
    let body = |output: u64| {
        format!(
            r#"{{"choices":[{choices}],"usage":{{"prompt_tokens":10,"completion_tokens":{output}}}}}"#
        )
    };
    for (stated, prompts, used) in [(4, 1, 50), (4, 2, 50), (40, 1, 50), (39, 1, 49)] {
        let book = Book::default();
        let mut plain = meter(&book, false, Overrun::Run);
        (plain.estimate.answers, plain.estimate.prompts) = (10, prompts);
        plain.begins(false);
        plain.pass(Bytes::from(body(stated)));
        plain.ends();
        assert_eq!(*book.0.lock(), [Some(used)], "{stated} {prompts}");
    }
}

/// What was thought and not shown is not known where no usage was stated: what is reserved for it is paid.
#[test]
fn an_answer_that_is_cut_pays_the_thinking_that_was_reserved() {
    for (thinking, used) in [(0, 10 + 1), (1, 10 + 2), (2, 10 + 3), (1_000, 10 + 3)] {
        let book = Book::default();
        let mut left = meter(&book, true, Overrun::Run);
        left.estimate.thinking = thinking;
        left.begins(true);
        left.pass(token());
        drop(left);
        assert_eq!(*book.0.lock(), [Some(used)], "{thinking}");
    }
    let book = Book::default();
    let mut failed = meter(&book, true, Overrun::Run);
    failed.estimate.thinking = 2;
    failed.fails();
    drop(failed);
    assert_eq!(*book.0.lock(), [Some(10)], "an error is no answer");
}
