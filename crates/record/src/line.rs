//! The one reader of a line of the log, in any spelling of JSON.

use memchr::memmem;
use serde::Deserialize;

use crate::call::CallLine;
use crate::gate::GateLine;
use crate::kind::{Whole, Word};

/// The content of a line.
#[derive(Debug)]
pub enum LogLine<'a> {
    /// The access line of a call.
    Access(Box<CallLine<'a>>),
    /// The line of a call for a replay.
    Replay(Box<CallLine<'a>>),
    /// An event of the gate.
    Gate(Box<GateLine<'a>>),
    /// Lines of this stream were lost, because the log was read too slowly or could not be written.
    Lost(LogStream, u64),
    /// Text that is not JSON.
    Text,
    /// Something else.
    Other,
    /// The line cannot be read, for this reason.
    Broken(&'static str),
}

/// The lines of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// Access lines.
    Access,
    /// Lines for a replay.
    Replay,
}

/// The newest version of the fields. Lines without one are of version 0: a call has its steps in its access line.
pub const SCHEMA: u64 = 1;

/// A field that only lines of calls and of the gate have.
const ONLY_OWN: &[u8] = b"started_us";
const UNKNOWN: &str = "a newer version of Tidegate wrote it; use the tidegate-lab of that version";
const CUT: &str = "it is cut or damaged";
const WRONG: &str = "a field is missing or has the wrong type";

/// The fields that tell lines apart.
#[derive(Deserialize)]
struct Kinds<'a> {
    #[serde(borrow, default)]
    target: Option<Word<'a>>,
    #[serde(borrow, default)]
    message: Option<Word<'a>>,
    #[serde(default)]
    lines: Option<Whole>,
}

/// Parses a line without its end. A log collector may put text before the first brace, such as a time and the
/// name of a container.
#[must_use]
pub fn read(line: &[u8]) -> LogLine<'_> {
    let Some(start) = memchr::memchr(b'{', line) else {
        return match line.iter().all(u8::is_ascii_whitespace) {
            true => LogLine::Other,
            false => LogLine::Text,
        };
    };
    // Checked once, so that no string in it is.
    let Ok(text) = str::from_utf8(&line[start..]) else {
        return LogLine::Broken(CUT);
    };
    let object = text.as_bytes();
    // A sidecar writes this so, near the beginning.
    if memmem::find(&object[..object.len().min(128)], br#""target":"access""#).is_some() {
        return call(text);
    }
    let kinds: Kinds<'_> = match serde_json::from_str(text) {
        Ok(kinds) => kinds,
        Err(error) if error.is_data() => return LogLine::Other,
        // Text may have a brace.
        Err(_) if start > 0 && memmem::find(object, b"\"target\"").is_none() => {
            return LogLine::Text;
        }
        Err(_) => return LogLine::Broken(CUT),
    };
    match kinds.target.as_ref().map(|target| &*target.0) {
        Some("access" | "replay") => return call(text),
        Some("gate") => return gate(text),
        Some("shadow") => return LogLine::Other,
        _ => {}
    }
    let message = kinds.message.as_ref().map_or("", |message| &message.0);
    let stream = match () {
        () if message.starts_with("access lines lost") => LogStream::Access,
        () if message.starts_with("replay lines lost") => LogStream::Replay,
        () if memmem::find(object, ONLY_OWN).is_some() => {
            return LogLine::Broken(
                "it contains a line of the log inside another object, or without its target",
            );
        }
        () => return LogLine::Other,
    };
    match kinds.lines {
        Some(Whole(lines)) => LogLine::Lost(stream, lines),
        None => LogLine::Broken("the number of lost lines is missing"),
    }
}

fn call(object: &str) -> LogLine<'_> {
    let call: Box<CallLine<'_>> = match serde_json::from_str(object) {
        Ok(call) => call,
        Err(error) => return broken(&error),
    };
    match call.target.as_deref() {
        _ if call.schema.is_some_and(|schema| schema > SCHEMA) => LogLine::Broken(UNKNOWN),
        Some("access") => LogLine::Access(call),
        Some("replay") => LogLine::Replay(call),
        _ => LogLine::Other,
    }
}

fn gate(object: &str) -> LogLine<'_> {
    match serde_json::from_str::<Box<GateLine<'_>>>(object) {
        Ok(gate) if gate.schema.is_some_and(|schema| schema > SCHEMA) => LogLine::Broken(UNKNOWN),
        Ok(gate) => LogLine::Gate(gate),
        Err(error) => broken(&error),
    }
}

fn broken<'a>(error: &serde_json::Error) -> LogLine<'a> {
    LogLine::Broken(if error.is_data() { WRONG } else { CUT })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use tidegate_limits::scheduler::Outcome;

    use super::*;
    use crate::kind::Address;
    use crate::step::{GateStep, StepKind, read_steps};
    use crate::{CallRecord, GateEvent, GateRecord};

    fn record<'a>(steps: &'a [GateStep<std::sync::Arc<str>>]) -> CallRecord<'a> {
        CallRecord {
            id: Some(255),
            listener: Some("no\"va"),
            peer: Some(Address::Tcp(([127, 0, 0, 1], 80).into())),
            client: Some([10, 0, 0, 1].into()),
            function: Some("guest_list"),
            class: Some("user"),
            caller: Some(7),
            backend_ms: Some(Duration::from_micros(50_107)),
            sent_us: Some(7),
            started_us: Some(1000),
            limited: Some(true),
            overallRC: Some(-4),
            arrived_ns: Some(1_500_000),
            outcome: Some("served"),
            steps: Some(steps),
            ..CallRecord::default()
        }
    }

    /// A line in another spelling: other order, white space, escapes, numbers with an exponent.
    fn spelt(line: &str) -> String {
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(line).expect("an object");
        let fields = fields.into_iter().map(|(name, value)| {
            let name: String = name
                .chars()
                .map(|c| format!("\\u{:04x}", u32::from(c)))
                .collect();
            let value = match &value {
                serde_json::Value::Number(number) => format!("{number}e0"),
                serde_json::Value::String(text) => {
                    let units = text.encode_utf16();
                    let text: String = units.map(|it| format!("\\u{it:04x}")).collect();
                    format!("\"{text}\"")
                }
                other => other.to_string().replace(',', " ,\t"),
            };
            format!("\"{name}\" : {value}")
        });
        let fields: Vec<String> = fields.collect();
        format!("{{ {} }}", fields.join(" ,\n "))
    }

    #[test]
    fn a_call_is_read_back_in_any_spelling() {
        let steps = [
            GateStep {
                at: 5,
                what: StepKind::Ended(Outcome::Served, None),
            },
            GateStep {
                at: 3,
                what: StepKind::Asked("user".into()),
            },
        ];
        let (mut access, mut replay) = (Vec::new(), Vec::new());
        let at = UNIX_EPOCH + Duration::from_secs(1);
        record(&steps).write_access(&mut access, at);
        record(&steps).write_replay(&mut replay, at);
        for (line, is_replay) in [(access, false), (replay, true)] {
            let line = String::from_utf8(line).expect("text");
            let line = line.strip_suffix('\n').expect("a line ends");
            let spelt = spelt(line);
            for text in [line, &spelt, &format!("sidecar | {line}")] {
                let call = match read(text.as_bytes()) {
                    LogLine::Access(call) if !is_replay => call,
                    LogLine::Replay(call) if is_replay => call,
                    other => panic!("{text}: {other:?}"),
                };
                assert_eq!(call.schema, Some(SCHEMA));
                assert_eq!((call.id, call.started_us), (Some(255), Some(1000)));
                assert_eq!(call.listener.as_deref(), Some("no\"va"));
                assert_eq!(call.client.as_deref(), Some("10.0.0.1"));
                assert_eq!(call.caller.as_deref(), Some("c7"));
                assert_eq!(call.arrived_ns, Some(1_500_000));
                assert_eq!(call.limited, Some(true));
                let steps = call.steps.and_then(read_steps);
                if !is_replay {
                    assert_eq!(call.backend_ms, Some(50_107));
                    assert_eq!(call.outcome.as_deref(), Some("served"));
                    assert!(steps.is_none());
                    continue;
                }
                let steps = steps.expect("there are some");
                assert_eq!(steps[0].what, StepKind::Asked("user".into()));
                assert_eq!(steps[1].what, StepKind::Ended(Outcome::Served, None));
            }
        }
    }

    #[test]
    fn every_event_is_read_back_in_any_spelling() {
        for event in GateEvent::ALL {
            let mut line = Vec::new();
            let gate = GateRecord {
                started_us: Some(1000),
                at_ns: Some(7),
                seed: Some(9),
                again: *event == GateEvent::Supply,
                ..GateRecord::default()
            };
            gate.write(&mut line, *event, UNIX_EPOCH);
            let line = String::from_utf8(line).expect("text");
            for text in [line.trim_end(), &spelt(&line)] {
                match read(text.as_bytes()) {
                    LogLine::Gate(gate) => {
                        assert_eq!(gate.event.as_deref(), Some(event.word()));
                        assert_eq!((gate.started_us, gate.at_ns), (Some(1000), Some(7)));
                        assert_eq!(gate.seed, event.has_config().then_some(9));
                        assert_eq!(gate.again, (*event == GateEvent::Supply).then_some(true));
                    }
                    LogLine::Other => assert_eq!(*event, GateEvent::Would),
                    other => panic!("{text}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn the_version_in_a_line_is_the_newest() {
        let mut line = Vec::new();
        CallRecord::default().write_access(&mut line, UNIX_EPOCH);
        let written: serde_json::Value = serde_json::from_slice(&line).expect("an object");
        assert_eq!(written["schema"], SCHEMA);
        let newer = String::from_utf8(line)
            .expect("text")
            .replace("\"schema\":1", "\"schema\":2");
        assert!(matches!(read(newer.as_bytes()), LogLine::Broken(UNKNOWN)));
    }

    #[test]
    fn a_truncated_line_is_never_read_as_a_call() {
        let mut line = Vec::new();
        record(&[]).write_access(&mut line, UNIX_EPOCH);
        let line = line.strip_suffix(b"\n").expect("a line ends");
        for end in 1..line.len() {
            let read = read(&line[..end]);
            assert!(matches!(read, LogLine::Broken(_)), "{end}: {read:?}");
        }
    }

    #[test]
    fn lines_of_other_kinds_are_recognized() {
        let lost = r#"{"timestamp":"x","level":"WARN","message":"access lines lost, stderr is read too slowly","lines":41,"target":"tidegate::telemetry::access"}"#;
        assert!(matches!(
            read(lost.as_bytes()),
            LogLine::Lost(LogStream::Access, 41)
        ));
        let lost = r#"{ "message" : "replay lines lost, the disk is full", "lines" : 4.1e1 }"#;
        assert!(matches!(
            read(lost.as_bytes()),
            LogLine::Lost(LogStream::Replay, 41)
        ));
        let lost = lost.replace("lines\" : 4.1e1", "rows\" : 1");
        assert!(matches!(read(lost.as_bytes()), LogLine::Broken(_)));
        let other = br#"{"timestamp":"x","level":"INFO","target":"tidegate","message":"ready"}"#;
        assert!(matches!(read(other), LogLine::Other));
        assert!(matches!(read(b""), LogLine::Other));
        assert!(matches!(read(b"thread 'main' panicked"), LogLine::Text));
        assert!(matches!(read(b"stack of Some { value }"), LogLine::Text));
        let within = br#"{"inner": "{\"target\":\"access\",\"started_us\":1}"}"#;
        assert!(matches!(read(within), LogLine::Broken(_)));
        let without = br#"{"id":"00000000000000ff","started_us":1}"#;
        assert!(matches!(read(without), LogLine::Broken(_)));
    }
}
