//! A model's stream: what the client gets and what is counted are the same however its bytes come in, and where
//! nothing is to be hidden not a byte is changed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::choice;
use tollgate_gateway::ai::fuzzed::stream;

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = choice(input) else { return };
    let Some((size, bytes)) = choice(rest) else { return };
    for hides in [false, true] {
        let whole = stream(kind, bytes, bytes.len(), hides);
        // Nothing passes after the end of an answer.
        if !hides && !whole.is_done {
            assert_eq!(whole.out, bytes);
        }
        for at_once in [1, usize::from(size)] {
            assert_eq!(stream(kind, bytes, at_once, hides), whole, "{at_once} at a time");
        }
    }
});
