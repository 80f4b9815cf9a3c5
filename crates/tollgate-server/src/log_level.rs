//! The level of the log, changed while the process runs. The log belongs to the process, so there is one.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::config::LogLevel;

/// Changes the level of the log.
type Change = Box<dyn Fn(LogLevel) + Send + Sync>;

static CHANGE: OnceLock<Change> = OnceLock::new();
static CHANGED_TO: Mutex<Option<LogLevel>> = Mutex::new(None);

/// Says how the level of this process's log is changed. Called once, by the code that starts the log.
pub fn on_log_level(change: impl Fn(LogLevel) + Send + Sync + 'static) {
    // A second log in one process would be nobody's.
    let _ = CHANGE.set(Box::new(change));
}

/// Changes the level; false if there is no log to change.
pub(crate) fn set(level: LogLevel) -> bool {
    let Some(change) = CHANGE.get() else { return false };
    change(level);
    *CHANGED_TO.lock() = Some(level);
    true
}

/// What it was changed to last.
pub(crate) fn changed_to() -> Option<LogLevel> {
    *CHANGED_TO.lock()
}
