//! What the control plane tells about itself, as plain atomics.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Where the rules in force come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere: the built-in default.
    Builtin,
    /// A file of the user's.
    File,
    /// The last known good set on disk.
    Kept,
    /// The database.
    Database,
    /// The Redis that the control plane tells sets through.
    Redis,
}

impl Source {
    const ALL: [Self; 5] = [Self::Builtin, Self::File, Self::Kept, Self::Database, Self::Redis];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::File => "file",
            Self::Kept => "kept",
            Self::Database => "database",
            Self::Redis => "redis",
        }
    }
}

/// What happened to rule sets and to the audit log.
#[derive(Debug, Default)]
pub(crate) struct ControlFigures {
    pub(crate) version: AtomicI64,
    source: AtomicU64,
    /// When the source last said that nothing is newer, in seconds since 1970.
    pub(crate) last_success: AtomicI64,
    pub(crate) load_failures: AtomicU64,
    /// When this process began to wait for the source, in seconds since 1970.
    pub(crate) since: AtomicI64,
    /// Whether the source answers.
    pub(crate) is_connected: AtomicBool,
    pub(crate) decisions_written: AtomicU64,
    /// What could not be written in time.
    pub(crate) decisions_lost: AtomicU64,
}

impl ControlFigures {
    pub(crate) fn source(&self) -> Source {
        let number = self.source.load(Ordering::Relaxed) as usize;
        Source::ALL.get(number).copied().unwrap_or(Source::Builtin)
    }

    /// A set came into force.
    pub(crate) fn in_force(&self, source: Source, version: i64) {
        let number = Source::ALL.iter().position(|one| *one == source).unwrap_or_default();
        self.source.store(number as u64, Ordering::Relaxed);
        self.version.store(version, Ordering::Relaxed);
    }

    /// The source said that nothing is newer, or gave what is.
    pub(crate) fn success(&self) {
        let now = crate::admin::now() / 1_000;
        self.last_success.store(now, Ordering::Relaxed);
        self.is_connected.store(true, Ordering::Relaxed);
    }

    /// The source did not answer. True if it did before.
    pub(crate) fn lost(&self) -> bool {
        self.is_connected.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn failure(&self) {
        self.load_failures.fetch_add(1, Ordering::Relaxed);
    }
}
