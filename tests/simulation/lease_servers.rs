//! Two lease servers outside the processes, and the election of their master.

use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use tempfile::TempDir;
use tidegate_lease_server::config::{self, Rules};
use tidegate_leases::client::{Dial, DialedConnection, Dialing};
use tidegate_leases::server::{CapacityService, Templates};
use tidegate_leases::wire::Epoch;
use tidegate_leases::wire::capacity_server::CapacityServer;
use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tidegate_runtime::election::Mastership;
use tidegate_runtime::tls::CloseReason;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use crate::process::{UP, time_of_day};
use crate::record::Millis;

/// The time of a mastership.   ms
const FENCE: Millis = 1_000;
/// The names of the servers, as `host:port`.
const NAMES: [&str; 2] = ["lease-0:1", "lease-1:1"];
/// The resource that the servers divide.
pub(crate) const RESOURCE: &str = "shared/total";

/// The servers, and who is the master.
pub(crate) struct LeaseServers {
    folder: TempDir,
    config: String,
    clock: Clock,
    servers: [Option<LeaseServer>; 2],
    master: Option<usize>,
    /// The master cannot renew its mastership.
    is_cut_off: bool,
    /// When the mastership ends, unless it is renewed.
    until: Millis,
    term: u64,
}

struct LeaseServer {
    mastership: watch::Sender<Mastership>,
    connections: Connections,
    _serving: DropGuard,
}

/// A second handle of each connection: a server that ends does not end the tasks of its own.
type Connections = Arc<Mutex<Vec<std::os::unix::net::UnixStream>>>;

impl Drop for LeaseServer {
    fn drop(&mut self) {
        for connection in self
            .connections
            .lock()
            .expect("no part panics with it")
            .iter()
        {
            // The client may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// The rules of a resource of which each of two clients always owns `safe`, with windows of this length.
pub(crate) fn rules(capacity: usize, safe: usize, window: Millis) -> String {
    // The window, its guard, and the time in which a call may still be on its way.
    let frees_after = window + 5 + 100;
    format!(
        r#"
        bind = "127.0.0.1:0"
        status_bind = ""
        minimum_interval = "200ms"
        [[resource]]
        glob = "{RESOURCE}"
        capacity = {capacity}
        [resource.algorithm]
        kind = "fair_share"
        lease = "3s"
        refresh = "1s"
        frees_after = "{frees_after}ms"
        reserved_clients = 2
        safe_share = {safe}
        "#
    )
}

impl LeaseServers {
    /// Serves from now on; needs a runtime.
    pub(crate) fn start(config: String) -> Self {
        let mut this = Self {
            folder: tempfile::tempdir().expect("a temporary directory"),
            config,
            clock: Clock::simulated(Duration::ZERO, UP, time_of_day(0)),
            servers: [None, None],
            master: None,
            is_cut_off: false,
            until: 0,
            term: 0,
        };
        this.bring_up(0);
        this.bring_up(1);
        this
    }

    /// The folder with their sockets.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("lease-{server}"))
    }

    /// Starts a server, which knows nothing; needs a runtime.
    pub(crate) fn bring_up(&mut self, server: usize) {
        let read = config::read(&self.config, "leases.toml");
        let (config, _) = read.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let templates = match &config.rules {
            Rules::Here(templates) => templates.clone(),
            _ => Templates::default(),
        };
        let mut settings = config.machine(Epoch::new(Timestamp::ZERO, self.clock.phase()));
        settings.address = NAMES[server].to_owned();
        let (mastership, told) = watch::channel(Mastership::Unknown);
        let service = CapacityService::new(settings, templates, self.clock, told);
        let path = self.file(server);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(path).expect("a free path");
        let stop = CancellationToken::new();
        let following = service.clone().keep_following(stop.clone());
        tokio::spawn(following);
        let connections = Connections::default();
        let serving = serve(listener, service, Arc::clone(&connections));
        tokio::spawn(stop.clone().run_until_cancelled_owned(serving));
        self.servers[server] = Some(LeaseServer {
            mastership,
            connections,
            _serving: stop.drop_guard(),
        });
    }

    /// Ends a server and its connections.
    pub(crate) fn take_down(&mut self, server: usize) {
        self.servers[server] = None;
        let _ = std::fs::remove_file(self.file(server));
    }

    /// The master cannot renew its mastership from now on, or can again.
    pub(crate) fn cut_off_master(&mut self, is_cut_off: bool) {
        self.is_cut_off = is_cut_off;
    }

    /// Renews the mastership, or elects another master if it is over.
    pub(crate) fn elect(&mut self, now: Millis) {
        let is_up = |server: usize| self.servers[server].is_some();
        let renews = self.master.is_some_and(is_up) && !self.is_cut_off;
        if renews {
            self.until = now + FENCE;
        } else if now > self.until {
            let before = self.master;
            let others = (0..2).filter(|server| Some(*server) != before);
            let next = others.chain(before.filter(|_| !self.is_cut_off));
            self.master = next.into_iter().find(|server| is_up(*server));
            if self.master.is_some() {
                (self.term, self.until) = (self.term + 1, now + FENCE);
                // The other one is cut off.
                self.is_cut_off = false;
            }
        }
        self.tell(now);
    }

    fn tell(&self, now: Millis) {
        for (number, server) in self.servers.iter().enumerate() {
            let Some(server) = server else { continue };
            let told = match self.master {
                Some(master) if master == number => Mastership::Master {
                    until: self.clock.now() + Duration::from_millis(self.until.saturating_sub(now)),
                    term: self.term,
                },
                Some(master) => Mastership::Other(NAMES[master].to_owned()),
                None => Mastership::Unknown,
            };
            server.mastership.send_replace(told);
        }
    }
}

async fn serve(listener: UnixListener, service: CapacityService, connections: Connections) {
    let (accepted, incoming) = mpsc::channel(1);
    let accepting = async move {
        loop {
            let (stream, _) = listener.accept().await.expect("it listens");
            let handle = stream.as_fd().try_clone_to_owned();
            let handle = handle.expect("too few descriptors").into();
            connections
                .lock()
                .expect("no part panics with it")
                .push(handle);
            if accepted.send(io::Result::Ok(stream)).await.is_err() {
                return;
            }
        }
    };
    let serving = Server::builder()
        .add_service(CapacityServer::new(service))
        .serve_with_incoming(ReceiverStream::new(incoming));
    let (served, ()) = tokio::join!(serving, accepting);
    served.expect("it serves");
}

/// The way of a process to the servers, over their files.
pub(crate) struct WayToServers(pub(crate) PathBuf);

impl fmt::Debug for WayToServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WayToServers")
    }
}

impl Dial for WayToServers {
    fn dial(&self, server: &str) -> Dialing {
        let name = server.split(':').next().unwrap_or_default();
        let path = self.0.join(name);
        Box::pin(async move {
            let stream = Box::new(UnixStream::connect(path).await?);
            let said = CloseReason::default();
            Ok(DialedConnection { stream, said })
        })
    }
}
