//! What answers say they used.

use super::super::text::Tariff;
use super::*;

fn look(call: Call, data: &str) -> (Verdict, StreamReport, u64) {
    let tariff = Tariff { characters_per_token: 1, ..Tariff::default() };
    let (mut reported, mut sink) = (StreamReport::default(), TextSink::new(tariff));
    let view = View { call, hides_usage: true, model: None, plausible: ANY, answers: 1 };
    let (verdict, _) = event(&view, Event::Whole(data), &mut reported, &mut sink);
    (verdict, reported, sink.total())
}

const ANY: Plausible = Plausible { least: 1, most: 1_000, prompt: 500 };

#[test]
fn usage_in_either_spelling() {
    let read = |text: &str| super::read(json::parse(text).unwrap(), ANY);
    let usage = Some(Ok(Usage::new(3, 4)));
    assert_eq!(read(r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#), usage);
    assert_eq!(read(r#"{"input_tokens":3,"output_tokens":4}"#), usage);
    assert_eq!(read(r#"{"prompt_tokens":3,"total_tokens":7,"x":{}}"#), usage);
    let embedding = Some(Ok(Usage::new(8, 0)));
    assert_eq!(read(r#"{"prompt_tokens":8,"total_tokens":8}"#), embedding);
    for none in ["{}", "null", "[]", r#"{"prompt_tokens":null}"#] {
        assert_eq!(read(none), None, "{none}");
    }
    for (text, doubt) in [
        (r#"{"prompt_tokens":"x"}"#, Doubt::NoCount),
        (r#"{"prompt_tokens":-5,"completion_tokens":4}"#, Doubt::NoCount),
        (r#"{"prompt_tokens":1.5,"total_tokens":4}"#, Doubt::NoCount),
        (r#"{"total_tokens":99999999999999999999999}"#, Doubt::NoCount),
        (r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":6}"#, Doubt::BelowParts),
        (r#"{"prompt_tokens":3,"total_tokens":2}"#, Doubt::BelowParts),
        (r#"{"prompt_tokens":1001}"#, Doubt::TooMuch),
        (r#"{"total_tokens":1001}"#, Doubt::TooMuch),
        (r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#, Doubt::Nothing),
    ] {
        assert_eq!(read(text), Some(Err(doubt)), "{text}");
    }
    assert_eq!(
        read(r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":9}"#),
        Some(Ok(Usage::new(3, 6))),
        "some report their thinking in the total alone"
    );
    assert_eq!(read(r#"{"total_tokens":600}"#), Some(Ok(Usage::new(500, 100))));
}

#[test]
fn what_was_added_by_asking_is_taken_out_again() {
    let before = r#"{"id":"1","usage":null,"choices":[{"delta":{"content":"abc"}}]}"#;
    let after = r#"{"id":"1","choices":[{"delta":{"content":"abc"}}]}"#;
    let (verdict, reported, count) = look(Call::Chat, before);
    assert_eq!(verdict, Verdict::Replace(after.to_owned()));
    assert_eq!((reported, count), (StreamReport::default(), 3));
    for (before, after) in [
        (r#"{"choices":[], "usage" : null }"#, r#"{"choices":[]}"#),
        (r#"{"usage":null}"#, "{}"),
        (r#"{ "usage":null , "a":1}"#, r#"{ "a":1}"#),
    ] {
        assert_eq!(look(Call::Chat, before).0, Verdict::Replace(after.to_owned()));
    }
    let last =
        r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
    let (verdict, reported, _) = look(Call::Completions, last);
    assert_eq!(verdict, Verdict::Hide);
    assert_eq!(reported.usage, Some(Usage::new(1, 2)));
}

#[test]
fn usage_that_nobody_asked_for_is_taken_out_of_the_last_words() {
    // Some servers state it with the last words.
    let text = r#"{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let (verdict, reported, count) = look(Call::Completions, text);
    assert_eq!(verdict, Verdict::Replace(r#"{"choices":[{"text":"ab"}]}"#.to_owned()));
    assert_eq!((reported.usage.map(|usage| usage.total()), count), (Some(3), 2));
    let doubtful = r#"{"usage":{"prompt_tokens":9,"total_tokens":2},"choices":[{"text":"ab"}]}"#;
    let (verdict, reported, _) = look(Call::Completions, doubtful);
    assert_eq!(verdict, Verdict::Replace(r#"{"choices":[{"text":"ab"}]}"#.to_owned()));
    assert_eq!((reported.usage, reported.doubt), (None, Some(Doubt::BelowParts)));
    for text in ["[DONE]", "no JSON", "[]", r#"{"error":{"message":"x"}}"#] {
        assert_eq!(look(Call::Chat, text).0, Verdict::Pass, "{text}");
    }
    assert!(look(Call::Chat, "[DONE]").1.is_done);
}

#[test]
fn the_upstreams_name_is_replaced_where_a_model_is_named() {
    let see = |call: Call, data: &str| {
        let view =
            View { call, hides_usage: true, model: Some(r#""m""#), plausible: ANY, answers: 1 };
        event(
            &view,
            Event::Whole(data),
            &mut StreamReport::default(),
            &mut TextSink::new(Tariff::default()),
        )
        .0
    };
    let text = r#"{"model" : "org/\"x","choices":[{"delta":{"content":"\"model\":\"org/x\"","model":"org/x"}}],"usage":null}"#;
    let seen = r#"{"model" : "m","choices":[{"delta":{"content":"\"model\":\"org/x\"","model":"org/x"}}]}"#;
    assert_eq!(see(Call::Chat, text), Verdict::Replace(seen.to_owned()));
    let text = r#"{"type":"response.created","model":"x","response":{"id":"r","model":"org/x","usage":null}}"#;
    let seen = text.replace(r#""org/x""#, r#""m""#);
    assert_eq!(see(Call::Responses, text), Verdict::Replace(seen));
    for same in [r#"{"model":"m"}"#, r#"{"model":null}"#, r#"{"model":["a"]}"#] {
        assert_eq!(see(Call::Chat, same), Verdict::Pass, "{same}");
    }
}

#[test]
fn everything_that_is_written_is_counted() {
    let text = r#"{"choices":[{"delta":{"role":"assistant","content":"ab","reasoning_content":"cde",
        "tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]}},
        {"delta":{"content":null,"refusal":"no"}}]}"#;
    assert_eq!(look(Call::Chat, text).2, 2 + 3 + 1 + 2 + 2);
}

#[test]
fn what_cannot_be_read_is_noted_and_its_usage_found() {
    for (call, text) in [(Call::Chat, "no JSON"), (Call::Responses, r#"{"type":"x""#)] {
        assert!(look(call, text).1.is_unread, "{text}");
    }
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let used = r#""usage":{"input_tokens":2,"output_tokens":3}"#;
    let end = format!(r#"{{"type":"response.completed","response":{{"tools":{deep},{used}}}}}"#);
    let (_, reported, _) = look(Call::Responses, &end);
    assert_eq!(reported.usage, Some(Usage::new(2, 3)));
    assert!(reported.is_done && !reported.is_unread);
    let text = format!(r#"{{"choices":[{{"delta":{{"content":"abcd","x":{deep}}}}}]}}"#);
    let (_, reported, count) = look(Call::Chat, &text);
    assert!(reported.is_unread);
    assert_eq!(count, 4);
}

#[test]
fn the_own_form_of_llama_cpp_is_read() {
    let piece = r#"{"content":"abcd","stop":false,"tokens_predicted":4,"tokens_evaluated":2}"#;
    let (_, reported, count) = look(Call::Completions, piece);
    assert_eq!((reported.usage, count), (Some(Usage::new(2, 4)), 4));
    assert!(!reported.is_final && !reported.is_done);
    let end = r#"{"content":"","stop":true,"tokens_predicted":9,"tokens_evaluated":2}"#;
    let (verdict, reported, _) = look(Call::Completions, end);
    assert_eq!((verdict, reported.is_done), (Verdict::Pass, true));
    assert_eq!(reported.usage, Some(Usage::new(2, 9)));
}

#[test]
fn items_that_were_not_brought_in_parts_count() {
    let item =
        r#"{"type":"response.output_item.done","item":{"type":"custom_tool_call","input":"abcd"}}"#;
    assert_eq!(look(Call::Responses, item).2, 4);
}

#[test]
fn responses_tell_at_their_end() {
    let delta = r#"{"type":"response.output_text.delta","delta":"abcd"}"#;
    assert_eq!(look(Call::Responses, delta).2, 4);
    let end = r#"{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":2,"output_tokens":3,"total_tokens":5}}}"#;
    let (verdict, reported, _) = look(Call::Responses, end);
    assert_eq!(verdict, Verdict::Pass);
    assert!(reported.is_done);
    assert_eq!(reported.usage, Some(Usage::new(2, 3)));
}

/// What a stream of two answers with so much text states in all.
fn of_two(call: Call, events: &[&str], counted: u64, prompts: u64) -> (u64, u64) {
    let (mut reported, mut sink) = (StreamReport::default(), TextSink::new(Tariff::default()));
    let view = View { call, hides_usage: false, model: None, plausible: ANY, answers: 2 };
    for data in events {
        event(&view, Event::Whole(data), &mut reported, &mut sink);
    }
    assert!(reported.is_done);
    let usage = reported.by_answer.total(counted, prompts).unwrap();
    (input_of(&usage), output_of(&usage))
}

#[test]
fn usages_of_several_answers_in_a_stream_are_added_up() {
    // With the last piece of each answer, as llama.cpp states them for several prompts.
    let first = r#"{"choices":[{"index":0,"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":30}}"#;
    let second = r#"{"choices":[{"index":1,"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":40}}"#;
    assert_eq!(of_two(Call::Completions, &[first, second, "[DONE]"], 70, 2), (30, 70));
    // After each answer to one prompt.
    let after = r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":40}}"#;
    assert_eq!(of_two(Call::Chat, &[after, after, "[DONE]"], 90, 1), (10, 80));
    // The same, repeated: the text is of one.
    assert_eq!(of_two(Call::Chat, &[after, after, "[DONE]"], 45, 1), (10, 40));
    // With every piece, and once for all at the end.
    let end = r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":70}}"#;
    assert_eq!(of_two(Call::Chat, &[first, second, end, "[DONE]"], 90, 1), (10, 70));
    // In the server's own form, whose stream ends with the last of its answers.
    let native = |index: u64| {
        format!(
            r#"{{"index":{index},"content":"","stop":true,"tokens_predicted":50,"tokens_evaluated":9}}"#
        )
    };
    assert_eq!(of_two(Call::Completions, &[&native(0), &native(1)], 110, 2), (18, 100));
}
