//! Builds everything, and stops it again.

pub mod access;
mod acts;
mod build;
mod callers;
mod changes;
#[cfg_attr(not(feature = "leases"), path = "app/without_leases.rs")]
mod coordination;
#[expect(
    clippy::disallowed_methods,
    reason = "its files are in /run, which is memory, and a hand-over is rare"
)]
mod handover;
mod history;
mod in_step;
mod jobs;
mod journal;
mod lately;
#[expect(
    clippy::disallowed_methods,
    reason = "at the start and by a reload, on a thread that waits; the name is changed in /run, which is memory"
)]
mod ledger;
mod listeners;
pub mod metrics;
mod now;
mod quotas;
mod shares;
mod shown;
mod spans;
mod start_error;
mod surroundings;
mod tally;
pub mod teller;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tidegate_callers::CallerId;
use tidegate_runtime::metric::SetLevel;
use tidegate_runtime::{Clock, Live, ProcessName, lock};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use self::acts::ActLog;
use self::callers::Keeper;
use self::changes::Changes;
pub use self::changes::ChangesStopped;
use self::coordination::Coordination;
#[cfg(feature = "leases")]
pub use self::coordination::options as lease_options;
use self::handover::{ForeignSide, HandedOver, Handover, OldProcess, OldRequest};
pub use self::handover::{HandoverPhase, StartProgram, TakingOver, UpgradeAnswer};
use self::history::History;
use self::journal::GateJournal;
use self::lately::RecentCalls;
use self::ledger::LedgerFile;
use self::listeners::{AdminInlets, AdminSockets, Listeners, RunningListener, bind_all};
use self::metrics::Metrics;
use self::now::TopCallers;
use self::quotas::Quotas;
pub use self::quotas::StoreOpener;
pub use self::start_error::StartError;
pub use self::surroundings::{PAST, Surroundings};
use crate::admit::{self, Gate};
use crate::call::jobs::Jobs;
use crate::call::{Bind, LimitMode, Listener};
use crate::callers::{BucketChange, Callers};
use crate::classify::Classifier;
use crate::config::Config;
use crate::config::descriptors::Descriptors;
use crate::listen::threads::Threads;
use crate::listen::{Bound, Connections, InheritedSockets, descriptors};
use crate::pipeline::Pipeline;
use crate::protocol::{Conversation, Stop, StreamDrain};
#[cfg(feature = "otlp")]
use crate::telemetry;
use crate::telemetry::Logs;
use crate::telemetry::access::AccessLog;
use crate::telemetry::calls::RATE_LIMIT_PREFIX;
use crate::telemetry::log::filter;
use crate::telemetry::spans::SpanQueue;

/// How often counts are saved.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// The time between two checkpoints in the log, from which a replay can begin.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(600);

/// How long a reload waits for another process to take over. It takes no longer.
const CHANGE_PATIENCE: Duration = Duration::from_secs(15);

/// Time for the last answers to be written when a drain has taken too long.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A process before this one, as far as it matters for its successor.
#[derive(Debug, Default)]
pub struct Predecessor {
    /// The place of its ledger, and of that of this process.
    pub ledger: Option<PathBuf>,
    /// Listening sockets of that process.
    pub sockets: InheritedSockets,
    /// State that a process has handed over which lives.
    handed: Option<HandedOver>,
}

impl Predecessor {
    /// A process that is no more, or none.
    #[must_use]
    pub fn ended(ledger: PathBuf, sockets: InheritedSockets) -> Self {
        Self {
            ledger: Some(ledger),
            sockets,
            handed: None,
        }
    }
}

/// A running proxy.
pub struct App {
    shared: Arc<AppState>,
    /// Stops the background tasks: timer, admin address.
    beside: CancellationToken,
    _beside: tokio_util::sync::DropGuard,
    /// Bound listeners, until they are served.
    bound: Mutex<Option<BoundListeners>>,
}

/// Listeners that accept no connection yet.
struct BoundListeners {
    listeners: Vec<(Listener, Bound)>,
    admin: AdminInlets,
    /// Requests to the part that hands over.
    requests: mpsc::UnboundedReceiver<OldRequest>,
}

struct AppState {
    clock: Clock,
    config: Live<Config>,
    /// The settings of later connections.
    conversation: Live<Conversation<Pipeline>>,
    /// The stages, as connections have them.
    pipeline: Pipeline,
    callers: Callers,
    /// Held while callers or costs change, so that the buckets follow in the same order. Never held
    /// during a wait for a disk.
    changes: Changes,
    /// Held while the state is saved, so that the latest state is saved last.
    keeper: Mutex<Keeper>,
    /// The acts of operators.
    acts: ActLog,
    /// The mistakes of the last reload, if it was refused, and its time.
    refused: Mutex<Option<(SystemTime, Vec<String>)>>,
    descriptors: Live<Descriptors>,
    lately: Arc<RecentCalls>,
    history: History,
    top_callers: Mutex<TopCallers>,
    gate: Gate,
    /// Set if this process has a ledger.
    ledger: Option<LedgerFile>,
    /// Sockets that were open before this process, for listeners of a later config.
    inherited: InheritedSockets,
    journal: Arc<GateJournal>,
    /// Claimed while the process runs, also while it drains.
    name: Mutex<Option<ProcessName>>,
    handover: Handover,
    /// The calls of the process before, until they are served.
    foreign: Mutex<Option<ForeignSide>>,
    /// Starts the program that takes over.
    successor: Mutex<Option<StartProgram>>,
    coordination: Arc<Coordination>,
    quotas: Quotas,
    connections: Arc<Connections>,
    metrics: Arc<Metrics>,
    access: Arc<AccessLog>,
    spans: Arc<SpanQueue>,
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
    admin_sockets: Mutex<AdminSockets>,
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
        Self::start_after(config, logs, Predecessor::default())
    }

    /// Starts as the successor of a process: limits go on where that one left them, its listening sockets are used, and
    /// what this one does is noted for the next. A ledger that cannot be written is a warning.
    ///
    /// # Errors
    /// As for [`start`](Self::start), and if another process has this ledger.
    pub fn start_after(
        config: Config,
        logs: Option<Logs>,
        before: Predecessor,
    ) -> Result<Self, StartError> {
        Self::start_in(config, logs, before, Surroundings::real())
    }

    /// Starts as the successor of a process, with another clock, or other ways to stores and lease servers.
    ///
    /// # Errors
    /// As for [`start_after`](Self::start_after).
    pub fn start_in(
        config: Config,
        logs: Option<Logs>,
        before: Predecessor,
        surroundings: Surroundings,
    ) -> Result<Self, StartError> {
        let app = Self::prepare(config, logs, before, surroundings)?;
        app.open();
        Ok(app)
    }

    /// Binds every address and builds everything, but accepts and admits nothing yet.
    fn prepare(
        config: Config,
        logs: Option<Logs>,
        before: Predecessor,
        surroundings: Surroundings,
    ) -> Result<Self, StartError> {
        let inherited = &before.sockets;
        let bound = bind_all(config.listen.listeners.iter(), inherited)?;
        let admin = AdminInlets::bind(&config.admin, inherited)?;
        for address in inherited.rest() {
            warn!(%address, "a socket of the service manager listens here, and no listener is configured for it");
        }
        let beside = CancellationToken::new();
        let (handover, requests) = Handover::new();
        let parts = (admin.address(), handover);
        let state = AppState::build(config, logs, parts, &beside, before, surroundings)?;
        let shared = Arc::new(state);
        shared.take_up_acts();
        let bound = BoundListeners {
            listeners: bound,
            admin,
            requests,
        };
        Ok(Self {
            shared,
            bound: Mutex::new(Some(bound)),
            beside: beside.clone(),
            _beside: beside.drop_guard(),
        })
    }

    /// Accepts and admits from now on.
    fn open(&self) {
        let (shared, beside) = (&self.shared, &self.beside);
        let Some(bound) = lock(&self.bound).take() else {
            return;
        };
        shared.serve_admin(bound.admin, beside);
        shared.run_beside(beside);
        for (listener, socket) in bound.listeners {
            shared.accept_on(listener, socket);
        }
        match OldProcess::listen(shared, bound.requests, beside.clone()) {
            Ok(Some(old)) => drop(tokio::spawn(old.run())),
            Ok(None) => {}
            Err(error) => warn!(%error, "this sidecar cannot hand over to a new one"),
        }
    }

    /// The names and addresses of the listeners, with their real ports.
    #[must_use]
    pub fn listeners(&self) -> Vec<(Arc<str>, Bind)> {
        let listeners = lock(&self.shared.listeners);
        let named =
            |it: &RunningListener| (Arc::clone(&it.settings.get().name), it.address.clone());
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
        let listeners = listeners.filter(|it| !kept.contains(&it.bind));
        let bound = bind_all(listeners, &shared.inherited)?;
        // Until the config is set, a change of costs would apply the old one.
        let one_at_a_time = shared.changes.begin_within(CHANGE_PATIENCE)?;
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
        shared.pipeline.classifier.set(Classifier::after(
            &config.classify,
            &shared.pipeline.classifier.get(),
        ));
        let limits = with_costs(&config.admit, &shared.callers);
        // Before a call can be bound to a server that is new.
        let moved = shared.pipeline.forwarder.apply(&config.forward);
        let at = shared.apply_limits(&limits);
        let journal = &shared.journal;
        journal.reloaded(at, &shared.gate, &config, &limits);
        if !was_on {
            journal.checkpoint(&shared.gate, &config, &limits);
        }
        warn_of_observed(&config);
        let shares = config.coordinate.as_ref();
        shared.coordination.apply(shares, &config.admit);
        shared.quotas.apply(config.quotas.as_ref());
        for (destination, server, generation) in moved {
            shared.gate.moved(destination, server, generation);
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

    /// The listening sockets, with names, for a service manager that keeps them open while the process is exchanged.
    #[must_use]
    pub fn listening_sockets(&self) -> Vec<(String, OwnedFd)> {
        self.shared.listening_sockets()
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
            listener.stop.close();
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
        // The next process follows the jobs, by the ledger.
        shared.jobs().leave();
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
        shared.give_up_calls();
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
pub fn with_costs(settings: &admit::GateSettings, callers: &Callers) -> admit::GateSettings {
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
            BucketChange::Set(id, rule, mode) => {
                // Calls may have waited without it.
                recharges |= !gate.bucket_holds_calls(id);
                gate.set_bucket(id, rule, mode)
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
    let callers = callers.filter(|it| it.rule.handling.mode == LimitMode::Observe);
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

impl AppState {
    /// Waits for the last spans to be sent, within a bound.
    async fn flush_spans(&self) {
        if self.spans.is_on() {
            // What is not sent by then is lost with the process.
            let _ = tokio::time::timeout(LAST_WORDS, self.spans.flush()).await;
        }
    }

    /// The jobs whose slots are held.
    fn jobs(&self) -> Jobs {
        self.pipeline.classifier.look(|it| it.jobs().clone())
    }

    /// Starts what runs beside the calls until `stop`: the timer of the queue, the shares of other
    /// sidecars, and the saving of the state.
    fn run_beside(self: &Arc<Self>, stop: &CancellationToken) {
        let timer = self.gate.clone();
        let keeping = async move { timer.keep_time().await };
        let jobs = self.jobs();
        jobs.carry(
            self.ledger
                .as_ref()
                .map(LedgerFile::take_jobs)
                .unwrap_or_default(),
        );
        let forwarder = self.pipeline.forwarder.clone();
        let following = jobs::follow_jobs(jobs, forwarder, self.clock);
        let carrying = Arc::clone(&self.coordination).keep_carrying();
        let saving = Arc::clone(self).keep_saving();
        let in_step = Arc::clone(self).keep_in_step();
        tokio::spawn(stop.clone().run_until_cancelled_owned(keeping));
        tokio::spawn(stop.clone().run_until_cancelled_owned(following));
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
            // The thread moves calls, so it does not wait for a change.
            if noted != coming
                && let Some(_one_at_a_time) = self.changes.try_begin()
            {
                noted = coming;
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
}
