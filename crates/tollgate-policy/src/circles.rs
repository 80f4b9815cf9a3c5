//! Scopes that replace each other in a circle.

use hashbrown::HashMap;

use crate::Rule;

/// So many scopes of a circle are named.
const NAMED: usize = 5;

/// The circles among the scopes of some rules.
#[derive(Default)]
pub(crate) struct Circles<'s> {
    /// The circle of each scope that is in one.
    of: HashMap<&'s str, usize>,
    /// The scopes of each circle.
    members: Vec<Vec<&'s str>>,
    /// A rule of the scope that leads on within the circle.
    rules: HashMap<&'s str, &'s str>,
}

impl<'s> Circles<'s> {
    /// The number of the circle that the scope is in.
    pub(crate) fn of(&self, scope: &str) -> Option<usize> {
        self.of.get(scope).copied()
    }

    /// A rule of the scope that leads on within the circle.
    pub(crate) fn rule_in(&self, scope: &str) -> Option<&'s str> {
        self.rules.get(scope).copied()
    }

    /// The scopes of a circle, for people.
    pub(crate) fn describe(&self, circle: usize) -> String {
        let scopes = self.members.get(circle).map_or(&[][..], Vec::as_slice);
        let named: Vec<String> = scopes.iter().take(NAMED).map(|s| format!("{s:?}")).collect();
        match scopes.len().saturating_sub(NAMED) {
            0 => format!("scopes {}", named.join(", ")),
            more => format!("scopes {} and {more} more", named.join(", ")),
        }
    }
}

/// A scope on its way through [`circles`].
#[derive(Clone, Copy, Default)]
struct Visit {
    /// When it was first seen, from 1; 0: not yet.
    seen: usize,
    /// The earliest scope on the way that can be reached from it.
    low: usize,
    is_on_stack: bool,
}

/// Finds the circles: strongly connected parts of the graph of scopes (Tarjan, without recursion, as
/// a chain of scopes can be as long as the file).
pub(crate) fn circles<'s>(rules: &[&'s Rule]) -> Circles<'s> {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for rule in rules {
        let next = numbers.len();
        numbers.entry(rule.scope.as_str()).or_insert(next);
    }
    let mut names = vec![""; numbers.len()];
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); numbers.len()];
    for rule in rules {
        let Some(from) = numbers.get(rule.scope.as_str()).copied() else { continue };
        if let (Some(name), Some(edges)) = (names.get_mut(from), edges.get_mut(from)) {
            *name = rule.scope.as_str();
            edges.extend(rule.overrides.iter().filter_map(|to| numbers.get(to.as_str())));
        }
    }
    let mut found = Circles::default();
    for part in connected(&edges) {
        let leads_to_itself = |scope: usize| edges.get(scope).is_some_and(|to| to.contains(&scope));
        if part.len() > 1 || part.first().is_some_and(|scope| leads_to_itself(*scope)) {
            let mut scopes: Vec<&str> =
                part.iter().filter_map(|scope| names.get(*scope).copied()).collect();
            scopes.sort_unstable();
            found.of.extend(scopes.iter().map(|scope| (*scope, found.members.len())));
            found.members.push(scopes);
        }
    }
    for rule in rules {
        let circle = found.of(&rule.scope);
        if circle.is_some() && rule.overrides.iter().any(|to| found.of(to) == circle) {
            found.rules.entry(&rule.scope).or_insert(&rule.id);
        }
    }
    found
}

/// The strongly connected parts.
fn connected(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut visits = vec![Visit::default(); edges.len()];
    let (mut stack, mut parts, mut clock) = (Vec::new(), Vec::new(), 0);
    for root in 0..edges.len() {
        if visits.get(root).is_none_or(|visit| visit.seen > 0) {
            continue;
        }
        let mut path: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((at, next)) = path.last_mut() {
            let at = *at;
            let Some(visit) = visits.get_mut(at) else { break };
            if *next == 0 {
                clock += 1;
                *visit = Visit { seen: clock, low: clock, is_on_stack: true };
                stack.push(at);
            }
            let to = edges.get(at).and_then(|edges| edges.get(*next)).copied();
            *next += 1;
            if let Some(to) = to {
                match visits.get(to).copied() {
                    Some(other) if other.seen == 0 => path.push((to, 0)),
                    Some(other) if other.is_on_stack => lower(&mut visits, at, other.seen),
                    _ => {}
                }
                continue;
            }
            path.pop();
            let Some(done) = visits.get(at).copied() else { break };
            if let Some((parent, _)) = path.last() {
                lower(&mut visits, *parent, done.low);
            }
            if done.low == done.seen {
                parts.push(take_part(&mut stack, &mut visits, at));
            }
        }
    }
    parts
}

fn lower(visits: &mut [Visit], at: usize, low: usize) {
    if let Some(visit) = visits.get_mut(at) {
        visit.low = visit.low.min(low);
    }
}

fn take_part(stack: &mut Vec<usize>, visits: &mut [Visit], root: usize) -> Vec<usize> {
    let mut part = Vec::new();
    while let Some(scope) = stack.pop() {
        if let Some(visit) = visits.get_mut(scope) {
            visit.is_on_stack = false;
        }
        part.push(scope);
        if scope == root {
            break;
        }
    }
    part
}
