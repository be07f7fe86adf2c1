//! Calls through one bucket, from xen-api e2ee48d6883e, `ocaml/libs/rate-limit/test/test_rate_limit.ml`.
//! Grant times are computed for a virtual clock, where the original waits on a real one.

/// Calls through one bucket, in order of arrival.
pub(crate) struct Queued {
    pub(crate) name: &'static str,
    pub(crate) burst: f64,
    pub(crate) fill: f64,
    /// When each comes, what it is called, what it costs, and when it is let through.
    pub(crate) calls: &'static [(f64, &'static str, f64, f64)],
}

pub(crate) const QUEUE: &[Queued] = &[
    Queued {
        name: "submit (async) returns at once, runs later",
        burst: 10.0,
        fill: 10.0,
        calls: &[(0.0, "drain", 10.0, 0.0), (0.0, "a", 5.0, 0.5)],
    },
    Queued {
        name: "FIFO regardless of cost",
        burst: 5.0,
        fill: 5.0,
        calls: &[
            (0.0, "drain", 5.0, 0.0),
            (0.0, "1", 1.0, 0.2),
            (0.0, "2", 3.0, 0.8),
            (0.0, "3", 1.0, 1.0),
            (0.0, "4", 2.0, 1.4),
        ],
    },
    Queued {
        name: "submit_sync: immediate result 42; then blocks >=0.4 s and returns 'hello'",
        burst: 10.0,
        fill: 10.0,
        calls: &[
            (0.0, "sync42", 5.0, 0.0),
            (0.0, "drain", 5.0, 0.0),
            (0.0, "hello", 5.0, 0.5),
        ],
    },
    Queued {
        name: "submit_sync queues behind async items",
        burst: 5.0,
        fill: 10.0,
        calls: &[
            (0.0, "drain", 5.0, 0.0),
            (0.0, "1", 1.0, 0.1),
            (0.0, "2", 1.0, 0.2),
            (0.0, "3", 1.0, 0.3),
        ],
    },
    Queued {
        name: "concurrent submit_sync each gets its own result",
        burst: 1.0,
        fill: 10.0,
        calls: &[
            (0.0, "drain", 1.0, 0.0),
            (0.0, "1", 1.0, 0.1),
            (0.0, "2", 1.0, 0.2),
            (0.0, "3", 1.0, 0.3),
            (0.0, "4", 1.0, 0.4),
            (0.0, "5", 1.0, 0.5),
        ],
    },
    Queued {
        name: "late arrival does not overtake the item the worker is waiting for",
        burst: 10.0,
        fill: 100.0,
        calls: &[
            (0.0, "drain", 10.0, 0.0),
            (0.0, "1", 10.0, 0.1),
            (0.02, "2", 1.0, 0.11),
        ],
    },
    Queued {
        name: "sync after async sees async already executed",
        burst: 2.0,
        fill: 10.0,
        calls: &[
            (0.0, "drain", 2.0, 0.0),
            (0.0, "async", 1.0, 0.1),
            (0.0, "sync", 1.0, 0.2),
        ],
    },
    Queued {
        name: "observer not fired when immediate",
        burst: 10.0,
        fill: 10.0,
        calls: &[(0.0, "sync", 1.0, 0.0), (0.0, "async", 1.0, 0.0)],
    },
    Queued {
        name: "observer fired when delayed, sync",
        burst: 1.0,
        fill: 5.0,
        calls: &[(0.0, "drain", 1.0, 0.0), (0.0, "sync", 1.0, 0.2)],
    },
    Queued {
        name: "observer fired when delayed, async; on_start runs on the submitting thread before submit returns",
        burst: 1.0,
        fill: 5.0,
        calls: &[(0.0, "drain", 1.0, 0.0), (0.0, "async", 1.0, 0.2)],
    },
    Queued {
        name: "raising observer neither stops the callback nor kills the worker nor reaches the sync caller",
        burst: 1.0,
        fill: 20.0,
        calls: &[
            (0.0, "drain", 1.0, 0.0),
            (0.0, "async_with_raising_observer", 1.0, 0.05),
            (0.0, "async2", 1.0, 0.1),
            (0.0, "drain2", 1.0, 0.15),
            (0.0, "sync_with_raising_observer", 1.0, 0.2),
        ],
    },
];
