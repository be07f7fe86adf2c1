//! `tidegate simulate leases`: Doorman's seven scenarios on the real capacity server, in virtual
//! time.
//!
//! The model is that of Doorman's own simulation: jobs of three tasks of which one is master, one
//! resource of 500, clients whose demand changes at random, and mishaps.
//! [`tidegate_leases::server::CapacityServer`] decides, with the rule by which its
//! clients ask again. Only the clock, the network and the elections are simulated.
//! docs/reports/leases-simulation.md explains the columns.

mod model;
mod scenario;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_runtime::command::{exit_code, unprinted};

pub use model::{LeasesOutcome, Rule, run};
pub use scenario::DoormanScenario;
pub use table::Summary;

/// The arguments of `tidegate simulate leases`.
#[derive(Clone, Debug, clap::Args)]
pub struct LeasesArguments {
    /// Which of the seven; all of them by default
    #[arg(long, value_name = "1..7", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub scenario: Vec<u8>,
    /// How often each is run, each time with another seed
    #[arg(long, default_value_t = 40, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: u32,
    /// The seed of the first run; the others count upward from it
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub seed: u64,
    /// When a lowered lease is free for others
    #[arg(long, value_enum, default_value_t = Rule::Confirmed)]
    pub frees: Rule,
    /// The number of clients for which a safe share of 10 is set aside
    #[arg(long, default_value_t = 0, value_name = "NUMBER",
          value_parser = clap::value_parser!(u64).range(0..=50))]
    pub reserved_clients: u64,
    /// Print one JSON array, with an object for each scenario
    #[arg(long)]
    pub json: bool,
}

/// Runs the scenarios. Exit code 0 if each meets its expectations, 1 if one does not.
pub(super) fn main(arguments: &LeasesArguments) -> ExitCode {
    let mut out = io::stdout();
    let holds = write_summaries(arguments, &mut out);
    match holds.and_then(|holds| out.flush().map(|()| holds)) {
        Ok(holds) => exit_code(holds),
        Err(error) => unprinted(error),
    }
}

/// Runs the scenarios and writes the results. False if an expectation fails.
///
/// # Errors
///
/// A write that fails.
pub fn write_summaries(arguments: &LeasesArguments, out: &mut impl Write) -> io::Result<bool> {
    let is_chosen = |one: &DoormanScenario| {
        arguments.scenario.is_empty() || arguments.scenario.contains(&one.number)
    };
    let mut summaries = Vec::new();
    for scenario in DoormanScenario::ALL.iter().filter(|one| is_chosen(one)) {
        let outcomes: Vec<LeasesOutcome> = (0..u64::from(arguments.runs))
            .map(|at| {
                let seed = arguments.seed.wrapping_add(at);
                run(scenario, seed, arguments.frees, arguments.reserved_clients)
            })
            .collect();
        let summary = Summary::new(
            scenario,
            arguments.seed,
            arguments.reserved_clients,
            &outcomes,
        );
        if !arguments.json {
            write!(out, "{summary}")?;
        }
        summaries.push(summary);
    }
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, &summaries)?;
        writeln!(out)?;
    }
    Ok(summaries.iter().all(Summary::holds))
}
