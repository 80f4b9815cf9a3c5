//! Sets to publish, and how a node reads them.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "these are tests: a panic is how they fail"
)]

use std::time::Duration;

use tollgate_store::Failure;
use tollgate_store::redis::{Board, BoardSet, Published};

/// Numbers that look random, the same for the same seed.
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next(256) as u8).collect()
    }
}

/// A set whose manifest is its revision and the names of its parts, line by line.
#[derive(Clone)]
pub struct Set {
    pub installation: &'static str,
    pub revision: i64,
    pub take_over: bool,
    pub parts: Vec<Vec<u8>>,
    /// How many parts, from the first, are taken to be there.
    pub kept: usize,
    pub remove: Vec<String>,
}

impl Set {
    pub fn new(installation: &'static str, revision: i64, parts: &[&str]) -> Self {
        let parts = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        Self { installation, revision, take_over: false, parts, kept: 0, remove: Vec::new() }
    }

    pub fn names(&self) -> Vec<String> {
        self.parts.iter().map(|part| Board::part_name(part)).collect()
    }

    pub fn manifest(&self) -> String {
        let revision = self.revision.to_string();
        [&[revision], self.names().as_slice()].concat().join("\n")
    }

    pub async fn publish(&self, board: &Board) -> Result<Published, Failure> {
        let names = self.names();
        let manifest = self.manifest();
        let (keep, sent) = names.split_at(self.kept);
        let bytes = self.parts[self.kept..].iter().map(Vec::as_slice);
        let put: Vec<(String, &[u8])> = sent.iter().cloned().zip(bytes).collect();
        let set = BoardSet {
            installation: self.installation,
            revision: self.revision,
            take_over: self.take_over,
            manifest: manifest.as_bytes(),
            put: &put,
            keep,
            remove: &self.remove,
        };
        board.publish(&set).await
    }
}

/// The revision and the parts that a manifest names.
pub fn read_manifest(manifest: &[u8]) -> (i64, Vec<String>) {
    let text = String::from_utf8(manifest.to_vec()).unwrap();
    let mut lines = text.lines();
    let revision = lines.next().unwrap().parse().unwrap();
    (revision, lines.map(str::to_owned).collect())
}

/// The whole set, as a node reads it, and how often it had to begin again.
pub async fn read(board: &Board) -> (i64, Vec<Vec<u8>>, u32) {
    for again in 0..1_000 {
        let manifest = board.manifest().await.unwrap().unwrap();
        let (revision, names) = read_manifest(&manifest);
        let parts: Option<Vec<_>> = board.parts(&names).await.unwrap().into_iter().collect();
        if let Some(parts) = parts {
            for (name, part) in names.iter().zip(&parts) {
                assert_eq!(*name, Board::part_name(part), "revision {revision} is torn");
            }
            return (revision, parts, again);
        }
    }
    panic!("no set stays long enough to be read");
}

/// Tries until it succeeds.
pub async fn until_published(board: &Board, set: &Set) -> Published {
    let mut last = None;
    for _ in 0..600 {
        match set.publish(board).await {
            Ok(published) => return published,
            Err(failure) => last = Some(failure),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the board does not recover: {last:?}");
}

/// All that is to be said of one writer, on any kind of server.
pub async fn publishes_only_what_is_newer(board: &Board) {
    assert_eq!(board.revision().await, Ok(None));
    assert_eq!(board.manifest().await, Ok(None));
    let first = Set::new("here", 9, &["a", "b", ""]);
    assert_eq!(first.publish(board).await, Ok(Published::Written));
    assert_eq!(first.publish(board).await, Ok(Published::AlreadyThere));
    assert_eq!(board.revision().await, Ok(Some(("here".to_owned(), 9))));
    assert_eq!(read(board).await, (9, first.parts.clone(), 0));

    let older = Published::Older { revision: 9 };
    assert_eq!(Set::new("here", 8, &["x"]).publish(board).await, Ok(older.clone()));
    let same_number = Set::new("here", 9, &["x"]).publish(board).await;
    assert_eq!(same_number, Ok(older), "another set of the same revision");
    assert_eq!(board.part_names().await.unwrap().len(), 3, "what is refused is not even sent");

    // A number with more digits; one part is new, one relied upon, one goes.
    let remove = vec![Board::part_name(b""), Board::part_name(b"b")];
    let second = Set { kept: 1, remove, ..Set::new("here", 10, &["b", "c"]) };
    assert_eq!(second.publish(board).await, Ok(Published::Written));
    assert_eq!(read(board).await, (10, second.parts.clone(), 0));
    let gone = board.parts(&[Board::part_name(b""), Board::part_name(b"c")]).await.unwrap();
    assert_eq!(gone, [None, Some(b"c".to_vec())], "what is named does not go, the rest does");

    let mut third = Set { kept: 2, ..Set::new("here", 11, &["c", "gone", "d"]) };
    assert_eq!(third.publish(board).await, Ok(Published::NeedsAll));
    assert_eq!(read(board).await.0, 10, "nothing was written");
    third.kept = 0;
    assert_eq!(third.publish(board).await, Ok(Published::Written));

    let mut other = Set::new("there", 1, &["e"]);
    let refused = Published::OtherInstallation { installation: "here".to_owned(), revision: 11 };
    assert_eq!(other.publish(board).await, Ok(refused));
    other.take_over = true;
    assert_eq!(other.publish(board).await, Ok(Published::Written));
    assert_eq!(board.revision().await, Ok(Some(("there".to_owned(), 1))));

    // Two revisions that are one as floating point numbers.
    for revision in [i64::MAX - 1, i64::MAX] {
        let next = Set::new("there", revision, &["f"]).publish(board).await;
        assert_eq!(next, Ok(Published::Written), "exact to the last digit");
    }
    let before = Set::new("there", i64::MAX - 1, &["g"]).publish(board).await;
    assert_eq!(before, Ok(Published::Older { revision: i64::MAX }));
    assert_eq!(Set::new("there", -1, &[]).publish(board).await, Err(Failure::Protocol));
}
