//! Reads in an answer the job that it begins, or the state of one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tidegate_limits::call::ServerNumber;

use super::job::{ANSWER_BYTES_MAX, JobAsker, JobKey, JobRule, JobState, credentials};
use super::jobs::{JobSlot, Jobs, NewJob};
use super::{Head, ReplyHead};

/// Reads the job in an answer.
#[derive(Clone)]
pub struct JobMeter {
    jobs: Jobs,
    rule: Arc<JobRule>,
    reading: JobReading,
    /// The head of an answer that comes in parts, and its body so far; `None` if that is too large.
    head: Option<ReplyHead>,
    body: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq)]
enum JobReading {
    /// The answer may begin a job.
    Start(Box<(JobAsker, HeaderMap)>),
    /// The answer says the state of this job.
    Poll(JobKey),
}

impl fmt::Debug for JobMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobMeter")
    }
}

impl PartialEq for JobMeter {
    fn eq(&self, other: &Self) -> bool {
        self.jobs == other.jobs && self.rule == other.rule && self.reading == other.reading
    }
}

impl Eq for JobMeter {}

/// A job that an answer has begun.
#[derive(Debug)]
pub struct StartedJob {
    /// The store of jobs.
    pub jobs: Jobs,
    pub(super) job: NewJob,
}

impl StartedJob {
    /// The number by which the job is known.
    #[must_use]
    pub fn key(&self) -> JobKey {
        self.job.key
    }

    /// How long it may hold its slot.
    #[must_use]
    pub fn most(&self) -> Duration {
        self.job.rule.most
    }

    /// Keeps the slot of this call, with its id and its function, until the job ends. Questions about it go to the server
    /// of the call.
    ///
    /// # Errors
    /// The slot, if there is no room, or if the job holds one already.
    pub fn keep(
        self,
        call: (u64, Arc<str>),
        server: Option<ServerNumber>,
        slot: Box<dyn JobSlot>,
    ) -> Result<(), Box<dyn JobSlot>> {
        self.jobs.keep(self.job, call, server, slot)
    }
}

impl JobMeter {
    /// A meter for the answer to a call that may begin a job.
    #[must_use]
    pub fn of_start(jobs: &Jobs, rule: &Arc<JobRule>, asker: JobAsker, head: &Head) -> Box<Self> {
        let reading = JobReading::Start(Box::new((asker, credentials(head))));
        Self::new(jobs, rule, reading)
    }

    /// A meter for the answer to a question about this job.
    #[must_use]
    pub fn of_poll(jobs: &Jobs, rule: &Arc<JobRule>, key: JobKey) -> Box<Self> {
        Self::new(jobs, rule, JobReading::Poll(key))
    }

    /// The server of the job that a call asks about, if its backend has several.
    #[must_use]
    pub fn server(&self) -> Option<ServerNumber> {
        match self.reading {
            JobReading::Poll(key) => self.jobs.server(key),
            JobReading::Start(_) => None,
        }
    }

    fn new(jobs: &Jobs, rule: &Arc<JobRule>, reading: JobReading) -> Box<Self> {
        Box::new(Self {
            jobs: jobs.clone(),
            rule: Arc::clone(rule),
            reading,
            head: None,
            body: Some(Vec::new()),
        })
    }

    pub(super) fn begin(&mut self, head: &ReplyHead) {
        self.head = Some(head.clone());
    }

    pub(super) fn feed(&mut self, part: &[u8]) {
        let body = self.body.take();
        self.body = body.filter(|body| body.len() + part.len() <= ANSWER_BYTES_MAX);
        if let Some(body) = &mut self.body {
            body.extend_from_slice(part);
        }
    }

    /// No more of an answer in parts comes. Returns the job that it begins.
    pub(super) fn end(mut self, is_whole: bool) -> Option<StartedJob> {
        let (head, body) = (self.head.take(), self.body.take());
        match (head, body) {
            (Some(head), Some(body)) if is_whole => self.read(&head, &body),
            _ => {
                if let JobReading::Poll(key) = self.reading {
                    self.jobs.learn(key, JobState::Unreadable);
                }
                None
            }
        }
    }

    /// Reads a whole answer. Returns the job that it begins. The state of a job is noted where jobs are kept.
    pub(super) fn read(self, head: &ReplyHead, body: &[u8]) -> Option<StartedJob> {
        let body = if body.len() > ANSWER_BYTES_MAX {
            &[]
        } else {
            body
        };
        match self.reading {
            JobReading::Poll(key) => {
                self.jobs.learn(key, self.rule.state(head, body));
                None
            }
            JobReading::Start(asker) => {
                let (asker, fields) = *asker;
                let id = self.rule.id(head, body)?;
                let (key, question) = self.rule.question(&id, asker, fields)?;
                let job = NewJob {
                    key,
                    id,
                    rule: self.rule,
                    question,
                };
                Some(StartedJob {
                    jobs: self.jobs,
                    job,
                })
            }
        }
    }
}
