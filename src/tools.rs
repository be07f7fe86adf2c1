//! The commands: the sidecar, what is asked of a running one, and what is put around it.

mod address;
pub(crate) mod callers;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod check;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod client;
pub(crate) mod explain;
pub mod healthcheck;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod init;
pub(crate) mod limits;
pub(crate) mod pause;
pub(crate) mod programs;
#[expect(
    clippy::disallowed_methods,
    reason = "called on threads that wait, or by a command that serves no calls"
)]
mod runtime_file;
pub mod serve;
pub mod service_manager;
#[expect(
    clippy::disallowed_methods,
    reason = "for commands that serve no calls"
)]
pub mod service_user;
#[expect(
    clippy::disallowed_methods,
    reason = "called at a start, and on threads that wait"
)]
pub mod successor;
pub mod table;
pub(crate) mod upgrade;

use crate::telemetry::journal::{Priority, with_priority};

/// Reports on stderr why a command failed.
pub fn failed(why: impl std::fmt::Display) -> std::process::ExitCode {
    let text = with_priority(&format!("tidegate: {why}\n"), Priority::ERROR);
    tidegate_runtime::command::note(text);
    std::process::ExitCode::FAILURE
}
