//! A read that several clients share runs as soon as one of them may run it alone, and that one pays.

use std::sync::Arc;
use std::time::Duration;

use tidegate::call::{Facts, Reason, Verdict};
use tokio::task::JoinHandle;

use crate::sidecar::Sidecar;
use crate::support::{Held, Stack, ask, both, listens, one_listener, sending};

const HTTP_OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

/// A rate limit of one call, which then has no token for as long as a test takes, and one before the
/// deadline of its calls.
const POLLER: &str = r#"
    [[bucket]]
    name = "poller"
    burst = 1
    fill = 0.03
    [[caller]]
    label = "poller"
    match = { user_agent = "poller" }
    rate_limit = "poller"
"#;

struct Stage {
    held: Held,
    stack: Arc<Stack>,
}

impl Stage {
    async fn new(limits: &str, more: &str) -> Self {
        let held = Held::start(HTTP_OK).await;
        let addr = held.backend.addr;
        let backend = format!("{}\nreply_buffer_bytes = \"4KiB\"", both(addr, addr));
        let sections = format!(
            "[queue]\npostpone = \"in_turn\"\n[coalesce]\nfunctions = [\"guest_get_info\"]\n\
             [limits]\nper_window = \"total:1000\"\n{limits}\n{more}"
        );
        let stack = Arc::new(Stack::start(&listens("", &backend, &sections)));
        Self { held, stack }
    }

    /// A client of this name reads a guest.
    fn reads(&self, agent: &str, guest: &str) -> JoinHandle<String> {
        let (stack, request) = (Arc::clone(&self.stack), read(agent, guest));
        tokio::spawn(async move { stack.ask(request).await })
    }

    /// The poller has no token any more.
    async fn spends_the_token(&mut self) {
        let client = self.reads("poller", "X");
        self.held.next().await;
        self.held.go.notify_one();
        is_good(client).await;
        self.stack.seen.ended(1).await;
    }

    /// The facts of the call of this client about this guest.
    fn facts(&self, agent: &str) -> Facts {
        let all = self.stack.seen.all();
        let of = |facts: &&Facts| facts.origin.identity.user_agent.as_deref() == Some(agent);
        all.iter().rfind(of).expect("it was reported").clone()
    }
}

fn read(agent: &str, guest: &str) -> String {
    format!(
        "GET /guests/{guest}/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\nUser-Agent: {agent}\r\n\r\n"
    )
}

async fn is_good(client: JoinHandle<String>) {
    let answer = client.await.expect("it is answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_client_without_a_limit_does_not_wait_for_the_limit_of_the_client_that_asked_first() {
    let mut stage = Stage::new("", POLLER).await;
    stage.spends_the_token().await;
    let poller = stage.reads("poller", "B");
    stage.stack.busy(0, 1).await;
    let nova = stage.reads("nova", "B");
    stage.held.next().await;
    stage.held.go.notify_one();
    is_good(nova).await;
    is_good(poller).await;
    stage.stack.seen.ended(3).await;
    let (nova, poller) = (stage.facts("nova"), stage.facts("poller"));
    assert!(!nova.shared && nova.sent.is_some(), "nova pays: {nova:?}");
    assert_eq!((nova.verdict, nova.limit), (Verdict::Passed, None));
    assert!(poller.shared && poller.sent.is_none(), "{poller:?}");
    assert_eq!(poller.verdict, Verdict::Delayed);
    assert!(
        poller
            .limit
            .as_deref()
            .is_some_and(|limit| limit.contains("poller")),
        "{poller:?}"
    );
    stage.stack.at_rest().await;
}

#[tokio::test]
async fn the_client_that_asked_first_pays_if_its_turn_comes_first() {
    let mut stage = Stage::new("outstanding = 1", POLLER).await;
    let before = stage.reads("other", "X");
    stage.held.next().await;
    let poller = stage.reads("poller", "B");
    stage.stack.sharing(2).await;
    let nova = stage.reads("nova", "B");
    stage.stack.sharing(3).await;
    stage.held.go.notify_one();
    stage.held.next().await;
    stage.held.go.notify_one();
    for client in [before, poller, nova] {
        is_good(client).await;
    }
    stage.stack.seen.ended(3).await;
    let (nova, poller) = (stage.facts("nova"), stage.facts("poller"));
    assert!(!poller.shared && nova.shared, "{nova:?} {poller:?}");
    stage.stack.at_rest().await;
    // It has paid with its only token.
    let again = stage.reads("poller", "C");
    stage.stack.busy(0, 1).await;
    again.abort();
}

#[tokio::test]
async fn a_client_that_has_left_does_not_pay() {
    let mut stage = Stage::new("outstanding = 1", POLLER).await;
    stage.spends_the_token().await;
    let before = stage.reads("other", "X");
    stage.held.next().await;
    let nova = sending(stage.stack.addr, read("nova", "B")).await;
    stage.stack.sharing(2).await;
    let poller = stage.reads("poller", "B");
    stage.stack.sharing(3).await;
    stage.stack.busy(1, 2).await;
    drop(nova);
    stage.stack.busy(1, 1).await;
    stage.held.go.notify_one();
    is_good(before).await;
    // The slot is free, and only a client without tokens is left.
    stage.stack.busy(0, 1).await;
    assert!(stage.held.got.try_recv().is_err(), "the backend got a call");
    poller.abort();
    stage.stack.busy(0, 0).await;
}

/// The reads of the poller are ahead of its read of B, and not ahead of nova's.
#[tokio::test]
async fn a_shared_read_does_not_wait_behind_the_other_calls_of_the_client_that_asked_first() {
    let mut stage = Stage::new("outstanding = 1", "").await;
    let before = stage.reads("other", "X");
    stage.held.next().await;
    let mut clients = vec![before];
    for number in 0..10 {
        clients.push(stage.reads("poller", &format!("P{number}")));
        stage.stack.busy(1, number + 1).await;
    }
    clients.push(stage.reads("poller", "B"));
    stage.stack.busy(1, 11).await;
    clients.push(stage.reads("nova", "B"));
    stage.stack.busy(1, 12).await;
    let mut sent = Vec::new();
    for _ in 0..11 {
        stage.held.go.notify_one();
        sent.push(stage.held.next().await);
    }
    stage.held.go.notify_one();
    let place = sent.iter().position(|it| it.contains("/guests/B/"));
    assert!(
        place.is_some_and(|place| place <= 1),
        "{place:?} of {sent:#?}"
    );
    for client in clients {
        is_good(client).await;
    }
}

#[tokio::test]
async fn a_shared_read_has_at_most_four_places_in_the_queue() {
    let mut stage = Stage::new("outstanding = 1", "").await;
    let before = stage.reads("other", "X");
    stage.held.next().await;
    let mut clients = vec![before];
    for number in 0..7 {
        clients.push(stage.reads(&format!("agent{number}"), "B"));
        stage.stack.sharing(number + 2).await;
    }
    stage.stack.busy(1, 4).await;
    stage.held.go.notify_one();
    stage.held.next().await;
    stage.held.go.notify_one();
    for client in clients {
        is_good(client).await;
    }
    let facts = stage.stack.seen.ended(8).await;
    assert_eq!(facts.iter().filter(|it| it.sent.is_some()).count(), 2);
    assert_eq!(facts.iter().filter(|it| it.shared).count(), 6);
    stage.stack.at_rest().await;
}

/// A refusal by the limit of one client says nothing about another one.
#[tokio::test]
async fn a_client_whose_limit_refuses_gets_the_answer_that_another_pays_for() {
    let rejecting = POLLER.replace("burst = 1\n", "burst = 1\non_excess = \"reject\"\n");
    let mut stage = Stage::new("outstanding = 1", &rejecting).await;
    stage.spends_the_token().await;
    let before = stage.reads("other", "X");
    stage.held.next().await;
    let nova = stage.reads("nova", "B");
    stage.stack.sharing(2).await;
    let poller = stage.reads("poller", "B");
    stage.stack.sharing(3).await;
    stage.stack.busy(1, 1).await;
    stage.held.go.notify_one();
    stage.held.next().await;
    stage.held.go.notify_one();
    for client in [before, nova, poller] {
        is_good(client).await;
    }
    stage.stack.at_rest().await;
    let alone = stage.reads("poller", "C").await.expect("it is answered");
    assert!(alone.starts_with("HTTP/1.1 429"), "{alone}");
    let facts = stage.stack.seen.ended(5).await;
    assert_eq!(facts[4].reason, Some(Reason::RateLimited));
}

/// Each caller has a quota of one call. The poller has used its quota, nova has not.
#[tokio::test]
async fn a_client_with_a_quota_does_not_wait_for_the_quota_of_the_client_that_asked_first() {
    let mut held = Held::start(HTTP_OK).await;
    let more = "\
        [log]\nformat = \"json\"\naccess = true\n\
        [coalesce]\nfunctions = [\"guest_get_info\"]\n\
        [quota_store]\nengine = \"memory\"\n\
        [[quota]]\nname = \"each\"\napplies_to = \"caller\"\ntotal = 1\n\
        refresh_window = \"10s\"\n";
    let process = Sidecar::start(&one_listener(held.backend.addr, "", more)).await;
    let address = process.listener("test").await;
    let reads = |agent: &str, guest: &str| {
        let request = read(agent, guest);
        tokio::spawn(async move { ask(address, request).await })
    };
    let first = reads("poller", "X");
    held.next().await;
    held.go.notify_one();
    is_good(first).await;
    let started = std::time::Instant::now();
    let poller = reads("poller", "B");
    // It waits in the queue before nova comes.
    until_waiting(&process, 1.0).await;
    let nova = reads("nova", "B");
    held.next().await;
    held.go.notify_one();
    is_good(nova).await;
    is_good(poller).await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

async fn until_waiting(process: &Sidecar, calls: f64) {
    while process.metric("tidegate_queue_depth").await < calls {
        tokio::task::yield_now().await;
    }
}
