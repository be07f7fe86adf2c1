//! Calls that are handed over: they run without their client, which comes back for the answer.
//!
//! A task exists only for the owner that submitted it. Its future runs in a task of the runtime.
//! Cancelling drops that future. A call of which no byte was sent ends with it. Any other call is
//! brought to its end, and its reply is dropped. An ended task is kept for a while, within bounds
//! on tasks and bytes, for each caller and in all. Nothing survives a restart.
//!
//! An id shows what became of a missing task. It carries a tag of the process, and a check that
//! only this process can compute. An id of another process, or of an earlier task, is gone; any
//! other never existed. So no list of old ids is needed.

mod answer;
mod id;
pub mod metrics;
mod prefer;
mod store;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tidegate_callers::CallerId;
use tidegate_limits::Timestamp;
use tidegate_runtime::{Clock, lock};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use self::answer::{KeepError, read};
use self::id::Ids;
pub use self::id::{NoTaskId, TaskId};
pub use self::prefer::Preference;
use self::store::{Phase, TaskEntry, TaskTable};
use crate::call::{BufferedReply, Identity, Peer, Refusal};
use crate::options::kind::{DAY, GIB, KIB, SECOND, duration, flag, integer, size};
use crate::options::options;

options! {
    /// Calls that clients hand over with "Prefer: respond-async" and come back for: docs/how-to/tasks.md.
    pub struct TasksSection => TaskSettings {
        /// Whether calls can be handed over. Tidegate then answers /v1/tasks itself. The z/VM SDK has
        /// no such path. A reload is enough to switch it.
        enabled: bool = flag().or(false);

        /// Tasks in memory: waiting, running, and ended with an answer that is kept. Raise it together
        /// with queue.capacity, which bounds the waiting ones as well.
        tasks_max: usize = integer(1..=1_000_000).of("tasks").or(1024).key("max_tasks");

        /// The same per caller (docs/how-to/callers.md), so that one caller cannot take all places.
        tasks_per_caller_max: usize = integer(1..=1_000_000).of("tasks").or(256)
            .key("max_tasks_per_caller");

        /// Bytes of requests and answers. An answer that does not fit is lost, although its call was
        /// made: leave room for the largest ones.
        bytes_max: usize = size(KIB..=GIB).or(64 << 20).key("max_bytes");

        /// The same per caller.
        bytes_per_caller_max: usize = size(KIB..=GIB).or(16 << 20).key("max_bytes_per_caller");

        /// How long an answer is kept. Raise it for clients that come back late. Lower it where many
        /// calls are handed over and clients come back soon.
        time_to_live: Duration = duration(SECOND..=DAY).or(600 * SECOND).key("keep_for");
    }
}

impl Copy for TaskSettings {}

/// The visible state of a call under way.
pub trait Watch: Send + Sync + 'static {
    /// Whether it is past the gate.
    fn is_admitted(&self) -> bool;

    /// The reason for which it would be refused if it could wait no longer; `None` if unknown.
    fn refusal_now(&self) -> Option<Refusal>;
}

/// The owner of a task. Owners with equal keys are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The owner with this key. The key is opaque.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>) -> Self {
        Self(key.into())
    }

    /// The owner with everything that this identity contains: listener, address, the uid of a
    /// socket file's peer, user, `User-Agent` and `Originator`. A port identifies no client.
    #[must_use]
    pub fn of(identity: &Identity) -> Self {
        let uid = match identity.peer {
            Peer::Tcp(_) => None,
            Peer::Unix { uid } => Some(uid),
        };
        let named = (&identity.user, &identity.user_agent, &identity.originator);
        // As `Debug` quotes texts, no text can be mistaken for two.
        let known = (&identity.listener, uid, identity.address, named);
        Self::new(format!("{known:?}"))
    }
}

/// A call that is handed over.
pub struct Submission {
    /// The owner, which comes back for it.
    pub owner: Owner,
    /// The caller whose bounds it counts against.
    pub caller: CallerId,
    /// The id of its access line.
    pub call: u64,
    /// The function; a name from the table or the config, else `other`.
    pub function: Arc<str>,
    /// The size of its request until it ends.   bytes
    pub bytes: usize,
}

/// A task as it is now.
pub struct Task {
    /// The id of the task.
    pub id: TaskId,
    /// The id of its access line.
    pub call: u64,
    /// The function; a name from the table or the config, else `other`.
    pub function: Arc<str>,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When it ended. It is kept for the time to live from then on.
    pub ended: Option<Timestamp>,
    /// The watch on its call, until the call has ended.
    pub watch: Option<Arc<dyn Watch>>,
    /// The state of the task.
    pub state: TaskState,
}

/// The state of a task.
#[derive(Clone, Debug)]
pub enum TaskState {
    /// The call waits for its turn.
    Waiting,
    /// The call is past the gate.
    Running,
    /// The call has ended, with this answer.
    Done(Arc<BufferedReply>),
    /// The call has ended, and its answer had no room.
    NotKept {
        /// The size of the part of the answer that was read.
        bytes: usize,
    },
    /// The task was cancelled.
    Cancelled,
    /// The task ended without an answer, because of a bug in Tidegate.
    Failed,
}

impl TaskState {
    /// The word for clients.
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

/// An answer without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotKept {
    /// The size of the part that was read.
    pub bytes: usize,
}

/// Why a task is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingTask {
    /// The task is no longer here: it expired, was removed, or was submitted to an earlier process.
    Gone,
    /// The task never existed, or it belongs to another owner.
    Unknown,
}

/// Why a task was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRejection {
    /// The bound.
    pub reason: TaskBound,
    /// When an ended task makes room; `None` if all tasks are still under way, or if there will be
    /// no more room.
    pub retry_after: Option<Duration>,
}

/// The bound that refused a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskBound {
    /// `tasks_max` tasks.
    Tasks,
    /// `tasks_per_caller_max` tasks of this caller.
    TasksOfCaller,
    /// `bytes_max` bytes of requests and answers.
    Bytes,
    /// `bytes_per_caller_max` bytes of requests and answers of this caller.
    BytesOfCaller,
    /// The process is stopping.
    Draining,
}

/// The current counts of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TasksNow {
    /// Waiting for their turn.
    pub waiting: usize,
    /// Past the gate.
    pub running: usize,
    /// Ended and kept.
    pub ended: usize,
    /// Bytes of the requests of tasks under way, and of answers.
    pub bytes: usize,
    /// The ends of all tasks so far.
    pub counted: EndedTaskCounts,
}

/// How many tasks have ended since the start, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedTaskCounts {
    /// With an answer that was kept.
    pub answered: u64,
    /// With an answer without room.
    pub not_kept: u64,
    /// Because their owners cancelled them.
    pub cancelled: u64,
    /// Because of a bug in Tidegate, or the end of the process.
    pub failed: u64,
}

/// The tasks of a process. Clones share one state.
#[derive(Clone)]
pub struct Tasks(Arc<TaskStore>);

struct TaskStore {
    clock: Clock,
    ids: Ids,
    futures: TaskTracker,
    /// Whether calls can be handed over. Readable without the lock.
    enabled: AtomicBool,
    store: Mutex<TaskTable>,
}

impl Tasks {
    /// No tasks.
    #[must_use]
    pub fn new(settings: TaskSettings, clock: Clock) -> Self {
        let mut entropy: StdRng = rand::make_rng();
        Self(Arc::new(TaskStore {
            clock,
            ids: Ids::new(entropy.random::<u64>().max(1)),
            futures: TaskTracker::new(),
            enabled: AtomicBool::new(settings.enabled),
            store: Mutex::new(TaskTable::new(settings, entropy)),
        }))
    }

    /// Takes other bounds. Tasks beyond them stay until they expire, by the new time to live.
    pub fn apply(&self, settings: TaskSettings) {
        self.0.lock().settings = settings;
        self.0.enabled.store(settings.enabled, Ordering::Relaxed);
    }

    /// Whether calls can be handed over.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.enabled.load(Ordering::Relaxed)
    }

    /// Runs a future without waiting for it. `watch` shows the state of its call. If the future
    /// panics, the task has failed.
    ///
    /// # Errors
    ///
    /// [`TaskRejection`] if a bound is reached. Then the future is not started.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn submit<F>(
        &self,
        submission: Submission,
        watch: Arc<dyn Watch>,
        work: impl FnOnce(Room) -> F + Send + 'static,
    ) -> Result<SubmittedTask, TaskRejection>
    where
        F: Future<Output = Result<BufferedReply, NotKept>> + Send + 'static,
    {
        let inner = &self.0;
        let (begun, has_begun) = oneshot::channel();
        let mut ending = inner.admit(submission, watch, begun)?;
        let id = ending.id;
        let room = Room {
            inner: Arc::clone(inner),
            id,
        };
        // Not under the lock: a runtime that goes down drops the future at once, and that ends the
        // task. A panic also happens in the future.
        let future = tokio::spawn(async move {
            let mut work = pin!(work(room));
            let first = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            let answer = match first {
                Poll::Ready(answer) => answer,
                Poll::Pending => {
                    ending.begun();
                    work.await
                }
            };
            ending.with(answer);
        });
        let abort = future.abort_handle();
        if !inner.lock().spawned(id, &abort) {
            abort.abort();
        }
        Ok(SubmittedTask {
            id,
            has_begun,
            future,
        })
    }

    /// Returns a task of an owner.
    ///
    /// # Errors
    ///
    /// [`MissingTask`] if the owner has no such task.
    pub fn get(&self, owner: &Owner, id: TaskId) -> Result<Task, MissingTask> {
        let store = self.0.swept();
        self.0.find(&store, owner, id).map(TaskEntry::task)
    }

    /// Takes a task of an owner. An ended task is removed.
    ///
    /// # Errors
    ///
    /// [`MissingTask`] if the owner has no such task.
    pub fn take(&self, owner: &Owner, id: TaskId) -> Result<Task, MissingTask> {
        let mut store = self.0.swept();
        let task = self.0.find(&store, owner, id)?.task();
        if task.ended.is_some() {
            store.remove(id.random);
        }
        Ok(task)
    }

    /// Cancels a task that has not ended, and waits until its future is dropped. Removes an ended
    /// task.
    ///
    /// # Errors
    ///
    /// [`MissingTask`] if the owner has no such task.
    pub async fn cancel(&self, owner: &Owner, id: TaskId) -> Result<(), MissingTask> {
        if let Some(left) = self.begin_to_cancel(owner, id)? {
            left.cancelled().await;
        }
        Ok(())
    }

    /// Returns what is cancelled when the future is dropped; `None` if the task had ended.
    fn begin_to_cancel(
        &self,
        owner: &Owner,
        id: TaskId,
    ) -> Result<Option<CancellationToken>, MissingTask> {
        let mut store = self.0.lock();
        let now = self.0.clock.now();
        store.sweep(now);
        let (future, left) = match &self.0.find(&store, owner, id)?.phase {
            Phase::Working { future, left, .. } => (future.clone(), left.clone()),
            Phase::Ended { .. } => {
                store.remove(id.random);
                return Ok(None);
            }
        };
        store.end(now, id.random, TaskState::Cancelled);
        drop(store);
        // Not under the lock, because dropping the future may end the task.
        if let Some(future) = future {
            future.abort();
        }
        Ok(Some(left))
    }

    /// The tasks of an owner, in the order of submission. Looks at all tasks.
    #[must_use]
    pub fn list(&self, owner: &Owner) -> Vec<Task> {
        let store = self.0.swept();
        let entries = store.entries.values();
        let mut tasks: Vec<Task> = entries
            .filter(|entry| entry.of.owner == *owner)
            .map(TaskEntry::task)
            .collect();
        tasks.sort_unstable_by_key(|task| (task.submitted, task.id.random));
        tasks
    }

    /// The current counts. Looks at all tasks.
    #[must_use]
    pub fn snapshot(&self) -> TasksNow {
        let store = self.0.swept();
        let mut found = TasksNow {
            bytes: store.bytes,
            counted: store.counted,
            ..TasksNow::default()
        };
        for entry in store.entries.values() {
            match entry.task().state {
                TaskState::Waiting => found.waiting += 1,
                TaskState::Running => found.running += 1,
                _ => found.ended += 1,
            }
        }
        found
    }

    /// Removes expired tasks. Everything else here does so too. Without calls, only this does.
    pub fn sweep(&self) {
        drop(self.0.swept());
    }

    /// Accepts no more tasks, and waits until no future is left.
    pub async fn drain(&self) {
        self.0.lock().draining = true;
        self.0.futures.close();
        self.0.futures.wait().await;
    }
}

impl TaskStore {
    fn lock(&self) -> MutexGuard<'_, TaskTable> {
        lock(&self.store)
    }

    /// The tasks, without those whose time is over.
    fn swept(&self) -> MutexGuard<'_, TaskTable> {
        let mut store = self.lock();
        store.sweep(self.clock.now());
        store
    }

    /// Makes the entry of a new task, if there is room.
    fn admit(
        self: &Arc<Self>,
        submission: Submission,
        watch: Arc<dyn Watch>,
        begun: oneshot::Sender<()>,
    ) -> Result<Ending, TaskRejection> {
        let mut store = self.lock();
        let now = self.clock.now();
        store.sweep(now);
        store.forget_cancelled(submission.caller);
        store.room_for(submission.caller, submission.bytes, now)?;
        let id = self.ids.make(store.entropy.random());
        let left = CancellationToken::new();
        let phase = Phase::Working {
            watch,
            future: None,
            left: left.clone(),
        };
        store.insert(now, id, submission, phase);
        Ok(Ending {
            inner: Arc::clone(self),
            id,
            begun: Some(begun),
            _left: left.drop_guard(),
            // Taken under the lock, so draining either waits for it or has refused it.
            _counted: self.futures.token(),
        })
    }

    fn find<'a>(
        &self,
        store: &'a TaskTable,
        owner: &Owner,
        id: TaskId,
    ) -> Result<&'a TaskEntry, MissingTask> {
        self.ids.check(id)?;
        match store.entries.get(&id.random) {
            Some(entry) if entry.of.owner == *owner => Ok(entry),
            Some(_) => Err(MissingTask::Unknown),
            None => Err(MissingTask::Gone),
        }
    }
}

/// A task that was accepted, as its submitter sees it. If this is dropped, the task continues.
#[derive(Debug)]
pub struct SubmittedTask {
    /// The id of the task.
    pub id: TaskId,
    has_begun: oneshot::Receiver<()>,
    future: JoinHandle<()>,
}

impl SubmittedTask {
    /// Whether it ended without waiting for anything.
    pub async fn has_ended_at_once(&mut self) -> bool {
        (&mut self.has_begun).await.is_err()
    }

    /// Ready when it has ended, or was cancelled.
    pub async fn ended(&mut self) {
        // Its state shows how it ended.
        let _ = (&mut self.future).await;
    }
}

/// Where a task stores its answer.
pub struct Room {
    inner: Arc<TaskStore>,
    id: TaskId,
}

impl Room {
    /// Counts this many more bytes until the task ends; `false` if there is no room for them.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> bool {
        self.inner.lock().hold(self.id.random, bytes)
    }
}

/// Ends a task when its future ends, for any reason.
struct Ending {
    inner: Arc<TaskStore>,
    id: TaskId,
    // The rest is dropped after the task has ended.
    begun: Option<oneshot::Sender<()>>,
    _left: DropGuard,
    _counted: TaskTrackerToken,
}

impl Ending {
    /// Notes that the task waits.
    fn begun(&mut self) {
        if let Some(begun) = self.begun.take() {
            // The submitter may have lost interest.
            let _ = begun.send(());
        }
    }

    fn with(self, answer: Result<BufferedReply, NotKept>) {
        let mut store = self.inner.lock();
        let now = self.inner.clock.now();
        match answer {
            Ok(answer) => store.end_with(now, self.id.random, answer),
            Err(NotKept { bytes }) => store.end(now, self.id.random, TaskState::NotKept { bytes }),
        }
    }
}

impl Drop for Ending {
    /// After an answer or a cancellation, the task has already ended. What remains is a panic, or
    /// the end of the runtime.
    fn drop(&mut self) {
        let mut store = self.inner.lock();
        let now = self.inner.clock.now();
        store.end(now, self.id.random, TaskState::Failed);
    }
}

#[cfg(test)]
mod tests;
