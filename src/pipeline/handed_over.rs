//! Calls that are handed over (`Prefer: respond-async`), and the requests about them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use serde::Serialize;
use tidegate_callers::CallerId;
use tidegate_runtime::lock;

use super::{ClientState, Clients, Pipeline, RunState};
use crate::admit::{Ask, QueuePosition, QueuedCall};
use crate::call::{
    BackendKind, BufferedReply, Dialect, HttpCall, Message, Progress, Reason, Record, Refusal,
    Reply, ReplyBody, Request, Verdict,
};
use crate::coalesce::Key;
use crate::protocol::{self, dialect};
use crate::tasks::{
    self, KeepError, MissingTask, NotKept, Owner, Preference, Room, Submission, Task, TaskId,
    TaskState, Watch,
};

/// The path to which clients come back.
const PATH: &str = "/v1/tasks";
/// The function of such requests.
const FUNCTION: &str = "task";
/// The shortest and the longest time after which a client should come back.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Distinguishes a kept answer of any status from a report about the task.
const TASK_STATE: HeaderName = HeaderName::from_static("x-task-state");

/// The client of such a call: none, until one asks.
#[derive(Default)]
struct AbsentClient {
    progress: Progress,
    place: Mutex<Option<QueuePosition>>,
}

impl Clients for AbsentClient {
    type Turn<'a> = QueuedCall;

    fn admit(&self) {
        self.progress.admit();
    }

    fn wait(&self) {
        self.progress.wait();
    }

    fn turn(&self, waiting: QueuedCall) -> QueuedCall {
        *lock(&self.place) = waiting.place();
        waiting
    }
}

impl Watch for AbsentClient {
    fn is_admitted(&self) -> bool {
        self.progress.is_admitted()
    }

    fn refusal_now(&self) -> Option<Refusal> {
        let place = lock(&self.place).clone();
        place?.refusal_now()
    }
}

/// The report about a task without an answer.
#[derive(Serialize)]
struct TaskReport {
    id: String,
    state: &'static str,
    /// The id of its access line.
    call: String,
    function: String,
    /// The time from handing over to the end.
    seconds: f64,
    /// The limit that holds it, if any.
    waits_for: Option<String>,
    /// When to come back.   seconds
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

impl Pipeline {
    /// The preference of a call to be handed over, if any. It is removed from the headers.
    pub(super) fn preference(&self, message: &mut Message) -> Option<Preference> {
        match message {
            // Calls may share a head, so it is copied before it is changed.
            Message::Http(call) if self.tasks.is_on() && Preference::is_in(&call.head.headers) => {
                Preference::take(&mut Arc::make_mut(&mut call.head).headers)
            }
            Message::Http(_) | Message::Socket(_) => None,
        }
    }

    /// Hands a call over, and answers with the address to come back to. If the answer is there at
    /// once or within the client's wait, it returns the answer. With a key, the call may share an
    /// answer.
    pub(super) async fn hand_over(
        &self,
        Preference { wait }: Preference,
        key: Option<Key>,
        ask: Ask,
        outgoing: Message,
        record: Arc<Record>,
    ) -> Result<Reply, Refusal> {
        let (owner, number, function) = record.note(|facts| {
            let owner = Owner::of(&facts.origin.identity);
            (owner, facts.id, Arc::clone(&facts.function))
        });
        let absent = Arc::new(AbsentClient::default());
        let caller = CallerId(ask.claimed.caller.0);
        let submission = Submission {
            owner: owner.clone(),
            caller,
            call: number,
            function,
            bytes: outgoing.bytes(),
        };
        let watch = Arc::<AbsentClient>::clone(&absent);
        let pipeline = self.clone();
        let work = move |room| {
            let wakers = pipeline.wakers.clone();
            wakers.watch(Box::pin(
                pipeline.run_handed_over(key, ask, outgoing, record, absent, room),
            ))
        };
        let submitted = self.tasks.submit(submission, watch, work);
        let mut task = submitted.map_err(|refused| not_taken(refused, caller))?;
        if !task.has_ended_at_once().await && !wait.is_zero() {
            // Whether it has ended by then is checked in either case.
            let _ = tokio::time::timeout(wait, task.ended()).await;
        }
        let task = self.tasks.take(&owner, task.id).map_err(missing_task)?;
        match task.ended {
            None => Ok(self.accepted(&task, wait)),
            Some(_) => self.reply(&task),
        }
    }

    /// Runs a call that was handed over to its end.
    async fn run_handed_over(
        self,
        key: Option<Key>,
        ask: Ask,
        outgoing: Message,
        record: Arc<Record>,
        absent: Arc<AbsentClient>,
        room: Room,
    ) -> Result<BufferedReply, NotKept> {
        record.note(|facts| facts.handed_over = true);
        let kind = self.kind();
        let reply = match key {
            Some(key) => {
                let own = Arc::clone(&record);
                self.share(key, ask, outgoing, &*absent, &absent.progress, own)
                    .await
            }
            None => self.run(ask, outgoing, &*absent, &record).await,
        };
        let reply = reply.inspect_err(|refusal| record.refuse(refusal));
        drop(record);
        let cut = match tasks::read(protocol::answer(reply, kind), &room).await {
            Ok(answer) => return Ok(answer),
            Err(KeepError::NoRoom(not_kept)) => return Err(not_kept),
            Err(KeepError::Cut(error)) => format!("the backend's answer broke off ({error})"),
        };
        let refusal = Refusal::new(Reason::BackendCut, cut);
        tasks::read(protocol::answer(Err(refusal), kind), &room)
            .await
            .map_err(|_| NotKept { bytes: 0 })
    }

    /// How a request about tasks is answered, and its record; `None` if it is about something else.
    pub(super) fn about_tasks<'a>(
        &'a self,
        request: &Request,
    ) -> Option<(Arc<Record>, ClientState<'a>)> {
        let Message::Http(call) = &request.message else {
            return None;
        };
        if !self.tasks.is_on() {
            return None;
        }
        let asked = task_request(call)?;
        let record = Record::open(
            request.origin.clone(),
            Dialect::Http,
            FUNCTION.into(),
            "none".into(),
            None,
            Arc::clone(&self.observer),
        );
        let owner = Owner::of(&request.origin.identity);
        let own = Arc::clone(&record);
        let answer = Box::pin(async move {
            let reply = self.answer_about_tasks(&owner, asked).await?;
            own.note(|facts| {
                facts.verdict = Verdict::Passed;
                facts.status = reply.head.as_ref().map(|head| head.status.as_u16());
            });
            Ok(reply)
        });
        Some((record, RunState::Boxed(answer)))
    }

    async fn answer_about_tasks(
        &self,
        owner: &Owner,
        asked: TaskRequest,
    ) -> Result<Reply, Refusal> {
        match asked {
            TaskRequest::All => {
                let tasks = self.tasks.list(owner);
                let tasks: Vec<_> = tasks.iter().map(|task| self.told(task)).collect();
                let list = BTreeMap::from([("tasks", tasks)]);
                Ok(json(StatusCode::OK, &list))
            }
            TaskRequest::Fetch(id) => {
                let task = self.tasks.get(owner, id).map_err(missing_task)?;
                let mut reply = self.reply(&task)?;
                show_state(&mut reply, &task);
                Ok(reply)
            }
            TaskRequest::Cancel(id) => {
                self.tasks.cancel(owner, id).await.map_err(missing_task)?;
                let mut response = Response::new(ReplyBody::whole(Bytes::new()));
                *response.status_mut() = StatusCode::NO_CONTENT;
                Ok(Reply::http(response))
            }
            TaskRequest::NoTask => Err(missing_task(MissingTask::Unknown)),
            TaskRequest::WrongMethod { allow } => {
                let refusal = Refusal::new(
                    Reason::BadRequest,
                    "tasks are asked for with GET, one is cancelled with DELETE",
                );
                let status = StatusCode::METHOD_NOT_ALLOWED;
                let mut response = protocol::refused_with(status, &refusal, self.kind());
                let allow = HeaderValue::from_static(allow);
                response.headers_mut().insert(header::ALLOW, allow);
                Ok(Reply::http(response))
            }
        }
    }

    /// The kind of the backend, which decides the form of our own answers.
    fn kind(&self) -> BackendKind {
        self.classifier.get().kind()
    }

    /// The answer of a task, or its progress.
    fn reply(&self, task: &Task) -> Result<Reply, Refusal> {
        match &task.state {
            TaskState::Done(answer) => {
                let (head, body) = protocol::answer(Ok(answer.reply()), self.kind());
                Ok(Reply::with_head(head, body))
            }
            TaskState::Waiting | TaskState::Running => Ok(self.progress(task)),
            TaskState::NotKept { bytes } => Err(Refusal::new(
                Reason::AnswerNotKept,
                format!(
                    "the call was made, and there was no room to keep its answer of {bytes} bytes"
                ),
            )),
            TaskState::Cancelled => Err(Refusal::new(Reason::TaskGone, "the task was cancelled")),
            TaskState::Failed => Err(Refusal::new(Reason::Internal, "the task came to no answer")),
        }
    }

    fn accepted(&self, task: &Task, wait: Duration) -> Reply {
        let mut reply = self.progress(task);
        let applied = match wait.as_secs() {
            0 => "respond-async".to_owned(),
            wait => format!("respond-async, wait={wait}"),
        };
        let ascii = |text| HeaderValue::try_from(text).expect("it is ASCII");
        let place = ascii(format!("{PATH}/{}", task.id));
        set(&mut reply, &header::LOCATION, &place);
        set(&mut reply, &PREFERENCE_APPLIED, &ascii(applied));
        show_state(&mut reply, task);
        reply
    }

    fn progress(&self, task: &Task) -> Reply {
        let told = self.told(task);
        let mut reply = json(StatusCode::ACCEPTED, &told);
        if let Some(seconds) = told.retry_after {
            let seconds = HeaderValue::from(seconds);
            set(&mut reply, &header::RETRY_AFTER, &seconds);
        }
        reply
    }

    fn told(&self, task: &Task) -> TaskReport {
        let until = task.ended.unwrap_or_else(|| self.clock.now());
        let took = until.since(task.submitted);
        let held = task.watch.as_ref().and_then(|watch| watch.refusal_now());
        let retry_after = task.watch.as_ref().map(|_| {
            // A task that takes long will usually take longer still.
            let known = held.as_ref().and_then(|held| held.retry_after);
            let wait = known.unwrap_or(took / 2).clamp(RETRY_MIN, RETRY_MAX);
            dialect::retry_after_seconds(wait)
        });
        TaskReport {
            id: task.id.to_string(),
            state: task.state.label(),
            call: format!("{:016x}", task.call),
            function: task.function.to_string(),
            seconds: took.as_secs_f64(),
            waits_for: held
                .and_then(|held| held.limit)
                .map(|limit| limit.to_string()),
            retry_after,
        }
    }
}

/// The requests about tasks.
enum TaskRequest {
    All,
    Fetch(TaskId),
    Cancel(TaskId),
    /// An id that no task ever had.
    NoTask,
    WrongMethod {
        allow: &'static str,
    },
}

/// The request about tasks, if it is one.
fn task_request(call: &HttpCall) -> Option<TaskRequest> {
    let rest = call.head.path().strip_prefix(PATH)?;
    let method = &call.head.method;
    let is_get = *method == Method::GET || *method == Method::HEAD;
    Some(match rest {
        "" | "/" if is_get => TaskRequest::All,
        "" | "/" => TaskRequest::WrongMethod { allow: "GET, HEAD" },
        _ => {
            let is_delete = *method == Method::DELETE;
            match rest.strip_prefix('/')?.parse() {
                _ if !is_get && !is_delete => TaskRequest::WrongMethod {
                    allow: "GET, HEAD, DELETE",
                },
                Err(tasks::NoTaskId) => TaskRequest::NoTask,
                Ok(id) if is_delete => TaskRequest::Cancel(id),
                Ok(id) => TaskRequest::Fetch(id),
            }
        }
    })
}

/// Explains in the app's words why a task was refused.
fn not_taken(refused: tasks::TaskRejection, caller: CallerId) -> Refusal {
    use tasks::TaskBound as Bound;
    let is_unknown = caller == CallerId::UNKNOWN;
    let (reason, limit) = match refused.reason {
        Bound::Draining => (Reason::Draining, None),
        Bound::Tasks => (Reason::TasksFull, Some("tasks.max_tasks")),
        Bound::Bytes => (Reason::TasksFull, Some("tasks.max_bytes")),
        Bound::TasksOfCaller => (Reason::CallerTasksFull, Some("tasks.max_tasks_per_caller")),
        Bound::BytesOfCaller => (Reason::CallerTasksFull, Some("tasks.max_bytes_per_caller")),
    };
    let detail = match refused.reason {
        Bound::Tasks => "the number of calls that are handed over is at its bound",
        Bound::Bytes => "the bytes of calls that are handed over are at their bound",
        Bound::TasksOfCaller if is_unknown => {
            "callers that are not registered share one bound, and the number of their calls has \
             reached it"
        }
        Bound::BytesOfCaller if is_unknown => {
            "callers that are not registered share one bound, and the bytes of their calls have \
             reached it"
        }
        Bound::TasksOfCaller => {
            "the number of calls that the caller has handed over is at its bound"
        }
        Bound::BytesOfCaller => {
            "the bytes of calls that the caller has handed over are at their bound"
        }
        Bound::Draining => "the proxy is stopping",
    };
    Refusal {
        limit: limit.map(Into::into),
        retry_after: Some(match refused.reason {
            Bound::Draining => RETRY_MIN,
            _ => refused.retry_after.unwrap_or(RETRY_MAX),
        }),
        ..Refusal::new(reason, detail)
    }
}

/// Tells a client whether it got the answer or a report.
fn show_state(reply: &mut Reply, task: &Task) {
    let state = HeaderValue::from_static(task.state.label());
    set(reply, &TASK_STATE, &state);
}

/// Sets a field of a reply on HTTP.
fn set(reply: &mut Reply, name: &HeaderName, value: &HeaderValue) {
    if let Some(head) = &mut reply.head {
        head.headers.set(name, value);
    }
}

fn missing_task(missing: MissingTask) -> Refusal {
    match missing {
        MissingTask::Unknown => Refusal::new(Reason::TaskUnknown, "there is no such task"),
        MissingTask::Gone => Refusal::new(
            Reason::TaskGone,
            "the task is no longer here: it expired, was deleted, or was lost in a restart",
        ),
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(body).expect("texts and numbers can always be written");
    Reply::http(protocol::json(status, ReplyBody::whole(body.into())))
}
