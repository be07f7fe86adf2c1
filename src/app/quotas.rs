//! Connects the gate's quotas to the store that several sidecars share: requests go out, answers
//! come in. The gate does not know the store, and the store does not know the gate.
//!
//! A request holds up nothing in the gate: calls are decided with tokens that were drawn before.
//! An unanswered request is sent again after the rule's `draw_timeout`. The store counts as
//! unavailable only by the evidence of its connection. Then one probe at a time is sent,
//! independent of keys, so thousands of keys make no storm during an outage or after it. After
//! recovery, only requests for waiting calls are sent, and the newest goes first.
//!
//! A key's first read also gets the settings of that key in the store: so the key has its rule,
//! and no window begins with another total. Later these settings are read again from time to
//! time, and no request waits for that.

mod backlog;
mod breaker;
mod driver;
mod key;
mod members;
pub(super) mod metrics;
mod rule;
mod shown;

use std::sync::{Arc, Mutex};

use tidegate_limits::scheduler::QuotaRule;
use tidegate_quota::memory::Memory;
use tidegate_quota::{Engine, QuotaStore};
use tidegate_runtime::{Clock, lock};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::driver::Driver;
use self::metrics::QuotaMetrics;
use super::ledger::RecordsFile;
use crate::admit::{Gate, QuotaRules};

/// Opens the store of an engine.
pub type StoreOpener = Box<dyn Fn(&Engine, Clock) -> Arc<dyn QuotaStore> + Send + Sync>;

/// The quotas of one sidecar.
pub(super) struct Quotas {
    gate: Gate,
    clock: Clock,
    metrics: QuotaMetrics,
    open: StoreOpener,
    /// Where records in memory survive a restart, if there is a place.
    records: Option<RecordsFile>,
    /// The name of this process among the members of a store.
    member: Option<Arc<str>>,
    /// Ends with the proxy.
    stop: CancellationToken,
    running: Mutex<Option<RunningStore>>,
}

/// A store in use.
struct RunningStore {
    driver: Arc<Driver>,
    /// The engine that the store was opened with.
    engine: Engine,
    /// The records, if they are in this process.
    memory: Option<Memory>,
    _stop: DropGuard,
}

impl Quotas {
    /// Quotas without a store. `stop` ends their tasks.
    pub(super) fn new(
        gate: Gate,
        clock: Clock,
        metrics: QuotaMetrics,
        open: StoreOpener,
        records: Option<RecordsFile>,
        member: Option<&str>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            gate,
            clock,
            metrics,
            open,
            records,
            member: member.map(Into::into),
            stop,
            running: Mutex::default(),
        }
    }

    /// Takes new settings; needs a runtime. Rules change in place. The store stays, for any
    /// settings of it: two sidecars that change to another one at different moments would both
    /// spend a whole window. For the same reason a quota keeps its namespace.
    pub(super) fn apply(&self, settings: Option<&tidegate_quota::QuotaSettings>) {
        let mut running = lock(&self.running);
        let Some(settings) = settings else {
            self.gate.set_quotas(QuotaRules::default());
            // The sidecar is no longer a member.
            *running = None;
            return;
        };
        let mut settings = settings.in_force();
        // The driver first, so that it knows a new quota before its first request.
        if let Some(running) = &*running {
            let RunningStore { driver, engine, .. } = running;
            engine.renew_secrets(&settings.engine);
            if let Some(memory) = &running.memory {
                memory.set_keys_max(settings.keys_max);
            }
            keep_namespaces(&mut settings, &driver.settings.borrow());
            driver.settings.send_replace(Arc::new(settings.clone()));
        } else {
            *running = Some(self.start(settings.clone()));
        }
        let mut rules = QuotaRules {
            keys_max: settings.keys_max,
            ..QuotaRules::default()
        };
        for limit in &settings.limits {
            let rule = QuotaRule {
                rule: limit.rule,
                own: Arc::new(limit.totals.clone()),
                on_excess: limit.on_excess,
            };
            let of_its_kind = match limit.observes {
                true => &mut rules.observed,
                false => &mut rules.enforced,
            };
            of_its_kind.insert(Arc::clone(&limit.name), rule);
        }
        self.gate.set_quotas(rules);
    }

    fn start(&self, settings: tidegate_quota::QuotaSettings) -> RunningStore {
        let engine = settings.engine.clone();
        let memory = (engine == Engine::Memory).then(|| match &self.records {
            Some(records) => records.open(),
            None => Memory::new(self.clock),
        });
        let store: Arc<dyn QuotaStore> = match &memory {
            Some(memory) => {
                memory.set_keys_max(settings.keys_max);
                Arc::new(memory.node())
            }
            None => (self.open)(&engine.clone().with_member(self.member.clone()), self.clock),
        };
        let driver = Arc::new(Driver::new(
            self.gate.clone(),
            self.clock,
            self.metrics.clone(),
            store,
            settings,
        ));
        let stop = self.stop.child_token();
        let carries = Arc::clone(&driver).keep_carrying();
        tokio::spawn(stop.clone().run_until_cancelled_owned(carries));
        let begins = Arc::clone(&driver).begin();
        tokio::spawn(stop.clone().run_until_cancelled_owned(begins));
        RunningStore {
            driver,
            engine,
            memory,
            _stop: stop.drop_guard(),
        }
    }

    /// Reads the records in memory again, which another process has changed meanwhile. While it does, no call is admitted.
    pub(super) fn reread(&self, settings: Option<&tidegate_quota::QuotaSettings>) {
        let in_memory = |running: &RunningStore| running.memory.is_some();
        if lock(&self.running).as_ref().is_some_and(in_memory) {
            self.apply(None);
            self.apply(settings);
        }
    }

    /// Leaves the group of sidecars: no call draws any more. Held tokens expire with their window.
    pub(super) async fn close(&self) {
        let running = lock(&self.running).take();
        if let Some(running) = running {
            running.driver.end().await;
        }
    }
}

/// Keeps the namespace of each quota, because its keys hold tokens of their records.
fn keep_namespaces(
    settings: &mut tidegate_quota::QuotaSettings,
    before: &tidegate_quota::QuotaSettings,
) {
    for limit in &mut settings.limits {
        let mut known = before.limits.iter();
        if let Some(known) = known.find(|known| known.name == limit.name) {
            limit.namespace.clone_from(&known.namespace);
        }
    }
}
