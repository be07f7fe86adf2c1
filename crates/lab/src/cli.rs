//! The command line.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tidegate_runtime::command::{note, wants_colours};

use crate::{advise, audit, backend, bench, demo, plan, relay, simulate, top};

/// Tidegate's tools for logs, models, screens and load. `tidegate` runs them by the same names.
#[derive(Debug, Parser)]
#[command(name = "tidegate-lab", version = tidegate::cli::VERSION, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Follow a running sidecar on a screen: what waits, why, and until when
    Top(top::Arguments),

    /// Find out from access logs whether a limit was ever exceeded. Exit 0 no, 1 yes, 2 unknown
    Audit(audit::Arguments),
    /// Replay access logs, also under another config. Exit 0 good, 1 not, 2 unknown
    Plan(plan::Arguments),
    /// Say from access logs which limits to set. Exit 0 advice, 1 not enough data, 2 unknown
    Advise(advise::Arguments),
    /// Run scenario files through the scheduler in virtual time. Exit 1 if an expectation fails
    Simulate(simulate::Command),

    /// See Tidegate work: a fragile backend, a storm of calls, with and without it
    Demo(demo::Options),
    /// Run a stand-in z/VM SDK server that falls over when too much arrives
    Backend(backend::Options),
    /// Put load on a proxy or a backend, and measure
    Bench(bench::Options),
    /// Run a proxy that does nothing of its own, to compare with
    Relay(relay::Options),
}

/// The definition of the command line, for its manual pages and completions.
#[must_use]
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the command. Exit code 0 good, 1 bad, 2 wrong usage.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return tidegate::cli::usage(&error),
    };
    match cli.command {
        Command::Top(arguments) => top::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments, wants_colours(&std::io::stderr())),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Simulate(command) => simulate::main(&command),
        Command::Demo(options) => ended(demo::main(options)),
        Command::Backend(options) => ended(backend::main(options)),
        Command::Bench(options) => ended(bench::main(options)),
        Command::Relay(options) => ended(relay::main(options)),
    }
}

/// The exit code of a command, or 1 with its error on stderr.
fn ended(result: std::io::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        note(format_args!("tidegate-lab: {error}\n"));
        ExitCode::FAILURE
    })
}
