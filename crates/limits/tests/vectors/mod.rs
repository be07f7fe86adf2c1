//! The cases of xen-api's own tests of its token bucket, as figures:
//! xen-api e2ee48d6883e, `ocaml/libs/rate-limit/test/test_token_bucket.ml`, and what the queue and
//! quicktests beside it refuse as a bucket. Times are in seconds on a virtual clock.

/// A step with a bucket at a moment, and its result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    /// The bucket holds this, within the tolerance.
    Peek { is: f64, within: f64 },
    /// Whether a call of this cost is let through, and what the bucket holds then, if said.
    Take {
        cost: f64,
        passes: bool,
        leaves: Option<f64>,
    },
    /// A call of this cost would have to wait this long, within the tolerance.
    Delay { cost: f64, is: f64, within: f64 },
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) burst: f64,
    pub(crate) fill: f64,
    /// In seconds, in order.
    pub(crate) steps: &'static [(f64, Do)],
}

pub(crate) const TOKEN_BUCKET: &[Case] = &[
    Case {
        name: "consume removes correct amount (refill capped at burst)",
        burst: 10.0,
        fill: 2.0,
        steps: &[
            (
                0.0,
                Do::Peek {
                    is: 10.0,
                    within: 1e-09,
                },
            ),
            (
                1.0,
                Do::Take {
                    cost: 3.0,
                    passes: true,
                    leaves: Some(7.0),
                },
            ),
        ],
    },
    Case {
        name: "consume more than available",
        burst: 5.0,
        fill: 1.0,
        steps: &[
            (
                0.0,
                Do::Take {
                    cost: 4.0,
                    passes: true,
                    leaves: Some(1.0),
                },
            ),
            (
                1.0,
                Do::Take {
                    cost: 10.0,
                    passes: false,
                    leaves: Some(2.0),
                },
            ),
        ],
    },
    Case {
        name: "consume refills before removing",
        burst: 10.0,
        fill: 2.0,
        steps: &[
            (
                0.0,
                Do::Take {
                    cost: 5.0,
                    passes: true,
                    leaves: Some(5.0),
                },
            ),
            (
                3.0,
                Do::Take {
                    cost: 8.0,
                    passes: true,
                    leaves: Some(2.0),
                },
            ),
        ],
    },
    Case {
        name: "peek respects burst size",
        burst: 10.0,
        fill: 5.0,
        steps: &[
            (
                0.0,
                Do::Take {
                    cost: 8.0,
                    passes: true,
                    leaves: Some(2.0),
                },
            ),
            (
                10.0,
                Do::Peek {
                    is: 10.0,
                    within: 1e-09,
                },
            ),
        ],
    },
    Case {
        name: "refill after sleep (wall clock in the original, tol 0.5)",
        burst: 20.0,
        fill: 5.0,
        steps: &[
            (
                0.0,
                Do::Take {
                    cost: 10.0,
                    passes: true,
                    leaves: Some(10.0),
                },
            ),
            (
                1.0,
                Do::Peek {
                    is: 15.0,
                    within: 0.5,
                },
            ),
        ],
    },
    Case {
        name: "system time versions (wall clock, tol 0.01)",
        burst: 10.0,
        fill: 2.0,
        steps: &[
            (
                0.0,
                Do::Peek {
                    is: 10.0,
                    within: 0.01,
                },
            ),
            (
                0.0,
                Do::Take {
                    cost: 3.0,
                    passes: true,
                    leaves: None,
                },
            ),
            (
                0.0,
                Do::Peek {
                    is: 7.0,
                    within: 0.01,
                },
            ),
        ],
    },
    Case {
        name: "delay until available",
        burst: 10.0,
        fill: 2.0,
        steps: &[
            (
                0.0,
                Do::Take {
                    cost: 10.0,
                    passes: true,
                    leaves: Some(0.0),
                },
            ),
            (
                0.0,
                Do::Delay {
                    cost: 4.0,
                    is: 2.0,
                    within: 0.01,
                },
            ),
        ],
    },
    Case {
        name: "edge: zero cost",
        burst: 5.0,
        fill: 1.0,
        steps: &[(
            0.0,
            Do::Take {
                cost: 0.0,
                passes: true,
                leaves: Some(5.0),
            },
        )],
    },
    Case {
        name: "edge: tiny cost",
        burst: 1.0,
        fill: 0.1,
        steps: &[(
            0.0,
            Do::Take {
                cost: 0.001,
                passes: true,
                leaves: Some(0.999),
            },
        )],
    },
    Case {
        name: "oversized consume drives the bucket negative",
        burst: 5.0,
        fill: 1.0,
        steps: &[(
            0.0,
            Do::Take {
                cost: 10.0,
                passes: true,
                leaves: Some(-5.0),
            },
        )],
    },
    Case {
        name: "second oversized consume waits for burst refill",
        burst: 5.0,
        fill: 1.0,
        steps: &[
            (
                0.0,
                Do::Take {
                    cost: 10.0,
                    passes: true,
                    leaves: Some(-5.0),
                },
            ),
            (
                5.0,
                Do::Peek {
                    is: 0.0,
                    within: 1e-09,
                },
            ),
            (
                5.0,
                Do::Delay {
                    cost: 6.0,
                    is: 5.0,
                    within: 1e-09,
                },
            ),
            (
                5.0,
                Do::Take {
                    cost: 6.0,
                    passes: false,
                    leaves: Some(0.0),
                },
            ),
            (
                10.0,
                Do::Take {
                    cost: 6.0,
                    passes: true,
                    leaves: Some(-1.0),
                },
            ),
        ],
    },
];

/// Burst and fill of which at least one is refused.
pub(crate) const INVALID: &[(f64, f64)] = &[
    (1.0, 0.0),
    (1.0, -1.0),
    (10.0, 0.0),
    (10.0, -1.0),
    (10.0, 0.0),
    (10.0, -1.0),
    (0.0, 1.0),
    (10.0, 0.0),
    (-1.0, 1.0),
];

/// A drained bucket: burst, fill, the cost of a call, and how long it waits, in seconds.
pub(crate) const DELAY_THEN_CONSUME: &[(&str, f64, f64, f64, f64)] = &[
    (
        "standard request from drained bucket",
        5.0,
        100.0,
        3.0,
        0.03,
    ),
    ("amount equal to burst_size", 5.0, 100.0, 5.0, 0.05),
    ("oversized request, tight bucket", 0.5, 200.0, 10.0, 0.0025),
    ("oversized request, small bucket", 1.0, 100.0, 5.0, 0.01),
];

/// Threads that each take one token so often from a bucket whose clock stands: burst, fill,
/// threads, takes of each, how many pass, what is left.
pub(crate) const CONCURRENT: &[(f64, f64, u64, u64, u64, f64)] = &[
    (15.0, 0.01, 10, 1, 10, 5.0),
    (100.0, 10.0, 20, 3, 60, 40.0),
    (5.0, 0.1, 10, 1, 5, 0.0),
];
