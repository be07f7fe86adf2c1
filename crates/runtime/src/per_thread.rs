//! Values that each thread keeps for itself, and others only read or add up.
//!
//! Memory that two threads write moves from one processor to the other with each write, which can cost more than
//! what is done with it. So what calls write often is kept for each thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::lock;

/// The most threads with a value of their own. Others share these.
const SLOTS: usize = 8;

/// A value for each thread.
///
/// A thread locks its own, and nearly always alone. A look at the values of all threads locks one after the other,
/// and never two.
#[derive(Debug, Default)]
pub struct PerThread<T>([ThreadSlot<T>; SLOTS]);

/// On lines of its own, two of which a processor may fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadSlot<T>(Mutex<T>);

impl<T> PerThread<T> {
    /// The value of this thread.
    pub fn own(&self) -> MutexGuard<'_, T> {
        lock(&self.0[number() % SLOTS].0)
    }

    /// Looks at the value of every thread, that of this one first.
    pub fn each<R>(&self, mut look: impl FnMut(&mut T) -> R) -> impl Iterator<Item = R> {
        let own = NUMBER.get().unwrap_or_default() % SLOTS;
        let (before, from) = self.0.split_at(own);
        let slots = from.iter().chain(before);
        slots.map(move |slot| look(&mut *lock(&slot.0)))
    }
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Numbers threads that have values of their own, in the order in which they first ask.
fn number() -> usize {
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_their_own_and_all_are_read() {
        let counts = PerThread::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SLOTS {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *counts.own() += 1;
                    }
                });
            }
        });
        let all: Vec<u64> = counts.each(|count| *count).collect();
        assert_eq!(all.iter().sum::<u64>(), 2 * SLOTS as u64 * 1000);
        assert!(
            all.iter().filter(|count| **count > 0).count() > 1,
            "{all:?}"
        );
    }

    #[test]
    fn that_of_a_thread_stays_its_own_and_comes_first() {
        let names = PerThread::<String>::default();
        names.own().push_str("mine");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*names.own(), ""));
        });
        assert_eq!(*names.own(), "mine");
        let all: Vec<String> = names.each(|name| name.clone()).collect();
        assert_eq!((&*all[0], all.len()), ("mine", SLOTS));
    }
}
