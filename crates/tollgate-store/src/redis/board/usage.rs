//! The outbox of the ledger: what settled requests used, from all nodes to those with a database.

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::records::FIELD;
use super::{Board, SMALL};
use crate::Failure;
use crate::redis::slot_connection::Repeat;

/// Adds events to the stream, if there is room for all of them.
const PUSH: &str =
    "if redis.call('XLEN', KEYS[1]) + #ARGV - 2 > tonumber(ARGV[1]) then return 0 end
for place = 3, #ARGV do
  local added = redis.pcall('XADD', KEYS[1], '*', ARGV[2], ARGV[place])
  if type(added) == 'table' and added.err then return added end
end
return 1";

impl Board {
    /// Adds events, unless there would be more than `max_events`. Returns whether they were added.
    ///
    /// After an error all, some or none of them may have been added: they are to be added again, and recognised by their
    /// ids.
    pub async fn push_usage(&self, events: &[Vec<u8>], max_events: u64) -> Result<bool, Failure> {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(PUSH).arg(1).arg(&*self.usage);
        command.arg(max_events).arg(FIELD);
        for event in events {
            command.arg(event);
        }
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Never).await?;
        Ok(!matches!(value, Value::Int(0)))
    }

    /// Up to `count` events with their ids in the stream, without waiting for any. Each comes at least once to one of the
    /// readers, and again until it is [done](Self::done_usage).
    pub async fn pull_usage(
        &self,
        reader: &str,
        count: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        self.pull(&self.usage, reader, count).await
    }

    /// These events are in the ledger, and go.
    pub async fn done_usage(&self, ids: &[String]) -> Result<(), Failure> {
        self.finish(&self.usage, ids, Instant::now() + SMALL).await
    }

    /// How many events are there, new and not done.
    pub async fn usage_waiting(&self) -> Result<u64, Failure> {
        self.length(&self.usage).await
    }
}
