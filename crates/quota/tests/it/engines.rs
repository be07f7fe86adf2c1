//! The stores of quota records: their common behaviour, on real servers, and what each does when
//! its server is unavailable, slow, of another kind or wants a password.

mod etcd;
mod memory;
mod redis;
mod secured;
mod zookeeper;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_limits::quota::{QuotaRecord, RecordVersion, StoreTime, StoredRecord};
use tidegate_quota::{QuotaStore, RecordKey, StoreEntry, StoreError, SwapResult};
use tidegate_runtime::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::PATIENCE;

/// So long that no store removes anything, by whatever time it has.
const KEPT: Duration = Duration::from_secs(1 << 32);

/// A node, and the clock that it tells the time by.
#[derive(Clone)]
struct Node {
    store: Arc<dyn QuotaStore>,
    clock: Clock,
}

impl Node {
    fn new<S: QuotaStore + 'static>(start: impl FnOnce(Clock) -> S) -> Self {
        let clock = Clock::of_runtime();
        let store = Arc::new(start(clock));
        Self { store, clock }
    }

    async fn get(&self, key: &RecordKey) -> Option<StoreEntry> {
        self.store.get(key).await.expect("the store is up")
    }

    async fn try_swap(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &str,
    ) -> Result<SwapResult, StoreError> {
        let text = text.as_bytes();
        let store = &self.store;
        store.compare_and_set(key, expected, text, KEPT).await
    }

    /// Writes a key that no other client has, which the store keeps for this long.
    async fn put_for(&self, key: &RecordKey, text: &str, kept: Duration) -> RecordVersion {
        let until = self.now().latest() + kept;
        let put = self
            .store
            .compare_and_set(key, None, text.as_bytes(), until);
        match put.await {
            Ok(SwapResult::Done(version)) => version,
            other => panic!("{key} is new: {other:?}"),
        }
    }

    async fn swap(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &str,
    ) -> SwapResult {
        let swapped = self.try_swap(key, expected, text).await;
        swapped.expect("the store is up")
    }

    /// Writes one key, which must be done.
    async fn put(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &str,
    ) -> RecordVersion {
        let SwapResult::Done(version) = self.swap(key, expected, text).await else {
            panic!("{key} holds something else than {expected:?}");
        };
        version
    }

    /// Waits until the store's clock is known.
    async fn in_time(&self) {
        let mut time = self.store.time();
        let known = |time: &StoreTime| time.latest() < Duration::MAX;
        until("the time is known", &mut time, known).await;
    }

    fn now(&self) -> StoreTime {
        self.store.now(self.clock.now())
    }
}

async fn until<T: Clone>(what: &str, told: &mut watch::Receiver<T>, is: impl FnMut(&T) -> bool) {
    let told = tokio::time::timeout(PATIENCE, told.wait_for(is)).await;
    let told = told.unwrap_or_else(|_| panic!("never: {what}"));
    told.expect("the store tells for as long as it lives");
}

/// Waits until the store answers its heartbeat again, which tells the time.
async fn comes_back(node: &Node) {
    let mut time = node.store.time();
    let asked = node.clock.now();
    let later = |time: &StoreTime| time.now() > asked;
    until("the store is back", &mut time, later).await;
}

fn key(id: &str) -> RecordKey {
    RecordKey::new(id).expect("it is a key")
}

fn entry(version: RecordVersion, text: &str) -> Option<StoreEntry> {
    let text = text.as_bytes().to_vec();
    Some(StoreEntry { version, text })
}

/// Checks the promises of every store.
async fn conforms(name: &str, start: impl Fn() -> Node) {
    let node = start();
    node.in_time().await;
    a_record_is_written_only_over_the_version_that_is_named(&node).await;
    a_foreign_record_is_returned_unchanged(&node).await;
    any_id_has_a_record_of_its_own(&node).await;
    a_change_wakes_those_that_wait_for_it(&start).await;
    no_update_is_lost_among_eight(name, &start).await;
    all_nodes_agree_on_the_time(name, &start).await;
    drop(node);
    members_are_counted_while_they_live(&start).await;
}

async fn a_record_is_written_only_over_the_version_that_is_named(node: &Node) {
    let key = key("laws");
    assert_eq!(node.get(&key).await, None);
    let over_nothing = node.swap(&key, Some(RecordVersion(7)), "a").await;
    assert_eq!(over_nothing, SwapResult::Conflict(None));
    let first = node.put(&key, None, "a").await;
    assert_eq!(node.get(&key).await, entry(first, "a"));
    // The refusal contains the current record.
    let made_twice = node.swap(&key, None, "b").await;
    assert_eq!(made_twice, SwapResult::Conflict(entry(first, "a")));
    let second = node.put(&key, Some(first), "").await;
    assert_ne!(second, first);
    let stale = node.swap(&key, Some(first), "c").await;
    assert_eq!(stale, SwapResult::Conflict(entry(second, "")));
    // The same text is another write.
    let third = node.put(&key, Some(second), "").await;
    assert_ne!(third, second);
}

async fn a_foreign_record_is_returned_unchanged(node: &Node) {
    let key = key("garbage");
    let record = QuotaRecord::new(1, 5, 10, 0, Duration::from_secs(1)).expect("it is one");
    let mut version = None;
    for (text, readable) in [
        (record.to_string().into_bytes(), true),
        (b"\xff\0\xfe".to_vec(), false),
        (b"12".to_vec(), false),
        (b"tidegate 2 window=1".to_vec(), false),
        (Vec::new(), false),
        (vec![b'x'; 100_000], false),
    ] {
        let swapped = node.store.compare_and_set(&key, version, &text, KEPT);
        let swapped = swapped.await;
        let Ok(SwapResult::Done(written)) = swapped else {
            panic!("it stands as expected: {swapped:?}");
        };
        let found = node.get(&key).await;
        version = Some(written);
        let told = found.as_ref().expect("it was written");
        assert_eq!((Some(told.version), &told.text), (version, &text));
        match StoreEntry::standing(found.as_ref()) {
            StoredRecord::Record { record: found, .. } => assert!(readable && found == record),
            StoredRecord::Unreadable { .. } => assert!(!readable),
            StoredRecord::Absent => panic!("it was written"),
        }
    }
    assert_eq!(StoreEntry::standing(None), StoredRecord::Absent);
}

async fn any_id_has_a_record_of_its_own(node: &Node) {
    let longest = "\u{fc}".repeat(RecordKey::BYTES_MAX / 2);
    let ids = [
        "a", "A", "a/b", "a%2Fb", ".", "..", "\0", "\n", "{a}", "*", " ", "window", &longest,
    ];
    let keys = ids.map(key);
    for (key, id) in keys.iter().zip(ids) {
        assert_eq!(node.get(key).await, None, "{key}");
        node.put(key, None, id).await;
    }
    for (key, id) in keys.iter().zip(ids) {
        let found = node.get(key).await;
        assert_eq!(found.expect("it was written").text, id.as_bytes());
    }
}

async fn a_change_wakes_those_that_wait_for_it(start: &impl Fn() -> Node) {
    let [watcher, writer] = [start(), start()];
    let [key, other] = [key("watched"), key("not watched")];
    let wait = |since| {
        let (watcher, key) = (watcher.clone(), key.clone());
        tokio::spawn(async move { watcher.store.changed(&key, since).await })
    };
    let told = async |waiting: tokio::task::JoinHandle<Result<(), StoreError>>| {
        let told = tokio::time::timeout(PATIENCE, waiting).await;
        let told = told.expect("it is reported").expect("it does not panic");
        told.expect("the store is up");
    };
    let waiting = wait(None);
    let mut version = writer.put(&key, None, "0").await;
    told(waiting).await;
    let mut of_other = writer.put(&other, None, "0").await;
    for round in 1..=5 {
        let waiting = [wait(Some(version)), wait(Some(version))];
        let early = wait(Some(version));
        let text = round.to_string();
        // Something else changes, which is nothing to them, and then what they wait for.
        of_other = writer.put(&other, Some(of_other), &text).await;
        early.abort();
        let old = version;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        version = writer.put(&key, Some(version), &text).await;
        for waiting in waiting {
            told(waiting).await;
        }
        // An earlier change is reported at once.
        told(wait(Some(old))).await;
        told(wait(None)).await;
    }
}

/// Eight nodes count in one record, each 25 times.
async fn no_update_is_lost_among_eight(name: &str, start: &impl Fn() -> Node) {
    const NODES: u32 = 8;
    const EACH: u32 = 25;
    let key = key("counted");
    let began = Instant::now();
    let mut nodes = JoinSet::new();
    for _ in 0..NODES {
        let (node, key) = (start(), key.clone());
        nodes.spawn(async move {
            let (mut known, mut conflicts) = (node.get(&key).await, 0);
            for _ in 0..EACH {
                loop {
                    let count = known.as_ref().map_or(0, count);
                    let version = known.as_ref().map(|entry| entry.version);
                    let text = (count + 1).to_string();
                    match node.swap(&key, version, &text).await {
                        SwapResult::Done(version) => {
                            known = entry(version, &text);
                            break;
                        }
                        SwapResult::Conflict(stands) => {
                            conflicts += 1;
                            known = stands;
                        }
                    }
                }
            }
            conflicts
        });
    }
    let conflicts: u32 = nodes.join_all().await.into_iter().sum();
    let took = began.elapsed();
    let total = NODES * EACH;
    println!("{name}: {total} writes of one record by {NODES}: {conflicts} conflicts, {took:?}");
    let found = start().get(&key).await.expect("it was written");
    assert_eq!(count(&found), total);
}

fn count(entry: &StoreEntry) -> u32 {
    let text = str::from_utf8(&entry.text).expect("it is a number");
    text.parse().expect("it is a number")
}

/// Three nodes: what they take the time for overlaps, and goes by as their own time does.
async fn all_nodes_agree_on_the_time(name: &str, start: &impl Fn() -> Node) {
    let nodes = [start(), start(), start()];
    for node in &nodes {
        node.in_time().await;
    }
    let widths = nodes.each_ref().map(|node| node.now().width());
    println!("{name}: the store's time is known to {widths:?}");
    for one in &nodes {
        for other in &nodes {
            // Read one after the other, and meanwhile time goes by.
            let began = Instant::now();
            let (first, second) = (one.now(), other.now());
            assert!(first.earliest() <= second.latest());
            assert!(second.earliest() <= first.latest() + began.elapsed());
        }
    }
    // What is learned later does not contradict it: writes bring news of the time, or time does.
    let before = nodes[0].now();
    let mut version = None;
    for _ in 0..5 {
        version = Some(nodes[0].put(&key("time"), version, "").await);
        let now = nodes[0].now();
        let expected = before.at(now.now());
        assert!(now.earliest() <= expected.latest() && expected.earliest() <= now.latest());
    }
}

/// Checks that a store whose servers tell the time of this machine returns the right time.
fn contains_the_time_of_day(node: &Node) {
    use std::time::{SystemTime, UNIX_EPOCH};
    let wall = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.expect("it is after 1970")
    };
    let before = wall();
    let told = node.now();
    let after = wall();
    assert!(told.earliest() <= after, "{told:?}, {after:?}");
    assert!(told.latest() >= before, "{told:?}, {before:?}");
    assert!(told.width() < PATIENCE, "{told:?}");
}

async fn members_are_counted_while_they_live(start: &impl Fn() -> Node) {
    let first = start();
    let mut members = first.store.members();
    until("one is alone", &mut members, |count| *count == 1).await;
    let others = [start(), start()];
    until("three are counted", &mut members, |count| *count == 3).await;
    for other in &others {
        let mut members = other.store.members();
        until("each counts three", &mut members, |count| *count == 3).await;
    }
    drop(others);
    until("it is alone again", &mut members, |count| *count == 1).await;
}

/// A call that fails because the store is unavailable reports it in time.
async fn is_unavailable(node: &Node, within: Duration) {
    let began = Instant::now();
    let read = node.store.get(&key("away")).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    let took = began.elapsed();
    // The machine is shared.
    assert!(took < within + Duration::from_millis(500), "{took:?}");
    let key = key("away");
    let waiting = node.store.changed(&key, None);
    let waiting = tokio::time::timeout(PATIENCE, waiting).await;
    let waiting = waiting.expect("no call waits for an unavailable store");
    assert!(
        matches!(waiting, Err(StoreError::Unavailable(_))),
        "{waiting:?}"
    );
}

/// While something is done to the servers, four nodes count in one record. What is confirmed is
/// never lost, and nothing else is added but what was left open.
async fn nothing_confirmed_is_lost(
    name: &str,
    start: impl Fn() -> Node,
    disturb: impl AsyncFnOnce(),
) {
    let key = key("disturbed");
    let (stop, stopped) = watch::channel(false);
    let (tell, mut told) = watch::channel(0_u64);
    let mut nodes = JoinSet::new();
    for _ in 0..4 {
        let (node, key) = (start(), key.clone());
        let (stopped, tell) = (stopped.clone(), tell.clone());
        nodes.spawn(async move {
            let (mut done, mut open) = (0, 0);
            let mut known = None;
            while !*stopped.borrow() {
                let count = known.as_ref().map_or(0, count);
                let version = known.as_ref().map(|entry: &StoreEntry| entry.version);
                let text = (count + 1).to_string();
                match node.try_swap(&key, version, &text).await {
                    Ok(SwapResult::Done(version)) => {
                        known = entry(version, &text);
                        done += 1;
                        tell.send_modify(|count| *count += 1);
                        // A node draws a few times a second. At full speed these four would keep each other, and the
                        // news of a fail-over, waiting for a processor.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Ok(SwapResult::Conflict(stands)) => known = stands,
                    Err(error) => {
                        open += u32::from(error.is_open());
                        // It fails at once during an outage; other tasks must run.
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            (done, open)
        });
    }
    until("writes are done", &mut told, |count| *count > 20).await;
    disturb().await;
    let so_far = *told.borrow_and_update();
    let go_on = |count: &u64| *count > so_far + 20;
    until("writes are done again", &mut told, go_on).await;
    stop.send_replace(true);
    let sums = nodes.join_all().await;
    let done: u32 = sums.iter().map(|(done, _)| done).sum();
    let open: u32 = sums.iter().map(|(_, open)| open).sum();
    let found = start().get(&key).await.expect("it was written");
    let counted = count(&found);
    println!("{name}: {done} writes were confirmed and {open} left open, {counted} were counted");
    assert!(done <= counted && counted <= done + open);
}

/// A server that answers whatever it is sent with the same bytes, and then closes.
async fn answers(bytes: &'static [u8]) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port is free");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // A client that has left needs no answer.
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(bytes).await;
                let _ = stream.shutdown().await;
                // Closed with unread bytes, the connection would be reset and the answer lost.
                while stream
                    .read(&mut [0; 4096])
                    .await
                    .is_ok_and(|count| count > 0)
                {}
            });
        }
    });
    addr
}
