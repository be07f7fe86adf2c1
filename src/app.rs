//! Builds everything, and stops it again.

pub mod access;
mod acts;
mod callers;
#[cfg_attr(not(feature = "leases"), path = "app/without_leases.rs")]
mod coordination;
mod history;
mod in_step;
mod journal;
mod lately;
#[cfg(feature = "leases")]
pub mod lease_server;
pub mod metrics;
mod now;
mod quotas;
mod shares;
mod shown;
mod spans;
mod start_error;
mod tally;
pub mod teller;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tidegate_callers::CallerId;
use tidegate_limits::scheduler::BucketMode;
use tidegate_quota::{Engine, QuotaStore};
use tidegate_runtime::metric::{Longest, Show};
use tidegate_runtime::{Clock, Live, ProcessName, lock};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use self::acts::Acts;
use self::callers::Keeper;
use self::coordination::Coordination;
#[cfg(feature = "leases")]
pub use self::coordination::options as lease_options;
use self::history::History;
use self::journal::Journal;
use self::lately::Lately;
use self::metrics::Metrics;
use self::now::TopCallers;
use self::quotas::Quotas;
pub use self::start_error::StartError;
use self::teller::Teller;
use crate::admin::Inlet;
use crate::admit::{self, Gate};
use crate::call::listener::UNIX_MODE;
use crate::call::{Bind, Listener, Protocol};
use crate::callers::{BucketChange, Callers, Changed};
use crate::classify::Classifier;
use crate::coalesce::Coalescer;
use crate::config::Config;
use crate::config::descriptors::Descriptors;
use crate::forward::Forwarder;
use crate::listen::threads::{Place, Threads};
use crate::listen::{self, Bound, Connections, SocketFile, SocketFileId, descriptors};
use crate::pipeline::Pipeline;
use crate::protocol::{self, Accepted, Conversation, Stop, StreamDrain};
use crate::tasks::Tasks;
use crate::telemetry::Logs;
use crate::telemetry::access::AccessLog;
use crate::telemetry::calls::RATE_LIMIT_PREFIX;
use crate::telemetry::log::filter;
use crate::telemetry::spans::Spans;
use crate::{admin, telemetry};

/// How often counts are saved.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// The time between two checkpoints in the log, from which a replay can begin.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(600);

/// Time for the last answers to be written when a drain has taken too long.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running proxy.
pub struct App {
    shared: Arc<Shared>,
    /// Stops the background tasks: timer, admin address.
    _beside: tokio_util::sync::DropGuard,
}

struct Shared {
    clock: Clock,
    config: Live<Config>,
    /// The settings of later connections.
    conversation: Live<Conversation<Pipeline>>,
    /// The stages, as connections have them.
    pipeline: Pipeline,
    callers: Callers,
    /// Held while callers or costs change, so that the buckets follow in the same order. Never held
    /// during a wait for a disk.
    changes: Mutex<()>,
    /// Held while the state is saved, so that the latest state is saved last.
    keeper: Mutex<Keeper>,
    /// What operators did.
    acts: Acts,
    /// The mistakes of the last reload, if it was refused, and its time.
    refused: Mutex<Option<(SystemTime, Vec<String>)>>,
    descriptors: Live<Descriptors>,
    lately: Arc<Lately>,
    history: History,
    top_callers: Mutex<TopCallers>,
    gate: Gate,
    journal: Arc<Journal>,
    /// Claimed while the process runs, also while it drains.
    _name: Option<ProcessName>,
    coordination: Arc<Coordination>,
    quotas: Quotas,
    connections: Arc<Connections>,
    metrics: Arc<Metrics>,
    access: Arc<AccessLog>,
    spans: Arc<Spans>,
    logs: Option<Logs>,
    listeners: Mutex<Listeners>,
    /// Connections under way.
    conversations: TaskTracker,
    threads: Threads,
    /// Set when no connection may begin another call.
    closing: Stop,
    /// Ends what has no end of its own in a drain.
    streams: StreamDrain,
    ready: AtomicBool,
    admin: Option<SocketAddr>,
}

#[derive(Default)]
struct Listeners {
    accepting: Vec<Accepting>,
    /// The process ends: a reload that is under way adds no listener.
    closed: bool,
}

/// A listener whose accept loop runs.
struct Accepting {
    settings: Arc<Live<Listener>>,
    address: Bind,
    file: Option<SocketFileId>,
    stop: CancellationToken,
}

/// Threads beside the one that accepts end with it.
impl Drop for App {
    fn drop(&mut self) {
        self.shared.threads.end();
    }
}

impl App {
    /// Binds every address, then starts. Needs a runtime.
    ///
    /// # Errors
    /// If an address cannot be used; then nothing was started.
    pub fn start(config: Config, logs: Option<Logs>) -> Result<Self, StartError> {
        Self::start_with(config, logs, Engine::open)
    }

    /// The same, with a store for its quotas that was opened elsewhere, such as one that sidecars
    /// of one process share.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with(
        config: Config,
        logs: Option<Logs>,
        open: impl Fn(&Engine, Clock) -> Arc<dyn QuotaStore> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let bound = bind_all(config.listen.listeners.iter())?;
        let admin = config.admin.bind.map(bind_admin).transpose()?;
        let file = config.admin.socket.as_ref().map(bind_admin_file);
        let file = file.transpose()?;
        let beside = CancellationToken::new();
        let address = admin.as_ref().and_then(|it| it.local_addr().ok());
        let shared = Arc::new(Shared::build(
            config,
            logs,
            address,
            Box::new(open),
            &beside,
        )?);
        shared.take_up_acts();
        let serve_admin = |inlet| {
            let settings = shared.config.get().admin.clone();
            let (source, callers) = (Arc::clone(&shared), Arc::clone(&shared));
            admin::serve(inlet, settings, source, callers, beside.clone())
        };
        if let Some(listener) = admin {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(StartError::Log)?;
            tokio::spawn(serve_admin(Inlet::Tcp(listener)));
        }
        if let Some((listener, file)) = file {
            let listener = tokio::net::UnixListener::from_std(listener).map_err(StartError::Log)?;
            let serving = serve_admin(Inlet::Unix(listener));
            tokio::spawn(async move {
                let served = serving.await;
                drop(file);
                served
            });
        }
        shared.run_beside(&beside);
        for (listener, socket) in bound {
            shared.accept_on(listener, socket);
        }
        Ok(Self {
            shared,
            _beside: beside.drop_guard(),
        })
    }

    /// The names and addresses of the listeners, with their real ports.
    #[must_use]
    pub fn listeners(&self) -> Vec<(Arc<str>, Bind)> {
        let listeners = lock(&self.shared.listeners);
        let named = |it: &Accepting| (Arc::clone(&it.settings.get().name), it.address.clone());
        listeners.accepting.iter().map(named).collect()
    }

    /// The admin address.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.shared.admin
    }

    /// The socket file of the admin address, if it has one.
    #[must_use]
    pub fn admin_file(&self) -> Option<Arc<Path>> {
        self.shared.config.get().admin.socket.clone()
    }

    /// The gate, for measurements of decisions.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    /// Calls past the gate, and calls waiting.
    #[must_use]
    pub fn busy(&self) -> (usize, usize) {
        self.shared.gate.busy()
    }

    /// Whether calls still move: the queue can be asked, and each thread that serves calls does
    /// some work. It waits as long as one of them is stuck.
    pub async fn moves_calls(&self) -> bool {
        let (_, _) = self.busy();
        self.shared.threads.answer().await
    }

    /// Takes a new config, as a whole or not at all. No connection, waiting call or counter is
    /// lost. A lowered limit applies to later calls. Waits for disks, so it must not run on a
    /// thread that moves calls. One at a time.
    ///
    /// # Errors
    /// If a new address cannot be used, or there is no room for the callers; then nothing has
    /// changed.
    pub fn reload(&self, config: Config) -> Result<(), StartError> {
        let shared = &self.shared;
        let before = shared.config.get();
        let kept = shared.reachable();
        let listeners = config.listen.listeners.iter();
        let bound = bind_all(listeners.filter(|it| !kept.contains(&it.bind)))?;
        // Until the config is set, a change of costs would apply the old one.
        let one_at_a_time = shared.changes();
        shared
            .change_callers(&one_at_a_time, |callers| callers.apply(&config.callers))
            .map_err(StartError::Callers)?;
        // Nothing can fail from here on.
        if let Some(logs) = &shared.logs {
            logs.set_level(filter(&config.telemetry.level));
        }
        let has_log = shared.logs.is_some();
        let was_on = shared.access.is_on();
        shared.access.switch(config.telemetry.access && has_log);
        shared.spans.apply(config.trace.clone());
        shared.conversation.set(Conversation {
            settings: config.protocol.clone(),
            ..Conversation::clone(&shared.conversation.get())
        });
        shared
            .pipeline
            .classifier
            .set(Classifier::new(&config.classify));
        let limits = with_costs(&config.admit, &shared.callers);
        let at = shared.gate.apply(&limits);
        let journal = &shared.journal;
        journal.reloaded(at, &shared.gate, &config, &limits);
        if !was_on {
            journal.checkpoint(&shared.gate, &config, &limits);
        }
        warn_of_observed(&config);
        let shares = config.coordinate.as_ref();
        shared.coordination.apply(shares, &config.admit);
        shared.quotas.apply(config.quotas.as_ref());
        for (destination, generation) in shared.pipeline.forwarder.apply(&config.forward) {
            shared.gate.moved(destination, generation);
        }
        // After the changes, because kept answers are from before.
        shared.pipeline.coalescer.apply(config.coalesce.clone());
        shared.pipeline.tasks.apply(config.tasks);
        let descriptors = divide(&config, &shared.metrics);
        shared.connections.apply(descriptors.connections);
        shared.descriptors.set(descriptors);
        shared.keep_listeners(&config.listen.listeners, &kept);
        for (listener, socket) in bound {
            shared.accept_on(listener, socket);
        }
        for key in config.waits_for_restart(&before) {
            warn!(key, "takes effect only after a restart");
        }
        shared.config.set(config);
        drop(one_at_a_time);
        *lock(&shared.refused) = None;
        shared.history.reloaded(None);
        shared.metrics.config_reloaded(SystemTime::now());
        Ok(())
    }

    /// Whether there is a state file.
    #[must_use]
    pub fn keeps_state(&self) -> bool {
        self.shared.config.get().callers.state_file.is_some()
    }

    /// Saves the state, if there is a state file. Changes through the admin address are already
    /// saved; this is for the counts since.
    pub fn save(&self) {
        self.shared.save_callers();
    }

    /// Remembers for operators that a new config was refused.
    pub fn reload_refused(&self, mistakes: Vec<String>) {
        self.shared.history.reloaded(Some(&mistakes));
        *lock(&self.shared.refused) = Some((SystemTime::now(), mistakes));
        self.shared.metrics.config_refused();
    }

    /// Becomes "not ready", then stops accepting, then finishes the calls, within `drain_timeout`.
    /// Streams and tunnels are cut off after `drain_streams`. Calls that wait longer are refused. Returns whether everything was finished.
    pub async fn drain(&self) -> bool {
        let shared = &self.shared;
        shared.ready.store(false, Ordering::Relaxed);
        let listeners = {
            let mut listeners = lock(&shared.listeners);
            listeners.closed = true;
            std::mem::take(&mut listeners.accepting)
        };
        for listener in listeners {
            listener.stop.cancel();
        }
        shared.closing.set();
        shared.conversations.close();
        let (bound, of_streams) = {
            let config = shared.config.get();
            (config.listen.drain_timeout, config.listen.drain_streams)
        };
        let ending_streams = async {
            shared.streams.end_all(of_streams, bound).await;
            std::future::pending::<()>().await;
        };
        let finished = async {
            // A task is finished like a call that a client waits for.
            let calls =
                async { tokio::join!(shared.conversations.wait(), shared.pipeline.tasks.drain()) };
            tokio::select! {
                _ = calls => {}
                () = ending_streams => {}
            }
        };
        let is_finished = tokio::time::timeout(bound, finished).await.is_ok();
        let (replies, tunnels) = shared.streams.ended();
        if replies + tunnels > 0 {
            info!(
                replies,
                tunnels, "ended streams: replies of unknown length, and tunnels"
            );
        }
        if is_finished {
            shared.history.end_streams().await;
            shared.gate.end_observing();
            shared.journal.ended(shared.gate.at_an_instant(|at| at));
            let closing = async { tokio::join!(shared.coordination.close(), shared.flush_spans()) };
            closing.await;
            shared.quotas.close().await;
            return true;
        }
        let (running, waiting) = self.busy();
        warn!(
            running,
            waiting, "the drain took too long, ending what is left"
        );
        shared.gate.turn_away();
        // An answer that is not written by then is lost with the process.
        let last =
            async { tokio::join!(shared.conversations.wait(), shared.pipeline.tasks.drain()) };
        let _ = tokio::time::timeout(LAST_WORDS, last).await;
        shared.history.end_streams().await;
        shared.flush_spans().await;
        shared.gate.end_observing();
        // Leases for calls under way are not released: they expire by themselves.
        false
    }
}

/// The commit this was built from.
pub const REVISION: &str = env!("TIDEGATE_REVISION");

/// The gate's settings, with the last costs of calls: from the config, or through the admin
/// address.
#[must_use]
pub fn with_costs(settings: &admit::Settings, callers: &Callers) -> admit::Settings {
    let mut settings = settings.clone();
    if !settings.paced.is_empty() {
        let costs = callers.costs();
        for limit in &mut settings.paced {
            limit.costs = costs.range(limit.function.as_deref());
        }
    }
    settings
}

/// Applies a change of the callers to the gate: its buckets, and then the waiting calls. A
/// waiting call is charged like a call that arrives now.
pub fn follow(gate: &Gate, callers: &Callers, changes: Vec<BucketChange>) {
    let mut gone = Vec::new();
    let mut recharges = false;
    for change in changes {
        match change {
            BucketChange::Set(id, rule) => {
                // Calls may have waited without it.
                recharges |= gate.bucket_now(id).is_none();
                gate.set_bucket(id, rule)
                    .expect("there are fewer rate limits than buckets may be");
            }
            BucketChange::Remove(id) => gone.push(id),
            BucketChange::Recharge => recharges = true,
        }
    }
    if recharges || !gone.is_empty() {
        gate.reroute(|identity| callers.charged(identity));
    }
    for id in gone {
        // Those that were about to enter the queue.
        gate.remove_bucket(id, |caller| callers.reroute(CallerId(caller.0)));
    }
}

/// Says which limits hold no call.
fn warn_of_observed(config: &Config) {
    let limits = admit::policy::observed(&config.admit);
    let callers = config.callers.rate_limits.iter();
    let callers = callers.filter(|it| it.rule.handling.mode == BucketMode::Observe);
    let callers = callers.map(|it| format!("{RATE_LIMIT_PREFIX}{}", it.name));
    let limits = limits.iter().map(|name| name.to_string());
    let quotas = config.quotas.iter().flat_map(|quotas| &quotas.limits);
    let quotas = quotas
        .filter(|it| it.observes)
        .map(|it| it.name.to_string());
    let limits: Vec<_> = limits.chain(callers).chain(quotas).collect();
    if !limits.is_empty() {
        let limits = limits.join(", ");
        warn!(limits, "these limits only observe, and hold no call");
    }
}

/// Divides the process's descriptors, and shows how many connections that allows.
fn divide(config: &Config, metrics: &Metrics) -> Descriptors {
    let descriptors = Descriptors::divide(config, descriptors::in_force());
    let limit = metrics.listen.connections_limit();
    limit.show(descriptors.connections);
    descriptors
}

fn access_log(config: &Config, logs: Option<&Logs>) -> Result<Arc<AccessLog>, StartError> {
    let access = match logs {
        Some(logs) => logs.access(),
        None => {
            AccessLog::start(io::sink(), telemetry::access::Look::Json).map_err(StartError::Log)?
        }
    };
    access.switch(config.telemetry.access && logs.is_some());
    Ok(Arc::new(access))
}

/// The places that tell this process from others on the machine ([`ProcessName`]); `None` if they
/// differ after a restart, because the system chooses a port.
#[must_use]
pub fn own_places(config: &Config) -> Option<Vec<String>> {
    let admin = config.admin.bind.map(Bind::Tcp);
    let file = config.admin.socket.clone().map(Bind::Unix);
    let listeners = config.listen.listeners.iter().map(|it| it.bind.clone());
    let places = listeners.chain(admin).chain(file);
    let place = |bind: Bind| match bind {
        Bind::Tcp(address) if address.port() == 0 => None,
        bind => Some(bind.to_string()),
    };
    places.map(place).collect()
}

fn bind_all<'a>(
    listeners: impl Iterator<Item = &'a Listener>,
) -> Result<Vec<(Listener, Bound)>, StartError> {
    let bound = listeners.map(|listener| match listen::bind(listener) {
        Ok(socket) => Ok((listener.clone(), socket)),
        Err(cause) => Err(StartError::Bind {
            address: listener.bind.clone(),
            what: format!("listener {}", listener.name),
            cause,
        }),
    });
    bound.collect()
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, StartError> {
    listen::bind_tcp(address).map_err(|cause| StartError::Bind {
        address: Bind::Tcp(address),
        what: "admin".to_owned(),
        cause,
    })
}

fn bind_admin_file(path: &Arc<Path>) -> Result<(UnixListener, SocketFile), StartError> {
    listen::bind_file(path, UNIX_MODE).map_err(|cause| StartError::Bind {
        address: Bind::Unix(Arc::clone(path)),
        what: "admin".to_owned(),
        cause,
    })
}

impl Shared {
    /// Builds all parts, and starts none of them.
    fn build(
        config: Config,
        logs: Option<Logs>,
        admin: Option<SocketAddr>,
        open: quotas::Open,
        beside: &CancellationToken,
    ) -> Result<Self, StartError> {
        let access = access_log(&config, logs.as_ref())?;
        let clock = Clock::start();
        let (keeper, saved) = Keeper::open(config.callers.state_file.as_deref())?;
        let acts = Acts::open(config.callers.state_file.as_deref())?;
        let Changed {
            value: callers,
            buckets,
        } = Callers::start(&config.callers, saved).map_err(StartError::Callers)?;
        let limits = with_costs(&config.admit, &callers);
        let gate = Gate::new(&limits, clock);
        let longest = Longest {
            wait: config.admit.max_wait,
            reply: config.forward.bounds.response_timeout,
        };
        let version = env!("CARGO_PKG_VERSION");
        let metrics = Arc::new(Metrics::with(longest, version, REVISION));
        let (of, to) = (Arc::clone(&metrics), Arc::clone(&access));
        let journal = Arc::new(Journal::new(to, clock, of));
        journal.started(&gate, &config, &limits);
        gate.keep_journal(Arc::clone(&journal) as _);
        follow(&gate, &callers, buckets);
        warn_of_observed(&config);
        metrics.config_taken(SystemTime::now());
        let registry = metrics.registry();
        let name = own_places(&config).and_then(|places| ProcessName::claim(&places));
        let known_as = name.as_ref().map(ProcessName::as_str);
        let coordination =
            Coordination::new(gate.clone(), callers.clone(), clock, registry, known_as);
        coordination.apply(config.coordinate.as_ref(), &config.admit);
        let descriptors = divide(&config, &metrics);
        let quotas = Quotas::new(
            gate.clone(),
            clock,
            metrics.quotas.clone(),
            open,
            known_as,
            beside.clone(),
        );
        quotas.apply(config.quotas.as_ref());
        let spans = Arc::new(Spans::new(config.trace.clone()));
        let teller = Arc::new(Teller::new(
            Arc::clone(&metrics),
            Arc::clone(&access),
            Arc::clone(&spans),
            callers.clone(),
            clock,
        ));
        let (closing, streams) = (Stop::default(), StreamDrain::default());
        let pipeline = Pipeline {
            classifier: Arc::new(Live::new(Classifier::new(&config.classify))),
            callers: callers.clone(),
            coalescer: Coalescer::new(config.coalesce.clone(), clock),
            tasks: Tasks::new(config.tasks, clock),
            gate: gate.clone(),
            forwarder: Forwarder::new(&config.forward),
            observer: Arc::clone(&teller) as _,
            clock,
        };
        Ok(Self {
            clock,
            conversation: Live::new(Conversation {
                serve: pipeline.clone(),
                settings: config.protocol.clone(),
                clock,
                stop: closing.clone(),
                streams: streams.clone(),
            }),
            pipeline,
            gate,
            journal,
            _name: name,
            coordination: Arc::new(coordination),
            quotas,
            changes: Mutex::default(),
            keeper: Mutex::new(keeper),
            acts,
            refused: Mutex::default(),
            connections: Connections::new(descriptors.connections),
            descriptors: Live::new(descriptors),
            lately: teller.lately(),
            history: History::new(teller.tally()),
            top_callers: Mutex::default(),
            callers,
            metrics,
            access,
            spans,
            logs,
            listeners: Mutex::default(),
            conversations: TaskTracker::new(),
            threads: Threads::new(config.listen.threads),
            closing,
            streams,
            ready: AtomicBool::new(true),
            admin,
            config: Live::new(config),
        })
    }

    /// Begins what runs beside the calls until `stop`: the timer of the queue, the shares of other
    /// sidecars, and the saving of the state.
    /// Waits for the last spans to be sent, within a bound.
    async fn flush_spans(&self) {
        if self.spans.is_on() {
            // What is not sent by then is lost with the process.
            let _ = tokio::time::timeout(LAST_WORDS, self.spans.flush()).await;
        }
    }

    fn run_beside(self: &Arc<Self>, stop: &CancellationToken) {
        let timer = self.gate.clone();
        let keeping = async move { timer.keep_time().await };
        let carrying = Arc::clone(&self.coordination).keep_carrying();
        let saving = Arc::clone(self).keep_saving();
        let in_step = Arc::clone(self).keep_in_step();
        tokio::spawn(stop.clone().run_until_cancelled_owned(keeping));
        tokio::spawn(stop.clone().run_until_cancelled_owned(carrying));
        tokio::spawn(stop.clone().run_until_cancelled_owned(saving));
        tokio::spawn(stop.clone().run_until_cancelled_owned(in_step));
        // Only the admin address shows the history.
        if self.admin.is_some() {
            let watching = Arc::clone(self).keep_watching();
            tokio::spawn(stop.clone().run_until_cancelled_owned(watching));
        }
        #[cfg(feature = "otlp")]
        {
            let spans = Arc::clone(&self.spans);
            let sending = telemetry::otlp::keep_sending(spans, self.metrics.process.clone());
            tokio::spawn(stop.clone().run_until_cancelled_owned(sending));
        }
        let acting = Arc::clone(self).keep_acting();
        tokio::spawn(stop.clone().run_until_cancelled_owned(acting));
        let noting = Arc::clone(self).keep_noting();
        tokio::spawn(stop.clone().run_until_cancelled_owned(noting));
    }

    /// Writes a checkpoint of the gate from time to time, while calls come.
    async fn keep_noting(self: Arc<Self>) {
        let mut beats = tokio::time::interval(CHECKPOINT_EVERY);
        // The first comes at once, and the start has a line.
        beats.tick().await;
        let mut noted = self.access.coming_id();
        loop {
            beats.tick().await;
            let coming = self.access.coming_id();
            if std::mem::replace(&mut noted, coming) != coming {
                let _one_at_a_time = self.changes();
                let config = self.config.get();
                let limits = with_costs(&config.admit, &self.callers);
                self.journal.checkpoint(&self.gate, &config, &limits);
            }
        }
    }

    async fn keep_saving(self: Arc<Self>) {
        let mut beats = tokio::time::interval(SAVE_EVERY);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            // Expired answers are removed even without further requests.
            self.pipeline.tasks.sweep();
            let shared = Arc::clone(&self);
            let saving = tokio::task::spawn_blocking(move || {
                shared.save_callers();
                shared.acts.save_if_unsaved();
            });
            if let Err(failed) = saving.await {
                error!(error = %failed, "saving callers failed by our own mistake");
            }
        }
    }

    /// The bound addresses of the listeners that clients can still reach. Checks their files.
    fn reachable(&self) -> Vec<Bind> {
        let look = |it: &Accepting| (it.settings.get().bind.clone(), it.file.clone());
        let found: Vec<_> = lock(&self.listeners).accepting.iter().map(look).collect();
        let is_there =
            |file: &Option<SocketFileId>| file.as_ref().is_none_or(SocketFileId::is_there);
        let there = found.into_iter().filter(|(_, file)| is_there(file));
        there.map(|(bind, _)| bind).collect()
    }

    /// Ends the loops of removed listeners, and gives the others their new settings. A listener
    /// that clients cannot reach any more makes room for a new one in its place.
    fn keep_listeners(&self, wanted: &[Listener], kept: &[Bind]) {
        lock(&self.listeners).accepting.retain(|accepting| {
            let bound = accepting.settings.get();
            let listener = wanted.iter().find(|listener| listener.bind == bound.bind);
            match listener.filter(|_| kept.contains(&bound.bind)) {
                Some(listener) => {
                    accepting.settings.set(listener.clone());
                    true
                }
                None => {
                    accepting.stop.cancel();
                    false
                }
            }
        });
    }

    fn accept_on(self: &Arc<Self>, listener: Listener, socket: Bound) {
        let address = socket.address().clone();
        let name = Arc::clone(&listener.name);
        let settings = Arc::new(Live::new(listener));
        let stop = CancellationToken::new();
        let mut listeners = lock(&self.listeners);
        if listeners.closed {
            return;
        }
        info!(listener = %name, %address, "listening");
        listeners.accepting.push(Accepting {
            settings: Arc::clone(&settings),
            address,
            file: socket.file(),
            stop: stop.clone(),
        });
        // Counted with the conversations: until it ends, one more may begin.
        self.conversations
            .spawn(Arc::clone(self).accept(settings, socket, stop));
    }

    async fn accept(
        self: Arc<Self>,
        settings: Arc<Live<Listener>>,
        socket: Bound,
        stop: CancellationToken,
    ) {
        let gate = || async {
            // HTTP is still accepted when the queue is full, because a token needs no place in it.
            // Its calls wait at the door. (docs/decisions/0002)
            let protocol = settings.get().protocol;
            if matches!(protocol, Protocol::Socket | Protocol::Tcp) {
                self.gate.room().await;
            }
        };
        let failed = |error: &io::Error| {
            self.metrics.listen.accept_errors_total().inc();
            warn!(listener = %settings.get().name, %error, "cannot accept");
        };
        let looked_up = Mutex::default();
        let is_one_call = AtomicBool::new(false);
        let handle = |stream, peer, connection| {
            let listener = settings.get();
            let listen = &self.metrics.listen;
            let counted = listen.opened_at(&mut lock(&looked_up), &listener.name);
            let mut accepted = Accepted::new(stream, peer, listener, self.clock.now());
            if self.threads.may_be_many() {
                // One that has said nothing yet is probably like the one before it.
                if let Some(known) = accepted.is_one_call() {
                    is_one_call.store(known, Ordering::Relaxed);
                }
            }
            // To move one call costs more than the other thread saves.
            let Place { executor, taken } = match is_one_call.load(Ordering::Relaxed) {
                true => self.threads.here(),
                false => self.threads.place(),
            };
            let held = (connection, counted, taken);
            let conversing = protocol::converse(accepted, self.conversation.get(), held);
            match executor {
                Some(executor) => self.conversations.spawn_on(conversing, &executor),
                None => self.conversations.spawn(conversing),
            };
        };
        let connections = Arc::clone(&self.connections);
        let accepting = listen::accept(socket, connections, stop, gate, failed, handle);
        if let Err(error) = accepting.await {
            error!(listener = %settings.get().name, %error, "cannot accept at all");
        }
    }
}
