//! Follows the jobs that hold slots: asks the backend for the state of those of which no client has heard lately, and ends
//! those that have lasted too long.
//!
//! A question is sent as a call is, but holds no slot and meets no limit. One is under way at a time.

pub(super) mod metrics;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use tidegate_limits::call::ServerNumber;
use tidegate_limits::scheduler::Outcome;
use tidegate_runtime::Clock;
use tokio::time::{Instant, sleep_until, timeout};

use super::AppState;
use crate::admin::{CallId, HeldByJob};
use crate::call::identity::Identity;
use crate::call::job_meter::{JobMeter, StartedJob};
use crate::call::jobs::{AskedJob, JobNow, JobStep, Jobs};
use crate::call::{
    AnswerMeter, Dialect, Generation, HttpCall, Message, NoObserver, Origin, Peer, Record,
    RequestBody, Slot,
};
use crate::forward::{Forward, Forwarder};

/// The most jobs that are shown.
const JOBS_MAX: usize = 32;
/// Longest time for an answer about a job.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A sentence for operators about these jobs, the one that has lasted longest first; `None` without one.
pub(super) fn held_by_jobs(jobs: &[JobNow]) -> Option<String> {
    let first = jobs.first()?;
    let lasts = first.lasts.as_secs_f64();
    let (JobNow { id, function, .. }, left) = (first, first.left.as_secs_f64());
    let most = format!("`{function}`, {lasts:.0} s, at most {left:.0} s more");
    Some(match jobs.len() {
        1 => format!("held by job {id} ({most})"),
        more => format!("held by {more} jobs, the oldest {id} ({most})"),
    })
}

impl AppState {
    /// The jobs that hold slots, the longest first.
    pub(super) fn jobs_now(&self) -> Vec<HeldByJob> {
        let shown = self.jobs().now().into_iter().take(JOBS_MAX);
        shown
            .map(|job| HeldByJob {
                id: job.id,
                function: job.function.to_string(),
                // Of a job of the process before, the call has no number here.
                call: (job.call != 0).then_some(CallId(job.call)),
                lasts_seconds: job.lasts.as_secs_f64(),
                left_seconds: job.left.as_secs_f64(),
            })
            .collect()
    }

    /// A sentence about the jobs that hold slots.
    pub(super) fn job_notice(&self) -> Option<String> {
        let jobs = self.jobs().now();
        let held = held_by_jobs(&jobs)?;
        let slots = match jobs.len() {
            1 => "1 slot is".to_owned(),
            more => format!("{more} slots are"),
        };
        Some(format!("{slots} {held}"))
    }
}

/// Follows jobs, until dropped.
pub(super) async fn follow_jobs(jobs: Jobs, forwarder: Forwarder, clock: Clock) {
    let mut asking: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
    loop {
        let mut due = jobs.end_overdue();
        if asking.is_none() {
            match jobs.next_question() {
                JobStep::Ask(asked) => {
                    let asked = ask(jobs.clone(), forwarder.clone(), clock, *asked);
                    asking = Some(Box::pin(asked));
                }
                JobStep::Wait(until) => due = due.into_iter().chain(until).min(),
            }
        }
        let answered = async {
            match &mut asking {
                Some(asking) => asking.as_mut().await,
                None => std::future::pending().await,
            }
        };
        let waited = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = answered => asking = None,
            () = waited => {}
            () = jobs.wait_for_change() => {}
        }
    }
}

/// Asks for the state of a job. The answer is read by its meter.
async fn ask(jobs: Jobs, forwarder: Forwarder, clock: Clock, asked: AskedJob) {
    let (key, slot) = (asked.key, NoSlot(asked.server));
    let mut call = Box::new(HttpCall::new(asked.head, RequestBody::Whole(asked.body)));
    let meter = JobMeter::of_poll(&jobs, &asked.rule, key);
    call.meter = AnswerMeter::new(None, None, Some(meter));
    let origin = Origin {
        identity: Arc::new(Identity::without_names(
            Arc::from("job"),
            Peer::Unix { uid: 0 },
        )),
        arrived: clock.now(),
    };
    let name = Arc::from("job");
    let observer = Arc::new(NoObserver);
    let class = Arc::clone(&name);
    let record = Record::open(origin, Dialect::Http, name, class, None, observer);
    let asking = async {
        let sent = Message::Http(call).send(&forwarder, slot, record).await;
        match sent {
            // Of a reply in parts, the meter reads what passes.
            Ok(Ok(mut reply)) => loop {
                match reply.body.frame().await {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => break false,
                    None => break true,
                }
            },
            Ok(Err(_)) | Err(_) => false,
        }
    };
    if !timeout(ANSWER_WITHIN, asking).await.unwrap_or(false) {
        jobs.note_unanswered(key);
    }
}

/// The slot of a question to this server, which holds nothing.
struct NoSlot(Option<ServerNumber>);

impl Slot for NoSlot {
    fn server(&self) -> Option<ServerNumber> {
        self.0
    }

    fn goes_to(&mut self, _: Generation) {}

    fn sent(&mut self) -> Instant {
        Instant::now()
    }

    fn replied(&mut self) {}

    fn charge(&mut self, _: u64) {}

    fn narrowest(&self) -> Option<u32> {
        None
    }

    fn finish(self, _: Outcome) -> Instant {
        Instant::now()
    }

    fn hand_to_job(self, _: StartedJob) -> Instant {
        Instant::now()
    }
}
