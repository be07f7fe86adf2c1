//! The load generator counts right, and its latencies leave nothing out.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate_lab::backend::{self, RunningBackend, StandInBackend};
use tidegate_lab::bench::{self, BenchOptions, CallFailure, LoadReport, TargetProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

async fn backend(delay: Duration) -> RunningBackend {
    StandInBackend::start(backend::StandInOptions {
        delay,
        ..backend::StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports")
}

async fn run(options: BenchOptions) -> LoadReport {
    bench::run(options).await.expect("a load that can be run")
}

fn socket(target: SocketAddr) -> BenchOptions {
    BenchOptions {
        target,
        connections: 4,
        timeout: Duration::from_secs(10),
        ..BenchOptions::default()
    }
}

fn http(target: SocketAddr) -> BenchOptions {
    BenchOptions {
        protocol: TargetProtocol::Http,
        ..socket(target)
    }
}

/// Answers every connection with these bytes, then closes.
async fn always(reply: &'static [u8]) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let serve = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(reply).await;
        }
    });
    (addr, serve)
}

#[tokio::test]
async fn a_closed_loop_makes_the_requested_number_of_calls() {
    let backend = backend(Duration::ZERO).await;
    for options in [socket(backend.socket_addr()), http(backend.http_addr())] {
        backend.reset();
        let protocol = options.protocol;
        let report = run(BenchOptions {
            calls: Some(101),
            mix: true,
            ..options
        })
        .await;
        assert_eq!(
            (report.calls, report.ok, report.failed),
            (101, 101, 0),
            "{report:?}"
        );
        let seen = backend.report();
        assert_eq!((seen.calls, seen.answered), (101, 101));
        let connections = match protocol {
            TargetProtocol::Socket => 101,
            TargetProtocol::Http => 4,
        };
        assert_eq!(seen.connections, connections, "{protocol:?}");
        assert!(seen.peak_in_flight <= 4);
        assert!(report.p50_us > 0.0 && report.p50_us <= report.p99_us);
        assert!(report.p99_us <= report.max_us && report.makespan_s <= report.seconds);
    }
}

#[tokio::test]
async fn an_open_loop_keeps_to_its_schedule_and_counts_latency_from_it() {
    // One connection, 50 ms a call, one call due every 10 ms: the tenth is due at 90 ms and
    // done at 500 ms at the earliest.
    let backend = backend(Duration::from_millis(50)).await;
    for options in [socket(backend.socket_addr()), http(backend.http_addr())] {
        let report = run(BenchOptions {
            connections: 1,
            rate: Some(100.0),
            calls: Some(10),
            ..options
        })
        .await;
        assert_eq!((report.calls, report.ok, report.unsent), (10, 10, 0));
        assert!(report.max_us >= 409_000.0, "{report:?}");
        assert!(report.p50_us >= 209_000.0, "{report:?}");
        assert!(report.lag_p99_us >= 359_000.0, "{report:?}");
    }
}

#[tokio::test]
async fn an_open_loop_starts_no_call_early() {
    let backend = backend(Duration::ZERO).await;
    let backend_up = Instant::now();
    let begun = backend_up.elapsed();
    let report = run(BenchOptions {
        rate: Some(200.0),
        seconds: Duration::from_millis(500),
        ..http(backend.http_addr())
    })
    .await;
    assert_eq!((report.calls, report.ok), (100, 100));
    // The backend counts from a moment before `backend_up`, so these are at least as late.
    for (call, start) in (0..).zip(backend.starts()) {
        let due = begun + Duration::from_millis(5) * call;
        assert!(
            start >= due,
            "call {call} started at {start:?}, due at {due:?}"
        );
    }
    assert!(report.makespan_s >= 0.495);
}

#[tokio::test]
async fn a_storm_comes_at_once_and_reports_its_order() {
    let backend = backend(Duration::from_millis(100)).await;
    for options in [socket(backend.socket_addr()), http(backend.http_addr())] {
        backend.reset();
        let report = run(BenchOptions {
            storm: Some(60),
            ..options
        })
        .await;
        assert_eq!((report.calls, report.ok), (60, 60), "{report:?}");
        assert_eq!(backend.report().connections, 60);
        assert!(
            backend.report().peak_in_flight > 4,
            "not bounded by --connections"
        );
        assert!(report.makespan_s >= 0.1);
        let inversions = report.inversions.expect("a storm has an order");
        assert!((0.0..=1.0).contains(&inversions));
    }
}

#[tokio::test]
async fn every_second_client_leaves() {
    let backend = backend(Duration::from_millis(300)).await;
    let report = run(BenchOptions {
        storm: Some(10),
        leave_after: Some(Duration::from_millis(50)),
        ..socket(backend.socket_addr())
    })
    .await;
    assert_eq!((report.calls, report.ok, report.left), (10, 5, 5));
    assert_eq!(report.failed, 0);
}

#[tokio::test]
async fn refusals_differ_from_failures() {
    let refusal = br#"{"overallRC": 503, "modID": 130, "rc": 503, "rs": 1, "errmsg": "", "output": "", "retryAfter": 1}"#;
    let (addr, server) = always(refusal).await;
    let report = run(BenchOptions {
        calls: Some(5),
        ..socket(addr)
    })
    .await;
    assert_eq!(
        (report.calls, report.refused, report.failed, report.ok),
        (5, 5, 0, 0)
    );
    server.abort();

    let refusal = b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n\
        1d\r\n{\"overallRC\":503,\"modID\":130}\r\n0\r\n\r\n";
    let (addr, server) = always(refusal).await;
    let report = run(BenchOptions {
        calls: Some(5),
        connections: 1,
        ..http(addr)
    })
    .await;
    assert_eq!((report.calls, report.refused), (5, 5), "{report:?}");
    server.abort();
}

#[tokio::test]
async fn kinds_of_failures_are_distinguished() {
    let backend = backend(Duration::ZERO).await;
    let fails = async |options: BenchOptions| {
        let report = run(BenchOptions {
            calls: Some(3),
            connections: 1,
            ..options
        })
        .await;
        assert_eq!(
            (report.calls, report.failed, report.ok),
            (3, 3, 0),
            "{report:?}"
        );
        let kinds: Vec<_> = report.failures.into_keys().collect();
        kinds
    };
    for (userid, socket_failure, http_failure) in [
        ("NOEXIST", CallFailure::Error, CallFailure::Error),
        ("CUT", CallFailure::Cut, CallFailure::Cut),
        ("CLOSE", CallFailure::Empty, CallFailure::Empty),
    ] {
        let userid = userid.to_owned();
        let options = BenchOptions {
            userid: userid.clone(),
            ..socket(backend.socket_addr())
        };
        assert_eq!(fails(options).await, [socket_failure], "{userid}");
        let options = BenchOptions {
            userid: userid.clone(),
            ..http(backend.http_addr())
        };
        assert_eq!(fails(options).await, [http_failure], "{userid}");
    }
    let silent = BenchOptions {
        userid: "SILENT".to_owned(),
        timeout: Duration::from_millis(20),
        ..socket(backend.socket_addr())
    };
    assert_eq!(fails(silent).await, [CallFailure::Timeout]);

    let addr = backend.socket_addr();
    backend.stop().await;
    assert_eq!(fails(socket(addr)).await, [CallFailure::Connect]);
    let report = bench::run(http(addr)).await;
    assert!(report.is_err_and(|cause| cause.to_string().contains("cannot connect to")));
}

#[tokio::test]
async fn silent_connections_are_held_and_closed_ones_noticed() {
    let backend = backend(Duration::ZERO).await;
    let held = BenchOptions {
        hold: Some(20),
        seconds: Duration::from_millis(100),
        ..socket(backend.socket_addr())
    };
    let report = run(held.clone()).await;
    assert_eq!((report.held, report.held_open, report.calls), (20, 20, 0));
    assert_eq!(backend.report().connections, 20);

    let running = tokio::spawn(bench::run(BenchOptions {
        seconds: Duration::from_millis(500),
        ..held
    }));
    backend.wait_until(|report| report.connections >= 40).await;
    backend.stop().await;
    let report = running.await.expect("it ran").expect("it could run");
    assert_eq!((report.held, report.held_open), (20, 0));
}

#[tokio::test]
async fn an_impossible_load_is_refused_before_the_start() {
    let target = SocketAddr::from(([127, 0, 0, 1], 1));
    let refused = async |options: BenchOptions, why: &str| {
        let cause = bench::run(options).await.expect_err("it cannot be run");
        assert!(cause.to_string().contains(why), "{cause}");
    };
    refused(
        BenchOptions {
            storm: Some(100_000_000),
            ..socket(target)
        },
        "ulimit -n",
    )
    .await;
    refused(
        BenchOptions {
            storm: Some(1),
            rate: Some(1.0),
            ..socket(target)
        },
        "only one",
    )
    .await;
    refused(
        BenchOptions {
            rate: Some(0.0),
            ..socket(target)
        },
        "above 0",
    )
    .await;
    refused(
        BenchOptions {
            connections: 0,
            ..socket(target)
        },
        "at least 1",
    )
    .await;
}
