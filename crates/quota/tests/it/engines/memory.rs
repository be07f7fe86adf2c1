//! The store in memory.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::quota::RecordVersion;
use tidegate_quota::memory::Memory;
use tidegate_quota::{QuotaStore, SwapResult};
use tidegate_runtime::Clock;

use super::{KEPT, Node, entry, key};

#[tokio::test]
async fn memory_conforms() {
    let (memory, clock) = (Memory::default(), Clock::of_runtime());
    super::conforms("memory", || Node {
        store: Arc::new(memory.node()),
        clock,
    })
    .await;
}

#[tokio::test]
async fn a_record_that_another_program_sets_or_removes_never_has_an_earlier_version() {
    let (memory, key) = (Memory::default(), key("a"));
    let node = memory.node();
    for (expected, version) in [(None, 1), (Some(RecordVersion(1)), 2)] {
        let swapped = node.compare_and_set(&key, expected, b"1", KEPT).await;
        assert_eq!(
            swapped.expect("it is up"),
            SwapResult::Done(RecordVersion(version))
        );
    }
    memory.tamper(&key, Some(b"12"));
    let found = node.get(&key).await.expect("it is up");
    assert_eq!(found, entry(RecordVersion(3), "12"));
    memory.tamper(&key, None);
    assert_eq!(node.get(&key).await.expect("it is up"), None);
    // Made again, it does not pass for what it was.
    let made = node.compare_and_set(&key, None, b"3", KEPT).await;
    assert_eq!(made.expect("it is up"), SwapResult::Done(RecordVersion(4)));
}

#[tokio::test(start_paused = true)]
async fn memorys_time_is_the_processs_own() {
    let (node, clock) = (Memory::default().node(), Clock::of_runtime());
    tokio::time::advance(Duration::from_secs(86_400)).await;
    let now = node.now(clock.now());
    assert_eq!(now.width(), Duration::ZERO, "it does not drift from itself");
    assert_eq!(now.earliest(), Duration::from_secs(86_400));
}
