//! The cost of reporting a call: the counters, the access line, a scrape.

use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use tidegate::app::metrics::Metrics;
use tidegate::telemetry::access::{AccessLine, AccessLog, Look, Started, Written};
use tidegate::telemetry::calls::Durations;
use tidegate_callers::CallerId;
use tidegate_limits::bucket::TokenCount;

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

    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 53_422));
    let at = SystemTime::now();
    let started = Started::new(at);
    let line = AccessLine {
        id: 7,
        at,
        listener: "nova",
        peer: Some(peer),
        client: Some(peer.ip()),
        user: None,
        dialect: "socket",
        function: "guest_get_info",
        class: "polling",
        userid: Some("ICIC0001"),
        verdict: "delayed",
        reason: None,
        limit: Some("total"),
        caller: Some(CallerId(7)),
        rate_limit: Some("poller"),
        tokens: Some(TokenCount::from_micros(2_500_000)),
        queued: Duration::from_micros(12_345),
        backend: Some(Duration::from_micros(50_107)),
        total: Duration::from_micros(62_512),
        bytes_in: 34,
        bytes_out: 128,
        status: None,
        overall_rc: Some(0),
        sent: Some(Duration::from_micros(1_234_567)),
        started: &started,
        limited: true,
        quota: &[],
        shared: false,
        handed_over: false,
        retry_of: None,
    };
    let start = |look| AccessLog::start(io::sink(), look).expect("a thread");
    let off = start(Look::Json);
    off.switch(false);
    per_call("access line, off", || {
        assert_eq!(off.write(black_box(&line)), Written::Off);
    });
    for (name, look) in [
        ("access line, JSON", Look::Json),
        ("access line, text", Look::Text { colour: true }),
    ] {
        // A log of its own for each round: the end of one waits until all is written.
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let log = start(look);
            let started = Instant::now();
            for _ in 0..LINES {
                assert_eq!(log.write(black_box(&line)), Written::Yes);
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
