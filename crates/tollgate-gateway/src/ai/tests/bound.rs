//! The upper bound against the real tokenizers.

use std::collections::{BTreeMap, BTreeSet};

use super::super::bound::upper_bound;
use super::corpus::{Kind, Random, corpus};

type Entries = BTreeSet<Vec<u8>>;

fn vocabulary(tokenizer: &bpe_openai::Tokenizer) -> Entries {
    let bpe = &tokenizer.bpe;
    (0..bpe.num_tokens() as u32).map(|token| bpe.token_bytes(token).to_vec()).collect()
}

/// As the table stores them: see `bound/table.rs`.
fn packed(entries: &Entries) -> Vec<u8> {
    let (mut out, mut before): (Vec<u8>, &[u8]) = (Vec::new(), &[]);
    for entry in entries.iter().filter(|entry| (2..=15).contains(&entry.len())) {
        let shared = before.iter().zip(entry).take_while(|(one, other)| one == other).count();
        out.push(((shared << 4) | (entry.len() - shared)) as u8);
        out.extend_from_slice(&entry[shared..]);
        before = entry;
    }
    out
}

/// Whether a token begins or ends within a character.
fn is_fragment(token: &[u8]) -> bool {
    let begins_within = token.first().is_some_and(|byte| byte & 0xc0 == 0x80);
    let last =
        (1..=3).find(|back| token.len() >= *back && token[token.len() - back] & 0xc0 != 0x80);
    let ends_within = last.is_some_and(|back| {
        let first = token[token.len() - back];
        let length = match first {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0.. => 4,
            _ => 1,
        };
        back < length
    });
    begins_within || ends_within
}

/// The tables hold what the vocabularies share, and every fragment of either. With `WRITE_TABLES` set they are written.
#[test]
fn the_tables_are_those_of_the_vocabularies() {
    let (old, new) = (bpe_openai::cl100k_base(), bpe_openai::o200k_base());
    let (old, new) = (vocabulary(old), vocabulary(new));
    let shared: Entries = old.intersection(&new).cloned().collect();
    // Rules of `bound/pieces.rs` that rest on longer entries than the table holds.
    for (byte, longest) in [(b' ', 79), (b'\t', 20), (b'\n', 10)] {
        assert!((1..=longest).all(|length| shared.contains(&vec![byte; length])));
    }
    let digits =
        (0..1_000).flat_map(|it| [format!("{it}"), format!("{it:02}"), format!("{it:03}")]);
    assert!(digits.into_iter().all(|digits| shared.contains(digits.as_bytes())));
    let either = old.union(&new).filter(|token| token.len() > 1 && is_fragment(token));
    let fragments: Entries = either.cloned().collect();
    for (name, entries) in [("entries.bin", shared), ("fragments.bin", fragments)] {
        let path = format!("{}/src/ai/bound/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WRITE_TABLES").is_some() {
            std::fs::write(&path, packed(&entries)).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == packed(&entries),
            "{name}: run with WRITE_TABLES=1"
        );
    }
}

/// Entries put together at random with marks, endings and capitals: names, quotes, contractions.
#[test]
fn entries_put_together_are_within_the_bound() {
    let tokenizers = [bpe_openai::cl100k_base(), bpe_openai::o200k_base()];
    let shared: Vec<String> = vocabulary(tokenizers[0])
        .intersection(&vocabulary(tokenizers[1]))
        .filter_map(|entry| String::from_utf8(entry.clone()).ok())
        .collect();
    let between =
        ["", "", "", "'", "'s", "'t", "'LL", "_", ".", " ", "\t", "\n", "\n/", "é", "1", "中"];
    let mut random = Random(5);
    for _ in 0..100_000 {
        let mut text = String::new();
        for _ in 0..=random.below(4) {
            text.push_str(random.of::<String>(&shared));
            text.push_str(between[random.below(between.len())]);
        }
        let bound = upper_bound(&text);
        for tokenizer in tokenizers {
            let tokens = tokenizer.count(text.as_str()) as u64;
            assert!(tokens <= bound, "{text:?}: {tokens} of {bound}");
        }
    }
}

#[derive(Default)]
struct Row {
    texts: u64,
    bound: u64,
    tokens: u64,
    ratios: f64,
    under: Vec<String>,
}

/// Prints the table of docs/ai.md with `--nocapture`.
#[test]
fn no_text_has_more_tokens_than_the_bound() {
    let (old, new) = (bpe_openai::cl100k_base(), bpe_openai::o200k_base());
    let mut rows: BTreeMap<(Kind, String), Row> = BTreeMap::new();
    let all = corpus();
    assert!(all.len() >= 5_000, "{}", all.len());
    for sample in &all {
        let tokens = old.count(sample.text.as_str()).max(new.count(sample.text.as_str())) as u64;
        let bound = upper_bound(&sample.text);
        let row = rows.entry((sample.kind, sample.class.clone())).or_default();
        (row.texts, row.bound, row.tokens) =
            (row.texts + 1, row.bound + bound, row.tokens + tokens);
        row.ratios += bound as f64 / tokens.max(1) as f64;
        if bound < tokens {
            row.under.push(format!("{bound} of {tokens}: {:?}", sample.text));
        }
    }
    println!("{} texts", all.len());
    for ((kind, class), row) in &rows {
        let (whole, each) = (row.bound as f64 / row.tokens as f64, row.ratios / row.texts as f64);
        println!("{class:32} {:5} texts  {whole:5.2} {each:5.2}", row.texts);
        assert!(row.under.is_empty(), "{class}: {:#?}", row.under);
        let most = match kind {
            Kind::Common => 1.3,
            Kind::Script => 2.0,
            // Data is held to the bound alone.
            Kind::Data => f64::INFINITY,
        };
        assert!(whole <= most && each <= most, "{class}: {whole}, {each}");
    }
}

/// A text of twice the length takes about twice the steps: no part of it is looked at again and again.
#[test]
fn long_texts_of_every_kind_are_bounded_by_their_bytes() {
    for unit in ["a", "ab.", "'s", "aB", "é", "中", "\n/", " ", "\t \n", "1", "١", "#\n/x"] {
        let text = unit.repeat(200_000);
        assert!(upper_bound(&text) <= text.len() as u64 + 1, "{unit:?}");
    }
}
