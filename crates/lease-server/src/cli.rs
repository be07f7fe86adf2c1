//! The command line.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tidegate_runtime::command::wants_colours;

use crate::{agent, server};

/// Tidegate's capacity server, and the agent for programs on a machine. `tidegate lease-server` and
/// `tidegate lease-agent` run it.
#[derive(Debug, Parser)]
#[command(name = "tidegate-leases", version = tidegate::cli::VERSION, propagate_version = true)]
struct TidegateLeases {
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Debug, Subcommand)]
enum LeaseCommand {
    /// Run a capacity server: it shares one capacity among many clients
    Server(server::LeaseServerArguments),
    /// Share leased capacity with programs on this machine, over HTTP and JSON
    Agent(Box<agent::AgentOptions>),
}

/// The definition of the command line, for its manual pages and completions.
#[must_use]
pub fn definition() -> clap::Command {
    TidegateLeases::command()
}

/// Runs the command. Exit code 0 good, 1 bad, 2 wrong usage.
#[must_use]
pub fn main() -> ExitCode {
    let matches = definition().try_get_matches();
    let cli = match matches.and_then(|matches| TidegateLeases::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return tidegate::cli::usage(&error),
    };
    match cli.command {
        LeaseCommand::Server(arguments) => {
            server::run(&arguments, wants_colours(&std::io::stderr()))
        }
        LeaseCommand::Agent(options) => agent::run(*options),
    }
}
