//! The stores under test, on a clock that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_queue::{
    Claim, Clock, QueueOptions, QueueStore, RedisQueue, SqliteQueue, StoredRequest, StoredResponse,
};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_testkit::Redis;
use tollgate_tower::EdgeRequest;

/// When tests begin: a date in 2023.
pub(crate) const START: u64 = 1_700_000_000_000;

/// Reads the clock that the test keeps in Redis.
const REDIS_CLOCK: &str =
    "local function clock() return tonumber(redis.call('GET', KEYS[1] .. 'clock')) end";

/// A store that can be opened again and again, and its clock.
pub(crate) enum Ground {
    Sqlite { dir: TempDir, now: Arc<AtomicU64> },
    Redis { redis: Redis, now: AtomicU64 },
}

impl Ground {
    pub(crate) fn sqlite() -> Self {
        let now = Arc::new(AtomicU64::new(START));
        Self::Sqlite { dir: tempfile::tempdir().unwrap(), now }
    }

    pub(crate) fn redis() -> Self {
        let ground = Self::Redis { redis: Redis::start(), now: AtomicU64::new(START) };
        ground.set(START);
        ground
    }

    fn set(&self, millis: u64) {
        match self {
            Self::Sqlite { now, .. } => now.store(millis, Ordering::SeqCst),
            Self::Redis { redis, now } => {
                now.store(millis, Ordering::SeqCst);
                redis.call(&["SET", "test:{q}:clock", &millis.to_string()]).unwrap();
            }
        }
    }

    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Sqlite { now, .. } => now.load(Ordering::SeqCst),
            Self::Redis { now, .. } => now.load(Ordering::SeqCst),
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, duration: Duration) {
        self.set(self.now() + u64::try_from(duration.as_millis()).unwrap());
    }

    /// Another handle on the same queue.
    pub(crate) async fn open(&self, options: QueueOptions) -> Arc<dyn QueueStore> {
        match self {
            Self::Sqlite { dir, now } => {
                let now = Arc::clone(now);
                let clock: Clock = Arc::new(move || now.load(Ordering::SeqCst));
                let path = dir.path().join("queue.db");
                Arc::new(SqliteQueue::open(path, options, clock).await.unwrap())
            }
            Self::Redis { redis, .. } => {
                let store = single(redis);
                Arc::new(RedisQueue::on_clock(&store, "test", options, REDIS_CLOCK))
            }
        }
    }

    /// Another handle on the same queue, on a clock that goes by itself.
    pub(crate) async fn open_running(&self, options: QueueOptions) -> Arc<dyn QueueStore> {
        match self {
            Self::Sqlite { dir, .. } => {
                let path = dir.path().join("queue.db");
                Arc::new(SqliteQueue::open(path, options, running_clock()).await.unwrap())
            }
            Self::Redis { redis, .. } => Arc::new(RedisQueue::new(&single(redis), "test", options)),
        }
    }
}

pub(crate) fn single(redis: &Redis) -> RedisStore {
    store(RedisKind::Single, &[redis.url()])
}

/// A store on these servers.
pub(crate) fn store(kind: RedisKind, urls: &[String]) -> RedisStore {
    RedisStore::new(&RedisOptions { kind, urls: urls.to_vec(), ..RedisOptions::default() }).unwrap()
}

/// A clock that goes by itself, the same for all who ask in this process.
pub(crate) fn running_clock() -> Clock {
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    Arc::new(|| START + u64::try_from(ORIGIN.elapsed().as_millis()).unwrap())
}

pub(crate) fn request(name: &str) -> StoredRequest {
    StoredRequest {
        method: "POST".to_owned(),
        uri: format!("/things/{name}?secret=1"),
        host: "api.example.org".to_owned(),
        route: "things".to_owned(),
        headers: vec![("x-odd".to_owned(), vec![0, 200, 255, b'"', b'\\'])],
        asked: EdgeRequest { endpoint: Some(format!("/things/{name}")), ..EdgeRequest::default() },
        body: name.as_bytes().to_vec(),
    }
}

pub(crate) fn response(body: &[u8]) -> StoredResponse {
    StoredResponse {
        status: 201,
        headers: vec![("x-odd".to_owned(), vec![0, 200, 255])],
        is_truncated: false,
        body: body.to_vec(),
    }
}

/// The name that [`request`] was made with.
pub(crate) fn name_of(claim: &Claim) -> String {
    String::from_utf8(StoredRequest::decode(&claim.request).unwrap().body).unwrap()
}

/// An id for a test: ordered by its number.
pub(crate) fn id(number: usize) -> String {
    format!("{number:032x}")
}
