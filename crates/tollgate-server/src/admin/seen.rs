//! How this node is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_store::Store as _;

use super::read::Query;
use super::respond::{AdminError, Answer, Obstacle};
use super::{Admin, Asked};
use crate::config::LogLevel;
use crate::control::ControlFigures;
use crate::http::time::Rfc3339;
use crate::log_level;
use crate::telemetry::Observed;
use crate::telemetry::decisions::COUNTS;

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

    /// How this node is.
    pub(super) fn node(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        Ok(Answer::ok(self.node_view()?))
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
