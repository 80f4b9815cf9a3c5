//! A `tollgate serve` process on a free port, in a directory of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::{Client, PATIENCE};

/// The binary under test, built beside this test.
pub fn binary() -> PathBuf {
    let mut path = std::env::current_exe().expect("the test knows its own path");
    path.pop();
    if path.ends_with("deps") || path.ends_with("examples") {
        path.pop();
    }
    path.push("tollgate");
    assert!(
        path.exists(),
        "{} is not built: run `cargo build -p tollgate-cli` first, as `make test` does",
        path.display()
    );
    path
}

/// How a server is to be started.
pub struct ServerBuilder {
    dir: TempDir,
    args: Vec<String>,
    /// A command that is to start it.
    wrapper: Vec<String>,
    env: Vec<(String, String)>,
    has_data_dir: bool,
    command: String,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self {
            dir,
            args: Vec::new(),
            wrapper: Vec::new(),
            env: Vec::new(),
            has_data_dir: true,
            command: "serve".to_owned(),
        }
    }
}

impl ServerBuilder {
    /// With these rules.
    pub fn rules(self, yaml: &str) -> Self {
        let path = self.dir.path().join("rules.yaml");
        fs::write(&path, yaml).expect("the rule file is written");
        self.arg("--rules").arg(&path.display().to_string())
    }

    /// Writes a file into its folder, and says where it is.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("the file is written");
        path
    }

    /// As a gateway, on a free port.
    pub fn gateway(mut self) -> Self {
        "gateway".clone_into(&mut self.command);
        self.arg("--listen").arg("127.0.0.1:0")
    }

    /// With a further argument.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// With further arguments.
    pub fn args(mut self, args: &[String]) -> Self {
        self.args.extend_from_slice(args);
        self
    }

    /// With a configuration file.
    pub fn config(self, yaml: &str) -> Self {
        let path = self.dir.path().join("tollgate.yaml");
        fs::write(&path, yaml).expect("the configuration is written");
        self.arg("--config").arg(&path.display().to_string())
    }

    /// Started by another command, which becomes it.
    pub fn wrapped(mut self, command: &[&str]) -> Self {
        self.wrapper = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// With an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Without `--data-dir`: the environment or the default says where.
    pub fn no_data_dir(mut self) -> Self {
        self.has_data_dir = false;
        self
    }

    /// Starts it and waits until it listens.
    pub fn start(self) -> Server {
        let addr = "127.0.0.1:0".parse().expect("an address");
        let mut server = Server {
            builder: self,
            child: None,
            addr,
            admin_addr: addr,
            grpc_addr: addr,
            gateway_addr: addr,
            unread: None,
        };
        server.spawn();
        server
    }

    fn command(&self) -> Command {
        let mut command = match self.wrapper.split_first() {
            None => Command::new(binary()),
            Some((program, words)) => {
                let mut command = Command::new(program);
                command.args(words).arg(binary());
                command
            }
        };
        if !self.wrapper.is_empty() {
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        command.args([self.command.as_str(), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        if self.has_data_dir {
            command.arg("--data-dir").arg(self.dir.path().join("data"));
        }
        command.args(&self.args);
        command.env("TOLLGATE_ADMIN_TOKEN", crate::ADMIN_TOKEN);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A running server; killed when dropped.
pub struct Server {
    builder: ServerBuilder,
    child: Option<Child>,
    addr: SocketAddr,
    admin_addr: SocketAddr,
    grpc_addr: SocketAddr,
    gateway_addr: SocketAddr,
    /// Held, so that it can be written to.
    unread: Option<ChildStdout>,
}

impl Server {
    /// One with the built-in rules.
    pub fn start() -> Self {
        ServerBuilder::default().start()
    }

    /// One with these rules.
    pub fn with_rules(yaml: &str) -> Self {
        ServerBuilder::default().rules(yaml).start()
    }

    fn spawn(&mut self) {
        let stdout = self.launch();
        let line = first_line(stdout);
        let line = line.unwrap_or_else(|| panic!("no first line; log:\n{}", self.log()));
        let said = |name: &str| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix(name));
            word.and_then(|addr| addr.parse().ok())
        };
        let addr = said("http=").filter(|_| line.starts_with("listening "));
        self.addr = addr.unwrap_or_else(|| panic!("first line {line:?}; log:\n{}", self.log()));
        self.admin_addr = said("admin=").unwrap_or(self.addr);
        self.grpc_addr = said("grpc=").unwrap_or(self.addr);
        self.gateway_addr = said("gateway=").unwrap_or(self.addr);
    }

    /// Starts the process.
    fn launch(&mut self) -> ChildStdout {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the log file is opened");
        let mut child = self
            .builder
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("tollgate starts");
        let stdout = child.stdout.take().expect("standard output is piped");
        self.child = Some(child);
        stdout
    }

    /// Starts it again on the same data, and does not wait until it listens.
    pub fn begin_again(&mut self) {
        assert!(self.child.is_none(), "it is still running");
        self.unread = Some(self.launch());
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.builder.dir.path()
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Where it serves gRPC.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where it forwards requests.
    pub fn gateway_addr(&self) -> SocketAddr {
        self.gateway_addr
    }

    /// Where it serves the admin API.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// A new connection to the admin API.
    pub fn admin(&self) -> crate::Admin {
        crate::Admin::connect(self.admin_addr)
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.addr).expect("a connection")
    }

    /// Replaces the rule file, as an editor does.
    pub fn write_rules(&self, yaml: &str) {
        let aside = self.dir().join("rules.yaml.new");
        fs::write(&aside, yaml).expect("the rule file is written");
        fs::rename(aside, self.dir().join("rules.yaml")).expect("the rule file is replaced");
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.pid());
        let status = Command::new("sh").args(["-c", &command]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Waits for it to end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("a running server");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("the child can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("it did not end within {PATIENCE:?}; log:\n{}", self.log());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Kills it without warning and starts it again on the same data.
    pub fn crash_and_restart(&mut self) {
        self.signal("KILL");
        self.wait();
        self.spawn();
    }

    /// Starts it again on the same data after it has ended.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it is still running");
        self.spawn();
    }

    /// Stops it gently and starts it again on the same data.
    pub fn restart(&mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "log:\n{}", self.log());
        self.spawn();
    }
}

/// The first line that a process prints; none if it prints none in time.
fn first_line(stdout: ChildStdout) -> Option<String> {
    let (send, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        if BufReader::new(stdout).read_line(&mut line).is_ok() {
            let _ = send.send(line);
        }
    });
    received.recv_timeout(PATIENCE).ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if !self.builder.wrapper.is_empty() {
                // The wrapper may have stayed its parent: all of its group go.
                let command = format!("kill -s KILL -- -{}", child.id());
                let _ = Command::new("sh").args(["-c", &command]).status();
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
