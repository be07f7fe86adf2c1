//! The loop that asks the server above for the capacity of this server.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use tidegate_limits::Timestamp;
use tidegate_runtime::BackOff;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tracing::{debug, warn};

use super::metrics::{ANSWERED, FAILED, Metrics, REDIRECTED};
use super::service::CapacityService;
use crate::dial::{Dial, Dials};
use crate::wire::capacity_client::CapacityClient;
use crate::wire::{self, GetServerCapacityRequest};

/// How long a connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time of one request, with the connect.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often a request is redirected within one round.
const REDIRECTS_MAX: usize = 4;
/// The first pause without an answer.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Requests from below can make a request above due. The loop checks at most this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The largest answer.   bytes
const ANSWER_MAX: usize = 16 << 20;

/// Asks for as long as the process lives.
pub async fn keep_asking(
    service: CapacityService,
    parents: Vec<String>,
    dial: Arc<dyn Dial>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let mut asking = ParentClient {
        service,
        parents,
        dial,
        next: 0,
        connected: None,
        metrics,
    };
    stop.run_until_cancelled(asking.go_on()).await;
}

struct ParentClient {
    service: CapacityService,
    /// `host:port` of those that may be the master.
    parents: Vec<String>,
    dial: Arc<dyn Dial>,
    /// The index of the server that is tried next.
    next: usize,
    /// The one that answered last.
    connected: Option<ParentLink>,
    metrics: Arc<Metrics>,
}

/// A server, the channel to it, and how its connections went.
type ParentLink = (String, CapacityClient<Channel>, Dials);

impl ParentClient {
    async fn go_on(&mut self) {
        let mut back_off = BackOff::gentle(PAUSE_FIRST);
        loop {
            self.until_due().await;
            let Some((sent_at, request)) = self.service.ask_parent() else {
                continue;
            };
            if self.ask(sent_at, request).await {
                back_off.reset();
            } else {
                self.service
                    .with(|server, _| server.parent_unanswered(sent_at));
                let pause = back_off.pause_with_jitter(rand::rng().random());
                let failures = back_off.failures();
                warn!(?pause, failures, "leases: no server above answers");
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn until_due(&self) {
        let clock = self.service.clock();
        loop {
            let due = self.service.next_due();
            let looked = clock.now();
            match due {
                Some(due) if due <= looked => return,
                Some(due) => tokio::select! {
                    () = clock.sleep_until(due) => {}
                    () = self.service.changed() => {}
                },
                None => self.service.changed().await,
            }
            clock.sleep_until(looked + LOOK_EVERY).await;
        }
    }

    /// Asks one server after the other, and the servers that they name, each once. Returns whether
    /// one answered.
    async fn ask(&mut self, sent_at: Timestamp, request: GetServerCapacityRequest) -> bool {
        let mut kept = self.connected.take();
        let mut named: Option<String> = None;
        let (mut tried, mut redirects) = (0, 0);
        while tried <= self.parents.len() || named.is_some() {
            tried += 1;
            let (address, mut client, dials) = match (named.take(), kept.take()) {
                (None, Some(kept)) => kept,
                (named, _) => {
                    let address = named.unwrap_or_else(|| self.next_parent());
                    let Some((client, dials)) = connect(&address, &self.dial) else {
                        continue;
                    };
                    (address, client, dials)
                }
            };
            let question = client.get_server_capacity(request.clone());
            let answer = timeout(DEADLINE, question).await;
            match answer {
                Ok(Ok(answer)) => {
                    let millis = wire::server_millis(answer.metadata());
                    let answer = answer.into_inner();
                    let Some(mastership) = &answer.mastership else {
                        self.metrics.ours.parent_requests_total(ANSWERED).inc();
                        self.service.with(|server, now| {
                            server.parent_answered(now, sent_at, millis, &answer);
                        });
                        let resources = answer.response.len();
                        debug!(resources, "leases: the server above has answered");
                        self.connected = Some((address, client, dials));
                        return true;
                    };
                    self.metrics.ours.parent_requests_total(REDIRECTED).inc();
                    let master = mastership.master_address.clone();
                    debug!(%address, master = master.as_deref().unwrap_or("unknown"), "leases: the server above is not the master");
                    if redirects < REDIRECTS_MAX {
                        named = master.filter(|master| !master.is_empty());
                        redirects += 1;
                    }
                }
                Ok(Err(status)) => {
                    self.metrics.ours.parent_requests_total(FAILED).inc();
                    let message = dials.cause(&status);
                    warn!(%address, code = status.code().description(), message,
                          "leases: the server above answers with an error");
                }
                Err(_) => {
                    self.metrics.ours.parent_requests_total(FAILED).inc();
                    warn!(%address, "leases: the server above does not answer in time");
                }
            }
        }
        false
    }

    fn next_parent(&mut self) -> String {
        let address = &self.parents[self.next % self.parents.len()];
        self.next = self.next.wrapping_add(1);
        address.clone()
    }
}

/// Connects with the first request. `None` if it is not an address.
fn connect(address: &str, dial: &Arc<dyn Dial>) -> Option<(CapacityClient<Channel>, Dials)> {
    let endpoint = match Endpoint::from_shared(format!("http://{address}")) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            warn!(address, %error, "leases: that is no address of a server");
            return None;
        }
    };
    let dials = Dials::default();
    let connector = dials.connector(dial, address, CONNECT_TIMEOUT);
    let channel = endpoint
        .http2_keep_alive_interval(Duration::from_secs(30))
        .connect_with_connector_lazy(connector);
    let client = CapacityClient::new(channel);
    Some((client.max_decoding_message_size(ANSWER_MAX), dials))
}
