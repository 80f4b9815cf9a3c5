//! A node that has the database: it follows it, and publishes changes to the others.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_control::{Control, ControlError, Current, RepositoryError, Waker};

use super::{ControlStartError, Keeper, Progress, StartProgress};

/// How often the database is asked for its revision, also where it sends word: words get lost.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long to wait before a database that does not answer is asked again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// How long a database may take to answer before operators are informed. Calls have longer deadlines of their own, since
/// they may move many rows.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// What an operator reads about a database that does not answer.
const DATABASE_SILENT: &str = "the database does not answer; decisions continue by the rules in \
    force, and rules cannot be changed: check that it runs and that this node reaches it; the log \
    has the cause";
/// How long to wait before a database that has failed is verified again: all of a file is read.
const VERIFY_EVERY: Duration = Duration::from_secs(30);

const DECISIONS_GO_ON: &str = "decisions go on by the rules in force";

/// Waits for this call, and notices once if it takes longer than `limit`.
async fn noticing_silence<T>(
    limit: Duration,
    call: impl Future<Output = T>,
    notice: impl FnOnce(),
) -> T {
    let mut call = pin!(call);
    if let Ok(answer) = tokio::time::timeout(limit, &mut call).await {
        return answer;
    }
    notice();
    call.await
}

impl Keeper {
    /// Serves the admin API: makes the schema, the first token, and puts every change in force.
    pub(super) async fn lead(self: &Arc<Self>, control: &Arc<Control>, first: StartProgress) {
        self.open(control, &first).await;
        let publishing = Arc::clone(self);
        let sets = control.watch();
        let publish = tokio::spawn(async move { publishing.publish_all(sets).await });
        self.follow(control).await;
        publish.abort();
    }

    /// Follows the database and changes nothing in it.
    pub(super) async fn follow_database(
        self: &Arc<Self>,
        control: &Arc<Control>,
        first: &StartProgress,
    ) {
        let asked = control.repository().revision();
        noticing_silence(SILENT_AFTER, asked, || self.is_silent()).await.ok();
        let asked = control.current();
        match noticing_silence(SILENT_AFTER, asked, || self.is_silent()).await {
            Ok(current) => self.came(&current).await,
            Err(error) => self.went(&error),
        }
        let _ = first.send(Ok(Progress::Ready));
        self.follow(control).await;
    }

    async fn open(&self, control: &Arc<Control>, first: &StartProgress) {
        let configured = self.around.config.control.first_token.text.clone();
        let variable = || std::env::var("TOLLGATE_ADMIN_TOKEN").ok();
        let given = configured.or_else(variable).filter(|token| !token.is_empty());
        loop {
            let opened = async {
                let repository = control.repository();
                let asked = repository.schema_version();
                noticing_silence(SILENT_AFTER, asked, || self.is_silent()).await?;
                // Before the migration, which may take minutes: the start waits for it.
                let _ = first.send(Ok(Progress::Connected));
                let migrated = {
                    let _migrating = self.around.figures.migrating();
                    repository.migrate().await
                };
                migrated?;
                let asked = control.open();
                let current = noticing_silence(SILENT_AFTER, asked, || self.is_silent()).await?;
                let token = control.first_token(given.as_deref()).await?;
                Ok::<_, ControlError>((current, token))
            };
            match opened.await {
                Ok((current, token)) => {
                    if let Some(token) = token {
                        let mut announced = self.around.announced.clone();
                        tokio::spawn(async move {
                            let _ = announced.wait_for(|announced| *announced).await;
                            crate::serve::show_first_token(&token);
                        });
                    }
                    self.around.figures.verified();
                    self.came(&current).await;
                    let _ = first.send(Ok(Progress::Ready));
                    return;
                }
                Err(error @ ControlError::Invalid(_)) => {
                    let _ = first.send(Err(ControlStartError::Token(error.to_string())));
                    // The server that receives this error ends the process.
                    return std::future::pending().await;
                }
                Err(error) => {
                    let _ = first.send(Ok(Progress::Failed));
                    self.went(&error);
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Looks at the database whenever it sends word, and now and then.
    async fn follow(&self, control: &Arc<Control>) {
        let mut sets = control.watch();
        let mut waker: Option<Box<dyn Waker>> = None;
        let mut verify_at = Instant::now();
        loop {
            if waker.is_none() {
                let asked = control.repository().waker();
                let heard = noticing_silence(SILENT_AFTER, asked, || self.is_silent()).await;
                waker = heard.ok().flatten();
            }
            let word = async {
                match &mut waker {
                    Some(waker) => waker.wait().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            let is_heard = tokio::select! {
                is_heard = word => is_heard,
                // A change of our own.
                _ = sets.changed() => true,
                () = tokio::time::sleep(LOOK_EVERY) => true,
            };
            if !is_heard {
                waker = None;
            }
            let asked = control.current();
            match noticing_silence(SILENT_AFTER, asked, || self.is_silent()).await {
                Ok(current) => {
                    if self.around.figures.is_unverified() && Instant::now() >= verify_at {
                        self.verify(control).await;
                        verify_at = Instant::now() + VERIFY_EVERY;
                    }
                    self.came(&current).await;
                }
                Err(error) => {
                    self.went(&error);
                    waker = None;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
            sets.mark_unchanged();
        }
    }

    /// Looks whether a database that has failed can be used again.
    async fn verify(&self, control: &Arc<Control>) {
        // A data node has read all that it reads, and may have no right to write.
        if !self.around.config.has_control() {
            return self.around.figures.verified();
        }
        match control.repository().verify().await {
            Ok(()) => {
                self.around.figures.verified();
                tracing::info!("the database can be read and written again");
            }
            Err(error) => {
                self.complain(format!("the database cannot be used; {DECISIONS_GO_ON}: {error}"));
                self.around.figures.database_failed(&error.into());
            }
        }
    }

    async fn came(&self, current: &Arc<Current>) {
        let figures = &self.around.figures;
        if !figures.is_connected.load(std::sync::atomic::Ordering::Relaxed) {
            tracing::info!(revision = current.revision(), "the database answers");
            *self.complaint.lock() = None;
        }
        figures.success();
        if !figures.is_unverified() {
            figures.report_incident("database", None);
        }
        // The set came into force when it was read.
        self.installer.keep().await;
    }

    /// The database has not answered yet. The call goes on.
    fn is_silent(&self) {
        self.around.figures.lost();
        self.around.figures.report_incident("database", Some(DATABASE_SILENT.to_owned()));
        self.complain(format!("the database does not answer; {DECISIONS_GO_ON}"));
    }

    fn went(&self, error: &ControlError) {
        self.around.figures.failure();
        self.around.figures.lost();
        // The causes that drivers report may name hosts and users: they are for the log, and readiness is public.
        self.around.figures.report_incident("database", Some(DATABASE_SILENT.to_owned()));
        self.around.figures.database_failed(error);
        // The words of drivers change with every attempt; the problem is logged once.
        match error {
            ControlError::Repository(RepositoryError::Unavailable(cause)) => {
                let complaint = format!("the database does not answer; {DECISIONS_GO_ON}");
                self.complain_with(complaint, cause);
            }
            other => {
                self.complain(format!("the database cannot be used; {DECISIONS_GO_ON}: {other}"));
            }
        }
        tracing::debug!(%error, "the database does not answer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long before the call gives up.
    #[tokio::test(start_paused = true)]
    async fn a_database_that_hangs_is_noticed_within_seconds() {
        assert!(SILENT_AFTER <= Duration::from_secs(5));
        let began = tokio::time::Instant::now();
        let mut noticed = Vec::new();
        let hanging = tokio::time::sleep(Duration::from_secs(30));
        noticing_silence(SILENT_AFTER, hanging, || noticed.push(began.elapsed())).await;
        assert_eq!(began.elapsed().as_secs(), 30, "the call goes on");
        assert_eq!(noticed.len(), 1);
        assert!(noticed.iter().all(|after| after.as_secs() == SILENT_AFTER.as_secs()));
        let answered = noticing_silence(SILENT_AFTER, async { 7 }, || noticed.clear()).await;
        assert_eq!((answered, noticed.len()), (7, 1));
    }
}
