//! The commands: the sidecar, what is asked of a running one, and what is put around it.

#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod advise;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod audit;
pub(crate) mod callers;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod check;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod client;
pub(crate) mod explain;
pub mod healthcheck;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod init;
pub(crate) mod lab;
#[cfg(feature = "leases")]
pub mod lease_agent;
#[cfg(feature = "leases")]
pub(crate) mod lease_server;
pub(crate) mod limits;
#[expect(
    clippy::disallowed_methods,
    reason = "for commands that serve no calls"
)]
mod logs;
pub(crate) mod pause;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod plan;
mod random;
#[expect(
    clippy::disallowed_methods,
    reason = "called on threads that wait, or by a command that serves no calls"
)]
mod runtime_file;
pub(crate) mod serve;
mod service_manager;
#[expect(
    clippy::disallowed_methods,
    reason = "for commands that serve no calls"
)]
mod service_user;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod simulate;
mod table;
pub mod top;

use crate::telemetry::journal::{Priority, with_priority};

/// Reports on stderr why a command failed.
fn failed(why: impl std::fmt::Display) -> std::process::ExitCode {
    let text = with_priority(&format!("tidegate: {why}\n"), Priority::ERROR);
    tidegate_runtime::command::note(text);
    std::process::ExitCode::FAILURE
}
