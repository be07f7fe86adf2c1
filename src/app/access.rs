//! The access line: one line for each call that has ended.
//!
//! A line contains no arguments, because they carry passwords. The userid and the user are the
//! only words from a client. The userid is written only if it is a valid one. The user has no
//! control character and a bounded length.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::Outcome;
use tidegate_record::CallRecord;
use tidegate_record::digits::{TimeOfDay, hexadecimal, micros};
use tidegate_record::kind::Address;

use crate::call::{Claim, Destination, Facts, Peer, Reason, Verdict, Would, WouldEnd};
use crate::telemetry::access::LineFormat;
use crate::telemetry::calls::Durations;

/// The maximum length of a userid.
const USERID_MAX: usize = 8;

/// A call that has ended. In JSON every field is always present, `null` if it does not apply.
#[derive(Clone, Copy, Debug)]
pub struct AccessLine<'a> {
    /// The facts of the call.
    pub facts: &'a Facts,
    /// When it ended.
    pub at: SystemTime,
    /// How long its parts took.
    pub took: Durations,
    /// Where the process's clock has its zero, since the epoch. All times in its lines count from there on one clock. So lines
    /// with the same zero can be compared to the microsecond, and others only as well as the clocks of their hosts agree.
    pub started_us: u64,
}

impl AccessLine<'_> {
    /// Appends it to `out`.
    ///
    /// # Errors
    ///
    /// None, because writing to memory does not fail.
    pub fn write(&self, out: &mut Vec<u8>, look: LineFormat) -> io::Result<()> {
        match look {
            LineFormat::Json => {
                self.record().write_access(out, self.at);
                Ok(())
            }
            LineFormat::Text { colour } => text(out, self, colour),
        }
    }
}

impl AccessLine<'_> {
    /// Appends the line for a replay, which only a log in JSON has.
    pub fn write_replay(&self, out: &mut Vec<u8>) {
        self.record().write_replay(out, self.at);
    }

    /// The call as its lines have it. Words from a client are only the userid, if it is a valid one, and the user.
    fn record(&self) -> CallRecord<'_> {
        let Self { facts, took, .. } = self;
        let identity = &*facts.origin.identity;
        let claim = facts.claim.as_ref();
        let rare = facts.rare();
        let would = rare.would.as_ref();
        let replay = facts.replay.as_deref();
        CallRecord {
            id: Some(facts.id),
            listener: Some(&identity.listener),
            peer: Some(match identity.peer {
                Peer::Tcp(peer) => Address::Tcp(peer),
                Peer::Unix { .. } => Address::Unix,
            }),
            client: identity.address,
            user: identity.user.as_deref(),
            dialect: Some(facts.dialect.label()),
            function: Some(&facts.function),
            class: Some(&facts.class),
            userid: userid(facts),
            verdict: Some(facts.verdict.label()),
            reason: facts.reason.map(Reason::label),
            limit: facts.limit.as_deref(),
            caller: claim.map(|claim| claim.caller.0),
            rate_limit: claim.and_then(Claim::rate_limit).map(|label| &**label),
            tokens: facts.cost(),
            queue_ms: Some(took.queued()),
            backend_ms: took.backend,
            total_ms: Some(took.total),
            bytes_in: Some(facts.bytes_in),
            bytes_out: Some(facts.bytes_out),
            status: facts.status.map(u64::from),
            overallRC: facts.overall_rc,
            sent_us: facts.sent.map(|sent| micros(sent.since(Timestamp::ZERO))),
            started_us: Some(self.started_us),
            limited: Some(facts.limited),
            quota: &rare.quotas,
            shared: Some(facts.shared),
            handed_over: Some(facts.handed_over),
            would_wait_ms: would.map(|would| would.wait),
            would_limit: would.and_then(|would| would.limit.as_deref()),
            would_reason: would.and_then(Would::reason),
            would_more: would.map(|would| would.ending == WouldEnd::Waits),
            retry_of: rare.retry_of,
            place_of: rare.place_of,
            trace_id: facts.trace.map(|trace| trace.get().get()),
            arrived_ns: Some(facts.origin.arrived.as_nanos()),
            backend: facts.destination.map(Destination::label),
            server: rare.server.as_deref(),
            outcome: facts.outcome.map(|outcome| match outcome {
                Outcome::Served => "served",
                Outcome::Overloaded => "overloaded",
                Outcome::Failed => "failed",
            }),
            job: rare.job.map(|job| job.key.0),
            job_ms: rare
                .job
                .zip(facts.answered)
                .map(|(job, ended)| ended.since(job.replied)),
            weight: replay.map(|it| it.weight.get().into()),
            cost: replay.map(|it| it.cost.get().into()),
            estimate: replay.map(|it| it.tokens.get()),
            bucket: replay.and_then(|it| it.bucket).map(|bucket| bucket.0),
            deadline_ns: replay.and_then(|it| it.deadline).map(Timestamp::as_nanos),
            settles: replay.map(|it| it.is_settled),
            draws: replay
                .and_then(|it| it.quotas.as_deref())
                .unwrap_or_default(),
            steps: replay.map(|it| &*it.steps),
            ..CallRecord::default()
        }
    }
}

fn text(out: &mut Vec<u8>, line: &AccessLine<'_>, colour: bool) -> io::Result<()> {
    let AccessLine { facts, took, .. } = line;
    let identity = &*facts.origin.identity;
    let (paint, plain) = match (colour, facts.verdict) {
        (false, _) => ("", ""),
        (true, Verdict::Passed) => ("\x1b[32m", "\x1b[0m"),
        (true, Verdict::Delayed) => ("\x1b[36m", "\x1b[0m"),
        (true, Verdict::Aborted) => ("\x1b[33m", "\x1b[0m"),
        (true, Verdict::Refused | Verdict::Expired | Verdict::Failed) => ("\x1b[31m", "\x1b[0m"),
    };
    let backend = took
        .backend
        .map_or_else(|| "-".into(), |took| format!("{:.1}", millis(took)));
    write!(
        out,
        "{} {paint}{:7}{plain} {:24} {:8} queue {:>8.1} backend {:>8} total {:>8.1} ms ",
        TimeOfDay(line.at),
        facts.verdict.label(),
        facts.function,
        userid(facts).unwrap_or("-"),
        millis(took.queued()),
        backend,
        millis(took.total),
    )?;
    if_any(out, " ", facts.status)?;
    if_any(out, " rc=", facts.overall_rc)?;
    if_any(out, " ", facts.reason.map(Reason::label))?;
    if_any(out, " limit=", facts.limit.as_deref())?;
    if let Some(would) = facts.rare().would.as_ref().filter(|it| it.limit.is_some()) {
        let more = if would.ending == WouldEnd::Waits {
            "+"
        } else {
            ""
        };
        write!(out, " would_wait={:.1}{more}", millis(would.wait))?;
        if_any(out, " would_limit=", would.limit.as_deref())?;
        if_any(out, " would_reason=", would.reason())?;
    }
    if facts.shared {
        out.extend_from_slice(b" shared");
    }
    if facts.handed_over {
        out.extend_from_slice(b" handed_over");
    }
    if let Some(job) = facts.rare().job {
        write!(out, " job={}", job.key)?;
    }
    if let Some(first) = facts.rare().retry_of {
        out.extend_from_slice(b" retry_of=");
        out.extend_from_slice(&hexadecimal(first).0);
    }
    if_any(out, " trace_id=", facts.trace)?;
    if_any(
        out,
        " caller=",
        facts.claim.as_ref().map(|claim| claim.caller),
    )?;
    write!(
        out,
        " {}>{} B {}/{} {} ",
        facts.bytes_in,
        facts.bytes_out,
        identity.listener,
        facts.dialect.label(),
        facts.class
    )?;
    if let Some(user) = &identity.user {
        write!(out, "{user}@")?;
    }
    match (identity.peer, identity.address) {
        // The port is useful only if it is the client's own.
        (Peer::Tcp(peer), client) if client.is_none_or(|it| it == peer.ip()) => {
            write!(out, "{peer}")?;
        }
        (_, Some(client)) => write!(out, "{client}")?,
        (_, None) => out.extend_from_slice(b"unix"),
    }
    writeln!(out, " {}", hexadecimal(facts.id).as_str())
}

fn if_any(out: &mut Vec<u8>, key: &str, value: Option<impl Display>) -> io::Result<()> {
    value.map_or(Ok(()), |value| write!(out, "{key}{value}"))
}

/// The userid, if the word is a valid one: nothing else from a client gets into a line.
fn userid(facts: &Facts) -> Option<&str> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"@#$_-:+".contains(&c);
    facts
        .target
        .as_deref()
        .filter(|word| (1..=USERID_MAX).contains(&word.len()) && word.bytes().all(fits))
}

/// Milliseconds to three places.
fn millis(duration: Duration) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "2^53 microseconds are 285 years"
    )]
    let micros = micros(duration) as f64;
    micros / 1000.0
}
