//! The jobs that hold the slots of their calls.
//!
//! A job is known by a hash of its status path. It ends by an answer about its state, or when it has lasted as long as its
//! route allows. No slot is given back under the lock of this table.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foldhash::HashMap;
use tidegate_limits::call::ServerNumber;
use tidegate_runtime::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Head;
use super::job::{JobEnd, JobKey, JobQuestion, JobRule, JobState};
use crate::options::kind::{HOUR, SECOND, duration, flag, integer};
use crate::options::options;

options! {
    /// Work of the backend that goes on behind its answer, and holds the slot of its call: docs/how-to/jobs.md.
    pub struct JobsSection => JobSettings {
        /// Jobs that are followed at once. The call of one more gives its slot back with its answer, and a
        /// warning is logged. Outstanding limits bound jobs too; this is for routes that have none.
        jobs_max: usize = integer(1..=65_536).of("jobs").or(4096).key("max");

        /// Time without a poll by a client after which Tidegate asks the backend for the state of a job. It
        /// asks for one job at a time, and its questions meet no limit.
        ask_after: Duration = duration(SECOND / 10..=HOUR).or(10 * SECOND);

        /// Whether the routes of dialect = "xapi" follow the tasks of calls whose method begins with "Async.".
        dialect: bool = flag().or(false);
    }
}

impl Copy for JobSettings {}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            jobs_max: 4096,
            ask_after: 10 * SECOND,
            dialect: false,
        }
    }
}

/// Time between two log events about states that cannot be read.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// A slot that a job holds.
pub trait JobSlot: Send {
    /// The job has ended.
    fn end(self: Box<Self>, end: JobEnd);
}

/// A job that an answer names.
#[derive(Debug)]
pub(super) struct NewJob {
    pub(super) key: JobKey,
    pub(super) id: String,
    pub(super) rule: Arc<JobRule>,
    pub(super) question: Option<JobQuestion>,
}

/// A job of a process before.
pub struct CarriedJob {
    /// The number by which it is known.
    pub key: JobKey,
    /// The function of its call.
    pub function: Arc<str>,
    /// The time since its call was admitted.
    pub lasted: Duration,
    /// How long it may still hold its slot.
    pub left: Duration,
    /// Where it runs, if its backend has several servers.
    pub server: Option<ServerNumber>,
    /// The slot.
    pub slot: Box<dyn JobSlot>,
}

impl fmt::Debug for CarriedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CarriedJob({})", self.key)
    }
}

/// The jobs under way. Clones share them.
#[derive(Clone, Default)]
pub struct Jobs(Arc<JobsState>);

#[derive(Default)]
struct JobsState {
    table: Mutex<JobTable>,
    changed: Notify,
}

#[derive(Default)]
struct JobTable {
    settings: JobSettings,
    running: HashMap<JobKey, RunningJob>,
    counts: JobCounts,
    /// Latest log event about a state that could not be read.
    warned: Option<Instant>,
}

struct RunningJob {
    id: Box<str>,
    function: Arc<str>,
    /// The call that has begun it.
    call: u64,
    /// `None` of a job of the process before: that of the route of its function applies.
    rule: Option<Arc<JobRule>>,
    question: Option<JobQuestion>,
    began: Instant,
    /// When its slot is free in any case.
    until: Instant,
    /// Latest answer about it.
    heard: Instant,
    /// Where it runs, if its backend has several servers.
    server: Option<ServerNumber>,
    slot: Box<dyn JobSlot>,
}

/// How jobs ended since the start, and the time that they lasted behind their answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// In the order of [`JobEnd::ALL`].
    pub ended: [u64; JobEnd::ALL.len()],
    /// Their time behind their answers.
    pub lasted: Duration,
    /// Answers in which the state of a job could not be read.
    pub unreadable: u64,
    /// Questions that this process has asked.
    pub asked: u64,
    /// Jobs for which there was no room.
    pub beyond: u64,
}

/// A job, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobNow {
    /// The number by which it is known.
    pub key: JobKey,
    /// The id, without a query and shortened.
    pub id: String,
    /// The function of its call.
    pub function: Arc<str>,
    /// The call that has begun it.
    pub call: u64,
    /// The time since its answer.
    pub lasts: Duration,
    /// Until its slot is free in any case.
    pub left: Duration,
}

/// A question about a job.
pub struct AskedJob {
    /// The job.
    pub key: JobKey,
    /// The rule by which the answer is read.
    pub rule: Arc<JobRule>,
    /// The head of the request.
    pub head: Arc<Head>,
    /// The body of the request.
    pub body: Bytes,
    /// Where the job runs, if its backend has several servers.
    pub server: Option<ServerNumber>,
}

/// The next step of what follows jobs.
pub enum JobStep {
    /// Ask for the state of a job. Its answer is read as that of a client's poll.
    Ask(Box<AskedJob>),
    /// No question until this moment, or until a change; `None` if no moment is known.
    Wait(Option<Instant>),
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jobs")
    }
}

impl PartialEq for Jobs {
    /// Whether both are the same table.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Jobs {}

impl Jobs {
    /// Takes new settings.
    pub fn apply(&self, settings: JobSettings) {
        lock(&self.0.table).settings = settings;
        self.0.changed.notify_one();
    }

    /// Keeps the slot of a call for its job.
    ///
    /// # Errors
    /// The slot, if there is no room, or the job holds a slot already.
    pub(super) fn keep(
        &self,
        job: NewJob,
        (call, function): (u64, Arc<str>),
        server: Option<ServerNumber>,
        slot: Box<dyn JobSlot>,
    ) -> Result<(), Box<dyn JobSlot>> {
        let mut table = lock(&self.0.table);
        if table.running.contains_key(&job.key) {
            return Err(slot);
        }
        if table.running.len() >= table.settings.jobs_max {
            table.counts.beyond += 1;
            if table.may_warn() {
                tracing::warn!(
                    jobs = table.running.len(),
                    function = &*function,
                    "more jobs than jobs.max: the slot of one more was given back with its answer; raise jobs.max, or \
                     give its function an outstanding limit"
                );
            }
            return Err(slot);
        }
        let now = Instant::now();
        let running = RunningJob {
            id: shown(&job.id),
            function,
            call,
            until: now + job.rule.most,
            rule: Some(job.rule),
            question: job.question,
            began: now,
            heard: now,
            server,
            slot,
        };
        table.running.insert(job.key, running);
        drop(table);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Follows jobs of the process before. Their ids and credentials are not known, so only the polls of clients and the
    /// end of their time end them.
    pub fn carry(&self, jobs: Vec<CarriedJob>) {
        let (now, mut table) = (Instant::now(), lock(&self.0.table));
        for job in jobs {
            let running = RunningJob {
                id: format!("of the process before ({})", job.key).into(),
                function: job.function,
                call: 0,
                rule: None,
                question: None,
                began: now.checked_sub(job.lasted).unwrap_or(now),
                until: now + job.left,
                heard: now,
                server: job.server,
                slot: job.slot,
            };
            table.running.insert(job.key, running);
        }
        drop(table);
        self.0.changed.notify_one();
    }

    /// The rule of a job that holds a slot, which is not known of a job of the process before; `None` if there is no such
    /// job.
    #[must_use]
    pub fn find(&self, key: JobKey) -> Option<Option<Arc<JobRule>>> {
        let table = lock(&self.0.table);
        table.running.get(&key).map(|job| job.rule.clone())
    }

    /// Where a job runs, if its backend has several servers.
    #[must_use]
    pub fn server(&self, key: JobKey) -> Option<ServerNumber> {
        lock(&self.0.table).running.get(&key)?.server
    }

    /// Whether no job is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.0.table).running.is_empty()
    }

    /// An answer has said this of a job.
    pub(super) fn learn(&self, key: JobKey, state: JobState) {
        let mut table = lock(&self.0.table);
        let Some(job) = table.running.get_mut(&key) else {
            return;
        };
        job.heard = Instant::now();
        match state {
            JobState::Running => {}
            JobState::Ended(end) => {
                let ended = table.remove(key, end);
                drop(table);
                end_all(ended);
            }
            JobState::Unreadable => table.note_unreadable(key),
        }
    }

    /// Ends the jobs that have lasted as long as their routes allow. Returns when the next one will have.
    pub fn end_overdue(&self) -> Option<Instant> {
        let (now, mut table) = (Instant::now(), lock(&self.0.table));
        let overdue = table.running.iter().filter(|(_, job)| job.until <= now);
        let overdue: Vec<_> = overdue.map(|(key, _)| *key).collect();
        let ended: Vec<_> = overdue
            .iter()
            .filter_map(|key| table.remove(*key, JobEnd::Overdue))
            .collect();
        let next = table.running.values().map(|job| job.until).min();
        drop(table);
        end_all(ended);
        next
    }

    /// The next question about a job. No answer is awaited by another one.
    pub fn next_question(&self) -> JobStep {
        let (now, mut table) = (Instant::now(), lock(&self.0.table));
        let after = table.settings.ask_after;
        let askable = table
            .running
            .iter_mut()
            .filter(|(_, job)| job.question.is_some());
        let Some((&key, job)) = askable.min_by_key(|(_, job)| job.heard) else {
            return JobStep::Wait(None);
        };
        let due = job.heard + after;
        if due > now {
            return JobStep::Wait(Some(due));
        }
        job.heard = now;
        let question = job.question.as_ref();
        let (request, server) = (question.and_then(JobQuestion::request), job.server);
        match request.zip(job.rule.clone()) {
            Some(((head, body), rule)) => {
                table.counts.asked += 1;
                JobStep::Ask(Box::new(AskedJob {
                    key,
                    rule,
                    head,
                    body,
                    server,
                }))
            }
            None => {
                job.question = None;
                JobStep::Wait(Some(now))
            }
        }
    }

    /// A question about this job has no answer. The job counts as running.
    pub fn note_unanswered(&self, key: JobKey) {
        self.learn(key, JobState::Unreadable);
    }

    /// Waits for a change of what [`next_question`](Self::next_question) or [`end_overdue`](Self::end_overdue) return.
    pub async fn wait_for_change(&self) {
        self.0.changed.notified().await;
    }

    /// The process ends: each job leaves its slot to the next process.
    pub fn leave(&self) {
        let mut table = lock(&self.0.table);
        let keys: Vec<_> = table.running.keys().copied().collect();
        let left: Vec<_> = keys
            .iter()
            .filter_map(|key| table.remove(*key, JobEnd::Left))
            .collect();
        drop(table);
        end_all(left);
    }

    /// The jobs under way, the one that lasts longest first.
    #[must_use]
    pub fn now(&self) -> Vec<JobNow> {
        let (now, table) = (Instant::now(), lock(&self.0.table));
        let running = table.running.iter();
        let mut jobs: Vec<_> = running
            .map(|(&key, job)| JobNow {
                key,
                id: job.id.to_string(),
                function: Arc::clone(&job.function),
                call: job.call,
                lasts: now.saturating_duration_since(job.began),
                left: job.until.saturating_duration_since(now),
            })
            .collect();
        jobs.sort_by(|one, other| other.lasts.cmp(&one.lasts).then(one.call.cmp(&other.call)));
        jobs
    }

    /// How jobs ended, and how many are under way.
    #[must_use]
    pub fn counts(&self) -> (JobCounts, usize) {
        let table = lock(&self.0.table);
        (table.counts, table.running.len())
    }
}

impl JobTable {
    fn remove(&mut self, key: JobKey, end: JobEnd) -> Option<(Box<dyn JobSlot>, JobEnd)> {
        let job = self.running.remove(&key)?;
        let lasted = Instant::now().saturating_duration_since(job.began);
        self.counts.ended[end as usize] += 1;
        self.counts.lasted += lasted;
        if end == JobEnd::Overdue {
            tracing::warn!(
                job = %key,
                call = job.call,
                function = &*job.function,
                lasted_seconds = lasted.as_secs_f64(),
                "a job has lasted as long as its route allows: its slot is free, although it may still run; raise most \
                 of the route's job if such jobs take longer"
            );
        }
        Some((job.slot, end))
    }

    fn note_unreadable(&mut self, key: JobKey) {
        self.counts.unreadable += 1;
        if !self.may_warn() {
            return;
        }
        if let Some(job) = self.running.get(&key) {
            tracing::warn!(
                job = %key,
                call = job.call,
                function = &*job.function,
                "the state of a job could not be read, so it counts as running; check status and done of its route's job, \
                 and whether the credentials of its call still count"
            );
        }
    }

    fn may_warn(&mut self) -> bool {
        let now = Instant::now();
        let is_new = self.warned.is_none_or(|warned| warned + WARN_EVERY <= now);
        if is_new {
            self.warned = Some(now);
        }
        is_new
    }
}

fn end_all(ended: impl IntoIterator<Item = (Box<dyn JobSlot>, JobEnd)>) {
    for (slot, end) in ended {
        slot.end(end);
    }
}

/// An id for operators: without a query, which may be a secret, and shortened.
fn shown(id: &str) -> Box<str> {
    let id = id.split(['?', '#']).next().unwrap_or_default();
    id.chars().filter(|it| !it.is_control()).take(120).collect()
}
