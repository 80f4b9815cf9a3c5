//! The scripts that run on the server, put together from their files.

/// A script and the name the server knows it by.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// All of them.
pub(super) struct Scripts {
    pub(super) decide: Script,
    pub(super) give_back: Script,
    pub(super) undo: Script,
    pub(super) settle: Script,
    pub(super) records: Script,
    pub(super) lease: Script,
    pub(super) slots: Script,
    pub(super) held: Script,
    pub(super) nodes: Script,
    pub(super) answers: Script,
    pub(super) reset: Script,
}

const COMMON: &str = include_str!("scripts/common.lua");
const OPEN_CHARGES: &str = include_str!("scripts/open_charges.lua");
const COUNTERS: &str = include_str!("scripts/counters.lua");
const LOGS: &str = include_str!("scripts/logs.lua");
const RECEIPTS: &str = include_str!("scripts/receipts.lua");

/// What the common part reads the server's clock with.
pub(super) const CLOCK: &str = "redis.call('TIME')";

impl Scripts {
    /// The scripts, on the clock that the Lua expression `clock` reads: [`CLOCK`], or a test's own.
    pub(super) fn on(clock: &str) -> Self {
        let common = COMMON.replace(CLOCK, clock);
        let script = |parts: &[&str]| {
            let text = [&[common.as_str()], parts].concat().concat();
            let hash = redis::Script::new(&text).get_hash().to_owned();
            Script { text, hash }
        };
        Self {
            decide: script(&[OPEN_CHARGES, COUNTERS, LOGS, include_str!("scripts/decide.lua")]),
            give_back: script(&[
                OPEN_CHARGES,
                COUNTERS,
                LOGS,
                RECEIPTS,
                include_str!("scripts/give_back.lua"),
            ]),
            undo: script(&[
                OPEN_CHARGES,
                COUNTERS,
                LOGS,
                RECEIPTS,
                include_str!("scripts/undo.lua"),
            ]),
            settle: script(&[
                OPEN_CHARGES,
                COUNTERS,
                LOGS,
                RECEIPTS,
                include_str!("scripts/settle.lua"),
            ]),
            records: script(&[include_str!("scripts/records.lua")]),
            lease: script(&[
                OPEN_CHARGES,
                COUNTERS,
                LOGS,
                RECEIPTS,
                include_str!("scripts/lease.lua"),
            ]),
            held: script(&[include_str!("scripts/held.lua")]),
            slots: script(&[include_str!("scripts/slots.lua")]),
            nodes: script(&[include_str!("scripts/nodes.lua")]),
            answers: script(&[include_str!("scripts/answers.lua")]),
            reset: script(&[include_str!("scripts/reset.lua")]),
        }
    }
}
