//! Records of what was charged, as another node left them in a shared store: one that is read is written the same
//! again, and settling or releasing it takes nothing down.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;
use tollgate_engine::{Actual, Amounts, Engine, fuzzed};
use tollgate_fuzz::{choice, engine, runtime};
use tollgate_store::MemoryStore;

static ENGINE: LazyLock<Arc<Engine<MemoryStore>>> = LazyLock::new(engine);

thread_local!(static RUNTIME: Runtime = runtime());

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = choice(input) else { return };
    let instance = u64::from(kind >> 4);
    let Some(receipts) = fuzzed::read(bytes, instance) else { return };
    let again = ENGINE.written(&receipts, instance);
    if let Some(read) = fuzzed::read(&again, instance) {
        assert_eq!(ENGINE.written(&read, instance), again);
    }
    let figures = [None, Some(0), Some(1), Some(u64::MAX >> 11)];
    let tokens = figures[usize::from(kind) % figures.len()];
    let cost = figures[usize::from(kind / 4) % figures.len()];
    let truth = Actual::from(Amounts { tokens, cost, ..Amounts::NONE });
    let id = u128::from(kind);
    RUNTIME.with(|runtime| {
        let _ = runtime.block_on(ENGINE.settle(id, &receipts, truth));
        let _ = runtime.block_on(ENGINE.give_back(&receipts));
        let _ = runtime.block_on(ENGINE.renew(&receipts));
    });
});
