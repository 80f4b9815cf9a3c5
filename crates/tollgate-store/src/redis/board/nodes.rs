//! The roll of nodes: each says how it is, and may hear how the others are.
//!
//! A hash, `<prefix>:{config}:nodes`. A word holds for a while by the server's clock and is gone then, so a node that
//! died is missed soon and nothing is left of it.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{Board, SMALL, bytes_or_nil, text};
use crate::Failure;
use crate::redis::slot_connection::Repeat;

const SCRIPT: &str = include_str!("../scripts/roll.lua");

/// Nodes on the roll at most; those beyond are not on it.
const MAX_NODES: usize = 1_000;

/// The longest word of a node, in bytes.
pub const MAX_NODE_STATE: usize = 8 << 10;

impl Board {
    /// Stores the state of a node for as long as `holds`, and with `hears` returns the names and
    /// states of the other nodes. A state that is too long is [`Failure::Protocol`].
    pub async fn tell_node(
        &self,
        node: &str,
        state: &[u8],
        holds: Duration,
        hears: bool,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        if state.len() > MAX_NODE_STATE {
            return Err(Failure::Protocol);
        }
        let millis = u64::try_from(holds.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT).arg(1).arg(&*self.nodes);
        command.arg(node).arg(state).arg(millis).arg(u8::from(hears)).arg(MAX_NODES);
        let value = self.link.call(&command, Instant::now() + SMALL, Repeat::Safe).await?;
        let Value::Array(fields) = value else { return Err(Failure::Protocol) };
        let mut fields = fields.into_iter();
        let mut others = Vec::with_capacity(fields.len() / 2);
        while let (Some(name), Some(state)) = (fields.next(), fields.next()) {
            let word = bytes_or_nil(state).flatten();
            others.push(text(&name).zip(word).ok_or(Failure::Protocol)?);
        }
        Ok(others)
    }
}
