//! etcd's messages as its JSON gateway has them: bytes in base64, 64-bit numbers as text, what is
//! zero or empty left out.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::StatusCode;
use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::Error;

// gRPC status codes.
const CANCELLED: i32 = 1;
const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
pub(super) const NOT_FOUND: i32 = 5;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

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

    fn to_json(&self) -> Value {
        let mut json = json!({ "key": BASE64.encode(&self.key) });
        if !self.end.is_empty() {
            json["range_end"] = BASE64.encode(&self.end).into();
        }
        if self.limit > 0 {
            json["limit"] = self.limit.to_string().into();
        }
        json
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

impl Compare {
    fn to_json(&self) -> Value {
        let (key, target, field, value) = match self {
            Self::CreateRevision(key, at) => (key, "CREATE", "create_revision", at.to_string()),
            Self::ModRevision(key, at) => (key, "MOD", "mod_revision", at.to_string()),
            Self::Version(key, writes) => (key, "VERSION", "version", writes.to_string()),
            Self::Value(key, value) => (key, "VALUE", "value", BASE64.encode(value)),
            Self::Lease(key, lease) => (key, "LEASE", "lease", lease.to_string()),
        };
        json!({
            "key": BASE64.encode(key),
            "result": "EQUAL",
            "target": target,
            field: value,
        })
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

    fn to_json(&self) -> Value {
        match self {
            Self::Get(range) => json!({ "request_range": range.to_json() }),
            Self::Put { key, value, lease } => json!({ "request_put": {
                "key": BASE64.encode(key),
                "value": BASE64.encode(value),
                "lease": lease.unwrap_or(0).to_string(),
            }}),
            Self::Delete(range) => json!({ "request_delete_range": range.to_json() }),
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

pub(super) fn range(range: &Range) -> Value {
    range.to_json()
}

pub(super) fn txn(txn: &Txn) -> Value {
    let steps = |of: &[Operation]| of.iter().map(Operation::to_json).collect::<Vec<_>>();
    json!({
        "compare": txn.when.iter().map(Compare::to_json).collect::<Vec<_>>(),
        "success": steps(&txn.then),
        "failure": steps(&txn.otherwise),
    })
}

pub(super) fn watch(range: &Range, from: u64) -> Value {
    let mut create = range.to_json();
    create["start_revision"] = from.to_string().into();
    json!({ "create_request": create })
}

/// What a body says, if it says what was asked for.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Garbage(error.to_string().into()))
}

/// Why an answer is none.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may have been done.
    Trouble(Box<str>),
    /// It was not, and another member would say the same.
    Final(Error),
}

/// Whatever etcd answers that is no success.
#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    code: i32,
    #[serde(default)]
    message: String,
    /// Text beside the two above; of a stream, an object in their place.
    #[serde(default)]
    error: Value,
}

/// The body of a success.
pub(super) fn checked(status: StatusCode, body: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if status == StatusCode::OK {
        return Ok(body);
    }
    let Ok(complaint) = serde_json::from_slice::<Complaint>(&body) else {
        let told = format!("status {status} without etcd's words");
        return Err(Failure::Final(Error::Garbage(told.into())));
    };
    Err(complaint.failure())
}

impl Complaint {
    fn failure(self) -> Failure {
        let streamed = self.error.as_object();
        let code = streamed
            .and_then(|error| error.get("grpc_code")?.as_i64())
            .and_then(|code| i32::try_from(code).ok())
            .unwrap_or(self.code);
        let message = streamed
            .and_then(|error| error.get("message")?.as_str())
            .or_else(|| self.error.as_str())
            .map_or(self.message.clone(), str::to_owned);
        failure(code, message)
    }
}

/// What etcd's status code and words come to.
pub(super) fn failure(code: i32, message: String) -> Failure {
    // These three come as invalid arguments, though nothing is wrong with the call.
    let who = [
        "user name is empty",
        "authentication failed",
        "auth store is old",
    ];
    match code {
        UNAUTHENTICATED => Failure::Final(Error::Unauthenticated(message.into())),
        INVALID_ARGUMENT if who.iter().any(|words| message.contains(words)) => {
            Failure::Final(Error::Unauthenticated(message.into()))
        }
        CANCELLED | UNKNOWN | DEADLINE_EXCEEDED | INTERNAL | UNAVAILABLE => {
            Failure::Trouble(message.into())
        }
        code => Failure::Final(Error::Refused { code, message }),
    }
}

/// A whole number that comes as text, or as a number.
fn number<'de, D: Deserializer<'de>, N: TryFrom<i128>>(from: D) -> Result<N, D::Error> {
    struct Number;
    impl Visitor<'_> for Number {
        type Value = i128;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number, or one as text")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i128, E> {
            text.parse().map_err(E::custom)
        }
        fn visit_i64<E>(self, number: i64) -> Result<i128, E> {
            Ok(number.into())
        }
        fn visit_u64<E>(self, number: u64) -> Result<i128, E> {
            Ok(number.into())
        }
    }
    let number = from.deserialize_any(Number)?;
    N::try_from(number).map_err(|_| D::Error::custom("a number out of its range"))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KeyValueBody {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    create_revision: u64,
    #[serde(deserialize_with = "number")]
    mod_revision: u64,
    #[serde(deserialize_with = "number")]
    version: u64,
    #[serde(deserialize_with = "number")]
    lease: i64,
}

impl TryFrom<KeyValueBody> for KeyValue {
    type Error = Error;

    fn try_from(body: KeyValueBody) -> Result<Self, Error> {
        let bytes = |text: &str| {
            let bytes = BASE64.decode(text);
            bytes.map_err(|_| Error::Garbage("bytes that are no base64".into()))
        };
        Ok(Self {
            key: bytes(&body.key)?,
            value: bytes(&body.value)?,
            create_revision: body.create_revision,
            mod_revision: body.mod_revision,
            version: body.version,
            lease: (body.lease != 0).then_some(body.lease),
        })
    }
}

/// Without a header it is no reply of etcd's.
#[derive(Deserialize)]
pub(super) struct RangeReply {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValueBody>,
    #[serde(default)]
    more: bool,
}

impl TryFrom<RangeReply> for Ranged {
    type Error = Error;

    fn try_from(reply: RangeReply) -> Result<Self, Error> {
        Ok(Self {
            revision: reply.header.revision,
            entries: reply
                .kvs
                .into_iter()
                .map(KeyValue::try_from)
                .collect::<Result<_, _>>()?,
            more: reply.more,
        })
    }
}

#[derive(Deserialize)]
pub(super) struct TxnReplyBody {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<OutcomeBody>,
}

#[derive(Deserialize)]
enum OutcomeBody {
    #[serde(rename = "response_range")]
    Range(RangeReply),
    #[serde(rename = "response_put")]
    Put(Ignored),
    #[serde(rename = "response_delete_range")]
    Delete(DeletedBody),
}

#[derive(Deserialize)]
struct DeletedBody {
    #[serde(default, deserialize_with = "number")]
    deleted: u64,
}

impl TryFrom<TxnReplyBody> for TxnReply {
    type Error = Error;

    fn try_from(reply: TxnReplyBody) -> Result<Self, Error> {
        let outcome = |body| {
            Ok(match body {
                OutcomeBody::Range(found) => Outcome::Found(found.try_into()?),
                OutcomeBody::Put(_) => Outcome::Put,
                OutcomeBody::Delete(deleted) => Outcome::Deleted(deleted.deleted),
            })
        };
        Ok(Self {
            revision: reply.header.revision,
            succeeded: reply.succeeded,
            outcomes: reply
                .responses
                .into_iter()
                .map(outcome)
                .collect::<Result<_, Error>>()?,
        })
    }
}

/// Anything, as long as it is an object.
#[derive(Deserialize)]
pub(super) struct Ignored {}

/// What grant, keep-alive and time-to-live say of a lease.
#[derive(Deserialize)]
pub(super) struct LeaseReply {
    #[serde(rename = "ID", default, deserialize_with = "number")]
    pub(super) id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    ttl: i64,
}

impl LeaseReply {
    /// `None` if there is no such lease, which etcd says as 0 or -1.
    pub(super) fn time_to_live(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.ttl).ok().filter(|ttl| *ttl > 0)?;
        Some(Duration::from_secs(seconds))
    }
}

#[derive(Deserialize)]
pub(super) struct AuthenticateReply {
    pub(super) token: String,
}

/// One message of a stream.
#[derive(Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: T,
}

/// One message of a watch: news, or its end.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WatchMessage {
    Result(WatchReply),
    Error(Value),
}

#[derive(Deserialize)]
pub(super) struct WatchReply {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    pub(super) created: bool,
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default)]
    pub(super) cancel_reason: String,
    #[serde(default, deserialize_with = "number")]
    pub(super) compact_revision: u64,
    #[serde(default)]
    pub(super) events: Vec<EventBody>,
}

impl WatchReply {
    pub(super) fn revision(&self) -> u64 {
        self.header.revision
    }
}

#[derive(Deserialize)]
pub(super) struct EventBody {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    kv: KeyValueBody,
}

impl EventBody {
    /// What is left of the key, and whether it is gone.
    pub(super) fn read(self) -> Result<(KeyValue, bool), Error> {
        Ok((self.kv.try_into()?, self.kind == "DELETE"))
    }
}

/// What a stream says when it ends with an error.
pub(super) fn stream_failure(error: Value) -> Failure {
    let complaint = Complaint {
        code: UNKNOWN,
        message: String::new(),
        error,
    };
    complaint.failure()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str) -> Result<Vec<u8>, Error> {
        let body = KeyValueBody {
            key: key.to_owned(),
            ..KeyValueBody::default()
        };
        Ok(KeyValue::try_from(body)?.key)
    }

    #[test]
    fn a_key_is_written_in_base64_and_read_again() {
        let every: Vec<u8> = (0..=255).collect();
        // RFC 4648, section 10.
        for (key, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (b"fooba", "Zm9vYmE="),
            (b"foobar", "Zm9vYmFy"),
            (&every, &BASE64.encode(&every)),
        ] {
            assert_eq!(
                Operation::put(key, b"", None).to_json()["request_put"]["key"],
                text
            );
            assert_eq!(read(text).ok().as_deref(), Some(key), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_no_base64_is_garbage() {
        for text in [
            "Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9-", "Zm 9", "Zh==",
        ] {
            assert!(matches!(read(text), Err(Error::Garbage(_))), "{text}");
        }
    }
}
