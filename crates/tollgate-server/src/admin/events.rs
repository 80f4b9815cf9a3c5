//! Changes, as they happen: server-sent events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tollgate_control::{Current, Identity};

use super::read::Query;
use super::respond::AdminError;
use super::tenant_places::{TenantPlace, TenantPlaces};
use super::{Admin, Asked};
use crate::activity::Endless;
use crate::http::respond::raw;

/// Listeners at the same time.
const MAX_STREAMS: usize = 256;

/// Of these, the most of one token: nobody keeps all others from listening.
const MAX_STREAMS_OF_ONE: usize = 64;

/// Of these, the most of all tenants' admins together.
const MAX_TENANT_STREAMS: usize = 128;

/// So often a silent stream says that it is alive.
pub(super) const ALIVE: Duration = Duration::from_secs(15);

/// So often a live stream reports the state of this node.
const PULSE: Duration = Duration::from_secs(1);

/// So often it is asked whether the token still holds.
pub(super) const RECHECK: Duration = Duration::from_secs(5);

/// Feeds of decisions at the same time; each asks the database once a second.
const MAX_FEEDS: usize = 32;

/// Of these, the most of one token.
const MAX_FEEDS_OF_ONE: usize = 8;

/// Of these, the most of all tenants' admins together.
const MAX_TENANT_FEEDS: usize = 16;

/// Who listens: the streams of each token, and those of tenants.
#[derive(Debug)]
pub(super) struct Listeners {
    by_token: Mutex<HashMap<String, usize>>,
    by_tenant: Arc<TenantPlaces>,
    max: usize,
    max_of_one: usize,
}

/// A listener's place, until it is dropped.
pub(super) struct Seat {
    listeners: Arc<Listeners>,
    token_id: String,
    _of_tenant: TenantPlace,
}

impl Listeners {
    pub(super) fn of_events() -> Arc<Self> {
        Self::new(MAX_STREAMS, MAX_STREAMS_OF_ONE, MAX_TENANT_STREAMS)
    }

    pub(super) fn of_feeds() -> Arc<Self> {
        Self::new(MAX_FEEDS, MAX_FEEDS_OF_ONE, MAX_TENANT_FEEDS)
    }

    fn new(max: usize, max_of_one: usize, max_tenants: usize) -> Arc<Self> {
        let by_tenant = TenantPlaces::new(max_tenants);
        Arc::new(Self { by_token: Mutex::default(), by_tenant, max, max_of_one })
    }

    pub(super) fn enter(self: &Arc<Self>, identity: &Identity) -> Option<Seat> {
        let token_id = identity.token_id.as_str();
        let of_tenant = self.by_tenant.enter(identity)?;
        let mut streams = self.by_token.lock();
        let own = streams.get(token_id).copied().unwrap_or(0);
        if own >= self.max_of_one || streams.values().sum::<usize>() >= self.max {
            return None;
        }
        streams.insert(token_id.to_owned(), own + 1);
        let token_id = token_id.to_owned();
        Some(Seat { listeners: Arc::clone(self), token_id, _of_tenant: of_tenant })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut streams = self.listeners.by_token.lock();
        if let Some(own) = streams.get_mut(&self.token_id) {
            *own -= 1;
            if *own == 0 {
                streams.remove(&self.token_id);
            }
        }
    }
}

/// A listener: a word whenever the rule set changes, the first one at once.
struct Listener {
    sets: watch::Receiver<Option<Arc<Current>>>,
    is_first: bool,
    /// True when the process is about to end.
    ending: watch::Receiver<bool>,
    /// When the token ends, the stream does.
    ends: Option<tokio::time::Instant>,
    admin: Arc<Admin>,
    /// Whether pulses are wanted.
    is_live: bool,
    identity: Identity,
    /// When it is asked again whether the token still holds.
    recheck: tokio::time::Instant,
    _seat: Seat,
}

impl Admin {
    pub(super) fn events(self: &Arc<Self>, asked: &Asked) -> Result<Response<Body>, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let is_live = query.flag("live")?;
        query.end()?;
        let Some(seat) = self.listeners.enter(&asked.identity) else {
            return Err(AdminError::Busy);
        };
        let listener = Listener {
            sets: self.control.watch(),
            is_first: true,
            ending: self.ending.subscribe(),
            ends: end_of(asked),
            admin: Arc::clone(self),
            is_live,
            identity: asked.identity.clone(),
            recheck: tokio::time::Instant::now() + RECHECK,
            _seat: seat,
        };
        Ok(stream_of(futures_util::stream::unfold(listener, |mut listener| async move {
            let text = listener.next().await?;
            Some((Bytes::from(text), listener))
        })))
    }

    /// Whether the token still holds. Where nobody can say, it is not taken for ended.
    pub(super) async fn still_may(&self, identity: &Identity) -> bool {
        let (control, identity) = (Arc::clone(&self.control), identity.clone());
        let asked = async move { Ok(control.is_still(&identity).await?) };
        self.on_control_thread(asked).await.unwrap_or(true)
    }
}

/// When the caller's token ends.
pub(super) fn end_of(asked: &Asked) -> Option<tokio::time::Instant> {
    let left =
        asked.identity.expires_at.map(|at| at.saturating_sub(asked.now).max(0).unsigned_abs());
    left.map(|left| tokio::time::Instant::now() + Duration::from_millis(left))
}

/// A response of server-sent events that does not end by itself.
pub(super) fn stream_of(events: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let kind = HeaderValue::from_static("text/event-stream");
    let mut response = raw(StatusCode::OK, kind.clone(), Bytes::new());
    *response.body_mut() = Body::from_stream(events.map(Ok::<_, std::convert::Infallible>));
    response.extensions_mut().insert(Endless);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

impl Listener {
    async fn next(&mut self) -> Option<String> {
        let alive = tokio::time::Instant::now() + if self.is_live { PULSE } else { ALIVE };
        while !std::mem::take(&mut self.is_first) {
            let over = async {
                match self.ends {
                    Some(ends) => tokio::time::sleep_until(ends).await,
                    None => std::future::pending().await,
                }
            };
            let (ending, sets) = (&mut self.ending, &mut self.sets);
            let stopped = async { drop(ending.wait_for(|ending| *ending).await) };
            tokio::select! {
                () = over => return None,
                () = stopped => return None,
                changed = sets.changed() => {
                    changed.ok()?;
                    break;
                }
                () = tokio::time::sleep_until(self.recheck) => {
                    if !self.admin.still_may(&self.identity).await {
                        return None;
                    }
                    self.recheck = tokio::time::Instant::now() + RECHECK;
                }
                () = tokio::time::sleep_until(alive) => return Some(self.sign()),
            }
        }
        let set = self.sets.borrow_and_update().clone();
        let data = match set {
            Some(set) => json!({
                "revision": set.revision(),
                "rules": set.compiled.rules.rules().len(),
            }),
            None => json!({ "revision": null, "rules": null }),
        };
        Some(format!("event: rules\ndata: {data}\n\n"))
    }

    /// A sign of life.
    fn sign(&self) -> String {
        match Some(&self.admin).filter(|_| self.is_live).and_then(|admin| admin.pulse()) {
            Some(pulse) => format!("event: pulse\ndata: {pulse}\n\n"),
            None => ": alive\n\n".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_control::Role;

    use super::*;

    fn identity(token: usize, tenant: Option<&str>) -> Identity {
        Identity {
            token_id: token.to_string(),
            name: String::new(),
            role: if tenant.is_some() { Role::TenantAdmin } else { Role::Viewer },
            tenant: tenant.map(str::to_owned),
            expires_at: None,
            version: 1,
        }
    }

    #[test]
    fn streams_of_tenants_admins_leave_room_for_others() {
        let listeners = Listeners::of_events();
        let mut seats = Vec::new();
        for token in 0..1_000 {
            let tenant = format!("tenant-{}", token % 10);
            seats.extend(listeners.enter(&identity(token, Some(&tenant))));
        }
        assert!((64..=MAX_TENANT_STREAMS).contains(&seats.len()), "{}", seats.len());
        assert!(listeners.enter(&identity(2_000, None)).is_some(), "an admin of the installation");
        assert!(listeners.enter(&identity(2_001, Some("quiet"))).is_some(), "another tenant");
        drop(seats);
        assert!(listeners.by_token.lock().is_empty());
        let alone: Vec<_> =
            (0..64).map_while(|token| listeners.enter(&identity(token, Some("one")))).collect();
        assert_eq!(alone.len(), MAX_TENANT_STREAMS.div_ceil(3), "many tokens of one tenant");
    }
}
