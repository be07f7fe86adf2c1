//! TLS to a backend, through the real process: what is accepted, what each failure says in the log and
//! to the client, and connections that end, stall and move.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, date_time_ymd};
use tidegate::call::Reason;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::certificates::{Authority, Issued};
use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::{Answer, OK, PATIENCE, array, ask, connect, json, until};

const GET: &str = "GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
const LOCAL: &str = "127.0.0.1";

/// A call on each protocol.
fn calls() -> [String; 2] {
    [GET.to_owned(), array("guest_get_info", "X")]
}

/// A config with TLS to a backend that speaks both protocols, with these lines in `[backend.tls]`.
fn config(port: u16, tls: &str, more: &str) -> String {
    let schemes = ("tls://", "https://");
    of_schemes(schemes, port, &format!("[backend.tls]\n{tls}"), more)
}

fn of_schemes((socket, http): (&str, &str), port: u16, sections: &str, more: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        kind = "zvm"
        socket = "{socket}127.0.0.1:{port}"
        http = "{http}127.0.0.1:{port}"
        {more}
        {sections}
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:10000"
        max_wait = "30s"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

fn trusting(authority: &Authority) -> String {
    format!("ca = \"{}\"", authority.ca().display())
}

fn showing(issued: &Issued) -> String {
    let (cert, key) = (issued.cert.display(), issued.key.display());
    format!("cert = \"{cert}\"\nkey = \"{key}\"")
}

/// Asks, and reads the answer as a client of its protocol does.
async fn answer(addr: SocketAddr, call: &str) -> serde_json::Value {
    let answered = timeout(PATIENCE, ask(addr, call)).await.expect("no hang");
    match answered.split_once("\r\n\r\n") {
        Some((_, body)) => json(body),
        None => json(&answered),
    }
}

async fn is_answered(addr: SocketAddr, call: &str) {
    let answer = answer(addr, call).await;
    assert_eq!(answer["overallRC"], 0, "{call}: {answer}");
}

/// A refusal for want of TLS that says this, and that the call was not done.
async fn is_refused(addr: SocketAddr, call: &str, words: &[&str]) {
    let answer = answer(addr, call).await;
    assert_eq!(answer["rs"], Reason::BackendTls.rs(), "{call}: {answer}");
    let message = answer["errmsg"].as_str().expect("a message");
    for word in [words, &["the call was not done"]].concat() {
        assert!(message.contains(word), "{call}: no {word:?} in {message}");
    }
}

fn failures(backend: &str, cause: &str) -> String {
    format!("tidegate_backend_tls_failures_total{{backend=\"{backend}\",cause=\"{cause}\"}}")
}

/// A peer of another make: Python with OpenSSL.
struct Python {
    port: u16,
    said: tokio::io::Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Python {
    async fn start(own: &Issued, more: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/tls_server.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args([&own.cert, &own.key])
            .args(more)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("there is python3");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let port = timeout(PATIENCE, said.next_line()).await.expect("in time");
        let port = port.expect("it is text").expect("a port");
        Self {
            port: port.parse().expect("a port"),
            said,
            _child: child,
        }
    }

    /// The next call has come in.
    async fn called(&mut self) {
        let line = timeout(PATIENCE, self.said.next_line())
            .await
            .expect("in time");
        assert_eq!(line.expect("text").as_deref(), Some("call"));
    }

    async fn saw_no_call(mut self) {
        // What it had printed would be here by now.
        let more = timeout(Duration::from_millis(100), self.said.next_line()).await;
        assert!(more.is_err(), "{more:?}");
    }
}

/// The events at a backend of ours.
#[derive(Clone, Default)]
struct Seen {
    connections: Arc<AtomicUsize>,
    resumed: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl Seen {
    fn all(&self) -> [usize; 3] {
        let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        [of(&self.connections), of(&self.resumed), of(&self.calls)]
    }
}

/// How it ends a connection after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The backend keeps the connection.
    Never,
    /// After this time, with the end of TLS, or without.
    After(Duration, bool),
}

/// A backend in this process.
struct Secured {
    port: u16,
    seen: Seen,
    stop: Option<DropGuard>,
}

/// TLS of a backend that shows this certificate.
pub(crate) fn server(own: &Issued) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(&own.cert).expect("a file");
    let chain = chain.collect::<Result<_, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&own.key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("it knows them")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they belong together");
    Arc::new(config)
}

impl Secured {
    async fn start(own: &Issued) -> Self {
        Self::at(0, own, Ends::Never).await
    }

    async fn at(port: u16, own: &Issued, ends: Ends) -> Self {
        Self::scripted(port, own, move |mut tls, seen| async move {
            let mut request = vec![0; 65536];
            while let Ok(read @ 1..) = tls.read(&mut request).await {
                seen.calls.fetch_add(1, Ordering::SeqCst);
                let is_array = request[..read].starts_with(b"[");
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", OK.len());
                let head = if is_array { "" } else { &head };
                // The peer may be gone.
                let _ = tls.write_all(&[head.as_bytes(), OK].concat()).await;
                let _ = tls.flush().await;
                match ends {
                    Ends::Never if is_array => break,
                    Ends::Never => continue,
                    Ends::After(pause, is_said) => {
                        tokio::time::sleep(pause).await;
                        if !is_said {
                            return;
                        }
                        break;
                    }
                }
            }
            let _ = tls.shutdown().await;
        })
        .await
    }

    async fn scripted<F>(
        port: u16,
        own: &Issued,
        script: impl Fn(TlsStream<TcpStream>, Seen) -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a socket takes it");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        socket.bind(address).expect("the port is free");
        let listener = socket.listen(1024).expect("it listens");
        let port = listener.local_addr().expect("it is bound").port();
        let acceptor = TlsAcceptor::from(server(own));
        let seen = Seen::default();
        let count = seen.clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (plain, _) = listener.accept().await.expect("it listens");
                let (acceptor, seen) = (acceptor.clone(), count.clone());
                let script = script.clone();
                let talk = async move {
                    let Ok(tls) = acceptor.accept(plain).await else {
                        return;
                    };
                    seen.connections.fetch_add(1, Ordering::SeqCst);
                    let kind = tls.get_ref().1.handshake_kind();
                    if kind == Some(tokio_rustls::rustls::HandshakeKind::Resumed) {
                        seen.resumed.fetch_add(1, Ordering::SeqCst);
                    }
                    script(tls, seen).await;
                };
                tokio::spawn(stopped.clone().run_until_cancelled_owned(talk));
            }
        }));
        Self {
            port,
            seen,
            stop: Some(stop.drop_guard()),
        }
    }

    /// Ends it with its connections, and waits until the port is free.
    async fn stop(mut self) -> u16 {
        self.stop = None;
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).await.is_ok() {
            assert!(Instant::now() < deadline, "it still listens");
            tokio::task::yield_now().await;
        }
        self.port
    }
}

#[tokio::test]
async fn calls_of_each_protocol_are_answered_over_tls_by_a_peer_of_another_make() {
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    for version in ["TLSv1_2", "TLSv1_3"] {
        for ending in ["announced", "ragged"] {
            let mut peer = Python::start(&own, &["-", version, ending]).await;
            let sidecar = Sidecar::start(&config(peer.port, &trusting(&authority), "")).await;
            let addr = sidecar.listener("test").await;
            for call in calls() {
                for _ in 0..3 {
                    is_answered(addr, &call).await;
                    peer.called().await;
                }
            }
            assert_eq!(
                sidecar
                    .metric("tidegate_backend_up{backend=\"http\"}")
                    .await,
                1.0
            );
        }
    }
}

#[tokio::test]
async fn many_calls_over_a_kept_connection_take_one_handshake() {
    let authority = Authority::new();
    let backend = Secured::start(&authority.issue(&[LOCAL])).await;
    let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..50 {
        is_answered(addr, GET).await;
    }
    assert_eq!(backend.seen.all(), [1, 0, 50]);
    // The socket protocol has a connection for each call. Its handshakes are short.
    for _ in 0..10 {
        is_answered(addr, &array("guest_get_info", "X")).await;
    }
    assert_eq!(backend.seen.all(), [11, 9, 60]);
}

/// A fault of a backend's certificate, and the message about it.
struct Wrong {
    own: Issued,
    cause: &'static str,
    words: &'static [&'static str],
    cure: &'static str,
}

#[tokio::test]
async fn a_certificate_that_cannot_be_trusted_is_named_in_the_log_and_to_the_client() {
    let (authority, other) = (Authority::new(), Authority::new());
    let wrong = [
        Wrong {
            own: other.issue(&[LOCAL]),
            cause: "untrusted",
            words: &["no known authority signed its certificate"],
            cure: "as ca in [backend.tls]",
        },
        Wrong {
            own: authority.issue(&["other.example", "127.0.0.2"]),
            cause: "wrong_name",
            words: &[
                "its certificate is for ",
                "other.example",
                "not for 127.0.0.1",
            ],
            cure: "as server_name in [backend.tls]",
        },
        Wrong {
            own: authority.issue_with(&[LOCAL], |it| {
                it.not_before = date_time_ymd(2020, 1, 1);
                it.not_after = date_time_ymd(2021, 2, 3);
            }),
            cause: "expired",
            words: &["its certificate expired on Wed, 03 Feb 2021"],
            cure: "renew the backend's certificate",
        },
        Wrong {
            own: authority.issue_with(&[LOCAL], |it| {
                it.not_before = date_time_ymd(4000, 1, 1);
                it.not_after = date_time_ymd(4001, 1, 1);
            }),
            cause: "not_valid_yet",
            words: &["its certificate is valid only from Sat, 01 Jan 4000"],
            cure: "correct the clock",
        },
        Wrong {
            own: other.self_signed(LOCAL),
            cause: "bad_certificate",
            words: &["its certificate is that of an authority (CA:TRUE)"],
            cure: "basicConstraints = CA:FALSE",
        },
    ];
    for Wrong {
        own,
        cause,
        words,
        cure,
    } in wrong
    {
        let peer = Python::start(&own, &[]).await;
        let sidecar = Sidecar::start(&config(peer.port, &trusting(&authority), "")).await;
        let addr = sidecar.listener("test").await;
        let began = Instant::now();
        for (call, backend) in calls().iter().zip(["http", "socket"]) {
            is_refused(addr, call, words).await;
            let line = sidecar
                .log()
                .wait(&["no TLS with the backend", words[0], cure])
                .await;
            for word in ["\"WARN\"", &format!("127.0.0.1:{}", peer.port), cause] {
                assert!(line.contains(word), "no {word} in {line}");
            }
            assert_eq!(sidecar.metric(&failures(backend, cause)).await, 1.0);
            let up = format!("tidegate_backend_up{{backend=\"{backend}\"}}");
            assert_eq!(sidecar.metric(&up).await, 0.0);
            // It is named again, and the log is not flooded.
            is_refused(addr, call, words).await;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "they waited");
        let lines = sidecar.log().lines();
        let said = lines
            .iter()
            .filter(|line| line.contains("no TLS with"))
            .count();
        assert!(said <= 4, "{lines:#?}");
        peer.saw_no_call().await;
    }
}

#[tokio::test]
async fn an_authority_that_is_the_servers_certificate_itself_is_explained() {
    let authority = Authority::new();
    let own = authority.self_signed(LOCAL);
    let peer = Python::start(&own, &[]).await;
    let ca = format!("ca = \"{}\"", own.cert.display());
    let sidecar = Sidecar::start(&config(peer.port, &ca, "")).await;
    let addr = sidecar.listener("test").await;
    is_refused(addr, GET, &["that of an authority"]).await;
    sidecar.log().wait(&["CA:FALSE"]).await;
    peer.saw_no_call().await;
}

#[tokio::test]
async fn a_name_that_the_config_gives_is_the_one_that_is_checked() {
    let authority = Authority::new();
    let peer = Python::start(&authority.issue(&["sdk.example"]), &[]).await;
    let named = format!("{}\nserver_name = \"sdk.example\"", trusting(&authority));
    let sidecar = Sidecar::start(&config(peer.port, &named, "")).await;
    let addr = sidecar.listener("test").await;
    is_answered(addr, GET).await;
    sidecar
        .reload(&config(peer.port, &trusting(&authority), ""))
        .await;
    is_refused(
        addr,
        GET,
        &["its certificate is for sdk.example, not for 127.0.0.1"],
    )
    .await;
    sidecar.reload(&config(peer.port, &named, "")).await;
    is_answered(addr, GET).await;
}

fn of_a_client(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
}

#[tokio::test]
async fn a_backend_that_requires_a_client_certificate_gets_it_and_says_what_it_lacks() {
    let (authority, clients, other) = (Authority::new(), Authority::new(), Authority::new());
    let own = authority.issue(&[LOCAL]);
    let good = clients.issue_with(&["sidecar.example"], of_a_client);
    let forged = other.issue_with(&["sidecar.example"], of_a_client);
    let expired = clients.issue_with(&["sidecar.example"], |it| {
        of_a_client(it);
        it.not_before = date_time_ymd(2020, 1, 1);
        it.not_after = date_time_ymd(2021, 1, 1);
    });
    for version in ["TLSv1_2", "TLSv1_3"] {
        let client_ca = clients.ca().display().to_string();
        let mut peer = Python::start(&own, &[&client_ca, version]).await;
        let with = |shown: &str| {
            let tls = format!("{}\n{shown}", trusting(&authority));
            config(peer.port, &tls, "")
        };
        let sidecar = Sidecar::start(&with("")).await;
        let addr = sidecar.listener("test").await;
        let refused = async |words: &str| {
            for call in calls() {
                is_refused(addr, &call, &[words]).await;
            }
        };
        refused("client certificate").await;
        let line = sidecar
            .log()
            .wait(&["client_certificate", "cert and key in [backend.tls]"]);
        line.await;
        sidecar.reload(&with(&showing(&forged))).await;
        refused("client certificate").await;
        sidecar.reload(&with(&showing(&expired))).await;
        refused("client certificate").await;
        assert!(
            sidecar
                .metric(&failures("http", "client_certificate"))
                .await
                >= 3.0
        );
        assert!(
            sidecar
                .metric(&failures("socket", "client_certificate"))
                .await
                >= 3.0
        );
        sidecar.reload(&with(&showing(&good))).await;
        for call in calls() {
            // The first call that has come in.
            is_answered(addr, &call).await;
            peer.called().await;
        }
        peer.saw_no_call().await;
    }
}

/// With TLS 1.3 a backend refuses the certificate after the handshake, in place of a reply.
#[tokio::test]
async fn a_refusal_after_the_handshake_is_counted_also_while_reads_share_calls() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let client_ca = clients.ca().display().to_string();
    let peer = Python::start(&authority.issue(&[LOCAL]), &[&client_ca, "TLSv1_3"]).await;
    let sharing = "[coalesce]\nfunctions = [\"guest_list\"]";
    let sidecar = Sidecar::start(&config(peer.port, &trusting(&authority), sharing)).await;
    let addr = sidecar.listener("test").await;
    let write = "DELETE /guests/X HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let calls = [
        ("http", write.to_owned(), 1.0),
        ("http", GET.to_owned(), 2.0),
        ("socket", array("guest_delete", "X"), 1.0),
        ("socket", array("guest_list", ""), 2.0),
    ];
    for (backend, call, counted) in calls {
        is_refused(addr, &call, &["client certificate"]).await;
        let failures = failures(backend, "client_certificate");
        assert_eq!(sidecar.metric(&failures).await, counted, "{call}");
    }
}

#[tokio::test]
async fn any_certificate_is_accepted_only_where_the_config_says_so_and_the_log_warns_of_it() {
    let authority = Authority::new();
    let peer = Python::start(&authority.self_signed("other.example"), &[]).await;
    let text = config(peer.port, "accept_any_certificate = true", "");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    for call in calls() {
        is_answered(addr, &call).await;
    }
    sidecar
        .log()
        .wait(&["accept_any_certificate", "not checked"])
        .await;
    let mut command = Command::new(TIDEGATE);
    let command = command
        .arg("check")
        .arg("--config")
        .arg(sidecar.config_path());
    let said = run(command).await;
    assert_eq!(said.code, Some(0));
    assert!(said.err.contains("is not checked"), "{}", said.err);
}

#[tokio::test]
async fn a_backend_that_speaks_no_tls_and_one_that_speaks_it_alone_are_distinguished() {
    let plain = crate::support::Scripted::start(|_, mut stream| async move {
        let mut hello = [0; 4096];
        if stream.read(&mut hello).await.unwrap_or(0) > 0 {
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await.expect("it is read");
        }
    })
    .await;
    let authority = Authority::new();
    let port = plain.addr.port();
    let sidecar = Sidecar::start(&config(port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    for call in calls() {
        is_refused(addr, &call, &["it does not speak TLS"]).await;
    }
    let backend = Secured::start(&authority.issue(&[LOCAL])).await;
    sidecar
        .reload(&of_schemes(("", "http://"), backend.port, "", ""))
        .await;
    for call in calls() {
        is_refused(addr, &call, &["it speaks TLS"]).await;
    }
    sidecar
        .log()
        .wait(&["write the address with https://"])
        .await;
    sidecar
        .reload(&config(backend.port, &trusting(&authority), ""))
        .await;
    for call in calls() {
        is_answered(addr, &call).await;
    }
    assert_eq!(backend.seen.all()[2], 2);
}

#[tokio::test]
async fn a_reload_reads_the_files_again_and_uses_no_connection_of_before() {
    let (first, second) = (Authority::new(), Authority::new());
    let trusted = tempfile::tempdir().expect("a place");
    let trusted = trusted.path().join("ca.crt");
    std::fs::copy(first.ca(), &trusted).expect("there is room");
    let backend = Secured::start(&first.issue(&[LOCAL])).await;
    let text = config(
        backend.port,
        &format!("ca = \"{}\"", trusted.display()),
        "pool_idle_timeout = \"1h\"",
    );
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    is_answered(addr, GET).await;
    // A reload without a change keeps the connection.
    sidecar.hang_up("config reloaded").await;
    is_answered(addr, GET).await;
    assert_eq!(backend.seen.all(), [1, 0, 2]);
    // Another authority is trusted: the connection is as open as before, and no longer good.
    std::fs::copy(second.ca(), &trusted).expect("there is room");
    sidecar.hang_up("config reloaded").await;
    is_refused(addr, GET, &["no known authority"]).await;
    assert_eq!(backend.seen.all()[2], 2);
    // The backend moves to a certificate of that authority.
    let port = backend.stop().await;
    let backend = Secured::at(port, &second.issue(&[LOCAL]), Ends::Never).await;
    is_answered(addr, GET).await;
    // A bad file keeps what was.
    std::fs::write(&trusted, "nothing").expect("there is room");
    sidecar.hang_up("the old one stays").await;
    is_answered(addr, GET).await;
    assert_eq!(backend.seen.all()[2], 2);
}

#[tokio::test]
async fn a_backend_moves_from_plain_to_tls_and_back_by_reloads() {
    let authority = Authority::new();
    let secured = Secured::start(&authority.issue(&[LOCAL])).await;
    let plain = crate::support::Scripted::in_both_dialects().await;
    let with = config(secured.port, &trusting(&authority), "");
    let without = of_schemes(("", "http://"), plain.addr.port(), "", "");
    let sidecar = Sidecar::start(&without).await;
    let addr = sidecar.listener("test").await;
    for round in 1..=3 {
        for call in calls() {
            is_answered(addr, &call).await;
        }
        assert_eq!(secured.seen.all()[2], (round - 1) * 2);
        sidecar.reload(&with).await;
        for call in calls() {
            is_answered(addr, &call).await;
        }
        assert_eq!(secured.seen.all()[2], round * 2);
        sidecar.reload(&without).await;
    }
}

#[tokio::test]
async fn a_restart_of_the_backend_costs_no_call() {
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    let mut backend = Secured::start(&own).await;
    let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..3 {
        for call in calls() {
            is_answered(addr, &call).await;
        }
        let port = backend.stop().await;
        // Calls that come meanwhile wait.
        let waiting =
            calls().map(|call| tokio::spawn(async move { is_answered(addr, &call).await }));
        let calls = f64::from(u32::try_from(waiting.len()).expect("few"));
        sidecar.reaches("tidegate_queue_depth", calls).await;
        backend = Secured::at(port, &own, Ends::Never).await;
        for call in waiting {
            call.await.expect("it is answered");
        }
    }
}

#[tokio::test]
async fn an_idle_connection_that_the_backend_closes_costs_no_call() {
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    for is_said in [true, false] {
        let pause = Duration::from_millis(5);
        let backend = Secured::at(0, &own, Ends::After(pause, is_said)).await;
        let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
        let addr = sidecar.listener("test").await;
        for _ in 0..10 {
            is_answered(addr, GET).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(backend.seen.all()[0], 10);
    }
}

#[tokio::test]
async fn calls_that_race_with_the_end_of_their_connection_are_sent_at_most_once() {
    const CALLS: usize = 300;
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    let backend = Secured::at(0, &own, Ends::After(Duration::from_micros(300), false)).await;
    let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    let mut good = 0;
    for number in 0..CALLS {
        let answer = answer(addr, GET).await;
        match answer["rs"].as_u64() {
            Some(0) => good += 1,
            rs => assert_eq!(rs, Some(Reason::BackendClosed.rs().into()), "{answer}"),
        }
        tokio::time::sleep(Duration::from_micros(number as u64 % 50 * 20)).await;
    }
    let seen = backend.seen.all()[2];
    println!("{good} of {CALLS} were answered, {seen} arrived");
    assert!(seen <= CALLS && seen >= good, "{seen} of {CALLS}");
    assert!(good >= CALLS / 2, "{good}");
}

#[tokio::test]
async fn a_handshake_that_stalls_ends_after_connect_timeout_and_its_call_waits_again() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let held = watch::Sender::new(0);
    let count = held.clone();
    let stalling = tokio::spawn(async move {
        let mut all = Vec::new();
        loop {
            all.push(listener.accept().await.expect("it listens"));
            count.send_modify(|held| *held += 1);
        }
    });
    let text = config(port, &trusting(&authority), "connect_timeout = \"100ms\"");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    let waiting = calls().map(|call| tokio::spawn(async move { is_answered(addr, &call).await }));
    sidecar
        .log()
        .wait(&["handshake took longer than 0.1 s", "calls wait"])
        .await;
    let mut counted = held.subscribe();
    let twice = counted.wait_for(|&held| held >= 4);
    timeout(PATIENCE, twice)
        .await
        .expect("it tries again")
        .expect("it lives");
    assert!(waiting.iter().all(|call| !call.is_finished()));
    stalling.abort();
    // It should be aborted.
    let _ = stalling.await;
    let _backend = Secured::at(port, &authority.issue(&[LOCAL]), Ends::Never).await;
    for call in waiting {
        call.await.expect("it is answered");
    }
    assert!(sidecar.metric(&failures("http", "timed_out")).await >= 1.0);
}

#[tokio::test]
async fn with_few_descriptors_calls_over_tls_wait_and_are_answered() {
    let authority = Authority::new();
    let backend = Secured::start(&authority.issue(&[LOCAL])).await;
    let text = config(backend.port, &trusting(&authority), "");
    let sidecar = Sidecar::start_with(&text, |binary| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", binary]);
        command
    })
    .await;
    let addr = sidecar.listener("test").await;
    let mut all = tokio::task::JoinSet::new();
    for number in 0..80 {
        let call = calls()[number % 2].clone();
        all.spawn(async move { is_answered(addr, &call).await });
    }
    all.join_all().await;
    assert_eq!(backend.seen.all()[2], 80);
}

#[tokio::test]
async fn a_drain_waits_for_a_call_over_tls() {
    let authority = Authority::new();
    let (arrived, go) = (watch::Sender::new(0), Arc::new(tokio::sync::Notify::new()));
    let (tell, wait) = (arrived.clone(), Arc::clone(&go));
    let own = authority.issue(&[LOCAL]);
    let backend = Secured::scripted(0, &own, move |mut tls, _| {
        let (tell, wait) = (tell.clone(), Arc::clone(&wait));
        async move {
            let mut request = vec![0; 4096];
            let read = tls.read(&mut request).await.expect("a call");
            assert!(read > 0, "it is closed");
            tell.send_modify(|arrived| *arrived += 1);
            wait.notified().await;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", OK.len());
            let head = if request.starts_with(b"[") { "" } else { &head };
            let answer = [head.as_bytes(), OK].concat();
            tls.write_all(&answer).await.expect("it is read");
            let _ = tls.shutdown().await;
        }
    })
    .await;
    let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    let running = calls().map(|call| tokio::spawn(async move { is_answered(addr, &call).await }));
    let mut arrived = arrived.subscribe();
    let both = arrived.wait_for(|&arrived| arrived == 2);
    timeout(PATIENCE, both)
        .await
        .expect("in time")
        .expect("it lives");
    sidecar.signal("TERM");
    sidecar.log().wait(&["drain"]).await;
    go.notify_waiters();
    for call in running {
        call.await.expect("it is answered");
    }
    let (status, _) = sidecar.ended().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_reply_that_ends_with_its_connection_is_whole_only_if_the_end_is_announced() {
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    for is_said in [true, false] {
        let backend = Secured::scripted(0, &own, move |mut tls, _| async move {
            let mut request = vec![0; 4096];
            let read = tls.read(&mut request).await.expect("a call");
            assert!(read > 0, "it is closed");
            let answer: &[u8] = match request.starts_with(b"[") {
                true => &OK[..OK.len() - 1],
                false => b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nup to here",
            };
            tls.write_all(answer).await.expect("it is read");
            tls.flush().await.expect("it is read");
            if is_said {
                let _ = tls.shutdown().await;
            }
        })
        .await;
        let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
        let addr = sidecar.listener("test").await;
        // Without a length the client gets chunks, and the last one only of a whole reply.
        let get = GET.replace("Connection: close\r\n", "");
        let mut stream = connect(addr).await;
        stream.write_all(get.as_bytes()).await.expect("it reads");
        let mut answer = Vec::new();
        if is_said {
            let text = crate::support::read_until(&mut stream, "0\r\n\r\n").await;
            answer.extend_from_slice(text.as_bytes());
        } else {
            // A reset is as good an end.
            let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            let _ = read.expect("it ends");
        }
        let answer = String::from_utf8(answer).expect("ASCII");
        assert!(answer.contains("up to here") || !is_said, "{answer}");
        assert_eq!(answer.ends_with("\r\n0\r\n\r\n"), is_said, "{answer}");
        // An array's reply shows itself whether it is whole.
        let cut = self::answer(addr, &array("guest_get_info", "X")).await;
        assert_eq!(cut["rs"], Reason::BackendCut.rs(), "{cut}");
    }
}

#[tokio::test]
async fn bodies_larger_than_any_buffer_pass_whole_in_both_directions() {
    const LARGE: usize = 3 << 20;
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    let backend = Secured::scripted(0, &own, |mut tls, _| async move {
        let mut held = Vec::new();
        let mut chunk = vec![0; 65536];
        let is_whole = |held: &[u8]| held.starts_with(b"[") || held.ends_with(b"the end");
        while !is_whole(&held) {
            let read = tls.read(&mut chunk).await.expect("more");
            assert!(read > 0, "it is cut after {}", held.len());
            held.extend_from_slice(&chunk[..read]);
        }
        let body = format!(
            "{{\"overallRC\": 0, \"output\": \"{}\"}}",
            "x".repeat(LARGE)
        );
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let head = if held.starts_with(b"[") { "" } else { &head };
        tls.write_all(head.as_bytes()).await.expect("it is read");
        tls.write_all(body.as_bytes()).await.expect("it is read");
        let _ = tls.shutdown().await;
    })
    .await;
    let sidecar = Sidecar::start(&config(backend.port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    for size in [20_000, 60_000, LARGE] {
        let post = format!(
            "POST /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n\
             {{\"guest\": {{}}}}{}the end",
            size + 7,
            " ".repeat(size - 13)
        );
        let answer = answer(addr, &post).await;
        assert_eq!(
            answer["output"].as_str().map(str::len),
            Some(LARGE),
            "{size}"
        );
    }
    let answer = answer(addr, &array("guest_list", "X")).await;
    assert_eq!(answer["output"].as_str().map(str::len), Some(LARGE));
}

fn tunnel(port: u16, tls: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "tcp"
        [backend]
        tcp = "tls://127.0.0.1:{port}"
        [backend.tls]
        {tls}
        [limits]
        per_window = "total:100"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

#[tokio::test]
async fn a_tcp_connection_goes_on_over_tls_and_each_end_is_passed_on() {
    let authority = Authority::new();
    let own = authority.issue(&[LOCAL]);
    let backend = Secured::scripted(0, &own, |mut tls, _| async move {
        let mut bytes = [0; 4];
        tls.read_exact(&mut bytes).await.expect("four bytes");
        tls.write_all(&bytes).await.expect("it is read");
        tls.flush().await.expect("it is read");
        if &bytes == b"rest" {
            let mut rest = Vec::new();
            tls.read_to_end(&mut rest).await.expect("a whole end");
            tls.write_all(&rest).await.expect("it is read");
            tls.shutdown().await.expect("it is open");
        }
    })
    .await;
    let sidecar = Sidecar::start(&tunnel(backend.port, &trusting(&authority))).await;
    let addr = sidecar.listener("test").await;
    let mut client = connect(addr).await;
    client.write_all(b"rest").await.expect("it is passed");
    let mut four = [0; 4];
    client.read_exact(&mut four).await.expect("it is passed");
    let long = "x".repeat(100_000);
    client
        .write_all(long.as_bytes())
        .await
        .expect("it is passed");
    client.shutdown().await.expect("it half-closes");
    let back = crate::support::read_all(&mut client).await;
    assert_eq!(back, long);
    // An end that is not announced may be a cut: the client gets a reset.
    let mut client = connect(addr).await;
    client.write_all(b"gone").await.expect("it is passed");
    let mut back = Vec::new();
    let end = timeout(PATIENCE, client.read_to_end(&mut back))
        .await
        .expect("it ends");
    let kind = end.expect_err("a reset").kind();
    assert_eq!(kind, std::io::ErrorKind::ConnectionReset);
    // One without TLS is closed, and the log has the cause.
    sidecar.reload(&tunnel(backend.port, "")).await;
    let mut client = connect(addr).await;
    client.write_all(b"rest").await.expect("it is open");
    let mut back = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut back))
        .await
        .expect("it ends");
    assert!(back.is_empty());
    sidecar
        .log()
        .wait(&["no TLS with the backend", "no known authority"])
        .await;
    assert_eq!(sidecar.metric(&failures("tcp", "untrusted")).await, 1.0);
}

#[tokio::test]
async fn a_client_that_is_refused_learns_when_to_come_back() {
    let (authority, other) = (Authority::new(), Authority::new());
    let peer = Python::start(&other.issue(&[LOCAL]), &[]).await;
    let sidecar = Sidecar::start(&config(peer.port, &trusting(&authority), "")).await;
    let addr = sidecar.listener("test").await;
    let text = timeout(PATIENCE, ask(addr, GET)).await.expect("no hang");
    let answer = Answer::read(text.as_bytes());
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let lines = || sidecar.log().lines();
    let is_logged = |line: &String| line.contains("\"reason\":\"backend_tls\"");
    until(|| lines().iter().any(is_logged), || lines().join("\n")).await;
}
