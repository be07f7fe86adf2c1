//! The process that starts in the place of another: it gets the right to admit calls, the sockets and the calls of the old
//! one, and decides for those calls until they are over.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_handover::{ClaimWait, Commitment, NewInput, NewOutput, NewSide, StatePart, ToNew};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::channel::{Channel, Received};
use super::foreign::CallStep;
use super::{ForeignCalls, HandedOver, HandedState, connect, socket_of};
use crate::admit::Permit;
use crate::app::ledger::{CLAIM_EVERY, CLAIM_MAX, ClaimError, DrainingLock, LedgerLock};
use crate::app::{App, AppState, Predecessor, StartError, Surroundings};
use crate::config::Config;
use crate::listen::{InheritedSockets, ListeningSocket};
use crate::telemetry::Logs;

/// How long an old process may be silent before it has handed over.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A process that is about to take over.
pub struct TakingOver {
    side: NewSide,
    ledger: PathBuf,
    channel: Option<Channel>,
    received: mpsc::Receiver<((), Received<ToNew>)>,
    inputs: VecDeque<NewInput>,
    state: Vec<StatePart>,
    sockets: Vec<OwnedFd>,
    lock: Option<LedgerLock>,
    commitment: Option<Commitment>,
    /// Permits of calls that the old process reports no more.
    held: (
        mpsc::UnboundedSender<Permit>,
        mpsc::UnboundedReceiver<Permit>,
    ),
    after_crash: Duration,
    /// Whether the end of a process that drains is waited for.
    is_watching: bool,
}

impl TakingOver {
    /// Asks the process with this ledger to hand over, and returns once it has. If none listens for that, returns once the
    /// ledger is claimed; `None` if that cannot be kept at all.
    ///
    /// # Errors
    /// If the process does not hand over, or another one has the ledger.
    pub async fn begin(
        ledger: PathBuf,
        config: &Config,
        config_path: &Path,
    ) -> Result<Option<Self>, StartError> {
        let instance = format!(
            "pid {} (version {})",
            std::process::id(),
            env!("CARGO_PKG_VERSION")
        );
        let waiting_max = config.admit.capacity as usize;
        let config_path = config_path.display().to_string();
        let (sender, received) = mpsc::channel(1);
        let mut this = Self {
            side: NewSide::new(waiting_max, &instance, &config_path),
            channel: None,
            received,
            inputs: VecDeque::new(),
            state: Vec::new(),
            sockets: Vec::new(),
            lock: None,
            commitment: None,
            held: mpsc::unbounded_channel(),
            after_crash: config.admit.after_crash.hold_time(None, None),
            is_watching: false,
            ledger,
        };
        match connect(&socket_of(&this.ledger)).await {
            Ok(stream) => {
                this.channel = Some(Channel::start(stream, (), sender));
                this.inputs.push_back(NewInput::Connected);
            }
            Err(error) => {
                info!(%error, "no process hands over, so this one starts alone");
                if matches!(LedgerLock::claim(&this.ledger), Err(ClaimError::Io(_))) {
                    return Ok(None);
                }
                this.inputs.push_back(NewInput::Alone);
            }
        }
        loop {
            while let Some(input) = this.inputs.pop_front() {
                for output in this.side.handle(input) {
                    if this.prepare(output).await? {
                        return Ok(Some(this));
                    }
                }
            }
            match timeout(ANSWER_MAX, this.received.recv()).await {
                Ok(received) => this.take(received),
                Err(_) => {
                    warn!("the old process does not answer");
                    this.channel = None;
                    this.inputs.push_back(NewInput::Lost);
                }
            }
        }
    }

    /// Carries out an act before the take-over. Returns whether everything is there for it.
    async fn prepare(&mut self, output: NewOutput) -> Result<bool, StartError> {
        match output {
            // The config was read and checked before.
            NewOutput::Prepare => self.inputs.push_back(NewInput::Ready),
            NewOutput::Send(message) => self.send(&message),
            NewOutput::Close => self.channel = None,
            NewOutput::KeepState(part) => self.state.push(part),
            NewOutput::ClaimLedger(wait) => {
                let claimed = self.claim(wait).await;
                self.inputs.push_back(claimed);
            }
            NewOutput::ReleaseLedger => self.lock = None,
            NewOutput::TakeOver(commitment) => {
                self.commitment = commitment;
                return Ok(true);
            }
            NewOutput::GiveUp(cause) => return Err(StartError::HandOver(cause)),
            _ => {}
        }
        Ok(false)
    }

    /// Takes what came through the connection.
    fn take(&mut self, received: Option<((), Received<ToNew>)>) {
        match received {
            Some(((), Received::Message(message, sockets))) => {
                self.sockets.extend(sockets);
                self.inputs.push_back(NewInput::Message(message));
            }
            Some(((), Received::Lost(_))) | None => {
                info!("the connection to the old process is over");
                self.channel = None;
                self.inputs.push_back(NewInput::Lost);
            }
        }
    }

    fn send(&mut self, message: &tidegate_handover::ToOld) {
        let Some(channel) = &self.channel else { return };
        if !channel.send(message, Vec::new()) {
            self.channel = None;
            self.inputs.push_back(NewInput::Lost);
        }
    }

    async fn claim(&mut self, wait: ClaimWait) -> NewInput {
        loop {
            match LedgerLock::claim_within(&self.ledger, CLAIM_MAX).await {
                Ok((lock, term)) => {
                    self.lock = Some(lock);
                    return NewInput::LedgerClaimed { term };
                }
                // The old process drains, and sends nothing more.
                Err(ClaimError::Taken(_)) if wait != ClaimWait::Short => {
                    let received = timeout(CLAIM_EVERY, self.received.recv()).await;
                    if matches!(received, Ok(Some(((), Received::Lost(_))) | None)) {
                        self.channel = None;
                        return NewInput::Lost;
                    }
                }
                Err(error) => {
                    warn!(?error, "the ledger cannot be claimed");
                    return NewInput::LedgerRefused;
                }
            }
        }
    }

    /// Everything that the process before has handed over, for the parts that are built now.
    fn predecessor(&mut self, inherited: InheritedSockets) -> Predecessor {
        let ledger = Some(self.ledger.clone());
        let Some(lock) = self.lock.take() else {
            return Predecessor {
                ledger,
                sockets: inherited,
                handed: None,
            };
        };
        let running = self.commitment.take().map(|commitment| commitment.running);
        if running.is_none() {
            (self.state, self.sockets) = (Vec::new(), Vec::new());
        }
        let state = HandedState(std::mem::take(&mut self.state));
        let files = state.socket_files();
        let sockets = self.sockets.drain(..);
        let sockets = sockets.map(|socket| ListeningSocket::handed_over(socket, &files));
        Predecessor {
            ledger,
            sockets: inherited.and_handed_over(sockets.collect()),
            handed: Some(HandedOver {
                lock,
                running,
                state,
            }),
        }
    }

    /// Serves the calls of the old process beside its own, from the opening on.
    fn open(mut self, app: App) -> App {
        let shared = Arc::clone(&app.shared);
        let side = tidegate_runtime::lock(&shared.foreign).take();
        let Some((mut calls, decided)) = side else {
            return app;
        };
        shared.handover.note_old(true);
        for output in self.side.handle(NewInput::Published) {
            match output {
                NewOutput::Open => app.open(),
                output => self.act(output, &mut calls, &shared),
            }
        }
        tokio::spawn(self.run(calls, decided, shared));
        app
    }

    /// Runs until no process before this one is left.
    async fn run(
        mut self,
        mut calls: ForeignCalls,
        mut decided: mpsc::UnboundedReceiver<NewInput>,
        app: Arc<AppState>,
    ) {
        let mut draining = watch_draining(&self.ledger);
        let stopping = app.handover.is_stopping.clone();
        let mut has_stopped = false;
        loop {
            while let Some(input) = self.inputs.pop_front() {
                for output in self.side.handle(input) {
                    self.act(output, &mut calls, &app);
                }
            }
            if !self.side.is_old_present() {
                break;
            }
            tokio::select! {
                biased;
                decided = decided.recv() => if let Some(decided) = decided {
                    self.inputs.push_back(decided);
                },
                received = self.received.recv(), if self.side.reads() && self.channel.is_some() => {
                    self.take(received);
                }
                () = stopping.cancelled(), if !has_stopped => {
                    has_stopped = true;
                    self.inputs.push_back(NewInput::Stopping);
                }
                () = &mut draining, if self.is_watching => {
                    self.is_watching = false;
                    self.inputs.push_back(NewInput::DrainingEnded);
                }
            }
        }
        app.handover.note_old(false);
        info!("the old process has ended");
    }

    /// Carries out an act of a process that serves.
    fn act(&mut self, output: NewOutput, calls: &mut ForeignCalls, app: &Arc<AppState>) {
        match output {
            NewOutput::Send(message) => {
                if let tidegate_handover::ToOld::Refused { id, .. } = &message {
                    calls.forget(*id);
                }
                self.send(&message);
            }
            NewOutput::Close => self.channel = None,
            NewOutput::Ask(waiting) => calls.ask(waiting),
            NewOutput::Change {
                id,
                deadline,
                class,
            } => {
                let deadline = deadline.map(|deadline| app.clock.of_boot_time(deadline));
                calls.step(id, CallStep::Changed(deadline, class));
            }
            NewOutput::Cancel(id) | NewOutput::GiveBack(id) => calls.step(id, CallStep::Cancelled),
            NewOutput::Requeue(id, cause) => calls.step(id, CallStep::Requeued(cause)),
            NewOutput::Sent(id) => calls.step(id, CallStep::Sent),
            NewOutput::Replied(id) => calls.step(id, CallStep::Replied),
            NewOutput::Finish {
                id,
                outcome,
                measured,
            } => calls.step(id, CallStep::Finished(outcome, measured)),
            NewOutput::Hold(ids) => {
                for id in ids {
                    calls.step(id, CallStep::Held(self.held.0.clone()));
                }
            }
            NewOutput::WatchDraining => self.is_watching = true,
            NewOutput::StartAfterCrash => self.end_held(),
            _ => {}
        }
    }

    /// Gives back the slots of calls that no process reports any more, when their work has surely ended.
    fn end_held(&mut self) {
        let (_, mut held) = std::mem::replace(&mut self.held, mpsc::unbounded_channel());
        let after_crash = self.after_crash;
        tokio::spawn(async move {
            sleep(after_crash).await;
            held.close();
            while let Some(permit) = held.recv().await {
                permit.finish_measured(tidegate_limits::scheduler::Outcome::Failed, None);
            }
        });
    }
}

/// Waits until no process drains, once it is polled.
fn watch_draining(ledger: &Path) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let ledger = ledger.to_owned();
    Box::pin(async move {
        let waiting = move || DrainingLock::wait_until_free(&ledger);
        let _ = tokio::task::spawn_blocking(waiting).await;
    })
}

impl App {
    /// Starts in the place of another process.
    ///
    /// # Errors
    /// As for [`start`](Self::start); then the other process serves again.
    pub fn take_over(
        config: Config,
        logs: Option<Logs>,
        inherited: InheritedSockets,
        mut taking: TakingOver,
        surroundings: Surroundings,
    ) -> Result<Self, StartError> {
        let before = taking.predecessor(inherited);
        // If it fails, the right to admit calls is free again with what was built, and then the connection closes.
        let app = Self::prepare(config, logs, before, surroundings)?;
        Ok(taking.open(app))
    }
}
