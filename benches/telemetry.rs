//! The cost of reporting a call: the counters, the access line, a scrape.

use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tidegate::app::access::AccessLine;
use tidegate::app::metrics::Metrics;
use tidegate::call::claim::{Charged, ClaimDeadline, Counted};
use tidegate::call::{Claim, Dialect, Identity, NoObserver, Origin, Peer, Record, Verdict};
use tidegate::telemetry::access::{AccessLog, LineFormat, LineOutcome};
use tidegate::telemetry::calls::Durations;
use tidegate_callers::{CallerId, FunctionId, RateLimitId};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::{Timestamp, Weight};

/// As many lines as fit the buffer, so none is lost and each costs what a kept line costs.
const LINES: u32 = 5_000;
const ROUNDS: u32 = 40;

fn main() {
    let metrics = Metrics::new("0", "bench");
    let took = Durations {
        total: Duration::from_millis(80),
        waited: Some(Duration::from_millis(20)),
        backend: Some(Duration::from_millis(50)),
    };
    per_call("counters of one call", || {
        metrics.calls.count(
            black_box("nova"),
            "guest_get_info",
            "default",
            "passed",
            &took,
        );
    });

    let record = Record::open(
        Origin {
            identity: Arc::new(Identity::without_names(
                "nova".into(),
                Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 53_422))),
            )),
            arrived: Timestamp::ZERO,
        },
        Dialect::Socket,
        "guest_get_info".into(),
        "polling".into(),
        Some("ICIC0001".into()),
        Arc::new(NoObserver),
    );
    let facts = record.note(|facts| {
        facts.verdict = Verdict::Delayed;
        facts.limit = Some("total".into());
        facts.bytes_in = 34;
        facts.bytes_out = 128;
        facts.overall_rc = Some(0);
        facts.claim = Some(Claim {
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
        });
        facts.sent = Some(Timestamp::ZERO + Duration::from_micros(1_234_567));
        facts.clone()
    });
    let at = SystemTime::now();
    let line = AccessLine {
        facts: &facts,
        at,
        took: Durations {
            total: Duration::from_micros(62_512),
            waited: Some(Duration::from_micros(12_345)),
            backend: Some(Duration::from_micros(50_107)),
        },
        started_us: 1_795_000_000_000_000,
    };
    let start = |look| AccessLog::start(io::sink(), look).expect("a thread");
    let off = start(LineFormat::Json);
    off.switch(false);
    per_call("access line, off", || {
        assert_eq!(
            off.write(|out, look| black_box(&line).write(out, look)),
            LineOutcome::Off
        );
    });
    for (name, look) in [
        ("access line, JSON", LineFormat::Json),
        ("access line, text", LineFormat::Text { colour: true }),
    ] {
        // A log of its own for each round: the end of one waits until all is written.
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let log = start(look);
            let started = Instant::now();
            for _ in 0..LINES {
                assert_eq!(
                    log.write(|out, look| black_box(&line).write(out, look)),
                    LineOutcome::Yes
                );
            }
            best = best.min(started.elapsed());
        }
        report(name, best / LINES);
    }

    for function in 0..115 {
        let function = format!("function_{function}");
        for verdict in ["passed", "delayed"] {
            metrics
                .calls
                .count("nova", &function, "default", verdict, &took);
        }
    }
    let started = Instant::now();
    let scrape = metrics.scrape(|_| ());
    report("a scrape with 116 functions", started.elapsed());
    println!("{:44} {:>9} bytes", "", scrape.len());
}

/// The best round of many, because other work on the machine only adds time.
fn per_call(name: &str, mut call: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for _ in 0..LINES {
            call();
        }
        best = best.min(started.elapsed());
    }
    report(name, best / LINES);
}

fn report(name: &str, took: Duration) {
    println!("{name:44} {:>9} ns", took.as_nanos());
}
