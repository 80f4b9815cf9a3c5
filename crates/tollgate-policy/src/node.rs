//! A YAML or JSON document as a tree of nodes that know their place.
//!
//! Built from parser events, not through serde, because serde stops at the first error and we
//! report every error in a rule file at once. Bounded in size, depth and alias expansion.

use granit_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::problem::Report;

/// The largest rule file that is read.
pub const MAX_FILE_BYTES: usize = 32 * 1024 * 1024;
/// The most nodes a rule file may have.
pub const MAX_NODES: usize = 4_000_000;
/// The most nodes that aliases may add.
pub const MAX_ALIASED_NODES: usize = 100_000;
/// How deep a rule file may nest.
pub const MAX_DEPTH: usize = 32;

/// A place in the file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Spot {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl From<&Marker> for Spot {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line() as u32, column: marker.col() as u32 + 1 }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) at: Spot,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Text, or what plain text means: null, a boolean, a number.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Spot,
    pub(crate) value: Node,
    /// The key stands in the map before; the first one counts.
    pub(crate) is_repeated: bool,
}

impl Node {
    /// An empty value, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// What it is, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a map".into(),
            Kind::Scalar { text, plain } => {
                let short: String = text.chars().take(40).collect();
                if *plain { short } else { format!("the text {short:?}") }
            }
        }
    }

    fn count(&self) -> usize {
        1 + match &self.kind {
            Kind::Scalar { .. } => 0,
            Kind::List(items) => items.iter().map(Self::count).sum(),
            Kind::Map(entries) => entries.iter().map(|entry| entry.value.count()).sum(),
        }
    }

    /// Hashes the content: places, comments and the order of fields do not matter.
    pub(crate) fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        self.write_content(&mut bytes);
        xxh3_64(&bytes)
    }

    /// The content without its places, as bytes that no other content has.
    fn write_content(&self, bytes: &mut Vec<u8>) {
        let mut text = |tag: u8, text: &str| {
            bytes.push(tag);
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        };
        match &self.kind {
            Kind::Scalar { text: value, plain } => text(u8::from(*plain), value),
            Kind::List(items) => {
                bytes.push(2);
                bytes.extend_from_slice(&(items.len() as u64).to_le_bytes());
                for item in items {
                    item.write_content(bytes);
                }
            }
            Kind::Map(entries) => {
                bytes.push(3);
                bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
                let mut sorted: Vec<&Entry> = entries.iter().collect();
                sorted.sort_by(|one, other| one.key.cmp(&other.key));
                for entry in sorted {
                    bytes.extend_from_slice(&(entry.key.len() as u64).to_le_bytes());
                    bytes.extend_from_slice(entry.key.as_bytes());
                    entry.value.write_content(bytes);
                }
            }
        }
    }
}

/// Reads a document. `None` where it cannot be read at all; the report says why.
pub(crate) fn read(text: &str, report: &mut Report) -> Option<Node> {
    read_within(text, Builder::default(), report)
}

fn read_within(text: &str, builder: Builder, report: &mut Report) -> Option<Node> {
    let start = Spot { line: 1, column: 1 };
    if text.len() > MAX_FILE_BYTES {
        let most = MAX_FILE_BYTES / (1024 * 1024);
        report.add(start, None, format!("the file is larger than {most} MiB; split it"));
        return None;
    }
    crate::json::read(text).or_else(|| read_with(builder, text, report))
}

/// Reads any document as YAML, which JSON is too.
#[cfg(test)]
pub(crate) fn read_yaml(text: &str, report: &mut Report) -> Option<Node> {
    read_with(Builder::default(), text, report)
}

/// Reads a document that may nest so many levels deeper than others.
pub(crate) fn read_deeper(text: &str, extra_depth: usize, report: &mut Report) -> Option<Node> {
    read_within(text, Builder { extra_depth, ..Builder::default() }, report)
}

fn read_with(mut builder: Builder, text: &str, report: &mut Report) -> Option<Node> {
    let start = Spot { line: 1, column: 1 };
    for next in Parser::new_from_str(text) {
        let result = match next {
            Ok((event, span)) => builder.event(event, Spot::from(&span.start)),
            Err(error) => Err((Spot::from(error.marker()), error.kind().to_string())),
        };
        if let Err((at, message)) = result {
            report.add(at, None, format!("cannot be read as YAML: {message}"));
            return None;
        }
    }
    let null = Kind::Scalar { text: String::new(), plain: true };
    Some(builder.root.unwrap_or(Node { at: start, kind: null }))
}

/// A list or a map that is being read.
pub(crate) enum Frame {
    List { at: Spot, anchor: usize, items: Vec<Node> },
    Map { at: Spot, anchor: usize, entries: Vec<Entry>, key: Option<(String, Spot)> },
}

/// Puts a tree together, within its bounds.
#[derive(Default)]
pub(crate) struct Builder {
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
    nodes: usize,
    aliased: usize,
    extra_depth: usize,
}

pub(crate) type Fatal = (Spot, String);

impl Builder {
    fn event(&mut self, event: Event<'_>, at: Spot) -> Result<(), Fatal> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = check_tag(tag.as_deref(), at)?;
                let plain = style == ScalarStyle::Plain && !is_text;
                let kind = Kind::Scalar { text: text.into_owned(), plain };
                self.complete(Node { at, kind }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                self.open(Frame::List { at, anchor, items: Vec::new() }, at)
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                self.open(Frame::Map { at, anchor, entries: Vec::new(), key: None }, at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err((at, "an alias inside its own anchor".into()));
                };
                self.aliased += node.count();
                if self.aliased > MAX_ALIASED_NODES {
                    return Err((at, "aliases expand to too much; write it out".into()));
                }
                let node = Node { at, kind: node.kind.clone() };
                self.complete(node, 0)
            }
            Event::DocumentStart(..) if self.root.is_some() => {
                Err((at, "a rule file is one document; remove what follows ---".into()))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn open(&mut self, frame: Frame, at: Spot) -> Result<(), Fatal> {
        if let Some(Frame::Map { key: None, .. }) = self.stack.last() {
            return Err((at, "a field name must be text, not a list or a map".into()));
        }
        self.stack.push(frame);
        let max_depth = MAX_DEPTH + self.extra_depth;
        if self.stack.len() > max_depth {
            return Err((at, format!("nested more than {max_depth} levels deep")));
        }
        Ok(())
    }

    /// Ends the innermost list or map.
    pub(crate) fn close(&mut self) -> Result<(), Fatal> {
        match self.stack.pop() {
            Some(Frame::List { at, anchor, items }) => {
                self.complete(Node { at, kind: Kind::List(items) }, anchor)
            }
            Some(Frame::Map { at, anchor, mut entries, .. }) => {
                mark_duplicates(&mut entries);
                self.complete(Node { at, kind: Kind::Map(entries) }, anchor)
            }
            None => Ok(()),
        }
    }

    /// Whether a list or a map is yet to end.
    pub(crate) fn is_open(&self) -> bool {
        !self.stack.is_empty()
    }

    /// What ends the innermost list or map in JSON, and whether it is empty.
    pub(crate) fn innermost(&self) -> Option<(u8, bool)> {
        Some(match self.stack.last()? {
            Frame::List { items, .. } => (b']', items.is_empty()),
            Frame::Map { entries, .. } => (b'}', entries.is_empty()),
        })
    }

    pub(crate) fn into_root(self) -> Option<Node> {
        self.root
    }

    pub(crate) fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Fatal> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err((node.at, format!("more than {MAX_NODES} values; split the file")));
        }
        if anchor != 0 {
            self.aliased += node.count();
            if self.aliased > MAX_ALIASED_NODES {
                return Err((node.at, "anchors hold too much; write it out".into()));
            }
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map { entries, key, .. }) => match (key.take(), node) {
                (Some((key, key_at)), value) => {
                    entries.push(Entry { key, key_at, value, is_repeated: false });
                }
                (None, Node { at, kind: Kind::Scalar { text, .. } }) => *key = Some((text, at)),
                (None, node) => {
                    let message = "a field name must be text, not a list or a map";
                    return Err((node.at, message.into()));
                }
            },
        }
        Ok(())
    }
}

/// Marks the entries whose key came before, for the reader to report with the rule they are in.
fn mark_duplicates(entries: &mut [Entry]) {
    /// Up to so many comparing is faster than hashing.
    const FEW: usize = 32;
    if entries.len() <= FEW {
        for place in 1..entries.len() {
            let (before, rest) = entries.split_at_mut(place);
            if let Some(entry) = rest.first_mut() {
                entry.is_repeated = before.iter().any(|other| other.key == entry.key);
            }
        }
        return;
    }
    let mut seen = HashSet::with_capacity(entries.len());
    for Entry { key, is_repeated, .. } in entries {
        *is_repeated = !seen.insert(&*key);
    }
}

/// True for `!!str`; other tags could only be ignored or misunderstood.
fn check_tag(tag: Option<&Tag>, at: Spot) -> Result<bool, Fatal> {
    match tag {
        None => Ok(false),
        Some(tag) if tag.is_yaml_core_schema_tag("str") => Ok(true),
        Some(_) => Err((at, "tags are not used in rule files; remove it".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut report = Report::new("t");
        read(text, &mut report);
        report.finish().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn places_and_duplicates() {
        let mut report = Report::new("t");
        let root = read("a: 1\nb:\n  - x\n  - {c: \"y\", c: 2}\n", &mut report).unwrap();
        let Kind::Map(entries) = &root.kind else { panic!() };
        assert_eq!(entries[1].key_at, Spot { line: 2, column: 1 });
        let Kind::List(items) = &entries[1].value.kind else { panic!() };
        let Kind::Map(inner) = &items[1].kind else { panic!() };
        assert_eq!(inner[1].key_at, Spot { line: 4, column: 14 });
        assert_eq!([inner[0].is_repeated, inner[1].is_repeated], [false, true]);
        assert!(report.is_empty());
    }

    #[test]
    fn bounds() {
        let laughs = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n\
            c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
            e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
        assert_eq!(problems(laughs).len(), 1);
        assert_eq!(problems(&"[".repeat(10_000)).len(), 1);
        assert_eq!(problems(&" ".repeat(MAX_FILE_BYTES + 1)).len(), 1);
        assert_eq!(problems("a: 1\n---\nb: 2\n").len(), 1);
        assert_eq!(problems("? [a]\n: 1\n").len(), 1);
        assert_eq!(problems("a: !foo 1\n").len(), 1);
        assert_eq!(problems("a: &x [*x]\n").len(), 1);
        assert_eq!(problems(""), Vec::<String>::new());
    }
}
