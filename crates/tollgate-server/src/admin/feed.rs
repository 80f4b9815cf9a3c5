//! Decisions as they are written, for one listener: server-sent events.
//!
//! Each round reads the newest records that fit, up to a bound, and counts those that it leaves out. The
//! next round begins when the listener has taken the last one, so a slow listener skips more and holds
//! nothing here.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::{DecisionFilter, Identity, Page};

use super::decisions::{filter, row};
use super::events::{ALIVE, RECHECK, Seat, end_of, stream_of};
use super::read::Query;
use super::respond::AdminError;
use super::{Admin, Asked};

/// How often new records are looked for.
const ROUND: Duration = Duration::from_secs(1);

/// Records of one round. Further ones are counted.
const MAX_ROWS: u32 = 50;

/// A listener.
struct Feed {
    admin: Arc<Admin>,
    filter: DecisionFilter,
    /// All records up to this one were sent or counted.
    after: i64,
    is_first: bool,
    identity: Identity,
    /// True when the process is about to end.
    ending: watch::Receiver<bool>,
    /// When the token ends, the stream does.
    ends: Option<Instant>,
    recheck: Instant,
    /// When something was sent last.
    sent: Instant,
    _seat: Seat,
}

/// What a round found.
struct Round {
    after: i64,
    items: Vec<Value>,
    skipped: i64,
}

impl Admin {
    /// `GET decisions/feed`.
    pub(super) async fn decision_feed(
        self: &Arc<Self>,
        asked: &Asked,
    ) -> Result<Response<Body>, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let mut filter = filter(&mut query, asked.now)?;
        query.end()?;
        for (name, given) in [("from", filter.from), ("until", filter.until)] {
            if given.is_some() {
                return Err(AdminError::invalid(name, "is not for a feed: it begins now"));
            }
        }
        filter.tenant_id = asked.filtered_tenant(filter.tenant_id)?;
        let seat = self.feed_listeners.enter(&asked.identity).ok_or(AdminError::Busy)?;
        // A browser that connects again names the last event that it has seen.
        let last = asked.headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        let after = match filter.written_after.take().or(last) {
            Some(after) => after,
            None => self.newest_decision(asked.tenant()).await?,
        };
        let now = Instant::now();
        let feed = Feed {
            admin: Arc::clone(self),
            filter,
            after,
            is_first: true,
            identity: asked.identity.clone(),
            ending: self.ending.subscribe(),
            ends: end_of(asked),
            recheck: now + RECHECK,
            sent: now,
            _seat: seat,
        };
        Ok(stream_of(futures_util::stream::unfold(feed, |mut feed| async move {
            let text = feed.next().await?;
            Some((Bytes::from(text), feed))
        })))
    }
}

impl Feed {
    async fn next(&mut self) -> Option<String> {
        if std::mem::take(&mut self.is_first) {
            return Some(self.event("start", &json!({ "newest_id": self.after })));
        }
        loop {
            let (ending, ends) = (&mut self.ending, self.ends);
            let stopped = async { drop(ending.wait_for(|ending| *ending).await) };
            let over = async {
                match ends {
                    Some(ends) => tokio::time::sleep_until(ends).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stopped => return None,
                () = over => return None,
                () = tokio::time::sleep(ROUND) => {}
            }
            if Instant::now() >= self.recheck {
                if !self.admin.still_may(&self.identity).await {
                    return None;
                }
                self.recheck = Instant::now() + RECHECK;
            }
            // A database that does not answer is asked again in the next round; nothing is lost by it.
            if let Some(round) = self.round().await {
                self.after = self.after.max(round.after);
                if !round.items.is_empty() {
                    self.sent = Instant::now();
                    let data = json!({ "items": round.items, "skipped": round.skipped });
                    return Some(self.event("decisions", &data));
                }
            }
            if self.sent.elapsed() >= ALIVE {
                self.sent = Instant::now();
                return Some(": alive\n\n".to_owned());
            }
        }
    }

    /// The newest records since the last round.
    async fn round(&self) -> Option<Round> {
        let admin = Arc::clone(&self.admin);
        let mut filter = self.filter.clone();
        filter.written_after = Some(self.after);
        let tenant = self.identity.tenant.clone();
        let look = async move {
            let searching = admin.tenant_searches.enter(tenant.as_deref());
            let _searching = searching.ok_or(AdminError::TooManySearches)?;
            // Read first: all records up to this one are part of the round.
            let after = admin.newest_decision(tenant.as_deref()).await?;
            let page = Page { after: None, limit: MAX_ROWS };
            let found = admin.control.repository().decisions(&filter, &page).await?;
            let skipped = admin.count_skipped(&filter, &page, found.len()).await?;
            let after = found.first().map_or(after, |newest| newest.id.max(after));
            let items = found.iter().map(|one| row(one, None, tenant.is_some())).collect();
            Ok(Round { after, items, skipped })
        };
        self.admin.on_control_thread(look).await.ok()
    }

    /// JSON has no line breaks, so no value can end an event.
    fn event(&self, name: &str, data: &Value) -> String {
        format!("id: {}\nevent: {name}\ndata: {data}\n\n", self.after)
    }
}
