//! The demonstration tells a sidecar that keeps the promises from one that does not.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lab::demo::{self, DemoProxy, LIMITS, Limits, Postpone, StormProgress, Way, Wish};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Calls of one storm here: more than two windows of calls.
const CALLS: u32 = 12;

/// Small figures, so that a storm is over soon.
fn limits() -> Limits {
    Limits {
        in_flight: 2,
        in_flight_breaks: 4,
        per_window: 5,
        per_window_breaks: 7,
        delay: Duration::from_millis(20),
        ..LIMITS
    }
}

/// Lets everything through, or as the limits say: windows one after the other, each
/// opened a window after all calls of the one before have left.
async fn pass_through(wish: Wish, limited: bool) -> io::Result<DemoProxy> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let in_flight = Arc::new(Semaphore::new(wish.limits.in_flight as usize));
    let accepting = tokio::spawn(async move {
        let mut in_window = 0;
        while let Ok((mut client, _)) = listener.accept().await {
            let permit = if limited {
                if in_window == wish.limits.per_window {
                    tokio::time::sleep(wish.limits.window).await;
                    in_window = 0;
                }
                in_window += 1;
                Arc::clone(&in_flight).acquire_owned().await.ok()
            } else {
                None
            };
            tokio::spawn(async move {
                if let Ok(mut backend) = TcpStream::connect(wish.backend).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut backend).await;
                }
                drop(permit);
            });
        }
    });
    Ok(DemoProxy {
        addr,
        stop: Box::pin(async move { accepting.abort() }),
    })
}

#[tokio::test]
async fn a_storm_breaks_a_backend_without_a_sidecar() {
    let outcome = demo::run(CALLS, &limits(), StormProgress::Hidden, &async |wish| {
        pass_through(wish, false).await
    })
    .await
    .expect("free ports");
    assert!(!outcome.kept());
    for storm in &outcome.storms {
        assert!(storm.backend.falls > 0, "{storm:?}");
        assert_eq!(storm.answered + storm.failed, CALLS, "{storm:?}");
        assert!(storm.failed > 0, "{storm:?}");
    }
    assert!(outcome.table(false).contains("the backend fell over"));
}

#[tokio::test]
async fn a_storm_through_a_proxy_within_limits_keeps_every_promise() {
    let wishes = std::cell::RefCell::new(Vec::new());
    let outcome = demo::run(
        CALLS,
        &limits(),
        StormProgress::Hidden,
        &async |wish: Wish| {
            wishes.borrow_mut().push(wish.postpone);
            pass_through(wish, true).await
        },
    )
    .await
    .expect("free ports");
    assert_eq!(*wishes.borrow(), [Postpone::InTurn, Postpone::Jitter]);
    assert!(outcome.kept(), "{}", outcome.table(false));
    let [straight, in_turn, jitter] = &outcome.storms[..] else {
        panic!("three storms");
    };
    assert_eq!(straight.way, Way::Straight);
    assert!(straight.failed > 0);
    for storm in [in_turn, jitter] {
        assert_eq!((storm.answered, storm.failed), (CALLS, 0));
        assert!(storm.took >= limits().best(CALLS), "{storm:?}");
    }
    assert!(!outcome.table(false).contains("BROKEN"));
}

/// The sidecar's program, beside the lab's. It is built if it is not there.
fn tidegate(lab: &Path) -> PathBuf {
    let program = lab.with_file_name("tidegate");
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-p", "tidegate", "--bin", "tidegate"]);
        if lab
            .parent()
            .is_some_and(|folder| folder.ends_with("release"))
        {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success());
    }
    program
}

#[test]
fn the_sidecar_itself_keeps_every_promise() {
    let lab = Path::new(env!("CARGO_BIN_EXE_tidegate-lab"));
    assert!(tidegate(lab).exists());
    let mut demo = Command::new(lab);
    let ended = demo.args(["demo", "--once", "--calls", "35"]).output();
    let ended = ended.expect("the lab runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(said.matches("kept").count(), 4, "{said}");
}
