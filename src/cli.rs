//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tidegate_runtime::command::{note, printed, wants_colours};

use crate::config::DEFAULT_PATH;
use crate::options::shown::without_credentials;
use crate::tools;
use crate::tools::programs::{LAB, LEASES, run};

/// A sidecar proxy that holds a flood back: calls wait their turn, and the backend never
/// sees more than it can bear.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version = VERSION, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The version of all programs, with the commit they were built from.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TIDEGATE_REVISION"),
    ")"
);

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sidecar
    Serve(ServeArguments),
    /// Read the config; print every mistake, or the limits in force. Exit 0 good, 1 bad
    Check(tools::check::CheckArguments),
    /// Write a first config: from zvmsdk.conf, from logs, or from a few questions
    Init(tools::init::InitArguments),
    /// Ask a running sidecar whether it takes calls. Exit 0 yes, 1 no
    Healthcheck(tools::healthcheck::HealthcheckArguments),

    /// Run a capacity server: it shares one capacity among many clients
    LeaseServer(tools::programs::ProgramArguments),

    /// List the callers: how much they call, and what limits them
    Callers(tools::client::Admin),
    /// List every limit, rate limit and quota, and how much of it is used
    Limits(tools::client::Admin),
    /// Follow a running sidecar on a screen: what waits, why, and until when
    Top(tools::programs::ProgramArguments),
    /// Show what a call waits for and when it starts, or which limits held it up
    Explain(tools::explain::ExplainArguments),

    /// Send nothing new to the backend for a while: calls wait
    Pause(tools::pause::PauseArguments),
    /// End a pause, at once or with limits that grow
    Resume(tools::pause::ResumeArguments),
    /// Start the program anew, which takes over without a lost call. Exit 0 once it serves
    Upgrade(tools::upgrade::UpgradeArguments),
    /// Lower a limit for a while
    Lower(tools::pause::LowerArguments),
    /// Let a lowered limit have its own value again
    Restore(tools::pause::RestoreArguments),

    /// Find out from access logs whether a limit was ever exceeded. Exit 0 no, 1 yes, 2 unknown
    Audit(tools::programs::ProgramArguments),
    /// Replay access logs, also under another config. Exit 0 good, 1 not, 2 unknown
    Plan(tools::programs::ProgramArguments),
    /// Say from access logs which limits to set. Exit 0 advice, 1 not enough data, 2 unknown
    Advise(tools::programs::ProgramArguments),

    /// See it work: a fragile backend, a storm of calls, with and without Tidegate
    Demo(tools::programs::ProgramArguments),
    /// Run a stand-in z/VM SDK server that falls over when too much arrives
    Backend(tools::programs::ProgramArguments),
    /// Put load on a proxy or a backend, and measure
    Bench(tools::programs::ProgramArguments),
    /// Share leased capacity with programs on this machine, over HTTP and JSON
    LeaseAgent(tools::programs::ProgramArguments),
    /// Run scenario files through the scheduler in virtual time. Exit 1 if an expectation fails
    Simulate(tools::programs::ProgramArguments),
}

#[derive(Debug, clap::Args)]
struct ServeArguments {
    /// The config file
    #[arg(long, short, env = "TIDEGATE_CONFIG", default_value = DEFAULT_PATH, value_name = "FILE")]
    config: PathBuf,
    /// Take over from the sidecar that runs with this config, without a lost call. Without one, just start
    #[arg(long)]
    take_over: bool,
}

/// The definition of the command line, for what is made from it: manual pages, completions, reference.
/// The options of the commands of other programs are in the definitions of those.
#[must_use]
pub fn definition() -> clap::Command {
    let command = Cli::command();
    let groups = groups(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\nOptions:\n{{options}}\n"
    ))
}

/// The commands by what they are for, in the order of the help.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Run",
        &["serve", "check", "init", "lease-server", "lease-agent"],
    ),
    (
        "Ask a running sidecar",
        &["healthcheck", "limits", "callers", "explain", "top"],
    ),
    (
        "Act on a running sidecar",
        &["pause", "resume", "lower", "restore", "upgrade"],
    ),
    ("Work on logs", &["advise", "plan", "audit"]),
    (
        "Try it, without a backend of yours",
        &["demo", "simulate", "backend", "bench"],
    ),
];

/// The commands in groups, each with the first line of its own help.
fn groups(command: &clap::Command) -> String {
    let styles = command.get_styles();
    let (heading, literal) = (styles.get_header(), styles.get_literal());
    let mut text = String::new();
    for (name, commands) in GROUPS {
        text += &format!("\n{heading}{name}:{heading:#}\n");
        // A build can lack some.
        for command in commands.iter().filter_map(|it| command.find_subcommand(it)) {
            let about = command.get_about().map(ToString::to_string);
            let (name, about) = (command.get_name(), about.unwrap_or_default());
            text += &format!("  {literal}{name:<13}{literal:#} {about}\n");
        }
    }
    text
}

/// Runs the command. Exit code 0 good, 1 bad, 2 wrong usage.
#[must_use]
pub fn main() -> ExitCode {
    // Handlers of signals come before the arguments are read: until then SIGHUP ends the process.
    let serves = std::env::args_os().nth(1).is_some_and(|it| it == "serve");
    let begun = serves.then(tools::serve::begin_sidecar);
    let matches = match definition().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    // A variable is for every sidecar of its environment. An argument means one.
    let named = |command: &str| {
        let given = matches.subcommand_matches(command);
        let source = given.and_then(|it| it.value_source("config"));
        source == Some(ValueSource::CommandLine)
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let graphical = wants_colours(&std::io::stderr());
    match cli.command {
        Command::Serve(arguments) => {
            let begun = begun.unwrap_or_else(tools::serve::begin_sidecar);
            let start = match arguments.take_over {
                true => tools::serve::StartKind::TakesOver,
                false => tools::serve::StartKind::Alone,
            };
            tools::serve::run(begun, &arguments.config, start, graphical)
        }
        Command::Check(arguments) => tools::check::run(&arguments, graphical),
        Command::Init(arguments) => tools::init::run(&arguments),
        Command::Healthcheck(arguments) => {
            tools::healthcheck::run(&arguments, named("healthcheck"))
        }
        Command::LeaseServer(arguments) => run(LEASES, "server", &arguments),
        Command::Callers(admin) => tools::callers::run(&admin),
        Command::Limits(admin) => tools::limits::run(&admin),
        Command::Top(arguments) => run(LAB, "top", &arguments),
        Command::Explain(arguments) => tools::explain::run(&arguments),
        Command::Pause(arguments) => tools::pause::pause(&arguments),
        Command::Resume(arguments) => tools::pause::resume(&arguments),
        Command::Upgrade(arguments) => tools::upgrade::run(&arguments),
        Command::Lower(arguments) => tools::pause::lower(&arguments),
        Command::Restore(arguments) => tools::pause::restore(&arguments),
        Command::Audit(arguments) => run(LAB, "audit", &arguments),
        Command::Plan(arguments) => run(LAB, "plan", &arguments),
        Command::Advise(arguments) => run(LAB, "advise", &arguments),
        Command::Demo(arguments) => run(LAB, "demo", &arguments),
        Command::Backend(arguments) => run(LAB, "backend", &arguments),
        Command::LeaseAgent(arguments) => run(LEASES, "agent", &arguments),
        Command::Simulate(arguments) => run(LAB, "simulate", &arguments),
        Command::Bench(arguments) => run(LAB, "bench", &arguments),
    }
}

/// Prints the help that was asked for, or what is wrong with the arguments: a value that is quoted there may be an
/// address with a password.
pub fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if !error.use_stderr() {
        let text = match wants_colours(&std::io::stdout()) {
            true => text.ansi().to_string(),
            false => text.to_string(),
        };
        return printed(&text, ExitCode::SUCCESS);
    }
    let text = match wants_colours(&std::io::stderr()) {
        true => text.ansi().to_string(),
        false => text.to_string(),
    };
    note(without_credentials(&text));
    ExitCode::from(2)
}
