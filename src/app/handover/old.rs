//! The process that serves: it waits for a new one, hands over to it, and finishes its calls.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tidegate_handover::{
    FrozenGate, OldInput, OldOutput, OldSide, PeerConnection, SOCKETS_MAX, StatePart, ToNew, ToOld,
};
use tidegate_runtime::{lock, try_lock};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::channel::{Channel, Received};
use super::{
    ACTS, CALLERS, HandoverPhase, OldRequest, SOCKET_FILES, UpgradeAnswer, bind, parts_of,
    socket_of, wire,
};
use crate::app::acts::ActFile;
use crate::app::callers::Keeper;
use crate::app::ledger::{
    CLAIM_EVERY, CLAIM_MAX, ClaimError, DrainingLock, LedgerFile, LedgerLock,
};
use crate::app::{AppState, StartError, own_places};
use crate::listen::ListeningSocket;

/// Connections of other processes at once. A further one replaces the oldest that has not introduced itself.
const PEERS_MAX: usize = 8;
/// How long a new process may take from the commit on. Without a word from it, this process takes back.
const TAKE_OVER_MAX: Duration = Duration::from_secs(10);
/// How long a change that is under way is waited for.
const FREEZE_MAX: Duration = Duration::from_secs(5);

/// The part of this process in hand-overs, in its task.
pub(in crate::app) struct OldProcess {
    app: Arc<AppState>,
    side: OldSide,
    listener: UnixListener,
    peers: HashMap<PeerConnection, Channel>,
    connections: u64,
    received: Messages,
    requests: mpsc::UnboundedReceiver<OldRequest>,
    /// Inputs that are not handled yet, oldest first.
    inputs: VecDeque<OldInput>,
    draining: Option<DrainingLock>,
    /// The listening sockets, for the commit.
    sockets: Vec<OwnedFd>,
    /// The term in which this process has admitted calls before the freeze.
    frozen_term: u64,
    /// Who asked for the upgrade that is under way, and the pid of the process that was started for it.
    asked: Option<(u32, oneshot::Sender<UpgradeAnswer>)>,
    is_succeeded: bool,
    /// When the new process is given up.
    taken_by: Option<Instant>,
    /// When the calls that still run are cut off.
    drained_by: Option<Instant>,
    connections_closed: Option<JoinHandle<()>>,
    stop: CancellationToken,
}

/// Both ends of the queue of messages from all connections.
struct Messages {
    sender: mpsc::Sender<(PeerConnection, Received<ToOld>)>,
    receiver: mpsc::Receiver<(PeerConnection, Received<ToOld>)>,
}

impl OldProcess {
    /// Listens for a new process, in the place of any process before.
    ///
    /// # Errors
    /// If the socket cannot be made. Then this process cannot hand over.
    pub(in crate::app) fn listen(
        app: &Arc<AppState>,
        requests: mpsc::UnboundedReceiver<OldRequest>,
        stop: CancellationToken,
    ) -> io::Result<Option<Self>> {
        let Some(ledger) = &app.ledger else {
            return Ok(None);
        };
        let path = socket_of(ledger.path());
        let (sender, receiver) = mpsc::channel(1);
        Ok(Some(Self {
            app: Arc::clone(app),
            side: OldSide::new(),
            listener: bind(&path)?,
            peers: HashMap::new(),
            connections: 0,
            received: Messages { sender, receiver },
            requests,
            inputs: VecDeque::new(),
            draining: None,
            sockets: Vec::new(),
            frozen_term: 0,
            asked: None,
            is_succeeded: false,
            taken_by: None,
            drained_by: None,
            connections_closed: None,
            stop,
        }))
    }

    /// Runs until the process ends.
    pub(in crate::app) async fn run(mut self) {
        let gate = self.app.gate.clone();
        let stop = self.stop.clone();
        loop {
            while let Some(input) = self.inputs.pop_front() {
                self.handle(input).await;
            }
            let (taken_by, drained_by) = (self.taken_by, self.drained_by);
            tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => {
                    match accepted {
                        Ok((stream, _)) => self.greet(stream),
                        Err(error) => {
                            warn!(%error, "cannot accept a new process");
                            sleep(CLAIM_EVERY).await;
                        }
                    }
                }
                received = self.received.receiver.recv() => if let Some((from, received)) = received {
                    self.take(from, received);
                },
                events = gate.peer_events() => {
                    let clock = self.app.clock;
                    let inputs = events.into_iter().map(|event| wire::old_input(event, clock));
                    self.inputs.extend(inputs);
                }
                request = self.requests.recv() => if let Some(request) = request {
                    self.ask(request).await;
                },
                () = at(taken_by) => self.give_up_peer(),
                () = at(drained_by) => {
                    self.drained_by = None;
                    self.inputs.push_back(OldInput::DrainTimeout);
                }
                () = over(&mut self.connections_closed) => {
                    self.connections_closed = None;
                    self.inputs.push_back(OldInput::ConnectionsClosed);
                }
            }
        }
    }

    /// Takes a connection, if it is of this user.
    fn greet(&mut self, stream: UnixStream) {
        let Ok(peer) = stream.peer_cred() else { return };
        let own = rustix::process::geteuid().as_raw();
        if peer.uid() != own && peer.uid() != 0 {
            warn!(
                uid = peer.uid(),
                "a process of another user asked for a hand-over"
            );
            return;
        }
        if self.peers.len() >= PEERS_MAX {
            let known = self.side.peer();
            let silent = self.peers.keys().filter(|peer| Some(**peer) != known);
            if let Some(oldest) = silent.min_by_key(|peer| peer.0).copied() {
                self.peers.remove(&oldest);
            }
        }
        self.connections += 1;
        let number = PeerConnection(self.connections);
        let channel = Channel::start(stream, number, self.received.sender.clone());
        self.peers.insert(number, channel);
    }

    fn take(&mut self, from: PeerConnection, received: Received<ToOld>) {
        if !self.peers.contains_key(&from) {
            return;
        }
        match received {
            Received::Message(message, _) => {
                self.inputs.push_back(OldInput::Message(from, message));
            }
            Received::Lost(cause) => {
                info!(cause, "the connection to the new process is over");
                self.peers.remove(&from);
                self.inputs.push_back(OldInput::Lost(from));
            }
        }
    }

    async fn ask(&mut self, request: OldRequest) {
        match request {
            OldRequest::Upgrade(answer) => {
                if self.asked.is_some() || self.is_succeeded {
                    let _ = answer.send(Err("another upgrade is under way".to_owned()));
                    return;
                }
                if !self.app.config.get().forward.servers.is_empty() {
                    let _ = answer.send(Err(StartError::SeveralServers.to_string()));
                    return;
                }
                let app = Arc::clone(&self.app);
                match on_waiting_thread(move || app.start_successor()).await {
                    Ok(pid) => {
                        info!(pid, "a new process was started, which is to take over");
                        self.asked = Some((pid, answer));
                    }
                    Err(error) => {
                        error!(%error, "the new program cannot be started");
                        let _ = answer.send(Err(format!("cannot start the program: {error}")));
                    }
                }
            }
            OldRequest::ChildEnded { pid, how } => {
                if !self.is_succeeded {
                    warn!(pid, how, "the new process has ended, and this one serves");
                }
                // One that was started for an earlier request may end late.
                if matches!(self.asked, Some((asked, _)) if asked == pid) {
                    self.answer(Err(format!(
                        "the new process ended before it served: {how}"
                    )));
                }
            }
            OldRequest::Stopping => self.inputs.push_back(OldInput::Stopping),
        }
    }

    fn answer(&mut self, answer: UpgradeAnswer) {
        if let Some((_, asked)) = self.asked.take() {
            let _ = asked.send(answer);
        }
    }

    fn give_up_peer(&mut self) {
        self.taken_by = None;
        if let Some(peer) = self.side.committed_to() {
            warn!("the new process does not take over in time, so this one takes back");
            self.peers.remove(&peer);
            self.inputs.push_back(OldInput::Lost(peer));
        }
    }

    async fn handle(&mut self, input: OldInput) {
        let outputs = self.side.handle(input);
        if self.side.is_succeeded() && !self.is_succeeded {
            self.is_succeeded = true;
            self.succeeded();
        }
        for output in outputs {
            self.act(output).await;
        }
        if self.side.committed_to().is_none() {
            self.taken_by = None;
        } else if self.taken_by.is_none() {
            self.taken_by = Some(Instant::now() + TAKE_OVER_MAX);
        }
    }

    async fn act(&mut self, output: OldOutput) {
        match output {
            OldOutput::Send(to, message) => self.send(to, &message),
            OldOutput::Close(peer) => {
                self.peers.remove(&peer);
            }
            OldOutput::Freeze => {
                let frozen = self.freeze_soon().await;
                self.inputs.push_front(frozen);
            }
            OldOutput::Thaw => self.serve_again(false).await,
            OldOutput::ReleaseLedger => {
                if let Some(ledger) = &self.app.ledger {
                    ledger.release();
                }
            }
            OldOutput::ClaimLedger => {
                let claimed = self.claim().await;
                self.inputs.push_front(claimed);
            }
            OldOutput::TakeBack { term, .. } => self.serve_again(term != self.frozen_term).await,
            OldOutput::Run(id) => self.app.gate.run_by_peer(id),
            OldOutput::Refuse(id, refusal) => {
                self.app.gate.refuse_by_peer(id, wire::refusal(refusal));
            }
            OldOutput::Drain => {
                info!(
                    "the new process speaks another version of the hand-over, so this one drains"
                );
                self.app
                    .handover
                    .phase
                    .send_replace(HandoverPhase::Draining);
            }
            OldOutput::End => {
                self.app.handover.phase.send_replace(HandoverPhase::Ended);
            }
        }
    }

    fn send(&mut self, to: PeerConnection, message: &ToNew) {
        let sockets = match message {
            ToNew::Commit { .. } => std::mem::take(&mut self.sockets),
            _ => Vec::new(),
        };
        let Some(channel) = self.peers.get(&to) else {
            return;
        };
        if !channel.send(message, sockets) {
            self.peers.remove(&to);
            self.inputs.push_back(OldInput::Lost(to));
        }
    }

    /// Admits nothing from now on, or from the end of a change that is under way.
    async fn freeze_soon(&mut self) -> OldInput {
        let until = Instant::now() + FREEZE_MAX;
        loop {
            match self.freeze() {
                Ok(frozen) => return OldInput::Frozen(frozen),
                Err(FreezeError::Changing) if Instant::now() < until => sleep(CLAIM_EVERY).await,
                Err(error) => {
                    let by = error.to_string().into();
                    return OldInput::CannotFreeze { by };
                }
            }
        }
    }

    /// Admits nothing from now on, and is not changed any more.
    fn freeze(&mut self) -> Result<FrozenGate, FreezeError> {
        let (term, ledger) = self.ledger().ok_or(FreezeError::NoLedger)?;
        if self.app.handover.is_old_present() {
            return Err(FreezeError::OldPresent);
        }
        // A reload may be giving another ledger its name, and what is being saved must be whole.
        let change = self.app.changes.try_begin();
        let keeper = try_lock(&self.app.keeper);
        let acts = self.app.acts.try_file();
        let (Some(change), Some(keeper), Some(acts)) = (change, keeper, acts) else {
            return Err(FreezeError::Changing);
        };
        let draining = DrainingLock::hold(ledger.path())?;
        let clock = self.app.clock;
        change.stop_others();
        let frozen = self.app.gate.freeze();
        let mut sockets = self.app.every_socket();
        sockets.truncate(SOCKETS_MAX as usize);
        let files = sockets.iter().filter_map(ListeningSocket::own_file);
        let mut state = self.app.release_state(keeper, acts);
        state.extend(parts_of(SOCKET_FILES, &files.collect::<Vec<_>>()));
        self.frozen_term = term;
        self.draining = Some(draining);
        self.sockets = sockets.into_iter().map(OwnedFd::from).collect();
        Ok(FrozenGate {
            running: frozen
                .running
                .iter()
                .map(|it| wire::running_call(it, clock))
                .collect(),
            waiting: frozen
                .waiting
                .iter()
                .map(|it| wire::waiting_call(it, clock))
                .collect(),
            state,
            sockets: self.sockets.len() as u32,
            term,
        })
    }

    fn ledger(&self) -> Option<(u64, &LedgerFile)> {
        let ledger = self.app.ledger.as_ref()?;
        Some((ledger.term()?, ledger))
    }

    /// Tries for the right to admit calls.
    async fn claim(&self) -> OldInput {
        let Some(ledger) = &self.app.ledger else {
            return OldInput::LedgerRefused;
        };
        match LedgerLock::claim_within(ledger.path(), CLAIM_MAX).await {
            Ok((lock, term)) => {
                ledger.reclaimed(lock);
                OldInput::LedgerClaimed { term }
            }
            Err(_) => OldInput::LedgerRefused,
        }
    }

    /// Admits and accepts as before. `has_admitted`: another process has admitted calls meanwhile.
    async fn serve_again(&mut self, has_admitted: bool) {
        let (app, stop) = (Arc::clone(&self.app), self.stop.clone());
        let accepts = self.is_succeeded;
        let served = move || app.serve_again(has_admitted, accepts, &stop);
        if let Some(listener) = on_waiting_thread(served).await {
            self.listener = listener;
        }
        self.draining = None;
        self.is_succeeded = false;
        self.drained_by = None;
        if let Some(finishing) = self.connections_closed.take() {
            finishing.abort();
        }
        warn!(
            has_admitted,
            "the new process did not take over, or has died, so this one serves"
        );
        self.answer(Err(
            "the new process died, and the old one serves".to_owned()
        ));
    }

    /// Another process serves from now on.
    fn succeeded(&mut self) {
        let ledger = self.app.ledger.as_ref();
        let pid = ledger.and_then(LedgerFile::serving_pid).unwrap_or_default();
        info!(
            pid,
            "handed over: the new process serves, and this one finishes its calls"
        );
        // The new process follows them, as the ledger has them.
        self.app.jobs().leave();
        self.app.leave_sockets();
        self.app
            .handover
            .phase
            .send_replace(HandoverPhase::HandedOver);
        let bound = self.app.config.get().listen.drain_timeout;
        self.drained_by = Some(Instant::now() + bound);
        let finishing = Arc::clone(&self.app).finish_connections(bound);
        self.connections_closed = Some(tokio::spawn(finishing));
        self.answer(Ok(pid));
    }
}

/// Why a process cannot hand over now: who or what is in the way.
#[derive(Debug, thiserror::Error)]
enum FreezeError {
    #[error("this process, which has no ledger")]
    NoLedger,
    #[error("the process before this one, which still drains")]
    OldPresent,
    #[error("a change that is under way")]
    Changing,
    #[error("pid {0}")]
    Draining(String),
    #[error(transparent)]
    Io(io::Error),
}

impl From<ClaimError> for FreezeError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Taken(pid) => Self::Draining(pid),
            ClaimError::Io(error) => Self::Io(error),
        }
    }
}

/// Runs work that waits for a disk or a process, on a thread that does not move calls.
async fn on_waiting_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("it does not panic")
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn over(future: &mut Option<JoinHandle<()>>) {
    match future {
        // It ends only by itself, or with the runtime.
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
}

impl AppState {
    /// Starts the program that takes over. Returns its pid.
    fn start_successor(&self) -> io::Result<u32> {
        let start = lock(&self.successor).clone();
        let start = start.ok_or(io::ErrorKind::Unsupported)?;
        start()
    }

    /// Gives the state that is not in the ledger to the next process, and writes it no more.
    fn release_state(
        &self,
        mut keeper: MutexGuard<'_, Keeper>,
        acts: ActFile<'_>,
    ) -> Vec<StatePart> {
        let mut parts = parts_of(CALLERS, &self.saved());
        parts.extend(parts_of(ACTS, &self.acts.release(acts)));
        keeper.release();
        drop(lock(&self.name).take());
        self.coordination.suspend();
        parts
    }

    /// Admits calls again, and accepts connections if it does not. Returns the new socket for the next process then.
    fn serve_again(
        self: &Arc<Self>,
        has_admitted: bool,
        accepts: bool,
        stop: &CancellationToken,
    ) -> Option<UnixListener> {
        if has_admitted {
            self.quotas.reread(self.config.get().quotas.as_ref());
        }
        let ledger = self.ledger.as_ref()?;
        let settings = self.config.get().admit.clone();
        ledger.decide_again(&self.gate, &settings, has_admitted, stop);
        self.jobs().carry(ledger.take_jobs());
        self.retake_state();
        self.changes.allow();
        if !accepts {
            return None;
        }
        self.accept_again(stop);
        let listener = bind(&socket_of(ledger.path()));
        self.handover.phase.send_replace(HandoverPhase::Serving);
        listener
            .inspect_err(|error| warn!(%error, "this process cannot hand over any more"))
            .ok()
    }

    /// Writes the state again.
    fn retake_state(&self) {
        let config = self.config.get();
        let path = config.callers.state_file.as_deref();
        if let Err(error) = lock(&self.keeper).retake(path) {
            warn!(%error, "the state of callers is not saved any more");
        }
        if let Err(error) = self.acts.retake(path) {
            warn!(%error, "what operators do is not saved any more");
        }
        let name = own_places(&config);
        let name = name.and_then(|places| tidegate_runtime::ProcessName::claim(&places));
        self.coordination
            .resume(name.as_ref().map(tidegate_runtime::ProcessName::as_str));
        *lock(&self.name) = name;
        self.coordination
            .apply(config.coordinate.as_ref(), &config.admit);
    }
}
