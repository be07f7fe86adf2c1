//! One line for each call that has ended.
//!
//! A line is built in memory and appended to the buffer of the log's one writer ([`LogWriter`]).
//! So the thread that moves calls never waits for the reader of the log.
//!
//! A line contains no arguments, because they carry passwords. The userid and the user are the
//! only words from a client. The userid is written only if it is a valid one. The user has no
//! control character and a bounded length.

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_callers::CallerId;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::scheduler::QuotaSpent;

use super::writer::LogWriter;
pub use super::writer::Written;

/// The maximum length of a userid.
const USERID_MAX: usize = 8;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// For people, in columns.
    Text {
        /// Whether the terminal has colours.
        colour: bool,
    },
    /// For machines, one object a line.
    Json,
}

/// The fields of a line. In JSON every field is always present, `null` if it does not apply.
#[derive(Clone, Debug)]
pub struct AccessLine<'a> {
    /// The id of the call; see [`AccessLog::next_id`].
    pub id: u64,
    /// When the call ended.
    pub at: SystemTime,
    /// Name of the listener.
    pub listener: &'a str,
    /// The peer; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The client's address: the peer's own, or the one that a trusted proxy names.
    pub client: Option<IpAddr>,
    /// The user, if the listener knows one.
    pub user: Option<&'a str>,
    /// `socket`, `http` or `tcp`.
    pub dialect: &'a str,
    /// Its function.
    pub function: &'a str,
    /// Its final class.
    pub class: &'a str,
    /// The userid that it is about.
    pub userid: Option<&'a str>,
    /// How it ended.
    pub verdict: &'a str,
    /// Why, if it was refused or failed.
    pub reason: Option<&'a str>,
    /// The limit that held it longest or refused it.
    pub limit: Option<&'a str>,
    /// The most specific caller that it matches; `None` if it was not a request.
    pub caller: Option<CallerId>,
    /// The rate limit that was charged.
    pub rate_limit: Option<&'a str>,
    /// Its cost.
    pub tokens: Option<TokenCount>,
    /// From arrival to a worker, or to the end without one.
    pub queued: Duration,
    /// From the last byte sent until the backend was done with it.
    pub backend: Option<Duration>,
    /// From arrival to the end.
    pub total: Duration,
    /// Bytes of the request.
    pub bytes_in: u64,
    /// Bytes of the reply.
    pub bytes_out: u64,
    /// The HTTP status of the reply.
    pub status: Option<u16>,
    /// The code of the reply.
    pub overall_rc: Option<i64>,
    /// When the call's bytes left, since the start of the process.
    pub sent: Option<Duration>,
    /// When that was.
    pub started: &'a Started,
    /// Whether it met limits and took a worker.
    pub limited: bool,
    /// What it drew from quotas; empty if it met none.
    pub quota: &'a [QuotaSpent],
    /// Whether it got the answer of another call.
    pub shared: bool,
    /// Whether it was handed over, and ran without its client.
    pub handed_over: bool,
    /// The id of the call whose second send this is.
    pub retry_of: Option<u64>,
}

/// The start of the process, in microseconds since the epoch. All times in its lines count from
/// it on one monotonic clock. So lines with the same start can be compared to the microsecond,
/// and others only as well as the clocks of their hosts agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started(Box<str>);

impl Started {
    /// This moment.
    #[must_use]
    pub fn new(at: SystemTime) -> Self {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(micros(since_epoch).to_string().into())
    }
}

/// The log of calls.
#[derive(Debug)]
pub struct AccessLog {
    on: AtomicBool,
    look: Look,
    next_id: AtomicU64,
    writer: LogWriter,
}

impl AccessLog {
    /// Starts a thread that writes to `out`. The log is on at first.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(out: impl Write + Send + 'static, look: Look) -> io::Result<Self> {
        Ok(Self::to(LogWriter::start(out)?, look))
    }

    /// Writes its lines with a shared writer. The log is on at first.
    #[must_use]
    pub fn to(writer: LogWriter, look: Look) -> Self {
        Self {
            on: AtomicBool::new(true),
            look,
            // Two processes with one log do not share ids.
            next_id: AtomicU64::new(rand::random()),
            writer,
        }
    }

    /// Switches the log of calls on or off.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether lines are written.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A new id for a call, unique in this process.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes one line.
    pub fn write(&self, line: &AccessLine<'_>) -> Written {
        thread_local! {
            static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(512));
        }
        if !self.is_on() {
            return Written::Off;
        }
        LINE.with_borrow_mut(|buffer| {
            buffer.clear();
            match self.look {
                Look::Json => json(buffer, line),
                Look::Text { colour } => text(buffer, line, colour),
            }
            .expect("writing to memory does not fail");
            self.writer.access_line(buffer)
        })
    }
}

/// Builds a line part by part. A derived `Serialize` took two and a half times the instructions,
/// because it searches keys for escapes and formats numbers.
fn json(out: &mut Vec<u8>, line: &AccessLine<'_>) -> io::Result<()> {
    // Every line of the log begins with the first three.
    put(out, br#"{"timestamp":""#, &utc(line.at).0);
    put(
        out,
        br#"","level":"INFO","target":"access","id":""#,
        &hexadecimal(line.id).0,
    );
    word(out, br#"","listener":"#, Some(line.listener))?;
    match line.peer {
        Some(peer) => write!(out, r#","peer":"{peer}""#)?,
        None => out.extend_from_slice(br#","peer":"unix""#),
    }
    match line.client {
        Some(client) => write!(out, r#","client":"{client}""#)?,
        None => out.extend_from_slice(br#","client":null"#),
    }
    word(out, br#","user":"#, line.user)?;
    word(out, br#","dialect":"#, Some(line.dialect))?;
    word(out, br#","function":"#, Some(line.function))?;
    word(out, br#","class":"#, Some(line.class))?;
    word(out, br#","userid":"#, userid(line))?;
    word(out, br#","verdict":"#, Some(line.verdict))?;
    word(out, br#","reason":"#, line.reason)?;
    word(out, br#","limit":"#, line.limit)?;
    match line.caller {
        Some(caller) => write!(out, r#","caller":"{caller}""#)?,
        None => out.extend_from_slice(br#","caller":null"#),
    }
    word(out, br#","rate_limit":"#, line.rate_limit)?;
    figures(out, line)
}

/// The second half of a line: what the call cost, took and came to.
fn figures(out: &mut Vec<u8>, line: &AccessLine<'_>) -> io::Result<()> {
    tokens(out, br#","tokens":"#, line.tokens)?;
    milliseconds(out, br#","queue_ms":"#, Some(line.queued));
    milliseconds(out, br#","backend_ms":"#, line.backend);
    milliseconds(out, br#","total_ms":"#, Some(line.total));
    number(out, br#","bytes_in":"#, Some(line.bytes_in));
    number(out, br#","bytes_out":"#, Some(line.bytes_out));
    number(out, br#","status":"#, line.status.map(u64::from));
    let key: &[u8] = match line.overall_rc.is_some_and(i64::is_negative) {
        true => br#","overallRC":-"#,
        false => br#","overallRC":"#,
    };
    number(out, key, line.overall_rc.map(i64::unsigned_abs));
    number(out, br#","sent_us":"#, line.sent.map(micros));
    put(out, br#","started_us":"#, line.started.0.as_bytes());
    flag(out, br#","limited":"#, line.limited);
    quota(out, line.quota)?;
    flag(out, br#","shared":"#, line.shared);
    flag(out, br#","handed_over":"#, line.handed_over);
    match line.retry_of {
        None => out.extend_from_slice(b",\"retry_of\":null}\n"),
        Some(first) => {
            put(out, br#","retry_of":""#, &hexadecimal(first).0);
            out.extend_from_slice(b"\"}\n");
        }
    }
    Ok(())
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

/// What was drawn from quotas, or `null`.
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

fn text(out: &mut Vec<u8>, line: &AccessLine<'_>, colour: bool) -> io::Result<()> {
    let (paint, plain) = match (colour, line.verdict) {
        (false, _) => ("", ""),
        (true, "passed") => ("\x1b[32m", "\x1b[0m"),
        (true, "delayed") => ("\x1b[36m", "\x1b[0m"),
        (true, "aborted") => ("\x1b[33m", "\x1b[0m"),
        (true, _) => ("\x1b[31m", "\x1b[0m"),
    };
    let backend = line
        .backend
        .map_or_else(|| "-".into(), |took| format!("{:.1}", millis(took)));
    write!(
        out,
        "{} {paint}{:7}{plain} {:24} {:8} queue {:>8.1} backend {:>8} total {:>8.1} ms ",
        TimeOfDay(line.at),
        line.verdict,
        line.function,
        userid(line).unwrap_or("-"),
        millis(line.queued),
        backend,
        millis(line.total),
    )?;
    if_any(out, " ", line.status)?;
    if_any(out, " rc=", line.overall_rc)?;
    if_any(out, " ", line.reason)?;
    if_any(out, " limit=", line.limit)?;
    if line.shared {
        out.extend_from_slice(b" shared");
    }
    if line.handed_over {
        out.extend_from_slice(b" handed_over");
    }
    if let Some(first) = line.retry_of {
        out.extend_from_slice(b" retry_of=");
        out.extend_from_slice(&hexadecimal(first).0);
    }
    if_any(out, " caller=", line.caller)?;
    write!(
        out,
        " {}>{} B {}/{} {} ",
        line.bytes_in, line.bytes_out, line.listener, line.dialect, line.class
    )?;
    if let Some(user) = line.user {
        write!(out, "{user}@")?;
    }
    match (line.peer, line.client) {
        // The port is useful only if it is the client's own.
        (Some(peer), client) if client.is_none_or(|it| it == peer.ip()) => write!(out, "{peer}")?,
        (_, Some(client)) => write!(out, "{client}")?,
        (_, None) => out.extend_from_slice(b"unix"),
    }
    writeln!(out, " {}", hexadecimal(line.id).as_str())
}

fn if_any(out: &mut Vec<u8>, key: &str, value: Option<impl Display>) -> io::Result<()> {
    value.map_or(Ok(()), |value| write!(out, "{key}{value}"))
}

/// The userid, if the word is a valid one: nothing else from a client gets into a line.
fn userid<'a>(line: &AccessLine<'a>) -> Option<&'a str> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"@#$_-:+".contains(&c);
    line.userid
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

/// Text of a known length, filled digit by digit.
struct Ascii<const N: usize>([u8; N]);

impl<const N: usize> Ascii<N> {
    fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("filled with ASCII only")
    }

    /// Writes the last `digits` decimal digits of `value` at `at`.
    fn decimal(&mut self, at: usize, digits: usize, mut value: u64) {
        for place in self.0[at..at + digits].iter_mut().rev() {
            *place = digit(value % 10);
            value /= 10;
        }
    }
}

fn digit(value: u64) -> u8 {
    b"0123456789abcdef"[usize::try_from(value).expect("one digit")]
}

fn hexadecimal(value: u64) -> Ascii<16> {
    Ascii(std::array::from_fn(|place| {
        digit(value >> (60 - 4 * place) & 0xf)
    }))
}

/// A moment in UTC, RFC 3339, to the microsecond, as the access lines have it.
#[derive(Clone, Copy, Debug)]
pub struct Utc(pub SystemTime);

impl Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(utc(self.0).as_str())
    }
}

/// A moment in UTC, RFC 3339, to the microsecond.
fn utc(at: SystemTime) -> Ascii<27> {
    let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = time_of_day(seconds);
    let mut text = Ascii(*b"0000-00-00T00:00:00.000000Z");
    text.decimal(0, 4, year);
    text.decimal(5, 2, month);
    text.decimal(8, 2, day);
    text.decimal(11, 2, hour);
    text.decimal(14, 2, minute);
    text.decimal(17, 2, second);
    text.decimal(20, 6, since_epoch.subsec_micros().into());
    text
}

/// The time of a day in UTC, to the millisecond: `22:13:20.123Z`. Short, for a terminal.
pub(super) struct TimeOfDay(pub(super) SystemTime);

impl Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_epoch = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (hour, minute, second) = time_of_day(since_epoch.as_secs());
        let mut text = Ascii(*b"00:00:00.000Z");
        text.decimal(0, 2, hour);
        text.decimal(3, 2, minute);
        text.decimal(6, 2, second);
        text.decimal(9, 3, since_epoch.subsec_millis().into());
        f.write_str(text.as_str())
    }
}

fn time_of_day(seconds: u64) -> (u64, u64, u64) {
    (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// The civil date of a day since 1970-01-01. Years are counted from a first of March, so
/// that the leap day is the last of its year, in eras of 400 years, which are all alike
/// (Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
fn date(days_since_epoch: u64) -> (u64, u64, u64) {
    let days = days_since_epoch + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_the_date_that_the_calendar_says() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(at).as_str(), date);
        }
    }

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
