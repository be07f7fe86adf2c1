//! A client's socket, and the one timer of its connection.
//!
//! The timer serves all phases. It is set only for a wait. If it fires too early, because a later phase has begun, it
//! is set again.

use std::time::Duration;

use tidegate_runtime::Timer;

use super::super::ClientSettings;
use super::super::stream::ClientStream;
use super::super::wire::OnEof;

/// The client's end of a connection, as requests are read from it and answers written to it.
pub(super) struct ClientSocket {
    pub(super) stream: ClientStream,
    /// The timer of all phases.
    pub(super) timer: Timer,
    /// Meaning of the end of the client's bytes.
    pub(super) on_eof: OnEof,
    pub(super) write_timeout: Duration,
}

impl ClientSocket {
    pub(super) fn new(
        stream: ClientStream,
        cancel_on_eof: bool,
        settings: &ClientSettings,
    ) -> Self {
        Self {
            stream,
            timer: Timer::default(),
            on_eof: OnEof::new(cancel_on_eof),
            write_timeout: settings.write_timeout,
        }
    }

    /// Whether the client has left, as of the latest event.
    pub(super) fn has_left(&self) -> bool {
        self.stream.has_left(self.on_eof)
    }
}
