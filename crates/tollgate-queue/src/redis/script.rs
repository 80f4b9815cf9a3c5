//! The scripts that run on the server, put together from their files.

use tollgate_store::redis::SlotScript;

/// All of them.
pub(super) struct Scripts {
    pub(super) room: SlotScript,
    pub(super) push: SlotScript,
    pub(super) claim: SlotScript,
    pub(super) renew: SlotScript,
    pub(super) give_back: SlotScript,
    pub(super) complete: SlotScript,
    pub(super) bury: SlotScript,
    pub(super) ticket: SlotScript,
    pub(super) list: SlotScript,
    pub(super) retry: SlotScript,
    pub(super) drop: SlotScript,
    pub(super) sweep: SlotScript,
    pub(super) counts: SlotScript,
}

/// Reads the server's clock.
pub(super) const CLOCK: &str = include_str!("scripts/clock.lua");
const COMMON: &str = include_str!("scripts/common.lua");
const DESCRIBE: &str = include_str!("scripts/describe.lua");

impl Scripts {
    /// The scripts, on the clock that the Lua function `clock` reads: [`CLOCK`], or a test's own. Those that read, and
    /// those that find what the first call did, are repeatable.
    pub(super) fn on(clock: &str) -> Self {
        let script =
            |parts: &[&str]| SlotScript::new([&[clock, "\n", COMMON], parts].concat().concat());
        Self {
            room: script(&[include_str!("scripts/room.lua")]).repeatable(),
            push: script(&[include_str!("scripts/push.lua")]).repeatable(),
            claim: script(&[include_str!("scripts/claim.lua")]),
            renew: script(&[include_str!("scripts/renew.lua")]).repeatable(),
            give_back: script(&[include_str!("scripts/give_back.lua")]),
            complete: script(&[include_str!("scripts/complete.lua")]),
            bury: script(&[include_str!("scripts/bury.lua")]),
            ticket: script(&[DESCRIBE, include_str!("scripts/ticket.lua")]).repeatable(),
            list: script(&[DESCRIBE, include_str!("scripts/list.lua")]).repeatable(),
            retry: script(&[include_str!("scripts/retry.lua")]),
            drop: script(&[include_str!("scripts/drop.lua")]),
            sweep: script(&[include_str!("scripts/sweep.lua")]).repeatable(),
            counts: script(&[include_str!("scripts/counts.lua")]).repeatable(),
        }
    }
}
