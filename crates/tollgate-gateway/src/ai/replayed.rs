//! Items of an input that bring what the upstream keeps under their id.

use super::json::Value;

/// Values that are nested deeper hold something.
const MAX_DEPTH: u32 = 4;

/// Kinds of items that stand for more than they show, and the members that hold it where the client keeps it itself.
const KEPT: [(&str, &[&str]); 9] = [
    ("reasoning", &["encrypted_content", "content"]),
    ("compaction", &["encrypted_content"]),
    ("file_search_call", &["results"]),
    ("web_search_call", &["results"]),
    ("code_interpreter_call", &["outputs"]),
    ("image_generation_call", &["result"]),
    ("mcp_call", &["output", "error"]),
    ("mcp_list_tools", &["tools"]),
    ("tool_search_output", &["tools"]),
];

/// Whether an input refers to an item that the upstream keeps.
pub(super) fn has_reference(input: Value<'_>) -> bool {
    has_reference_at(input, 0)
}

fn has_reference_at(input: Value<'_>, depth: u32) -> bool {
    let refers = |it: Value<'_>| {
        if it.is_array() { has_reference_at(it, depth + 1) } else { is_reference(it) }
    };
    depth >= MAX_DEPTH || input.elements().any(refers)
}

/// Whether an item of an input refers to one that the upstream keeps, and does not hold it itself.
pub(super) fn is_reference(item: Value<'_>) -> bool {
    // Read once: an item may hold much.
    let types = item.members().filter(|it| it.name == "type");
    let kinds: Vec<_> = types.filter_map(|it| it.value.string()).collect();
    let is_kind = |kind: &str| kinds.iter().any(|it| it == kind);
    if is_kind("item_reference") {
        return true;
    }
    if item.members().all(|it| it.name != "id" || is_empty(it.value, 0)) {
        return false;
    }
    let has = |names: &[&str]| {
        item.members().any(|it| names.contains(&it.name.as_ref()) && !is_empty(it.value, 0))
    };
    let kept = KEPT.iter().find(|(kind, _)| is_kind(kind));
    if let Some((_, members)) = kept {
        return !has(members);
    }
    let says_nothing = |name: &str| matches!(name, "id" | "type" | "status" | "role");
    item.members().all(|it| says_nothing(&it.name) || is_empty(it.value, 0))
}

/// Whether a value holds nothing but kinds of nothing.
fn is_empty(value: Value<'_>, depth: u32) -> bool {
    if depth >= MAX_DEPTH {
        return false;
    }
    if value.is_array() {
        return value.elements().all(|it| is_empty(it, depth + 1));
    }
    if value.is_object() {
        return value.members().all(|it| it.name == "type" || is_empty(it.value, depth + 1));
    }
    value.is_null() || value.string().is_some_and(|it| it.trim().is_empty())
}
