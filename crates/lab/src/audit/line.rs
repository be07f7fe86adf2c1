//! The fields of a line that the audit needs.

use tidegate_record::kind::QuotaDraw;
use tidegate_record::{CallLine, LogLine, LogStream};

use super::limit::micros;
use crate::logs::At;

/// Later times, beyond the year 100,000 in microseconds, are damage. Sums of times below it do
/// not overflow.
const TIME_MAX: u64 = 3_093_527_980_800_000_000;
/// Most quotas of one call. A sidecar has fewer.
const DRAWS_MAX: usize = 64;

/// The content of a line.
#[derive(Debug, PartialEq)]
pub(super) enum AuditLine {
    /// A call has ended.
    Call(Box<LoggedCall>),
    /// Number of access lines that were lost, because the log was read too slowly.
    Lost(u64),
    /// Something else.
    Other,
    /// The line cannot be read, for this reason.
    Broken(&'static str),
}

/// A call, from its access line.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct LoggedCall {
    /// The call's own id.
    pub(super) id: u64,
    /// Where the clock of its process has its zero, which identifies the process.   µs since the epoch
    pub(super) started: u64,
    /// When it came in; if that is missing, when it left.   µs since the epoch
    pub(super) came: u64,
    /// The request to the backend, if the call was sent.
    pub(super) sent: Option<Sent>,
}

/// A call that was sent.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Sent {
    /// The time, from the zero of the clock of its process.   µs
    pub(super) at: u64,
    /// How long the backend took.   µs
    pub(super) backend: u64,
    pub(super) function: Box<str>,
    pub(super) class: Box<str>,
    /// The server to which it went, if its backend has several.
    pub(super) server: Option<Box<str>>,
    /// The rate limit that was charged.
    pub(super) rate_limit: Option<Box<str>>,
    /// Cost of the call.   millionths of a token
    pub(super) tokens: u64,
    /// Whether it met limits.
    pub(super) limited: bool,
    /// Draws of the call from quotas.
    pub(super) quota: Box<[Draw]>,
    /// Whether its answer said that it had cost more than it had drawn.
    pub(super) is_beyond: bool,
}

/// A draw of one call from one key of a quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Draw {
    pub(super) limit: Box<str>,
    pub(super) key: Box<str>,
    /// `None` if the sidecar did not know the window.
    pub(super) window: Option<u64>,
    /// Millionths of a token, as the cost.
    pub(super) total: u64,
    /// The draw, or what the call has cost if that is less.
    pub(super) cost: u64,
}

/// Takes what the audit needs of a line.
pub(super) fn read(at: &At<'_>) -> AuditLine {
    match at.read() {
        LogLine::Access(call) => match LoggedCall::of(&call) {
            Ok(call) => AuditLine::Call(Box::new(call)),
            Err(why) => AuditLine::Broken(why),
        },
        LogLine::Lost(LogStream::Access, lines) => AuditLine::Lost(lines),
        LogLine::Lost(LogStream::Replay, _) | LogLine::Replay(_) | LogLine::Gate(_) => {
            AuditLine::Other
        }
        LogLine::Other => AuditLine::Other,
        LogLine::Text => AuditLine::Broken("it is not JSON"),
        LogLine::Broken(why) => AuditLine::Broken(why),
    }
}

impl LoggedCall {
    fn of(line: &CallLine<'_>) -> Result<Self, &'static str> {
        let id = line.id.ok_or("it has no id")?;
        let started = line
            .started_us
            .ok_or("it has no started_us: this version of the sidecar cannot be audited")?;
        let sent = line.sent_us.map(|at| Sent::of(line, started, at));
        let came = line.arrived_ns.map(|at| at / 1000).or(line.sent_us);
        let came = started.saturating_add(came.unwrap_or_default());
        Ok(Self {
            id,
            started,
            came: came.min(TIME_MAX),
            sent: sent.transpose()?,
        })
    }
}

impl Sent {
    fn of(line: &CallLine<'_>, started: u64, at: u64) -> Result<Self, &'static str> {
        let backend = line
            .backend_ms
            .ok_or("it was sent, and has no valid backend_ms")?;
        let end = started
            .checked_add(at)
            .and_then(|at| at.checked_add(backend));
        if end.is_none_or(|end| end > TIME_MAX) {
            return Err("a time is out of range");
        }
        let tokens = match line.tokens {
            None => 0,
            Some(tokens) => micros(tokens).ok_or("its tokens are out of range")?,
        };
        let name = |name: Option<&str>| name.map(Box::from).ok_or("a field is missing");
        Ok(Self {
            at,
            backend,
            function: name(line.function.as_deref())?,
            class: name(line.class.as_deref())?,
            server: line.server.as_deref().map(Box::from),
            rate_limit: line.rate_limit.as_deref().map(Box::from),
            tokens,
            limited: line.limited.unwrap_or(true),
            quota: draws(line.quota.as_deref().unwrap_or_default())?,
            is_beyond: line.quota.iter().flatten().any(QuotaDraw::is_beyond),
        })
    }
}

fn draws(written: &[QuotaDraw<'_>]) -> Result<Box<[Draw]>, &'static str> {
    if written.len() > DRAWS_MAX {
        return Err("it drew from too many quotas");
    }
    let draws = written.iter().map(|draw| {
        let settled = draw.settled.unwrap_or(draw.cost);
        let (total, cost) = (micros(draw.total), micros(draw.cost.min(settled)));
        Ok(Draw {
            limit: (&*draw.limit).into(),
            key: (&*draw.key).into(),
            window: draw.window,
            total: total.ok_or("the total of a quota is out of range")?,
            cost: cost.ok_or("the cost of a draw is out of range")?,
        })
    });
    draws.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"timestamp":"2026-11-22T01:00:00.000000Z","level":"INFO","target":"access","id":"00000000000000ff","function":"guest_list","class":"user","server":"a","rate_limit":"nova","tokens":2.5,"backend_ms":50.107,"sent_us":7,"started_us":1000,"limited":true,"quota":[{"limit":"per_user","key":"alice","window":3,"total":100,"cost":2.5}],"more":{"a":[1]}}"#;

    fn of(text: &str) -> AuditLine {
        read(&At::plain(text.as_bytes()))
    }

    #[test]
    fn the_needed_fields_of_a_line_are_read_and_others_ignored() {
        let call = LoggedCall {
            id: 255,
            started: 1000,
            came: 1007,
            sent: Some(Sent {
                at: 7,
                backend: 50_107,
                function: "guest_list".into(),
                class: "user".into(),
                server: Some("a".into()),
                rate_limit: Some("nova".into()),
                tokens: 2_500_000,
                limited: true,
                quota: Box::new([Draw {
                    limit: "per_user".into(),
                    key: "alice".into(),
                    window: Some(3),
                    total: 100_000_000,
                    cost: 2_500_000,
                }]),
                is_beyond: false,
            }),
        };
        assert_eq!(of(CALL), AuditLine::Call(Box::new(call.clone())));
        let collected = format!("2026-11-22T01:00:00Z stderr F {CALL}\r");
        assert_eq!(of(&collected), AuditLine::Call(Box::new(call)));
    }

    #[test]
    fn white_space_in_a_line_does_not_matter() {
        let spaced = CALL.replace("\":", "\": ").replace(",\"", " ,\n\t\"");
        assert_eq!(of(&spaced), of(CALL));
        let lost =
            r#"{ "message" : "access lines lost, stderr is read too slowly", "lines" : 41 }"#;
        assert_eq!(of(lost), AuditLine::Lost(41));
        // Inside a string of another program's object, or without its target, it cannot be
        // judged.
        let within = format!(r#"{{"log": {}}}"#, serde_json::Value::from(CALL));
        assert!(matches!(of(&within), AuditLine::Broken(_)));
        let without = CALL.replace(r#""target":"access","#, "");
        assert!(matches!(of(&without), AuditLine::Broken(_)));
    }

    #[test]
    fn a_draw_may_have_an_unknown_window() {
        let text = CALL.replace(r#""window":3"#, r#""window":null"#);
        let AuditLine::Call(call) = of(&text) else {
            panic!("it is a call")
        };
        let sent = call.sent.expect("it left");
        assert_eq!(sent.quota[0].window, None);
    }

    #[test]
    fn a_call_that_never_left_is_read_as_unsent() {
        let text = CALL.replace(r#""sent_us":7"#, r#""sent_us":null"#);
        let text = text.replace("50.107", "null");
        let AuditLine::Call(call) = of(&text) else {
            panic!("it is a call")
        };
        assert_eq!(call.sent, None);
    }

    #[test]
    fn a_truncated_line_is_never_read_as_a_call() {
        for end in 1..CALL.len() {
            let line = of(&CALL[..end]);
            assert!(matches!(line, AuditLine::Broken(_)), "{end}: {line:?}");
        }
    }

    #[test]
    fn impossible_values_are_broken_and_other_lines_are_not() {
        let broken = |from: &str, to: &str| {
            let text = CALL.replace(from, to);
            assert_ne!(text, CALL);
            let line = of(&text);
            assert!(matches!(line, AuditLine::Broken(_)), "{text}: {line:?}");
        };
        broken(r#""started_us":1000,"#, "");
        broken("50.107", "null");
        broken("50.107", "-1");
        broken(r#""sent_us":7"#, r#""sent_us":18446744073709551615"#);
        broken(r#""sent_us":7"#, r#""sent_us":"7""#);
        broken("00000000000000ff", "ff");
        broken("00000000000000ff", "00000000000000fg");
        broken(r#""tokens":2.5"#, r#""tokens":-2.5"#);
        broken(r#""cost":2.5"#, r#""cost":1e300"#);
        assert!(matches!(of("thread 'main' panicked"), AuditLine::Broken(_)));
        assert_eq!(of(""), AuditLine::Other);
        let other = r#"{"timestamp":"x","level":"INFO","target":"tidegate","message":"ready"}"#;
        assert_eq!(of(other), AuditLine::Other);
        let gate = r#"{"level":"INFO","target":"gate","event":"supply","started_us":1,"at_ns":2}"#;
        assert_eq!(of(gate), AuditLine::Other);
        let lost = r#"{"timestamp":"x","level":"WARN","message":"access lines lost, stderr is read too slowly","lines":41,"target":"tidegate::telemetry::access"}"#;
        assert_eq!(of(lost), AuditLine::Lost(41));
    }

    #[test]
    fn a_settled_draw_counts_with_what_the_call_used_of_its_reservation() {
        let draw = |settled: &str| {
            let line = CALL.replace(
                "\"cost\":2.5}",
                &format!("\"cost\":2.5,\"settled\":{settled}}}"),
            );
            match of(&line) {
                AuditLine::Call(call) => {
                    let sent = call.sent.expect("it was sent");
                    (sent.quota[0].cost, sent.is_beyond)
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(draw("1"), (1_000_000, false));
        assert_eq!(draw("2.5"), (2_500_000, false));
        assert_eq!(draw("40"), (2_500_000, true));
    }
}
