//! Answers in the shape of Anthropic's Messages API.

use serde_json::{Value, json};

use super::{Made, TOKEN};

/// An event, as this API names them: by the type of its data.
fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
}

impl Made {
    /// Part of every prompt comes from a cache, and part is written to it.
    pub(super) fn message_usage(&self, tokens: u64) -> Value {
        let (read, written) = (self.prompt / 2, self.prompt / 4);
        json!({"input_tokens": self.prompt - read - written, "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read, "output_tokens": tokens, "service_tier": "standard"})
    }

    fn tool(&self) -> Option<&Value> {
        self.body["tools"].get(0).map(|tool| &tool["name"])
    }

    fn stop_reason(&self) -> &'static str {
        if self.tool().is_some() { "tool_use" } else { "end_turn" }
    }

    pub(super) fn message(&self, text: &str) -> Value {
        let content = match self.tool() {
            Some(name) => {
                json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {"city": "Paris"}})
            }
            None => json!({"type": "text", "text": text, "citations": null}),
        };
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": self.body["model"],
            "content": [content], "stop_reason": self.stop_reason(), "stop_sequence": null})
    }

    fn message_begins(&self) -> String {
        let mut message = json!({"id": "msg_1", "type": "message", "role": "assistant",
            "model": self.body["model"], "content": [], "stop_reason": null, "stop_sequence": null});
        if !self.behaviour.is_silent {
            message["usage"] = self.message_usage(1);
        }
        let block = match self.tool() {
            Some(name) => json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}),
            None => json!({"type": "text", "text": ""}),
        };
        event(&json!({"type": "message_start", "message": message}))
            + &event(&json!({"type": "content_block_start", "index": 0, "content_block": block}))
            + &event(&json!({"type": "ping"}))
    }

    pub(super) fn message_token(&self, step: u64) -> String {
        let piece = if step == 0 { r#"{"city":"Paris"}"# } else { "" };
        let delta = match self.tool() {
            Some(_) => json!({"type": "input_json_delta", "partial_json": piece}),
            None => json!({"type": "text_delta", "text": TOKEN}),
        };
        let begins = if step == 0 { self.message_begins() } else { String::new() };
        begins + &event(&json!({"type": "content_block_delta", "index": 0, "delta": delta}))
    }

    pub(super) fn message_ends(&self) -> String {
        let reason = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        let mut delta = json!({"type": "message_delta", "delta": reason});
        if !self.behaviour.is_silent {
            let usage = &self.behaviour.usage;
            delta["usage"] = usage.clone().unwrap_or_else(|| json!({"output_tokens": self.tokens}));
        }
        event(&json!({"type": "content_block_stop", "index": 0}))
            + &event(&delta)
            + &event(&json!({"type": "message_stop"}))
    }

    pub(super) fn message_fails() -> String {
        event(&error("overloaded_error"))
    }
}

/// An error of this API.
pub(super) fn error(kind: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": "as requested"}})
}
