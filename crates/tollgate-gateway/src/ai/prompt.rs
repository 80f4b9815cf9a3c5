//! What a model will read, as far as it is counted.
//!
//! Everything in a body counts, unless it is known to be an option: servers differ in what they read, and a field that
//! nobody counts is a way past the limit. What is known by name is counted by its shape, the rest as text.

use super::ask::{Ask, Call};
use super::fields::{FIELDS, NO_OPTIONS, OPTIONS, READ, STORED};
use super::json::{Member, Value};
use super::labels;
use super::media::{Stated, is_media, media, outer_references};
use super::messages::{content, messages, other, text};
use super::names;
use super::resolution::scale_of;
use super::text::TextSink;

/// Digits of the longest id of a token.
const MAX_TOKEN_ID: u64 = 7;

/// Values that lie deeper are counted as the text they are, so that no value is read many times.
pub(super) const MAX_WALK: u32 = 8;

/// Members of an object in a prompt that are texts, tokens or parts themselves.
const TEXTS: [&str; 10] = [
    "content",
    "contents",
    "input",
    "parts",
    "prompt",
    "prompt_string",
    "prompt_token_ids",
    "text",
    "texts",
    "title",
];

/// Fields that hold several prompts where they are arrays, without underscores, in small letters.
const PROMPTS: [&str; 6] = ["prompt", "prompts", "inputs", "instances", "requests", "text"];

impl Ask<'_> {
    /// Gives everything that the model will read to `sink`.
    pub(crate) fn prompt(&self, sink: &mut TextSink) {
        if let Some(own) = self.call.protocol().prompt() {
            return own(self, sink);
        }
        let (mut unknown, mut options) = (Vec::new(), Vec::new());
        sink.scale_images(scale_of(self.whole));
        for member in self.whole.members() {
            let value = member.value;
            if !self.reads_certainly(&member) {
                sink.uncertain();
            }
            match member.name.as_ref() {
                name if value.is_null() && is_known(name) => options.push(member),
                _ if value.is_null() => unknown.push(member),
                "messages" => messages(value, sink),
                "input" if self.call == Call::Responses => messages(value, sink),
                "prompt" if self.call == Call::Responses => stored_prompt(value, sink),
                "prompt" | "input" | "content" | "suffix" | "instructions" => plain(value, sink, 0),
                "prompt_embeds" => embeds(value, sink),
                // Tokens, of servers that are not known to read them here.
                "context" | "input_ids" | "prompt_token_ids" => {
                    sink.skip_learning();
                    plain(value, sink, 0);
                }
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
                "tool_choice" if !value.is_string() => {
                    sink.uncertain();
                    walk(value, sink);
                }
                name if OPTIONS.contains(&name) => options.push(member),
                // Next to the conversation, as some servers take it. `audio` says how an answer is to be spoken.
                name if is_media(name) && name != "audio" => {
                    media(name, value, Stated::default(), sink);
                    unknown.push(member);
                }
                "file_ids" | "attachments" => {
                    media("file_id", value, Stated::default(), sink);
                    unknown.push(member);
                }
                name if NO_OPTIONS.contains(&name) => unknown.push(member),
                name => {
                    let count = outer_references(name, value);
                    if count > 0 {
                        sink.documents(count);
                    }
                    unknown.push(member);
                }
            }
        }
        if self.stored_field().is_some() || sink.refers() {
            sink.history();
        }
        let is_cut = |name: &str| name.starts_with("truncat");
        let is_whole = |it: Member<'_>| it.value.is_null() || !is_cut(&it.name);
        if !unknown.is_empty() || !self.whole.members().all(is_whole) {
            // An upstream may not read them: the true length says nothing about the estimate.
            sink.skip_learning();
        }
        for member in unknown {
            sink.source(&member.name);
            walk(member.value, sink);
        }
        labels::options(&options, sink);
        if self.call == Call::Chat {
            // The answer's own beginning.
            sink.message();
        }
    }
}

impl Ask<'_> {
    /// Whether every upstream reads a field as the prompt, or the field counts nothing.
    fn reads_certainly(&self, member: &Member<'_>) -> bool {
        match (self.call, member.name.as_ref()) {
            _ if member.value.is_null() => true,
            // What its messages hold is looked at one by one.
            (Call::Chat, "messages") | (Call::Responses, "input") => true,
            (Call::Completions, "prompt") | (Call::Responses, "instructions") => {
                member.value.is_string()
            }
            (_, name) => !READ.contains(&name) && name != "input_ids" && name != "context",
        }
    }
}

/// Whether the API has a field of this name. Clients send such fields as `null` where they are not set.
fn is_known(name: &str) -> bool {
    let others = ["audio", "function_call"];
    let lists: [&[&str]; 6] = [&OPTIONS, &FIELDS, &READ, &STORED, &NO_OPTIONS, &others];
    lists.iter().any(|list| list.contains(&name))
}

/// How many prompts a body has, each of which is answered: texts, arrays of tokens and objects in an array, and prompts
/// that come as numbers. Of a field that is there several times, or in several spellings, the longest counts.
pub(super) fn prompts(whole: Value<'_>) -> u64 {
    let is_prompt = |it: &Value<'_>| it.is_string() || it.is_array() || it.is_object();
    let count = |value: Value<'_>, fits: fn(&Value<'_>) -> bool| {
        value.elements().filter(fits).count() as u64
    };
    let [mut prompts, mut embeds, mut conversations] = [0; 3];
    for Member { name, value, .. } in whole.members() {
        if !(value.is_array() || value.is_string()) {
            continue;
        }
        match names::plain(&name).as_str() {
            "promptembeds" if value.is_string() => embeds = embeds.max(1),
            "promptembeds" => embeds = embeds.max(count(value, |it| it.is_string())),
            "messages" => conversations = conversations.max(count(value, |it| it.is_array())),
            name if PROMPTS.contains(&name) => prompts = prompts.max(count(value, is_prompt)),
            _ => {}
        }
    }
    u64::saturating_add(prompts, embeds).saturating_add(conversations).max(1)
}

/// Texts, tokens that are numbers already, and objects of llama.cpp with a text and what belongs to it.
pub(super) fn plain(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if value.is_string() {
        text(value, sink);
    } else if depth >= MAX_WALK {
        other("", value, sink);
    } else if value.is_array() {
        for element in value.elements() {
            // Each text of several begins with a token that models add, in whatever form it comes.
            let is_prompt = element.is_string() || element.is_object();
            sink.tokens(u64::from(is_prompt));
            plain(element, sink, depth + 1);
        }
    } else if value.get("type").is_some() {
        content(value, sink, depth);
    } else if value.is_object() {
        for member in value.members() {
            match member.name.as_ref() {
                name if is_media(name) => media(name, member.value, Stated::default(), sink),
                "messages" => messages(member.value, sink),
                name if TEXTS.contains(&name) => plain(member.value, sink, depth + 1),
                name => _ = other(name, member.value, sink),
            }
        }
    } else {
        // The id of a token, or a number of any length that is read as text.
        sink.tokens((value.text.len() as u64).saturating_sub(MAX_TOKEN_ID).div_ceil(3) + 1);
    }
}

/// A prompt that the upstream keeps, with values for its variables, which may be files.
fn stored_prompt(value: Value<'_>, sink: &mut TextSink) {
    sink.history();
    walk(value, sink);
    let variables = value.members().filter(|it| it.name == "variables");
    for variable in variables.flat_map(|it| it.value.members()) {
        if !variable.value.is_string() {
            content(variable.value, sink, 0);
        }
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
pub(super) fn walk(value: Value<'_>, sink: &mut TextSink) {
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
        let sources = r#""source":{"type":"url"},"result":1,"#.repeat(COUNT / 4);
        let sources = format!(
            r#"{{"model":"m","messages":[{{{sources}"role":"user","content":[{{{sources}"type":"image"}}]}}]}}"#
        );
        let elements = "[],".repeat(COUNT);
        let name = "a".repeat(1_000_000);
        let names = format!(r#"{{"model":"m","messages":[],"{name}":[{elements}[]]}}"#);
        for body in [media, sources, names] {
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

    /// Otherwise a client has its own estimate corrected by what the upstream does not read.
    #[test]
    fn requests_with_what_an_upstream_may_not_read_teach_nothing() {
        let learned = |more: &str, member: &str| {
            let text = "abc ".repeat(100);
            let body = format!(
                r#"{{"model":"m",{more}"messages":[{{"role":"user",{member}"content":"{text}"}}]}}"#
            );
            let ask = Ask::read(Call::Chat, body.as_bytes(), None).unwrap();
            let mut sink = TextSink::new(Tariff::default());
            ask.prompt(&mut sink);
            sink.for_answer().prompt().map(|prompt| prompt.is_certain)
        };
        for more in ["", r#""temperature":1,"truncation":null,"tools":null,"#] {
            assert_eq!(learned(more, ""), Some(true), "{more}");
        }
        // It can only raise an estimate.
        let long = "abc ".repeat(5_000);
        for (more, member) in [
            (format!(r#""metadata":{{"a":"{long}"}},"#), ""),
            (format!(r#""metadata":{{"a":"{}"}},"#, "abc ".repeat(20)), ""),
            (format!(r#""stop":["{long}"],"#), ""),
            (format!(r#""user":"u","prompt":"{long}","#), ""),
            (format!(r#""instructions":"{long}","#), ""),
            (format!(r#""tools":[{{"type":"function","function":{{"name":"{long}"}}}}],"#), ""),
            (format!(r#""response_format":{{"a":"{long}"}},"#), ""),
            (format!(r#""chat_template_kwargs":{{"a":"{long}"}},"#), ""),
            (String::new(), r#""name":"ann","tool_calls":[{"id":"c"}],"#),
            (String::new(), r#""content":"twice","#),
        ] {
            assert_eq!(learned(&more, member), Some(false), "{more:.60}{member}");
        }
        for (more, member) in [
            (r#""xx_unknown":1,"#, ""),
            (r#""xx_unknown":null,"#, ""),
            (r#""truncate_prompt_tokens":10,"#, ""),
            (r#""truncation":"auto","#, ""),
            (r#""truncate":"END","#, ""),
            (r#""client_metadata":{},"#, ""),
            ("", r#""xx_unknown":"a","#),
            ("", r#""reasoning_content":"a","#),
        ] {
            assert_eq!(learned(more, member), None, "{more}{member}");
        }
        let many = r#"{"role":"user","content":""},"#.repeat(1_000);
        let body = format!(
            r#"{{"model":"m","messages":[{many}{{"role":"user","content":"{}"}}]}}"#,
            "abc ".repeat(100)
        );
        let ask = Ask::read(Call::Chat, body.as_bytes(), None).unwrap();
        let mut sink = TextSink::new(Tariff::default());
        ask.prompt(&mut sink);
        assert!(!sink.for_answer().prompt().unwrap().is_certain, "messages outweigh their text");
    }

    /// Parts are texts of their own, in whatever form they come: each is at least a token, and one more that models add.
    #[test]
    fn many_short_texts_are_many_tokens() {
        const COUNT: usize = 1_000;
        let part = json!({"type": "text", "text": "a"});
        for (call, field, each) in [
            (Call::Chat, "messages", json!({"role": "user", "content": "a"})),
            (Call::Completions, "prompt", json!("a")),
            (Call::Completions, "prompt", part.clone()),
            (Call::Completions, "prompt", json!({"prompt_string": "a"})),
            (Call::Embeddings, "input", part.clone()),
            (Call::Embeddings, "input", json!({"text": "a"})),
            (Call::Embeddings, "input", json!(["a"])),
            (Call::Responses, "input", part.clone()),
        ] {
            let body = json!({"model": "m", field: vec![each.clone(); COUNT]});
            assert!(estimate(call, &body) >= 2 * COUNT as u64 - 1, "{call:?} {field} {each}");
        }
        let message = json!({"role": "user", "content": vec![part; COUNT]});
        let chat = json!({"model": "m", "messages": [message]});
        assert!(estimate(Call::Chat, &chat) >= 2 * COUNT as u64 - 1);
    }

    #[test]
    fn every_field_counts() {
        let estimate = |more: String| {
            let body = format!(r#"{{"model":"m",{more}"messages":[]}}"#);
            let ask = Ask::read(Call::Chat, body.as_bytes(), None).unwrap();
            let mut sink = TextSink::new(Tariff::default());
            ask.prompt(&mut sink);
            sink.total()
        };
        let none = estimate(String::new());
        assert_eq!(
            estimate(r#""temperature":0.5,"seed":7,"metadata":{"a":"b"},"#.to_owned()),
            none
        );
        assert!(estimate(r#""xx_unknown":"abcd efgh","#.to_owned()) > none, "however short");
        assert!(estimate(r#""xx_unknown":1,"#.to_owned()) > none, "numbers, too");
        assert!(estimate(r#""xx_unknown":null,"#.to_owned()) > none, "and names");
        assert_eq!(estimate(r#""tools":null,"logit_bias":null,"#.to_owned()), none);
        let pairs = (0..1_000).map(|it| format!(r#""k{it}":"{}","#, "word ".repeat(10)));
        let pairs: String = pairs.collect();
        assert!(estimate(format!(r#""metadata":{{{pairs}"a":"b"}},"#)) > none + 10_000);
        assert!(
            estimate(format!(r#""stop":["a"{}],"#, r#","word word""#.repeat(1_000))) > none + 2_000
        );
        assert!(estimate(r#""seed":1234567890,"#.repeat(1_000)) > none + 2_000);
        assert!(estimate(r#""xx_null_null_null":null,"#.repeat(1_000)) > none + 2_000);
    }

    #[test]
    fn prompts_are_estimated() {
        let chat = json!({"model": "m", "messages": [
            {"role": "system", "content": "abcdefgh"},
            {"role": "user", "content": [{"type": "text", "text": "abcd"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAAAAAAAAAAAAAA"}}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]},
        ]});
        // Three messages and the answer's beginning, an image, a second part, 12 letters, and a call: 3 letters and 9 marks.
        assert_eq!(
            estimate(Call::Chat, &chat),
            4 * 4 + 1_000 + 1 + (15 * 250_u64 + 9 * 550).div_ceil(1_000)
        );
        let tools = json!({"model": "m", "messages": [], "tools": [{"name": 1}]});
        let letters = 4 * 250_u64;
        assert_eq!(estimate(Call::Chat, &tools), 4 + (letters + 7 * 550 + 400).div_ceil(1_000));
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
