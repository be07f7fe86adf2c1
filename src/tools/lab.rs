//! `tidegate demo`, `tidegate backend`, `tidegate bench`: they run the program `tidegate-lab`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use tidegate_runtime::command::companion;

use super::failed;

const PROGRAM: &str = "tidegate-lab";

/// Everything after the command's name, as it is.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Arguments {
    /// What tidegate-lab takes: see its `--help`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Becomes `tidegate-lab`, which so has this process' signals and gives it its exit code. Returns
/// only if it cannot.
pub(crate) fn run(command: &str, arguments: &Arguments) -> ExitCode {
    let program = companion(PROGRAM);
    let error = Command::new(&program)
        .arg(command)
        .args(&arguments.arguments)
        .exec();
    failed(format_args!(
        "`{command}` is a command of {PROGRAM}, and {} cannot be run: {error}; put {PROGRAM} \
         beside tidegate or in PATH, or build it with `cargo build --release -p {PROGRAM}`",
        program.display()
    ))
}
