//! Why a call was not answered by its backend.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::options::words;

/// Each reason once: its word, the code of its answer, its HTTP status.
macro_rules! reasons {
    ($($(#[$about:meta])* $name:ident: $label:literal, $rc:literal, $status:ident;)*) => {
        labels! {
            /// Why a call was not answered by the backend. Its number is the `rs` of the answer;
            /// docs/reference/errors.md has the table.
            pub enum Reason {
                $($(#[$about])* $name = $label,)*
            }
        }

        impl Reason {
            /// The code of the answer: 503 for overload, 400 for bad input, 500 for what failed
            /// after it was sent. Only tasks have 404, because nova reads it as "the guest is gone"
            /// and asks for no tasks.
            #[must_use]
            pub const fn overall_rc(self) -> u16 {
                match self {
                    $(Self::$name => $rc,)*
                }
            }

            /// The HTTP status of the answer.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self {
                    $(Self::$name => StatusCode::$status,)*
                }
            }
        }
    };
}

reasons! {
    /// The queue holds as many calls as it may.
    QueueFull: "queue_full", 503, SERVICE_UNAVAILABLE;
    /// The call waited until its deadline.
    DeadlinePassed: "deadline_passed", 503, SERVICE_UNAVAILABLE;
    /// The call's limits open only after its deadline, so it was refused at once.
    DeadlineUnreachable: "deadline_unreachable", 503, SERVICE_UNAVAILABLE;
    /// The call asks for more than a limit ever allows.
    NeverPossible: "never_possible", 400, BAD_REQUEST;
    /// The proxy is stopping.
    Draining: "draining", 503, SERVICE_UNAVAILABLE;
    /// The backend accepted no connection until the deadline.
    BackendUnreachable: "backend_unreachable", 503, SERVICE_UNAVAILABLE;
    /// The backend closed without a byte of reply.
    BackendClosed: "backend_closed", 500, BAD_GATEWAY;
    /// The backend's reply ended in the middle.
    BackendCut: "backend_cut", 500, BAD_GATEWAY;
    /// The backend was too slow.
    BackendSlow: "backend_slow", 500, GATEWAY_TIMEOUT;
    /// The backend's reply is larger than `max_reply_bytes`.
    ReplyTooLarge: "reply_too_large", 500, BAD_GATEWAY;
    /// The request is malformed.
    BadRequest: "bad_request", 400, BAD_REQUEST;
    /// The request is larger than the backend can read.
    TooLarge: "too_large", 400, PAYLOAD_TOO_LARGE;
    /// The whole request did not arrive in time.
    RequestSlow: "request_slow", 400, REQUEST_TIMEOUT;
    /// No backend is configured for what it asks.
    NoBackend: "no_backend", 501, NOT_IMPLEMENTED;
    /// A bug in the proxy.
    Internal: "internal", 500, INTERNAL_SERVER_ERROR;
    /// The rate limit of the caller has no tokens to spare, and calls may not wait for it.
    RateLimited: "rate_limited", 503, TOO_MANY_REQUESTS;
    /// The calls handed over have reached a bound on their number or bytes.
    TasksFull: "tasks_full", 503, SERVICE_UNAVAILABLE;
    /// The tasks of the call's caller have no room.
    CallerTasksFull: "caller_tasks_full", 503, TOO_MANY_REQUESTS;
    /// There is no such task, or it belongs to another client.
    TaskUnknown: "task_unknown", 404, NOT_FOUND;
    /// The task is no longer here.
    TaskGone: "task_gone", 410, GONE;
    /// The task's answer had no room.
    AnswerNotKept: "answer_not_kept", 500, INSUFFICIENT_STORAGE;
    /// The head of the request is larger than it may be.
    HeadTooLarge: "head_too_large", 400, REQUEST_HEADER_FIELDS_TOO_LARGE;
    /// No byte of a tunnel moved for the idle timeout.
    TunnelIdle: "tunnel_idle", 500, GATEWAY_TIMEOUT;
    /// The store of its quota does not answer, or denies access to its key.
    QuotaStoreAway: "quota_store_away", 503, SERVICE_UNAVAILABLE;
    /// The client took its reply too slowly while `max_slow_readers` other clients did.
    ClientSlow: "client_slow", 500, GATEWAY_TIMEOUT;
    /// The call would start after its deadline, as far as can be predicted, so it was refused at once.
    PredictedLate: "predicted_late", 503, SERVICE_UNAVAILABLE;
    /// There is no TLS with the backend, and it stays so until an operator acts.
    BackendTls: "backend_tls", 503, SERVICE_UNAVAILABLE;
    /// The client left, and the connection to the backend was closed for it.
    ClientLeft: "client_left", 500, REQUEST_TIMEOUT;
    /// The proxy stopped while the call was at the backend.
    DrainTimeout: "drain_timeout", 500, GATEWAY_TIMEOUT;
    /// The client would give up soon: it comes back, and finds its place in the queue.
    ComeBack: "come_back", 503, SERVICE_UNAVAILABLE;
}

impl Reason {
    /// The `rs` of the answer, from 1.
    #[must_use]
    pub const fn rs(self) -> u16 {
        self as u16 + 1
    }
}

words! {
    /// The form of a refusal, as clients of a protocol read errors.
    #[derive(Default)]
    pub enum RefusalForm {
        /// Problem details (RFC 9457).
        #[default]
        Problem = "problem",
        /// An error object of JSON-RPC 2.0.
        JsonRpc = "jsonrpc",
        /// A fault of XML-RPC.
        XmlRpc = "xmlrpc",
        /// A result of MCP for a call of a tool; otherwise an error object of JSON-RPC.
        Mcp = "mcp",
        /// An error of the HTTP interface of OpenAI.
        OpenAi = "openai",
        /// A failure of XAPI, in JSON-RPC or XML-RPC as the request.
        Xapi = "xapi",
    }
}

/// The form of a refusal, and what it repeats of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalTemplate {
    /// The form.
    pub form: RefusalForm,
    /// The id of the request, as JSON.
    pub id: Option<Box<str>>,
    /// The kind of the request, where answers differ.
    pub request: RequestForm,
}

/// The kind of a request, as far as the form of its refusal depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestForm {
    /// JSON-RPC 2.0, or what has one form.
    #[default]
    Usual,
    /// JSON-RPC without a version, which is 1.0.
    JsonRpc1,
    /// XML-RPC.
    Xml,
    /// A call of a tool of MCP.
    ToolCall,
}

/// A refusal, or our answer for a backend that failed: a value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The limit that refused, by its name in the config.
    pub limit: Option<Arc<str>>,
    /// When to come back, if that makes sense.
    pub retry_after: Option<Duration>,
    /// A sentence for the reader of the answer; ASCII.
    pub detail: Cow<'static, str>,
    /// The ticket for the call's place in the queue, if that is kept.
    pub ticket: Option<Box<str>>,
    /// The id of the refused call's access line; `None` until the call is known.
    pub call: Option<u64>,
    /// The form of the answer, if the route of the call has one.
    pub refused_as: Option<Box<RefusalTemplate>>,
}

impl Refusal {
    /// The config has no backend for the request.
    #[must_use]
    pub fn no_backend(which: &'static str) -> Self {
        Self::new(
            Reason::NoBackend,
            format!("no {which} backend is configured"),
        )
    }

    /// The proxy is going down, and the call was not sent.
    #[must_use]
    pub fn draining() -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(Reason::Draining, "the proxy is going down")
        }
    }

    /// A refusal that no limit decided.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            limit: None,
            retry_after: None,
            detail: detail.into(),
            ticket: None,
            call: None,
            refused_as: None,
        }
    }
}
