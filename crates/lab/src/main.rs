//! The program `tidegate-lab`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegate_lab::{backend, bench, demo, relay};

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

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Demo(options) => demo::main(options),
        Command::Backend(options) => backend::main(options),
        Command::Bench(options) => bench::main(options),
        Command::Relay(options) => relay::main(options),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("tidegate-lab: {error}");
        ExitCode::FAILURE
    })
}
