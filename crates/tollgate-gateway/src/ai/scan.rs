//! Finds what a plain answer says it used, while it passes.
//!
//! The answer is not kept: a few bits say where in it one is. Only the `usage` of the outermost object is, which is small.

use tollgate_policy::prices::Usage;

use super::background::{MAX_ID_BYTES, Progress};
use super::classes::{Milli, rate};
use super::json;
use super::protocol::Protocol;
use super::text::TextSink;
use super::usage::{self, Doubt, Plausible};
use super::words::{is_about, is_label, is_media};

/// The longest name that is looked at, and the largest `usage`.
const MAX_NAME: usize = 32;
const MAX_USAGE: usize = 64 * 1024;

/// The longest number that is kept.
const MAX_NUMBER: usize = 20;

/// Levels of which it is known whether they are objects. In deeper ones every text counts.
const MAX_LEVELS: u32 = 128;

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
    /// Whether what counts is inside of the outermost object's `response`, as in events of responses.
    is_wrapped: bool,
    /// One bit for each of the outer levels: whether it is an object. The lowest is the innermost of them.
    levels: u128,
    depth: u32,
    /// The first byte that is no space.
    first: Option<u8>,
    text: Text,
    is_escaped: bool,
    /// Whether a text at this place would be a name.
    wants_name: bool,
    name: Vec<u8>,
    /// The name of the outermost object's member that one is in.
    outermost: Vec<u8>,
    /// The ASCII characters of a model's words so far.
    written: u64,
    /// What its other characters cost, by their scripts, and the one of them that is not whole.
    others: Milli,
    partial: PartialChar,
    /// Those of images and recordings.
    media: u64,
    /// What llama.cpp states of the prompt and of the answer, in digits.
    evaluated: Vec<u8>,
    predicted: Vec<u8>,
    has_failed_generation: bool,
    usage: Option<Vec<u8>>,
    is_usage_whole: bool,
    /// The outermost object's `id` and `status`, as they stand.
    id: Vec<u8>,
    status: Vec<u8>,
}

/// A character of several bytes, as far as it has come.
#[derive(Debug, Default, Clone, Copy)]
struct PartialChar {
    code: u32,
    missing: u8,
}

impl PartialChar {
    /// Takes a byte above ASCII. The character, where it is the last one.
    fn take(&mut self, byte: u8) -> Option<char> {
        let (code, missing) = match byte {
            0x80..=0xbf if self.missing == 0 => return None,
            0x80..=0xbf => ((self.code << 6) | u32::from(byte & 0x3f), self.missing - 1),
            0xc0..=0xdf => (u32::from(byte & 0x1f), 1),
            0xe0..=0xef => (u32::from(byte & 0x0f), 2),
            _ => (u32::from(byte & 0x07), 3),
        };
        *self = Self { code, missing };
        (missing == 0).then(|| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Name,
    Words,
    Media,
    Id,
    Status,
    Other,
}

impl Scan {
    /// For a good answer of this API.
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    /// For an event of a stream that cannot be read whole.
    pub(crate) fn of_event(protocol: Protocol, is_wrapped: bool) -> Self {
        Self { protocol, is_wrapped, ..Self::default() }
    }

    /// Looks at the next piece.
    pub(crate) fn take(&mut self, piece: &[u8]) {
        for byte in piece {
            self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) {
        self.keep(byte);
        if self.first.is_none() && !byte.is_ascii_whitespace() {
            self.first = Some(byte);
        }
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
                } else {
                    self.kind_of_text()
                };
            }
            b'{' | b'[' => {
                if self.depth < MAX_LEVELS {
                    self.levels = (self.levels << 1) | u128::from(byte == b'{');
                }
                self.depth = self.depth.saturating_add(1);
                self.wants_name = byte == b'{';
                if self.depth == self.usage_depth() && byte == b'{' && self.name == b"usage" {
                    self.usage = Some(vec![byte]);
                    self.is_usage_whole = false;
                }
            }
            b'}' | b']' => {
                if self.depth <= MAX_LEVELS {
                    self.levels >>= 1;
                }
                self.depth = self.depth.saturating_sub(1);
                self.wants_name = false;
                if self.depth < self.usage_depth() && self.usage.is_some() {
                    self.is_usage_whole = true;
                }
            }
            b',' => self.wants_name = self.levels & 1 == 1,
            b':' => {
                self.wants_name = false;
                if self.depth == 1 {
                    self.outermost.clone_from(&self.name);
                    match self.name.as_slice() {
                        b"tokens_evaluated" => self.evaluated.clear(),
                        b"tokens_predicted" => self.predicted.clear(),
                        _ => {}
                    }
                }
            }
            b'0'..=b'9' if self.depth == 1 => self.digit(byte),
            _ => {}
        }
    }

    /// A number of the outermost object.
    fn digit(&mut self, byte: u8) {
        let number = match self.outermost.as_slice() {
            b"tokens_evaluated" => &mut self.evaluated,
            b"tokens_predicted" => &mut self.predicted,
            _ => return,
        };
        if number.len() < MAX_NUMBER {
            number.push(byte);
        }
    }

    /// How deep the members of `usage` are.
    fn usage_depth(&self) -> u32 {
        if self.is_wrapped && self.outermost == b"response" { 3 } else { 2 }
    }

    /// What a text at this place is.
    fn kind_of_text(&mut self) -> Text {
        if self.name == FAILED_GENERATION {
            self.has_failed_generation = true;
            return Text::Words;
        }
        let is_words = if self.depth > MAX_LEVELS {
            true
        } else if self.protocol.has_nameless_words() {
            self.name != b"type"
        } else {
            !self.is_wrapped && !is_about(&self.outermost) && !is_label(&self.name)
        };
        match (is_words, is_media(&self.name)) {
            (false, _) => Text::Other,
            (true, true) => Text::Media,
            (true, false) => Text::Words,
        }
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
            _ if self.text == Text::Words && byte.is_ascii() => self.written += 1,
            _ if self.text == Text::Words => {
                self.others += self.partial.take(byte).map_or(0, rate);
            }
            _ if self.text == Text::Media => self.media += 1,
            _ => {}
        }
    }

    /// Gives what a model wrote to `sink`.
    pub(crate) fn count_into(&self, sink: &mut TextSink) {
        sink.characters(self.written, self.others);
        sink.written_media(self.media);
    }

    /// Whether an answer came that cannot be read: its levels do not close, or it is nothing like JSON.
    pub(crate) const fn is_broken(&self) -> bool {
        let is_like_json = matches!(self.first, None | Some(b'{' | b'['));
        self.depth > 0 || !matches!(self.text, Text::Outside) || !is_like_json
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
        let Some(usage) = self.usage.as_ref().filter(|_| self.is_usage_whole) else {
            return self.native_usage(plausible);
        };
        let text = std::str::from_utf8(usage).ok()?;
        self.protocol.usage(json::parse(text).ok()?, plausible)
    }

    /// What llama.cpp states next to its answer, where that is in its own form.
    fn native_usage(&self, plausible: Plausible) -> Option<Result<Usage, Doubt>> {
        if self.predicted.is_empty() {
            return None;
        }
        let number = |digits: &[u8]| {
            let digits = if digits.is_empty() { b"0" } else { digits };
            String::from_utf8_lossy(digits).into_owned()
        };
        let (input, output) = (number(&self.evaluated), number(&self.predicted));
        let text = format!(r#"{{"tokens_evaluated":{input},"tokens_predicted":{output}}}"#);
        usage::read(json::parse(&text).ok()?, plausible)
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
            prop_assert_eq!(scan.written, 13 + 11 + 1 + 5);
            prop_assert_eq!(scan.id(), Some("c"));
        }

        #[test]
        fn nothing_is_too_odd_to_be_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut scan = Scan::default();
            scan.take(&bytes);
            let _ = scan.usage(ANY);
        }
    }

    /// What a model wrote in other scripts is not counted as letters of which four are a token.
    #[test]
    fn what_was_written_is_counted_by_its_script() {
        use super::super::text::Tariff;

        for (text, tokens) in [("abcd", 100), ("中文", 200), ("😀", 220), ("аб", 80), ("𒀀a", 415)]
        {
            let answer = format!(r#"{{"choices":[{{"text":"{}"}}]}}"#, text.repeat(100));
            for cuts in [&[][..], &[25, 26, 27, 28, 29, 30, 31]] {
                let mut sink = TextSink::new(Tariff::default());
                scan(&answer, cuts).count_into(&mut sink);
                assert_eq!(sink.total(), tokens, "{text}");
            }
        }
    }

    #[test]
    fn usage_is_found_behind_values_of_any_depth() {
        for depth in [126, 127, 128, 129, 1_000] {
            let deep = format!("{}1{}", "[{\"a\":".repeat(depth), "}]".repeat(depth));
            let used = r#""usage":{"total_tokens":7}"#;
            let plain = format!(r#"{{"tools":{deep},"x":"y",{used}}}"#);
            let expected = Some(Ok(Usage::new(7, 0)));
            assert_eq!(scan(&plain, &[]).usage(ANY), expected, "{depth}");
            let mut event = Scan::of_event(Protocol::OpenAi, true);
            let data = format!(r#"data: {{"type":"x","response":{{"tools":{deep},{used}}}}}"#);
            event.take(data.as_bytes());
            assert_eq!(event.usage(ANY), expected, "{depth}");
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
        let native =
            r#"{"content":"abcd","tokens_predicted":40,"prompt":"no","tokens_evaluated":2}"#;
        assert_eq!(scan(native, &[]).usage(ANY), Some(Ok(Usage::new(2, 40))));
        assert_eq!(scan(native, &[]).written, 4);
        assert!(scan(&"[".repeat(1_000), &[]).usage(ANY).is_none());
    }
}
