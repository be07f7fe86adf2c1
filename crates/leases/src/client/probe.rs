//! Asks one server who the master is, without a lease: `tidegate check --probe`.

use std::time::Duration;

use tidegate_runtime::Clock;
use tokio::time::timeout;

use super::connect::ServerList;
use super::{ClientOptions, unique_id};
use crate::dial::innermost;
use crate::sharing::ServerAddress;
use crate::wire::{DiscoveryRequest, GetCapacityRequest};

/// The state that a server reports of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportedRole {
    /// The server grants leases.
    Master,
    /// Another server does, if it knows one.
    Other(Option<String>),
}

/// Why a server did not say it, or grants nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// There is no connection.
    #[error("it cannot be reached: {0}")]
    NotReached(String),
    /// No answer came in time.
    #[error("it did not answer within {0:?}")]
    Late(Duration),
    /// The server answered with an error, or not in this protocol.
    #[error("it answered {method} with an error: {why}")]
    Refused {
        /// The method that was called.
        method: &'static str,
        /// The error.
        why: String,
    },
}

/// Asks a server who the master is. The master is also asked for the capacity of no resource: that
/// shows whether this client may ask, and takes none.
///
/// # Errors
///
/// If there is no answer within `request_timeout` of the options, or an error.
pub async fn standing(
    server: &ServerAddress,
    options: &ClientOptions,
) -> Result<ReportedRole, Unanswered> {
    let bound = options.request_timeout;
    let asked = timeout(bound, ask(server, options));
    asked.await.unwrap_or(Err(Unanswered::Late(bound)))
}

async fn ask(server: &ServerAddress, options: &ClientOptions) -> Result<ReportedRole, Unanswered> {
    let servers = ServerList::new(
        vec![server.clone()],
        options.dial.clone(),
        options.request_timeout,
        Clock::start(),
        options.metrics.clone(),
    );
    let mut connected = servers
        .connect(server)
        .await
        .map_err(|error| Unanswered::NotReached(innermost(&error)))?;
    let refused = |method| move |why| Unanswered::Refused { method, why };
    let dials = connected.dials.clone();
    let status = |status: tonic::Status| dials.cause(&status);
    let told = connected.client.discovery(DiscoveryRequest {}).await;
    let told = told.map_err(status).map_err(refused("Discovery"))?;
    let told = told.into_inner();
    if !told.is_master {
        return Ok(ReportedRole::Other(told.mastership.master_address));
    }
    let nothing = GetCapacityRequest {
        client_id: options.client_id.clone().unwrap_or_else(unique_id),
        resource: Vec::new(),
    };
    let granted = connected.client.get_capacity(nothing).await;
    granted.map_err(status).map_err(refused("GetCapacity"))?;
    Ok(ReportedRole::Master)
}
