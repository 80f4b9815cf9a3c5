//! A node starts whatever state its database is in.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tollgate_e2e::server::binary;
use tollgate_e2e::{ADMIN_TOKEN, Admin, Client, Server, ServerBuilder, Upstream, eventually};
use tollgate_testkit::{Postgres, Redis};

/// The rule that the database holds; its id marks the pages that hold it.
const MARKED_RULE: &str = "rule-that-marks-its-pages";

/// The size of a page of SQLite.
const PAGE_BYTES: usize = 4096;

fn rule(limit: u64) -> Value {
    json!({"rule_id": MARKED_RULE, "identifier_type": "user_id", "limit": limit, "window": "365d",
           "algorithm": "fixed_window"})
}

fn limit_at(node: &Server) -> Value {
    let body = json!({"userId": "nobody"});
    node.client().post("/rate-limit/peek", &body).json()["effectiveLimit"].clone()
}

fn stop(node: &mut Server) {
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0), "{}", node.log());
}

/// Flips a bit in every page of a database that holds the marked rule: it can still be opened. The same again repairs it.
fn damage(file: &Path) {
    let bytes = fs::read(file).expect("the database");
    // In place: a process that has it open must not see it shorter.
    let file = OpenOptions::new().write(true).open(file).expect("the database");
    let mut count = 0;
    for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
        let holds = page.windows(MARKED_RULE.len()).any(|window| window == MARKED_RULE.as_bytes());
        if holds {
            let flipped = [page[0] ^ 0b0100_0000];
            file.write_all_at(&flipped, (number * PAGE_BYTES) as u64).expect("a damaged page");
            count += 1;
        }
    }
    assert!(count > 0, "no page holds the rule");
}

/// Readiness and the metric report a database that cannot be read, and the next step.
fn reports_its_database(node: &Server, next_step: &str) {
    let ready = node.client().get("/readyz");
    assert_eq!(ready.status, 200, "it decides");
    let text = ready.text();
    assert!(text.contains("warning: the database") && text.contains(next_step), "{text}");
    let metrics = node.client().get("/metrics").text();
    assert!(metrics.contains("rate_limiter_incident{kind=\"database\"} 1"), "{metrics}");
}

#[test]
fn a_damaged_database_does_not_stop_a_start() {
    let mut node = ServerBuilder::default().start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    damage(&node.dir().join("data/control.db"));

    // From the rules that it had.
    node.start_again();
    assert_eq!(limit_at(&node), 7);
    let log = node.log();
    assert!(log.contains("the rules of the database could not be read yet"), "{log}");
    assert!(log.contains("the database cannot be used"), "{log}");
    reports_its_database(&node, "restore it from a backup");
    stop(&mut node);

    // Without them, from the built-in ones: the database may never be readable again.
    fs::remove_file(node.dir().join("data/rules.kept")).expect("the kept rules");
    node.start_again();
    assert_eq!(node.client().get("/healthz").status, 200);
    stop(&mut node);
}

/// A question that succeeds does not prove that the one that failed would.
#[test]
fn a_database_that_is_damaged_meanwhile_is_reported_until_it_is_verified() {
    let mut node = ServerBuilder::default().start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    let file = node.dir().join("data/control.db");
    node.start_again();
    damage(&file);
    let path = format!("/admin/api/v1/rate-limits/rules/{MARKED_RULE}/versions");
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    let asked = node.client().try_request("GET", &path, &headers, b"").expect("an answer");
    assert_eq!(asked.status, 503, "{}", asked.text());

    let last_success = || {
        let metrics = node.client().get("/metrics").text();
        let name = "rate_limiter_config_last_success_timestamp_seconds ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).expect("a metric");
        line.parse::<f64>().expect("a time")
    };
    let before = last_success();
    eventually("its revision is read again and again", || {
        reports_its_database(&node, "restore it from a backup");
        last_success() > before + 2.0
    });
    stop(&mut node);
    damage(&file);
    node.start_again();
    let ready = node.client().get("/readyz").text();
    assert_eq!(ready, "ready\n", "it was repaired");
    stop(&mut node);
}

#[test]
fn a_rule_file_is_enough_to_start_beside_a_damaged_database() {
    let rules =
        "rules:\n  - {rule_id: from-file, identifier_type: user_id, limit: 3, window: 1h}\n";
    let mut node = ServerBuilder::default().start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    let file = node.dir().join("data/control.db");
    damage(&file);

    let other = ServerBuilder::default().rules(rules);
    let data = other.file("unused", "").with_file_name("data");
    fs::create_dir(&data).expect("a data directory");
    fs::copy(&file, data.join("control.db")).expect("a copy of the database");
    let mut other = other.start();
    assert_eq!(limit_at(&other), 3);
    stop(&mut other);
}

#[test]
fn an_unusable_data_directory_does_not_stop_a_node_with_rules() {
    let rules =
        "rules:\n  - {rule_id: from-file, identifier_type: user_id, limit: 3, window: 1h}\n";
    let node = ServerBuilder::default().rules(rules);
    let _file = node.file("data", "a file where the directory should be");
    let mut node = node.start();
    assert_eq!(limit_at(&node), 3);
    reports_its_database(&node, "make the directory writable");
    stop(&mut node);
}

#[test]
fn a_table_without_rights_or_name_does_not_stop_a_start() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let name = database.rsplit('/').next().expect("a name").to_owned();
    let mut node =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);

    postgres.query(&name, "ALTER TABLE rate_limit_rules RENAME TO renamed");
    node.start_again();
    assert_eq!(limit_at(&node), 7);
    let log = node.log();
    assert!(log.contains("the rules of the database could not be read yet"), "{log}");

    let ready = node.client().get("/readyz").text();
    assert!(ready.contains("warning: the database"), "{ready}");
    let metrics = node.client().get("/metrics").text();
    assert!(metrics.contains("rate_limiter_incident{kind=\"database\"} 1"), "{metrics}");
    let refused = node.admin().call("GET", "rules", &[], None);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());

    // It follows the database again as soon as that can be read.
    postgres.query(&name, "ALTER TABLE renamed RENAME TO rate_limit_rules");
    eventually("a change is accepted", || {
        node.admin().call("POST", "rules", &[], Some(&rule(11))).status == 200
    });
    assert_eq!(limit_at(&node), 11);
    eventually("readiness is clean", || node.client().get("/readyz").text() == "ready\n");
    stop(&mut node);
}

/// Locks a table until [`Locked`] is dropped.
const LOCK: &str = "DO $$ BEGIN LOCK TABLE rate_limit_rules IN ACCESS EXCLUSIVE MODE; \
    WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 42) LOOP \
    PERFORM pg_sleep(0.02); END LOOP; END $$";

/// A locked table. Also a test that fails must release it: the thread that holds it is waited for.
struct Locked<'a> {
    postgres: &'a Postgres,
    database: &'a str,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.postgres.query(self.database, "SELECT pg_advisory_lock(42), pg_sleep(0.5)");
    }
}

/// Every connection succeeds, and a read would wait for half a minute.
#[test]
fn a_locked_table_is_reported_as_soon_as_the_node_serves() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let name = database.rsplit('/').next().expect("a name").to_owned();
    let mut node =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    std::thread::scope(|threads| {
        threads.spawn(|| postgres.query(&name, LOCK));
        let _locked = Locked { postgres: &postgres, database: &name };
        eventually("the table is locked", || {
            let held = "SELECT COUNT(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                        AND relation = 'rate_limit_rules'::regclass";
            postgres.query(&name, held) == "1"
        });
        node.start_again();
        assert_eq!(limit_at(&node), 7);
        reports_its_database(&node, "no other client locks its tables");
    });
    eventually("readiness is clean", || node.client().get("/readyz").text() == "ready\n");
    stop(&mut node);
}

/// One table can be read and not written: what succeeds on others does not end the report.
#[test]
fn rights_that_are_missing_on_one_table_are_reported_until_they_are_granted() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let name = database.rsplit('/').next().expect("a name").to_owned();
    postgres.query(&name, "CREATE ROLE node LOGIN; GRANT ALL ON SCHEMA public TO node");
    let url = database.replace("postgres@", "node@");
    let mut node = ServerBuilder::default().args(&["--postgres", &url].map(str::to_owned)).start();
    node.admin().put("rules", &rule(7));
    postgres.query(&name, "REVOKE INSERT ON rate_limit_rules FROM node");
    let refused = node.admin().call("POST", "rules", &[], Some(&rule(8)));
    assert_eq!(refused.status, 503, "{}", refused.text());
    reports_its_database(&node, "correct this node's rights");
    let mistaken = "the database can be read and written again";
    eventually("it was verified", || {
        let log = node.log();
        assert!(!log.contains(mistaken), "{log}");
        log.contains("has no right to INSERT on rate_limit_rules")
    });
    reports_its_database(&node, "correct this node's rights");
    postgres.query(&name, "GRANT INSERT ON rate_limit_rules TO node");
    stop(&mut node);
    node.start_again();
    assert_eq!(node.client().get("/readyz").text(), "ready\n");
    stop(&mut node);
}

/// A rule whose requests are queued from the second on.
const QUEUE_RULES: &str = "
default: false
rules:
  - {rule_id: jobs, identifier_type: global, applies_to: {endpoints: [/jobs]}, limit: 1, window: 365d,
     algorithm: fixed_window, action: queue}
";

/// Ways in which the file of a queue cannot be used.
const UNUSABLE: [fn(&Path); 2] = [
    |file| fs::write(file, b"no database at all".repeat(500)).expect("a damaged file"),
    |file| fs::create_dir(file).expect("a folder in its place"),
];

#[test]
fn a_queue_that_cannot_be_opened_does_not_stop_a_gateway() {
    let upstream = Upstream::start();
    for spoil in UNUSABLE {
        let gateway = ServerBuilder::default().gateway().rules(QUEUE_RULES);
        let data = gateway.file("unused", "").with_file_name("data");
        fs::create_dir(&data).expect("a data directory");
        let file = data.join("queue.db");
        spoil(&file);
        let mut gateway = gateway.arg("--upstream").arg(&upstream.url()).start();
        let post = || {
            let mut client = Client::connect(gateway.gateway_addr()).expect("a connection");
            client.request("POST", "/jobs", &[], b"x")
        };
        assert_eq!(post().status, 200, "it forwards");
        assert_eq!(post().status, 429, "it cannot queue");
        eventually("readiness says so", || {
            gateway.client().get("/readyz").text().contains("requests that should be queued")
        });
        let ready = gateway.client().get("/readyz");
        assert_eq!(ready.status, 200);
        assert!(ready.text().contains("queue.db"), "{}", ready.text());
        assert_eq!(gateway.admin().get("node")["incidents"][0]["kind"], "queue");
        assert_eq!(gateway.log().matches("requests that should be queued").count(), 1);

        // The operator moves the file, and the queue works without a restart.
        fs::rename(&file, data.join("aside")).expect("the file is moved");
        eventually("it queues", || post().status == 202);
        eventually("readiness is clean", || gateway.client().get("/readyz").text() == "ready\n");
        assert!(gateway.log().contains("the queue is available again"), "{}", gateway.log());
        stop(&mut gateway);
    }
}

/// An empty database in the place of the one that was lost does not drop the rules.
#[test]
fn a_lost_database_does_not_drop_the_last_known_rules() {
    let mut node = ServerBuilder::default().start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    let data = node.dir().join("data");
    fs::write(data.join("control.db"), b"").expect("an empty database");
    let kept = fs::read(data.join("rules.kept")).expect("the kept rules");

    // Also after a second start.
    for _ in 0..2 {
        node.start_again();
        assert_eq!(limit_at(&node), 7);
        let ready = node.client().get("/readyz").text();
        assert!(ready.contains("holds no rules") && ready.contains("backup"), "{ready}");
        assert!(node.log().contains("holds no rules"), "{}", node.log());
        assert_eq!(node.admin().get("node")["incidents"][0]["kind"], "rules_lost");
        stop(&mut node);
        assert_eq!(fs::read(data.join("rules.kept")).expect("the kept rules"), kept);
    }

    // The operator decides to begin with the new one.
    node.start_again();
    node.admin().put("rules", &rule(9));
    eventually("the new rule is in force", || limit_at(&node) == 9);
    eventually("readiness is clean", || node.client().get("/readyz").text() == "ready\n");
    stop(&mut node);
    let aside: Vec<_> = fs::read_dir(&data)
        .expect("the data directory")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.display().to_string().contains("rules.kept."))
        .collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(fs::read(&aside[0]).expect("the old rules"), kept);
}

/// The same with an address of a PostgreSQL that leads to another, empty database.
#[test]
fn a_wrong_postgres_database_does_not_drop_the_last_known_rules() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let name = database.rsplit('/').next().expect("a name").to_owned();
    let mut node =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    postgres.query(&name, "DROP SCHEMA public CASCADE; CREATE SCHEMA public");
    node.start_again();
    assert_eq!(limit_at(&node), 7);
    let ready = node.client().get("/readyz").text();
    assert!(ready.contains("holds no rules"), "{ready}");
    stop(&mut node);
}

/// A signal that comes while the node waits for its database ends it as later ones do.
#[test]
fn a_signal_during_the_start_ends_it_with_0() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let mut node =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    node.admin().put("rules", &rule(7));
    stop(&mut node);
    postgres.pause();
    node.begin_again();
    eventually("it waits for its database", || node.log().contains("starting from the last known"));
    stop(&mut node);
    postgres.resume();
}

/// A node of the README; killed when dropped.
struct Example {
    child: Child,
    http: SocketAddr,
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command of the README in a folder, with addresses that are free.
fn run_example(folder: &Path, words: &[String], log: &Path) -> Example {
    let mut command = Command::new(binary());
    command.args(words).current_dir(folder).env("TOLLGATE_ADMIN_TOKEN", ADMIN_TOKEN);
    command.env_remove("TOLLGATE_TEST_TOOLS");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(File::create(log).expect("a log")).spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("the first line");
    let http = line.split_whitespace().find_map(|word| word.strip_prefix("http="));
    let http = http.and_then(|http| http.parse().ok());
    Example { child, http: http.unwrap_or_else(|| panic!("{line:?}")) }
}

/// The first two nodes that the README starts share no directory, and a change reaches both.
#[test]
fn the_two_nodes_of_the_readme_agree() {
    const REDIS: &str = "redis://127.0.0.1:6379";
    let redis = Redis::builder().args(&["--maxmemory-policy", "noeviction"]).start();
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let (_, section) = readme.split_once("### Run several nodes").expect("the section");
    let commands: Vec<Vec<String>> = section
        .lines()
        .take_while(|line| !line.starts_with("### "))
        .filter_map(|line| line.strip_prefix("tollgate "))
        .map(|line| line.split_whitespace().map(|word| word.replace(REDIS, &redis.url())).collect())
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let nodes: Vec<Example> = commands
        .iter()
        .enumerate()
        .map(|(number, words)| {
            // Ports of the README may be taken here.
            let mut words = words.clone();
            for flag in ["--http", "--grpc"] {
                match words.iter().position(|word| word == flag) {
                    Some(place) => "127.0.0.1:0".clone_into(&mut words[place + 1]),
                    None => words.extend([flag, "127.0.0.1:0"].map(str::to_owned)),
                }
            }
            run_example(folder.path(), &words, &folder.path().join(format!("log-{number}")))
        })
        .collect();
    Admin::connect(nodes[0].http).put("rules", &rule(7));
    for node in &nodes {
        eventually("the rule is in force", || {
            let mut client = Client::connect(node.http).expect("a connection");
            client.post("/rate-limit/peek", &json!({"userId": "nobody"})).json()["effectiveLimit"]
                == 7
        });
        eventually("the node is ready", || {
            let mut client = Client::connect(node.http).expect("a connection");
            client.get("/readyz").text() == "ready\n"
        });
    }
    // A busy machine may let a call to Redis time out. That is no fault of the commands.
    let is_complaint = |line: &&str| {
        (line.contains("\"WARN\"") || line.contains("\"ERROR\""))
            && !line.contains("\"failure\":\"timeout\"")
    };
    for number in 0..nodes.len() {
        let log = fs::read_to_string(folder.path().join(format!("log-{number}"))).expect("a log");
        assert_eq!(log.lines().find(is_complaint), None, "{log}");
    }
}
