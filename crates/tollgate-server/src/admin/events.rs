//! Changes, as they happen: server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tollgate_control::Current;

use super::read::Query;
use super::respond::AdminError;
use super::{Admin, Asked};
use crate::activity::Endless;
use crate::http::respond::raw;

/// Listeners at the same time.
pub(super) const MOST_STREAMS: usize = 256;

/// So often a silent stream says that it is alive.
const ALIVE: Duration = Duration::from_secs(15);

/// So often a live stream tells how this node is.
const PULSE: Duration = Duration::from_secs(1);

/// A listener: a word whenever the rule set changes, the first one at once.
struct Listener {
    sets: watch::Receiver<Option<Arc<Current>>>,
    is_first: bool,
    /// True when the process is about to end.
    ending: watch::Receiver<bool>,
    /// When the token ends, the stream does.
    ends: Option<tokio::time::Instant>,
    /// Whom to ask for pulses, where they are wanted.
    pulses: Option<Arc<Admin>>,
    _place: OwnedSemaphorePermit,
}

impl Admin {
    pub(super) fn events(self: &Arc<Self>, asked: &Asked) -> Result<Response<Body>, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let is_live = query.flag("live")?;
        query.end()?;
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            return Err(AdminError::Busy);
        };
        let left =
            asked.identity.expires_at.map(|at| at.saturating_sub(asked.now).max(0).unsigned_abs());
        let ends = left.map(|left| tokio::time::Instant::now() + Duration::from_millis(left));
        let listener = Listener {
            sets: self.control.watch(),
            is_first: true,
            ending: self.ending.subscribe(),
            ends,
            pulses: is_live.then(|| Arc::clone(self)),
            _place: place,
        };
        let stream = futures_util::stream::unfold(listener, |mut listener| async move {
            let text = listener.next().await?;
            Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), listener))
        });
        let mut response =
            raw(StatusCode::OK, HeaderValue::from_static("text/event-stream"), Bytes::new());
        *response.body_mut() = Body::from_stream(stream);
        response.extensions_mut().insert(Endless);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Ok(response)
    }
}

impl Listener {
    async fn next(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.is_first) {
            let over = async {
                match self.ends {
                    Some(ends) => tokio::time::sleep_until(ends).await,
                    None => std::future::pending().await,
                }
            };
            let (pulses, beat) = (&self.pulses, if self.pulses.is_some() { PULSE } else { ALIVE });
            tokio::select! {
                () = over => return None,
                _ = self.ending.wait_for(|ending| *ending) => return None,
                changed = self.sets.changed() => changed.ok()?,
                () = tokio::time::sleep(beat) => return Some(sign(pulses.as_deref())),
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
}

/// A sign of life.
fn sign(pulses: Option<&Admin>) -> String {
    match pulses.and_then(Admin::pulse) {
        Some(pulse) => format!("event: pulse\ndata: {pulse}\n\n"),
        None => ": alive\n\n".to_owned(),
    }
}
