//! Rule files as one document: read, checked, merged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::{Map, Value, json};
use tollgate_policy::{Problem, Problems, RuleFile, RuleSet};

use super::validate::read_text;
use crate::failure::Failure;
use crate::yaml;

/// The endings of rule files in a folder.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// The parts that are lists, and the fields that name their entries.
const LISTS: [(&str, &[&str]); 6] = [
    ("rules", &["rule_id"]),
    ("allow_list", &["type", "identifier_type", "value", "identifier"]),
    ("deny_list", &["type", "identifier_type", "value", "identifier"]),
    ("tiers", &["name"]),
    ("client_tiers", &["type", "identifier_type", "value", "identifier"]),
    ("grants", &["rule_id", "type", "identifier_type", "value", "identifier"]),
];

/// The setting that servers take and rule files do not know.
const ENFORCEMENT: &str = "enforcement";

/// What files say together.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// Everything but the tiers of clients.
    pub(super) body: Map<String, Value>,
    pub(super) client_tiers: Vec<Value>,
}

/// A file as read.
struct Source {
    name: String,
    text: String,
}

/// Reads files and folders, checks them and puts them together.
pub(super) fn read(paths: &[PathBuf]) -> Result<Document, Failure> {
    let mut sources = Vec::new();
    for path in paths {
        for file in files(path)? {
            let (name, text) = read_text(&file)?;
            sources.push(Source { name, text });
        }
    }
    merge(&sources)
}

/// The file itself, or the rule files in a folder, by name.
fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error| {
        let name = format!("{} cannot be read", path.display());
        Failure::Usage(anyhow::Error::from(error).context(name))
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ENDINGS.contains(&ending) && file.is_file() {
            found.push(file);
        }
    }
    if found.is_empty() {
        let (path, endings) = (path.display(), ENDINGS.join(", *."));
        return Err(Failure::usage(anyhow!("{path} has no rule files (*.{endings})")));
    }
    found.sort();
    Ok(found)
}

fn merge(sources: &[Source]) -> Result<Document, Failure> {
    let mut problems = Vec::new();
    let mut merged = Map::new();
    let mut origins: BTreeMap<String, &str> = BTreeMap::new();
    for source in sources {
        if let Err(Problems(found)) = RuleFile::parse(&source.text, &source.name) {
            problems.extend(found.into_iter().filter(|one| !is_enforcement(one)));
        }
        let Ok(value) = yaml::read(&source.text) else { continue };
        let Value::Object(parts) = value else { continue };
        for (name, part) in parts {
            add(&mut merged, &mut origins, &source.name, (&name, part))?;
        }
    }
    if problems.is_empty() {
        problems = compile(sources, &merged);
    }
    if !problems.is_empty() {
        let count = problems.len();
        let things = if count == 1 { "is a problem" } else { "are problems" };
        let problems = Problems(problems);
        return Err(Failure::usage(anyhow!("there {things} in the rules\n{problems}")));
    }
    let client_tiers = match merged.remove("client_tiers") {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    Ok(Document { body: merged, client_tiers })
}

/// Adds a part of a file to what the files before it said.
fn add<'s>(
    merged: &mut Map<String, Value>,
    origins: &mut BTreeMap<String, &'s str>,
    source: &'s str,
    (name, part): (&str, Value),
) -> Result<(), Failure> {
    let list = LISTS.iter().find(|(list, _)| *list == name);
    let mut claim = |what: String| match origins.insert(what.clone(), source) {
        Some(other) if other != source => {
            Err(Failure::usage(anyhow!("{what} is in {other} and in {source}")))
        }
        _ => Ok(()),
    };
    match (list, part) {
        (Some((_, fields)), Value::Array(items)) => {
            for item in &items {
                if let Some(id) = id_of(item, fields) {
                    claim(format!("{name} {id:?}"))?;
                }
            }
            match merged.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(list) => list.extend(items),
                other => *other = Value::Array(items),
            }
        }
        // A part without entries is there all the same, for --prune.
        (Some(_), Value::Null) => {
            merged.entry(name).or_insert_with(|| Value::Array(Vec::new()));
        }
        (_, part) => {
            claim(name.to_owned())?;
            merged.insert(name.to_owned(), part);
        }
    }
    Ok(())
}

/// What an entry of a list is called.
fn id_of(item: &Value, fields: &[&str]) -> Option<String> {
    match item {
        Value::String(text) => Some(text.clone()),
        Value::Object(of) => {
            let parts = fields.iter().filter_map(|field| of.get(*field)?.as_str());
            let id = parts.collect::<Vec<_>>().join(":");
            (!id.is_empty()).then_some(id)
        }
        _ => None,
    }
}

fn is_enforcement(problem: &Problem) -> bool {
    problem.rule.is_none() && problem.field.as_deref() == Some(ENFORCEMENT)
}

/// Checks what the files say together: one may speak of what is in another. Its problems get the place
/// that they have in the file that they come from.
fn compile(sources: &[Source], merged: &Map<String, Value>) -> Vec<Problem> {
    let mut whole = merged.clone();
    whole.remove(ENFORCEMENT);
    without_foreign_grants(&mut whole);
    let found = match RuleSet::from_yaml(&Value::Object(whole).to_string(), "the rules") {
        Ok(_) => return Vec::new(),
        Err(Problems(found)) => found,
    };
    let single = |source: &Source| match RuleSet::from_yaml(&source.text, &source.name) {
        Ok(_) => Vec::new(),
        Err(Problems(found)) => found,
    };
    let placed: Vec<Problem> = sources.iter().flat_map(single).collect();
    let place = |problem: &Problem| {
        // Messages may name lines, which differ; entries of lists are counted in each file.
        let is_same = |other: &&Problem| match &problem.rule {
            Some(rule) if !rule.starts_with('#') => {
                other.rule == problem.rule && other.field == problem.field
            }
            _ => other.message == problem.message,
        };
        placed.iter().find(is_same).cloned().unwrap_or_else(|| Problem {
            source: "all files together".to_owned(),
            ..problem.clone()
        })
    };
    let mut placed: Vec<Problem> = found.iter().map(place).collect();
    placed.dedup();
    placed
}

/// Takes out grants of rules that only the server knows: it checks them.
fn without_foreign_grants(document: &mut Map<String, Value>) {
    let id = |item: &Value| item.get("rule_id")?.as_str().map(str::to_owned);
    let rules: BTreeSet<String> = match document.get("rules") {
        Some(Value::Array(rules)) => rules.iter().filter_map(id).collect(),
        _ => BTreeSet::new(),
    };
    if let Some(Value::Array(grants)) = document.get_mut("grants") {
        grants.retain(|grant| id(grant).is_none_or(|rule| rules.contains(&rule)));
    }
}

/// The tiers of clients in the words of the API.
pub(super) fn api_client_tier(item: &Value) -> Value {
    let Value::Object(fields) = item else { return item.clone() };
    let either = |one: &str, other: &str| {
        fields.get(one).or_else(|| fields.get(other)).cloned().unwrap_or_default()
    };
    json!({
        "identifier_type": either("type", "identifier_type"),
        "identifier": either("value", "identifier"),
        "tier": either("tier", "tier"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(texts: &[&str]) -> Result<Document, String> {
        let name = |(number, text): (usize, &&str)| Source {
            name: format!("{number}.yaml"),
            text: (*text).to_owned(),
        };
        let sources: Vec<Source> = texts.iter().enumerate().map(name).collect();
        merge(&sources).map_err(|failure| match failure {
            Failure::Usage(error) | Failure::Failed(error) => format!("{error:#}"),
        })
    }

    const A: &str = "rules: [{rule_id: a, identifier_type: user_id, limit: 5, window: 1h}]\n";

    #[test]
    fn parts_of_files_come_together() {
        let b = "rules: [{rule_id: b, identifier_type: user_id, limit: 5, window: 1h}]
enforcement: on
deny_list:
grants: [{rule_id: a, type: user_id, value: x, extra: 1, expires_at: 2099-01-01T00:00:00Z}]
client_tiers: [{type: user_id, value: ann, tier: pro}]\n";
        let document = merged(&[A, b]).unwrap();
        assert_eq!(document.body["rules"].as_array().unwrap().len(), 2);
        assert_eq!(document.body["enforcement"], "on");
        assert_eq!(document.body["deny_list"], json!([]));
        assert_eq!(document.client_tiers.len(), 1);
        let tier = api_client_tier(&document.client_tiers[0]);
        assert_eq!(tier, json!({"identifier_type": "user_id", "identifier": "ann", "tier": "pro"}));
    }

    #[test]
    fn what_is_said_twice_names_both_files() {
        let twice = merged(&[A, A]).unwrap_err();
        assert_eq!(twice, "rules \"a\" is in 0.yaml and in 1.yaml");
        let twice = merged(&["no_match: deny\n", "no_match: allow\n"]).unwrap_err();
        assert_eq!(twice, "no_match is in 0.yaml and in 1.yaml");
    }

    #[test]
    fn problems_have_the_place_in_their_file() {
        let wrong = "\n\nrules: [{rule_id: b, identifier_type: user_id, limit: -5, window: 1h}]\n";
        let problem = merged(&[A, wrong]).unwrap_err();
        assert!(problem.starts_with("there is a problem in the rules\n1.yaml:3:"), "{problem}");
        assert!(merged(&["rules: ["]).unwrap_err().contains("0.yaml:"));
        assert!(merged(&["rulez: []"]).unwrap_err().contains("0.yaml:1:1"));
        // The same rule twice in one file.
        let twice =
            "rules:\n- {rule_id: c, limit: 5, window: 1h}\n- {rule_id: c, limit: 5, window: 1h}\n";
        assert!(merged(&[A, twice]).unwrap_err().contains("1.yaml:"), "{:?}", merged(&[A, twice]));
    }
}
