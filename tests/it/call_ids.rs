//! Ids that a client and an operator use to find a call again: in the answer, and its trace.

use tokio::io::AsyncWriteExt;

use crate::sidecar::{Sidecar, field};
use crate::support::{Answer, Held, array, ask, connect, json, one_listener, read_until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// The backend sends a header of our name, as another proxy behind it would.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nX-Tidegate-Call: theirs\r\nContent-Length: 2\r\n\r\n{}";

fn request(userid: &str, traceparent: &str) -> String {
    format!("GET /guests/{userid}/info HTTP/1.1\r\nHost: t\r\nTraceparent: {traceparent}\r\n\r\n")
}

fn config(held: &Held) -> String {
    let limits = "[limits]\n        per_window";
    let text = one_listener(held.backend.addr, "", "");
    assert!(text.contains(limits), "{text}");
    text.replace(
        "[limits]\n",
        "[limits]\noutstanding = 1\nledger_lost = \"assume_empty\"\n",
    )
}

#[tokio::test]
async fn a_call_that_waited_has_its_id_in_the_answer_and_its_trace_in_the_line() {
    let mut held = Held::start(ANSWER).await;
    let sidecar = Sidecar::start(&config(&held)).await;
    let addr = sidecar.listener("test").await;
    let good = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let bad = format!("00-{TRACE}-0000000000000000-01");

    let mut first = connect(addr).await;
    let asked = request("FIRST", &bad);
    first.write_all(asked.as_bytes()).await.expect("it reads");
    let got = held.next().await.to_lowercase();
    assert!(got.contains(&format!("traceparent: {bad}\r\n")), "{got}");
    let mut second = connect(addr).await;
    let asked = request("SECOND", &good);
    second.write_all(asked.as_bytes()).await.expect("it reads");
    while sidecar.metric("tidegate_queue_depth").await < 1.0 {
        tokio::task::yield_now().await;
    }
    let answer = held.answer_until(read_until(&mut first, "{}")).await;
    let answer = Answer::read(answer.as_bytes());
    // It did not wait, so the answer is the backend's own.
    assert_eq!(answer.headers("x-tidegate-call"), ["theirs"]);
    let got = held.next().await.to_lowercase();
    assert!(got.contains(&format!("traceparent: {good}\r\n")), "{got}");
    let answer = held.answer_until(read_until(&mut second, "{}")).await;
    let answer = Answer::read(answer.as_bytes());

    let line = sidecar.log().wait(&["\"userid\":\"SECOND\""]).await;
    let id = field(&line, "id");
    assert_eq!(answer.headers("x-tidegate-call"), [id.as_str()], "{line}");
    assert_eq!(field(&line, "trace_id"), TRACE, "{line}");
    let (status, explained) = sidecar.get(&format!("/v1/calls/{id}")).await;
    assert_eq!(status, 200, "{explained}");
    let line = sidecar.log().wait(&["\"userid\":\"FIRST\""]).await;
    assert!(line.contains("\"trace_id\":null"), "{line}");
}

#[tokio::test]
async fn a_refusal_ends_with_the_id_of_its_line() {
    let held = Held::start(ANSWER).await;
    let sidecar = Sidecar::start(&config(&held)).await;
    let addr = sidecar.listener("test").await;
    let refused = json(&ask(addr, array("guest_get_info", "X") + "more").await);
    let line = sidecar.log().wait(&["\"dialect\":\"socket\""]).await;
    let errmsg = refused["errmsg"].as_str().expect("a text");
    let end = format!("; call {}", field(&line, "id"));
    assert!(errmsg.ends_with(&end), "{errmsg} {line}");

    let bad = "GET /a HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n";
    let answer = Answer::read(ask(addr, bad).await.as_bytes());
    let line = sidecar.log().wait(&["\"dialect\":\"http\""]).await;
    let id = field(&line, "id");
    assert_eq!(answer.headers("x-tidegate-call"), [id.as_str()], "{line}");
    let errmsg = answer.json()["errmsg"].as_str().map(str::to_owned);
    let errmsg = errmsg.expect("a text");
    assert!(errmsg.ends_with(&format!("; call {id}")), "{errmsg}");
}
