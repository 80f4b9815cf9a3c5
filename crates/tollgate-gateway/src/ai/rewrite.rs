//! The body of a request as its upstream gets it: with the upstream's name for the model, the question what a stream used,
//! and no larger bound than a hard budget has reserved. Everything else stays byte for byte.

use super::ask::{Ask, Call, Wrong, wrong};
use super::json::Value;
use super::options::BoundField;

/// A text that takes the place of a part of the body.
type Edit = (std::ops::Range<usize>, String);

impl<'a> Ask<'a> {
    /// The body as it goes on, if it must be another: with the name that the upstream has for the model, and asking for
    /// what was used. Everything else stays byte for byte.
    pub(crate) fn rewritten(
        &self,
        model: Option<&str>,
        ask_usage: bool,
        bound: Option<(BoundField, u64)>,
    ) -> Option<Vec<u8>> {
        let source = self.whole.text;
        let mut edits: Vec<Edit> = Vec::new();
        let renamed = model.filter(|model| **model != *self.model).zip(self.model_value);
        if let Some((model, value)) = renamed {
            let quoted = serde_json::to_string(model).unwrap_or_default();
            edits.push((value.span(), quoted));
        }
        if ask_usage && self.is_stream && self.call.has_stream_options() && !self.wants_usage {
            edits.push(self.usage_edit());
        }
        if let Some((field, most)) = bound {
            self.bound_edits(field, most, &mut edits);
        }
        if edits.is_empty() {
            return None;
        }
        edits.sort_by_key(|(span, _)| span.start);
        let base = self.whole.at;
        let mut out = Vec::with_capacity(source.len() + 64);
        let mut from = 0;
        for (span, text) in edits {
            let (start, end) = (span.start.saturating_sub(base), span.end.saturating_sub(base));
            out.extend_from_slice(source.get(from..start)?.as_bytes());
            out.extend_from_slice(text.as_bytes());
            from = end;
        }
        out.extend_from_slice(source.get(from..)?.as_bytes());
        Some(out)
    }

    /// Where the upstream is asked for no more than so much: in each bound of this call, and in a new one where it has
    /// none.
    fn bound_edits(&self, field: BoundField, most: u64, edits: &mut Vec<Edit>) {
        let names: &[&str] = match self.call {
            Call::Chat => &["max_tokens", "max_completion_tokens"],
            Call::Completions | Call::Messages => &["max_tokens"],
            Call::Responses => &["max_output_tokens"],
            Call::Embeddings | Call::CountTokens => return,
        };
        let mut is_bounded = false;
        for value in names.iter().filter_map(|name| self.whole.get(name)) {
            let Some(stated) = value.whole() else { continue };
            is_bounded = true;
            if stated > most {
                edits.push((value.span(), most.to_string()));
            }
        }
        if is_bounded {
            return;
        }
        let name = match names {
            [only] => only,
            _ => field.name(),
        };
        // Null says nothing, and a second one could be read in two ways.
        if let Some(null) = self.whole.get(name) {
            edits.push((null.span(), most.to_string()));
        } else {
            let inside = self.whole.at + 1;
            let comma = if self.whole.members().next().is_some() { "," } else { "" };
            edits.push((inside..inside, format!("\"{name}\":{most}{comma}")));
        }
    }

    /// Refuses a request whose bounds the upstream may leave out: a hard budget relies on them.
    pub(crate) fn check_bounds(&self) -> Result<(), Wrong> {
        if self.drops_bounds && self.call.has_answer() {
            let message = "\"drop_params\" is not accepted where a hard budget applies: the bound of the answer must \
                           reach the model";
            return Err(wrong("drop_params", message));
        }
        Ok(())
    }

    /// Where it is asked what a stream used.
    fn usage_edit(&self) -> Edit {
        const ASKED: &str = r#""include_usage":true"#;
        let options = self.stream_options;
        match options.filter(|options| options.is_object()) {
            // Said, and false.
            Some(options) if let Some(said) = options.get("include_usage") => {
                (said.span(), "true".to_owned())
            }
            Some(options) => {
                let comma = if options.members().next().is_some() { "," } else { "" };
                let inside = options.at + 1;
                (inside..inside, format!("{ASKED}{comma}"))
            }
            None => {
                if let Some(null) = self.null_options() {
                    return (null.span(), format!("{{{ASKED}}}"));
                }
                let inside = self.whole.at + 1;
                (inside..inside, format!(r#""stream_options":{{{ASKED}}},"#))
            }
        }
    }

    /// `stream_options` where it is there and nothing.
    fn null_options(&self) -> Option<Value<'a>> {
        self.stream_options.or_else(|| self.whole.get("stream_options"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn an_upstream_is_bounded_by_what_was_reserved() {
        use BoundField::{MaxCompletionTokens, MaxTokens};
        for (call, field, before, after) in [
            (Call::Chat, MaxTokens, r#"{"model":"a"}"#, r#"{"max_tokens":9,"model":"a"}"#),
            (
                Call::Chat,
                MaxCompletionTokens,
                r#"{"model":"a","n_predict":4}"#,
                r#"{"max_completion_tokens":9,"model":"a","n_predict":4}"#,
            ),
            (
                Call::Chat,
                MaxTokens,
                r#"{"model":"a","max_tokens":null,"max_completion_tokens":80}"#,
                r#"{"model":"a","max_tokens":null,"max_completion_tokens":9}"#,
            ),
            (
                Call::Chat,
                MaxTokens,
                r#"{"model":"a","max_tokens":null}"#,
                r#"{"model":"a","max_tokens":9}"#,
            ),
            (
                Call::Responses,
                MaxTokens,
                r#"{"model":"a","max_tokens":4}"#,
                r#"{"max_output_tokens":9,"model":"a","max_tokens":4}"#,
            ),
            (
                Call::Messages,
                MaxTokens,
                r#"{"model":"a","max_tokens":10}"#,
                r#"{"model":"a","max_tokens":9}"#,
            ),
        ] {
            let ask = Ask::read(call, before.as_bytes(), None).unwrap();
            let bytes = ask.rewritten(None, false, Some((field, 9))).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), after);
        }
        for (call, body) in [
            (Call::Chat, r#"{"model":"a","max_tokens":9}"#),
            (Call::Messages, r#"{"model":"a","max_tokens":0}"#),
            (Call::Embeddings, r#"{"model":"a"}"#),
        ] {
            let ask = Ask::read(call, body.as_bytes(), None).unwrap();
            assert_eq!(ask.rewritten(None, false, Some((MaxTokens, 9))), None, "{body}");
        }
        let ask = Ask::read(Call::Chat, b"{}", Some("a")).unwrap();
        let bytes = ask.rewritten(None, false, Some((MaxTokens, 9))).unwrap();
        assert_eq!(bytes, br#"{"max_tokens":9}"#);
    }

    #[test]
    fn as_little_is_changed_as_can_be() {
        let stream =
            |options: &str| format!(r#"{{ "model" : "a",{options} "stream": true , "x": "y" }}"#);
        for (before, after) in [
            (
                stream(""),
                r#"{"stream_options":{"include_usage":true}, "model" : "A", "stream": true , "x": "y" }"#,
            ),
            (
                stream(r#""stream_options":null,"#),
                r#"{ "model" : "A","stream_options":{"include_usage":true}, "stream": true , "x": "y" }"#,
            ),
            (
                stream(r#""stream_options":{},"#),
                r#"{ "model" : "A","stream_options":{"include_usage":true}, "stream": true , "x": "y" }"#,
            ),
            (
                stream(r#""stream_options":{"a":1},"#),
                r#"{ "model" : "A","stream_options":{"include_usage":true,"a":1}, "stream": true , "x": "y" }"#,
            ),
            (
                stream(r#""stream_options":{"include_usage":false},"#),
                r#"{ "model" : "A","stream_options":{"include_usage":true}, "stream": true , "x": "y" }"#,
            ),
            (
                stream(r#""stream_options":{"include_usage":true},"#),
                r#"{ "model" : "A","stream_options":{"include_usage":true}, "stream": true , "x": "y" }"#,
            ),
        ] {
            let ask = Ask::read(Call::Chat, before.as_bytes(), None).unwrap();
            let bytes = ask.rewritten(Some("A"), true, None).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), after);
        }
        for (call, body) in [
            (Call::Chat, r#"{"model":"a"}"#),
            (Call::Responses, r#"{"model":"a","stream":true}"#),
            (Call::Embeddings, r#"{"model":"a","stream":true}"#),
        ] {
            let ask = Ask::read(call, body.as_bytes(), None).unwrap();
            assert_eq!(ask.rewritten(Some("a"), true, None), None, "{body}");
        }
    }

    proptest! {
        #[test]
        fn what_is_rewritten_says_the_same(
            extra in prop::collection::btree_map("[a-z]{1,6}_x", ".{0,8}", 0..5),
            options in prop::option::of(prop::collection::btree_map("[a-z]{1,4}", any::<i32>(), 0..3)),
            name in ".{1,10}",
            pretty in any::<bool>(),
        ) {
            let mut body = serde_json::to_value(&extra).unwrap();
            body["model"] = json!("a");
            body["stream"] = json!(true);
            if let Some(options) = &options {
                body["stream_options"] = json!(options);
            }
            let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
            let text = format!(" {text}\n");
            let ask = Ask::read(Call::Chat, text.as_bytes(), None).unwrap();
            let after: Json = serde_json::from_slice(&ask.rewritten(Some(&name), true, None).unwrap()).unwrap();
            body["model"] = json!(name);
            body["stream_options"]["include_usage"] = json!(true);
            prop_assert_eq!(after, body);
        }
    }
}
