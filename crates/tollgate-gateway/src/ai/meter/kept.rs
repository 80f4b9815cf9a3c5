//! Responses that are made in the background: their charge is kept until they are over.

use super::super::background::Progress;
use super::{Ending, Meter, Reading, Work};

impl Meter {
    /// How far the response is that the answer is about.
    pub(super) fn progress(&self) -> Progress {
        match &self.reading {
            Reading::Nothing => Progress::Unknown,
            Reading::Json(scan) => scan.progress(),
            Reading::Events(_) if self.reported.has_failed => Progress::Failed,
            Reading::Events(_) if self.reported.is_done => Progress::Ended,
            Reading::Events(_) => Progress::UnderWay,
        }
    }

    /// Whether the upstream works on, although the answer has ended.
    pub(super) fn is_under_way(&self) -> bool {
        let Ending::Keep { is_wanted, .. } = &self.ending else { return false };
        let has_ended = self.work != Work::Answered;
        if has_ended || self.reported.usage.is_some() || self.reported.is_done {
            return false;
        }
        match self.progress() {
            Progress::Ended | Progress::Failed => false,
            // A stream that is left is no longer made, unless that was wanted.
            Progress::UnderWay => *is_wanted || matches!(self.reading, Reading::Json(_)),
            Progress::Unknown => *is_wanted,
        }
    }

    /// Keeps what is reserved for a response that is made in the background. Without an id nobody can ask for it, and
    /// the estimate stays charged.
    pub(super) fn keep(&mut self) {
        if let Some(more) = &mut self.more {
            more.end(&mut self.pending_charges);
        }
        let pending_charges = std::mem::take(&mut self.pending_charges);
        let id = match &self.reading {
            Reading::Json(scan) => scan.id(),
            _ => self.reported.id.as_deref(),
        };
        if let (Ending::Keep { background, owner, source, .. }, Some(id)) = (&self.ending, id) {
            background.keep(id, owner.clone(), source.clone(), pending_charges);
        }
    }
}
