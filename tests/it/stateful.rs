//! Connections to the backend that are more than a way for one call. After a login by NTLM or Negotiate the
//! backend takes every request on a connection for that user's. So the connection belongs to one client
//! connection. A connection with a rest of a message on it goes to no other call either.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::raw_http::{Acceptor, Peer, Reply, get, ok, service};
use crate::sidecar::Sidecar;
use crate::support::{Scripted, until};

/// Schemes that authenticate a connection.
const SCHEMES: [&str; 2] = ["NTLM", "Negotiate"];

/// The backend's view of its connections.
#[derive(Clone, Default)]
struct Connections {
    opened: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// The connections on which a user is logged in.
    logged_in: Arc<Mutex<HashSet<usize>>>,
}

impl Connections {
    fn logged_in(&self) -> usize {
        self.logged_in.lock().expect("no test panics with it").len()
    }

    /// A backend whose connections have numbers from this one on.
    async fn backend(&self, scheme: &'static str, first: usize) -> Scripted {
        let seen = self.clone();
        Scripted::start(move |number, stream| {
            let (seen, number) = (seen.clone(), first + number);
            async move {
                seen.opened.fetch_add(1, Ordering::SeqCst);
                let open = seen.open.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most.fetch_max(open, Ordering::SeqCst);
                let logins = Arc::clone(&seen.logged_in);
                serve(scheme, number, Peer::new(stream), logins).await;
                let mut logins = seen.logged_in.lock().expect("no test panics with it");
                logins.remove(&number);
                seen.open.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await
    }

    /// Waits until no login is left, for a second at most.
    async fn all_log_out(&self) {
        let left = until(|| self.logged_in() == 0, String::new);
        let ended = tokio::time::timeout(Duration::from_secs(1), left).await;
        assert!(ended.is_ok(), "{} logins are left", self.logged_in());
    }
}

/// A backend that authenticates connections, and the sidecar before it.
struct Stage {
    connections: Connections,
    _backends: Vec<Scripted>,
    sidecar: Sidecar,
    addr: SocketAddr,
}

impl Stage {
    async fn start(scheme: &'static str) -> Self {
        let connections = Connections::default();
        let backend = connections.backend(scheme, 0).await;
        Self::before(connections, vec![backend], |config| config).await
    }

    /// Before these backends. A config with the first of them is changed first.
    async fn before(
        connections: Connections,
        backends: Vec<Scripted>,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        // So no connection ends by itself.
        let lines = "pool_idle_timeout = \"1h\"";
        let config = change(service(backends[0].addr, lines, ""));
        let sidecar = Sidecar::start(&config).await;
        let addr = sidecar.listener("test").await;
        Self {
            connections,
            _backends: backends,
            sidecar,
            addr,
        }
    }

    /// A client that has logged in.
    async fn login(&self, scheme: &str, user: &str) -> Peer {
        let mut client = Peer::connect(self.addr).await;
        let reply = ask(&mut client, "").await;
        reply.is(401, "who are you?");
        assert_eq!(reply.answer.header("www-authenticate"), Some(scheme));
        let reply = ask(&mut client, &format!("Authorization: {scheme} one\r\n")).await;
        reply.is(401, "prove it");
        let challenge = format!("{scheme} challenge");
        assert_eq!(
            reply.answer.header("www-authenticate"),
            Some(challenge.as_str())
        );
        let proof = format!("Authorization: {scheme} three-{user}\r\n");
        let reply = ask(&mut client, &proof).await;
        reply.is(200, &format!("data of {user}"));
        client
    }
}

/// Serves a connection of the backend. A proof counts only on the connection of its challenge.
async fn serve(scheme: &str, number: usize, mut peer: Peer, logged_in: Arc<Mutex<HashSet<usize>>>) {
    let mut user: Option<String> = None;
    let mut is_challenged = false;
    while let Some(head) = peer.next_head().await {
        let given = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_it = name.eq_ignore_ascii_case("authorization");
            is_it.then(|| value.strip_prefix(scheme).unwrap_or(value).trim())
        });
        let reply = match given {
            Some("one") => {
                is_challenged = true;
                unauthorized(&format!("{scheme} challenge"), "prove it")
            }
            Some(proof) if is_challenged && proof.starts_with("three-") => {
                user = Some(proof["three-".len()..].to_owned());
                let mut logins = logged_in.lock().expect("no test panics with it");
                logins.insert(number);
                data(user.as_deref(), number)
            }
            None if user.is_some() => data(user.as_deref(), number),
            _ => unauthorized(scheme, "who are you?"),
        };
        // The other end may have left.
        let written = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, reply.as_bytes());
        if written.await.is_err() {
            return;
        }
    }
}

fn unauthorized(challenge: &str, text: &str) -> String {
    format!(
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {challenge}\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )
}

fn data(user: Option<&str>, number: usize) -> String {
    let text = ok(&format!("data of {}", user.unwrap_or("no user")));
    text.replace("\r\n\r\n", &format!("\r\nX-Connection: {number}\r\n\r\n"))
}

async fn ask(client: &mut Peer, fields: &str) -> Reply {
    client.send(get("/data", fields)).await;
    client.reply().await
}

#[tokio::test]
async fn a_login_of_a_connection_is_of_its_client_alone() {
    for scheme in SCHEMES {
        let stage = Stage::start(scheme).await;
        let mut first = stage.login(scheme, "A").await;
        // Others have no credentials, whether they come at once or one after another.
        let mut others = Vec::new();
        for _ in 0..10 {
            let mut other = Peer::connect(stage.addr).await;
            ask(&mut other, "").await.is(401, "who are you?");
            others.push(other);
        }
        // The first client's later requests name no user, and are on its own connection.
        let mut numbers = HashSet::new();
        for _ in 0..10 {
            let reply = ask(&mut first, "").await;
            reply.is(200, "data of A");
            numbers.insert(reply.answer.header("x-connection").map(str::to_owned));
            for other in &mut others {
                ask(other, "").await.is(401, "who are you?");
            }
        }
        assert_eq!(numbers.len(), 1, "{scheme}: {numbers:?}");
    }
}

#[tokio::test]
async fn with_several_servers_a_login_stays_at_its_server() {
    let connections = Connections::default();
    let backends = [
        connections.backend("NTLM", 0).await,
        connections.backend("NTLM", 1000).await,
    ];
    let servers = backends.each_ref().map(|it| {
        let addr = it.addr;
        format!(
            "[[backend.server]]\nname = \"{}\"\nhttp = \"http://{addr}\"\n",
            addr.port()
        )
    });
    let single = format!("http = \"http://{}\"\n", backends[0].addr);
    let stage = Stage::before(connections, backends.into(), |config| {
        let config = config.replace(&single, "");
        config.replace("[admin]", &format!("{}[admin]", servers.concat()))
    });
    let stage = stage.await;
    let mut clients = Vec::new();
    for user in ["A", "B", "C", "D"] {
        clients.push((stage.login("NTLM", user).await, user));
        if user == "B" {
            // The next one goes to the other server.
            let other = Peer::ask(stage.addr, get("/data", "")).await;
            other.is(401, "who are you?");
        }
    }
    for (client, user) in &mut clients {
        ask(client, "").await.is(200, &format!("data of {user}"));
    }
    let logged_in = stage.connections.logged_in.lock().expect("sound").clone();
    let of_second = logged_in.iter().filter(|&&number| number >= 1000).count();
    assert!((1..=3).contains(&of_second), "{logged_in:?}");
}

#[tokio::test]
async fn when_its_client_has_left_a_login_is_over() {
    for scheme in SCHEMES {
        let stage = Stage::start(scheme).await;
        let first = stage.login(scheme, "A").await;
        assert_eq!(stage.connections.logged_in(), 1);
        drop(first);
        stage.connections.all_log_out().await;
        for _ in 0..20 {
            let reply = Peer::ask(stage.addr, get("/data", "")).await;
            reply.is(401, "who are you?");
        }
    }
}

/// A connection of a client that left is closed at once, before any other call could get it.
#[tokio::test]
async fn a_client_that_comes_right_behind_one_that_left_gets_no_login() {
    for scheme in SCHEMES {
        let stage = Stage::start(scheme).await;
        for _ in 0..10 {
            drop(stage.login(scheme, "A").await);
            let reply = Peer::ask(stage.addr, get("/data", "")).await;
            reply.is(401, "who are you?");
        }
    }
}

#[tokio::test]
async fn each_of_many_clients_has_its_own_login_and_all_end_with_their_clients() {
    const CLIENTS: usize = 30;
    let scheme = SCHEMES[0];
    let stage = Stage::start(scheme).await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push((stage.login(scheme, &number.to_string()).await, number));
    }
    let mut asking = JoinSet::new();
    for (mut client, number) in clients {
        asking.spawn(async move {
            for _ in 0..10 {
                let reply = ask(&mut client, "").await;
                reply.is(200, &format!("data of {number}"));
            }
            client
        });
    }
    let clients = asking.join_all().await;
    assert_eq!(stage.connections.logged_in(), CLIENTS);
    // One for each client, and those that belong to no client.
    let most = stage.connections.most.load(Ordering::SeqCst);
    assert!(most <= 2 * CLIENTS, "{most} connections at once");
    drop(clients);
    stage.connections.all_log_out().await;
    assert_eq!(
        crate::raw_http::load(&stage.sidecar).await,
        (0, 0),
        "no connection holds a slot"
    );
}

/// A connection that carried only a challenge is half way to a login.
#[tokio::test]
async fn a_connection_that_was_challenged_goes_to_no_other_client() {
    for scheme in SCHEMES {
        let stage = Stage::start(scheme).await;
        let mut first = Peer::connect(stage.addr).await;
        let begins = format!("Authorization: {scheme} one\r\n");
        ask(&mut first, &begins).await.is(401, "prove it");
        let proof = format!("Authorization: {scheme} three-B\r\n");
        let mut second = Peer::connect(stage.addr).await;
        ask(&mut second, &proof).await.is(401, "who are you?");
        // The first one completes its login though the second one came between.
        let proof = format!("Authorization: {scheme} three-A\r\n");
        ask(&mut first, &proof).await.is(200, "data of A");
    }
}

/// Basic authentication is of one request, so its connections are shared as ever.
#[tokio::test]
async fn logins_of_single_requests_share_connections() {
    let stage = Stage::start("Basic").await;
    for _ in 0..10 {
        let asks = get("/data", "Authorization: Basic QTpC\r\n");
        Peer::ask(stage.addr, asks).await.is(401, "who are you?");
    }
    assert_eq!(stage.connections.opened.load(Ordering::SeqCst), 1);
}

/// A backend connection on which something is left over, and then a call of another client.
async fn check_next_call_is_on_a_new_connection(stage: &Played, mut left_over: Peer) {
    let mut next = Peer::sending(stage.addr, get("/next", "")).await;
    let (mut backend, head) = stage.backend.call().await;
    assert!(head.starts_with("GET /next "), "{head}");
    backend.send(ok("next")).await;
    next.reply().await.is(200, "next");
    let ended = tokio::time::timeout(Duration::from_secs(1), left_over.end()).await;
    let (rest, _) = ended.expect("it is closed within a second");
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("GET /next"), "{rest}");
}

/// A sidecar before a backend that the test plays.
struct Played {
    backend: Acceptor,
    _sidecar: Sidecar,
    addr: SocketAddr,
}

impl Played {
    async fn start() -> Self {
        let backend = Acceptor::start().await;
        let sections = "[client]\nbuffer_bytes = \"1KiB\"";
        let lines = "reply_buffer_bytes = \"1KiB\"";
        let sidecar = Sidecar::start(&service(backend.addr, lines, sections)).await;
        let addr = sidecar.listener("test").await;
        Self {
            backend,
            _sidecar: sidecar,
            addr,
        }
    }
}

#[tokio::test]
async fn an_early_answer_keeps_its_connection_out_of_the_pool() {
    let stage = Played::start().await;
    // The backend would read on, and take the rest of the body for the next request.
    let head = "POST /files HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n";
    let mut client = Peer::sending(stage.addr, head).await;
    client.send("x".repeat(2_000)).await;
    let (mut backend, _) = stage.backend.call().await;
    backend
        .send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
        .await;
    client.reply().await.is(413, "no");
    check_next_call_is_on_a_new_connection(&stage, backend).await;
}

#[tokio::test]
async fn an_unread_rest_of_a_reply_keeps_its_connection_out_of_the_pool() {
    let stage = Played::start().await;
    let mut client = Peer::sending(stage.addr, get("/download", "")).await;
    let (mut backend, _) = stage.backend.call().await;
    let half = "x".repeat(50_000);
    backend
        .send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{half}"
        ))
        .await;
    client.read_ahead(half.len()).await;
    drop(client);
    check_next_call_is_on_a_new_connection(&stage, backend).await;
}

#[tokio::test]
async fn bytes_behind_a_whole_reply_keep_its_connection_out_of_the_pool() {
    let stage = Played::start().await;
    let mut client = Peer::sending(stage.addr, get("/first", "")).await;
    let (mut backend, _) = stage.backend.call().await;
    backend
        .send(format!("{}{}", ok("first"), ok("planted")))
        .await;
    client.reply().await.is(200, "first");
    check_next_call_is_on_a_new_connection(&stage, backend).await;
}

#[tokio::test]
async fn a_protocol_that_was_switched_unasked_keeps_its_connection_out_of_the_pool() {
    let stage = Played::start().await;
    let mut client = Peer::sending(stage.addr, get("/first", "")).await;
    let (mut backend, _) = stage.backend.call().await;
    backend.send(crate::websocket::switched()).await;
    assert_eq!(client.reply().await.status(), 502);
    check_next_call_is_on_a_new_connection(&stage, backend).await;
}
