//! The life of the process: start, serve, drain, stop.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tollgate_engine::{Clock, Engine, SharedClock, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_store::memory::MemoryOptions;

use crate::audit::AuditTrail;
use crate::background::Housekeeping;
use crate::config::Config;
use crate::control::figures::Source;
use crate::control::{ControlFigures, ControlPlane, ControlStartError, Surroundings};
use crate::http::Api;
use crate::listen;
use crate::reload::{self, RuleWatch, RulesError};
use crate::stores::{self, StoreKeeper, Stores};
use crate::telemetry::Telemetry;

/// Why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The rules are wrong.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The control plane cannot start.
    #[error(transparent)]
    Control(#[from] ControlStartError),
    /// A store's settings make no sense.
    #[error(transparent)]
    Store(#[from] tollgate_store::redis::RedisOptionsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {error}")]
    Listen {
        /// Which address.
        addr: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The system refused something else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ServeError {
    /// True if the configuration is to blame rather than the system.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Rules(_) | Self::Store(_) | Self::Control(ControlStartError::Token(_)))
    }
}

/// Serves until SIGTERM or SIGINT, then drains and returns.
pub fn run(config: Config) -> Result<(), ServeError> {
    let config = Arc::new(config);
    let names: Vec<String> = config.shared_stores().map(|store| store.name.clone()).collect();
    let (rules, file) = match &config.rules {
        Some(path) => {
            let (rules, file) = reload::load(path, &names)?.split();
            (rules, Some(file))
        }
        None => (RuleSet::builtin(), None),
    };
    let workers = match config.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let bind = |addr: SocketAddr, workers: usize| {
        listen::bind(addr, workers).map_err(|error| ServeError::Listen { addr, error })
    };
    let listeners = bind(config.http, workers)?;
    let admin_listeners = match config.control.admin_http.filter(|_| config.has_control()) {
        Some(addr) => bind(addr, 1)?,
        None => Vec::new(),
    };
    let clock = Arc::new(SystemClock::new());
    let options =
        MemoryOptions { max_counters: config.max_counters, data_dir: config.data_dir.clone() };
    let memory = MemoryStore::open(&options, clock.now());
    let shared_clock = Arc::new(SharedClock::new(Arc::clone(&clock)));
    let dyn_clock: Arc<dyn Clock> = Arc::<SharedClock>::clone(&shared_clock);
    let node = stores::node_name();
    let store = stores::build(&config, memory, &node)?;
    let secret = stores::api_key_secret(&config);
    let mut engine = Engine::new(store, dyn_clock, rules);
    let audit = config.control.audit;
    let trail = (audit.is_on && config.decides()).then(|| {
        Arc::new(AuditTrail::new(audit.sample_allowed, audit.max_buffered_bytes, &secret))
    });
    if let Some(trail) = &trail {
        engine = engine.with_observer(Arc::<AuditTrail>::clone(trail));
    }
    let engine = Arc::new(engine);
    engine.set_enforcement(config.enforcement);
    let figures = Arc::new(ControlFigures::default());
    if config.rules.is_some() {
        figures.in_force(Source::File, 1);
    }
    let telemetry = Telemetry::new(&engine, &shared_clock, &figures, trail.as_ref());
    let keeper = if names.is_empty() {
        None
    } else {
        let system = Arc::clone(&clock);
        Some(StoreKeeper::start(Arc::clone(&engine), system, shared_clock)?)
    };

    let (announced, heard) = watch::channel(false);
    let control = ControlPlane::start(Surroundings {
        engine: Arc::clone(&engine),
        config: Arc::clone(&config),
        figures,
        trail,
        api_key_secret: secret,
        node,
        announced: heard,
    })?;
    let telemetry = Arc::new(telemetry);
    let api = |admin, decides| {
        let telemetry = Arc::clone(&telemetry);
        let metrics = Box::new(move || telemetry.text());
        let api = Api::new(Arc::clone(&engine), Arc::clone(&config), metrics);
        Arc::new(api.serving(admin, decides))
    };
    let is_apart = !admin_listeners.is_empty();
    let admin_api = api(control.admin(), false);
    let api = api(control.admin().filter(|_| !is_apart), config.decides());
    let housekeeping = Housekeeping::start(Arc::clone(&engine), clock, config.journal_interval)?;
    let watch_rules = file.map(|file| RuleWatch::start(Arc::clone(&engine), file)).transpose()?;
    // From here on a signal is answered, so that whoever reads the announcement may send one.
    let signals = Signals::new()?;
    announce(&listeners, &admin_listeners)?;
    let _ = announced.send(true);
    say(&config, &engine, &names, listeners.len());
    let (stop, stopped) = watch::channel(false);
    let mut workers = start_workers(listeners, &api, &config, &stopped)?;
    workers.extend(start_workers(admin_listeners, &admin_api, &config, &stopped)?);

    let signals = signals.wait_for_the_end(watch_rules.as_ref());
    signals.end_at_once_if_asked_again()?;
    tracing::info!("draining");
    api.stop_being_ready();
    admin_api.stop_being_ready();
    // Load balancers that ask /readyz get time to look elsewhere before the door closes.
    std::thread::sleep(config.limits.drain_delay);
    let _ = stop.send(true);
    wait_for(workers)?;
    if let Some(watch) = watch_rules {
        watch.stop();
    }
    control.stop();
    if let Some(keeper) = keeper {
        keeper.stop();
    }
    housekeeping.stop();
    tracing::info!("stopped");
    Ok(())
}

/// What this process is, for its log.
fn say(config: &Config, engine: &Engine<Stores>, names: &[String], workers: usize) {
    tracing::info!(
        rules = engine.rules().set.rules().len(),
        rule_file = config.rules.as_deref().map(|path| path.display().to_string()),
        data_dir = config.data_dir.as_deref().map(|path| path.display().to_string()),
        default_rule = engine.rules().set.default_rule().is_some(),
        counters = engine.store().memory().usage().counters,
        stores = (!names.is_empty()).then(|| names.join(",")),
        workers,
        role = config.control.role.name(),
        database = match (&config.control.postgres.url, &config.data_dir) {
            (Some(_), _) => Some("postgres"),
            (None, Some(_)) if config.has_control() => Some("sqlite"),
            _ => None,
        },
        enforcement = config.enforcement.name(),
        "serving"
    );
}

/// The first line on standard output: where it listens.
fn announce(
    listeners: &[std::net::TcpListener],
    admin: &[std::net::TcpListener],
) -> io::Result<()> {
    let Some(first) = listeners.first() else { return Ok(()) };
    let mut out = io::stdout().lock();
    write!(out, "listening http={}", first.local_addr()?)?;
    if let Some(admin) = admin.first() {
        write!(out, " admin={}", admin.local_addr()?)?;
    }
    writeln!(out)?;
    out.flush()
}

/// The first admin token, after the announcement. Nobody may be reading any more.
pub(crate) fn show_first_token(token: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "admin token, shown only now: {token}");
    let _ = out.flush();
}

type Worker = JoinHandle<io::Result<()>>;

/// One thread, one runtime and one socket each: a connection stays on its core.
fn start_workers(
    listeners: Vec<std::net::TcpListener>,
    api: &Arc<Api<Stores>>,
    config: &Arc<Config>,
    stopped: &watch::Receiver<bool>,
) -> io::Result<Vec<Worker>> {
    let slots = Arc::new(Semaphore::new(config.limits.max_connections));
    let start = |(index, listener): (usize, std::net::TcpListener)| {
        let (api, config) = (Arc::clone(api), Arc::clone(config));
        let (slots, stopped) = (Arc::clone(&slots), stopped.clone());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || runtime.block_on(listen::accept(listener, api, config, slots, stopped)))
    };
    listeners.into_iter().enumerate().map(start).collect()
}

/// Waits for the workers to finish.
fn wait_for(workers: Vec<Worker>) -> io::Result<()> {
    for worker in workers {
        let Ok(served) = worker.join() else {
            tracing::error!("a worker had panicked");
            continue;
        };
        served?;
    }
    Ok(())
}

/// The signals that end the service, or make it look at its rules.
struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (terminate, interrupt, hang_up) = {
            let _context = runtime.enter();
            (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
            )
        };
        Ok(Self { runtime, terminate, interrupt, hang_up })
    }

    /// Returns on SIGTERM or SIGINT; SIGHUP reads the rule file anew.
    fn wait_for_the_end(mut self, rules: Option<&RuleWatch>) -> Self {
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.terminate.recv() => return,
                    _ = self.interrupt.recv() => return,
                    _ = self.hang_up.recv() => if let Some(rules) = rules { rules.look() },
                }
            }
        });
        self
    }

    /// A second signal means that nobody wants to wait for the drain.
    fn end_at_once_if_asked_again(mut self) -> io::Result<()> {
        let wait = move || {
            self.runtime.block_on(async {
                tokio::select! {
                    _ = self.terminate.recv() => {}
                    _ = self.interrupt.recv() => {}
                }
            });
            tracing::warn!("asked twice: ended without draining");
            std::process::exit(1);
        };
        std::thread::Builder::new().name("second-signal".to_owned()).spawn(wait).map(drop)
    }
}
