//! What a model will read of a request for a message.
//!
//! Everything counts, unless it is known to be an option. What is not known is counted as the text it is.

use super::super::ask::Ask;
use super::super::certain::is_plain_content;
use super::super::json::{Member, Value};
use super::super::labels;
use super::super::media::outer_references;
use super::super::messages::{content, is_kind, messages};
use super::super::prompt::walk;
use super::super::text::TextSink;
use super::ask::{BRINGING, ONCE};

/// The most that the upstream's own instructions about tools have, by its documentation.
const TOOL_INSTRUCTIONS: u64 = 530;

/// The most that the description of a tool has that the upstream defines itself, by its documentation.
const BUILT_IN_TOOL: u64 = 735;

/// Options: numbers and short names in them cost nothing.
const OPTIONS: [&str; 18] = [
    "model",
    "max_tokens",
    "stream",
    "temperature",
    "top_k",
    "top_p",
    "stop_sequences",
    "metadata",
    "service_tier",
    "speed",
    "inference_geo",
    "thinking",
    "cache_control",
    "context_management",
    "diagnostics",
    "thread",
    "user_profile_id",
    "workspace_id",
];

/// Gives everything that the model will read to `sink`.
pub(crate) fn prompt(ask: &Ask<'_>, sink: &mut TextSink) {
    let mut options: Vec<Member<'_>> = Vec::new();
    for member in ask.whole.members() {
        let value = member.value;
        match member.name.as_ref() {
            name if value.is_null() && is_known(name) => options.push(member),
            "messages" => messages(value, sink),
            "system" => {
                if !is_plain_content(value) {
                    sink.uncertain();
                }
                content(value, sink, 0);
            }
            "tools" => {
                sink.uncertain();
                tools(value, sink);
            }
            // Names of tools, and the schema of an answer.
            "tool_choice" | "output_config" | "output_format" => {
                sink.uncertain();
                walk(value, sink);
            }
            name if OPTIONS.contains(&name) => options.push(member),
            name => {
                let count = outer_references(name, value);
                if count > 0 {
                    sink.documents(count);
                }
                // An upstream may not read it: the true length says nothing about the estimate.
                sink.skip_learning();
                sink.source(name);
                walk(value, sink);
            }
        }
    }
    labels::options(&options, sink);
    if ask.stored_field().is_some() {
        sink.history();
    }
    // The answer's own beginning.
    sink.message();
}

/// Whether the API has a field of this name. Clients send such fields as `null` where they are not set.
fn is_known(name: &str) -> bool {
    [&OPTIONS[..], &ONCE, &BRINGING].iter().any(|list| list.contains(&name))
}

fn tools(value: Value<'_>, sink: &mut TextSink) {
    if value.is_array() && value.elements().next().is_none() {
        return;
    }
    let is_built_in =
        |it: &Value<'_>| it.get("type").is_some() && !is_kind(*it, |it| it == "custom");
    let built_in = value.elements().filter(is_built_in).count() as u64;
    sink.tokens(TOOL_INSTRUCTIONS.saturating_add(built_in.saturating_mul(BUILT_IN_TOOL)));
    walk(value, sink);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::super::ask::Call;
    use super::super::super::text::Tariff;
    use super::*;

    fn estimate(more: &Json) -> u64 {
        let mut body = json!({"model": "m", "max_tokens": 5});
        for (name, value) in more.as_object().unwrap() {
            body[name.as_str()] = value.clone();
        }
        let text = body.to_string();
        let ask = Ask::read(Call::Messages, text.as_bytes(), None).unwrap();
        let mut sink = TextSink::new(Tariff::default());
        ask.prompt(&mut sink);
        sink.total()
    }

    #[test]
    fn prompts_are_estimated() {
        let user = |content: Json| json!([{"role": "user", "content": content}]);
        for (more, tokens) in [
            (json!({"messages": user(json!("abcd"))}), 8 + 1),
            (json!({"messages": user(json!("abcd")), "system": "abcdefgh"}), 8 + 3),
            (
                json!({"system": [{"type": "text", "text": "abcd", "cache_control": {"type": "ephemeral"}}]}),
                4 + 1,
            ),
            (
                json!({"messages": user(json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]))}),
                8 + 1_000,
            ),
            (
                json!({"messages": user(json!([{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]))}),
                8 + 20_000,
            ),
            (
                json!({"messages": user(json!([{"type": "container_upload", "file_id": "file_1"}]))}),
                8 + 20_000,
            ),
            (json!({"tools": []}), 4),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 2000}, "stop_sequences": ["END"]}),
                4,
            ),
        ] {
            assert_eq!(estimate(&more), tokens, "{more}");
        }
        let tool = json!({"tools": [{"name": "f", "input_schema": {}}]});
        assert!(estimate(&tool) > 4 + 530);
        let search = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]});
        assert!(estimate(&search) > 4 + 530 + 735 + 8_000);
    }

    #[test]
    fn nothing_that_is_not_known_is_free() {
        for more in [
            json!({"xx": "abcd"}),
            json!({"thread": {"type": "create", "xx": "a ".repeat(100)}}),
            json!({"metadata": {"user_id": "u", "xx": "a ".repeat(100)}}),
            json!({"compaction": {"type": "summarize", "instructions": "abcd"}}),
            json!({"container": "container_1"}),
        ] {
            assert!(estimate(&more) > 4, "{more}");
        }
    }
}
