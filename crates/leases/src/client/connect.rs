//! Talks to capacity servers: finds the master, within a bound.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use super::leases::RequestFailure;
use super::metrics::ClientMetrics;
use super::route::{Route, RouteStep};
use crate::dial::{Dial, Dials, innermost};
use crate::sharing::ServerAddress;
use crate::wire::capacity_client::CapacityClient;
use crate::wire::{
    self, GetCapacityRequest, GetCapacityResponse, Mastership, ReleaseCapacityRequest,
};

/// The largest answer.   bytes
const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// The most servers whose trouble is remembered.
const TROUBLES_MAX: usize = 128;

/// An answer of a master.
pub(super) struct MasterAnswer {
    pub(super) response: GetCapacityResponse,
    /// The server's clock when it decided, or ours when the request was sent.   ms since 1970
    pub(super) server_now_ms: i64,
}

/// The servers, and the connection to the last one.
#[derive(Debug)]
pub(super) struct ServerList {
    route: Route,
    dial: Arc<dyn Dial>,
    deadline: Duration,
    clock: Clock,
    metrics: ClientMetrics,
    connected: Option<ServerLink>,
    /// Why servers do not answer, as logged; each until it answers.
    troubles: HashMap<ServerAddress, String>,
}

#[derive(Debug)]
pub(super) struct ServerLink {
    server: ServerAddress,
    pub(super) client: CapacityClient<Channel>,
    /// The channel itself reconnects; this knows how that went.
    pub(super) dials: Dials,
}

impl ServerList {
    pub(super) fn new(
        servers: Vec<ServerAddress>,
        dial: Arc<dyn Dial>,
        deadline: Duration,
        clock: Clock,
        metrics: ClientMetrics,
    ) -> Self {
        Self {
            route: Route::new(servers),
            dial,
            deadline,
            clock,
            metrics,
            connected: None,
            troubles: HashMap::new(),
        }
    }

    /// Logs why a server does not answer, once for each reason.
    fn trouble(&mut self, server: &ServerAddress, cause: String) {
        if self.troubles.get(server) == Some(&cause) {
            return tracing::debug!(%server, cause, "capacity server does not answer");
        }
        tracing::warn!(%server, cause, "capacity server does not answer");
        if self.troubles.len() >= TROUBLES_MAX {
            self.troubles.clear();
        }
        self.troubles.insert(server.clone(), cause);
    }

    /// The server that is asked next: after an answer, the one that gave it.
    pub(super) fn target(&self) -> &ServerAddress {
        self.route.target()
    }

    /// Asks the master for capacity, within the deadline. `sent` is called each time that the
    /// request goes to another server.
    pub(super) async fn get_capacity(
        &mut self,
        request: &GetCapacityRequest,
        mut sent: impl FnMut(Timestamp),
    ) -> Result<MasterAnswer, RequestFailure> {
        let clock = self.clock;
        let (response, at, server_now_ms) = self
            .ask(
                "GetCapacity",
                request,
                async |client, request| client.get_capacity(request).await,
                |response| response.mastership.as_ref(),
                &mut sent,
            )
            .await?;
        let own = || {
            let wall = clock.wall(at).duration_since(UNIX_EPOCH);
            let since_1970 = wall.unwrap_or_default();
            i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
        };
        Ok(MasterAnswer {
            response,
            server_now_ms: server_now_ms.unwrap_or_else(own),
        })
    }

    /// Releases resources at the master, within the deadline.
    pub(super) async fn release_capacity(
        &mut self,
        request: &ReleaseCapacityRequest,
    ) -> Result<(), RequestFailure> {
        self.ask(
            "ReleaseCapacity",
            request,
            async |client, request| client.release_capacity(request).await,
            |response| response.mastership.as_ref(),
            &mut |_| {},
        )
        .await
        .map(|_| ())
    }

    /// Follows the way to the master. Returns its answer, when the request was sent to it, and its
    /// clock.
    async fn ask<Q: Clone, A>(
        &mut self,
        method: &str,
        request: &Q,
        call: impl AsyncFn(&mut CapacityClient<Channel>, Q) -> Result<tonic::Response<A>, tonic::Status>,
        mastership: impl Fn(&A) -> Option<&Mastership>,
        sent: &mut impl FnMut(Timestamp),
    ) -> Result<(A, Timestamp, Option<i64>), RequestFailure> {
        let deadline = tokio::time::Instant::now() + self.deadline;
        loop {
            let server = self.route.target().clone();
            let at = self.clock.now();
            sent(at);
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let mut failure = RequestFailure::NotSeen;
            let mut cause = None;
            let attempt = timeout(left, async {
                let connected = self.connected(&server).await?;
                failure = RequestFailure::Unknown;
                call(&mut connected.client, request.clone())
                    .await
                    .map_err(|status| {
                        cause = Some(connected.dials.cause(&status));
                        if connected.dials.have_failed() {
                            RequestFailure::NotSeen
                        } else {
                            RequestFailure::Unknown
                        }
                    })
            })
            .await;
            let attempt = attempt.unwrap_or(Err(failure));
            if let Some(cause) = cause {
                self.trouble(&server, cause);
            }
            let answers = |answer: &tonic::Response<A>| mastership(answer.get_ref()).is_none();
            let is_answered = attempt.as_ref().is_ok_and(answers);
            let took = self.clock.now().since(at);
            self.metrics.requested(&server, method, took, is_answered);
            let (onward, failure) = match attempt {
                Ok(answer) => {
                    let now_ms = wire::server_millis(answer.metadata());
                    let answer = answer.into_inner();
                    let Some(named) = mastership(&answer) else {
                        self.route.answered();
                        if self.troubles.remove(&server).is_some() {
                            tracing::info!(%server, "capacity server answers again");
                        }
                        return Ok((answer, at, now_ms));
                    };
                    let master = named.master_address.as_ref();
                    let master = master.and_then(|address| address.parse().ok());
                    tracing::debug!(%server, ?master, "not the master");
                    (self.route.redirected(master), RequestFailure::NotSeen)
                }
                Err(failure @ RequestFailure::NotSeen) => {
                    self.connected = None;
                    (self.route.not_reached(), failure)
                }
                Err(failure @ RequestFailure::Unknown) => {
                    self.connected = None;
                    self.route.failed();
                    (RouteStep::GiveUp, failure)
                }
            };
            if onward == RouteStep::GiveUp || tokio::time::Instant::now() >= deadline {
                return Err(failure);
            }
        }
    }

    /// The connection to a server, made if there is none.
    async fn connected(
        &mut self,
        server: &ServerAddress,
    ) -> Result<&mut ServerLink, RequestFailure> {
        let is_other = |connected: &ServerLink| connected.server != *server;
        if self.connected.as_ref().is_none_or(is_other) {
            self.connected = None;
            match self.connect(server).await {
                Ok(connected) => self.connected = Some(connected),
                Err(error) => {
                    self.trouble(server, innermost(&error));
                    return Err(RequestFailure::NotSeen);
                }
            }
        }
        Ok(self.connected.as_mut().expect("it was made just now"))
    }

    pub(super) async fn connect(
        &self,
        server: &ServerAddress,
    ) -> Result<ServerLink, tonic::transport::Error> {
        let dials = Dials::default();
        let connector = dials.connector(&self.dial, server.as_str(), self.deadline);
        let channel = Endpoint::from_shared(format!("http://{server}"))?
            .connect_with_connector(connector)
            .await?;
        Ok(ServerLink {
            server: server.clone(),
            client: CapacityClient::new(channel).max_decoding_message_size(ANSWER_MAX),
            dials,
        })
    }
}
