//! The command line.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tidegate_runtime::command::{note, wants_colours};

use crate::{advise, audit, backend, bench, demo, model_server, plan, relay, simulate, top};

/// Tidegate's tools for logs, models, screens and load. `tidegate` runs them by the same names.
#[derive(Debug, Parser)]
#[command(name = "tidegate-lab", version = tidegate::cli::VERSION, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Follow a running sidecar on a screen: what waits, why, and until when
    Top(top::TopArguments),

    /// Find out from access logs whether a limit was ever exceeded. Exit 0 no, 1 yes, 2 unknown
    Audit(audit::AuditArguments),
    /// Replay access logs, also under another config. Exit 0 good, 1 not, 2 unknown
    Plan(plan::PlanArguments),
    /// Say from access logs which limits to set. Exit 0 advice, 1 not enough data, 2 unknown
    Advise(advise::AdviseArguments),
    /// Run scenario files through the scheduler in virtual time. Exit 1 if an expectation fails
    Simulate(simulate::SimulateCommand),

    /// See Tidegate work: a fragile backend, a storm of calls, with and without it
    Demo(demo::DemoOptions),
    /// Run a stand-in z/VM SDK server that falls over when too much arrives
    Backend(backend::StandInOptions),
    /// Run a stand-in model server that dies when too many generations run at once
    ModelServer(model_server::ModelServerOptions),
    /// Put load on a proxy or a backend, and measure
    Bench(bench::BenchOptions),
    /// Run a proxy that does nothing of its own, to compare with
    Relay(relay::RelayOptions),
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
        LabCommand::Top(arguments) => top::run(&arguments),
        LabCommand::Audit(arguments) => audit::run(&arguments, wants_colours(&std::io::stderr())),
        LabCommand::Plan(arguments) => plan::run(&arguments),
        LabCommand::Advise(arguments) => advise::run(&arguments),
        LabCommand::Simulate(command) => simulate::main(&command),
        LabCommand::Demo(options) => ended(demo::main(options)),
        LabCommand::Backend(options) => ended(backend::main(options)),
        LabCommand::ModelServer(options) => ended(model_server::main(options)),
        LabCommand::Bench(options) => ended(bench::main(options)),
        LabCommand::Relay(options) => ended(relay::main(options)),
    }
}

/// The exit code of a command, or 1 with its error on stderr.
fn ended(result: std::io::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        note(format_args!("tidegate-lab: {error}\n"));
        ExitCode::FAILURE
    })
}
