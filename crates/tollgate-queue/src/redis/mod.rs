//! A queue in Redis, for several nodes. It survives a restart of Redis if that persists: with
//! `appendfsync always` no accepted request is lost to a power cut, with `everysec` up to a second of them.
//!
//! Each lane is a stream; which lanes are due, and until when a claim holds, is a sorted set
//! (`scripts/common.lua` lists the keys). Consumer groups would hand entries of one lane to several workers
//! at once; here a lane is held by at most one. Every change is one script, on the server's clock, so no
//! node's clock matters. Redis 6.2 or newer.
//!
//! All keys share the hash tag `{q}`: on a cluster the whole queue is in one slot, which makes changes
//! atomic and bounds the queue to what one server holds. While that slot moves to another server the queue
//! is not available. Use `maxmemory-policy noeviction`. Replication is asynchronous: what was accepted just
//! before a failover may be lost, unless `min-replicas-to-write` and the like say otherwise.

mod answer;
mod script;

use std::time::Duration;

use async_trait::async_trait;
use redis::FromRedisValue;
use tollgate_store::redis::{RedisStore, SlotConnection, SlotScript};

use self::answer::{Row, TicketFields, change, ticket};
use self::script::{CLOCK, Scripts};
use super::id::new_id;
use super::options::{QueueOptions, millis};
use super::request::{StoredRequest, StoredResponse};
use super::store::{
    ABANDONED, Accepted, BURIALS_PER_CLAIM, Change, Claim, Claimed, Counts, EXPIRED, MAX_PAGE,
    Page, QueueError, QueueStore, SWEEP_BATCH, Shelf, Swept, Ticket, bounded_error, counted_bytes,
    cursor, encoded, read_cursor, tenant_of,
};

/// How soon a worker sees what other nodes pushed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How far into its lane an entry's position is looked for: a stream has to be walked.
const POSITION_LOOK: u64 = 1_000;

/// How long a call may take. Calls carry bodies, and a 202 is worth a wait.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue in Redis.
pub struct RedisQueue {
    connection: SlotConnection,
    scripts: Scripts,
    prefix: String,
    options: QueueOptions,
}

impl RedisQueue {
    /// A queue on the servers of a store; its keys start with `prefix`. The connection is made when it is needed.
    pub fn new(store: &RedisStore, prefix: &str, options: QueueOptions) -> Self {
        Self::on_clock(store, prefix, options, CLOCK)
    }

    /// A queue on the clock that this Lua function named `clock` reads, for tests.
    #[doc(hidden)]
    pub fn on_clock(store: &RedisStore, prefix: &str, options: QueueOptions, clock: &str) -> Self {
        let prefix = format!("{prefix}:{{q}}:");
        let connection = store.slot_connection("queue", prefix.as_bytes());
        Self { connection, scripts: Scripts::on(clock), prefix, options }
    }

    /// The most bytes of a lane, of a tenant, and of all.
    fn byte_bounds(&self) -> [String; 3] {
        let options = &self.options;
        [options.max_lane_bytes, options.max_tenant_bytes, options.max_bytes].map(text)
    }

    async fn run<T: FromRedisValue>(
        &self,
        script: &SlotScript,
        arguments: &[&[u8]],
    ) -> Result<T, QueueError> {
        // Two keys are declared: the prefix, which is no key and never exists, and one of the queue. They say which slot
        // the script works on, and that it does not run while that slot is on its way to another node: half of the keys
        // would be missing, and neither node runs a script of which a key is missing there.
        let keys = [self.prefix.as_str(), &format!("{}due", self.prefix)];
        let answer = self.connection.run(script, &keys, arguments, CALL_TIMEOUT).await;
        answer.map_err(QueueError::Unavailable)
    }
}

/// A number as an argument.
fn text(number: u64) -> String {
    number.to_string()
}

fn shelf_name(shelf: Shelf) -> &'static str {
    match shelf {
        Shelf::Waiting => "waiting",
        Shelf::Done => "done",
        Shelf::Dead => "dead",
    }
}

#[async_trait]
impl QueueStore for RedisQueue {
    fn options(&self) -> &QueueOptions {
        &self.options
    }

    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }

    async fn room(&self, lane: &str, tenant: &str, bytes: usize) -> Result<(), QueueError> {
        let (most, most_of_lane) =
            (text(self.options.max_depth), text(self.options.max_lane_depth));
        let (bytes, byte_bounds) = (text(counted_bytes(bytes)), self.byte_bounds());
        let mut arguments = vec![
            lane.as_bytes(),
            most.as_bytes(),
            most_of_lane.as_bytes(),
            tenant.as_bytes(),
            bytes.as_bytes(),
        ];
        arguments.extend(byte_bounds.iter().map(String::as_bytes));
        let (word, count): (String, u64) = self.run(&self.scripts.room, &arguments).await?;
        change(&word, count).map(|_| ())
    }

    async fn push(
        &self,
        id: &str,
        lane: &str,
        request: &StoredRequest,
        due_in: Duration,
    ) -> Result<Accepted, QueueError> {
        let bytes = encoded(lane, request, &self.options)?;
        let label = request.label();
        let due_in = text(millis(due_in));
        let (most, most_of_lane) =
            (text(self.options.max_depth), text(self.options.max_lane_depth));
        let counted = text(counted_bytes(bytes.len()));
        let byte_bounds = self.byte_bounds();
        let mut arguments: Vec<&[u8]> = vec![
            id.as_bytes(),
            lane.as_bytes(),
            &bytes,
            label.as_bytes(),
            due_in.as_bytes(),
            most.as_bytes(),
            most_of_lane.as_bytes(),
            tenant_of(request).as_bytes(),
            counted.as_bytes(),
        ];
        arguments.extend(byte_bounds.iter().map(String::as_bytes));
        let (word, count, removed_dead): (String, u64, u64) =
            self.run(&self.scripts.push, &arguments).await?;
        change(&word, count).map(|_| Accepted { position: count, removed_dead })
    }

    async fn claim(&self, most: usize) -> Result<Claimed, QueueError> {
        let token = new_id()?;
        let numbers = [
            most as u64,
            millis(self.options.lease),
            millis(self.options.max_age),
            u64::from(self.options.max_attempts) + u64::from(self.options.max_lost_claims),
            BURIALS_PER_CLAIM as u64,
        ]
        .map(text);
        let mut arguments = vec![token.as_bytes()];
        arguments.extend(numbers.iter().map(String::as_bytes));
        arguments.extend([EXPIRED.as_bytes(), ABANDONED.as_bytes()]);
        let (due_in, claims) = answer::claims(self.run(&self.scripts.claim, &arguments).await?)?;
        let claims = claims
            .into_iter()
            .map(|(id, lane, attempts, request)| Claim {
                id,
                lane,
                token: token.clone(),
                attempts,
                request,
            })
            .collect();
        Ok(Claimed { claims, next_due_in: u64::try_from(due_in).ok().map(Duration::from_millis) })
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, QueueError> {
        let lease = text(millis(self.options.lease));
        let arguments = [claim.id.as_bytes(), claim.token.as_bytes(), lease.as_bytes()];
        self.run(&self.scripts.renew, &arguments).await
    }

    async fn postpone(&self, claim: &Claim, wait: Duration) -> Result<bool, QueueError> {
        let wait = text(millis(wait));
        let arguments: [&[u8]; 5] =
            [claim.id.as_bytes(), claim.token.as_bytes(), wait.as_bytes(), b"1", b""];
        self.run(&self.scripts.give_back, &arguments).await
    }

    async fn complete(&self, claim: &Claim, response: &StoredResponse) -> Result<bool, QueueError> {
        let bytes = response.encode()?;
        let numbers =
            [counted_bytes(bytes.len()), self.options.max_bytes, u64::from(SWEEP_BATCH)].map(text);
        let mut arguments = vec![claim.id.as_bytes(), claim.token.as_bytes(), &bytes];
        arguments.extend(numbers.iter().map(String::as_bytes));
        self.run(&self.scripts.complete, &arguments).await
    }

    async fn fail(
        &self,
        claim: &Claim,
        why: &str,
        retry_in: Option<Duration>,
    ) -> Result<bool, QueueError> {
        let (id, token) = (claim.id.as_bytes(), claim.token.as_bytes());
        let why = bounded_error(why).as_bytes();
        match retry_in {
            Some(pause) => {
                let pause = text(millis(pause));
                let arguments: [&[u8]; 5] = [id, token, pause.as_bytes(), b"0", why];
                self.run(&self.scripts.give_back, &arguments).await
            }
            None => self.run(&self.scripts.bury, &[id, token, why]).await,
        }
    }

    async fn ticket(&self, id: &str) -> Result<Option<Ticket>, QueueError> {
        let look = text(POSITION_LOOK.min(self.options.max_lane_depth).saturating_add(1));
        let arguments = [id.as_bytes(), look.as_bytes()];
        let found: Option<TicketFields> = self.run(&self.scripts.ticket, &arguments).await?;
        found.map(|fields| ticket(id.to_owned(), fields)).transpose()
    }

    async fn list(
        &self,
        shelf: Shelf,
        after: Option<&str>,
        most: usize,
    ) -> Result<Page, QueueError> {
        let (since, id) = read_cursor(after);
        let (since, most) = (text(since), text(most.clamp(1, MAX_PAGE) as u64));
        let arguments =
            [shelf_name(shelf).as_bytes(), since.as_bytes(), id.as_bytes(), most.as_bytes()];
        let (has_more, rows): (bool, Vec<Row>) =
            answer::rows(self.run(&self.scripts.list, &arguments).await?)?;
        let next = rows.last().filter(|_| has_more).map(|(at, id, _)| cursor(*at, id));
        let tickets =
            rows.into_iter().map(|(_, id, fields)| ticket(id, fields)).collect::<Result<_, _>>()?;
        Ok(Page { tickets, next })
    }

    async fn retry(&self, id: &str) -> Result<Change, QueueError> {
        let (most, most_of_lane) =
            (text(self.options.max_depth), text(self.options.max_lane_depth));
        let arguments = [id.as_bytes(), most.as_bytes(), most_of_lane.as_bytes()];
        let (word, count): (String, u64) = self.run(&self.scripts.retry, &arguments).await?;
        change(&word, count)
    }

    async fn drop_entry(&self, id: &str) -> Result<Change, QueueError> {
        let (word, count): (String, u64) = self.run(&self.scripts.drop, &[id.as_bytes()]).await?;
        change(&word, count)
    }

    async fn sweep(&self) -> Result<Swept, QueueError> {
        let options = &self.options;
        let numbers = [
            millis(options.keep_results),
            options.max_results,
            millis(options.keep_dead),
            options.max_dead,
            u64::from(SWEEP_BATCH),
        ]
        .map(text);
        let max_age = text(millis(options.max_age));
        let mut arguments = vec![max_age.as_bytes(), EXPIRED.as_bytes()];
        arguments.extend(numbers.iter().map(String::as_bytes));
        let (expired, removed, is_partial) = self.run(&self.scripts.sweep, &arguments).await?;
        Ok(Swept { expired, removed, is_partial })
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        let (waiting, lanes, age, done, dead): (u64, u64, i64, u64, u64) =
            self.run(&self.scripts.counts, &[]).await?;
        let oldest_age = u64::try_from(age).ok().map(Duration::from_millis);
        Ok(Counts { waiting, lanes, oldest_age, done, dead })
    }
}
