//! `Forwarded` (RFC 7239): elements separated by commas, pairs separated by semicolons, values that are tokens or
//! quoted strings.
//!
//! A line is split from the right. The rightmost elements are those that trusted proxies wrote, and each of them is
//! complete in itself, so no quote that a client left open further left changes where they begin. For a well-formed
//! line this is the same split as from the left.

use std::borrow::Cow;

use super::address::{Hop, is_unnamed, node};

/// The longest text that can be an address with a port: `[` IPv6 `]:65535`.
const MAX_NODE_BYTES: usize = 64;

/// The elements of a line, the last first. Commas inside quoted strings separate nothing.
pub(super) struct ElementsFromRight<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> ElementsFromRight<'a> {
    pub(super) const fn new(line: &'a [u8]) -> Self {
        Self { rest: Some(line) }
    }
}

impl<'a> Iterator for ElementsFromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.rest.take()?;
        let mut is_quoted = false;
        for (index, byte) in line.iter().enumerate().rev() {
            match byte {
                b'"' if !is_quoted => is_quoted = true,
                b'"' => is_quoted = is_escaped(line, index),
                b',' if !is_quoted => {
                    let (left, right) = line.split_at_checked(index)?;
                    self.rest = Some(left);
                    return Some(right.get(1..).unwrap_or_default().trim_ascii());
                }
                _ => {}
            }
        }
        Some(line.trim_ascii())
    }
}

/// Whether an odd number of backslashes stands before this byte.
fn is_escaped(line: &[u8], index: usize) -> bool {
    let before = line.get(..index).unwrap_or_default();
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// What an element names after `for=`. An element that does not follow the grammar, or has a parameter twice, is
/// malformed: a proxy that copies what clients send into it without escaping writes such ones.
pub(super) fn element_for(element: &[u8]) -> Hop {
    let Some(pairs) = parse_element(element) else { return Hop::Malformed };
    let Some((_, value)) = pairs.iter().find(|(name, _)| name.eq_ignore_ascii_case(b"for")) else {
        return Hop::Unnamed;
    };
    match std::str::from_utf8(value) {
        Ok(text) if is_unnamed(text) => Hop::Unnamed,
        Ok(text) if text.len() <= MAX_NODE_BYTES => node(text).map_or(Hop::Malformed, Hop::Address),
        _ => Hop::Malformed,
    }
}

/// Whether a line follows the grammar, so that another element can be appended to it.
pub fn is_well_formed_forwarded(line: &[u8]) -> bool {
    ElementsFromRight::new(line)
        .all(|element| element.is_empty() || parse_element(element).is_some())
}

type Pairs<'a> = Vec<(&'a [u8], Cow<'a, [u8]>)>;

/// The most parameters of an element; RFC 7239 knows four.
const MAX_PAIRS: usize = 16;

fn parse_element(element: &[u8]) -> Option<Pairs<'_>> {
    let mut pairs: Pairs<'_> = Vec::new();
    let mut rest = element.trim_ascii();
    loop {
        if !rest.is_empty() && !rest.starts_with(b";") {
            let (name, after) = split_token(rest, is_token_byte)?;
            let (value, after) = parse_value(after.strip_prefix(b"=")?)?;
            if pairs.len() >= MAX_PAIRS || pairs.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
                return None;
            }
            pairs.push((name, value));
            rest = after.trim_ascii_start();
        }
        let Some(after) = rest.strip_prefix(b";") else { break };
        rest = after.trim_ascii_start();
    }
    rest.is_empty().then_some(pairs)
}

fn parse_value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        // Proxies also write a port or an IPv6 address without quotes; neither can be mistaken for a separator.
        let (value, rest) =
            split_token(text, |byte| is_token_byte(byte) || matches!(byte, b':' | b'[' | b']'))?;
        return Some((Cow::Borrowed(value), rest));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((index, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((Cow::Owned(value), quoted.get(index + 1..)?)),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(*byte),
        }
    }
    None
}

fn split_token(text: &[u8], is_part: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| !is_part(*byte)).unwrap_or(text.len());
    text.split_at_checked(end).filter(|(token, _)| !token.is_empty())
}

const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}
