use super::*;

/// A client that leaves pays for what it got unless the model is known to use more than it shows: then what was reserved.
#[test]
fn a_client_that_leaves_pays_for_what_it_may_have_used() {
    let visible = Bytes::from_static(
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1}}\n\n",
    );
    let hidden = Bytes::from_static(
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":900}}\n\n",
    );
    for (learned, used) in [(None, 11), (Some(visible), 11), (Some(hidden), 13)] {
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
