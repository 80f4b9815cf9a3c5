//! Texts that estimates are compared with real tokenizers on: generated, and the same in every run.

use std::fmt::Write as _;

/// What a text is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// English prose, and code.
    Common,
    /// Prose in another language or script.
    Script,
    /// Neither: data, noise.
    Data,
}

/// A text.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) class: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const WORDS: &str = include_str!("words.txt");

/// Our own documents.
const PROSE: [&str; 4] = [
    include_str!("../../../../../README.md"),
    include_str!("../../../../../ARCHITECTURE.md"),
    include_str!("../../../../../docs/ai.md"),
    include_str!("../../../../../docs/envoy.md"),
];

/// Our own sources, in several languages.
const CODE: [&str; 6] = [
    include_str!("../../forward.rs"),
    include_str!("../json.rs"),
    include_str!("../../../../../e2e/tests/ai/clients/client.py"),
    include_str!("../../../../../e2e/tests/ai/clients/client.cjs"),
    include_str!("../../../../../crates/tollgate-server/src/config/tollgate.default.yaml"),
    include_str!("../../../../../scripts/check-house.sh"),
];

/// Blocks of Unicode that random characters are taken from.
const BLOCKS: [(&str, u32, u32); 30] = [
    ("latin-1", 0xa1, 0xff),
    ("latin extended", 0x100, 0x24f),
    ("combining", 0x300, 0x36f),
    ("greek", 0x370, 0x3ff),
    ("cyrillic", 0x400, 0x4ff),
    ("armenian", 0x531, 0x58a),
    ("hebrew", 0x591, 0x5f4),
    ("arabic", 0x600, 0x6ff),
    ("syriac", 0x700, 0x74f),
    ("devanagari", 0x900, 0x97f),
    ("bengali", 0x980, 0x9ff),
    ("tamil", 0xb80, 0xbff),
    ("thai", 0xe00, 0xe5f),
    ("tibetan", 0xf00, 0xfff),
    ("myanmar", 0x1000, 0x109f),
    ("georgian", 0x10a0, 0x10ff),
    ("jamo", 0x1100, 0x11ff),
    ("ethiopic", 0x1200, 0x137f),
    ("khmer", 0x1780, 0x17ff),
    ("punctuation", 0x2000, 0x206f),
    ("symbols", 0x2190, 0x27bf),
    ("kana", 0x3000, 0x30ff),
    ("han", 0x4e00, 0x9fff),
    ("yi", 0xa000, 0xa48c),
    ("hangul", 0xac00, 0xd7a3),
    ("private", 0xe000, 0xf8ff),
    ("full width", 0xff00, 0xffef),
    ("cuneiform", 0x1_2000, 0x1_23ff),
    ("emoji", 0x1_f300, 0x1_faff),
    ("rare han", 0x2_0000, 0x2_a6df),
];

/// Every text.
pub(crate) fn corpus() -> Vec<Sample> {
    let mut random = Random(17);
    let mut all = Vec::new();
    languages(&mut all, &mut random);
    for (class, sources, count) in [("prose", &PROSE[..], 250), ("code", &CODE[..], 500)] {
        for _ in 0..count {
            let source = *random.of(sources);
            let text = slice(source, random.below(source.len()), 20 + random.below(1_500));
            all.push(Sample { class: class.to_owned(), kind: Kind::Common, text });
        }
    }
    for (class, make, count) in GENERATED {
        for _ in 0..count {
            let text = make(&mut random);
            all.push(Sample { class: class.to_owned(), kind: Kind::Data, text });
        }
    }
    for (name, first, last) in BLOCKS {
        for _ in 0..20 {
            let class = "random characters of one block".to_owned();
            let text = block(&mut random, first, last);
            assert!(!text.is_empty(), "{name}");
            all.push(Sample { class, kind: Kind::Data, text });
        }
    }
    let texts: Vec<String> = all.iter().map(|sample| sample.text.clone()).collect();
    for _ in 0..300 {
        let parts = (0..2 + random.below(4)).map(|_| {
            let text = random.of(&texts);
            slice(text, random.below(text.len()), 5 + random.below(60))
        });
        let text = parts.collect::<Vec<_>>().concat();
        all.push(Sample { class: "mixed".to_owned(), kind: Kind::Data, text });
    }
    all
}

/// Some bytes of a text, cut where characters are.
fn slice(text: &str, start: usize, length: usize) -> String {
    text.chars()
        .scan(0, |at, letter| {
            *at += letter.len_utf8();
            Some((*at - letter.len_utf8(), letter))
        })
        .skip_while(|(at, _)| *at < start)
        .take_while(|(at, _)| *at < start + length)
        .map(|(_, letter)| letter)
        .collect()
}

fn languages(all: &mut Vec<Sample>, random: &mut Random) {
    for line in WORDS.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.splitn(4, '|').collect();
        let words: Vec<&str> = fields[3].split_whitespace().collect();
        let separator = if fields[2] == "space" { " " } else { "" };
        let kind = if fields[1] == "english" { Kind::Common } else { Kind::Script };
        for _ in 0..80 {
            let text = sentences(random, &words, separator);
            all.push(Sample { class: fields[1].to_owned(), kind, text });
        }
    }
}

fn sentences(random: &mut Random, words: &[&str], separator: &str) -> String {
    let mut text = String::new();
    for place in 0..5 + random.below(120) {
        let word = *random.of(words);
        if place > 0 && text.ends_with(['.', '?']) {
            text.push_str(if separator.is_empty() { "" } else { " " });
            let mut letters = word.chars();
            text.extend(letters.next().into_iter().flat_map(char::to_uppercase));
            text.push_str(letters.as_str());
        } else {
            text.push_str(if place > 0 { separator } else { "" });
            text.push_str(word);
        }
        match random.below(40) {
            0..3 => text.push('.'),
            3 => text.push_str(", "),
            4 => text.push('?'),
            5 => text.push_str(".\n\n"),
            6 => write!(text, " {}", random.below(3_000)).expect("a text"),
            _ => {}
        }
    }
    text
}

type Make = fn(&mut Random) -> String;

const GENERATED: [(&str, Make, usize); 13] = [
    ("json", json, 200),
    ("base64", |random| letters(random, BASE64, 20, 600), 100),
    ("hexadecimal", |random| letters(random, b"0123456789abcdef", 8, 300), 60),
    ("digits", |random| letters(random, b"0123456789", 1, 200), 60),
    ("numbers", |random| letters(random, b"0123456789 .,-+e\n", 5, 300), 60),
    ("white space", |random| letters(random, b"    \n\t\n  \r   x", 1, 400), 80),
    ("runs of one character", one_character, 80),
    ("random ASCII", |random| printable(random, 10, 400), 80),
    ("random letters", |random| letters(random, b"abcdefghijklmnopqrstuvwxyz ", 10, 400), 80),
    ("random mixed case", |random| letters(random, MIXED, 10, 300), 80),
    ("names", names, 120),
    ("quotes", |random| letters(random, b"'''sstrevemlld aeT", 5, 200), 60),
    ("random characters", any_characters, 100),
];

const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const MIXED: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ";

fn letters(random: &mut Random, of: &[u8], least: usize, more: usize) -> String {
    (0..least + random.below(more)).map(|_| char::from(*random.of(of))).collect()
}

fn printable(random: &mut Random, least: usize, more: usize) -> String {
    (0..least + random.below(more)).map(|_| char::from(b' ' + random.below(95) as u8)).collect()
}

fn one_character(random: &mut Random) -> String {
    let all: Vec<char> = "aZ0 \n\t.-=_*#/\\'\"é中😀".chars().collect();
    let letter = *random.of(&all);
    std::iter::repeat_n(letter, 1 + random.below(700)).collect()
}

fn any_characters(random: &mut Random) -> String {
    let letters =
        (0..5 + random.below(150)).filter_map(|_| char::from_u32(random.below(0x3_0000) as u32));
    letters.collect()
}

fn block(random: &mut Random, first: u32, last: u32) -> String {
    let span = (last - first + 1) as usize;
    let letters = (0..5 + random.below(120)).filter_map(|_| {
        if random.below(7) == 0 {
            Some(' ')
        } else {
            char::from_u32(first + random.below(span) as u32)
        }
    });
    letters.collect()
}

fn english() -> Vec<&'static str> {
    let line = WORDS.lines().find(|line| line.starts_with("latin|english")).expect("English");
    line.rsplit('|').next().expect("words").split_whitespace().collect()
}

/// Names as programs have them.
fn names(random: &mut Random) -> String {
    let words = english();
    let mut text = String::new();
    for _ in 0..=random.below(20) {
        let style = random.below(4);
        for part in 0..=random.below(4) {
            let word = *random.of(&words);
            match style {
                0 => write!(text, "{}{word}", if part > 0 { "_" } else { "" }),
                1 => write!(text, "{}{}", word[..1].to_uppercase(), &word[1..]),
                2 if part > 0 => write!(text, "{}{}", word[..1].to_uppercase(), &word[1..]),
                3 => write!(text, "{}_", word.to_uppercase()),
                _ => write!(text, "{word}"),
            }
            .expect("a text");
        }
        let ends = [" ", "(", ".", "; ", ")\n", " = ", "->", "::"];
        text.push_str(ends[random.below(ends.len())]);
    }
    text
}

fn json(random: &mut Random) -> String {
    let value = json_value(random, 3);
    if random.below(2) == 0 {
        value.to_string()
    } else {
        serde_json::to_string_pretty(&value).expect("JSON")
    }
}

fn json_value(random: &mut Random, depth: usize) -> serde_json::Value {
    let words = english();
    match random.below(if depth == 0 { 4 } else { 7 }) {
        0 => random.below(100_000).into(),
        1 => (random.below(2) == 0).into(),
        2 => (0..=random.below(8)).map(|_| *random.of(&words)).collect::<Vec<_>>().join(" ").into(),
        3 => (random.next() as f64 / 1e15).into(),
        4 => (0..random.below(6)).map(|_| json_value(random, depth - 1)).collect(),
        _ => {
            let name = |random: &mut Random| format!("{}_{}", random.of(&words), random.of(&words));
            let members =
                (0..=random.below(6)).map(|_| (name(random), json_value(random, depth - 1)));
            serde_json::Value::Object(members.collect())
        }
    }
}
