//! Where rules come from: the database, the others, the disk; and how they come into force here.
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | the thread that does all of it, and the admin API's door |
//! | `install.rs` | a set comes into force, and is kept on disk |
//! | `database.rs` | a node that has the database: it follows it, and publishes changes to the others |
//! | `redis.rs` | sets through Redis: published and fetched |
//! | `installation/` | the figures of all nodes, exchanged and added up |
//! | `roll.rs` | which nodes there are, and how each says it is |
//! | `ownership.rs` | whether nodes that share a Redis have their rules from one owner |
//! | `take_over.rs` | when the rules of another database in Redis are replaced |
//! | `startup.rs` | how long a start waits for the first rules |
//! | `incidents.rs` | states that an operator must see, with their times |
//! | `decisions.rs` | the audit log of decisions, written in batches |
//! | `ledger.rs` | the ledger of usage, each event once |

mod database;
mod decisions;
pub(crate) mod figures;
pub(crate) mod incidents;
mod install;
pub(crate) mod installation;
mod ledger;
mod ownership;
mod redis;
mod roll;
mod signing;
mod startup;
mod take_over;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::watch;
use tollgate_control::{Control, ControlOptions, DatabaseConfig, Repository};
use tollgate_engine::Engine;
use tollgate_store::Store as _;
use tollgate_store::redis::RedisStore;

use crate::admin::Admin;
use crate::audit::AuditTrail;
use crate::config::Config;
use crate::ledger::Ledger;
use crate::recorder::Recorder;
use crate::stores::Stores;
use crate::telemetry::Observed;
use crate::tls::Tls;
pub(crate) use figures::ControlFigures;
pub(crate) use figures::Source;
use install::Installer;
use installation::{Exchange, Installation};
pub(crate) use roll::Roll;
pub(crate) use startup::FirstRules;
use startup::{Progress, StartProgress};

/// The file of the embedded database, in the data directory.
const DATABASE_FILE: &str = "control.db";
/// The file of the last known good set, in the data directory.
const KEPT_FILE: &str = "rules.kept";
/// How long the end may take.
const FAREWELL: Duration = Duration::from_secs(3);

/// What an operator reads about a node whose rules are in a file and whose data directory cannot be used.
const DATA_DIR_UNUSABLE: &str = "the database in the data directory cannot be opened; this node decides \
    by its rule file, keeps nothing on disk and serves no admin API: make the directory writable and \
    restart; the log has the cause";

/// Why there is no control plane.
#[derive(Debug, thiserror::Error)]
pub enum ControlStartError {
    /// The database cannot be used.
    #[error("the database: {0}")]
    Database(#[from] tollgate_control::RepositoryError),
    /// The first admin token cannot be used.
    #[error("{0}")]
    Token(String),
    /// A thread cannot be started.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The control plane of this process, on a thread of its own.
pub(crate) struct ControlPlane {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
    admin: Option<Arc<Admin>>,
}

/// What the control plane works on.
pub(crate) struct Surroundings {
    pub(crate) engine: Arc<Engine<Stores>>,
    pub(crate) config: Arc<Config>,
    pub(crate) figures: Arc<ControlFigures>,
    pub(crate) trail: Option<Arc<AuditTrail>>,
    /// What is known of this node's decisions.
    pub(crate) observed: Arc<Observed>,
    /// What API keys are hashed with.
    pub(crate) api_key_secret: Arc<[u8]>,
    /// What this node is called.
    pub(crate) node: String,
    /// True as soon as standard output says where this process listens.
    pub(crate) announced: watch::Receiver<bool>,
    /// The certificates of the listeners, if they have any.
    pub(crate) tls: Option<Arc<Tls>>,
    /// What settled requests used, if a ledger is kept.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Who records decisions, if they are recorded.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

/// What runs on the thread.
struct Keeper {
    around: Surroundings,
    control: Option<Arc<Control>>,
    /// The Redis that carries sets.
    redis: Option<RedisStore>,
    installer: Arc<Installer>,
    /// What was last complained of.
    complaint: parking_lot::Mutex<Option<String>>,
    /// How often the revision in Redis was looked at.
    looks: std::sync::atomic::AtomicU64,
    roll: Arc<Roll>,
    installation: Arc<Installation>,
    take_over: parking_lot::Mutex<take_over::TakeOver>,
}

impl ControlPlane {
    /// Starts it, with the last known good set in force. [`FirstRules`] waits for those of the
    /// database, for a bounded time.
    pub(crate) fn start(around: Surroundings) -> Result<(Self, FirstRules), ControlStartError> {
        let began = crate::admin::now() / 1_000;
        let (stop, stopped) = watch::channel(false);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let database = database_of(&around.config);
        let repository: Option<Arc<dyn Repository>> = match database {
            Some(database) => {
                let _context = runtime.enter();
                open_database(&database, &around)?
            }
            None => None,
        };
        let control = repository.map(|repository| {
            let secret = Arc::clone(&around.api_key_secret);
            let hide_key = move |key: &str| tollgate_store::api_key_id(&secret, key);
            let stores = around.engine.store().names().to_vec();
            let options = ControlOptions { stores, hide_key: Box::new(hide_key) };
            Arc::new(Control::new(repository, options))
        });
        let roll = Arc::new(Roll::new(&around));
        let redis = around.engine.store().shared().first().map(|store| store.remote().clone());
        let installation = {
            let exchange = exchange(&around.config, redis.as_ref(), control.as_ref());
            let (roll, observed) = (Arc::clone(&roll), Arc::clone(&around.observed));
            Arc::new(Installation::new(roll, observed, exchange))
        };
        let admin = control.as_ref().filter(|_| around.config.has_control()).map(|control| {
            let (engine, config) = (Arc::clone(&around.engine), Arc::clone(&around.config));
            let handle = runtime.handle().clone();
            let installation = Arc::clone(&installation);
            Arc::new(Admin::new(Arc::clone(control), engine, config, handle, installation))
        });
        let kept = around.config.data_dir.as_ref().map(|folder| folder.join(KEPT_FILE));
        // A rule file decides alone; the database then holds tokens, virtual keys and the audit log.
        let has_file = around.config.rules.is_some();
        let installer = Arc::new(Installer::new(&around, kept.filter(|_| !has_file)));
        installer.start_from_kept();
        if let Some(control) = control.as_ref().filter(|_| !has_file) {
            let installer = Arc::clone(&installer);
            control.on_change(move |current| {
                let _ = installer.install(current.compiled.clone(), Source::Database);
            });
        }
        if let Some(control) = control.as_ref().filter(|_| has_file) {
            // Virtual keys are in the database, wherever the rules are.
            let engine = Arc::clone(&around.engine);
            control.on_change(move |current| {
                engine.swap_virtual_keys(current.compiled.rules.virtual_keys());
            });
        }
        // A node without a source does not wait for one, and never counts as stale.
        if control.is_some() || (redis.is_some() && !has_file) {
            around.figures.since.store(began, std::sync::atomic::Ordering::Relaxed);
            if !has_file {
                around.figures.await_rules();
            }
        }
        if control.is_none() && redis.is_none() && !has_file {
            tracing::warn!(
                "no control plane: neither a database nor a Redis is configured; the built-in rules hold"
            );
        }
        let (complaint, looks) = (parking_lot::Mutex::default(), 0.into());
        let take_over = parking_lot::Mutex::default();
        let keeper = Keeper {
            around,
            control,
            redis,
            installer,
            complaint,
            looks,
            roll,
            installation,
            take_over,
        };
        let has_rules = keeper.installer.current().is_some() || has_file;
        let has_database = keeper.control.is_some();
        let is_embedded = has_database && keeper.around.config.control.postgres.url.is_none();
        let figures = Arc::clone(&keeper.around.figures);
        let (progress, first_rules) =
            startup::channel(has_rules, (has_database, is_embedded), figures);
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            runtime.block_on(async {
                keeper.run(stopped, progress).await;
            });
            // Admin calls under way have had their time.
            runtime.shutdown_timeout(Duration::from_millis(100));
        })?;
        Ok((Self { stop, thread, admin }, first_rules))
    }

    /// The admin API, if this node serves it.
    pub(crate) fn admin(&self) -> Option<Arc<Admin>> {
        self.admin.clone()
    }

    /// Writes what is to be written, and waits for it a while.
    pub(crate) fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the control plane had panicked");
        }
    }
}

/// Where nodes exchange their figures: the Redis that they share, or their PostgreSQL.
fn exchange(
    config: &Config,
    redis: Option<&RedisStore>,
    control: Option<&Arc<Control>>,
) -> Option<Exchange> {
    if let Some(redis) = redis {
        return Some(Exchange::Redis(redis.board()));
    }
    config.control.postgres.url.as_ref()?;
    Some(Exchange::Database(Arc::clone(control?.repository())))
}

/// Opens the database. A node that has its rules from a file starts without one: only tokens and the audit log are in it.
fn open_database(
    database: &DatabaseConfig,
    around: &Surroundings,
) -> Result<Option<Arc<dyn Repository>>, ControlStartError> {
    let signer = signing::signer(&around.config);
    match database.open_with(around.config.control.history, signer) {
        Ok(repository) => Ok(Some(repository)),
        Err(error) if around.config.rules.is_some() => {
            tracing::error!(%error, "{DATA_DIR_UNUSABLE}");
            around.figures.failure();
            around.figures.report_incident("database", Some(DATA_DIR_UNUSABLE.to_owned()));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The database of this node; a data node has one only to read from.
fn database_of(config: &Config) -> Option<DatabaseConfig> {
    if let Some(url) = &config.control.postgres.url {
        let password = config.control.postgres.password.text.as_deref();
        return Some(DatabaseConfig::Postgres(with_password(url, password)));
    }
    let folder: &PathBuf = config.data_dir.as_ref().filter(|_| config.has_control())?;
    Some(DatabaseConfig::Sqlite(folder.join(DATABASE_FILE)))
}

/// Brings the schema of this node's database up to date and says its version; none if the configuration
/// gives it no database.
pub fn migrate(config: &Config) -> Result<Option<i64>, ControlStartError> {
    let Some(database) = database_of(config) else { return Ok(None) };
    if let DatabaseConfig::Sqlite(file) = &database
        && let Some(folder) = file.parent()
    {
        std::fs::create_dir_all(folder)?;
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Ok(Some(database.open()?.migrate().await?)) })
}

/// The URL with a password that it does not have itself.
fn with_password(url: &str, password: Option<&str>) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    let Some(password) = password else { return url.to_owned() };
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((user, _)) if user.contains(':') => url.to_owned(),
        Some((user, _)) => {
            let rest = rest.strip_prefix(user).unwrap_or_default();
            format!("{scheme}://{user}:{password}{rest}")
        }
        None => format!("{scheme}://postgres:{password}@{rest}"),
    }
}

impl Keeper {
    async fn run(self, stopped: watch::Receiver<bool>, first: StartProgress) {
        let keeper = Arc::new(self);
        let follow = {
            let (keeper, first) = (Arc::clone(&keeper), first.clone());
            async move {
                match (&keeper.control, keeper.around.config.has_control()) {
                    (Some(control), true) => keeper.lead(control, first).await,
                    (Some(control), false) => keeper.follow_database(control, &first).await,
                    (None, _) => keeper.follow_redis(&first).await,
                }
            }
        };
        let following = tokio::spawn(follow);
        let writing = tokio::spawn(Arc::clone(&keeper).write_decisions(stopped.clone()));
        let storing = tokio::spawn(Arc::clone(&keeper).store_usage(stopped.clone()));
        let recording = tokio::spawn(Arc::clone(&keeper).keep_ledger());
        let calling = tokio::spawn(Arc::clone(&keeper).call_the_roll());
        let watching = tokio::spawn(Arc::clone(&keeper).watch_incidents());
        let reporting = tokio::spawn(Arc::clone(&keeper).publish_figures());
        let mut stopped = stopped;
        let _ = stopped.wait_for(|stopped| *stopped).await;
        following.abort();
        calling.abort();
        watching.abort();
        reporting.abort();
        recording.abort();
        let farewell = async {
            let _ = tokio::join!(writing, storing);
            keeper.installation.report_end().await;
            keeper.installer.keep_now().await;
            if let Some(control) = &keeper.control {
                control.repository().close().await;
            }
        };
        if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
            tracing::warn!("the control plane did not finish in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_put_where_none_is() {
        let put = |url: &str| with_password(url, Some("p@ss"));
        assert_eq!(put("postgres://u@h:5/d"), "postgres://u:p%40ss@h:5/d");
        assert_eq!(put("postgres://u:x@h/d"), "postgres://u:x@h/d");
        assert_eq!(put("postgres://h/d?a=b@c"), "postgres://postgres:p%40ss@h/d?a=b@c");
        assert_eq!(with_password("postgres://u@h/d", None), "postgres://u@h/d");
    }
}
