//! What nodes share in Redis besides counters: the rule set, and records of decisions on their way to the
//! control plane; and the roll of nodes (`nodes.rs`) and their figures (`figures.rs`), which do expire.
//!
//! All of it is under one hash tag: `<prefix>:{config}:set`, a hash, the channel
//! `<prefix>:{config}:changed`, and the streams `<prefix>:{config}:decisions` and `<prefix>:{config}:usage`. None of
//! these expires, as counters do: a node that starts after a quiet month must find its rules, and records wait for a
//! node that writes them to its database. Both are bounded by other means: a set replaces the one
//! before, and the stream drops its oldest records.
//!
//! A set is a manifest and parts. A part is named by its content, so it never changes; it is put first,
//! then one script makes the manifest that names it the valid one (`scripts/board.lua`). A reader that
//! finds a part missing reads the manifest again.

mod figures;
mod listener;
mod nodes;
mod records;
mod usage;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::RedisStore;
use super::slot_connection::{Repeat, SlotConnection};
use crate::Failure;

pub use figures::{MAX_FIGURE_NODES, MAX_FIGURES};
pub use listener::BoardListener;
pub use nodes::MAX_NODE_STATE;

/// How long a call may take that moves little.
const SMALL: Duration = Duration::from_secs(2);

/// How long one may take that moves parts or records.
const LARGE: Duration = Duration::from_secs(10);

/// How many bytes of parts go in one command, unless one part alone has more. The server does nothing
/// else meanwhile.
const BATCH_BYTES: usize = 1 << 20;

/// How many parts are read by one command.
const BATCH_PARTS: usize = 32;

/// What the names of parts begin with, so that no part can pass for another field.
const PART: &str = "part:";

/// How many bytes of the hash of a part's content are its name: no two contents of one name can be found.
const PART_HASH_BYTES: usize = 16;

const SCRIPT: &str = include_str!("../scripts/board.lua");

/// The rule set and the records of decisions in Redis, over a connection of their own: large values never
/// delay decisions.
///
/// Clones share the connection. It is made when it is needed, and made anew after an error. It lives on the
/// runtime that it was made on; called from another runtime, the board makes a new one, so calls
/// from two runtimes in turn reconnect each time.
///
/// Every call ends within its deadline: 2 s, or 10 s where parts or records travel.
#[derive(Clone)]
pub struct Board {
    link: Arc<SlotConnection>,
    set: Arc<[u8]>,
    channel: Arc<[u8]>,
    records: Arc<[u8]>,
    usage: Arc<[u8]>,
    nodes: Arc<[u8]>,
    figures: Arc<[u8]>,
}

/// A rule set to be published.
#[derive(Debug, Clone, Copy)]
pub struct BoardSet<'a> {
    /// Whose set it is: revisions of different installations cannot be compared.
    pub installation: &'a str,
    /// Grows with every change; not negative.
    pub revision: i64,
    /// Whether the set of another installation may be replaced.
    pub take_over: bool,
    /// What the set consists of, in a format that writers and readers of the set agree on.
    pub manifest: &'a [u8],
    /// Parts that the manifest names, by [`Board::part_name`]. Those that are there already are not sent.
    pub put: &'a [(String, &'a [u8])],
    /// The other parts that the manifest names: they must be there.
    pub keep: &'a [String],
    /// Parts that may go, except those that the manifest names. A reader of the set before would have to
    /// begin again, so they had better be those of the set before that.
    pub remove: &'a [String],
}

/// What became of a set that was to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// It is the one that nodes read.
    Written,
    /// It was there already: perhaps since an earlier attempt whose answer was lost.
    AlreadyThere,
    /// Not written: the same installation's set that is there is not older.
    Older {
        /// Its revision.
        revision: i64,
    },
    /// Not written: what is there is another installation's.
    OtherInstallation {
        /// Whose.
        installation: String,
        /// Its revision.
        revision: i64,
    },
    /// Not written: a part in [`BoardSet::keep`] is missing. All parts have to be put.
    NeedsAll,
}

/// What the script said.
enum Answer {
    Done(Published),
    /// The parts with these indices are missing.
    Send(Vec<usize>),
}

impl RedisStore {
    /// The rule set and the records of decisions on the same servers. Every board has a connection of its
    /// own: make one, and clone it.
    pub fn board(&self) -> Board {
        let own = |name| self.hub.speller.own("config", name);
        let set = own("set");
        let link = self.slot_connection("config", &set);
        Board {
            link: Arc::new(link),
            set: set.into(),
            channel: own("changed").into(),
            records: own("decisions").into(),
            usage: own("usage").into(),
            nodes: own("nodes").into(),
            figures: own("figures").into(),
        }
    }
}

impl Board {
    /// What a part of this content is called.
    pub fn part_name(content: &[u8]) -> String {
        let mut name = PART.to_owned();
        for byte in Sha256::digest(content).iter().take(PART_HASH_BYTES) {
            // Writing into a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    /// Makes a set the one that nodes read, if it is newer than what is there, and notifies
    /// listeners. All of it or nothing: until then, and if this fails, readers see the set before.
    /// If it fails for lack of time, what was put is there when it is called again.
    ///
    /// Redis may lose what it has not replicated when a master dies: a publisher must check the
    /// [revision](Self::revision) from time to time, and publish again.
    ///
    /// Names of parts that [`Board::part_name`] would not give, and negative revisions, are
    /// [`Failure::Protocol`].
    pub async fn publish(&self, set: &BoardSet<'_>) -> Result<Published, Failure> {
        let mut names = set.put.iter().map(|(name, _)| name).chain(set.keep).chain(set.remove);
        if set.revision < 0 || !names.all(|name| name.starts_with(PART)) {
            return Err(Failure::Protocol);
        }
        let by = Instant::now() + LARGE;
        let command = self.switch(set);
        // Another writer may remove what was just put; then it is put again.
        loop {
            let value = self.link.call(&command, by, Repeat::Safe).await?;
            match answer(&value).ok_or(Failure::Protocol)? {
                Answer::Done(published) => return Ok(published),
                Answer::Send(missing) => {
                    let parts = missing.into_iter().filter_map(|index| set.put.get(index));
                    self.send(parts, by).await?;
                }
            }
        }
    }

    /// The script, always with its text: sets are published too seldom for its hash to be worth a try.
    fn switch(&self, set: &BoardSet<'_>) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT).arg(1).arg(&*self.set);
        command.arg(set.installation).arg(set.revision).arg(u8::from(set.take_over));
        command.arg(set.manifest).arg(&*self.channel).arg(set.put.len()).arg(set.keep.len());
        for (name, _) in set.put {
            command.arg(name);
        }
        for name in set.keep.iter().chain(set.remove) {
            command.arg(name);
        }
        command
    }

    async fn send<'a, 'b: 'a>(
        &self,
        parts: impl Iterator<Item = &'a (String, &'b [u8])>,
        by: Instant,
    ) -> Result<(), Failure> {
        let mut parts = parts.peekable();
        while parts.peek().is_some() {
            let mut command = redis::cmd("HSET");
            command.arg(&*self.set);
            let mut bytes = 0;
            let fits = |bytes: usize, part: &[u8]| bytes == 0 || bytes + part.len() <= BATCH_BYTES;
            while let Some((name, part)) = parts.next_if(|(_, part)| fits(bytes, part)) {
                command.arg(name).arg(part);
                // Its name counts too, so that no number of empty parts fits.
                bytes += name.len() + part.len();
            }
            self.link.call(&command, by, Repeat::Safe).await?;
        }
        Ok(())
    }

    /// Whose set is there, and its revision: little enough to be asked for twice a second.
    pub async fn revision(&self) -> Result<Option<(String, i64)>, Failure> {
        let mut command = redis::cmd("HMGET");
        command.arg(&*self.set).arg("installation").arg("revision");
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        let Value::Array(fields) = value else { return Err(Failure::Protocol) };
        let [installation, revision] = fields.as_slice() else { return Err(Failure::Protocol) };
        if matches!(installation, Value::Nil) || matches!(revision, Value::Nil) {
            return Ok(None);
        }
        let known = text(installation).zip(number(revision));
        Ok(Some(known.ok_or(Failure::Protocol)?))
    }

    /// The highest revision that nodes have reported: a database that was restored from a backup
    /// must continue above it.
    pub async fn seen(&self) -> Result<Option<(String, i64)>, Failure> {
        let mut command = redis::cmd("HGET");
        command.arg(&*self.set).arg("seen");
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        let stored = text(&value);
        let parts = stored.as_deref().and_then(|stored| stored.rsplit_once(' '));
        Ok(parts.and_then(|(installation, revision)| {
            Some((installation.to_owned(), revision.parse().ok()?))
        }))
    }

    /// Reports that a node has had this revision.
    pub async fn tell_seen(&self, installation: &str, revision: i64) -> Result<(), Failure> {
        let known = self.seen().await?;
        if known.is_some_and(|(of, seen)| of == installation && seen >= revision) {
            return Ok(());
        }
        let mut command = redis::cmd("HSET");
        command.arg(&*self.set).arg("seen").arg(format!("{installation} {revision}"));
        self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await.map(drop)
    }

    /// The manifest of the set that is there.
    pub async fn manifest(&self) -> Result<Option<Vec<u8>>, Failure> {
        let mut command = redis::cmd("HGET");
        command.arg(&*self.set).arg("manifest");
        let value = self.link.call(&command, Instant::now() + LARGE, Repeat::Safe).await?;
        bytes_or_nil(value).ok_or(Failure::Protocol)
    }

    /// Parts by their names, in this order. Where one is missing, the set has been replaced meanwhile: read
    /// its manifest again.
    pub async fn parts(&self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let by = Instant::now() + LARGE;
        let mut parts = Vec::with_capacity(names.len());
        for some in names.chunks(BATCH_PARTS) {
            let mut command = redis::cmd("HMGET");
            command.arg(&*self.set).arg(some);
            let Value::Array(values) = self.link.call(&command, by, Repeat::Safe).await? else {
                return Err(Failure::Protocol);
            };
            if values.len() != some.len() {
                return Err(Failure::Protocol);
            }
            for value in values {
                parts.push(bytes_or_nil(value).ok_or(Failure::Protocol)?);
            }
        }
        Ok(parts)
    }

    /// The names of all parts that are there. Those that no manifest names were left by a writer that
    /// failed half way, or belong to a set that is being published: a publisher may remove them.
    pub async fn part_names(&self) -> Result<Vec<String>, Failure> {
        let mut command = redis::cmd("HKEYS");
        command.arg(&*self.set);
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        let Value::Array(fields) = value else { return Err(Failure::Protocol) };
        Ok(fields.iter().filter_map(text).filter(|name| name.starts_with(PART)).collect())
    }

    /// Waits for word that the set has changed. Words get lost, so nodes ask for the
    /// [revision](Self::revision) from time to time as well.
    pub async fn listen(&self) -> Result<BoardListener, Failure> {
        BoardListener::new(&self.link, &self.channel, Instant::now() + SMALL).await
    }
}

fn answer(value: &Value) -> Option<Answer> {
    let Value::Array(words) = value else { return None };
    let (verdict, rest) = words.split_first()?;
    Some(match text(verdict)?.as_str() {
        "written" => Answer::Done(Published::Written),
        "there" => Answer::Done(Published::AlreadyThere),
        "all" => Answer::Done(Published::NeedsAll),
        "older" => Answer::Done(Published::Older { revision: number(rest.first()?)? }),
        "other" => Answer::Done(Published::OtherInstallation {
            installation: text(rest.first()?)?,
            revision: number(rest.get(1)?)?,
        }),
        "send" => {
            let index = |value: &Value| usize::try_from(number(value)?).ok();
            Answer::Send(rest.iter().map(index).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        other => text(other)?.parse().ok(),
    }
}

/// `None` for what is neither.
#[expect(clippy::option_option, reason = "an absent value is not a wrong one")]
fn bytes_or_nil(value: Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::BulkString(bytes) => Some(Some(bytes)),
        Value::Nil => Some(None),
        _ => None,
    }
}
