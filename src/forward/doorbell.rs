//! The waker of an HTTP connection that its own exchange drives.
//!
//! hyper passes messages between a connection and its request through channels, and each message
//! wakes the receiver. Here one task polls both sides, one after the other. Such a wake-up would
//! only poll everything once more: twice a call.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use tidegate_runtime::lock;

thread_local! {
    /// Whether this thread polls the request's side of an exchange. Wake-ups in this time are
    /// caused by the task itself. The reactor never runs on the same thread in between.
    static OWN_DOING: Cell<bool> = const { Cell::new(false) };
}

/// Wakes the task that drives a connection, except for wake-ups that the task itself causes.
#[derive(Debug, Default)]
pub(super) struct Doorbell {
    task: Mutex<Option<Waker>>,
    /// Whether it has rung since the last `has_rung`.
    rung: AtomicBool,
}

impl Doorbell {
    /// From now on it wakes this task.
    pub(super) fn belongs_to(&self, cx: &Context<'_>) {
        let mut task = lock(&self.task);
        match task.as_mut() {
            Some(task) => task.clone_from(cx.waker()),
            None => *task = Some(cx.waker().clone()),
        }
    }

    /// Whether it has rung since the last call of this.
    pub(super) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire) && self.rung.swap(false, Ordering::Acquire)
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if OWN_DOING.get() {
            return;
        }
        // Before the task runs and calls `has_rung`.
        self.rung.store(true, Ordering::Release);
        let task = lock(&self.task);
        if let Some(task) = task.as_ref() {
            task.wake_by_ref();
        }
    }
}

/// Does something on the request's side of an exchange without a wake-up. The connection's side
/// must be polled before the task sleeps.
pub(super) fn quietly<R>(act: impl FnOnce() -> R) -> R {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            OWN_DOING.set(false);
        }
    }
    OWN_DOING.set(true);
    let _over = Over;
    act()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_rings_for_other_tasks_and_not_for_its_own() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let doorbell = Arc::new(Doorbell::default());
        doorbell.belongs_to(&Context::from_waker(&waker));
        let bell = Waker::from(Arc::clone(&doorbell));
        quietly(|| bell.wake_by_ref());
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        assert!(!doorbell.has_rung());
        // Another thread always counts as another task.
        quietly(|| {
            std::thread::scope(|threads| {
                threads.spawn(|| bell.wake_by_ref());
            });
        });
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(doorbell.has_rung());
        assert!(!doorbell.has_rung());
        bell.wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    }
}
