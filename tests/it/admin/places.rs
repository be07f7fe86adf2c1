//! Clients that get a connection to the admin address when many want one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::Served;

/// A connection that has asked for `/livez` and stays.
async fn asked_once(served: &Served) -> TcpStream {
    let mut stream = TcpStream::connect(served.address).await.expect("connects");
    ask_again(&mut stream).await;
    stream
}

async fn ask_again(stream: &mut TcpStream) {
    let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.expect("sent");
    let mut answer = [0; 1024];
    let read = stream.read(&mut answer).await.expect("answered");
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn pollers_that_keep_every_place_do_not_starve_a_probe() {
    let served = Served::start(None).await;
    for _ in 0..64 {
        let mut stream = asked_once(&served).await;
        tokio::spawn(async move {
            let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let mut answer = [0; 1024];
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if stream.write_all(request).await.is_err()
                    || !matches!(stream.read(&mut answer).await, Ok(1..))
                {
                    return;
                }
            }
        });
    }
    // Time is paused and skips ahead when every task waits.
    for path in ["/readyz", "/livez", "/healthz", "/metrics"] {
        let started = Instant::now();
        let answer = timeout(Duration::from_secs(20), served.get(path)).await;
        answer.expect("answered").is(200);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(1), "{path} took {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_connection_that_is_silent_for_longest_is_closed_for_a_new_one() {
    let served = Served::start(None).await;
    let mut kept = Vec::new();
    for _ in 0..64 {
        kept.push(asked_once(&served).await);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    // The first of them has just been used again, so the second is the one to go.
    ask_again(&mut kept[0]).await;
    let started = Instant::now();
    served.get("/readyz").await.is(200);
    assert!(started.elapsed() < Duration::from_secs(1));
    let mut byte = [0; 1];
    assert_eq!(kept[1].read(&mut byte).await.expect("closed"), 0);
    for at in [0, 2, 63] {
        ask_again(&mut kept[at]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_keep_no_client_out() {
    let served = Served::start(None).await;
    let mut silent = Vec::new();
    for said in ["", "GET /live"].repeat(40) {
        let mut stream = TcpStream::connect(served.address).await.expect("connects");
        stream.write_all(said.as_bytes()).await.expect("sent");
        silent.push(stream);
    }
    let started = Instant::now();
    served.get("/metrics").await.is(200);
    assert!(started.elapsed() < Duration::from_secs(1));
    // The connections that no new one displaced are also closed, at their timeout.
    for mut stream in silent {
        let mut answer = Vec::new();
        // Closed with bytes unread is closed with a reset.
        let _ = stream.read_to_end(&mut answer).await;
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn requests_that_hang_hold_their_places_and_no_probe_waits_for_them() {
    let served = Arc::new(Served::start(None).await);
    let asked = || served.source.asked.load(Ordering::SeqCst);
    served.source.hangs.store(true, Ordering::SeqCst);
    let ask = || {
        let served = Arc::clone(&served);
        tokio::spawn(async move { served.get("/v1/queue").await })
    };
    let first: Vec<_> = (0..16).map(|_| ask()).collect();
    // Time stands still while something works off the event loop.
    while asked() < 16 {
        tokio::task::yield_now().await;
    }
    for path in ["/livez", "/readyz", "/healthz?verbose"] {
        served.get(path).await.is(200);
    }
    ask().await.expect("no panic").error(503);
    // The page opens all the same, and asks for its figures later.
    let page = served.get("/").await;
    assert!(page.is(200).header("etag").is_some(), "{page:?}");
    tokio::time::advance(Duration::from_secs(6)).await;
    for answer in first {
        answer.await.expect("no panic").error(504);
    }
    // Nothing can stop what they wait for, so nothing more may begin.
    for _ in 0..40 {
        ask().await.expect("no panic").error(503);
    }
    assert_eq!(asked(), 16);
    served.source.hangs.store(false, Ordering::SeqCst);
    loop {
        let answer = served.get("/v1/queue").await;
        if answer.status == 200 {
            break;
        }
        answer.error(503);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_waits_half_a_second_for_the_figures_that_come_with_it() {
    let served = Arc::new(Served::start(None).await);
    served.source.hangs.store(true, Ordering::SeqCst);
    let asking = Arc::clone(&served);
    let page = tokio::spawn(async move { asking.get("/").await });
    while served.source.asked.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_millis(501)).await;
    let page = page.await.expect("no panic");
    assert!(page.is(200).header("etag").is_some(), "{page:?}");
    served.source.hangs.store(false, Ordering::SeqCst);
}
