//! The command line.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tidegate_runtime::command::{note, printed};

use crate::{backend, bench, demo, relay};

/// Tools to try and measure Tidegate. `tidegate demo`, `tidegate backend` and `tidegate bench`
/// run it.
#[derive(Debug, Parser)]
#[command(name = "tidegate-lab", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
        Err(wrong) if wrong.use_stderr() => {
            note(wrong.render());
            return ExitCode::from(2);
        }
        Err(asked) => return printed(&asked.render().to_string(), ExitCode::SUCCESS),
    };
    let ended = match cli.command {
        Command::Demo(options) => demo::main(options),
        Command::Backend(options) => backend::main(options),
        Command::Bench(options) => bench::main(options),
        Command::Relay(options) => relay::main(options),
    };
    ended.unwrap_or_else(|error| {
        note(format_args!("tidegate-lab: {error}\n"));
        ExitCode::FAILURE
    })
}
