//! A time of day that is set after the start, as on a machine whose clock has no battery.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::faked_clock::FakedClock;
use crate::sidecar::Sidecar;
use crate::support::{OK, PATIENCE, Scripted, array, ask};

const HOUR: Duration = Duration::from_secs(3_600);

fn text(backend: std::net::SocketAddr, limits: &str) -> String {
    format!(
        "[[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
         [backend]\nsocket = \"{backend}\"\n[limits]\n{limits}\n[queue]\npostpone = \"in_turn\"\n\
         [log]\naccess = true\n[admin]\nbind = \"127.0.0.1:0\"\n"
    )
}

/// A backend that notes when each call came, by the time of day.
async fn noting() -> (Scripted, Arc<Mutex<Vec<Duration>>>) {
    let came = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&came);
    let backend = Scripted::start(move |_, mut stream: TcpStream| {
        let noted = Arc::clone(&noted);
        async move {
            let mut request = [0; 1024];
            if stream.read(&mut request).await.unwrap_or(0) > 0 {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = now.expect("it is later");
                noted.lock().expect("no test panics with it").push(now);
                let _ = stream.write_all(OK).await;
            }
        }
    })
    .await;
    (backend, came)
}

#[tokio::test]
async fn lines_and_pages_have_the_time_of_day_as_it_is_and_not_as_it_was_at_the_start() {
    let (backend, _) = noting().await;
    let clock = FakedClock::new(HOUR, Duration::ZERO);
    let sidecar = Sidecar::start_with(&text(backend.addr, "window = \"0s\""), |binary| {
        clock.command(binary)
    })
    .await;
    let address = sidecar.listener("test").await;
    let is_right = |at: SystemTime| {
        let differs = SystemTime::now().duration_since(at).unwrap_or_default();
        differs < HOUR / 2
    };
    let shown = async || {
        let (_, body) = sidecar.get("/v1/now").await;
        let now: Value = serde_json::from_str(&body).expect("it is JSON");
        let at = now["at_unix_ms"].as_u64().expect("a number");
        UNIX_EPOCH + Duration::from_millis(at)
    };
    assert!(!is_right(shown().await));

    clock.behind(Duration::ZERO, Duration::ZERO);
    assert!(is_right(shown().await));
    let from = sidecar.log().lines().len();
    ask(address, array("guest_list", "A")).await;
    let (line, _) = sidecar
        .log()
        .wait_from(from, &["\"target\":\"access\""])
        .await;
    let line: Value = serde_json::from_str(&line).expect("it is JSON");
    let written = line["timestamp"].as_str().expect("a time");
    let written = humantime(written);
    assert!(is_right(written), "{line}");
}

/// A moment as the log has it: `2026-11-22T01:00:00.000000Z`.
fn humantime(text: &str) -> SystemTime {
    let date = std::process::Command::new("date")
        .args(["-u", "-d", text, "+%s"])
        .output()
        .expect("there is a date command");
    let seconds = String::from_utf8(date.stdout).expect("digits");
    UNIX_EPOCH + Duration::from_secs(seconds.trim().parse().expect("a number"))
}

#[tokio::test]
async fn fixed_windows_follow_a_time_of_day_that_is_set_after_the_start() {
    let (backend, came) = noting().await;
    let clock = FakedClock::new(Duration::ZERO, Duration::ZERO);
    let limits = "per_window = \"total:1\"\nwindow = \"1s\"\nwindow_shape = \"fixed\"\nwindow_stamp = \"sent\"";
    let text = text(backend.addr, limits);
    let sidecar = Sidecar::start_with(&text, |binary| clock.command(binary)).await;
    let address = sidecar.listener("test").await;
    let load = tokio::spawn(async move {
        loop {
            ask(address, array("guest_list", "A")).await;
        }
    });
    // Calls that wait leave as soon as a window begins.
    let until_past = async |fraction: Duration| {
        let begun = tokio::time::Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "{came:?}");
            let latest: Vec<_> = came
                .lock()
                .expect("no test panics")
                .iter()
                .rev()
                .take(2)
                .copied()
                .collect();
            let near = |at: &Duration| {
                let past = Duration::from_nanos(u64::from(at.subsec_nanos()));
                past.abs_diff(fraction) < Duration::from_millis(200)
            };
            if latest.len() == 2 && latest.iter().all(near) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until_past(Duration::ZERO).await;
    clock.behind(Duration::from_millis(500), Duration::ZERO);
    sidecar
        .log()
        .wait(&["fixed windows are aligned to it anew"])
        .await;
    until_past(Duration::from_millis(500)).await;
    load.abort();
}
