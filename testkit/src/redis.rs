//! One Redis process: how it is to be started, and what a test can do to it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tempfile::TempDir;

use crate::process::Process;
use crate::resp::{Connection, Reply};
use crate::tls::Certificates;
use crate::{LOOK_IN, PATIENCE, port, wait_for};

/// How often a server is tried on another port.
const PORTS_TRIED: u32 = 20;

/// The server's program. Another one that understands the same configuration can be named by
/// `TOLLGATE_TEST_REDIS`.
fn program() -> String {
    std::env::var("TOLLGATE_TEST_REDIS").unwrap_or_else(|_| "redis-server".to_owned())
}

/// The first number of the server's version.
static MAJOR: LazyLock<u32> = LazyLock::new(|| {
    let output = Command::new(program()).arg("--version").output();
    let output = output.expect("redis-server is installed; `make deps` does it");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_once("v=").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    version.unwrap_or_else(|| panic!("a version in {text:?}"))
});

/// How a server is to be started.
#[derive(Clone, Default)]
pub struct RedisBuilder {
    args: Vec<String>,
    config: Vec<String>,
    password: Option<String>,
    user: Option<(String, String)>,
    unix_socket: bool,
    tls: Option<Arc<Certificates>>,
    wants_client_certificate: bool,
    is_sentinel: bool,
}

impl RedisBuilder {
    /// With further arguments on its command line, such as `["--maxmemory-policy", "noeviction"]`.
    /// They have the last word.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// With a line in its configuration file.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// With a password for the default user (`requirepass`).
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// With a user who may do everything. Without [`password`](Self::password), the default user may
    /// then do nothing.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// On a Unix socket as well.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// With TLS on a second port. Clones of this builder share one authority.
    pub fn tls(self) -> Self {
        self.tls_with(Arc::new(Certificates::new()))
    }

    /// With TLS on a second port, and these certificates.
    pub fn tls_with(mut self, certificates: Arc<Certificates>) -> Self {
        self.tls = Some(certificates);
        self
    }

    /// Over TLS, only clients that show a certificate are let in.
    pub fn require_client_certificate(mut self) -> Self {
        self.wants_client_certificate = true;
        self
    }

    /// With a bound on its memory, such as `4mb`.
    pub fn maxmemory(self, amount: &str) -> Self {
        self.config(&format!("maxmemory {amount}"))
    }

    /// As a sentinel.
    pub(crate) fn sentinel(mut self) -> Self {
        self.is_sentinel = true;
        self
    }

    /// Who administers it: name, if not the default user, and password.
    pub(crate) fn credentials(&self) -> Option<(Option<&str>, &str)> {
        let user = self.user.as_ref().map(|(name, password)| (Some(&**name), &**password));
        user.or_else(|| self.password.as_deref().map(|password| (None, password)))
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Redis {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut redis =
            Redis { builder: self, dir, port: 0, tls_port: 0, process: Mutex::new(None) };
        for _ in 0..PORTS_TRIED {
            redis.port = port::free();
            redis.tls_port = if redis.builder.tls.is_some() { port::free() } else { 0 };
            redis.write_config();
            match redis.launch() {
                Ok(()) => return redis,
                Err(log) if is_about_a_port(&log) => {
                    let _ = fs::remove_file(redis.log_path());
                }
                Err(log) => panic!("redis-server did not start:\n{log}"),
            }
        }
        panic!("redis-server found none of {PORTS_TRIED} ports free");
    }
}

fn is_about_a_port(log: &str) -> bool {
    log.contains("Address already in use") || log.contains("Failed listening on port")
}

/// A running server; killed when dropped. Its data is in memory only, unless its arguments say otherwise.
pub struct Redis {
    builder: RedisBuilder,
    dir: TempDir,
    port: u16,
    tls_port: u16,
    process: Mutex<Option<Process>>,
}

impl Redis {
    /// One without a password, on TCP.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// One that is to be described.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    fn write_config(&self) {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            "protected-mode no".to_owned(),
            format!("port {}", self.port),
            format!("dir {}", quoted(&self.dir.path().display().to_string())),
        ];
        if !self.builder.is_sentinel {
            lines.extend(self.server_config());
        }
        lines.extend(self.builder.config.iter().cloned());
        fs::write(self.config_path(), lines.join("\n") + "\n").expect("a configuration file");
    }

    fn server_config(&self) -> Vec<String> {
        let mut lines: Vec<String> = [
            "save \"\"",
            "appendonly no",
            "repl-diskless-sync-delay 0",
            "repl-ping-replica-period 1",
        ]
        .map(str::to_owned)
        .into();
        let mut set = |name: &str, value: &str| lines.push(format!("{name} {}", quoted(value)));
        if *MAJOR >= 7 {
            set("enable-debug-command", "yes");
        }
        let builder = &self.builder;
        if let Some(password) = &builder.password {
            set("requirepass", password);
        }
        if let Some((user, password)) = builder.credentials() {
            set("masterauth", password);
            set("masteruser", user.unwrap_or("default"));
        }
        if builder.unix_socket {
            set("unixsocket", &self.socket_path().display().to_string());
        }
        if let Some(tls) = &builder.tls {
            set("tls-port", &self.tls_port.to_string());
            set("tls-ca-cert-file", &tls.ca_file().display().to_string());
            set("tls-cert-file", &tls.server_cert_file().display().to_string());
            set("tls-key-file", &tls.server_key_file().display().to_string());
            let required = builder.wants_client_certificate;
            set("tls-auth-clients", if required { "yes" } else { "optional" });
        }
        if let Some((name, password)) = &builder.user {
            lines.push(format!("user {name} on {} ~* &* +@all", quoted(&format!(">{password}"))));
            if builder.password.is_none() {
                lines.push("user default off".to_owned());
            }
        }
        lines
    }

    fn config_path(&self) -> PathBuf {
        self.dir.path().join("redis.conf")
    }

    fn socket_path(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process and waits until it, and no other on that port, answers. If it ends instead, the
    /// error is its log.
    fn launch(&self) -> Result<(), String> {
        let mut command = Command::new(program());
        command.arg(self.config_path());
        if self.builder.is_sentinel {
            command.arg("--sentinel");
        }
        command.args(&self.builder.args);
        *self.process() = Some(Process::start(command, &self.log_path()));
        let deadline = Instant::now() + PATIENCE;
        while !self.answers() {
            if self.process().as_mut().is_none_or(Process::has_ended) {
                *self.process() = None;
                return Err(self.log());
            }
            assert!(
                Instant::now() < deadline,
                "redis-server did not answer within {PATIENCE:?}:\n{}",
                self.log()
            );
            std::thread::sleep(LOOK_IN);
        }
        Ok(())
    }

    /// Does this process answer `PING`?
    fn answers(&self) -> bool {
        self.call(&["PING"]).is_ok_and(|reply| reply == Reply::Text("PONG".to_owned()))
            && self.info("server", "process_id") == Some(self.pid().to_string())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its port for TLS; 0 if it has none.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// `redis://…`, with the credentials if there are any.
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.url_credentials(), self.port)
    }

    /// `rediss://…`, with the credentials if there are any.
    pub fn tls_url(&self) -> String {
        assert!(self.builder.tls.is_some(), "it was started without TLS");
        format!("rediss://{}127.0.0.1:{}", self.url_credentials(), self.tls_port)
    }

    /// `unix://…`, with the credentials, if there are any, as `user` and `pass`.
    pub fn unix_url(&self) -> String {
        assert!(self.builder.unix_socket, "it was started without a Unix socket");
        let path = self.socket_path();
        let query = match self.builder.credentials() {
            None => String::new(),
            Some((user, password)) => {
                let user = user.unwrap_or("default");
                format!("?user={}&pass={}", url_encoded(user), url_encoded(password))
            }
        };
        format!("unix://{}{query}", path.display())
    }

    fn url_credentials(&self) -> String {
        self.builder.credentials().map_or_else(String::new, |(user, password)| {
            format!("{}:{}@", url_encoded(user.unwrap_or("")), url_encoded(password))
        })
    }

    /// The certificates that it uses.
    pub fn certificates(&self) -> &Certificates {
        self.builder.tls.as_deref().expect("it was started without TLS")
    }

    /// The certificate of the authority that issued the server's.
    pub fn ca_file(&self) -> PathBuf {
        self.certificates().ca_file()
    }

    /// Who administers it.
    pub(crate) fn credentials(&self) -> Option<(Option<&str>, &str)> {
        self.builder.credentials()
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Its process id; 0 if it does not run.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().map_or(0, Process::pid)
    }

    /// Is there a process, and is it not paused?
    pub fn is_running(&self) -> bool {
        let mut process = self.process();
        process.as_mut().is_some_and(|process| !process.is_paused() && !process.has_ended())
    }

    /// Stops it without its knowledge (`SIGSTOP`): connections stay open, and nothing answers.
    pub fn pause(&self) {
        self.process().as_mut().expect("a running server").pause();
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process().as_mut().expect("a paused server").resume();
    }

    /// Kills it (`SIGKILL`); its data is gone.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Starts it again, after killing it if need be, on the same ports with the same arguments.
    pub fn restart(&self) {
        self.kill();
        // Its port may be in use for a moment: by a process that checks whether it is free.
        wait_for("a restart on the same port", || match self.launch() {
            Err(log) if !is_about_a_port(&log) => panic!("redis-server did not start:\n{log}"),
            result => result,
        });
    }

    /// Sends one command over a connection of its own, as the administrator.
    pub fn call(&self, words: &[&str]) -> io::Result<Reply> {
        let mut connection = Connection::open(self.addr())?;
        match self.builder.credentials() {
            Some((Some(user), password)) => connection.call(&["AUTH", user, password])?,
            Some((None, password)) => connection.call(&["AUTH", password])?,
            None => Reply::Nil,
        };
        connection.call(words)
    }

    /// One line of `INFO`.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.call(&["INFO", section]).ok()?.text();
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(name, _)| *name == field).map(|(_, value)| value.to_owned())
    }

    /// What `redis-cli` prints for a command, as the administrator.
    pub fn cli(&self, words: &[&str]) -> String {
        self.run_cli(&["-p", &self.port.to_string()], words)
    }

    /// [`cli`](Self::cli) over TLS, with the client's certificate.
    pub fn tls_cli(&self, words: &[&str]) -> String {
        let tls = self.certificates();
        let [ca, cert, key] = [tls.ca_file(), tls.client_cert_file(), tls.client_key_file()]
            .map(|path| path.display().to_string());
        let port = self.tls_port.to_string();
        self.run_cli(
            &["-p", &port, "--tls", "--cacert", &ca, "--cert", &cert, "--key", &key],
            words,
        )
    }

    fn run_cli(&self, args: &[&str], words: &[&str]) -> String {
        let output = tempfile::NamedTempFile::new_in(self.dir.path()).expect("a temporary file");
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1"]).args(args).stdin(Stdio::null());
        if let Some((user, password)) = self.builder.credentials() {
            command.args(["--user", user.unwrap_or("default")]).env("REDISCLI_AUTH", password);
        }
        command.args(words);
        // A server that is paused must not hold the test up for ever.
        let mut process = Process::start(command, output.path());
        wait_for(&format!("redis-cli {words:?}"), || {
            if process.has_ended() { Ok(()) } else { Err("it is still running".to_owned()) }
        });
        fs::read_to_string(output.path()).unwrap_or_default().trim_end().to_owned()
    }
}

/// A word of a configuration file.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A part of a URL.
fn url_encoded(part: &str) -> String {
    let encode = |byte: u8| {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    part.bytes().map(encode).collect()
}
