//! The place of a waiting call and its predicted start, as its client sees them.

use super::{Busy, CURL};
use crate::raw_http::{Acceptor, Peer, SOON, get, one_at_a_time, reach_load};
use crate::sidecar::Sidecar;
use crate::support::Answer;

const ASKS: &str = "Prefer: wait=30\r\n";

/// The next interim answer.
async fn sign(client: &mut Peer) -> Answer {
    Answer::read(client.head().await.as_bytes())
}

/// Asks for the place of a call.
async fn place(busy: &Busy, call: &str, fields: &str) -> Answer {
    let addr = busy.listener("100").await;
    let path = format!("/v1/queue/{call}");
    Peer::ask(addr, get(&path, fields)).await.answer
}

#[tokio::test]
async fn a_client_that_asks_learns_its_place_from_signs_and_by_the_id_of_its_call() {
    let busy = Busy::start("queue_status = true").await;
    let fields = format!("{ASKS}{CURL}");
    let mut first = busy.waiting("100", &get("/one", &fields), 1).await;
    let mut second = busy.waiting("100", &get("/two", &fields), 2).await;
    let mut silent = busy.waiting("100", &get("/three", CURL), 3).await;
    assert_eq!(sign(&mut first).await.header("x-queue-position"), Some("1"));
    let told = sign(&mut second).await;
    assert_eq!(told.header("x-queue-position"), Some("2"));
    let call = told.header("x-tidegate-call").expect("the id of the call");
    let untold = sign(&mut silent).await;
    assert_eq!(untold.header("x-queue-position"), None, "it does not ask");
    let answer = place(&busy, call, CURL).await;
    answer.is(200);
    let standing = answer.json();
    assert_eq!(standing["queue_position"], 2, "{standing}");
    assert!(
        standing.get("estimated_wait_seconds").is_some(),
        "{standing}"
    );
    assert!(standing.get("estimated_wait_error").is_some(), "{standing}");
    place(&busy, call, "User-Agent: another\r\n").await.is(404);
    place(&busy, "0000000000000000", CURL).await.is(404);
    place(&busy, "nothing", CURL).await.is(404);
    drop(second);
    reach_load(&busy.sidecar, (1, 2), SOON).await;
    place(&busy, call, CURL).await.is(404);
}

#[tokio::test]
async fn clients_that_ask_too_often_are_refused() {
    let busy = Busy::start("queue_status = true").await;
    let addr = busy.listener("100").await;
    let mut client = Peer::sending(addr, get("/v1/queue/0000000000000001", "").repeat(250)).await;
    let mut refused = 0;
    for _ in 0..250 {
        let reply = client.reply().await;
        match reply.status() {
            404 => {}
            429 => refused += 1,
            _ => panic!("{reply:?}"),
        }
    }
    // A second may begin between.
    assert!((50..=150).contains(&refused), "{refused}");
}

#[tokio::test]
async fn a_refusal_tells_the_place_to_a_client_that_asks() {
    let backend = Acceptor::start().await;
    let more = format!(
        "capacity = 1\nwhen_full = \"refuse\"\n{}",
        super::listeners("queue_status = true")
    );
    let sidecar = Sidecar::start(&one_at_a_time(backend.addr, "", &more)).await;
    let addr = sidecar.listener("off").await;
    let _first = Peer::sending(addr, get("/busy", "")).await;
    let (_running, _) = backend.call().await;
    let _second = Peer::sending(addr, get("/waits", "")).await;
    reach_load(&sidecar, (1, 1), SOON).await;
    let refused = Peer::ask(addr, get("/refused", ASKS)).await.answer;
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.header("x-queue-position"), Some("2"));
    assert_eq!(
        refused.header("x-queue-wait"),
        refused.header("retry-after")
    );
    let untold = Peer::ask(addr, get("/refused", "")).await.answer;
    assert_eq!(
        (untold.status, untold.header("x-queue-position")),
        (503, None)
    );
}
