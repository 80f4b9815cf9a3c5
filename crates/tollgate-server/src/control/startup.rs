//! How long a start waits for the first rules of the database.
//!
//! A node must start whatever state its database is in. With rules of its own (a file, or the last
//! known set) it waits [`PATIENCE`] for newer ones. Without any it waits up to [`LOADING`] while the
//! database is being read, and no longer than [`PATIENCE`] once a read has failed. Both are counted
//! from the start: a database that accepts connections and fails every read extends neither. The
//! embedded database counts as being read from the start: it is a file, and slow only if the disk is.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::ControlStartError;
use super::figures::ControlFigures;

/// How long a start waits for the database before it continues with the rules that it has.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a start waits for rules that are being read, where there are no others.
const LOADING: Duration = Duration::from_secs(30);

/// What an operator reads about a database whose rules did not arrive in that time.
const DATABASE_NOT_READ: &str = "the database has not been read since the start; decisions continue by the rules that this \
    node had, and rules cannot be changed: if this lasts, check that the database answers and that no other client locks its \
    tables; the log has the cause";

/// What the control plane reports during its start.
#[derive(Debug)]
pub(super) enum Progress {
    /// The database answers; its schema is brought up to date, and the rules are read.
    Connected,
    /// The rules could not be read; the control plane tries again.
    Failed,
    /// The rules are in force.
    Ready,
}

/// Where the control plane reports to; an error means that the process cannot start.
pub(super) type StartProgress = mpsc::UnboundedSender<Result<Progress, ControlStartError>>;

/// The wait for the first rules.
pub(crate) struct FirstRules {
    progress: mpsc::UnboundedReceiver<Result<Progress, ControlStartError>>,
    /// Whether a rule file or the last known set is in force already.
    has_rules: bool,
    /// Whether this node has a database, and whether that is a file of its own.
    has_database: bool,
    is_embedded: bool,
    figures: Arc<ControlFigures>,
}

/// A wait, and where its progress is reported.
pub(super) fn channel(
    has_rules: bool,
    (has_database, is_embedded): (bool, bool),
    figures: Arc<ControlFigures>,
) -> (StartProgress, FirstRules) {
    let (sender, progress) = mpsc::unbounded_channel();
    (sender, FirstRules { progress, has_rules, has_database, is_embedded, figures })
}

impl FirstRules {
    /// Returns when the rules are in force, or when the time for it has passed.
    pub(crate) async fn wait(mut self) -> Result<(), ControlStartError> {
        let began = Instant::now();
        let is_reading = self.is_embedded && !self.has_rules;
        let mut deadline = began + if is_reading { LOADING } else { PATIENCE };
        loop {
            let progress = tokio::time::timeout_at(deadline, self.progress.recv()).await;
            match progress {
                Ok(Some(Ok(Progress::Ready)) | None) => return Ok(()),
                Ok(Some(Ok(Progress::Connected))) if !self.has_rules => deadline = began + LOADING,
                Ok(Some(Ok(Progress::Connected))) => {}
                Ok(Some(Ok(Progress::Failed))) => deadline = began + PATIENCE,
                Ok(Some(Err(error))) => return Err(error),
                Err(_) => break,
            }
        }
        tracing::warn!(
            source = self.figures.source().name(),
            "the rules of the database could not be read yet: starting with the rules of this \
             source, and trying again"
        );
        if self.has_database {
            self.figures.report_if_none("database", DATABASE_NOT_READ);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn waited(has_rules: bool, reports: Vec<(u64, Progress)>) -> Duration {
        waited_for(has_rules, false, reports).await
    }

    async fn waited_for(
        has_rules: bool,
        is_embedded: bool,
        reports: Vec<(u64, Progress)>,
    ) -> Duration {
        let figures = Arc::new(ControlFigures::default());
        let is_read = reports.iter().any(|(at_ms, progress)| {
            matches!(progress, Progress::Ready)
                && (!has_rules || *at_ms < PATIENCE.as_millis() as u64)
        });
        let (sender, first) = channel(has_rules, (true, is_embedded), Arc::clone(&figures));
        let began = Instant::now();
        tokio::spawn(async move {
            for (at_ms, progress) in reports {
                tokio::time::sleep_until(began + Duration::from_millis(at_ms)).await;
                let _ = sender.send(Ok(progress));
            }
            // The control plane keeps its end.
            std::future::pending::<()>().await;
        });
        first.wait().await.expect("the start continues");
        // Operators read of it as soon as the node serves.
        let incidents = figures.incidents();
        assert_eq!(
            incidents.iter().any(|(kind, _)| *kind == "database"),
            !is_read,
            "{incidents:?}"
        );
        began.elapsed()
    }

    /// A database that connects and fails, twice a second.
    fn broken() -> Vec<(u64, Progress)> {
        (0..100)
            .flat_map(|turn| {
                [(turn * 500, Progress::Connected), (turn * 500 + 10, Progress::Failed)]
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_connects_and_fails_does_not_extend_the_start() {
        for has_rules in [true, false] {
            let waited = waited(has_rules, broken()).await;
            assert!(waited <= PATIENCE + Duration::from_millis(500), "{has_rules}: {waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_read_is_waited_for_only_without_other_rules() {
        let slow = || vec![(100, Progress::Connected), (9_000, Progress::Ready)];
        assert_eq!(waited(false, slow()).await.as_secs(), 9);
        assert_eq!(waited(true, slow()).await, PATIENCE);
        let never = || vec![(100, Progress::Connected)];
        assert_eq!(waited(false, never()).await, LOADING);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_disk_is_waited_for_and_a_damaged_file_is_not() {
        let slow = || vec![(5_000, Progress::Connected), (6_000, Progress::Ready)];
        assert_eq!(waited_for(false, true, slow()).await.as_secs(), 6);
        assert_eq!(waited_for(true, true, slow()).await, PATIENCE);
        let damaged = waited_for(false, true, broken()).await;
        assert!(damaged <= PATIENCE + Duration::from_millis(500), "{damaged:?}");
    }
}
