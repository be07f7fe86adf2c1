//! The store in memory, and its scripted faults.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::quota::{StoreTime, Version};
use tidegate_quota::memory::{Fault, Memory};
use tidegate_quota::{Error, QuotaStore, Swapped};
use tidegate_runtime::Clock;

use super::{Node, entry, key, write};

#[tokio::test]
async fn memory_conforms() {
    let (memory, clock) = (Memory::new(), Clock::start());
    super::conforms("memory", || Node {
        store: Arc::new(memory.node()),
        clock,
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn memory_fails_as_configured_and_in_that_order() {
    let memory = Memory::new();
    let node = memory.node();
    let key = key("a");
    let keys = [key.clone()];
    let write = |expected, text| [write(&key, expected, text)];
    node.fail_next([Fault::Away, Fault::RequestLost, Fault::ReplyLost]);
    let away = node.compare_and_set(&write(None, "1")).await;
    assert!(matches!(away, Err(Error::Unavailable(_))), "{away:?}");
    let lost = node.compare_and_set(&write(None, "1")).await;
    assert!(lost.is_err_and(|error| error.is_open()));
    let nothing = memory.node().get(&keys).await.expect("it has no faults");
    assert_eq!(nothing, [None]);
    let lost = node.compare_and_set(&write(None, "1")).await;
    assert!(lost.is_err_and(|error| error.is_open()));
    let found = node.get(&keys).await.expect("its faults are over");
    assert_eq!(found, [entry(Version(1), "1")]);

    let second = node.compare_and_set(&write(Some(Version(1)), "2")).await;
    assert!(matches!(second, Ok(Swapped::Done(_))));
    node.fail_next([Fault::Stale, Fault::Slow(Duration::from_secs(3))]);
    let stale = node.get(&keys).await.expect("it is only stale");
    assert_eq!(stale, [entry(Version(1), "1")]);
    let began = tokio::time::Instant::now();
    let late = node.get(&keys).await.expect("it is only slow");
    assert_eq!(late, [entry(Version(2), "2")]);
    assert_eq!(began.elapsed(), Duration::from_secs(3));

    memory.tamper(&key, Some(b"12"));
    let found = node.get(&keys).await.expect("it is up");
    assert_eq!(found, [entry(Version(3), "12")]);
    memory.tamper(&key, None);
    assert_eq!(node.get(&keys).await.expect("it is up"), [None]);
    // Made again, it does not pass for what it was.
    let made = node.compare_and_set(&write(None, "3")).await;
    assert_eq!(made.expect("it is up"), Swapped::Done(vec![Version(4)]));
}

#[tokio::test(start_paused = true)]
async fn memorys_time_is_the_processs_own_until_it_is_set() {
    let (node, clock) = (Memory::new().node(), Clock::start());
    tokio::time::advance(Duration::from_secs(86_400)).await;
    let now = node.now(clock.now());
    assert_eq!(now.width(), Duration::ZERO, "it does not drift from itself");
    assert_eq!(now.earliest(), Duration::from_secs(86_400));
    let wrong = StoreTime::between(clock.now(), Duration::from_secs(5), Duration::from_secs(6));
    node.set_time(wrong);
    assert_eq!(node.now(clock.now()), wrong);
}
