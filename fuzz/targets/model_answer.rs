//! A model's plain answer: what it says it used is found however its bytes come in, and is what a reader of JSON finds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollgate_fuzz::choice;
use tollgate_gateway::ai::fuzzed::answer;

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = choice(input) else { return };
    let whole = answer(bytes, bytes.len());
    for at_once in [1, usize::from(size)] {
        assert_eq!(answer(bytes, at_once), whole, "{at_once} at a time");
    }
    let Some((total, output)) = whole.1 else { return };
    assert!(output <= total || bytes.len() > 2);
    // Where it is JSON with one plain usage, both find the same.
    let Ok(known) = serde_json::from_slice::<Value>(bytes) else { return };
    let names = bytes.windows(5).filter(|five| five == b"usage").count();
    let tokens = bytes.windows(13).filter(|text| text.ends_with(b"_tokens\":")).count();
    let said = known["usage"]["total_tokens"].as_u64();
    if names == 1 && tokens == 1 && !bytes.contains(&b'\\') && said.is_some() {
        assert_eq!(Some(total), said);
    }
});
