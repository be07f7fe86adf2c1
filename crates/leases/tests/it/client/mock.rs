//! Scripted capacity servers, reached without a socket, so that time can be paused.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_leases::client::{Dial, DialedConnection, Dialing, ServerAddress};
use tidegate_leases::wire::capacity_server::{Capacity, CapacityServer};
use tidegate_leases::wire::{
    DiscoveryRequest, DiscoveryResponse, GetCapacityRequest, GetCapacityResponse,
    GetServerCapacityRequest, GetServerCapacityResponse, Lease, Mastership, ReleaseCapacityRequest,
    ReleaseCapacityResponse, ResourceResponse,
};
use tidegate_runtime::tls::CloseReason;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::codegen::tokio_stream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// How a server behaves, and what it saw.
#[derive(Debug)]
pub(crate) struct Behaviour {
    /// The capacity that each resource gets, if it wants as much.
    pub(crate) capacity: f64,
    pub(crate) lease_seconds: i64,
    pub(crate) refresh_seconds: i64,
    pub(crate) safe_capacity: Option<f64>,
    /// Some: it is not the master, and says who is.
    pub(crate) names_master: Option<Option<String>>,
    /// Whether requests are never answered.
    pub(crate) hangs: bool,
    /// Connections are refused, and requests on those that there are.
    pub(crate) is_down: bool,
    /// The seconds by which the server's clock is ahead of ours; `None` if its replies do not show its clock.
    pub(crate) ahead_seconds: Option<i64>,
    pub(crate) asked: Vec<(Instant, GetCapacityRequest)>,
    pub(crate) released: Vec<Vec<String>>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            capacity: 10.0,
            lease_seconds: 60,
            refresh_seconds: 16,
            safe_capacity: None,
            names_master: None,
            hangs: false,
            is_down: false,
            ahead_seconds: Some(3600),
            asked: Vec::new(),
            released: Vec::new(),
        }
    }
}

/// A server. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Mock {
    behaviour: Arc<Mutex<Behaviour>>,
    started: Instant,
    started_wall: Duration,
}

impl Mock {
    pub(crate) fn new() -> Self {
        Self {
            behaviour: Arc::default(),
            started: Instant::now(),
            started_wall: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .expect("after 1970"),
        }
    }

    /// Answers on a free port of loopback until the returned set is dropped.
    pub(crate) async fn serve(&self) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let service = CapacityServer::new(self.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
                .expect("it serves");
        });
        (address, serving)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().expect("no test panics inside")
    }

    /// The demand for a resource in each request.
    pub(crate) fn wants(&self, id: &str) -> Vec<f64> {
        let behaviour = self.lock();
        let resources = behaviour
            .asked
            .iter()
            .flat_map(|(_, asked)| &asked.resource);
        resources
            .filter(|resource| resource.resource_id == id)
            .map(|resource| resource.wants)
            .collect()
    }

    async fn reach(&self) -> Result<Option<Mastership>, Status> {
        let (hangs, is_down, names) = {
            let behaviour = self.lock();
            (
                behaviour.hangs,
                behaviour.is_down,
                behaviour.names_master.clone(),
            )
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if is_down {
            return Err(Status::unavailable("it is down"));
        }
        Ok(names.map(|master_address| Mastership { master_address }))
    }
}

#[tonic::async_trait]
impl Capacity for Mock {
    async fn discovery(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        let other = self.reach().await?;
        let is_master = other.is_none();
        Ok(Response::new(DiscoveryResponse {
            is_master,
            mastership: other.unwrap_or(Mastership {
                master_address: None,
            }),
        }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let request = request.into_inner();
        self.lock().asked.push((Instant::now(), request.clone()));
        let mastership = self.reach().await?;
        let behaviour = self.lock();
        let ahead = behaviour.ahead_seconds.unwrap_or(0) * 1000;
        let now_ms = (self.started_wall + self.started.elapsed()).as_millis() as i64 + ahead;
        let gets = |wants: f64| Lease {
            expiry_time: now_ms / 1000 + behaviour.lease_seconds,
            refresh_interval: behaviour.refresh_seconds,
            capacity: behaviour.capacity.min(wants),
        };
        let response = match mastership {
            Some(_) => Vec::new(),
            None => request
                .resource
                .iter()
                .map(|resource| ResourceResponse {
                    resource_id: resource.resource_id.clone(),
                    gets: gets(resource.wants),
                    safe_capacity: behaviour.safe_capacity,
                })
                .collect(),
        };
        let mut answer = Response::new(GetCapacityResponse {
            response,
            mastership,
        });
        if behaviour.ahead_seconds.is_some() {
            let now_ms = now_ms.to_string().parse().expect("digits");
            answer.metadata_mut().insert("tidegate-now-ms", now_ms);
        }
        Ok(answer)
    }

    async fn get_server_capacity(
        &self,
        _: Request<GetServerCapacityRequest>,
    ) -> Result<Response<GetServerCapacityResponse>, Status> {
        Err(Status::unimplemented("no client here asks"))
    }

    async fn release_capacity(
        &self,
        request: Request<ReleaseCapacityRequest>,
    ) -> Result<Response<ReleaseCapacityResponse>, Status> {
        let mastership = self.reach().await?;
        if mastership.is_none() {
            let released = request.into_inner().resource_id;
            self.lock().released.push(released);
        }
        Ok(Response::new(ReleaseCapacityResponse { mastership }))
    }
}

/// The servers by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network(Arc<Mutex<BTreeMap<String, Mock>>>);

impl Network {
    /// A server at an address.
    pub(crate) fn add(&self, address: &str) -> Mock {
        let mock = Mock::new();
        let mut servers = self.0.lock().expect("no test panics inside");
        servers.insert(address.to_owned(), mock.clone());
        mock
    }
}

impl Dial for Network {
    fn dial(&self, server: &str) -> Dialing {
        let server: &ServerAddress = &server.parse().expect("a server's address");
        let servers = self.0.lock().expect("no test panics inside");
        let mock = servers.get(server.as_str()).cloned();
        Box::pin(async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let mock = mock.ok_or_else(refused)?;
            if mock.lock().is_down {
                return Err(refused());
            }
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(async move {
                let incoming = tokio_stream::once(Ok::<_, io::Error>(theirs));
                let served = tonic::transport::Server::builder()
                    .add_service(CapacityServer::new(mock))
                    .serve_with_incoming(incoming)
                    .await;
                served.expect("it serves until the client leaves");
            });
            Ok(DialedConnection {
                stream: Box::new(ours),
                said: CloseReason::default(),
            })
        })
    }
}
