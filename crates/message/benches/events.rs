//! The cost of reading a stream of events for the last number in it, alone and on one thread.
//!
//! `cargo bench -p tidegate-message --bench events` prints nanoseconds for an event: the median and the least of many
//! stretches of a millisecond or less, since a longer one is sure to be interrupted on a machine that does other
//! work too.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate_message::LastEvent;

const STRETCHES: usize = 1_000;
const EVENTS: u32 = 500;

/// An event as a model server sends it for one token.
const TOKEN: &str = "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"created\":1795950000,\"model\":\"stand-in\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"token \"},\"finish_reason\":null}]}\n\n";

/// The last one, with what the call has cost.
const USAGE: &str = "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"created\":1795950000,\"model\":\"stand-in\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":500,\"total_tokens\":503}}\n\n";

fn main() {
    measure("an event of a token", TOKEN);
    measure("an event with the cost", USAGE);
}

fn measure(what: &str, event: &str) {
    let pointer = "/usage/total_tokens".parse().expect("a pointer");
    let mut times: Vec<Duration> = Vec::with_capacity(STRETCHES);
    for _ in 0..STRETCHES {
        let mut events = LastEvent::new(Clone::clone(&pointer), 1 << 20);
        let began = Instant::now();
        for _ in 0..EVENTS {
            events.feed(black_box(event.as_bytes()));
        }
        times.push(began.elapsed() / EVENTS);
        assert_eq!(black_box(&events).events(), u64::from(EVENTS));
    }
    times.sort_unstable();
    let (middle, least) = (times[STRETCHES / 2], times[0]);
    println!(
        "{what}, {} bytes: {} ns, at least {} ns",
        event.len(),
        middle.as_nanos(),
        least.as_nanos()
    );
}
