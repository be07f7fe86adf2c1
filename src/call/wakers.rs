//! Wakes every task of a call or a connection at the end of a drain, also those whose backend says nothing.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use tidegate_runtime::lock;

/// The wakers of tasks. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct TaskWakers(Arc<Mutex<Slab<Waker>>>);

impl TaskWakers {
    /// Polls every watched task once more.
    pub fn wake_all(&self) {
        // Woken without the lock: a task that ends at once takes its waker out.
        let wakers: Vec<Waker> = lock(&self.0).iter().map(|(_, it)| it.clone()).collect();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Adds a task, which is the whole future of a task of the runtime: such a task has one waker as long as it lives.
    pub fn watch<F>(&self, task: F) -> WatchedTask<F> {
        WatchedTask {
            task,
            key: None,
            wakers: self.clone(),
        }
    }
}

/// A task that is woken with all others. Its waker is known from its first poll on.
pub struct WatchedTask<F> {
    task: F,
    key: Option<u32>,
    wakers: TaskWakers,
}

impl<F: Future + Unpin> Future for WatchedTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.key.is_none() {
            let key = lock(&self.wakers.0).insert(cx.waker().clone());
            self.key = Some(key as u32);
        }
        Pin::new(&mut self.task).poll(cx)
    }
}

impl<F> Drop for WatchedTask<F> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // Dropped without the lock: it may be the last owner of the task.
            let waker = lock(&self.wakers.0).try_remove(key as usize);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn it_wakes_what_was_polled_and_has_not_ended() {
        let wakers = TaskWakers::default();
        let ending_at = |last: usize| {
            let mut polls = 0;
            let task = poll_fn(move |_| {
                polls += 1;
                match polls == last {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            tokio::spawn(wakers.watch(task))
        };
        let (second, third) = (ending_at(2), ending_at(3));
        tokio::task::yield_now().await;
        wakers.wake_all();
        second.await.expect("it does not panic");
        assert!(!third.is_finished());
        assert_eq!(lock(&wakers.0).len(), 1);
        wakers.wake_all();
        third.await.expect("it does not panic");
        assert_eq!(lock(&wakers.0).len(), 0);
    }
}
