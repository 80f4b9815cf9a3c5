//! Messages and their parts, as far as they are counted.

use super::certain::is_certainly_read;
use super::json::Value;
use super::labels::{label, label_name};
use super::media::{References, Stated, is_media, media, references, stored_files};
use super::prompt::{MAX_WALK, plain, walk};
use super::replayed::is_reference;
use super::text::TextSink;
use super::tools::has_server_tool;

/// The roles of the API.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Members of messages and parts that are texts, whatever they mention.
const TEXT_MEMBERS: [&str; 27] = [
    "acknowledged_safety_checks",
    "annotations",
    "arguments",
    "cache_control",
    "citations",
    "custom",
    "encrypted_content",
    "function",
    "function_call",
    "input_text",
    "metadata",
    "name",
    "phase",
    "prompt_string",
    "query",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "refusal",
    "signature",
    "stderr",
    "stdout",
    "summary",
    "text",
    "thinking",
    "thinking_blocks",
    "tool_calls",
];

/// Items of a response that say what was done before. Nothing in them is fetched again.
const EARLIER: [&str; 19] = [
    "apply_patch_call",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "function_call",
    "function_call_output",
    "local_shell_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "reasoning",
    "shell_call",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// Kinds of parts that bring nothing but what is in them.
const TEXTS: [&str; 25] = [
    "text",
    "input_text",
    "output_text",
    "refusal",
    "summary_text",
    "reasoning_text",
    "thinking",
    "redacted_thinking",
    "tool_result",
    "tool_use",
    "search_result",
    "web_search_result",
    "web_search_tool_result",
    // What an earlier answer of Anthropic's API brought, sent again.
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "web_fetch_result",
    "web_fetch_tool_result",
    "code_execution_result",
    "code_execution_tool_result",
    "bash_code_execution_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "compaction",
];

/// Members whose texts a model reads wherever it reads messages: their true length says something about texts.
const LEARNED: [&str; 7] =
    ["arguments", "function", "function_call", "name", "refusal", "tool_call_id", "tool_calls"];

/// What names of kinds contain that bring a document, even where no member looks like it.
const DOCUMENT_KINDS: [&str; 5] = ["document", "file", "pdf", "path", "video"];

/// Members of a part that the model does not read, as long as they are short.
const PART_OPTIONS: [&str; 11] = [
    "annotations",
    "cache_control",
    "detail",
    "filename",
    "format",
    "id",
    "index",
    "logprobs",
    "media_type",
    "status",
    "tool_use_id",
];

/// A conversation.
pub(super) fn messages(value: Value<'_>, sink: &mut TextSink) {
    conversation(value, sink, 0);
}

fn conversation(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if depth >= MAX_WALK {
        return content(value, sink, depth);
    }
    if !value.is_array() {
        sink.message();
        return content(value, sink, 0);
    }
    for (place, message) in value.elements().enumerate() {
        sink.message();
        if !is_certainly_read(message, place == 0) {
            sink.uncertain();
        }
        if message.is_array() {
            // A batch of conversations.
            conversation(message, sink, depth + 1);
        } else if message.is_object() {
            self::message(message, sink);
        } else {
            content(message, sink, 0);
        }
    }
}

fn message(message: Value<'_>, sink: &mut TextSink) {
    if is_reference(message) {
        sink.refer();
    }
    let is_earlier = is_earlier(message);
    let is_image = is_kind(message, |it| it == "image_generation_call");
    let mut found = References::default();
    for member in message.members() {
        match member.name.as_ref() {
            name if member.value.is_null() && is_earlier => label_name(name, sink),
            name if member.value.is_null() => unused_name(name, sink),
            "content" | "output" => content(member.value, sink, 0),
            "role" => role(member.value, sink),
            "type" if is_earlier => {}
            "type" | "id" | "status" => label(member.value, sink),
            "result" if is_image => {
                media("image_data", member.value, Stated::default(), sink);
            }
            name if is_earlier && !(name == "tools" && has_server_tool(member.value)) => {
                label_name(name, sink);
                walk(member.value, sink);
            }
            name if is_media(name) => media(name, member.value, Stated::default(), sink),
            name => {
                if !TEXT_MEMBERS.contains(&name) {
                    found.take(name, member.value, false, 0);
                }
                unknown(name, member.value, sink);
            }
        }
    }
    documents(found.files.saturating_add(u64::from(found.has_others)), sink);
}

/// Whether an object has a kind, and has no other.
pub(super) fn is_kind(value: Value<'_>, fits: impl Fn(&str) -> bool) -> bool {
    let mut kinds = value.members().filter(|it| it.name == "type").peekable();
    kinds.peek().is_some() && kinds.all(|it| it.value.string().is_some_and(|kind| fits(&kind)))
}

/// Whether an item says what was done before. Servers that do not know such items take what has a role or a content for
/// a message.
fn is_earlier(item: Value<'_>) -> bool {
    let is_message = |name: &str| matches!(name, "role" | "content");
    is_kind(item, |kind| EARLIER.contains(&kind)) && !item.members().any(|it| is_message(&it.name))
}

/// Templates write a role as it is. The usual ones are part of what a message costs.
fn role(value: Value<'_>, sink: &mut TextSink) {
    if !value.string().is_some_and(|role| ROLES.contains(&&*role)) {
        walk(value, sink);
    }
}

/// A text, or parts of which each is a text or something to look at or listen to.
pub(super) fn content(value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if depth >= MAX_WALK {
        documents(references("", value), sink);
        walk(value, sink);
    } else if value.is_object() {
        part(value, sink, depth);
    } else if value.is_array() {
        for (place, element) in value.elements().enumerate() {
            // Templates put parts on lines of their own.
            sink.tokens(u64::from(place > 0));
            if element.is_object() {
                part(element, sink, depth);
            } else {
                plain(element, sink, depth + 1);
            }
        }
    } else if value.is_string() {
        text(value, sink);
    } else if !value.is_null() {
        sink.source(value.text);
    }
}

/// What a person or a model wrote. It may name files that the upstream reads in its place.
pub(super) fn text(value: Value<'_>, sink: &mut TextSink) {
    documents(stored_files(value), sink);
    sink.text(value);
}

/// A member of which nothing is known but its name: a text, and what it refers to. True where it refers to something.
pub(super) fn other(name: &str, value: Value<'_>, sink: &mut TextSink) -> bool {
    let count = if TEXT_MEMBERS.contains(&name) { 0 } else { references(name, value) };
    documents(count, sink);
    unknown(name, value, sink);
    count > 0
}

/// The text of a member that an upstream may not read.
fn unknown(name: &str, value: Value<'_>, sink: &mut TextSink) {
    if !LEARNED.contains(&name) {
        sink.skip_learning();
        if !TEXT_MEMBERS.contains(&name) {
            sink.source(name);
        }
    }
    walk(value, sink);
}

/// The name of a member that holds nothing. Clients send those of the API in this way; others count, as templates may write
/// them.
fn unused_name(name: &str, sink: &mut TextSink) {
    const KNOWN: [&str; 7] = ["content", "role", "type", "input", "output", "source", "result"];
    let lists = [&TEXT_MEMBERS[..], &LEARNED, &PART_OPTIONS, &KNOWN];
    if !is_media(name) && !lists.iter().any(|it| it.contains(&name)) {
        sink.source(name);
    }
}

fn documents(count: u64, sink: &mut TextSink) {
    if count > 0 {
        sink.documents(count);
    }
}

fn part(part: Value<'_>, sink: &mut TextSink, depth: u32) {
    let (mut has_kind, mut is_text, mut has_text, mut has_media) = (false, true, false, false);
    let (mut is_document, mut has_source_text) = (false, false);
    let stated = Stated::of(part);
    let kind = Kind::of(part);
    let is_call = kind == Kind::Call;
    let is_search = kind == Kind::Search;
    let is_image = kind == Kind::InputImage && !sink.is_upper_bound();
    let source_name = if kind == Kind::Image { "image" } else { "file" };
    for member in part.members() {
        let value = member.value;
        match member.name.as_ref() {
            name if value.is_null() => unused_name(name, sink),
            "type" => {
                let kind = value.string().unwrap_or_default().to_ascii_lowercase();
                has_kind = true;
                is_text &= TEXTS.contains(&&*kind);
                is_document |= DOCUMENT_KINDS.iter().any(|it| kind.contains(it));
                if !TEXTS.contains(&&*kind) {
                    label(value, sink);
                }
            }
            "text" | "refusal" | "thinking" | "content" | "stdout" | "stderr" => {
                has_text = true;
                if value.is_string() { text(value, sink) } else { content(value, sink, depth + 1) }
            }
            "input" if is_call => walk(value, sink),
            "source" | "title" | "url" if is_search && value.is_string() => walk(value, sink),
            "source" => match source(source_name, value, stated, sink, depth) {
                Source::Text => has_source_text = true,
                Source::Media => has_media = true,
                Source::Unknown => has_media |= other("source", value, sink),
            },
            name if is_media(name) => {
                has_media = true;
                let name = if is_image && name == "file_id" { "image" } else { name };
                media(name, value, stated, sink);
            }
            name if PART_OPTIONS.contains(&name) => label(value, sink),
            name => has_media |= other(name, value, sink),
        }
    }
    // A part of another kind brings something, even where no member looks like it.
    let is_text = if has_kind { is_text } else { has_text };
    match (has_media || is_text || has_source_text, is_document) {
        (true, _) => {}
        (false, true) => sink.documents(1),
        (false, false) => sink.image(),
    }
}

/// Kinds of parts whose members are read in their own way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call,
    Search,
    InputImage,
    Image,
    Other,
}

impl Kind {
    /// What all statements of a part agree on. It is read once, as a part may hold much.
    fn of(part: Value<'_>) -> Self {
        let mut kinds =
            part.members().filter(|it| it.name == "type").map(|it| Self::named(it.value));
        let first = kinds.next().unwrap_or(Self::Other);
        if kinds.all(|it| it == first) { first } else { Self::Other }
    }

    fn named(value: Value<'_>) -> Self {
        match value.string().as_deref() {
            Some("tool_use") => Self::Call,
            Some("search_result" | "web_search_result" | "web_fetch_result") => Self::Search,
            Some("input_image") => Self::InputImage,
            Some("image") => Self::Image,
            _ => Self::Other,
        }
    }
}

/// What the `source` of a part is.
enum Source {
    Text,
    Media,
    Unknown,
}

/// Counts the `source` of a part, as Anthropic has it, where its kind is known.
fn source(name: &str, value: Value<'_>, stated: Stated, sink: &mut TextSink, depth: u32) -> Source {
    if is_kind(value, |it| matches!(it, "base64" | "url" | "file")) {
        media(name, value, stated, sink);
        return Source::Media;
    }
    if !is_kind(value, |it| matches!(it, "text" | "content")) || Stated::of(value).is_document() {
        return Source::Unknown;
    }
    for member in value.members() {
        match member.name.as_ref() {
            "type" | "media_type" => label(member.value, sink),
            "data" | "content" => content(member.value, sink, depth + 1),
            name => _ = other(name, member.value, sink),
        }
    }
    Source::Text
}
