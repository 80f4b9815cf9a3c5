//! What is inside the doors: the engine, its clocks and stores, and who watches it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use tollgate_core::Nanos;
use tollgate_engine::{Clock, Engine, MissingKey, SharedClock, SystemClock, UsageLedger};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_store::memory::MemoryOptions;

use crate::admin::Seen;
use crate::audit::AuditTrail;
use crate::buffered::BUFFERED;
use crate::config::{Config, LogFormat};
use crate::control::ControlFigures;
use crate::control::figures::Source;
use crate::ledger::Ledger;
use crate::recorder::Recorder;
use crate::reservation_shares::ReservationShares;
use crate::serve::ServeError;
use crate::stores::{self, Stores};
use crate::telemetry::decisions::{DecisionLog, DecisionLogOptions, Witness};
use crate::telemetry::history::History;
use crate::telemetry::{EdgeFigures, Observed, Statsd, Telemetry, TelemetryKeeper};

/// The parts that every door leads to.
pub(crate) struct Inside {
    pub(crate) engine: Arc<Engine<Stores>>,
    /// Who has how many of the open reservations and slots.
    pub(crate) reservations: Arc<ReservationShares>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) shared_clock: Arc<SharedClock>,
    /// What API keys are hashed with.
    pub(crate) secret: Arc<[u8]>,
    /// What this node is called.
    pub(crate) node: String,
    pub(crate) trail: Option<Arc<AuditTrail>>,
    pub(crate) ledger: Option<Arc<Ledger>>,
    pub(crate) figures: Arc<ControlFigures>,
    pub(crate) doors: Arc<EdgeFigures>,
    pub(crate) telemetry: Arc<Telemetry>,
    observed: Arc<Observed>,
    started: i64,
}

impl Inside {
    /// Builds it, with these rules to begin with.
    pub(crate) fn build(config: &Config, rules: RuleSet) -> Result<Self, ServeError> {
        BUFFERED.set_max(config.limits.max_buffered_bytes);
        let clock = Arc::new(SystemClock::new());
        let options =
            MemoryOptions { max_counters: config.max_counters, data_dir: config.data_dir.clone() };
        let memory =
            MemoryStore::open(&options, clock.now()).with_max_reservations(config.max_reservations);
        let shared_clock = Arc::new(SharedClock::new(Arc::clone(&clock)));
        let node = stores::node_name();
        let store = stores::build(config, memory, &node)?;
        let secret = stores::api_key_secret(config);
        let (witness, trail) = witness(config, &node, &secret, clock.now())?;
        let reservations = Arc::new(ReservationShares::new(config.max_reservations));
        let figures = Arc::new(ControlFigures::default());
        let ledger = ledger(config, &store, &secret, &figures);
        let engine = Engine::new(store, Arc::<SharedClock>::clone(&shared_clock), rules)
            // Callers say what they know of a request: a rule without its key does not apply.
            .with_missing_key(MissingKey::Allow)
            .with_observer(Arc::<Witness>::clone(&witness))
            .with_slot_shares(Arc::<ReservationShares>::clone(&reservations))
            .with_ledger(ledger.clone().map(|ledger| ledger as Arc<dyn UsageLedger>));
        engine.set_enforcement(config.enforcement);
        engine.swap_prices(config.prices.load()?);
        let engine = Arc::new(engine);
        if config.rules.is_some() {
            figures.in_force(Source::File, 1);
            figures.success();
        }
        let doors = Arc::new(EdgeFigures::default());
        let telemetry =
            Telemetry::new(&engine, &shared_clock, &figures, trail.as_ref(), &witness, &doors);
        let observed = Observed { witness, history: History::default() };
        Ok(Self {
            engine,
            reservations,
            clock,
            shared_clock,
            secret,
            node,
            trail,
            ledger,
            figures,
            doors,
            telemetry: Arc::new(telemetry),
            observed: Arc::new(observed),
            started: crate::admin::now(),
        })
    }

    /// Begins to look after what is observed.
    pub(crate) fn keep_telemetry(&self, config: &Config) -> io::Result<TelemetryKeeper> {
        let statsd = Statsd::new(&config.telemetry.statsd, &self.telemetry, self.clock.now())?;
        let clock = Arc::<SharedClock>::clone(&self.shared_clock);
        TelemetryKeeper::start(Arc::clone(&self.observed), clock, statsd)
    }

    /// What is known of decisions.
    pub(crate) fn observed(&self) -> Arc<Observed> {
        Arc::clone(&self.observed)
    }

    /// Who records decisions, if they are recorded.
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.observed.witness.recorder().cloned()
    }

    /// What operators can read about it.
    pub(crate) fn seen(&self) -> Seen {
        Seen {
            observed: Arc::clone(&self.observed),
            figures: Arc::clone(&self.figures),
            node: self.node.clone(),
            started: self.started,
        }
    }
}

/// Where settled requests report what they used, if there is a Redis or a database to keep it in.
fn ledger(
    config: &Config,
    store: &Stores,
    secret: &Arc<[u8]>,
    figures: &Arc<ControlFigures>,
) -> Option<Arc<Ledger>> {
    let is_shared = !store.shared().is_empty();
    let has_database = config.control.postgres.url.is_some()
        || (config.data_dir.is_some() && config.has_control());
    let is_kept = config.control.ledger.is_on && config.decides() && (is_shared || has_database);
    is_kept.then(|| Arc::new(Ledger::new(Arc::clone(secret), is_shared, Arc::clone(figures))))
}

/// Who sees every decision: for metrics, for the audit log and for the log of decisions.
fn witness(
    config: &Config,
    node: &str,
    secret: &[u8],
    now: Nanos,
) -> io::Result<(Arc<Witness>, Option<Arc<AuditTrail>>)> {
    let audit = config.control.audit;
    let trail = (audit.is_on && config.decides())
        .then(|| Arc::new(AuditTrail::new(audit.sample_allowed, audit.max_buffered_bytes, secret)));
    let log = decision_log(config, secret)?.map(Arc::new);
    let recorder = match config.recording.options().filter(|_| config.decides()) {
        Some(options) => Some(Arc::new(Recorder::start(options, node, secret)?)),
        None => None,
    };
    let mut seed = [0; 8];
    // Without random bytes names could be chosen to share a label, which harms nobody but a metric.
    let _ = getrandom::fill(&mut seed);
    let witness = Witness::new(config.telemetry.bounds, u64::from_le_bytes(seed), secret, now);
    let witness = witness.with_trail(trail.clone()).with_log(log).with_recorder(recorder);
    Ok((Arc::new(witness), trail))
}

fn decision_log(config: &Config, secret: &[u8]) -> io::Result<Option<DecisionLog>> {
    use std::io::IsTerminal as _;
    let log = &config.telemetry.decision_log;
    let is_text = log.file.is_none()
        && match config.log.format {
            LogFormat::Text => true,
            LogFormat::Auto => io::stderr().is_terminal(),
            LogFormat::Json => false,
        };
    let options = DecisionLogOptions {
        sample_allowed: log.sample_allowed,
        sample_refused: log.sample_refused,
        max_per_second: log.max_per_second,
        is_text,
    };
    let out: Box<dyn Write + Send> = match &log.file {
        Some(path) => {
            let mut options = std::fs::OpenOptions::new();
            // It says who asked for what.
            let file = options.create(true).append(true).mode(0o600).open(path);
            Box::new(file.map_err(|error| {
                let message = format!("log.decisions.file {}: {error}", path.display());
                io::Error::new(error.kind(), message)
            })?)
        }
        None => Box::new(Stderr::open()?),
    };
    DecisionLog::start(options, secret, out)
}

/// Standard error, past the lock that the other log takes, and never so full that the other log would have
/// to wait: a reader that has stopped reading must not stop the process.
struct Stderr {
    file: File,
    is_pipe: bool,
}

/// What may wait unread in a pipe, which holds 64 KiB, before decisions are no longer written to it.
const MAX_UNREAD: u64 = 24 << 10;
/// What is written to a pipe at most at once.
const PIECE: usize = 8 << 10;

impl Stderr {
    fn open() -> io::Result<Self> {
        let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let is_pipe = file.metadata()?.file_type().is_fifo();
        Ok(Self { file, is_pipe })
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_pipe {
            return self.file.write(bytes);
        }
        if rustix::io::ioctl_fionread(&self.file)? > MAX_UNREAD {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.file.write(bytes.get(..PIECE).unwrap_or(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
