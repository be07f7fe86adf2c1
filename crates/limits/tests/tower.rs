//! The tower layer: calls wait for their turn, and what a cancelled call has drawn comes back.
#![cfg(feature = "tower")]

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::RefusalReason;
use tidegate_limits::tower::{LimitError, LimitLayer};
use tidegate_limits::{Call, Limit, Policy, Timestamp};
use tower_layer::Layer;
use tower_service::Service;

/// A service whose calls end when it is opened.
#[derive(Clone, Default)]
struct Backend {
    called: Arc<AtomicUsize>,
    open: Arc<Mutex<bool>>,
}

struct Reply(Arc<Mutex<bool>>);

impl Future for Reply {
    type Output = Result<&'static str, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if *self.0.lock().expect("no panic") {
            Poll::Ready(Ok("reply"))
        } else {
            Poll::Pending
        }
    }
}

impl Service<Duration> for Backend {
    type Response = &'static str;
    type Error = Infallible;
    type Future = Reply;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Duration) -> Reply {
        self.called.fetch_add(1, SeqCst);
        Reply(Arc::clone(&self.open))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Polls when woken, for up to five seconds.
fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "it is never woken"
        );
        thread::park_timeout(Duration::from_secs(5));
    }
}

/// The request is the time until the deadline.
fn call(deadline: &Duration, now: Timestamp) -> Call {
    Call::new("any", now).deadline(now + *deadline)
}

fn policy(limit: Limit) -> Policy {
    let policy = Policy::builder().limit(LimitRule::new("limit", limit));
    policy.capacity(2).build().expect("a valid policy")
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_call_waits_until_the_one_before_it_has_ended() {
    let backend = Backend::default();
    let layer = LimitLayer::new(policy(Limit::Outstanding { max: 1 }), call);
    let mut service = layer.layer(backend.clone());
    let (mut first, mut second) = (service.call(LONG), service.call(LONG));
    assert!(poll(&mut first).is_pending());
    assert!(poll(&mut second).is_pending());
    assert_eq!(backend.called.load(SeqCst), 1);
    *backend.open.lock().expect("no panic") = true;
    assert_eq!(wait(first), Ok("reply"));
    assert_eq!(wait(second), Ok("reply"));
    assert_eq!(backend.called.load(SeqCst), 2);
}

#[test]
fn a_cancelled_call_gives_its_slot_back_at_every_stage() {
    let backend = Backend::default();
    let layer = LimitLayer::new(policy(Limit::Outstanding { max: 1 }), call);
    let mut service = layer.layer(backend.clone());
    // Its turn has come, but it was never polled.
    let granted = service.call(LONG);
    let waiting = service.call(LONG);
    let mut last = service.call(LONG);
    drop(waiting);
    drop(granted);
    assert!(poll(&mut last).is_pending());
    assert_eq!(backend.called.load(SeqCst), 1);
    // The backend was called.
    drop(last);
    let mut next = service.call(LONG);
    assert!(poll(&mut next).is_pending());
    assert_eq!(backend.called.load(SeqCst), 2);
}

#[test]
fn a_window_opens_by_the_clock() {
    let backend = Backend::default();
    *backend.open.lock().expect("no panic") = true;
    let window = Limit::sliding(1, Duration::from_millis(50));
    let mut service = LimitLayer::new(policy(window), call).layer(backend);
    let begun = Instant::now();
    let (first, second) = (service.call(LONG), service.call(LONG));
    assert_eq!(wait(first), Ok("reply"));
    assert_eq!(wait(second), Ok("reply"));
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[test]
fn a_call_is_refused_by_a_full_queue_and_at_its_deadline() {
    let backend = Backend::default();
    let layer = LimitLayer::new(policy(Limit::Outstanding { max: 1 }), call);
    let mut service = layer.layer(backend.clone());
    let mut first = service.call(LONG);
    assert!(poll(&mut first).is_pending());
    let short = service.call(Duration::from_millis(20));
    let _waiting = service.call(LONG);
    let reason = |result| match result {
        Err(LimitError::Refused(refusal)) => refusal.reason,
        other => panic!("it is refused, not {other:?}"),
    };
    assert_eq!(reason(wait(service.call(LONG))), RefusalReason::QueueFull);
    assert_eq!(reason(wait(short)), RefusalReason::DeadlinePassed);
    assert_eq!(backend.called.load(SeqCst), 1);
}

#[test]
fn a_call_holds_its_slot_from_the_moment_at_which_it_was_made() {
    let backend = Backend::default();
    *backend.open.lock().expect("no panic") = true;
    let layer = LimitLayer::new(policy(Limit::Outstanding { max: 1 }), call);
    let mut service = layer.layer(backend.clone());
    let (first, mut second) = (service.call(LONG), service.call(LONG));
    assert!(poll(&mut second).is_pending());
    // The inner service waits for a poll.
    assert_eq!(backend.called.load(SeqCst), 0);
    drop(first);
    assert_eq!(wait(second), Ok("reply"));
}

#[test]
fn a_reload_refuses_only_waiting_calls_that_can_never_run_and_names_no_time_to_retry() {
    let backend = Backend::default();
    let layer = LimitLayer::new(policy(Limit::Outstanding { max: 1 }), call);
    let mut service = layer.layer(backend.clone());
    let (mut first, mut second) = (service.call(LONG), service.call(LONG));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    layer.apply(policy(Limit::Outstanding { max: 2 }));
    assert!(poll(&mut second).is_pending());
    assert_eq!(backend.called.load(SeqCst), 2, "it has kept its turn");
    let third = service.call(LONG);
    layer.apply(policy(Limit::Outstanding { max: 0 }));
    let error = wait(third).expect_err("it can never run");
    assert_eq!(error.to_string(), "the call was refused (never_possible)");
}
