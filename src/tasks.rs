//! Calls that are handed over: they run without their client, who comes back for the answer.
//!
//! A task belongs to the owner that submitted it; to everybody else it does not exist. Its
//! future runs in a task of the runtime. Cancelling drops that future: as the pipeline's
//! futures are made, a call of which no byte was sent is gone with it, and any other is
//! brought to its end and its reply dropped. What has ended is kept for a while, within bounds
//! on tasks and bytes, of each caller and in all, and nothing is kept across a restart.
//!
//! An id tells what became of a task that is not here. It carries a tag of the process, and a
//! check that only this process can compute. So an id of another process, or of a task that
//! was here, is gone; any other never existed; and no list of old ids has to be kept.

mod answer;
mod id;
pub mod metrics;
mod prefer;
mod store;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tidegate_callers::CallerId;
use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use self::answer::{Answer, Unread};
use self::id::Ids;
pub use self::id::{NoTaskId, TaskId};
pub use self::prefer::Preference;
use self::store::{Entry, Phase, Store};
use crate::call::{Identity, Peer, Refusal};

/// What this stage is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether calls can be handed over at all.
    pub enabled: bool,
    /// Tasks, ended or not.
    pub tasks_max: usize,
    /// Tasks of one caller, ended or not.
    pub tasks_per_caller_max: usize,
    /// Bytes of requests and answers.
    pub bytes_max: usize,
    /// Bytes of requests and answers of one caller.
    pub bytes_per_caller_max: usize,
    /// How long a task is kept after it has ended.
    pub time_to_live: Duration,
}

/// A result, which is kept in memory until it is let go or its time is over.
pub trait Weigh: Send + Sync + 'static {
    /// How many bytes it takes.
    fn bytes(&self) -> usize;
}

/// What can be seen of a call while it is under way.
pub trait Watch: Send + Sync + 'static {
    /// Whether it is past the gate.
    fn is_admitted(&self) -> bool;

    /// What it would be told if it could wait no longer; `None` where that is not known.
    fn refusal_now(&self) -> Option<Refusal>;
}

/// Whose task it is. Two owners are the same if their keys are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The owner with this key, which says who it is and is not looked into.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>) -> Self {
        Self(key.into())
    }

    /// Whoever is known by everything that this identity says: listener, address, the uid of a
    /// socket file's peer, user, `User-Agent` and `Originator`. A port is nobody's name.
    #[must_use]
    pub fn of(identity: &Identity) -> Self {
        let uid = match identity.peer {
            Peer::Tcp(_) => None,
            Peer::Unix { uid } => Some(uid),
        };
        let Identity {
            listener,
            address,
            user,
            user_agent,
            originator,
            ..
        } = identity;
        // As `Debug` writes texts, none of them can be taken for two.
        let known = (listener, uid, address, user, user_agent, originator);
        Self::new(format!("{known:?}"))
    }
}

/// A call that is handed over.
pub struct Submission {
    /// Who comes back for it.
    pub owner: Owner,
    /// Whose bounds it counts against.
    pub caller: CallerId,
    /// The id of its access line.
    pub call: u64,
    /// Its function; a name from the table or the config, else `other`.
    pub function: Arc<str>,
    /// What its request holds until it ends.   bytes
    pub bytes: usize,
    /// What can be seen of it meanwhile.
    pub watch: Arc<dyn Watch>,
}

/// A task as it is now.
pub struct Task<R> {
    /// Its name.
    pub id: TaskId,
    /// The id of its access line.
    pub call: u64,
    /// Its function; a name from the table or the config, else `other`.
    pub function: Arc<str>,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When it ended; it is kept for the time to live from then on.
    pub ended: Option<Timestamp>,
    /// Its call, until it has ended.
    pub watch: Option<Arc<dyn Watch>>,
    /// How far it has come.
    pub state: State<R>,
}

/// How far a task has come.
#[derive(Debug)]
pub enum State<R> {
    /// It waits for its turn.
    Waiting,
    /// It is past the gate.
    Running,
    /// It has ended, with this result.
    Done(Arc<R>),
    /// It has ended, and there was no room for its result.
    NotKept {
        /// How large the result was, as far as it was read.
        bytes: usize,
    },
    /// It was cancelled.
    Cancelled,
    /// It ended without a result, by a mistake of ours.
    Failed,
}

impl<R> State<R> {
    /// The word that clients are told.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done(_) => "done",
            Self::NotKept { .. } => "not_kept",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

impl<R> Clone for State<R> {
    fn clone(&self) -> Self {
        match self {
            Self::Waiting => Self::Waiting,
            Self::Running => Self::Running,
            Self::Done(result) => Self::Done(Arc::clone(result)),
            Self::NotKept { bytes } => Self::NotKept { bytes: *bytes },
            Self::Cancelled => Self::Cancelled,
            Self::Failed => Self::Failed,
        }
    }
}

/// A result for which there was no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotKept {
    /// How large it was, as far as it was read.
    pub bytes: usize,
}

/// Why there is no such task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is no longer here: its time was over, it was removed, or it was submitted to a
    /// process before this one.
    Gone,
    /// It was never here, or it is another owner's.
    Unknown,
}

/// What was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// A task that had not ended. It is kept as cancelled for the time to live, or until its
    /// place is needed.
    Work,
    /// The result of a task that had ended. The task is gone.
    Result,
}

/// Why a task was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// When a task that has ended will make room; `None` if all of them are still under way,
    /// or if there will be no more room.
    pub retry_after: Option<Duration>,
}

/// Which bound stood against a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There are `tasks_max`.
    Tasks,
    /// There are `tasks_per_caller_max` of this caller.
    TasksOfCaller,
    /// Requests and answers take `bytes_max`, or would.
    Bytes,
    /// Requests and answers of this caller take `bytes_per_caller_max`, or would.
    BytesOfCaller,
    /// The process is going down.
    Draining,
}

/// How many tasks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TasksNow {
    /// Waiting for their turn.
    pub waiting: usize,
    /// Past the gate.
    pub running: usize,
    /// Ended and kept.
    pub ended: usize,
    /// Bytes of requests of those under way, and of answers.
    pub bytes: usize,
    /// How those ended that are here or were.
    pub counted: Ended,
}

/// How many tasks have ended since the start, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// With an answer that was kept.
    pub answered: u64,
    /// With one for which there was no room.
    pub not_kept: u64,
    /// Because their owners cancelled them.
    pub cancelled: u64,
    /// By a mistake of ours, or the end of the process.
    pub failed: u64,
}

/// The tasks of a process. Cloned, it is the same.
pub struct Tasks<R>(Arc<Inner<R>>);

impl<R> Clone for Tasks<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<R> {
    clock: Clock,
    ids: Ids,
    futures: TaskTracker,
    /// Whether calls can be handed over, for the many that ask without the lock.
    enabled: AtomicBool,
    store: Mutex<Store<R>>,
}

impl<R: Weigh> Tasks<R> {
    /// No tasks.
    #[must_use]
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let mut entropy: StdRng = rand::make_rng();
        Self(Arc::new(Inner {
            clock,
            ids: Ids::new(entropy.random::<u64>().max(1)),
            futures: TaskTracker::new(),
            enabled: AtomicBool::new(settings.enabled),
            store: Mutex::new(Store::new(settings, entropy)),
        }))
    }

    /// Takes other bounds. What is beyond them stays until its time is over, which is told by
    /// the new time to live.
    pub fn apply(&self, settings: Settings) {
        self.0.lock().settings = settings;
        self.0.enabled.store(settings.enabled, Ordering::Relaxed);
    }

    /// Whether calls can be handed over at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.enabled.load(Ordering::Relaxed)
    }

    /// Runs a future without waiting for it. If it panics, the task has failed.
    ///
    /// # Errors
    ///
    /// [`Refused`] where a bound is reached; the future is not begun then.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn submit<F>(
        &self,
        submission: Submission,
        work: impl FnOnce(Room<R>) -> F + Send + 'static,
    ) -> Result<Submitted, Refused>
    where
        F: Future<Output = Result<R, NotKept>> + Send + 'static,
    {
        let inner = &self.0;
        let (begun, has_begun) = oneshot::channel();
        let mut ending = inner.admit(submission, begun)?;
        let id = ending.id;
        let room = Room {
            inner: Arc::clone(inner),
            id,
        };
        // Not under the lock: a runtime that goes down drops the future at once, and that ends
        // the task. Whatever panics does so in the future.
        let future = tokio::spawn(async move {
            let mut work = pin!(work(room));
            let first = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            let result = match first {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    ending.begun();
                    work.await
                }
            };
            ending.with(result);
        });
        let abort = future.abort_handle();
        if !inner.lock().spawned(id, &abort) {
            abort.abort();
        }
        Ok(Submitted {
            id,
            has_begun,
            future,
        })
    }

    /// One task of an owner.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the owner has no such task.
    pub fn get(&self, owner: &Owner, id: TaskId) -> Result<Task<R>, Missing> {
        let mut store = self.0.lock();
        store.sweep(self.0.clock.now());
        self.0.find(&store, owner, id).map(Entry::task)
    }

    /// One task of an owner, who does not come back for it if it has ended.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the owner has no such task.
    pub fn take(&self, owner: &Owner, id: TaskId) -> Result<Task<R>, Missing> {
        let mut store = self.0.lock();
        store.sweep(self.0.clock.now());
        let task = self.0.find(&store, owner, id)?.task();
        if task.ended.is_some() {
            store.remove(id.random);
        }
        Ok(task)
    }

    /// Cancels a task that has not ended, and waits until its future is dropped; lets go of one
    /// that has ended.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the owner has no such task.
    pub async fn cancel(&self, owner: &Owner, id: TaskId) -> Result<Cancelled, Missing> {
        let (cancelled, left) = self.begin_to_cancel(owner, id)?;
        left.cancelled().await;
        Ok(cancelled)
    }

    fn begin_to_cancel(
        &self,
        owner: &Owner,
        id: TaskId,
    ) -> Result<(Cancelled, CancellationToken), Missing> {
        let mut store = self.0.lock();
        let now = self.0.clock.now();
        store.sweep(now);
        let (future, left) = match &self.0.find(&store, owner, id)?.phase {
            Phase::Working { future, left, .. } => (future.clone(), left.clone()),
            Phase::Ended { .. } => {
                store.remove(id.random);
                let left = CancellationToken::new();
                left.cancel();
                return Ok((Cancelled::Result, left));
            }
        };
        store.end(now, id.random, State::Cancelled);
        drop(store);
        // Not under the lock: dropping the future may end the task.
        if let Some(future) = future {
            future.abort();
        }
        Ok((Cancelled::Work, left))
    }

    /// The tasks of an owner, the first submitted first. Looks at all tasks.
    #[must_use]
    pub fn list(&self, owner: &Owner) -> Vec<Task<R>> {
        let mut store = self.0.lock();
        store.sweep(self.0.clock.now());
        let entries = store.entries.values();
        let mut tasks: Vec<Task<R>> = entries
            .filter(|entry| entry.owner == *owner)
            .map(Entry::task)
            .collect();
        tasks.sort_unstable_by_key(|task| (task.submitted, task.id.random));
        tasks
    }

    /// How many tasks there are. Looks at all of them.
    #[must_use]
    pub fn snapshot(&self) -> TasksNow {
        let mut store = self.0.lock();
        store.sweep(self.0.clock.now());
        let mut found = TasksNow {
            bytes: store.bytes,
            counted: store.counted,
            ..TasksNow::default()
        };
        for entry in store.entries.values() {
            match entry.task().state {
                State::Waiting => found.waiting += 1,
                State::Running => found.running += 1,
                _ => found.ended += 1,
            }
        }
        found
    }

    /// Lets go of the tasks whose time is over. Everything else here does so too; without
    /// calls, only this does.
    pub fn sweep(&self) {
        self.0.lock().sweep(self.0.clock.now());
    }

    /// Takes no more tasks, and waits until no future is left.
    pub async fn drain(&self) {
        self.0.lock().draining = true;
        self.0.futures.close();
        self.0.futures.wait().await;
    }
}

impl<R> Inner<R> {
    fn lock(&self) -> MutexGuard<'_, Store<R>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the entry of a new task, if there is room.
    fn admit(
        self: &Arc<Self>,
        submission: Submission,
        begun: oneshot::Sender<()>,
    ) -> Result<Ending<R>, Refused> {
        let mut store = self.lock();
        let now = self.clock.now();
        store.sweep(now);
        store.forget_cancelled(submission.caller);
        store.room_for(submission.caller, submission.bytes, now)?;
        let id = self.ids.make(store.entropy.random());
        let left = CancellationToken::new();
        store.insert(now, id, submission, left.clone());
        Ok(Ending {
            inner: Arc::clone(self),
            id,
            begun: Some(begun),
            _left: left.drop_guard(),
            // Taken under the lock: draining waits for it, or has refused it.
            _counted: self.futures.token(),
        })
    }

    fn find<'a>(
        &self,
        store: &'a Store<R>,
        owner: &Owner,
        id: TaskId,
    ) -> Result<&'a Entry<R>, Missing> {
        self.ids.check(id)?;
        match store.entries.get(&id.random) {
            Some(entry) if entry.owner == *owner => Ok(entry),
            Some(_) => Err(Missing::Unknown),
            None => Err(Missing::Gone),
        }
    }
}

/// A task that was taken, as whoever submitted it sees it. Dropped, it goes on.
#[derive(Debug)]
pub struct Submitted {
    /// Its name.
    pub id: TaskId,
    has_begun: oneshot::Receiver<()>,
    future: JoinHandle<()>,
}

impl Submitted {
    /// Whether it has ended without having waited for anything.
    pub async fn has_ended_at_once(&mut self) -> bool {
        (&mut self.has_begun).await.is_err()
    }

    /// Ready when it has ended, or was cancelled.
    pub async fn ended(&mut self) {
        // However it ended, its state tells.
        let _ = (&mut self.future).await;
    }
}

/// Where a task keeps what comes of its answer.
pub struct Room<R> {
    inner: Arc<Inner<R>>,
    id: TaskId,
}

impl<R> Room<R> {
    /// Counts so many more bytes until the task ends; `false` if there is no room for them.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> bool {
        self.inner.lock().hold(self.id.random, bytes)
    }
}

/// Ends a task when its future does, however it does.
struct Ending<R> {
    inner: Arc<Inner<R>>,
    id: TaskId,
    // What follows is let go of after the task has ended.
    begun: Option<oneshot::Sender<()>>,
    _left: DropGuard,
    _counted: TaskTrackerToken,
}

impl<R> Ending<R> {
    /// It waits for something.
    fn begun(&mut self) {
        if let Some(begun) = self.begun.take() {
            // Whoever submitted it need not care.
            let _ = begun.send(());
        }
    }
}

impl<R: Weigh> Ending<R> {
    fn with(self, result: Result<R, NotKept>) {
        let mut store = self.inner.lock();
        let now = self.inner.clock.now();
        match result {
            Ok(result) => {
                let bytes = result.bytes();
                store.end_with(now, self.id.random, result, bytes);
            }
            Err(NotKept { bytes }) => {
                store.end(now, self.id.random, State::NotKept { bytes });
            }
        }
    }
}

impl<R> Drop for Ending<R> {
    /// After a result or a cancellation the task has ended already. What is left is a panic,
    /// or the end of the runtime.
    fn drop(&mut self) {
        let mut store = self.inner.lock();
        let now = self.inner.clock.now();
        store.end(now, self.id.random, State::Failed);
    }
}

#[cfg(test)]
mod tests;
