//! What an answer used: as its upstream says, or counted.

use super::ask::Call;
use super::json::{self, Value};
use super::sse::Verdict;
use super::text::TextSink;

/// What a model used for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) total: u64,
    /// The answer's part of it.
    pub(crate) output: u64,
}

impl Usage {
    /// Out of a `usage` object, in either of its two spellings.
    pub(crate) fn read(value: Value<'_>) -> Option<Self> {
        if !value.is_object() {
            return None;
        }
        let [mut input, mut output, mut total] = [None; 3];
        for member in value.members() {
            let place = match member.name.as_ref() {
                "prompt_tokens" | "input_tokens" => &mut input,
                "completion_tokens" | "output_tokens" => &mut output,
                "total_tokens" => &mut total,
                _ => continue,
            };
            *place = member.value.whole().or(*place);
        }
        let sum = match (input, output) {
            (None, None) => None,
            (input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
        };
        let total = total.or(sum)?;
        let output = output.unwrap_or_else(|| total.saturating_sub(input.unwrap_or(total)));
        Some(Self { total, output })
    }
}

/// What the events of a stream say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Told {
    /// What was used, once it has been said.
    pub(crate) usage: Option<Usage>,
    /// Whether that was the last word about it: some upstreams say it with every piece.
    pub(crate) is_final: bool,
    /// Whether the stream has come to its proper end.
    pub(crate) is_done: bool,
}

/// Looks at one event of a stream: what it says was used, what it brings, and whether the client is to see it.
/// `hides` where the client did not ask to be told what was used, and we did.
pub(crate) fn event(
    call: Call,
    data: &str,
    hides: bool,
    told: &mut Told,
    sink: &mut TextSink,
) -> Verdict {
    if data == "[DONE]" {
        told.is_done = true;
        return Verdict::Pass;
    }
    let Ok(whole) = json::parse(data) else { return Verdict::Pass };
    if call == Call::Responses {
        response_event(whole, told, sink);
        return Verdict::Pass;
    }
    let (mut usage, mut has_choices) = (None, false);
    for member in whole.members() {
        match member.name.as_ref() {
            "usage" => usage = Some(member),
            "choices" => {
                for choice in member.value.elements() {
                    has_choices = true;
                    written(choice, sink);
                }
            }
            _ => {}
        }
    }
    let Some(usage) = usage else { return Verdict::Pass };
    if let Some(said) = Usage::read(usage.value) {
        told.usage = Some(said);
        told.is_final = !has_choices;
        return if hides && !has_choices { Verdict::Hide } else { Verdict::Pass };
    }
    if !hides || !usage.value.is_null() {
        return Verdict::Pass;
    }
    without(data, usage.at, usage.end()).map_or(Verdict::Pass, Verdict::Replace)
}

/// An event of the responses API.
fn response_event(whole: Value<'_>, told: &mut Told, sink: &mut TextSink) {
    let Some(kind) = whole.get("type").and_then(Value::string) else { return };
    if kind.ends_with(".delta") {
        if let Some(delta) = whole.get("delta") {
            sink.text(delta);
        }
    } else if matches!(
        kind.as_ref(),
        "response.completed" | "response.incomplete" | "response.failed"
    ) {
        told.is_done = true;
        let said = whole.get("response").and_then(|response| response.get("usage"));
        told.usage = said.and_then(Usage::read).or(told.usage);
    }
}

/// What a choice brings: text, and calls of tools.
fn written(choice: Value<'_>, sink: &mut TextSink) {
    for member in choice.members() {
        match member.name.as_ref() {
            "text" => sink.text(member.value),
            "delta" | "message" => {
                for part in member.value.members() {
                    match part.name.as_ref() {
                        "role" => {}
                        _ if part.value.is_string() => sink.text(part.value),
                        _ => called(part.value, sink),
                    }
                }
            }
            _ => {}
        }
    }
}

/// The names and arguments of calls.
fn called(value: Value<'_>, sink: &mut TextSink) {
    for element in value.elements() {
        called(element, sink);
    }
    for member in value.members() {
        match member.name.as_ref() {
            "name" | "arguments" => sink.text(member.value),
            _ => called(member.value, sink),
        }
    }
}

/// An object's text without one of its members, and without the comma that parted it from another.
fn without(text: &str, start: usize, end: usize) -> Option<String> {
    let (before, after) = (text.get(..start)?, text.get(end..)?);
    let rest = after.trim_start();
    if let Some(rest) = rest.strip_prefix(',') {
        return Some(format!("{before}{}", rest.trim_start()));
    }
    let before = before.trim_end();
    Some(format!("{}{rest}", before.strip_suffix(',').unwrap_or(before)))
}

#[cfg(test)]
mod tests {
    use super::super::text::Tariff;
    use super::*;

    fn look(call: Call, data: &str) -> (Verdict, Told, u64) {
        let tariff = Tariff { characters_per_token: 1, ..Tariff::default() };
        let (mut told, mut sink) = (Told::default(), TextSink::new(tariff));
        let verdict = event(call, data, true, &mut told, &mut sink);
        (verdict, told, sink.total())
    }

    #[test]
    fn usage_in_either_spelling() {
        let read = |text: &str| Usage::read(json::parse(text).unwrap());
        let usage = Some(Usage { total: 7, output: 4 });
        assert_eq!(read(r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#), usage);
        assert_eq!(read(r#"{"input_tokens":3,"output_tokens":4}"#), usage);
        assert_eq!(read(r#"{"prompt_tokens":3,"total_tokens":7,"x":{}}"#), usage);
        let embedding = Some(Usage { total: 8, output: 0 });
        assert_eq!(read(r#"{"prompt_tokens":8,"total_tokens":8}"#), embedding);
        for none in ["{}", "null", "[]", r#"{"prompt_tokens":"x"}"#] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn what_was_added_by_asking_is_taken_out_again() {
        let before = r#"{"id":"1","usage":null,"choices":[{"delta":{"content":"abc"}}]}"#;
        let after = r#"{"id":"1","choices":[{"delta":{"content":"abc"}}]}"#;
        let (verdict, told, count) = look(Call::Chat, before);
        assert_eq!(verdict, Verdict::Replace(after.to_owned()));
        assert_eq!((told, count), (Told::default(), 3));
        for (before, after) in [
            (r#"{"choices":[], "usage" : null }"#, r#"{"choices":[]}"#),
            (r#"{"usage":null}"#, "{}"),
            (r#"{ "usage":null , "a":1}"#, r#"{ "a":1}"#),
        ] {
            assert_eq!(look(Call::Chat, before).0, Verdict::Replace(after.to_owned()));
        }
        let last =
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
        let (verdict, told, _) = look(Call::Completions, last);
        assert_eq!(verdict, Verdict::Hide);
        assert_eq!(told.usage, Some(Usage { total: 3, output: 2 }));
    }

    #[test]
    fn what_the_upstream_says_unasked_stays() {
        // With the last words, as some servers do whether asked or not.
        let text =
            r#"{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        let (verdict, told, count) = look(Call::Completions, text);
        assert_eq!((verdict, count), (Verdict::Pass, 2));
        assert_eq!(told.usage.map(|usage| usage.total), Some(3));
        for text in ["[DONE]", "no JSON", "[]", r#"{"error":{"message":"x"}}"#] {
            assert_eq!(look(Call::Chat, text).0, Verdict::Pass, "{text}");
        }
        assert!(look(Call::Chat, "[DONE]").1.is_done);
    }

    #[test]
    fn everything_that_is_written_is_counted() {
        let text = r#"{"choices":[{"delta":{"role":"assistant","content":"ab","reasoning_content":"cde",
            "tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]}},
            {"delta":{"content":null,"refusal":"no"}}]}"#;
        assert_eq!(look(Call::Chat, text).2, 2 + 3 + 1 + 2 + 2);
    }

    #[test]
    fn responses_tell_at_their_end() {
        let delta = r#"{"type":"response.output_text.delta","delta":"abcd"}"#;
        assert_eq!(look(Call::Responses, delta).2, 4);
        let end = r#"{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":2,"output_tokens":3,"total_tokens":5}}}"#;
        let (verdict, told, _) = look(Call::Responses, end);
        assert_eq!(verdict, Verdict::Pass);
        assert!(told.is_done);
        assert_eq!(told.usage, Some(Usage { total: 5, output: 3 }));
    }
}
