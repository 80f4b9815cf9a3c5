//! What a client asks a model for: the few things that limits and routes look at.

use std::borrow::Cow;

use super::json::{self, Value};
use super::prompt::prompts;

/// The longest name of a model, and of a user.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// Which call of the API it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Chat,
    Completions,
    Embeddings,
    Responses,
}

impl Call {
    /// The call that a normalised path means, whatever stands before it.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        // The longer ones first: one is the end of another.
        let calls = [
            ("/chat/completions", Self::Chat),
            ("/completions", Self::Completions),
            ("/embeddings", Self::Embeddings),
            ("/responses", Self::Responses),
        ];
        calls.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, call)| call)
    }

    /// Whether its stream tells what it used only where it is asked to.
    pub(crate) const fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// Why a body is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) message: String,
    /// The field that is wrong, if one is.
    pub(crate) param: Option<&'static str>,
}

fn wrong(param: &'static str, message: impl Into<String>) -> Wrong {
    Wrong { message: message.into(), param: Some(param) }
}

/// A request's body, as far as it matters here.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) call: Call,
    pub(super) whole: Value<'a>,
    pub(crate) model: Cow<'a, str>,
    model_value: Value<'a>,
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) is_stream: bool,
    /// Whether the client itself asks to be told what a stream used.
    pub(crate) wants_usage: bool,
    stream_options: Option<Value<'a>>,
    /// The most tokens of one answer, where the client says.
    pub(crate) max_output: Option<u64>,
    /// How many answers are made.
    pub(crate) answers: u64,
}

/// What is read by the model, and counted. A prompt that is there twice could be read in two ways too.
const READ: [&str; 9] = [
    "messages",
    "prompt",
    "input",
    "suffix",
    "instructions",
    "tools",
    "functions",
    "response_format",
    "text",
];

/// The fields that are looked at. One that is there twice could be read in two ways.
const FIELDS: [&str; 10] = [
    "model",
    "user",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    // llama.cpp goes by it before all others.
    "n_predict",
    "n",
    "best_of",
];

impl<'a> Ask<'a> {
    /// Reads a body. What it does not know it leaves to the upstream.
    pub(crate) fn read(call: Call, body: &'a [u8]) -> Result<Self, Wrong> {
        let not_json = |message: String| Wrong { message, param: None };
        let text = std::str::from_utf8(body)
            .map_err(|error| not_json(format!("the body is not UTF-8: {error}")))?;
        let whole = json::parse(text)
            .map_err(|error| not_json(format!("the body is not valid JSON: {error}")))?;
        if !whole.is_object() {
            return Err(not_json("the body must be a JSON object".to_owned()));
        }
        let mut found: [Option<Value<'a>>; FIELDS.len()] = [None; FIELDS.len()];
        let mut read = [false; READ.len()];
        for member in whole.members() {
            if let Some((name, place)) = place_of(&member.name, &FIELDS, &mut found)? {
                once(name, place.replace(member.value).is_some())?;
            } else if let Some((name, place)) = place_of(&member.name, &READ, &mut read)? {
                once(name, std::mem::replace(place, true))?;
            }
        }
        let [
            model,
            user,
            stream,
            stream_options,
            max_tokens,
            max_completion,
            max_output,
            n_predict,
            n,
            best_of,
        ] = found.map(|value| value.filter(|value| !value.is_null()));
        let model_value = model.ok_or_else(|| wrong("model", "you must provide a model"))?;
        let options = stream_options.filter(|value| value.is_object());
        let wants_usage = options.map(include_usage).transpose()?.flatten().unwrap_or(false);
        let max_output = match call {
            // Which of the two an upstream goes by is its own affair.
            Call::Chat => positive("max_completion_tokens", max_completion)?
                .max(positive("max_tokens", max_tokens)?),
            Call::Completions => positive("max_tokens", max_tokens)?,
            Call::Responses => positive("max_output_tokens", max_output)?,
            Call::Embeddings => None,
        };
        let max_output = max_output.max(positive("n_predict", n_predict)?);
        let is_stream = match stream.map(Value::boolean) {
            None => false,
            Some(Some(said)) => said,
            // Some would take it for one.
            Some(None) => return Err(wrong("stream", "\"stream\" must be true or false")),
        };
        let each = positive("n", n)?.unwrap_or(1).max(positive("best_of", best_of)?.unwrap_or(1));
        let prompts = if call == Call::Completions { prompts(whole) } else { 1 };
        Ok(Self {
            call,
            whole,
            model: name("model", Some(model_value))?.unwrap_or_default(),
            model_value,
            user: name("user", user)?,
            is_stream: is_stream && call != Call::Embeddings,
            wants_usage,
            stream_options,
            max_output,
            answers: each.saturating_mul(prompts),
        })
    }

    /// The body as it goes on, if it must be another: with the name that the upstream has for the model, and asking for
    /// what was used. Everything else stays byte for byte.
    pub(crate) fn rewritten(&self, model: Option<&str>, ask_usage: bool) -> Option<Vec<u8>> {
        let source = self.whole.text;
        let mut edits: Vec<(std::ops::Range<usize>, String)> = Vec::new();
        if let Some(model) = model.filter(|model| **model != *self.model) {
            let quoted = serde_json::to_string(model).unwrap_or_default();
            edits.push((self.model_value.span(), quoted));
        }
        if ask_usage && self.is_stream && self.call.has_stream_options() && !self.wants_usage {
            edits.push(self.usage_edit());
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

    /// Where it is asked what a stream used.
    fn usage_edit(&self) -> (std::ops::Range<usize>, String) {
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

/// The place of a field, if it is one of these. A name that some servers take for one of them is refused: whoever
/// reads it, and whoever does not, would see another request.
fn place_of<'p, T>(
    name: &str,
    names: &[&'static str],
    places: &'p mut [T],
) -> Result<Option<(&'static str, &'p mut T)>, Wrong> {
    let Some((known, place)) = names.iter().zip(places).find(|(known, _)| is_alike(known, name))
    else {
        return Ok(None);
    };
    if *known != name {
        let shown: String = name.chars().take(100).collect();
        return Err(wrong(
            known,
            format!("{shown:?} can be taken for {known:?}; write it as that"),
        ));
    }
    Ok(Some((known, place)))
}

/// Whether a server that does not tell small letters from capitals takes one for the other.
fn is_alike(known: &str, name: &str) -> bool {
    let folded = name.chars().map(|letter| match letter {
        // The Kelvin sign and the long s have small letters of the alphabet.
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        letter => letter.to_ascii_lowercase(),
    });
    known.chars().eq(folded)
}

fn once(name: &'static str, is_again: bool) -> Result<(), Wrong> {
    if is_again { Err(wrong(name, format!("{name:?} is given twice"))) } else { Ok(()) }
}

/// What the client itself says about being told what a stream used.
fn include_usage(options: Value<'_>) -> Result<Option<bool>, Wrong> {
    let mut found: [Option<Value<'_>>; 1] = [None];
    for member in options.members() {
        if let Some((name, place)) = place_of(&member.name, &["include_usage"], &mut found)? {
            once(name, place.replace(member.value).is_some())?;
        }
    }
    Ok(found.into_iter().flatten().next().and_then(Value::boolean))
}

fn positive(param: &'static str, value: Option<Value<'_>>) -> Result<Option<u64>, Wrong> {
    let Some(value) = value else { return Ok(None) };
    match value.whole() {
        Some(number @ 1..) => Ok(Some(number)),
        _ => Err(wrong(param, format!("{param:?} must be a whole number of at least 1"))),
    }
}

fn name<'a>(param: &'static str, value: Option<Value<'a>>) -> Result<Option<Cow<'a, str>>, Wrong> {
    let Some(value) = value else { return Ok(None) };
    match value.string() {
        Some(text) if !text.is_empty() && text.len() <= MAX_NAME_BYTES => Ok(Some(text)),
        // A user of no name is none.
        Some(text) if text.is_empty() && param == "user" => Ok(None),
        _ => Err(wrong(param, format!("{param:?} must be a text of 1 to {MAX_NAME_BYTES} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn paths_are_calls() {
        for (path, call) in [
            ("/v1/chat/completions", Some(Call::Chat)),
            ("/api/v1/completions/", Some(Call::Completions)),
            ("/v1/embeddings", Some(Call::Embeddings)),
            ("/v1/responses", Some(Call::Responses)),
            ("/v1/responses/7", None),
            ("/v1/models", None),
        ] {
            assert_eq!(Call::of_path(path), call, "{path}");
        }
    }

    #[test]
    fn answers_are_bounded_as_the_client_says() {
        for (call, body, most, answers) in [
            (Call::Chat, json!({"max_tokens": 5, "max_completion_tokens": 7}), Some(7), 1),
            (Call::Chat, json!({"max_tokens": 5, "n_predict": 900}), Some(900), 1),
            (Call::Completions, json!({"n_predict": 9}), Some(9), 1),
            (Call::Chat, json!({"max_tokens": 5.0, "n": 3}), Some(5), 3),
            (Call::Chat, json!({"max_tokens": null}), None, 1),
            (
                Call::Completions,
                json!({"max_tokens": 5, "prompt": ["a", "b"], "best_of": 2}),
                Some(5),
                4,
            ),
            (Call::Completions, json!({"max_tokens": 5, "prompt": [1, 2]}), Some(5), 1),
            (Call::Responses, json!({"max_output_tokens": 9, "max_tokens": 1}), Some(9), 1),
            (Call::Embeddings, json!({"max_tokens": 5}), None, 1),
        ] {
            let mut body = body;
            body["model"] = json!("m");
            let text = body.to_string();
            let ask = Ask::read(call, text.as_bytes()).unwrap();
            assert_eq!((ask.max_output, ask.answers), (most, answers), "{text}");
        }
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
            let wrong = Ask::read(Call::Chat, body.as_bytes()).unwrap_err();
            assert_eq!(wrong.param, param, "{body}: {wrong:?}");
        }
        assert!(Ask::read(Call::Chat, b"{\"model\":\"\xff\"}").is_err());
        let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(MAX_NAME_BYTES + 1));
        assert!(Ask::read(Call::Chat, long.as_bytes()).is_err());
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
            let ask = Ask::read(Call::Chat, before.as_bytes()).unwrap();
            let bytes = ask.rewritten(Some("A"), true).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), after);
        }
        for (call, body) in [
            (Call::Chat, r#"{"model":"a"}"#),
            (Call::Responses, r#"{"model":"a","stream":true}"#),
            (Call::Embeddings, r#"{"model":"a","stream":true}"#),
        ] {
            let ask = Ask::read(call, body.as_bytes()).unwrap();
            assert_eq!(ask.rewritten(Some("a"), true), None, "{body}");
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
            let ask = Ask::read(Call::Chat, text.as_bytes()).unwrap();
            let after: Json = serde_json::from_slice(&ask.rewritten(Some(&name), true).unwrap()).unwrap();
            body["model"] = json!(name);
            body["stream_options"]["include_usage"] = json!(true);
            prop_assert_eq!(after, body);
        }
    }
}
