//! Takes the fields of a map one by one, reporting what does not fit.

use crate::node::{Entry, Kind, Node, Spot};
use crate::prices::{AmountError, parse_nanos};
use crate::problem::Report;
use crate::raw::{At, Int, RawQuota, Text, Texts};

/// The fields of one map.
pub(crate) struct Fields<'n> {
    pub(crate) at: Spot,
    prefix: String,
    entries: &'n [Entry],
}

impl<'n> Fields<'n> {
    /// Opens a map and reports fields that are not among `known`. `name` is its path in the file,
    /// empty at the top.
    pub(crate) fn open(
        node: &'n Node,
        name: &str,
        known: &[&str],
        report: &mut Report,
    ) -> Option<Self> {
        let Kind::Map(entries) = &node.kind else {
            let field = (!name.is_empty()).then_some(name);
            report.add_wrong_type(
                node.at,
                field,
                format!("must be a map, not {}", node.describe()),
            );
            return None;
        };
        let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
        report_repeated(entries, &prefix, report);
        for entry in entries {
            if !known.contains(&entry.key.as_str()) {
                let field = format!("{prefix}{}", entry.key);
                report.add(entry.key_at, Some(&field), unknown(&entry.key, known));
            }
        }
        Some(Self { at: node.at, prefix, entries })
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A field that is there and not null.
    pub(crate) fn node(&self, name: &str) -> Option<&'n Node> {
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        (!entry.value.is_null()).then_some(&entry.value)
    }

    fn wrong(&self, node: &Node, name: &str, wanted: &str, report: &mut Report) {
        let message = format!("must be {wanted}, not {}", node.describe());
        report.add_wrong_type(node.at, Some(&self.path(name)), message);
    }

    pub(crate) fn text(&self, name: &str, report: &mut Report) -> Text {
        let node = self.node(name)?;
        let text = as_text(node);
        if text.is_none() {
            self.wrong(node, name, "text", report);
        }
        text
    }

    pub(crate) fn int(&self, name: &str, report: &mut Report) -> Int {
        let node = self.node(name)?;
        let value = as_int(node);
        if value.is_none() {
            self.wrong(node, name, "a whole number", report);
        }
        value.map(|value| At { at: node.at, value })
    }

    /// A whole number that is an item of the list of this name.
    pub(crate) fn int_of(&self, item: &Node, list: &str, report: &mut Report) -> Int {
        let value = as_int(item);
        if value.is_none() {
            self.wrong(item, list, "a list of whole numbers", report);
        }
        value.map(|value| At { at: item.at, value })
    }

    pub(crate) fn share(&self, name: &str, report: &mut Report) -> Option<At<f64>> {
        let node = self.node(name)?;
        let value = match &node.kind {
            Kind::Scalar { text, plain: true } => text.parse::<f64>().ok(),
            _ => None,
        };
        if value.is_none() {
            self.wrong(node, name, "a number such as 0.8", report);
        }
        value.map(|value| At { at: node.at, value })
    }

    pub(crate) fn flag(&self, name: &str, report: &mut Report) -> Option<At<bool>> {
        let node = self.node(name)?;
        let value = as_bool(node);
        if value.is_none() {
            self.wrong(node, name, "true or false", report);
        }
        value.map(|value| At { at: node.at, value })
    }

    /// A list of texts; a single text counts as a list of one.
    pub(crate) fn texts(&self, name: &str, report: &mut Report) -> Texts {
        let node = self.node(name)?;
        let texts = as_texts(node);
        if texts.is_none() {
            self.wrong(node, name, "a list of texts", report);
        }
        texts
    }

    /// The items of a list.
    pub(crate) fn list(&self, name: &str, report: &mut Report) -> Option<&'n [Node]> {
        let node = self.node(name)?;
        if let Kind::List(items) = &node.kind {
            return Some(items);
        }
        self.wrong(node, name, "a list", report);
        None
    }

    /// The entries of a map whose names are free.
    pub(crate) fn map(&self, name: &str, report: &mut Report) -> Option<At<&'n [Entry]>> {
        let node = self.node(name)?;
        if let Kind::Map(entries) = &node.kind {
            report_repeated(entries, &format!("{}.", self.path(name)), report);
            return Some(At { at: node.at, value: entries });
        }
        self.wrong(node, name, "a map", report);
        None
    }

    /// An amount of money in quotes, in nanos.
    pub(crate) fn money(&self, name: &str, report: &mut Report) -> Int {
        let node = self.node(name)?;
        let nanos = as_money(node, &self.path(name), report)?;
        Some(At { at: node.at, value: i128::from(nanos) })
    }
}

fn report_repeated(entries: &[Entry], prefix: &str, report: &mut Report) {
    for entry in entries.iter().filter(|entry| entry.is_repeated) {
        let field = format!("{prefix}{}", entry.key);
        report.add(entry.key_at, Some(&field), "is given twice; remove one of them");
    }
}

pub(crate) fn as_quota(node: &Node, path: &str, report: &mut Report) -> Option<At<RawQuota>> {
    let value = match (as_int(node), &node.kind) {
        (Some(number), _) => RawQuota::Number(number),
        (None, Kind::Scalar { text, .. }) if text == "unlimited" => RawQuota::Unlimited,
        _ => {
            let found = node.describe();
            let message = format!("must be a whole number or \"unlimited\", not {found}");
            report.add_wrong_type(node.at, Some(path), message);
            return None;
        }
    };
    Some(At { at: node.at, value })
}

/// An amount of money in quotes, in nanos. A number without quotes passes through doubles in many programs that write
/// such files.
pub(crate) fn as_money(node: &Node, path: &str, report: &mut Report) -> Option<u64> {
    let read = match &node.kind {
        Kind::Scalar { text, plain: false } => parse_nanos(text),
        _ => Err(AmountError::NotDecimal),
    };
    match read {
        Ok(nanos) => Some(nanos),
        Err(error) => {
            let message = format!("{error}, not {}", node.describe());
            report.add_wrong_type(node.at, Some(path), message);
            None
        }
    }
}

pub(crate) fn as_money_quota(node: &Node, path: &str, report: &mut Report) -> Option<At<RawQuota>> {
    let value = match &node.kind {
        Kind::Scalar { text, .. } if text == "unlimited" => RawQuota::Unlimited,
        _ => RawQuota::Number(i128::from(as_money(node, path, report)?)),
    };
    Some(At { at: node.at, value })
}

pub(crate) fn as_text(node: &Node) -> Text {
    match &node.kind {
        Kind::Scalar { text, .. } if !node.is_null() => {
            Some(At { at: node.at, value: text.clone() })
        }
        _ => None,
    }
}

pub(crate) fn as_texts(node: &Node) -> Texts {
    let value = match &node.kind {
        Kind::List(items) => items.iter().map(as_text).collect::<Option<Vec<_>>>()?,
        _ => vec![as_text(node)?],
    };
    Some(At { at: node.at, value })
}

pub(crate) fn as_bool(node: &Node) -> Option<bool> {
    match &node.kind {
        Kind::Scalar { text, plain: true } => match text.as_str() {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// A plain whole number; `1e3` and `5.0` count, since JSON writers produce them.
fn as_int(node: &Node) -> Option<i128> {
    /// Up to here a double is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let Kind::Scalar { text, plain: true } = &node.kind else { return None };
    if let Ok(number) = text.parse::<i128>() {
        return Some(number);
    }
    let number = text.parse::<f64>().ok()?;
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i128)
}

fn unknown(name: &str, known: &[&str]) -> String {
    if name == "<<" {
        return "merge keys are not supported; use a plain alias or write it out".into();
    }
    match nearest(name, known) {
        Some(candidate) => format!("is not a known field; did you mean {candidate}?"),
        None => format!("is not a known field; known here: {}", known.join(", ")),
    }
}

/// The known name that this one may have been meant as, if there is one.
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let near = known
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .min_by_key(|(distance, _)| *distance);
    // Short names are near to everything.
    near.filter(|(distance, _)| *distance <= (name.len() / 3).min(2)).map(|(_, name)| name)
}

/// Edit distance; names longer than any field are far from all of them.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 32 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (to, cell) in b.chars().zip(row.iter_mut().skip(1)) {
            let changed = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = changed.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}
