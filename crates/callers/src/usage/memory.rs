//! How much memory usage takes.

use super::*;

impl Usage {
    /// The memory this takes: its size and what it has allocated, without what the allocator
    /// adds.
    fn bytes(&self) -> usize {
        let tops = self
            .common
            .iter()
            .flat_map(|it| [&it.current, &it.previous]);
        size_of::<Self>()
            + self.slots.heap_bytes()
            + self.minutes.heap_bytes()
            + self.days.heap_bytes()
            + self.history.heap_bytes()
            + tops.map(Top::heap_bytes).sum::<usize>()
            + self.waits.current.heap_bytes()
            + self.waits.previous.heap_bytes()
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

#[test]
fn a_caller_takes_at_most_eight_kib_and_one_that_called_once_less_than_seven_hundred_bytes() {
    let mut usage = Usage::default();
    assert_eq!(usage.bytes(), size_of::<Usage>());
    usage.count(at(7), FunctionId(0), TokenCount::ONE);
    let once = usage.bytes();
    usage.refused(at(7));
    assert_eq!(usage.bytes(), once);

    let mut largest = 0;
    for second in 0..3 * 86_400 {
        usage.count(
            at(second),
            FunctionId((second % 80) as u16),
            TokenCount::ONE,
        );
        usage.delayed(at(second), Duration::from_secs(1));
        if second % 600 == 0 {
            let mut other = Usage::default();
            other.count(at(second), FunctionId(100), TokenCount::ONE);
            usage.merge(&other);
        }
        largest = largest.max(usage.bytes());
    }
    std::println!("{once} bytes after one call, at most {largest}");
    assert!(once <= 700, "{once} bytes after one call");
    assert!(largest <= 8192, "{largest} bytes");
    // Beside a row of 1 KB.
    assert!(10_000 * (largest + 1024) <= 100_000_000);

    usage.count(at(30 * 86_400), FunctionId(0), TokenCount::ONE);
    assert!(
        usage.bytes() <= once,
        "a long silence frees all that was allocated"
    );
}
