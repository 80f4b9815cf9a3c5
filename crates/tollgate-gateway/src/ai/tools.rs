//! What the upstream adds to a request by itself: conversations that it keeps, and results of tools that it runs.

use super::ask::{Ask, Call, Wrong, wrong};
use super::fields::{
    CLIENT_KIND_STARTS, CLIENT_KINDS, CLIENT_TOOL, NO_OPTIONS, NO_SEARCHES, OPTIONS, READ,
    SEARCHES, SERVER_TOOLS, STORED,
};
use super::json::{Member, Value};
use super::messages::is_kind;
use super::names::{is_plain, plain};
use super::replayed::has_reference;
use super::text::Tariff;

/// Objects that are nested deeper are not searched: no server reads options there.
const MAX_DEPTH: u32 = 4;

impl Ask<'_> {
    /// The field by which this brings something that the upstream keeps or fetches, if it does.
    pub(super) fn stored_field(&self) -> Option<&'static str> {
        if self.call != Call::Embeddings && is_searching(&self.model) {
            return Some("model");
        }
        self.whole.members().find_map(|member| {
            let name = member.name.as_ref();
            if self.call.protocol().defines(name) {
                return self.call.protocol().brings(&member);
            }
            match name {
                "tools" | "functions" => has_server_tool(member.value).then_some("tools"),
                _ if NO_OPTIONS.contains(&name) => None,
                _ if READ.contains(&name) || OPTIONS.contains(&name) => {
                    stored(name, member.value, &[])
                }
                _ => searched(&member, 0),
            }
        })
    }

    /// Whether the input refers to an item that the upstream keeps.
    fn has_reference(&self) -> bool {
        let input = self.whole.get("input").filter(|_| self.call == Call::Responses);
        input.is_some_and(has_reference)
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

/// Whether a model searches by itself, by its name: `:online` of `OpenRouter`, models of `OpenAI`.
fn is_searching(model: &str) -> bool {
    const PARTS: [&str; 4] = [":online", "-search-preview", "-search-api", "deep-research"];
    let model = model.to_ascii_lowercase();
    PARTS.iter().any(|it| model.contains(it)) || model.ends_with("-search")
}

/// The field that a name stands for, or what it contains of `parts`, where its value asks for something.
fn stored(name: &str, value: Value<'_>, parts: &[&'static str]) -> Option<&'static str> {
    let is_nothing = value.is_null() || matches!(value.text, "false" | "0" | "\"\"");
    let is_empty = value.is_array() && value.elements().next().is_none();
    if is_nothing || is_empty {
        return None;
    }
    let folded = plain(name);
    let known = STORED.iter().find(|known| is_plain(known, &folded)).copied();
    if parts.is_empty() {
        return known;
    }
    let words = folded.replace("deepresearch", "search");
    let words = NO_SEARCHES.iter().fold(words, |name, it| name.replace(it, " "));
    known.or_else(|| parts.iter().find(|it| words.contains(**it)).copied())
}

/// Whether a field says that nothing is to be searched: `disable_search: true`, `search_parameters: {"mode": "off"}`.
/// Names of the same switch that contradict each other leave it on.
fn is_off(name: &str, value: Value<'_>) -> bool {
    let folded = plain(name);
    if !folded.contains("search") || folded == "websearchoptions" {
        return false;
    }
    let is_no = |value: Value<'_>| {
        let says_no = |it: &str| matches!(it, "off" | "none" | "disabled" | "false");
        value.text == "false" || value.string().is_some_and(|it| says_no(&it.to_ascii_lowercase()))
    };
    if folded.starts_with("disable") && value.text == "true" {
        return true;
    }
    let is_switch = |it: &Member<'_>| match &*plain(&it.name) {
        "mode" => folded == "searchparameters",
        name => folded != "searchparameters" && matches!(name, "enable" | "enabled"),
    };
    let mut switches = value.members().filter(is_switch).peekable();
    is_no(value) || switches.peek().is_some() && switches.all(|it| is_no(it.value))
}

/// The same of a field that is not known, and of what is inside of it.
fn searched(member: &Member<'_>, depth: u32) -> Option<&'static str> {
    if is_off(&member.name, member.value) {
        return None;
    }
    let found = stored(&member.name, member.value, &SEARCHES);
    if found.is_some() || depth >= MAX_DEPTH {
        return found;
    }
    if matches!(&*plain(&member.name), "tools" | "functions") && has_server_tool(member.value) {
        return Some("tools");
    }
    let mut objects = member.value.elements();
    let inside = |value: Value<'_>| value.members().find_map(|it| searched(&it, depth + 1));
    inside(member.value).or_else(|| objects.find_map(inside))
}

/// Whether a tool is one that the upstream runs, and whose results the model reads: a search, for example.
pub(super) fn has_server_tool(tools: Value<'_>) -> bool {
    has_server_tool_at(tools, 0)
}

/// Each level of tools inside of tools is read again: those below [`MAX_DEPTH`] levels are not read, and count.
fn has_server_tool_at(tools: Value<'_>, depth: u32) -> bool {
    if depth >= MAX_DEPTH {
        return !tools.is_null();
    }
    if tools.is_array() {
        return tools.elements().any(|it| !runs_at_client(it, depth));
    }
    !tools.is_null() && !runs_at_client(tools, depth)
}

/// Whether a tool is a description of what the client runs. What else it says does not matter, unless that is the name of
/// something that the upstream runs.
fn runs_at_client(tool: Value<'_>, depth: u32) -> bool {
    let is_kind_of_client = |kind: &str| {
        CLIENT_KINDS.contains(&kind) || CLIENT_KIND_STARTS.iter().any(|it| kind.starts_with(it))
    };
    let says_what = |it: Member<'_>| matches!(&*it.name, "type" | "function" | "custom" | "name");
    let is_described = tool.members().any(says_what);
    let is_known = |member: Member<'_>| match member.name.as_ref() {
        "type" => member.value.string().is_some_and(|it| is_kind_of_client(&it)),
        // A shell in a container is one of the upstream.
        "environment" if member.value.is_object() => is_kind(member.value, |it| it == "local"),
        "tools" => !has_server_tool_at(member.value, depth + 1),
        name if member.value.is_null() || CLIENT_TOOL.contains(&name) => true,
        name => {
            let name = plain(name);
            is_described && !name.is_empty() && !SERVER_TOOLS.iter().any(|it| name.contains(it))
        }
    };
    tool.is_object() && tool.members().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without tokens for what the upstream adds, requests that make it add something are refused, and no others.
    #[test]
    fn only_what_brings_something_along_is_refused_without_history() {
        let check = |more: &str| {
            let body = format!(r#"{{"model":"m","messages":[],{more}}}"#);
            let ask = Ask::read(Call::Chat, body.as_bytes(), None).unwrap();
            ask.check_history(&Tariff { history_tokens: 0, ..Tariff::default() }).is_ok()
        };
        for more in [
            r#""disable_search":true"#,
            r#""enable_search":false,"web_search":{"enable":false},"search":"off""#,
            r#""search_parameters":{"mode":"off","search_domains":["a"]}"#,
            r#""search_parameters":null,"research":true,"x":{"use_beam_search":true}"#,
            r#""tools":[{"type":"function","function":{"name":"f"},"annotations":{}},{"type":"shell"}]"#,
            r#""tools":[{"type":"tool_search"},{"type":"namespace","tools":[{"type":"function","name":"f"}]}]"#,
            r#""tools":[{"type":"bash_20250124","name":"bash"}],"deep_research":false"#,
            r#""guided_choice":["https://example.com/a"],"client_metadata":{"web_search":true}"#,
        ] {
            assert!(check(more), "{more}");
        }
        for more in [
            r#""disable_search":{}"#,
            r#""websearch":true"#,
            r#""deep_research":true"#,
            r#""container":{"skills":[]}"#,
            r#""tools":[{"type":"namespace","tools":[{"type":"mcp"}]}]"#,
            r#""search_parameters":{"mode":"off","mode":"on"}"#,
            r#""search_parameters":{"enabled":false}"#,
            r#""web_search":{"enable":false,"Enable":true}"#,
            r#""web_search_options":{"enabled":false}"#,
            r#""conversation_id":"off""#,
            r#""tools":[{"type":"function","function":{"name":"f"},"mcp_server":"a"}]"#,
            r#""tools":[{"type":"web_search_20250305","name":"web_search"}]"#,
        ] {
            assert!(!check(more), "{more}");
        }
        let nested = |levels: usize| {
            let (open, close) = (r#"[{"type":"namespace","name":"n","tools":"#, "}]");
            let inner = r#"[{"type":"function","name":"f"}]"#;
            format!(r#""tools":{}{inner}{}"#, open.repeat(levels), close.repeat(levels))
        };
        assert!(check(&nested(MAX_DEPTH as usize - 1)));
        assert!(!check(&nested(MAX_DEPTH as usize)), "what is not read counts");
    }
}
