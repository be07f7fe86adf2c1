//! The history, this moment and its stream, at the real process.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::sidecar::Sidecar;
use crate::stores::Redis;
use crate::support::{PATIENCE, Scripted, array, json, read_all};

/// Admits `window` calls in ten minutes. Calls may wait for an hour.
fn config(backend: impl ToString, window: u32) -> String {
    format!(
        r#"
        [[listen]]
        name = "nova"
        bind = "127.0.0.1:0"
        protocol = "socket"
        [backend]
        socket = "{}"
        kind = "zvm"
        [limits]
        per_window = "total:{window}"
        window = "600s"
        max_wait = "3600s"
        [server]
        drain_timeout = "1s"
        [admin]
        bind = "127.0.0.1:0"
        "#,
        backend.to_string()
    )
}

async fn call(sidecar: &Sidecar) -> TcpStream {
    let mut stream = TcpStream::connect(sidecar.listener("nova").await)
        .await
        .expect("it listens");
    stream
        .write_all(array("guest_list", "").as_ref())
        .await
        .expect("it reads");
    stream
}

/// Asks until the answer is as wanted.
async fn until(sidecar: &Sidecar, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let (status, body) = sidecar.get(path).await;
        assert_eq!(status, 200, "{body}");
        let told = json(&body);
        if wanted(&told) {
            return told;
        }
        assert!(started.elapsed() < PATIENCE, "never as wanted: {told:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn sum(of: &Value) -> f64 {
    let points = of.as_array().expect("a list");
    points.iter().filter_map(Value::as_f64).sum()
}

fn kinds(told: &Value) -> Vec<&str> {
    let marks = told["marks"].as_array().expect("a list");
    marks
        .iter()
        .filter_map(|mark| mark["kind"].as_str())
        .collect()
}

/// Asks for a stream; its head has been read.
async fn stream(sidecar: &Sidecar) -> (u16, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(sidecar.admin).await.expect("it listens");
    let request = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.expect("it reads");
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = tokio::time::timeout(PATIENCE, reader.read_line(&mut head)).await;
        assert_ne!(read.expect("in time").expect("a head"), 0, "{head}");
    }
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), reader)
}

/// The next frame. Each is a chunk of its own: its size, its line, and an empty line.
async fn frame(reader: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await;
        assert_ne!(
            read.expect("in time").expect("a line"),
            0,
            "the stream has ended"
        );
        if line.starts_with('{') {
            return serde_json::from_str(&line).expect("it is JSON");
        }
    }
}

#[tokio::test]
async fn history_and_this_moment_say_what_was_called_and_what_waits_for_which_limit() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, 2)).await;
    for _ in 0..2 {
        read_all(&mut call(&sidecar).await).await;
    }
    let _waits = [call(&sidecar).await, call(&sidecar).await];
    let series = until(&sidecar, "/v1/series", |it| {
        sum(&it["series"]["answered"]) == 2.0 && sum(&it["series"]["waiting"]) >= 2.0
    })
    .await;
    assert_eq!(series["step_seconds"], 1);
    assert_eq!(series["points"], 600);
    let figures = &series["series"];
    assert_eq!(figures["arrivals"].as_array().expect("a list").len(), 600);
    assert_eq!(sum(&figures["arrivals"]), 4.0);
    assert_eq!(sum(&figures["sent"]), 2.0);
    assert!(sum(&figures["backend_p95_ms"]) > 0.0, "{figures}");
    assert_eq!(kinds(&series), ["start"]);
    let limits = series["limits"].as_array().expect("a list");
    let total = limits
        .iter()
        .find(|it| it["name"] == "total")
        .expect("it has a history");
    let used = total["used"].as_array().expect("a list");
    assert_eq!(used.last().expect("600 points"), 2.0);
    for (span, step, points) in [("3h", 10, 1080), ("24h", 60, 1440)] {
        let coarse = json(&sidecar.get(&format!("/v1/series?span={span}")).await.1);
        assert_eq!(coarse["step_seconds"], step);
        assert_eq!(coarse["points"], points);
        assert_eq!(sum(&coarse["series"]["arrivals"]), 4.0);
    }
    assert_eq!(sidecar.get("/v1/series?span=1y").await.0, 400);

    let now = json(&sidecar.get("/v1/now").await.1);
    let sentence = now["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("2 waiting, oldest "), "{sentence}");
    assert!(
        sentence.contains("because `total` is used up (2 of 2); the next leaves in "),
        "{sentence}"
    );
    assert_eq!(now["queue"]["waiting"], 2);
    // Each call is counted at the limit that holds it, not at every limit that it meets.
    for limit in now["limits"].as_array().expect("a list") {
        let waiting = if limit["name"] == "total" { 2 } else { 0 };
        assert_eq!(limit["waiting"], waiting, "{limit}");
    }
    let function = &now["functions"][0];
    assert_eq!(
        [&function["function"], &function["held_by"]],
        ["guest_list", "total"]
    );
    let calls = now["oldest_calls"].as_array().expect("a list");
    assert_eq!(calls.len(), 2);
    assert!(
        calls.iter().all(|it| it["waits_for"] == "total"),
        "{calls:?}"
    );
    assert!(
        calls[0]["starts_in_seconds"]
            .as_f64()
            .is_some_and(|it| it > 1.0)
    );
    // As text: a number of this size is another one in a browser.
    assert!(
        calls
            .iter()
            .all(|it| it["id"].as_str().is_some_and(|id| id.len() == 16))
    );
    assert_eq!(now["backends"][0]["up"], true);
    assert_eq!(now["reload"], Value::Null);
}

#[tokio::test]
async fn reloads_leave_marks_taken_or_refused() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, 2)).await;
    sidecar.reload(&config(backend.addr, 3)).await;
    let now = json(&sidecar.get("/v1/now").await.1);
    assert_eq!(now["reload"]["taken"], true);
    sidecar.write_config("nonsense = 1");
    sidecar.hang_up("config refused").await;
    let told = until(&sidecar, "/v1/series", |it| kinds(it).len() > 2).await;
    assert_eq!(kinds(&told), ["start", "reload", "reload_refused"]);
    let now = json(&sidecar.get("/v1/now").await.1);
    assert_eq!(now["reload"]["taken"], false);
    let mistakes = now["reload"]["mistakes"].as_array().expect("a list");
    let names = |it: &Value| it.as_str().is_some_and(|it| it.contains("nonsense"));
    assert!(mistakes.iter().any(names), "{mistakes:?}");
}

#[tokio::test]
async fn a_backend_that_goes_down_and_comes_back_leaves_marks() {
    let backend = Scripted::in_both_dialects().await;
    // Nothing listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nowhere = free.local_addr().expect("it has one");
    drop(free);
    let sidecar = Sidecar::start(&config(nowhere, 9)).await;
    let _waits = call(&sidecar).await;
    until(&sidecar, "/v1/series", |it| {
        kinds(it) == ["start", "backend_down"]
    })
    .await;
    let now = until(&sidecar, "/v1/now", |it| it["backends"][0]["up"] == false).await;
    let sentence = now["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains("because backend.socket ("), "{sentence}");
    sidecar.reload(&config(backend.addr, 9)).await;
    let wanted = ["start", "backend_down", "reload", "backend_up"];
    until(&sidecar, "/v1/series", |it| kinds(it) == wanted).await;
}

#[tokio::test]
async fn eight_viewers_are_served_the_ninth_is_refused_until_one_leaves() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, 2)).await;
    let mut viewers = Vec::new();
    for _ in 0..8 {
        let (status, mut viewer) = stream(&sidecar).await;
        assert_eq!(status, 200);
        // The first comes at once, without marks: these are in the history.
        let first = frame(&mut viewer).await;
        assert_eq!(first["marks"], Value::Array(Vec::new()));
        viewers.push(viewer);
    }
    let (status, body) = sidecar.get("/v1/stream").await;
    assert_eq!(status, 503);
    assert!(body.contains("at most 8"), "{body}");
    // Streams take none of the places of other requests.
    for _ in 0..20 {
        assert_eq!(sidecar.get("/v1/now").await.0, 200);
    }
    sidecar.reload(&config(backend.addr, 3)).await;
    let mut marks = Vec::new();
    for viewer in &mut viewers {
        let told = loop {
            let told = frame(viewer).await;
            if !kinds(&told).is_empty() {
                break told;
            }
        };
        let limits = told["now"]["limits"].as_array().expect("a list").len();
        assert_eq!(
            told["point"]["limits"].as_array().expect("a list").len(),
            limits
        );
        marks.extend(kinds(&told).into_iter().map(ToOwned::to_owned));
    }
    assert_eq!(marks, ["reload"; 8]);
    drop(viewers.pop());
    let started = Instant::now();
    while stream(&sidecar).await.0 != 200 {
        assert!(
            started.elapsed() < PATIENCE,
            "the place of a viewer that left stays taken"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_viewer_that_does_not_read_holds_up_no_call_and_no_other_viewer() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, 100)).await;
    let (_, _stalled) = stream(&sidecar).await;
    let (_, mut reads) = stream(&sidecar).await;
    let mut last = 0;
    for _ in 0..4 {
        read_all(&mut call(&sidecar).await).await;
        let at = frame(&mut reads).await["now"]["at_unix_ms"]
            .as_u64()
            .expect("a time");
        assert!(at > last);
        last = at;
    }
}

#[tokio::test]
async fn a_drain_ends_streams_and_they_do_not_hold_it_up() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, 2)).await;
    let (_, mut viewer) = stream(&sidecar).await;
    frame(&mut viewer).await;
    sidecar.signal("TERM");
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, viewer.read_to_end(&mut rest)).await;
    ended.expect("it ends").expect("it is closed, not reset");
    assert!(
        rest.ends_with(b"0\r\n\r\n"),
        "{}",
        String::from_utf8_lossy(&rest)
    );
    let (status, _) = sidecar.ended().await;
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_for_a_bucket_or_a_quota_are_counted_there_and_named_in_the_sentence() {
    let redis = Redis::start(&[]);
    let quota = format!(
        r#"
        [quota_store]
        engine = "redis"
        servers = ["redis://{}"]
        expected_sidecars = 1
        [[quota]]
        name = "quota"
        applies_to = "total"
        total = 2
        refresh_window = "30m"
        draw_timeout = "2s"
        "#,
        redis.addr()
    );
    let bucket = r#"
        [[bucket]]
        name = "bucket"
        burst = 2
        fill = 0.001
        [[caller]]
        label = "all"
        match = { listener = "nova" }
        rate_limit = "bucket"
        "#;
    for (name, more) in [("rate_limit:bucket", bucket), ("rate_limit:quota", &quota)] {
        let backend = Scripted::in_both_dialects().await;
        let sidecar = Sidecar::start(&(config(backend.addr, 1000) + more)).await;
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(call(&sidecar).await);
        }
        let now = until(&sidecar, "/v1/now", |now| {
            let limits = now["limits"].as_array().expect("a list").iter();
            let mut held = limits.filter(|it| it["waiting"] != 0);
            let is_held = held.next().is_some_and(|it| {
                it["name"] == name
                    && it["open"] == false
                    && it["waiting"] == now["queue"]["waiting"]
            });
            is_held && held.next().is_none() && now["queue"]["waiting"].as_u64() >= Some(3)
        })
        .await;
        let sentence = now["sentence"].as_str().expect("a sentence");
        assert!(
            sentence.contains(&format!("because `{name}` is used up (2")),
            "{sentence}"
        );
        assert_eq!(now["functions"][0]["held_by"], name);
    }
}
