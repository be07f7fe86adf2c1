//! The seven scenarios, and the results that others had with them.

/// The clients of each job of the lowest level.
pub(super) const CLIENTS_EACH: usize = 5;

/// Results: handed out, samples above, highest, mean above, longest dip.
pub(super) type Results = [&'static str; 5];

/// A scenario of Doorman.
#[derive(Clone, Copy, Debug)]
pub struct DoormanScenario {
    /// The scenario's number.
    pub number: u8,
    /// The scenario's length.
    pub(super) seconds: u64,
    /// For each job the one above it.
    pub(super) above: &'static [Option<usize>],
    /// The initial demand of each client.
    pub(super) wants: f64,
    /// Events, each with its second.
    pub(super) events: &'static [(u64, DoormanEvent)],
    /// For how many minutes each begins with a mishap.
    pub(super) mishaps: u64,
    /// The original's rules, run again over many seeds.
    pub(super) measured: Results,
    /// The figures that its authors published.
    pub(super) published: Option<Results>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DoormanEvent {
    Lose(usize),
    Elect(usize),
    /// Two clients want a thousand.
    Spike,
    Mishap,
}

/// Three levels: each job except the lowest has three below it.
const TREE: &[Option<usize>] = &[
    None,
    Some(0),
    Some(0),
    Some(0),
    Some(1),
    Some(1),
    Some(1),
    Some(2),
    Some(2),
    Some(2),
    Some(3),
    Some(3),
    Some(3),
];

const ONE: DoormanScenario = DoormanScenario {
    number: 1,
    seconds: 300,
    above: &[None],
    wants: 110.0,
    events: &[],
    mishaps: 0,
    measured: ["89.9 / 99.3 / 99.5", "0", "-", "-", "0 / 0 / 5"],
    published: None,
};

const FIVE: DoormanScenario = DoormanScenario {
    number: 5,
    above: TREE,
    wants: 15.0,
    measured: ["96.0 / 97.2 / 98.4", "0 / 0 / 3", "501.1", "500.3", "0"],
    published: Some(["96.8", "-", "-", "-", "-"]),
    ..ONE
};

impl DoormanScenario {
    /// All of them.
    pub const ALL: [Self; 7] = [
        ONE,
        Self {
            number: 2,
            events: &[(120, DoormanEvent::Lose(0)), (140, DoormanEvent::Elect(0))],
            measured: ["92.0 / 99.0 / 99.7", "0", "-", "-", "0 / 0 / 10"],
            ..ONE
        },
        Self {
            number: 3,
            events: &[(120, DoormanEvent::Lose(0)), (190, DoormanEvent::Elect(0))],
            measured: ["58.2 / 62.0 / 65.2", "0", "-", "-", "90 / 95 / 95"],
            ..ONE
        },
        Self {
            number: 4,
            above: &[None, Some(0)],
            wants: 100.0,
            measured: ["76.8 / 95.8 / 99.6", "0", "-", "-", "0 / 0 / 20"],
            ..ONE
        },
        FIVE,
        Self {
            number: 6,
            events: &[(150, DoormanEvent::Spike)],
            measured: [
                "94.5 / 95.8 / 97.9",
                "0 / 0 / 3",
                "504.9",
                "500.4",
                "5 / 10 / 20",
            ],
            published: None,
            ..FIVE
        },
        Self {
            number: 7,
            seconds: 3_600,
            mishaps: 60,
            measured: [
                "92.6 / 96.2 / 97.6",
                "5 / 15 / 42",
                "502.9 / 514.6 / 729.5",
                "501.1 / 504.9 / 513.5",
                "55 / 75 / 175",
            ],
            published: Some(["96.6", "14", "530.24", "509.99", "at most 120"]),
            ..FIVE
        },
    ];
}
