//! Figures of nodes: what each has counted, for those who look at all nodes together.
//!
//! A sorted set, `<prefix>:{config}:figures`, says when each node was last seen, and a hash for each node,
//! `<prefix>:{config}:figures:<node>`, has its figures by field. Both expire when a node has been silent for
//! long, so a node that has gone stays listed for as long as its figures are of interest.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{Board, LARGE, SMALL, bytes_or_nil, number, text};
use crate::Failure;
use crate::redis::slot_connection::Repeat;

const SCRIPT: &str = include_str!("../scripts/figures.lua");

/// Returns the fields that are asked for, without those that are too long.
const READ: &str = "local found = {}
for i = 2, #ARGV do
  local length = redis.call('HSTRLEN', KEYS[1], ARGV[i])
  found[i - 1] = length > 0 and length <= tonumber(ARGV[1]) and redis.call('HGET', KEYS[1], ARGV[i])
end
return found";

/// The nodes that were seen, each with how many ms ago.
const SEEN: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
for i = 2, #found, 2 do
  found[i] = string.format('%d', now - tonumber(found[i]))
end
return found";

/// Nodes with figures at most.
pub const MAX_FIGURE_NODES: usize = 100;
/// The longest figures of one field, in bytes.
pub const MAX_FIGURES: usize = 128 << 10;
/// The longest name of a node that is read.
const MAX_NODE_NAME: usize = 64;

impl Board {
    /// Stores figures of a node by field, and notes that it is alive. Figures are kept for `kept` after the
    /// last call. False if there are nodes enough that were seen within `live`. Figures that are too long are
    /// [`Failure::Protocol`].
    pub async fn put_figures(
        &self,
        node: &str,
        fields: &[(String, String)],
        kept: Duration,
        live: Duration,
    ) -> Result<bool, Failure> {
        if fields.iter().any(|(_, figures)| figures.len() > MAX_FIGURES) {
            return Err(Failure::Protocol);
        }
        let millis =
            |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT).arg(2).arg(&*self.figures).arg(self.figures_of(node));
        command.arg(node).arg(millis(kept)).arg(MAX_FIGURE_NODES).arg(millis(live));
        for (field, figures) in fields {
            command.arg(field).arg(figures);
        }
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        number(&value).map(|written| written == 1).ok_or(Failure::Protocol)
    }

    /// The nodes with figures, and how long ago each was seen, the latest first.
    pub async fn figure_nodes(&self) -> Result<Vec<(String, Duration)>, Failure> {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SEEN).arg(1).arg(&*self.figures).arg(MAX_FIGURE_NODES);
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        let Value::Array(fields) = value else { return Err(Failure::Protocol) };
        let mut nodes = Vec::with_capacity(fields.len() / 2);
        let mut fields = fields.iter();
        while let (Some(name), Some(age)) = (fields.next(), fields.next()) {
            let age = number(age).ok_or(Failure::Protocol)?;
            // What something else has written there is not a node.
            let is_name = |name: &String| {
                name.len() <= MAX_NODE_NAME && name.bytes().all(|byte| byte.is_ascii_graphic())
            };
            if let Some(name) = text(name).filter(is_name) {
                nodes.push((name, Duration::from_millis(u64::try_from(age).unwrap_or(0))));
            }
        }
        Ok(nodes)
    }

    /// Figures of a node, in the order of the fields; those that are missing or too long are left out.
    pub async fn figures(
        &self,
        node: &str,
        fields: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(READ).arg(1).arg(self.figures_of(node)).arg(MAX_FIGURES);
        command.arg(fields);
        let value = self.link.call(&command, Instant::now() + LARGE, Repeat::Safe).await?;
        let Value::Array(values) = value else { return Err(Failure::Protocol) };
        // A list from a script ends at its first nil only where there is one; false is sent as nil.
        let mut found: Vec<_> =
            values.into_iter().map(|value| bytes_or_nil(value).flatten()).collect();
        found.resize(fields.len(), None);
        Ok(found)
    }

    fn figures_of(&self, node: &str) -> Vec<u8> {
        [&*self.figures, b":", node.as_bytes()].concat()
    }
}
