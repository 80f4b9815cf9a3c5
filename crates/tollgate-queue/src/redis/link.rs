//! The connection to Redis: one, made when it is needed and again when it broke.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    RedisError, RedisResult, ServerErrorKind,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::script::Script;
use crate::store::QueueError;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a call may take. Calls carry bodies, and a 202 is worth a wait.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a call is sent again while a cluster changes.
const CLUSTER_RETRIES: u32 = 4;

/// The pauses in between: a worker tries again by itself, and a client can get an error at once.
const CLUSTER_RETRY_MIN_MILLIS: u64 = 10;
const CLUSTER_RETRY_MAX_MILLIS: u64 = 200;

/// Which Redis. Addresses hold users, passwords and certificates, as the client library takes them.
#[derive(Clone)]
pub enum RedisTarget {
    /// One server.
    Single(Box<ConnectionInfo>),
    /// Some nodes of a cluster. All of the queue is in one slot, and so on one server at a time.
    Cluster(Vec<ConnectionInfo>),
    /// Servers under Sentinel.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<ConnectionInfo>,
        /// What they call the master.
        master_name: String,
        /// The master, but for its host and port.
        server: Box<ConnectionInfo>,
    },
}

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn call<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Self::Server(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }
}

/// The connection, and which one it is, so that a broken one is thrown away once.
struct Current {
    connection: Option<Connection>,
    number: u64,
}

/// Which Redis at this moment: its password may change.
pub(super) type TargetSource = Box<dyn Fn() -> RedisTarget + Send + Sync>;

pub(super) struct Link {
    target: TargetSource,
    current: Mutex<Current>,
}

impl Link {
    pub(super) fn new(target: TargetSource) -> Self {
        Self { target, current: Mutex::new(Current { connection: None, number: 0 }) }
    }

    /// Runs a script on the queue whose keys start with `prefix`.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        prefix: &str,
        arguments: &[&[u8]],
    ) -> Result<T, QueueError> {
        let late = |_| QueueError::Unavailable(format!("no answer within {CALL_TIMEOUT:?}"));
        let away = |error: RedisError| QueueError::Unavailable(error.to_string());
        let connection = timeout(CALL_TIMEOUT, self.connection()).await;
        let (mut connection, number) = connection.map_err(late)?.map_err(away)?;
        let evaluated = evaluate(&mut connection, script, prefix, arguments);
        let result = timeout(CALL_TIMEOUT, evaluated).await;
        // What does not answer may never do so again; the next call makes another.
        if result.as_ref().map_or(true, |result| result.as_ref().is_err_and(is_broken)) {
            self.throw_away(number).await;
        }
        result.map_err(late)?.map_err(away)
    }

    async fn connection(&self) -> RedisResult<(Connection, u64)> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok((connection.clone(), current.number));
        }
        let connection = connect(&(self.target)()).await?;
        current.connection = Some(connection.clone());
        current.number += 1;
        Ok((connection, current.number))
    }

    async fn throw_away(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.number == number {
            current.connection = None;
        }
    }
}

/// Whether another connection may do better: also after a failover, when the old master is a replica.
fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Two keys are declared: the prefix, which is no key and never exists, and one of the queue. They say
/// which slot the script works on, and that it does not run while that slot is on its way to another node:
/// half of the keys would be missing, and neither node runs a script of which a key is missing there.
async fn evaluate<T: FromRedisValue>(
    connection: &mut Connection,
    script: &Script,
    prefix: &str,
    arguments: &[&[u8]],
) -> RedisResult<T> {
    let command = |name: &str, script: &str| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(2).arg(prefix).arg(format!("{prefix}due"));
        for argument in arguments {
            command.arg(*argument);
        }
        command
    };
    match connection.call(&command("EVALSHA", &script.hash)).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            connection.call(&command("EVAL", &script.text)).await
        }
        result => result,
    }
}

async fn connect(target: &RedisTarget) -> RedisResult<Connection> {
    use_ring();
    match target {
        RedisTarget::Single(info) => dial((**info).clone()).await.map(Connection::Server),
        RedisTarget::Cluster(nodes) => {
            let client = ClusterClient::builder(nodes.clone())
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(CALL_TIMEOUT)
                .retries(CLUSTER_RETRIES)
                .min_retry_wait(CLUSTER_RETRY_MIN_MILLIS)
                .max_retry_wait(CLUSTER_RETRY_MAX_MILLIS)
                .build()?;
            client.get_async_connection().await.map(Connection::Cluster)
        }
        RedisTarget::Sentinel { sentinels, master_name, server } => {
            let mut last = RedisError::from((ErrorKind::EmptySentinelList, "no sentinel is given"));
            for sentinel in sentinels {
                match ask_sentinel(sentinel, master_name).await {
                    Ok((host, port)) => {
                        let info = at_address(server, host, port);
                        return dial(info).await.map(Connection::Server);
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}

async fn ask_sentinel(sentinel: &ConnectionInfo, master_name: &str) -> RedisResult<(String, u16)> {
    let mut connection = dial(sentinel.clone()).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(master_name);
    let found: Option<(String, u16)> = command.query_async(&mut connection).await?;
    let unknown = (ErrorKind::MasterNameNotFoundBySentinel, "the sentinel knows no such master");
    found.ok_or_else(|| unknown.into())
}

async fn dial(info: ConnectionInfo) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(CALL_TIMEOUT));
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

/// The same way of connecting, to another address.
fn at_address(server: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match server.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    server.clone().set_addr(address)
}

/// TLS needs a cryptography provider. The program that embeds this crate may have installed one already.
fn use_ring() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Losing a race means that somebody else has just chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
