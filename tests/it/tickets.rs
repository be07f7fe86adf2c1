//! Clients that give up before their turn, and come back to their places: through the real process.

mod crowd;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::process::Command;

use crate::raw_http::{Acceptor, Peer, Reply, access_lines, get, ok, reach_load};
use crate::sidecar::{Sidecar, plan};
use crate::support::{Held, OK, PATIENCE, array, ask, json, listens, sending};

/// A config with one call at a time, and a listener whose clients have tickets.
fn config(http: SocketAddr, listener: &str, limits: &str) -> String {
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = 1
        {limits}
        [queue]
        postpone = "in_turn"
        "#
    );
    listens(
        listener,
        &format!("kind = \"http\"\nhttp = \"http://{http}\""),
        &sections,
    )
}

const IMPLICIT: &str = "tickets = \"implicit\"\nclient_timeout = \"1s\"";
const EXPLICIT: &str = "tickets = \"explicit\"\nclient_timeout = \"1s\"";

/// A call that is at the backend until [`Busy::next`].
struct Busy {
    backend: Acceptor,
    sidecar: Sidecar,
    addr: SocketAddr,
    at_backend: Peer,
    _client: Peer,
}

impl Busy {
    async fn start(listener: &str) -> Self {
        Self::start_with(listener, "").await
    }

    async fn start_with(listener: &str, limits: &str) -> Self {
        let backend = Acceptor::start().await;
        let sidecar = Sidecar::start(&config(backend.addr, listener, limits)).await;
        let addr = sidecar.listener("test").await;
        let client = Peer::sending(addr, get("/busy", "")).await;
        let (at_backend, _) = backend.call().await;
        Self {
            backend,
            sidecar,
            addr,
            at_backend,
            _client: client,
        }
    }

    /// Answers the call at the backend, and returns the path of the next one, once it is there.
    async fn next(&mut self) -> String {
        self.at_backend.send(ok("done")).await;
        self.arrived().await
    }

    /// The next call at the backend.
    async fn arrived(&mut self) -> String {
        let head = match tokio::time::timeout(PATIENCE, self.at_backend.next_head()).await {
            Ok(Some(head)) => head,
            _ => panic!("the connection is kept, and a call comes"),
        };
        assert!(!head.to_lowercase().contains("queue-ticket"), "{head}");
        head.split(' ').nth(1).expect("a path").to_owned()
    }

    /// A client that waits with these fields in its request.
    async fn waits(&self, path: &str, fields: &str, waiting: u64) -> Peer {
        let client = Peer::sending(self.addr, get(path, fields)).await;
        reach_load(&self.sidecar, (1, waiting), PATIENCE).await;
        client
    }
}

/// A refusal that keeps the place, with its ticket.
fn ticket(reply: &Reply) -> String {
    refused(reply);
    let ticket = reply.answer.header("queue-ticket");
    ticket.unwrap_or_else(|| panic!("{reply:?}")).to_owned()
}

fn refused(reply: &Reply) {
    assert_eq!(reply.status(), 503, "{reply:?}");
    let after = reply.answer.header("retry-after").expect("a time");
    let seconds: u64 = after.parse().expect("seconds");
    assert!(seconds < 60, "{seconds}");
    assert_eq!(json(&reply.answer.body)["reason"], "come_back");
}

fn sends(ticket: &str) -> String {
    format!("Queue-Ticket: {ticket}\r\n")
}

#[tokio::test]
async fn a_client_that_comes_back_with_its_ticket_has_the_place_that_it_had() {
    let mut busy = Busy::start(EXPLICIT).await;
    let began = Instant::now();
    let mut first = busy.waits("/first", "", 1).await;
    let ticket = ticket(&first.reply().await);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(500), "{waited:?}");
    let mut second = busy.waits("/second", "Prefer: wait=60\r\n", 2).await;
    first.send(get("/first", &sends(&ticket))).await;
    reach_load(&busy.sidecar, (1, 2), PATIENCE).await;
    assert_eq!(busy.next().await, "/first");
    assert_eq!(busy.next().await, "/second");
    busy.at_backend.send(ok("done")).await;
    first.reply().await.is(200, "done");
    second.reply().await.is(200, "done");
    // The log of the call that came back names the one whose place it has taken.
    let lines = access_lines(&busy.sidecar, 4).await;
    let refused = lines.iter().find(|line| line["reason"] == "come_back");
    let refused = refused.expect("a line of the refusal");
    assert_eq!(refused["verdict"], "refused");
    let back = lines.iter().find(|line| line["place_of"] == refused["id"]);
    assert_eq!(back.expect("a line of the return")["verdict"], "delayed");
}

#[tokio::test]
async fn a_client_without_any_knowledge_of_tickets_has_its_place_too() {
    let mut busy = Busy::start(IMPLICIT).await;
    let mut first = busy.waits("/first", "", 1).await;
    ticket(&first.reply().await);
    busy.waits("/second", "Prefer: wait=60\r\n", 2).await;
    // On another connection, and with fields that change from call to call.
    let _first = Peer::sending(busy.addr, get("/first", "X-Request-Id: 2\r\n")).await;
    busy.sidecar.reaches("tidegate_suspended_calls", 0.0).await;
    assert_eq!(busy.next().await, "/first");
    let used = "tidegate_tickets_total{event=\"used\"}";
    assert_eq!(busy.sidecar.metric(used).await, 1.0);
}

#[tokio::test]
async fn a_ticket_is_good_for_its_call_only() {
    let mut busy = Busy::start(EXPLICIT).await;
    let mut first = busy.waits("/first", "", 1).await;
    let good = ticket(&first.reply().await);
    let _second = busy.waits("/second", "Prefer: wait=60\r\n", 2).await;
    let mut forged = good.clone().into_bytes();
    forged[20] = if forged[20] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).expect("base64");
    let patient = "Prefer: wait=60\r\n";
    let _other = busy
        .waits("/other", &format!("{}{patient}", sends(&good)), 3)
        .await;
    let _forged = busy
        .waits("/first", &format!("{}{patient}", sends(&forged)), 4)
        .await;
    let _none = busy.waits("/first", patient, 5).await;
    assert_eq!(busy.next().await, "/second");
    assert_eq!(busy.next().await, "/other");
}

#[tokio::test]
async fn a_call_has_one_place() {
    let busy = Busy::start(IMPLICIT).await;
    let mut first = busy.waits("/same", "", 1).await;
    let mut second = busy.waits("/same", "", 2).await;
    ticket(&first.reply().await);
    let reply = second.reply().await;
    refused(&reply);
    assert_eq!(reply.answer.header("queue-ticket"), None);
    reach_load(&busy.sidecar, (1, 1), PATIENCE).await;
    let taken = "tidegate_tickets_total{event=\"taken\"}";
    assert_eq!(busy.sidecar.metric(taken).await, 1.0);
}

#[tokio::test]
async fn a_place_is_gone_when_its_owner_gives_it_up_or_leaves() {
    let mut busy = Busy::start(IMPLICIT).await;
    for leaves in [false, true] {
        let mut first = busy.waits("/first", "", 1).await;
        ticket(&first.reply().await);
        if leaves {
            first.send(get("/first", "Prefer: wait=60\r\n")).await;
            busy.sidecar.reaches("tidegate_suspended_calls", 0.0).await;
            drop(first);
        } else {
            first.send(get("/first", "Prefer: wait=0\r\n")).await;
            let reply = first.reply().await;
            refused(&reply);
            assert_eq!(reply.answer.header("queue-ticket"), None);
        }
        reach_load(&busy.sidecar, (1, 0), PATIENCE).await;
    }
    let _last = busy.waits("/last", "", 1).await;
    assert_eq!(busy.next().await, "/last");
}

#[tokio::test]
async fn a_turn_that_comes_while_the_client_is_absent_goes_to_the_next_call() {
    let mut busy = Busy::start(IMPLICIT).await;
    let mut first = busy.waits("/first", "", 1).await;
    ticket(&first.reply().await);
    let _second = busy.waits("/second", "Prefer: wait=60\r\n", 2).await;
    let _third = busy.waits("/third", "Prefer: wait=60\r\n", 3).await;
    assert_eq!(busy.next().await, "/second");
    first.send(get("/first", "")).await;
    busy.sidecar.reaches("tidegate_suspended_calls", 0.0).await;
    assert_eq!(busy.next().await, "/first");
    assert_eq!(busy.next().await, "/third");
}

#[tokio::test]
async fn a_place_counts_in_the_queue_and_survives_a_reload() {
    let mut busy = Busy::start_with(IMPLICIT, "").await;
    let mut first = busy.waits("/first", "", 1).await;
    ticket(&first.reply().await);
    let full = config(busy.backend.addr, IMPLICIT, "").replace(
        "postpone = \"in_turn\"",
        "postpone = \"in_turn\"\ncapacity = 1\nwhen_full = \"refuse\"",
    );
    busy.sidecar.reload(&full).await;
    let mut second = Peer::sending(busy.addr, get("/second", "")).await;
    let reply = second.reply().await;
    assert_eq!(
        json(&reply.answer.body)["reason"],
        "queue_full",
        "{reply:?}"
    );
    first.send(get("/first", "")).await;
    busy.sidecar.reaches("tidegate_suspended_calls", 0.0).await;
    assert_eq!(busy.next().await, "/first");
}

/// Two clients come back to their places, and one does not in time; a replay of the log decides the same.
#[tokio::test]
async fn a_replay_of_the_log_decides_the_same() {
    let mut busy = Busy::start_with(IMPLICIT, "\n[log]\naccess = true\nreplay = true\n").await;
    let mut lost = busy.waits("/lost", "", 1).await;
    ticket(&lost.reply().await);
    let mut first = busy.waits("/first", "", 2).await;
    ticket(&first.reply().await);
    let patient = "Prefer: wait=60\r\n";
    let _second = busy.waits("/second", patient, 3).await;
    first.send(get("/first", patient)).await;
    busy.sidecar.reaches("tidegate_suspended_calls", 1.0).await;
    assert_eq!(busy.next().await, "/first");
    let lapsed = "tidegate_tickets_total{event=\"lapsed\"}";
    busy.sidecar.reaches(lapsed, 1.0).await;
    let _third = busy.waits("/third", patient, 2).await;
    assert_eq!(busy.next().await, "/second");
    assert_eq!(busy.next().await, "/third");
    busy.at_backend.send(ok("done")).await;
    reach_load(&busy.sidecar, (0, 0), PATIENCE).await;
    busy.sidecar.signal("TERM");
    let (_, lines) = busy.sidecar.ended().await;
    let said = plan(&lines.join("\n")).await;
    let same = "identity: the same decision in all";
    assert!(said.out.contains(same), "{}{}", said.out, said.err);
}

#[tokio::test]
async fn a_drain_does_not_wait_for_a_client_that_is_absent() {
    let mut busy = Busy::start(IMPLICIT).await;
    let mut first = busy.waits("/first", "", 1).await;
    ticket(&first.reply().await);
    busy.sidecar.signal("TERM");
    busy.at_backend.send(ok("done")).await;
    let status = busy.sidecar.exited().await;
    assert!(status.success(), "{status}");
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Stop,
    Upgrade,
}

/// A client has a ticket; then there is another process, in which other calls come before it.
async fn in_the_next_process(end: End) {
    let began = Instant::now();
    let backend = Acceptor::start().await;
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let limits = "ledger_lost = \"assume_full\"";
    let text = config(backend.addr, IMPLICIT, limits);
    let begin = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let before = begin().await;
    let addr = before.listener("test").await;
    let busy = Peer::sending(addr, get("/busy", "")).await;
    let (mut at_backend, _) = backend.call().await;
    let mut first = Peer::sending(addr, get("/first", "")).await;
    ticket(&first.reply().await);
    let (sidecar, draining) = match end {
        End::Kill => {
            before.signal("KILL");
            before.exited().await;
            (begin().await, None)
        }
        End::Stop => {
            before.signal("TERM");
            at_backend.send(ok("done")).await;
            before.exited().await;
            (begin().await, None)
        }
        // The old process lives as long as it has connections.
        End::Upgrade => (Sidecar::take_over(Arc::clone(&dir)).await, Some(before)),
    };
    let kept = sidecar.metric("tidegate_suspended_calls").await;
    let lapsed = sidecar
        .metric("tidegate_tickets_total{event=\"lapsed\"}")
        .await;
    assert_eq!((kept, lapsed), (1.0, 0.0), "{end:?} {:?}", began.elapsed());
    if let End::Upgrade = end {
        at_backend.send(ok("done")).await;
    }
    drop((busy, at_backend));
    let addr = sidecar.listener("test").await;
    let patient = "Prefer: wait=60\r\n";
    let _busy = Peer::sending(addr, get("/busy", patient)).await;
    let (mut at_backend, _) = backend.call().await;
    let _second = Peer::sending(addr, get("/second", patient)).await;
    reach_load(&sidecar, (1, 2), PATIENCE).await;
    let _first = Peer::sending(addr, get("/first", patient)).await;
    sidecar.reaches("tidegate_suspended_calls", 0.0).await;
    at_backend.send(ok("done")).await;
    let head = at_backend.next_head().await.expect("a call");
    assert!(head.starts_with("GET /first "), "{end:?}: {head}");
    drop(draining);
}

#[tokio::test]
async fn a_place_is_known_after_a_crash_a_restart_and_an_upgrade() {
    for end in [End::Kill, End::Stop, End::Upgrade] {
        in_the_next_process(end).await;
    }
}

#[tokio::test]
async fn a_client_of_the_socket_protocol_has_its_place_too() {
    let mut held = Held::start(OK).await;
    let backend = format!("kind = \"zvm\"\nsocket = \"{}\"", held.backend.addr);
    let sections = r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = 1
        [queue]
        postpone = "in_turn"
        "#;
    let sidecar = Sidecar::start(&listens(IMPLICIT, &backend, sections)).await;
    let addr = sidecar.listener("test").await;
    let _busy = sending(addr, array("guest_start", "BUSY")).await;
    held.next().await;
    let refused = ask(addr, array("guest_start", "FIRST")).await;
    assert!(refused.contains("come_back"), "{refused}");
    let _second = sending(addr, array("guest_start", "SECOND")).await;
    let _first = sending(addr, array("guest_start", "FIRST")).await;
    sidecar.reaches("tidegate_suspended_calls", 0.0).await;
    held.go.notify_one();
    let next = held.next().await;
    assert!(next.contains("FIRST"), "{next}");
}
