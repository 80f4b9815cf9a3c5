//! The life of the process: start, serve, drain, stop.

use std::io::{self, IsTerminal as _, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::sync::watch;
use tollgate_engine::Engine;
use tollgate_policy::RuleSet;

use crate::admin::Admin;
use crate::background::Housekeeping;
use crate::banner::banner;
use crate::config::{Config, PricesError};
use crate::control::{ControlPlane, ControlStartError, Surroundings};
use crate::edge::grpc::GrpcDoor;
use crate::edge::{Edge, EdgeError, trusted_proxies};
use crate::http::Api;
use crate::listen;
use crate::reload::{self, RuleWatch, RulesError};
use crate::runtime::Inside;
use crate::signals::EarlySignals;
use crate::stores::{StoreKeeper, Stores};
use crate::tls::{Tls, TlsError};
use crate::workers::Workers;

/// Why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The rules are wrong.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The prices are wrong.
    #[error(transparent)]
    Prices(#[from] PricesError),
    /// The control plane cannot start.
    #[error(transparent)]
    Control(#[from] ControlStartError),
    /// A store's settings make no sense.
    #[error(transparent)]
    Store(#[from] tollgate_store::redis::RedisOptionsError),
    /// The edge cannot be as the configuration says.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {error}{}", way_out(error, addr))]
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

/// What to do about an address that another process has.
fn way_out(error: &io::Error, addr: &SocketAddr) -> String {
    if error.kind() != io::ErrorKind::AddrInUse {
        return String::new();
    }
    format!(
        "; another process listens there: stop it (`ss -ltnp 'sport = :{}'` shows it), or choose another \
         port with --http, --grpc, --listen or in the configuration (port 0 picks a free one)",
        addr.port()
    )
}

impl ServeError {
    /// True if the configuration is to blame rather than the system.
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Rules(_)
                | Self::Prices(_)
                | Self::Store(_)
                | Self::Tls(_)
                | Self::Edge(EdgeError::Wrong(_) | EdgeError::Identity(_))
                | Self::Control(ControlStartError::Token(_))
        )
    }
}

/// Serves until SIGTERM or SIGINT, then drains and returns.
pub fn run(config: Config, signals: EarlySignals) -> Result<(), ServeError> {
    run_until_shutdown(config, signals, false)
}

/// [`run`] as a gateway.
pub fn run_gateway(config: Config, signals: EarlySignals) -> Result<(), ServeError> {
    run_until_shutdown(config, signals, true)
}

fn run_until_shutdown(
    config: Config,
    signals: EarlySignals,
    is_gateway: bool,
) -> Result<(), ServeError> {
    // A signal during the start ends the process with exit code 0, as later.
    let mut signals = signals.take()?;
    let config = Arc::new(config);
    let names: Vec<String> = config.shared_stores().map(|store| store.name.clone()).collect();
    let (rules, file) = first_rules(&config, &names)?;
    raise_file_limit();
    let tls = Tls::load(&config.tls)?;
    let listeners = Listeners::bind(&config, is_gateway)?;
    let inside = Inside::build(&config, rules)?;
    let Inside { engine, reservations, clock, figures, doors, telemetry, node, .. } = &inside;
    let telemetry_keeper = inside.keep_telemetry(&config)?;
    let keeper = (!names.is_empty()).then(|| keep_stores(&inside, &config)).transpose()?;
    let (stop, stopped) = watch::channel(false);
    let edge = || Edge::build(&config, engine, reservations, node, figures);
    let edge = is_gateway.then(edge).transpose()?;
    let (announced, heard) = watch::channel(false);
    let around = surroundings(&inside, &config, heard, tls.clone());
    let (control, first_rules) = ControlPlane::start(around)?;
    signals.run_until_signal(first_rules.wait()).transpose()?;
    let tickets = edge.as_ref().and_then(Edge::tickets);
    if let Some(admin) = control.admin() {
        admin.serve_seen(inside.seen());
    }
    if let Some((admin, tickets)) = control.admin().zip(tickets.as_ref()) {
        admin.serve_queue(tickets.clone());
    }
    let api = |admin, decides| {
        let telemetry = Arc::clone(telemetry);
        let stats = Arc::clone(telemetry.descriptor_stats());
        let metrics = Box::new(move || telemetry.text());
        let api = Api::new(Arc::clone(engine), Arc::clone(&config), metrics);
        let api = api.serving(admin, decides).with_tickets(tickets.clone()).counting(stats);
        let api = api.sharing(Arc::clone(reservations));
        Arc::new(api.reporting(Arc::clone(figures)))
    };
    let is_apart = !listeners.admin.is_empty();
    let admin_api = api(control.admin(), false);
    let api = api(control.admin().filter(|_| !is_apart), config.decides());
    let grpc = Arc::new(grpc_door(&inside, &api, &control, &config));
    let housekeeping =
        Housekeeping::start(Arc::clone(engine), Arc::clone(clock), config.journal_interval)?;
    let watch_rules = file
        .map(|file| {
            let (engine, figures) = (Arc::clone(engine), Arc::clone(figures));
            RuleWatch::start(engine, file, figures, inside.recorder())
        })
        .transpose()?;
    if !signals.is_ending() {
        listeners.announce(&config, control.admin())?;
    }
    let _ = announced.send(true);
    say(&config, engine, &names, listeners.http.len(), edge.as_ref());
    doors.begin(edge.as_ref().map(Edge::gateway), tickets.as_ref());
    let proxies = trusted_proxies(&config.identity);
    let mut workers =
        Workers::new(config.limits, tls.clone(), stopped.clone(), Arc::clone(doors), proxies);
    workers.start("http", listeners.http, always(&api), false)?;
    workers.start("grpc", listeners.grpc, always(&grpc), true)?;
    workers.start("admin", listeners.admin, always(&admin_api), false)?;
    let start = |edge: Edge| edge.start(&config, listeners.gateway, &mut workers, &stopped);
    let edge = edge.map(start).transpose()?;

    let signals = signals.wait_for_the_end(|| {
        if let Some(rules) = &watch_rules {
            rules.look();
        }
        if let Some(tls) = &tls {
            tls.reload();
        }
        if let Some(edge) = &edge {
            edge.reload();
        }
    });
    let drain = config.limits.drain_delay.saturating_add(config.limits.drain_timeout);
    signals.bound_the_end(drain)?;
    tracing::info!("draining");
    api.stop_being_ready();
    admin_api.stop_being_ready();
    grpc.drain();
    // Load balancers that ask /readyz get time to choose other nodes before the listeners close.
    std::thread::sleep(config.limits.drain_delay);
    let _ = stop.send(true);
    workers.wait()?;
    if let Some(edge) = edge {
        edge.wait();
    }
    if let Some(watch) = watch_rules {
        watch.stop();
    }
    control.stop();
    if let Some(keeper) = keeper {
        keeper.stop();
    }
    housekeeping.stop();
    telemetry_keeper.stop();
    tracing::info!("stopped");
    Ok(())
}

/// What the control plane works on.
fn surroundings(
    inside: &Inside,
    config: &Arc<Config>,
    announced: watch::Receiver<bool>,
    tls: Option<Arc<Tls>>,
) -> Surroundings {
    Surroundings {
        engine: Arc::clone(&inside.engine),
        config: Arc::clone(config),
        figures: Arc::clone(&inside.figures),
        trail: inside.trail.clone(),
        observed: inside.observed(),
        api_key_secret: Arc::clone(&inside.secret),
        node: inside.node.clone(),
        announced,
        tls,
        ledger: inside.ledger.clone(),
        recorder: inside.recorder(),
    }
}

fn grpc_door(
    inside: &Inside,
    api: &Arc<Api<Stores>>,
    control: &ControlPlane,
    config: &Config,
) -> GrpcDoor<Stores> {
    let stats = Arc::clone(inside.telemetry.descriptor_stats());
    GrpcDoor::new(Arc::clone(&inside.engine), Arc::clone(api), control.admin(), stats, config)
}

fn keep_stores(inside: &Inside, config: &Arc<Config>) -> io::Result<StoreKeeper> {
    let (engine, clock) = (Arc::clone(&inside.engine), Arc::clone(&inside.clock));
    StoreKeeper::start(engine, clock, Arc::clone(&inside.shared_clock), Arc::clone(config))
}

/// As many open files as the system lets us have: each connection is one.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        limit.current = limit.maximum;
        // What there was is enough to start with.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// The same for every thread.
fn always<A: Send + Sync + 'static>(one: &Arc<A>) -> impl Fn() -> Arc<A> + Clone + Send + 'static {
    let one = Arc::clone(one);
    move || Arc::clone(&one)
}

/// What this process is, for its log.
fn say(
    config: &Config,
    engine: &Engine<Stores>,
    names: &[String],
    workers: usize,
    edge: Option<&Edge>,
) {
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
    if let Some(edge) = edge {
        edge.report_odd_keys(&engine.rules().set);
    }
}

/// The rules to begin with, and the file that is watched.
fn first_rules(
    config: &Config,
    stores: &[String],
) -> Result<(RuleSet, Option<reload::WatchedFile>), RulesError> {
    let Some(path) = &config.rules else { return Ok((RuleSet::builtin(), None)) };
    let (rules, file) = reload::load(path, stores)?.split();
    Ok((rules, Some(file)))
}

/// Every door of the process, a socket for each worker.
struct Listeners {
    http: Vec<TcpListener>,
    grpc: Vec<TcpListener>,
    admin: Vec<TcpListener>,
    gateway: Vec<TcpListener>,
}

impl Listeners {
    fn bind(config: &Config, is_gateway: bool) -> Result<Self, ServeError> {
        let workers = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let bind = |addr: Option<SocketAddr>, workers: usize| match addr {
            Some(addr) => {
                listen::bind(addr, workers).map_err(|error| ServeError::Listen { addr, error })
            }
            None => Ok(Vec::new()),
        };
        Ok(Self {
            http: bind(Some(config.http), workers)?,
            grpc: bind(config.grpc.filter(|_| config.decides()), workers)?,
            admin: bind(config.control.admin_http.filter(|_| config.has_control()), 1)?,
            gateway: bind(config.gateway.listen.filter(|_| is_gateway), workers)?,
        })
    }

    /// The first line on standard output: where it listens. A person at a terminal gets more than that.
    fn announce(&self, config: &Config, admin: Option<Arc<Admin>>) -> io::Result<()> {
        let mut out = io::stdout().lock();
        write!(out, "listening")?;
        let all = [
            ("http", &self.http),
            ("grpc", &self.grpc),
            ("admin", &self.admin),
            ("gateway", &self.gateway),
        ];
        for (name, listeners) in all {
            if let Some(first) = listeners.first() {
                write!(out, " {name}={}", first.local_addr()?)?;
            }
        }
        writeln!(out)?;
        out.flush()?;
        drop(out);
        self.greet(config, admin)
    }
}

impl Listeners {
    /// How to sign in and what to try, for a person at a terminal.
    fn greet(&self, config: &Config, admin: Option<Arc<Admin>>) -> io::Result<()> {
        let (Some(admin), Some(http)) = (admin, self.http.first()) else { return Ok(()) };
        let mut out = io::stdout().lock();
        if !out.is_terminal() {
            return Ok(());
        }
        let http = http.local_addr()?;
        let apart = self.admin.first().map(TcpListener::local_addr).transpose()?;
        let code = admin.new_sign_in_code();
        let text = banner(config, apart.unwrap_or(http), http, code.as_deref());
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The first admin token, after the announcement. Nobody may be reading any more.
pub(crate) fn show_first_token(token: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "admin token, shown only now: {token}");
    let _ = out.flush();
}
