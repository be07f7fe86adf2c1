//! The explanation of a call: how it is so far, or how it ended.

use serde::Serialize;
use tidegate_callers::CallerId;

use super::state::{CallId, Moment};
use super::written::some_text;

/// A call, and what held it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// The call.
    pub id: CallId,
    /// Where it stands.
    pub state: CallState,
    /// The explanation in a sentence, with names between backquotes.
    pub sentence: String,
    /// The limit, bucket or quota that a waiting call waits for; `None` if it waits only for its turn.
    pub waits_for: Option<String>,
    /// How many slots of that limit calls of the process before hold; `None` if there are none.
    pub carried_slots: Option<u64>,
    /// About how many waiting calls start before it; `None` if it does not wait.
    pub ahead: Option<u64>,
    /// When a waiting call is predicted to start; `None` if that is not known.   s
    pub starts_in_seconds: Option<f64>,
    /// When it arrived.
    pub arrived: Moment,
    /// Name of the listener.
    pub listener: String,
    /// The function of the call.
    pub call: String,
    /// The userid that it is about.
    pub userid: Option<String>,
    /// The class of the call.
    pub class: String,
    /// The caller for which it takes turns.
    #[serde(serialize_with = "some_text")]
    pub caller: Option<CallerId>,
    /// The rate limit that is charged.
    pub rate_limit: Option<String>,
    /// The charge of the call, in tokens; `None` until it is sent.
    pub tokens: Option<f64>,
    /// How it ended: `passed`, `delayed`, `refused`, `expired`, `aborted` or `failed`; `None` until then.
    pub verdict: Option<String>,
    /// Why, if it was refused or failed.
    pub reason: Option<String>,
    /// From arrival to the end, or so far.
    pub total_ms: f64,
    /// From arrival to a worker, or to the end if it never got one, or so far.
    pub queued_ms: f64,
    /// From the last byte sent until the backend was done, or so far; `None` if it was not sent.
    pub backend_ms: Option<f64>,
    /// The causes of its wait until it was admitted, the longest first. The sum is `queued_ms`.
    pub held: Vec<CallDelay>,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// The call waits for the answer of an identical call.
    Sharing,
    /// In the queue.
    Waiting,
    /// Past the gate, until the backend is done with it.
    Running,
    /// The answer of the call goes to the client.
    Answering,
    /// The call is over.
    Ended,
}

/// The causes of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// A limit that was closed to it, or to calls with an earlier turn there.
    Limit,
    /// Other calls had an earlier turn.
    Turn,
    /// Further limits, beyond those that are listed.
    Others,
    /// An identical call whose answer it shared.
    SharedCall,
    /// Something outside the queue: its request arrived, or a backend accepted no connection.
    Elsewhere,
}

/// Something that held a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallDelay {
    /// The cause.
    pub cause: HeldBy,
    /// The limit's name, if it was one.
    pub limit: Option<String>,
    /// The time.
    pub ms: f64,
}
