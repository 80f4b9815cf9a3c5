//! From the tree to lists of alternatives, one for each sequence of keys.

use super::descriptor_name;
use super::file::{Descriptor, Domain, Limit, Wanted};
use crate::compile_matcher::MAX_KEY_PARTS;
use crate::problem::Report;
use crate::{MAX_RULES, MAX_VALUE_BYTES};

/// A rule to be printed.
#[derive(Debug)]
pub(super) struct Made<'a> {
    pub(super) domain: &'a str,
    /// The nodes that lead to it; fewer than keys where the walk ends early.
    pub(super) path: Vec<&'a Descriptor>,
    /// The keys, as one text.
    pub(super) keys: String,
    pub(super) depth: usize,
    /// Higher goes first.
    pub(super) priority: usize,
    pub(super) is_log_only: bool,
    pub(super) kind: MadeKind<'a>,
}

/// What a rule is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum MadeKind<'a> {
    /// It limits as the file says.
    Limit(&'a Limit),
    /// Here the walk ends without a limit.
    Nothing,
    /// Here stands a limit of the other class: enforced, where this is one that is only reported, or
    /// the other way round.
    Elsewhere(&'a Limit),
}

impl Made<'_> {
    /// What it takes at each place.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &Wanted> {
        wanted(&self.path, self.depth)
    }
}

fn wanted<'p>(path: &'p [&Descriptor], depth: usize) -> impl Iterator<Item = &'p Wanted> {
    let rest = std::iter::repeat_n(&Wanted::Any, depth - path.len());
    path.iter().map(|node| &node.value).chain(rest)
}

/// A place where the walk can end, in the order of the walk.
struct Slot<'a> {
    path: Vec<&'a Descriptor>,
    limit: Option<&'a Limit>,
}

impl Slot<'_> {
    fn is_shadow(&self) -> bool {
        self.path.last().is_some_and(|node| node.is_shadow)
    }

    fn overlaps(&self, other: &Self, depth: usize) -> bool {
        let pairs = wanted(&self.path, depth).zip(wanted(&other.path, depth));
        pairs.into_iter().all(|(one, other)| one.may_overlap(other))
    }
}

/// Adds the rules of a domain.
pub(super) fn flatten<'a>(domain: &'a Domain, made: &mut Vec<Made<'a>>, report: &mut Report) {
    let mut sequences = Vec::new();
    collect(&domain.children, &mut Vec::new(), &mut sequences);
    for (keys, first) in &sequences {
        let name = descriptor_name(keys.iter().copied());
        if name.len() > MAX_VALUE_BYTES {
            let message = format!("the keys down to here are longer than {MAX_VALUE_BYTES} bytes");
            report.add_in(&first.source, first.at, message);
            continue;
        }
        let mut slots = Vec::new();
        walk(&domain.children, keys, &mut Vec::new(), &mut slots);
        check_keys(&slots, report);
        for is_log_only in [false, true] {
            add(domain, &slots, (&name, keys.len()), is_log_only, made);
        }
        if made.len() > MAX_RULES {
            let message = format!("this domain takes more than {MAX_RULES} rules");
            report.add_in(&first.source, domain.name.at, message);
            return;
        }
    }
}

/// A sequence of keys, and the first node with a limit that it leads to.
type Sequence<'a> = (Vec<&'a str>, &'a Descriptor);

/// The sequences of keys that lead to a limit, in the order of the file.
fn collect<'a>(
    nodes: &'a [Descriptor],
    keys: &mut Vec<&'a str>,
    sequences: &mut Vec<Sequence<'a>>,
) {
    for node in nodes {
        keys.push(&node.key);
        if node.limit.is_some() && sequences.iter().all(|(known, _)| known != keys) {
            sequences.push((keys.clone(), node));
        }
        collect(&node.children, keys, sequences);
        keys.pop();
    }
}

/// Where descriptors with these keys can end, the first choice first.
fn walk<'a>(
    nodes: &'a [Descriptor],
    keys: &[&str],
    path: &mut Vec<&'a Descriptor>,
    slots: &mut Vec<Slot<'a>>,
) {
    let Some((key, rest)) = keys.split_first() else { return };
    let mut tried: Vec<&Descriptor> = nodes.iter().filter(|node| node.key == *key).collect();
    tried.sort_by_key(|node| node.value.rank());
    for node in tried {
        path.push(node);
        walk(&node.children, rest, path, slots);
        let limit = node.limit.as_ref().filter(|_| rest.is_empty());
        slots.push(Slot { path: path.clone(), limit });
        path.pop();
    }
}

fn check_keys(slots: &[Slot<'_>], report: &mut Report) {
    for slot in slots.iter().filter(|slot| slot.limit.is_some_and(|limit| limit.quota.is_some())) {
        let parts = slot.path.iter().filter(|node| names_counter(node)).count();
        if let Some(node) = slot.path.last()
            && parts > MAX_KEY_PARTS
        {
            let message = format!(
                "has more than {MAX_KEY_PARTS} entries without a fixed value down to here, too many \
                 to name a counter by"
            );
            report.add_in(&node.source, node.at, message);
        }
    }
}

/// Whether each value that the node takes has a counter of its own.
pub(super) fn names_counter(node: &Descriptor) -> bool {
    !node.is_shared && !matches!(node.value, Wanted::Exact(_))
}

/// Adds the rules of one class for one sequence of keys: its limits, and before those the places
/// that keep descriptors from them.
fn add<'a>(
    domain: &'a Domain,
    slots: &[Slot<'a>],
    (keys, depth): (&str, usize),
    is_log_only: bool,
    made: &mut Vec<Made<'a>>,
) {
    let kind = |slot: &Slot<'a>| match slot.limit {
        Some(limit) if slot.is_shadow() == is_log_only => MadeKind::Limit(limit),
        Some(limit) => MadeKind::Elsewhere(limit),
        None => MadeKind::Nothing,
    };
    let first = made.len();
    let mut behind: Vec<&Slot<'a>> = Vec::new();
    // From the last choice to the first, so that it is known what comes behind each.
    for slot in slots.iter().rev() {
        let kind = kind(slot);
        let does_something = match kind {
            MadeKind::Limit(_) => true,
            // A limit that is only reported still replaces others, which only enforced rules can.
            MadeKind::Elsewhere(limit) => !is_log_only && !limit.replaces.is_empty(),
            MadeKind::Nothing => false,
        };
        if does_something {
            behind.push(slot);
        } else if !behind.iter().any(|behind| slot.overlaps(behind, depth)) {
            continue;
        }
        made.push(Made {
            domain: &domain.name.value,
            path: slot.path.clone(),
            keys: keys.to_owned(),
            depth,
            priority: made.len() - first,
            is_log_only,
            kind,
        });
    }
    if let Some(added) = made.get_mut(first..) {
        added.reverse();
    }
}
