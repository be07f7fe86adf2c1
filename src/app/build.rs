//! Builds all parts of a sidecar, and starts none of them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tidegate_runtime::metric::TimeLimits;
use tidegate_runtime::{Clock, Live, ProcessName};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Predecessor;
use super::acts::ActLog;
use super::callers::Keeper;
use super::changes::Changes;
use super::coordination::Coordination;
use super::handover::{ForeignCalls, ForeignSide, HandedOver, HandedState, Handover};
use super::history::History;
use super::journal::GateJournal;
use super::ledger::{self, HandedCalls, LedgerFile};
use super::metrics::Metrics;
use super::quotas::Quotas;
use super::teller::Teller;
use super::{
    AppState, REVISION, StartError, Surroundings, divide, follow, own_places, warn_of_observed,
    with_costs,
};
use crate::admit::Gate;
use crate::call::{Observe, TaskWakers};
use crate::callers::{Callers, ChangeResult};
use crate::classify::Classifier;
use crate::coalesce::Coalescer;
use crate::config::Config;
use crate::forward::Forwarder;
use crate::listen::Connections;
use crate::listen::threads::Threads;
use crate::pipeline::Pipeline;
use crate::protocol::{Conversation, Stop, StreamDrain};
use crate::tasks::Tasks;
use crate::telemetry::Logs;
use crate::telemetry::access::{AccessLog, LineFormat};
use crate::telemetry::spans::SpanQueue;

impl AppState {
    /// Builds all parts, and starts none of them.
    pub(super) fn build(
        config: Config,
        logs: Option<Logs>,
        (admin, handover): (Option<SocketAddr>, Handover),
        beside: &CancellationToken,
        before: Predecessor,
        surroundings: Surroundings,
    ) -> Result<Self, StartError> {
        let access = access_log(&config, logs.as_ref())?;
        let clock = surroundings.clock;
        let handed = before.handed.as_ref().map(|it| &it.state);
        let (keeper, acts, callers) = restored(&config, handed)?;
        let ChangeResult {
            value: callers,
            buckets,
        } = callers;
        let metrics = metrics_of(&config);
        let (of, to) = (Arc::clone(&metrics), Arc::clone(&access));
        let journal = Arc::new(GateJournal::new(to, clock, of));
        let gate = gate_of(&config, &callers, &journal, clock);
        follow(&gate, &callers, buckets);
        let (path, handed) = (before.ledger.as_deref(), before.handed);
        let (ledger, foreign) = opened_ledger(path, &config, &gate, clock, beside, handed)?;
        warn_of_observed(&config);
        metrics.config_taken(SystemTime::now());
        let name = own_places(&config).and_then(|places| ProcessName::claim(&places));
        let known_as = name.as_ref().map(ProcessName::as_str);
        let coordination =
            coordination_of(&config, &gate, &callers, known_as, &metrics, &surroundings);
        let descriptors = divide(&config, &metrics);
        let (shown, stop) = (metrics.quotas.clone(), beside.clone());
        let records = ledger.as_ref().map(LedgerFile::records);
        let open = surroundings.open;
        let quotas = Quotas::new(gate.clone(), clock, shown, open, records, known_as, stop);
        quotas.apply(config.quotas.as_ref());
        let spans = Arc::new(SpanQueue::new(config.trace.clone()));
        let teller = teller_of(&metrics, &access, &spans, &callers, clock);
        let observer = Arc::clone(&teller) as _;
        let pipeline = pipeline_of(&config, &callers, &gate, observer, clock);
        let (closing, streams) = (Stop::default(), StreamDrain::default());
        let conversation = conversation_of(&config, &pipeline, &closing, &streams);
        Ok(Self {
            clock,
            conversation: Live::new(conversation),
            pipeline,
            gate,
            ledger,
            inherited: before.sockets,
            journal,
            handover,
            foreign: Mutex::new(foreign),
            successor: Mutex::default(),
            coordination: Arc::new(coordination),
            name: Mutex::new(name),
            quotas,
            changes: Changes::default(),
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
            admin_sockets: Mutex::default(),
            config: Live::new(config),
        })
    }
}

/// The state of a process before: what it has handed over, or else the state file.
fn restored(
    config: &Config,
    handed: Option<&HandedState>,
) -> Result<(Keeper, ActLog, ChangeResult<Callers>), StartError> {
    let path = config.callers.state_file.as_deref();
    let (keeper, saved) = Keeper::open(path)?;
    let saved = handed.and_then(HandedState::callers).or(saved);
    let acts = ActLog::open(path)?;
    if let Some(handed) = handed.and_then(HandedState::acts) {
        acts.take(handed);
    }
    let callers = Callers::start(&config.callers, saved).map_err(StartError::Callers)?;
    Ok((keeper, acts, callers))
}

/// The ledger, in which the calls of a process before count, and those of them that a process has handed over.
fn opened_ledger(
    path: Option<&Path>,
    config: &Config,
    gate: &Gate,
    clock: Clock,
    beside: &CancellationToken,
    handed: Option<HandedOver>,
) -> Result<(Option<LedgerFile>, Option<ForeignSide>), StartError> {
    let (decided, decisions) = mpsc::unbounded_channel();
    let mut foreign = ForeignCalls::new(gate.clone(), clock, decided);
    let has_before = handed.is_some();
    let handed = handed.map(|it| HandedCalls {
        lock: it.lock,
        adopt: it.running.map(|running| -> Box<dyn FnOnce() + '_> {
            Box::new(|| running.into_iter().for_each(|call| foreign.adopt(call)))
        }),
    });
    let ledger = ledger::open(path, gate, &config.admit, clock, beside, handed)?;
    Ok((ledger, has_before.then_some((foreign, decisions))))
}

fn coordination_of(
    config: &Config,
    gate: &Gate,
    callers: &Callers,
    known_as: Option<&str>,
    metrics: &Metrics,
    surroundings: &Surroundings,
) -> Coordination {
    let registry = metrics.registry();
    let (gate, callers) = (gate.clone(), callers.clone());
    let coordination = Coordination::new(gate, callers, surroundings, registry, known_as);
    coordination.apply(config.coordinate.as_ref(), &config.admit);
    coordination
}

fn teller_of(
    metrics: &Arc<Metrics>,
    access: &Arc<AccessLog>,
    spans: &Arc<SpanQueue>,
    callers: &Callers,
    clock: Clock,
) -> Arc<Teller> {
    let (metrics, access, spans) = (Arc::clone(metrics), Arc::clone(access), Arc::clone(spans));
    Arc::new(Teller::new(metrics, access, spans, callers.clone(), clock))
}

fn metrics_of(config: &Config) -> Arc<Metrics> {
    let longest = TimeLimits {
        wait: config.admit.max_wait,
        reply: config.forward.bounds.response_timeout,
    };
    let version = env!("CARGO_PKG_VERSION");
    Arc::new(Metrics::with(longest, version, REVISION))
}

/// The gate, from its first event on in the journal.
fn gate_of(config: &Config, callers: &Callers, journal: &Arc<GateJournal>, clock: Clock) -> Gate {
    let limits = with_costs(&config.admit, callers);
    let gate = Gate::new(&limits, clock);
    journal.started(&gate, config, &limits);
    gate.keep_journal(Arc::clone(journal) as _, journal.keeps_replay());
    gate
}

fn conversation_of(
    config: &Config,
    pipeline: &Pipeline,
    stop: &Stop,
    streams: &StreamDrain,
) -> Conversation<Pipeline> {
    Conversation {
        serve: pipeline.clone(),
        settings: config.protocol.clone(),
        clock: pipeline.clock,
        stop: stop.clone(),
        streams: streams.clone(),
        wakers: pipeline.wakers.clone(),
    }
}

fn pipeline_of(
    config: &Config,
    callers: &Callers,
    gate: &Gate,
    observer: Arc<dyn Observe>,
    clock: Clock,
) -> Pipeline {
    Pipeline {
        classifier: Arc::new(Live::new(Classifier::new(&config.classify))),
        callers: callers.clone(),
        coalescer: Coalescer::new(config.coalesce.clone(), clock),
        tasks: Tasks::new(config.tasks, clock),
        gate: gate.clone(),
        forwarder: Forwarder::new(&config.forward),
        observer,
        clock,
        wakers: TaskWakers::default(),
    }
}

fn access_log(config: &Config, logs: Option<&Logs>) -> Result<Arc<AccessLog>, StartError> {
    let access = match logs {
        Some(logs) => logs.access(),
        None => AccessLog::start(io::sink(), LineFormat::Json).map_err(StartError::Log)?,
    };
    access.switch(config.telemetry.access && logs.is_some());
    let keeps_replay = config.telemetry.replay && logs.is_some();
    Ok(Arc::new(access.with_replay(keeps_replay)))
}
