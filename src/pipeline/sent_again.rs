//! A call that is sent again: no byte of it was written, or it is a read that the backend closed without a
//! reply.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::BackOff;

use super::Pipeline;
use super::run::Clients;
use crate::admit::{Admission, Ask, Claimed, Permit};
use crate::call::{Claim, Destination, Fault, Reason, Record, Refusal};
use crate::forward::{ConnectError, Forward, UnsentCall};

/// How long a call keeps its turn after we lacked a descriptor, port or memory, before it asks
/// again: the first pause, and the longest.
const OWN_FAULT_PAUSE: BackOff =
    BackOff::doubling(Duration::from_millis(5), Duration::from_millis(80));

impl Pipeline {
    /// The request that is sent once more if the backend closes without a reply: a read, if that is switched
    /// on.
    pub(super) fn again<O: Forward>(
        &self,
        ask: &Ask,
        outgoing: &O,
        record: &Record,
    ) -> Option<Box<(Ask, O)>> {
        let may = self.forwarder.retries_reads() && record.note(|facts| facts.is_read);
        let outgoing = may.then(|| outgoing.copy()).flatten()?;
        Some(Box::new((ask.clone(), outgoing)))
    }

    /// Sends a read once more, as a call of its own that draws every limit again. It runs only if
    /// the backend accepts connections; otherwise the first refusal stays.
    pub(super) async fn send_again<P: Clients, O: Forward>(
        &self,
        (ask, outgoing): (Ask, O),
        refusal: Refusal,
        clients: &P,
        record: &Arc<Record>,
    ) -> Result<O::Answer, Refusal> {
        let destination = ask.destination;
        if !self.gate.is_up(destination) {
            return Err(refusal);
        }
        record.refuse(&refusal);
        let second = record.sent_again();
        let (identity, rule) = record.note(|facts| {
            let rule = facts.claim.as_ref().map(Claim::rule_again);
            (Arc::clone(&facts.origin.identity), rule)
        });
        let claim = self.claim(&identity, (&ask.function, &[]), ask.limited, rule);
        let claimed = Claimed::of(&claim);
        let server = ask.server.without_key();
        let ask = Ask {
            claimed,
            server,
            ..ask
        };
        second.note(|facts| facts.claim = Some(claim));
        clients.wait();
        let permit = match admitted(self.gate.ask(ask, &second), clients).await {
            Ok(permit) if self.gate.is_up(destination) => permit,
            Ok(_) => return Err(not_again(refusal, &second)),
            Err(refused) => {
                second.refuse(&refused);
                return Err(refused);
            }
        };
        clients.admit();
        let mut sending = outgoing.send(&self.forwarder, permit, Arc::clone(&second));
        match poll_fn(|cx| self.poll_sending::<O>(&mut sending, &second, cx)).await {
            Ok(reply) => reply.inspect_err(|refusal| second.refuse(refusal)),
            Err(UnsentCall { slot, cause, .. }) => {
                // What stays is the refusal of the first.
                let _ = self.without_tls(&cause, destination);
                // The gate is informed, and the call leaves the queue again at once.
                drop(self.gate.ask_again(slot, cause.fault()));
                Err(not_again(refusal, &second))
            }
        }
    }

    /// Counts a connection that came to no TLS. Returns the refusal, if to wait would only hide the cause.
    fn without_tls(&self, cause: &ConnectError, backend: Destination) -> Option<Refusal> {
        let ConnectError::Tls(failure) = cause else {
            return None;
        };
        self.observer.tls_failed(backend, failure.cause);
        failure.refusal(backend.label())
    }

    /// Waits for another turn, until the call is sent. No byte was written, so it may. No other call is ever sent
    /// twice.
    pub(super) async fn try_again<P: Clients, O: Forward>(
        &self,
        mut unsent: UnsentCall<O, Permit>,
        clients: &P,
        record: &Arc<Record>,
    ) -> Result<O::Answer, Refusal> {
        let mut back_off = OWN_FAULT_PAUSE;
        loop {
            tracing::debug!(
                error = &unsent.cause as &dyn std::error::Error,
                "not sent, waits again"
            );
            let outgoing = unsent.outgoing;
            clients.wait();
            let fault = unsent.cause.fault();
            if let Some(refusal) = self.without_tls(&unsent.cause, outgoing.destination()) {
                // The gate is informed, and the call leaves the queue again at once.
                drop(self.gate.ask_again(unsent.slot, fault));
                return Err(refusal);
            }
            if fault == Fault::Own {
                let destination = outgoing.destination();
                self.observer.lacked_resources(destination, &unsent.cause);
                // Its turn would come at once, and the shortage would be the same.
                tokio::time::sleep(back_off.pause()).await;
            }
            let asked = self.gate.ask_again(unsent.slot, fault);
            let permit = admitted(asked, clients).await?;
            clients.admit();
            let mut sending = outgoing.send(&self.forwarder, permit, Arc::clone(record));
            match poll_fn(|cx| self.poll_sending::<O>(&mut sending, record, cx)).await {
                Ok(reply) => return reply,
                Err(again) => unsent = again,
            }
        }
    }
}

/// The answer of the gate, after any wait.
async fn admitted<P: Clients>(asked: Admission, clients: &P) -> Result<Permit, Refusal> {
    match asked {
        Admission::Decided(admitted) => admitted,
        Admission::Queued(turn) => clients.turn(turn).await,
    }
}

/// The second send was not made, so the refusal of the first stays.
fn not_again(refusal: Refusal, second: &Record) -> Refusal {
    let away = "the backend takes no connection, so the read was not sent once more";
    second.refuse(&Refusal::new(Reason::BackendUnreachable, away));
    refusal
}
