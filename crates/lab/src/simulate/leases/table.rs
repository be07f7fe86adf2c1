//! The results of many runs of a scenario, beside published and other measured results.

use std::fmt;

use serde::Serialize;

use super::model::{CAPACITY, LeasesOutcome, SAMPLE_EVERY};
use super::scenario::{DoormanScenario, Results};

/// Above the capacity, by more than the rounding of a sum.
const EXCEEDS: f64 = CAPACITY * (1.0 + 1e-9);
/// Below this part of what could be handed out, clients have too little.
const SHORT_BELOW: f64 = 0.95;

/// Minimum, median and maximum over all runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// The minimum.
    pub min: f64,
    /// The median, or the mean of the two middle values.
    pub median: f64,
    /// The maximum.
    pub max: f64,
}

impl Quantiles {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { min, median, max })
    }
}

/// Many runs of one scenario. All figures except the shortfalls are of the samples after the
/// first 60 s.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The scenario's number.
    pub scenario: u8,
    /// The number of runs.
    pub runs: usize,
    /// The seed of the first.
    pub seed: u64,
    /// Mean of what clients have, as percent of the capacity.
    pub handed_out_percent: Quantiles,
    /// Mean of what clients have, as percent of what they could have: the capacity, or their demand if that is less.
    pub of_possible_percent: Quantiles,
    /// Samples above the capacity.
    pub samples_above: Quantiles,
    /// The highest sample, of runs with a sample above the capacity.
    pub highest: Option<Quantiles>,
    /// The mean of the samples above the capacity, of the same runs.
    pub mean_above: Option<Quantiles>,
    /// The longest time in which clients had less than 95 % of what they could have.   seconds
    pub longest_dip_seconds: Quantiles,
    /// How often the lease of a server fell below its grants.
    pub shortfalls: Quantiles,
    /// Elections, spikes and losses of a master, in all runs together.
    pub mishaps: [u32; 3],
    /// Expectations that failed.
    pub disappointments: Vec<&'static str>,
}

impl Summary {
    pub(super) fn new(
        scenario: &DoormanScenario,
        seed: u64,
        reserved_clients: u64,
        outcomes: &[LeasesOutcome],
    ) -> Self {
        let each = |figure: &dyn Fn(&LeasesOutcome) -> f64| {
            Quantiles::of(outcomes.iter().map(figure).collect()).expect("there is at least one run")
        };
        let above = |outcome: &LeasesOutcome| -> Vec<f64> {
            outcome
                .later()
                .map(|sample| sample.has)
                .filter(|has| *has > EXCEEDS)
                .collect()
        };
        let of_those = |figure: &dyn Fn(Vec<f64>) -> f64| {
            let runs = outcomes.iter().map(above).filter(|above| !above.is_empty());
            Quantiles::of(runs.map(figure).collect())
        };
        let mishaps = |kind: usize| outcomes.iter().map(|outcome| outcome.mishaps[kind]).sum();
        let mut summary = Self {
            scenario: scenario.number,
            runs: outcomes.len(),
            seed,
            handed_out_percent: each(&|outcome| {
                100.0 * mean(outcome.later().map(|sample| sample.has / CAPACITY))
            }),
            of_possible_percent: each(&|outcome| {
                let has: f64 = outcome.later().map(|sample| sample.has).sum();
                let possible: f64 = outcome.later().map(|one| one.wants.min(CAPACITY)).sum();
                100.0 * has / possible
            }),
            samples_above: each(&|outcome| above(outcome).len() as f64),
            highest: of_those(&|above| above.into_iter().fold(0.0, f64::max)),
            mean_above: of_those(&|above| mean(above.into_iter())),
            longest_dip_seconds: each(&longest_dip),
            shortfalls: each(&|outcome| outcome.shortfalls as f64),
            mishaps: std::array::from_fn(mishaps),
            disappointments: Vec::new(),
        };
        summary.disappointments = summary.check(reserved_clients > 0);
        summary
    }

    /// Whether all expectations hold.
    pub(super) fn holds(&self) -> bool {
        self.disappointments.is_empty()
    }

    /// Expectations that failed. What is set aside for clients is not handed out to others, so with
    /// a reserve only the capacity itself is expected to hold.
    fn check(&self, has_reserve: bool) -> Vec<&'static str> {
        let handed_out = self.handed_out_percent.median;
        let never_above = (
            self.samples_above.max == 0.0,
            "no sample above the capacity in any run",
        );
        let expected = match self.scenario {
            5 if !has_reserve => vec![
                never_above,
                (handed_out >= 97.2, "at least 97.2 % handed out (median)"),
            ],
            7 if !has_reserve => vec![
                (
                    self.samples_above.median < 14.0,
                    "fewer than 14 samples above the capacity (median)",
                ),
                (
                    self.highest.is_none_or(|highest| highest.max < 530.24),
                    "no sample as high as 530.24",
                ),
                (handed_out >= 96.6, "at least 96.6 % handed out (median)"),
                (
                    self.longest_dip_seconds.median < 75.0,
                    "no dip of 75 s (median)",
                ),
            ],
            _ => vec![never_above],
        };
        let missed = expected.into_iter().filter(|(holds, _)| !holds);
        missed.map(|(_, what)| what).collect()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

fn longest_dip(outcome: &LeasesOutcome) -> f64 {
    let (mut longest, mut now) = (0, 0);
    for sample in outcome.later() {
        let short = sample.has < SHORT_BELOW * sample.wants.min(CAPACITY);
        now = if short { now + SAMPLE_EVERY } else { 0 };
        longest = longest.max(now);
    }
    longest as f64
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |spread: &Quantiles, digits: usize| {
            format!(
                "{:.digits$} / {:.digits$} / {:.digits$}",
                spread.min, spread.median, spread.max
            )
        };
        let rare = |of: &Option<Quantiles>| of.as_ref().map_or("-".to_owned(), |of| spread(of, 1));
        let ours = [
            spread(&self.handed_out_percent, 1),
            spread(&self.samples_above, 0),
            rare(&self.highest),
            rare(&self.mean_above),
            spread(&self.longest_dip_seconds, 0),
        ];
        let verdict = if self.holds() { "holds" } else { "disappoints" };
        writeln!(
            out,
            "scenario {}  {verdict}  {} runs from seed {}",
            self.scenario, self.runs, self.seed
        )?;
        let mut line = |name: &str, cells: &[String; 5]| {
            writeln!(
                out,
                "  {name:<12}{:>22}{:>14}{:>24}{:>24}{:>16}",
                cells[0], cells[1], cells[2], cells[3], cells[4]
            )
        };
        let heads: Results = [
            "handed out %",
            "samples above",
            "highest",
            "mean above",
            "longest dip s",
        ];
        line("", &heads.map(str::to_owned))?;
        line("tidegate", &ours)?;
        let scenario = &DoormanScenario::ALL[usize::from(self.scenario) - 1];
        line("re-measured", &scenario.measured.map(str::to_owned))?;
        if let Some(published) = scenario.published {
            line("published", &published.map(str::to_owned))?;
        }
        writeln!(
            out,
            "  of what could be handed out {} %; lowered below what was handed on {} times",
            spread(&self.of_possible_percent, 1),
            spread(&self.shortfalls, 0)
        )?;
        if self.mishaps != [0; 3] {
            let [elections, spikes, losses] = self.mishaps;
            writeln!(
                out,
                "  {elections} elections, {spikes} spikes, {losses} losses of a master in all runs"
            )?;
        }
        for missed in &self.disappointments {
            writeln!(out, "  missed: {missed}")?;
        }
        writeln!(out)
    }
}
