//! Fills the series once a second, and makes the frames of streams while anybody looks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tidegate_limits::Timestamp;
use tidegate_runtime::lock;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::error;

use super::AppState;
use super::shown::MISTAKES_MAX;
use super::tally::Tally;
use crate::admin::{
    self, Frame, LimitHistory, LimitNow, MarkState, NowState, PointFigures, PointState, ReloadNow,
    SeriesSpan, SeriesState, unix_milliseconds,
};
use crate::call::{Destination, Reason};
use crate::series::{
    BACKENDS, LIMITS_MAX, LimitUse, Mark, MarkKind, Marks, Point, RingSpan, Series, Use,
};

/// Time for the streams to end when the process does.
const STREAMS_END: Duration = Duration::from_millis(100);

/// The history of the process's latest day.
#[derive(Debug)]
pub(super) struct History {
    tally: Arc<Tally>,
    inner: Mutex<HistoryState>,
    /// The latest frame. Its receivers are the streams.
    frames: watch::Sender<Option<Bytes>>,
}

#[derive(Debug)]
struct HistoryState {
    series: Series,
    marks: Marks,
    reload: Option<ReloadNow>,
    /// Calls that had left at the last sample.
    sent: u64,
    backends: [BackendSample; BACKENDS],
}

/// The health of a backend, as of the last sample.
#[derive(Clone, Copy, Debug)]
struct BackendSample {
    is_up: bool,
    since_unix_ms: u64,
}

impl History {
    pub(super) fn new(tally: Arc<Tally>) -> Self {
        let now = unix_milliseconds(SystemTime::now());
        let mut marks = Marks::default();
        marks.add(now, MarkKind::Start, "Tidegate started");
        let seen = BackendSample {
            is_up: true,
            since_unix_ms: now,
        };
        Self {
            tally,
            inner: Mutex::new(HistoryState {
                series: Series::default(),
                marks,
                reload: None,
                sent: 0,
                backends: [seen; BACKENDS],
            }),
            frames: watch::Sender::new(None),
        }
    }

    /// The frames of later seconds.
    pub(super) fn frames(&self) -> watch::Receiver<Option<Bytes>> {
        self.frames.subscribe()
    }

    /// Ends the streams, and waits for them for a moment: a viewer that does not read would never
    /// take the end.
    pub(super) async fn end_streams(&self) {
        self.frames.send_replace(None);
        let _ = tokio::time::timeout(STREAMS_END, self.frames.closed()).await;
    }

    /// A config was taken, or refused for these mistakes.
    pub(super) fn reloaded(&self, refused: Option<&[String]>) {
        let at_unix_ms = unix_milliseconds(SystemTime::now());
        let mistakes = refused.unwrap_or_default();
        let mut inner = lock(&self.inner);
        let (kind, text) = match refused {
            None => (MarkKind::Reload, "config taken"),
            Some(mistakes) => {
                let first = mistakes.first().map_or("config refused", String::as_str);
                (MarkKind::ReloadRefused, first)
            }
        };
        inner.marks.add(at_unix_ms, kind, text);
        inner.reload = Some(ReloadNow {
            at_unix_ms,
            taken: refused.is_none(),
            mistakes: mistakes.iter().take(MISTAKES_MAX).cloned().collect(),
        });
    }

    /// An operator did something, or it ended by itself.
    pub(super) fn acted(&self, at_unix_ms: u64, kind: MarkKind, text: &str) {
        lock(&self.inner).marks.add(at_unix_ms, kind, text);
    }

    /// The last reload.
    pub(super) fn reload(&self) -> Option<ReloadNow> {
        lock(&self.inner).reload.clone()
    }

    /// All of the last hour as one point.
    pub(super) fn hour(&self) -> Point {
        lock(&self.inner).series.hour()
    }

    /// Since when a backend has been up or down.   Unix ms
    pub(super) fn since(&self, backend: Destination) -> u64 {
        lock(&self.inner).backends[backend as usize].since_unix_ms
    }
}

impl AppState {
    /// Samples once a second. Off the event loop, because it looks at every waiting call.
    pub(super) async fn keep_watching(self: Arc<Self>) {
        let frames = &self.history.frames;
        let mut beats = tokio::time::interval(Duration::from_secs(1));
        beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut told = lock(&self.history.inner).marks.latest();
        loop {
            beats.tick().await;
            let is_watched = frames.receiver_count() > 0;
            let shared = Arc::clone(&self);
            let sampling = tokio::task::spawn_blocking(move || {
                shared.sample();
                let latest = lock(&shared.history.inner).marks.latest();
                let frame = is_watched.then(|| admin::line(&shared.frame(told, latest)));
                (latest, frame)
            });
            match sampling.await {
                Ok((latest, frame)) => {
                    told = latest;
                    if frame.is_some() {
                        frames.send_replace(frame);
                    }
                }
                Err(failed) => error!(error = %failed, "a sample failed by our own mistake"),
            }
        }
    }

    /// Takes the sample of this second.
    fn sample(&self) {
        let now = self.clock.now();
        let history = &self.history;
        let limits = self.limit_uses();
        let (in_flight, waiting) = self.gate.busy();
        let oldest = if waiting == 0 {
            Duration::ZERO
        } else {
            self.gate.oldest_waits()
        };
        let mut sample = history.tally.take();
        sample.waiting = count(waiting);
        sample.in_flight = count(in_flight);
        sample.oldest_ms = oldest.as_secs_f32() * 1e3;
        let health = Destination::BACKENDS.map(|backend| self.gate.is_up(backend));
        let sent = self.gate.sent();
        let mut inner = lock(&history.inner);
        let before = std::mem::replace(&mut inner.sent, sent);
        sample.sent = u32::try_from(sent.saturating_sub(before)).unwrap_or(u32::MAX);
        inner.series.take(second(now), sample, &limits);
        let at_unix_ms = unix_milliseconds(self.clock.wall(now));
        for (backend, is_up) in Destination::BACKENDS.into_iter().zip(health) {
            let seen = &mut inner.backends[backend as usize];
            if seen.is_up == is_up {
                continue;
            }
            *seen = BackendSample {
                is_up,
                since_unix_ms: at_unix_ms,
            };
            let name = backend.label();
            let (kind, text) = match is_up {
                true => (MarkKind::BackendUp, format!("backend.{name} is back")),
                false => {
                    let text = format!("backend.{name} accepts no connection");
                    (MarkKind::BackendDown, text)
                }
            };
            inner.marks.add(at_unix_ms, kind, &text);
        }
    }

    /// The use of each limit that may have a history.
    fn limit_uses(&self) -> Vec<LimitUse> {
        let limits = self.limits_of_all_kinds(LIMITS_MAX).into_iter();
        let of = |limit: LimitNow| LimitUse {
            name: limit.name.into(),
            kind: limit.kind,
            of: Use {
                used: limit.used as f32,
                allowed: limit.allowed as f32,
            },
        };
        limits.map(of).collect()
    }

    /// The first frame of a stream. The marks so far are in the history.
    pub(super) fn first_frame(&self) -> Frame {
        let latest = lock(&self.history.inner).marks.latest();
        self.frame(latest, latest)
    }

    /// The frame of this moment: the latest second, and the marks after one number up to another.
    fn frame(&self, after: u64, to: u64) -> Frame {
        let now = self.now_state();
        let inner = lock(&self.history.inner);
        let marks = inner.marks.after(after).filter(|it| it.number <= to);
        let marks = marks.map(mark_state).collect();
        let end = self.unix_ms_of(inner.series.end(RingSpan::TenMinutes));
        let point = inner.series.latest().copied().unwrap_or_default();
        drop(inner);
        Frame {
            point: point_state(end.saturating_sub(1000), &point, &now),
            now,
            marks,
        }
    }

    /// The history of a span.
    pub(super) fn series_state(&self, span: SeriesSpan) -> SeriesState {
        let span = match span {
            SeriesSpan::TenMinutes => RingSpan::TenMinutes,
            SeriesSpan::ThreeHours => RingSpan::ThreeHours,
            SeriesSpan::Day => RingSpan::Day,
        };
        let inner = lock(&self.history.inner);
        let points: Vec<Option<Point>> = inner
            .series
            .points(span)
            .map(Option::<&_>::cloned)
            .collect();
        let columns: Vec<_> = inner
            .series
            .columns()
            .map(|(at, it)| (at, it.clone()))
            .collect();
        let marks = inner.marks.after(0).map(mark_state).collect();
        let end = self.unix_ms_of(inner.series.end(span));
        // The rest needs no lock.
        drop(inner);
        let list = |of: &dyn Fn(&Point) -> f32| -> Vec<Option<f32>> {
            let figures = points.iter().map(|it| it.as_ref().map(of));
            figures.map(|it| it.and_then(finite)).collect()
        };
        let reasons = Reason::ALL.into_iter().filter_map(|reason| {
            let of = |it: &Point| it.refused[reason as usize];
            let counts: Vec<_> = points.iter().map(|it| it.as_ref().map(of)).collect();
            let occurred = counts.iter().flatten().any(|&count| count > 0);
            occurred.then_some((reason.label(), counts))
        });
        let refused = reasons.collect();
        let limits = columns.into_iter().map(|(at, column)| LimitHistory {
            name: column.name.to_string(),
            kind: column.kind,
            used: list(&|it| it.limits[at].used),
            allowed: list(&|it| it.limits[at].allowed),
        });
        let limits = limits.collect();
        let series = [
            ("arrivals", list(&|it| it.arrivals as f32)),
            ("sent", list(&|it| it.sent as f32)),
            ("answered", list(&|it| it.answered as f32)),
            ("waiting", list(&|it| it.waiting as f32)),
            ("oldest_ms", list(&|it| it.oldest_ms)),
            ("in_flight", list(&|it| it.in_flight as f32)),
            ("backend_p50_ms", list(&|it| it.backend_p50_ms)),
            ("backend_p95_ms", list(&|it| it.backend_p95_ms)),
        ];
        let length = span.step() * 1000 * span.points() as u64;
        SeriesState {
            step_seconds: span.step(),
            start_unix_ms: end.saturating_sub(length),
            points: span.points(),
            series: series.into(),
            refused,
            limits,
            marks,
        }
    }

    /// When a second since the start began.   Unix ms
    fn unix_ms_of(&self, second: u64) -> u64 {
        let at = Timestamp::ZERO + Duration::from_secs(second);
        unix_milliseconds(self.clock.wall(at))
    }
}

fn point_state(at_unix_ms: u64, point: &Point, now: &NowState) -> PointState {
    let refused = Reason::ALL.into_iter().zip(point.refused);
    let refused = refused.filter(|&(_, count)| count > 0);
    PointState {
        at_unix_ms,
        figures: PointFigures {
            arrivals: point.arrivals,
            sent: point.sent,
            answered: point.answered,
            waiting: point.waiting,
            oldest_ms: point.oldest_ms,
            in_flight: point.in_flight,
            backend_p50_ms: finite(point.backend_p50_ms),
            backend_p95_ms: finite(point.backend_p95_ms),
        },
        refused: refused.map(|(it, count)| (it.label(), count)).collect(),
        limits: now.limits.iter().map(|it| (it.used, it.allowed)).collect(),
    }
}

fn mark_state(mark: &Mark) -> MarkState {
    MarkState {
        at_unix_ms: mark.at_unix_ms,
        kind: mark.kind.label(),
        text: mark.text.to_string(),
    }
}

/// A figure that is there.
fn finite(figure: f32) -> Option<f32> {
    figure.is_finite().then_some(figure)
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// The number of a second since the start.
fn second(at: Timestamp) -> u64 {
    at.since(Timestamp::ZERO).as_secs()
}
