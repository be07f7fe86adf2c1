//! The exact window: at most 5 in any 100 ms, whatever the arrivals.
//!
//! `cargo run -p tidegate-limits --example window`

#![expect(clippy::disallowed_methods, reason = "an example without tasks")]

use std::time::Duration;

use tidegate_limits::clock::{Clock, MonotonicClock};
use tidegate_limits::{Cost, NotNow, SlidingWindow};

fn main() {
    let clock = MonotonicClock::new();
    let mut window = SlidingWindow::new(5, Duration::from_millis(100));
    for call in 1..=12 {
        loop {
            let now = clock.now();
            match window.try_take(now, Cost::ONE) {
                Ok(()) => break println!("{:>4} ms: call {call}", now.as_nanos() / 1_000_000),
                Err(NotNow::NotBefore(free)) => std::thread::sleep(free.since(now)),
                Err(never) => unreachable!("a cost of 1 is below the limit: {never}"),
            }
        }
    }
}
