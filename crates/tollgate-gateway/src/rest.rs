//! The rest of an answer that its client has left: it is read on for a moment, for what it used.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use tollgate_tower::{in_background, is_stopping};

use crate::body::{AnswerKind, GatewayBody};

/// How long an answer is read on for its usage when its client has left. Longer no upstream works for nobody.
const MAX_REST: Duration = Duration::from_secs(2);

/// How many bytes of it.
const MAX_REST_BYTES: usize = 4 << 20;

/// A client that has all of an answer's text must not avoid its usage by leaving before that is read.
impl Drop for GatewayBody {
    fn drop(&mut self) {
        let Some(meter) = self.meter.as_mut().filter(|_| !self.is_left) else { return };
        if is_stopping() {
            // The client did not leave: it is settled for what passed.
            meter.breaks();
            return;
        }
        if !meter.wants_rest() {
            return;
        }
        meter.leaves();
        let rest = Self {
            kind: std::mem::replace(&mut self.kind, AnswerKind::Full(None)),
            held: self.held.take(),
            meter: self.meter.take(),
            decoder: self.decoder.take(),
            broken: None,
            is_left: true,
        };
        in_background(read_rest(rest));
    }
}

/// Reads until the usage is known and settled, within bounds.
async fn read_rest(mut body: GatewayBody) {
    let reading = async {
        let mut left = MAX_REST_BYTES;
        while body.meter.as_mut().is_some_and(|it| it.wants_rest()) {
            let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let Some(Ok(frame)) = next.await else { break };
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { break };
            left = rest;
        }
    };
    // Without the usage by then, the meter settles by what it has seen.
    let _ = tokio::time::timeout(MAX_REST, reading).await;
}
