//! How many tokens a text is, and how many a request may come to.

use super::json::Value;

/// How texts become numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tariff {
    /// Characters that make a token, where there is no tokenizer.
    pub characters_per_token: u64,
    /// What a message costs beside its text.
    pub tokens_per_message: u64,
    /// What an image, a recording or a file counts for.
    pub tokens_per_image: u64,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
}

impl Default for Tariff {
    fn default() -> Self {
        Self {
            characters_per_token: 4,
            tokens_per_message: 4,
            tokens_per_image: 1_000,
            tokenizer: Tokenizer::Characters,
        }
    }
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

/// Counts what a model reads or writes.
#[derive(Debug)]
pub(crate) struct TextSink {
    tariff: Tariff,
    characters: u64,
    tokens: u64,
}

impl TextSink {
    /// How many times what it tells may be wrong: characters only tell tokens roughly.
    pub(crate) const fn slack(&self) -> u64 {
        match self.tariff.tokenizer {
            Tokenizer::Characters => 2,
            Tokenizer::Cl100k | Tokenizer::O200k => 1,
        }
    }

    pub(crate) const fn new(tariff: Tariff) -> Self {
        Self { tariff, characters: 0, tokens: 0 }
    }

    /// A text that stands in JSON; anything else is none.
    pub(crate) fn text(&mut self, value: Value<'_>) {
        match self.tariff.tokenizer {
            Tokenizer::Characters => self.characters += value.characters(),
            tokenizer => {
                if let Some(text) = value.string() {
                    self.tokens += count(tokenizer, &text);
                }
            }
        }
    }

    /// A text as it is.
    pub(crate) fn source(&mut self, text: &str) {
        match self.tariff.tokenizer {
            Tokenizer::Characters => self.characters += text.chars().count() as u64,
            tokenizer => self.tokens += count(tokenizer, text),
        }
    }

    /// A message begins.
    pub(crate) const fn message(&mut self) {
        self.tokens = self.tokens.saturating_add(self.tariff.tokens_per_message);
    }

    /// Something that is no text.
    pub(crate) const fn image(&mut self) {
        self.tokens = self.tokens.saturating_add(self.tariff.tokens_per_image);
    }

    /// Tokens that are counted already.
    pub(crate) const fn tokens(&mut self, count: u64) {
        self.tokens = self.tokens.saturating_add(count);
    }

    /// Characters of a text that was not kept. They are counted as such, whatever the tokenizer.
    pub(crate) const fn characters(&mut self, count: u64) {
        self.characters = self.characters.saturating_add(count);
    }

    /// All of it. A part of a token is one.
    pub(crate) fn total(&self) -> u64 {
        let each = self.tariff.characters_per_token.max(1);
        let of_text = self.characters.div_ceil(each);
        self.tokens.saturating_add(of_text)
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
        sink.text(parse(r#""fgh""#).unwrap());
        assert_eq!(sink.total(), 2, "texts are counted together");
        sink.message();
        sink.image();
        sink.tokens(7);
        sink.source("{}");
        assert_eq!(sink.total(), 3 + 4 + 1_000 + 7);
        sink.text(parse("12345").unwrap());
        assert_eq!(sink.total(), 3 + 4 + 1_000 + 7, "a number is no text");
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
