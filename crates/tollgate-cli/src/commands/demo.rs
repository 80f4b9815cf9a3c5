//! `tollgate demo`: a node with rules and traffic to look at.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tollgate_server::EarlySignals;

use super::serve;
use crate::args::{ConfigArgs, DemoArgs};
use crate::client::{Call, Caller, TlsFiles};
use crate::failure::{Ended, Failure};
use crate::ready::Ready;
use crate::server::PREFIX;

/// The rules, lists and plans of the demo.
const RULES: &str = include_str!("demo.yaml");

/// The first token of a node may be given in it.
const ADMIN_TOKEN_VARIABLE: &str = "TOLLGATE_ADMIN_TOKEN";

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a node that starts is asked whether it is ready.
const MAX_ATTEMPTS: u32 = 300;
const ATTEMPT_EVERY: Duration = Duration::from_millis(100);

const USERS: [&str; 8] = ["ann", "bob", "cleo", "dan", "eve", "finn", "gil", "hana"];
const TENANTS: [&str; 5] = ["acme", "globex", "initech", "umbrella", "hooli"];
const MODELS: [&str; 4] = ["gpt-4o", "llama-70b", "mixtral", "embed-small"];

/// The data of the demo, removed with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is in the system's directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn run(args: &DemoArgs, signals: Option<EarlySignals>) -> Ended {
    if !args.http.ip().is_loopback() {
        return Err(Failure::usage(anyhow!(
            "a demo listens on loopback only, not on {}",
            args.http
        )));
    }
    let address = free(args.http)?;
    let folder = std::env::temp_dir().join(format!("tollgate-demo-{}", std::process::id()));
    let folder = Folder(folder);
    let config = ConfigArgs {
        http: Some(address),
        grpc: Some("null".to_owned()),
        data_dir: Some(folder.0.display().to_string()),
        ..ConfigArgs::default()
    };
    let mut ready = Ready::require(&config)?;
    let configured = ready.config.control.first_token.text.clone();
    let variable = || std::env::var(ADMIN_TOKEN_VARIABLE).ok();
    let given = configured.or_else(variable).filter(|token| !token.is_empty());
    let token = given.unwrap_or_else(token);
    ready.config.control.first_token.text = Some(token.clone());
    let traffic = Traffic {
        caller: (format!("http://{address}"), token),
        requests: args.requests,
        seconds: args.minutes.saturating_mul(60),
        state: 7,
    };
    std::thread::Builder::new().name("demo".to_owned()).spawn(move || traffic.send())?;
    serve::start(ready, &config, signals, tollgate_server::run)
}

/// The address itself, or one with a free port in place of port 0.
fn free(address: SocketAddr) -> Result<SocketAddr, Failure> {
    if address.port() != 0 {
        return Ok(address);
    }
    let listener = TcpListener::bind(address).with_context(|| address.to_string())?;
    Ok(listener.local_addr()?)
}

/// A token that only this process knows: hashes keyed by random bits of the system.
fn token() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let keyed = RandomState::new();
    let parts: Vec<String> =
        (0..4_u8).map(|part| format!("{:016x}", keyed.hash_one(part))).collect();
    format!("tgt_{}", parts.concat())
}

/// Requests of made-up clients, the same every time.
struct Traffic {
    caller: (String, String),
    requests: u32,
    seconds: u32,
    state: u64,
}

impl Traffic {
    fn send(mut self) {
        let (url, token) = self.caller.clone();
        let caller = Caller::new(url, Some(token), TlsFiles::default());
        if let Err(failure) = set_up(&caller) {
            tracing::error!(error = %failure.error(), "the demo cannot set its rules");
            return;
        }
        for second in 0..self.seconds {
            let requests: Vec<Value> = (0..self.requests).map(|_| self.request(second)).collect();
            let body = json!({ "requests": requests }).to_string();
            if let Err(failure) = ask(&caller, "POST", "/rate-limit/allow/batch", Some(&body)) {
                tracing::debug!(error = %failure.error(), "the demo's requests were not answered");
            }
            sleep(Duration::from_secs(1));
        }
    }

    fn request(&mut self, second: u32) -> Value {
        match self.below(40) {
            0 => json!({ "ip": "198.51.100.23", "endpoint": "/login", "method": "POST" }),
            1 => json!({ "ip": "203.0.113.9", "userId": "guest" }),
            // A client that has a bad minute now and then.
            2..=9 if second % 120 < 45 => json!({ "userId": "mallory", "tenantId": "hooli",
                "modelId": "gpt-4o", "tokens": 900, "endpoint": "/v1/chat", "method": "POST" }),
            _ => {
                let (user, tenant, model) =
                    (self.pick(&USERS), self.pick(&TENANTS), self.pick(&MODELS));
                let (tokens, host) = (20 + self.below(400), self.below(200));
                json!({ "userId": user, "tenantId": tenant, "modelId": model, "tokens": tokens,
                    "ip": format!("192.0.2.{host}"), "endpoint": "/v1/chat", "method": "POST" })
            }
        }
    }

    /// The first ones more often than the last.
    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        let count = from.len() as u64;
        let place = self.below(count).min(self.below(count));
        usize::try_from(place).ok().and_then(|place| from.get(place)).copied().unwrap_or_default()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % bound.max(1)
    }
}

/// Waits for the node, and gives it the rules of the demo.
fn set_up(caller: &Caller) -> Result<(), Failure> {
    let mut attempts = 0;
    while let Err(failure) = ask(caller, "GET", "/readyz", None) {
        attempts += 1;
        if attempts >= MAX_ATTEMPTS {
            return Err(failure);
        }
        sleep(ATTEMPT_EVERY);
    }
    let rules = crate::yaml::read(RULES).context("the rules of the demo")?;
    ask(caller, "POST", &format!("{PREFIX}apply"), Some(&rules.to_string()))?;
    let client = |name: &str, tier: &str| json!({ "identifier_type": "tenant_id", "identifier": name, "tier": tier });
    let tiers = json!({ "client_tiers": [client("acme", "enterprise"), client("globex", "pro")] });
    ask(caller, "POST", &format!("{PREFIX}client-tiers"), Some(&tiers.to_string()))
}

fn ask(
    caller: &Caller,
    method: &'static str,
    path: &str,
    body: Option<&str>,
) -> Result<(), Failure> {
    let answer =
        caller.ask(&Call { method, path, body, if_match: None, timeout: ANSWER_TIMEOUT })?;
    if (200..300).contains(&answer.status) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    Err(Failure::Failed(anyhow!("{path} was answered with status {}: {text}", answer.status)))
}
