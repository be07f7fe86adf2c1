//! The program `tidegate-leases`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_lease_server::cli::main()
}
