//! The health service, `grpc.health.v1.Health`: for load balancers and orchestrators.
//!
//! | service | serving means |
//! |---|---|
//! | `""` | this server answers: it is the master, or it knows which server is |
//! | `doorman.Capacity` | this server is the master, and grants |
//!
//! A load balancer that asks for `doorman.Capacity` sends all clients to the master. An
//! orchestrator asks for `""`: a candidate that waits is healthy.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::wrappers::WatchStream;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::service::CapacityService;

/// The name of the wire's service.
const CAPACITY: &str = "doorman.Capacity";
/// A fence can pass without a change of the election. It is checked at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The state of the two services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServiceHealth {
    /// Whether this server knows the master.
    answers: bool,
    /// Whether this server is the master.
    grants: bool,
}

/// Clones share what they tell.
#[derive(Clone)]
pub(super) struct HealthService {
    service: CapacityService,
    told: watch::Sender<ServiceHealth>,
}

impl HealthService {
    pub(super) fn of(service: CapacityService) -> Self {
        let told = watch::Sender::new(standing(&service));
        Self { service, told }
    }

    pub(super) fn service(self, message_bytes: usize) -> HealthServer<Self> {
        HealthServer::new(self).max_decoding_message_size(message_bytes)
    }

    /// Tells those that watch of changes, until it is stopped.
    pub(super) async fn keep_following(self, stop: CancellationToken) {
        let mut mastership = self.service.mastership();
        while !stop.is_cancelled() {
            self.look();
            tokio::select! {
                () = stop.cancelled() => break,
                changed = mastership.changed() => if changed.is_err() {
                    break;
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        // It is about to leave, whatever its state is.
        self.told.send_replace(ServiceHealth {
            answers: false,
            grants: false,
        });
    }

    fn look(&self) {
        let now = standing(&self.service);
        let tell = |told: &mut ServiceHealth| std::mem::replace(told, now) != now;
        self.told.send_if_modified(tell);
    }
}

fn standing(service: &CapacityService) -> ServiceHealth {
    ServiceHealth {
        answers: service.knows_the_master(),
        grants: service.is_the_master(),
    }
}

impl ServiceHealth {
    fn of(self, name: &str) -> Option<HealthCheckResponse> {
        let serves = match name {
            "" => self.answers,
            CAPACITY => self.grants,
            _ => return None,
        };
        let status = match serves {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        Some(HealthCheckResponse {
            status: status as i32,
        })
    }
}

type Statuses = std::pin::Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl health_server::Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = &request.get_ref().service;
        let standing = *self.told.borrow();
        // At this moment, unless it is about to leave.
        let now = super::health::standing(&self.service);
        let standing = ServiceHealth {
            answers: standing.answers && now.answers,
            grants: standing.grants && now.grants,
        };
        let told = standing.of(name).map(Response::new);
        told.ok_or_else(|| Status::not_found("the services are \"\" and doorman.Capacity"))
    }

    type WatchStream = Statuses;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Statuses>, Status> {
        let name = request.into_inner().service;
        let unknown = HealthCheckResponse {
            // As the protocol wants it of a stream.
            status: ServingStatus::ServiceUnknown as i32,
        };
        let mut last = None;
        let told = WatchStream::new(self.told.subscribe()).filter_map(move |standing| {
            let told = standing.of(&name).unwrap_or(unknown);
            (last.replace(told.status) != Some(told.status)).then_some(Ok(told))
        });
        Ok(Response::new(Box::pin(told)))
    }
}

impl CapacityService {
    /// Whether this server is the master and its fence has not passed.
    fn is_the_master(&self) -> bool {
        self.mastership().borrow().holds_at(self.clock().now())
    }
}
