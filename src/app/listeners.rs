//! The listeners of a sidecar, and of its admin address: bound, kept over a reload, and served.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_runtime::{Live, lock};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::{AppState, StartError};
use crate::admin::{self, Inlet, ServeError};
use crate::call::listener::UNIX_MODE;
use crate::call::{Bind, Listener, Protocol};
use crate::listen::threads::{CallGuess, ThreadPlace};
use crate::listen::{
    self, AcceptStop, Bound, InheritedSockets, ListeningSocket, SocketFile, SocketFileId,
};
use crate::protocol::{self, AcceptedConnection};

/// Listeners of a running sidecar.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) accepting: Vec<RunningListener>,
    /// The process ends: a reload that is under way adds no listener.
    pub(super) closed: bool,
}

/// A listener whose accept loop runs.
pub(super) struct RunningListener {
    pub(super) settings: Arc<Live<Listener>>,
    pub(super) address: Bind,
    file: Option<SocketFileId>,
    /// For the service manager, which keeps it open while the process is exchanged. Dropped with the loop, so that
    /// nothing else holds a listener open that ends.
    socket: Option<OwnedFd>,
    pub(super) stop: AcceptStop,
}

/// The sockets of the admin address, and what stops its server.
#[derive(Default)]
pub(super) struct AdminSockets {
    sockets: Vec<ListeningSocket>,
    stop: CancellationToken,
    /// The file of the socket is left to another process.
    leaves: Arc<AtomicBool>,
    /// The server, until its last answer is written.
    serving: TaskTracker,
}

/// Listeners of the admin address.
pub(super) struct AdminInlets {
    tcp: Option<tokio::net::TcpListener>,
    file: Option<(tokio::net::UnixListener, Option<SocketFile>)>,
}

impl AdminInlets {
    /// Binds each address of the settings. Needs a runtime.
    pub(super) fn bind(
        settings: &admin::AdminSettings,
        inherited: &InheritedSockets,
    ) -> Result<Self, StartError> {
        let tcp = settings.bind.map(|address| {
            let bound = listen::bind_tcp(address, inherited);
            let bound = bound.and_then(tokio::net::TcpListener::from_std);
            bound.map_err(|cause| cannot_bind_admin(Bind::Tcp(address), cause))
        });
        let file = settings.socket.as_ref().map(|path| {
            let bound = listen::bind_file(path, UNIX_MODE, inherited);
            let bound = bound.and_then(|(listener, file)| {
                Ok((tokio::net::UnixListener::from_std(listener)?, file))
            });
            bound.map_err(|cause| cannot_bind_admin(Bind::Unix(Arc::clone(path)), cause))
        });
        Ok(Self {
            tcp: tcp.transpose()?,
            file: file.transpose()?,
        })
    }

    /// The address with its real port.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref()?.local_addr().ok()
    }

    /// Other descriptors of the sockets.
    fn duplicates(&self) -> Vec<ListeningSocket> {
        let tcp = self.tcp.as_ref().map(|listener| (listener.as_fd(), false));
        let file = self.file.as_ref();
        let file = file.map(|(listener, file)| (listener.as_fd(), file.is_some()));
        let sockets = tcp.into_iter().chain(file);
        let duplicates = sockets.filter_map(|(socket, owns_file)| {
            let socket = socket.try_clone_to_owned().ok()?;
            Some(ListeningSocket::new(socket, owns_file))
        });
        duplicates.collect()
    }

    /// Starts to serve each of them. If it `leaves`, the file of the socket stays.
    fn serve<F>(self, serve: impl Fn(Inlet) -> F, leaves: Arc<AtomicBool>) -> TaskTracker
    where
        F: Future<Output = Result<(), ServeError>> + Send + 'static,
    {
        let serving = TaskTracker::new();
        if let Some(listener) = self.tcp {
            serving.spawn(serve(Inlet::Tcp(listener)));
        }
        if let Some((listener, file)) = self.file {
            let answering = serve(Inlet::Unix(listener));
            serving.spawn(async move {
                let served = answering.await;
                if let Some(file) = file
                    && leaves.load(Ordering::Acquire)
                {
                    file.leave();
                }
                served
            });
        }
        serving.close();
        serving
    }
}

fn cannot_bind_admin(address: Bind, cause: io::Error) -> StartError {
    StartError::Bind {
        address,
        what: "admin".to_owned(),
        cause,
    }
}

/// Binds the address of each listener.
pub(super) fn bind_all<'a>(
    listeners: impl Iterator<Item = &'a Listener>,
    inherited: &InheritedSockets,
) -> Result<Vec<(Listener, Bound)>, StartError> {
    let bound = listeners.map(|listener| match listen::bind(listener, inherited) {
        Ok(socket) => Ok((listener.clone(), socket)),
        Err(cause) => Err(StartError::Bind {
            address: listener.bind.clone(),
            what: format!("listener {}", listener.name),
            cause,
        }),
    });
    bound.collect()
}

impl AppState {
    /// The sockets of TCP listeners, with names for the service manager, which may not contain a colon. The file of a
    /// Unix socket goes with the process, so no client could connect to it.
    pub(super) fn listening_sockets(&self) -> Vec<(String, OwnedFd)> {
        let listeners = lock(&self.listeners);
        let sockets = listeners.accepting.iter().filter_map(|it| {
            let (Bind::Tcp(address), Some(socket)) = (&it.address, &it.socket) else {
                return None;
            };
            let name = address.to_string().replace(':', "-");
            Some((name, socket.try_clone().ok()?))
        });
        sockets.collect()
    }

    /// All listening sockets, for a process that takes over. Those without a listener too: a later config may have one.
    pub(super) fn every_socket(&self) -> Vec<ListeningSocket> {
        let listeners = lock(&self.listeners);
        let mut all: Vec<_> = listeners
            .accepting
            .iter()
            .filter_map(|it| {
                let socket = it.socket.as_ref()?.try_clone().ok()?;
                Some(ListeningSocket::new(socket, it.file.is_some()))
            })
            .collect();
        let admin = lock(&self.admin_sockets);
        all.extend(admin.sockets.iter().filter_map(|it| it.duplicate().ok()));
        all.extend(self.inherited.duplicates());
        all
    }

    /// Serves the admin address.
    pub(super) fn serve_admin(self: &Arc<Self>, inlets: AdminInlets, beside: &CancellationToken) {
        let (stop, leaves) = (beside.child_token(), Arc::default());
        let sockets = inlets.duplicates();
        let serve = |inlet| {
            let settings = self.config.get().admin.clone();
            let (source, callers) = (Arc::clone(self), Arc::clone(self));
            admin::serve(inlet, settings, source, callers, stop.clone())
        };
        let serving = inlets.serve(serve, Arc::clone(&leaves));
        *lock(&self.admin_sockets) = AdminSockets {
            sockets,
            stop,
            leaves,
            serving,
        };
    }

    /// Waits until the admin address has written its last answer.
    pub(super) async fn admin_ended(&self) {
        let serving = lock(&self.admin_sockets).serving.clone();
        serving.wait().await;
    }

    /// Accepts no connection any more, because another process does. Connections end with their next answer. The sockets
    /// stay open.
    pub(super) fn leave_sockets(&self) {
        self.ready.store(false, Ordering::Relaxed);
        for listener in &lock(&self.listeners).accepting {
            listener.stop.leave();
        }
        let admin = lock(&self.admin_sockets);
        admin.leaves.store(true, Ordering::Release);
        admin.stop.cancel();
        drop(admin);
        self.closing.after_answers(true);
        self.conversations.close();
    }

    /// Accepts connections again.
    pub(super) fn accept_again(self: &Arc<Self>, beside: &CancellationToken) {
        let sockets = self.every_socket();
        lock(&self.listeners).accepting.clear();
        let inherited = InheritedSockets::default().and_handed_over(sockets);
        self.conversations.reopen();
        self.closing.after_answers(false);
        let config = self.config.get();
        match bind_all(config.listen.listeners.iter(), &inherited) {
            Ok(bound) => {
                for (listener, socket) in bound {
                    self.accept_on(listener, socket);
                }
            }
            Err(error) => error!(%error, "cannot accept connections again"),
        }
        match AdminInlets::bind(&config.admin, &inherited) {
            Ok(inlets) => self.serve_admin(inlets, beside),
            Err(error) => error!(%error, "cannot serve the admin address again"),
        }
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Waits until all connections are closed. What has no end of its own is ended shortly before the time is over. Idle
    /// connections end at half of it, so that the last call that comes on one still has time to wait and to run.
    pub(super) async fn finish_connections(self: Arc<Self>, drain_timeout: Duration) {
        let idle = async {
            sleep(drain_timeout / 2).await;
            self.closing.set();
        };
        let ending = async {
            tokio::join!(self.streams.end_all(drain_timeout, drain_timeout), idle);
            std::future::pending::<()>().await;
        };
        let closed = async { tokio::join!(self.conversations.wait(), self.pipeline.tasks.drain()) };
        tokio::select! {
            _ = closed => {}
            () = ending => {}
        }
    }

    /// Answers all calls that are left: those that wait were not sent, and those at the backend may still run.
    pub(super) fn give_up_calls(&self) {
        self.gate.refuse_all();
        self.pipeline.wakers.wake_all();
    }

    /// The bound addresses of the listeners that clients can still reach. Checks their files.
    pub(super) fn reachable(&self) -> Vec<Bind> {
        let look = |it: &RunningListener| (it.settings.get().bind.clone(), it.file.clone());
        let found: Vec<_> = lock(&self.listeners).accepting.iter().map(look).collect();
        let is_there =
            |file: &Option<SocketFileId>| file.as_ref().is_none_or(SocketFileId::is_there);
        let there = found.into_iter().filter(|(_, file)| is_there(file));
        there.map(|(bind, _)| bind).collect()
    }

    /// Ends the loops of removed listeners, and gives the others their new settings. A listener
    /// that clients cannot reach any more makes room for a new one in its place.
    pub(super) fn keep_listeners(&self, wanted: &[Listener], kept: &[Bind]) {
        lock(&self.listeners).accepting.retain(|accepting| {
            let bound = accepting.settings.get();
            let listener = wanted.iter().find(|listener| listener.bind == bound.bind);
            match listener.filter(|_| kept.contains(&bound.bind)) {
                Some(listener) => {
                    accepting.settings.set(listener.clone());
                    true
                }
                None => {
                    accepting.stop.close();
                    false
                }
            }
        });
    }

    /// Accepts connections of a bound listener.
    pub(super) fn accept_on(self: &Arc<Self>, listener: Listener, socket: Bound) {
        let address = socket.address().clone();
        let name = Arc::clone(&listener.name);
        let settings = Arc::new(Live::new(listener));
        let stop = AcceptStop::default();
        let mut listeners = lock(&self.listeners);
        if listeners.closed {
            return;
        }
        info!(listener = %name, %address, "listening");
        listeners.accepting.push(RunningListener {
            settings: Arc::clone(&settings),
            address,
            file: socket.file(),
            socket: socket.duplicate().ok(),
            stop: stop.clone(),
        });
        // Counted with the conversations: until it ends, one more may begin.
        self.conversations
            .spawn(Arc::clone(self).accept(settings, socket, stop));
    }

    async fn accept(
        self: Arc<Self>,
        settings: Arc<Live<Listener>>,
        socket: Bound,
        stop: AcceptStop,
    ) {
        let gate = || async {
            // HTTP is still accepted when the queue is full, because a token needs no place in it.
            // Its calls wait at the door. (docs/decisions/0002)
            let protocol = settings.get().protocol;
            if matches!(protocol, Protocol::Socket | Protocol::Tcp) {
                self.gate.room().await;
            }
        };
        let failed = |error: &io::Error| {
            self.metrics.listen.accept_errors_total().inc();
            warn!(listener = %settings.get().name, %error, "cannot accept");
        };
        let looked_up = Mutex::default();
        let guess = CallGuess::default();
        let handle = |stream, peer, connection| {
            let listener = settings.get();
            let listen = &self.metrics.listen;
            let counted = listen.opened_at(&mut lock(&looked_up), &listener.name);
            let mut accepted = AcceptedConnection::new(stream, peer, listener, self.clock.now());
            let ThreadPlace { executor, taken } =
                self.threads.place_for(&guess, || accepted.is_one_call());
            let held = (connection, counted, taken);
            let conversing = protocol::converse(accepted, self.conversation.get(), held);
            match executor {
                Some(executor) => self.conversations.spawn_on(conversing, &executor),
                None => self.conversations.spawn(conversing),
            };
        };
        let connections = Arc::clone(&self.connections);
        let accepting = listen::accept(socket, connections, stop, gate, failed, handle);
        if let Err(error) = accepting.await {
            error!(listener = %settings.get().name, %error, "cannot accept at all");
        }
    }
}
