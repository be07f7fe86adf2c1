//! A streamed request body that is aborted when its client is too slow.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::super::Settings;
use super::client::Phases;
use crate::call::{BodyError, ClientLeft, PolledFrame, data_bytes};

/// The grace time of a client before the minimum rate applies.
const GRACE: Duration = Duration::from_secs(5);

/// A body that counts only the time spent waiting for the client, so a slow backend does not
/// count against the client.
pub(super) struct PacedBody {
    body: Incoming,
    /// Its connection, until it has ended.
    phases: Option<Arc<Phases>>,
    body_timeout: Duration,
    min_rate: u32,
    received: u64,
    waited: Duration,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl PacedBody {
    pub(super) fn new(body: Incoming, phases: Arc<Phases>, settings: &Settings) -> Self {
        Self {
            body,
            phases: Some(phases),
            body_timeout: settings.body_timeout,
            min_rate: settings.body_min_rate,
            received: 0,
            waited: Duration::ZERO,
            waiting_since: None,
            timer: None,
        }
    }

    /// How long the client may have delayed us by now.
    fn patience(&self) -> Duration {
        let earned =
            Duration::from_secs_f64(self.received as f64 / f64::from(self.min_rate.max(1)));
        (GRACE + earned).min(self.body_timeout)
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some(since) = self.waiting_since.take() {
                    self.waited += since.elapsed();
                }
                self.received += data_bytes(frame.as_ref());
                let has_ended = match &frame {
                    Some(Ok(_)) => self.body.is_end_stream(),
                    Some(Err(_)) => false,
                    None => true,
                };
                if has_ended && let Some(phases) = self.phases.take() {
                    phases.lock().owes_body = false;
                }
                let has_left = || self.phases.as_ref().is_some_and(|it| it.lock().has_left);
                Poll::Ready(frame.map(|frame| {
                    frame.map_err(|error| match has_left() {
                        true => ClientLeft.into(),
                        false => error.into(),
                    })
                }))
            }
            Poll::Pending => {
                let since = *self.waiting_since.get_or_insert_with(Instant::now);
                let until = since + self.patience().saturating_sub(self.waited);
                let timer = self
                    .timer
                    .get_or_insert_with(|| Box::pin(sleep_until(until)));
                if timer.deadline() != until {
                    timer.as_mut().reset(until);
                }
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Some(Err("the client sends its body too slowly".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
