//! The access line.

mod record;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::app::access::AccessLine;
use tidegate::call::claim::{Charged, ClaimDeadline, Counted};
use tidegate::call::steps::{GateStep, ReplayFacts, StepKind};
use tidegate::call::{Claim, Destination, Dialect, Facts, Origin, Reason, Verdict};
use tidegate::telemetry::access::{AccessLog, LineFormat, LineOutcome};
use tidegate::telemetry::calls::Durations;
use tidegate::telemetry::journal::Priority;
use tidegate::telemetry::writer::LogWriter;
use tidegate_callers::{CallerId, FunctionId, RateLimitId};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::quota::Payment;
use tidegate_limits::scheduler::{Delays, Outcome, QuotaSpent};
use tidegate_limits::{Timestamp, Tokens, Weight};

use crate::support::identity;

const TEXT: LineFormat = LineFormat::Text { colour: false };

/// Stands in for stderr.
#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Out {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("UTF-8")
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("no writer panics")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn peer() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 53_422).into()
}

/// A call that has ended, and its times.
#[derive(Clone)]
struct Ended {
    facts: Facts,
    took: Durations,
}

fn key(quota: &str, key: &str) -> QuotaKey {
    QuotaKey {
        quota: quota.into(),
        key: key.into(),
    }
}

fn step(micros: u64, what: StepKind) -> GateStep {
    let at = micros * 1000;
    GateStep { at, what }
}

fn ended() -> Ended {
    let micros = |micros| Timestamp::ZERO + Duration::from_micros(micros);
    let claim = Claim {
        at: Timestamp::ZERO,
        caller: CallerId(7),
        weight: Weight::ONE,
        function: FunctionId::OTHER,
        cost: TokenCount::from_micros(2_500_000),
        charged: Charged::RateLimit {
            id: RateLimitId(1),
            label: "poller".into(),
            deadline: ClaimDeadline::Ordinary,
        },
        quotas: None,
        settling: None,
        counted: Counted::new(),
    };
    let facts = Facts {
        id: 0x0123_4567_89ab_cdef,
        origin: Origin {
            identity: identity("nova", peer()),
            arrived: Timestamp::ZERO,
        },
        start_error: None,
        dialect: Dialect::Socket,
        function: "guest_get_info".into(),
        class: "polling".into(),
        target: Some("ICIC0001".into()),
        verdict: Verdict::Delayed,
        left: false,
        shared: false,
        handed_over: false,
        is_read: false,
        is_sent_again: false,
        trace: None,
        limited: true,
        reason: None,
        limit: Some("total".into()),
        delays: Delays::default(),
        destination: Some(Destination::Socket),
        outcome: Some(Outcome::Served),
        replay: Some(Box::new(ReplayFacts {
            weight: Weight::ONE,
            cost: tidegate_limits::call::Cost::ONE,
            tokens: Tokens::new(2.5).expect("above zero"),
            bucket: Some(BucketId(1)),
            quotas: Some(
                [
                    key("rate_limit:per_user", "alice"),
                    key("rate_limit:all", ""),
                ]
                .into(),
            ),
            is_settled: false,
            deadline: Some(micros(60_000_000)),
            // In the order in which two tasks noted them.
            steps: vec![
                step(1_000, StepKind::Asked("user".into())),
                step(1_000, StepKind::Postponed(2_000_000)),
                step(12_345, StepKind::Admitted),
                step(2_500, StepKind::Class("polling".into())),
                step(1_234_567, StepKind::Sent),
                step(1_240_000, StepKind::Replied),
                step(
                    1_284_667,
                    StepKind::Ended(Outcome::Served, Tokens::new(1.5).ok()),
                ),
            ],
        })),
        admitted: None,
        sent: Some(micros(1_234_567)),
        answered: None,
        bytes_in: 34,
        bytes_out: 128,
        status: None,
        overall_rc: Some(0),
        claim: Some(claim),
        rare: None,
    };
    let took = Durations {
        total: Duration::from_micros(62_500),
        waited: Some(Duration::from_micros(12_345)),
        backend: Some(Duration::from_micros(50_100)),
    };
    Ended { facts, took }
}

/// Facts of an ended call, with changes.
fn ended_with(change: impl FnOnce(&mut Ended)) -> Ended {
    let mut ended = ended();
    change(&mut ended);
    ended
}

fn write(log: &AccessLog, ended: &Ended) -> LineOutcome {
    let line = AccessLine {
        facts: &ended.facts,
        at: UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456),
        took: ended.took,
        started_us: 1_699_999_998_888_889,
    };
    if log.keeps_replay() {
        assert_eq!(
            log.write_replay(|out| line.write_replay(out)),
            LineOutcome::Yes
        );
    }
    log.write(|out, look| line.write(out, look))
}

/// The whole output for these lines.
fn written(look: LineFormat, lines: &[Ended]) -> String {
    let out = Out::default();
    let log = AccessLog::start(out.clone(), look).expect("a thread");
    for line in lines {
        assert_eq!(write(&log, line), LineOutcome::Yes);
    }
    drop(log);
    out.text()
}

/// The golden text of one line.
fn golden(look: LineFormat, line: &Ended) -> String {
    written(look, std::slice::from_ref(line))
}

#[test]
fn a_line_in_json_has_these_fields_in_this_order() {
    assert_eq!(
        golden(LineFormat::Json, &ended()),
        concat!(
            r#"{"timestamp":"2023-11-14T22:13:20.123456Z","level":"INFO","target":"access","schema":1,"#,
            r#""id":"0123456789abcdef","listener":"nova","peer":"127.0.0.1:53422","client":"127.0.0.1","user":null,"dialect":"socket","#,
            r#""function":"guest_get_info","class":"polling","userid":"ICIC0001","verdict":"delayed","#,
            r#""reason":null,"limit":"total","caller":"c7","rate_limit":"poller","tokens":2.5,"queue_ms":12.345,"backend_ms":50.100,"#,
            r#""total_ms":62.500,"bytes_in":34,"bytes_out":128,"status":null,"overallRC":0,"#,
            r#""sent_us":1234567,"started_us":1699999998888889,"limited":true,"quota":null,"shared":false,"handed_over":false,"would_wait_ms":null,"would_limit":null,"would_reason":null,"would_more":null,"retry_of":null,"place_of":null,"trace_id":null,"#,
            r#""arrived_ns":0,"backend":"socket","outcome":"served"}"#,
            "\n"
        )
    );
}

#[test]
fn a_line_for_a_replay_has_these_fields_in_this_order() {
    let out = Out::default();
    let log = AccessLog::start(out.clone(), LineFormat::Json).expect("a thread");
    let log = log.with_replay(true);
    log.switch(false);
    assert_eq!(write(&log, &ended()), LineOutcome::Off);
    drop(log);
    assert_eq!(
        out.text(),
        concat!(
            r#"{"timestamp":"2023-11-14T22:13:20.123456Z","level":"INFO","target":"replay","schema":1,"#,
            r#""id":"0123456789abcdef","listener":"nova","client":"127.0.0.1","user":null,"dialect":"socket","function":"guest_get_info","#,
            r#""reason":null,"limit":"total","caller":"c7","rate_limit":"poller","started_us":1699999998888889,"limited":true,"#,
            r#""arrived_ns":0,"backend":"socket","weight":1,"cost":1,"estimate":2.5,"bucket":1,"deadline_ns":60000000000,"settles":false,"draws":[["rate_limit:per_user","alice"],["rate_limit:all",""]],"#,
            r#""steps":[["asked",1000000,"user"],["postponed",1000000,2000000],["class",2500000,"polling"],"#,
            r#"["admitted",12345000],["sent",1234567000],["replied",1240000000],["served",1284667000,1.5]]}"#,
            "\n"
        )
    );
}

#[test]
fn a_line_in_json_is_read_back_as_it_was_logged() {
    let told = ended_with(|it| {
        it.facts.origin.identity = identity("the \"new\" one", peer());
        it.facts.overall_rc = Some(-7);
        it.facts.status = Some(200);
        it.took.total = Duration::from_micros(1_000_001);
    });
    let text = written(LineFormat::Json, &[told]);
    let read: Value = serde_json::from_str(&text).expect("one object");
    assert_eq!(read["listener"], json!("the \"new\" one"));
    assert_eq!(read["overallRC"], json!(-7));
    assert_eq!(read["status"], json!(200));
    assert_eq!(read["total_ms"], json!(1000.001));
    assert_eq!(read["tokens"], json!(2.5));
    let draws = [("a \"b\"", 1), ("c", 25)].map(|(key, cost)| QuotaSpent {
        of: QuotaKey {
            quota: "per_user".into(),
            key: key.into(),
        },
        window: Some(7),
        total: 100,
        cost,
        settled: (cost == 25).then_some(20),
        spent: Payment::default(),
    });
    let told = ended_with(|it| {
        it.facts.limited = false;
        it.facts.rare_mut().quotas = draws.to_vec();
    });
    let read: Value =
        serde_json::from_str(&written(LineFormat::Json, &[told])).expect("one object");
    assert_eq!(read["limited"], json!(false));
    assert_eq!(
        read["quota"],
        json!([
            {"limit": "per_user", "key": "a \"b\"", "window": 7, "total": 100, "cost": 1},
            {"limit": "per_user", "key": "c", "window": 7, "total": 100, "cost": 25, "settled": 20},
        ])
    );
    for (tokens, written) in [(None, json!(null)), (Some(TokenCount::ONE), json!(1))] {
        let told = ended_with(|it| match (tokens, &mut it.facts.claim) {
            (Some(tokens), Some(claim)) => claim.cost = tokens,
            (_, claim) => *claim = None,
        });
        let text = self::written(LineFormat::Json, &[told]);
        let read: Value = serde_json::from_str(&text).expect("one object");
        assert_eq!(read["tokens"], written);
    }
}

#[test]
fn a_line_in_text_is_one_row_of_columns() {
    assert_eq!(
        golden(TEXT, &ended()),
        "22:13:20.123Z delayed guest_get_info           ICIC0001 \
         queue     12.3 backend     50.1 total     62.5 ms  rc=0 limit=total caller=c7 \
         34>128 B nova/socket polling 127.0.0.1:53422 0123456789abcdef\n"
    );
    let refused = ended_with(|it| {
        it.facts.target = None;
        it.facts.verdict = Verdict::Refused;
        it.facts.reason = Some(Reason::QueueFull);
        it.facts.limit = None;
        it.facts.status = Some(503);
        it.facts.overall_rc = Some(503);
        it.facts.dialect = Dialect::Http;
        it.took.backend = None;
    });
    assert_eq!(
        golden(TEXT, &refused),
        "22:13:20.123Z refused guest_get_info           -        \
         queue     12.3 backend        - total     62.5 ms  503 rc=503 queue_full caller=c7 \
         34>128 B nova/http polling 127.0.0.1:53422 0123456789abcdef\n"
    );
}

#[test]
fn colour_only_paints() {
    let plain = golden(TEXT, &ended());
    let painted = golden(LineFormat::Text { colour: true }, &ended());
    assert_ne!(painted, plain);
    assert_eq!(
        painted.replace("\x1b[36m", "").replace("\x1b[0m", ""),
        plain
    );
}

#[test]
fn a_text_that_cannot_be_a_userid_is_not_logged() {
    for word in [
        "",
        "sw0rdf1sh-and-more",
        "a\nb",
        "\u{1b}[2J",
        "p w",
        "\"x\"",
        "ümlaut",
    ] {
        let given = ended_with(|it| it.facts.target = Some(word.into()));
        let none = ended_with(|it| it.facts.target = None);
        assert_eq!(
            golden(LineFormat::Json, &given),
            golden(LineFormat::Json, &none)
        );
        assert_eq!(golden(TEXT, &given), golden(TEXT, &none), "{word:?}");
    }
}

#[test]
fn every_line_written_before_the_log_is_dropped_arrives_whole_under_its_own_id() {
    let line = |id| ended_with(|it| it.facts.id = id);
    let lines: Vec<_> = (0..1000).map(line).collect();
    let text = written(LineFormat::Json, &lines);
    let mut ids: Vec<String> = text
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("one object a line");
            line["id"].as_str().expect("a string").to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 1000);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 1000);
}

#[test]
fn a_log_that_is_off_writes_nothing() {
    let out = Out::default();
    let log = AccessLog::start(out.clone(), LineFormat::Json).expect("a thread");
    log.switch(false);
    assert_eq!(write(&log, &ended()), LineOutcome::Off);
    log.switch(true);
    assert_eq!(write(&log, &ended()), LineOutcome::Yes);
    drop(log);
    assert_eq!(out.text().lines().count(), 1);
}

/// A reader of stderr that takes one write for each message. Without a sender, it takes all.
struct Stalled(mpsc::Receiver<()>);

impl Write for Stalled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Also goes on when the test has ended, and its sender with it.
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_flush_waits_for_a_slow_reader_and_gives_a_stalled_one_up_in_time() {
    let (resume, stalled) = mpsc::channel();
    let writer = LogWriter::start(Stalled(stalled)).expect("a thread");
    assert!(writer.flush(Duration::ZERO), "nothing is waiting");
    assert_eq!(writer.event(b"one\n", Priority::INFO), LineOutcome::Yes);
    assert!(!writer.flush(Duration::from_millis(20)));
    assert_eq!(writer.event(b"two\n", Priority::INFO), LineOutcome::Yes);
    let slow = thread::spawn(move || {
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(20));
            resume.send(()).expect("the writer waits");
        }
        resume
    });
    assert!(writer.flush(Duration::from_secs(60)));
    drop(slow.join());
}

#[test]
fn a_reader_that_stalls_costs_lines_and_holds_up_no_call() {
    let (resume, stalled) = mpsc::channel();
    let log = AccessLog::start(Stalled(stalled), LineFormat::Json).expect("a thread");
    // More than two buffers can hold: one being written, one that fills.
    let lost = (0..40_000)
        .filter(|_| write(&log, &ended()) == LineOutcome::Lost)
        .count();
    assert!(lost > 0, "the buffer has no bound");
    assert!(lost < 40_000, "nothing was kept");
    drop(resume);
}

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}
