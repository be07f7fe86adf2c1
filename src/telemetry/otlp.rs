//! Sends spans to a collector: OTLP 1.x over HTTP, as protobuf (the OpenTelemetry protocol).
//!
//! One request at a time, over one connection that is kept. What a collector cannot take now is tried
//! again later; what it refuses is lost.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tidegate_runtime::BackOff;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::{info, warn};

use super::process::ProcessMetrics;
use super::spans::{
    Attribute, AttributeValue, Collector, Span, SpanEvent, SpanQueue, TraceSettings,
};

/// How long the first span waits for others.
const EVERY: Duration = Duration::from_secs(1);
/// Largest answer that is read.   bytes
const ANSWER_MAX: usize = 64 << 10;
/// The pauses after a collector could not take spans.
const PAUSES: BackOff = BackOff::doubling(Duration::from_secs(1), Duration::from_secs(30));
/// A span about a request that came in.
const KIND_SERVER: i32 = 2;
const STATUS_ERROR: i32 = 2;

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the connect failed: {0}")]
    Connect(std::io::Error),
    #[error("the exchange failed: {0}")]
    Exchange(hyper::Error),
    #[error("the answer cannot be read: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("it answered {0}")]
    Status(StatusCode),
}

impl ExportError {
    /// Whether it may take them later: what OTLP lists as retryable, and all that is not an answer.
    fn may_be_taken_later(&self) -> bool {
        match self {
            Self::Status(status) => matches!(status.as_u16(), 429 | 502..=504),
            _ => true,
        }
    }
}

/// Sends what comes, until it is dropped.
pub async fn keep_sending(spans: Arc<SpanQueue>, metrics: ProcessMetrics) {
    let mut sender = None;
    let mut pauses = PAUSES;
    let mut is_well = true;
    loop {
        while spans.is_empty() {
            spans.changed.notified().await;
        }
        wait(&spans, EVERY, || spans.ends() || spans.are_enough()).await;
        let batch = spans.take();
        loop {
            let settings = spans.settings();
            let lost = |reason| metrics.spans_lost_total(reason).inc_by(batch.len() as u64);
            let Some(collector) = &settings.otlp else {
                lost("off");
                break;
            };
            match send(&mut sender, collector, &settings, &batch).await {
                Ok(rejected) => {
                    let rejected = rejected.min(batch.len() as u64);
                    metrics
                        .spans_sent_total()
                        .inc_by(batch.len() as u64 - rejected);
                    metrics.spans_lost_total("refused").inc_by(rejected);
                    pauses = PAUSES;
                    if !std::mem::replace(&mut is_well, true) {
                        info!(%collector, "the collector takes spans again");
                    }
                    break;
                }
                Err(error) => {
                    sender = None;
                    let later = error.may_be_taken_later();
                    if std::mem::replace(&mut is_well, false) {
                        warn!(%collector, %error, "the collector does not take spans; calls are not affected");
                    }
                    if !later {
                        lost("refused");
                        break;
                    }
                    if spans.ends() {
                        lost("ended");
                        break;
                    }
                    wait(&spans, pauses.pause(), || spans.ends()).await;
                }
            }
        }
        spans.put_down(batch.len());
    }
}

/// Waits for this time, or until it is cut short.
async fn wait(spans: &SpanQueue, time: Duration, is_cut_short: impl Fn() -> bool) {
    let cut_short = async {
        while !is_cut_short() {
            spans.changed.notified().await;
        }
    };
    // Too late is as good.
    let _ = timeout(time, cut_short).await;
}

type Sender = (Collector, SendRequest<Full<Bytes>>);

/// Sends a batch; returns how many of it the collector refused.
async fn send(
    kept: &mut Option<Sender>,
    collector: &Collector,
    settings: &TraceSettings,
    batch: &[Span],
) -> Result<u64, ExportError> {
    let late = |_| ExportError::Late(settings.timeout);
    let is_usable = |(to, sender): &Sender| to == collector && !sender.is_closed();
    let mut sender = match kept.take().filter(is_usable) {
        Some((_, sender)) => sender,
        None => timeout(settings.timeout, connect(collector))
            .await
            .map_err(late)??,
    };
    let request = Request::post("/v1/traces")
        .header(
            header::HOST,
            format!("{}:{}", collector.host, collector.port),
        )
        .header(header::CONTENT_TYPE, "application/x-protobuf")
        .header(
            header::USER_AGENT,
            concat!("tidegate/", env!("CARGO_PKG_VERSION")),
        )
        .body(Full::new(encoded(&settings.service, batch)))
        .expect("a host and a port are a header");
    let exchange = async {
        sender.ready().await.map_err(ExportError::Exchange)?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(ExportError::Exchange)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(ExportError::Answer)?.to_bytes();
        match status.is_success() {
            true => Ok(rejected(&body)),
            false => Err(ExportError::Status(status)),
        }
    };
    let rejected = timeout(settings.timeout, exchange).await.map_err(late)??;
    *kept = Some((collector.clone(), sender));
    Ok(rejected)
}

async fn connect(collector: &Collector) -> Result<SendRequest<Full<Bytes>>, ExportError> {
    let host = collector.host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, collector.port)).await;
    let stream = stream.map_err(ExportError::Connect)?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(ExportError::Exchange)?;
    // It ends with its sender.
    tokio::spawn(connection);
    Ok(sender)
}

/// How many spans an answer refuses. An answer that is not readable refuses none.
fn rejected(answer: &[u8]) -> u64 {
    let answer = wire::ExportTraceServiceResponse::decode(answer).unwrap_or_default();
    let rejected = answer.partial_success.map_or(0, |it| it.rejected_spans);
    u64::try_from(rejected).unwrap_or_default()
}

/// A request as bytes.
fn encoded(service: &str, batch: &[Span]) -> Bytes {
    let name: Attribute = ("service.name", AttributeValue::Text(service.into()));
    let request = wire::ExportTraceServiceRequest {
        resource_spans: vec![wire::ResourceSpans {
            resource: Some(wire::Resource {
                attributes: attributes(&[name]),
            }),
            scope_spans: vec![wire::ScopeSpans {
                scope: Some(wire::InstrumentationScope {
                    name: "tidegate".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans: batch.iter().map(span).collect(),
            }],
        }],
    };
    request.encode_to_vec().into()
}

fn span(span: &Span) -> wire::ProtoSpan {
    wire::ProtoSpan {
        trace_id: span.trace.get().to_be_bytes().to_vec(),
        span_id: span.id.get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.get().to_be_bytes().to_vec(),
        name: span.name.to_string(),
        kind: KIND_SERVER,
        start_time_unix_nano: nanos(span.begun),
        end_time_unix_nano: nanos(span.ended),
        attributes: attributes(&span.attributes),
        events: span.events.iter().map(event).collect(),
        status: span.error.map(|reason| wire::ProtoStatus {
            message: reason.to_owned(),
            code: STATUS_ERROR,
        }),
        // Sampled.
        flags: 1,
    }
}

fn event(event: &SpanEvent) -> wire::ProtoEvent {
    wire::ProtoEvent {
        time_unix_nano: nanos(event.at),
        name: event.name.to_owned(),
        attributes: attributes(&event.attributes),
    }
}

fn attributes(given: &[Attribute]) -> Vec<wire::KeyValue> {
    let pair = |(key, value): &Attribute| wire::KeyValue {
        key: (*key).to_owned(),
        value: Some(wire::AnyValue {
            value: Some(match value {
                AttributeValue::Text(text) => wire::AnyValueKind::Text(text.to_string()),
                AttributeValue::Whole(number) => wire::AnyValueKind::Whole(*number),
                AttributeValue::Number(number) => wire::AnyValueKind::Number(*number),
            }),
        }),
    };
    given.iter().map(pair).collect()
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The messages of OTLP that are used, by their field numbers in opentelemetry-proto 1.x.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ExportTraceServiceRequest {
        #[prost(message, repeated, tag = "1")]
        pub(super) resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(super) resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub(super) scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub(super) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ScopeSpans {
        #[prost(message, optional, tag = "1")]
        pub(super) scope: Option<InstrumentationScope>,
        #[prost(message, repeated, tag = "2")]
        pub(super) spans: Vec<ProtoSpan>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct InstrumentationScope {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(string, tag = "2")]
        pub(super) version: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ProtoSpan {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub(super) parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(super) name: String,
        #[prost(int32, tag = "6")]
        pub(super) kind: i32,
        #[prost(fixed64, tag = "7")]
        pub(super) start_time_unix_nano: u64,
        #[prost(fixed64, tag = "8")]
        pub(super) end_time_unix_nano: u64,
        #[prost(message, repeated, tag = "9")]
        pub(super) attributes: Vec<KeyValue>,
        #[prost(message, repeated, tag = "11")]
        pub(super) events: Vec<ProtoEvent>,
        #[prost(message, optional, tag = "15")]
        pub(super) status: Option<ProtoStatus>,
        #[prost(fixed32, tag = "16")]
        pub(super) flags: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ProtoEvent {
        #[prost(fixed64, tag = "1")]
        pub(super) time_unix_nano: u64,
        #[prost(string, tag = "2")]
        pub(super) name: String,
        #[prost(message, repeated, tag = "3")]
        pub(super) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ProtoStatus {
        #[prost(string, tag = "2")]
        pub(super) message: String,
        #[prost(int32, tag = "3")]
        pub(super) code: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct KeyValue {
        #[prost(string, tag = "1")]
        pub(super) key: String,
        #[prost(message, optional, tag = "2")]
        pub(super) value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct AnyValue {
        #[prost(oneof = "AnyValueKind", tags = "1, 3, 4")]
        pub(super) value: Option<AnyValueKind>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum AnyValueKind {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Whole(i64),
        #[prost(double, tag = "4")]
        Number(f64),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ExportTraceServiceResponse {
        #[prost(message, optional, tag = "1")]
        pub(super) partial_success: Option<PartialSuccess>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct PartialSuccess {
        #[prost(int64, tag = "1")]
        pub(super) rejected_spans: i64,
    }
}
