//! Signs of life through the real process: what reaches a client while its call waits, and what must not.

mod events;
mod matrix;
mod place;

use std::net::SocketAddr;

use crate::certificates::{Files, Shows};
use crate::raw_http::{Acceptor, Peer, SOON, get, ok, one_at_a_time, reach_load};
use crate::sidecar::Sidecar;
use crate::support::{Answer, closed_port, connect};

/// An agent that is known to read any number of interim answers.
const CURL: &str = "User-Agent: curl/8.5.0\r\n";
/// An agent that is known to read 102 alone.
const NODE: &str = "User-Agent: node\r\n";
/// An agent that is known to read 100 alone.
const REQUESTS: &str = "User-Agent: python-requests/2.34.2\r\n";
/// An agent that is known to fail on both.
const LWP: &str = "User-Agent: libwww-perl/6.68\r\n";

/// A listener for each word of `signs_of_life`, named by it. Signs are 100 ms apart.
fn listeners(more: &str) -> String {
    let words = ["off", "100", "102", "by-agent"];
    let listeners = words.map(|word| {
        format!(
            "[[listen]]\nname = \"{word}\"\nbind = \"127.0.0.1:0\"\nsigns_of_life = \"{word}\"\n\
             signs_of_life_every = \"100ms\"\n{more}\n"
        )
    });
    listeners.concat()
}

/// A sidecar whose backend is busy with one call, so that all others wait.
struct Busy {
    backend: Acceptor,
    sidecar: Sidecar,
    config: String,
    running: Peer,
    _client: Peer,
}

impl Busy {
    /// With these lines in each listener.
    async fn start(more: &str) -> Self {
        Self::start_with(more, "").await
    }

    /// With these lines in each listener, and these in `[backend]`.
    async fn start_with(more: &str, of_backend: &str) -> Self {
        Self::behind(&listeners(more), of_backend).await
    }

    /// With these listeners.
    async fn behind(listeners: &str, of_backend: &str) -> Self {
        let backend = Acceptor::start().await;
        let sections = format!("[server]\ndrain_timeout = \"1s\"\n{listeners}");
        let of_backend = format!("pool_max_idle = 0\n{of_backend}");
        let config = one_at_a_time(backend.addr, &of_backend, &sections);
        let sidecar = Sidecar::start(&config).await;
        let addr = sidecar.listener("test").await;
        let client = Peer::sending(addr, get("/busy", "")).await;
        let (running, _) = backend.call().await;
        Self {
            backend,
            sidecar,
            config,
            running,
            _client: client,
        }
    }

    async fn listener(&self, name: &str) -> SocketAddr {
        self.sidecar.listener(name).await
    }

    /// A client of this listener whose call waits. Then this number of calls waits.
    async fn waiting(&self, listener: &str, request: &str, calls: u64) -> Peer {
        let client = Peer::sending(self.listener(listener).await, request).await;
        reach_load(&self.sidecar, (1, calls), SOON).await;
        client
    }

    /// Lets the next call through. Returns its connection at the backend.
    async fn next(&mut self) -> Peer {
        self.running.send(ok("done")).await;
        let (running, _) = self.backend.call().await;
        std::mem::replace(&mut self.running, running)
    }
}

/// Reads `count` heads, which must all be of this interim answer.
async fn read_signs(client: &mut Peer, count: usize, sign: &str) {
    for _ in 0..count {
        let head = client.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {sign} ")), "{head}");
    }
}

/// Whether no byte comes for longer than the time between two signs.
async fn stays_silent(client: &mut Peer) -> bool {
    for _ in 0..5 {
        if !client.is_silent().await {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn an_unknown_agent_gets_five_signs_and_a_known_one_as_many_as_it_reads() {
    let mut busy = Busy::start("").await;
    let mut unknown = busy.waiting("100", &get("/a", ""), 1).await;
    let mut known = busy.waiting("100", &get("/b", CURL), 2).await;
    read_signs(&mut known, 8, "100").await;
    read_signs(&mut unknown, 5, "100").await;
    assert!(stays_silent(&mut unknown).await);
    busy.next().await;
    busy.running.send(ok("first")).await;
    let reply = unknown.reply().await;
    reply.is(200, "first");
    assert_eq!(reply.interim.len(), 0, "{reply:?}");
    let (mut running, _) = busy.backend.call().await;
    running.send(ok("second")).await;
    known.reply().await.is(200, "second");
    let counted = "tidegate_signs_of_life_total{listener=\"100\",sign=\"100\"}";
    assert!(busy.sidecar.metric(counted).await >= 13.0);
}

#[tokio::test]
async fn each_agent_gets_the_sign_that_it_reads() {
    let busy = Busy::start("").await;
    let mut calls = 0;
    for (listener, agent, sign) in [
        ("by-agent", CURL, Some("100")),
        ("by-agent", REQUESTS, Some("100")),
        ("by-agent", NODE, Some("102")),
        ("by-agent", LWP, None),
        ("by-agent", "", None),
        ("by-agent", "User-Agent: curlew/1\r\n", None),
        ("100", NODE, None),
        ("100", LWP, None),
        ("102", REQUESTS, None),
        ("102", NODE, Some("102")),
        ("102", "", Some("102")),
        ("off", CURL, None),
        ("test", CURL, None),
        (
            "by-agent",
            "User-Agent: curl/8.5.0\r\nX-Forwarded-For: 192.0.2.1\r\n",
            None,
        ),
    ] {
        calls += 1;
        let mut client = busy.waiting(listener, &get("/page", agent), calls).await;
        match sign {
            Some(sign) => read_signs(&mut client, 1, sign).await,
            None => assert!(stays_silent(&mut client).await, "{listener}: {agent}"),
        }
        drop(client);
        calls -= 1;
        reach_load(&busy.sidecar, (1, calls), SOON).await;
    }
}

#[tokio::test]
async fn no_sign_follows_when_the_call_has_its_turn() {
    let mut busy = Busy::start("").await;
    let mut client = busy.waiting("100", &get("/page", CURL), 1).await;
    read_signs(&mut client, 1, "100").await;
    busy.next().await;
    // One that was written at the moment of its turn.
    let _ = client.is_silent().await;
    let mut client = Peer::new(client.stream);
    assert!(stays_silent(&mut client).await);
    busy.running
        .send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        .await;
    busy.running.send(ok("a page")).await;
    let reply = client.reply().await;
    reply.is(200, "a page");
    let interim: Vec<_> = reply.interim.iter().map(|it| it.status).collect();
    assert_eq!(interim, [103], "{reply:?}");
}

/// Java reads eight in all.
#[tokio::test]
async fn a_client_that_counts_interim_answers_gets_none_of_the_backend_behind_signs() {
    let mut busy = Busy::start("").await;
    let agent = "User-Agent: Java-http-client/17.0.15\r\n";
    let mut client = busy.waiting("by-agent", &get("/page", agent), 1).await;
    read_signs(&mut client, 5, "100").await;
    busy.next().await;
    busy.running
        .send("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(4))
        .await;
    busy.running.send(ok("a page")).await;
    let reply = client.reply().await;
    reply.is(200, "a page");
    assert_eq!(reply.interim.len(), 0, "{reply:?}");
}

#[tokio::test]
async fn a_client_that_may_not_read_interim_answers_gets_none() {
    let mut busy = Busy::start("").await;
    let old = format!("GET /page HTTP/1.0\r\nHost: t\r\n{CURL}\r\n");
    let socket = format!("Connection: Upgrade\r\nUpgrade: websocket\r\n{CURL}");
    let mut old = busy.waiting("100", &old, 1).await;
    let mut socket = busy.waiting("100", &get("/socket", &socket), 2).await;
    assert!(stays_silent(&mut old).await, "HTTP/1.0");
    assert!(stays_silent(&mut socket).await, "another protocol");
    busy.next().await;
    busy.running.send(ok("a page")).await;
    old.reply().await.is(200, "a page");
}

#[tokio::test]
async fn a_client_that_waits_for_permission_gets_no_100_before_it() {
    let mut busy = Busy::start("").await;
    let expects = format!(
        "POST /files HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nExpect: 100-continue\r\n{CURL}\r\n"
    );
    let mut client = busy.waiting("100", &expects, 1).await;
    assert!(stays_silent(&mut client).await);
    let mut by_agent = busy.waiting("by-agent", &expects, 2).await;
    read_signs(&mut by_agent, 2, "102").await;
    busy.running.send(ok("done")).await;
    for client in [&mut client, &mut by_agent] {
        loop {
            let head = client.head().await;
            if head.starts_with("HTTP/1.1 100 ") {
                break;
            }
            assert!(head.starts_with("HTTP/1.1 102 "), "{head}");
        }
        client.send("body").await;
        let (mut running, _) = busy.backend.call().await;
        assert_eq!(running.bytes(4).await, b"body");
        running.send(ok("stored")).await;
        let reply = client.reply().await;
        reply.is(200, "stored");
        assert_eq!(reply.interim.len(), 0, "permission twice");
    }
}

#[tokio::test]
async fn signs_are_before_the_answer_of_their_own_request() {
    let mut busy = Busy::start("").await;
    let head = format!("HEAD /one HTTP/1.1\r\nHost: t\r\n{CURL}\r\n");
    let both = format!("{head}{}", get("/two", CURL));
    let mut client = busy.waiting("100", &both, 1).await;
    read_signs(&mut client, 3, "100").await;
    busy.next().await;
    busy.running
        .send(ok("").replace("Length: 0", "Length: 3"))
        .await;
    let first = loop {
        let head = client.head().await;
        match head.starts_with("HTTP/1.1 100 ") {
            true => continue,
            false => break Answer::read(head.as_bytes()),
        }
    };
    assert_eq!(
        (first.status, first.header("content-length")),
        (200, Some("3"))
    );
    let (mut running, head) = busy.backend.call().await;
    assert!(head.starts_with("GET /two "), "{head}");
    running.send(ok("two")).await;
    client.reply().await.is(200, "two");
}

#[tokio::test]
async fn signs_pass_tls() {
    let files = Files::new();
    let backend = Acceptor::start().await;
    let listener = format!(
        "[[listen]]\nname = \"tls\"\nbind = \"127.0.0.1:0\"\nsigns_of_life = \"102\"\n\
         signs_of_life_every = \"100ms\"\n{}",
        files.section("")
    );
    let config = one_at_a_time(backend.addr, "pool_max_idle = 0", &listener);
    let sidecar = Sidecar::start(&config).await;
    let _first = Peer::sending(sidecar.listener("test").await, get("/busy", "")).await;
    let (mut running, _) = backend.call().await;
    let stream = connect(sidecar.listener("tls").await).await;
    let stream = files.connect(stream, Shows::Nothing).await;
    let mut client = Peer::new(stream.expect("a handshake"));
    client.send(get("/page", CURL)).await;
    for _ in 0..3 {
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 102 "), "{head}");
    }
    running.send(ok("done")).await;
    let (mut running, _) = backend.call().await;
    running.send(ok("a page")).await;
    client.reply().await.is(200, "a page");
}

/// An end of its bytes does not count as leaving here. The sign is answered with a reset.
#[tokio::test]
async fn a_client_that_is_gone_is_found_by_its_sign_and_leaves_the_queue() {
    let busy = Busy::start("cancel_on_eof = false").await;
    let mut client = busy.waiting("100", &get("/page", CURL), 1).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream)
        .await
        .expect("its sending side closes");
    read_signs(&mut client, 1, "100").await;
    reach_load(&busy.sidecar, (1, 1), SOON).await;
    drop(client);
    reach_load(&busy.sidecar, (1, 0), SOON).await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_delays_no_call() {
    let mut busy = Busy::start("").await;
    let mut silent = busy.waiting("100", &get("/one", CURL), 1).await;
    let mut other = busy.waiting("100", &get("/two", CURL), 2).await;
    read_signs(&mut other, 5, "100").await;
    busy.next().await;
    busy.running.send(ok("one")).await;
    let (mut running, _) = busy.backend.call().await;
    running.send(ok("two")).await;
    other.reply().await.is(200, "two");
    silent.reply().await.is(200, "one");
}

#[tokio::test]
async fn a_reload_changes_new_connections_and_a_drain_refuses_behind_signs() {
    // A reload knows a listener by its address.
    let listener = format!(
        "[[listen]]\nname = \"off\"\nbind = \"{}\"\nsigns_of_life = \"off\"\n\
         signs_of_life_every = \"100ms\"\n",
        closed_port()
    );
    let busy = Busy::behind(&listener, "").await;
    let mut before = busy.waiting("off", &get("/page", CURL), 1).await;
    let with_signs = busy
        .config
        .replace("signs_of_life = \"off\"", "signs_of_life = \"102\"");
    busy.sidecar.reload(&with_signs).await;
    let mut behind = busy.waiting("off", &get("/page", CURL), 2).await;
    read_signs(&mut behind, 2, "102").await;
    assert!(stays_silent(&mut before).await);
    busy.sidecar.signal("TERM");
    let reply = behind.reply().await;
    assert_eq!(reply.status(), 503, "{reply:?}");
    assert!(reply.answer.body.contains("draining"), "{reply:?}");
    assert_eq!(before.reply().await.status(), 503);
}
