//! Values separated by commas, semicolons or tabs; the first line has their names.

use crate::mapping::{Mapping, Targets, put_all};
use crate::record::{Malformed, Record};

/// The most columns of a file.
const MAX_COLUMNS: usize = 256;

const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

pub(crate) struct Csv {
    separator: u8,
    targets: Vec<Targets>,
    room: String,
}

/// The separator that occurs most often.
fn separator(line: &str) -> u8 {
    let count = |separator: &u8| line.bytes().filter(|byte| byte == separator).count();
    SEPARATORS.into_iter().rev().max_by_key(count).unwrap_or(b',')
}

fn columns(line: &str, separator: u8) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = Some(line);
    let mut room = String::new();
    while let Some(text) = rest
        && names.len() < MAX_COLUMNS
    {
        let Some((value, after)) = next_value(text, separator, &mut room) else { break };
        names.push(value.trim().to_owned());
        rest = after;
    }
    names
}

pub(super) fn looks_like(line: &str, mapping: &Mapping) -> bool {
    let separator = separator(line);
    let names = columns(line, separator);
    let is_name = |name: &String| !name.is_empty() && name.len() <= 64;
    names.len() > 1
        && names.iter().all(is_name)
        && mapping.has_time(names.iter().map(String::as_str))
}

impl Csv {
    /// `Err` has the columns, where none of them is the time.
    pub(super) fn new(mapping: &Mapping, header: &str) -> Result<Self, String> {
        let separator = separator(header);
        let names = columns(header, separator);
        if !mapping.has_time(names.iter().map(String::as_str)) {
            return Err(names.join(", "));
        }
        let targets = names.iter().map(|name| mapping.targets(name)).collect();
        Ok(Self { separator, targets, room: String::new() })
    }

    pub(super) fn parse(&mut self, line: &str, record: &mut Record) -> Result<(), Malformed> {
        let mut rest = Some(line);
        for targets in &self.targets {
            let text = rest.ok_or(Malformed::Form("it has fewer values than the header"))?;
            let (value, after) = next_value(text, self.separator, &mut self.room)
                .ok_or(Malformed::Form("a quoted value does not end"))?;
            rest = after;
            put_all(targets, value.trim(), record)?;
        }
        if rest.is_some() {
            return Err(Malformed::Form("it has more values than the header"));
        }
        Ok(())
    }
}

/// The next value, and what comes after its separator if there is one. `None`: its quotation does not end.
fn next_value<'t: 'r, 'r>(
    text: &'t str,
    separator: u8,
    room: &'r mut String,
) -> Option<(&'r str, Option<&'t str>)> {
    let Some(inner) = text.strip_prefix('"') else {
        return Some(match text.split_once(separator as char) {
            Some((value, rest)) => (value, Some(rest)),
            None => (text, None),
        });
    };
    room.clear();
    let mut rest = inner;
    loop {
        let (part, after) = rest.split_once('"')?;
        room.push_str(part);
        if let Some(more) = after.strip_prefix('"') {
            room.push('"');
            rest = more;
            continue;
        }
        let after = after.split_once(separator as char).map(|(_, rest)| rest);
        return Some((room, after));
    }
}
