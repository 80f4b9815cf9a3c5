//! Streams: never held up, settled however they end.

use serde_json::{Value, json};
use tollgate_e2e::{Model, eventually};

use super::{WHOLE_ANSWERS, chat, earn_allowance, gateway, post, rules, used, with};

fn stream(stand_in: &Value) -> Value {
    with(chat(stand_in), "stream", json!(true))
}

#[test]
fn what_we_ask_for_is_hidden_again() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    for crlf in [false, true] {
        let mut answer = post(&server, &stream(&json!({"tokens": 3, "crlf": crlf})));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let (text, error) = answer.rest();
        assert!(error.is_none(), "{error:?}");
        assert!(!text.contains("usage"), "{text}");
        let end = if crlf { "data: [DONE]\r\n\r\n" } else { "data: [DONE]\n\n" };
        assert!(text.ends_with(end), "{text:?}");
        assert_eq!(text.matches("tok ").count(), 3);
    }
    let sent: Value = serde_json::from_slice(&model.arrived()[0].body).expect("JSON");
    assert_eq!(
        sent["stream_options"],
        json!({"include_usage": true}),
        "asked in the client's place"
    );
    eventually("both are settled", || used(&server, "tokens") == 2 * 12);
    // A client that asks gets what it asked for.
    let body =
        with(stream(&json!({"tokens": 3})), "stream_options", json!({"include_usage": true}));
    let (text, _) = post(&server, &body).rest();
    assert!(text.contains(r#""usage":null"#) && text.contains(r#""total_tokens":12"#), "{text}");
    assert_eq!(String::from_utf8_lossy(&model.arrived()[2].body), body.to_string());
    eventually("all are settled", || used(&server, "tokens") == 3 * 12);
}

#[test]
fn every_piece_is_out_before_the_next_comes_in() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let mut answer = None;
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| post(&server, &stream(&json!({"tokens": 10, "gated": true}))));
        // The head of an answer comes with its first token.
        model.go_on(1);
        answer = opened.join().ok();
    });
    let mut answer = answer.expect("an answer");
    for nth in 1..=10 {
        // The model makes no further token before this one has been read here.
        let event = answer.event().expect("an event").expect("not the end");
        assert!(event.contains("tok "), "{event}");
        assert_eq!(model.ledger().tokens, 9 + nth);
        model.go_on(1);
    }
    assert_eq!(answer.event().expect("an event").as_deref(), Some("[DONE]"));
    eventually("it is settled", || used(&server, "tokens") == 19);
}

#[test]
fn a_client_that_leaves_pays_for_what_was_made() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let paid = earn_allowance(&server, 10);
    let opened = std::thread::scope(|scope| {
        let opened = scope.spawn(|| post(&server, &stream(&json!({"tokens": 20, "gated": true}))));
        model.go_on(3);
        opened.join().expect("an answer")
    });
    let mut answer = opened;
    for _ in 0..3 {
        answer.event().expect("an event");
    }
    assert_eq!(used(&server, "tokens"), paid + 29, "the estimate, until it ends");
    drop(answer);
    eventually("it is settled at prompt and three tokens", || used(&server, "tokens") == paid + 12);
    eventually("the upstream's work ends", || model.active() == 0);
    assert_eq!(model.ledger().tokens, paid + 12);
    assert_eq!(used(&server, "requests"), WHOLE_ANSWERS + 1);
}

/// Nothing is known of the model yet: it may use tokens that nobody sees, so its answer is read on for its usage.
#[test]
fn a_client_that_leaves_an_unknown_model_pays_what_was_used() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let mut answer = std::thread::scope(|scope| {
        let opened = scope.spawn(|| post(&server, &stream(&json!({"tokens": 6, "gated": true}))));
        model.go_on(3);
        opened.join().expect("an answer")
    });
    for _ in 0..3 {
        answer.event().expect("an event");
    }
    drop(answer);
    model.go_on(10);
    eventually("its usage is paid", || used(&server, "tokens") == 15);
    // Without a usage, what was reserved is paid.
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let mut answer = post(&server, &stream(&json!({"tokens": 20, "hang_after": 2})));
    for _ in 0..2 {
        answer.event().expect("an event");
    }
    drop(answer);
    eventually("the upstream's work ends", || model.active() == 0);
    assert_eq!(used(&server, "tokens"), 29);
}

#[test]
fn an_upstream_that_breaks_off_is_seen_to_and_paid_for_what_it_made() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let mut answer = post(&server, &stream(&json!({"tokens": 20, "cut_after": 4})));
    let (text, error) = answer.rest();
    assert!(error.is_some(), "the client sees that something is missing: {text}");
    assert!(!text.contains("[DONE]"));
    assert_eq!(text.matches("tok ").count(), 4);
    eventually("it is settled", || used(&server, "tokens") == 13);
    assert_eq!(model.ledger().tokens, 13);
}

#[test]
fn without_a_word_from_the_upstream_the_stream_is_counted() {
    let model = Model::start();
    let more = "  openai: {models: [{name: m, ask_usage: false}]}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    let body = stream(&json!({"tokens": 6}));
    let (text, error) = post(&server, &body).rest();
    assert!(error.is_none() && text.ends_with("data: [DONE]\n\n"));
    assert_eq!(String::from_utf8_lossy(&model.arrived()[0].body), body.to_string(), "as it was");
    eventually("it is settled", || used(&server, "tokens") == 15);
    // Also for a plain answer, and for one that reports its usage with its last words.
    post(&server, &chat(&json!({"tokens": 6, "silent": true}))).json();
    eventually("it is settled", || used(&server, "tokens") == 30);
    let (text, _) = post(&server, &stream(&json!({"tokens": 2, "usage_with_last": true}))).rest();
    assert!(text.contains(r#""total_tokens":11"#), "reported without being asked: {text}");
    eventually("it is settled", || used(&server, "tokens") == 41);
    assert_eq!(model.ledger().tokens, 41);
}

#[test]
fn a_stream_that_outruns_its_reservation_is_stopped_where_that_is_wanted() {
    let model = Model::start();
    let more =
        "  openai: {stream_overrun: stop, default_output_tokens: 4, learn_output_tokens: false}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    let mut body = stream(&json!({"tokens": 50}));
    body.as_object_mut().expect("an object").remove("max_tokens");
    let (text, error) = post(&server, &body).rest();
    assert!(error.is_none(), "ended properly: {error:?}");
    assert!(text.contains("reservation_exceeded") && !text.contains("[DONE]"), "{text}");
    // Characters tell tokens only roughly: twice what was reserved is let pass.
    assert!(text.matches("tok ").count() <= 9, "{text}");
    eventually("it is settled", || used(&server, "tokens") <= 9 + 9);
    eventually("the upstream's work ends", || model.active() == 0);
    // Where it may run, what is beyond is a debt.
    let more = "  openai: {default_output_tokens: 4, learn_output_tokens: false}";
    let server = gateway(&model, &rules(50, 100), more).start();
    let (text, _) = post(&server, &body).rest();
    assert_eq!(text.matches("tok ").count(), 50);
    eventually("it is settled, above the limit", || used(&server, "tokens") == 59);
    assert_eq!(post(&server, &body).status, 429);
}
