//! What a remote Tollgate holds for a request, until it is settled or released there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tollgate_client::{Actual, Client, ClientError};
use tollgate_policy::prices::{TokenKind, Usage};

use crate::background::go_on;
use crate::pending_charge::{Account, PendingCharge};

/// How long a reservation is held there unless it is renewed. If this process is killed, it is settled at its
/// estimate then, and its slots come back.
pub(crate) const RESERVED_FOR: Duration = Duration::from_secs(30);

/// How often what is held is renewed. A rule's `slot_ttl` that is shorter may run out meanwhile.
const RENEWAL_PERIOD: Duration = Duration::from_secs(5);

/// How often it is said how something ended, where nobody answers: for about ten minutes. What is held is renewed
/// meanwhile, so that what was used is still known as its cost when somebody does.
const ATTEMPTS: u32 = 125;

/// The time before the second attempt; it doubles, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How something that is held ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It used this; what was estimated, if nothing is said.
    Settled(Option<Usage>),
    /// Everything is given back.
    Released,
}

/// A reservation or slots at a remote Tollgate: renewed until it ends, which it does once.
pub(crate) struct RemoteHold {
    client: Client,
    id: String,
    /// How it ends when nobody says anything.
    unsaid: End,
    is_over: AtomicBool,
    renewal: AbortHandle,
    runtime: Handle,
}

impl RemoteHold {
    /// What is held under this id. Without a runtime it expires by itself.
    pub(crate) fn new(client: &Client, id: String, unsaid: End) -> Option<Arc<Self>> {
        let runtime = Handle::try_current().ok()?;
        // A slot has its rule's own lifetime, which is not known here.
        let ttl = matches!(unsaid, End::Settled(_)).then_some(RESERVED_FOR);
        let renewal = runtime.spawn(renew(client.clone(), id.clone(), ttl)).abort_handle();
        let is_over = AtomicBool::new(false);
        Some(Arc::new(Self { client: client.clone(), id, unsaid, is_over, renewal, runtime }))
    }

    /// Ends it. What was charged on top is given back afterwards, and stays where this fails.
    fn end(&self, how: End, top_ups: Vec<PendingCharge>) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let (client, id, renewal) = (self.client.clone(), self.id.clone(), self.renewal.clone());
        go_on(&self.runtime, async move {
            if report_end(client, id, how).await {
                top_ups.into_iter().for_each(PendingCharge::release);
            }
            renewal.abort();
        });
    }
}

impl Drop for RemoteHold {
    fn drop(&mut self) {
        self.end(self.unsaid, Vec::new());
    }
}

/// The tokens among it.
pub(crate) struct Charged(pub(crate) Arc<RemoteHold>);

impl Account for Charged {
    fn settle(self: Box<Self>, used: Usage, top_ups: Vec<PendingCharge>) {
        self.0.end(End::Settled(Some(used)), top_ups);
    }

    fn release(self: Box<Self>) {
        self.0.end(End::Released, Vec::new());
    }
}

/// What was used, by kind and in all: a server of an older version reads the total alone.
fn actual(used: Usage) -> Actual {
    let of = |kind| used.tokens(kind);
    let usage = tollgate_client::Usage {
        input: of(TokenKind::Input),
        output: of(TokenKind::Output),
        cached_read: of(TokenKind::CachedRead),
        cached_write: of(TokenKind::CachedWrite),
        reasoning: of(TokenKind::Reasoning),
        audio_input: of(TokenKind::AudioInput),
        audio_output: of(TokenKind::AudioOutput),
        images: used.images(),
    };
    Actual { tokens: Some(used.total()), usage: Some(usage), ..Actual::default() }
}

async fn renew(client: Client, id: String, ttl: Option<Duration>) {
    loop {
        tokio::time::sleep(RENEWAL_PERIOD).await;
        // A server that is unavailable is asked again later; a reservation that has ended stays ended.
        if client.renew(&id, ttl).await.is_err_and(|error| !error.is_transient()) {
            return;
        }
    }
}

/// Reports how it ended. A repeated report changes nothing twice. False where nobody took it.
async fn report_end(client: Client, id: String, how: End) -> bool {
    let mut pause = FIRST_PAUSE;
    for attempt in 1.. {
        let said: Result<_, ClientError> = match how {
            End::Settled(used) => client.settle(&id, used.map(actual).unwrap_or_default()).await,
            End::Released => client.release(&id).await,
        };
        let Err(error) = said else { return true };
        if !error.is_transient() || attempt >= ATTEMPTS {
            tracing::warn!(%error, "the end of a request could not be reported to the remote Tollgate: its charge stays as estimated");
            return false;
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
    false
}
