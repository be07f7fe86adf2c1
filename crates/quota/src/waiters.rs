//! The tasks that wait for news of keys, for stores that report many keys over one connection.

use std::collections::HashMap;
use std::sync::Mutex;

use tidegate_runtime::lock;
use tokio::sync::oneshot;

use super::RecordKey;

/// The waiting tasks. A dropped one is removed at the next check of its key.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<HashMap<RecordKey, Vec<oneshot::Sender<()>>>>);

impl Waiters {
    /// Waits for the next news of a key after this call; misses none.
    pub(super) fn wait(&self, key: &RecordKey) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let mut all = lock(&self.0);
        let waiters = all.entry(key.clone()).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(tell);
        told
    }

    /// Reports news of a key.
    pub(super) fn tell(&self, key: &RecordKey) {
        for waiter in lock(&self.0).remove(key).unwrap_or_default() {
            // An error means that the task no longer waits.
            let _ = waiter.send(());
        }
    }

    /// Reports possible news of every key.
    pub(super) fn tell_all(&self) {
        for waiter in lock(&self.0).drain().flat_map(|(_, waiters)| waiters) {
            let _ = waiter.send(());
        }
    }

    /// The keys for which tasks wait.
    pub(super) fn waited_for(&self) -> Vec<RecordKey> {
        let mut all = lock(&self.0);
        all.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
        all.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_reach_exactly_those_that_wait_for_the_key() {
        let waiters = Waiters::default();
        let [a, b] = ["a", "b"].map(|id| RecordKey::new(id).expect("it is a key"));
        let mut first = waiters.wait(&a);
        let mut second = waiters.wait(&a);
        let mut other = waiters.wait(&b);
        waiters.tell(&a);
        assert!(first.try_recv().is_ok() && second.try_recv().is_ok());
        assert!(other.try_recv().is_err());
        assert_eq!(waiters.waited_for(), [b]);
        waiters.tell_all();
        assert!(other.try_recv().is_ok() && waiters.waited_for().is_empty());
    }

    #[test]
    fn a_waiter_that_leaves_is_removed() {
        let waiters = Waiters::default();
        let a = RecordKey::new("a").expect("it is a key");
        drop(waiters.wait(&a));
        assert!(waiters.waited_for().is_empty());
    }
}
