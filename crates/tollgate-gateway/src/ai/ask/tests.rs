use serde_json::json;

use super::*;

#[test]
fn a_model_that_the_path_names_is_the_only_one() {
    let read = |body: &str| {
        let ask = Ask::read(Call::Chat, body.as_bytes(), Some("small"));
        ask.map(|ask| (ask.model.to_string(), ask.rewritten(Some("other"), false, None).is_some()))
    };
    assert_eq!(read(r"{}"), Ok(("small".to_owned(), false)));
    assert_eq!(read(r#"{"model":"small"}"#), Ok(("small".to_owned(), true)));
    assert_eq!(read(r#"{"model":"large"}"#).unwrap_err().param, Some("model"));
}

#[test]
fn nothing_else_in_a_body_chooses_a_model() {
    for (body, param) in [
        (r#"{"model":"small","fallbacks":["large"]}"#, "fallbacks"),
        (r#"{"model":"small","models":["large"]}"#, "models"),
        (r#"{"model":"small","Engine":"large"}"#, "engine"),
        (r#"{"model":"small","api_base":"http://x"}"#, "api_base"),
        (r#"{"model":"small,large"}"#, "model"),
        (r#"{"model":"small\nlarge"}"#, "model"),
        (r#"{"model":"small@preset/large"}"#, "model"),
        (r#"{"model":"small","fallbackModels":["large"]}"#, "fallback_models"),
        (r#"{"model":"small","provider":"large"}"#, "provider"),
        (r#"{"model":"small","x":{"y":[{"models":["large"]}]}}"#, "models"),
        (
            r#"{"model":"small","config":{"targets":[{"override_params":{"model":"large"}}]}}"#,
            "model",
        ),
    ] {
        let wrong = Ask::read(Call::Chat, body.as_bytes(), None).unwrap_err();
        assert_eq!(wrong.param, Some(param), "{body}");
    }
    for body in [
        r#"{"model":"small","models":null,"deferred":false}"#,
        r#"{"model":"small","provider":{"order":["a"]},"moderation":{"model":"a"}}"#,
        r#"{"model":"small","metadata":{"models":["a"]},"messages":[{"models":["a"]}]}"#,
    ] {
        assert!(Ask::read(Call::Chat, body.as_bytes(), None).is_ok(), "{body}");
    }
}

#[test]
fn answers_are_bounded_as_the_client_says() {
    for (call, body, most, answers) in [
        (Call::Chat, json!({"max_tokens": 5, "max_completion_tokens": 7}), 7, 1),
        (Call::Chat, json!({"max_tokens": 5, "n_predict": 900}), 900, 1),
        (Call::Chat, json!({"max_tokens": 5.0, "n": 3}), 5, 3),
        (Call::Chat, json!({"max_tokens": null}), 1_000, 1),
        (Call::Completions, json!({"max_tokens": 5, "prompt": ["a", "b"], "best_of": 2}), 5, 4),
        (Call::Completions, json!({"max_tokens": 5, "prompt": [1, 2]}), 5, 1),
        (Call::Completions, json!({"max_tokens": 5, "inputs": ["a"], "Inputs": ["a", "b"]}), 5, 2),
        (Call::Responses, json!({"max_output_tokens": 9, "max_tokens": 1}), 9, 1),
        (Call::Embeddings, json!({"max_tokens": 5}), 0, 1),
        // Upstreams that do not know the name of a bound write on.
        (Call::Chat, json!({"n_predict": 9}), 1_000, 1),
        (Call::Chat, json!({"max_output_tokens": 9}), 1_000, 1),
        (Call::Chat, json!({"options": {"num_predict": 9}}), 1_000, 1),
        (Call::Completions, json!({"max_completion_tokens": 9}), 1_000, 1),
        (Call::Responses, json!({"max_tokens": 9}), 1_000, 1),
        (Call::Chat, json!({"options": {"num_predict": 9_000}}), 9_000, 1),
        // What an answer must have bounds nothing.
        (Call::Chat, json!({"min_new_tokens": 9}), 1_000, 1),
        (Call::Chat, json!({"options": {"min_tokens": 0}}), 1_000, 1),
        (Call::Chat, json!({"max_tokens": 5, "min_new_tokens": 9}), 9, 1),
        (Call::Messages, json!({"max_tokens": 0}), 1_000, 1),
    ] {
        let mut body = body;
        body["model"] = json!("m");
        let text = body.to_string();
        let ask = Ask::read(call, text.as_bytes(), None).unwrap();
        assert_eq!((ask.longest_answer(|| 1_000), ask.answers), (most, answers), "{text}");
    }
    let body = br#"{"model":"m-thinking-16000","max_tokens":5}"#;
    let ask = Ask::read(Call::Chat, body, None).unwrap();
    assert_eq!(ask.longest_answer(|| 1_000), 16_005, "the name states a budget");
    assert!(ask.asks_thinking);
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    for (body, param) in [
        (r#"{"model":"a","model":"b"}"#, Some("model")),
        (r#"{"model":"a","mod\u0065l":"b"}"#, Some("model")),
        (r#"{"model":"a","max_tokens":1,"max_tokens":2}"#, Some("max_tokens")),
        (r#"{"model":"a","max_tokens":0}"#, Some("max_tokens")),
        (r#"{"model":"a","n":1.5}"#, Some("n")),
        (r#"{"model":7}"#, Some("model")),
        (r#"{"model":""}"#, Some("model")),
        ("{}", Some("model")),
        (r#"{"model":"a","Model":"b"}"#, Some("model")),
        (r#"{"model":"a","MAX_TOKENS":9}"#, Some("max_tokens")),
        ("{\"model\":\"a\",\"max_to\u{212a}ens\":9}", Some("max_tokens")),
        ("{\"model\":\"a\",\"me\u{17f}sages\":[]}", Some("messages")),
        (r#"{"model":"a","messages":[],"Messages":["more"]}"#, Some("messages")),
        (r#"{"model":"a","messages":[],"messages":["more"]}"#, Some("messages")),
        (
            r#"{"model":"a","stream_options":{"include_usage":true,"include_usage":false}}"#,
            Some("include_usage"),
        ),
        (r#"{"model":"a","stream_options":{"Include_Usage":true}}"#, Some("include_usage")),
        ("[]", None),
        ("{", None),
        ("\u{1}", None),
    ] {
        let wrong = Ask::read(Call::Chat, body.as_bytes(), None).unwrap_err();
        assert_eq!(wrong.param, param, "{body}: {wrong:?}");
    }
    assert!(Ask::read(Call::Chat, b"{\"model\":\"\xff\"}", None).is_err());
    let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(MAX_NAME_BYTES + 1));
    assert!(Ask::read(Call::Chat, long.as_bytes(), None).is_err());
}

#[test]
fn an_answer_may_be_sound_unless_text_alone_is_wanted() {
    for (body, may_speak) in [
        (r#"{"model":"a"}"#, true),
        (r#"{"model":"a","modalities":["text"]}"#, false),
        (r#"{"model":"a","modalities":["text","audio"]}"#, true),
        (r#"{"model":"a","modalities":["text"],"modalities":["audio"]}"#, true),
        (r#"{"model":"a","modalities":["text"],"Modalities":["audio"]}"#, true),
        (r#"{"model":"a","modalities":null}"#, true),
    ] {
        let ask = Ask::read(Call::Chat, body.as_bytes(), None).unwrap();
        assert_eq!(ask.may_speak(), may_speak, "{body}");
    }
}

/// Servers differ in which of two fields of the same name they read.
#[test]
fn of_prompts_that_are_there_twice_the_most_are_answered() {
    for (body, answers) in [
        (r#"{"model":"m","inputs":["a"],"inputs":["a","b","c"]}"#, 3),
        (r#"{"model":"m","inputs":["a","b","c"],"inputs":["a"]}"#, 3),
        (r#"{"model":"m","instances":[{}],"Instances":[{},{}]}"#, 2),
        (r#"{"model":"m","promptEmbeds":["a","b"]}"#, 2),
        (r#"{"model":"m","inputs":"a","prompts":[1,2]}"#, 1),
    ] {
        let ask = Ask::read(Call::Completions, body.as_bytes(), None).unwrap();
        assert_eq!(ask.answers, answers, "{body}");
    }
}
