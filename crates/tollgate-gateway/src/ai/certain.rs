//! Prompts that every upstream reads whole, so that their true length says something about their estimate.
//!
//! A client must not teach the gateway low estimates by texts that an upstream leaves out: names, earlier thinking, tools
//! that a template does not know, fields that are there twice.

use super::json::Value;

/// Whether every server reads all of a message that is the first or a later one.
pub(super) fn is_certainly_read(message: Value<'_>, is_first: bool) -> bool {
    let is_role = |role: &str| role == "user" || is_first && role == "system";
    has_only(message, |name, value| match name {
        "role" => value.string().is_some_and(|role| is_role(&role)),
        "content" => is_plain_content(value),
        "type" => value.string().is_some_and(|kind| kind == "message"),
        _ => false,
    })
}

/// Whether a content is one text, or parts that are texts and nothing else.
pub(super) fn is_plain_content(value: Value<'_>) -> bool {
    let is_part = |part: Value<'_>| {
        has_only(part, |name, value| match name {
            "type" => value.string().is_some_and(|it| matches!(&*it, "text" | "input_text")),
            "text" => value.is_string(),
            _ => false,
        })
    };
    value.is_string() || value.is_array() && value.elements().all(is_part)
}

/// Whether a value is an object, all of its members fit, and none is there twice.
fn has_only(value: Value<'_>, fits: impl Fn(&str, Value<'_>) -> bool) -> bool {
    // No object that fits has more members.
    const MAX_MEMBERS: usize = 3;
    let mut names = Vec::with_capacity(MAX_MEMBERS);
    value.is_object()
        && value.members().all(|member| {
            let is_new = names.len() < MAX_MEMBERS && !names.contains(&member.name);
            let fits = is_new && fits(&member.name, member.value);
            names.push(member.name);
            fits
        })
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[test]
    fn only_plain_texts_of_users_are_certainly_read() {
        for (message, is_first, is_read) in [
            (r#"{"role":"user","content":"a"}"#, false, true),
            (r#"{"role":"user","content":[{"type":"text","text":"a"}]}"#, false, true),
            (r#"{"type":"message","role":"user","content":"a"}"#, false, true),
            (r#"{"role":"system","content":"a"}"#, true, true),
            // Templates leave these out, or parts of them.
            (r#"{"role":"system","content":"a"}"#, false, false),
            (r#"{"role":"assistant","content":"<think>a</think>"}"#, false, false),
            (r#"{"role":"tool","content":"a"}"#, false, false),
            (r#"{"role":"user","name":"a","content":"a"}"#, false, false),
            (r#"{"role":"user","content":"a","content":"b"}"#, false, false),
            (r#"{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}"#, false, false),
            (r#"{"role":"user","content":[{"type":"thinking","text":"a"}]}"#, false, false),
            (r#"{"role":"user","content":{"type":"text","text":"a"}}"#, false, false),
            (r#""a""#, false, false),
        ] {
            assert_eq!(is_certainly_read(parse(message).unwrap(), is_first), is_read, "{message}");
        }
    }
}
