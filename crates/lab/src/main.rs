//! The program `tidegate-lab`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_lab::cli::main()
}
