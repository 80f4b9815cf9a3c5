//! One Prometheus: it scrapes the targets that a test configures, evaluates its rules, and answers
//! queries as it would for a dashboard or a person.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;
use crate::{LOOK_IN, PATIENCE, port, wait_for};

/// How often it is tried on another port.
const PORTS_TRIED: u32 = 20;

/// How long one answer of it may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What its only job is called, as in the scrape configurations of `deploy/`.
const JOB: &str = "tollgate";

/// A running Prometheus; killed when dropped.
pub struct Prometheus {
    dir: TempDir,
    addr: SocketAddr,
    targets: usize,
    /// Held to be dropped.
    _process: Process,
}

impl Prometheus {
    /// Starts one that scrapes `/metrics` of these addresses, and evaluates these rule files as often; waits
    /// until it answers.
    pub fn start(targets: &[SocketAddr], rules: &[PathBuf], scrape_interval: Duration) -> Self {
        for _ in 0..PORTS_TRIED {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()));
            let config = config(targets, rules, scrape_interval).to_string();
            // JSON is YAML.
            fs::write(config_path(dir.path()), config).expect("a configuration file");
            let process = Process::start(command(dir.path(), addr), &log_path(dir.path()));
            match answers(process, dir.path(), addr) {
                Some(process) => {
                    return Self { dir, addr, targets: targets.len(), _process: process };
                }
                None if log(dir.path()).contains("address already in use") => {}
                None => panic!("prometheus did not start:\n{}", log(dir.path())),
            }
        }
        panic!("prometheus found none of {PORTS_TRIED} ports free");
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it said so far.
    pub fn log(&self) -> String {
        log(self.dir.path())
    }

    /// Waits until each target was scraped at least once, and with success.
    pub fn wait_until_scraped(&self) {
        let wanted = self.targets.to_string();
        wait_for("every target is scraped", || {
            let up = self.query(&format!("sum(up{{job=\"{JOB}\"}})"));
            let is_up = up.pointer("/0/value/1").and_then(Value::as_str) == Some(&wanted);
            if is_up { Ok(()) } else { Err(format!("{up}\n{}", self.targets())) }
        });
    }

    /// The result of an instant query, now: a list of `{"metric": {…}, "value": [at, "figure"]}`.
    pub fn query(&self, promql: &str) -> Value {
        self.try_query(promql).unwrap_or_else(|error| panic!("{promql}: {error}"))
    }

    /// [`query`](Self::query) of what may be wrong; the error is what Prometheus says about it.
    pub fn try_query(&self, promql: &str) -> Result<Value, String> {
        let answer = get(self.addr, &format!("/api/v1/query?query={}", encoded(promql)));
        let (_, body) = answer.map_err(|error| error.to_string())?;
        let mut answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        if answer["status"] == "success" {
            Ok(answer["data"]["result"].take())
        } else {
            Err(answer["error"].as_str().unwrap_or(&body).to_owned())
        }
    }

    /// The alerts that are pending or firing: `{"labels": {"alertname": …}, "state": …, …}`.
    pub fn alerts(&self) -> Value {
        self.data("/api/v1/alerts")["alerts"].take()
    }

    /// Is an alert of this name in this state, `pending` or `firing`?
    pub fn has_alert(&self, name: &str, state: &str) -> bool {
        let alerts = self.alerts();
        let fits = |alert: &Value| alert["labels"]["alertname"] == name && alert["state"] == state;
        alerts.as_array().is_some_and(|alerts| alerts.iter().any(fits))
    }

    /// The rule groups, with the health of every rule.
    pub fn rules(&self) -> Value {
        self.data("/api/v1/rules")["groups"].take()
    }

    /// What it says of its targets: their health, and the last error of each.
    pub fn targets(&self) -> Value {
        self.data("/api/v1/targets")["activeTargets"].take()
    }

    fn data(&self, path: &str) -> Value {
        let (status, body) = get(self.addr, path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(status, 200, "{path}: {body}");
        let mut answer: Value = serde_json::from_str(&body).expect("JSON");
        answer["data"].take()
    }
}

fn config(targets: &[SocketAddr], rules: &[PathBuf], interval: Duration) -> Value {
    let interval = format!("{}ms", interval.as_millis());
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    json!({
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
        },
        "rule_files": rules,
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": targets}]}],
    })
}

fn command(dir: &Path, addr: SocketAddr) -> Command {
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config_path(dir).display()));
    command.arg(format!("--storage.tsdb.path={}", data_path(dir).display()));
    command.arg(format!("--web.listen-address={addr}"));
    command.current_dir(dir);
    command
}

fn config_path(dir: &Path) -> PathBuf {
    dir.join("prometheus.yaml")
}

fn data_path(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}

fn log(dir: &Path) -> String {
    fs::read_to_string(log_path(dir)).unwrap_or_default()
}

/// Waits until this process, and no other on that port, is ready; none if it has ended.
fn answers(mut process: Process, dir: &Path, addr: SocketAddr) -> Option<Process> {
    let deadline = Instant::now() + PATIENCE;
    let data = data_path(dir).display().to_string();
    loop {
        let is_ready = get(addr, "/-/ready").is_ok_and(|(status, _)| status == 200);
        let is_ours = |(_, flags): (u16, String)| flags.contains(&data);
        if is_ready && get(addr, "/api/v1/status/flags").is_ok_and(is_ours) {
            return Some(process);
        }
        if process.has_ended() {
            return None;
        }
        assert!(
            Instant::now() < deadline,
            "prometheus is not ready within {PATIENCE:?}:\n{}",
            log(dir)
        );
        std::thread::sleep(LOOK_IN);
    }
}

/// A GET over a connection of its own: status and body. HTTP/1.0, so that the body is as it is, up to the end.
fn get(addr: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {addr}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}

/// A value of a query string.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        let _ = write!(encoded, "%{byte:02X}");
        encoded
    })
}
