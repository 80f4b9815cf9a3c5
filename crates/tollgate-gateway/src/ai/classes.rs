//! How many tokens a text is likely to have, by the scripts of its characters.

/// A thousand of these are a token.
pub(super) type Milli = u64;

/// What a character costs, up to and including the character named. Between what `cl100k_base` and `o200k_base` make of
/// the words of `tests/words.txt`, which differ most for the scripts that the older one hardly knows.
const RATES: [(char, Milli); 55] = [
    ('\u{bf}', 900),
    ('\u{24f}', 750),   // Latin with accents
    ('\u{36f}', 1_000), // combining accents
    ('\u{3ff}', 620),   // Greek
    ('\u{52f}', 400),   // Cyrillic
    ('\u{58f}', 900),   // Armenian
    ('\u{5ff}', 650),   // Hebrew
    ('\u{6ff}', 560),   // Arabic
    ('\u{74f}', 1_700), // Syriac
    ('\u{77f}', 900),   // more Arabic
    ('\u{8ff}', 1_800),
    ('\u{97f}', 620),    // Devanagari
    ('\u{9ff}', 720),    // Bengali
    ('\u{a7f}', 1_050),  // Gurmukhi
    ('\u{aff}', 850),    // Gujarati
    ('\u{b7f}', 1_700),  // Oriya
    ('\u{bff}', 700),    // Tamil
    ('\u{d7f}', 850),    // Telugu, Kannada, Malayalam
    ('\u{dff}', 1_150),  // Sinhala
    ('\u{e7f}', 640),    // Thai
    ('\u{eff}', 1_900),  // Lao
    ('\u{fff}', 1_700),  // Tibetan
    ('\u{109f}', 1_060), // Myanmar
    ('\u{10ff}', 950),   // Georgian
    ('\u{11ff}', 2_400), // Hangul in parts
    ('\u{139f}', 2_200), // Ethiopic
    ('\u{13ff}', 2_700), // Cherokee
    ('\u{177f}', 2_700),
    ('\u{17ff}', 1_000), // Khmer
    ('\u{1dff}', 2_700), // Mongolian and others
    ('\u{1eff}', 850),   // Latin with several accents
    ('\u{1fff}', 1_300), // Greek with several accents
    ('\u{206f}', 900),   // punctuation
    ('\u{2bff}', 1_700), // symbols
    ('\u{2fff}', 2_500),
    ('\u{303f}', 900), // punctuation of Chinese and Japanese
    ('\u{30ff}', 800), // Hiragana, Katakana
    ('\u{33ff}', 2_200),
    ('\u{4dbf}', 2_800), // rare Han
    ('\u{9fff}', 1_000), // Han
    ('\u{abff}', 2_800),
    ('\u{d7a3}', 850), // Hangul
    ('\u{f8ff}', 3_000),
    ('\u{faff}', 2_800),
    ('\u{fe0f}', 1_200), // forms, and what makes a symbol an emoji
    ('\u{feff}', 1_800),
    ('\u{ffef}', 1_300), // full width
    ('\u{ffff}', 2_500),
    ('\u{11fff}', 3_900),
    ('\u{1d3ff}', 3_900), // cuneiform and others
    ('\u{1efff}', 3_300),
    ('\u{1f9ff}', 2_200), // emoji
    ('\u{1faff}', 2_800),
    ('\u{1ffff}', 3_300),
    ('\u{10ffff}', 3_600),
];

/// ASCII: marks, digits, line ends, and spaces behind a space.
const MARK: Milli = 550;
const DIGIT: Milli = 400;
const LINE_END: Milli = 400;
const MORE_SPACE: Milli = 60;

/// Letters and digits in a row up to here are a word; those that follow are data, such as base64.
const LONGEST_WORD: u32 = 24;
const DATA: Milli = 680;

/// What a character outside of ASCII costs.
pub(super) fn rate(letter: char) -> Milli {
    let place = RATES.partition_point(|(last, _)| *last < letter);
    RATES.get(place).map_or(4_000, |(_, rate)| *rate)
}

/// Adds up the characters of texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Classes {
    /// What an ASCII letter costs.
    letter: Milli,
    total: Milli,
    /// Letters and digits in a row so far.
    in_word: u32,
    after_space: bool,
}

impl Classes {
    pub(super) const fn new(characters_per_token: u64) -> Self {
        let each = if characters_per_token == 0 { 1 } else { characters_per_token };
        Self { letter: 1_000 / each, total: 0, in_word: 0, after_space: false }
    }

    pub(super) const fn total(&self) -> Milli {
        self.total
    }

    /// A text that was not kept: its ASCII letters, and what its other characters cost.
    pub(super) const fn letters(&mut self, count: u64, others: Milli) {
        let letters = count.saturating_mul(self.letter);
        self.total = self.total.saturating_add(letters).saturating_add(others);
    }

    /// A text, which costs at least this unless it is empty.
    pub(super) fn text(&mut self, text: &str, least: Milli) {
        (self.in_word, self.after_space) = (0, false);
        let before = self.total;
        for letter in text.chars() {
            let cost = if letter.is_ascii() { self.ascii(letter) } else { self.other(letter) };
            self.total = self.total.saturating_add(cost);
        }
        if !text.is_empty() {
            self.total = self.total.max(before.saturating_add(least));
        }
    }

    fn ascii(&mut self, letter: char) -> Milli {
        let was_space = std::mem::replace(&mut self.after_space, letter == ' ');
        if !letter.is_ascii_alphanumeric() && !matches!(letter, '+' | '/') {
            self.in_word = 0;
        } else {
            self.in_word += 1;
            if self.in_word > LONGEST_WORD {
                return DATA.max(self.letter);
            }
        }
        match letter {
            ' ' if was_space => MORE_SPACE.min(self.letter),
            'a'..='z' | 'A'..='Z' | ' ' => self.letter,
            '0'..='9' => DIGIT.max(self.letter),
            '\n' | '\r' | '\t' => LINE_END.max(self.letter),
            _ => MARK.max(self.letter),
        }
    }

    fn other(&mut self, letter: char) -> Milli {
        (self.in_word, self.after_space) = (0, false);
        rate(letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_order_and_never_above_one_a_byte() {
        assert!(RATES.is_sorted_by(|one, next| one.0 < next.0));
        for (last, rate) in RATES {
            assert!(rate <= 1_000 * last.len_utf8() as u64, "{last:?}");
        }
    }

    #[test]
    fn each_class_has_its_rate() {
        let of = |text: &str| {
            let mut classes = Classes::new(4);
            classes.text(text, 0);
            classes.total()
        };
        assert_eq!(of("abcd efg"), 8 * 250);
        assert_eq!(of("а"), 400);
        assert_eq!(of("中文"), 2_000);
        assert_eq!(of("𒀀"), 3_900);
        assert_eq!(of("a    b"), 3 * 250 + 3 * MORE_SPACE);
        assert_eq!(of(&"aB3+".repeat(20)), of(&"aB3+".repeat(6)) + 56 * DATA);
    }
}
