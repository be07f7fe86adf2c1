//! Parses one line of a log.

use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

use super::limit::micros;

/// Later times, beyond the year 100,000 in microseconds, are damage. Sums of times below it do
/// not overflow.
const TIME_MAX: u64 = 3_093_527_980_800_000_000;
/// Most quotas of one call. A sidecar has fewer.
const DRAWS_MAX: usize = 64;

/// The content of a line.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// A call has ended.
    Call(Box<Call>),
    /// This many access lines were lost, because the log was read too slowly.
    Lost(u64),
    /// Something else.
    Other,
    /// It cannot be read, for this reason.
    Broken(&'static str),
}

/// One call, from its access line.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Call {
    /// Its own id.
    pub(super) id: u64,
    /// When its process started, which identifies the process.   µs since the epoch
    pub(super) started: u64,
    /// What was sent to the backend, if it was.
    pub(super) sent: Option<Sent>,
}

/// A call that was sent.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Sent {
    /// The time, since the start of its process.   µs
    pub(super) at: u64,
    /// How long the backend took.   µs
    pub(super) backend: u64,
    pub(super) function: Box<str>,
    pub(super) class: Box<str>,
    /// The rate limit that was charged.
    pub(super) rate_limit: Option<Box<str>>,
    /// Its cost.   millionths of a token
    pub(super) tokens: u64,
    /// Whether it met limits.
    pub(super) limited: bool,
    /// Its draws from quotas.
    pub(super) quota: Box<[Draw]>,
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
    pub(super) cost: u64,
}

/// The fields as written. Strings are owned, because one with an escape cannot be borrowed.
#[derive(Deserialize)]
struct Written {
    id: String,
    started_us: Option<u64>,
    sent_us: Option<u64>,
    backend_ms: Option<f64>,
    function: Box<str>,
    class: Box<str>,
    rate_limit: Option<Box<str>>,
    tokens: Option<f64>,
    #[serde(default = "yes")]
    limited: bool,
    #[serde(default)]
    quota: Option<Vec<WrittenDraw>>,
}

#[derive(Deserialize)]
struct WrittenDraw {
    limit: Box<str>,
    key: Box<str>,
    window: Option<u64>,
    total: f64,
    cost: f64,
}

/// A field that only access lines have.
const ONLY_ACCESS: &[u8] = b"started_us";

fn yes() -> bool {
    true
}

/// Parses a line without its end. A log collector may put text before the first brace, such as a
/// time and the name of the stream.
pub(super) fn read(line: &[u8]) -> Line {
    let Some(start) = memchr::memchr(b'{', line) else {
        return match line.iter().all(u8::is_ascii_whitespace) {
            true => Line::Other,
            false => Line::Broken("it is not JSON"),
        };
    };
    let object = &line[start..];
    // The form that a sidecar writes. Other programs may add white space.
    if memmem::find(object, br#""target":"access""#).is_some() {
        return access(object);
    }
    let Ok(fields) = serde_json::from_slice::<Value>(object) else {
        return Line::Broken("it is cut or damaged");
    };
    match fields["target"].as_str() {
        Some("access") => return access(object),
        // What the scheduler was given besides calls. It sends none.
        Some("gate") => return Line::Other,
        _ => {}
    }
    let message = fields["message"].as_str().unwrap_or_default();
    if message.starts_with("access lines lost") {
        return match fields["lines"].as_u64() {
            Some(lines) => Line::Lost(lines),
            None => Line::Broken("the number of lost lines is missing"),
        };
    }
    if memmem::find(object, ONLY_ACCESS).is_some() {
        return Line::Broken(
            "it contains an access line inside another object, or without its target",
        );
    }
    Line::Other
}

fn access(object: &[u8]) -> Line {
    match serde_json::from_slice::<Written>(object) {
        Ok(written) => call(written).map_or_else(Line::Broken, |it| Line::Call(Box::new(it))),
        Err(error) if error.is_data() => Line::Broken("a field is missing or has the wrong type"),
        Err(_) => Line::Broken("it is cut or damaged"),
    }
}

fn call(written: Written) -> Result<Call, &'static str> {
    let is_id = written.id.len() == 16;
    let id = u64::from_str_radix(&written.id, 16).ok().filter(|_| is_id);
    let id = id.ok_or("its id is not 16 hexadecimal digits")?;
    let started = written
        .started_us
        .ok_or("it has no started_us: this version of the sidecar cannot be audited")?;
    let sent = match written.sent_us {
        None => None,
        Some(at) => {
            let backend = written.backend_ms.and_then(microseconds);
            let backend = backend.ok_or("it was sent, and has no valid backend_ms")?;
            let end = started
                .checked_add(at)
                .and_then(|at| at.checked_add(backend));
            if end.is_none_or(|end| end > TIME_MAX) {
                return Err("a time is out of range");
            }
            let tokens = match written.tokens {
                None => 0,
                Some(tokens) => micros(tokens).ok_or("its tokens are out of range")?,
            };
            Some(Sent {
                at,
                backend,
                function: written.function,
                class: written.class,
                rate_limit: written.rate_limit,
                tokens,
                limited: written.limited,
                quota: draws(written.quota.unwrap_or_default())?,
            })
        }
    };
    Ok(Call { id, started, sent })
}

fn draws(written: Vec<WrittenDraw>) -> Result<Box<[Draw]>, &'static str> {
    if written.len() > DRAWS_MAX {
        return Err("it drew from too many quotas");
    }
    let draws = written.into_iter().map(|draw| {
        let (total, cost) = (micros(draw.total), micros(draw.cost));
        Ok(Draw {
            limit: draw.limit,
            key: draw.key,
            window: draw.window,
            total: total.ok_or("the total of a quota is out of range")?,
            cost: cost.ok_or("the cost of a draw is out of range")?,
        })
    });
    draws.collect()
}

/// Whole microseconds, from milliseconds with three decimal places.
fn microseconds(milliseconds: f64) -> Option<u64> {
    let micros = (milliseconds * 1e3).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies between 0 and 10^16"
    )]
    (0.0..=1e16).contains(&micros).then_some(micros as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"timestamp":"2026-11-22T01:00:00.000000Z","level":"INFO","target":"access","id":"00000000000000ff","function":"guest_list","class":"user","rate_limit":"nova","tokens":2.5,"backend_ms":50.107,"sent_us":7,"started_us":1000,"limited":true,"quota":[{"limit":"per_user","key":"alice","window":3,"total":100,"cost":2.5}],"more":{"a":[1]}}"#;

    fn of(text: &str) -> Line {
        read(text.as_bytes())
    }

    #[test]
    fn the_needed_fields_of_a_line_are_read_and_others_ignored() {
        let call = Call {
            id: 255,
            started: 1000,
            sent: Some(Sent {
                at: 7,
                backend: 50_107,
                function: "guest_list".into(),
                class: "user".into(),
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
            }),
        };
        assert_eq!(of(CALL), Line::Call(Box::new(call.clone())));
        let collected = format!("2026-11-22T01:00:00Z stderr F {CALL}\r");
        assert_eq!(of(&collected), Line::Call(Box::new(call)));
    }

    #[test]
    fn white_space_in_a_line_does_not_matter() {
        let spaced = CALL.replace("\":", "\": ").replace(",\"", " ,\n\t\"");
        assert_eq!(of(&spaced), of(CALL));
        let lost =
            r#"{ "message" : "access lines lost, stderr is read too slowly", "lines" : 41 }"#;
        assert_eq!(of(lost), Line::Lost(41));
        // Inside a string of another program's object, or without its target, it cannot be
        // judged.
        let within = format!(r#"{{"log": {}}}"#, serde_json::Value::from(CALL));
        assert!(matches!(of(&within), Line::Broken(_)));
        let without = CALL.replace(r#""target":"access","#, "");
        assert!(matches!(of(&without), Line::Broken(_)));
    }

    #[test]
    fn a_draw_may_have_an_unknown_window() {
        let text = CALL.replace(r#""window":3"#, r#""window":null"#);
        let Line::Call(call) = of(&text) else {
            panic!("it is a call")
        };
        let sent = call.sent.expect("it left");
        assert_eq!(sent.quota[0].window, None);
    }

    #[test]
    fn a_call_that_never_left_is_read_as_unsent() {
        let text = CALL.replace(r#""sent_us":7"#, r#""sent_us":null"#);
        let text = text.replace("50.107", "null");
        let Line::Call(call) = of(&text) else {
            panic!("it is a call")
        };
        assert_eq!(call.sent, None);
    }

    #[test]
    fn a_truncated_line_is_never_read_as_a_call() {
        for end in 1..CALL.len() {
            let line = of(&CALL[..end]);
            assert!(matches!(line, Line::Broken(_)), "{end}: {line:?}");
        }
    }

    #[test]
    fn impossible_values_are_broken_and_other_lines_are_not() {
        let broken = |from: &str, to: &str| {
            let text = CALL.replace(from, to);
            assert_ne!(text, CALL);
            let line = of(&text);
            assert!(matches!(line, Line::Broken(_)), "{text}: {line:?}");
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
        assert!(matches!(of("thread 'main' panicked"), Line::Broken(_)));
        assert_eq!(of(""), Line::Other);
        let other = r#"{"timestamp":"x","level":"INFO","target":"tidegate","message":"ready"}"#;
        assert_eq!(of(other), Line::Other);
        let gate = r#"{"level":"INFO","target":"gate","event":"supply","started_us":1,"at_ns":2}"#;
        assert_eq!(of(gate), Line::Other);
        let lost = r#"{"timestamp":"x","level":"WARN","message":"access lines lost, stderr is read too slowly","lines":41,"target":"tidegate::telemetry::access"}"#;
        assert_eq!(of(lost), Line::Lost(41));
    }
}
