//! What is recorded is what was decided; files stay within their bounds.

use std::path::Path;
use std::sync::Arc;

use tollgate_engine::{Amounts, Engine, ManualClock, Request};
use tollgate_policy::{Known, RuleSet};
use tollgate_recording::{EXTENSION, Reader, Sample, Verdict};
use tollgate_store::{MemoryStore, Mode};

use super::{Recorder, RecorderOptions};

const BEGIN: u64 = 1_790_000_000_000_000_000;
const SECRET: &[u8] = b"a secret of some length";
const RULES: &str = "\
default: false
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 2, window: 1m, algorithm: fixed_window}
";

fn options(dir: &Path) -> RecorderOptions {
    RecorderOptions {
        dir: dir.to_owned(),
        max_bytes: 1 << 20,
        max_age: 86_400 * tollgate_core::SECOND,
        sample: Sample::ALL,
    }
}

struct Node {
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Node {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(BEGIN));
        let rules = RuleSet::from_yaml(RULES, "rules.yaml").unwrap();
        let engine = Engine::new(MemoryStore::new(100_000), Arc::clone(&clock) as _, rules);
        Self { engine, clock }
    }

    fn decide(&self, recorder: &Recorder, user: &str, tenant: &str, key: &str) {
        let rules = self.engine.rules();
        let mut request = Request { amounts: Amounts::tokens(7), ..Request::default() };
        request.attributes.set(Known::UserId, user);
        request.attributes.set(Known::TenantId, tenant);
        request.attributes.set(Known::ApiKey, key);
        request.attributes.push_extra("region", "eu");
        let decision = self.engine.decide_now(&rules, &request, Mode::Charge).unwrap().unwrap();
        recorder.decided(&request, &decision);
    }
}

/// One entry: time, verdict, rule, attributes as `name=value`.
type Flat = (u64, Verdict, Option<String>, String);

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn recorded(dir: &Path) -> Vec<Flat> {
    let mut entries = Vec::new();
    for path in files(dir) {
        assert_eq!(path.extension().unwrap(), EXTENSION);
        let mut reader = Reader::open(std::fs::File::open(path).unwrap()).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            assert_eq!(entry.amounts.tokens, Some(7));
            let attributes: Vec<String> =
                entry.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let rule = entry.rule_id.map(str::to_owned);
            entries.push((entry.at, entry.verdict, rule, attributes.join(" ")));
        }
    }
    entries
}

#[test]
fn decisions_are_recorded_with_keys_as_ids_in_files_of_their_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("recording");
    let node = Node::new();
    let recorder = Recorder::start(options(&dir), "node/1", SECRET).unwrap();
    for _ in 0..3 {
        node.decide(&recorder, "ann", "acme", "sk-secret");
        node.clock.advance(1_000);
    }
    recorder.stop();
    let entries = recorded(&dir);
    let id = tollgate_store::api_key_id(SECRET, "sk-secret");
    let attributes = &entries.first().unwrap().3;
    for part in ["user_id=ann", "tenant_id=acme", "region=eu", &format!("api_key={id}")] {
        assert!(attributes.contains(part), "{part}: {attributes}");
    }
    let verdicts: Vec<_> =
        entries.iter().map(|(at, verdict, ..)| (*at - BEGIN, *verdict)).collect();
    let expected = [Verdict::Allowed, Verdict::Allowed, Verdict::Refused];
    assert_eq!(verdicts, [0, 1_000, 2_000].into_iter().zip(expected).collect::<Vec<_>>());
    assert_eq!(entries.first().unwrap().2.as_deref(), Some("per-user"));
    for path in files(&dir) {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains("sk-secret"));
    }
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_sample_has_all_requests_of_some_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new();
    let sample = Sample { per_million: 250_000, by: Some("tenant_id".to_owned()) };
    let options = RecorderOptions { sample: sample.clone(), ..options(dir.path()) };
    let recorder = Recorder::start(options, "n", SECRET).unwrap();
    for round in 0..3 {
        for tenant in 0..200 {
            node.decide(&recorder, &format!("u{round}"), &format!("t{tenant}"), "k");
        }
    }
    recorder.stop();
    let expected = (0..200).filter(|tenant| sample.has(&format!("t{tenant}"))).count();
    assert_eq!(recorded(dir.path()).len(), 3 * expected);
}

#[test]
fn files_stay_within_their_bytes_and_the_newest_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new();
    for round in 0..60 {
        let recorder = Recorder::start(options(dir.path()), "n", SECRET).unwrap();
        for number in 0..1_000 {
            // Names that do not compress.
            let user =
                format!("{:x}", foldhash::fast::FixedState::default().hash_of(round, number));
            node.decide(&recorder, &user, &user, &user);
            node.clock.advance(1_000);
        }
        recorder.stop();
        let bytes: u64 = files(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
        assert!(bytes <= 1 << 20, "{bytes}");
    }
    let entries = recorded(dir.path());
    assert!(entries.len() > 5_000 && entries.len() < 60_000, "{}", entries.len());
    assert_eq!(entries.last().unwrap().0, BEGIN + 59_999 * 1_000);
}

#[test]
fn a_folder_that_cannot_be_written_stops_the_recording_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("recording");
    let node = Node::new();
    let recorder = Recorder::start(options(&folder), "n", SECRET).unwrap();
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "a file in its place").unwrap();
    for _ in 0..5 {
        node.decide(&recorder, "ann", "acme", "k");
    }
    recorder.stop();
    let figures = recorder.figures();
    let counts = [&figures.written, &figures.dropped];
    assert_eq!(counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed)), [0, 5]);
    assert!(figures.is_failing.load(std::sync::atomic::Ordering::Relaxed));
}

trait HashOf {
    fn hash_of(&self, round: u64, number: u64) -> u128;
}

impl HashOf for foldhash::fast::FixedState {
    fn hash_of(&self, round: u64, number: u64) -> u128 {
        use std::hash::BuildHasher as _;
        u128::from(self.hash_one((round, number))) << 64
            | u128::from(self.hash_one((number, round)))
    }
}
