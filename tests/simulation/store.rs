//! A store of quotas outside the processes. Questions and answers take time, and may be lost.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tidegate_limits::Timestamp;
use tidegate_limits::quota::{RecordVersion, StoreTime};
use tidegate_quota::memory::{Memory, MemoryNode};
use tidegate_quota::{
    QuotaStore, RecordKey, StoreCall, StoreEntry, StoreError, StoredSettings, SwapResult,
};
use tidegate_runtime::Clock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::process::{UP, time_of_day};
use crate::record::Millis;

/// The store's time when the simulation begins.   ms
pub(crate) const STORE_BEGAN: Millis = 1_900_000_000_000;
/// An answer that has not come by then is given up.
const PATIENCE: Duration = Duration::from_millis(150);
/// The longest way to the store, and back.   ms
const WAY_MAX: Millis = 40;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A question on its way: what the store does with it.
type Question = Box<dyn FnOnce(Arc<MemoryNode>) -> Work + Send>;

/// The store.
#[derive(Clone)]
pub(crate) struct Store {
    questions: mpsc::UnboundedSender<Question>,
    state: Arc<Mutex<State>>,
}

struct State {
    node: Arc<MemoryNode>,
    /// Says when the records of that node are gone.
    gone: watch::Sender<()>,
    is_unavailable: bool,
    random: StdRng,
}

impl Store {
    /// Serves from now on; needs a runtime.
    pub(crate) fn start(seed: u64) -> Self {
        let (questions, mut asked) = mpsc::unbounded_channel::<Question>();
        let state = Arc::new(Mutex::new(State {
            node: Arc::new(memory().node()),
            gone: watch::channel(()).0,
            is_unavailable: false,
            random: StdRng::seed_from_u64(seed ^ 0x5707e),
        }));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Some(question) = asked.recv().await {
                let way = {
                    let mut state = shared.lock().expect("no part panics with it");
                    let is_lost = state.is_unavailable || state.random.random_bool(0.03);
                    (!is_lost).then(|| state.random.random_range(0..WAY_MAX))
                };
                let Some(way) = way else { continue };
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(way)).await;
                    let node = Arc::clone(&state.lock().expect("no part panics with it").node);
                    question(node).await;
                });
            }
        });
        Self { questions, state }
    }

    pub(crate) fn set_unavailable(&self, is_unavailable: bool) {
        self.state
            .lock()
            .expect("no part panics with it")
            .is_unavailable = is_unavailable;
    }

    /// Forgets all records, and tells those that watch one.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock().expect("no part panics with it");
        state.node = Arc::new(memory().node());
        state.gone.send_replace(());
    }

    fn gone(&self) -> watch::Receiver<()> {
        let state = self.state.lock().expect("no part panics with it");
        state.gone.subscribe()
    }

    /// The way of a process to it. `began` is the time of the store at an instant outside.
    pub(crate) fn way(&self, clock: Clock, began: Instant) -> Arc<dyn QuotaStore> {
        Arc::new(WayToStore {
            store: self.clone(),
            clock,
            began,
            time: watch::channel(StoreTime::unknown(clock.now())).0,
            members: watch::channel(2).0,
        })
    }

    /// Whether an answer is lost, else how long its way takes.
    fn way_back(&self) -> Option<Duration> {
        let mut state = self.state.lock().expect("no part panics with it");
        let is_lost = state.random.random_bool(0.03);
        let way = state.random.random_range(0..WAY_MAX);
        (!is_lost).then(|| Duration::from_millis(way))
    }
}

fn memory() -> Memory {
    Memory::new(Clock::simulated(Duration::ZERO, UP, time_of_day(0)))
}

struct WayToStore {
    store: Store,
    clock: Clock,
    began: Instant,
    time: watch::Sender<StoreTime>,
    members: watch::Sender<usize>,
}

impl WayToStore {
    /// Asks the store, which answers with the time of its answer.
    async fn ask<T, F, W>(&self, work: F, is_write: bool) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<MemoryNode>) -> W + Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (answers, answer) = oneshot::channel();
        let (began, store) = (self.began, self.store.clone());
        let question: Question = Box::new(move |node| {
            Box::pin(async move {
                let done = work(node).await;
                let stamp = Duration::from_millis(STORE_BEGAN) + began.elapsed();
                if let Some(way) = store.way_back() {
                    sleep(way).await;
                    // The process may be gone.
                    let _ = answers.send((done, stamp));
                }
            })
        });
        let sent = self.clock.now();
        let _ = self.store.questions.send(question);
        match timeout(PATIENCE, answer).await {
            Ok(Ok((done, stamp))) => {
                let resolution = Duration::from_millis(1);
                let time = StoreTime::from_reply(sent, self.clock.now(), stamp, resolution);
                self.time.send_replace(time);
                done
            }
            _ if is_write => Err(StoreError::Unknown("no answer".into())),
            _ => Err(StoreError::Unavailable("no answer".into())),
        }
    }
}

impl QuotaStore for WayToStore {
    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreCall<'a, Option<StoreEntry>> {
        let key = key.clone();
        Box::pin(self.ask(async move |node| node.get(&key).await, false))
    }

    fn compare_and_set<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<RecordVersion>,
        text: &'a [u8],
        kept_until: Duration,
    ) -> StoreCall<'a, SwapResult> {
        let (key, text) = (key.clone(), text.to_vec());
        let work = async move |node: Arc<MemoryNode>| {
            node.compare_and_set(&key, expected, &text, kept_until)
                .await
        };
        Box::pin(self.ask(work, true))
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.time.subscribe()
    }

    fn changed<'a>(
        &'a self,
        key: &'a RecordKey,
        since: Option<RecordVersion>,
    ) -> StoreCall<'a, ()> {
        let key = key.clone();
        Box::pin(async move {
            let (tells, told) = oneshot::channel();
            let store = self.store.clone();
            let question: Question = Box::new(move |node| {
                Box::pin(async move {
                    let (mut tells, mut gone) = (tells, store.gone());
                    let changed = tokio::select! {
                        changed = node.changed(&key, since) => changed,
                        _ = gone.changed() => Ok(()),
                        () = tells.closed() => return,
                    };
                    if let Some(way) = store.way_back() {
                        sleep(way).await;
                        // The process may be gone.
                        let _ = tells.send(changed);
                    }
                })
            });
            let _ = self.store.questions.send(question);
            match told.await {
                Ok(changed) => changed,
                Err(_) => {
                    // The question was lost, and it takes this long to see that.
                    sleep(PATIENCE).await;
                    Err(StoreError::Unavailable("no answer".into()))
                }
            }
        })
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.members.subscribe()
    }

    fn member_lifetime(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        None
    }

    fn evictions(&self) -> Option<u64> {
        None
    }

    fn configures(&self) -> bool {
        false
    }

    fn configured<'a>(
        &'a self,
        _: &'a RecordKey,
        known: &'a StoredSettings,
    ) -> StoreCall<'a, StoredSettings> {
        Box::pin(async { Ok(known.clone()) })
    }
}
