//! Tunnels: connections that are passed on as they are.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_limits::scheduler::Outcome;

use super::{Forward, Forwarder, UnsentCall, stream};
use crate::call::{Destination, Record, Refusal, Slot, Tunnel};

/// A client's TCP connection, which is passed on as it is.
#[derive(Debug)]
pub struct TcpConnection;

impl Forward for TcpConnection {
    type Answer = Tunnel;
    type Sending<S: Slot> =
        Pin<Box<dyn Future<Output = Result<Result<Tunnel, Refusal>, UnsentCall<Self, S>>> + Send>>;

    fn destination(&self) -> Destination {
        Destination::Tcp
    }

    fn copy(&self) -> Option<Self> {
        None
    }

    fn compact(&mut self) {}

    fn send<S: Slot>(
        self,
        forwarder: &Forwarder,
        mut slot: S,
        record: Arc<Record>,
    ) -> Self::Sending<S> {
        let picked = forwarder.pick(self.destination(), &mut slot);
        // Boxed, so that a waiting call does not pay for what connecting needs.
        Box::pin(async move {
            let backend = match picked {
                Ok(backend) => backend,
                Err(refusal) => return Ok(Err(refusal)),
            };
            match backend.connect().await {
                Ok(link) => {
                    stream::keep_alive(link.tcp());
                    slot.sent();
                    let slot = Box::new(TunnelSlot(Some(slot)));
                    Ok(Ok(Tunnel {
                        link,
                        first: Bytes::new(),
                        slot,
                        record,
                    }))
                }
                Err(cause) => Err(UnsentCall::new(self, slot, cause)),
            }
        })
    }
}

/// The slot of a tunnel. The connection is the call, so both end together.
pub(super) struct TunnelSlot<S: Slot>(pub(super) Option<S>);

impl<S: Slot> Drop for TunnelSlot<S> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.finish(Outcome::Served);
        }
    }
}
