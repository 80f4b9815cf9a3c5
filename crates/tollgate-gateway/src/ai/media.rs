//! Images, recordings, videos and files of a prompt.
//!
//! What is inside of the request is estimated by its length, where that says something. What the upstream fetches, and
//! what may be compressed, has a configured bound.

use super::json::Value;
use super::text::TextSink;

/// Members that bring something to look at or to listen to, or a file, whatever kind a part says it is.
const MEDIA: [&str; 25] = [
    "image",
    "images",
    "image_url",
    "image_urls",
    "image_data",
    "image_embeds",
    "image_file",
    "input_image",
    "audio",
    "audio_url",
    "audio_data",
    "audio_embeds",
    "input_audio",
    "video",
    "video_url",
    "video_data",
    "video_embeds",
    "input_video",
    "file",
    "files",
    "input_file",
    "file_data",
    "file_id",
    "file_url",
    "multimodal_data",
];

/// Objects that are nested deeper are not searched for addresses.
const MAX_DEPTH: u32 = 8;

/// Members of an object that hold its data, and those that refer to what the upstream fetches.
const DATA: [&str; 4] = ["file_data", "data", "b64_json", "bytes"];
const REFERENCES: [&str; 7] = ["file_id", "file_url", "file_uri", "fileUri", "url", "uri", "id"];

/// The ends of addresses that are images.
const IMAGE_NAMES: [&str; 9] =
    [".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".svg"];

/// The ends of addresses and names of documents, recordings and videos.
const DOCUMENT_NAMES: [&str; 28] = [
    ".pdf", ".docx", ".doc", ".pptx", ".ppt", ".xlsx", ".xls", ".odt", ".epub", ".zip", ".gz",
    ".txt", ".md", ".csv", ".json", ".html", ".xml", ".mp3", ".wav", ".flac", ".ogg", ".opus",
    ".m4a", ".mp4", ".mov", ".avi", ".mkv", ".webm",
];

/// Kinds of files that are not read as text: by their media type, and by the end of their name.
const BINARY_TYPES: [&str; 5] =
    ["data:image/", "data:audio/", "data:video/", "data:application/pdf", "data:application/vnd."];
const BINARY_NAMES: [&str; 12] = [
    ".pdf", ".docx", ".pptx", ".xlsx", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp3", ".wav",
    ".mp4",
];

pub(super) fn is_media(name: &str) -> bool {
    MEDIA.contains(&name)
}

/// What a part says about the media in it. It is read once, because a part may have any number of members.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stated {
    /// A `format` says that it is no image.
    is_no_image: bool,
    /// A `filename` ends like that of a file that is no text.
    is_binary: bool,
}

impl Stated {
    pub(super) fn of(part: Value<'_>) -> Self {
        let mut stated = Self::default();
        for member in part.members() {
            match member.name.as_ref() {
                "format" => stated.is_no_image |= is_no_image(member.value),
                "filename" => stated.is_binary |= is_binary_name(member.value),
                _ => {}
            }
        }
        stated
    }
}

fn is_no_image(format: Value<'_>) -> bool {
    format.string().is_some_and(|it| it.contains('/') && !starts_with(&it, "image/"))
}

fn is_binary_name(filename: Value<'_>) -> bool {
    let name = filename.string().unwrap_or_default().to_ascii_lowercase();
    BINARY_NAMES.iter().any(|end| name.ends_with(end))
}

/// Whether a text starts like this, in any case, after any space.
fn starts_with(text: &str, start: &str) -> bool {
    let text = text.trim_start().as_bytes();
    text.get(..start.len()).is_some_and(|it| it.eq_ignore_ascii_case(start.as_bytes()))
}

/// What a member brings: one, or several in an array. `stated` is what the part says that it is a member of.
pub(super) fn media(name: &str, value: Value<'_>, stated: Stated, sink: &mut TextSink) {
    if value.is_array() {
        return value.elements().for_each(|it| media(name, it, Stated::default(), sink));
    }
    if value.is_null() {
        return;
    }
    let length = value.text.len() as u64;
    if name.ends_with("_embeds") {
        sink.tensor(length);
    } else if name.contains("image") {
        image(name, value, stated, sink);
    } else if name == "multimodal_data" {
        sink.media(length);
    } else {
        file(name, value, stated, sink);
    }
}

/// An image, unless its address says that it is something else: some servers take documents as images.
fn image(name: &str, value: Value<'_>, stated: Stated, sink: &mut TextSink) {
    let url = if value.is_object() { value.get("url") } else { Some(value) };
    let is_document = match url.and_then(Value::string) {
        Some(url) if starts_with(&url, "data:") => !starts_with(&url, "data:image/"),
        Some(url) if url.contains("://") => {
            let unsure = !has_end(&url, &IMAGE_NAMES) && sink.is_upper_bound();
            unsure || has_end(&url, &DOCUMENT_NAMES)
        }
        _ => false,
    };
    let length = value.text.len() as u64;
    if is_document || Stated::of(value).is_no_image || stated.is_no_image {
        sink.document(length);
    } else if matches!(name, "image" | "image_url") {
        sink.image();
    } else {
        sink.media(length);
    }
}

/// Whether an address ends like this, but for its query.
fn has_end(url: &str, ends: &[&str]) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or(url).to_ascii_lowercase();
    ends.iter().any(|end| path.ends_with(end))
}

/// A recording, a video or a file.
fn file(name: &str, value: Value<'_>, stated: Stated, sink: &mut TextSink) {
    let length = value.text.len() as u64;
    let Some(data) = data_of(name, value).filter(|_| !refers(value)) else {
        return sink.document(length);
    };
    let is_binary = stated.is_binary || Stated::of(value).is_binary;
    let is = |kind: &str| starts_with(&data, kind);
    if name.contains("video") || is("data:video/") {
        sink.document(length);
    } else if name.contains("audio") || is("data:audio/") || is("data:image/") {
        sink.media(length);
    } else if is_text_file(&data, is_binary) {
        sink.text_file(length);
    } else {
        sink.document(length);
    }
}

/// The data inside of the request, if it is there.
fn data_of<'a>(name: &str, value: Value<'a>) -> Option<std::borrow::Cow<'a, str>> {
    if value.is_object() {
        let data = DATA.iter().find_map(|name| value.get(name)).and_then(Value::string);
        let url = || value.get("url").and_then(Value::string).filter(|it| starts_with(it, "data:"));
        return data.filter(|it| !it.contains("://")).or_else(url);
    }
    let text = value.string()?;
    let is_data = name.ends_with("_data") && !text.contains("://");
    (is_data || starts_with(&text, "data:")).then_some(text)
}

/// Whether an object refers to something that the upstream fetches or keeps.
fn refers(value: Value<'_>) -> bool {
    let refers = |name: &&str| {
        let found = value.get(name).filter(|it| !it.is_null());
        let is_data = |it: Value<'_>| it.string().is_some_and(|it| starts_with(&it, "data:"));
        found.is_some_and(|it| !is_data(it))
    };
    REFERENCES.iter().any(refers)
}

/// Whether a file inside of a request is text for all that is known: a token is a few bytes of it then.
fn is_text_file(data: &str, is_binary: bool) -> bool {
    !is_binary && !BINARY_TYPES.iter().any(|kind| starts_with(data, kind))
}

/// A part of a kind that is not known, and that no member known by name says more about: a document where it refers to
/// one, or holds one that may be compressed.
pub(super) fn unknown_part(part: Value<'_>, sink: &mut TextSink) {
    if has_address(part, 0) { sink.document(0) } else { sink.image() }
}

/// Whether something in a value refers to what the upstream fetches, or is data of a kind.
fn has_address(value: Value<'_>, depth: u32) -> bool {
    if depth >= MAX_DEPTH {
        return value.is_object() || value.is_array();
    }
    if value.is_array() {
        return value.elements().any(|it| has_address(it, depth + 1));
    }
    let is_address = |name: &str, value: Value<'_>| {
        let is_type = matches!(name, "media_type" | "mime_type" | "mimeType" | "file_id");
        let is_named = is_type || matches!(name, "data" | "url" | "uri" | "file_uri" | "fileUri");
        is_named && value.is_string()
    };
    let mut members = value.members();
    members.any(|it| is_address(&it.name, it.value) || has_address(it.value, depth + 1))
}
