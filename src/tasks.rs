//! Calls that are handed over: they run without their client, who comes back for the result.
//!
//! A task belongs to the owner that submitted it; to everybody else it does not exist. Its
//! future runs in a task of the runtime. Cancelling drops that future: as the pipeline's
//! futures are made, a call of which no byte was sent is gone with it, and any other is
//! brought to its end and its reply dropped. What has ended is kept for a while, within bounds
//! on tasks and bytes, of each owner and in all, and nothing is kept across a restart.
//!
//! An id tells what became of a task that is not here. It carries a tag of the process, and a
//! check that only this process can compute. So an id of another process, or of a task that
//! was here, is gone; any other never existed; and no list of old ids has to be kept.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tidegate_limits::Timestamp;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::call::Progress;
use crate::clock::Clock;

/// What is bounded, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Tasks, ended or not.
    pub tasks_max: usize,
    /// Tasks of one owner, ended or not.
    pub tasks_per_owner_max: usize,
    /// Bytes of results.
    pub bytes_max: usize,
    /// Bytes of results of one owner.
    pub bytes_per_owner_max: usize,
    /// How long a task is kept after it has ended.
    pub time_to_live: Duration,
}

/// A result, which is kept in memory until it is fetched or its time is over.
pub trait Weigh: Send + Sync + 'static {
    /// How many bytes it takes.
    fn bytes(&self) -> usize;
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
}

/// The name of a task: 128 bits from a generator that the operating system seeded, and what
/// tells where it is from. As text, 56 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    boot: u64,
    random: u128,
    check: u32,
}

const BOOT_DIGITS: usize = 16;
const RANDOM_DIGITS: usize = 32;
const CHECK_DIGITS: usize = 8;

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:016x}{:032x}{:08x}",
            self.boot, self.random, self.check
        )
    }
}

/// A text that is no [`TaskId`]: no task was ever named so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task's id has 56 hexadecimal digits, in lower case")]
pub struct NoTaskId;

impl FromStr for TaskId {
    type Err = NoTaskId;

    fn from_str(text: &str) -> Result<Self, NoTaskId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        let right_length = text.len() == BOOT_DIGITS + RANDOM_DIGITS + CHECK_DIGITS;
        if !right_length || !text.bytes().all(is_digit) {
            return Err(NoTaskId);
        }
        let (boot, rest) = text.split_at(BOOT_DIGITS);
        let (random, check) = rest.split_at(RANDOM_DIGITS);
        Ok(Self {
            boot: u64::from_str_radix(boot, 16).map_err(|_| NoTaskId)?,
            random: u128::from_str_radix(random, 16).map_err(|_| NoTaskId)?,
            check: u32::from_str_radix(check, 16).map_err(|_| NoTaskId)?,
        })
    }
}

/// A task as it is now.
#[derive(Debug)]
pub struct Task<R> {
    /// Its name.
    pub id: TaskId,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When it ended; it is kept for the time to live from then on.
    pub ended: Option<Timestamp>,
    /// How far it has come.
    pub state: State<R>,
}

/// How far a task has come.
#[derive(Debug)]
pub enum State<R> {
    /// It waits for its turn.
    Queued,
    /// It is past the gate.
    Running,
    /// It has ended, with this result.
    Done(Arc<R>),
    /// It has ended, and there was no room for its result.
    NotKept {
        /// How large the result was.
        bytes: usize,
    },
    /// It was cancelled.
    Cancelled,
    /// It ended without a result, by a mistake of ours.
    Failed,
}

impl<R> Clone for State<R> {
    fn clone(&self) -> Self {
        match self {
            Self::Queued => Self::Queued,
            Self::Running => Self::Running,
            Self::Done(result) => Self::Done(Arc::clone(result)),
            Self::NotKept { bytes } => Self::NotKept { bytes: *bytes },
            Self::Cancelled => Self::Cancelled,
            Self::Failed => Self::Failed,
        }
    }
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
    /// There are `tasks_per_owner_max` of this owner.
    TasksOfOwner,
    /// Results take `bytes_max`.
    Bytes,
    /// Results of this owner take `bytes_per_owner_max`.
    BytesOfOwner,
    /// The process is going down.
    Draining,
}

/// How many tasks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TasksNow {
    /// Waiting for their turn.
    pub queued: usize,
    /// Past the gate.
    pub running: usize,
    /// Ended and kept.
    pub ended: usize,
    /// Bytes of the results kept.
    pub bytes: usize,
}

/// The tasks of a process. Cloned, it is the same.
#[derive(Debug)]
pub struct Tasks<R>(Arc<Inner<R>>);

impl<R> Clone for Tasks<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Inner<R> {
    clock: Clock,
    boot: u64,
    check: RandomState,
    futures: TaskTracker,
    store: Mutex<Store<R>>,
}

#[derive(Debug)]
struct Store<R> {
    settings: Settings,
    entropy: StdRng,
    draining: bool,
    entries: HashMap<u128, Entry<R>>,
    owners: HashMap<Owner, Share>,
    /// Tasks that have ended, and some that were removed since; the first ended first.
    ended: VecDeque<(Timestamp, u128)>,
    bytes: usize,
}

/// What an owner has here.
#[derive(Debug, Default)]
struct Share {
    tasks: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<R> {
    id: TaskId,
    owner: Owner,
    submitted: Timestamp,
    phase: Phase<R>,
}

#[derive(Debug)]
enum Phase<R> {
    Working {
        progress: Arc<Progress>,
        /// `None` until it is spawned.
        future: Option<AbortHandle>,
    },
    Ended {
        at: Timestamp,
        /// Never queued or running.
        state: State<R>,
        bytes: usize,
    },
}

impl<R> Entry<R> {
    fn task(&self) -> Task<R> {
        let (ended, state) = match &self.phase {
            Phase::Working { progress, .. } if progress.is_admitted() => (None, State::Running),
            Phase::Working { .. } => (None, State::Queued),
            Phase::Ended { at, state, .. } => (Some(*at), state.clone()),
        };
        Task {
            id: self.id,
            submitted: self.submitted,
            ended,
            state,
        }
    }
}

impl<R: Weigh> Tasks<R> {
    /// No tasks.
    #[must_use]
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let mut entropy: StdRng = rand::make_rng();
        Self(Arc::new(Inner {
            clock,
            boot: entropy.random(),
            check: RandomState::new(),
            futures: TaskTracker::new(),
            store: Mutex::new(Store {
                settings,
                entropy,
                draining: false,
                entries: HashMap::new(),
                owners: HashMap::new(),
                ended: VecDeque::new(),
                bytes: 0,
            }),
        }))
    }

    /// Takes other bounds. What is beyond them stays until its time is over, which is told by
    /// the new time to live.
    pub fn apply(&self, settings: Settings) {
        self.0.lock().settings = settings;
    }

    /// Runs a future without waiting for it. It writes into the [`Progress`] whether it waits
    /// or runs, as the pipeline does. If it panics, the task has failed.
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
        owner: &Owner,
        work: impl FnOnce(Arc<Progress>) -> F + Send + 'static,
    ) -> Result<TaskId, Refused>
    where
        F: Future<Output = R> + Send + 'static,
    {
        let inner = &self.0;
        let progress = Arc::new(Progress::default());
        let ending = inner.admit(owner, &progress)?;
        let id = ending.id;
        // Not under the lock: a runtime that goes down drops the future at once, and that ends
        // the task. Whatever panics does so in the future.
        let future = tokio::spawn(async move {
            let result = work(progress).await;
            ending.with(result);
        });
        let future = future.abort_handle();
        if !inner.lock().spawned(id, &future) {
            future.abort();
        }
        Ok(id)
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

    /// Cancels a task that has not ended; lets go of one that has.
    ///
    /// # Errors
    ///
    /// [`Missing`] if the owner has no such task.
    pub fn cancel(&self, owner: &Owner, id: TaskId) -> Result<Cancelled, Missing> {
        let mut store = self.0.lock();
        let now = self.0.clock.now();
        store.sweep(now);
        let future = match &self.0.find(&store, owner, id)?.phase {
            Phase::Working { future, .. } => future.clone(),
            Phase::Ended { .. } => {
                store.remove(id.random);
                return Ok(Cancelled::Result);
            }
        };
        store.end(now, id.random, State::Cancelled, 0);
        drop(store);
        // Not under the lock: dropping the future may end the task.
        if let Some(future) = future {
            future.abort();
        }
        Ok(Cancelled::Work)
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
            ..TasksNow::default()
        };
        for entry in store.entries.values() {
            match entry.task().state {
                State::Queued => found.queued += 1,
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
        owner: &Owner,
        progress: &Arc<Progress>,
    ) -> Result<Ending<R>, Refused> {
        let mut store = self.lock();
        let now = self.clock.now();
        store.sweep(now);
        store.forget_cancelled(owner);
        store.room_for(owner, now)?;
        let id = self.id(store.entropy.random());
        let entry = Entry {
            id,
            owner: owner.clone(),
            submitted: now,
            phase: Phase::Working {
                progress: Arc::clone(progress),
                future: None,
            },
        };
        store.owners.entry(owner.clone()).or_default().tasks += 1;
        store.entries.insert(id.random, entry);
        Ok(Ending {
            inner: Arc::clone(self),
            id,
            // Taken under the lock: draining waits for it, or has refused it.
            _counted: self.futures.token(),
        })
    }

    fn id(&self, random: u128) -> TaskId {
        TaskId {
            boot: self.boot,
            random,
            check: self.check.hash_one(random) as u32,
        }
    }

    fn find<'a>(
        &self,
        store: &'a Store<R>,
        owner: &Owner,
        id: TaskId,
    ) -> Result<&'a Entry<R>, Missing> {
        if id.boot != self.boot {
            return Err(Missing::Gone);
        }
        if id != self.id(id.random) {
            return Err(Missing::Unknown);
        }
        match store.entries.get(&id.random) {
            Some(entry) if entry.owner == *owner => Ok(entry),
            Some(_) => Err(Missing::Unknown),
            None => Err(Missing::Gone),
        }
    }
}

impl<R> Store<R> {
    /// Where there are as many tasks as there may be, lets go of one that was cancelled: nobody
    /// comes back for it.
    fn forget_cancelled(&mut self, owner: &Owner) {
        let of_owner = self.owners.get(owner).map_or(0, |share| share.tasks);
        let owners_only = of_owner >= self.settings.tasks_per_owner_max;
        if !owners_only && self.entries.len() < self.settings.tasks_max {
            return;
        }
        let is_one = |entry: &Entry<R>| {
            let cancelled = matches!(
                entry.phase,
                Phase::Ended {
                    state: State::Cancelled,
                    ..
                }
            );
            cancelled && (entry.owner == *owner || !owners_only)
        };
        let oldest = self.ended.iter().map(|&(_, random)| random);
        let mut oldest = oldest.filter(|random| self.entries.get(random).is_some_and(is_one));
        if let Some(random) = oldest.next() {
            self.remove(random);
        }
    }

    /// Whether another task of this owner may come.
    fn room_for(&self, owner: &Owner, now: Timestamp) -> Result<(), Refused> {
        let settings = &self.settings;
        let nothing = Share::default();
        let share = self.owners.get(owner).unwrap_or(&nothing);
        let reason = if self.draining {
            Reason::Draining
        } else if share.tasks >= settings.tasks_per_owner_max {
            Reason::TasksOfOwner
        } else if share.bytes >= settings.bytes_per_owner_max {
            Reason::BytesOfOwner
        } else if self.entries.len() >= settings.tasks_max {
            Reason::Tasks
        } else if self.bytes >= settings.bytes_max {
            Reason::Bytes
        } else {
            return Ok(());
        };
        let makes_room = |entry: &Entry<R>| match (&entry.phase, reason) {
            (Phase::Working { .. }, _) | (_, Reason::Draining) => false,
            (Phase::Ended { .. }, Reason::Tasks) => true,
            (Phase::Ended { .. }, Reason::TasksOfOwner) => entry.owner == *owner,
            (Phase::Ended { bytes, .. }, Reason::Bytes) => *bytes > 0,
            (Phase::Ended { bytes, .. }, Reason::BytesOfOwner) => {
                *bytes > 0 && entry.owner == *owner
            }
        };
        let first = self
            .ended
            .iter()
            .find(|(_, random)| self.entries.get(random).is_some_and(makes_room));
        Err(Refused {
            reason,
            retry_after: first.map(|&(at, _)| (at + settings.time_to_live).since(now)),
        })
    }

    /// Keeps what cancels a task; `false` if it has ended, or was cancelled, before that.
    fn spawned(&mut self, id: TaskId, abort: &AbortHandle) -> bool {
        let entry = self.entries.get_mut(&id.random);
        match entry.map(|entry| &mut entry.phase) {
            Some(Phase::Working { future, .. }) => {
                *future = Some(abort.clone());
                true
            }
            Some(Phase::Ended { .. }) | None => false,
        }
    }

    /// A task ends. One that has ended already stays as it is.
    fn end(&mut self, now: Timestamp, random: u128, state: State<R>, bytes: usize) {
        let Some(entry) = self.entries.get_mut(&random) else {
            return;
        };
        if let Phase::Ended { .. } = entry.phase {
            return;
        }
        entry.phase = Phase::Ended {
            at: now,
            state,
            bytes,
        };
        let owner = self.owners.get_mut(&entry.owner);
        owner.expect("an owner of a task has a share").bytes += bytes;
        self.bytes += bytes;
        self.ended.push_back((now, random));
    }

    /// A task ends with a result, which is kept if there is room for it.
    fn end_with(&mut self, now: Timestamp, random: u128, result: R, bytes: usize) {
        let Some(entry) = self.entries.get(&random) else {
            return;
        };
        let share = self.owners.get(&entry.owner);
        let of_owner = share.map_or(0, |share| share.bytes);
        let fits = |kept: usize, max: usize| bytes <= max.saturating_sub(kept);
        if fits(of_owner, self.settings.bytes_per_owner_max)
            && fits(self.bytes, self.settings.bytes_max)
        {
            self.end(now, random, State::Done(Arc::new(result)), bytes);
        } else {
            self.end(now, random, State::NotKept { bytes }, 0);
        }
    }

    fn remove(&mut self, random: u128) {
        let Some(entry) = self.entries.remove(&random) else {
            return;
        };
        let bytes = match entry.phase {
            Phase::Working { .. } => 0,
            Phase::Ended { bytes, .. } => bytes,
        };
        self.bytes -= bytes;
        if let Some(share) = self.owners.get_mut(&entry.owner) {
            share.bytes -= bytes;
            share.tasks -= 1;
            if share.tasks == 0 {
                self.owners.remove(&entry.owner);
            }
        }
        // Those that were removed before their time must not pile up.
        if self.ended.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.ended
                .retain(|(_, random)| entries.contains_key(random));
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        while let Some(&(ended, random)) = self.ended.front()
            && ended + self.settings.time_to_live <= now
        {
            self.ended.pop_front();
            self.remove(random);
        }
    }
}

/// Ends a task when its future does, however it does.
struct Ending<R> {
    inner: Arc<Inner<R>>,
    id: TaskId,
    /// Let go of after the task has ended.
    _counted: TaskTrackerToken,
}

impl<R: Weigh> Ending<R> {
    fn with(self, result: R) {
        let bytes = result.bytes();
        let mut store = self.inner.lock();
        let now = self.inner.clock.now();
        store.end_with(now, self.id.random, result, bytes);
    }
}

impl<R> Drop for Ending<R> {
    /// After a result or a cancellation the task has ended already. What is left is a panic,
    /// or the end of the runtime.
    fn drop(&mut self) {
        let mut store = self.inner.lock();
        let now = self.inner.clock.now();
        store.end(now, self.id.random, State::Failed, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    impl Weigh for Vec<u8> {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    fn tasks() -> Tasks<Vec<u8>> {
        let settings = Settings {
            tasks_max: 5,
            tasks_per_owner_max: 3,
            bytes_max: 100,
            bytes_per_owner_max: 60,
            time_to_live: MINUTE,
        };
        Tasks::new(settings, Clock::start())
    }

    fn owner(key: &str) -> Owner {
        Owner::new(key)
    }

    async fn settled() {
        for _ in 0..20 {
            yield_now().await;
        }
    }

    /// Submits something that ends at once with so many bytes, and lets it.
    async fn done(tasks: &Tasks<Vec<u8>>, key: &str, bytes: usize) -> Result<TaskId, Refused> {
        let id = tasks.submit(&owner(key), move |_| async move { vec![b'x'; bytes] })?;
        settled().await;
        Ok(id)
    }

    fn endless(tasks: &Tasks<Vec<u8>>, key: &str) -> Result<TaskId, Refused> {
        tasks.submit(&owner(key), |_| pending())
    }

    /// The state in a word.
    fn state(tasks: &Tasks<Vec<u8>>, key: &str, id: TaskId) -> String {
        match tasks.get(&owner(key), id) {
            Ok(task) => match task.state {
                State::Done(result) => format!("done {}", result.len()),
                State::NotKept { bytes } => format!("not kept {bytes}"),
                other => format!("{other:?}").to_lowercase(),
            },
            Err(missing) => format!("{missing:?}").to_lowercase(),
        }
    }

    /// Counts how often it is dropped.
    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_queued_then_running_then_done() {
        let tasks = tasks();
        let (admit, admitted) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        let id = tasks.submit(&owner("nova"), |progress| async move {
            admitted.await.expect("it is admitted");
            progress.admit();
            answered.await.expect("it is answered")
        });
        let id = id.expect("there is room");
        settled().await;
        assert_eq!(state(&tasks, "nova", id), "queued");
        admit.send(()).expect("it waits");
        settled().await;
        assert_eq!(state(&tasks, "nova", id), "running");
        assert_eq!(tasks.snapshot().running, 1);
        advance(MINUTE).await;
        answer.send(b"reply".to_vec()).expect("it waits");
        settled().await;
        assert_eq!(state(&tasks, "nova", id), "done 5");
        let task = tasks.get(&owner("nova"), id).expect("it is kept");
        let took = task.ended.map(|ended| ended.since(task.submitted));
        assert_eq!(took, Some(MINUTE));
        assert_eq!(
            tasks.snapshot(),
            TasksNow {
                ended: 1,
                bytes: 5,
                ..TasksNow::default()
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_kept_for_its_time_from_its_end_and_is_gone_after_it() {
        let tasks = tasks();
        let id = done(&tasks, "nova", 5).await.expect("there is room");
        advance(MINUTE - Duration::from_nanos(1)).await;
        assert_eq!(state(&tasks, "nova", id), "done 5");
        advance(Duration::from_nanos(1)).await;
        assert_eq!(state(&tasks, "nova", id), "gone");
        assert_eq!(tasks.snapshot(), TasksNow::default());
        assert!(tasks.0.lock().owners.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_ended_does_not_grow_old() {
        let tasks = tasks();
        let id = endless(&tasks, "nova").expect("there is room");
        advance(1000 * MINUTE).await;
        assert_eq!(state(&tasks, "nova", id), "queued");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_exists_for_its_owner_only() {
        let tasks = tasks();
        let id = done(&tasks, "nova", 5).await.expect("there is room");
        assert_eq!(state(&tasks, "mallory", id), "unknown");
        assert_eq!(tasks.cancel(&owner("mallory"), id), Err(Missing::Unknown));
        assert!(tasks.list(&owner("mallory")).is_empty());
        assert_eq!(state(&tasks, "nova", id), "done 5");
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_of_before_a_restart_is_gone_and_an_invented_one_never_existed() {
        let (before, now) = (tasks(), tasks());
        let old = done(&before, "nova", 5).await.expect("there is room");
        assert_eq!(state(&now, "nova", old), "gone");
        let mut invented = done(&now, "nova", 5).await.expect("there is room");
        invented.random ^= 1;
        assert_eq!(state(&now, "nova", invented), "unknown");
        assert_eq!(now.cancel(&owner("nova"), invented), Err(Missing::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_is_read_back_as_it_was_written_and_nothing_else_is() {
        let id = done(&tasks(), "nova", 5).await.expect("there is room");
        let text = id.to_string();
        assert_eq!((text.len(), text.parse()), (56, Ok(id)));
        let upper = text.to_uppercase();
        let (short, long, signed) = (&text[1..], format!("{text}0"), format!("+{}", &text[1..]));
        let wide = format!("{}é", &text[2..]);
        for wrong in ["", short, &long, &signed, &wide, &"g".repeat(56)] {
            assert_eq!(wrong.parse::<TaskId>(), Err(NoTaskId), "{wrong}");
        }
        assert!(upper == text || upper.parse::<TaskId>() == Err(NoTaskId));
    }

    #[tokio::test(start_paused = true)]
    async fn cancelling_drops_the_future_and_says_so_until_its_time_is_over() {
        let tasks = tasks();
        let drops = Arc::new(AtomicUsize::new(0));
        let held = Dropped(Arc::clone(&drops));
        let id = tasks.submit(&owner("nova"), |_| async move {
            let _held = held;
            pending().await
        });
        let id = id.expect("there is room");
        settled().await;
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        assert_eq!(tasks.cancel(&owner("nova"), id), Ok(Cancelled::Work));
        assert_eq!(state(&tasks, "nova", id), "cancelled");
        settled().await;
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        assert_eq!(state(&tasks, "nova", id), "cancelled");
        advance(MINUTE).await;
        assert_eq!(state(&tasks, "nova", id), "gone");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_cancelled_before_it_began_never_begins() {
        let tasks = tasks();
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Dropped(Arc::clone(&begun));
        let id = tasks.submit(&owner("nova"), |_| async move {
            counted.0.fetch_add(10, Ordering::Relaxed);
            Vec::new()
        });
        let id = id.expect("there is room");
        tasks.cancel(&owner("nova"), id).expect("it is here");
        settled().await;
        assert_eq!(begun.load(Ordering::Relaxed), 1, "dropped, and not run");
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_ends_in_spite_of_being_cancelled_keeps_no_result() {
        let tasks = tasks();
        let canceller = tasks.clone();
        let id = Arc::new(Mutex::new(None));
        let own = Arc::clone(&id);
        let submitted = tasks.submit(&owner("nova"), move |_| async move {
            // From within, so that it is cancelled while it is being polled.
            let id = own.lock().expect("nobody panics").expect("it is told");
            canceller.cancel(&owner("nova"), id).expect("it is here");
            b"too late".to_vec()
        });
        let submitted = submitted.expect("there is room");
        *id.lock().expect("nobody panics") = Some(submitted);
        settled().await;
        assert_eq!(state(&tasks, "nova", submitted), "cancelled");
        assert_eq!(
            tasks.snapshot(),
            TasksNow {
                ended: 1,
                ..TasksNow::default()
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn cancelling_what_has_ended_lets_go_of_it() {
        let tasks = tasks();
        let id = done(&tasks, "nova", 50).await.expect("there is room");
        assert_eq!(tasks.cancel(&owner("nova"), id), Ok(Cancelled::Result));
        assert_eq!(state(&tasks, "nova", id), "gone");
        assert_eq!(tasks.cancel(&owner("nova"), id), Err(Missing::Gone));
        assert_eq!(tasks.snapshot(), TasksNow::default());
        for _ in 0..1000 {
            let id = done(&tasks, "nova", 50).await.expect("there is room");
            tasks.cancel(&owner("nova"), id).expect("it is here");
        }
        assert!(
            tasks.0.lock().ended.len() <= 17,
            "what was let go does not pile up"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failed_task_and_harms_no_other() {
        let tasks = tasks();
        let other = endless(&tasks, "nova").expect("there is room");
        let late = tasks.submit(&owner("nova"), |_| async {
            yield_now().await;
            panic!("a test's own")
        });
        let early = tasks.submit(&owner("nova"), |_| -> std::future::Ready<Vec<u8>> {
            panic!("a test's own")
        });
        settled().await;
        for failed in [late, early] {
            let failed = failed.expect("there is room");
            assert_eq!(state(&tasks, "nova", failed), "failed");
        }
        assert_eq!(state(&tasks, "nova", other), "queued");
        assert!(done(&tasks, "cinder", 5).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_bounded_for_each_owner_and_in_all() {
        let tasks = tasks();
        let refused = |reason, seconds: Option<u64>| Refused {
            reason,
            retry_after: seconds.map(Duration::from_secs),
        };
        for _ in 0..2 {
            endless(&tasks, "nova").expect("there is room");
        }
        let last = done(&tasks, "nova", 1).await.expect("there is room");
        advance(Duration::from_secs(20)).await;
        let expected = refused(Reason::TasksOfOwner, Some(40));
        assert_eq!(endless(&tasks, "nova"), Err(expected));
        for _ in 0..2 {
            endless(&tasks, "cinder").expect("there is room");
        }
        assert_eq!(
            endless(&tasks, "glance"),
            Err(refused(Reason::Tasks, Some(40)))
        );
        tasks.cancel(&owner("nova"), last).expect("it is here");
        endless(&tasks, "glance").expect("there is room again");
        assert_eq!(endless(&tasks, "glance"), Err(refused(Reason::Tasks, None)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_task_gives_its_place_to_a_new_one() {
        let tasks = tasks();
        let first = endless(&tasks, "nova").expect("there is room");
        endless(&tasks, "cinder").expect("there is room");
        for _ in 0..10 {
            let id = endless(&tasks, "nova").expect("there is room");
            tasks.cancel(&owner("nova"), id).expect("it is here");
            assert_eq!(state(&tasks, "nova", id), "cancelled");
        }
        endless(&tasks, "cinder").expect("there is room");
        endless(&tasks, "glance").expect("nova's cancelled ones give way");
        endless(&tasks, "glance").expect("nova's cancelled ones give way");
        let refused = endless(&tasks, "glance").expect_err("it is full");
        assert_eq!(refused.reason, Reason::Tasks);
        assert_eq!(tasks.list(&owner("nova")).len(), 1);
        assert_eq!(state(&tasks, "nova", first), "queued");
    }

    #[test]
    fn without_a_runtime_it_panics_and_the_task_has_failed() {
        let tasks = tasks();
        let submitting = std::panic::AssertUnwindSafe(|| endless(&tasks, "nova"));
        assert!(std::panic::catch_unwind(submitting).is_err());
        let listed = tasks.list(&owner("nova"));
        assert!(matches!(
            listed[..],
            [Task {
                state: State::Failed,
                ..
            }]
        ));
    }

    #[test]
    fn a_runtime_that_goes_down_fails_its_tasks() {
        let tasks = tasks();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let id = runtime.block_on(async { endless(&tasks, "nova") });
        drop(runtime);
        assert_eq!(state(&tasks, "nova", id.expect("there is room")), "failed");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_bounded_for_each_owner_and_in_all() {
        let tasks = tasks();
        let refused = |reason| Refused {
            reason,
            retry_after: Some(MINUTE),
        };
        let check = |id: Result<TaskId, Refused>, key: &str, expected: &str| {
            let id = id.expect("there is room");
            assert_eq!(state(&tasks, key, id), expected);
        };
        check(done(&tasks, "nova", 61).await, "nova", "not kept 61");
        check(done(&tasks, "nova", 60).await, "nova", "done 60");
        assert_eq!(
            done(&tasks, "nova", 0).await,
            Err(refused(Reason::BytesOfOwner))
        );
        check(done(&tasks, "cinder", 41).await, "cinder", "not kept 41");
        check(done(&tasks, "cinder", 40).await, "cinder", "done 40");
        assert_eq!(done(&tasks, "glance", 0).await, Err(refused(Reason::Bytes)));
        assert_eq!(tasks.snapshot().bytes, 100);
        advance(MINUTE).await;
        tasks.sweep();
        check(done(&tasks, "nova", 60).await, "nova", "done 60");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_has_the_owners_tasks_in_their_order() {
        let tasks = tasks();
        let first = endless(&tasks, "nova").expect("there is room");
        endless(&tasks, "cinder").expect("there is room");
        advance(MINUTE).await;
        let second = done(&tasks, "nova", 3).await.expect("there is room");
        let listed: Vec<TaskId> = tasks.list(&owner("nova")).iter().map(|it| it.id).collect();
        assert_eq!(listed, [first, second]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_time_to_live_holds_for_what_has_ended_too() {
        let tasks = tasks();
        let id = done(&tasks, "nova", 5).await.expect("there is room");
        let settings = tasks.0.lock().settings;
        tasks.apply(Settings {
            time_to_live: Duration::ZERO,
            ..settings
        });
        assert_eq!(state(&tasks, "nova", id), "gone");
    }

    #[tokio::test(start_paused = true)]
    async fn draining_refuses_what_comes_and_waits_for_what_runs() {
        let tasks = tasks();
        let (answer, answered) = oneshot::channel();
        let id = tasks.submit(&owner("nova"), |_| async {
            answered.await.expect("answered")
        });
        let id = id.expect("there is room");
        let cancelled = endless(&tasks, "nova").expect("there is room");
        let draining = tokio::spawn({
            let tasks = tasks.clone();
            async move { tasks.drain().await }
        });
        settled().await;
        let refused = endless(&tasks, "nova").expect_err("it goes down");
        assert_eq!(
            (refused.reason, refused.retry_after),
            (Reason::Draining, None)
        );
        tasks.cancel(&owner("nova"), cancelled).expect("it is here");
        settled().await;
        assert!(!draining.is_finished());
        answer.send(vec![1]).expect("it waits");
        draining.await.expect("it ends");
        assert_eq!(state(&tasks, "nova", id), "done 1");
    }

    #[test]
    fn many_threads_lose_no_task_and_no_byte() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let settings = Settings {
                tasks_max: 10_000,
                tasks_per_owner_max: 10_000,
                bytes_max: usize::MAX,
                bytes_per_owner_max: usize::MAX,
                time_to_live: MINUTE,
            };
            let tasks: Tasks<Vec<u8>> = Tasks::new(settings, Clock::start());
            let submitters = (0..8).map(|submitter| {
                let tasks = tasks.clone();
                tokio::spawn(async move {
                    let key = format!("owner {}", submitter % 3);
                    for n in 0..500 {
                        let id = tasks.submit(&owner(&key), move |_| async move {
                            if n % 2 == 0 {
                                yield_now().await;
                            }
                            vec![0; 3]
                        });
                        let id = id.expect("there is room");
                        if n % 5 == 0 {
                            yield_now().await;
                            tasks.cancel(&owner(&key), id).expect("it is here");
                        }
                    }
                })
            });
            for submitter in submitters.collect::<Vec<_>>() {
                submitter.await.expect("it does not panic");
            }
            tasks.drain().await;
            let all: Vec<Task<Vec<u8>>> = (0..3)
                .flat_map(|n| tasks.list(&owner(&format!("owner {n}"))))
                .collect();
            let is_done = |task: &&Task<Vec<u8>>| matches!(task.state, State::Done(_));
            let done = all.iter().filter(is_done).count();
            let now = tasks.snapshot();
            assert_eq!((now.ended, now.queued, now.running), (all.len(), 0, 0));
            assert_eq!(now.bytes, 3 * done);
            assert!(
                done >= 8 * 400 && all.len() <= 4000,
                "{done} of {}",
                all.len()
            );
            let store = tasks.0.lock();
            let shares = store.owners.values();
            let (count, bytes) = shares.fold((0, 0), |sum, share| {
                (sum.0 + share.tasks, sum.1 + share.bytes)
            });
            assert_eq!((count, bytes), (all.len(), now.bytes));
        });
    }
}
