//! Why a sidecar does not start, or does not take a new config.

use std::io;
use std::path::PathBuf;

use tidegate_callers::TableError;

use super::ChangesStopped;
use crate::call::Bind;
use crate::state::StateError;

/// Why the proxy did not start, or a new config was refused.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be used.
    #[error("cannot listen on {address} ({what}): {}", reason(address, cause))]
    Bind {
        /// The address.
        address: Bind,
        /// The owner of the address.
        what: String,
        /// The error of the system.
        cause: io::Error,
    },
    /// The log of calls cannot be opened.
    #[error("cannot start the log of calls: {0}")]
    Log(#[source] io::Error),
    /// The state of an earlier run cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another process keeps the ledger of this config.
    #[error(
        "another sidecar runs with this config (pid {pid}) and has its ledger, {path}: stop it first, or give this one \
         a config of its own",
        path = path.display()
    )]
    LedgerTaken {
        /// The ledger.
        path: PathBuf,
        /// The process that has it.
        pid: String,
    },
    /// The ledger cannot be kept.
    #[error("cannot keep the ledger {path}: {cause}", path = path.display())]
    Ledger {
        /// The ledger.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// A process runs with this config and does not hand over, or this one cannot take over.
    #[error(transparent)]
    HandOver(tidegate_handover::GiveUpCause),
    /// The HTTP backend has several servers.
    #[error(
        "the HTTP backend has several servers, and a hand-over does not pass on to which of them a call is bound: \
         restart the service instead"
    )]
    SeveralServers,
    /// Another process takes over, and this one is not changed any more.
    #[error(transparent)]
    Stopped(#[from] ChangesStopped),
    /// There is no room for the callers of the config beside those made through the API.
    #[error("cannot take the callers of the config: {}", list(.0))]
    Callers(Vec<TableError>),
}

fn list(mistakes: &[TableError]) -> String {
    let mistakes: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
    mistakes.join("; ")
}

/// The name of the address for operators.
fn reason(address: &Bind, error: &io::Error) -> String {
    let message = match (address, error.kind()) {
        (Bind::Tcp(_), io::ErrorKind::AddrInUse) => "the port is in use",
        (Bind::Tcp(_), io::ErrorKind::PermissionDenied) => {
            "no permission (ports below 1024 need CAP_NET_BIND_SERVICE)"
        }
        (Bind::Tcp(_), io::ErrorKind::AddrNotAvailable) => "this machine has no such address",
        (Bind::Unix(_), io::ErrorKind::AddrInUse) => "the socket is in use by a running process",
        (Bind::Unix(_), io::ErrorKind::PermissionDenied) => "no permission to make the file",
        (Bind::Unix(_), io::ErrorKind::NotFound) => "there is no such directory",
        _ => return error.to_string(),
    };
    message.to_owned()
}
