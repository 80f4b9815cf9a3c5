//! Cuts a text into pieces as the tokenizers do, and bounds the tokens of each.

use super::merge::Merge;
use super::table::{MAX_ENTRY_BYTES, Table, table};

/// Runs of spaces, of tabs and of line feeds up to these lengths are entries.
const SPACES: usize = 79;
const TABS: usize = 20;
const LINE_FEEDS: usize = 10;

/// From here on in a run of letters and digits, each byte counts as a token: no word is that long, and every token has a
/// byte.
const MAX_WORD_BYTES: usize = 128;

/// What may follow an apostrophe as an ending of its own.
const ENDINGS: [&str; 7] = ["s", "t", "re", "ve", "m", "ll", "d"];

/// The most tokens that a text has in `cl100k_base` and in `o200k_base`. Takes time linear in its length.
pub fn upper_bound(text: &str) -> u64 {
    let mut walk = Walk { table: table(), text, at: 0, prefix: 0, plain: 0, total: 0 };
    while walk.at < text.len() {
        walk.step();
    }
    let left = walk.take_prefix();
    walk.total + walk.white(left)
}

/// How a piece may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Number,
    LineEnd,
    White,
    Mark,
}

fn kind(letter: char) -> Kind {
    match letter {
        'a'..='z' | 'A'..='Z' => Kind::Letter,
        '0'..='9' => Kind::Number,
        '\n' | '\r' => Kind::LineEnd,
        _ if letter.is_whitespace() => Kind::White,
        _ if letter.is_numeric() => Kind::Number,
        _ if letter.is_alphabetic() => Kind::Letter,
        _ => Kind::Mark,
    }
}

struct Walk<'t> {
    table: &'static Table,
    text: &'t str,
    at: usize,
    /// Bytes before `at` that belong to the next piece if that can begin with them: the last white space.
    prefix: usize,
    /// Up to here everything is known to be of ASCII.
    plain: usize,
    total: u64,
}

impl<'t> Walk<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn slice(&self, start: usize, end: usize) -> &'t str {
        self.text.get(start..end).unwrap_or_default()
    }

    fn next(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take_prefix(&mut self) -> &'t str {
        let start = self.at - std::mem::take(&mut self.prefix);
        self.slice(start, self.at)
    }

    /// Counts the next piece or pieces.
    fn step(&mut self) {
        let Some(first) = self.next() else { return };
        match kind(first) {
            Kind::White | Kind::LineEnd => self.white_run(),
            _ if self.is_slow() => {
                if !self.listed_word() {
                    self.slow_run();
                }
            }
            Kind::Number => self.number(),
            Kind::Letter => self.word(0),
            Kind::Mark => self.marks(),
        }
    }

    /// Whether what comes up to the next white space or number is not all of ASCII. Looks at each byte once.
    fn is_slow(&mut self) -> bool {
        if !self.slice(self.at - self.prefix, self.at).is_ascii() {
            return true;
        }
        if self.at < self.plain {
            return false;
        }
        let ends = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_digit();
        let mut run =
            self.rest().bytes().enumerate().skip_while(|(place, byte)| *place == 0 && ends(*byte));
        let end = run.find(|(_, byte)| ends(*byte) || !byte.is_ascii());
        if end.is_some_and(|(_, byte)| !byte.is_ascii()) {
            return true;
        }
        self.plain = self.at + end.map_or(self.rest().len(), |(place, _)| place);
        false
    }

    /// A run of white space: a piece up to the last line end, a piece of all that follows but the last character, and
    /// that one, which belongs to what comes next.
    fn white_run(&mut self) {
        let run = self.rest();
        let length = run.find(|it: char| !it.is_whitespace()).unwrap_or(run.len());
        let (run, is_last) = (run.get(..length).unwrap_or_default(), length == run.len());
        let lines = run.rfind(['\n', '\r']).map_or(0, |place| place + 1);
        let (lines, tail) = run.split_at_checked(lines).unwrap_or((run, ""));
        let last = if is_last { 0 } else { tail.chars().next_back().map_or(0, char::len_utf8) };
        let tail = tail.get(..tail.len() - last).unwrap_or_default();
        self.total += self.white(lines) + self.white(tail);
        self.at += length;
        self.prefix = last;
    }

    /// A piece of white space.
    fn white(&self, piece: &str) -> u64 {
        let Some(first) = piece.bytes().next() else { return 0 };
        if self.table.has(piece.as_bytes()) {
            return 1;
        }
        let known = match first {
            b' ' => SPACES,
            b'\t' => TABS,
            b'\n' => LINE_FEEDS,
            _ => 0,
        };
        if known > 0 && piece.bytes().all(|byte| byte == first) {
            // Two neighbours are together longer than the longest entry.
            return 2 * (piece.len() / (known + 1)) as u64 + 1;
        }
        Merge::of(self.table, piece.as_bytes())
    }

    /// Digits, up to three in a piece; all such pieces are entries.
    fn number(&mut self) {
        let prefix = self.take_prefix();
        self.total += self.white(prefix);
        let rest = self.rest();
        let length = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
        if rest.get(length..).and_then(|it| it.chars().next()).is_some_and(char::is_numeric) {
            self.slow_run();
            return;
        }
        self.total += length.div_ceil(3) as u64;
        self.at += length;
    }

    /// A run of letters, with the white space before it or with a mark of one byte that was stepped over already.
    fn word(&mut self, mark: usize) {
        let white = std::mem::take(&mut self.prefix);
        let start = self.at - white.max(mark);
        let rest = self.rest();
        let length = rest.find(|it: char| !it.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (run, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        let (begin, end) = (self.at, self.at + length);
        if length > MAX_WORD_BYTES {
            self.total += (end - start) as u64;
            self.at = end;
            return;
        }
        if after.strip_prefix('\'').is_some_and(begins_with_ending) {
            // To one of the tokenizers the ending belongs to the word.
            self.at = begin - mark;
            self.prefix = white;
            self.slow_run();
            return;
        }
        self.total += self.letters(self.slice(start, end), run);
        self.at = end;
    }

    /// The tokens of letters with what stands before them. `cl100k_base` makes one piece of them, `o200k_base` one of each
    /// part in mixed case.
    fn letters(&self, whole: &str, run: &str) -> u64 {
        let mut parts = parts(run).map(str::len);
        let first = whole.len() - run.len() + parts.next().unwrap_or(0);
        if first == whole.len() {
            return self.piece(whole);
        }
        let mut cut = self.piece(whole.get(..first).unwrap_or_default());
        let mut from = first;
        for length in parts {
            cut += self.piece(whole.get(from..from + length).unwrap_or_default());
            from += length;
        }
        cut.max(Merge::of(self.table, whole.as_bytes()))
    }

    /// The tokens of a piece.
    fn piece(&self, piece: &str) -> u64 {
        if self.table.has(piece.as_bytes()) { 1 } else { Merge::of(self.table, piece.as_bytes()) }
    }

    /// A run of marks, with the space before it and the line ends after it; or one mark that belongs to a word.
    fn marks(&mut self) {
        let rest = self.rest();
        let is_mark = |it: char| it.is_ascii() && kind(it) == Kind::Mark;
        let length = rest.find(|it: char| !is_mark(it)).unwrap_or(rest.len());
        let after = rest.get(length..).unwrap_or_default();
        let has_space = self.slice(self.at - self.prefix, self.at) == " ";
        if length == 1 && !has_space && after.starts_with(|it: char| it.is_ascii_alphabetic()) {
            let prefix = self.take_prefix();
            self.total += self.white(prefix);
            self.at += 1;
            if rest.starts_with('\'') && begins_with_ending(after) {
                self.at -= 1;
                self.slow_run();
            } else {
                self.word(1);
            }
            return;
        }
        let lines = after.find(|it: char| !matches!(it, '\n' | '\r')).unwrap_or(after.len());
        if lines > 0 && after.get(lines..).is_some_and(|it| it.starts_with('/')) {
            self.slow_run();
            return;
        }
        if !has_space {
            let prefix = self.take_prefix();
            self.total += self.white(prefix);
        }
        let start = self.at - self.take_prefix().len();
        self.at += length + lines;
        self.total += self.piece(self.slice(start, self.at));
    }

    /// A word that is an entry with the space before it, where both tokenizers are sure to make it a piece.
    fn listed_word(&mut self) -> bool {
        let prefix = self.slice(self.at - self.prefix, self.at);
        let rest = self.rest();
        let start = rest.find(|it: char| !is_capital(it)).unwrap_or(rest.len());
        let small = rest.get(start..).unwrap_or_default();
        let small = small.char_indices().take(MAX_ENTRY_BYTES).find(|(_, it)| !is_sure(*it));
        let Some((length, next)) = small else { return false };
        let is_end = next.is_whitespace() || (next.is_ascii_punctuation() && next != '\'');
        let end = self.at + start + length;
        let word = self.slice(self.at - self.prefix, end);
        let is_piece = matches!(prefix, "" | " ") && is_end && self.table.has(word.as_bytes());
        if !is_piece || end == self.at {
            return false;
        }
        self.prefix = 0;
        self.at = end;
        self.total += 1;
        true
    }

    /// What is cut differently by the two tokenizers, or has characters outside of ASCII: everything up to the next
    /// white space or number, and the line ends that may belong to it.
    fn slow_run(&mut self) {
        let mut merge = Merge::new(self.table);
        let prefix = self.take_prefix();
        let mut last = [' '; 3];
        let mut is_first = true;
        for byte in prefix.bytes() {
            merge.push(byte, false);
        }
        if let Some(white) = prefix.chars().next() {
            last = [' ', ' ', white];
        }
        loop {
            for letter in self.rest().chars() {
                let is_new_number = letter.is_ascii_digit() && !before(last).is_numeric();
                if letter.is_whitespace() || (is_new_number && !is_first) {
                    break;
                }
                push(&mut merge, letter, !is_joined(last, letter));
                last = shifted(last, letter);
                self.at += letter.len_utf8();
                is_first = false;
            }
            // Line ends belong to marks before them, and where they do, to what comes up to the last one.
            let rest = self.rest();
            if is_sure(before(last)) || !rest.starts_with(char::is_whitespace) {
                break;
            }
            let white = rest.find(|it: char| !it.is_whitespace()).unwrap_or(rest.len());
            let white = rest.get(..white).unwrap_or_default();
            let lines = white.rfind(['\n', '\r']).map_or(0, |place| place + 1);
            for letter in white.get(..lines).unwrap_or_default().chars() {
                push(&mut merge, letter, true);
                last = shifted(last, letter);
            }
            self.at += lines;
            let is_slash = self.rest().starts_with('/');
            if lines == 0 || !is_slash {
                break;
            }
        }
        self.total += merge.total();
    }
}

const fn before([.., last]: [char; 3]) -> char {
    last
}

const fn shifted([_, second, third]: [char; 3], next: char) -> [char; 3] {
    [second, third, next]
}

fn push(merge: &mut Merge<'_>, letter: char, may_cut: bool) {
    let mut bytes = [0; 4];
    for (place, byte) in letter.encode_utf8(&mut bytes).bytes().enumerate() {
        merge.push(byte, may_cut && place == 0);
    }
}

/// Whether no tokenizer cuts between the last of these and the next: both are sure to be letters of one word, and no
/// ending of its own ends here.
fn is_joined(last: [char; 3], next: char) -> bool {
    let [.., before] = last;
    let after_capital = before == ' ' || is_capital(before);
    let is_joined = match next {
        _ if is_sure(next) => after_capital || is_sure(before),
        _ => is_capital(next) && after_capital,
    };
    is_joined && !last.contains(&'\'')
}

/// Whether a character is a capital to both tokenizers.
fn is_capital(letter: char) -> bool {
    letter < '\u{588}' && letter.is_uppercase()
}

/// Whether a character is a letter to both tokenizers, and none before which a word in mixed case is cut.
fn is_sure(letter: char) -> bool {
    match letter {
        'a'..='z' => true,
        '\u{345}' => false,
        '\u{80}'..='\u{587}' if letter.is_lowercase() => true,
        // Hebrew, Arabic, Devanagari, Bengali, Thai, Georgian, Ethiopic, Japanese, Chinese, Korean: letters alone.
        '\u{5d0}'..='\u{5ea}'
        | '\u{620}'..='\u{64a}'
        | '\u{671}'..='\u{6d3}'
        | '\u{904}'..='\u{939}'
        | '\u{985}'..='\u{9b9}'
        | '\u{a05}'..='\u{a39}'
        | '\u{a85}'..='\u{ab9}'
        | '\u{b85}'..='\u{bb9}'
        | '\u{c05}'..='\u{c39}'
        | '\u{c85}'..='\u{cb9}'
        | '\u{d05}'..='\u{d39}'
        | '\u{d85}'..='\u{dc6}'
        | '\u{e01}'..='\u{e30}'
        | '\u{e32}'
        | '\u{e40}'..='\u{e46}'
        | '\u{e81}'..='\u{eb0}'
        | '\u{f40}'..='\u{f6c}'
        | '\u{1000}'..='\u{102a}'
        | '\u{10d0}'..='\u{10fa}'
        | '\u{1200}'..='\u{135a}'
        | '\u{1780}'..='\u{17b3}'
        | '\u{1820}'..='\u{1878}'
        | '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{30fc}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' => letter.is_alphabetic(),
        _ => false,
    }
}

/// The parts of a run of ASCII letters: capitals, then small letters.
fn parts(run: &str) -> impl Iterator<Item = &str> {
    let mut rest = run;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let capitals = rest.find(|it: char| !it.is_ascii_uppercase()).unwrap_or(rest.len());
        let small = rest.get(capitals..).unwrap_or_default();
        let small = small.find(|it: char| !it.is_ascii_lowercase()).unwrap_or(small.len());
        let (part, left) = rest.split_at_checked(capitals + small)?;
        rest = left;
        Some(part)
    })
}

/// Whether letters behind an apostrophe begin like an ending.
fn begins_with_ending(letters: &str) -> bool {
    ENDINGS.iter().any(|ending| {
        letters.get(..ending.len()).is_some_and(|start| start.eq_ignore_ascii_case(ending))
    })
}
