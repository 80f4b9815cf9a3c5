//! The scripts that run on the server, put together from their files.

use std::sync::LazyLock;

/// A script and the name the server knows it by.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

const COMMON: &str = include_str!("scripts/common.lua");
const COUNTERS: &str = include_str!("scripts/counters.lua");
const RECEIPTS: &str = include_str!("scripts/receipts.lua");

fn script(parts: &[&str]) -> Script {
    let text = parts.concat();
    let hash = redis::Script::new(&text).get_hash().to_owned();
    Script { text, hash }
}

pub(super) static DECIDE: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, COUNTERS, include_str!("scripts/decide.lua")]));

pub(super) static GIVE_BACK: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, COUNTERS, RECEIPTS, include_str!("scripts/give_back.lua")]));

pub(super) static LEASE: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, COUNTERS, RECEIPTS, include_str!("scripts/lease.lua")]));

pub(super) static SLOTS: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, include_str!("scripts/slots.lua")]));

pub(super) static NODES: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, include_str!("scripts/nodes.lua")]));

pub(super) static ANSWERS: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, include_str!("scripts/answers.lua")]));

pub(super) static RESET: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, include_str!("scripts/reset.lua")]));
