//! What of an answer a model wrote: every string counts, unless its name says that it is no text.

use super::json::Value;
use super::text::TextSink;

/// Values that lie deeper are counted as the text they are, so that no value is read many times.
const MAX_WALK: u32 = 8;

/// Members of an answer's parts that no model writes.
const LABELS: [&str; 22] = [
    "id",
    "call_id",
    "item_id",
    "tool_call_id",
    "type",
    "role",
    "object",
    "model",
    "status",
    "phase",
    "index",
    "format",
    "finish_reason",
    "native_finish_reason",
    "stop_reason",
    "matched_stop",
    "logprobs",
    "annotations",
    "content_filter_results",
    "signature",
    "encrypted_content",
    "embedding",
];

/// Members of a whole answer that are about the request or the server.
const ABOUT: [&str; 26] = [
    "id",
    "object",
    "model",
    "status",
    "error",
    "usage",
    "instructions",
    "tools",
    "tool_choice",
    "metadata",
    "text",
    "input",
    "prompt",
    "reasoning",
    "truncation",
    "service_tier",
    "system_fingerprint",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "previous_response_id",
    "conversation",
    "generation_settings",
    "timings",
    "prompt_filter_results",
    "stopping_word",
];

/// Members that hold images and recordings.
const MEDIA: [&str; 5] = ["data", "b64_json", "url", "result", "partial_image_b64"];

/// Whether a string under this name is none that a model wrote.
pub(super) fn is_label(name: &[u8]) -> bool {
    LABELS.iter().any(|it| it.as_bytes() == name)
}

/// Whether a member of a whole answer is about something else than what was written.
pub(super) fn is_about(name: &[u8]) -> bool {
    ABOUT.iter().any(|it| it.as_bytes() == name)
}

/// Whether a string under this name is an image or a recording.
pub(super) fn is_media(name: &[u8]) -> bool {
    MEDIA.iter().any(|it| it.as_bytes() == name)
}

/// What a choice brings: text, calls of tools, images.
pub(super) fn choice(choice: Value<'_>, sink: &mut TextSink) {
    members(choice, sink, 0);
}

/// Every string of a part of an answer.
pub(super) fn part(name: &str, value: Value<'_>, sink: &mut TextSink) {
    walk(name, value, sink, 0);
}

fn members(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    for member in value.members().filter(|it| !is_label(it.name.as_bytes())) {
        walk(&member.name, member.value, sink, depth);
    }
}

fn walk(name: &str, value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if value.is_string() {
        if is_media(name.as_bytes()) {
            sink.written_media(value.text.len() as u64);
        } else {
            sink.text(value);
        }
    } else if depth >= MAX_WALK && (value.is_object() || value.is_array()) {
        sink.source(value.text);
    } else {
        value.elements().for_each(|it| walk(name, it, sink, depth + 1));
        members(value, sink, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::super::text::Tariff;
    use super::*;

    #[test]
    fn every_string_counts_unless_it_is_a_label() {
        let count = |text: &str| {
            let tariff = Tariff { characters_per_token: 1, ..Tariff::default() };
            let mut sink = TextSink::new(tariff);
            choice(parse(text).unwrap(), &mut sink);
            sink.total()
        };
        for (text, tokens) in [
            (r#"{"text":"abcd","index":0,"finish_reason":"stop"}"#, 4),
            (r#"{"delta":{"role":"assistant","content":"abcd"}}"#, 4),
            (r#"{"delta":{"content":[{"type":"text","text":"abcd"}]}}"#, 4),
            (r#"{"delta":{"content":[{"thinking":[{"text":"abcd"}]}]}}"#, 4),
            (r#"{"delta":{"tool_calls":[{"id":"c","custom":{"name":"f","input":"abcd"}}]}}"#, 5),
            (r#"{"delta":{"audio":{"id":"a","transcript":"abcd"}}}"#, 4),
            (r#"{"delta":{"reasoning_details":[{"type":"t","text":"abcd"}]}}"#, 4),
            (r#"{"delta":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":"b"}}}}}}}}}}"#, 9),
        ] {
            assert_eq!(count(text), tokens, "{text}");
        }
        let image = format!(r#"{{"delta":{{"images":[{{"url":"{}"}}]}}}}"#, "A".repeat(12_800));
        assert_eq!(count(&image), 12_802 / 128);
    }
}
