//! `tidegate healthcheck`: asks a running sidecar whether it takes calls.
//!
//! It is for images that contain only this program. It asks for `/readyz`, which needs no token, at
//! the address that the sidecar wrote at its start. It never reads the config, so a broken file on
//! disk makes no running sidecar unhealthy. With `--config` it asks the sidecar of that file and no other.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::client::{self, AdminAddress, AdminRequest};
use super::failed;
use crate::config::DEFAULT_PATH;

/// The bound of connecting, asking and the answer together.
const BOUND: Duration = Duration::from_secs(2);

/// Why a sidecar counts as unhealthy.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// No process answers there.
    #[error(transparent)]
    NoAnswer(#[from] client::NoAnswer),
    /// The sidecar answers, and takes no calls.
    #[error("{address} is not ready: {said}")]
    NotReady {
        /// The admin address.
        address: AdminAddress,
        /// The last line of its answer.
        said: String,
    },
}

/// The arguments of the command.
#[derive(Clone, Debug, clap::Args)]
pub struct HealthcheckArguments {
    /// The admin address, http://HOST:PORT, or unix:/PATH of the admin socket file. Without it, the
    /// one that the sidecar wrote at its start
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<AdminAddress>,
    /// The config file of the sidecar, which determines its runtime file. It is not read. If it is given
    /// here, no other sidecar is asked in its place
    #[arg(long, short, env = "TIDEGATE_CONFIG", default_value = DEFAULT_PATH, value_name = "FILE")]
    pub config: PathBuf,
}

/// Runs the command: exit code 0 if the sidecar takes calls, 1 if not or if it has no admin
/// address. `is_named` if the sidecar is named by the argument `--config`. Then no other one is asked.
pub(crate) fn run(arguments: &HealthcheckArguments, is_named: bool) -> ExitCode {
    let asked = find(arguments, is_named).and_then(|(bind, from)| {
        ask(bind).map_err(|unhealthy| format!("{unhealthy} (the address is from {from})"))
    });
    match asked {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => failed(why),
    }
}

/// The admin address, and its source.
fn find(
    arguments: &HealthcheckArguments,
    is_named: bool,
) -> Result<(AdminAddress, String), String> {
    match &arguments.admin {
        Some(admin) => Ok((admin.clone(), "--admin".to_owned())),
        None => client::locate(&arguments.config, is_named),
    }
}

/// Asks the sidecar with this `admin.bind`.
///
/// # Errors
/// If it does not answer in time, or is not ready.
pub fn ask(bind: impl Into<AdminAddress>) -> Result<(), HealthError> {
    let address = bind.into().reachable();
    let (status, answer) = client::answer(&address, "/readyz", AdminRequest::Read, None, BOUND)?;
    if status == 200 {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer);
    let said = answer.trim_end().lines().next_back().unwrap_or_default();
    Err(HealthError::NotReady {
        address,
        said: said.escape_debug().to_string(),
    })
}
