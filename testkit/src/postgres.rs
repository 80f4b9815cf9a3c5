//! One PostgreSQL server: started in a folder of its own, and what a test can do to it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::process::Process;
use crate::tls::Certificates;
use crate::{LOOK_IN, PATIENCE, port, wait_for};

/// How often a server is tried on another port.
const PORTS_TRIED: u32 = 20;

/// Where Debian keeps the server's programs, which are not on the path.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Who the server runs as if the tests run as root, whom it refuses.
const USER: &str = "postgres";

/// A running server; killed when dropped. It trusts everyone on loopback, and does not sync to disk:
/// its data survives a crash of the server, not one of the machine.
pub struct Postgres {
    dir: TempDir,
    port: u16,
    process: Mutex<Option<Process>>,
    databases: AtomicU32,
    tls: Option<Arc<Certificates>>,
}

/// The role that must use TLS and show a certificate, where the server has TLS.
const TLS_ROLE: &str = "by_certificate";

impl Postgres {
    /// Starts one, and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// The same with TLS, and with a role that must show a certificate of the same authority:
    /// [`tls_database`](Self::tls_database).
    pub fn start_with_tls(certificates: Arc<Certificates>) -> Self {
        let postgres = Self::start_with(Some(certificates));
        postgres.query("postgres", &format!("CREATE ROLE {TLS_ROLE} LOGIN SUPERUSER"));
        postgres
    }

    fn start_with(tls: Option<Arc<Certificates>>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (process, databases) = (Mutex::new(None), AtomicU32::new(0));
        let mut postgres = Self { dir, port: 0, process, databases, tls };
        postgres.make_cluster();
        postgres.write_tls_files();
        for _ in 0..PORTS_TRIED {
            postgres.port = port::free();
            match postgres.launch() {
                Ok(()) => return postgres,
                Err(log) if is_about_a_port(&log) => {
                    let _ = fs::remove_file(postgres.log_path());
                }
                Err(log) => panic!("postgres did not start:\n{log}"),
            }
        }
        panic!("postgres found none of {PORTS_TRIED} ports free");
    }

    /// Makes the folder of the data, as the user that the server will run as.
    fn make_cluster(&self) {
        let data = self.data_path();
        fs::create_dir(&data).expect("a folder for the data");
        if let Some((user, group)) = server_user() {
            let traversable = fs::Permissions::from_mode(0o711);
            fs::set_permissions(self.dir.path(), traversable).expect("a folder others may enter");
            chown(&data, Some(user), Some(group)).expect("a folder that postgres owns");
        }
        let mut command = as_server_user(&program("initdb"));
        command.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
        command.args(["--no-locale", "--no-sync"]).current_dir("/");
        let output = run(&mut command);
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Puts certificates where the server may read them, and says who must show one.
    fn write_tls_files(&self) {
        let Some(certificates) = &self.tls else { return };
        for (from, name) in [
            (certificates.server_cert_file(), "server.crt"),
            (certificates.server_key_file(), "server.key"),
            (certificates.ca_file(), "ca.crt"),
        ] {
            let to = self.data_path().join(name);
            fs::copy(from, &to).expect("a copy of a certificate");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).expect("a private file");
            if let Some((user, group)) = server_user() {
                chown(&to, Some(user), Some(group)).expect("a file that postgres owns");
            }
        }
        let rules = format!(
            "hostssl all {TLS_ROLE} 127.0.0.1/32 trust clientcert=verify-ca\n\
             host all {TLS_ROLE} all reject\n\
             host all postgres 127.0.0.1/32 trust\n"
        );
        fs::write(self.data_path().join("pg_hba.conf"), rules).expect("the rules of access");
    }

    /// Makes an empty database; its URL for the role that must show a certificate.
    pub fn tls_database(&self) -> String {
        let certificates = self.tls.as_ref().expect("it was started without TLS");
        let name = self.database().rsplit('/').next().expect("a name").to_owned();
        format!(
            "postgres://{TLS_ROLE}@127.0.0.1:{}/{name}?sslmode=verify-full&sslrootcert={}\
             &sslcert={}&sslkey={}",
            self.port,
            certificates.ca_file().display(),
            certificates.client_cert_file().display(),
            certificates.client_key_file().display(),
        )
    }

    fn data_path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process and waits until it answers. If it ends instead, the error is its log.
    fn launch(&self) -> Result<(), String> {
        let mut command = as_server_user(&program("postgres"));
        command.arg("-D").arg(self.data_path()).args(["-p", &self.port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "max_connections=200",
        ] {
            command.args(["-c", setting]);
        }
        if self.tls.is_some() {
            command.args(["-c", "ssl=on", "-c", "ssl_ca_file=ca.crt"]);
        }
        command.current_dir("/");
        *self.process() = Some(Process::start(command, &self.log_path()));
        let deadline = Instant::now() + PATIENCE;
        while self.psql("postgres", "SELECT 1").is_err() {
            if self.process().as_mut().is_none_or(Process::has_ended) {
                *self.process() = None;
                return Err(self.log());
            }
            assert!(
                Instant::now() < deadline,
                "postgres did not answer within {PATIENCE:?}:\n{}",
                self.log()
            );
            std::thread::sleep(LOOK_IN);
        }
        Ok(())
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://…`, of the database that is always there.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes an empty database; its URL.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.query("postgres", &format!("CREATE DATABASE {name}"));
        self.url_of(&name)
    }

    /// What `psql` prints for a statement: columns with `|` in between.
    pub fn query(&self, database: &str, sql: &str) -> String {
        self.psql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = Command::new(program("psql"));
        command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        command.arg(self.url_of(database)).env("PGCONNECT_TIMEOUT", "5");
        let output = run(&mut command);
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Its process id; 0 if it does not run.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().map_or(0, Process::pid)
    }

    /// Kills it and everything it started (`SIGKILL`). Its data stays.
    pub fn stop(&self) {
        let mut process = self.process();
        let children = process.as_ref().map_or_else(Vec::new, |process| children(process.pid()));
        // The postmaster first: it would start new children.
        *process = None;
        for child in children {
            signal(child, Signal::KILL);
        }
    }

    /// Starts it again, after stopping it if need be, on the same port with the same data.
    pub fn start_again(&self) {
        self.stop();
        // Its port may be in use for a moment, and so may its shared memory.
        wait_for("a restart on the same port", || {
            // Of a server that was killed.
            let _ = fs::remove_file(self.data_path().join("postmaster.pid"));
            self.launch()
        });
    }

    /// Stops it and everything it started without their knowledge (`SIGSTOP`): connections stay open,
    /// and nothing answers.
    pub fn pause(&self) {
        let mut process = self.process();
        let process = process.as_mut().expect("a running server");
        process.pause();
        for child in children(process.pid()) {
            signal(child, Signal::STOP);
        }
    }

    /// Lets them go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        let mut process = self.process();
        let process = process.as_mut().expect("a paused server");
        for child in children(process.pid()) {
            signal(child, Signal::CONT);
        }
        process.resume();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_about_a_port(log: &str) -> bool {
    log.contains("Address already in use") || log.contains("could not create any TCP/IP sockets")
}

/// User and group that the server runs as, if not the tests' own.
fn server_user() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").expect("a list of users");
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|line| line.first() == Some(&USER));
    let line = line.expect("a user `postgres`; `make deps` installs PostgreSQL, which makes it");
    let id = |column: usize| line.get(column)?.parse::<u32>().ok();
    Some(id(2).zip(id(3)).expect("the ids of a user"))
}

/// `setpriv` becomes the program: the process keeps its id.
fn as_server_user(program: &Path) -> Command {
    if server_user().is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program);
    command
}

/// A program of PostgreSQL: Debian's newest, or the one on the path.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut paths: Vec<_> = versions.map(|entry| entry.path()).collect();
    paths.sort_by_key(number);
    let programs = paths.into_iter().rev().map(|path| path.join("bin").join(name));
    programs.into_iter().find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name))
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| {
        let program = command.get_program().display();
        panic!("{program} does not start ({error}); `make deps` installs it")
    })
}

/// The processes that a process started.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| parent_of(pid) == Some(parent)).collect()
}

/// The second word after the program's name, which is in brackets and may hold anything.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}
