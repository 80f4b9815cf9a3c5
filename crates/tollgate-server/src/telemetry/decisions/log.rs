//! A line for a decision: JSON for machines, a sentence for people.
//!
//! The line is made on the road of the request and written by a thread of its own. What there is no
//! room for, and what comes faster than is allowed, is dropped and counted.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Decision, Request, Verdict};
use tollgate_policy::Known;
use tollgate_store::api_key_id;

use crate::http::time::Rfc3339;

/// Lines that may wait to be written.
const MAX_WAITING: usize = 4_096;
/// How long the writer sleeps before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often it is looked whether the writer has ended, a tenth of that apart.
const LOOKS_AT_END: usize = 100;

/// Which decisions are logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionLogOptions {
    /// One in so many allowed decisions; 0: none.
    pub sample_allowed: u64,
    /// One in so many refused, throttled, queued and would-deny ones; 0: none.
    pub sample_refused: u64,
    /// At most so many lines a second.
    pub max_per_second: u64,
    /// For people instead of machines.
    pub is_text: bool,
}

thread_local! {
    /// Decisions that this thread has let pass since it logged one: allowed, refused.
    static PASSED: [Cell<u64>; 2] = const { [Cell::new(0), Cell::new(0)] };
}

/// The log of decisions.
pub struct DecisionLog {
    options: DecisionLogOptions,
    api_key_secret: Box<[u8]>,
    lines: SyncSender<String>,
    writer: Mutex<Option<JoinHandle<()>>>,
    is_ended: Arc<AtomicBool>,
    /// The second that is being counted, and the lines of it.
    second: AtomicU64,
    in_second: AtomicU64,
    figures: Arc<Figures>,
}

/// What became of lines.
#[derive(Default)]
struct Figures {
    written: AtomicU64,
    /// For want of room, beyond the rate, or because they could not be written.
    dropped: AtomicU64,
}

/// A decision as a line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    timestamp: Rfc3339,
    level: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_tier: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    scopes: Vec<LineScope<'a>>,
    allowed: bool,
    result: &'static str,
    reason: &'a str,
    /// The rules that would have refused it, had they been enforced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    would_deny: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope_hit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_reset_at: Option<Rfc3339>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    latency_ms: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LineScope<'a> {
    name: &'a str,
    rule_id: &'a str,
    limit: u64,
    current: u64,
    remaining: u64,
}

impl DecisionLog {
    /// A log that is written to `out` by a thread of its own; `None` if nothing would be logged.
    pub fn start(
        options: DecisionLogOptions,
        api_key_secret: &[u8],
        out: Box<dyn Write + Send>,
    ) -> io::Result<Option<Self>> {
        if options.sample_allowed == 0 && options.sample_refused == 0 {
            return Ok(None);
        }
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let is_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_ended);
        let figures = Arc::new(Figures::default());
        let own = Arc::clone(&figures);
        let writer = std::thread::Builder::new()
            .name("decision-log".to_owned())
            .spawn(move || write_all(&waiting, out, &ended, &own))?;
        Ok(Some(Self {
            options,
            api_key_secret: api_key_secret.into(),
            lines,
            writer: Mutex::new(Some(writer)),
            is_ended,
            second: AtomicU64::new(0),
            in_second: AtomicU64::new(0),
            figures,
        }))
    }

    /// Lines that were written, and lines that were not.
    pub fn figures(&self) -> (u64, u64) {
        let Figures { written, dropped } = &*self.figures;
        (written.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed))
    }

    /// Writes what is left, and ends. A reader of the log that has stopped reading is not waited for.
    pub fn stop(&self) {
        self.is_ended.store(true, Ordering::Release);
        let Some(writer) = self.writer.lock().take() else { return };
        for _ in 0..LOOKS_AT_END {
            if writer.is_finished() {
                return;
            }
            std::thread::sleep(PATIENCE / 10);
        }
    }

    #[inline]
    pub(super) fn decided(
        &self,
        request: &Request<'_>,
        decision: &Decision<'_>,
        took: &dyn Fn() -> Nanos,
    ) {
        let is_plain = decision.verdict == Verdict::Allowed && !decision.has_would_deny();
        let one_in =
            if is_plain { self.options.sample_allowed } else { self.options.sample_refused };
        if is_due(usize::from(!is_plain), one_in) {
            self.put(request, decision, took());
        }
    }

    fn put(&self, request: &Request<'_>, decision: &Decision<'_>, took: Nanos) {
        if !self.is_within_rate(decision.now) {
            self.figures.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let text = if self.options.is_text {
            Some(sentence(decision, took))
        } else {
            self.json(request, decision, took)
        };
        let Some(text) = text else { return };
        if self.lines.try_send(text).is_err() {
            self.figures.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether there is room for another line in this second. Threads that meet at its end may let a
    /// few more pass.
    fn is_within_rate(&self, now: Nanos) -> bool {
        let second = now / SECOND;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.in_second.store(0, Ordering::Relaxed);
        }
        self.in_second.fetch_add(1, Ordering::Relaxed) < self.options.max_per_second
    }

    fn json(&self, request: &Request<'_>, decision: &Decision<'_>, took: Nanos) -> Option<String> {
        let of = |known| request.attributes.get(known);
        let key = of(Known::ApiKey).map(|key| api_key_id(&self.api_key_secret, key));
        let deciding = decision.deciding();
        let allowed = decision.is_allowed();
        let scope = |scope: &tollgate_engine::Scope<'_>| (scope.outcome.status, scope.quota);
        let line = Line {
            timestamp: Rfc3339(decision.now),
            level: if allowed { "INFO" } else { "WARN" },
            target: "decision",
            request_id: request.request_id,
            user_id: of(Known::UserId),
            tenant_id: of(Known::TenantId),
            api_key_id: key.as_deref(),
            model_id: of(Known::ModelId),
            model_tier: of(Known::ModelTier),
            client_type: of(Known::ClientType),
            ip: of(Known::Ip),
            method: of(Known::Method),
            endpoint: of(Known::Endpoint),
            scopes: decision
                .scopes()
                .map(|one| LineScope {
                    name: &one.rule.scope,
                    rule_id: &one.rule.id,
                    limit: scope(one).1,
                    current: scope(one).0.used,
                    remaining: scope(one).0.remaining,
                })
                .collect(),
            allowed,
            result: decision.verdict.name(),
            reason: decision.reason_code(),
            would_deny: would_deny(decision),
            rule_id: deciding.map(|one| one.rule.id.as_str()),
            scope_hit: deciding.filter(|_| !allowed).map(|one| one.rule.scope.as_str()),
            remaining: deciding.map(|one| one.outcome.status.remaining),
            window_reset_at: deciding.map(|one| Rfc3339(one.outcome.status.reset_at)),
            retry_after_ms: decision.retry_after().map(|after| after.div_ceil(1_000_000)),
            degraded: decision.degraded.is_some(),
            latency_ms: millis(took),
        };
        serde_json::to_string(&line).ok()
    }
}

/// The rules that would have refused it, each once.
fn would_deny<'r>(decision: &Decision<'r>) -> Vec<&'r str> {
    let mut rules: Vec<&str> = decision.would_deny().map(|scope| scope.rule.id.as_str()).collect();
    rules.dedup();
    rules
}

/// Whether it is time for another of this kind.
#[inline]
fn is_due(kind: usize, one_in: u64) -> bool {
    if one_in == 0 {
        return false;
    }
    PASSED.with(|passed| {
        let Some(passed) = passed.get(kind) else { return false };
        let count = passed.get() + 1;
        let is_due = count >= one_in;
        passed.set(if is_due { 0 } else { count });
        is_due
    })
}

/// To the microsecond.
fn millis(nanos: Nanos) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    let micros = (nanos / 1_000) as f64;
    micros / 1_000.0
}

/// The decision as people read it.
fn sentence(decision: &Decision<'_>, took: Nanos) -> String {
    let mut text = String::new();
    let at = Rfc3339(decision.now);
    let (result, reason) = (decision.verdict.name(), decision.reason_code());
    // The reader is at a terminal, and the explanation contains values from outside.
    let why: Cow<'_, str> = decision.explain().chars().filter(|one| !one.is_control()).collect();
    let took = millis(took);
    // Writing to memory does not fail.
    let _ = write!(text, "{at} {result:>9} {reason}: {why}");
    let rules = would_deny(decision);
    if !rules.is_empty() {
        let _ = write!(text, "; would be refused by {}", rules.join(", "));
    }
    let _ = write!(text, " ({took} ms)");
    text
}

fn write_all(
    lines: &Receiver<String>,
    mut out: Box<dyn Write + Send>,
    is_ended: &AtomicBool,
    figures: &Figures,
) {
    let mut is_well = true;
    loop {
        let mut line = match lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) if is_ended.load(Ordering::Acquire) => return,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        line.push('\n');
        let done = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        let figure = if done.is_ok() { &figures.written } else { &figures.dropped };
        figure.fetch_add(1, Ordering::Relaxed);
        match done {
            // The counter of dropped lines shows a slow reader; any other error is logged once.
            Err(error) if is_well && error.kind() != io::ErrorKind::WouldBlock => {
                tracing::warn!(%error, "the log of decisions cannot be written");
                is_well = false;
            }
            Err(_) => {}
            Ok(()) => is_well = true,
        }
    }
}
