//! What a request for a message must state, and what it makes the upstream bring along.

use std::borrow::Cow;

use super::super::ask::{Call, Wrong, name, once, place_of, wrong};
use super::super::fields::CLIENT_TOOL;
use super::super::json::{Member, Value};
use super::super::messages::is_kind;
use super::super::names::is_alike;
use super::super::tools::has_server_tool;

/// Fields that decide what the model reads or writes. One that is there twice could be read in two ways.
pub(crate) const ONCE: [&str; 14] = [
    "system",
    "thinking",
    "tool_choice",
    "container",
    "thread",
    "mcp_servers",
    "context_management",
    "compaction",
    "output_config",
    "output_format",
    "metadata",
    "stop_sequences",
    "speed",
    "service_tier",
];

/// Kinds of tools that the client runs, without the date of their version, and what describes those and no others.
const CLIENT_KINDS: [&str; 6] =
    ["bash_", "text_editor_", "computer_", "memory_", "browser_toolset_", "computer_toolset_"];
const CLIENT_MEMBERS: [&str; 7] = [
    "type",
    "display_width_px",
    "display_height_px",
    "display_number",
    "enable_zoom",
    "max_characters",
    "configs",
];

/// Fields that may make the upstream bring something along: see [`brings`].
pub(crate) const BRINGING: [&str; 7] =
    ["tools", "messages", "system", "container", "compaction", "thread", "context_management"];

/// Edits of a conversation that take something out of it, and make no model work.
const CLEARING: [&str; 2] = ["clear_tool_uses_20250919", "clear_thinking_20251015"];

/// The bound of an answer: none that is written populates a cache, and is allowed.
pub(crate) fn bound(call: Call, value: Option<Value<'_>>) -> Result<Option<u64>, Wrong> {
    let message = "\"max_tokens\" is required, as a whole number";
    match value.map(Value::whole) {
        None if call == Call::Messages => Err(wrong("max_tokens", message)),
        None => Ok(None),
        Some(None) => Err(wrong("max_tokens", message)),
        Some(bound) => Ok(bound),
    }
}

/// Refuses what could be read in two ways, and tools that are models themselves.
pub(crate) fn check(whole: Value<'_>) -> Result<(), Wrong> {
    let mut found = [false; ONCE.len()];
    for member in whole.members() {
        if let Some((name, place)) = place_of(&member.name, &ONCE, &mut found)? {
            once(name, std::mem::replace(place, true))?;
        }
        if tools_of(&member).any(names_model) {
            let message = "a tool that names a model is not accepted: \"model\" alone decides";
            return Err(wrong("tools", message));
        }
    }
    Ok(())
}

/// The user that the client says it acts for.
pub(crate) fn end_user(whole: Value<'_>) -> Result<Option<Cow<'_, str>>, Wrong> {
    let metadata = whole.get("metadata");
    let ids = metadata.into_iter().flat_map(Value::members);
    let mut ids = ids.filter(|it| is_alike("user_id", &it.name) && !it.value.is_null());
    let id = ids.next();
    if ids.next().is_some() {
        return Err(wrong("metadata", "\"user_id\" is given twice"));
    }
    let text = name("user", id.map(|it| it.value));
    text.map_err(|_| wrong("metadata", "\"user_id\" must be a text of at most 256 bytes"))
}

/// The tools that a field defines: those of `tools`, and those that a conversation adds.
fn tools_of<'a>(member: &Member<'a>) -> impl Iterator<Item = Value<'a>> {
    let (value, name) = (member.value, member.name.as_ref());
    let tools = each(value).filter(move |_| is_alike("tools", name));
    let parts = if name == "system" { Some(value) } else { None };
    let messages = each(value).filter(move |_| name == "messages");
    let contents = messages.flat_map(|it| members(it, "content")).chain(parts);
    let added = contents.flat_map(each).flat_map(|part| members(part, "tool"));
    let defined = added.flat_map(|tool| members(tool, "definition"));
    // What a conversation adds of a remote server is no definition of its own.
    tools.chain(defined).collect::<Vec<_>>().into_iter()
}

/// The elements of an array, or the one object in its place.
fn each(value: Value<'_>) -> impl Iterator<Item = Value<'_>> {
    value.elements().chain(value.is_object().then_some(value))
}

fn members<'a>(value: Value<'a>, name: &'static str) -> impl Iterator<Item = Value<'a>> {
    value.members().filter(move |it| it.name == name).map(|it| it.value)
}

fn names_model(tool: Value<'_>) -> bool {
    tool.members().any(|it| is_alike("model", &it.name) && !it.value.is_null())
}

/// The field by which one of [`BRINGING`] makes the upstream bring something along that is not in the request, if it does.
pub(crate) fn brings(member: &Member<'_>) -> Option<&'static str> {
    let value = member.value;
    match member.name.as_ref() {
        "tools" | "messages" | "system" => {
            let is_remote = tools_of(member).any(|it| !runs_at_client(it));
            is_remote.then_some("tools")
        }
        "container" => (!value.is_null()).then_some("container"),
        "compaction" => (!value.is_null()).then_some("compaction"),
        "thread" => {
            let is_new = value.is_null() || is_kind(value, |it| it == "create");
            (!is_new).then_some("thread")
        }
        "context_management" => {
            let clears = |edit: Value<'_>| is_kind(edit, |it| CLEARING.contains(&it));
            let is_known = |it: Member<'_>| {
                it.value.is_null() || it.name == "edits" && it.value.elements().all(clears)
            };
            let only_clears = value.is_null() || value.is_object() && value.members().all(is_known);
            (!only_clears).then_some("context_management")
        }
        _ => None,
    }
}

/// Whether a tool is one that the client runs.
fn runs_at_client(tool: Value<'_>) -> bool {
    let is_version = |rest: &str| !rest.is_empty() && rest.bytes().all(|it| it.is_ascii_digit());
    let is_known = |kind: &str| {
        CLIENT_KINDS.iter().any(|start| kind.strip_prefix(start).is_some_and(is_version))
    };
    if !is_kind(tool, is_known) {
        return !has_server_tool(tool);
    }
    tool.members().all(|it| {
        let name = it.name.as_ref();
        it.value.is_null() || CLIENT_TOOL.contains(&name) || CLIENT_MEMBERS.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::ask::Ask;
    use super::super::super::text::Tariff;
    use super::*;

    fn read(call: Call, more: &str) -> Result<Ask<'_>, Wrong> {
        Ask::read(call, more.as_bytes(), None)
    }

    #[test]
    fn an_answer_has_a_bound() {
        for (body, bound) in [
            (r#"{"model":"m","max_tokens":9}"#, 9),
            // It populates a cache. Other servers of this API write as much as they like.
            (r#"{"model":"m","max_tokens":0}"#, 1_000),
            // Within the bound, and beyond it, as it is with interleaved thinking.
            (r#"{"model":"m","max_tokens":9,"thinking":{"budget_tokens":5}}"#, 9),
            (r#"{"model":"m","max_tokens":9,"thinking":{"budget_tokens":20}}"#, 29),
            (r#"{"model":"m","max_tokens":9,"max_completion_tokens":30}"#, 30),
        ] {
            let ask = read(Call::Messages, body).unwrap();
            assert_eq!(ask.longest_answer(|| 1_000), bound, "{body}");
        }
        for body in [
            r#"{"model":"m"}"#,
            r#"{"model":"m","max_tokens":null}"#,
            r#"{"model":"m","max_tokens":-1}"#,
            r#"{"model":"m","max_tokens":1.5}"#,
            r#"{"model":"m","max_tokens":"9"}"#,
            r#"{"model":"m","max_tokens":9,"Max_Tokens":1}"#,
        ] {
            assert_eq!(read(Call::Messages, body).unwrap_err().param, Some("max_tokens"), "{body}");
        }
        assert!(read(Call::CountTokens, r#"{"model":"m"}"#).is_ok());
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (more, param) in [
            (r#""system":"a","system":"b""#, "system"),
            (r#""System":"a""#, "system"),
            (r#""thread":null,"thread":{"type":"continue"}"#, "thread"),
            (r#""fallbacks":[{"model":"large"}]"#, "fallbacks"),
            (r#""fallbacks":"default""#, "fallbacks"),
            (r#""tools":[{"type":"advisor_20260301","name":"advisor","model":"large"}]"#, "tools"),
            (
                r#""messages":[{"role":"user","content":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"advisor_20260301","model":"large"}}}]}]"#,
                "tools",
            ),
            (r#""metadata":{"user_id":"a","User_Id":"b"}"#, "metadata"),
            (r#""metadata":{"user_id":7}"#, "metadata"),
        ] {
            let body = format!(r#"{{"model":"m","max_tokens":1,{more}}}"#);
            assert_eq!(read(Call::Messages, &body).unwrap_err().param, Some(param), "{body}");
        }
        let body = r#"{"model":"m","max_tokens":1,"metadata":{"user_id":"ann"},"tools":[{"name":"f","input_schema":{"properties":{"model":{}}}}]}"#;
        assert_eq!(read(Call::Messages, body).unwrap().user.as_deref(), Some("ann"));
    }

    #[test]
    fn what_the_upstream_brings_along_is_known() {
        let stored = |more: &str| {
            let body = format!(r#"{{"model":"m","max_tokens":1,{more}}}"#);
            let ask = read(Call::Messages, &body).unwrap();
            ask.check_history(&Tariff { history_tokens: 0, ..Tariff::default() }).is_err()
        };
        for more in [
            r#""tools":[{"name":"f","description":"d","input_schema":{}},{"type":"custom","name":"g"}]"#,
            r#""tools":[{"type":"bash_20250124","name":"bash"},{"type":"text_editor_20250728","name":"e","max_characters":9}]"#,
            r#""tools":[{"type":"computer_20250124","name":"c","display_width_px":1},{"type":"memory_20250818","name":"m"}]"#,
            r#""tools":[],"mcp_servers":[],"container":null,"thread":null"#,
            r#""thread":{"type":"create"}"#,
            r#""context_management":{"edits":[{"type":"clear_tool_uses_20250919","keep":{"value":3}}]}"#,
            r#""cache_control":{"type":"ephemeral"},"thinking":{"type":"adaptive"},"speed":"fast""#,
        ] {
            assert!(!stored(more), "{more}");
        }
        for more in [
            r#""tools":[{"type":"web_search_20250305","name":"web_search","max_uses":5}]"#,
            r#""tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]"#,
            r#""tools":{"type":"web_fetch_20250910","name":"web_fetch"}"#,
            r#""tools":[{"type":"code_execution_20250825","name":"code_execution"}]"#,
            r#""tools":[{"type":"bash_code_execution_20250825","name":"bash"}]"#,
            r#""tools":[{"type":"bash_20250124","name":"bash","mcp_server_name":"a"}]"#,
            r#""tools":[{"type":"mcp_toolset","mcp_server_name":"a"}]"#,
            r#""mcp_servers":[{"type":"url","url":"https://example.com","name":"a"}]"#,
            r#""container":"container_1""#,
            r#""container":{"skills":[{"type":"anthropic","skill_id":"pptx"}]}"#,
            r#""thread":{"type":"continue","previous_message_id":"msg_1"}"#,
            r#""compaction":{"type":"summarize"}"#,
            r#""context_management":{"edits":[{"type":"compact_20260112"}]}"#,
            r#""messages":[{"role":"user","content":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"web_search_20260318","name":"web_search"}}}]}]"#,
        ] {
            assert!(stored(more), "{more}");
        }
    }
}
