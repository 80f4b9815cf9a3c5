use super::*;

/// A client that leaves pays for what it got where the model is known to use no more than it shows; else what was reserved.
#[test]
fn a_client_that_leaves_pays_for_what_it_may_have_used() {
    let visible = Bytes::from_static(
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1}}\n\n",
    );
    let hidden = Bytes::from_static(
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":900}}\n\n",
    );
    for (learned, used) in [(None, 13), (Some(visible), 11), (Some(hidden), 13)] {
        let known = Arc::new(Expectations::default());
        if let Some(usage) = &learned {
            let mut whole = meter(&Book::default(), true, Overrun::Run);
            whole.expectations = Some(Arc::clone(&known));
            whole.begins(true);
            whole.pass(token());
            whole.pass(usage.clone());
            whole.pass(DONE);
            whole.ends();
        }
        let book = Book::default();
        let mut left = meter(&book, true, Overrun::Run);
        left.expectations = Some(Arc::clone(&known));
        left.begins(true);
        left.pass(token());
        assert_eq!(left.wants_rest(), used == 13, "only what may be hidden is worth reading on");
        drop(left);
        assert_eq!(*book.0.lock(), [Some(used)], "{learned:?}");
        let book = Book::default();
        let mut broken = meter(&book, true, Overrun::Run);
        broken.begins(true);
        broken.pass(token());
        broken.breaks();
        assert!(!broken.wants_rest());
        drop(broken);
        assert_eq!(*book.0.lock(), [Some(11)], "the upstream broke it off");
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
