//! The requests of all files in the order of their time.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Nanos, SECOND};
use tollgate_policy::Known;

use crate::error::BacktestError;
use crate::format::{Format, Parser};
use crate::lines::{Line, Lines};
use crate::mapping::Mapping;
use crate::record::{Malformed, Record};
use crate::recorded::{Recorded, Samples};
use crate::report::{Input, MalformedLine};
use crate::table::sanitized;

/// The most files that are merged at once.
pub const MAX_FILES: usize = 256;

/// Lines that are late by up to so much are sorted into their place: servers write a line when a request
/// ends.
pub const REORDER_WINDOW: Nanos = 10 * SECOND;

/// The most requests that wait to be sorted. With more in a window it gets shorter.
const MAX_WAITING: usize = 32_768;

/// So many lines are looked at to find out the format of a file.
const MAX_DETECTION_LINES: u64 = 100;

/// So many malformed lines are shown.
const MAX_SHOWN: usize = 5;

/// So much of a malformed line is shown.
const MAX_EXCERPT_CHARS: usize = 160;

/// What went wrong with lines, and some of them.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) input: Input,
}

impl Faults {
    pub(crate) fn add(&mut self, file: &str, line: u64, problem: Malformed, text: &str) {
        self.input.malformed += 1;
        let reason = problem.reason();
        *self.input.malformed_by_reason.entry(reason).or_default() += 1;
        if self.input.malformed_lines.len() < MAX_SHOWN {
            let text = excerpt(text);
            let (file, reason) = (sanitized(file), reason.to_owned());
            self.input.malformed_lines.push(MalformedLine { file, line, reason, text });
        }
    }
}

/// The beginning of a line, without what a terminal would obey.
fn excerpt(text: &str) -> String {
    let cut: String = text.chars().take(MAX_EXCERPT_CHARS).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", sanitized(&cut))
}

/// What a file holds.
enum Content {
    Lines(Lines),
    Recording(Box<Recorded>),
}

/// The requests of one file.
struct Source {
    index: u32,
    name: String,
    content: Content,
    parser: Option<Parser>,
    first_line: String,
    unrecognized: u64,
    /// The next request.
    head: Option<Box<Record>>,
}

/// The requests of all files in the order of their time.
pub(crate) struct Traffic {
    sources: Vec<Source>,
    format: Format,
    mapping: Mapping,
    /// Read, and waiting for earlier ones; in the order of time.
    waiting: VecDeque<Box<Record>>,
    #[expect(
        clippy::vec_box,
        reason = "records move between queues: boxes move, their content stays"
    )]
    unused: Vec<Box<Record>>,
    highest: Nanos,
    reached: Nanos,
    read_bytes: Arc<AtomicU64>,
    pub(crate) total_bytes: u64,
    pub(crate) faults: Faults,
    pub(crate) samples: Samples,
}

impl Traffic {
    /// Opens all files and finds out their formats.
    pub(crate) fn open(
        files: &[PathBuf],
        format: Format,
        mapping: &Mapping,
    ) -> Result<Self, BacktestError> {
        if files.len() > MAX_FILES {
            return Err(BacktestError::TooManyFiles);
        }
        let mut traffic = Self {
            sources: Vec::new(),
            format,
            mapping: mapping.clone(),
            waiting: VecDeque::new(),
            unused: Vec::new(),
            highest: 0,
            reached: 0,
            read_bytes: Arc::default(),
            total_bytes: 0,
            faults: Faults::default(),
            samples: Samples::default(),
        };
        for path in files {
            let name = path.display().to_string();
            let unreadable =
                |source| BacktestError::Unreadable { file: path.display().to_string(), source };
            traffic.total_bytes += path.metadata().map_err(unreadable)?.len();
            let content = match Recorded::open(path, format, &traffic.read_bytes)? {
                Some(recorded) => {
                    traffic.samples.add(recorded.sample());
                    Content::Recording(Box::new(recorded))
                }
                None => Content::Lines(Lines::open(path, &traffic.read_bytes).map_err(unreadable)?),
            };
            let mut source = Source {
                index: traffic.sources.len() as u32,
                name,
                content,
                parser: None,
                first_line: String::new(),
                unrecognized: 0,
                head: None,
            };
            traffic.advance(&mut source)?;
            traffic.faults.input.files += 1;
            traffic.sources.push(source);
        }
        Ok(traffic)
    }

    /// How much of the files was read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// The next request in the order of time. One that is late beyond the window comes as soon as it is
    /// read, and is counted.
    pub(crate) fn next(&mut self) -> Result<Option<Box<Record>>, BacktestError> {
        loop {
            let is_due = self.waiting.front().is_some_and(|first| {
                first.at.saturating_add(REORDER_WINDOW) <= self.highest
                    || self.waiting.len() >= MAX_WAITING
            });
            if is_due || !self.pull()? {
                let next = self.waiting.pop_front();
                if let Some(record) = &next {
                    self.faults.input.late += u64::from(record.at < self.reached);
                    self.reached = self.reached.max(record.at);
                }
                return Ok(next);
            }
        }
    }

    /// Counts a request that cannot be decided as malformed.
    pub(crate) fn reject(&mut self, record: &Record, problem: Malformed) {
        let (source, line) = record.place;
        let name = self.sources.get(source as usize).map_or("", |source| source.name.as_str());
        self.faults.add(name, line, problem, record.get(Known::Endpoint));
    }

    /// Takes a request back, to use its room again.
    pub(crate) fn reuse(&mut self, record: Box<Record>) {
        if self.unused.len() < MAX_WAITING {
            self.unused.push(record);
        }
    }

    /// Reads one more request; `false` at the end of all files.
    fn pull(&mut self) -> Result<bool, BacktestError> {
        let times = self.sources.iter().map(|source| source.head.as_ref().map(|head| head.at));
        let earliest = times.enumerate().filter_map(|(place, at)| Some((at?, place))).min();
        let Some((_, place)) = earliest else { return Ok(false) };
        let mut sources = std::mem::take(&mut self.sources);
        let mut advanced = Ok(());
        if let Some(source) = sources.get_mut(place) {
            if let Some(record) = source.head.take() {
                self.enqueue(record);
            }
            advanced = self.advance(source);
        }
        self.sources = sources;
        advanced.map(|()| true)
    }

    fn enqueue(&mut self, record: Box<Record>) {
        let is_sorted = self.waiting.back().is_none_or(|last| last.at <= record.at);
        self.highest = self.highest.max(record.at);
        if is_sorted {
            return self.waiting.push_back(record);
        }
        let is_emitted = record.at < self.reached;
        self.faults.input.reordered += u64::from(!is_emitted);
        let place = self.waiting.partition_point(|other| other.at <= record.at);
        self.waiting.insert(place, record);
    }

    /// Reads up to the next request.
    fn advance(&mut self, source: &mut Source) -> Result<(), BacktestError> {
        let mut record = self.unused.pop().unwrap_or_default();
        if let Content::Recording(recorded) = &mut source.content {
            let is_entry = recorded.next(&source.name, &mut record, &mut self.faults);
            record.place = (source.index, recorded.number);
            source.head = is_entry.then_some(record);
            return Ok(());
        }
        loop {
            let Content::Lines(lines) = &mut source.content else { return Ok(()) };
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return source.check_recognized(),
                Err(error) => {
                    // A truncated or damaged file: what was read before counts.
                    let note = format!("{} ends early: {error}", sanitized(&source.name));
                    self.faults.input.notes.push(note);
                    return source.check_recognized();
                }
            };
            self.faults.input.lines += 1;
            record.clear();
            let Line::Text(text) = line else {
                let number = lines.number;
                self.faults.add(&source.name, number, Malformed::LineTooLong, "");
                continue;
            };
            if source.parser.is_none() {
                if source.first_line.is_empty() {
                    source.first_line = excerpt(text);
                }
                source.parser = recognize(
                    &source.name,
                    text,
                    self.format,
                    &self.mapping,
                    source.unrecognized == 0,
                )?;
                if source.parser.as_ref().is_some_and(Parser::has_header) {
                    self.faults.input.lines -= 1;
                    continue;
                }
            }
            let parsed = if let Some(parser) = &mut source.parser {
                parser.parse(text, &mut record)
            } else {
                source.unrecognized += 1;
                Err(Malformed::Form("it has no known format"))
            };
            match parsed {
                Ok(()) => {
                    record.place = (source.index, lines.number);
                    source.head = Some(record);
                    return Ok(());
                }
                Err(problem) => {
                    let text = text.to_owned();
                    self.faults.add(&source.name, lines.number, problem, &text);
                    if source.unrecognized > MAX_DETECTION_LINES {
                        return source.check_recognized();
                    }
                }
            }
        }
    }
}

impl Source {
    /// A file with lines of which none has a known format is a mistake.
    fn check_recognized(&self) -> Result<(), BacktestError> {
        if self.parser.is_some() || self.unrecognized == 0 {
            return Ok(());
        }
        Err(BacktestError::UnknownFormat {
            file: self.name.clone(),
            first_line: self.first_line.clone(),
        })
    }
}

/// The parser of the format that is stated, or that this line has.
fn recognize(
    file: &str,
    line: &str,
    format: Format,
    mapping: &Mapping,
    is_first: bool,
) -> Result<Option<Parser>, BacktestError> {
    let format = match format {
        Format::Auto => match Format::detect(line, mapping, is_first) {
            Some(format) => format,
            None => return Ok(None),
        },
        stated => stated,
    };
    Parser::new(format, mapping, line).map(Some).map_err(|columns| BacktestError::NoTimeColumn {
        file: file.to_owned(),
        columns: excerpt(&columns),
    })
}
