//! One provider of identities: npm's `oidc-provider`, started by `oidc/provider.mjs`, which lists its people and what a
//! test can have it do wrong.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::Process;
use crate::wait_for;

/// The secret that the client `tollgate` has there.
pub const OIDC_CLIENT_SECRET: &str = "a-secret-of-the-tests-0123456789";

/// How long one answer of it may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A running provider; killed when dropped.
pub struct OidcProvider {
    /// Held to be dropped.
    _dir: TempDir,
    addr: SocketAddr,
    process: Process,
}

impl OidcProvider {
    /// Starts one and waits until it listens.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let log = dir.path().join("log");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("oidc/provider.mjs");
        let mut command = Command::new("node");
        command.arg(script).env("CLIENT_SECRET", OIDC_CLIENT_SECRET).env_remove("PORT");
        let mut process = Process::start(command, &log);
        let addr = wait_for("the provider listens", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let found = text.lines().find_map(|line| line.strip_prefix("listening http://"));
            assert!(!process.has_ended(), "the provider ended; `make deps` installs it:\n{text}");
            found.and_then(|addr| addr.parse().ok()).ok_or(text)
        });
        Self { _dir: dir, addr, process }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it calls itself.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Has it change its next ID token.
    pub fn change_next(&self, how: &str) {
        let mut stream = TcpStream::connect(self.addr).expect("a connection to the provider");
        stream.set_read_timeout(Some(ANSWER_WITHIN)).expect("a timeout");
        let length = how.len();
        let request = format!(
            "POST /test/next HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{how}",
            self.addr
        );
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 204"), "{how}: {answer}");
    }

    /// Stops it without its knowledge: it accepts connections and answers nothing.
    pub fn pause(&mut self) {
        self.process.pause();
    }

    /// The opposite.
    pub fn resume(&mut self) {
        self.process.resume();
    }
}
