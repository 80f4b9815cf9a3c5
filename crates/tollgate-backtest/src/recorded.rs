//! Recordings of nodes as traffic.

use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tollgate_engine::Amounts;
use tollgate_policy::RuleSet;
use tollgate_recording::{Entry, Kind, MAGIC, ReadError, Reader, Sample, Verdict};

use crate::error::BacktestError;
use crate::format::Format;
use crate::lines::Counted;
use crate::record::Record;
use crate::replay::TOO_MANY_REQUESTS;
use crate::report::{Input, percent};
use crate::table::sanitized;
use crate::traffic::Faults;

/// At most so many rules are named in a note.
const MAX_NAMED_RULES: usize = 5;

/// The requests of one recording.
pub(crate) struct Recorded {
    reader: Reader<BufReader<Counted>>,
    /// The number of the entry that was read last, from 1 on.
    pub(crate) number: u64,
    is_ended: bool,
}

impl Recorded {
    /// Opens a recording; `None` if the file holds something else and its format is not stated.
    pub(crate) fn open(
        path: &Path,
        format: Format,
        progress: &Arc<AtomicU64>,
    ) -> Result<Option<Self>, BacktestError> {
        let file = || path.display().to_string();
        let unreadable = |source| BacktestError::Unreadable { file: file(), source };
        match format {
            Format::Auto => {
                let mut begin = Vec::new();
                let opened = std::fs::File::open(path).map_err(unreadable)?;
                let length = MAGIC.len() as u64;
                opened.take(length).read_to_end(&mut begin).map_err(unreadable)?;
                if begin != MAGIC {
                    return Ok(None);
                }
            }
            Format::Recording => {}
            _ => return Ok(None),
        }
        let source = BufReader::new(Counted::open(path, progress).map_err(unreadable)?);
        let reader = Reader::open(source)
            .map_err(|source| BacktestError::Recording { file: file(), source })?;
        Ok(Some(Self { reader, number: 0, is_ended: false }))
    }

    /// Which part of the traffic it holds.
    pub(crate) const fn sample(&self) -> &Sample {
        &self.reader.header().sample
    }

    /// Reads the next request; `false` at the end. A damaged file ends early, with a note.
    pub(crate) fn next(&mut self, name: &str, record: &mut Record, faults: &mut Faults) -> bool {
        while !self.is_ended {
            let entry = match self.reader.next_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => {
                    self.end(name, None, &mut faults.input);
                    break;
                }
                Err(error) => {
                    self.end(name, Some(&error), &mut faults.input);
                    break;
                }
            };
            self.number += 1;
            faults.input.lines += 1;
            fill(record, &entry);
            faults.input.lines -= u64::from(entry.kind != Kind::Decision);
            match record.check() {
                Ok(()) => return true,
                Err(problem) => faults.add(name, self.number, problem, ""),
            }
        }
        false
    }

    fn end(&mut self, name: &str, error: Option<&ReadError>, input: &mut Input) {
        self.is_ended = true;
        let name = sanitized(name);
        if let Some(error) = error {
            input.notes.push(format!("{name} ends early: {error}"));
        }
        let dropped = self.reader.dropped();
        if dropped > 0 {
            input.notes.push(format!(
                "{name}: the node did not record {dropped} decisions, because they came faster than it writes"
            ));
        }
    }
}

fn fill(record: &mut Record, entry: &Entry<'_>) {
    record.clear();
    record.set_time(Some(entry.at), 1);
    for (name, value) in &entry.attributes {
        record.set_recorded(name, value);
    }
    let tollgate_recording::Amounts { cost, tokens, input_tokens, output_tokens, cached_tokens } =
        entry.amounts;
    record.amounts =
        Amounts { cost, tokens, input_tokens, output_tokens, cached_tokens, money: None };
    let event = &mut record.event;
    let Entry { kind, hold, part, ttl, refunds, .. } = *entry;
    (event.kind, event.hold, event.part) = (kind, hold, part);
    (event.ttl, event.refunds) = (ttl, refunds);
    let used = entry.used.iter();
    event.used.extend(used.map(|one| (one.rule_id.to_owned(), one.tag.to_owned(), one.used)));
    event.names.extend(entry.names.iter().map(|name| (*name).to_owned()));
    if kind != Kind::Decision {
        return;
    }
    // A request that was queued met a limit that refused it, too.
    let was_refused = matches!(entry.verdict, Verdict::Refused | Verdict::Queued);
    record.was_refused = Some(was_refused);
    record.status = was_refused.then_some(TOO_MANY_REQUESTS);
}

/// Which parts of the traffic the recordings hold.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    parts: BTreeSet<(String, String)>,
}

impl Samples {
    pub(crate) fn add(&mut self, sample: &Sample) {
        if !sample.is_all() {
            let by = sample.by.clone().unwrap_or_default();
            self.parts.insert((by, percent(sample.share())));
        }
    }

    /// What a sample cannot answer: how full the counters of rules are that other requests share.
    pub(crate) fn notes(&self, rules: &RuleSet) -> Vec<String> {
        let mut notes = Vec::new();
        for (by, share) in &self.parts {
            let by = sanitized(by);
            notes.push(format!("the recording holds {share} of the values of {by}"));
            let shared = rules
                .rules()
                .iter()
                .filter(|rule| !rule.key.iter().any(|part| part.name() == by.as_str()));
            let names: Vec<&str> = shared.map(|rule| rule.id.as_str()).collect();
            if let Some(shown) = names.get(..names.len().min(MAX_NAMED_RULES))
                && !shown.is_empty()
            {
                let more = names.len() - shown.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                notes.push(format!(
                    "rules that are not keyed by {by} cannot be judged from a sample by it: {}{more}",
                    sanitized(&shown.join(", "))
                ));
            }
        }
        notes
    }
}
