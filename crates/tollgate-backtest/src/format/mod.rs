//! The formats of logs: what one line says.

mod alb;
mod clf;
mod csv;
mod json;

use crate::mapping::Mapping;
use crate::record::{Malformed, Record};

use alb::Alb;
use clf::Clf;
use csv::Csv;
use json::Json;

/// The format of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Found out for each file from its first lines.
    #[default]
    Auto,
    /// nginx's and Apache's combined format.
    Combined,
    /// The common log format.
    Common,
    /// One JSON object in each line: nginx, Envoy, Caddy, Traefik and others.
    Json,
    /// Access logs of AWS application load balancers.
    Alb,
    /// Values separated by commas, semicolons or tabs, named by the first line.
    Csv,
    /// A recording of a node of Tollgate.
    Recording,
}

impl Format {
    /// Every format, with its name.
    pub const ALL: [(&'static str, Self); 7] = [
        ("auto", Self::Auto),
        ("recording", Self::Recording),
        ("combined", Self::Combined),
        ("common", Self::Common),
        ("json", Self::Json),
        ("alb", Self::Alb),
        ("csv", Self::Csv),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, format)| *format == self).map_or("auto", |(name, _)| *name)
    }

    /// The format of this line, if it looks like one. Only the first line of a file can be the header of
    /// a CSV file.
    pub(crate) fn detect(line: &str, mapping: &Mapping, is_first: bool) -> Option<Self> {
        if json::looks_like(line) {
            Some(Self::Json)
        } else if alb::looks_like(line) {
            Some(Self::Alb)
        } else if let Some(is_combined) = clf::looks_like(line) {
            Some(if is_combined { Self::Combined } else { Self::Common })
        } else if is_first && csv::looks_like(line, mapping) {
            Some(Self::Csv)
        } else {
            None
        }
    }
}

/// Reads lines of one format.
pub(crate) enum Parser {
    Clf(Box<Clf>),
    Json(Box<Json>),
    Alb(Box<Alb>),
    Csv(Csv),
}

impl Parser {
    /// A parser for a format; `line` is the header where the format has one. `Err` has the columns of a
    /// header without a time.
    pub(crate) fn new(format: Format, mapping: &Mapping, line: &str) -> Result<Self, String> {
        Ok(match format {
            // Recordings have no lines.
            Format::Auto | Format::Combined | Format::Common | Format::Recording => {
                Self::Clf(Box::new(Clf::new(mapping)))
            }
            Format::Json => Self::Json(Box::new(Json::new(mapping))),
            Format::Alb => Self::Alb(Box::new(Alb::new(mapping))),
            Format::Csv => Self::Csv(Csv::new(mapping, line)?),
        })
    }

    /// Whether the first line is a header, not a request.
    pub(crate) const fn has_header(&self) -> bool {
        matches!(self, Self::Csv(_))
    }

    /// What a line says, in an empty record.
    pub(crate) fn parse(&mut self, line: &str, record: &mut Record) -> Result<(), Malformed> {
        match self {
            Self::Clf(clf) => clf.parse(line, record)?,
            Self::Json(json) => json.parse(line, record)?,
            Self::Alb(alb) => alb.parse(line, record)?,
            Self::Csv(csv) => csv.parse(line, record)?,
        }
        record.check()
    }
}

/// The text up to the next quotation mark that no backslash escapes, and what comes after it. `None`:
/// there is none.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let found = from + memchr::memchr2(b'"', b'\\', bytes.get(from..)?)?;
        if bytes.get(found) == Some(&b'"') {
            return Some((text.get(..found)?, text.get(found + 1..)?));
        }
        from = found + 2;
    }
}

/// Text without the escapes of nginx (`\x22`) and Apache (`\"`, `\t`). Bytes that are no UTF-8 together are replaced.
fn unescaped<'t>(text: &'t str, room: &'t mut String) -> &'t str {
    if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        return text;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'x') => {
                let ahead = rest.clone();
                let digits = [rest.next(), rest.next()];
                let value =
                    digits.map(|digit| digit.and_then(|digit| (digit as char).to_digit(16)));
                if let [Some(high), Some(low)] = value {
                    bytes.push((high * 16 + low) as u8);
                } else {
                    bytes.extend_from_slice(b"\\x");
                    rest = ahead;
                }
            }
            Some(b'n') => bytes.push(b'\n'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'r') => bytes.push(b'\r'),
            Some(other) => bytes.push(other),
            None => bytes.push(b'\\'),
        }
    }
    room.clear();
    room.push_str(&String::from_utf8_lossy(&bytes));
    room
}

#[cfg(test)]
mod tests;
