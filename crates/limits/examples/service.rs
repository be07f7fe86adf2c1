//! A limit in front of a tower service: at most 2 calls at once and 4 in any 100 ms.
//!
//! `cargo run -p tidegate-limits --example service --features tower`

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tidegate_limits::policy::LimitRule;
use tidegate_limits::tower::LimitLayer;
use tidegate_limits::{Call, Limit, Policy};
use tower_layer::Layer;
use tower_service::Service;

/// Any service.
#[derive(Clone)]
struct Hello;

impl Service<&'static str> for Hello {
    type Response = String;
    type Error = Infallible;
    type Future = Ready<Result<String, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: &'static str) -> Self::Future {
        ready(Ok(format!("hello {name}")))
    }
}

fn main() {
    let policy = Policy::builder()
        .limit(LimitRule::new("slots", Limit::Outstanding { max: 2 }))
        .limit(LimitRule::new(
            "rate",
            Limit::sliding(4, Duration::from_millis(100)),
        ))
        .build();
    let layer = LimitLayer::new(policy.expect("a valid policy"), |_: &&'static str, now| {
        Call::new("hello", now).deadline(now + Duration::from_secs(10))
    });
    let mut service = layer.layer(Hello);
    let begun = Instant::now();
    for _ in 0..6 {
        let reply = block_on(service.call("world"));
        println!("{:>3} ms: {reply:?}", begun.elapsed().as_millis());
    }
    assert!(begun.elapsed() >= Duration::from_millis(100));
}

/// Any executor. This one runs a future in the present thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
