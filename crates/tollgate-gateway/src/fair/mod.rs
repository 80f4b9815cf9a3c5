//! Places at a model that is full, shared fairly among those who wait for one.
//!
//! | file | |
//! |---|---|
//! | `line.rs` | who is next: pure, without a clock |
//! | `mod.rs` | the gate that requests wait at |

mod line;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use line::{Entered, Line, Ticket};
pub use line::{LineOptions, Share, Wants};

/// Why a request got no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// As many wait as may.
    Full,
    /// It waited for as long as it may.
    TooLong,
    /// It made room in the line for a tenant that has less of it.
    PushedOut,
}

type Waiter = oneshot::Sender<Place>;

/// Lets so many requests pass at a time; the others wait their turn.
#[derive(Debug)]
pub struct Gate {
    line: Mutex<Line<Waiter>>,
}

/// A place, held until it is dropped.
#[derive(Debug)]
pub struct Place {
    gate: Arc<Gate>,
    share: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.release(self.share);
    }
}

/// A request in the line. It leaves when nobody waits for it any more.
struct Waiting<'g> {
    gate: &'g Gate,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Its sender is dropped when the lock is gone: it may hold nothing, but who knows.
        let left = self.gate.line.lock().leave(self.ticket);
        drop(left);
    }
}

impl Gate {
    /// One at which nobody waits yet.
    pub fn new(options: LineOptions) -> Arc<Self> {
        Arc::new(Self { line: Mutex::new(Line::new(options)) })
    }

    /// A place, after a wait of at most `patience`.
    pub async fn enter(
        self: &Arc<Self>,
        wants: &Wants<'_>,
        patience: Duration,
    ) -> Result<Place, Busy> {
        let (sender, receiver) = oneshot::channel();
        let entered = self.line.lock().enter(wants, sender);
        let ticket = match entered {
            Entered::Served(share) => return Ok(Place { gate: Arc::clone(self), share }),
            Entered::Full => return Err(Busy::Full),
            // Who is pushed out sees that nobody will tell it any more.
            Entered::WaitsInsteadOf(ticket, last) => {
                drop(last);
                ticket
            }
            Entered::Waits(ticket) => ticket,
        };
        let _waiting = Waiting { gate: self, ticket };
        match tokio::time::timeout(patience, receiver).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(Busy::PushedOut),
            Err(_) => Err(Busy::TooLong),
        }
    }

    /// A place if there is one now.
    pub fn try_enter(self: &Arc<Self>, wants: &Wants<'_>) -> Option<Place> {
        let share = self.line.lock().serve(wants)?;
        Some(Place { gate: Arc::clone(self), share })
    }

    /// Requests that have a place, and those that wait for one.
    pub fn load(&self) -> (usize, usize) {
        let line = self.line.lock();
        (line.held(), line.waiting())
    }

    fn release(self: &Arc<Self>, share: usize) {
        self.line.lock().release(share);
        loop {
            let next = self.line.lock().next();
            let Some((share, waiter)) = next else { return };
            // One that has gone drops its place here, and the next one has it.
            let _ = waiter.send(Place { gate: Arc::clone(self), share });
        }
    }
}
