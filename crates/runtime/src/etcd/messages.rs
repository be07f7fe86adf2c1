//! What is asked of etcd and what it answers, and both as messages of its protocol.

use std::time::Duration;

use super::{Error, proto};

/// A key and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision of the write that made it.
    pub create_revision: u64,
    /// The revision of its last write.
    pub mod_revision: u64,
    /// Writes since it was made, that one included.
    pub version: u64,
    /// The lease that it is bound to, if any.
    pub lease: Option<i64>,
}

/// Some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    key: Vec<u8>,
    end: Vec<u8>,
    limit: u64,
}

impl Range {
    /// One key.
    #[must_use]
    pub fn key(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            end: Vec::new(),
            limit: 0,
        }
    }

    /// Every key that begins so; every key there is, if `prefix` is empty.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        // The first key behind them: the last byte that can be raised is raised, and what
        // follows it dropped. Zero stands for the end of all keys.
        let raised = prefix.iter().rposition(|byte| *byte < u8::MAX);
        let end = match raised {
            Some(at) => {
                let mut end = prefix[..=at].to_vec();
                end[at] += 1;
                end
            }
            None => vec![0],
        };
        let key = if prefix.is_empty() { &[0] } else { prefix };
        Self {
            key: key.to_vec(),
            end,
            limit: 0,
        }
    }

    /// At most so many, the first in order.
    #[must_use]
    pub fn at_most(self, limit: u64) -> Self {
        Self { limit, ..self }
    }
}

impl From<Range> for proto::RangeRequest {
    fn from(range: Range) -> Self {
        Self {
            key: range.key,
            range_end: range.end,
            limit: signed(range.limit),
        }
    }
}

/// What a range holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged {
    /// The store's revision at that moment: to watch from the next one on misses nothing.
    pub revision: u64,
    /// In the order of their keys.
    pub entries: Vec<KeyValue>,
    /// Whether there were more than the limit.
    pub more: bool,
}

/// What must be so of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// It was made by this revision; 0 if it does not exist.
    CreateRevision(Vec<u8>, u64),
    /// It was last written by this revision; 0 if it does not exist.
    ModRevision(Vec<u8>, u64),
    /// So many writes since it was made; 0 if it does not exist.
    Version(Vec<u8>, u64),
    /// It holds this.
    Value(Vec<u8>, Vec<u8>),
    /// It is bound to this lease.
    Lease(Vec<u8>, i64),
}

impl From<Compare> for proto::Compare {
    fn from(compare: Compare) -> Self {
        use proto::compare::{CompareTarget as Target, TargetUnion as Union};
        let (key, target, union) = match compare {
            Compare::CreateRevision(key, at) => {
                (key, Target::Create, Union::CreateRevision(signed(at)))
            }
            Compare::ModRevision(key, at) => (key, Target::Mod, Union::ModRevision(signed(at))),
            Compare::Version(key, writes) => (key, Target::Version, Union::Version(signed(writes))),
            Compare::Value(key, value) => (key, Target::Value, Union::Value(value)),
            Compare::Lease(key, lease) => (key, Target::Lease, Union::Lease(lease)),
        };
        Self {
            target: target.into(),
            key,
            target_union: Some(union),
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Get(Range),
    /// Writes one key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
        /// The lease to bind it to; without one it lasts.
        lease: Option<i64>,
    },
    /// Deletes.
    Delete(Range),
}

impl Operation {
    /// Writes one key.
    #[must_use]
    pub fn put(key: &[u8], value: &[u8], lease: Option<i64>) -> Self {
        Self::Put {
            key: key.to_vec(),
            value: value.to_vec(),
            lease,
        }
    }
}

impl From<Operation> for proto::RequestOp {
    fn from(operation: Operation) -> Self {
        use proto::request_op::Request;
        let request = match operation {
            Operation::Get(range) => Request::RequestRange(range.into()),
            Operation::Put { key, value, lease } => Request::RequestPut(proto::PutRequest {
                key,
                value,
                lease: lease.unwrap_or(0),
            }),
            Operation::Delete(range) => Request::RequestDeleteRange(proto::DeleteRangeRequest {
                key: range.key,
                range_end: range.end,
            }),
        };
        Self {
            request: Some(request),
        }
    }
}

/// A transaction: if everything compared is so, one list of steps, otherwise the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    when: Vec<Compare>,
    then: Vec<Operation>,
    otherwise: Vec<Operation>,
}

impl Txn {
    /// One that compares nothing and does nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One condition more.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.when.push(compare);
        self
    }

    /// One step more, for when all conditions hold.
    #[must_use]
    pub fn then(mut self, operation: Operation) -> Self {
        self.then.push(operation);
        self
    }

    /// One step more, for when one of them does not.
    #[must_use]
    pub fn otherwise(mut self, operation: Operation) -> Self {
        self.otherwise.push(operation);
        self
    }

    /// How many steps it has for when all conditions hold, or for when not.
    pub(super) fn steps(&self, succeeded: bool) -> usize {
        if succeeded {
            &self.then
        } else {
            &self.otherwise
        }
        .len()
    }

    pub(super) fn only_reads(&self) -> bool {
        let mut all = self.then.iter().chain(&self.otherwise);
        all.all(|operation| matches!(operation, Operation::Get(_)))
    }
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// The store's revision after it: that of its writes, if it wrote.
    pub revision: u64,
    /// Whether all conditions held.
    pub succeeded: bool,
    /// Of each step done, in order.
    pub outcomes: Vec<Outcome>,
}

/// What became of one step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was read.
    Found(Ranged),
    /// It was written.
    Put,
    /// So many keys were deleted.
    Deleted(u64),
}

impl From<Txn> for proto::TxnRequest {
    fn from(txn: Txn) -> Self {
        let steps = |of: Vec<Operation>| of.into_iter().map(Into::into).collect();
        Self {
            compare: txn.when.into_iter().map(Into::into).collect(),
            success: steps(txn.then),
            failure: steps(txn.otherwise),
        }
    }
}

pub(super) fn watch(range: &Range, from: u64) -> proto::WatchRequest {
    use proto::watch_request::RequestUnion;
    let create = proto::WatchCreateRequest {
        key: range.key.clone(),
        range_end: range.end.clone(),
        start_revision: signed(from),
    };
    proto::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    }
}

/// What was read of an answer, if it says what was asked for.
impl TryFrom<proto::KeyValue> for KeyValue {
    type Error = Error;

    fn try_from(found: proto::KeyValue) -> Result<Self, Error> {
        Ok(Self {
            key: found.key,
            value: found.value,
            create_revision: unsigned(found.create_revision)?,
            mod_revision: unsigned(found.mod_revision)?,
            version: unsigned(found.version)?,
            lease: (found.lease != 0).then_some(found.lease),
        })
    }
}

impl TryFrom<proto::RangeResponse> for Ranged {
    type Error = Error;

    fn try_from(reply: proto::RangeResponse) -> Result<Self, Error> {
        let entries = reply.kvs.into_iter().map(KeyValue::try_from);
        Ok(Self {
            revision: revision(reply.header)?,
            entries: entries.collect::<Result<_, _>>()?,
            more: reply.more,
        })
    }
}

impl TryFrom<proto::TxnResponse> for TxnReply {
    type Error = Error;

    fn try_from(reply: proto::TxnResponse) -> Result<Self, Error> {
        use proto::response_op::Response;
        let outcome = |step: proto::ResponseOp| match step.response {
            Some(Response::ResponseRange(found)) => Ok(Outcome::Found(found.try_into()?)),
            Some(Response::ResponsePut(_)) => Ok(Outcome::Put),
            Some(Response::ResponseDeleteRange(gone)) => {
                Ok(Outcome::Deleted(unsigned(gone.deleted)?))
            }
            None => Err(Error::Garbage("a step without a result".into())),
        };
        Ok(Self {
            revision: revision(reply.header)?,
            succeeded: reply.succeeded,
            outcomes: reply
                .responses
                .into_iter()
                .map(outcome)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl proto::LeaseResponse {
    /// `None` if there is no such lease, which etcd says as 0 or -1.
    pub(super) fn time_to_live(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.ttl).ok().filter(|ttl| *ttl > 0)?;
        Some(Duration::from_secs(seconds))
    }
}

/// The store's revision. Without a header it is no reply of etcd's.
pub(super) fn revision(header: Option<proto::ResponseHeader>) -> Result<u64, Error> {
    let header = header.ok_or_else(|| Error::Garbage("an answer without a header".into()))?;
    unsigned(header.revision)
}

/// Numbers of etcd are signed, and never negative.
pub(super) fn unsigned(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| Error::Garbage("a number below zero".into()))
}

/// No number that etcd gave is larger.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
