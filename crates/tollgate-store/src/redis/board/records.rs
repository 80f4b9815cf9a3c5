//! Records of decisions, from nodes without a database to nodes with one.

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{Board, LARGE, SMALL, number, text};
use crate::Failure;
use crate::redis::slot_connection::Repeat;

/// The group of those who write records down: each record goes to one of them.
const GROUP: &str = "control";

/// What a batch of records is called in its entry.
pub(super) const FIELD: &str = "b";

/// Adds a batch to the stream, if there is room. All nodes of the stream are looked at: a sample of the oldest would
/// miss that later batches are larger. A user without the right to do so may add 64 batches.
const PUSH: &str = "local used = redis.pcall('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) or 0
if type(used) == 'table' then used = redis.call('XLEN', KEYS[1]) * tonumber(ARGV[1]) / 64 end
if used + #ARGV[3] > tonumber(ARGV[1]) then return 0 end
return redis.pcall('XADD', KEYS[1], '*', ARGV[2], ARGV[3])";

/// A reader that has held an entry for so long without acknowledging it is considered dead.
const DEAD_AFTER_MILLIS: u64 = 30_000;

/// How often the entries of dead readers are looked for in one pull, if there are very many of living ones.
const MAX_LOOKS: usize = 8;

/// How many entries one command is done with.
const BATCH_IDS: usize = 1_000;

/// An entry, or its id alone if it has been dropped.
type Entry = (String, Option<Vec<u8>>);

/// What one pull has come upon.
#[derive(Default)]
struct Found {
    batches: Vec<(String, Vec<u8>)>,
    /// The ids of entries that the reader has, and the stream no longer.
    dropped: Vec<String>,
}

impl Found {
    fn add(&mut self, entries: Vec<Entry>) {
        for (id, batch) in entries {
            match batch {
                // A reader's own entries may come once more among those of the dead, if they are old.
                Some(batch) if self.batches.iter().all(|(other, _)| *other != id) => {
                    self.batches.push((id, batch));
                }
                Some(_) => {}
                None => self.dropped.push(id),
            }
        }
    }

    /// How many are wanted still, if any.
    fn wants(&self, count: usize) -> Option<usize> {
        count.checked_sub(self.batches.len()).filter(|more| *more > 0)
    }
}

impl Board {
    /// Adds a batch of records, unless all batches would take more than so many bytes. Returns whether it was added.
    ///
    /// After an error it may have been added or not.
    pub async fn push_records(&self, batch: &[u8], max_bytes: u64) -> Result<bool, Failure> {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(PUSH).arg(1).arg(&*self.records);
        command.arg(max_bytes).arg(FIELD).arg(batch);
        let value = self.link.call(&command, Instant::now() + LARGE, Repeat::Never).await?;
        Ok(!matches!(value, Value::Int(0)))
    }

    /// Up to `count` batches, with their ids, without waiting for any: first those that this reader has got
    /// before and not [done](Self::done_records), then those of readers that have been silent for 30 s,
    /// then new ones. Each batch comes at least once to one of the readers, who had better keep their names
    /// when they start anew.
    pub async fn pull_records(
        &self,
        reader: &str,
        count: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        self.pull(&self.records, reader, count).await
    }

    /// The same of any stream.
    pub(super) async fn pull(
        &self,
        stream: &[u8],
        reader: &str,
        count: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let by = Instant::now() + LARGE;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut found = Found::default();
        found.add(self.read(stream, reader, "0", count, by).await?);
        self.claim(stream, reader, count, &mut found, by).await?;
        if let Some(more) = found.wants(count) {
            found.add(self.read(stream, reader, ">", more, by).await?);
        }
        self.finish(stream, &found.dropped, by).await?;
        Ok(found.batches)
    }

    /// These batches are written down, and go.
    pub async fn done_records(&self, ids: &[String]) -> Result<(), Failure> {
        self.finish(&self.records, ids, Instant::now() + SMALL).await
    }

    pub(super) async fn finish(
        &self,
        stream: &[u8],
        ids: &[String],
        by: Instant,
    ) -> Result<(), Failure> {
        for some in ids.chunks(BATCH_IDS) {
            // In this order: an entry that is gone and still owed is forgotten by the next pull, whereas one
            // that is there and owed by nobody would stay.
            let mut command = redis::cmd("XDEL");
            command.arg(stream).arg(some);
            self.link.call(&command, by, Repeat::Safe).await?;
            let mut command = redis::cmd("XACK");
            command.arg(stream).arg(GROUP).arg(some);
            self.link.call(&command, by, Repeat::Safe).await?;
        }
        Ok(())
    }

    /// How many batches are there, new and not done.
    pub async fn records_waiting(&self) -> Result<u64, Failure> {
        self.length(&self.records).await
    }

    pub(super) async fn length(&self, stream: &[u8]) -> Result<u64, Failure> {
        let mut command = redis::cmd("XLEN");
        command.arg(stream);
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        let length = number(&value).and_then(|length| u64::try_from(length).ok());
        length.ok_or(Failure::Protocol)
    }

    /// Entries of this reader from `start` on, or new ones.
    async fn read(
        &self,
        stream: &[u8],
        reader: &str,
        start: &str,
        count: usize,
        by: Instant,
    ) -> Result<Vec<Entry>, Failure> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(reader).arg("COUNT").arg(count);
        command.arg("STREAMS").arg(stream).arg(start);
        let streams = match self.grouped(stream, &command, by).await? {
            Value::Nil => return Ok(Vec::new()),
            Value::Array(streams) => streams,
            // The newer protocol.
            Value::Map(streams) => streams.into_iter().map(|(_, entries)| entries).collect(),
            _ => return Err(Failure::Protocol),
        };
        let Some(answer) = streams.into_iter().next() else { return Ok(Vec::new()) };
        let list = match answer {
            Value::Array(mut pair) if matches!(pair.as_slice(), [Value::BulkString(_), _]) => {
                pair.pop().unwrap_or(Value::Nil)
            }
            list => list,
        };
        entries(list).ok_or(Failure::Protocol)
    }

    /// Takes over entries of readers that are taken to be dead.
    async fn claim(
        &self,
        stream: &[u8],
        reader: &str,
        count: usize,
        found: &mut Found,
        by: Instant,
    ) -> Result<(), Failure> {
        let mut cursor = "0-0".to_owned();
        for _ in 0..MAX_LOOKS {
            let Some(more) = found.wants(count) else { return Ok(()) };
            let mut command = redis::cmd("XAUTOCLAIM");
            command.arg(stream).arg(GROUP).arg(reader).arg(DEAD_AFTER_MILLIS);
            command.arg(&cursor).arg("COUNT").arg(more);
            let Value::Array(answer) = self.grouped(stream, &command, by).await? else {
                return Err(Failure::Protocol);
            };
            let mut answer = answer.into_iter();
            cursor = answer.next().as_ref().and_then(text).ok_or(Failure::Protocol)?;
            found.add(answer.next().and_then(entries).ok_or(Failure::Protocol)?);
            if cursor == "0-0" {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A command that needs the group, which is made if it is not there.
    async fn grouped(&self, stream: &[u8], command: &Cmd, by: Instant) -> Result<Value, Failure> {
        match self.link.attempts(command, by, Repeat::Safe).await {
            Ok(value) => return Ok(value),
            Err((_, text)) if text.contains("NOGROUP") => {}
            Err(refusal) => return Err(self.link.log(&refusal)),
        }
        let mut making = redis::cmd("XGROUP");
        making.arg("CREATE").arg(stream).arg(GROUP).arg("0").arg("MKSTREAM");
        match self.link.attempts(&making, by, Repeat::Safe).await {
            // Another reader was faster.
            Err((_, text)) if text.contains("BUSYGROUP") => {}
            Err(refusal) => return Err(self.link.log(&refusal)),
            Ok(_) => {}
        }
        self.link.call(command, by, Repeat::Safe).await
    }
}

fn entries(list: Value) -> Option<Vec<Entry>> {
    match list {
        Value::Array(list) => {
            let entries: Option<Vec<Option<Entry>>> = list.into_iter().map(entry).collect();
            Some(entries?.into_iter().flatten().collect())
        }
        Value::Nil => Some(Vec::new()),
        _ => None,
    }
}

/// Redis 6 returns nil, without an id, for an entry that was deleted; such entries are acknowledged
/// when the reader next reads its own pending entries.
#[expect(clippy::option_option, reason = "an entry that has gone is not an unreadable one")]
fn entry(item: Value) -> Option<Option<Entry>> {
    let Value::Array(pair) = item else {
        return matches!(item, Value::Nil).then_some(None);
    };
    let mut pair = pair.into_iter();
    let id = text(&pair.next()?)?;
    let batch = match pair.next()? {
        Value::Array(fields) => batch(fields),
        Value::Nil => None,
        _ => return None,
    };
    Some(Some((id, batch)))
}

fn batch(fields: Vec<Value>) -> Option<Vec<u8>> {
    let mut fields = fields.into_iter();
    while let Some(name) = fields.next() {
        let value = fields.next()?;
        if let (Some(FIELD), Value::BulkString(bytes)) = (text(&name).as_deref(), value) {
            return Some(bytes);
        }
    }
    None
}
