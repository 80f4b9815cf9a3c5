//! Images, recordings, videos and files of a prompt.
//!
//! What is inside of the request is estimated by its length, where that says something. What the upstream fetches, and
//! what may be compressed, has a configured bound. Of several statements about one thing the worst counts: which of them
//! an upstream goes by is not known here.

use super::json::Value;
use super::labels::label_name;
use super::names::{is_address, is_id, plain};
use super::resolution::scale;
use super::sniff::{Recording, is_document, is_text, recording};
use super::text::TextSink;

/// Members that bring something to look at or to listen to, or a file, whatever kind a part says it is. Without
/// underscores, in small letters.
const MEDIA: [&str; 26] = [
    "image",
    "images",
    "imageurl",
    "imageurls",
    "imagedata",
    "imageembeds",
    "imagefile",
    "inputimage",
    "audio",
    "audiourl",
    "audiodata",
    "audioembeds",
    "inputaudio",
    "video",
    "videourl",
    "videodata",
    "videoembeds",
    "inputvideo",
    "file",
    "files",
    "inputfile",
    "filedata",
    "fileid",
    "fileurl",
    "inlinedata",
    "multimodaldata",
];

/// Members that hold data in base64.
const DATA: [&str; 4] = ["data", "b64json", "base64", "bytes"];

/// Texts up to this say something about media, and are no part of them.
const MAX_LABEL_BYTES: usize = 64;

/// Objects that are nested deeper are not searched for addresses.
const MAX_DEPTH: u32 = 8;

/// Members that state what kind of data it is, and those that name it.
const TYPES: [&str; 4] = ["mediatype", "mimetype", "contenttype", "format"];
const FILE_NAMES: [&str; 3] = ["filename", "name", "title"];

/// Members whose text says how something is to be read, and not what.
const OPTIONS: [&str; 7] =
    ["type", "detail", "quality", "role", "cachecontrol", "status", "transcript"];

/// Media types of text, next to `text/*`.
const TEXT_TYPES: [&str; 12] = [
    "application/json",
    "application/jsonl",
    "application/x-ndjson",
    "application/xml",
    "application/csv",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/sql",
    "application/javascript",
    "application/x-javascript",
    "application/typescript",
];

/// The ends of names of images, of texts, of recordings, and of everything else that is not read as text.
const IMAGE_NAMES: [&str; 9] =
    [".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".svg"];
const TEXT_NAMES: [&str; 36] = [
    ".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".html", ".htm", ".xml", ".yaml", ".yml",
    ".toml", ".ini", ".log", ".tex", ".py", ".js", ".ts", ".tsx", ".jsx", ".rs", ".go", ".java",
    ".kt", ".c", ".h", ".cpp", ".cs", ".rb", ".php", ".swift", ".sh", ".sql", ".css", ".diff",
    ".patch",
];
const AUDIO_NAMES: [&str; 8] = [".mp3", ".wav", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".pcm16"];
const DOCUMENT_NAMES: [&str; 28] = [
    ".pdf", ".docx", ".doc", ".docm", ".pptx", ".ppt", ".xlsx", ".xls", ".xlsm", ".odt", ".ods",
    ".odp", ".epub", ".rtf", ".pages", ".key", ".numbers", ".parquet", ".zip", ".gz", ".tgz",
    ".7z", ".rar", ".mp4", ".mov", ".avi", ".mkv", ".webm",
];

pub(super) fn is_media(name: &str) -> bool {
    MEDIA.contains(&&*plain(name))
}

/// What is stated about something, by all of its members.
#[expect(clippy::struct_excessive_bools, reason = "each is a statement by itself")]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stated {
    /// A type, a name or the first bytes of data say what it is.
    is_image: bool,
    is_text: bool,
    is_audio: bool,
    is_document: bool,
    /// The upstream fetches it, or keeps it.
    is_fetched: bool,
    /// That, and its address does not end like that of an image, or ends like that of something else.
    has_unsure_address: bool,
    has_other_address: bool,
    /// There is data inside of the request, and it does not begin like a text.
    has_data: bool,
    has_binary_data: bool,
    /// How large an image is made ([`super::resolution`]).
    scale: u64,
    /// What a recording has by its duration.
    audio_tokens: u64,
}

impl Stated {
    /// What a part states about the media in it. It is read once, because a part may have any number of members.
    pub(super) fn of(part: Value<'_>) -> Self {
        let mut stated = Self::default();
        for member in part.members() {
            let name = plain(&member.name);
            stated.scale = stated.scale.max(scale(&name, member.value));
            if let Some(text) = member.value.string() {
                stated.label(&name, &text);
            }
        }
        stated
    }

    /// Whether a type or a name says that it is a document.
    pub(super) const fn is_document(&self) -> bool {
        self.is_document
    }

    /// Takes a text that names something or its kind. False where it is another.
    fn label(&mut self, name: &str, text: &str) -> bool {
        if TYPES.contains(&name) {
            self.kind(text);
        } else if FILE_NAMES.contains(&name) {
            self.filename(text);
        } else {
            return false;
        }
        true
    }

    /// Takes a media type, or the end of a name without its dot.
    fn kind(&mut self, text: &str) {
        let text = text.trim().to_ascii_lowercase();
        let kind = text.split(';').next().unwrap_or_default().trim_end();
        match kind.split_once('/') {
            Some(("image", _)) => self.is_image = true,
            Some(("audio", _)) => self.is_audio = true,
            Some(("text", _)) => self.is_text = true,
            Some((_, rest)) => {
                let is_text =
                    TEXT_TYPES.contains(&kind) || rest.ends_with("+json") || rest.ends_with("+xml");
                *(if is_text { &mut self.is_text } else { &mut self.is_document }) = true;
            }
            None => self.filename(&format!(".{kind}")),
        }
    }

    fn filename(&mut self, text: &str) {
        let name = text.trim().to_ascii_lowercase();
        let has = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        self.is_image |= has(&IMAGE_NAMES);
        self.is_text |= has(&TEXT_NAMES);
        self.is_audio |= has(&AUDIO_NAMES);
        self.is_document |= has(&DOCUMENT_NAMES);
    }

    /// Takes everything in a value that a member of this name has.
    fn take(&mut self, name: &str, value: Value<'_>, depth: u32) {
        self.scale = self.scale.max(scale(&plain(name), value));
        if let Some(text) = value.string() {
            self.text(name, &text);
        } else if depth >= MAX_DEPTH {
            self.is_document = true;
        } else if value.is_array() {
            value.elements().for_each(|it| self.take(name, it, depth + 1));
        } else if value.is_object() {
            value.members().for_each(|it| self.take(&it.name, it.value, depth + 1));
        } else if is_id(name) && !value.is_null() {
            self.is_fetched = true;
        }
    }

    fn text(&mut self, name: &str, text: &str) {
        let folded = plain(name);
        if self.label(&folded, text) || text.is_empty() {
            return;
        }
        if starts_with(text, "data:") {
            let (kind, data) = text.split_once(',').unwrap_or((text, ""));
            let kind = kind.trim_start().get("data:".len()..).unwrap_or_default();
            if !kind.is_empty() && !kind.starts_with(';') {
                self.kind(kind);
            }
            self.data(data, kind.to_ascii_lowercase().contains(";base64"));
        } else if text.contains("://") {
            self.is_fetched = true;
            self.has_unsure_address |= !has_end(text, &IMAGE_NAMES);
            let others = [&TEXT_NAMES[..], &AUDIO_NAMES, &DOCUMENT_NAMES];
            // What a program of the server makes is not known by its name.
            let is_made = has_end(text, &[".php"]);
            self.has_other_address |= !is_made && others.iter().any(|ends| has_end(text, ends));
        } else if is_id(name)
            || is_address(name)
            || matches!(&*folded, "file" | "files" | "inputfile")
        {
            self.is_fetched = true;
        } else if !OPTIONS.contains(&&*folded) {
            self.data(text, true);
        }
    }

    fn data(&mut self, data: &str, is_base64: bool) {
        self.has_data = true;
        self.is_document |= is_document(data, is_base64);
        match recording(data) {
            Recording::Tokens(tokens) if is_base64 => {
                self.audio_tokens = self.audio_tokens.max(tokens);
            }
            Recording::Unknown if is_base64 => self.is_document = true,
            _ => {}
        }
        self.has_binary_data |= is_base64 && !is_text(data);
    }
}

/// Whether a text starts like this, in any case, after any space.
fn starts_with(text: &str, start: &str) -> bool {
    let text = text.trim_start().as_bytes();
    text.get(..start.len()).is_some_and(|it| it.eq_ignore_ascii_case(start.as_bytes()))
}

/// Whether an address ends like this, but for its query.
fn has_end(url: &str, ends: &[&str]) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or(url).trim_end().to_ascii_lowercase();
    ends.iter().any(|end| path.ends_with(end))
}

/// What a member brings: one, or several in an array. `stated` is what the part says that it is a member of.
pub(super) fn media(name: &str, value: Value<'_>, stated: Stated, sink: &mut TextSink) {
    if value.is_array() {
        return value.elements().for_each(|it| media(name, it, stated, sink));
    }
    if value.is_null() {
        return;
    }
    let (folded, length) = (plain(name), value.text.len() as u64);
    let mut stated = stated;
    stated.take(name, value, 0);
    texts(name, value, sink, 0);
    if folded.ends_with("embeds") {
        sink.tensor(length);
    } else if folded.contains("image") {
        image(&folded, stated, length, sink);
    } else if folded.contains("audio") || folded == "multimodaldata" {
        let is_recording = !(stated.is_fetched || stated.is_document || stated.is_text);
        if is_recording {
            sink.recording(length, stated.audio_tokens);
        } else {
            sink.document(length);
        }
    } else {
        file(&folded, stated, length, sink);
    }
}

/// Counts what is text inside of media: a member that holds no data, or data that is not base64.
fn texts(name: &str, value: Value<'_>, sink: &mut TextSink, depth: u32) {
    if depth >= MAX_DEPTH {
        sink.source(value.text);
    } else if let Some(text) = value.string() {
        let folded = plain(name);
        let is_data = DATA.contains(&&*folded) || MEDIA.contains(&&*folded) || is_address(name);
        let is_encoded = |it: u8| it.is_ascii_alphanumeric() || b"+/-_=\r\n".contains(&it);
        let data = match text.split_once(',') {
            Some((kind, data)) if starts_with(kind, "data:") && kind.ends_with("base64") => data,
            _ => &text,
        };
        let is_link = text.contains("://") && !text.contains(char::is_whitespace);
        let is_media = is_data && (is_link || data.bytes().all(is_encoded));
        if !is_media && (text.len() > MAX_LABEL_BYTES || !sink.has_free_label(text.len())) {
            sink.text(value);
        }
    } else {
        value.elements().for_each(|it| texts(name, it, sink, depth + 1));
        for member in value.members() {
            label_name(&member.name, sink);
            texts(&member.name, member.value, sink, depth + 1);
        }
    }
}

/// An image, unless something says that it is none: some servers take documents as images.
fn image(name: &str, stated: Stated, length: u64, sink: &mut TextSink) {
    let is_other = stated.is_document || stated.is_audio || stated.is_text;
    let is_unsure = stated.has_unsure_address && sink.is_upper_bound();
    if is_other || is_unsure || stated.has_other_address {
        sink.document(length);
    } else {
        let is_counted = !matches!(name, "image" | "imageurl");
        sink.scaled_image(stated.scale, if is_counted { length } else { 0 });
    }
}

/// A video or a file.
fn file(name: &str, stated: Stated, length: u64, sink: &mut TextSink) {
    let is_inside = stated.has_data && !stated.is_fetched && !name.contains("video");
    let is_text = stated.is_text || !stated.has_binary_data;
    if !is_inside || stated.is_document {
        sink.document(length);
    } else if stated.is_image || stated.is_audio {
        sink.recording(length, stated.audio_tokens);
    } else if is_text {
        sink.text_file(length);
    } else {
        sink.document(length);
    }
}

/// Ids that belong to a conversation and bring nothing along.
const PLAIN_IDS: [&str; 13] = [
    "toolcallid",
    "tooluseid",
    "callid",
    "approvalrequestid",
    "messageid",
    "itemid",
    "parentid",
    "referenceids",
    "requestid",
    "responseid",
    "sessionid",
    "traceid",
    "userid",
];

/// How many things a value brings that the upstream fetches or keeps, or whose data may be compressed, where nothing is
/// known of the member but its name.
pub(super) fn references(name: &str, value: Value<'_>) -> u64 {
    let is_named = |name: &str| is_id(name) && !PLAIN_IDS.contains(&&*plain(name));
    count(value, name, 0, &|name, value| refers(name, value, &is_named))
}

fn refers(name: &str, value: Value<'_>, is_id: &dyn Fn(&str) -> bool) -> bool {
    let Some(text) = value.string() else { return is_id(name) && !value.is_null() };
    let mut stated = Stated::default();
    if stated.label(&plain(name), &text) && stated.is_document {
        return true;
    }
    (is_id(name) || is_address(name)) && !text.is_empty()
        || text.contains("://")
        || starts_with(&text, "data:")
        || is_document(&text, true)
        || !text.contains(char::is_whitespace) && has_end(&text, &DOCUMENT_NAMES)
}

/// What the members of a message bring next to its content.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct References {
    /// Those whose names say that they are files or the like.
    pub(super) files: u64,
    /// Whether there are others. Answers that were given before are full of them, and none of those is fetched.
    pub(super) has_others: bool,
}

impl References {
    /// Takes a member. `is_file` is whether it lies in one whose name says that it is a file.
    pub(super) fn take(&mut self, name: &str, value: Value<'_>, is_file: bool, depth: u32) {
        let is_file = !plain(name).ends_with("citations") && (is_file || says_file(name));
        let is_nested = value.is_object() || value.is_array();
        if is_nested && depth < MAX_DEPTH {
            value.elements().for_each(|it| self.take(name, it, is_file, depth + 1));
            value.members().for_each(|it| self.take(&it.name, it.value, is_file, depth + 1));
            return;
        }
        let is_named = |name: &str| {
            let is_plain = !says_file(name) && plain(name).trim_end_matches('s') != "id";
            is_id(name) && is_file && !is_plain
        };
        if is_nested || refers(name, value, &is_named) {
            self.files = self.files.saturating_add(u64::from(is_file));
            self.has_others |= !is_file;
        }
    }
}

/// Whether a name says that it is that of a file or of something like it.
fn says_file(name: &str) -> bool {
    const FILES: [&str; 11] = [
        "file",
        "document",
        "media",
        "attachment",
        "image",
        "video",
        "audio",
        "asset",
        "blob",
        "input",
        "pdf",
    ];
    // An address of a file in an answer that was given before.
    let name = plain(name).replace("profile", "").replace("filepath", "");
    FILES.iter().any(|it| name.contains(it))
}

/// The same of a field next to the conversation. Ids are common there, and texts may begin with anything else.
pub(super) fn outer_references(name: &str, value: Value<'_>) -> u64 {
    const DOCUMENTS: [&str; 5] = ["file", "document", "attachment", "pdf", "image"];
    const NAMES: [&str; 4] = ["document", "attachment", "pdf", "pdfs"];
    const OTHERS: [&str; 8] =
        ["callback", "webhook", "referer", "referrer", "site", "schema", "endpoint", "mcp"];
    let folded = plain(name);
    // Where a search looks, and what a request is known by.
    let is_domain =
        |it: &str| ["domainfilter", "domains", "userlocation"].iter().any(|end| it.ends_with(end));
    let is_other = |name: &str| OTHERS.iter().any(|it| name.contains(it)) || is_domain(name);
    if is_other(&folded) || matches!(&*folded, "origin" | "trace") {
        return 0;
    }
    let is_document = DOCUMENTS.iter().any(|it| folded.contains(it));
    count(value, name, 0, &|name, value| {
        let text = value.string();
        let folded = plain(name);
        let is_named = is_document && (is_id(name) || is_address(name))
            || text.is_some() && NAMES.contains(&&*folded);
        let is_address = |it: &str| starts_with(it, "data:") || begins_with_scheme(it);
        is_named && !value.is_null() && text.as_deref() != Some("")
            || text.is_some_and(|it| is_address(&it) && !is_other(&folded))
    })
}

/// Whether a text begins with an address.
fn begins_with_scheme(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.trim_start());
    let is_part = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'+' | b'-' | b'.');
    scheme.is_some_and(|it| !it.is_empty() && it.bytes().all(is_part))
}

/// How many values that hold no others fit. What is nested too deep to be looked at fits.
fn count(value: Value<'_>, name: &str, depth: u32, fits: &dyn Fn(&str, Value<'_>) -> bool) -> u64 {
    let is_nested = value.is_object() || value.is_array();
    if !is_nested || depth >= MAX_DEPTH {
        return u64::from(is_nested || fits(name, value));
    }
    let elements = value.elements().map(|it| count(it, name, depth + 1, fits));
    let members = value.members().map(|it| count(it.value, &it.name, depth + 1, fits));
    elements.chain(members).fold(0, u64::saturating_add)
}

/// How many documents a text refers to that the upstream keeps, as `DashScope` has it: `fileid://a,fileid://b`.
pub(super) fn stored_files(value: Value<'_>) -> u64 {
    const SCHEME: &str = "fileid://";
    let Some(text) = value.string().filter(|text| starts_with(text, SCHEME)) else { return 0 };
    text.to_ascii_lowercase().matches(SCHEME).count() as u64
}
