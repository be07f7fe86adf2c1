//! Steps of the clock: the machine was suspended, or the process stood still. The one clock is stepped, so every
//! timer finds its moment long past at once. Leases are in `lease_client`, quotas in `quota`, and the time of day
//! in `faults`.

use std::sync::Arc;
use std::time::Duration;

use tidegate::call::{Reason, Slot as _};
use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::Outcome;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance};

use crate::callers::{Came, Door, who};
use crate::support::{self, one_listener};

const WINDOW: Duration = Duration::from_secs(1);
const STEPS: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(999),
    Duration::from_secs(7),
    Duration::from_secs(3_600),
];

fn door(limits: &str) -> Arc<Door> {
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let text = one_listener(nowhere, "", "").replace("per_window = \"total:10000\"", limits);
    Arc::new(Door::with(&support::config(&text)))
}

/// Calls that begin now; each returns when it was admitted, or why not.
fn calls(door: &Arc<Door>, count: usize) -> JoinSet<Result<Timestamp, Reason>> {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let door = Arc::clone(door);
        calls.spawn(async move {
            match door.call(&who("any"), "guest_list").await.0 {
                Came::Through(mut permit) => {
                    permit.sent();
                    let at = door.clock.now();
                    permit.finish(Outcome::Served);
                    Ok(at)
                }
                Came::Refused(refusal) => Err(refusal.reason),
            }
        });
    }
    calls
}

#[tokio::test(start_paused = true)]
async fn no_window_exceeds_its_limit_at_any_clock_step() {
    for step in STEPS {
        for after in [
            Duration::ZERO,
            WINDOW / 3,
            WINDOW - Duration::from_millis(1),
        ] {
            let door = door(
                "per_window = \"total:3\"\nwindow = \"1s\"\n\
                 max_wait = \"36000s\"",
            );
            let mut all = Vec::new();
            let waiting = calls(&door, 10);
            tokio::time::sleep(after).await;
            advance(step).await;
            // Some come in right behind the step.
            let late = calls(&door, 10);
            for admitted in waiting
                .join_all()
                .await
                .into_iter()
                .chain(late.join_all().await)
            {
                all.push(admitted.expect("each has hours"));
            }
            all.sort_unstable();
            assert_eq!(all.len(), 20);
            for span in all.windows(4) {
                let apart = span[3].since(span[0]);
                assert!(
                    apart >= WINDOW,
                    "a step of {step:?} after {after:?}: {apart:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_step_past_the_deadline_ends_calls_unsent() {
    let door = door(
        "outstanding = 1\nmax_wait = \"60s\"\n\
         per_window = \"total:1000\"",
    );
    let Came::Through(mut first) = door.call(&who("first"), "guest_list").await.0 else {
        panic!("the first call meets no limit");
    };
    first.sent();
    let waiting = calls(&door, 5);
    tokio::time::sleep(Duration::from_secs(1)).await;
    advance(Duration::from_secs(3_600)).await;
    let stepped = Instant::now();
    // Their slot is free before they are checked, but their deadline passed long ago.
    first.finish(Outcome::Served);
    for ended in waiting.join_all().await {
        assert_eq!(ended, Err(Reason::DeadlinePassed));
    }
    assert!(
        stepped.elapsed() < Duration::from_millis(10),
        "{:?}",
        stepped.elapsed()
    );
    let next = calls(&door, 1).join_all().await;
    assert!(next[0].is_ok(), "{next:?}");
}
