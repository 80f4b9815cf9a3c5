//! What this node sees: who is seen most, what happened lately, and how it is itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_core::SECOND;
use tollgate_store::Store as _;

use super::read::Query;
use super::respond::{AdminError, Answer, Obstacle};
use super::{Admin, Asked};
use crate::config::LogLevel;
use crate::control::ControlFigures;
use crate::http::time::Rfc3339;
use crate::log_level;
use crate::telemetry::Observed;
use crate::telemetry::decisions::{COUNTS, Counted, KEY_SEPARATOR, Label, TopOfRule, Window};
use crate::telemetry::history::{LabelHistory, Resolution, Step, quantile_micros};

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

/// What the calls here report.
pub(crate) struct Seen {
    pub(crate) observed: Arc<Observed>,
    pub(crate) figures: Arc<ControlFigures>,
    pub(crate) node: String,
    /// When this process started, in milliseconds.
    pub(crate) started: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelBody {
    level: String,
}

impl Admin {
    /// From now on the calls here are answered.
    pub(crate) fn serve_seen(&self, seen: Seen) {
        // A process sets this once.
        let _ = self.seen.set(seen);
    }

    fn seen(&self) -> Result<&Seen, AdminError> {
        self.seen.get().ok_or(AdminError::Busy)
    }

    /// Who is seen most.
    pub(super) fn top(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let rule = query.take("rule_id");
        let window = match query.take("window").as_deref() {
            None | Some("minutes") => Window::Minutes,
            Some("hours") => Window::Hours,
            Some(_) => return Err(AdminError::invalid("window", "must be minutes or hours")),
        };
        let limit = number(&mut query, "limit", DEFAULT_KEYS as u64, 1, MAX_KEYS as u64)?;
        query.end()?;
        let seen = self.seen()?;
        let most = usize::try_from(limit).unwrap_or(MAX_KEYS);
        let report = seen.observed.witness.tops().read(window, rule.as_deref(), most);
        let now = self.engine.clock().now();
        let seconds = now.saturating_sub(report.since) / SECOND;
        Ok(Answer::ok(json!({
            "node": seen.node,
            "since": Rfc3339(report.since),
            "seconds": seconds,
            "sampled_one_in": report.sampled,
            "rules": report.rules.iter().map(rule_view).collect::<Vec<_>>(),
            "tenants": keys(&report.tenants),
            "models": keys(&report.models),
        })))
    }

    /// What happened lately, in steps.
    pub(super) fn history(&self, asked: &Asked) -> Result<Answer, AdminError> {
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
        let steps = usize::try_from(minutes * 60 / step).unwrap_or(0);
        let seen = self.seen()?;
        let history =
            seen.observed.history.read(resolution, steps, label, only.as_deref(), MAX_LABELS);
        let mut answer = json!({
            "node": seen.node,
            "until": (history.until > 0).then_some(Rfc3339(history.until)),
            "step_seconds": step,
            "steps": history.steps.len(),
            "values": history.labels.iter().map(label_view).collect::<Vec<_>>(),
        });
        // What all tenants do together is not for one of them.
        if own.is_none()
            && let Some(answer) = answer.as_object_mut()
        {
            answer.insert("all".to_owned(), all_view(&history.steps));
        }
        Ok(Answer::ok(answer))
    }

    /// How this node is.
    pub(super) fn node(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        Ok(Answer::ok(self.node_view()?))
    }

    /// All nodes that share a Redis, or this one alone.
    pub(super) fn nodes(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        Ok(Answer::ok(json!({ "node": self.roll.node(), "items": self.roll.all() })))
    }

    /// Incidents of this node: those that last, then those that are over.
    pub(super) fn incidents(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        Ok(Answer::ok(json!({ "items": self.seen()?.figures.incident_log() })))
    }

    /// How this node is, in few words, for those who watch.
    pub(super) fn pulse(&self) -> Option<Value> {
        let seen = self.seen.get()?;
        let stores = self.engine.store();
        let lost: Vec<&String> = stores
            .names()
            .iter()
            .zip(stores.shared())
            .filter(|(_, store)| store.degraded_since().is_some())
            .map(|(name, _)| name)
            .collect();
        Some(json!({
            "node": seen.node,
            "at": Rfc3339(self.engine.clock().now()),
            "enforcement": self.engine.enforcement().name(),
            "revision": seen.figures.version.load(Ordering::Relaxed),
            "stores_lost": lost,
            "decisions": decisions(seen),
        }))
    }

    /// Changes the level of this node's log, until it is changed again or the process ends.
    pub(super) fn set_log_level(asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let body: LevelBody = serde_json::from_slice(&asked.body)
            .map_err(|error| AdminError::invalid("level", error.to_string()))?;
        let level = LogLevel::ALL.iter().find(|(name, _)| *name == body.level);
        let Some((name, level)) = level else {
            let known: Vec<&str> = LogLevel::ALL.iter().map(|(name, _)| *name).collect();
            let message = format!("must be one of {}", known.join(", "));
            return Err(AdminError::invalid("level", message));
        };
        // Said before: afterwards it may not be heard.
        tracing::warn!(by = %asked.actor.name, level = name, "the level of the log is changed");
        change_log_level(*level)?;
        Ok(Answer::ok(json!({ "level": name })))
    }

    fn node_view(&self) -> Result<Value, AdminError> {
        let seen = self.seen()?;
        let stores = self.engine.store();
        let memory = stores.memory().usage();
        let shared: Vec<Value> = stores
            .names()
            .iter()
            .zip(stores.shared())
            .map(|(name, store)| {
                json!({
                    "name": name,
                    "is_lost": store.degraded_since().is_some(),
                    "open_breakers": store.remote().metrics().open_breakers(),
                    "nodes": store.membership().nodes,
                    "waiting_reports": store.waiting_reports(),
                })
            })
            .collect();
        let figures = &seen.figures;
        let level = log_level::changed_to().unwrap_or(self.config.log.level);
        Ok(json!({
            "node": seen.node,
            "version": env!("CARGO_PKG_VERSION"),
            "role": self.config.control.role.name(),
            "uptime_seconds": (super::now() - seen.started) / 1_000,
            "enforcement": self.engine.enforcement().name(),
            "log_level": level.name(),
            "rules": {
                "count": self.engine.rules().set.rules().len(),
                "source": figures.source().name(),
                "revision": figures.version.load(Ordering::Relaxed),
                "load_failures": figures.load_failures.load(Ordering::Relaxed),
            },
            "memory": {
                "counters": memory.counters,
                "bytes": memory.bytes,
                "evicted": memory.evicted,
            },
            "stores": shared,
            "decisions": decisions(seen),
            "incidents": incidents(figures),
        }))
    }
}

/// States that an operator must see, with what to do about them.
fn incidents(figures: &ControlFigures) -> Vec<Value> {
    let view = |(kind, text)| json!({ "kind": kind, "message": text });
    figures.incidents().into_iter().map(view).collect()
}

/// Decisions since the start, by result, and would-deny outcomes, which are part of no result.
fn decisions(seen: &Seen) -> Value {
    let counts = seen.observed.witness.tally().totals();
    let named = COUNTS.iter().zip(counts).map(|(name, sum)| ((*name).to_owned(), sum.into()));
    Value::Object(named.collect())
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

fn rule_view(rule: &TopOfRule) -> Value {
    let [consumed, refused, would_deny] = rule.totals;
    let [allowed_keys, refused_keys, would_deny_keys] = rule.keys;
    let [allowed_floor, refused_floor, would_deny_floor] = rule.floors;
    json!({
        "rule_id": rule.rule_id,
        "consumed": consumed,
        "refused": refused,
        "would_deny": would_deny,
        "top_allowed": rule_keys(&rule.allowed),
        "top_refused": rule_keys(&rule.refused),
        "top_would_deny": rule_keys(&rule.would_deny),
        "allowed_keys": allowed_keys,
        "refused_keys": refused_keys,
        "would_deny_keys": would_deny_keys,
        "allowed_floor": allowed_floor,
        "refused_floor": refused_floor,
        "would_deny_floor": would_deny_floor,
    })
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

fn all_view(steps: &[Step]) -> Value {
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
    all.into()
}

fn change_log_level(level: LogLevel) -> Result<(), AdminError> {
    if log_level::set(level) {
        return Ok(());
    }
    let message = "the log of this process cannot be changed".to_owned();
    Err(AdminError::Conflict(Obstacle::LogLevelFixed, message))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    /// A program that embeds the server may have a log of its own, as this test has.
    #[tokio::test]
    async fn a_log_that_cannot_change_says_so_by_its_own_code() {
        let (_, level) = LogLevel::ALL[0];
        let refused = change_log_level(level).unwrap_err().respond();
        assert_eq!(refused.status(), 409);
        let body = refused.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["code"], "LOG_LEVEL_FIXED", "{body}");
    }
}
