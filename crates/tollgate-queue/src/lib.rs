//! The durable queue: requests that were refused, and whose rule asks for them to be sent later.
//!
//! A request that is taken in gets a ticket, and its client an answer at once. A [`Worker`] sends it on as
//! soon as its rules let it pass; the ticket's URL reports what became of it.
//!
//! - Requests of one lane (a rule, and the key of its counter) go out one by one, in order.
//! - Delivery is at least once: a worker that is killed may have sent a request without having noted it.
//!   The ticket goes with it as the idempotency key, so that the upstream can tell.
//! - A request is charged when it is let pass. If its worker is killed then, it is charged again.
//! - How many wait, how long, how large they are and how often they are tried is bounded
//!   ([`QueueOptions`]).
//!
//! [`SqliteQueue`] is for one node, [`RedisQueue`] for several.

mod deliver;
mod id;
mod line;
mod options;
#[cfg(feature = "redis")]
mod redis;
mod request;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod supervised;
mod view;
mod worker;

#[cfg(feature = "redis")]
pub use self::redis::RedisQueue;
pub use deliver::{Forward, ForwardError, LONGEST_RECHECK};
pub use id::{ID_BYTES, is_id, new_id};
pub use line::{Queue, Receipt};
pub use options::QueueOptions;
pub use request::{StoredRequest, StoredResponse};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteQueue;
pub use store::{
    Accepted, Change, Claim, Claimed, Clock, Counts, MAX_ERROR_BYTES, MAX_LANE_BYTES, MAX_PAGE,
    Page, QueueError, QueueStore, Shelf, Swept, Ticket, TicketState,
};
pub use supervised::{Opening, ProblemObserver, SupervisedQueue};
pub use view::{
    EntryView, ResponseView, TICKET_HEADER, TICKETS_PATH, TicketView, accepted, ticket_response,
};
pub use worker::{Worker, WorkerOptions};
