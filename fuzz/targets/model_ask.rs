//! A client's body at a route of models: the gateway reads the same values from it as any JSON
//! parser, and the body it forwards differs only in the model's name and in the option that asks
//! the provider to report usage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;
use tollgate_fuzz::choice;
use tollgate_gateway::ai::fuzzed::ask;

const NAME: &str = "the \"upstream's\" näme";

fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = choice(input) else { return };
    let Some(read) = ask(kind, body, NAME) else { return };
    serde_json::from_slice::<IgnoredAny>(body).expect("what is taken is JSON");
    // Numbers beyond what it holds, and halves of characters, are JSON that it does not read.
    let Ok(mut known) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!(known["model"].as_str(), Some(read.model.as_str()));
    assert_eq!(known["user"].as_str(), read.user.as_deref());
    let is_stream = known["stream"] == Value::Bool(true);
    assert!(is_stream || !read.is_stream);
    let Some(rewritten) = read.rewritten else {
        assert_eq!(read.model, NAME);
        return;
    };
    let after: Value = serde_json::from_slice(&rewritten).expect("what goes on is JSON");
    let asks = read.is_stream && kind % 4 < 2;
    known["model"] = NAME.into();
    if asks && !read.wants_usage {
        if !known["stream_options"].is_object() {
            known["stream_options"] = serde_json::json!({});
        }
        known["stream_options"]["include_usage"] = true.into();
    }
    assert_eq!(after, known);
});
