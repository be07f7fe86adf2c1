//! Requests to etcd and its answers, and both as messages of its protocol.

use std::time::Duration;

use super::{EtcdError, proto};

/// A key with its value and revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// The value of the key.
    pub value: Vec<u8>,
    /// The revision of the write that made it.
    pub create_revision: u64,
    /// The revision of its last write.
    pub mod_revision: u64,
    /// Writes since it was made, that one included.
    pub version: u64,
    /// The lease of the key, if any.
    pub lease: Option<i64>,
}

/// Some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    key: Vec<u8>,
    end: Vec<u8>,
}

impl Range {
    /// The range of a single key.
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
pub struct RangeContents {
    /// The store's revision at that moment: a watch from the next revision misses no change.
    pub revision: u64,
    /// In the order of their keys.
    pub entries: Vec<KeyValue>,
}

/// The result of [`Client::swap`](super::EtcdClient::swap).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySwap {
    /// The key was written, as this revision.
    Done(u64),
    /// The key was not written: it has this value, or does not exist.
    Refused(Option<KeyValue>),
}

pub(super) fn put(key: &[u8], value: &[u8], lease: Option<i64>) -> proto::PutRequest {
    proto::PutRequest {
        key: key.to_vec(),
        value: value.to_vec(),
        lease: lease.unwrap_or(0),
    }
}

/// Does a write if its key was last written by this revision, and otherwise reads the key.
pub(super) fn swap(write: proto::PutRequest, expected: u64) -> proto::TxnRequest {
    use proto::compare::{CompareTarget, TargetUnion};
    use proto::request_op::Request;
    let step = |request| proto::RequestOp {
        request: Some(request),
    };
    let read = Range::key(&write.key).into();
    proto::TxnRequest {
        compare: vec![proto::Compare {
            target: CompareTarget::Mod.into(),
            key: write.key.clone(),
            target_union: Some(TargetUnion::ModRevision(signed(expected))),
        }],
        success: vec![step(Request::RequestPut(write))],
        failure: vec![step(Request::RequestRange(read))],
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
    type Error = EtcdError;

    fn try_from(found: proto::KeyValue) -> Result<Self, EtcdError> {
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

impl TryFrom<proto::RangeResponse> for RangeContents {
    type Error = EtcdError;

    fn try_from(reply: proto::RangeResponse) -> Result<Self, EtcdError> {
        let entries = reply.kvs.into_iter().map(KeyValue::try_from);
        Ok(Self {
            revision: revision(reply.header)?,
            entries: entries.collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<proto::TxnResponse> for KeySwap {
    type Error = EtcdError;

    fn try_from(mut reply: proto::TxnResponse) -> Result<Self, EtcdError> {
        use proto::response_op::Response;
        let revision = revision(reply.header)?;
        let step = reply.responses.pop().and_then(|step| step.response);
        match (reply.succeeded, step) {
            (true, Some(Response::ResponsePut(_))) => Ok(Self::Done(revision)),
            (false, Some(Response::ResponseRange(mut found))) => {
                let found = found.kvs.pop().map(KeyValue::try_from).transpose()?;
                Ok(Self::Refused(found))
            }
            _ => Err(EtcdError::Garbage("a transaction of other steps".into())),
        }
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
pub(super) fn revision(header: Option<proto::ResponseHeader>) -> Result<u64, EtcdError> {
    let header = header.ok_or_else(|| EtcdError::Garbage("an answer without a header".into()))?;
    unsigned(header.revision)
}

/// etcd's numbers are signed, but never negative.
pub(super) fn unsigned(number: i64) -> Result<u64, EtcdError> {
    u64::try_from(number).map_err(|_| EtcdError::Garbage("a number below zero".into()))
}

/// No number from etcd is larger.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
