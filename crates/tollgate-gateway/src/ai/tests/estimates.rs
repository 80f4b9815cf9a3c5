//! Default estimates against the real tokenizers, before and after they are corrected by settled usage.

use std::collections::BTreeMap;

use super::super::expect::{Expectations, HistoryKey};
use super::super::text::{Tariff, TextSink};
use super::corpus::{Kind, corpus};

/// Prompts whose settled usage is known before the rest is looked at.
const LEARNED: usize = 30;

fn sink(text: &str) -> TextSink {
    let mut sink = TextSink::new(Tariff::default());
    sink.source(text);
    sink
}

/// Prints the table of docs/ai.md with `--nocapture`.
#[test]
fn corrected_estimates_are_near_the_truth_for_every_script() {
    let tokenizers =
        [("cl100k_base", bpe_openai::cl100k_base()), ("o200k_base", bpe_openai::o200k_base())];
    let mut classes: BTreeMap<(Kind, String), Vec<String>> = BTreeMap::new();
    for sample in
        corpus().into_iter().filter(|sample| sample.kind != Kind::Data || sample.class == "json")
    {
        classes.entry((sample.kind, sample.class)).or_default().push(sample.text);
    }
    for ((_, class), texts) in classes {
        print!("{class:16}");
        for (name, tokenizer) in tokenizers {
            let count = |text: &String| tokenizer.count(text.as_str()) as u64;
            let known = Expectations::default();
            for text in texts.iter().take(LEARNED) {
                known.note_prompt(
                    &HistoryKey::default(),
                    sink(text).for_answer().prompt(),
                    count(text),
                );
            }
            let correction = known.correction(&HistoryKey::default());
            let rest = &texts[LEARNED..];
            let truth: u64 = rest.iter().map(count).sum();
            let before: u64 = rest.iter().map(|text| sink(text).total()).sum();
            let after: u64 = rest.iter().map(|text| sink(text).corrected(correction)).sum();
            let (before, after) = (before as f64 / truth as f64, after as f64 / truth as f64);
            print!("  {name} {before:5.2} -> {after:5.2}");
            assert!((1.0 / 1.5..=1.5).contains(&after), "{class}, {name}: {after}");
        }
        println!();
    }
}
