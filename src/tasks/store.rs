//! The tasks that are kept, and their bounds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rand::rngs::StdRng;
use tidegate_callers::CallerId;
use tidegate_limits::Timestamp;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::{
    EndedTaskCounts, Submission, Task, TaskBound, TaskId, TaskRejection, TaskSettings, TaskState,
    Watch,
};
use crate::call::BufferedReply;

/// Every task that is here.
pub(super) struct TaskTable {
    pub(super) settings: TaskSettings,
    pub(super) entropy: StdRng,
    pub(super) draining: bool,
    pub(super) entries: HashMap<u128, TaskEntry>,
    pub(super) shares: HashMap<CallerId, Share>,
    /// Ended tasks, and some that were removed since, in the order of their end.
    pub(super) ended: VecDeque<(Timestamp, u128)>,
    pub(super) bytes: usize,
    pub(super) counted: EndedTaskCounts,
}

/// The places and bytes that a caller uses.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) tasks: usize,
    pub(super) bytes: usize,
}

pub(super) struct TaskEntry {
    pub(super) id: TaskId,
    /// The submission; its bytes are those of its request and of its answer so far, or of its answer once it has
    /// ended.
    pub(super) of: Submission,
    submitted: Timestamp,
    pub(super) phase: Phase,
}

pub(super) enum Phase {
    Working {
        watch: Arc<dyn Watch>,
        /// `None` until it is spawned.
        future: Option<AbortHandle>,
        /// Cancelled when the future is dropped.
        left: CancellationToken,
    },
    Ended {
        at: Timestamp,
        /// Never waiting or running.
        state: TaskState,
    },
}

impl TaskEntry {
    pub(super) fn task(&self) -> Task {
        let (ended, watch, state) = match &self.phase {
            Phase::Working { watch, .. } => {
                let state = if watch.is_admitted() {
                    TaskState::Running
                } else {
                    TaskState::Waiting
                };
                (None, Some(Arc::clone(watch)), state)
            }
            Phase::Ended { at, state } => (Some(*at), None, state.clone()),
        };
        Task {
            id: self.id,
            call: self.of.call,
            function: Arc::clone(&self.of.function),
            submitted: self.submitted,
            ended,
            watch,
            state,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }

    fn was_cancelled(&self) -> bool {
        matches!(
            self.phase,
            Phase::Ended {
                state: TaskState::Cancelled,
                ..
            }
        )
    }
}

impl TaskTable {
    /// An empty table.
    pub(super) fn new(settings: TaskSettings, entropy: StdRng) -> Self {
        Self {
            settings,
            entropy,
            draining: false,
            entries: HashMap::new(),
            shares: HashMap::new(),
            ended: VecDeque::new(),
            bytes: 0,
            counted: EndedTaskCounts::default(),
        }
    }

    /// Stores a new task. There must be room for it.
    pub(super) fn insert(
        &mut self,
        submitted: Timestamp,
        id: TaskId,
        of: Submission,
        phase: Phase,
    ) {
        let share = self.shares.entry(of.caller).or_default();
        share.tasks += 1;
        share.bytes += of.bytes;
        self.bytes += of.bytes;
        let entry = TaskEntry {
            id,
            of,
            submitted,
            phase,
        };
        self.entries.insert(id.random, entry);
    }

    /// If the number of tasks is at its bound, removes a cancelled one, because no client comes
    /// back for it.
    pub(super) fn forget_cancelled(&mut self, caller: CallerId) {
        let of_caller = self.shares.get(&caller).map_or(0, |share| share.tasks);
        let callers_only = of_caller >= self.settings.tasks_per_caller_max;
        if !callers_only && self.entries.len() < self.settings.tasks_max {
            return;
        }
        let is_one = |entry: &TaskEntry| {
            entry.was_cancelled() && (entry.of.caller == caller || !callers_only)
        };
        let oldest = self.ended.iter().map(|&(_, random)| random);
        let mut oldest = oldest.filter(|random| self.entries.get(random).is_some_and(is_one));
        if let Some(random) = oldest.next() {
            self.remove(random);
        }
    }

    /// Whether another task of this caller, with a request of this size, fits.
    pub(super) fn room_for(
        &self,
        caller: CallerId,
        bytes: usize,
        now: Timestamp,
    ) -> Result<(), TaskRejection> {
        let settings = &self.settings;
        let nothing = Share::default();
        let share = self.shares.get(&caller).unwrap_or(&nothing);
        // At least one more byte, so that there is some room for an answer.
        let full = |held: usize, max: usize| held >= max || bytes > max - held;
        let reason = if self.draining {
            TaskBound::Draining
        } else if share.tasks >= settings.tasks_per_caller_max {
            TaskBound::TasksOfCaller
        } else if full(share.bytes, settings.bytes_per_caller_max) {
            TaskBound::BytesOfCaller
        } else if self.entries.len() >= settings.tasks_max {
            TaskBound::Tasks
        } else if full(self.bytes, settings.bytes_max) {
            TaskBound::Bytes
        } else {
            return Ok(());
        };
        let makes_room = |entry: &TaskEntry| {
            let of_caller = entry.of.caller == caller;
            let would = match reason {
                TaskBound::Draining => false,
                TaskBound::Tasks => true,
                TaskBound::TasksOfCaller => of_caller,
                TaskBound::Bytes => entry.of.bytes > 0,
                TaskBound::BytesOfCaller => entry.of.bytes > 0 && of_caller,
            };
            would && entry.has_ended()
        };
        let first = self
            .ended
            .iter()
            .find(|(_, random)| self.entries.get(random).is_some_and(makes_room));
        Err(TaskRejection {
            reason,
            retry_after: first.map(|&(at, _)| (at + settings.time_to_live).since(now)),
        })
    }

    /// Stores the handle that cancels a task; `false` if the task has already ended or was
    /// cancelled.
    pub(super) fn spawned(&mut self, id: TaskId, abort: &AbortHandle) -> bool {
        let entry = self.entries.get_mut(&id.random);
        match entry.map(|entry| &mut entry.phase) {
            Some(Phase::Working { future, .. }) => {
                *future = Some(abort.clone());
                true
            }
            Some(Phase::Ended { .. }) | None => false,
        }
    }

    /// Counts more bytes of a task under way; `false` if there is no room for them, or if it was
    /// cancelled.
    pub(super) fn hold(&mut self, random: u128, bytes: usize) -> bool {
        let Some(entry) = self.entries.get_mut(&random) else {
            return false;
        };
        let share = self.shares.get_mut(&entry.of.caller).expect(SHARE);
        let fits = |held: usize, max: usize| bytes <= max.saturating_sub(held);
        let room = fits(share.bytes, self.settings.bytes_per_caller_max)
            && fits(self.bytes, self.settings.bytes_max);
        if !room || entry.has_ended() {
            return false;
        }
        share.bytes += bytes;
        self.bytes += bytes;
        entry.of.bytes += bytes;
        true
    }

    /// Releases what a task holds.
    fn release(&mut self, random: u128) {
        let Some(entry) = self.entries.get_mut(&random) else {
            return;
        };
        let bytes = std::mem::take(&mut entry.of.bytes);
        self.shares.get_mut(&entry.of.caller).expect(SHARE).bytes -= bytes;
        self.bytes -= bytes;
    }

    /// A task ends and holds nothing any more. An ended task does not change.
    pub(super) fn end(&mut self, now: Timestamp, random: u128, state: TaskState) {
        if self.is_working(random) {
            self.release(random);
            self.set_ended(now, random, state);
        }
    }

    /// A task ends with an answer. It is kept if there is room for it after the task's own bytes are
    /// released.
    pub(super) fn end_with(&mut self, now: Timestamp, random: u128, answer: BufferedReply) {
        if self.is_working(random) {
            self.release(random);
            let bytes = answer.bytes();
            let state = if self.hold(random, bytes) {
                TaskState::Done(Arc::new(answer))
            } else {
                TaskState::NotKept { bytes }
            };
            self.set_ended(now, random, state);
        }
    }

    fn set_ended(&mut self, now: Timestamp, random: u128, state: TaskState) {
        let Some(entry) = self.entries.get_mut(&random) else {
            return;
        };
        match state {
            TaskState::Done(_) => self.counted.answered += 1,
            TaskState::NotKept { .. } => self.counted.not_kept += 1,
            TaskState::Cancelled => self.counted.cancelled += 1,
            TaskState::Failed | TaskState::Waiting | TaskState::Running => self.counted.failed += 1,
        }
        entry.phase = Phase::Ended { at: now, state };
        self.ended.push_back((now, random));
    }

    fn is_working(&self, random: u128) -> bool {
        let entry = self.entries.get(&random);
        entry.is_some_and(|entry| !entry.has_ended())
    }

    pub(super) fn remove(&mut self, random: u128) {
        self.release(random);
        let Some(entry) = self.entries.remove(&random) else {
            return;
        };
        let share = self.shares.get_mut(&entry.of.caller).expect(SHARE);
        share.tasks -= 1;
        if share.tasks == 0 {
            self.shares.remove(&entry.of.caller);
        }
        // Removed tasks must not pile up.
        if self.ended.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.ended
                .retain(|(_, random)| entries.contains_key(random));
        }
    }

    pub(super) fn sweep(&mut self, now: Timestamp) {
        while let Some(&(ended, random)) = self.ended.front()
            && ended + self.settings.time_to_live <= now
        {
            self.ended.pop_front();
            self.remove(random);
        }
    }
}

const SHARE: &str = "the caller of a task has a share";
