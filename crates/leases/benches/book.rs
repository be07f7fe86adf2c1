//! The cost of a decision about a lease, alone and on one thread.
//!
//! `cargo bench -p tidegate-limits --bench leases` prints nanoseconds per request: the median and
//! the least of many short stretches, as in the scheduler's bench. All holders are known, want more
//! than there is by far, and ask in an order of their own, each every 16 s of a lease of 60 s; what
//! expires or is put off is in it. Then what a holder takes in memory, as the growth of the process
//! (Linux only; the allocator's own room is in it).
//!
//! For instruction counts, which no other work disturbs, run exactly N requests under valgrind and
//! take the difference of two N:
//!
//! ```text
//! valgrind --tool=callgrind <the bench's binary> --count 100000 [--clients 100000]
//! ```

#![allow(clippy::disallowed_methods, reason = "a benchmark serves no calls")]

use std::hint::black_box;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use tidegate_leases::book::{Band, Book, Capacity, Holder, HolderReport, Split, Terms};
use tidegate_limits::Timestamp;

const STRETCHES: usize = 200;
const ROUNDS: u32 = 1000;
const REFRESH: Duration = Duration::from_secs(16);

/// The demand of a request.
#[derive(Clone, Copy, PartialEq)]
enum Wants {
    /// The holder's earlier demand.
    TheSame,
    /// Each time something else, so that it changes its place among all.
    SomethingElse,
}

struct Asking {
    book: Book,
    now: Timestamp,
    clients: u32,
    asked: u64,
    wants: Wants,
    has: Vec<Capacity>,
}

impl Asking {
    fn new(terms: Terms, clients: u32, wants: Wants) -> Self {
        let mut asking = Self {
            book: Book::new(terms),
            now: Timestamp::ZERO,
            clients,
            asked: 0,
            wants,
            has: vec![Capacity::ZERO; clients as usize],
        };
        for _ in 0..3 * u64::from(clients) {
            asking.ask();
        }
        asking
    }

    fn ask(&mut self) {
        // Odd and larger than any number of clients, so that all ask in turn, out of order.
        let client = (self.asked.wrapping_mul(2_654_435_761) % u64::from(self.clients)) as u32;
        self.asked += 1;
        self.now = self.now + REFRESH / self.clients;
        let salt = match self.wants {
            Wants::TheSame => 0,
            Wants::SomethingElse => self.asked,
        };
        let digits = (u64::from(client) + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let bands = [Band {
            priority: i64::from(client % 3),
            clients: NonZeroU64::MIN,
            wants: Capacity::new(digits as f64).expect("a capacity"),
        }];
        let has = self.has[client as usize];
        let report = HolderReport { bands: &bands, has };
        let lease = black_box(&mut self.book).ask(self.now, Holder(client), report, None);
        self.has[client as usize] = lease.capacity;
    }

    /// Nanoseconds per request: of the median stretch, and of the shortest.
    fn measure(&mut self) -> (f64, f64) {
        let mut times: Vec<Duration> = (0..STRETCHES)
            .map(|_| {
                let start = Instant::now();
                (0..ROUNDS).for_each(|_| self.ask());
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(ROUNDS);
        (each(times[STRETCHES / 2]), each(times[0]))
    }
}

fn terms(split: Split, by_priority: bool, frees_after: Duration) -> Terms {
    Terms {
        capacity: Capacity::new(1e6).expect("a capacity"),
        split,
        by_priority,
        lease: Duration::from_secs(60),
        refresh: REFRESH,
        frees_after,
    }
}

/// Bytes of the process that are in memory.
fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0)
}

/// Bytes for each holder.
fn bytes_each(clients: u32, frees_after: Duration) -> Option<f64> {
    let before = resident()?;
    let terms = terms(Split::Fair, false, frees_after);
    let asking = Asking::new(terms, clients, Wants::SomethingElse);
    let grown = resident()? - before;
    let own = (asking.has.capacity() * size_of::<Capacity>()) as f64;
    black_box(&asking.book);
    Some((grown - own) / f64::from(clients))
}

fn argument(name: &str) -> Option<u64> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let value = arguments.nth(1)?;
    Some(value.parse().expect("a number follows"))
}

fn main() {
    if let Some(count) = argument("--count") {
        let clients = argument("--clients").unwrap_or(100_000);
        let clients = u32::try_from(clients).expect("so many clients");
        let terms = terms(Split::Fair, false, Duration::ZERO);
        let mut asking = Asking::new(terms, clients, Wants::SomethingElse);
        (0..count).for_each(|_| asking.ask());
        println!("{count} requests, {:?} held", asking.book.held());
        return;
    }
    if let Some(seconds) = argument("--bytes") {
        if let Some(bytes) = bytes_each(100_000, Duration::from_secs(seconds)) {
            println!("{bytes:.0} bytes for each of 100,000 holders, free after {seconds} s");
        }
        return;
    }
    // In processes of their own, which have no memory that was used before.
    for seconds in ["0", "1", "60"] {
        let bench = std::env::current_exe().expect("the bench is a file");
        let mut bytes = std::process::Command::new(bench);
        let status = bytes.args(["--bytes", seconds]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
    let second = Duration::from_secs(1);
    println!(
        "{:<13} {:>8}  {:<32} {:>24} {:>24}",
        "split", "clients", "", "wants the same", "wants something else"
    );
    let at_once = Duration::ZERO;
    for (by_priority, frees_after, about) in [
        (false, at_once, ""),
        (true, at_once, "three priorities"),
        (false, second, "free after 1 s"),
    ] {
        for split in [Split::Proportional, Split::Fair] {
            for clients in [10, 1000, 8000, 100_000] {
                let terms = terms(split, by_priority, frees_after);
                let [same, other] = [Wants::TheSame, Wants::SomethingElse].map(|wants| {
                    let (median, least) = Asking::new(terms, clients, wants).measure();
                    format!("{median:.0} ns, at least {least:.0}")
                });
                let split = format!("{split:?}");
                println!("{split:<13} {clients:>8}  {about:<32} {same:>24} {other:>24}");
            }
        }
    }
}
