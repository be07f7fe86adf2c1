//! `tidegate simulate`: runs scenario files through the scheduler in virtual time.
//!
//! A scenario says which limits exist, which calls arrive when and what is expected. The
//! sidecar's own code decides. Only the backend and the clock are simulated. Nothing waits for
//! real, and the same seed gives the same run everywhere. docs/how-to/simulate.md has the format of the
//! files.

mod arrivals;
mod backend;
mod expect;
mod figures;
#[cfg(feature = "leases")]
pub mod leases;
mod quota;
mod report;
mod run;
mod scenario;
mod setup;
mod times;

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_runtime::command::{unprinted, wants_colours};

use tidegate::config::Problems;

pub use expect::CheckedExpectation;
pub use figures::CallFigures;
pub use report::{LimitDelay, ModelLoad, Part, ScenarioReport, Style, ToldNo};

/// The largest scenario file.   bytes
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `tidegate simulate`: scenario files, the scenarios of leases, or a shared quota.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SimulateCommand {
    #[command(flatten)]
    files: ScenarioArguments,
    #[command(subcommand)]
    other: Option<SimulateSubcommand>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum SimulateSubcommand {
    #[cfg(feature = "leases")]
    /// Run Doorman's seven scenarios on the capacity server. Exit 1 if an expectation fails
    Leases(leases::LeasesArguments),
    /// Let nodes share a quota, first with even demand, then with most of it at one. Exit 1 if it
    /// is exceeded
    Quota(quota::QuotaArguments),
}

/// Runs it.
pub(crate) fn main(command: &SimulateCommand) -> ExitCode {
    match &command.other {
        #[cfg(feature = "leases")]
        Some(SimulateSubcommand::Leases(arguments)) => leases::main(arguments),
        Some(SimulateSubcommand::Quota(arguments)) => quota::main(arguments),
        None => run(&command.files),
    }
}

/// The arguments of `tidegate simulate FILE…`.
#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArguments {
    /// Scenario files, run one after another
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print one JSON array, with an object for each file
    #[arg(long)]
    pub json: bool,
    /// Run with this seed instead of the files' own
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
}

/// Runs every file. Exit code 0 if all expectations hold, 1 if one does not, 2 if a file cannot
/// be read or has a mistake.
fn run(arguments: &ScenarioArguments) -> ExitCode {
    let style = match wants_colours(&io::stdout()) {
        true => Style::Coloured,
        false => Style::Plain,
    };
    match write_reports(arguments, style, &mut io::stdout(), &mut io::stderr()) {
        Ok(verdict) => verdict.into(),
        Err(error) => unprinted(error),
    }
}

/// The result of all files together. The worst is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScenarioVerdict {
    /// All expectations hold.
    Holds,
    /// An expectation does not hold.
    Broken,
    /// A file could not be read or has mistakes.
    Unusable,
}

impl From<ScenarioVerdict> for ExitCode {
    fn from(verdict: ScenarioVerdict) -> Self {
        match verdict {
            ScenarioVerdict::Holds => Self::SUCCESS,
            ScenarioVerdict::Broken => Self::FAILURE,
            ScenarioVerdict::Unusable => Self::from(2),
        }
    }
}

/// Runs every file. Writes the results to `out` and the mistakes to `complaints`.
///
/// # Errors
///
/// A write that fails.
pub fn write_reports(
    arguments: &ScenarioArguments,
    style: Style,
    out: &mut impl Write,
    complaints: &mut impl Write,
) -> io::Result<ScenarioVerdict> {
    let mut reports = Vec::new();
    let mut verdict = ScenarioVerdict::Holds;
    for file in &arguments.files {
        let report = match simulate_file(file, arguments.seed) {
            Ok(report) => report,
            Err(error) => {
                verdict = ScenarioVerdict::Unusable;
                // If that cannot be written, the exit code still shows it.
                let _ = writeln!(complaints, "{error}");
                continue;
            }
        };
        if !report.holds() {
            verdict = verdict.max(ScenarioVerdict::Broken);
        }
        if arguments.json {
            reports.push(report);
        } else {
            writeln!(out, "{}", report.render(style))?;
        }
    }
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, &reports)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(verdict)
}

/// Why a scenario did not run.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// The file was read, and has mistakes.
    #[error(transparent)]
    Wrong(#[from] Problems),
}

/// Runs the scenario in a file, with its own seed or this one.
///
/// # Errors
///
/// A file that cannot be read, is not UTF-8 or is larger than 1 MiB; or every mistake in it.
pub fn simulate_file(path: &Path, seed: Option<u64>) -> Result<ScenarioReport, SimulateError> {
    let text = read_text(path).map_err(|cause| SimulateError::Unreadable {
        path: path.to_owned(),
        cause,
    })?;
    Ok(simulate(&path.display().to_string(), &text, seed)?)
}

/// Runs a scenario, with its own seed or this one. `origin` is the name of the file, for
/// messages.
///
/// # Errors
///
/// Every mistake in the text.
pub fn simulate(origin: &str, text: &str, seed: Option<u64>) -> Result<ScenarioReport, Problems> {
    let scenario = scenario::read(origin, text)?;
    let seed = seed.unwrap_or(scenario.seed);
    let run = run::run(&scenario, seed);
    Ok(ScenarioReport::new(origin, seed, &scenario, &run))
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        let message = "it is larger than 1 MiB";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}
