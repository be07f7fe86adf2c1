//! Spans of sampled calls, until a collector has them. The queue is bounded: a collector that is slow or
//! unavailable costs spans, which are counted, and never a call.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tidegate_runtime::{Live, lock};
use tokio::sync::Notify;

use crate::options::kind::{MINUTE, MS, SECOND, ValueKind, duration, integer, line, text};
use crate::options::shown::quoted;
use crate::options::{Mistake, options};

/// Spans of one request to the collector.
const BATCH_MAX: usize = 512;

options! {
    /// Traces: a span for each call whose client sampled it (traceparent), sent to a collector of
    /// OpenTelemetry. Calls never wait for the collector.
    pub struct TraceSection => TraceSettings {
        /// The collector, which takes OTLP over HTTP at /v1/traces. Without it there are no spans. Name one
        /// on this machine: there is no TLS to it.
        otlp: Option<Collector> = collector().optional().example("\"http://127.0.0.1:4318\"");

        /// The name of this service in traces. Give each sidecar its own, such as "tidegate-nova".
        service: String = line(128, "tidegate").or("tidegate".to_owned());

        /// Spans that may wait to be sent. Further ones are lost and counted
        /// (tidegate_spans_lost_total).
        queue: u32 = integer(1..=65536).of("spans").or(2048);

        /// How long a connect to the collector, and then a request, may take.
        timeout: Duration = duration(100 * MS..=MINUTE).or(5 * SECOND);
    }
}

/// Where a collector listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// A name, or an address; of IPv6 in brackets.
    pub host: Box<str>,
    /// The port of the collector.
    pub port: u16,
}

impl Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

fn collector() -> ValueKind<Collector> {
    const EXAMPLE: &str = "http://127.0.0.1:4318";
    text("http://host:port", EXAMPLE, |given| {
        let wrong = |cause: &str, cure: &str| {
            Mistake::new(format!("{} {cause}", quoted(given)), cure.to_owned())
        };
        let form = format!("give http://host:port, such as {}", quoted(EXAMPLE));
        let Some(rest) = given.strip_prefix("http://") else {
            let is_tls = given.starts_with("https://");
            return Err(match is_tls {
                true => wrong(
                    "asks for TLS",
                    "give http:// and a collector on this machine, which speaks TLS to the next one",
                ),
                false => wrong("has no http://", &form),
            });
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let Some((host, port)) = rest.rsplit_once(':') else {
            return Err(wrong(
                "has no port",
                "add :4318, the port of OTLP over HTTP",
            ));
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        match port.parse() {
            Ok(port) if port > 0 && !host.is_empty() && host.chars().all(is_host) => {
                Ok(Collector {
                    host: host.into(),
                    port,
                })
            }
            _ if rest.contains('/') => Err(wrong("has a path", "leave it out: it is /v1/traces")),
            _ => Err(wrong("is not a host and a port", &form)),
        }
    })
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A text.
    Text(Box<str>),
    /// A count.
    Whole(i64),
    /// A time in seconds, or any other number.
    Number(f64),
}

/// An attribute of a span or of an event.
pub type Attribute = (&'static str, AttributeValue);

/// An event of a call, and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    /// When.
    pub at: SystemTime,
    /// The name of the event.
    pub name: &'static str,
    /// More about it.
    pub attributes: Vec<Attribute>,
}

/// A call that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace of its client.
    pub trace: NonZeroU128,
    /// The span of its client.
    pub parent: NonZeroU64,
    /// The id of the span.
    pub id: NonZeroU64,
    /// The function.
    pub name: Box<str>,
    /// When it arrived.
    pub begun: SystemTime,
    /// When it had its answer.
    pub ended: SystemTime,
    /// The properties of the call and its end.
    pub attributes: Vec<Attribute>,
    /// The events of the call: its queue, its limits, and the backend.
    pub events: Vec<SpanEvent>,
    /// The reason, if it was refused or failed.
    pub error: Option<&'static str>,
}

/// The spans that wait for the collector.
#[derive(Debug)]
pub struct SpanQueue {
    settings: Live<TraceSettings>,
    is_on: AtomicBool,
    queue: Mutex<VecDeque<Span>>,
    /// Spans that a request under way has, or that wait to be tried again.
    in_hand: AtomicUsize,
    /// A first span has come, or enough of them, or the settings have changed, or the process ends.
    pub(super) changed: Notify,
    /// Notified when no span is left.
    emptied: Notify,
    ends: AtomicBool,
}

impl SpanQueue {
    /// An empty queue of spans.
    #[must_use]
    pub fn new(settings: TraceSettings) -> Self {
        Self {
            is_on: AtomicBool::new(settings.otlp.is_some()),
            settings: Live::new(settings),
            queue: Mutex::default(),
            in_hand: AtomicUsize::new(0),
            changed: Notify::new(),
            emptied: Notify::new(),
            ends: AtomicBool::new(false),
        }
    }

    /// Takes new settings.
    pub fn apply(&self, settings: TraceSettings) {
        self.is_on.store(settings.otlp.is_some(), Ordering::Relaxed);
        self.settings.set(settings);
        self.changed.notify_one();
    }

    /// Whether spans are sent anywhere.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Adds one; returns whether there was room for it.
    pub fn add(&self, span: Span) -> bool {
        let max = self.settings.get().queue as usize;
        let mut queue = lock(&self.queue);
        let in_hand = self.in_hand.load(Ordering::Relaxed);
        let has_room = queue.len() + in_hand < max;
        if has_room {
            queue.push_back(span);
            let count = queue.len();
            drop(queue);
            // The sender is woken for the first one, and once there is enough to send.
            if count == 1 || count == BATCH_MAX || count + in_hand == max {
                self.changed.notify_one();
            }
        }
        has_room
    }

    /// Waits until all that were added are sent, or lost.
    pub async fn flush(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        while self.left() > 0 {
            self.emptied.notified().await;
        }
    }

    fn left(&self) -> usize {
        lock(&self.queue).len() + self.in_hand.load(Ordering::Relaxed)
    }
}

/// The part of the queue that the sender needs.
#[cfg(any(test, feature = "otlp"))]
impl SpanQueue {
    /// The process ends, so nothing is gained by waiting for more.
    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Whether none wait.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    /// Whether there are as many as a request takes, or no room for more.
    pub(super) fn are_enough(&self) -> bool {
        let queued = lock(&self.queue).len();
        let max = self.settings.get().queue as usize;
        queued >= BATCH_MAX || queued + self.in_hand.load(Ordering::Relaxed) >= max
    }

    pub(super) fn settings(&self) -> std::sync::Arc<TraceSettings> {
        self.settings.get()
    }

    /// Takes those of one request, the oldest first. They count until [`Self::put_down`].
    pub(super) fn take(&self) -> Vec<Span> {
        let mut queue = lock(&self.queue);
        let count = queue.len().min(BATCH_MAX);
        let taken = queue.drain(..count).collect();
        self.in_hand.fetch_add(count, Ordering::Relaxed);
        taken
    }

    /// Removes spans that were sent, or are lost.
    pub(super) fn put_down(&self, count: usize) {
        self.in_hand.fetch_sub(count, Ordering::Relaxed);
        if self.left() == 0 {
            self.emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> Span {
        Span {
            trace: NonZeroU128::MIN,
            parent: NonZeroU64::MIN,
            id: NonZeroU64::MIN,
            name: "f".into(),
            begun: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }

    fn settings(queue: u32) -> TraceSettings {
        TraceSettings {
            otlp: None,
            service: "s".to_owned(),
            queue,
            timeout: SECOND,
        }
    }

    #[test]
    fn those_in_hand_count_against_the_bound() {
        let spans = SpanQueue::new(settings(3));
        assert!(spans.add(span()) && spans.add(span()));
        assert_eq!(spans.take().len(), 2);
        assert!(spans.add(span()));
        assert!(!spans.add(span()), "the two are not sent yet");
        spans.put_down(2);
        assert!(spans.add(span()) && spans.add(span()) && !spans.add(span()));
        spans.apply(settings(4));
        assert!(spans.add(span()) && !spans.add(span()));
    }

    #[test]
    fn enough_is_what_a_request_takes_or_all_that_has_room() {
        let spans = SpanQueue::new(settings(BATCH_MAX as u32 + 2));
        assert!(spans.is_empty() && !spans.are_enough());
        assert!((1..BATCH_MAX).all(|_| spans.add(span()) && !spans.are_enough()));
        assert!(spans.add(span()) && spans.are_enough());
        assert_eq!(spans.take().len(), BATCH_MAX);
        assert!(spans.add(span()) && !spans.are_enough());
        assert!(
            spans.add(span()) && spans.are_enough(),
            "there is no room for more"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_ends_when_the_last_one_is_put_down() {
        let spans = SpanQueue::new(settings(3));
        spans.flush().await;
        assert!(spans.add(span()));
        let put_down = async {
            spans.changed.notified().await;
            let taken = spans.take().len();
            tokio::time::sleep(SECOND).await;
            spans.put_down(taken);
        };
        let flushed = async { tokio::join!(spans.flush(), put_down) };
        assert!(tokio::time::timeout(2 * SECOND, flushed).await.is_ok());
    }

    #[test]
    fn a_collector_is_a_host_and_a_port_without_tls_or_path() {
        use crate::options::ConfigPlace;
        use crate::options::tree::{ConfigValue as Given, Node};
        let read = |given: &str| {
            let node = Node {
                name: ConfigPlace::Whole,
                place: ConfigPlace::Whole,
                value: Given::Text(given.to_owned()),
                letters: None,
            };
            (collector().read)(&node).map_err(|wrong| wrong[0].cure.clone())
        };
        for good in [
            "http://127.0.0.1:4318",
            "http://[::1]:4318",
            "http://a-b.c_d:1",
        ] {
            assert_eq!(read(good).expect(good).to_string(), good);
        }
        assert!(read("http://a:1/").is_ok());
        for (bad, cure) in [
            ("127.0.0.1:4318", "give http://host:port"),
            ("https://a:4318", "a collector on this machine"),
            ("http://a", "add :4318"),
            ("http://a:0", "give http://host:port"),
            ("http://a:1/v1/traces", "leave it out"),
            ("http://:1", "give http://host:port"),
            ("http://a b:1", "give http://host:port"),
        ] {
            let said = read(bad).expect_err(bad);
            assert!(said.contains(cure), "{bad}: {said}");
        }
    }
}
