//! Jobs: work of a backend that goes on behind its answer.
//!
//! A route says where an answer names its job, and how the job's state is asked for. The slot of such a call belongs to
//! the job until that ends (`jobs.rs`). The answers to a client's own polls are read by the same rule as those to the
//! questions of this process.

use std::fmt;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use siphasher::sip::SipHasher24;
use tidegate_limits::Timestamp;
use tidegate_message::{JsonPointers, JsonValue};

use super::answer::{AnswerPlace, is_readable, text_of};
use super::{Head, ReplyHead, session};

/// Longest id of a job, and longest path of its status.   bytes
const TARGET_BYTES_MAX: usize = 2048;

/// Most bytes of the fields with which this process asks for the state of a job.
const CREDENTIAL_BYTES_MAX: usize = 8 * 1024;

/// Largest answer in which a job is looked for.   bytes
pub(super) const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The fields of the call that has begun a job with which its state is asked for. Each but the first may be a secret.
const CREDENTIALS: [&str; 7] = [
    "host",
    "authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "x-auth-token",
    "private-token",
];

labels! {
    /// The end of a job.
    pub enum JobEnd {
        /// The backend says so.
        Done = "done",
        /// The backend does not know the job any more.
        Gone = "gone",
        /// The job has lasted as long as its route allows.
        Overdue = "overdue",
        /// The process ends first, and the next one holds the slot.
        Left = "left",
    }
}

/// The jobs of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRule {
    /// Their protocol.
    pub form: JobForm,
    /// How long a job may hold its slot.
    pub most: Duration,
}

/// How jobs are named and asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobForm {
    /// By a status that has a path of its own.
    Http(HttpJob),
    /// By the tasks of XAPI.
    Xapi,
}

/// Jobs whose status has a path of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpJob {
    /// The places of the id; the first that has one counts.
    pub id: Vec<JobIdPlace>,
    /// The statuses of an answer that begins a job; none for every success.
    pub accepted: Vec<u16>,
    /// The path of the status, with `{id}` for the id, and `*` for the segment of the call's own path. Only `{id}` is
    /// an id that is a path.
    pub status: Box<str>,
    /// The place of the state.
    pub done: AnswerPlace,
    /// The states of a job that has ended, in any case.
    pub ended: Vec<Box<str>>,
    /// If not empty, an answer without a state means that the job has ended, unless its status is one of these.
    pub running: Vec<u16>,
    /// The statuses of an answer about a job that the backend does not know any more.
    pub gone: Vec<u16>,
}

/// A place of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobIdPlace {
    /// The place.
    pub place: AnswerPlace,
    /// The beginning of every id; empty for any.
    pub begins: Box<str>,
}

/// The state of a job by an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobState {
    Running,
    Ended(JobEnd),
    Unreadable,
}

/// The number by which a job is known: a hash of its question, the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobKey(pub u64);

impl JobKey {
    /// The key of the job with this status path, however that is spelled.
    #[must_use]
    pub fn of_target(target: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(&decoded(target));
        Self(hasher.finish())
    }

    /// The key of a task of XAPI.
    #[must_use]
    pub fn of_task(task: &str) -> Self {
        Self::of_target(&format!("task {task}"))
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How to ask for the state of a job. Its secrets are in memory only.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct JobQuestion {
    method: Method,
    target: Box<str>,
    fields: HeaderMap,
    body: Bytes,
}

impl fmt::Debug for JobQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobQuestion")
    }
}

/// The asker of a call that may begin a job: what of it a question needs.
#[derive(Clone, PartialEq, Eq)]
pub enum JobAsker {
    /// The path of the call.
    Http(Box<str>),
    /// The path, the session, and the form of the call.
    Xapi(Box<str>, Box<str>, XapiForm),
}

/// The form of a call of XAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XapiForm {
    /// JSON-RPC.
    Json,
    /// XML-RPC.
    Xml,
}

impl JobRule {
    /// The id of the job that an answer begins.
    pub(super) fn id(&self, head: &ReplyHead, body: &[u8]) -> Option<String> {
        let id = match &self.form {
            JobForm::Xapi => session::value_of_xapi(body).filter(|it| it.starts_with("OpaqueRef:")),
            JobForm::Http(job) => {
                let status = head.status.as_u16();
                let is_accepted = match &job.accepted[..] {
                    [] => head.status.is_success(),
                    accepted => accepted.contains(&status),
                };
                let mut ids = job.id.iter().filter_map(|it| {
                    let id = text_at(&it.place, head, body)?;
                    id.starts_with(&*it.begins).then_some(id)
                });
                is_accepted.then(|| ids.next()).flatten()
            }
        };
        id.filter(|id| !id.is_empty() && id.len() <= TARGET_BYTES_MAX)
    }

    /// How to ask for the state of a job; no question if the call's fields are too large.
    pub(super) fn question(
        &self,
        id: &str,
        asker: JobAsker,
        mut fields: HeaderMap,
    ) -> Option<(JobKey, Option<JobQuestion>)> {
        let size: usize = fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        let fits = size <= CREDENTIAL_BYTES_MAX;
        let (key, method, target, body) = match (&self.form, asker) {
            (JobForm::Http(job), JobAsker::Http(path)) => {
                let target = job.target(&path, id)?;
                (
                    JobKey::of_target(&target),
                    Method::GET,
                    target,
                    String::new(),
                )
            }
            (JobForm::Xapi, JobAsker::Xapi(path, session, form)) => {
                let (kind, body) = form.status_of(&session, id);
                fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
                fields.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
                (JobKey::of_task(id), Method::POST, path.into(), body)
            }
            _ => return None,
        };
        let question = fits.then(|| JobQuestion {
            method,
            target: target.into(),
            fields,
            body: body.into(),
        });
        Some((key, question))
    }

    /// Whether the state of such a job may be asked for at this path.
    #[must_use]
    pub fn asks_at(&self, path: &str) -> bool {
        match &self.form {
            JobForm::Xapi => true,
            JobForm::Http(job) if &*job.status == "{id}" => true,
            JobForm::Http(job) => {
                let (mut wanted, mut given) = (job.status.split('/'), path.split('/'));
                let fits = given.by_ref().all(|segment| {
                    let wanted = wanted.next();
                    wanted.is_some_and(|it| matches!(it, "*" | "{id}") || it == segment)
                });
                fits && wanted.next().is_none()
            }
        }
    }

    pub(super) fn state(&self, head: &ReplyHead, body: &[u8]) -> JobState {
        match &self.form {
            JobForm::Xapi => match session::task_state(body).as_deref() {
                Some("pending" | "cancelling") => JobState::Running,
                Some("success" | "failure" | "cancelled") => JobState::Ended(JobEnd::Done),
                Some("HANDLE_INVALID") => JobState::Ended(JobEnd::Gone),
                _ => JobState::Unreadable,
            },
            JobForm::Http(job) => job.state(head, body),
        }
    }
}

impl HttpJob {
    fn state(&self, head: &ReplyHead, body: &[u8]) -> JobState {
        let status = head.status.as_u16();
        if self.gone.contains(&status) {
            return JobState::Ended(JobEnd::Gone);
        }
        let is_end = |state: &str| self.ended.iter().any(|end| end.eq_ignore_ascii_case(state));
        match text_at(&self.done, head, body) {
            Some(state) if is_end(&state) => JobState::Ended(JobEnd::Done),
            Some(_) => JobState::Running,
            None if self.running.contains(&status) => JobState::Running,
            None if !self.running.is_empty() && head.status.is_success() => {
                JobState::Ended(JobEnd::Done)
            }
            None => JobState::Unreadable,
        }
    }

    /// The path at which the backend says the state of a job with this id.
    fn target(&self, path: &str, id: &str) -> Option<String> {
        let target = if &*self.status == "{id}" {
            path_of(id)?.to_owned()
        } else {
            let mut of_path = path.split('/');
            let mut target = Vec::new();
            for segment in self.status.split('/') {
                let own = of_path.next();
                target.push(match segment {
                    "*" => own?.to_owned(),
                    "{id}" => encoded(id.rsplit('/').find(|it| !it.is_empty())?),
                    segment => segment.to_owned(),
                });
            }
            target.join("/")
        };
        let is_plain = target.bytes().all(|byte| byte.is_ascii_graphic());
        (is_plain && target.len() <= TARGET_BYTES_MAX).then_some(target)
    }
}

impl XapiForm {
    /// The call that asks for the status of a task: its type and its body.
    fn status_of(self, session: &str, task: &str) -> (&'static str, String) {
        match self {
            Self::Json => {
                let call = serde_json::json!({
                    "jsonrpc": "2.0",
                    "method": "task.get_status",
                    "params": [session, task],
                    "id": "tidegate",
                });
                ("application/json", call.to_string())
            }
            Self::Xml => {
                let param = |text: &str| {
                    let text = text.replace('&', "&amp;").replace('<', "&lt;");
                    format!("<param><value><string>{text}</string></value></param>")
                };
                let (session, task) = (param(session), param(task));
                let call = format!(
                    "<?xml version=\"1.0\"?><methodCall><methodName>task.get_status</methodName>\
                     <params>{session}{task}</params></methodCall>"
                );
                ("text/xml", call)
            }
        }
    }
}

impl JobQuestion {
    /// The head and the body of the request that asks.
    pub(super) fn request(&self) -> Option<(Arc<Head>, Bytes)> {
        let request = Request::builder()
            .method(self.method.clone())
            .uri(&*self.target);
        let (mut parts, ()) = request.body(()).ok()?.into_parts();
        parts.headers = self.fields.clone();
        Some((Arc::new(Head::from(parts)), self.body.clone()))
    }
}

/// The fields of a call with which the state of its job is asked for.
pub(super) fn credentials(head: &Head) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for name in CREDENTIALS {
        for value in head.headers.get_all(name) {
            if let Ok(mut value) = HeaderValue::from_bytes(value) {
                value.set_sensitive(true);
                fields.append(HeaderName::from_static(name), value);
            }
        }
    }
    fields
}

/// The text or the number at a place of an answer.
fn text_at(place: &AnswerPlace, head: &ReplyHead, body: &[u8]) -> Option<String> {
    match place {
        AnswerPlace::Header(name) => text_of(head, name).map(|it| it.trim().to_owned()),
        AnswerPlace::Json(_) if !is_readable(head) => None,
        AnswerPlace::Json(pointer) => {
            let pointers = JsonPointers::new([pointer.clone()]).ok()?;
            let found = pointers.find(body).ok()?;
            match found.get(0)? {
                JsonValue::String(text) => Some(text.to_string()),
                JsonValue::Number(number) => Some(number.as_str().to_owned()),
                JsonValue::Bool(is) => Some(is.to_string()),
                JsonValue::Null | JsonValue::Array | JsonValue::Object => None,
            }
        }
    }
}

/// The path and the query of a URL, or of a path.
fn path_of(url: &str) -> Option<&str> {
    let path = match url.split_once("://") {
        Some((_, rest)) => &rest[rest.find('/')?..],
        None => url,
    };
    let path = path.split('#').next().unwrap_or_default();
    (path.starts_with('/') && !path.starts_with("//")).then_some(path)
}

/// A text as one segment of a path.
fn encoded(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => segment.push(char::from(byte)),
            byte if b"-._~:@!$&'()*+,;=".contains(&byte) => segment.push(char::from(byte)),
            byte => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

/// A path without percent-encoding.
fn decoded(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let (mut at, mut decoded) = (0, Vec::with_capacity(bytes.len()));
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| byte == b'%');
        let digits = digits.and_then(|it| str::from_utf8(it).ok());
        match digits.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

/// The job of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// The number by which it is known.
    pub key: JobKey,
    /// When the call was answered.
    pub replied: Timestamp,
    /// How it ended.
    pub end: Option<JobEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(status: &str) -> HttpJob {
        HttpJob {
            id: Vec::new(),
            accepted: Vec::new(),
            status: status.into(),
            done: AnswerPlace::Json("/status".parse().expect("a pointer")),
            ended: Vec::new(),
            running: Vec::new(),
            gone: Vec::new(),
        }
    }

    #[test]
    fn the_path_of_a_status_is_made_of_the_id_and_of_the_path_of_the_call() {
        let check = |status: &str, path: &str, id: &str, target: Option<&str>| {
            assert_eq!(job(status).target(path, id).as_deref(), target, "{id}");
        };
        let tasks = "/api2/json/nodes/*/tasks/{id}/status";
        let clone = "/api2/json/nodes/pve1/qemu/100/clone";
        let upid = "UPID:pve1:0003:root@pam:";
        check(
            tasks,
            clone,
            upid,
            Some("/api2/json/nodes/pve1/tasks/UPID:pve1:0003:root@pam:/status"),
        );
        check(tasks, "/api2", upid, None);
        check("/jobs/{id}", "/x", "https://b/ops/a b", Some("/jobs/a%20b"));
        check(
            "{id}",
            "/x",
            "https://b.example:8/ops/7?sig=1#x",
            Some("/ops/7?sig=1"),
        );
        check("{id}", "/x", "/ops/7", Some("/ops/7"));
        check("{id}", "/x", "//elsewhere/7", None);
        check("{id}", "/x", "7", None);
    }

    #[test]
    fn a_job_has_the_same_key_in_every_spelling_of_its_path() {
        let plain = JobKey::of_target("/tasks/UPID:a:/status");
        assert_eq!(plain, JobKey::of_target("/tasks/UPID%3Aa%3a/status"));
        assert_ne!(plain, JobKey::of_target("/tasks/UPID:b:/status"));
    }

    #[test]
    fn nothing_of_a_question_is_in_its_debug_form() {
        let mut fields = HeaderMap::new();
        fields.insert("authorization", HeaderValue::from_static("secret"));
        let question = JobQuestion {
            method: Method::GET,
            target: "/secret".into(),
            fields,
            body: Bytes::from_static(b"secret"),
        };
        assert!(!format!("{question:?}").contains("secret"));
    }
}
