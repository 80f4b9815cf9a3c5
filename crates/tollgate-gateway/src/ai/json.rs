//! JSON read in place: values are spans of the text that holds them.
//!
//! A client's body goes on byte for byte, so what must be changed in it is changed where it stands, and what need
//! not be read is only stepped over. Nothing is allocated but for texts with escapes that must be compared.

use std::borrow::Cow;
use std::ops::Range;

/// How deep values may lie in each other.
pub(crate) const MAX_DEPTH: u32 = 128;

/// What is wrong with a text that should be JSON, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wrong} at byte {at}")]
pub(crate) struct JsonError {
    pub(crate) wrong: &'static str,
    pub(crate) at: usize,
}

/// A value, by its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value<'a> {
    /// Without what stands around it.
    pub(crate) text: &'a str,
    /// Where it begins in the whole.
    pub(crate) at: usize,
}

/// A member of an object.
#[derive(Debug, Clone)]
pub(crate) struct Member<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) value: Value<'a>,
    /// Where the member begins, at its name.
    pub(crate) at: usize,
}

impl Member<'_> {
    /// Where it ends.
    pub(crate) const fn end(&self) -> usize {
        self.value.at + self.value.text.len()
    }
}

/// The one value that a text is.
pub(crate) fn parse(text: &str) -> Result<Value<'_>, JsonError> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.space();
    if reader.at < text.len() {
        return Err(reader.error("there is more than one value"));
    }
    Ok(value)
}

impl<'a> Value<'a> {
    fn begins_with(self, byte: u8) -> bool {
        self.text.as_bytes().first() == Some(&byte)
    }

    pub(crate) fn is_object(self) -> bool {
        self.begins_with(b'{')
    }

    pub(crate) fn is_array(self) -> bool {
        self.begins_with(b'[')
    }

    pub(crate) fn is_string(self) -> bool {
        self.begins_with(b'"')
    }

    pub(crate) fn is_null(self) -> bool {
        self.begins_with(b'n')
    }

    /// Where it lies in the whole.
    pub(crate) const fn span(self) -> Range<usize> {
        self.at..self.at + self.text.len()
    }

    /// A text's characters as they stand, escapes and all.
    fn raw(self) -> Option<&'a str> {
        self.text.strip_prefix('"')?.strip_suffix('"')
    }

    /// A text.
    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        self.raw().map(unescape)
    }

    /// A whole number from 0 on. One that is written with a fraction of zero, as some clients do, is one too.
    pub(crate) fn whole(self) -> Option<u64> {
        let digits = self.text.split_once('.').map_or(self.text, |(whole, rest)| {
            if rest.bytes().all(|byte| byte == b'0') { whole } else { self.text }
        });
        digits.parse().ok()
    }

    pub(crate) fn boolean(self) -> Option<bool> {
        match self.text {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// An object's members, in order; none where it is no object.
    pub(crate) fn members(self) -> Members<'a> {
        Members(self.inside(b'{'))
    }

    /// An array's elements, in order; none where it is no array.
    pub(crate) fn elements(self) -> Elements<'a> {
        Elements(self.inside(b'['))
    }

    /// The first member of this name.
    pub(crate) fn get(self, name: &str) -> Option<Value<'a>> {
        self.members().find(|member| member.name == name).map(|member| member.value)
    }

    fn inside(self, opening: u8) -> Inside<'a> {
        let is_it = self.begins_with(opening);
        Inside { reader: Reader { text: self.text, at: 1 }, base: self.at, is_over: !is_it }
    }
}

/// Steps through a value that is known to be JSON.
struct Inside<'a> {
    reader: Reader<'a>,
    base: usize,
    is_over: bool,
}

impl Inside<'_> {
    /// Whether there is something more before the end; steps over a comma.
    fn goes_on(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        self.reader.space();
        match self.reader.peek() {
            Some(b',') => {
                self.reader.at += 1;
                self.reader.space();
            }
            None | Some(b']' | b'}') => self.is_over = true,
            Some(_) => {}
        }
        !self.is_over
    }
}

/// The members of an object.
pub(crate) struct Members<'a>(Inside<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let inside = &mut self.0;
        if !inside.goes_on() {
            return None;
        }
        let reader = &mut inside.reader;
        let at = inside.base + reader.at;
        let name = reader.value(0).ok()?.string()?;
        reader.space();
        reader.at += 1;
        let mut value = reader.value(0).ok()?;
        value.at += inside.base;
        Some(Member { name, value, at })
    }
}

/// The elements of an array.
pub(crate) struct Elements<'a>(Inside<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let inside = &mut self.0;
        if !inside.goes_on() {
            return None;
        }
        let mut value = inside.reader.value(0).ok()?;
        value.at += inside.base;
        Some(value)
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// How many bytes were read, so that tests can compare that with the length of a body.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    thread_local! {
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn add(bytes: usize) {
        READ.set(READ.get() + bytes);
    }

    /// What was read since this was called last.
    pub(crate) fn take() -> usize {
        READ.take()
    }
}

impl<'a> Reader<'a> {
    const fn error(&self, wrong: &'static str) -> JsonError {
        JsonError { wrong, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Steps over one value, and checks it.
    fn value(&mut self, depth: u32) -> Result<Value<'a>, JsonError> {
        self.space();
        let start = self.at;
        match self.peek() {
            Some(b'{') => self.container(depth, b'}')?,
            Some(b'[') => self.container(depth, b']')?,
            Some(b'"') => self.string()?,
            Some(b't') => self.word("true")?,
            Some(b'f') => self.word("false")?,
            Some(b'n') => self.word("null")?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(_) => return Err(self.error("no value begins like this")),
            None => return Err(self.error("a value is missing")),
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        #[cfg(test)]
        if depth == 0 {
            work::add(text.len());
        }
        Ok(Value { text, at: start })
    }

    fn container(&mut self, depth: u32, closing: u8) -> Result<(), JsonError> {
        if depth >= MAX_DEPTH {
            return Err(self.error("values lie too deep in each other"));
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(closing) {
            self.at += 1;
            return Ok(());
        }
        loop {
            if closing == b'}' {
                self.space();
                if self.peek() != Some(b'"') {
                    return Err(self.error("a name in quotes is missing"));
                }
                self.string()?;
                self.space();
                if self.peek() != Some(b':') {
                    return Err(self.error("a colon is missing"));
                }
                self.at += 1;
            }
            self.value(depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == closing => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.error("a comma or an end is missing")),
            }
        }
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(0..=0x1f) => return Err(self.error("a control character in a text")),
                Some(_) => self.at += 1,
                None => return Err(self.error("a text does not end")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(self.error("an escape needs four hexadecimal digits"));
                }
                self.at += 5;
            }
            _ => return Err(self.error("there is no such escape")),
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), JsonError> {
        let found = self.text.as_bytes().get(self.at..self.at + word.len());
        if found != Some(word.as_bytes()) {
            return Err(self.error("no value begins like this"));
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.error("a digit is missing")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let leading_zero = self.peek() == Some(b'0');
        let start = self.at;
        self.digits()?;
        if leading_zero && self.at > start + 1 {
            return Err(self.error("a number begins with a zero too many"));
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }
}

fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    // The grammar has been checked: what is left to go wrong is half a surrogate pair, and nothing is named by that.
    let mut quoted = String::with_capacity(raw.len() + 2);
    quoted.push('"');
    quoted.push_str(raw);
    quoted.push('"');
    Cow::Owned(serde_json::from_str(&quoted).unwrap_or_else(|_| raw.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<i32>().prop_map(|number| (f64::from(number) / 8.0).into()),
            ".{0,12}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(".{0,6}", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_json_is_read_as_by_others(value in json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let read = parse(&text).unwrap();
            prop_assert_eq!(read.text, text.as_str());
            if let Some(object) = value.as_object() {
                let members: Vec<Member<'_>> = read.members().collect();
                prop_assert_eq!(members.len(), object.len());
                for member in members {
                    let again: serde_json::Value = serde_json::from_str(member.value.text).unwrap();
                    prop_assert_eq!(&again, &object[member.name.as_ref()]);
                    prop_assert_eq!(&text[member.value.span()], member.value.text);
                    prop_assert!(text[member.at..].starts_with('"'));
                }
            }
            if let Some(array) = value.as_array() {
                prop_assert_eq!(read.elements().count(), array.len());
            }
        }

        #[test]
        fn what_others_refuse_is_refused(text in "[\\[\\]{}\",:0-9a-z\\\\. -]{0,24}") {
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(parse(&text).is_ok(), theirs);
        }
    }

    #[test]
    fn names_are_compared_as_they_are_read() {
        let value = parse(r#"{"mod\u0065l": "a\nb", "n": 2.0, "s": true, "x": null}"#).unwrap();
        assert_eq!(value.get("model").and_then(Value::string).as_deref(), Some("a\nb"));
        assert_eq!(value.get("n").and_then(Value::whole), Some(2));
        assert_eq!(value.get("s").and_then(Value::boolean), Some(true));
        assert!(value.get("x").is_some_and(Value::is_null));
        assert_eq!(value.get("y"), None);
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&deep(MAX_DEPTH as usize)).is_ok());
        assert!(parse(&deep(MAX_DEPTH as usize + 1)).is_err());
        assert!(parse(&"[".repeat(1 << 20)).is_err());
    }
}
