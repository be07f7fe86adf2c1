//! Commands of the programs that are installed beside the sidecar: `tidegate plan` runs `tidegate-lab plan`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use tidegate_runtime::command::companion;

use super::failed;

/// The program for logs, models, screens and load.
pub(crate) const LAB: &str = "tidegate-lab";
/// The program for leases of one capacity.
pub(crate) const LEASES: &str = "tidegate-leases";

/// Everything after the command's name, as it is.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct ProgramArguments {
    /// See `--help` of the command
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Becomes the program, which so has this process' signals and gives it its exit code. Returns 2, and only if the
/// program cannot be run.
pub(crate) fn run(name: &str, command: &str, arguments: &ProgramArguments) -> ExitCode {
    let program = companion(name);
    let mut other = Command::new(&program);
    if name == LAB {
        // Help shows what the user typed: its commands have the same names.
        other.arg0("tidegate");
    }
    let error = other.arg(command).args(&arguments.arguments).exec();
    let _: ExitCode = failed(missing(name, command, &error));
    ExitCode::from(2)
}

/// Reports that the program of a command cannot be run, and the cure.
pub(super) fn missing(name: &str, command: &str, cause: &std::io::Error) -> String {
    let program = companion(name);
    format!(
        "`tidegate {command}` needs the program {name}, and {} cannot be run: {cause}; install the package {name}, or put \
         {name} beside tidegate or in PATH (from source: `cargo build --release --bin {name}`)",
        program.display()
    )
}
