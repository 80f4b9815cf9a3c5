//! Connections: where to, and what is asked of a server before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join4;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, FromRedisValue, Value};
use tokio::time::Instant;

use super::credentials::Credentials;
use super::node::Node;
use super::sentinel::Sentinels;
use super::trouble::Trouble;
use crate::Failure;

/// How long a connection may take to be made. Decisions do not wait for it so long; the next ones find
/// it made.
const PATIENCE: Duration = Duration::from_secs(2);

/// The error of a TLS connection that is not made in time: a port without TLS does not answer the
/// handshake, but waits for more.
pub(super) const NO_TLS: &str = "no TLS connection in time";

/// Where a server is.
pub(super) enum Endpoint {
    Fixed { info: Box<ConnectionInfo>, expects_cluster: bool, credentials: Credentials },
    Sentinel(Arc<Sentinels>),
}

impl Endpoint {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Fixed { info, .. } => info.addr().to_string(),
            Self::Sentinel(sentinels) => format!("master {}", sentinels.master_name()),
        }
    }

    pub(super) fn uses_tls(&self) -> bool {
        matches!(self, Self::Fixed { info, .. } if matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
    }

    /// Where the server is at this moment, and who we are to it.
    pub(super) async fn locate(&self) -> Result<ConnectionInfo, Refusal> {
        match self {
            Self::Fixed { info, credentials, .. } => Ok(credentials.apply((**info).clone())),
            Self::Sentinel(sentinels) => sentinels.master().await,
        }
    }

    const fn expects_cluster(&self) -> bool {
        matches!(self, Self::Fixed { expects_cluster: true, .. })
    }
}

/// Why there is no connection.
pub(super) type Refusal = (Failure, String);

/// A connection that has been asked what it leads to.
pub(super) async fn open(node: &Node) -> Result<MultiplexedConnection, Refusal> {
    let made = async {
        let connection = dial(node.endpoint.locate().await?).await?;
        greet(node, &connection).await?;
        Ok(connection)
    };
    match tokio::time::timeout(PATIENCE, made).await {
        Ok(Err((Failure::Timeout, _))) | Err(_) if node.endpoint.uses_tls() => {
            Err((Failure::Timeout, NO_TLS.to_owned()))
        }
        Ok(result) => result,
        Err(_) => Err((Failure::Timeout, "no connection within two seconds".to_owned())),
    }
}

/// A plain connection.
pub(super) async fn dial(info: ConnectionInfo) -> Result<MultiplexedConnection, Refusal> {
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        use_ring();
    }
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = Client::open(info).map_err(|error| refusal(&error))?;
    // Every call has a deadline of its own.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(None);
    let made = client.get_multiplexed_async_connection_with_config(&config).await;
    made.map_err(|error| refusal(&error))
}

pub(super) fn refusal(error: &redis::RedisError) -> Refusal {
    (Trouble::of(error).failure().unwrap_or(Failure::Protocol), error.to_string())
}

/// TLS needs a cryptography provider. The embedding application may have installed one already.
fn use_ring() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Losing a race means that somebody else has just chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// One command; what the server answers with an error is an error.
pub(super) async fn ask<T: FromRedisValue>(
    connection: &MultiplexedConnection,
    words: &[&str],
) -> Result<T, redis::RedisError> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    let value = connection.clone().send_packed_command(&command).await?.extract_error()?;
    Ok(T::from_redis_value(value)?)
}

/// Four questions in one round trip: the server's clock, its kind, its role, and whether it may evict.
/// What it does not let us ask does not matter.
async fn greet(node: &Node, connection: &MultiplexedConnection) -> Result<(), Refusal> {
    let sent = Instant::now();
    let (time, server, replication, policy) = join4(
        ask::<(u64, u64)>(connection, &["TIME"]),
        ask::<String>(connection, &["INFO", "server"]),
        ask::<String>(connection, &["INFO", "replication"]),
        ask::<Value>(connection, &["CONFIG", "GET", "maxmemory-policy"]),
    )
    .await;
    if let Ok((seconds, micros)) = time {
        node.saw_clock(seconds * 1_000_000 + micros, sent, Instant::now());
    } else if let Err(error) = &time
        && !matches!(Trouble::of(error), Trouble::Final(Failure::Denied, _))
    {
        return Err(refusal(error));
    }
    if time.is_err() && server.is_err() {
        // Not even its clock: nothing else will be answered either.
        return Err((Failure::Denied, "the user may neither TIME nor INFO".to_owned()));
    }
    // Valkey has its own name for it.
    let mode = |server: &String| {
        let found = field(server, "redis_mode").or_else(|| field(server, "server_mode"));
        found.map(|mode| mode == "cluster")
    };
    if let Some(is_cluster) = server.ok().as_ref().and_then(mode)
        && is_cluster != node.endpoint.expects_cluster()
    {
        let is = if is_cluster { "a node of a cluster" } else { "a single server" };
        return Err((Failure::WrongKind, format!("{} is {is}", node.name)));
    }
    if let Ok(replication) = replication
        && field(&replication, "role") == Some("slave")
    {
        return Err((Failure::ReadOnly, format!("{} is a replica", node.name)));
    }
    if let Ok(Value::Array(words)) = policy {
        warn_of_eviction(node, &words);
    }
    Ok(())
}

fn warn_of_eviction(node: &Node, words: &[Value]) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let Some(Value::BulkString(policy)) = words.get(1) else { return };
    if policy != b"noeviction" && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(redis = node.name, policy = %String::from_utf8_lossy(policy),
            "this Redis may evict counters, and an evicted counter is a full quota: \
             set maxmemory-policy to noeviction");
    }
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
