//! The prices of all models.

use hashbrown::HashMap;
use tollgate_core::Nanos;

use super::Price;
use super::read::read_table;
use crate::Problems;
use crate::node::Spot;
use crate::problem::Report;

/// The most entries of a price table.
pub const MAX_PRICES: usize = 10_000;

/// The longest model pattern.
pub const MAX_MODEL_BYTES: usize = 256;

/// What a model costs, from when until when.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Its place in the file, such as `prices[3]`.
    pub(super) path: String,
    pub(super) at: Spot,
    pub(super) model: Pattern,
    pub(super) valid_from: Nanos,
    pub(super) valid_until: Nanos,
    pub(super) price: Price,
}

/// A model's name, or the beginning and the end of names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Pattern {
    Exact(String),
    Ends { prefix: String, suffix: String },
}

impl Pattern {
    /// Reads a name with at most one `*`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let Some((prefix, suffix)) = text.split_once('*') else {
            return Some(Self::Exact(text.to_owned()));
        };
        let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
        (!suffix.contains('*')).then_some(Self::Ends { prefix, suffix })
    }

    fn matches(&self, model: &str) -> bool {
        match self {
            Self::Exact(name) => name == model,
            Self::Ends { prefix, suffix } => {
                let rest = model.strip_prefix(prefix.as_str());
                rest.is_some_and(|rest| rest.ends_with(suffix.as_str()))
            }
        }
    }

    /// An exact name is more specific than any pattern, a longer pattern more than a shorter one.
    fn specificity(&self) -> usize {
        match self {
            Self::Exact(_) => usize::MAX,
            Self::Ends { prefix, suffix } => prefix.len() + suffix.len(),
        }
    }

    /// Whether some name matches both.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(name), pattern) | (pattern, Self::Exact(name)) => pattern.matches(name),
            (Self::Ends { prefix: a, suffix: x }, Self::Ends { prefix: b, suffix: y }) => {
                (a.starts_with(b.as_str()) || b.starts_with(a.as_str()))
                    && (x.ends_with(y.as_str()) || y.ends_with(x.as_str()))
            }
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Ends { prefix, suffix } => write!(f, "{prefix}*{suffix}"),
        }
    }
}

/// The prices of all models.
#[derive(Debug, Clone, Default)]
pub struct PriceTable {
    /// The entries of exact names, the latest `valid_from` first.
    exact: HashMap<String, Vec<Entry>>,
    /// The others: the most specific first, then the latest `valid_from`.
    patterns: Vec<Entry>,
    /// The price of models that no entry matches; none: they have no price.
    default: Option<Price>,
}

impl PriceTable {
    /// Reads a price file (YAML or JSON); `source` names it in problems.
    pub fn parse(text: &str, source: &str) -> Result<Self, Problems> {
        let mut report = Report::new(source);
        let read = crate::node::read(text, &mut report).map(|node| read_table(&node, &mut report));
        let table = read.map(|(entries, default)| Self::new(entries, default, &mut report));
        match (table, report.finish()) {
            (Some(table), problems) if problems.is_empty() => Ok(table),
            (_, problems) => Err(Problems(problems)),
        }
    }

    fn new(entries: Vec<Entry>, default: Option<Price>, report: &mut Report) -> Self {
        report_ties(&entries, report);
        let mut table = Self { default, ..Self::default() };
        for entry in entries {
            match &entry.model {
                Pattern::Exact(name) => table.exact.entry(name.clone()).or_default().push(entry),
                Pattern::Ends { .. } => table.patterns.push(entry),
            }
        }
        let rank = |entry: &Entry| (entry.model.specificity(), entry.valid_from);
        for entries in table.exact.values_mut().chain([&mut table.patterns]) {
            entries.sort_by_key(|entry| std::cmp::Reverse(rank(entry)));
        }
        table
    }

    /// Whether there is no price in it.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.patterns.is_empty() && self.default.is_none()
    }

    /// What a model costs at an instant: by the most specific entry that is valid then, of equal ones by the
    /// latest, else the default price. `None`: it has no price, and is not free for that.
    pub fn price(&self, model: &str, now: Nanos) -> Option<&Price> {
        let is_valid = |entry: &&Entry| (entry.valid_from..entry.valid_until).contains(&now);
        let exact = self.exact.get(model).and_then(|entries| entries.iter().find(is_valid));
        let by_pattern = || {
            let mut matching = self.patterns.iter().filter(|entry| entry.model.matches(model));
            matching.find(is_valid)
        };
        exact.or_else(by_pattern).map(|entry| &entry.price).or(self.default.as_ref())
    }
}

/// Reports entries of which neither comes before the other for some model at some instant.
fn report_ties(entries: &[Entry], report: &mut Report) {
    let mut by_rank: HashMap<usize, Vec<&Entry>> = HashMap::new();
    let mut by_name: HashMap<&Pattern, Vec<&Entry>> = HashMap::new();
    for entry in entries {
        let group = match &entry.model {
            Pattern::Exact(_) => by_name.entry(&entry.model).or_default(),
            Pattern::Ends { .. } => by_rank.entry(entry.model.specificity()).or_default(),
        };
        if let Some(other) = group.iter().find(|other| is_tie(other, entry)) {
            let message = format!(
                "{:?} and {:?} of {} (line {}) match the same models equally well at the same time; make one \
                 more specific, or change valid_from or valid_until",
                entry.model.to_string(),
                other.model.to_string(),
                other.path,
                other.at.line,
            );
            report.add(entry.at, Some(&format!("{}.model", entry.path)), message);
        }
        group.push(entry);
    }
}

fn is_tie(one: &Entry, other: &Entry) -> bool {
    let from = one.valid_from.max(other.valid_from);
    let is_at_once = from < one.valid_until.min(other.valid_until);
    // Of one pattern the entry that began later applies.
    let is_later = one.model == other.model && one.valid_from != other.valid_from;
    is_at_once && !is_later && one.model.overlaps(&other.model)
}
