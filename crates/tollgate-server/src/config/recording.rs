//! Whether decisions are recorded, which, and where.

use std::path::PathBuf;

use serde::Serialize;
use tollgate_core::{Nanos, SECOND};
use tollgate_recording::Sample;

use super::Config;
use super::read::Reader;
use crate::recorder::RecorderOptions;

/// The shortest and the longest age.
const AGES: std::ops::RangeInclusive<Nanos> = 60 * SECOND..=3_650 * 86_400 * SECOND;

/// The values of `recording`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingConfig {
    /// Where the files are; none: nothing is recorded.
    pub dir: Option<PathBuf>,
    /// How many bytes they may take.
    pub max_bytes: u64,
    /// How old they may become.
    pub max_age: Nanos,
    /// Which part of the traffic.
    pub sample: Sample,
}

impl RecordingConfig {
    /// What the recorder is to do, if anything.
    pub(crate) fn options(&self) -> Option<RecorderOptions> {
        Some(RecorderOptions {
            dir: self.dir.clone()?,
            max_bytes: self.max_bytes,
            max_age: self.max_age,
            sample: self.sample.clone(),
        })
    }
}

/// Checks `recording`.
pub(super) fn check(reader: &mut Reader) -> RecordingConfig {
    let dir = reader.optional_path("recording.dir").map(|said| said.value);
    let max_bytes = reader.number("recording.max_bytes", 1 << 20..=1 << 40);
    let parse =
        |text: &str| tollgate_policy::parse_duration(text).ok().filter(|age| AGES.contains(age));
    let wanted = "a length such as 12h or 7d, from 1m to 3650d";
    let max_age = reader.parsed("recording.max_age", wanted, parse).map_or(0, |said| said.value);
    let origin = reader.origin("recording.sample");
    let share = reader.fraction("recording.sample", 0.0..=1.0);
    #[expect(clippy::cast_sign_loss, reason = "from 0 to a million")]
    let per_million = (share * 1e6).round() as u32;
    let by = reader.optional_text("recording.by", "the name of an attribute or null");
    if share < 1.0
        && by.is_none()
        && let Some(origin) = origin
    {
        let message = "needs recording.by, the attribute whose values are sampled: a part of the requests of one client \
                       says nothing about its limits";
        reader.wrong(&origin, "recording.sample", message);
    }
    let by = by.map(|said| said.value).filter(|_| share < 1.0);
    RecordingConfig { dir, max_bytes, max_age, sample: Sample { per_million, by } }
}

#[derive(Serialize)]
pub(super) struct ShownRecording {
    dir: Option<String>,
    max_bytes: u64,
    max_age: String,
    sample: f64,
    by: Option<String>,
}

impl Config {
    pub(super) fn shown_recording(&self) -> ShownRecording {
        let RecordingConfig { dir, max_bytes, max_age, sample } = &self.recording;
        ShownRecording {
            dir: dir.as_ref().map(|dir| dir.display().to_string()),
            max_bytes: *max_bytes,
            max_age: format!("{}s", max_age / SECOND),
            sample: sample.share(),
            by: sample.by.clone(),
        }
    }
}
