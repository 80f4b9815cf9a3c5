//! Tollgate beside real proxies that ask `/rate-limit/auth`: nginx, `HAProxy`, Caddy and Traefik, with the
//! configurations and rules of `examples/`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tollgate_e2e::server::binary;
use tollgate_e2e::{Client, Response, eventually};
use tollgate_testkit::{Edge, EdgeKind, Neighbours, Upstream, free_addr};

/// How often Tollgate is tried on other ports.
const PORTS_TRIED: u32 = 20;

/// What the examples' rules admit: of a key, of logins from an address, and from an address at all.
const PER_KEY: usize = 5;
const LOGINS: usize = 3;
const PER_ADDRESS: usize = 20;

/// A key on the allow list: its requests are not counted.
const UNCOUNTED: &str = "key-status-page";

/// Tollgate on ports that it keeps when it is started again; a service; and a proxy between the service
/// and the test.
pub(crate) struct Beside {
    pub(crate) edge: Edge,
    tollgate: Tollgate,
    pub(crate) service: Upstream,
}

impl Beside {
    /// With a proxy's configuration of its example, and these arguments for Tollgate.
    pub(crate) fn start(kind: EdgeKind, config: &str, args: &[String]) -> Self {
        Self::start_from(kind, &kind.example(), config, args)
    }

    /// The same with a configuration of another folder.
    pub(crate) fn start_from(kind: EdgeKind, folder: &Path, config: &str, args: &[String]) -> Self {
        let tollgate = Tollgate::start(args);
        // Asked for by one example, no harm to the others.
        let service = Upstream::start(&[("x-tokens-used", "600")]);
        let neighbours =
            Neighbours { http: tollgate.http, grpc: tollgate.grpc, service: service.addr() };
        Self { edge: Edge::start_from(kind, folder, config, neighbours), tollgate, service }
    }

    fn with_rules(kind: EdgeKind, config: &str) -> Self {
        let rules = kind.example().join("rules.yaml");
        let beside = Self::start(kind, config, &["--rules".into(), rules.display().to_string()]);
        // Traefik listens before it knows its routes.
        let what = format!("{kind:?} forwards");
        eventually(&what, || beside.get(&[("x-api-key", UNCOUNTED)]).status == 200);
        beside
    }

    /// A request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.edge.addr()).expect("a connection");
        let body: &[u8] = if method == "POST" { b"name=ann" } else { b"" };
        let answer = client.try_request(method, path, headers, body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}; log:\n{}", self.edge.log()))
    }

    pub(crate) fn get(&self, headers: &[(&str, &str)]) -> Response {
        self.ask("GET", "/", headers)
    }

    /// A request with this key.
    pub(crate) fn with_key(&self, key: &str) -> Response {
        self.get(&[("x-api-key", key)])
    }

    /// Of so many requests alike, how many reach the service; all others are refused with this status.
    pub(crate) fn admitted(
        &self,
        count: usize,
        refused: u16,
        mut ask: impl FnMut(usize) -> Response,
    ) -> usize {
        let before = self.service.count();
        let mut passed = 0;
        for index in 0..count {
            let response = ask(index);
            if response.status == 200 {
                passed += 1;
                assert_eq!(response.text(), "from the service");
            } else {
                assert_eq!(response.status, refused, "{} {}", response.text(), self.edge.log());
            }
        }
        assert_eq!(self.service.count() - before, passed, "a refused request reached the service");
        passed
    }

    /// Kills Tollgate without warning.
    pub(crate) fn kill_tollgate(&mut self) {
        self.tollgate.kill();
    }

    /// Starts it again where it was, with fresh counters.
    pub(crate) fn start_tollgate_again(&mut self) {
        self.tollgate.start_again();
    }

    /// A connection to Tollgate itself.
    pub(crate) fn tollgate(&self) -> Client {
        Client::connect(self.tollgate.http).expect("a connection")
    }
}

struct Tollgate {
    args: Vec<String>,
    http: SocketAddr,
    grpc: SocketAddr,
    running: Option<(Child, TempDir)>,
}

impl Tollgate {
    fn start(args: &[String]) -> Self {
        for _ in 0..PORTS_TRIED {
            let (http, grpc) = (free_addr(), free_addr());
            let mut tollgate = Self { args: args.to_vec(), http, grpc, running: None };
            match tollgate.launch() {
                Ok(()) => return tollgate,
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("tollgate did not start:\n{log}"),
            }
        }
        panic!("tollgate found none of {PORTS_TRIED} ports free");
    }

    /// Starts it and waits until it answers; an error is what it logged before it ended.
    fn launch(&mut self) -> Result<(), String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let log_path = dir.path().join("log");
        let log = File::create(&log_path).expect("a log file");
        let mut command = Command::new(binary());
        command.args(["serve", "--http", &self.http.to_string(), "--grpc", &self.grpc.to_string()]);
        command.arg("--data-dir").arg(dir.path().join("data")).args(&self.args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let (child, _) = self.running.insert((command.spawn().expect("tollgate starts"), dir));
        let mut has_ended = false;
        let is_ready = || {
            has_ended = child.try_wait().expect("our own child").is_some();
            // A port that another server takes at the same time may answer with anything.
            let answer = Client::connect(self.http)
                .and_then(|mut client| client.try_request("GET", "/readyz", &[], b""));
            has_ended || answer.is_ok_and(|answer| answer.status == 200)
        };
        eventually("tollgate is ready", is_ready);
        if has_ended { Err(fs::read_to_string(log_path).unwrap_or_default()) } else { Ok(()) }
    }

    fn kill(&mut self) {
        if let Some((mut child, _dir)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn start_again(&mut self) {
        if let Err(log) = self.launch() {
            panic!("tollgate did not start again:\n{log}");
        }
    }
}

impl Drop for Tollgate {
    fn drop(&mut self) {
        self.kill();
    }
}

fn number(response: &Response, name: &str) -> u64 {
    let value = response.header(name);
    let value = value.unwrap_or_else(|| panic!("no {name} in {:?}", response.headers));
    value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
}

/// The budget of a key, to its last request; what a refusal says.
fn a_key_has_its_budget(beside: &Beside, kind: EdgeKind) {
    for used in 1..=PER_KEY {
        let response = beside.with_key("ann");
        assert_eq!(response.status, 200, "{}", response.text());
        let remaining = (PER_KEY - used).to_string();
        if kind == EdgeKind::Traefik {
            // forwardAuth passes the headers to the service, not to the client.
            let header = format!("x-ratelimit-remaining: {remaining}");
            assert!(beside.service.last_head().contains(&header), "{}", beside.service.last_head());
            continue;
        }
        assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining.as_str()));
        assert_eq!(response.header("x-ratelimit-policy"), Some("5;w=60"));
        assert!(number(&response, "x-ratelimit-reset") > 1_700_000_000, "seconds of the epoch");
        assert_eq!(response.header("retry-after"), None);
    }
    let before = beside.service.count();
    let response = beside.with_key("ann");
    assert_eq!(response.status, 429, "{}", response.text());
    assert_eq!(beside.service.count(), before);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(response.header("x-ratelimit-policy"), Some("5;w=60"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"per-key\";q=5;w=60"));
    let retry_after = number(&response, "retry-after");
    assert!((1..=60).contains(&retry_after), "{retry_after}");
    let error = &response.json()["error"];
    assert_eq!(error["code"], "RATE_LIMIT_EXCEEDED");
    assert_eq!(error["rule_id"], "per-key");
    assert_eq!(error["retry_after"], retry_after);
}

fn the_deny_list_is_another_refusal(beside: &Beside) {
    let before = beside.service.count();
    let response = beside.with_key("key-leaked");
    assert_eq!(response.status, 403, "{}", response.text());
    assert_eq!(response.json()["error"]["code"], "DENY_LISTED");
    assert_eq!(response.header("retry-after"), None);
    assert_eq!(beside.service.count(), before);
}

/// However a path is written, it is one path.
fn a_path_has_its_budget(beside: &Beside) {
    let spellings =
        ["/login", "//login", "/a/../login?next=/", "/%6Cogin", "/login?refuse_status=404"];
    let login = |index: usize| beside.ask("POST", spellings[index], &[]);
    assert_eq!(beside.admitted(spellings.len(), 429, login), LOGINS);
    assert_eq!(beside.ask("GET", "/login", &[]).status, 200, "only POST is limited");
}

/// A client's headers do not get it past a limit that it has reached.
fn nothing_can_be_forged(beside: &Beside) {
    let forged: [&[(&str, &str)]; 7] = [
        &[("x-tollgate-cost", "0")],
        &[("x-tollgate-api-key", UNCOUNTED), ("X-TOLLGATE-API-KEY", "another")],
        &[
            ("x-tollgate-ip", "10.1.2.3"),
            ("x-forwarded-for", "10.1.2.3"),
            ("x-real-ip", "10.1.2.3"),
        ],
        &[
            ("x-tollgate-tier", "gold"),
            ("x-tollgate-user-id", "root"),
            ("x-tollgate-domain", "other"),
        ],
        &[("x-tollgate-endpoint", "/free"), ("x-tollgate-method", "OPTIONS")],
        &[("x-original-uri", "/free"), ("x-forwarded-uri", "/free"), ("x-forwarded-method", "GET")],
        // Asks the proxy to drop what it sets itself.
        &[("connection", "close, x-tollgate-ip, x-tollgate-api-key, x-forwarded-uri")],
    ];
    let ask = |method: &str, path: &str, own: &[(&str, &str)], index: usize| {
        let headers: Vec<_> = own.iter().chain(forged[index]).copied().collect();
        beside.ask(method, path, &headers)
    };
    let key = [("x-api-key", "ann")];
    assert_eq!(beside.admitted(forged.len(), 429, |index| ask("GET", "/", &key, index)), 0);
    assert_eq!(beside.admitted(forged.len(), 429, |index| ask("POST", "/login", &[], index)), 0);
}

/// What Tollgate cannot read, or cannot read to its end, is refused as well.
fn nothing_is_too_odd_to_be_asked_about(beside: &Beside, kind: EdgeKind) {
    let before = beside.service.count();
    // Where a proxy or Tollgate gives up reading, whether its answer arrives is a matter of luck.
    let lengths = [257, 4_000, 8_150, 8_300, 15_000, 15_120, 16_000, 60_000];
    for length in lengths.into_iter().cycle().take(4 * lengths.len()) {
        let long = "a".repeat(length);
        let path = format!("/{long}");
        // The head may be refused before it has been read, and the connection closed over it.
        let tries: [(&str, &[(&str, &str)]); 3] = [
            ("/", &[("x-api-key", &long)]),
            (&path, &[("x-api-key", "ann")]),
            (&path, &[("x-api-key", &long), ("accept", &long)]),
        ];
        for (path, headers) in tries {
            let mut client = Client::connect(beside.edge.addr()).expect("a connection");
            if let Ok(response) = client.try_request("GET", path, headers, b"") {
                let status = response.status;
                // Traefik's word for no answer.
                let is_refused =
                    (400..500).contains(&status) || (kind == EdgeKind::Traefik && status == 500);
                assert!(is_refused, "{length}: {status} {}", response.text());
            }
        }
    }
    let response = beside.with_key("clé");
    assert_eq!(response.status, 400, "{}", response.text());
    assert_eq!(beside.service.count(), before);
}

/// A service that fails has not lost its limits, nor is it asked twice.
fn a_failing_service_is_not_a_failing_tollgate(beside: &Beside) {
    let before = beside.service.count();
    assert_eq!(beside.ask("POST", "/hang-up", &[]).status, 502);
    assert_eq!(beside.service.count(), before + 1);
}

/// All of an address's requests, whatever their keys.
fn an_address_has_its_budget(beside: &Beside, used: usize) {
    let keys: Vec<String> = (0..PER_ADDRESS).map(|index| format!("new-{index}")).collect();
    let passed = beside.admitted(keys.len(), 429, |index| beside.with_key(&keys[index]));
    assert_eq!(passed, PER_ADDRESS - used);
}

fn tollgate_comes_and_goes(beside: &mut Beside, kind: EdgeKind) {
    beside.kill_tollgate();
    let count = 2 * PER_KEY;
    if kind == EdgeKind::Traefik {
        // It knows no other way.
        assert_eq!(beside.admitted(count, 500, |_| beside.with_key("ann")), 0);
    } else {
        let ask = |_| {
            let response = beside.with_key("ann");
            assert_eq!(response.header("x-ratelimit-limit"), None);
            response
        };
        assert_eq!(beside.admitted(count, 0, ask), count);
        assert_eq!(beside.ask("POST", "/login", &[]).status, 200, "with a body, too");
        assert!(beside.service.last_head().contains("content-length: 8"));
    }
    beside.start_tollgate_again();
    eventually("Tollgate is asked again", || beside.with_key("key-leaked").status == 403);
    assert_eq!(beside.admitted(count, 429, |_| beside.with_key("ann")), PER_KEY);
}

fn all_of_it(kind: EdgeKind, config: &str) {
    let mut beside = Beside::with_rules(kind, config);
    a_key_has_its_budget(&beside, kind);
    the_deny_list_is_another_refusal(&beside);
    a_path_has_its_budget(&beside);
    nothing_can_be_forged(&beside);
    nothing_is_too_odd_to_be_asked_about(&beside, kind);
    a_failing_service_is_not_a_failing_tollgate(&beside);
    an_address_has_its_budget(&beside, PER_KEY + LOGINS + 2);
    tollgate_comes_and_goes(&mut beside, kind);
}

#[test]
fn nginx_asks_before_it_forwards() {
    all_of_it(EdgeKind::Nginx, "nginx.conf");
}

#[test]
fn haproxy_asks_before_it_forwards() {
    all_of_it(EdgeKind::Haproxy, "haproxy.cfg");
}

#[test]
fn caddy_asks_before_it_forwards() {
    all_of_it(EdgeKind::Caddy, "Caddyfile");
}

#[test]
fn traefik_asks_before_it_forwards() {
    all_of_it(EdgeKind::Traefik, "traefik.yaml");
}
