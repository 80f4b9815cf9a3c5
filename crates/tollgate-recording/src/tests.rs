//! What is written is what is read; what was damaged is refused.

use proptest::prelude::*;

use crate::{
    Amounts, Entry, Header, Kind, Part, ReadError, Reader, Refunds, Sample, Used, VERSION, Verdict,
    Writer, header_bytes,
};

fn header() -> Header {
    Header { version: VERSION, started_at: 7, node: "node-1".to_owned(), sample: Sample::ALL }
}

/// All of an entry, to compare.
type Flat = (u64, u8, bool, [Option<u64>; 2], Option<String>, Vec<(String, String)>);

fn write(entries: &[Flat]) -> Vec<u8> {
    let mut file = header_bytes(&header()).unwrap();
    let mut writer = Writer::default();
    for (at, verdict, is_degraded, [cost, tokens], rule_id, attributes) in entries {
        let attributes: Vec<_> =
            attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let entry = Entry {
            at: *at,
            verdict: [Verdict::Allowed, Verdict::Throttled, Verdict::Queued, Verdict::Refused]
                [usize::from(*verdict)],
            is_degraded: *is_degraded,
            amounts: Amounts { cost: *cost, tokens: *tokens, ..Amounts::default() },
            rule_id: rule_id.as_deref(),
            attributes,
            ..Entry::default()
        };
        file.extend(writer.push(&entry).unwrap_or_default());
    }
    file.extend(writer.finish().unwrap_or_default());
    file
}

fn read(file: &[u8]) -> (Vec<Flat>, Option<ReadError>) {
    let mut entries = Vec::new();
    let mut reader = match Reader::open(file) {
        Ok(reader) => reader,
        Err(error) => return (entries, Some(error)),
    };
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => entries.push((
                entry.at,
                entry.verdict as u8,
                entry.is_degraded,
                [entry.amounts.cost, entry.amounts.tokens],
                entry.rule_id.map(str::to_owned),
                entry
                    .attributes
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            )),
            Ok(None) => return (entries, None),
            Err(error) => return (entries, Some(error)),
        }
    }
}

fn entry() -> impl Strategy<Value = Flat> {
    let pair = ("[a-z]{1,8}", "\\PC{1,40}");
    (
        prop_oneof![any::<u64>(), 1_790_000_000_000_000_000..1_790_000_000_000_100_000_u64],
        0..4_u8,
        any::<bool>(),
        [proptest::option::of(any::<u64>()), proptest::option::of(any::<u64>())],
        proptest::option::of("[a-z]{1,9}"),
        prop::collection::vec(pair, 0..9),
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read(entries in prop::collection::vec(entry(), 0..300)) {
        let (found, error) = read(&write(&entries));
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(found, entries);
    }

    #[test]
    fn damage_is_refused_and_never_read_as_something_else(
        entries in prop::collection::vec(entry(), 1..60),
        place in any::<prop::sample::Index>(),
        change in 1..=255_u8,
    ) {
        let whole = write(&entries);
        let place = place.index(whole.len());
        let mut changed = whole.clone();
        changed[place] ^= change;
        let (found, error) = read(&changed);
        prop_assert!(error.is_some(), "a changed byte at {place} was not found");
        prop_assert!(entries.starts_with(&found));
        let (found, error) = read(&whole[..place]);
        prop_assert!(error.is_some() || found.len() == entries.len() || found.is_empty());
        prop_assert!(entries.starts_with(&found));
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut file = header_bytes(&header()).unwrap();
        file.extend(bytes);
        let _ = read(&file);
    }
}

#[test]
fn many_entries_are_several_blocks_and_few_bytes() {
    let attributes = |number: u64| {
        vec![
            ("user_id".to_owned(), format!("user-{}", number % 5_000)),
            ("tenant_id".to_owned(), format!("tenant-{}", number % 40)),
            ("endpoint".to_owned(), "/v1/chat/completions".to_owned()),
            ("method".to_owned(), "POST".to_owned()),
            ("ip".to_owned(), format!("203.0.113.{}", number % 250)),
        ]
    };
    let entries: Vec<Flat> = (0..50_000_u64)
        .map(|number| {
            let at = 1_790_000_000_000_000_000 + number * 1_234_567;
            (
                at,
                0,
                false,
                [None, Some(number % 900)],
                Some("per-user".to_owned()),
                attributes(number),
            )
        })
        .collect();
    let file = write(&entries);
    let (found, error) = read(&file);
    assert!(error.is_none());
    assert_eq!(found.len(), entries.len());
    assert!(found == entries);
    let each = file.len() / entries.len();
    assert!(each <= 20, "{each} bytes each");
}

#[test]
fn what_happens_after_a_decision_is_read_as_it_was_written() {
    let used = Used { rule_id: "per-user", tag: "fixed_window+60s", used: 7 };
    let entries = [
        Entry {
            at: 5,
            kind: Kind::Rules,
            names: vec!["shadow", "{\"rules\":[]}"],
            ..Entry::default()
        },
        Entry {
            at: 6,
            hold: 9,
            ttl: Some(60),
            refunds: Refunds::Always,
            attributes: vec![("user_id", "ann")],
            used: vec![used],
            ..Entry::default()
        },
        Entry { at: 7, kind: Kind::Settled, hold: 9, part: Part::Charges, ..Entry::default() },
        Entry { at: 8, kind: Kind::Reset, names: vec!["per-user"], ..Entry::default() },
    ];
    let mut file = header_bytes(&header()).unwrap();
    let mut writer = Writer::default();
    for entry in &entries {
        assert!(writer.push(entry).is_none());
    }
    file.extend(writer.finish().unwrap());
    let mut reader = Reader::open(file.as_slice()).unwrap();
    for entry in &entries {
        assert_eq!(reader.next_entry().unwrap().as_ref(), Some(entry));
    }
    assert!(reader.next_entry().unwrap().is_none());
}

#[test]
fn a_newer_version_is_named() {
    let file = header_bytes(&Header { version: VERSION + 1, ..header() }).unwrap();
    let error = read(&file).1.unwrap();
    assert!(matches!(error, ReadError::NewerVersion(_)), "{error}");
    let file = header_bytes(&Header { version: VERSION - 1, ..header() }).unwrap();
    assert!(matches!(read(&file).1, Some(ReadError::OlderVersion(1))));
    assert!(matches!(read(b"GET / HTTP/1.1\r\n").1, Some(ReadError::NoRecording)));
}

#[test]
fn dropped_decisions_are_counted() {
    let mut file = header_bytes(&header()).unwrap();
    let mut writer = Writer::default();
    writer.add_dropped(3);
    file.extend(writer.finish().unwrap());
    writer.add_dropped(4);
    file.extend(writer.finish().unwrap());
    assert!(writer.finish().is_none());
    let mut reader = Reader::open(file.as_slice()).unwrap();
    assert!(reader.next_entry().unwrap().is_none());
    assert_eq!(reader.dropped(), 7);
}

#[test]
fn a_sample_has_about_its_share_of_values_and_always_the_same() {
    let sample = Sample { per_million: 250_000, by: Some("tenant_id".to_owned()) };
    let kept = (0..10_000).filter(|number| sample.has(&format!("tenant-{number}"))).count();
    assert!((2_300..=2_700).contains(&kept), "{kept}");
    // Part of the format: all nodes, and all later versions, must choose the same values.
    let chosen: Vec<u32> = (0..12).filter(|number| sample.has(&number.to_string())).collect();
    assert_eq!(chosen, CHOSEN);
    assert!(Sample::ALL.has("") && !Sample { per_million: 0, by: None }.has("a"));
}

/// Of the numbers below 12, those in a sample of a quarter.
const CHOSEN: [u32; 6] = [3, 5, 6, 7, 8, 9];
