//! The message that leaves for the backend, and the reader of its answer.

use std::sync::Arc;

use http::header::ACCEPT_ENCODING;
use tidegate_limits::call::ServerChoice;

use super::Pipeline;
use crate::admit::Ask;
use crate::call::{AnswerMeter, Destination, HttpCall, Message, Reason, Refusal};
use crate::classify::Operation;
use crate::classify::message::NamedCalls;

impl Pipeline {
    /// Finds which servers may serve a call, if the HTTP backend has several.
    #[inline]
    pub(super) fn choose_server(&self, ask: &mut Ask, message: &Message, operation: &Operation) {
        if ask.destination == Destination::Http && self.forwarder.has_servers() {
            let of_job = operation.job.as_ref().and_then(|job| job.server());
            let (caller, function) = (ask.claimed.caller.0, &ask.function);
            let any = || self.forwarder.server_choice(message, caller, function);
            ask.server = of_job.map_or_else(any, ServerChoice::only);
        }
    }
}

/// The reader of the answer to a call.
pub(super) fn meter(
    call: &mut HttpCall,
    operation: &mut Operation,
    named: Option<&mut NamedCalls>,
) -> Option<Box<AnswerMeter>> {
    let job = operation.job.take();
    if job.is_some() {
        // An answer in another encoding is not read.
        let head = Arc::make_mut(&mut call.head);
        head.headers.remove(ACCEPT_ENCODING.as_str());
    }
    match named {
        Some(named) => named.take_meter(job),
        None => AnswerMeter::new(None, None, job),
    }
}

/// The content to send, in the form of its backend.
pub(super) fn outgoing(message: Message, operation: &Operation) -> Result<Message, Refusal> {
    use crate::call::Destination as To;
    match (message, operation.destination) {
        (Message::Http(call), To::Socket) => call
            .array
            .map(Message::Socket)
            .ok_or_else(|| Refusal::no_backend("http")),
        (Message::Http(_), To::Http) if operation.is_odd => Err(Refusal::new(
            Reason::BadRequest,
            "the path has an encoded letter, an empty segment or a dot segment, and names another route \
             without it: send it in its plain form",
        )),
        // The function is in a body that was too large to read.
        (Message::Http(_), To::Http) if operation.is_unread => Err(Refusal::new(
            Reason::TooLarge,
            "the body names the function, and is larger than buffer_bytes",
        )),
        (message @ Message::Socket(_), To::Socket) | (message @ Message::Http(_), To::Http) => {
            Ok(message)
        }
        (message, _) => Err(Refusal::no_backend(message.dialect().label())),
    }
}
