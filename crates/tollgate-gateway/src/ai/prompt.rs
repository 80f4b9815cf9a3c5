//! What a model will read, as far as it is counted.
//!
//! Everything in a body counts, unless it is known to be an option: servers differ in what they read, and a field that
//! nobody counts is a way past the limit. What is known by name is counted by its shape, the rest as text.

use super::ask::{Ask, Call, Wrong, wrong};
use super::fields::{OPTIONS, STORED};
use super::json::Value;
use super::media::{Stated, is_media, media, unknown_part};
use super::text::{Tariff, TextSink};

/// A string in an option is free up to this; a longer one is a text.
const MAX_OPTION_BYTES: usize = 64;

/// Fields that are not known are taken for options while they are together not longer than this, unless an upper bound
/// is asked for.
const MAX_FREE_BYTES: usize = 256;

/// Values that lie deeper are counted as the text they are, so that no value is read many times.
const MAX_WALK: u32 = 8;

impl Ask<'_> {
    /// Gives everything that the model will read to `sink`.
    pub(crate) fn prompt(&self, sink: &mut TextSink) {
        let mut unknown = Vec::new();
        for member in self.whole.members() {
            let value = member.value;
            match member.name.as_ref() {
                _ if value.is_null() => {}
                "messages" => messages(value, sink),
                "input" if self.call == Call::Responses => messages(value, sink),
                "prompt" if self.call == Call::Responses => {
                    sink.history();
                    walk(value, sink);
                }
                "prompt" | "input" | "content" | "suffix" | "instructions" => plain(value, sink, 0),
                "prompt_embeds" => embeds(value, sink),
                name @ "multimodal_data" => media(name, value, Stated::default(), sink),
                // Texts that the model reads: what describes tools and answers, documents, templates.
                "tools"
                | "functions"
                | "response_format"
                | "text"
                | "documents"
                | "chat_template"
                | "chat_template_kwargs" => walk(value, sink),
                // Names of tools in it may be read.
                "tool_choice" if !value.is_string() => walk(value, sink),
                name if OPTIONS.contains(&name) => option(value, sink, 0),
                // Next to the conversation, as some servers take it. `audio` says how an answer is to be spoken.
                name if is_media(name) && name != "audio" => {
                    media(name, value, Stated::default(), sink);
                    unknown.push(member);
                }
                "file_ids" | "attachments" => {
                    media("file_id", value, Stated::default(), sink);
                    unknown.push(member);
                }
                _ => unknown.push(member),
            }
        }
        if self.stored_field().is_some() {
            sink.history();
        }
        let length: usize = unknown.iter().map(|it| it.name.len() + it.value.text.len()).sum();
        if sink.is_upper_bound() || length > MAX_FREE_BYTES {
            // An upstream may not read them: the true length says nothing about the estimate.
            sink.skip_learning();
            for member in unknown {
                sink.source(&member.name);
                walk(member.value, sink);
            }
        }
        if self.call == Call::Chat {
            // The answer's own beginning.
            sink.message();
        }
    }

    /// The field by which this brings something that the upstream keeps or fetches, if it does.
    fn stored_field(&self) -> Option<&'static str> {
        let is_set = |name: &&str| self.whole.get(name).is_some_and(|it| !it.is_null());
        STORED.into_iter().find(is_set).or_else(|| self.has_server_tool().then_some("tools"))
    }

    /// Whether a tool is one that the upstream runs, and whose results the model reads: a search, for example.
    fn has_server_tool(&self) -> bool {
        let runs_at_client = |tool: Value<'_>| match tool.get("type") {
            Some(kind) => kind.string().is_some_and(|kind| matches!(&*kind, "function" | "custom")),
            None => true,
        };
        let tools = self.whole.get("tools").filter(|tools| tools.is_array());
        tools.is_some_and(|tools| !tools.elements().all(runs_at_client))
    }

    /// Whether the input refers to an item that the upstream keeps.
    fn has_reference(&self) -> bool {
        let input = self.whole.get("input").filter(|_| self.call == Call::Responses);
        input.is_some_and(|input| input.is_array() && input.elements().any(is_reference))
    }

    /// Refuses a conversation that the upstream keeps, where nothing is said of how long it may be.
    pub(crate) fn check_history(&self, tariff: &Tariff) -> Result<(), Wrong> {
        if tariff.history_tokens > 0 {
            return Ok(());
        }
        let stored = || self.whole.get("prompt").filter(|it| !it.is_null()).map(|_| "prompt");
        let stored = || if self.call == Call::Responses { stored() } else { None };
        let referred = || self.has_reference().then_some("input");
        match self.stored_field().or_else(stored).or_else(referred) {
            None => Ok(()),
            Some(name) => Err(wrong(
                name,
                format!(
                    "{name:?} is not accepted: the length of what it refers to is not known here"
                ),
            )),
        }
    }
}

/// How many prompts a body has, each of which is answered: texts, arrays of tokens and objects in an array, and prompts
/// that come as numbers.
pub(super) fn prompts(whole: Value<'_>) -> u64 {
    let many = |name: &str, is_prompt: fn(&Value<'_>) -> bool| {
        let found = whole.get(name).filter(|value| value.is_array());
        found.map_or(0, |value| value.elements().filter(is_prompt).count() as u64)
    };
    let prompts = many("prompt", |it| it.is_string() || it.is_array() || it.is_object());
    let embeds = match whole.get("prompt_embeds") {
        Some(value) if value.is_string() => 1,
        _ => many("prompt_embeds", |it| it.is_string()),
    };
    let conversations = many("messages", |it| it.is_array());
    prompts.saturating_add(embeds).saturating_add(conversations).max(1)
}

/// Texts, tokens that are numbers already, and objects of llama.cpp with a text and what belongs to it.
fn plain(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if value.is_string() {
        sink.text(value);
    } else if depth >= MAX_WALK {
        sink.source(value.text);
    } else if value.is_array() {
        for element in value.elements() {
            plain(element, sink, depth + 1);
        }
    } else if value.is_object() {
        for member in value.members() {
            match member.name.as_ref() {
                name if is_media(name) => media(name, member.value, Stated::default(), sink),
                "messages" => messages(member.value, sink),
                _ => plain(member.value, sink, depth + 1),
            }
        }
    } else {
        sink.tokens(1);
    }
}

/// A prompt as a tensor, or several.
fn embeds(value: Value<'_>, sink: &mut TextSink) {
    if value.is_array() {
        value.elements().for_each(|it| sink.tensor(it.text.len() as u64));
    } else {
        sink.tensor(value.text.len() as u64);
    }
}

/// A value whose names and texts the model reads, in whatever form.
fn walk(value: Value<'_>, sink: &mut TextSink) {
    if value.is_string() {
        sink.text(value);
    } else if value.text.contains('\\') {
        unescaped(value, sink, 0);
    } else {
        sink.source(value.text);
    }
}

/// A value with escapes: a text may be shorter than it is written, or longer, so each is read.
fn unescaped(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if value.is_string() {
        sink.text(value);
    } else if depth >= MAX_WALK || !(value.is_object() || value.is_array()) {
        sink.source(value.text);
    } else {
        for element in value.elements() {
            sink.tokens(1);
            unescaped(element, sink, depth + 1);
        }
        for member in value.members() {
            sink.tokens(2);
            sink.source(&member.name);
            unescaped(member.value, sink, depth + 1);
        }
    }
}

/// An option: only long strings in it count.
fn option(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if value.text.len() <= MAX_OPTION_BYTES {
        return;
    }
    if value.is_string() {
        sink.text(value);
    } else if depth >= MAX_WALK {
        sink.source(value.text);
    } else {
        value.elements().for_each(|it| option(it, sink, depth + 1));
        for member in value.members() {
            if member.name.len() > MAX_OPTION_BYTES {
                sink.source(&member.name);
            }
            option(member.value, sink, depth + 1);
        }
    }
}

/// A conversation.
fn messages(value: Value<'_>, sink: &mut TextSink) {
    if !value.is_array() {
        sink.message();
        return content(value, sink);
    }
    for message in value.elements() {
        sink.message();
        if !message.is_object() {
            // A batch of conversations, or a text in place of a message.
            if message.is_array() {
                messages(message, sink);
            } else {
                content(message, sink);
            }
            continue;
        }
        if is_reference(message) {
            sink.history();
        }
        for member in message.members() {
            match member.name.as_ref() {
                "content" | "output" => content(member.value, sink),
                "role" => role(member.value, sink),
                "type" | "id" | "status" => option(member.value, sink, 0),
                name if is_media(name) => media(name, member.value, Stated::default(), sink),
                _ if member.value.is_null() => {}
                _ => walk(member.value, sink),
            }
        }
    }
}

/// Templates write a role as it is. The usual ones are part of what a message costs.
fn role(value: Value<'_>, sink: &mut TextSink) {
    if !value.string().is_some_and(|role| ROLES.contains(&&*role)) {
        walk(value, sink);
    }
}

/// Whether an item of an input says nothing itself and refers to one that the upstream keeps.
fn is_reference(item: Value<'_>) -> bool {
    let kind = item.get("type").and_then(Value::string);
    if kind.is_some_and(|kind| kind == "item_reference") {
        return true;
    }
    let says_nothing = |name: &str| matches!(name, "id" | "type" | "status" | "role");
    item.get("id").is_some_and(|id| !id.is_null())
        && item.members().all(|it| it.value.is_null() || says_nothing(&it.name))
}

/// The roles of the API.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Kinds of parts that are nothing but text.
const TEXTS: [&str; 7] =
    ["text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text", "thinking"];

/// Members of a part that the model does not read, as long as they are short.
const PART_OPTIONS: [&str; 10] = [
    "annotations",
    "cache_control",
    "detail",
    "filename",
    "format",
    "id",
    "index",
    "logprobs",
    "media_type",
    "status",
];

/// A text, or parts of which each is a text or something to look at or listen to.
fn content(value: Value<'_>, sink: &mut TextSink) {
    if value.is_object() {
        part(value, sink);
    } else if value.is_array() {
        for element in value.elements() {
            if element.is_object() { part(element, sink) } else { plain(element, sink, 0) }
        }
    } else if value.is_string() {
        sink.text(value);
    }
}

fn part(part: Value<'_>, sink: &mut TextSink) {
    let (mut is_text, mut has_text, mut has_media) = (None, false, false);
    let stated = Stated::of(part);
    for member in part.members() {
        match member.name.as_ref() {
            "type" => {
                is_text = member.value.string().map(|kind| TEXTS.contains(&&*kind));
                option(member.value, sink, 0);
            }
            "text" | "refusal" | "thinking" => {
                has_text = true;
                walk(member.value, sink);
            }
            name if is_media(name) => {
                has_media = true;
                media(name, member.value, stated, sink);
            }
            name if PART_OPTIONS.contains(&name) => option(member.value, sink, 0),
            _ if member.value.is_null() => {}
            _ => walk(member.value, sink),
        }
    }
    // A part of another kind brings something, even where no member looks like it.
    if !has_media && !is_text.unwrap_or(has_text) {
        unknown_part(part, sink);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::text::Tariff;
    use super::*;

    /// Two megabytes of members that each would have their part or their name read again: work that grows with the
    /// square of the body would not end within the time that a test has.
    #[test]
    fn reading_grows_with_the_length_of_the_body() {
        const COUNT: usize = 200_000;
        let part = "\"image\":1,".repeat(COUNT);
        let media = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{{part}"x":1}}]}}]}}"#
        );
        let elements = "[],".repeat(COUNT);
        let name = "a".repeat(1_000_000);
        let names = format!(r#"{{"model":"m","messages":[],"{name}":[{elements}[]]}}"#);
        for body in [media, names] {
            let ask = Ask::read(Call::Chat, body.as_bytes(), None).unwrap();
            let mut sink = TextSink::new(Tariff::default());
            ask.prompt(&mut sink);
            assert!(sink.total() > 0);
        }
    }

    fn estimate(call: Call, body: &Json) -> u64 {
        let text = body.to_string();
        let ask = Ask::read(call, text.as_bytes(), None).unwrap();
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
        // Three messages and the answer's beginning, an image, 12 letters, and a call: 3 letters and 9 marks.
        assert_eq!(
            estimate(Call::Chat, &chat),
            4 * 4 + 1_000 + (15 * 250_u64 + 9 * 550).div_ceil(1_000)
        );
        let tools = json!({"model": "m", "messages": [], "tools": [{"a": 1}]});
        assert_eq!(estimate(Call::Chat, &tools), 4 + (250_u64 + 7 * 550 + 400).div_ceil(1_000));
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
            (json!({"type": "file", "file": {"file_id": "f"}}), 20_000),
            (json!({"type": "video_url", "video_url": {"url": "https://example.com/a"}}), 20_000),
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
