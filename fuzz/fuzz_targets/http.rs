//! Whatever a client sends where HTTP is spoken, in whatever pieces: nothing panics, what
//! comes back begins as an answer does, or as the refusal of HTTP/2, and the connection ends.

#![no_main]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use tidegate::call::listener::ProxyProtocol;
use tidegate::call::{
    BackendKind, Bind, Dialect, Head, Identity, Listener, LooksExceeded, Message, Origin, Peer,
    Progress, Protocol, QueueStanding, Refusal, Rejection, Reply, ReplyBody, Request, RequestBody,
    Serve, SignsOfLife, TaskWakers, TicketMode, Tunnel, UserFrom,
};
use tidegate::protocol::forwarded_options::{ForwardedRule, ForwardedSettings};
use tidegate::protocol::trusted::TrustedProxies;
use tidegate::protocol::{
    AcceptedConnection, ClientSettings, Conversation, Stop, StreamDrain, converse,
};
use tidegate_callers::Network;
use tidegate_runtime::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

/// No connection lives longer than this: the client closes its side, so none waits for a
/// timeout of its own.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first frame that a client of HTTP/2 gets: it is empty.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Answers everything, after it has read the body where its path asks for that.
#[derive(Clone)]
struct Stub;

impl Serve for Stub {
    async fn serve<'a>(&'a self, request: Request, _: &'a Progress) -> Result<Reply, Refusal> {
        if let Message::Http(call) = request.message
            && call.head.path().len() % 2 == 0
            && let RequestBody::Streamed { rest, .. } = call.body
        {
            // How a body ends is the client's business.
            let _ = rest.collect().await;
        }
        let object = Bytes::from_static(b"{\"overallRC\": 0}");
        Ok(Reply::object(ReplyBody::whole(object)))
    }

    async fn tunnel<'a>(&'a self, _: Origin, _: &'a Progress) -> Result<Tunnel, Refusal> {
        unreachable!("this listener speaks HTTP")
    }

    fn refused(&self, _: Origin, dialect: Dialect, refusal: &Refusal) -> u64 {
        assert_eq!(dialect, Dialect::Http);
        assert!(refusal.detail.is_ascii());
        0
    }

    fn rejected(&self, _: &Identity, rejection: Rejection) {
        let is_http2 = matches!(rejection, Rejection::Http2);
        assert!(
            is_http2,
            "nothing is asked of this listener's clients: {rejection:?}"
        );
    }

    fn standing(
        &self,
        _: u64,
        _: Option<&Identity>,
    ) -> Result<Option<QueueStanding>, LooksExceeded> {
        Ok(None)
    }

    fn waiting(&self) -> usize {
        0
    }

    fn needs_body(&self, head: &Head) -> bool {
        head.path().len() % 3 == 0
    }
}

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
}

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (lengths, bytes) = input;
    RUNTIME.with(|runtime| {
        let answer = runtime.block_on(async {
            tokio::time::timeout(PATIENCE, talk(&lengths, &bytes))
                .await
                .expect("the connection ends")
        });
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.") || answer.starts_with(SETTINGS),
            "{:?}",
            String::from_utf8_lossy(&answer)
        );
    });
});

async fn talk(lengths: &[u8], bytes: &[u8]) -> Vec<u8> {
    let (client, stream) = pair();
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let listener = Listener {
        name: Arc::from("fuzz"),
        bind: Bind::Tcp(address),
        unix_mode: 0,
        protocol: Protocol::Http,
        cancel_on_eof: true,
        tls: None,
        proxy_protocol: ProxyProtocol::Off,
        tickets: TicketMode::Off,
        client_timeout: None,
        user_from: UserFrom::Basic,
        signs_of_life: SignsOfLife::Continue,
        signs_of_life_every: Duration::from_millis(100),
        event_stream_signs: true,
        queue_status: true,
    };
    let now = tidegate_limits::Timestamp::ZERO;
    let accepted = AcceptedConnection::new(stream, Peer::Tcp(address), Arc::new(listener), now);
    let conversation = Arc::new(Conversation {
        serve: Stub,
        settings: ClientSettings {
            handshake_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
            write_timeout: Duration::from_secs(1),
            body_timeout: Duration::from_secs(1),
            body_min_rate: 0,
            max_request_bytes: 4096,
            buffer_bytes: 1024,
            max_request_fields: 128,
            trusted_proxies: TrustedProxies {
                networks: [Network::single(address.ip())].into(),
                unix: false,
            },
            backend_kind: BackendKind::Http,
            forwarded: ForwardedSettings {
                x_forwarded_for: ForwardedRule::Auto,
                x_forwarded_proto: ForwardedRule::Auto,
                x_forwarded_host: ForwardedRule::Auto,
                forwarded: ForwardedRule::Auto,
                x_real_ip: ForwardedRule::Auto,
            },
            tunnel_idle_timeout: Duration::from_secs(1),
        },
        clock: Clock::start(),
        stop: Stop::default(),
        streams: StreamDrain::default(),
        wakers: TaskWakers::default(),
    });
    let (mut read, mut write) = client.into_split();
    let sending = async {
        let mut rest = bytes;
        let mut lengths = lengths.iter();
        while !rest.is_empty() {
            let length = lengths
                .next()
                .map_or(rest.len(), |&n| usize::from(n).max(1));
            let (piece, later) = rest.split_at(length.min(rest.len()));
            rest = later;
            if write.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(write);
    };
    let mut answer = Vec::new();
    let reading = async {
        // A reset ends it as well.
        let _ = read.read_to_end(&mut answer).await;
    };
    tokio::join!(converse(accepted, conversation, ()), sending, reading);
    answer
}

/// Two ends of a connection that takes no port, so that a run may be long.
fn pair() -> (TcpStream, std::net::TcpStream) {
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    let into_tcp = |stream: UnixStream| {
        stream.set_nonblocking(true).expect("a socket takes it");
        std::net::TcpStream::from(OwnedFd::from(stream))
    };
    let client = TcpStream::from_std(into_tcp(one)).expect("there is a runtime");
    (client, into_tcp(other))
}
