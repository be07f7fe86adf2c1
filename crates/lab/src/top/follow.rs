//! Follows a sidecar: one connection with a line each second, or a question each second where there
//! is no place for another viewer, or the sidecar is older than its stream.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use tidegate::tools::client::{AdminTarget, ClientError};

/// The time between two questions, and before a lost connection is tried again.
const EVERY: Duration = Duration::from_secs(1);
/// How often it is asked before the stream is tried again.
const QUESTIONS: u32 = 30;

/// News from the sidecar.
#[derive(Debug)]
pub(super) enum News {
    /// The history, after each new connection.
    Series(Value),
    /// A line of `/v1/stream`.
    Frame(Value),
    /// An answer of `/v1/now`.
    Now(Value),
    /// Why there is nothing.
    Lost(ClientError),
}

/// Sends what comes, until there is no reader of it.
pub(super) fn follow(
    target: AdminTarget,
    mut send: impl FnMut(News) -> ControlFlow<()> + Send + 'static,
) {
    thread::spawn(move || {
        // It ends with a reader that has left.
        let _ = always(&target, &mut send);
    });
}

fn always(target: &AdminTarget, send: &mut impl FnMut(News) -> ControlFlow<()>) -> ControlFlow<()> {
    loop {
        if let Ok(series) = target.get("/v1/series?span=10m") {
            send(News::Series(series))?;
        }
        let mut left = false;
        let ended = target.follow("/v1/stream", |frame| {
            let sent = send(News::Frame(frame));
            left = sent.is_break();
            sent
        });
        if left {
            return ControlFlow::Break(());
        }
        match ended {
            // The sidecar ends each stream after some minutes, and when it drains.
            Ok(()) => pause(Instant::now() + EVERY),
            Err(ClientError::Refused {
                status: 404 | 503, ..
            }) => ask(target, send)?,
            Err(error) => {
                send(News::Lost(error))?;
                pause(Instant::now() + EVERY);
            }
        }
    }
}

/// Asks once a second, for a while.
fn ask(target: &AdminTarget, send: &mut impl FnMut(News) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut due = Instant::now();
    for _ in 0..QUESTIONS {
        match target.get("/v1/now") {
            Ok(now) => send(News::Now(now))?,
            Err(error) => {
                send(News::Lost(error))?;
                pause(Instant::now() + EVERY);
                return ControlFlow::Continue(());
            }
        }
        due = (due + EVERY).max(Instant::now());
        pause(due);
    }
    ControlFlow::Continue(())
}

fn pause(until: Instant) {
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
}
