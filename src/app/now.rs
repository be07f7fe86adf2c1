//! `/v1/now`: what waits, why, and until when.

mod limits;
mod sentence;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_callers::{CallerId, UsageSpan};
use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::{Prediction, QueueNow};
use tidegate_runtime::lock;

use self::sentence::sentence;
use super::{AppState, REVISION};
use crate::admin::{
    ActsSource as _, AddressNow, AdminSource, BackendActing, BackendNow, CallId, CallNow, NowState,
    QueueLevels, ReadyNow, RefusalCount, StoreNow, Traffic, link_to_what_to_do, milliseconds,
    unix_milliseconds, what_to_do,
};
use crate::call::{Destination, Facts, Reason};
use crate::forward::NamedRemote;

/// The most limits that are shown.
const LIMITS_MAX: usize = 128;
/// The most functions that are shown.
const FUNCTIONS_MAX: usize = 64;
/// The callers that are shown for their calls of the last hour, and as many for their waiting
/// calls.
const CALLERS_TOP: usize = 10;
/// The waiting calls that are shown.
const OLDEST_MAX: usize = 10;
/// Rates and times are those of calls that ended within this time, at most this many.
const LATELY: Duration = Duration::from_secs(60);
const ENDED_MAX: usize = 2000;
/// How long the list of the busiest callers is kept: making it looks at every caller.
const TOP_KEPT: Duration = Duration::from_secs(60);

/// The busiest callers of the last hour, and when that was found out.
pub(super) type TopCallers = Option<(Timestamp, Vec<CallerId>)>;

/// Figures of a function or a caller.
#[derive(Default)]
struct Gathered {
    waiting: u64,
    in_flight: u64,
    ended: u64,
    queued: Vec<Duration>,
    backend: Vec<Duration>,
    /// The oldest waiting call: its arrival and what it waits for.
    held: Option<(Timestamp, Option<Arc<str>>)>,
}

/// A waiting call.
struct OldestCall {
    id: u64,
    arrived: Timestamp,
    function: Arc<str>,
    class: Arc<str>,
    caller: Option<CallerId>,
}

/// Figures of all calls.
#[derive(Default)]
struct Calls {
    functions: HashMap<Arc<str>, Gathered>,
    callers: HashMap<CallerId, Gathered>,
    /// The oldest, the oldest first.
    oldest: Vec<OldestCall>,
    /// Calls at each backend now.
    at_backend: [u64; Destination::BACKENDS.len()],
    /// The span of the rates.   s
    span: f64,
}

impl AppState {
    /// Everything of this moment.
    pub(super) fn now_state(&self) -> NowState {
        let now = self.clock.now();
        let queue = self.gate.queue_now();
        let (in_flight, _) = self.gate.busy();
        let mut limits = self.limits_of_all_kinds(LIMITS_MAX);
        let held = held(&queue);
        for limit in &mut limits {
            let calls = held.get(limit.name.as_str()).copied();
            limit.waiting = calls.unwrap_or_default() as u64;
        }
        let calls = self.gather(now, &queue);
        let oldest: Vec<_> = calls.oldest.iter().map(|call| call.id).collect();
        let (foreseen, all_left) = self.gate.foreseen(&oldest);
        let all_left = all_left.map(|at| at.since(now).as_secs_f64());
        let backends = self.backends_now(&calls);
        let ready = self.ready();
        let quotas = self.quotas.state(0);
        let pause = Some(self.backend());
        let pause = pause.filter(|it| it.state != BackendActing::Running);
        NowState {
            at_unix_ms: unix_milliseconds(self.clock.wall(now)),
            version: env!("CARGO_PKG_VERSION"),
            revision: REVISION,
            uptime_seconds: now.since(self.clock.began()).as_secs_f64(),
            sentence: sentence(
                &queue,
                &held,
                &limits,
                &backends,
                pause.as_ref(),
                in_flight,
                all_left,
            ),
            ready: ReadyNow {
                ok: ready.is_ok(),
                why: ready.err(),
            },
            queue: QueueLevels {
                waiting: (queue.waiting + queue.at_door) as u64,
                capacity: u64::from(queue.capacity),
                suspended: queue.suspended as u64,
                door: queue.at_door as u64,
                oldest_seconds: queue.oldest_waits.as_secs_f64(),
                in_flight: in_flight as u64,
            },
            oldest_calls: self.oldest_calls(now, &calls, &queue, &foreseen),
            jobs: self.jobs_now(),
            callers: self.callers_now(now, &calls),
            functions: functions(&calls),
            limits,
            backends,
            stores: quotas
                .store
                .into_iter()
                .map(|store| StoreNow {
                    name: store.engine,
                    up: store.up,
                    trouble: store.trouble.map(|trouble| trouble.text),
                })
                .collect(),
            lease_master: self.coordination.master(),
            reload: self.history.reload(),
            // A pause, lower limits and a refused reload have fields of their own.
            notices: {
                let descriptors = self.descriptors.get().warning().map(|it| it.text());
                descriptors
                    .into_iter()
                    .chain(self.ledger_notices())
                    .chain(self.job_notice())
                    .collect()
            },
            refusals_1h: refusals(self.history.hour().refused),
            pause,
            overrides: self.overrides(),
        }
    }

    /// Looks at every call under way, and at the latest that have ended.
    fn gather(&self, now: Timestamp, queue: &QueueNow) -> Calls {
        let mut calls = Calls::default();
        self.lately
            .each_under_way(|facts| calls.under_way(facts, queue));
        calls.oldest.sort_by_key(|call| (call.arrived, call.id));
        calls.oldest.truncate(OLDEST_MAX);
        let ended = self.lately.latest(ENDED_MAX, |call| {
            let caller = call.caller;
            (
                call.arrived + call.took.total,
                Arc::clone(&call.function),
                caller,
                call.took,
            )
        });
        let mut first = now;
        for (at, function, caller, took) in ended {
            if now.since(at) > LATELY {
                continue;
            }
            first = first.min(at);
            let of_function = calls.functions.entry(function).or_default();
            of_function.ended(took.queued(), took.backend);
            if let Some(caller) = caller {
                let of_caller = calls.callers.entry(caller).or_default();
                of_caller.ended(took.queued(), took.backend);
            }
        }
        // Of fewer calls than that, all of the last minute are known.
        let all: u64 = calls.functions.values().map(|it| it.ended).sum();
        calls.span = match all < ENDED_MAX as u64 {
            true => LATELY.min(now.since(self.clock.began())).as_secs_f64(),
            false => now.since(first).as_secs_f64(),
        };
        calls.span = calls.span.max(1.0);
        calls
    }

    fn backends_now(&self, calls: &Calls) -> Vec<BackendNow> {
        let settings = self.config.get();
        let forward = &settings.forward;
        let hour = self.history.hour();
        let backends = [
            (Destination::Socket, &forward.socket),
            (Destination::Http, &forward.http),
            (Destination::Tcp, &forward.tcp),
        ];
        let shown = backends.into_iter().filter_map(|(backend, address)| {
            let name = self.pipeline.forwarder.name_state(backend);
            let name = name.unwrap_or_default();
            let addresses = name.addresses.into_iter();
            if backend == Destination::Http && !forward.servers.is_empty() {
                // Each of them is below.
                return None;
            }
            Some(BackendNow {
                name: backend.label(),
                server: None,
                address: address.as_ref()?.to_string(),
                up: self.gate.is_up(backend),
                since_unix_ms: self.history.since(backend),
                connections: calls.at_backend[backend as usize],
                failures_1h: u64::from(hour.failed[backend as usize]),
                addresses: addresses
                    .map(|known| AddressNow {
                        address: known.address.to_string(),
                        in_use: known.is_in_use,
                        failure: known.failure,
                    })
                    .collect(),
                looked_up_seconds_ago: name.age.map(|age| age.as_secs_f64()),
                lookup_failure: name.failure,
            })
        });
        let servers = self.servers_now(&forward.servers);
        shown.chain(servers).collect()
    }

    /// The servers of the HTTP backend, if it has several.
    fn servers_now(&self, remotes: &[NamedRemote]) -> Vec<BackendNow> {
        let states = self.gate.servers();
        let rows = states.iter().filter_map(|state| {
            let known = remotes.iter().find(|it| it.name == state.name)?;
            Some(BackendNow {
                name: Destination::Http.label(),
                server: Some(state.name.to_string()),
                address: known.remote.to_string(),
                up: state.is_up,
                since_unix_ms: unix_milliseconds(self.clock.wall(state.since)),
                connections: state.calls.into(),
                failures_1h: 0,
                addresses: Vec::new(),
                looked_up_seconds_ago: None,
                lookup_failure: None,
            })
        });
        rows.collect()
    }

    fn oldest_calls(
        &self,
        now: Timestamp,
        calls: &Calls,
        queue: &QueueNow,
        foreseen: &[Option<Prediction>],
    ) -> Vec<CallNow> {
        let calls = calls.oldest.iter().zip(foreseen);
        let rows = calls.map(|(call, foreseen)| {
            let starts = foreseen.as_ref().and_then(|it| it.starts);
            let waits_for = held_by(queue, &call.function, &call.class);
            CallNow {
                id: CallId(call.id),
                function: call.function.to_string(),
                caller: call.caller.map(|caller| self.caller_name(now, caller)),
                class: call.class.to_string(),
                waits_seconds: now.since(call.arrived).as_secs_f64(),
                starts_in_seconds: starts.map(|at| at.since(now).as_secs_f64()),
                waits_for: waits_for.as_deref().map(ToOwned::to_owned),
            }
        });
        rows.collect()
    }

    /// The label of a caller, or else its id.
    fn caller_name(&self, now: Timestamp, id: CallerId) -> String {
        let caller = self.callers.get(now, id).ok();
        let label = caller.and_then(|caller| caller.row.label);
        label.map_or_else(|| id.to_string(), |label| label.to_string())
    }

    fn callers_now(&self, now: Timestamp, calls: &Calls) -> Vec<Traffic> {
        let mut ids = self.top_callers(now);
        let mut waiting: Vec<_> = calls
            .callers
            .iter()
            .filter(|(_, it)| it.waiting > 0)
            .collect();
        waiting.sort_by_key(|&(id, it)| (Reverse(it.waiting), *id));
        for (id, _) in waiting.into_iter().take(CALLERS_TOP) {
            if !ids.contains(id) {
                ids.push(*id);
            }
        }
        let nothing = Gathered::default();
        let rows = ids.into_iter().map(|id| {
            let of = calls.callers.get(&id).unwrap_or(&nothing);
            Traffic {
                caller: Some(self.caller_name(now, id)),
                id: Some(id.to_string()),
                ..of.traffic(calls.span)
            }
        });
        rows.collect()
    }

    /// The callers with the most calls in the last hour.
    fn top_callers(&self, now: Timestamp) -> Vec<CallerId> {
        if let Some((at, top)) = &*lock(&self.top_callers)
            && now.since(*at) < TOP_KEPT
            && top.len() == CALLERS_TOP
        {
            return top.clone();
        }
        let all = self.callers.all(now).into_iter();
        let calls = all.map(|caller| {
            let hour = caller.usage.over(UsageSpan::Hour);
            (Reverse(hour.tally.calls), caller.row.id)
        });
        let mut calls: Vec<_> = calls.filter(|(calls, _)| calls.0 > 0).collect();
        calls.sort_unstable();
        let top: Vec<_> = calls
            .into_iter()
            .take(CALLERS_TOP)
            .map(|(_, id)| id)
            .collect();
        *lock(&self.top_callers) = Some((now, top.clone()));
        top
    }
}

impl Calls {
    fn under_way(&mut self, facts: &Facts, queue: &QueueNow) {
        let arrived = facts.origin.arrived;
        let caller = facts.claim.as_ref().map(|claim| claim.caller);
        let is_admitted = facts.admitted.is_some();
        // A request that did not ask for its turn yet waits for no limit.
        let is_waiting = !is_admitted && facts.destination.is_some();
        let held = is_waiting.then(|| held_by(queue, &facts.function, &facts.class));
        let of_function = self
            .functions
            .entry(Arc::clone(&facts.function))
            .or_default();
        of_function.under_way(arrived, is_admitted, held.clone());
        if let Some(caller) = caller {
            let of_caller = self.callers.entry(caller).or_default();
            of_caller.under_way(arrived, is_admitted, held);
        }
        if facts.sent.is_some()
            && facts.answered.is_none()
            && let Some(destination) = facts.destination
            && let Some(at) = self.at_backend.get_mut(destination as usize)
        {
            *at += 1;
        }
        if is_waiting {
            self.oldest.push(OldestCall {
                id: facts.id,
                arrived,
                function: Arc::clone(&facts.function),
                class: Arc::clone(&facts.class),
                caller,
            });
        }
        // Now and then, so that a long queue costs no sort for each call.
        if self.oldest.len() >= 64 * OLDEST_MAX {
            self.oldest.sort_by_key(|call| (call.arrived, call.id));
            self.oldest.truncate(OLDEST_MAX);
        }
    }
}

impl Gathered {
    fn under_way(&mut self, arrived: Timestamp, is_admitted: bool, held: Option<Option<Arc<str>>>) {
        self.in_flight += u64::from(is_admitted);
        let Some(held) = held else { return };
        self.waiting += 1;
        if self
            .held
            .as_ref()
            .is_none_or(|(oldest, _)| arrived < *oldest)
        {
            self.held = Some((arrived, held));
        }
    }

    fn ended(&mut self, queued: Duration, backend: Option<Duration>) {
        self.ended += 1;
        self.queued.push(queued);
        self.backend.extend(backend);
    }

    fn traffic(&self, span: f64) -> Traffic {
        let [queue_p50_ms, queue_p95_ms] = quantiles(&self.queued);
        let [backend_p50_ms, backend_p95_ms] = quantiles(&self.backend);
        let held = self.held.as_ref().and_then(|(_, held)| held.as_deref());
        Traffic {
            per_second: self.ended as f64 / span,
            waiting: self.waiting,
            in_flight: self.in_flight,
            queue_p50_ms,
            queue_p95_ms,
            backend_p50_ms,
            backend_p95_ms,
            held_by: held.map(ToOwned::to_owned),
            ..Traffic::default()
        }
    }
}

fn functions(calls: &Calls) -> Vec<Traffic> {
    let mut all: Vec<_> = calls.functions.iter().collect();
    all.sort_by_key(|&(name, it)| (Reverse(it.waiting), Reverse(it.ended), Arc::clone(name)));
    let rows = all
        .into_iter()
        .take(FUNCTIONS_MAX)
        .map(|(name, it)| Traffic {
            function: Some(name.to_string()),
            ..it.traffic(calls.span)
        });
    rows.collect()
}

/// The calls that wait for each limit.
fn held(queue: &QueueNow) -> BTreeMap<&str, usize> {
    let mut held = BTreeMap::new();
    for row in &queue.functions {
        if let Some(limit) = &row.held_by {
            *held.entry(&**limit).or_default() += row.waiting;
        }
    }
    held
}

/// The cause of wait of most waiting calls of a function and class.
fn held_by(queue: &QueueNow, function: &str, class: &str) -> Option<Arc<str>> {
    let rows = queue.functions.iter();
    let rows = rows.filter(|row| *row.function == *function && *row.class == *class);
    let most = rows.max_by_key(|row| row.waiting)?;
    most.held_by.clone()
}

/// The median and the time of 95 of 100.   ms
fn quantiles(of: &[Duration]) -> [Option<f64>; 2] {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    [50, 95].map(|percent| {
        let rank = (sorted.len() * percent).div_ceil(100);
        Some(milliseconds(*sorted.get(rank.checked_sub(1)?)?))
    })
}

fn refusals(refused: [u32; Reason::ALL.len()]) -> Vec<RefusalCount> {
    let mut by_count: BTreeMap<_, _> = BTreeMap::new();
    for (reason, count) in Reason::ALL.into_iter().zip(refused) {
        if count > 0 {
            by_count.insert((Reverse(count), reason as usize), reason);
        }
    }
    let rows = by_count
        .into_iter()
        .map(|((Reverse(count), _), reason)| RefusalCount {
            reason: reason.label(),
            count: u64::from(count),
            what_to_do: what_to_do(reason.label()),
            link: link_to_what_to_do(reason.label()),
        });
    rows.collect()
}
