//! A subscription to the channel that announces changes of the rule set.

use std::time::Duration;

use futures_util::StreamExt as _;
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::time::Instant;

use crate::Failure;
use crate::redis::connect::{Refusal, refusal};
use crate::redis::slot_connection::SlotConnection;

/// After such a silence the server is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(5);

/// How long it may take to answer that.
const PATIENCE: Duration = Duration::from_secs(2);

/// Hears when the rule set changes. It has a connection of its own, on the runtime where it was made.
pub struct BoardListener {
    sink: PubSubSink,
    stream: PubSubStream,
    /// When something came last.
    heard: Instant,
    /// Since when the server owes an answer.
    owing: Option<Instant>,
}

impl BoardListener {
    pub(super) async fn new(
        link: &SlotConnection,
        channel: &[u8],
        by: Instant,
    ) -> Result<Self, Failure> {
        let info = link.address(by).await?;
        let subscribed = async {
            let mut pubsub = Client::open(info)?.get_async_pubsub().await?;
            pubsub.subscribe(channel).await?;
            Ok(pubsub.split())
        };
        let refused: Refusal = match tokio::time::timeout_at(by, subscribed).await {
            Ok(Ok((sink, stream))) => {
                return Ok(Self { sink, stream, heard: Instant::now(), owing: None });
            }
            Ok(Err(error)) => refusal(&error),
            Err(_) => (Failure::Timeout, "no subscription in time".to_owned()),
        };
        Err(link.log(&refused))
    }

    /// Waits until the set has changed. An error means that the connection is lost: listen anew, and look
    /// for what was missed.
    ///
    /// Nothing is lost if this is dropped and called again.
    pub async fn changed(&mut self) -> Result<(), Failure> {
        loop {
            // The caller may drop this future often, before the answer is due.
            let ask_at = if self.owing.is_some() { Instant::now() } else { self.heard + SILENCE };
            match tokio::time::timeout_at(ask_at, self.stream.next()).await {
                Ok(Some(_)) => {
                    self.hear();
                    return Ok(());
                }
                Ok(None) => return Err(Failure::Connection),
                Err(_) => self.ask().await?,
            }
        }
    }

    async fn ask(&mut self) -> Result<(), Failure> {
        let since = *self.owing.get_or_insert_with(Instant::now);
        let answer = self.sink.ping::<redis::Value>();
        match tokio::time::timeout_at(since + PATIENCE, answer).await {
            Ok(Ok(_)) => {
                self.hear();
                Ok(())
            }
            Ok(Err(_)) => Err(Failure::Connection),
            Err(_) => Err(Failure::Timeout),
        }
    }

    fn hear(&mut self) {
        (self.heard, self.owing) = (Instant::now(), None);
    }
}
