//! The scripts that run on the server, put together from their files.

/// A script and the name the server knows it by.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// All of them.
pub(super) struct Scripts {
    pub(super) room: Script,
    pub(super) push: Script,
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) give_back: Script,
    pub(super) complete: Script,
    pub(super) bury: Script,
    pub(super) ticket: Script,
    pub(super) list: Script,
    pub(super) retry: Script,
    pub(super) drop: Script,
    pub(super) sweep: Script,
    pub(super) counts: Script,
}

/// Reads the server's clock.
pub(super) const CLOCK: &str = include_str!("scripts/clock.lua");
const COMMON: &str = include_str!("scripts/common.lua");
const TELL: &str = include_str!("scripts/tell.lua");

impl Scripts {
    /// The scripts, on the clock that the Lua function `clock` reads: [`CLOCK`], or a test's own.
    pub(super) fn on(clock: &str) -> Self {
        let script = |parts: &[&str]| {
            let text = [&[clock, "\n", COMMON], parts].concat().concat();
            let hash = redis::Script::new(&text).get_hash().to_owned();
            Script { text, hash }
        };
        Self {
            room: script(&[include_str!("scripts/room.lua")]),
            push: script(&[include_str!("scripts/push.lua")]),
            claim: script(&[include_str!("scripts/claim.lua")]),
            renew: script(&[include_str!("scripts/renew.lua")]),
            give_back: script(&[include_str!("scripts/give_back.lua")]),
            complete: script(&[include_str!("scripts/complete.lua")]),
            bury: script(&[include_str!("scripts/bury.lua")]),
            ticket: script(&[TELL, include_str!("scripts/ticket.lua")]),
            list: script(&[TELL, include_str!("scripts/list.lua")]),
            retry: script(&[include_str!("scripts/retry.lua")]),
            drop: script(&[include_str!("scripts/drop.lua")]),
            sweep: script(&[include_str!("scripts/sweep.lua")]),
            counts: script(&[include_str!("scripts/counts.lua")]),
        }
    }
}
