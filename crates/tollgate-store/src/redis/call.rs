//! One script call: what is sent, how, and which of its attempts may have run.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::time::Instant;
use tollgate_core::MAX_MICROS;

use super::key::{Keys, once};
use super::metrics::Operation;
use super::msgpack::{Element, Elements};
use super::script::Script;

/// Beyond two attempts, for what lies between them.
const MARGIN: Duration = Duration::from_millis(10);

/// One script call.
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) script: &'a Script,
    /// At least one; all of one slot.
    pub(super) keys: &'a Keys,
    pub(super) body: &'a Elements,
    /// Whether it changes anything, so that it must not run twice.
    pub(super) remember: bool,
    pub(super) slot: u16,
    pub(super) deadline: Instant,
    /// How long one attempt may take.
    pub(super) timeout: Duration,
    /// Whether it is made of parts that could go one by one.
    pub(super) may_split: bool,
}

/// How a call is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendOptions {
    pub(super) id: [u8; 8],
    /// With the script, which the server does not know.
    pub(super) sends_script: bool,
    /// To a node that has the slot only for those who were sent there.
    pub(super) is_asked: bool,
    /// Without a place for its answer: while a slot moves, a call must not name a key that does not exist
    /// beside one that does. It must not be repeated then if its answer is lost.
    pub(super) is_bare: bool,
}

/// The attempts of a call: what may have run although no answer came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    id: [u8; 8],
    first_at: Option<Instant>,
    /// The present attempt has been sent and not answered.
    is_under_way: bool,
    /// An attempt was sent, and its answer was lost.
    is_lost: bool,
    /// An attempt whose answer is not remembered was sent, and may have run.
    is_bare: bool,
}

impl Sent {
    /// A call under this id that was not sent yet.
    pub(super) const fn new(id: [u8; 8]) -> Self {
        Self { id, first_at: None, is_under_way: false, is_lost: false, is_bare: false }
    }

    pub(super) const fn id(&self) -> [u8; 8] {
        self.id
    }

    /// When the call was first sent, if it may have run although no answer came.
    pub(super) fn may_have_run(&self) -> Option<Instant> {
        self.first_at.filter(|_| self.is_lost || self.is_under_way)
    }

    /// The same for a call that was answered, where somebody else did not receive it.
    pub(super) const fn unheard(mut self) -> Self {
        self.is_lost = true;
        self
    }

    /// Whether an answer may be that of an earlier attempt, as the server remembers it.
    pub(super) const fn may_be_repeated(&self) -> bool {
        self.is_lost
    }

    /// Whether the server was not asked to remember its answer.
    pub(super) const fn is_bare(&self) -> bool {
        self.is_bare
    }

    pub(super) fn begins(&mut self, options: SendOptions) {
        self.first_at.get_or_insert_with(Instant::now);
        self.is_under_way = true;
        self.is_bare |= options.is_bare;
    }

    /// The attempt was answered, if only with an error, or `is_lost`.
    pub(super) const fn ends(&mut self, is_lost: bool) {
        self.is_under_way = false;
        self.is_lost |= is_lost;
    }
}

/// What a script answered.
#[derive(Debug)]
pub(super) struct Reply {
    /// The server's clock, in microseconds.
    pub(super) now: u64,
    pub(super) elements: Vec<Element>,
}

impl Reply {
    pub(super) fn number(&self, index: usize) -> Option<u64> {
        self.elements.get(index).and_then(Element::number)
    }
}

/// For how many milliseconds the answer to a call is remembered: longer than anybody asks for it.
pub(super) fn remember(call: &Call<'_>) -> u64 {
    let retention = answer_retention(call.operation, call.timeout);
    u64::try_from(retention.as_millis()).unwrap_or(u64::MAX).min(MAX_MICROS)
}

/// The same of a call whose attempts may take this long. A give-back is tried more often than others.
pub(super) fn answer_retention(operation: Operation, timeout: Duration) -> Duration {
    match operation {
        Operation::GiveBack => two_attempts(timeout) * 2 + Duration::from_secs(5),
        _ => two_attempts(timeout) + Duration::from_secs(1),
    }
}

/// How long two attempts of this length take at most, with what lies between them.
pub(super) fn two_attempts(timeout: Duration) -> Duration {
    timeout * 2 + MARGIN
}

/// The call as a command. `deadline` is an instant of the server clock, in microseconds.
pub(super) fn command(
    call: &Call<'_>,
    deadline: Option<u64>,
    remember: u64,
    options: SendOptions,
) -> Cmd {
    let mut head = Elements::default();
    head.number(deadline.unwrap_or(0));
    head.number(if call.remember && !options.is_bare { remember } else { 0 });
    head.text(&options.id);
    let mut command = Cmd::new();
    if options.sends_script {
        command.arg("EVAL").arg(call.script.text.as_str());
    } else {
        command.arg("EVALSHA").arg(call.script.hash.as_str());
    }
    command.arg(call.keys.len() + 1);
    let first = call.keys.get(0).unwrap_or_default();
    if options.is_bare {
        command.arg(first);
    } else {
        command.arg(once(first, options.id));
    }
    for key in call.keys.iter() {
        command.arg(key);
    }
    command.arg(head.array(call.body));
    command
}

pub(super) async fn exchange(
    mut connection: MultiplexedConnection,
    command: &Cmd,
    is_asked: bool,
) -> redis::RedisResult<Value> {
    if !is_asked {
        return connection.send_packed_command(command).await?.extract_error();
    }
    // The permission holds for the next command only, so the two must go together.
    let mut pipeline = redis::Pipeline::new();
    pipeline.cmd("ASKING").add_command(command.clone());
    let mut answers = connection.send_packed_commands(&pipeline, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}
