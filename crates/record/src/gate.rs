//! The lines of the gate: what the scheduler was given besides calls.

use std::time::SystemTime;

use crate::call::{begin, head};
use crate::fields::{FieldDefinition, fields};
use crate::kind::{
    Amount, BucketRuleObject, CallId, CarriedObject, CostList, Count, Micros, Millis, Nanos,
    OptionalFlag, Text,
};

fields! {
    /// An event of the gate, for the writer. A line has the fields of its event ([`GateEvent`]).
    given GateRecord;
    /// An event of the gate, as a log has it. A field that is absent or `null` is `None`.
    found GateLine;
    /// The fields of the gate.
    key Key;

    target: Text, 0, "`gate`";
    schema: Count, 1, "the version of these fields";
    event: Text, 0, "the event";
    started_us: Micros, 0, "where the clock of the process has its zero, since the epoch";
    at_ns: Nanos, 0, "the instant, from `started_us` on";
    again: OptionalFlag, 0, "the event happened before, and is in the log again for replays that begin here";
    phase_ns: Nanos, 0, "where the clock of the process has its zero on the wall clock, which aligns fixed windows";
    seed: CallId, 0, "16 hexadecimal digits that decide which surplus callers share turns";
    fingerprint: Text, 0, "FNV-1a of the config, 128 bits";
    config: Text, 0, "the config in effect; `null` if it is too long for a line";
    costs: CostList, 0, "the costs of calls that meet paced limits: `name`, `cheapest` and `most_expensive` for each limit";
    limit: Text, 0, "the name of a limit or a quota";
    by: Text, 0, "`health`, `operator` or `coordinator`";
    capacity: Count, 0, "the most that the limit gives out; `null` as configured";
    share_thousandths: Count, 0, "the part of every limit that is given out; `null` is all of it";
    bucket: Count, 0, "the number of a rate limit";
    fill: Amount, 0, "tokens per second; `null` as configured";
    until_ns: Nanos, 0, "the instant after which `then` applies; `null` without an end";
    then: Amount, 0, "the value from then on";
    rule: BucketRuleObject, 0, "the rule of a bucket: `name`, `limit` (`burst` and `fill`, or of a pace `rate` and `burst`), and whether it `observes`, `rejects`, goes `by_arrival`, `settles`";
    key: Text, 0, "the owner of a budget";
    total: Count, 0, "the total of the key; `null` as the quota has it";
    base: Count, 0, "the base of the key; `null` as the quota has it";
    nodes: Count, 0, "the number of sidecars that share the quotas";
    question: Count, 0, "the number of a question to the store";
    reply: Text, 0, "`record`, `absent`, `unreadable`, `written`, `time`, or no result: `unknown`, `unavailable`, `late`, `not_yet`, `dropped`";
    version: Count, 0, "the version of the record";
    record: Text, 0, "the record";
    entropy: Count, 0, "the random number that decides when the key asks again";
    seen_ns: Nanos, 0, "the instant at which the time of the store was seen";
    earliest_ns: Nanos, 0, "the earliest time of the store then";
    latest_ns: Nanos, 0, "the latest; `null` if it is unknown";
    carried: CarriedObject, 0, "what the process before left: `windows` with the instants and costs of `departures`, `levels` of buckets and paces, `calls` that may still be at the backend; or `full`, if nothing is known and every window counts as used up; or `done`, how many of the first such calls count no longer";
    id: CallId, 0, "the id of a call";
    would_end: Text, 0, "`admitted`, `refused` or `left`";
    would_wait_ms: Millis, 0, "how long limits that only observe would have held the call";
    would_limit: Text, 0, "the limit among them that would have held it longest, or refused it";
    would_reason: Text, 0, "why it would have been refused";
}

/// Defines the events: the word, the fields, the meaning.
macro_rules! events {
    ($($Event:ident = $word:literal [$($key:ident)*] $meaning:literal;)*) => {
        /// The events that a line of the gate reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum GateEvent {
            $(#[doc = $meaning] $Event,)*
        }

        impl GateEvent {
            /// Every event.
            pub const ALL: &[Self] = &[$(Self::$Event,)*];

            /// The word in a line.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$Event => $word,)* }
            }

            /// The fields besides those of every event.
            const fn fields(self) -> u64 {
                match self { $(Self::$Event => Key::set(&[$(Key::$key,)*]),)* }
            }

            const fn meaning(self) -> &'static str {
                match self { $(Self::$Event => $meaning,)* }
            }
        }
    };
}

events! {
    Start = "start" [phase_ns seed fingerprint config costs] "the process has started";
    Reload = "reload" [phase_ns seed fingerprint config costs] "this config decides from this instant on";
    Checkpoint = "checkpoint" [phase_ns seed fingerprint config costs] "a replay can begin here, in a log that was rotated. Supplies, buckets and fills that are in force follow at the same instant, with `again`. Every ten minutes while calls come, and when `log.access` is switched on, but not if more than 1000 lines would have to be repeated";
    End = "end" [] "the process has drained: every call has a line";
    Costs = "costs" [costs] "the costs of calls were changed on the admin address";
    Supply = "supply" [limit by capacity until_ns then] "the most that a limit may give out: by `health`, as its backend goes down (0), is tried by one more call, and comes back, by `operator`, a pause (0) or a lower value for a while, or by `coordinator`, a lease";
    Share = "share" [share_thousandths] "every limit gives out this part of what it would, at least 1. Each step of a ramp has a line";
    Fill = "fill" [bucket fill until_ns then] "the leased rate of a bucket";
    Bucket = "bucket" [bucket rule] "the bucket of a rate limit, or its new rule";
    BucketGone = "bucket_gone" [bucket] "the bucket was removed";
    Carried = "carried" [carried] "this counts of the process before. A long one is in several lines of one instant";
    Quotas = "quotas" [] "the quotas of the config are in force";
    QuotaRule = "quota_rule" [limit key total base] "a key has its own total and base";
    QuotaNodes = "quota_nodes" [nodes] "the number of sidecars that share the quotas";
    QuotaPast = "quota_past" [earliest_ns] "the sidecar's own shares of windows that begin at this time of the store, or later, were not spent before its start";
    StoreTime = "store_time" [seen_ns earliest_ns latest_ns] "the time of the store of quotas";
    QuotaAnswer = "quota_answer" [limit key question reply version record entropy seen_ns earliest_ns latest_ns] "the store answered a question of a key. Each answer has one line, and may be for many calls ([quotas.md](../how-to/quotas.md))";
    QuotaChanged = "quota_changed" [limit key] "the store may contain another record for this key";
    StoreBack = "store_back" [] "the store answers again";
    Woke = "woke" [] "the timer, a call without limits or a new charge had waiting calls asked again or quotas looked after, and no call left the queue. Their order may have changed nevertheless";
    Would = "would" [id would_end would_wait_ms would_limit would_reason] "what limits that only observe would have done to a call that had ended before";
}

impl GateEvent {
    /// The event with this word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|event| event.word() == word)
    }

    /// Whether the line has the config in effect. Such lines are in the log of calls, too.
    #[must_use]
    pub const fn has_config(self) -> bool {
        matches!(self, Self::Start | Self::Reload | Self::Checkpoint)
    }
}

/// The fields of every event.
const OF_ALL: u64 = Key::set(&[Key::event, Key::started_us, Key::at_ns, Key::again]);

impl GateRecord<'_> {
    /// Appends the line of an event at a moment.
    pub fn write(self, out: &mut Vec<u8>, event: GateEvent, at: SystemTime) {
        self.write_with(out, event, at, event.fields());
        out.extend_from_slice(b"}\n");
    }

    /// The fields of an event, to write them again in a later line.
    #[must_use]
    pub fn fields(&self, event: GateEvent) -> Vec<u8> {
        let mut fields = Vec::new();
        self.write_set(&mut fields, event.fields());
        fields
    }

    /// Appends the line of an event that happened before, with its fields as they were written.
    pub fn write_again(self, out: &mut Vec<u8>, event: GateEvent, at: SystemTime, fields: &[u8]) {
        Self {
            again: true,
            ..self
        }
        .write_with(out, event, at, 0);
        out.extend_from_slice(fields);
        out.extend_from_slice(b"}\n");
    }

    fn write_with(self, out: &mut Vec<u8>, event: GateEvent, at: SystemTime, set: u64) {
        let head = match event {
            GateEvent::Would => head!("shadow"),
            _ => head!("gate"),
        };
        begin(out, head, at);
        let line = Self {
            event: Some(event.word()),
            ..self
        };
        line.write_set(out, OF_ALL | set);
    }

    /// Once in the program, for any set.
    #[inline(never)]
    fn write_set(&self, out: &mut Vec<u8>, set: u64) {
        self.write_fields(out, set);
    }
}

fn of_set(set: u64) -> impl Iterator<Item = &'static FieldDefinition> {
    let all = Key::FIELDS.iter().zip(Key::ALL);
    all.filter(move |(_, key)| set & 1 << **key as u64 != 0)
        .map(|(field, _)| field)
}

/// The table of events.
#[must_use]
pub fn events_table() -> String {
    let mut rows = String::from("| `event` | further fields | meaning |\n|---|---|---|\n");
    for event in GateEvent::ALL
        .iter()
        .filter(|event| **event != GateEvent::Would)
    {
        let names: Vec<String> = of_set(event.fields())
            .map(|it| format!("`{}`", it.name))
            .collect();
        let (word, names, meaning) = (event.word(), names.join(", "), event.meaning());
        rows.push_str(&format!("| `{word}` | {names} | {meaning} |\n"));
    }
    rows
}

/// The table of the fields of events.
#[must_use]
pub fn gate_table() -> String {
    let would = GateEvent::Would.fields();
    crate::fields::rows(of_set(!would))
}

/// The table of the fields of a line of the shadow.
#[must_use]
pub fn shadow_table() -> String {
    crate::fields::rows(of_set(GateEvent::Would.fields()))
}
