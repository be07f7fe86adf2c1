//! The calls that wait for keys.

use core::hash::Hash;
use core::task::Waker;
use std::collections::{HashMap, VecDeque};

use super::error::KeyError;

/// The most calls that wait at once, for all keys of a set together.
pub const WAITING_MAX: usize = 65_536;

/// The calls that wait, by key, in the order of arrival.
#[derive(Debug)]
pub(super) struct KeyQueues<K> {
    by_key: HashMap<K, VecDeque<(u64, Waker)>>,
    waiting: usize,
    next: u64,
}

impl<K> Default for KeyQueues<K> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            waiting: 0,
            next: 0,
        }
    }
}

impl<K: Hash + Eq> KeyQueues<K> {
    /// A call begins to wait behind the others of its key. Returns its number.
    pub(super) fn join(&mut self, key: K, waker: Waker) -> Result<u64, KeyError> {
        if self.waiting >= WAITING_MAX {
            return Err(KeyError::TooManyWait { max: WAITING_MAX });
        }
        self.waiting += 1;
        self.next += 1;
        let queue = self.by_key.entry(key).or_default();
        queue.push_back((self.next, waker));
        Ok(self.next)
    }

    /// Whether a call is the first of its key. Otherwise it is woken when it is.
    pub(super) fn is_first(&mut self, key: &K, number: u64, waker: &Waker) -> bool {
        let queue = self.by_key.get_mut(key).expect(STANDS);
        let at = queue.binary_search_by_key(&number, |&(number, _)| number);
        let at = at.expect(STANDS);
        queue[at].1.clone_from(waker);
        at == 0
    }

    /// A call waits no more. Returns the next one of its key, if that is the first now.
    pub(super) fn leave(&mut self, key: &K, number: u64) -> Option<Waker> {
        let queue = self.by_key.get_mut(key).expect(STANDS);
        let at = queue.binary_search_by_key(&number, |&(number, _)| number);
        let at = at.expect(STANDS);
        queue.remove(at);
        self.waiting -= 1;
        let Some((_, next)) = queue.front() else {
            self.by_key.remove(key);
            return None;
        };
        (at == 0).then(|| next.clone())
    }
}

const STANDS: &str = "a call stands in the queue of its key until it leaves";
