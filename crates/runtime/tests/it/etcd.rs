//! The etcd client against real etcd, and against what is none.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_runtime::etcd::{
    Changes, Credentials, Endpoint, EtcdClient, EtcdError, EtcdWatch, KeyChange, KeySwap, KeyValue,
    Range, WatchEvent,
};
use tidegate_runtime::tls::{self, TlsClient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::relay::{Mode, Relay};
use crate::stores::{self, Etcd};
use crate::support::PATIENCE;

fn client(urls: &[String]) -> EtcdClient {
    EtcdClient::new(stores::settings(urls))
}

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}")
}

#[test]
fn an_endpoint_has_a_scheme_a_host_a_port_and_nothing_else() {
    for right in [
        "http://a:1",
        "https://etcd.example:2379",
        "http://[::1]:2379",
    ] {
        let endpoint: Endpoint = right.parse().expect("it is one");
        assert_eq!(endpoint.to_string(), right);
    }
    for wrong in [
        "",
        "a:1",
        "http://a",
        "ftp://a:1",
        "http://u:p@a:1",
        "http://a:1/v3",
        "http://:1x",
    ] {
        let error = wrong.parse::<Endpoint>().expect_err(wrong);
        assert_eq!(error.given, wrong);
    }
}

#[tokio::test]
async fn a_swap_writes_over_the_expected_revision_or_tells_what_is_there() {
    let etcd = Etcd::start(1);
    let client = client(&etcd.urls());
    assert_eq!(client.get(b"a").await.expect("etcd is up"), None);
    let swap = async |expected, value: &[u8]| {
        let swapped = client.swap(b"a", expected, value, None).await;
        swapped.expect("etcd is up")
    };
    assert_eq!(swap(7, b"zero").await, KeySwap::Refused(None));
    let KeySwap::Done(made) = swap(0, b"\0\xff one").await else {
        panic!("there was no key");
    };
    let kept = KeyValue {
        key: b"a".to_vec(),
        value: b"\0\xff one".to_vec(),
        create_revision: made,
        mod_revision: made,
        version: 1,
        lease: None,
    };
    assert_eq!(swap(0, b"two").await, KeySwap::Refused(Some(kept)));

    let revision = client.put(b"a", b"three", None).await.expect("etcd is up");
    for wrong in [0, made, revision + 1] {
        let KeySwap::Refused(Some(found)) = swap(wrong, b"four").await else {
            panic!("{wrong} is not the revision");
        };
        assert_eq!((&found.value[..], found.version), (&b"three"[..], 2));
    }
    let swapped = swap(revision, b"four").await;
    assert_eq!(swapped, KeySwap::Done(revision + 1));
    let found = client.get(b"a").await.expect("etcd is up");
    assert_eq!(found.map(|entry| entry.value), Some(b"four".to_vec()));
}

#[tokio::test]
async fn a_range_is_what_begins_alike() {
    let etcd = Etcd::start(1);
    let client = client(&etcd.urls());
    let keys: [&[u8]; 5] = [b"a/1", b"a/2", b"b", b"\xff", b"\xff\xff1"];
    for key in keys {
        client.put(key, b"", None).await.expect("etcd is up");
    }
    let found = async |prefix: &[u8]| {
        let found = client.range(&Range::prefix(prefix)).await;
        let entries = found.expect("etcd is up").entries.into_iter();
        entries.map(|entry| entry.key).collect::<Vec<_>>()
    };
    assert_eq!(found(b"a/").await, keys[..2]);
    assert_eq!(found(b"\xff").await, keys[3..]);
    assert_eq!(found(b"").await, keys);
}

#[tokio::test]
async fn a_lease_is_granted_renewed_and_ended_with_what_is_bound_to_it() {
    let etcd = Etcd::start(1);
    let client = client(&etcd.urls());
    let lease = client
        .lease_grant(Duration::from_millis(9_001))
        .await
        .expect("etcd is up");
    assert_eq!(lease.time_to_live, Duration::from_secs(10));
    client
        .put(b"a", b"", Some(lease.id))
        .await
        .expect("etcd is up");
    let kept = client
        .get(b"a")
        .await
        .expect("etcd is up")
        .expect("it is there");
    assert_eq!(kept.lease, Some(lease.id));
    let renewed = client.lease_keep_alive(lease.id).await.expect("etcd is up");
    assert_eq!(renewed, Some(lease.time_to_live));
    assert!(client.lease_revoke(lease.id).await.expect("etcd is up"));
    assert_eq!(client.get(b"a").await.expect("etcd is up"), None);
    assert!(!client.lease_revoke(lease.id).await.expect("etcd is up"));
    assert_eq!(
        client.lease_keep_alive(lease.id).await.expect("etcd is up"),
        None
    );

    let refused = client.put(b"a", b"", Some(lease.id)).await;
    assert!(
        matches!(&refused, Err(EtcdError::Refused { code: 5, .. })),
        "{refused:?}"
    );
}

async fn next(watch: &mut EtcdWatch) -> WatchEvent {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await;
    next.expect("there is news").expect("no error")
}

/// The values of this many puts, in order, and what else came.
async fn values(watch: &mut EtcdWatch, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    while values.len() < count {
        let WatchEvent::Changes(Changes { changes, .. }) = next(watch).await else {
            panic!("compacted");
        };
        values.extend(changes.into_iter().map(|change| match change {
            KeyChange::Put(entry) => String::from_utf8(entry.value).expect("it is text"),
            KeyChange::Deleted { .. } => "deleted".to_owned(),
        }));
    }
    values
}

#[tokio::test]
async fn a_watch_reports_every_change_once_over_every_break() {
    let etcd = Etcd::start(1);
    let writer = client(&etcd.urls());
    let relay = Relay::start(etcd.addr(0)).await;
    let first = writer.put(b"a", b"0", None).await.expect("etcd is up");
    let mut watch = client(&[url(relay.addr)]).watch(Range::key(b"a"), first);
    assert_eq!(values(&mut watch, 1).await, ["0"]);
    let mut expected = Vec::new();
    let mut told = Vec::new();
    for round in 1..=5 {
        relay.set(Mode::Cut);
        for write in 0..3 {
            let value = format!("{round}.{write}");
            writer
                .put(b"a", value.as_bytes(), None)
                .await
                .expect("etcd is up");
            expected.push(value);
        }
        relay.set(Mode::Open);
        told.extend(values(&mut watch, 3).await);
    }
    assert_eq!(told, expected);
    etcd.control(&["del", "a"]);
    assert_eq!(values(&mut watch, 1).await, ["deleted"]);
}

#[tokio::test]
async fn a_watch_that_goes_silent_is_opened_anew() {
    let etcd = Etcd::start(1);
    let writer = client(&etcd.urls());
    let relay = Relay::start(etcd.addr(0)).await;
    let mut watch = client(&[url(relay.addr), etcd.url(0)]).watch(Range::key(b"a"), 1);
    writer.put(b"a", b"0", None).await.expect("etcd is up");
    assert_eq!(values(&mut watch, 1).await, ["0"]);
    // Nothing comes any more, and nothing tells that it does not.
    relay.set(Mode::Deaf);
    writer.put(b"a", b"1", None).await.expect("etcd is up");
    assert_eq!(values(&mut watch, 1).await, ["1"]);
}

#[tokio::test]
async fn a_watch_from_what_is_forgotten_says_so_and_goes_on() {
    let etcd = Etcd::start(1);
    let client = client(&etcd.urls());
    let mut last = 0;
    for value in ["0", "1", "2", "3"] {
        last = client
            .put(b"a", value.as_bytes(), None)
            .await
            .expect("etcd is up");
    }
    etcd.control(&["compact", &last.to_string()]);
    let mut watch = client.watch(Range::key(b"a"), 1);
    assert_eq!(
        next(&mut watch).await,
        WatchEvent::Compacted { revision: last }
    );
    assert_eq!(values(&mut watch, 1).await, ["3"]);
}

#[tokio::test]
async fn a_member_that_stands_still_costs_one_try_and_then_nothing() {
    let mut etcd = Etcd::start(3);
    let client = client(&etcd.urls());
    client.put(b"a", b"", None).await.expect("etcd is up");
    let leader = etcd.leader();
    let follower = (0..3)
        .find(|member| *member != leader)
        .expect("there are three");
    // Ask the one that is to stand still first.
    let mut settings = etcd.settings();
    settings.endpoints.rotate_left(follower);
    let client = EtcdClient::new(settings.clone());
    client.get(b"a").await.expect("etcd is up");
    etcd.member(follower).signal("STOP");
    let asked = Instant::now();
    client.get(b"a").await.expect("two members are up");
    let took = asked.elapsed();
    println!("with a member that stands still: {took:?}");
    assert!(took < settings.try_timeout * 2, "{took:?}");
    let asked = Instant::now();
    client.get(b"a").await.expect("two members are up");
    let took = asked.elapsed();
    assert!(took < settings.try_timeout, "{took:?}");
    etcd.member(follower).signal("CONT");
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_is_not_sent_again() {
    let etcd = Etcd::start(1);
    let relay = Relay::start(etcd.addr(0)).await;
    // The second endpoint would answer.
    let lossy = client(&[url(relay.addr), etcd.url(0)]);
    lossy.get(b"a").await.expect("etcd is up");
    relay.set(Mode::Deaf);
    let put = lossy.put(b"a", b"1", None).await;
    assert!(matches!(put, Err(EtcdError::Unknown(_))), "{put:?}");
    let direct = client(&etcd.urls());
    let kept = direct
        .get(b"a")
        .await
        .expect("etcd is up")
        .expect("it was written");
    assert_eq!(kept.version, 1, "written twice");
    // The next call begins at the other one, so it is known already.
    let read = lossy.get(b"a").await.expect("the other endpoint answers");
    assert_eq!(read, Some(kept));
}

#[tokio::test]
async fn an_unsent_request_is_unreachable_and_a_write_goes_to_the_next_member() {
    let [free] = stores::free_ports(1)[..] else {
        panic!("one was asked for");
    };
    let nowhere = format!("http://127.0.0.1:{free}");
    let put = client(std::slice::from_ref(&nowhere))
        .put(b"a", b"", None)
        .await;
    assert!(matches!(put, Err(EtcdError::Unreachable(_))), "{put:?}");
    let none = client(&[]).get(b"a").await;
    assert!(matches!(none, Err(EtcdError::Unreachable(_))), "{none:?}");
    let etcd = Etcd::start(1);
    let client = client(&[nowhere, etcd.url(0)]);
    client.put(b"a", b"", None).await.expect("the second is up");
}

#[tokio::test]
async fn a_user_logs_in_if_etcd_requires_it_and_again_when_the_token_expires() {
    let etcd = Etcd::with(1, "http", |_, _| vec!["--auth-token-ttl=1".into()]);
    etcd.control(&["user", "add", "root:secret"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", "reader:weak"]);
    etcd.control(&["auth", "enable"]);
    let of = |user: &str, password: &str| {
        let mut settings = etcd.settings();
        settings.credentials = Some(Credentials {
            user: user.into(),
            password: password.into(),
        })
        .into();
        assert!(!format!("{settings:?}").contains(password), "{settings:?}");
        EtcdClient::new(settings)
    };
    let anonymous = client(&etcd.urls()).get(b"a").await;
    assert!(
        matches!(anonymous, Err(EtcdError::Unauthenticated(_))),
        "{anonymous:?}"
    );
    let wrong = of("root", "wrong").get(b"a").await;
    assert!(
        matches!(wrong, Err(EtcdError::Unauthenticated(_))),
        "{wrong:?}"
    );
    let not_allowed = of("reader", "weak").get(b"a").await;
    assert!(
        matches!(not_allowed, Err(EtcdError::Refused { code: 7, .. })),
        "{not_allowed:?}"
    );
    let root = of("root", "secret");
    root.put(b"a", b"1", None).await.expect("it may");
    // etcd forgets tokens when it is disabled and enabled: sooner than by waiting.
    let control = |what: &[&str]| {
        let mut with = vec!["--user=root:secret"];
        with.extend(what);
        etcd.control(&with);
    };
    control(&["auth", "disable"]);
    control(&["auth", "enable"]);
    root.put(b"a", b"2", None)
        .await
        .expect("it asks for a token again");
    let mut watch = root.watch(Range::key(b"a"), 1);
    assert_eq!(values(&mut watch, 2).await, ["1", "2"]);
}

/// A server that answers every connection with the same bytes, and closes after the client.
async fn answers(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(&bytes).await;
                // Closed with unread bytes, the connection would be reset and the answer lost.
                while stream
                    .read(&mut [0; 4096])
                    .await
                    .is_ok_and(|count| count > 0)
                {}
            });
        }
    });
    url(addr)
}

/// A server of HTTP/2 that answers every request alike: a status, a content type, and a body.
async fn answers_http2(status: u16, kind: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let body = Bytes::from(body.clone());
            let service = service_fn(move |_| {
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                let body = Full::new(body.clone()).with_trailers(async { Some(Ok(trailers)) });
                let response = http::Response::builder()
                    .status(status)
                    .header("content-type", kind)
                    .body(body);
                async move { response }
            });
            let serving = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    url(addr)
}

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("small");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

async fn check_garbage(shown: &str, url: String) {
    let client = client(&[url]);
    let read = client.get(b"a").await;
    assert!(
        matches!(read, Err(EtcdError::Garbage(_))),
        "{shown}: {read:?}"
    );
    let written = client.put(b"a", b"", None).await;
    assert!(
        matches!(written, Err(EtcdError::Garbage(_))),
        "{shown}: {written:?}"
    );
    let swapped = client.swap(b"a", 0, b"", None).await;
    assert!(
        matches!(swapped, Err(EtcdError::Garbage(_))),
        "{shown}: {swapped:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_not_etcd_is_recognised_and_does_no_harm() {
    for nonsense in [
        b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found".to_vec(),
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n".to_vec(),
        "[".repeat(100_000).into_bytes(),
    ] {
        let shown = String::from_utf8_lossy(&nonsense[..nonsense.len().min(60)]).into_owned();
        check_garbage(&shown, answers(nonsense).await).await;
    }
    const GRPC: &str = "application/grpc";
    for (status, kind, body) in [
        (200, "text/html", b"<html>".to_vec()),
        (404, "text/plain", b"not found".to_vec()),
        (502, GRPC, Vec::new()),
        (200, GRPC, Vec::new()),
        (200, GRPC, b"\x07not a frame".to_vec()),
        // Without a header.
        (200, GRPC, framed(b"")),
        // A revision below zero: field 1, of which field 3 is -1.
        (
            200,
            GRPC,
            framed(b"\x0a\x0b\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ),
        (200, GRPC, framed(b"\xff\xff")),
        (200, GRPC, framed(&vec![b'x'; 5 << 20])),
    ] {
        let shown = format!("{status} {kind} {:?}", &body[..body.len().min(20)]);
        check_garbage(&shown, answers_http2(status, kind, body).await).await;
    }
}

#[tokio::test]
async fn a_member_that_talks_nonsense_is_left_for_the_next_when_reading() {
    let etcd = Etcd::start(1);
    let client = client(&[answers(b"\0\0\0".to_vec()).await, etcd.url(0)]);
    assert_eq!(client.get(b"a").await.expect("the second is one"), None);
}

#[tokio::test]
async fn tls_connects_only_to_servers_that_the_authority_signed() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]);
    let made = made.expect("a certificate can be made");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let etcd = Etcd::with(1, "https", |port, folder| {
        let paths = ["certificate.pem", "key.pem"].map(|name| folder.join(name));
        std::fs::write(&paths[0], &certificate).expect("there is room");
        std::fs::write(&paths[1], &key).expect("there is room");
        vec![
            format!("--listen-client-urls=https://127.0.0.1:{port}"),
            format!("--advertise-client-urls=https://127.0.0.1:{port}"),
            format!("--cert-file={}", paths[0].display()),
            format!("--key-file={}", paths[1].display()),
        ]
    });
    let mut settings = etcd.settings();
    // A write waits for the disk of a machine that does much else.
    (settings.try_timeout, settings.deadline) = (PATIENCE, PATIENCE);
    let untold = EtcdClient::new(settings.clone()).get(b"a").await;
    assert!(
        matches!(untold, Err(EtcdError::Unreachable(_))),
        "{untold:?}"
    );
    settings.tls = Some(trusting(&certificate));
    let client = EtcdClient::new(settings.clone());
    client.put(b"a", b"1", None).await.expect("it is trusted");
    let mut watch = client.watch(Range::key(b"a"), 1);
    assert_eq!(values(&mut watch, 1).await, ["1"]);

    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]);
    let other = other.expect("a certificate can be made").cert.pem();
    settings.tls = Some(trusting(&other));
    let stranger = EtcdClient::new(settings).get(b"a").await;
    assert!(
        matches!(stranger, Err(EtcdError::Unreachable(_))),
        "{stranger:?}"
    );
    tls::authorities(b"no certificate").expect_err("there is none in it");
}

/// A client's side that trusts this authority.
fn trusting(authority: &str) -> TlsClient {
    let authority = tls::authorities(authority.as_bytes()).expect("it is a certificate");
    let mut config = tls::client_config(authority, None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsClient::new(config, None)
}
