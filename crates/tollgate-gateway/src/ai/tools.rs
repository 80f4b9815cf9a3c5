//! What the upstream adds to a request by itself: conversations that it keeps, and results of tools that it runs.

use super::ask::{Ask, Call, Wrong, wrong};
use super::fields::{CLIENT_TOOL, NO_OPTIONS, OPTIONS, READ, SEARCHES, STORED};
use super::json::{Member, Value};
use super::messages::is_reference;
use super::names::{is_plain, plain};
use super::text::Tariff;

/// Objects that are nested deeper are not searched: no server reads options there.
const MAX_DEPTH: u32 = 4;

impl Ask<'_> {
    /// The field by which this brings something that the upstream keeps or fetches, if it does.
    pub(super) fn stored_field(&self) -> Option<&'static str> {
        self.whole.members().find_map(|member| {
            let name = member.name.as_ref();
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
        input.is_some_and(|input| input.is_array() && input.elements().any(is_reference))
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

/// The field that a name stands for, or what it contains of `parts`, where its value asks for something.
fn stored(name: &str, value: Value<'_>, parts: &[&'static str]) -> Option<&'static str> {
    let is_nothing = value.is_null() || matches!(value.text, "false" | "0" | "\"\"");
    let is_empty = value.is_array() && value.elements().next().is_none();
    if is_nothing || is_empty {
        return None;
    }
    let folded = plain(name);
    let known = STORED.iter().find(|known| is_plain(known, &folded)).copied();
    known.or_else(|| parts.iter().find(|it| folded.contains(**it)).copied())
}

/// The same of a field that is not known, and of what is inside of it.
fn searched(member: &Member<'_>, depth: u32) -> Option<&'static str> {
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
fn has_server_tool(tools: Value<'_>) -> bool {
    if tools.is_array() {
        return tools.elements().any(|it| !runs_at_client(it));
    }
    !tools.is_null() && !runs_at_client(tools)
}

/// Whether a tool is nothing but a description of what the client runs.
fn runs_at_client(tool: Value<'_>) -> bool {
    let is_known = |member: Member<'_>| match member.name.as_ref() {
        "type" => member.value.string().is_some_and(|it| matches!(&*it, "function" | "custom")),
        name => member.value.is_null() || CLIENT_TOOL.contains(&name),
    };
    tool.is_object() && tool.members().all(is_known)
}
