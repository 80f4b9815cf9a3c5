//! How many tokens a text is, and how many a request may come to.

use super::bound::{self, upper_bound};
use super::classes::{Classes, Milli};
use super::expect::LearnedPrompt;
use super::json::Value;
use super::labels::MAX_FREE_LABEL_BYTES;

/// How texts become numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tariff {
    /// ASCII letters that make a token, where there is no tokenizer.
    pub characters_per_token: u64,
    /// What a message costs beside its text.
    pub tokens_per_message: u64,
    /// What an image counts for, and a recording or a file of text next to its length.
    pub tokens_per_image: u64,
    /// What a document, a recording or a video counts for whose length is not known here, and a prompt that is a tensor.
    pub tokens_per_document: u64,
    /// What a conversation counts for that the upstream keeps. Where it is 0, such requests are refused.
    pub history_tokens: u64,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// How texts are estimated where there is no tokenizer.
    pub estimate: EstimateMode,
}

impl Default for Tariff {
    fn default() -> Self {
        Self {
            characters_per_token: 4,
            tokens_per_message: 4,
            tokens_per_image: 1_000,
            tokens_per_document: 20_000,
            history_tokens: 8_000,
            tokenizer: Tokenizer::Characters,
            estimate: EstimateMode::Default,
        }
    }
}

/// How texts are estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EstimateMode {
    /// Near what they are likely to have, and corrected by what they had.
    #[default]
    Default,
    /// Never below what `cl100k_base` or `o200k_base` make of them.
    UpperBound,
}

impl EstimateMode {
    /// Makes it ready, which takes a moment the first time.
    pub(crate) fn warm(self) {
        if self == Self::UpperBound {
            bound::warm();
        }
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }

    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("default", Self::Default), ("upper_bound", Self::UpperBound)];
}

/// What counts a model's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tokenizer {
    /// None: characters are counted, which costs next to nothing.
    #[default]
    Characters,
    /// `cl100k_base`, of GPT-4 and GPT-3.5.
    Cl100k,
    /// `o200k_base`, of GPT-4o and what came after it.
    O200k,
}

impl Tokenizer {
    /// Whether this build has its vocabulary.
    pub const fn is_built_in(self) -> bool {
        matches!(self, Self::Characters) || cfg!(feature = "tokenizers")
    }

    /// Makes it ready, which takes a moment the first time.
    pub(crate) fn warm(self) {
        count(self, "");
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, tokenizer)| *tokenizer == self).map_or("", |(name, _)| name)
    }

    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("characters", Self::Characters),
        ("cl100k_base", Self::Cl100k),
        ("o200k_base", Self::O200k),
    ];
}

/// Characters of media inside of a request that count for a token on top of [`Tariff::tokens_per_image`].
const MEDIA_CHARACTERS_PER_TOKEN: u64 = 128;

/// Characters of a tensor in base64 which are at most one token where it is stored in full: no model that is served has
/// less than 384 values of two bytes for each.
const TENSOR_CHARACTERS_PER_TOKEN: u64 = 1_024;

/// Texts of one request beyond this are bounded by their bytes alone: a bound takes longer than reading a text does.
const MAX_BOUNDED_BYTES: usize = 4 << 20;

/// Counts what a model reads or writes.
#[derive(Debug)]
pub(crate) struct TextSink {
    tariff: Tariff,
    /// Bytes of texts that were bounded so far.
    bounded: usize,
    /// Texts as they are estimated by default.
    classes: Classes,
    tokens: u64,
    /// What an image counts for by what the request says of its size, if that is more than usual.
    image_scale: u64,
    /// Whether something refers to an item that the upstream keeps.
    refers: bool,
    /// Texts, and nothing whose cost depends on more than its text.
    is_text: bool,
    /// Whether every upstream reads all of it.
    is_certain: bool,
    /// What each text counts for at least.
    least: Milli,
    /// Bytes of labels that are still free.
    free_labels: usize,
    /// What the prompt was estimated at by its classes, where this counts its answer.
    prompt: Option<LearnedPrompt>,
}

impl TextSink {
    /// How many times what it counts may be wrong: characters only tell tokens roughly.
    pub(crate) const fn slack(&self) -> u64 {
        match self.tariff.tokenizer {
            Tokenizer::Characters => 2,
            Tokenizer::Cl100k | Tokenizer::O200k => 1,
        }
    }

    pub(crate) const fn new(tariff: Tariff) -> Self {
        let classes = Classes::new(tariff.characters_per_token);
        Self {
            tariff,
            bounded: 0,
            classes,
            tokens: 0,
            image_scale: 0,
            refers: false,
            is_text: true,
            is_certain: true,
            least: 1_000,
            free_labels: MAX_FREE_LABEL_BYTES,
            prompt: None,
        }
    }

    /// Counts the answer to what this one counted. It comes in pieces of any length, so a piece has no least length.
    pub(crate) fn for_answer(&self) -> Self {
        let is_learned = self.is_estimated() && self.is_text;
        let estimated = Some(self.total()).filter(|total| is_learned && *total > 0);
        // What is no text must not outweigh it: a correction is about texts alone.
        let is_certain = self.is_certain && self.tokens.saturating_mul(8) <= self.text_total();
        let prompt = estimated.map(|estimated| LearnedPrompt { estimated, is_certain });
        Self { prompt, least: 0, ..Self::new(self.tariff) }
    }

    /// What the prompt was estimated at, where its true length says something about texts.
    pub(crate) const fn prompt(&self) -> Option<LearnedPrompt> {
        self.prompt
    }

    /// Whether texts are estimated by their classes.
    fn is_estimated(&self) -> bool {
        self.tariff.tokenizer == Tokenizer::Characters
            && self.tariff.estimate == EstimateMode::Default
    }

    /// Whether nothing may be left out.
    pub(crate) fn is_upper_bound(&self) -> bool {
        self.tariff.estimate == EstimateMode::UpperBound
    }

    /// A string of JSON; anything else is none.
    pub(crate) fn text(&mut self, value: Value<'_>) {
        if let Some(text) = value.string() {
            self.source(&text);
        }
    }

    /// A text as it is.
    pub(crate) fn source(&mut self, text: &str) {
        let tokens = match (self.tariff.tokenizer, self.tariff.estimate) {
            (Tokenizer::Characters, EstimateMode::Default) => {
                return self.classes.text(text, self.least);
            }
            (Tokenizer::Characters, EstimateMode::UpperBound) => self.bound(text),
            (tokenizer, _) => count(tokenizer, text),
        };
        self.tokens(tokens);
    }

    fn bound(&mut self, text: &str) -> u64 {
        self.bounded = self.bounded.saturating_add(text.len());
        if self.bounded > MAX_BOUNDED_BYTES { text.len() as u64 } else { upper_bound(text) }
    }

    /// A message begins.
    pub(crate) const fn message(&mut self) {
        self.tokens(self.tariff.tokens_per_message);
    }

    /// Something that is no text.
    pub(crate) const fn image(&mut self) {
        self.is_text = false;
        self.tokens(self.tariff.tokens_per_image);
    }

    /// Images of this request are made so large ([`super::resolution`]).
    pub(crate) const fn scale_images(&mut self, scale: u64) {
        self.image_scale = scale;
    }

    /// An image of which the request says how large it is, with so many characters of it in the request itself.
    pub(crate) fn scaled_image(&mut self, scale: u64, characters: u64) {
        let scale = match scale.max(self.image_scale) {
            u64::MAX => self.tariff.tokens_per_document,
            scale => scale,
        };
        self.media(characters);
        self.tokens(scale.saturating_sub(self.tariff.tokens_per_image));
    }

    /// An item refers to one that the upstream keeps.
    pub(crate) const fn refer(&mut self) {
        self.refers = true;
    }

    /// Whether one does. All of them are of one history.
    pub(crate) const fn refers(&self) -> bool {
        self.refers
    }

    /// A recording or a file, with so many characters of it in the request itself.
    pub(crate) const fn media(&mut self, characters: u64) {
        self.image();
        self.tokens(characters / MEDIA_CHARACTERS_PER_TOKEN);
    }

    /// The same, where so many tokens are known of it.
    pub(crate) fn recording(&mut self, characters: u64, tokens: u64) {
        self.media(characters);
        self.tokens(tokens.saturating_sub(characters / MEDIA_CHARACTERS_PER_TOKEN));
    }

    /// An image or a recording that a model made, in so many characters.
    pub(crate) const fn written_media(&mut self, characters: u64) {
        self.tokens(characters / MEDIA_CHARACTERS_PER_TOKEN);
    }

    /// A document whose length is not known here, with so many characters of it in the request itself.
    pub(crate) const fn document(&mut self, characters: u64) {
        self.is_text = false;
        self.tokens(self.tariff.tokens_per_document);
        self.tokens(characters / MEDIA_CHARACTERS_PER_TOKEN);
    }

    /// So many documents that the upstream fetches or keeps.
    pub(crate) const fn documents(&mut self, count: u64) {
        self.is_text = false;
        self.tokens(self.tariff.tokens_per_document.saturating_mul(count));
    }

    /// A prompt that is a tensor, in so many characters. One that is sparse, compressed or repeats its rows has more tokens
    /// than its length says, so it counts as a document at least.
    pub(crate) fn tensor(&mut self, characters: u64) {
        self.is_text = false;
        let stored = characters / TENSOR_CHARACTERS_PER_TOKEN + 1;
        self.tokens(stored.max(self.tariff.tokens_per_document));
    }

    /// A file that is text, with so many characters of base64 in the request itself. A token is two bytes, or at least one
    /// where nothing may be left out.
    pub(crate) fn text_file(&mut self, characters: u64) {
        let bytes = characters.saturating_mul(3).div_ceil(4);
        self.image();
        self.tokens(if self.is_upper_bound() { bytes } else { bytes.div_ceil(2) });
    }

    /// An upstream may not read a part of this prompt: a low true length says nothing about other texts.
    pub(crate) const fn uncertain(&mut self) {
        self.is_certain = false;
    }

    /// Whether it is texts, and nothing whose kind or length is not known here.
    pub(crate) const fn is_text(&self) -> bool {
        self.is_text
    }

    /// The true length of this prompt says nothing about other texts.
    pub(crate) const fn skip_learning(&mut self) {
        self.is_text = false;
    }

    /// Whether a label of so many bytes is free.
    pub(crate) const fn has_free_label(&mut self, bytes: usize) -> bool {
        let is_free = bytes <= self.free_labels;
        self.free_labels = self.free_labels.saturating_sub(bytes);
        is_free
    }

    /// A conversation that the upstream keeps.
    pub(crate) const fn history(&mut self) {
        self.is_text = false;
        self.tokens(self.tariff.history_tokens);
    }

    /// Tokens that are counted already.
    pub(crate) const fn tokens(&mut self, count: u64) {
        self.tokens = self.tokens.saturating_add(count);
    }

    /// A text that was not kept: characters that are counted as ASCII letters, whatever the tokenizer, and what all others
    /// cost by their scripts.
    pub(crate) const fn characters(&mut self, letters: u64, others: Milli) {
        self.classes.letters(letters, others);
    }

    /// All of it. A part of a token is one.
    pub(crate) const fn total(&self) -> u64 {
        self.tokens.saturating_add(self.classes.total().div_ceil(1_000))
    }

    /// What texts were estimated at by their characters, without pictures, recordings and what a tokenizer counted.
    pub(crate) const fn text_total(&self) -> u64 {
        self.classes.total().div_ceil(1_000)
    }

    /// All of it, with texts corrected by what earlier ones had: so many thousandths of their estimate.
    pub(crate) const fn corrected(&self, thousandths: u64) -> u64 {
        let texts = self.classes.total().saturating_mul(thousandths).div_ceil(1_000_000);
        self.tokens.saturating_add(texts)
    }
}

#[cfg(feature = "tokenizers")]
fn count(tokenizer: Tokenizer, text: &str) -> u64 {
    let encoder = match tokenizer {
        Tokenizer::Characters => return text.chars().count() as u64,
        Tokenizer::Cl100k => bpe_openai::cl100k_base(),
        Tokenizer::O200k => bpe_openai::o200k_base(),
    };
    encoder.count(text) as u64
}

/// Without vocabularies none is ever asked: the options are refused.
#[cfg(not(feature = "tokenizers"))]
fn count(_tokenizer: Tokenizer, text: &str) -> u64 {
    text.chars().count() as u64
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[test]
    fn characters_make_tokens_and_a_part_of_one_is_one() {
        let mut sink = TextSink::new(Tariff::default());
        assert_eq!(sink.total(), 0);
        sink.text(parse(r#""abcde""#).unwrap());
        assert_eq!(sink.total(), 2);
        sink.text(parse(r#""fghi jkl""#).unwrap());
        assert_eq!(sink.total(), 4, "texts are counted together");
        sink.message();
        sink.image();
        sink.tokens(7);
        sink.source("ab");
        assert_eq!(sink.total(), 5 + 4 + 1_000 + 7, "a text is a token at least");
        sink.text(parse("12345").unwrap());
        assert_eq!(sink.total(), 5 + 4 + 1_000 + 7, "a number is no text");
    }

    #[test]
    fn corrections_apply_to_texts_alone() {
        let mut sink = TextSink::new(Tariff::default());
        sink.source(&"abc ".repeat(100));
        sink.tokens(10);
        assert_eq!((sink.total(), sink.corrected(500), sink.corrected(2_000)), (110, 60, 210));
        let learned = LearnedPrompt { estimated: 110, is_certain: true };
        assert_eq!(sink.for_answer().prompt(), Some(learned));
        sink.image();
        assert_eq!(sink.for_answer().prompt(), None, "an image says nothing about texts");
        let tariff = Tariff { estimate: EstimateMode::UpperBound, ..Tariff::default() };
        let mut bound = TextSink::new(tariff);
        bound.source("Hello, world!");
        assert_eq!((bound.total(), bound.corrected(500)), (4, 4));
        assert_eq!(bound.for_answer().prompt(), None, "a bound is not corrected");
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn tokenizers_count_as_their_models_do() {
        for (tokenizer, tokens) in [(Tokenizer::Cl100k, 4), (Tokenizer::O200k, 4)] {
            let mut sink = TextSink::new(Tariff { tokenizer, ..Tariff::default() });
            sink.text(parse(r#""Hello, world!""#).unwrap());
            assert_eq!(sink.total(), tokens);
        }
    }
}
