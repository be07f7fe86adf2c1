//! Messages of the two processes, and the calls in them.
//!
//! Names cross the connection and numbers do not, except ids of calls: each process numbers its classes, callers and
//! backends for itself. Moments are nanoseconds of `CLOCK_BOOTTIME`, which both processes share.

use serde::{Deserialize, Serialize};

/// The most sockets that one commit can carry. The kernel passes at most 253 descriptors with one message.
pub const SOCKETS_MAX: u32 = 253;

/// The versions of the protocol that a process speaks, as a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest version.
    pub oldest: u16,
    /// The newest version.
    pub newest: u16,
}

impl Versions {
    /// The versions that this program speaks.
    pub const OWN: Self = Self {
        oldest: 1,
        newest: 1,
    };

    /// The newest version that both ranges contain; `None` if there is none.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        let oldest = self.oldest.max(other.oldest);
        (oldest <= newest).then_some(newest)
    }
}

/// The number of a call of the old process. The old process counts upwards for as long as it lives and uses no number
/// twice, because an answer to a call that has left may still be on its way.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct ForeignId(pub u64);

/// The relation of a call to user work on its guest, for promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallRole {
    /// The call is user work.
    Acts,
    /// The call reads the guest, and is promoted while users act on it.
    Follows,
    /// Neither.
    #[default]
    Apart,
}

/// A quota that a call draws from, and the owner of the budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QuotaClaim {
    /// The name of the quota.
    pub quota: Box<str>,
    /// The owner. Empty for unknown owners, which share one budget.
    pub key: Box<str>,
}

/// The facts about a call by which the new scheduler decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ForeignCall {
    /// The exact name of the function.
    pub function: Box<str>,
    /// The name of the class.
    pub class: Box<str>,
    /// The name of the caller in the table of callers. Empty for an unknown one.
    pub caller: Box<str>,
    /// The name of the backend's destination.
    pub destination: Box<str>,
    /// Whether the call meets no limits, so that it waits in the lane beside them.
    pub is_unlimited: bool,
    /// Turns of the caller for one turn of an ordinary caller.
    pub weight: u32,
    /// Draw from windows.   units
    pub cost: u32,
    /// Draw from the bucket and the quotas.   millionths of a token
    pub tokens: u64,
    /// The name of the bucket that is charged.
    pub bucket: Option<Box<str>>,
    /// The quotas that are charged.
    pub quotas: Vec<QuotaClaim>,
    /// Whether the cost that is measured at its end corrects its quotas and its turns.
    pub is_settled: bool,
    /// Arrival of the call.   nanoseconds
    pub arrived: u64,
    /// The last moment at which the call can leave the queue.   nanoseconds
    pub deadline: Option<u64>,
    /// How often later calls were admitted before this one.
    pub passed_over: u32,
    /// Names of the limits whose next room is kept for this call.
    pub room_claims: Vec<Box<str>>,
    /// The relation to user work.
    pub role: CallRole,
    /// The guest that the call is about.
    pub target: Option<Box<str>>,
}

/// A call that waits in the old process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WaitingCall {
    /// The number of the call.
    pub id: ForeignId,
    /// The facts.
    pub call: ForeignCall,
}

/// How far a running call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStage {
    /// The call may begin to leave at any moment.
    Admitted,
    /// The last byte of the call has left for the backend.
    Sent,
    /// The first byte of the reply has arrived.
    Replied,
}

/// A call of the old process that it admitted itself, and that runs at the commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunningCall {
    /// The number of the call.
    pub id: ForeignId,
    /// The facts.
    pub call: ForeignCall,
    /// The stage.
    pub stage: RunStage,
    /// The moment of its admission.   nanoseconds
    pub admitted: u64,
}

/// How a call ended at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignOutcome {
    /// The call was answered.
    Served,
    /// The call failed because the backend has too much to do.
    Overloaded,
    /// The call failed otherwise.
    Failed,
}

/// Why an admitted call could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequeueCause {
    /// The backend accepts no connection, or cannot be reached. It gets one probe at a time.
    Backend,
    /// The old process lacks a descriptor, a port or memory. The backend may be healthy.
    Own,
}

/// The answer to a call that cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallRefusal {
    /// The word for the reason in replies, logs and metrics, such as `draining`.
    pub reason: Box<str>,
    /// The limit that refused, by its name in the config.
    #[serde(default)]
    pub limit: Option<Box<str>>,
    /// When to come back.   milliseconds
    #[serde(default)]
    pub retry_after: Option<u64>,
    /// A sentence for the reader of the answer; ASCII.
    #[serde(default)]
    pub detail: Box<str>,
}

impl CallRefusal {
    /// The refusal of a call whose process ends before its turn.
    #[must_use]
    pub fn draining() -> Self {
        Self {
            // The next process serves already.
            retry_after: Some(1000),
            ..Self::new("draining", "the process ends before the turn of this call")
        }
    }

    /// The refusal of a call that finds the queue full.
    #[must_use]
    pub fn queue_full() -> Self {
        Self::new("queue_full", "the queue is full")
    }

    fn new(reason: &str, detail: &str) -> Self {
        Self {
            reason: reason.into(),
            limit: None,
            retry_after: None,
            detail: detail.into(),
        }
    }
}

/// A part of the old process's state that is not in the ledger, such as statistics of callers or tokens of quotas. Large
/// state has several parts of one name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StatePart {
    /// The name of the state, at most 255 bytes.
    pub name: Box<str>,
    /// The state in the encoding of its owner.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for StatePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.bytes.len();
        write!(f, "StatePart({:?}, {bytes} bytes)", self.name)
    }
}

/// Why a process cannot hand over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeRefusal {
    /// No version of the protocol is spoken by both. The new process may ask the old one to drain.
    UnknownVersion(Versions),
    /// Another upgrade is under way.
    Busy {
        /// The other process: its pid, or the name that it gave itself.
        with: Box<str>,
    },
    /// The process ends already. The new process waits for the ledger.
    Draining,
}

/// A message to the old process. The form of `Hello` and `Drain` is the same in all versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToOld {
    /// A new process introduces itself.
    Hello {
        /// The versions that it speaks.
        versions: Versions,
        /// The name of the process, for the messages of others: its pid and version.
        instance: Box<str>,
        /// The file of its config, for the log.
        config: Box<str>,
    },
    /// Drain and end: the new process is ready and speaks another version, or it admits and was asked to end itself.
    Drain,
    /// The new process has read its config and built everything. It needs only the commit.
    Prepared,
    /// The new process accepts and admits.
    Taken,
    /// The turn of a waiting call has come.
    Run {
        /// The call.
        id: ForeignId,
    },
    /// A waiting call cannot run.
    Refused {
        /// The call.
        id: ForeignId,
        /// Why.
        refusal: CallRefusal,
    },
}

/// A message to the new process. The form of `Refused` is the same in all versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNew {
    /// The old process takes part.
    Welcome {
        /// The version in which both continue.
        version: u16,
    },
    /// The old process does not hand over.
    Refused(UpgradeRefusal),
    /// A part of the state. The wire carries its bytes as they are.
    #[serde(skip)]
    State(StatePart),
    /// A call that runs at the commit.
    Running(RunningCall),
    /// The old process admits no call from here on. The sockets travel with this message.
    Commit {
        /// The listening sockets that travel with it, in the order of their names in the state.
        sockets: u32,
        /// How many running calls were sent before.
        running: u32,
        /// The term of the ledger's lock in which the old process admitted calls.
        term: u64,
    },
    /// A call waits for its turn. The calls that wait at the commit come before it.
    Wait(WaitingCall),
    /// The deadline or the class of a waiting call has changed.
    Change {
        /// The call.
        id: ForeignId,
        /// The last moment at which it can leave the queue.   nanoseconds
        deadline: Option<u64>,
        /// The name of its class.
        class: Box<str>,
    },
    /// A call has ended, and no byte of it was sent. What it has drawn is returned.
    Left {
        /// The call.
        id: ForeignId,
    },
    /// The last byte of a running call has left for the backend.
    Sent {
        /// The call.
        id: ForeignId,
    },
    /// The first byte of the reply has arrived.
    Replied {
        /// The call.
        id: ForeignId,
    },
    /// A running call has ended.
    Done {
        /// The call.
        id: ForeignId,
        /// How.
        outcome: ForeignOutcome,
        /// The cost that was measured, if the call is settled.   millionths of a token
        measured: Option<u64>,
    },
    /// A running call could not be sent. It waits again, with its turn and its deadline.
    Requeue {
        /// The call.
        id: ForeignId,
        /// Why.
        cause: RequeueCause,
    },
}
