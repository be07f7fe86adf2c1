//! A scheduler behind one lock in a small threaded program: two callers share a limit by turns.
//!
//! `cargo run -p tidegate-limits --example queue`

#![expect(clippy::disallowed_methods, reason = "an example without tasks")]

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tidegate_limits::clock::{Clock, MonotonicClock};
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Caller, Limit, Policy, Scheduler, Step, Timestamp};

/// Jobs to run, and workers that run them.
struct Queue {
    scheduler: Mutex<Scheduler<&'static str>>,
    changed: Condvar,
    clock: MonotonicClock,
}

impl Queue {
    fn submit(&self, caller: Caller, job: &'static str) {
        let mut scheduler = self.scheduler.lock().expect("no worker panics");
        // The clock is read inside the lock.
        let now = self.clock.now();
        let call = Call::new("job", now).caller(caller);
        scheduler
            .submit(now, call, job)
            .expect("the queue has room");
        self.changed.notify_one();
    }

    /// Runs jobs until none is left.
    fn work(&self, ran: &Mutex<Vec<&'static str>>) {
        let mut scheduler = self.scheduler.lock().expect("no worker panics");
        loop {
            let now = self.clock.now();
            match scheduler.next(now, &mut || 0) {
                Step::Run { payload, hold, .. } => {
                    // The job starts now, so it counts in the window from now on.
                    scheduler.sent(now, &hold);
                    drop(scheduler);
                    ran.lock().expect("no worker panics").push(payload);
                    thread::sleep(Duration::from_millis(2));
                    scheduler = self.scheduler.lock().expect("no worker panics");
                    scheduler.finish(self.clock.now(), hold, Outcome::Served, None);
                    self.changed.notify_one();
                }
                Step::Expired { payload, .. } => println!("{payload} expired"),
                Step::SleepUntil(moment) => {
                    let wait = moment.since(self.clock.now());
                    let woken = self.changed.wait_timeout(scheduler, wait);
                    scheduler = woken.expect("no worker panics").0;
                }
                Step::Idle if scheduler.waiting() == 0 => return,
                Step::Idle => scheduler = self.changed.wait(scheduler).expect("no worker panics"),
            }
        }
    }
}

fn main() {
    let four_per_50_ms = Limit::sliding(4, Duration::from_millis(50));
    let policy = Policy::builder()
        .limit(LimitRule::new("total", four_per_50_ms))
        .limit(LimitRule::new("slots", Limit::Outstanding { max: 2 }))
        .build();
    let queue = Queue {
        scheduler: Mutex::new(Scheduler::new(policy.expect("a valid policy"))),
        changed: Condvar::new(),
        clock: MonotonicClock::new(),
    };
    for _ in 0..8 {
        queue.submit(Caller(1), "greedy");
    }
    for _ in 0..3 {
        queue.submit(Caller(2), "modest");
    }
    let ran = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| queue.work(&ran));
        }
    });
    let ran = ran.into_inner().expect("no worker panics");
    println!("{ran:?}");
    // The modest caller did not wait for all of the greedy one.
    let last = ran.iter().rposition(|&job| job == "modest");
    assert!(last.is_some_and(|last| last < 8), "{ran:?}");
    assert!(queue.clock.now() > Timestamp::ZERO + Duration::from_millis(100));
}
