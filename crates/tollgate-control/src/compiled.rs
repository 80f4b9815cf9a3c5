//! A rule set on a node: what came, and what is enforced.

use std::sync::Arc;

use serde_json::Value;
use tollgate_policy::{ClientTiers, KeyProblem, ListKind, Problems, RuleSet, VirtualKeys};

use crate::content::{Content, decode_bucket, decode_keys};
use crate::{ControlError, Kind, document};

/// A rule set, as it came and ready.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// As it came.
    pub content: Content,
    /// Ready.
    pub rules: Arc<RuleSet>,
    clients: Arc<ClientTiers>,
    keys: Arc<VirtualKeys>,
}

/// Why a set cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// A part of it is damaged.
    #[error("the set is damaged: {0}")]
    Damaged(&'static str),
    /// Its rules are wrong, or from a version that knows more.
    #[error("{0}")]
    Wrong(Problems),
    /// A virtual key of it is wrong, or from a version that knows more.
    #[error("a virtual key: {0}")]
    Key(KeyProblem),
}

impl CompileError {
    pub(crate) fn into_control(self, written: &[(Kind, String)]) -> ControlError {
        match self {
            Self::Wrong(problems) => document::problems(problems, written),
            other => ControlError::Internal(other.to_string()),
        }
    }
}

impl Compiled {
    /// Prepares a set. What it has in common with the one before is not prepared again.
    pub fn build(content: Content, before: Option<&Self>) -> Result<Self, CompileError> {
        let same = before.filter(|before| before.content.buckets == content.buckets);
        let clients = match same {
            Some(same) => Arc::clone(&same.clients),
            None => Arc::new(clients(&content, before)?),
        };
        let same_keys = before.filter(|before| before.content.keys == content.keys);
        let keys = match same_keys {
            Some(same) => Arc::clone(&same.keys),
            None => Arc::new(keys(&content, before)?),
        };
        let is_same = |before: &&Self| before.content.document == content.document;
        let rules = match before.filter(is_same) {
            Some(before) if same.is_some() && same_keys.is_some() => Arc::clone(&before.rules),
            other => {
                let mut rules = if let Some(before) = other {
                    RuleSet::clone(&before.rules)
                } else {
                    let text = content.document_text();
                    let text = text.map_err(|_| CompileError::Damaged("it is no text"))?;
                    document::compile(text).map_err(CompileError::Wrong)?
                };
                rules.set_client_tiers(Arc::clone(&clients));
                rules.set_virtual_keys(Arc::clone(&keys));
                Arc::new(rules)
            }
        };
        Ok(Self { content, rules, clients, keys })
    }

    /// How many clients have a tier.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }
}

/// The virtual keys of a set. Buckets that have not changed are taken from the one before.
fn keys(content: &Content, before: Option<&Compiled>) -> Result<VirtualKeys, CompileError> {
    let known = |bucket: &u16| before.and_then(|before| before.content.keys.get(bucket));
    let gone = before.iter().flat_map(|before| before.content.keys.keys());
    let gone = gone.filter(|bucket| !content.keys.contains_key(bucket));
    let mut changed: Vec<(u16, Vec<Value>)> = gone.map(|bucket| (*bucket, Vec::new())).collect();
    for (bucket, part) in content.keys.iter().filter(|(bucket, part)| known(bucket) != Some(part)) {
        let bodies = decode_keys(&part.bytes);
        let bodies = bodies.ok_or(CompileError::Damaged("a bucket of keys is cut off"))?;
        changed.push((*bucket, bodies));
    }
    let none = VirtualKeys::default();
    let basis = before.map_or(&none, |before| &before.keys);
    let changed = changed.iter().map(|(bucket, bodies)| (*bucket, bodies.as_slice()));
    basis.with_buckets(changed).map_err(CompileError::Key)
}

fn clients(content: &Content, before: Option<&Compiled>) -> Result<ClientTiers, CompileError> {
    let mut clients = before.map(|before| ClientTiers::clone(&before.clients)).unwrap_or_default();
    let known = |bucket: &u16| before.and_then(|before| before.content.buckets.get(bucket));
    if let Some(before) = before {
        let gone = |bucket: &&u16| !content.buckets.contains_key(bucket);
        for bucket in before.content.buckets.keys().filter(gone) {
            clients = clients.with_bucket(*bucket, []);
        }
    }
    for (bucket, part) in &content.buckets {
        if known(bucket) == Some(part) {
            continue;
        }
        let rows =
            decode_bucket(&part.bytes).ok_or(CompileError::Damaged("a bucket is cut off"))?;
        let rows = rows.into_iter().filter_map(|(kind, value, tier)| {
            ListKind::from_name(kind).map(|kind| (kind, value, tier))
        });
        clients = clients.with_bucket(*bucket, rows);
    }
    Ok(clients)
}
