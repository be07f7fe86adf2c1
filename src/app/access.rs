//! The access line: one line for each call that has ended.
//!
//! A line contains no arguments, because they carry passwords. The userid and the user are the
//! only words from a client. The userid is written only if it is a valid one. The user has no
//! control character and a bounded length.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::scheduler::QuotaSpent;

use crate::call::steps::{Step, What};
use crate::call::{Claim, Facts, Peer, Reason, Verdict, Would, WouldEnd};
use crate::telemetry::access::{Ascii, Look, TimeOfDay, hexadecimal, utc};
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
    /// When the process started.
    pub started: &'a Started,
}

impl AccessLine<'_> {
    /// Appends it to `out`.
    ///
    /// # Errors
    ///
    /// None, because writing to memory does not fail.
    pub fn write(&self, out: &mut Vec<u8>, look: Look) -> io::Result<()> {
        match look {
            Look::Json => json(out, self),
            Look::Text { colour } => text(out, self, colour),
        }
    }
}

/// The start of the process, in microseconds since the epoch. All times in its lines count from
/// it on one monotonic clock. So lines with the same start can be compared to the microsecond,
/// and others only as well as the clocks of their hosts agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started(Box<str>);

impl Started {
    /// A start at this moment.
    #[must_use]
    pub fn new(at: SystemTime) -> Self {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(micros(since_epoch).to_string().into())
    }
}

/// Builds a line part by part. A derived `Serialize` took two and a half times the instructions,
/// because it searches keys for escapes and formats numbers.
fn json(out: &mut Vec<u8>, line: &AccessLine<'_>) -> io::Result<()> {
    let facts = line.facts;
    let identity = &*facts.origin.identity;
    let claim = facts.claim.as_ref();
    let rate_limit = claim.and_then(Claim::rate_limit);
    // Every line of the log begins with the first three.
    put(out, br#"{"timestamp":""#, &utc(line.at).0);
    put(
        out,
        br#"","level":"INFO","target":"access","id":""#,
        &hexadecimal(facts.id).0,
    );
    word(out, br#"","listener":"#, Some(&identity.listener))?;
    match identity.peer {
        Peer::Tcp(peer) => write!(out, r#","peer":"{peer}""#)?,
        Peer::Unix { .. } => out.extend_from_slice(br#","peer":"unix""#),
    }
    match identity.address {
        Some(client) => write!(out, r#","client":"{client}""#)?,
        None => out.extend_from_slice(br#","client":null"#),
    }
    word(out, br#","user":"#, identity.user.as_deref())?;
    word(out, br#","dialect":"#, Some(facts.dialect.label()))?;
    word(out, br#","function":"#, Some(&facts.function))?;
    word(out, br#","class":"#, Some(&facts.class))?;
    word(out, br#","userid":"#, userid(facts))?;
    word(out, br#","verdict":"#, Some(facts.verdict.label()))?;
    word(out, br#","reason":"#, facts.reason.map(Reason::label))?;
    word(out, br#","limit":"#, facts.limit.as_deref())?;
    match claim {
        Some(claim) => write!(out, r#","caller":"{}""#, claim.caller)?,
        None => out.extend_from_slice(br#","caller":null"#),
    }
    word(out, br#","rate_limit":"#, rate_limit.map(|label| &**label))?;
    figures(out, line)
}

/// The second half of a line: what the call cost, took and came to.
fn figures(out: &mut Vec<u8>, line: &AccessLine<'_>) -> io::Result<()> {
    let AccessLine { facts, took, .. } = line;
    let sent = facts.sent.map(|sent| sent.since(Timestamp::ZERO));
    tokens(out, br#","tokens":"#, facts.cost())?;
    milliseconds(out, br#","queue_ms":"#, Some(took.queued()));
    milliseconds(out, br#","backend_ms":"#, took.backend);
    milliseconds(out, br#","total_ms":"#, Some(took.total));
    number(out, br#","bytes_in":"#, Some(facts.bytes_in));
    number(out, br#","bytes_out":"#, Some(facts.bytes_out));
    number(out, br#","status":"#, facts.status.map(u64::from));
    // A field of z/VM, which no other line has.
    if let Some(rc) = facts.overall_rc {
        let key: &[u8] = match rc.is_negative() {
            true => br#","overallRC":-"#,
            false => br#","overallRC":"#,
        };
        number(out, key, Some(rc.unsigned_abs()));
    }
    number(out, br#","sent_us":"#, sent.map(micros));
    put(out, br#","started_us":"#, line.started.0.as_bytes());
    flag(out, br#","limited":"#, facts.limited);
    quota(out, &facts.rare().quotas)?;
    flag(out, br#","shared":"#, facts.shared);
    flag(out, br#","handed_over":"#, facts.handed_over);
    would(out, facts.rare().would.as_ref())?;
    match facts.rare().retry_of {
        None => out.extend_from_slice(b",\"retry_of\":null"),
        Some(first) => {
            put(out, br#","retry_of":""#, &hexadecimal(first).0);
            out.push(b'"');
        }
    }
    match facts.trace {
        None => out.extend_from_slice(b",\"trace_id\":null"),
        Some(trace) => write!(out, r#","trace_id":"{trace}""#)?,
    }
    at_gate(out, facts)
}

/// The last part of a line: what the scheduler was told about the call and decided, for a replay.
fn at_gate(out: &mut Vec<u8>, facts: &Facts) -> io::Result<()> {
    let asked = facts.asked.as_ref();
    number(
        out,
        br#","arrived_ns":"#,
        Some(facts.origin.arrived.as_nanos()),
    );
    word(
        out,
        br#","backend":"#,
        asked.map(|it| it.destination.label()),
    )?;
    number(
        out,
        br#","weight":"#,
        asked.map(|it| it.weight.get().into()),
    );
    match asked {
        Some(asked) => write!(out, r#","estimate":{}"#, asked.tokens.get())?,
        None => out.extend_from_slice(br#","estimate":null"#),
    }
    let bucket = asked.and_then(|it| it.bucket).map(|bucket| bucket.0);
    number(out, br#","bucket":"#, bucket);
    let deadline = asked
        .map(|it| it.deadline)
        .filter(|&it| it < Timestamp::MAX);
    number(
        out,
        br#","deadline_ns":"#,
        deadline.map(Timestamp::as_nanos),
    );
    draws(out, asked.and_then(|it| it.quotas.as_deref()))?;
    let mut steps: SmallVec<[&Step; 8]> = facts.steps.iter().collect();
    // Another call's task may have noted that it was promoted.
    steps.sort_by_key(|step| step.at);
    out.extend_from_slice(br#","steps":["#);
    for (nth, Step { at, what }) in steps.into_iter().enumerate() {
        put(
            out,
            if nth == 0 { b"[\"" } else { b",[\"" },
            what.word().label().as_bytes(),
        );
        number(out, br#"","#, Some(at.as_nanos()));
        match what {
            What::Asked => word(out, b",", asked.map(|it| &*it.class))?,
            What::Class(class) => word(out, b",", Some(class))?,
            What::Postponed(until) => number(out, b",", Some(nanos(until.since(*at)))),
            What::Deadline(deadline) => number(out, b",", Some(deadline.as_nanos())),
            What::Bucket(bucket) => number(out, b",", Some(bucket.0)),
            What::EndedAt(_, measured) => write!(out, ",{}", measured.get())?,
            What::NoDeadline | What::NoBucket | What::Ended(_) => out.extend_from_slice(b",null"),
            _ => {}
        }
        out.push(b']');
    }
    out.extend_from_slice(b"]}\n");
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A key with what comes around it, and a value that is JSON.
fn put(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn flag(out: &mut Vec<u8>, key: &[u8], value: bool) {
    put(out, key, if value { b"true" } else { b"false" });
}

/// A string in JSON, or `null`.
fn word(out: &mut Vec<u8>, key: &[u8], word: Option<&str>) -> io::Result<()> {
    let Some(word) = word else {
        put(out, key, b"null");
        return Ok(());
    };
    out.extend_from_slice(key);
    // Names from the config may contain anything; most need no escape.
    if word.bytes().all(|c| c >= b' ' && c != b'"' && c != b'\\') {
        put(out, b"\"", word.as_bytes());
        out.push(b'"');
        return Ok(());
    }
    Ok(serde_json::to_writer(out, word)?)
}

/// A number in JSON, or `null`.
fn number(out: &mut Vec<u8>, key: &[u8], value: Option<u64>) {
    let Some(value) = value else {
        return put(out, key, b"null");
    };
    let digits = value.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut text = Ascii([0; 20]);
    text.decimal(0, digits, value);
    put(out, key, &text.0[..digits]);
}

/// Milliseconds to three places, or `null`.
fn milliseconds(out: &mut Vec<u8>, key: &[u8], duration: Option<Duration>) {
    let micros = duration.map(micros);
    number(out, key, micros.map(|micros| micros / 1000));
    if let Some(micros) = micros {
        let mut places = Ascii(*b".000");
        places.decimal(1, 3, micros % 1000);
        out.extend_from_slice(&places.0);
    }
}

/// A number of tokens, mostly a whole one, or `null`.
fn tokens(out: &mut Vec<u8>, key: &[u8], count: Option<TokenCount>) -> io::Result<()> {
    match count {
        Some(count) if !count.micros().is_multiple_of(1_000_000) => {
            out.extend_from_slice(key);
            write!(out, "{}", count.tokens())?;
        }
        count => number(out, key, count.map(|count| count.micros() / 1_000_000)),
    }
    Ok(())
}

/// Writes the draws from quotas, or `null`.
fn quota(out: &mut Vec<u8>, draws: &[QuotaSpent]) -> io::Result<()> {
    let mut before: &[u8] = br#","quota":[{"limit":"#;
    for draw in draws {
        word(out, before, Some(&draw.of.quota))?;
        word(out, br#","key":"#, Some(&draw.of.key))?;
        number(out, br#","window":"#, draw.window);
        number(out, br#","total":"#, Some(draw.total));
        number(out, br#","cost":"#, Some(draw.cost));
        before = br#"},{"limit":"#;
    }
    out.extend_from_slice(match draws {
        [] => br#","quota":null"#,
        _ => b"}]",
    });
    Ok(())
}

/// The quotas from which the call would draw, or `null`.
fn draws(out: &mut Vec<u8>, keys: Option<&[QuotaKey]>) -> io::Result<()> {
    let Some(keys) = keys.filter(|keys| !keys.is_empty()) else {
        out.extend_from_slice(br#","draws":null"#);
        return Ok(());
    };
    let mut before: &[u8] = br#","draws":[["#;
    for of in keys {
        word(out, before, Some(&of.quota))?;
        word(out, b",", Some(&of.key))?;
        before = b"],[";
    }
    out.extend_from_slice(b"]]");
    Ok(())
}

/// Writes the decisions of limits that only observe.
fn would(out: &mut Vec<u8>, would: Option<&Would>) -> io::Result<()> {
    let Some(would) = would else {
        out.extend_from_slice(
            br#","would_wait_ms":null,"would_limit":null,"would_reason":null,"would_more":null"#,
        );
        return Ok(());
    };
    milliseconds(out, br#","would_wait_ms":"#, Some(would.wait));
    word(out, br#","would_limit":"#, would.limit.as_deref())?;
    word(out, br#","would_reason":"#, would.reason())?;
    let waits = would.ending == WouldEnd::Waits;
    flag(out, br#","would_more":"#, waits);
    Ok(())
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

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_are_what_serde_would_write() {
        for text in [
            "",
            "nova",
            "a \"b\"",
            "a\\b",
            "a\nb\u{1}",
            "\u{7f}ü\u{2028}",
        ] {
            let mut out = Vec::new();
            word(&mut out, b"", Some(text)).expect("memory");
            let read: String = serde_json::from_slice(&out).expect("a string in JSON");
            assert_eq!(read, text);
        }
        for value in [0, 1, 9, 10, 99, 100, 1_234_567, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            number(&mut out, b"", Some(value));
            assert_eq!(out, value.to_string().into_bytes());
        }
        for (micros, text) in [
            (0, "0.000"),
            (7, "0.007"),
            (1000, "1.000"),
            (12_345, "12.345"),
        ] {
            let mut out = Vec::new();
            milliseconds(&mut out, b"", Some(Duration::from_micros(micros)));
            assert_eq!(out, text.as_bytes());
        }
    }
}
