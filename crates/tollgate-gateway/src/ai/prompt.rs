//! What a model will read, as far as it is counted.

use super::ask::{Ask, Call};
use super::json::Value;
use super::text::TextSink;

impl Ask<'_> {
    /// Gives everything that the model will read to `sink`.
    pub(crate) fn prompt(&self, sink: &mut TextSink) {
        for member in self.whole.members() {
            match (self.call, member.name.as_ref()) {
                (Call::Chat, "messages") | (Call::Responses, "input") => {
                    messages(member.value, sink);
                }
                (Call::Completions, "prompt") | (Call::Embeddings, "input") => {
                    plain(member.value, sink);
                }
                (Call::Completions, "suffix") | (Call::Responses, "instructions") => {
                    sink.text(member.value);
                }
                // What describes tools and the shape of an answer is read by the model as text.
                (
                    Call::Chat | Call::Responses,
                    "tools" | "functions" | "response_format" | "text",
                ) if !member.value.is_null() => sink.source(member.value.text),
                _ => {}
            }
        }
        if self.call == Call::Chat {
            // The answer's own beginning.
            sink.message();
        }
    }
}

/// How many prompts a completion is asked for: an array of texts, or of arrays of tokens, is that many.
pub(super) fn prompts(whole: Value<'_>) -> u64 {
    let Some(prompt) = whole.get("prompt").filter(|prompt| prompt.is_array()) else { return 1 };
    let many = prompt.elements().filter(|one| one.is_string() || one.is_array()).count();
    (many as u64).max(1)
}

/// Texts, or tokens that are numbers already.
fn plain(value: Value<'_>, sink: &mut TextSink) {
    if value.is_string() {
        sink.text(value);
        return;
    }
    for element in value.elements() {
        if element.is_string() {
            sink.text(element);
        } else if element.is_array() {
            sink.tokens(element.elements().count() as u64);
        } else {
            sink.tokens(1);
        }
    }
}

/// A conversation.
fn messages(value: Value<'_>, sink: &mut TextSink) {
    if value.is_string() {
        sink.message();
        sink.text(value);
        return;
    }
    for message in value.elements() {
        sink.message();
        for member in message.members() {
            match member.name.as_ref() {
                "content" | "output" => content(member.value, sink),
                "role" | "type" | "id" | "status" => {}
                _ if member.value.is_string() => sink.text(member.value),
                _ if member.value.is_object() || member.value.is_array() => {
                    sink.source(member.value.text);
                }
                _ => {}
            }
        }
    }
}

/// Kinds of parts that are nothing but text.
const TEXTS: [&str; 6] =
    ["text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"];

/// Members of a part that bring something to look at or to listen to, whatever kind it says it is.
const MEDIA: [&str; 4] = ["image", "audio", "video", "file"];

/// A text, or parts of which each is a text or something to look at or listen to.
fn content(value: Value<'_>, sink: &mut TextSink) {
    if value.is_string() {
        sink.text(value);
        return;
    }
    for part in value.elements() {
        if part.is_string() {
            sink.text(part);
            continue;
        }
        let (mut is_text, mut has_text, mut has_media) = (None, false, false);
        for member in part.members() {
            match member.name.as_ref() {
                "type" => is_text = member.value.string().map(|kind| TEXTS.contains(&&*kind)),
                "text" | "refusal" => {
                    has_text = true;
                    sink.text(member.value);
                }
                name => has_media |= MEDIA.iter().any(|media| name.contains(media)),
            }
        }
        // A picture does not become free by a word beside it.
        if has_media || !is_text.unwrap_or(has_text) {
            sink.image();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::text::Tariff;
    use super::*;

    fn estimate(call: Call, body: &Json) -> u64 {
        let text = body.to_string();
        let ask = Ask::read(call, text.as_bytes()).unwrap();
        let mut sink = TextSink::new(Tariff::default());
        ask.prompt(&mut sink);
        sink.total()
    }

    #[test]
    fn prompts_are_estimated() {
        let chat = json!({"model": "m", "messages": [
            {"role": "system", "content": "abcdefgh"},
            {"role": "user", "content": [{"type": "text", "text": "abcd"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAAAAAAAAAAAAAA"}}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]},
        ]});
        // Three messages and the answer's beginning, an image, 12 characters and 12 of a call.
        assert_eq!(estimate(Call::Chat, &chat), 4 * 4 + 1_000 + (12_u64 + 12).div_ceil(4));
        let tools = json!({"model": "m", "messages": [], "tools": [{"a": 1}]});
        assert_eq!(estimate(Call::Chat, &tools), 4 + 9_u64.div_ceil(4));
        let tokens = json!({"model": "m", "prompt": [[1, 2, 3], [4]], "suffix": "abcd"});
        assert_eq!(estimate(Call::Completions, &tokens), 4 + 1);
        assert_eq!(estimate(Call::Embeddings, &json!({"model": "m", "input": [5, 6, 7]})), 3);
        let response = json!({"model": "m", "instructions": "abcd", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "abcd"}]},
            {"type": "function_call_output", "call_id": "abcd", "output": "abcd"}]});
        assert_eq!(estimate(Call::Responses, &response), 2 * 4 + 4);
    }

    #[test]
    fn an_image_counts_whatever_stands_beside_it() {
        let image = json!({"url": "https://example.com/a.png"});
        for (part, tokens) in [
            (json!({"type": "image_url", "image_url": image}), 1_000),
            (json!({"type": "image_url", "image_url": image, "text": ""}), 1_000),
            (json!({"type": "text", "text": "abcd", "image_url": image}), 1_001),
            (json!({"image_url": image, "text": "abcd"}), 1_001),
            (
                json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
                1_000,
            ),
            (json!({"type": "file", "file": {"file_id": "f"}}), 1_000),
            (json!({"type": "something_new", "text": "abcd"}), 1_001),
            (json!({"type": "text", "text": "abcd"}), 1),
            (json!({"text": "abcd"}), 1),
            (json!({"type": "refusal", "refusal": "abcd"}), 1),
        ] {
            let body = json!({"model": "m", "messages": [{"role": "user", "content": [part]}]});
            assert_eq!(estimate(Call::Chat, &body), 2 * 4 + tokens, "{body}");
        }
    }
}
