//! Asking sentinels where the master is.

use redis::{ConnectionAddr, ConnectionInfo};

use super::connect::{Refusal, ask, dial, refusal};
use super::options::RedisOptions;
use crate::Failure;

/// The sentinels of one master.
pub(super) struct Sentinels {
    seeds: Vec<ConnectionInfo>,
    master_name: String,
    options: RedisOptions,
}

impl Sentinels {
    pub(super) fn new(seeds: Vec<ConnectionInfo>, name: &str, options: &RedisOptions) -> Self {
        Self { seeds, master_name: name.to_owned(), options: options.clone() }
    }

    pub(super) fn master_name(&self) -> &str {
        &self.master_name
    }

    /// Where the master is, according to the first sentinel that knows.
    pub(super) async fn master(&self) -> Result<ConnectionInfo, Refusal> {
        let mut last = (Failure::Connection, "no sentinel answers".to_owned());
        for seed in &self.seeds {
            match self.ask_one(seed).await {
                Ok(info) => return Ok(info),
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    async fn ask_one(&self, seed: &ConnectionInfo) -> Result<ConnectionInfo, Refusal> {
        // A sentinel that hangs must not keep us from asking the next.
        let patience = std::time::Duration::from_millis(500);
        let asked = async {
            let connection = dial(seed.clone()).await?;
            let words = ["SENTINEL", "get-master-addr-by-name", &self.master_name];
            ask::<Option<(String, u16)>>(&connection, &words).await.map_err(|e| refusal(&e))
        };
        let answer = tokio::time::timeout(patience, asked).await;
        let found = answer
            .unwrap_or_else(|_| Err((Failure::Timeout, format!("{} is silent", seed.addr()))))?;
        let Some((host, port)) = found else {
            let text = format!("{} knows no master {:?}", seed.addr(), self.master_name);
            return Err((Failure::NotReady, text));
        };
        Ok(self.options.with_credentials(at_address(seed, host, port)))
    }
}

/// The same way of connecting, to another address.
pub(super) fn at_address(seed: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match seed.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    seed.clone().set_addr(address)
}
