//! TLS with client certificates everywhere: on every listener, to Redis and to PostgreSQL. Every command,
//! the health check of the image and the probes of the chart work with it.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tollgate_e2e::server::binary;
use tollgate_e2e::{ADMIN_TOKEN, Server, ServerBuilder, Upstream, eventually};
use tollgate_testkit::{Certificates, Postgres, Redis};

const RULES: &str = "
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 1000, window: 365d, algorithm: fixed_window}
  - {rule_id: slots, identifier_type: tenant_id, unit: concurrency, limit: 5, slot_ttl: 1m}
  - {rule_id: tried, identifier_type: ip, limit: 1000, window: 365d, algorithm: fixed_window, candidate: {limit: 900}}
";

/// How a run ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Everything that has TLS. The servers behind end with it.
struct Ground {
    certificates: Arc<Certificates>,
    server: Server,
    /// The first two words of every command that was run, without its flags.
    ran: BTreeSet<String>,
    _behind: (Redis, Postgres, Upstream),
}

impl Ground {
    fn start() -> Self {
        let certificates = Arc::new(Certificates::new());
        let redis = Redis::builder().tls_with(Arc::clone(&certificates));
        let redis = redis.require_client_certificate().start();
        let postgres = Postgres::start_with_tls(Arc::clone(&certificates));
        let upstream = Upstream::start();
        let config = format!(
            "tls: {{cert_file: '{cert}', key_file: '{key}', client_ca_file: '{ca}', client_certificates: required}}
data_auth: mtls
admin: {{http: '127.0.0.1:0'}}
postgres: '{database}'
redis: {{urls: ['{redis}'], ca_file: '{ca}', cert_file: '{own_cert}', key_file: '{own_key}', timeout_ms: 5000}}
gateway: {{upstream: '{upstream}'}}
",
            cert = certificates.server_cert_file().display(),
            key = certificates.server_key_file().display(),
            ca = certificates.ca_file().display(),
            own_cert = certificates.client_cert_file().display(),
            own_key = certificates.client_key_file().display(),
            database = postgres.tls_database(),
            redis = redis.tls_url(),
            upstream = upstream.url(),
        );
        let server = ServerBuilder::default().gateway().config(&config).start();
        let ran = BTreeSet::new();
        Self { certificates, server, ran, _behind: (redis, postgres, upstream) }
    }

    fn url(addr: std::net::SocketAddr) -> String {
        format!("https://localhost:{}", addr.port())
    }

    fn command() -> Command {
        let mut command = Command::new(binary());
        for name in ["TOLLGATE_URL", "TOLLGATE_TOKEN", "TOLLGATE_CA", "TOLLGATE_CERT"] {
            command.env_remove(name);
        }
        command.env_remove("TOLLGATE_KEY").env_remove("TOLLGATE_CONFIG").stdin(Stdio::null());
        command.env("TOLLGATE_TOKEN", ADMIN_TOKEN);
        command
    }

    /// Runs a command with all certificates, by variables.
    fn run(&mut self, url: &str, args: &[&str]) -> Ran {
        let words: Vec<&str> = args.iter().copied().take(2).collect();
        self.ran.insert(words.join(" "));
        let mut command = Self::command();
        command
            .args(args)
            .env("TOLLGATE_URL", url)
            .env("TOLLGATE_CA", self.certificates.ca_file())
            .env("TOLLGATE_CERT", self.certificates.client_cert_file())
            .env("TOLLGATE_KEY", self.certificates.client_key_file());
        ran(&mut command)
    }

    /// Asks the admin API; the output, if all went well.
    fn admin(&mut self, args: &[&str]) -> String {
        let url = Self::url(self.server.admin_addr());
        done(args, self.run(&url, args))
    }

    /// Asks for a decision.
    fn data(&mut self, args: &[&str]) -> String {
        let url = Self::url(self.server.addr());
        done(args, self.run(&url, args))
    }
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

fn done(args: &[&str], ran: Ran) -> String {
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran.out
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn text_at(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("no {name}: {value}")).to_owned()
}

#[test]
fn every_command_works_with_tls_everywhere() {
    let mut ground = Ground::start();
    let file = ground.server.dir().join("apply.yaml").display().to_string();
    fs::write(&file, RULES).expect("a rule file");
    let page = ground.server.dir().join("report.html").display().to_string();

    rules_and_lists(&mut ground, &file);
    tiers_grants_and_settings(&mut ground);
    decisions(&mut ground, &page);
    operations(&mut ground);
    keys(&mut ground);
    ground.admin(&["rules", "delete", "slots", "--yes"]);

    // Nothing that can ask a server was left out.
    let reference = done(&[], ran(Ground::command().arg("help-markdown")));
    let sections = reference.split("\n## `tollgate ").skip(1);
    let asks = |section: &&str| section.contains("--url <URL>") || section.contains("--ca <FILE>");
    let all: BTreeSet<String> = sections
        .filter(asks)
        .map(|section| section.split('`').next().unwrap_or_default().to_owned())
        .collect();
    let missing: Vec<&String> = all
        .iter()
        .filter(|command| !ground.ran.iter().any(|ran| ran.starts_with(command.as_str())))
        .collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
    assert!(all.len() > 30, "{all:?}");
    let log = ground.server.log();
    assert!(!log.contains("does not answer") && !log.contains("\"ERROR\""), "{log}");
}

fn rules_and_lists(ground: &mut Ground, file: &str) {
    ground.admin(&["rules", "apply", "--file", file, "--yes"]);
    assert!(ground.admin(&["rules", "list"]).contains("per-user"));
    ground.admin(&["rules", "get", "per-user"]);
    ground.admin(&["rules", "versions", "per-user"]);
    ground.admin(&["rules", "rollback", "per-user", "--to", "1", "--dry-run"]);
    ground.admin(&["rules", "diff", "--file", file]);
    ground.admin(&["rules", "candidate", "tried"]);
    ground.admin(&["rules", "explain", "--user", "ann"]);
    ground.admin(&["lists", "deny", "user_id:mallory"]);
    ground.admin(&["lists", "allow", "user_id:ann-who-is-free"]);
    assert!(ground.admin(&["lists", "show"]).contains("mallory"));
    ground.admin(&["lists", "remove", "deny", "user_id:mallory"]);
}

fn tiers_grants_and_settings(ground: &mut Ground) {
    ground.admin(&["tiers", "set", "pro"]);
    ground.admin(&["tiers", "assign", "user_id:ann", "--tier", "pro"]);
    assert!(ground.admin(&["tiers", "list"]).contains("pro"));
    assert!(ground.admin(&["tiers", "of", "user_id:ann"]).contains("pro"));
    ground.admin(&["tiers", "unassign", "user_id:ann"]);
    ground.admin(&["tiers", "delete", "pro"]);
    let grant =
        ["grants", "add", "user_id:ann", "--rule", "per-user", "--extra", "5", "--until", "1d"];
    ground.admin(&grant);
    let grants = json(&ground.admin(&["grants", "list", "--json"]));
    let list = grants.as_array().or_else(|| grants["items"].as_array()).expect("grants");
    let id = text_at(&list[0], "grant_id");
    ground.admin(&["grants", "remove", &id]);
    ground.admin(&["settings", "set", "no_match", "allow"]);
    assert!(ground.admin(&["settings", "show"]).contains("no_match"));
    ground.admin(&["settings", "unset", "no_match"]);
    let made = ground.admin(&["token", "create", "--name", "t", "--role", "viewer", "--json"]);
    let id = text_at(&json(&made), "token_id");
    assert!(ground.admin(&["token", "list"]).contains(&id));
    ground.admin(&["token", "rotate", &id]);
    ground.admin(&["token", "revoke", &id, "--yes"]);
}

fn decisions(ground: &mut Ground, page: &str) {
    ground.data(&["check", "--user", "ann"]);
    let held = json(&ground.data(&["reserve", "--user", "ann", "--cost", "3"]));
    let id = text_at(&held, "reservationId");
    ground.data(&["renew", &id]);
    ground.data(&["settle", &id, "--cost", "2"]);
    let held = json(&ground.data(&["reserve", "--user", "ann"]));
    ground.data(&["release", &text_at(&held, "reservationId")]);
    ground.data(&["check", "--tenant", "acme"]);
    ground.admin(&["slots", "list"]);
    assert!(ground.admin(&["usage", "show", "user_id:ann"]).contains("per-user"));
    ground.admin(&["usage", "reset", "user_id:ann", "--yes"]);
    let http = Ground::url(ground.server.addr());
    let grpc = Ground::url(ground.server.grpc_addr());
    let counts = ["--requests", "50", "--connections", "2", "--threads", "1", "--json"];
    for (url, target) in [(&http, "http"), (&grpc, "grpc"), (&grpc, "envoy")] {
        let mut args = vec!["bench", url, "--target", target, "--html", page];
        args.extend(counts);
        let report = json(&ground.data(&args));
        assert_eq!((&report["requests"], &report["errors"]), (&50.into(), &0.into()), "{report}");
    }
}

fn keys(ground: &mut Ground) {
    let created = json(&ground.admin(&["keys", "create", "--name", "ci", "--json"]));
    let id = text_at(&created, "id");
    ground.admin(&["keys", "list"]);
    ground.admin(&["keys", "get", &id]);
    ground.admin(&["keys", "update", &id, "--name", "build"]);
    ground.admin(&["keys", "rotate", &id, "--overlap", "1h"]);
    ground.admin(&["keys", "disable", &id]);
    ground.admin(&["keys", "enable", &id]);
    ground.admin(&["keys", "delete", &id, "--yes"]);
    let file = ground.server.dir().join("keys.yaml").display().to_string();
    fs::write(&file, "- {name: a}\n").expect("a file of keys");
    ground.admin(&["keys", "import", &file]);
}

fn operations(ground: &mut Ground) {
    ground.admin(&["top", "--once"]);
    ground.admin(&["log-level"]);
    ground.admin(&["log-level", "info"]);
    // It asks no server, but PostgreSQL.
    let config = ground.server.dir().join("tollgate.yaml").display().to_string();
    ground.data(&["config", "migrate", "--config", &config]);
    ground.admin(&["audit", "--since", "1h"]);
    ground.admin(&["audit", "--decisions"]);
    assert!(ground.admin(&["audit", "verify"]).starts_with("ok: "));
    ground.admin(&["audit", "export"]);
    ground.admin(&["audit", "key"]);
    ground.admin(&["spend"]);
    ground.admin(&["decisions", "--since", "1h"]);
    ground.admin(&["queue", "list"]);
    for command in ["retry", "drop"] {
        let url = Ground::url(ground.server.admin_addr());
        let ran = ground.run(&url, &["queue", command, "4d82d5831be5c7915a5dcfc614125d95"]);
        assert!(ran.err.contains("status 404"), "an answer of the server: {ran:?}");
        assert!(ran.err.contains("no request with this ticket"), "{ran:?}");
    }
    ground.data(&["health"]);
    ground.data(&["health", "--ready"]);
}

/// What the image's health check and the chart's probes run: no flags but those of the server's own
/// configuration.
#[test]
fn probes_need_nothing_but_the_configuration() {
    let ground = Ground::start();
    let config = ground.server.dir().join("tollgate.yaml");
    let listener = ground.server.addr().to_string();
    let probe = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = Ground::command();
        command.env_remove("TOLLGATE_TOKEN").env("TOLLGATE_HTTP", &listener);
        ran(command.args(args).envs(env.iter().copied()))
    };
    // The commands of the Dockerfile and of compose.yaml, where the variable names the file.
    let variable = [("TOLLGATE_CONFIG", config.to_str().expect("a path"))];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for file in ["Dockerfile", "deploy/compose/compose.yaml"] {
        let text = fs::read_to_string(root.join(file)).expect("a file of the repository");
        let checks = text.lines().filter(|line| line.contains("/usr/local/bin/tollgate"));
        let checks = checks.filter(|line| line.contains("CMD") && line.contains("health"));
        let mut count = 0;
        for check in checks {
            let (_, words) = check.split_once("/usr/local/bin/tollgate").expect("the binary");
            let words = words.replace(['"', ',', ']'], " ");
            let healthy = probe(&words.split_whitespace().collect::<Vec<_>>(), &variable);
            assert_eq!((healthy.code, healthy.out.as_str()), (Some(0), "ready\n"), "{healthy:?}");
            count += 1;
        }
        assert_eq!(count, 1, "the health check of {file}");
    }
    // As in the chart, whose probes are rendered for these values.
    let values = "tls.secretName=t,tls.clientCertificates=required,dataAuth=mtls";
    let helm = tollgate_testkit::of_the_tools("helm/helm");
    let chart = root.join("deploy/helm/tollgate");
    let rendered =
        ran(Command::new(helm).arg("template").arg("release").arg(chart).args(["--set", values]));
    let mut probes = 0;
    for line in rendered.out.lines() {
        let Some((_, words)) = line.split_once("exec: {command: [/usr/local/bin/tollgate, ") else {
            continue;
        };
        let words: Vec<&str> = words.trim_end_matches("]}").split(", ").collect();
        let (flags, file) = words.split_at(words.len() - 1);
        assert_eq!(file, ["/etc/tollgate/config/tollgate.yaml"]);
        let mut args = flags.to_vec();
        args.push(config.to_str().expect("a path"));
        let ended = probe(&args, &[]);
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
        probes += 1;
    }
    assert_eq!(probes, 3, "startup, liveness and readiness: {}", rendered.err);
    // A configuration that is not there is named, not passed over.
    let wrong = probe(&["health", "--config", "/nowhere.yaml"], &[]);
    assert!(wrong.code == Some(2) && wrong.err.contains("/nowhere.yaml"), "{wrong:?}");
}

/// A client without a certificate is refused, and every refusal says which one is missing and what to do.
#[test]
fn failed_handshakes_name_their_cause() {
    let ground = Ground::start();
    let url = Ground::url(ground.server.addr());
    let ca = ground.certificates.ca_file().display().to_string();
    let strangers = Certificates::new();
    let strange_cert = strangers.client_cert_file().display().to_string();
    let strange_key = strangers.client_key_file().display().to_string();
    let said = |args: &[&str]| {
        let ran = ran(Ground::command().args(args));
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        ran.err
    };
    let untrusted = said(&["health", "--url", &url]);
    assert!(untrusted.contains("invalid peer certificate: UnknownIssuer"), "{untrusted}");
    assert!(untrusted.contains("--ca FILE"), "{untrusted}");
    let unknown = said(&["check", "--url", &url, "--ca", &ca, "--user", "ann"]);
    assert!(unknown.contains("CertificateRequired") && unknown.contains("--cert"), "{unknown}");
    let strange =
        ["check", "--url", &url, "--ca", &ca, "--cert", &strange_cert, "--key", &strange_key];
    let refused = said(&strange);
    assert!(refused.contains("fatal alert"), "{refused}");
    assert!(refused.contains("does not trust the client certificate"), "{refused}");
    let plain = said(&["health", "--url", &url.replace("https", "http")]);
    assert!(plain.contains("ask it by https://"), "{plain}");
    let once = ["--requests", "1", "--connections", "1", "--threads", "1"];
    let bench = said(&[&["bench", &url], &once[..]].concat());
    assert!(bench.contains("invalid peer certificate: UnknownIssuer"), "{bench}");
    let bench = said(&[&["bench", &url, "--ca", &ca], &once[..]].concat());
    assert!(bench.contains("CertificateRequired"), "{bench}");
    // An unverified server is spoken to only if that is asked for, and then with a warning.
    let own_cert = ground.certificates.client_cert_file().display().to_string();
    let own_key = ground.certificates.client_key_file().display().to_string();
    let insecure = ["health", "--url", &url, "--insecure", "--cert", &own_cert, "--key", &own_key];
    let insecure = ran(Ground::command().args(insecure));
    assert_eq!(insecure.code, Some(0), "{insecure:?}");
    assert!(insecure.err.contains("warning: the server's certificate is not verified"));

    // The keys of an issuer whom the system does not trust.
    let config = format!("identity: {{jwt: {{algorithms: [ES256], jwks_url: '{url}/jwks.json'}}}}");
    let gateway = ServerBuilder::default().gateway().config(&config);
    let gateway = gateway.arg("--upstream").arg("http://127.0.0.1:9").start();
    eventually("the cause is logged", || gateway.log().contains("UnknownIssuer"));
}

/// A password that changes in Redis and in its file is used without a restart.
#[test]
fn a_changed_redis_password_needs_no_restart() {
    let redis = Redis::start();
    let call = |words: &[&str]| redis.call(words).expect("an answer").ok().expect("no error");
    call(&["ACL", "SETUSER", "counter", "on", ">first", "~*", "&*", "+@all"]);
    let builder = ServerBuilder::default();
    let file = builder.file("password", "first\n");
    let url = format!("redis://counter@127.0.0.1:{}", redis.port());
    let server = builder
        .rules("rules:\n  - {rule_id: r, identifier_type: user_id, limit: 100, window: 1h}\n")
        .arg("--redis")
        .arg(&url)
        .env("TOLLGATE_REDIS_PASSWORD_FILE", file.to_str().expect("a path"))
        .env("TOLLGATE_REDIS_TIMEOUT_MS", "1000")
        .start();
    let mut client = server.client();
    let mut is_degraded =
        move || client.allow(&serde_json::json!({"userId": "ann"}))["degraded"] == true;
    eventually("it counts in Redis", || !is_degraded());
    call(&["ACL", "SETUSER", "counter", "resetpass", ">second"]);
    call(&["CLIENT", "KILL", "USER", "counter"]);
    eventually("the old password is refused", &mut is_degraded);
    fs::write(&file, "second\n").expect("the new password");
    eventually("the new one is used", || !is_degraded());
    assert!(server.log().contains("the password of Redis was read again"), "{}", server.log());
}

/// A URL cannot switch off the verification of certificates.
#[test]
fn an_insecure_redis_url_is_refused() {
    let mut command = Command::new(binary());
    command.args(["config", "check", "--redis", "rediss://127.0.0.1:6380/#insecure"]);
    let refused = ran(&mut command);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.out.contains("ca_file"), "{refused:?}");
}
