//! Identical reads share one call: through the stages, over real sockets, and with paused time
//! where only the clock matters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::admit::{Admission, Gate};
use tidegate::call::{
    ArrayCall, Destination, Dialect, Facts, Message, NoObserver, Origin, Progress, Reason, Record,
    Refusal, Reply, Request, Serve, TaskWakers, Verdict,
};
use tidegate::callers::Callers;
use tidegate::classify::Classifier;
use tidegate::coalesce::Coalescer;
use tidegate::forward::Forwarder;
use tidegate::pipeline::Pipeline;
use tidegate::tasks::Tasks;
use tidegate_callers::UsageTally;
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use tidegate_runtime::{Clock, Live};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::sidecar::Sidecar;
use crate::support::{
    Held, OK, Scripted, Stack, array, asking, both, config, identity, json, listens, one_listener,
    read_all, reset, sending, until,
};

const HTTP_OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

/// A config in which three reads are shared; `coalesce` and `limits` say more.
fn text(backend: SocketAddr, coalesce: &str, limits: &str) -> String {
    let backend = format!("{}\nreply_buffer_bytes = \"4KiB\"", both(backend, backend));
    let sections = format!(
        r#"
        [queue]
        postpone = "in_turn"
        [coalesce]
        functions = ["host_get_info", "guest_get_info", "guest_list"]
        {coalesce}
        [limits]
        per_window = "total:1000"
        {limits}
        "#
    );
    listens("", &backend, &sections)
}

struct Stage {
    held: Held,
    stack: Arc<Stack>,
}

impl Stage {
    async fn new(answer: &'static [u8], coalesce: &str, limits: &str) -> Self {
        let held = Held::start(answer).await;
        let stack = Arc::new(Stack::start(&text(held.backend.addr, coalesce, limits)));
        Self { held, stack }
    }

    /// A client that asks and waits for the answer.
    fn asks(&self, request: impl Into<String>) -> JoinHandle<String> {
        let (stack, request) = (Arc::clone(&self.stack), request.into());
        tokio::spawn(async move { stack.ask(request).await })
    }

    /// Asks, lets the backend answer, and returns the answer.
    async fn answered(&mut self, request: impl Into<String>) -> String {
        let client = self.asks(request);
        self.held.next().await;
        self.held.go.notify_one();
        client.await.expect("it is answered")
    }

    /// Asks for what the backend does not hear of.
    async fn kept(&mut self, request: impl Into<String>) -> String {
        let answer = self.asks(request).await.expect("it is answered");
        self.nothing_came();
        answer
    }

    fn nothing_came(&mut self) {
        assert!(self.held.got.try_recv().is_err(), "the backend got a call");
    }
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{headers}\r\n")
}

fn read(userid: &str) -> String {
    array("guest_get_info", userid)
}

fn write(userid: &str) -> String {
    array("guest_start", userid)
}

const LIST: &str = r#"["guest_list", [], {}]"#;

#[tokio::test]
async fn three_hundred_identical_reads_at_once_are_one_call_that_draws_once() {
    for (request, answer) in [
        (read("LINUX1"), OK),
        (get("/guests/LINUX1/info", ""), HTTP_OK),
    ] {
        // Were they sent one by one, most of them would be refused.
        let limits = "outstanding = 1\nmax_wait = \"10s\"";
        let mut stage = Stage::new(answer, "", limits).await;
        let clients: Vec<_> = (0..300).map(|_| stage.asks(&*request)).collect();
        stage.stack.sharing(300).await;
        assert_eq!(stage.stack.gate.busy(), (1, 0));
        stage.held.next().await;
        stage.held.go.notify_one();
        for client in clients {
            let answer = client.await.expect("it is answered");
            assert!(answer.contains("\"overallRC\": 0"), "{answer}");
        }
        stage.nothing_came();
        assert_eq!(stage.held.done(), 1);
        let facts = stage.stack.seen.ended(300).await;
        assert!(facts.iter().all(|facts| facts.verdict == Verdict::Passed));
        assert!(facts.iter().all(|facts| facts.bytes_out > 0));
        let sent: Vec<_> = facts.iter().filter(|facts| facts.sent.is_some()).collect();
        assert_eq!(sent.len(), 1, "a call that was sent once is reported once");
        assert!(!sent[0].shared && sent[0].answered.is_some());
        assert_eq!(facts.iter().filter(|facts| facts.shared).count(), 299);
        stage.stack.at_rest().await;
        let rest = stage.stack.coalescer.snapshot();
        assert_eq!((rest.calls, rest.kept, rest.bytes), (0, 0, 0));
    }
}

#[tokio::test]
async fn reads_that_get_the_answer_of_another_one_draw_nothing_in_usage_nor_in_their_lines() {
    let more = "outstanding = 1\n[costs]\nsettle = true";
    let mut stage = Stage::new(OK, "fresh_for = \"1h\"", more).await;
    let clients: Vec<_> = (0..5).map(|_| stage.asks(read("LINUX1"))).collect();
    stage.stack.sharing(5).await;
    stage.held.next().await;
    stage.held.go.notify_one();
    for client in clients {
        client.await.expect("it is answered");
    }
    stage.kept(read("LINUX1")).await;
    let facts = stage.stack.seen.ended(6).await;
    let (shared, own): (Vec<_>, Vec<_>) = facts.iter().partition(|facts| facts.shared);
    assert_eq!((own.len(), shared.len()), (1, 5));
    for facts in &shared {
        assert_eq!(facts.cost(), Some(TokenCount::ZERO), "{facts:?}");
    }
    let drawn = own[0].cost().expect("it was charged");
    assert!(own[0].rare().settled.is_some(), "{:?}", own[0]);
    let now = stage.stack.clock.now();
    let callers = stage.stack.callers.all(now);
    let sum = |column: fn(&UsageTally) -> u64| {
        let totals = callers.iter().map(|caller| column(&caller.usage.total));
        totals.sum::<u64>()
    };
    assert_eq!(sum(|total| total.calls), 6);
    assert_eq!(sum(|total| total.tokens.micros()), drawn.micros());
}

/// A quota of two tokens: five identical reads at once draw one, and so does one read after them.
#[tokio::test]
async fn a_read_that_gets_the_answer_of_another_one_draws_nothing_from_a_quota_and_its_line_says_so()
 {
    let mut held = Held::start(HTTP_OK).await;
    let more = "\
        [log]\nformat = \"json\"\naccess = true\n\
        [coalesce]\nfunctions = [\"guest_list\"]\nfresh_for = \"1h\"\n\
        [quota_store]\nengine = \"memory\"\n\
        [[quota]]\nname = \"all\"\napplies_to = \"total\"\ntotal = 2\n\
        refresh_window = \"7200h\"\non_excess = \"reject\"\n";
    let process = Sidecar::start(&one_listener(held.backend.addr, "", more)).await;
    let address = process.listener("test").await;
    let ask = |path: &str| {
        let request = get(path, "");
        tokio::spawn(async move { crate::support::ask(address, request).await })
    };
    let clients: Vec<_> = (0..5).map(|_| ask("/guests")).collect();
    held.next().await;
    held.go.notify_one();
    for client in clients {
        let answer = client.await.expect("it ends");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let mut lines = Vec::new();
    let mut at = 0;
    for _ in 0..5 {
        let (line, next) = process
            .log()
            .wait_from(at, &["\"function\":\"guest_list\""])
            .await;
        at = next;
        lines.push(serde_json::from_str::<serde_json::Value>(&line).expect("JSON"));
    }
    let (shared, own): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["shared"] == true);
    assert_eq!((own.len(), shared.len()), (1, 4), "{lines:#?}");
    for line in shared {
        assert!(line["quota"].is_null() && line["tokens"] == 0, "{line}");
    }
    assert_eq!(own[0]["quota"][0]["cost"], 1, "{}", own[0]);
    // One token is left: a read of something else has it, and the next one is refused.
    held.go.notify_one();
    let answer = ask("/guests/A/info").await.expect("it ends");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = ask("/guests/B/info").await.expect("it ends");
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
}

#[tokio::test]
async fn reads_that_are_not_listed_or_differ_are_not_shared() {
    let list = |headers: &str| get("/guests", headers);
    let different = [
        vec![
            array("guest_get_power_state", "A"),
            array("guest_get_power_state", "A"),
        ],
        vec![read("A"), read("B"), get("/guests/A/info", "")],
        vec![
            list(""),
            list("X-Auth-Token: a\r\n"),
            list("X-Auth-Token: b\r\n"),
        ],
        vec![
            list("Accept: application/json\r\n"),
            list("Accept: */*\r\n"),
        ],
        vec![
            list("Authorization: Basic YTpi\r\n"),
            list("Cookie: a=b\r\n"),
        ],
        vec![list(""), list("").replace("GET", "HEAD")],
        vec![
            list("Cache-Control: no-store\r\n"),
            list("Cache-Control: no-store\r\n"),
        ],
        vec![
            list("If-None-Match: \"a\"\r\n"),
            list("If-None-Match: \"a\"\r\n"),
        ],
        vec![list("Range: bytes=0-1\r\n"), list("Range: bytes=0-1\r\n")],
        vec![write("A"), write("A")],
    ];
    for requests in different {
        let mut stage = Stage::new(HTTP_OK, "fresh_for = \"1h\"", "").await;
        let clients: Vec<_> = requests
            .iter()
            .map(|request| stage.asks(&**request))
            .collect();
        // Each of them comes in while no other has been answered.
        for _ in &requests {
            stage.held.next().await;
        }
        for client in clients {
            stage
                .held
                .answer_until(client)
                .await
                .expect("it is answered");
        }
        let facts = stage.stack.seen.ended(requests.len()).await;
        assert!(facts.iter().all(|facts| !facts.shared), "{requests:?}");
    }
}

#[tokio::test]
async fn headers_that_say_nothing_of_the_answer_do_not_tell_reads_apart() {
    let mut stage = Stage::new(HTTP_OK, "", "").await;
    let one = stage.asks(get("/guests", "User-Agent: a\r\nX-Auth-Token: t\r\n"));
    let other = stage.asks(get("/guests", "User-Agent: b\r\nX-Auth-Token: t\r\n"));
    stage.stack.sharing(2).await;
    stage.held.next().await;
    stage.held.go.notify_one();
    let (one, other) = (one.await.expect("answered"), other.await.expect("answered"));
    assert_eq!(body(&one), body(&other));
    stage.nothing_came();
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("an answer in HTTP").1
}

#[tokio::test]
async fn a_read_is_shared_by_those_who_come_while_it_waits_and_while_it_runs() {
    let mut stage = Stage::new(OK, "", "outstanding = 1").await;
    let before = stage.asks(array("guest_get_power_state", "X"));
    stage.held.next().await;
    let first = stage.asks(read("A"));
    let second = stage.asks(read("A"));
    stage.stack.busy(1, 1).await;
    stage.stack.sharing(2).await;
    stage.held.go.notify_one();
    assert!(stage.held.next().await.contains("guest_get_info"));
    let third = stage.asks(read("A"));
    stage.stack.sharing(3).await;
    stage.held.go.notify_one();
    for client in [before, first, second, third] {
        assert_eq!(json(&client.await.expect("answered"))["overallRC"], 0);
    }
    stage.nothing_came();
    let facts = stage.stack.seen.ended(4).await;
    let verdicts = |verdict| {
        let of_it = |facts: &&Facts| facts.verdict == verdict;
        facts.iter().filter(of_it).count()
    };
    // Only the calls that came before it passed the gate have waited for a limit.
    assert_eq!(
        (verdicts(Verdict::Passed), verdicts(Verdict::Delayed)),
        (2, 2)
    );
}

/// A stage where one call holds the only slot, so that a read has to wait.
async fn busy_stage(coalesce: &str) -> (Stage, JoinHandle<String>) {
    let mut stage = Stage::new(OK, coalesce, "outstanding = 1").await;
    let before = stage.asks(array("guest_get_power_state", "X"));
    stage.held.next().await;
    (stage, before)
}

async fn connected(stage: &Stage, request: &str) -> TcpStream {
    sending(stage.stack.addr, request).await
}

#[tokio::test]
async fn the_first_may_leave_and_the_others_are_answered() {
    for leave in [drop, reset] {
        let (mut stage, before) = busy_stage("").await;
        let first = connected(&stage, &read("A")).await;
        stage.stack.sharing(1).await;
        let second = stage.asks(read("A"));
        stage.stack.sharing(2).await;
        leave(first);
        stage.stack.sharing(1).await;
        stage.held.go.notify_one();
        stage.held.next().await;
        stage.held.go.notify_one();
        assert_eq!(json(&second.await.expect("answered"))["overallRC"], 0);
        before.await.expect("answered");
        let facts = stage.stack.seen.ended(3).await;
        let left: Vec<_> = facts
            .iter()
            .filter(|it| it.verdict == Verdict::Aborted)
            .collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].sent, None);
        // Now it is the second's call.
        assert_eq!(facts.iter().filter(|it| it.sent.is_some()).count(), 2);
        assert!(facts.iter().all(|it| !it.shared));
    }
}

#[tokio::test]
async fn a_read_that_all_have_left_before_it_was_sent_is_never_sent() {
    let (mut stage, before) = busy_stage("").await;
    let clients = [
        connected(&stage, &read("A")).await,
        connected(&stage, &read("A")).await,
    ];
    stage.stack.sharing(2).await;
    stage.stack.busy(1, 1).await;
    clients.into_iter().for_each(drop);
    stage.stack.busy(1, 0).await;
    stage.held.go.notify_one();
    before.await.expect("answered");
    stage.stack.at_rest().await;
    stage.nothing_came();
    let facts = stage.stack.seen.ended(3).await;
    assert_eq!(facts.iter().filter(|it| it.sent.is_some()).count(), 1);
    assert_eq!(
        facts
            .iter()
            .filter(|it| it.verdict == Verdict::Aborted)
            .count(),
        2
    );
    assert_eq!(stage.stack.coalescer.snapshot().bytes, 0);
}

#[tokio::test]
async fn a_read_that_all_have_left_after_it_was_sent_runs_to_its_end_and_can_be_joined() {
    for joined in [false, true] {
        let mut stage = Stage::new(HTTP_OK, "", "outstanding = 1").await;
        let request = get("/guests", "");
        let clients = [
            connected(&stage, &request).await,
            connected(&stage, &request).await,
        ];
        stage.held.next().await;
        stage.stack.sharing(2).await;
        clients.into_iter().for_each(reset);
        stage.stack.sharing(0).await;
        assert_eq!(stage.stack.gate.busy(), (1, 0), "the slot is the backend's");
        let late = joined.then(|| stage.asks(&*request));
        stage.stack.sharing(usize::from(joined)).await;
        stage.held.go.notify_one();
        if let Some(late) = late {
            assert!(late.await.expect("answered").contains("overallRC"));
        }
        stage.stack.at_rest().await;
        stage.nothing_came();
        let facts = stage.stack.seen.ended(2 + usize::from(joined)).await;
        let sent: Vec<_> = facts.iter().filter(|it| it.sent.is_some()).collect();
        assert_eq!(sent.len(), 1, "a call that was sent once is reported once");
        assert!(sent[0].answered.is_some());
        let verdict = if joined {
            Verdict::Passed
        } else {
            Verdict::Aborted
        };
        assert_eq!(sent[0].verdict, verdict);
    }
}

#[tokio::test]
async fn a_read_under_way_when_a_write_comes_in_is_not_joined_after_it_nor_kept() {
    for write in [
        write("LINUX1"),
        write("linux1"),
        r#"["guest_start", [], {"userid": "LINUX1"}]"#.to_owned(),
        r#"["image_delete", ["LINUX1"], {}]"#.to_owned(),
        r#"["not_in_the_table", ["LINUX9"], {}]"#.to_owned(),
    ] {
        let mut stage = Stage::new(OK, "fresh_for = \"1h\"", "").await;
        let before = stage.asks(read("LINUX1"));
        stage.held.next().await;
        let changing = stage.asks(&*write);
        stage.held.next().await;
        let after = stage.asks(read("LINUX1"));
        let again = stage.held.next().await;
        assert!(again.contains("guest_get_info"), "{write}: {again}");
        stage.held.answer_until(before).await.expect("answered");
        stage.held.answer_until(after).await.expect("answered");
        stage.held.answer_until(changing).await.expect("answered");
        // The write's reply has also ended the answers kept meanwhile.
        stage.stack.seen.ended(3).await;
        assert_eq!(stage.stack.coalescer.snapshot().kept, 0, "{write}");
    }
}

#[tokio::test]
async fn a_read_that_began_during_a_write_is_not_joined_after_its_reply() {
    let (mut stage, before) = busy_stage("fresh_for = \"1h\"").await;
    let changing = stage.asks(write("A"));
    stage.stack.busy(1, 1).await;
    let during = stage.asks(read("A"));
    stage.stack.busy(1, 2).await;
    let joined = stage.asks(read("A"));
    stage.stack.sharing(2).await;
    stage.held.go.notify_one();
    before.await.expect("answered");
    assert!(stage.held.next().await.contains("guest_start"));
    stage.held.go.notify_one();
    changing.await.expect("answered");
    assert!(stage.held.next().await.contains("guest_get_info"));
    let after = stage.asks(read("A"));
    stage.stack.sharing(3).await;
    stage.stack.busy(1, 1).await;
    stage.held.go.notify_one();
    during.await.expect("answered");
    joined.await.expect("answered");
    assert!(stage.held.next().await.contains("guest_get_info"));
    stage.held.go.notify_one();
    after.await.expect("answered");
    stage.kept(read("A")).await;
}

#[tokio::test]
async fn a_write_whose_client_has_left_ends_answers_when_the_backend_is_done_with_it() {
    let mut stage = Stage::new(HTTP_OK, "fresh_for = \"1h\"", "").await;
    let start = "POST /guests/A/action HTTP/1.1\r\nHost: t\r\nContent-Length: 18\r\n\r\n{\"action\":\"start\"}";
    let writer = connected(&stage, start).await;
    stage.held.next().await;
    reset(writer);
    let client = stage.asks(get("/guests/A/info", ""));
    stage.held.next().await;
    // The backend answers both, the write perhaps first: until then the answer may be kept.
    stage.held.answer_until(client).await.expect("answered");
    stage.held.answer_until(stage.stack.seen.ended(2)).await;
    assert_eq!(stage.stack.coalescer.snapshot().kept, 0);
}

#[tokio::test]
async fn a_good_answer_is_kept_until_a_write_about_the_same_guest() {
    let mut stage = Stage::new(OK, "fresh_for = \"1h\"", "").await;
    for request in [read("A"), read("B"), LIST.to_owned()] {
        stage.answered(request).await;
    }
    for request in [read("A"), read("B"), LIST.to_owned()] {
        stage.kept(request).await;
    }
    assert_eq!(stage.stack.coalescer.snapshot().kept, 3);
    // Reads and tokens end nothing.
    stage.answered(array("guest_get_power_state", "A")).await;
    assert_eq!(stage.stack.coalescer.snapshot().kept, 3);
    stage.answered(write("A")).await;
    stage.kept(read("B")).await;
    stage.answered(read("A")).await;
    stage.answered(LIST).await;
    stage.answered(r#"["vswitch_delete", ["B"], {}]"#).await;
    assert_eq!(stage.stack.coalescer.snapshot().kept, 0);
    let facts = stage.stack.seen.all();
    let kept: Vec<_> = facts.iter().filter(|facts| facts.shared).collect();
    assert_eq!(kept.len(), 4);
    for facts in kept {
        assert_eq!(
            (facts.verdict, facts.overall_rc),
            (Verdict::Passed, Some(0))
        );
        assert!(facts.admitted.is_none() && facts.sent.is_none() && facts.bytes_out > 0);
    }
}

#[tokio::test]
async fn a_token_ends_nothing_and_a_kept_answer_says_its_age_on_http() {
    let mut stage = Stage::new(HTTP_OK, "fresh_for = \"1h\"", "").await;
    let request = get("/guests/A/info", "X-Auth-Token: t\r\n");
    let fresh = stage.answered(&*request).await;
    assert!(!fresh.to_lowercase().contains("\r\nage:"), "{fresh}");
    stage
        .answered(
            "POST /token HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
    let kept = stage.kept(&*request).await;
    assert!(kept.starts_with("HTTP/1.1 200 OK\r\n"), "{kept}");
    assert!(kept.to_lowercase().contains("\r\nage: 0\r\n"), "{kept}");
    assert_eq!(body(&kept), body(&fresh));
    stage
        .answered(get("/guests/A/info", "X-Auth-Token: other\r\n"))
        .await;
}

#[tokio::test]
async fn an_array_in_http_dress_is_kept_with_its_age_as_well() {
    let mut stage = Stage::new(OK, "fresh_for = \"1h\"", "").await;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{LIST}",
        LIST.len()
    );
    let fresh = stage.answered(&*request).await;
    let kept = stage.kept(&*request).await;
    assert!(kept.starts_with("HTTP/1.1 200 OK\r\n"), "{kept}");
    assert!(kept.to_lowercase().contains("\r\nage: 0\r\n"), "{kept}");
    assert!(kept.contains("application/json"), "{kept}");
    assert_eq!(body(&kept), body(&fresh));
}

#[tokio::test]
async fn errors_are_shared_by_those_who_wait_and_never_kept() {
    for (request, answer, verdict, said) in [
        (
            read("A"),
            &b"{\"overallRC\": 404, \"rs\": 1}"[..],
            Verdict::Passed,
            "404",
        ),
        (read("A"), b"{\"output\": NaN}", Verdict::Passed, "NaN"),
        (
            read("A"),
            b"{\"overallRC\": 0, \"out",
            Verdict::Failed,
            "backend_cut",
        ),
        (
            get("/guests", ""),
            b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\n{}",
            Verdict::Passed,
            " 500 ",
        ),
        (
            get("/guests", ""),
            b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"overallRC\": 300}",
            Verdict::Passed,
            "300",
        ),
    ] {
        let mut stage = Stage::new(answer, "fresh_for = \"1h\"", "").await;
        let clients = [stage.asks(&*request), stage.asks(&*request)];
        stage.stack.sharing(2).await;
        stage.held.next().await;
        stage.held.go.notify_one();
        for client in clients {
            let answer = client.await.expect("it is answered");
            assert!(answer.contains(said), "{answer}");
        }
        stage.nothing_came();
        for facts in stage.stack.seen.ended(2).await {
            assert_eq!(facts.verdict, verdict, "{said}");
        }
        assert!(stage.answered(&*request).await.contains(said));
    }
}

#[tokio::test]
async fn a_refusal_of_the_shared_call_is_everybodys() {
    let config = config(&text(
        "127.0.0.1:1".parse().expect("an address"),
        "",
        "outstanding = 1",
    ));
    let alone = Alone::new(&config);
    let _slot = alone.takes_the_slot();
    let (first, second) = (alone.asks(), alone.asks());
    alone.sharing(2).await;
    alone.pipeline.gate.refuse_all();
    for client in [first, second] {
        let reply = client.await.expect("it is answered");
        assert!(matches!(reply, Err(refusal) if refusal.reason == Reason::Draining));
    }
}

#[tokio::test]
async fn beyond_max_entries_reads_go_on_their_own() {
    let mut stage = Stage::new(OK, "max_entries = 1", "").await;
    let shared = [stage.asks(read("A")), stage.asks(read("A"))];
    stage.stack.sharing(2).await;
    stage.held.next().await;
    let alone = [stage.asks(read("B")), stage.asks(read("B"))];
    stage.held.next().await;
    stage.held.next().await;
    assert_eq!(stage.stack.coalescer.snapshot().waiting, 2);
    for client in alone.into_iter().chain(shared) {
        let answer = stage.held.answer_until(client).await.expect("answered");
        assert_eq!(json(&answer)["overallRC"], 0);
    }
    stage.nothing_came();
}

#[tokio::test]
async fn beyond_max_bytes_reads_go_on_their_own_and_answers_are_not_kept() {
    let mut stage = Stage::new(HTTP_OK, "fresh_for = \"1h\"\nmax_bytes = \"1KiB\"", "").await;
    let large = get("/guests", &format!("X-Auth-Token: {}\r\n", "t".repeat(900)));
    let clients = [stage.asks(&*large), stage.asks(&*large)];
    stage.held.next().await;
    stage.held.next().await;
    for client in clients {
        stage.held.answer_until(client).await.expect("answered");
    }
    assert_eq!(stage.stack.coalescer.snapshot().bytes, 0);
    // One that fits is shared, but there is no room for its answer beside it.
    let fits = get("/guests", &format!("X-Auth-Token: {}\r\n", "t".repeat(560)));
    stage
        .held
        .answer_until(stage.asks(&*fits))
        .await
        .expect("answered");
    let now = stage.stack.coalescer.snapshot();
    assert_eq!((now.kept, now.bytes), (0, 0));
}

#[tokio::test]
async fn a_reply_too_large_to_hold_is_the_firsts_and_the_others_go_on_their_own() {
    let large = format!(
        "{{\"overallRC\": 0, \"output\": \"{}\"}}",
        "x".repeat(10_000)
    );
    let answer: &'static [u8] = large.clone().into_bytes().leak();
    let mut stage = Stage::new(answer, "fresh_for = \"1h\"", "").await;
    let clients = [stage.asks(LIST), stage.asks(LIST), stage.asks(LIST)];
    stage.stack.sharing(3).await;
    stage.held.next().await;
    stage.held.go.notify_one();
    stage.held.next().await;
    stage.held.next().await;
    for client in clients {
        let answer = stage.held.answer_until(client).await.expect("answered");
        assert_eq!(answer, large);
    }
    let facts = stage.stack.seen.ended(3).await;
    for facts in facts {
        assert!(facts.sent.is_some() && !facts.shared, "each has drawn");
        assert_eq!(facts.bytes_out, large.len() as u64);
        assert_eq!(facts.verdict, Verdict::Passed);
    }
    assert_eq!(stage.stack.coalescer.snapshot().kept, 0);
    stage.stack.at_rest().await;
}

#[tokio::test]
async fn a_response_that_sets_a_cookie_is_the_firsts_alone() {
    let answer =
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";
    let mut stage = Stage::new(answer, "fresh_for = \"1h\"", "").await;
    let clients = [
        stage.asks(get("/guests", "")),
        stage.asks(get("/guests", "")),
    ];
    stage.stack.sharing(2).await;
    stage.held.next().await;
    stage.held.go.notify_one();
    stage.held.next().await;
    for client in clients {
        stage.held.answer_until(client).await.expect("answered");
    }
    assert_eq!(stage.stack.coalescer.snapshot().kept, 0);
}

#[tokio::test]
async fn a_half_close_is_answered_unless_the_shared_call_would_have_to_wait() {
    let mut stage = Stage::new(OK, "", "outstanding = 1").await;
    let mut first = connected(&stage, &read("A")).await;
    first.shutdown().await.expect("it takes a half-close");
    stage.held.next().await;
    let mut joined = connected(&stage, &read("A")).await;
    joined.shutdown().await.expect("it takes a half-close");
    stage.stack.sharing(2).await;
    let mut waits = connected(&stage, &read("B")).await;
    stage.stack.busy(1, 1).await;
    waits.shutdown().await.expect("it takes a half-close");
    stage.stack.busy(1, 0).await;
    stage.held.go.notify_one();
    for mut client in [first, joined] {
        assert_eq!(json(&read_all(&mut client).await)["overallRC"], 0);
    }
    stage.nothing_came();
}

#[tokio::test]
async fn a_reload_ends_what_is_kept_and_what_may_be_joined() {
    let mut stage = Stage::new(OK, "fresh_for = \"1h\"", "").await;
    stage.answered(read("A")).await;
    let before = stage.asks(read("B"));
    stage.held.next().await;
    let settings = config(&text(stage.held.backend.addr, "fresh_for = \"1h\"", "")).coalesce;
    stage.stack.coalescer.apply(settings);
    let after = stage.asks(read("B"));
    stage.held.next().await;
    stage.held.answer_until(before).await.expect("answered");
    stage.held.answer_until(after).await.expect("answered");
    stage.answered(read("A")).await;
    stage
        .stack
        .coalescer
        .apply(tidegate::coalesce::CoalesceSettings {
            functions: Vec::new(),
            ignored_headers: [].into(),
            fresh_for: Duration::ZERO,
            entries_max: 0,
            bytes_max: 0,
        });
    assert!(!stage.stack.coalescer.is_on());
    stage.answered(read("A")).await;
}

#[tokio::test]
async fn a_shared_read_waits_for_a_backend_that_is_down_and_is_sent_once() {
    let down = crate::support::closed_port();
    let stack = Arc::new(Stack::start(&text(down, "", "")));
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let stack = Arc::clone(&stack);
            tokio::spawn(async move { stack.ask(read("A")).await })
        })
        .collect();
    until(
        || stack.coalescer.snapshot().waiting == 5 && stack.gate.busy() == (0, 1),
        || format!("{:?}", stack.gate.busy()),
    )
    .await;
    let listener = tokio::net::TcpListener::bind(down)
        .await
        .expect("it was free");
    let (mut call, _) = listener.accept().await.expect("a probe comes");
    call.write_all(OK).await.expect("it is read");
    drop(call);
    for client in clients {
        assert_eq!(json(&client.await.expect("answered"))["overallRC"], 0);
    }
    let facts = stack.seen.ended(5).await;
    assert_eq!(facts.iter().filter(|facts| facts.sent.is_some()).count(), 1);
    stack.at_rest().await;
}

/// The pipeline without sockets.
struct Alone {
    pipeline: Pipeline,
    clock: Clock,
}

impl Alone {
    fn new(config: &tidegate::config::Config) -> Self {
        let clock = Clock::of_runtime();
        let gate = Gate::new(&config.admit, clock);
        let timer = gate.clone();
        tokio::spawn(async move { timer.keep_time().await });
        let started = Callers::start(&config.callers, None).expect("there is room for them");
        let pipeline = Pipeline {
            classifier: Arc::new(Live::new(Classifier::new(&config.classify))),
            callers: started.value,
            clock,
            coalescer: Coalescer::new(config.coalesce.clone(), clock),
            tasks: Tasks::new(config.tasks, clock),
            gate,
            forwarder: Forwarder::new(&config.forward),
            observer: Arc::new(NoObserver),
            wakers: TaskWakers::default(),
        };
        Self { pipeline, clock }
    }

    fn origin(&self) -> Origin {
        Origin {
            identity: identity("test", ([127, 0, 0, 1], 1)),
            arrived: self.clock.now(),
        }
    }

    /// Takes the only slot while the returned value exists.
    fn takes_the_slot(&self) -> tidegate::admit::Permit {
        let record = Record::open(
            self.origin(),
            Dialect::Socket,
            "x".into(),
            "polling".into(),
            None,
            Arc::new(NoObserver),
        );
        let ask = asking("x", Destination::Socket, self.clock.now());
        match self.pipeline.gate.ask(ask, &record) {
            Admission::Decided(Ok(permit)) => permit,
            _ => panic!("the slot is free"),
        }
    }

    fn asks(&self) -> JoinHandle<Result<Reply, Refusal>> {
        let pipeline = self.pipeline.clone();
        let request = Request {
            origin: self.origin(),
            message: Message::Socket(Box::new(ArrayCall {
                bytes: LIST.into(),
                function: "guest_list".into(),
                target: None,
            })),
        };
        tokio::spawn(async move {
            let progress = Progress::default();
            pipeline.serve(request, &progress).await
        })
    }

    async fn sharing(&self, waiting: usize) {
        while self.pipeline.coalescer.snapshot().waiting != waiting {
            tokio::task::yield_now().await;
        }
    }
}

/// The deadlines of the paused tests.   seconds
const THRESHOLD: u64 = 60;

fn paused(backend: SocketAddr) -> Alone {
    let limits = format!("outstanding = 1\nmax_wait = \"{THRESHOLD}s\"");
    Alone::new(&config(&text(backend, "", &limits)))
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:1".parse().expect("an address")
}

/// How long a client waited before its refusal.   seconds
async fn refused_at(client: JoinHandle<Result<Reply, Refusal>>, clock: Clock) -> (Reason, u64) {
    let reply = client.await.expect("it is answered");
    let refusal = reply.expect_err("it was refused");
    assert!(refusal.retry_after.is_some());
    (refusal.reason, clock.now().since(Timestamp::ZERO).as_secs())
}

#[tokio::test(start_paused = true)]
async fn each_is_refused_at_its_own_deadline_and_the_call_waits_for_the_last() {
    let alone = paused(nowhere());
    let slot = alone.takes_the_slot();
    let first = alone.asks();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let second = alone.asks();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let third = alone.asks();
    alone.sharing(3).await;
    assert_eq!(alone.pipeline.gate.busy(), (1, 1));
    let expired = |at| (Reason::DeadlinePassed, at);
    assert_eq!(refused_at(first, alone.clock).await, expired(THRESHOLD));
    assert_eq!(alone.pipeline.gate.busy(), (1, 1));
    assert_eq!(
        refused_at(second, alone.clock).await,
        expired(THRESHOLD + 10)
    );
    assert_eq!(
        refused_at(third, alone.clock).await,
        expired(THRESHOLD + 30)
    );
    assert_eq!(alone.pipeline.gate.busy(), (1, 0));
    assert_eq!(alone.pipeline.coalescer.snapshot().bytes, 0);
    drop(slot);
}

#[tokio::test(start_paused = true)]
async fn clients_with_time_left_are_answered_after_the_firsts_deadline() {
    let backend = Scripted::start(|_, mut stream: TcpStream| async move {
        stream.write_all(OK).await.expect("it is read");
    })
    .await;
    let alone = paused(backend.addr);
    let slot = alone.takes_the_slot();
    let first = alone.asks();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let second = alone.asks();
    alone.sharing(2).await;
    let (reason, at) = refused_at(first, alone.clock).await;
    assert_eq!((reason, at), (Reason::DeadlinePassed, THRESHOLD));
    // From here on a real server answers in real time.
    tokio::time::resume();
    drop(slot);
    let reply = second.await.expect("it is answered");
    assert!(reply.is_ok(), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn a_read_whose_limits_open_too_late_is_refused_at_once() {
    let limits = "window = \"3600s\"\nmax_wait = \"60s\"";
    let text = text(nowhere(), "", limits).replace("total:1000", "total:1");
    let alone = Alone::new(&config(&text));
    let mut slot = alone.takes_the_slot();
    tidegate::call::Slot::sent(&mut slot);
    let told = refused_at(alone.asks(), alone.clock).await;
    assert_eq!(told, (Reason::DeadlineUnreachable, 0));
}

/// The versions of guests at the backend, counted in writes.
#[derive(Default)]
struct Versions(std::sync::Mutex<std::collections::HashMap<String, u64>>);

impl Versions {
    fn with<R>(&self, guest: &str, change: impl FnOnce(&mut u64) -> R) -> R {
        let mut all = self.0.lock().expect("no test panics with it");
        change(all.entry(guest.to_owned()).or_default())
    }
}

/// A backend whose writes increase the number that its reads return, each at some moment while it
/// runs.
async fn counting_backend(versions: Arc<Versions>, random: fn(usize) -> u64) -> Scripted {
    Scripted::start(move |number, mut stream: TcpStream| {
        let versions = Arc::clone(&versions);
        async move {
            let mut request = vec![0; 4096];
            let read = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
            let request: serde_json::Value =
                serde_json::from_slice(&request[..read.unwrap_or(0)]).expect("one array");
            let guest = request[1][0].as_str().expect("a userid").to_owned();
            let pause = Duration::from_micros(random(number) % 3000);
            tokio::time::sleep(pause).await;
            let version = versions.with(&guest, |version| {
                *version += u64::from(request[0] == "guest_start");
                *version
            });
            tokio::time::sleep(pause).await;
            let answer = format!("{{\"overallRC\": 0, \"output\": {version}}}");
            // Its client may have gone.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await
}

/// Some bits for a number: the test's seed is in here, so every run does the same as far as
/// threads let it.
fn random(number: usize) -> u64 {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (number as u64 + 1).wrapping_mul(SEED);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 17
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_gets_an_answer_from_before_an_answered_write() {
    let backend = counting_backend(Arc::default(), random).await;
    let stack = Arc::new(Stack::start(
        &text(backend.addr, "fresh_for = \"1h\"", "").replace("total:1000", "total:0"),
    ));
    // The last answered write, for later reads.
    let answered = Arc::new(Versions::default());
    let clients: Vec<_> = (0..12)
        .map(|client| {
            let (stack, answered) = (Arc::clone(&stack), Arc::clone(&answered));
            tokio::spawn(async move {
                for round in 0..100 {
                    let bits = random(client * 1000 + round);
                    let guest = ["A", "B"][(bits % 2) as usize];
                    match bits / 2 % 16 {
                        0..=1 => {
                            let version = json(&stack.ask(write(guest)).await)["output"].as_u64();
                            let version = version.expect("a version");
                            answered.with(guest, |seen| *seen = version.max(*seen));
                        }
                        2 => {
                            let mut leaves =
                                TcpStream::connect(stack.addr).await.expect("it listens");
                            leaves
                                .write_all(read(guest).as_bytes())
                                .await
                                .expect("it reads");
                        }
                        _ => {
                            let least = answered.with(guest, |seen| *seen);
                            let answer = json(&stack.ask(read(guest)).await);
                            let version = answer["output"].as_u64().expect("a version");
                            assert!(
                                version >= least,
                                "{version} after {least}, {client}/{round}"
                            );
                        }
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no read was answered with the past");
    }
    stack.at_rest().await;
    let facts = stack.seen.ended(1100).await;
    let shared = facts.iter().filter(|facts| facts.shared).count();
    assert!(
        shared > 100,
        "{shared} of {} shared: too few to tell",
        facts.len()
    );
    assert_eq!(stack.coalescer.snapshot().calls, 0);
}

/// A backend that answers each HTTP request at once, and counts them.
async fn counting() -> (Scripted, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let backend = Scripted::start(move |_, mut stream| {
        let counted = Arc::clone(&counted);
        async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                counted.fetch_add(1, Ordering::SeqCst);
                stream.write_all(HTTP_OK).await.expect("it is read");
            }
        }
    });
    (backend.await, calls)
}

#[tokio::test]
async fn answers_that_are_kept_make_room_for_what_is_asked_now() {
    let (backend, calls) = counting().await;
    let coalesce = "fresh_for = \"1h\"\nmax_entries = 100";
    let stack = Arc::new(Stack::start(&text(backend.addr, coalesce, "")));
    for token in 0..150 {
        let token = format!("X-Auth-Token: {token}\r\n");
        stack.ask(get("/guests/LINUX1/info", &token)).await;
    }
    let before = calls.load(Ordering::SeqCst);
    for _ in 0..50 {
        stack.ask(get("/guests/LINUX1/info", "")).await;
    }
    let sent = calls.load(Ordering::SeqCst) - before;
    assert_eq!(sent, 1, "all but the first are kept");
    assert_eq!(stack.coalescer.snapshot().kept, 100);
}

#[tokio::test]
async fn on_a_route_of_ones_own_clients_with_other_credentials_get_other_answers() {
    let (backend, calls) = counting().await;
    let text = text(backend.addr, "fresh_for = \"1h\"", "")
        .replace("\"guest_list\"]", "\"guest_list\", \"report\"]");
    let route = "[[route]]\nmethod = \"GET\"\npath = \"/report\"\nfunction = \"report\"";
    let stack = Stack::start(&format!("{text}\n{route}"));
    for key in 0..20 {
        let headers = format!("X-Api-Key: {key}\r\nUser-Agent: a{key}\r\n");
        stack.ask(get("/report", &headers)).await;
    }
    assert_eq!(
        calls.load(Ordering::SeqCst),
        20,
        "each key has an answer of its own"
    );
    for agent in 0..20 {
        let headers = format!("X-Api-Key: 7\r\nUser-Agent: b{agent}\r\n");
        stack.ask(get("/report", &headers)).await;
    }
    assert_eq!(
        calls.load(Ordering::SeqCst),
        20,
        "what is ignored tells none apart"
    );
}
