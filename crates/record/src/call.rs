//! The line of a call, for people who operate, and its line for a replay.

use std::time::SystemTime;

use crate::digits::utc;
use crate::fields::{FieldDefinition, fields};
use crate::kind::{
    Amount, Bytes, CallId, CallerText, Count, DrawList, Flag, HostText, KeyList, Micros, Millis,
    Nanos, OptionalCode, OptionalKey, OptionalMillis, OptionalText, PeerText, StepList, Text,
    TokenAmount, TraceText,
};

fields! {
    /// A call, for the writer.
    given CallRecord;
    /// A call, as a log has it. A field that is absent or `null` is `None`.
    found CallLine;
    /// The fields of a call.
    key Key;

    timestamp: Text, 0, "when the call ended, UTC, RFC 3339";
    level: Text, 0, "always `INFO`";
    target: Text, 0, "`access`, or `replay` in the line for a replay";
    schema: Count, 1, "the version of these fields";
    id: CallId, 0, "the id of this call, unique in the process";
    listener: Text, 0, "the name of the listener";
    peer: PeerText, 0, "the address and port at the other end of the connection, `unix` on a socket file";
    client: HostText, 0, "the client's address: the peer's own, or the one that a trusted proxy names; [callers.md](../how-to/callers.md)";
    user: Text, 0, "the user, if the listener knows one: `user_from`";
    dialect: Text, 0, "`socket`, `http` or `tcp`";
    function: Text, 0, "the function; `other` if it is in no table, and `*` if its message could be of any";
    class: Text, 0, "the last class, [classes.md](../how-to/classes.md); `none` if it was not a call";
    userid: Text, 0, "the z/VM userid that the call is about, if its first argument is one";
    verdict: Text, 0, "`passed`, `delayed`, `refused`, `expired`, `aborted` or `failed`, as in [metrics.md](metrics.md)";
    reason: Text, 0, "why the call was refused or failed";
    limit: Text, 0, "the limit that refused the call or delayed it longest";
    caller: CallerText, 0, "the id of the most specific caller that the call matches; [callers.md](../how-to/callers.md)";
    rate_limit: Text, 0, "the label of the rate limit that was charged";
    tokens: TokenAmount, 0, "the cost: 0 if `shared`, else the final charge if it was settled, else the estimate";
    queue_ms: Millis, 0, "from the arrival to a worker, or to the end if the call never got one";
    backend_ms: Millis, 0, "from the last byte sent until the backend was done, or the call was given up";
    total_ms: Millis, 0, "from the arrival to the end";
    bytes_in: Bytes, 0, "bytes of the request sent to the backend";
    bytes_out: Bytes, 0, "bytes of the reply";
    status: Count, 0, "the HTTP status of the reply";
    overallRC: OptionalCode, 0, "the `overallRC` of a reply of the socket protocol; other lines do not have the field";
    sent_us: Micros, 0, "when the bytes had left, from `started_us` on";
    started_us: Micros, 0, "where the clock of the process has its zero, since the epoch: a day and an hour before it started. The same in all lines of a process";
    limited: Flag, 0, "whether the call met limits and took a worker. Calls that are `exempt` or do not reach the SDK did not";
    quota: DrawList, 0, "the draws from quotas, each with `limit`, `key`, `window`, `total` and `cost`, and with `settled` if its answer said what it has cost; [audit.md](../how-to/audit.md)";
    shared: Flag, 0, "whether the call got the reply of an identical read, and so drew nothing: [coalesce.md](../how-to/coalesce.md)";
    handed_over: Flag, 0, "whether the call ran without its client: [tasks.md](../how-to/tasks.md)";
    would_wait_ms: Millis, 0, "how long limits that only observe would have held the call: [observe.md](../how-to/observe.md)";
    would_limit: Text, 0, "the limit among them that would have held it longest, or refused it";
    would_reason: Text, 0, "why it would have been refused";
    would_more: Flag, 0, "whether the call ended before they would have decided";
    retry_of: CallId, 0, "the `id` of the call whose second send this is (`backend.retry_reads`); each send has a line of its own";
    place_of: CallId, 0, "the `id` of the refused call (`come_back`) whose place in the queue this call has taken";
    trace_id: TraceText, 0, "the trace id of the request's `traceparent` (W3C Trace Context), if that header is well formed. The header is passed on unchanged in any case";
    arrived_ns: Nanos, 0, "when the clock of the call started: with the last byte of its request";
    backend: Text, 0, "`socket`, `http` or `tcp`; `null` if the call never asked for a turn";
    server: OptionalText, 0, "the server to which the call was sent, by its name; only if the backend has several: [several-servers.md](../how-to/several-servers.md)";
    outcome: Text, 1, "`served`, `overloaded` or `failed`: how the call ended at the backend; `null` if it was not sent";
    job: OptionalKey, 1, "the number of the job that the call has begun: a hash of its status path; [jobs.md](../how-to/jobs.md)";
    job_ms: OptionalMillis, 1, "how long the job held the slot of the call behind its answer. It is a part of `backend_ms`";
    weight: Count, 0, "the caller's turns for one turn of an ordinary caller";
    cost: Count, 1, "the draw from each window: 1, or the number of calls of a batch";
    estimate: Amount, 0, "the tokens that the call draws when it is admitted";
    bucket: Count, 0, "the number of the rate limit whose bucket the call was charged to when it asked";
    deadline_ns: Nanos, 0, "the last instant at which the call might leave the queue, when it asked; `null` without a bound";
    settles: Flag, 1, "whether the value of its end corrects its quotas and its turns too, and not only its bucket";
    draws: KeyList, 0, "the quotas that the call draws from; `null` if it draws from none. `quota` has what it did draw";
    steps: StepList, 0, "each a word, the instant in ns, and for some a value";
}

/// The fields that are only in the line for a replay.
const ONLY_REPLAY: u64 = Key::set(&[
    Key::weight,
    Key::cost,
    Key::estimate,
    Key::bucket,
    Key::deadline_ns,
    Key::settles,
    Key::draws,
    Key::steps,
]);
/// The first fields, which one text has.
const HEAD: u64 = Key::set(&[Key::timestamp, Key::level, Key::target, Key::schema]);
/// The fields of an access line behind its head.
const ACCESS: u64 = !(HEAD | ONLY_REPLAY);
/// The fields of the line for a replay behind its head.
const REPLAY: u64 = ONLY_REPLAY
    | Key::set(&[
        Key::id,
        Key::listener,
        Key::client,
        Key::user,
        Key::dialect,
        Key::function,
        Key::reason,
        Key::limit,
        Key::caller,
        Key::rate_limit,
        Key::started_us,
        Key::limited,
        Key::arrived_ns,
        Key::backend,
    ]);

/// The beginning of a line, whose timestamp has the places of the zeros.
macro_rules! head {
    ($target:literal) => {
        concat!(
            "{\"timestamp\":\"0000-00-00T00:00:00.000000Z\",\"level\":\"INFO\",\"target\":\"",
            $target,
            "\",\"schema\":1"
        )
    };
}
pub(crate) use head;

/// Begins a line.
pub(crate) fn begin(out: &mut Vec<u8>, head: &'static str, at: SystemTime) {
    let place = out.len() + r#"{"timestamp":""#.len();
    out.extend_from_slice(head.as_bytes());
    let time = utc(at).0;
    out[place..place + time.len()].copy_from_slice(&time);
}

impl CallRecord<'_> {
    /// Appends the access line of a call that ended at this moment.
    pub fn write_access(&self, out: &mut Vec<u8>, at: SystemTime) {
        begin(out, head!("access"), at);
        self.write_fields(out, ACCESS);
        out.extend_from_slice(b"}\n");
    }

    /// Appends the line for a replay.
    pub fn write_replay(&self, out: &mut Vec<u8>, at: SystemTime) {
        begin(out, head!("replay"), at);
        self.write_fields(out, REPLAY);
        out.extend_from_slice(b"}\n");
    }
}

impl CallLine<'_> {
    /// The moment at which the call ended, since the epoch.   µs
    #[must_use]
    pub fn ended_us(&self) -> Option<u64> {
        let arrived = self.started_us?.checked_add(self.arrived_ns? / 1000)?;
        arrived.checked_add(self.total_ms?)
    }
}

/// The fields of a set.
fn of_set(set: u64) -> impl Iterator<Item = &'static FieldDefinition> {
    let all = Key::FIELDS.iter().zip(Key::ALL);
    all.filter(move |(_, key)| set & 1 << **key as u64 != 0)
        .map(|(field, _)| field)
}

/// The table of the fields of an access line.
#[must_use]
pub fn access_table() -> String {
    crate::fields::rows(of_set(HEAD | ACCESS))
}

/// The table of the fields that only the line for a replay has.
#[must_use]
pub fn replay_table() -> String {
    crate::fields::rows(of_set(ONLY_REPLAY))
}

/// The names of the fields that both lines of a call have.
#[must_use]
pub fn fields_of_both() -> Vec<&'static str> {
    of_set(HEAD | (ACCESS & REPLAY))
        .map(|field| field.name)
        .collect()
}
