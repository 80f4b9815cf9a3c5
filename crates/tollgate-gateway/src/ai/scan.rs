//! Finds what a plain answer says it used, while it passes.
//!
//! The answer is not kept: a few bits say where in it one is. Only the `usage` of the outermost object is, which is small.

use tollgate_policy::prices::Usage;

use super::background::{MAX_ID_BYTES, Progress};
use super::json;
use super::protocol::Protocol;
use super::usage::{Doubt, Plausible};

/// The longest name that is looked at, and the largest `usage`.
const MAX_NAME: usize = 32;
const MAX_USAGE: usize = 64 * 1024;

/// The names under which texts are a model's words.
const WORDS: [&[u8]; 7] = [
    b"content",
    b"text",
    b"arguments",
    b"refusal",
    b"reasoning_content",
    b"reasoning",
    FAILED_GENERATION,
];

/// Of an error: what was written before it was found wrong.
const FAILED_GENERATION: &[u8] = b"failed_generation";

/// Where one is in an answer.
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are a place in a text, not a state machine"
)]
#[derive(Debug, Default)]
pub(crate) struct Scan {
    protocol: Protocol,
    /// One bit for each level: whether it is an object. The lowest is the innermost.
    levels: u128,
    depth: u32,
    text: Text,
    is_escaped: bool,
    /// Whether a text at this place would be a name.
    wants_name: bool,
    name: Vec<u8>,
    /// The characters of a model's words so far.
    written: u64,
    has_failed_generation: bool,
    usage: Option<Vec<u8>>,
    is_usage_whole: bool,
    /// The outermost object's `id` and `status`, as they stand.
    id: Vec<u8>,
    status: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Name,
    Words,
    Id,
    Status,
    Other,
}

impl Scan {
    /// For a good answer of this API.
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    /// Looks at the next piece.
    pub(crate) fn take(&mut self, piece: &[u8]) {
        for byte in piece {
            self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) {
        self.keep(byte);
        if self.text != Text::Outside {
            self.in_text(byte);
            return;
        }
        match byte {
            b'"' => {
                self.text = if self.wants_name {
                    self.name.clear();
                    Text::Name
                } else if self.depth == 1 && self.name == b"id" {
                    self.id.clear();
                    Text::Id
                } else if self.depth == 1 && self.name == b"status" {
                    self.status.clear();
                    Text::Status
                } else if self.is_words() {
                    self.has_failed_generation |= self.name == FAILED_GENERATION;
                    Text::Words
                } else {
                    Text::Other
                };
            }
            b'{' | b'[' => {
                // Beyond 128 levels the mask overflows, and objects are no longer distinguished from arrays; no
                // answer of a model is nested that deep.
                self.levels = (self.levels << 1) | u128::from(byte == b'{');
                self.depth = self.depth.saturating_add(1);
                self.wants_name = byte == b'{';
                if self.depth == 2 && byte == b'{' && self.name == b"usage" {
                    self.usage = Some(vec![byte]);
                    self.is_usage_whole = false;
                }
            }
            b'}' | b']' => {
                self.levels >>= 1;
                self.depth = self.depth.saturating_sub(1);
                self.wants_name = false;
                if self.depth == 1 && self.usage.is_some() {
                    self.is_usage_whole = true;
                }
            }
            b',' => self.wants_name = self.levels & 1 == 1,
            b':' => self.wants_name = false,
            _ => {}
        }
    }

    /// Whether the text at this place is a model's.
    fn is_words(&self) -> bool {
        let is_nameless = self.protocol.has_nameless_words() && self.name != b"type";
        is_nameless || WORDS.contains(&self.name.as_slice())
    }

    fn keep(&mut self, byte: u8) {
        if let Some(usage) = &mut self.usage
            && !self.is_usage_whole
            && usage.len() < MAX_USAGE
        {
            usage.push(byte);
        }
    }

    fn in_text(&mut self, byte: u8) {
        let was_escaped = std::mem::take(&mut self.is_escaped);
        match byte {
            b'"' if !was_escaped => self.text = Text::Outside,
            b'\\' if !was_escaped => self.is_escaped = true,
            _ if self.text == Text::Name && self.name.len() < MAX_NAME => self.name.push(byte),
            _ if self.text == Text::Id && self.id.len() <= MAX_ID_BYTES => self.id.push(byte),
            _ if self.text == Text::Status && self.status.len() < MAX_NAME => {
                self.status.push(byte);
            }
            // An escape of four digits counts as five; that is rare in what models write.
            _ if self.text == Text::Words && byte & 0xc0 != 0x80 => self.written += 1,
            _ => {}
        }
    }

    /// How many characters of a model's words there were.
    pub(crate) const fn written(&self) -> u64 {
        self.written
    }

    /// Whether an error shows what was written.
    pub(crate) const fn has_failed_generation(&self) -> bool {
        self.has_failed_generation
    }

    /// The answer's id, if it has one that is short enough.
    pub(crate) fn id(&self) -> Option<&str> {
        let id = std::str::from_utf8(&self.id).ok()?;
        (1..=MAX_ID_BYTES).contains(&id.len()).then_some(id)
    }

    /// How far a response is.
    pub(crate) fn progress(&self) -> Progress {
        Progress::of(&self.status)
    }

    /// What the answer said that it used.
    pub(crate) fn usage(&self, plausible: Plausible) -> Option<Result<Usage, Doubt>> {
        let usage = self.usage.as_ref().filter(|_| self.is_usage_whole)?;
        let text = std::str::from_utf8(usage).ok()?;
        self.protocol.usage(json::parse(text).ok()?, plausible)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(text: &str, cuts: &[usize]) -> Scan {
        let (mut scan, mut from) = (Scan::default(), 0);
        for cut in cuts.iter().copied().chain([text.len()]) {
            let cut = cut.clamp(from, text.len());
            scan.take(&text.as_bytes()[from..cut]);
            from = cut;
        }
        scan
    }

    const ANY: Plausible = Plausible { least: 0, most: u64::MAX, prompt: u64::MAX };

    const CHAT: &str = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant",
        "content":"h\"i, usage: {","tool_calls":[{"function":{"name":"f","arguments":"{\"usage\":1}"}}]},
        "usage":{"total_tokens":99}}],
        "x":{"usage":{"total_tokens":98}},
        "usage" : {"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"completion_tokens_details":{"a":[1,{"b":2}]}},
        "z":"usage"}"#;

    proptest! {
        #[test]
        fn usage_is_found_wherever_it_is_cut(mut cuts in prop::collection::vec(0_usize..500, 0..10)) {
            cuts.sort_unstable();
            let scan = scan(CHAT, &cuts);
            prop_assert_eq!(scan.usage(ANY), Some(Ok(Usage::new(3, 4))));
            prop_assert_eq!(scan.written(), 13 + 11);
            prop_assert_eq!(scan.id(), Some("c"));
        }

        #[test]
        fn nothing_is_too_odd_to_be_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut scan = Scan::default();
            scan.take(&bytes);
            let _ = scan.usage(ANY);
        }
    }

    #[test]
    fn what_is_no_usage_is_none() {
        for text in
            ["", "{}", "[]", r#"{"usage":null}"#, r#"{"usage":{"total_tokens":1}"#, "<html>"]
        {
            let expected = text.ends_with("1}").then_some(Ok(Usage::new(1, 0)));
            assert_eq!(scan(text, &[]).usage(ANY), expected, "{text}");
        }
        let long = format!(r#"{{"usage":{{"a":"{}","total_tokens":1}}}}"#, "x".repeat(MAX_USAGE));
        assert_eq!(scan(&long, &[]).usage(ANY), None, "bounded");
        assert!(scan(&"[".repeat(1_000), &[]).usage(ANY).is_none());
    }
}
