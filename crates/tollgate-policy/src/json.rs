//! JSON documents, read several times faster than as YAML: rule sets travel between nodes as JSON.
//!
//! What is not plainly JSON is left to the YAML reader, which says what is wrong with it. Both make the
//! same tree, with the same places.

use crate::node::{Builder, Frame, Kind, Node, Spot};

/// Reads a document that is a JSON object; `None` where it is anything else.
pub(crate) fn read(text: &str) -> Option<Node> {
    let mut reader = Reader { text, at: 0, line: 1, column: 1 };
    reader.skip_blank();
    if reader.peek()? != b'{' {
        return None;
    }
    let mut builder = Builder::default();
    reader.value(&mut builder)?;
    while builder.is_open() {
        reader.step(&mut builder)?;
    }
    reader.skip_blank();
    if reader.peek().is_some() {
        return None;
    }
    builder.into_root()
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    /// In characters, from 1.
    column: u32,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes one byte, which is a character of its own.
    fn take(&mut self, expected: u8) -> Option<()> {
        if self.peek()? != expected {
            return None;
        }
        self.at += 1;
        self.column += 1;
        Some(())
    }

    const fn spot(&self) -> Spot {
        Spot { line: self.line, column: self.column }
    }

    fn skip_blank(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.column += 1,
                b'\n' => (self.line, self.column) = (self.line + 1, 1),
                // Part of a line break; one that stands alone is left to the YAML reader.
                b'\r' if self.text.as_bytes().get(self.at + 1) == Some(&b'\n') => {}
                _ => return,
            }
            self.at += 1;
        }
    }

    /// What comes next in the innermost list or map: its end, or another member.
    fn step(&mut self, builder: &mut Builder) -> Option<()> {
        let (close, is_empty) = builder.innermost()?;
        self.skip_blank();
        if self.peek()? == close {
            self.take(close)?;
            return builder.close().ok();
        }
        if !is_empty {
            self.take(b',')?;
            self.skip_blank();
        }
        if close == b'}' {
            let at = self.spot();
            let key = self.string()?;
            builder
                .complete(Node { at, kind: Kind::Scalar { text: key, plain: false } }, 0)
                .ok()?;
            self.skip_blank();
            self.take(b':')?;
            self.skip_blank();
        }
        self.value(builder)
    }

    /// A scalar, or the beginning of a list or a map.
    fn value(&mut self, builder: &mut Builder) -> Option<()> {
        let at = self.spot();
        let kind = match self.peek()? {
            b'{' => {
                self.take(b'{')?;
                let frame = Frame::Map { at, anchor: 0, entries: Vec::new(), key: None };
                return builder.open(frame, at).ok();
            }
            b'[' => {
                self.take(b'[')?;
                let frame = Frame::List { at, anchor: 0, items: Vec::new() };
                return builder.open(frame, at).ok();
            }
            b'"' => Kind::Scalar { text: self.string()?, plain: false },
            _ => Kind::Scalar { text: self.word()?.to_owned(), plain: true },
        };
        builder.complete(Node { at, kind }, 0).ok()
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self) -> Option<&'t str> {
        let rest = self.text.get(self.at..)?;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = rest.bytes().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        let word = rest.get(..length)?;
        if !matches!(word, "true" | "false" | "null") && !is_number(word) {
            return None;
        }
        self.at += length;
        self.column += length as u32;
        Some(word)
    }

    fn string(&mut self) -> Option<String> {
        self.take(b'"')?;
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => {
                    let text = self.text.get(start..self.at)?.to_owned();
                    self.take(b'"')?;
                    return Some(text);
                }
                b'\\' => return self.string_with_escapes(start),
                0..0x20 => return None,
                byte => self.pass(byte),
            }
        }
    }

    /// Passes over a byte of a string; those that go on with a character take no column.
    fn pass(&mut self, byte: u8) {
        self.at += 1;
        self.column += u32::from(byte & 0xC0 != 0x80);
    }

    /// The rest of a string from its first backslash on.
    fn string_with_escapes(&mut self, start: usize) -> Option<String> {
        let mut text = self.text.get(start..self.at)?.to_owned();
        let mut from = self.at;
        loop {
            match self.peek()? {
                b'"' => {
                    text.push_str(self.text.get(from..self.at)?);
                    self.take(b'"')?;
                    return Some(text);
                }
                b'\\' => {
                    text.push_str(self.text.get(from..self.at)?);
                    self.take(b'\\')?;
                    text.push(self.escaped()?);
                    from = self.at;
                }
                0..0x20 => return None,
                byte => self.pass(byte),
            }
        }
    }

    /// The character that an escape stands for. Those beyond the basic plane are left to the YAML
    /// reader.
    fn escaped(&mut self) -> Option<char> {
        let letter = self.peek()?;
        let character = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let digits = self.text.get(self.at + 1..self.at + 5)?;
                let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
                self.at += 4;
                self.column += 4;
                char::from_u32(code)?
            }
            _ => return None,
        };
        self.at += 1;
        self.column += 1;
        Some(character)
    }
}

/// A number as JSON writes them.
fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let word = word.strip_prefix('-').unwrap_or(word);
    let (mantissa, exponent) = match word.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (word, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|power| digits(power.strip_prefix(['+', '-']).unwrap_or(power)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::read_yaml;
    use crate::problem::Report;

    /// Both readers' trees, with all places.
    fn both(text: &str) -> (Option<String>, Option<String>) {
        let mut report = Report::new("t");
        let yaml = read_yaml(text, &mut report);
        (read(text).map(|node| format!("{node:?}")), yaml.map(|node| format!("{node:?}")))
    }

    fn document() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::{Value, json};
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(|number: f64| json!(number)),
            "[a-z \\-:#{}\\[\\],\"\\\\/\u{e9}\u{4e2d}\u{1f600}\n\t]{0,8}".prop_map(Value::from),
        ];
        let tree = leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::hash_map("[a-z\u{e9}\"]{1,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        tree.prop_map(|tree| json!({ "rules": tree }))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn both_readers_make_the_same_tree(document in document(), pretty in any::<bool>()) {
            let text = if pretty {
                serde_json::to_string_pretty(&document).unwrap()
            } else {
                document.to_string()
            };
            let (json, yaml) = both(&text);
            prop_assert!(json.is_some(), "{}", text);
            prop_assert_eq!(json, yaml, "{}", text);
        }
    }

    #[test]
    fn what_is_not_json_is_left_to_the_other_reader() {
        for text in [
            "",
            "[]",
            "rules: []",
            "{a: 1}",
            "{\"a\": 1,}",
            "{\"a\": 01}",
            "{\"a\": .5}",
            "{\"a\": 1e}",
            "{\"a\": tru}",
            "{\"a\" 1}",
            "{\"a\": 1} x",
            "{\"a\": 1}\n---\n{}",
            "{\"a\": 1 # why\n}",
            "{\"a\": \"\\x41\"}",
            "{\"a\": \"\\u12\"}",
            "{\"a\": \"x\ny\"}",
            "{\"a\": 1",
            "{\"a\": &b 1}",
            "\u{feff}{}",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
        assert!(read(&format!("{{\"a\":{}", "[".repeat(100))).is_none());
    }

    #[test]
    fn repeated_fields_and_places_are_the_same() {
        for text in [
            "{\"a\":1,\"a\":{\"b\":[]}}",
            " {\r\n\t\"\u{4e2d}\" : \"\\u00e9\\/\" ,\n\"b\":-0.5e+3}\n",
        ] {
            let (json, yaml) = both(text);
            assert!(json.is_some(), "{text}");
            assert_eq!(json, yaml, "{text}");
        }
    }
}
