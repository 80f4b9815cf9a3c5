//! Whether nodes that share a Redis enforce the rules of one owner.
//!
//! The owner of a node's rules is a database, known by its installation id, or a rule file, known by the
//! digest of its rules. Nodes with different owners decide the same request differently, and a change
//! that one of them accepts does not reach the others.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The most nodes that a message names.
const MAX_NAMED_NODES: usize = 5;

/// The owner of a node's rules, as the node reports it; none while it has only built-in ones.
pub(super) fn owner_of(node: &Value) -> Option<&str> {
    node.get("rules")?.get("owner")?.as_str()
}

/// In the place of an owner: a node has only built-in rules, and says so.
const BUILTIN: &str = "builtin";

fn owner_or_builtin(node: &Value) -> Option<&str> {
    let is_builtin = || node.get("rules")?.get("source")?.as_str().filter(|it| *it == BUILTIN);
    owner_of(node).or_else(is_builtin)
}

fn name_of(node: &Value) -> &str {
    node.get("node").and_then(Value::as_str).unwrap_or("?")
}

/// The nodes of every owner, by owner; those with only built-in rules under a name of their own.
pub(super) fn owners(nodes: &[Value]) -> BTreeMap<&str, Vec<&str>> {
    let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        if let Some(owner) = owner_or_builtin(node) {
            owners.entry(owner).or_default().push(name_of(node));
        }
    }
    owners
}

/// What is wrong, if nodes have different owners.
pub(super) fn disagreement(nodes: &[Value]) -> Option<String> {
    let owners = owners(nodes);
    // Alone, a node without rules of its own may be meant so, unless it waits for those of others.
    let waits = owners.contains_key(BUILTIN) && nodes.iter().any(|node| !has_control(node));
    if owners.len() < 2 && !waits {
        return None;
    }
    let mut room = MAX_NAMED_NODES;
    let groups: Vec<String> = owners
        .iter()
        .map(|(owner, nodes)| {
            let named: Vec<&str> = nodes.iter().copied().take(room).collect();
            room -= named.len();
            let rest = match nodes.len() - named.len() {
                0 => String::new(),
                rest => format!(" and {rest} more"),
            };
            format!("{} (nodes {}{rest})", described(owner), named.join(", "))
        })
        .collect();
    let remedy = if owners.contains_key(BUILTIN) {
        "A rule file is read by its own node alone: give it to all nodes, or start one node without --rules, \
         which serves the admin API and passes the rules of its database on to nodes with --role data"
    } else if owners.keys().all(|owner| is_file(owner)) {
        "Give all of them the same rule file"
    } else {
        "Start all but one with --role data, or give all of them one PostgreSQL"
    };
    Some(format!(
        "nodes that share this Redis enforce different rules: {}. A change reaches only the nodes of \
         its owner. {remedy}",
        groups.join("; ")
    ))
}

/// Which nodes have older rules than another one of the same owner.
pub(super) fn behind(nodes: &[Value]) -> Option<String> {
    let revision = |node: &Value| node.get("rules")?.get("revision")?.as_i64();
    let newest = |owner: &str| {
        nodes.iter().filter(|node| owner_of(node) == Some(owner)).filter_map(revision).max()
    };
    let all: Vec<String> = nodes
        .iter()
        .filter_map(|node| {
            let (own, newest) = (revision(node)?, newest(owner_of(node)?)?);
            let name = name_of(node);
            (own < newest).then(|| format!("{name} has revision {own} of {newest}"))
        })
        .collect();
    let named: Vec<&str> = all.iter().take(MAX_NAMED_NODES).map(String::as_str).collect();
    let rest = match all.len().saturating_sub(named.len()) {
        0 => String::new(),
        rest => format!(", and {rest} more are behind"),
    };
    (!named.is_empty()).then(|| format!("{}{rest}", named.join(", ")))
}

/// An owner in words.
fn described(owner: &str) -> String {
    match owner.split_once(':') {
        Some(("file", digest)) => format!("a rule file with digest {digest}"),
        None if owner == BUILTIN => "no rules but the built-in ones".to_owned(),
        _ => format!("database {owner}"),
    }
}

fn is_file(owner: &str) -> bool {
    owner.starts_with("file:")
}

/// Whether nodes that serve the admin API have their rules from different databases. That is a fact at
/// first sight: no change in progress explains it.
pub(super) fn has_two_databases(nodes: &[Value]) -> bool {
    let databases: BTreeSet<&str> = nodes
        .iter()
        .filter(|node| has_control(node))
        .filter_map(owner_of)
        .filter(|owner| !is_file(owner))
        .collect();
    databases.len() > 1
}

/// A node that may own the rules in Redis.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OtherOwner<'n> {
    /// It serves the admin API, and has its rules from the database in question.
    Alive(&'n str),
    /// It serves the admin API, and has not reported where its rules are from.
    Unknown(&'n str),
}

/// A node other than `own` that is alive and may own the rules of this database.
pub(super) fn other_owner<'n>(
    nodes: &'n [Value],
    own: &str,
    installation: &str,
) -> Option<OtherOwner<'n>> {
    let others = || nodes.iter().filter(|node| has_control(node) && name_of(node) != own);
    let alive = others().find(|node| owner_of(node) == Some(installation));
    let unknown = || others().find(|node| owner_of(node).is_none());
    alive
        .map(|node| OtherOwner::Alive(name_of(node)))
        .or_else(|| unknown().map(|node| OtherOwner::Unknown(name_of(node))))
}

/// Whether a node serves the admin API.
fn has_control(node: &Value) -> bool {
    node.get("role").and_then(Value::as_str).is_some_and(|role| role != "data")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, role: &str, owner: Option<&str>) -> Value {
        json!({"node": name, "role": role, "rules": {"owner": owner}})
    }

    #[test]
    fn nodes_of_one_owner_agree() {
        let nodes =
            [node("a", "all", Some("i1")), node("b", "data", Some("i1")), node("c", "data", None)];
        assert_eq!(disagreement(&nodes), None);
        // A node of an older version does not say who owns its rules.
        assert_eq!(disagreement(&[nodes[0].clone(), json!({"node": "old"})]), None);
    }

    #[test]
    fn a_node_with_only_built_in_rules_disagrees_with_the_others() {
        let without = |role: &str| json!({"node": "w", "role": role, "rules": {"source": "builtin", "owner": null}});
        for other in ["file:00ff", "i1"] {
            for role in ["data", "all"] {
                let text = disagreement(&[node("a", "all", Some(other)), without(role)]).unwrap();
                assert!(text.contains("no rules but the built-in ones (nodes w)"), "{text}");
                assert!(text.contains("without --rules"), "{text}");
            }
        }
        assert!(disagreement(&[without("data")]).is_some(), "nobody passes rules on to it");
        assert_eq!(disagreement(&[without("all")]), None);
    }

    #[test]
    fn a_disagreement_names_owners_and_some_nodes() {
        let mut nodes = vec![node("a", "all", Some("i1")), node("f", "all", Some("file:00ff"))];
        nodes.extend((0..20).map(|number| node(&format!("n{number}"), "data", Some("i2"))));
        let text = disagreement(&nodes).unwrap();
        assert!(text.contains("database i1 (nodes a)"), "{text}");
        assert!(text.contains("a rule file with digest 00ff (nodes f)"), "{text}");
        assert!(text.contains("and 17 more"), "{text}");
        assert!(text.contains("--role data"), "{text}");
    }

    #[test]
    fn a_database_is_in_use_while_a_control_node_has_it() {
        let nodes = [node("a", "all", Some("i1")), node("b", "data", Some("i2"))];
        assert_eq!(other_owner(&nodes, "x", "i1"), Some(OtherOwner::Alive("a")));
        assert_eq!(other_owner(&nodes, "a", "i1"), None);
        assert_eq!(other_owner(&nodes, "x", "i2"), None);
    }

    /// A node that has just started has not read its database yet.
    #[test]
    fn a_control_node_that_does_not_report_its_database_may_own_the_rules() {
        let nodes = [node("a", "all", None), node("b", "data", None)];
        assert_eq!(other_owner(&nodes, "x", "i1"), Some(OtherOwner::Unknown("a")));
        let nodes = [node("a", "all", None), node("c", "control", Some("i1"))];
        assert_eq!(other_owner(&nodes, "x", "i1"), Some(OtherOwner::Alive("c")));
        let nodes = [node("f", "all", Some("file:00ff"))];
        assert_eq!(other_owner(&nodes, "x", "i1"), None);
    }

    #[test]
    fn two_databases_of_control_nodes_need_no_confirmation() {
        let one = node("a", "all", Some("i1"));
        assert!(has_two_databases(&[one.clone(), node("b", "control", Some("i2"))]));
        assert!(!has_two_databases(&[one.clone(), node("b", "data", Some("i2"))]));
        assert!(!has_two_databases(&[one.clone(), node("b", "all", Some("file:00ff"))]));
        assert!(!has_two_databases(&[one, node("b", "all", None)]));
    }
}
