//! What a request holds next to what the model reads: options and labels. They are free while they are short, each by
//! itself and all together: a prompt could be cut into short ones otherwise.

use super::json::{Member, Value};
use super::prompt::{MAX_WALK, walk};
use super::text::TextSink;

/// A string in an option is free up to this; a longer one is a text.
const MAX_OPTION_BYTES: usize = 64;

/// Options of a request are free while they are together not longer than this; longer ones are texts.
const MAX_FREE_BYTES: usize = 1_024;

/// All labels of the messages of a request are free up to this; further ones are texts.
pub(super) const MAX_FREE_LABEL_BYTES: usize = 1_024;

/// The options of a request. They are free while they are together not longer than [`MAX_FREE_BYTES`].
pub(super) fn options(options: &[Member<'_>], sink: &mut TextSink) {
    let length: usize = options.iter().map(|it| it.name.len() + it.value.text.len()).sum();
    if length <= MAX_FREE_BYTES {
        for member in options {
            long_name(&member.name, sink);
            option(member.value, sink, 0);
        }
        return;
    }
    sink.uncertain();
    for member in options {
        sink.source(&member.name);
        walk(member.value, sink);
    }
}

/// A label of a message, a part or something in it, which the model does not read as long as it is short.
pub(super) fn label(value: Value<'_>, sink: &mut TextSink) {
    if sink.has_free_label(value.text.len()) {
        option(value, sink, 0);
    } else {
        sink.uncertain();
        walk(value, sink);
    }
}

/// The name of a member that says nothing.
pub(super) fn label_name(name: &str, sink: &mut TextSink) {
    if name.len() > MAX_OPTION_BYTES || !sink.has_free_label(name.len()) {
        sink.uncertain();
        sink.source(name);
    }
}

/// The name of a member that is known: only a long one counts.
fn long_name(name: &str, sink: &mut TextSink) {
    if name.len() > MAX_OPTION_BYTES {
        sink.uncertain();
        sink.source(name);
    }
}

/// An option: only long strings in it count.
fn option(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if value.text.len() <= MAX_OPTION_BYTES {
        return;
    }
    sink.uncertain();
    if value.is_string() {
        sink.text(value);
    } else if depth >= MAX_WALK {
        sink.source(value.text);
    } else {
        value.elements().for_each(|it| option(it, sink, depth + 1));
        for member in value.members() {
            long_name(&member.name, sink);
            option(member.value, sink, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::{Ask, Call};
    use super::super::text::Tariff;
    use super::*;

    fn estimate(call: Call, body: &str) -> u64 {
        let ask = Ask::read(call, body.as_bytes(), None).unwrap();
        let mut sink = TextSink::new(Tariff::default());
        ask.prompt(&mut sink);
        sink.total()
    }

    /// Members of 60 bytes, 6,000 bytes together. Values or names are texts.
    fn cut(is_name: bool) -> String {
        let member = |place: usize| {
            let label = format!("{place:03} {}", "word ".repeat(11));
            if is_name { format!(r#""{label}":1,"#) } else { format!(r#""a{place}":"{label}","#) }
        };
        let all: String = (0..100).map(member).collect();
        all.trim_end_matches(',').to_owned()
    }

    /// No server is known to read them, and templates can write out everything that a message holds.
    #[test]
    fn a_prompt_that_is_cut_into_labels_is_charged() {
        let message = |more: &str| {
            format!(r#"{{"model":"m","max_tokens":5,"messages":[{{"role":"user",{more}}}]}}"#)
        };
        let chat = |more: &str| estimate(Call::Chat, &message(more));
        let messages = |more: &str| {
            let more = format!(r#"{more},"messages":[{{"role":"user","content":"a"}}]"#);
            estimate(Call::Messages, &format!(r#"{{"model":"m","max_tokens":5,{more}}}"#))
        };
        for is_name in [false, true] {
            let cut = cut(is_name);
            let part = |more: &str| format!(r#""content":[{{"type":"text","text":"a",{more}}}]"#);
            let none = chat(&part(r#""annotations":[]"#));
            for name in ["annotations", "logprobs", "cache_control", "filename"] {
                let charged = chat(&part(&format!(r#""{name}":{{{cut}}}"#)));
                assert!(charged > none + 1_000, "{name}: {charged}");
            }
            let image = |more: &str| {
                let url = r#""url":"https://example.com/a.png""#;
                format!(r#""content":[{{"type":"image_url","image_url":{{{url}{more}}}}}]"#)
            };
            let charged = chat(&image(&format!(",{cut}")));
            assert!(charged > chat(&image("")) + 1_000, "an image: {charged}");
            let item = r#"{"type":"reasoning","encrypted_content":"#;
            let item = format!(r#"{{"model":"m","input":[{item}"a",{cut}}}]}}"#);
            let charged = estimate(Call::Responses, &item);
            assert!(charged > 1_000, "an earlier item: {charged}");
            let none = messages(r#""metadata":{}"#);
            for name in ["metadata", "stop_sequences", "diagnostics"] {
                let charged = messages(&format!(r#""{name}":{{{cut}}}"#));
                assert!(charged > none + 1_000, "messages, {name}: {charged}");
            }
        }
        let spread = format!(
            r#"{{"type":"text","text":"a","cache_control":{{"a":"{}"}}}}"#,
            "word ".repeat(12)
        );
        let charged = chat(&format!(r#""content":[{}{spread}]"#, format!("{spread},").repeat(99)));
        assert!(charged > 1_000, "spread over parts: {charged}");
        let nothing = messages(r#""metadata":null"#);
        let unknown = messages(&cut(true).replace(":1", ":null"));
        assert!(unknown > nothing + 1_000, "names without a value: {unknown}");
    }

    #[test]
    fn short_labels_are_free() {
        let item = |more: &str| {
            format!(
                r#"{{"model":"m","input":[{{"role":"assistant","content":[{{"type":"output_text","text":"abcd"{more}}}]}}]}}"#
            )
        };
        let none = estimate(Call::Responses, &item(""));
        let usual =
            r#","annotations":[],"logprobs":[],"id":"msg_68a1b2c3d4e5f60718293a4b5c6d7e8f""#;
        assert_eq!(estimate(Call::Responses, &item(usual)), none);
    }
}
