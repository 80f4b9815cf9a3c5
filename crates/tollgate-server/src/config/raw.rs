//! The first stage: settings as typed, by key, the last layer's word for each.

use std::collections::BTreeMap;

use super::problem::{ConfigProblems, Origin};
use super::tree::{self, Node, Value};
use super::{DEFAULT_FILE, DEFAULT_FILE_NAME};

/// What every variable's name begins with.
pub(super) const VARIABLE_PREFIX: &str = "TOLLGATE_";

/// Variables that are no setting.
const OTHER_VARIABLES: [&str; 7] = [
    "TOLLGATE_CONFIG",
    "TOLLGATE_ADMIN_TOKEN",
    "TOLLGATE_URL",
    "TOLLGATE_TOKEN",
    "TOLLGATE_CA",
    "TOLLGATE_CERT",
    "TOLLGATE_KEY",
];

/// What platforms that provide a Redis call the variable with its URL.
const REDIS_URL: &str = "REDIS_URL";

/// The variable that says whether those servers are a cluster.
const REDIS_CLUSTER_MODE: &str = "REDIS_CLUSTER_MODE";

/// One setting as typed.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) value: Value,
    pub(super) origin: Origin,
    /// The name of the file that places within the value refer to, if it came from one.
    pub(super) file: Option<String>,
}

/// Every setting, by its key such as `limits.max_body_bytes`.
///
/// It begins with the default file, which therefore decides what keys there are; the other layers
/// replace values and cannot add keys.
#[derive(Debug, Clone, Default)]
pub(super) struct Raw {
    pub(super) settings: BTreeMap<String, Setting>,
}

impl Raw {
    /// The settings of the default file.
    pub(super) fn defaults(problems: &mut ConfigProblems) -> Self {
        let mut raw = Self::default();
        if let Some(node) = tree::parse(DEFAULT_FILE, DEFAULT_FILE_NAME, problems) {
            raw.add_leaves("", node);
        }
        raw
    }

    fn add_leaves(&mut self, path: &str, node: Node) {
        let origin = place(DEFAULT_FILE_NAME, &node.referenced);
        match node.value {
            Value::Map(entries) => {
                for (key, value) in entries {
                    self.add_leaves(&join(path, &key.value), value);
                }
            }
            value => {
                let file = Some(DEFAULT_FILE_NAME.to_owned());
                self.settings.insert(path.to_owned(), Setting { value, origin, file });
            }
        }
    }

    /// Lays a file over what is there.
    pub(super) fn lay_file(&mut self, text: &str, name: &str, problems: &mut ConfigProblems) {
        // A file of comments alone is no document at all to some, and null to others.
        if let Some(node) = tree::parse(text, name, problems) {
            self.lay_node("", node, name, problems);
        }
    }

    pub(super) fn lay_node(
        &mut self,
        path: &str,
        node: Node,
        file: &str,
        problems: &mut ConfigProblems,
    ) {
        let origin = place(file, &node.referenced);
        if let Some(setting) = self.settings.get_mut(path) {
            let file = Some(file.to_owned());
            *setting = Setting { value: node.value, origin, file };
            return;
        }
        match node.value {
            // A section whose keys are all commented out.
            Value::Null => {}
            Value::Map(entries) => {
                for (key, value) in entries {
                    let inner = join(path, &key.value);
                    let is_known = self.settings.contains_key(&inner) || self.is_section(&inner);
                    // A key with a dot in it would otherwise reach into a section.
                    if is_known && !key.value.contains('.') {
                        self.lay_node(&inner, value, file, problems);
                    } else {
                        let known = self.keys_of(path);
                        let message = match tollgate_policy::nearest_name(&key.value, &known) {
                            Some(meant) => format!("there is no such key; did you mean {meant}?"),
                            None => format!("there is no such key; there are {}", known.join(", ")),
                        };
                        problems.add(&place(file, &key.referenced), Some(&inner), message);
                    }
                }
            }
            other => {
                let key = (!path.is_empty()).then_some(path);
                let message = format!("must be a mapping of keys to values, not {}", other.kind());
                problems.add(&origin, key, message);
            }
        }
    }

    fn is_section(&self, path: &str) -> bool {
        !self.keys_of(path).is_empty()
    }

    /// The names directly below a section, in order.
    fn keys_of(&self, section: &str) -> Vec<&str> {
        let below = |key: &'_ str| -> Option<usize> {
            if section.is_empty() {
                return Some(0);
            }
            key.strip_prefix(section)?.strip_prefix('.')?;
            Some(section.len() + 1)
        };
        let mut names: Vec<&str> = self
            .settings
            .keys()
            .filter_map(|key| key.get(below(key)?..)?.split('.').next())
            .collect();
        names.dedup();
        names
    }

    /// Lays environment variables over what is there.
    pub(super) fn lay_variables(&mut self, variables: impl Iterator<Item = (String, String)>) {
        let names = self.variables();
        for (name, text) in variables {
            if name == REDIS_URL && !text.is_empty() && self.is_empty_list("redis.urls") {
                self.lay_text("redis.urls", text, Origin::Variable(name));
                continue;
            }
            if name == REDIS_CLUSTER_MODE && !text.is_empty() && self.is_default("redis.kind") {
                match text.to_ascii_lowercase().as_str() {
                    "false" | "0" | "no" | "off" => {}
                    "true" | "1" | "yes" | "on" => {
                        self.lay_text("redis.kind", "cluster".to_owned(), Origin::Variable(name));
                    }
                    // No kind has such a name, so the check of kinds reports it.
                    _ => self.lay_text("redis.kind", text, Origin::Variable(name)),
                }
                continue;
            }
            // An empty variable is how compose files and shells say that it is not set.
            if let Some(key) = names.get(&name).filter(|_| !text.is_empty()) {
                self.lay_text(key, text, Origin::Variable(name));
            }
        }
    }

    fn is_default(&self, key: &str) -> bool {
        let file = self.settings.get(key).and_then(|setting| setting.file.as_deref());
        file == Some(DEFAULT_FILE_NAME)
    }

    fn is_empty_list(&self, key: &str) -> bool {
        let value = self.settings.get(key).map(|setting| &setting.value);
        value.is_some_and(|value| match value {
            Value::Null => true,
            Value::List(items) => items.is_empty(),
            _ => false,
        })
    }

    /// Lays one value, given as text, over what is there.
    pub(super) fn lay_text(&mut self, key: &str, text: String, origin: Origin) {
        if let Some(setting) = self.settings.get_mut(key) {
            let value = if text == "null" { Value::Null } else { Value::Text(text) };
            *setting = Setting { value, origin, file: None };
        }
    }

    /// The key of every variable.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        self.settings.keys().map(|key| (variable_of(key), key.clone())).collect()
    }
}

/// The variable that overrides a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Whether a variable looks like a setting and is none.
pub(super) fn is_unknown_variable(name: &str, known: &BTreeMap<String, String>) -> bool {
    name.starts_with(VARIABLE_PREFIX)
        && !OTHER_VARIABLES.contains(&name)
        && !known.contains_key(name)
}

/// The origin of a place in a file.
pub(super) fn place(file: &str, location: &serde_saphyr::Location) -> Origin {
    let (line, column) = (location.line(), location.column());
    Origin::File { name: file.to_owned(), line, column }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
