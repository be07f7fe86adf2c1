//! Calls that are handed over: whether, and how many.

use std::time::Duration;

use super::{LEAST, good, with, wrong};

#[test]
fn calls_can_be_handed_over_only_where_that_is_switched_on_and_within_bounds() {
    assert!(!good(LEAST).tasks.enabled);
    let tasks = good(&with(
        "[tasks]\nenabled = true\nmax_tasks = 7\nmax_tasks_per_caller = 3\n\
         max_bytes = \"2MiB\"\nmax_bytes_per_caller = \"1MiB\"\nkeep_for = \"1h\"",
    ))
    .tasks;
    assert!(tasks.enabled);
    assert_eq!((tasks.tasks_max, tasks.tasks_per_caller_max), (7, 3));
    assert_eq!(
        (tasks.bytes_max, tasks.bytes_per_caller_max),
        (2 << 20, 1 << 20)
    );
    assert_eq!(tasks.time_to_live, Duration::from_secs(3600));
    // Each of them may wait at the door without a connection.
    let door = |tasks: &str| {
        let config = good(&with(&format!("[tasks]\nmax_tasks = 7\n{tasks}")));
        config.admit.door_max
    };
    assert_eq!(door("enabled = true"), door("enabled = false") + 7);
    for (line, allowed) in [
        ("enabled = 1", "true or false"),
        ("max_tasks = 0", "1 to 1000000"),
        ("max_tasks_per_caller = -1", "1 to 1000000"),
        ("max_bytes = \"1B\"", "1KiB to 1GiB"),
        ("max_bytes_per_caller = \"2GiB\"", "1KiB to 1GiB"),
        ("keep_for = \"0s\"", "1s to 24h"),
        ("max = 1", "max"),
    ] {
        wrong("tasks", line, &[allowed]);
    }
}
