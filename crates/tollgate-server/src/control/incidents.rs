//! States that an operator must see: those that are watched here, since when each lasts, and those that are over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_control::Millis;
use tollgate_control::draft::rfc3339;
use tollgate_store::Store as _;

use super::figures::Source;
use super::{Keeper, decisions, ownership};

/// How often the states are looked at.
const ROUND: Duration = Duration::from_secs(1);
/// Incidents that are over and still listed.
const MAX_PAST: usize = 200;
/// Rules that were not confirmed for so long are stale, as the alert says.
const STALE_SECONDS: i64 = 600;
/// Dropped records are reported for so long after the last one.
const DROPS_MILLIS: Millis = 60_000;
/// A node may be behind for so long: changes take a moment.
const BEHIND_MILLIS: Millis = 10_000;
/// A certificate that ends within this time is reported.
const CERTIFICATE_MILLIS: Millis = 14 * 24 * 3_600_000;
/// Less free disk than this is reported.
const MIN_FREE_BYTES: u64 = 256 << 20;

/// So long a node may be without rules after its start before that is an incident.
const START_SECONDS: i64 = 5;

/// Every kind, with its title and the next step.
pub(crate) const KINDS: [(&str, &str, &str); 12] = [
    (
        "audit",
        "Decisions are missing from the audit log.",
        "Check the disk and the database; raise audit.max_buffered_bytes if both keep up",
    ),
    (
        "certificate",
        "The TLS certificate is about to end.",
        "Replace tls.cert_file and tls.key_file, then send SIGHUP to the process",
    ),
    (
        "config_stale",
        "The rules may be out of date.",
        "Check that the database, or the Redis that carries the rules, answers this node",
    ),
    (
        "database",
        "The database cannot be read.",
        "Start or repair the database; decisions continue by the rules in force",
    ),
    ("disk", "The disk is nearly full.", "Free the disk of data_dir, or lower audit.max_bytes"),
    (
        "ledger",
        "Usage is missing from the ledger, or waits for it.",
        "Check the database and that a control node runs; where there is none, set ledger.enabled to false",
    ),
    (
        "no_rules",
        "This node has not received its rules.",
        "Check that the database, or the Redis that carries the rules, answers this node",
    ),
    (
        "nodes_behind",
        "A node enforces older rules than the others.",
        "Look at the log of that node, and restart it if it does not follow",
    ),
    (
        "queue",
        "The queue of the gateway cannot be used.",
        "Free the disk, or move a damaged queue.db aside and restart",
    ),
    (
        "rule_owners",
        "Nodes do not agree about their rules.",
        "Start all but one with --role data, or give all of them one PostgreSQL",
    ),
    (
        "rules_lost",
        "The database of rules was lost or is another one.",
        "Restore a backup or correct its address, and restart",
    ),
    (
        "store",
        "A shared store does not answer.",
        "Check that Redis runs and that this node reaches it; until then each rule's on_store_failure decides",
    ),
];

/// A state with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Incident {
    kind: &'static str,
    text: String,
    since: Millis,
    until: Option<Millis>,
}

/// The incidents that last, and the last ones that are over.
#[derive(Debug, Default)]
pub(crate) struct IncidentLog {
    open: Vec<Incident>,
    past: VecDeque<Incident>,
}

impl IncidentLog {
    /// Takes note of all states that there are at a time.
    pub(crate) fn note(&mut self, now: Millis, current: &[(&'static str, String)]) {
        let open = std::mem::take(&mut self.open);
        for mut incident in open {
            if let Some((_, text)) = current.iter().find(|(kind, _)| *kind == incident.kind) {
                incident.text.clone_from(text);
                self.open.push(incident);
            } else {
                incident.until = Some(now);
                self.past.push_front(incident);
            }
        }
        self.past.truncate(MAX_PAST);
        for (kind, text) in current {
            if !self.open.iter().any(|open| open.kind == *kind) {
                let text = text.clone();
                self.open.push(Incident { kind, text, since: now, until: None });
            }
        }
    }

    /// Those that last first, then the latest.
    pub(crate) fn all(&self) -> Vec<Value> {
        let view = |incident: &Incident| {
            let known = KINDS.iter().find(|(kind, ..)| *kind == incident.kind);
            let (_, title, next_step) =
                known.copied().unwrap_or((incident.kind, incident.kind, ""));
            json!({
                "kind": incident.kind,
                "title": title,
                "text": incident.text,
                "next_step": next_step,
                "since": rfc3339(incident.since),
                "until": incident.until.map(rfc3339),
            })
        };
        self.open.iter().chain(&self.past).map(view).collect()
    }
}

/// What earlier rounds saw.
#[derive(Debug, Default)]
struct Memory {
    dropped: u64,
    dropped_at: Option<Millis>,
    behind_since: Option<Millis>,
    usage_lost: u64,
    usage_lost_at: Option<Millis>,
    usage_waits_since: Option<Millis>,
}

impl Keeper {
    /// Looks at everything that no other part reports by itself, and keeps the times of all incidents.
    pub(super) async fn watch_incidents(self: Arc<Self>) {
        let mut memory = Memory { dropped: self.dropped(), ..Memory::default() };
        loop {
            let now = crate::admin::now();
            let figures = &self.around.figures;
            figures.watched([
                ("store", self.lost_stores()),
                ("audit", self.dropping(now, &mut memory)),
                ("ledger", self.lacking_usage(now, &mut memory)),
                ("config_stale", self.stale(now)),
                ("no_rules", self.without_rules(now)),
                ("nodes_behind", self.behind(now, &mut memory)),
                ("certificate", self.ending_certificate(now)),
                ("disk", self.full_disk()),
            ]);
            figures.note_incidents(now);
            tokio::time::sleep(ROUND).await;
        }
    }

    fn lost_stores(&self) -> Option<String> {
        let stores = self.around.engine.store();
        let each = stores.names().iter().zip(stores.shared());
        let lost: Vec<&str> = each
            .filter(|(_, store)| store.degraded_since().is_some())
            .map(|(name, _)| name.as_str())
            .collect();
        (!lost.is_empty()).then(|| {
            format!(
                "{} does not answer this node; limits are decided by fallbacks",
                lost.join(", ")
            )
        })
    }

    fn dropped(&self) -> u64 {
        let dropped = self.around.trail.as_ref().map_or(0, |trail| trail.figures().dropped);
        dropped + self.around.figures.decisions_lost.load(Ordering::Relaxed)
    }

    fn dropping(&self, now: Millis, memory: &mut Memory) -> Option<String> {
        let dropped = self.dropped();
        if dropped > memory.dropped {
            memory.dropped = dropped;
            memory.dropped_at = Some(now);
        }
        let last = memory.dropped_at.filter(|at| now - at < DROPS_MILLIS)?;
        Some(format!(
            "{dropped} records were dropped since the start, the last at {}",
            rfc3339(last)
        ))
    }

    fn lacking_usage(&self, now: Millis, memory: &mut Memory) -> Option<String> {
        let figures = &self.around.figures;
        let lost = figures.usage_lost.load(Ordering::Relaxed);
        if lost > memory.usage_lost {
            memory.usage_lost = lost;
            memory.usage_lost_at = Some(now);
        }
        if let Some(last) = memory.usage_lost_at.filter(|at| now - at < DROPS_MILLIS) {
            let last = rfc3339(last);
            return Some(format!("{lost} events were lost since the start, the last at {last}"));
        }
        let is_waiting = figures.is_usage_unsent.load(Ordering::Relaxed)
            || figures.is_usage_unwritten.load(Ordering::Relaxed);
        if !is_waiting {
            memory.usage_waits_since = None;
            return None;
        }
        let since = *memory.usage_waits_since.get_or_insert(now);
        let text = "usage cannot be written to the ledger, and waits; the log has the cause";
        (now - since >= BEHIND_MILLIS).then(|| text.to_owned())
    }

    /// A start is no incident until it takes long.
    fn without_rules(&self, now: Millis) -> Option<String> {
        let figures = &self.around.figures;
        let age = now / 1_000 - figures.since.load(Ordering::Relaxed);
        figures.lacks_rules().filter(|_| age > START_SECONDS).map(str::to_owned)
    }

    fn stale(&self, now: Millis) -> Option<String> {
        let figures = &self.around.figures;
        let since = figures.since.load(Ordering::Relaxed);
        if since == 0 || figures.source() == Source::File {
            return None;
        }
        let last = figures.last_success.load(Ordering::Relaxed).max(since);
        let age = now / 1_000 - last;
        (age > STALE_SECONDS)
            .then(|| format!("the source of rules has not answered for {} minutes", age / 60))
    }

    fn behind(&self, now: Millis, memory: &mut Memory) -> Option<String> {
        let behind = ownership::behind(&self.roll.all());
        if behind.is_none() {
            memory.behind_since = None;
        }
        let since = *memory.behind_since.get_or_insert(now);
        behind.filter(|_| now - since >= BEHIND_MILLIS)
    }

    fn ending_certificate(&self, now: Millis) -> Option<String> {
        let ends = self.around.tls.as_ref()?.ends_at()?;
        if ends - now > CERTIFICATE_MILLIS {
            return None;
        }
        let verb = if ends <= now { "ended" } else { "ends" };
        Some(format!("the certificate in use {verb} at {}", rfc3339(ends)))
    }

    fn full_disk(&self) -> Option<String> {
        let free = decisions::free_bytes(self.around.config.data_dir.as_deref()?)?;
        disk_text(free)
    }
}

fn disk_text(free: u64) -> Option<String> {
    let megabytes = free >> 20;
    (free < MIN_FREE_BYTES).then(|| {
        format!(
            "{megabytes} MiB are free where this node keeps its data; below 64 MiB no decision is logged: free the \
             disk of data_dir, or lower audit.max_bytes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_have_a_beginning_and_an_end() {
        let mut log = IncidentLog::default();
        log.note(1_000, &[("store", "one".to_owned())]);
        log.note(2_000, &[("store", "two".to_owned()), ("disk", "full".to_owned())]);
        log.note(3_000, &[("disk", "full".to_owned())]);
        let all = log.all();
        let times: Vec<_> = all
            .iter()
            .map(|one| {
                (one["kind"].as_str().unwrap(), one["since"].as_str(), one["until"].as_str())
            })
            .collect();
        assert_eq!(
            times,
            [
                ("disk", Some("1970-01-01T00:00:02Z"), None),
                ("store", Some("1970-01-01T00:00:01Z"), Some("1970-01-01T00:00:03Z")),
            ]
        );
        assert_eq!(all[1]["text"], "two", "the latest text");
        assert_eq!(all[0]["title"], "The disk is nearly full.");
    }

    #[test]
    fn the_history_is_bounded() {
        let mut log = IncidentLog::default();
        for round in 0..1_000 {
            log.note(round * 2, &[("store", String::new())]);
            log.note(round * 2 + 1, &[]);
        }
        assert_eq!(log.all().len(), MAX_PAST);
    }

    #[test]
    fn little_room_is_reported() {
        assert_eq!(disk_text(MIN_FREE_BYTES), None);
        assert!(disk_text(100 << 20).unwrap().starts_with("100 MiB are free"));
    }

    #[test]
    fn kinds_are_sorted_and_say_what_to_do() {
        assert!(KINDS.is_sorted());
        for (kind, title, next_step) in KINDS {
            assert!(title.ends_with('.') && !next_step.is_empty(), "{kind}");
        }
    }
}
