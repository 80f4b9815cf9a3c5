//! What the whole installation sees, or one of its nodes: the keys that are seen most, what happened lately,
//! and which nodes there are.

use serde_json::{Value, json};
use tollgate_core::SECOND;

use super::read::Query;
use super::respond::{AdminError, Answer};
use super::{Admin, Asked};
use crate::control::installation::{Gathered, HistoryQuery, NodeView};
use crate::http::time::Rfc3339;
use crate::telemetry::decisions::{
    COUNTS, Counted, KEY_SEPARATOR, Label, RuleFigures, TopFigures, Window,
};
use crate::telemetry::history::{LabelHistory, Resolution, Step, quantile_micros};
use crate::telemetry::latency::{BOUNDS_MICROS, BUCKETS};

/// Keys of a rule that are returned: by default, and at most.
const DEFAULT_KEYS: usize = 10;
const MAX_KEYS: usize = 1_000;
/// Values of a label whose history is returned.
const MAX_LABELS: usize = 20;
/// How far back the history goes: by default, and at most, in minutes.
const DEFAULT_MINUTES: u64 = 60;
const MAX_MINUTES: u64 = 24 * 60;
/// Up to so many minutes are returned in short steps.
const SHORT_MINUTES: u64 = 60;

impl Admin {
    /// Who is seen most.
    pub(super) async fn top(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let rule = query.take("rule_id");
        let node = query.take("node");
        let window = match query.take("window").as_deref() {
            None | Some("minutes") => Window::Minutes,
            Some("hours") => Window::Hours,
            Some(_) => return Err(AdminError::invalid("window", "must be minutes or hours")),
        };
        let limit = number(&mut query, "limit", DEFAULT_KEYS as u64, 1, MAX_KEYS as u64)?;
        query.end()?;
        let most = usize::try_from(limit).unwrap_or(MAX_KEYS);
        let found = self.installation.top(window, rule.as_deref(), node.as_deref()).await;
        let found = found.ok_or_else(no_such_node)?;
        let figures = &found.figures;
        let now = self.engine.clock().now();
        let since = if figures.since == 0 { now } else { figures.since };
        let answer = json!({
            "node": self.installation.own_name(),
            "since": Rfc3339(since),
            "seconds": now.saturating_sub(since) / SECOND,
            "sampled_one_in": figures.sampled,
            "rules": rules_view(figures, most),
            "rules_left_out": figures.rules_left_out,
            "tenants": keys(&figures.tenants.top(most)),
            "models": keys(&figures.models.top(most)),
        });
        Ok(Answer::ok(with_nodes(answer, &found)))
    }

    /// What happened lately, in steps.
    pub(super) async fn history(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let minutes = number(&mut query, "minutes", DEFAULT_MINUTES, 1, MAX_MINUTES)?;
        let label = match query.take("by").as_deref() {
            None | Some("tenant_id") => Label::Tenant,
            Some("model_id") => Label::Model,
            Some("scope") => Label::Scope,
            Some(_) => {
                return Err(AdminError::invalid("by", "must be tenant_id, model_id or scope"));
            }
        };
        let mut only = query.take("name");
        let node = query.take("node");
        let has_latencies = query.flag("latencies")?;
        query.end()?;
        let own = asked.tenant();
        if let Some(own) = own {
            if label != Label::Tenant {
                let message = "a tenant's admin sees the history of its tenant".to_owned();
                return Err(AdminError::Forbidden(message));
            }
            // Under these names there is the traffic of others, too.
            let is_own = !["none", "other"].contains(&own);
            only = Some(if is_own { own.to_owned() } else { String::new() });
        }
        let resolution =
            if minutes <= SHORT_MINUTES { Resolution::Short } else { Resolution::Long };
        let step = resolution.step_seconds();
        let query = HistoryQuery {
            resolution,
            steps: minutes * 60 / step,
            label,
            only: only.as_deref(),
            max_labels: MAX_LABELS,
            node: node.as_deref(),
        };
        let found = self.installation.history(&query).await.ok_or_else(no_such_node)?;
        let history = &found.figures;
        let mut answer = json!({
            "node": self.installation.own_name(),
            "until": (history.until > 0).then_some(Rfc3339(history.until)),
            "step_seconds": step,
            "steps": history.steps.len(),
            "values": history.labels.iter().map(label_view).collect::<Vec<_>>(),
            "values_left_out": history.labels_left_out,
        });
        // What all tenants do together is not for one of them.
        if own.is_none()
            && let Some(answer) = answer.as_object_mut()
        {
            answer.insert("all".to_owned(), all_view(&history.steps, has_latencies));
            if has_latencies {
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let bounds = BOUNDS_MICROS.map(|micros| micros as f64 / 1e3);
                answer.insert("latency_bounds_ms".to_owned(), bounds.to_vec().into());
            }
        }
        Ok(Answer::ok(with_nodes(answer, &found)))
    }

    /// All nodes that share a Redis or a PostgreSQL, also those that have gone; or this one alone.
    pub(super) async fn nodes(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let (nodes, problem) = self.installation.nodes().await;
        Ok(Answer::ok(json!({
            "node": self.installation.own_name(),
            "items": nodes.iter().map(NodeView::view).collect::<Vec<_>>(),
            "problem": problem,
        })))
    }

    /// The installation in a few figures, or one of its nodes.
    pub(super) async fn overview(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let only = query.take("node");
        query.end()?;
        let (mut nodes, problem) = self.installation.nodes().await;
        nodes.retain(|node| only.as_deref().is_none_or(|only| only == node.name()));
        if nodes.is_empty() {
            return Err(no_such_node());
        }
        let live: Vec<&NodeView> = nodes.iter().filter(|node| node.is_live).collect();
        let mut decisions = [0_u64; COUNTS.len()];
        for (sum, more) in live.iter().flat_map(|node| decisions_of(node)) {
            if let Some(sum) = decisions.get_mut(sum) {
                *sum = sum.saturating_add(more);
            }
        }
        let named =
            COUNTS.iter().zip(decisions).map(|(name, sum)| ((*name).to_owned(), json!(sum)));
        let mut lost: Vec<&str> = live.iter().flat_map(|node| node.lost_stores()).collect();
        lost.sort_unstable();
        lost.dedup();
        Ok(Answer::ok(json!({
            "node": self.installation.own_name(),
            "live_nodes": live.len(),
            "gone_nodes": nodes.len() - live.len(),
            "decisions": named.collect::<Value>(),
            "decisions_per_second": live.iter().map(|node| node.per_second()).sum::<f64>(),
            "stores_lost": lost,
            "problem": problem,
        })))
    }
}

/// The counts of a node by their place.
fn decisions_of(node: &NodeView) -> impl Iterator<Item = (usize, u64)> {
    node.decisions().into_iter().enumerate()
}

fn no_such_node() -> AdminError {
    AdminError::invalid("node", "there is no such node: GET nodes lists them")
}

/// How many nodes an answer is about, and whether any is missing.
fn with_nodes<T>(mut answer: Value, found: &Gathered<T>) -> Value {
    if let Some(answer) = answer.as_object_mut() {
        answer.insert("nodes".to_owned(), found.nodes.into());
        answer.insert("nodes_unread".to_owned(), found.unread.into());
        answer.insert("problem".to_owned(), found.problem.clone().into());
    }
    answer
}

fn number(
    query: &mut Query<'_>,
    name: &str,
    default: u64,
    least: u64,
    most: u64,
) -> Result<u64, AdminError> {
    let Some(text) = query.take(name) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| AdminError::invalid(name, format!("must be from {least} to {most}")))
}

fn rule_view(rule_id: &str, [allowed, refused, would_deny]: &RuleFigures, most: usize) -> Value {
    json!({
        "rule_id": rule_id,
        "consumed": allowed.total,
        "refused": refused.total,
        "would_deny": would_deny.total,
        "top_allowed": rule_keys(&allowed.top(most)),
        "top_refused": rule_keys(&refused.top(most)),
        "top_would_deny": rule_keys(&would_deny.top(most)),
        "allowed_keys": allowed.distinct,
        "refused_keys": refused.distinct,
        "would_deny_keys": would_deny.distinct,
        "allowed_floor": allowed.floor,
        "refused_floor": refused.floor,
        "would_deny_floor": would_deny.floor,
    })
}

/// The rule that refuses most is what people look for.
fn rules_view(figures: &TopFigures, most: usize) -> Vec<Value> {
    let mut rules: Vec<_> = figures.rules.iter().collect();
    rules.sort_by_key(|(_, [allowed, refused, would_deny])| {
        std::cmp::Reverse((refused.total, would_deny.total, allowed.total))
    });
    rules.into_iter().map(|(id, keys)| rule_view(id, keys, most)).collect()
}

fn keys(keys: &[Counted]) -> Value {
    let one =
        |key: &Counted| json!({ "key": key.name, "count": key.count, "at_least": key.at_least });
    keys.iter().map(one).collect()
}

/// Keys of a rule, with the attributes that they are made of.
fn rule_keys(keys: &[Counted]) -> Value {
    let one = |key: &Counted| {
        let parts = key.name.split(KEY_SEPARATOR).filter_map(|part| part.split_once('='));
        let attributes: serde_json::Map<String, Value> =
            parts.map(|(name, value)| (name.to_owned(), value.into())).collect();
        json!({ "key": key.name.replace(KEY_SEPARATOR, ", "), "attributes": attributes,
                "count": key.count, "at_least": key.at_least })
    };
    keys.iter().map(one).collect()
}

fn label_view(label: &LabelHistory) -> Value {
    let column = |index: usize| -> Vec<u32> {
        label.steps.iter().filter_map(|step| step.get(index).copied()).collect()
    };
    json!({ "name": label.name.as_ref(), "allowed": column(0), "refused": column(1),
            "would_deny": column(2) })
}

fn all_view(steps: &[Step], has_latencies: bool) -> Value {
    let mut all = serde_json::Map::new();
    for (index, result) in COUNTS.iter().enumerate() {
        let column: Vec<u32> =
            steps.iter().filter_map(|step| step.counts.get(index).copied()).collect();
        all.insert((*result).to_owned(), column.into());
    }
    for (name, share) in [("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)] {
        let of = |step: &Step| quantile_micros(&step.buckets, share).map(|micros| micros / 1e3);
        all.insert(name.to_owned(), steps.iter().map(of).collect::<Vec<_>>().into());
    }
    if has_latencies {
        let column = |place: usize| -> Vec<u32> {
            steps.iter().filter_map(|step| step.buckets.get(place).copied()).collect()
        };
        let calls: Vec<Vec<u32>> = (0..BUCKETS).map(column).collect();
        all.insert("calls_by_latency".to_owned(), calls.into());
    }
    all.into()
}
