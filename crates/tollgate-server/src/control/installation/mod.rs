//! The whole installation: all nodes that share a Redis or a PostgreSQL.
//!
//! Every second each node stores its state there, and every five seconds what it has counted: the keys that
//! it saw most, and parts of its history. The node that answers an admin call reads those of all others and
//! adds them up, so any node gives the same answer, also about a node that has gone. Without Redis and
//! PostgreSQL one node is the installation.
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | what is exchanged, and where |
//! | `state.rs` | how a node is, as it reports it and as it is shown |
//! | `publish.rs` | stores the figures of this node |
//! | `gather.rs` | reads and adds up the figures of all nodes |

mod gather;
mod publish;
mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_control::Repository;
use tollgate_store::redis::Board;

use super::Roll;
use crate::telemetry::Observed;
use crate::telemetry::history::Resolution;
use crate::telemetry::history_part::{HistoryPart, PART_STEPS};

pub(crate) use gather::{Gathered, HistoryQuery};
use publish::Speed;
pub(crate) use state::NodeView;

/// What all figures begin with. A node that has another format is listed, and its figures are left out.
const FORMAT: &str = "1:";

/// A node that was not seen for so long has gone. It reports every second.
const LIVE_FOR: Duration = Duration::from_secs(5);

/// For so long a node that has gone is listed: as long as its history is.
const KEPT_FOR: Duration = Duration::from_secs(25 * 3_600);

/// The field of a node's state, and those of the keys that it saw most.
const STATE: &str = "state";
const TOP_MINUTES: &str = "top-minutes";
const TOP_HOURS: &str = "top-hours";

/// The longest part of a history, the longest list of keys and the longest state, in bytes.
const MAX_PART_BYTES: usize = 32 << 10;
const MAX_TOP_BYTES: usize = 96 << 10;
const MAX_STATE_BYTES: usize = 8 << 10;

/// Bytes of figures that one answer is made of; further nodes are left out of it.
const MAX_GATHERED_BYTES: usize = 32 << 20;

/// Parts of other nodes' histories that are kept because they do not change any more.
const MAX_CACHED_PARTS: usize = 500;

/// Where nodes exchange figures.
#[derive(Clone)]
pub(super) enum Exchange {
    Redis(Board),
    Database(Arc<dyn Repository>),
}

/// Why figures could not be exchanged, for a person.
type Trouble = String;

impl Exchange {
    /// Stores figures by field. False if there are nodes enough.
    async fn put(&self, node: &str, fields: &[(String, String)]) -> Result<bool, Trouble> {
        match self {
            Self::Redis(board) => board
                .put_figures(node, fields, KEPT_FOR, LIVE_FOR)
                .await
                .map_err(|failure| format!("Redis: {failure}")),
            Self::Database(repository) => repository
                .put_figures(node, fields, KEPT_FOR, LIVE_FOR)
                .await
                .map_err(|error| format!("the database: {error}")),
        }
    }

    /// The nodes with figures, and how long ago each was seen.
    async fn nodes(&self) -> Result<Vec<(String, Duration)>, Trouble> {
        match self {
            Self::Redis(board) => {
                board.figure_nodes().await.map_err(|failure| format!("Redis: {failure}"))
            }
            Self::Database(repository) => {
                repository.figure_nodes().await.map_err(|error| format!("the database: {error}"))
            }
        }
    }

    /// Figures of a node, in the order of the fields, without their format.
    async fn figures(
        &self,
        node: &str,
        fields: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, Trouble> {
        match self {
            Self::Redis(board) => {
                board.figures(node, fields).await.map_err(|failure| format!("Redis: {failure}"))
            }
            Self::Database(repository) => repository
                .figures(node, fields)
                .await
                .map_err(|error| format!("the database: {error}")),
        }
    }
}

/// A part of another node's history: the node, the length of its steps, the number of the part.
type PartKey = (String, u64, u64);

/// All nodes of the installation, seen from this one.
pub(crate) struct Installation {
    roll: Arc<Roll>,
    observed: Arc<Observed>,
    exchange: Option<Exchange>,
    host: String,
    speed: Mutex<Speed>,
    cached: Mutex<HashMap<PartKey, Arc<HistoryPart>>>,
}

impl Installation {
    pub(super) fn new(
        roll: Arc<Roll>,
        observed: Arc<Observed>,
        exchange: Option<Exchange>,
    ) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            roll,
            observed,
            exchange,
            host: host.trim().to_owned(),
            speed: Mutex::default(),
            cached: Mutex::default(),
        }
    }
}

/// The field of a part: as many fields as parts are kept, used in turn.
fn part_field(resolution: Resolution, number: u64) -> String {
    let parts = resolution.kept_steps() / PART_STEPS + 1;
    let name = match resolution {
        Resolution::Short => 's',
        Resolution::Long => 'm',
    };
    format!("{name}{}", number % parts)
}
