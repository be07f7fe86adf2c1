//! Requests to etcd and its answers, and both as messages of its protocol.

use std::time::Duration;

use super::{Error, proto};

/// A key with its value and revisions.
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
    /// Its lease, if any.
    pub lease: Option<i64>,
}

/// Some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    key: Vec<u8>,
    end: Vec<u8>,
}

impl Range {
    /// One key.
    #[must_use]
    pub fn key(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            end: Vec::new(),
        }
    }

    /// Every key with this prefix; every key, if `prefix` is empty.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        // The first key after them: the last byte below 255 is increased by one, and all bytes
        // after it dropped. Zero means the end of all keys.
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
        }
    }
}

impl From<Range> for proto::RangeRequest {
    fn from(range: Range) -> Self {
        Self {
            key: range.key,
            range_end: range.end,
        }
    }
}

/// The content of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged {
    /// The store's revision at that moment: a watch from the next revision misses no change.
    pub revision: u64,
    /// In the order of their keys.
    pub entries: Vec<KeyValue>,
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
        /// The lease to bind it to; without one the key is permanent.
        lease: Option<i64>,
    },
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
        };
        Self {
            request: Some(request),
        }
    }
}

/// A transaction: if all conditions hold, one list of steps, otherwise the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    when: Vec<(Vec<u8>, u64)>,
    then: Vec<Operation>,
    otherwise: Vec<Operation>,
}

impl Txn {
    /// An empty transaction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition: the key was last written by this revision; 0 if it does not exist.
    #[must_use]
    pub fn when(mut self, key: &[u8], mod_revision: u64) -> Self {
        self.when.push((key.to_vec(), mod_revision));
        self
    }

    /// Adds a step for the case that all conditions hold.
    #[must_use]
    pub fn then(mut self, operation: Operation) -> Self {
        self.then.push(operation);
        self
    }

    /// Adds a step for the case that a condition does not hold.
    #[must_use]
    pub fn otherwise(mut self, operation: Operation) -> Self {
        self.otherwise.push(operation);
        self
    }

    /// The number of steps for the case that all conditions hold, or for the other.
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

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// The store's revision after it; if it wrote, the revision of its writes.
    pub revision: u64,
    /// Whether all conditions held.
    pub succeeded: bool,
    /// The result of each step, in order.
    pub outcomes: Vec<Outcome>,
}

/// The result of one step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record as read.
    Found(Ranged),
    /// It was written.
    Put,
}

impl From<Txn> for proto::TxnRequest {
    fn from(txn: Txn) -> Self {
        use proto::compare::{CompareTarget, TargetUnion};
        let compare = |(key, mod_revision)| proto::Compare {
            target: CompareTarget::Mod.into(),
            key,
            target_union: Some(TargetUnion::ModRevision(signed(mod_revision))),
        };
        let steps = |of: Vec<Operation>| of.into_iter().map(Into::into).collect();
        Self {
            compare: txn.when.into_iter().map(compare).collect(),
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

/// The content of an answer, if it fits the request.
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
    /// `None` if the lease does not exist; etcd answers 0 or -1 then.
    pub(super) fn time_to_live(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.ttl).ok().filter(|ttl| *ttl > 0)?;
        Some(Duration::from_secs(seconds))
    }
}

/// The store's revision. A reply without a header is not from etcd.
pub(super) fn revision(header: Option<proto::ResponseHeader>) -> Result<u64, Error> {
    let header = header.ok_or_else(|| Error::Garbage("an answer without a header".into()))?;
    unsigned(header.revision)
}

/// etcd's numbers are signed, but never negative.
pub(super) fn unsigned(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| Error::Garbage("a number below zero".into()))
}

/// No number from etcd is larger.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
