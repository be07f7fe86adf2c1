//! Jobs: work of a backend that goes on behind its answer, and holds the slot of its call.

mod real_clients;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::raw_http::{Peer, Reply, access_line, get, reach_load};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, Scripted, listens};

/// A manager of virtual machines that answers a clone at once and works on, until a test ends that job.
pub(crate) struct Manager {
    backend: Scripted,
    state: Arc<Mutex<ManagerState>>,
    asked: watch::Receiver<usize>,
    /// Clones that have begun.
    begun: watch::Receiver<usize>,
    /// Lets the answer to a clone that is asked for with "later" go.
    go: Arc<Notify>,
    /// Ends its connections too.
    _down: DropGuard,
}

#[derive(Default)]
struct ManagerState {
    clones: usize,
    ended: Vec<String>,
    /// The heads of the requests about tasks.
    questions: Vec<String>,
    /// The answer about any task, in place of its state.
    instead: Option<&'static str>,
}

const TOKEN: &str = "Authorization: PVEAPIToken=root@pam!tests=very-secret\r\n";

fn upid(number: usize) -> String {
    format!("UPID:pve1:{number:08X}:clone:root@pam:")
}

fn ok(body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

impl ManagerState {
    fn answer(&mut self, head: &str) -> String {
        let path = head.split(' ').nth(1).unwrap_or_default();
        if let Some((_, rest)) = path.split_once("/tasks/") {
            self.questions.push(head.to_owned());
            if let Some(instead) = self.instead {
                return instead.to_owned();
            }
            let id = rest.trim_end_matches("/status").replace("%3A", ":");
            let status = match self.ended.contains(&id) {
                true => "stopped",
                false => "running",
            };
            return ok(&json!({ "data": { "status": status, "upid": id } }));
        }
        if path.ends_with("/fails") {
            return "HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n".to_owned();
        }
        if path.ends_with("/none") {
            return ok(&json!({ "data": null }));
        }
        self.clones += 1;
        let answer = json!({ "data": upid(self.clones) });
        if path.ends_with("/chunked") {
            let body = answer.to_string();
            return format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            );
        }
        if path.ends_with("/accepted") {
            let place = format!(
                "http://t/api2/json/nodes/pve1/tasks/{}/status?sig=1",
                upid(self.clones)
            );
            return format!("HTTP/1.1 202 ok\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n");
        }
        ok(&answer)
    }
}

impl Manager {
    async fn start() -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), Arc::default()).await
    }

    async fn start_at(addr: SocketAddr, state: Arc<Mutex<ManagerState>>) -> Self {
        let (count, asked) = watch::channel(0);
        let (clones, begun) = watch::channel(0);
        let (clones, go) = (Arc::new(clones), Arc::<Notify>::default());
        let may_go = Arc::clone(&go);
        let of_all = Arc::clone(&state);
        let count = Arc::new(count);
        let down = CancellationToken::new();
        let is_down = down.clone();
        let backend = Scripted::start_at(addr, move |_, stream| {
            let (state, count) = (Arc::clone(&of_all), Arc::clone(&count));
            let (clones, may_go) = (Arc::clone(&clones), Arc::clone(&may_go));
            let is_down = is_down.clone();
            let serving = async move {
                let mut peer = Peer::new(stream);
                while let Some(head) = peer.next_head().await {
                    peer.body_of(&head).await;
                    let answer = state.lock().expect("sound").answer(&head);
                    clones.send_replace(state.lock().expect("sound").clones);
                    if head.contains("/later ") {
                        may_go.notified().await;
                    }
                    peer.send(answer).await;
                    let questions = state.lock().expect("sound").questions.len();
                    count.send_replace(questions);
                }
            };
            async move {
                is_down.run_until_cancelled_owned(serving).await;
            }
        })
        .await;
        Self {
            backend,
            state,
            asked,
            begun,
            go,
            _down: down.drop_guard(),
        }
    }

    fn end(&self, number: usize) {
        self.state.lock().expect("sound").ended.push(upid(number));
    }

    fn answer_instead(&self, instead: Option<&'static str>) {
        self.state.lock().expect("sound").instead = instead;
    }

    /// Waits until this number of questions about tasks was asked.
    async fn is_asked(&self, questions: usize) {
        let mut asked = self.asked.clone();
        let enough = asked.wait_for(|&asked| asked >= questions);
        let waited = tokio::time::timeout(PATIENCE, enough).await;
        waited.expect("it is asked in time").expect("it runs");
    }

    fn config(&self, job: &str, sections: &str) -> String {
        let backend = format!("kind = \"http\"\nhttp = \"http://{}\"\n", self.backend.addr);
        let sections = format!(
            r#"
            [admin]
            bind = "127.0.0.1:0"
            [limits]
            window = "0s"
            outstanding = 10
            ledger_lost = "assume_empty"
            [[class]]
            name = "clones"
            functions = ["clone"]
            outstanding_max = 1
            [[route]]
            method = "POST"
            path = "/api2/json/nodes/{{node}}/qemu/{{vmid}}/{{what}}"
            function = "clone"
            job = {job}
            {sections}
            "#
        );
        listens("", &backend, &sections)
    }

    async fn before(&self, job: &str, sections: &str) -> (Sidecar, SocketAddr) {
        let sidecar = Sidecar::start(&self.config(job, sections)).await;
        let addr = sidecar.listener("test").await;
        (sidecar, addr)
    }
}

/// Questions of this process come only when a test wants them.
const SILENT: &str = "[jobs]\nask_after = \"1h\"";
const SOON: &str = "[jobs]\nask_after = \"100ms\"";
const PROXMOX: &str = "\"proxmox\"";

fn clone_request(what: &str) -> String {
    format!(
        "POST /api2/json/nodes/pve1/qemu/100/{what} HTTP/1.1\r\nHost: t\r\n{TOKEN}Content-Length: 0\r\n\r\n"
    )
}

async fn clone(addr: SocketAddr, what: &str) -> Reply {
    Peer::ask(addr, clone_request(what)).await
}

async fn poll(addr: SocketAddr, number: usize) -> Reply {
    let path = format!("/api2/json/nodes/pve1/tasks/{}/status", upid(number));
    Peer::ask(addr, get(&path, TOKEN)).await
}

#[tokio::test]
async fn a_job_holds_the_slot_of_its_call_until_a_poll_of_its_client_says_that_it_has_ended() {
    for what in ["clone", "chunked"] {
        let manager = Manager::start().await;
        let (sidecar, addr) = manager.before(PROXMOX, SILENT).await;
        assert!(clone(addr, what).await.answer.body.contains(&upid(1)));
        let mut second = Peer::sending(addr, clone_request("clone")).await;
        reach_load(&sidecar, (1, 1), PATIENCE).await;
        assert!(poll(addr, 1).await.answer.body.contains("running"));
        reach_load(&sidecar, (1, 1), PATIENCE).await;
        manager.end(1);
        assert!(poll(addr, 1).await.answer.body.contains("stopped"));
        assert!(second.reply().await.answer.body.contains(&upid(2)));
        // The line of the first call comes with the end of its job.
        reach_load(&sidecar, (1, 0), PATIENCE).await;
        let mut from = 0;
        let line = loop {
            let (line, next) = access_line(&sidecar, from).await;
            from = next;
            if line["function"] == "clone" {
                break line;
            }
        };
        assert_eq!(
            (&line["verdict"], &line["status"]),
            (&json!("passed"), &json!(200)),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_job_of_which_no_client_has_heard_is_asked_for_with_the_credentials_of_its_call() {
    let manager = Manager::start().await;
    let (sidecar, addr) = manager.before(PROXMOX, SOON).await;
    assert_eq!(clone(addr, "clone").await.status(), 200);
    let mut second = Peer::sending(addr, clone_request("clone")).await;
    manager.is_asked(2).await;
    reach_load(&sidecar, (1, 1), PATIENCE).await;
    manager.end(1);
    assert!(second.reply().await.answer.body.contains(&upid(2)));
    let questions = manager.state.lock().expect("sound").questions.clone();
    let path = format!("GET /api2/json/nodes/pve1/tasks/{}/status ", upid(1));
    for question in questions.iter().take(2) {
        assert!(question.starts_with(&path), "{question}");
        let fields = question.to_ascii_lowercase();
        assert!(
            fields.contains(&TOKEN.trim().to_ascii_lowercase()),
            "{question}"
        );
    }
    let (_, now) = sidecar.get("/v1/now").await;
    let log = sidecar.log().lines().join("\n");
    assert!(
        !log.contains("very-secret") && !now.contains("very-secret"),
        "{log}"
    );
}

#[tokio::test]
async fn a_job_that_never_ends_holds_its_slot_no_longer_than_its_route_allows() {
    let manager = Manager::start().await;
    let job = "{ preset = \"proxmox\", most = \"300ms\" }";
    let (sidecar, addr) = manager.before(job, SILENT).await;
    assert_eq!(clone(addr, "clone").await.status(), 200);
    assert!(clone(addr, "clone").await.answer.body.contains(&upid(2)));
    sidecar
        .log()
        .wait(&["has lasted as long as its route allows"])
        .await;
    let (line, _) = access_line(&sidecar, 0).await;
    assert_eq!(
        (&line["verdict"], &line["reason"]),
        (&json!("failed"), &json!("backend_slow"))
    );
}

#[tokio::test]
async fn an_answer_without_a_job_ends_its_call_as_usual() {
    let manager = Manager::start().await;
    let (sidecar, addr) = manager.before(PROXMOX, SILENT).await;
    for (what, status) in [("fails", 500), ("none", 200)] {
        assert_eq!(clone(addr, what).await.status(), status);
        reach_load(&sidecar, (0, 0), PATIENCE).await;
    }
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_a_warning_and_a_job_that_is_unknown_has_ended() {
    let manager = Manager::start().await;
    let (sidecar, addr) = manager.before(PROXMOX, SOON).await;
    manager.answer_instead(Some("HTTP/1.1 401 no\r\nContent-Length: 0\r\n\r\n"));
    assert_eq!(clone(addr, "clone").await.status(), 200);
    sidecar
        .log()
        .wait(&["the state of a job could not be read"])
        .await;
    manager.is_asked(2).await;
    reach_load(&sidecar, (1, 0), PATIENCE).await;
    manager.answer_instead(Some("HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n"));
    reach_load(&sidecar, (0, 0), PATIENCE).await;
}

#[tokio::test]
async fn a_job_outlives_its_client_a_reload_and_a_restart_of_its_backend() {
    let mut manager = Manager::start().await;
    let (sidecar, addr) = manager.before(PROXMOX, SOON).await;
    let client = Peer::sending(addr, clone_request("later")).await;
    let mut begun = manager.begun.clone();
    let begun = begun.wait_for(|&clones| clones == 1);
    let begun = tokio::time::timeout(PATIENCE, begun).await;
    begun.expect("in time").expect("it runs");
    drop(client);
    manager.go.notify_one();
    manager.is_asked(1).await;
    sidecar.reload(&manager.config(PROXMOX, SOON)).await;
    reach_load(&sidecar, (1, 0), PATIENCE).await;
    let (at, state) = (manager.backend.addr, Arc::clone(&manager.state));
    drop(manager);
    sidecar
        .log()
        .wait(&["the state of a job could not be read"])
        .await;
    reach_load(&sidecar, (1, 0), PATIENCE).await;
    manager = Manager::start_at(at, state).await;
    manager.end(1);
    reach_load(&sidecar, (0, 0), PATIENCE).await;
}

#[tokio::test]
async fn a_job_beyond_the_bound_gives_its_slot_back_with_its_answer() {
    let manager = Manager::start().await;
    let sections = "[jobs]\nmax = 1\nask_after = \"1h\"";
    let config = manager
        .config(PROXMOX, sections)
        .replace("outstanding_max = 1", "");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..2 {
        assert_eq!(clone(addr, "clone").await.status(), 200);
        reach_load(&sidecar, (1, 0), PATIENCE).await;
    }
    sidecar.log().wait(&["more jobs than jobs.max"]).await;
}

#[tokio::test]
async fn a_202_names_the_place_of_its_status() {
    let manager = Manager::start().await;
    let (sidecar, addr) = manager.before("\"operation-location\"", SILENT).await;
    // No job: the status is 200.
    assert_eq!(clone(addr, "clone").await.status(), 200);
    reach_load(&sidecar, (0, 0), PATIENCE).await;
    assert_eq!(clone(addr, "accepted").await.status(), 202);
    reach_load(&sidecar, (1, 0), PATIENCE).await;
    let path = format!("/api2/json/nodes/pve1/tasks/{}/status?sig=1", upid(2));
    for (answer, running) in [
        ("HTTP/1.1 202 ok\r\nContent-Length: 0\r\n\r\n", 1),
        (
            "HTTP/1.1 200 ok\r\nContent-Length: 20\r\n\r\n{\"status\":\"Running\"}",
            1,
        ),
        (
            "HTTP/1.1 200 ok\r\nContent-Length: 22\r\n\r\n{\"status\":\"Succeeded\"}",
            0,
        ),
    ] {
        manager.answer_instead(Some(answer));
        Peer::ask(addr, get(&path, TOKEN)).await;
        reach_load(&sidecar, (running, 0), PATIENCE).await;
    }
}

#[tokio::test]
async fn a_poll_waits_for_no_slot_that_a_job_holds() {
    let manager = Manager::start().await;
    let config = manager
        .config(PROXMOX, SILENT)
        .replace("outstanding = 10", "outstanding = 1");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    assert_eq!(clone(addr, "clone").await.status(), 200);
    assert!(poll(addr, 1).await.answer.body.contains("running"));
    manager.end(1);
    assert!(poll(addr, 1).await.answer.body.contains("stopped"));
    reach_load(&sidecar, (0, 0), Duration::from_secs(5)).await;
}

#[tokio::test]
async fn polls_and_questions_about_a_job_go_to_its_server() {
    let both = [Manager::start().await, Manager::start().await];
    both[1].state.lock().expect("sound").clones = 100;
    let servers = both.each_ref().map(|manager| {
        let addr = manager.backend.addr;
        let name = addr.port();
        format!(
            "[[backend.server]]\nname = \"{name}\"\nhttp = \"http://{addr}\"\noutstanding = 9\n"
        )
    });
    let single = format!("http = \"http://{}\"\n", both[0].backend.addr);
    let config = |asks: &str| {
        let config = both[0].config(PROXMOX, asks);
        let config = config.replace("outstanding_max = 1", "outstanding_max = 2");
        config.replace(&single, &servers.concat())
    };
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let start = async |config: &str| {
        Sidecar::start_in(Arc::clone(&dir), config, |it| Command::new(it)).await
    };
    let sidecar = start(&config(SILENT)).await;
    let addr = sidecar.listener("test").await;
    for _ in &both {
        assert_eq!(clone(addr, "clone").await.status(), 200);
    }
    let running = async |addr| {
        for number in [1, 101, 101, 1, 1, 101] {
            assert!(poll(addr, number).await.answer.body.contains("running"));
        }
    };
    running(addr).await;
    // The next process knows it from the ledger.
    sidecar.signal("KILL");
    sidecar.exited().await;
    let sidecar = start(&config(SILENT)).await;
    let addr = sidecar.listener("test").await;
    running(addr).await;
    for (manager, number) in both.iter().zip([1, 101]) {
        let questions = manager.state.lock().expect("sound").questions.clone();
        assert_eq!(questions.len(), 6);
        assert!(questions.iter().all(|it| it.contains(&upid(number))));
        manager.end(number);
        assert!(poll(addr, number).await.answer.body.contains("stopped"));
    }
    reach_load(&sidecar, (0, 0), PATIENCE).await;
    // And so does this one when it asks itself.
    sidecar.reload(&config(SOON)).await;
    for _ in &both {
        assert_eq!(clone(addr, "clone").await.status(), 200);
    }
    for (manager, number) in both.iter().zip([2, 102]) {
        manager.is_asked(9).await;
        let questions = manager.state.lock().expect("sound").questions.clone();
        assert!(questions[7..].iter().all(|it| it.contains(&upid(number))));
        manager.end(number);
    }
    reach_load(&sidecar, (0, 0), PATIENCE).await;
}

/// A job whose process ends holds its slot in the next one, until a poll of a client.
async fn a_job_over_the_end_of_its_process(signal: &str) {
    let manager = Manager::start().await;
    let config = manager.config(PROXMOX, SILENT);
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &config, |binary| Command::new(binary));
    let sidecar = start().await;
    let addr = sidecar.listener("test").await;
    assert_eq!(clone(addr, "clone").await.status(), 200);
    reach_load(&sidecar, (1, 0), PATIENCE).await;
    sidecar.signal(signal);
    sidecar.exited().await;
    let sidecar = start().await;
    let addr = sidecar.listener("test").await;
    let mut second = Peer::sending(addr, clone_request("clone")).await;
    reach_load(&sidecar, (1, 1), PATIENCE).await;
    assert!(poll(addr, 1).await.answer.body.contains("running"));
    reach_load(&sidecar, (1, 1), PATIENCE).await;
    manager.end(1);
    assert!(poll(addr, 1).await.answer.body.contains("stopped"));
    assert!(second.reply().await.answer.body.contains(&upid(2)));
}

#[tokio::test]
async fn a_job_of_a_process_that_was_killed_holds_its_slot_in_the_next_one() {
    a_job_over_the_end_of_its_process("KILL").await;
}

#[tokio::test]
async fn a_drain_waits_for_no_job_and_leaves_it_to_the_next_process() {
    a_job_over_the_end_of_its_process("TERM").await;
}

#[tokio::test]
async fn a_job_of_the_process_before_holds_its_slot_no_longer_than_its_route_allows() {
    let manager = Manager::start().await;
    let config = manager.config("{ preset = \"proxmox\", most = \"1500ms\" }", SILENT);
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &config, |binary| Command::new(binary));
    let sidecar = start().await;
    assert_eq!(
        clone(sidecar.listener("test").await, "clone")
            .await
            .status(),
        200
    );
    sidecar.signal("KILL");
    sidecar.exited().await;
    let sidecar = start().await;
    reach_load(&sidecar, (0, 0), PATIENCE).await;
}

#[tokio::test]
async fn a_job_goes_over_to_a_process_that_takes_over() {
    let manager = Manager::start().await;
    let config = manager.config(PROXMOX, SILENT);
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let old = Sidecar::start_in(Arc::clone(&dir), &config, |binary| Command::new(binary)).await;
    let addr = old.listener("test").await;
    assert_eq!(clone(addr, "clone").await.status(), 200);
    let new = Sidecar::take_over(dir).await;
    // The old process does not wait for the job.
    old.exited().await;
    let addr = new.listener("test").await;
    let mut second = Peer::sending(addr, clone_request("clone")).await;
    reach_load(&new, (1, 1), PATIENCE).await;
    manager.end(1);
    assert!(poll(addr, 1).await.answer.body.contains("stopped"));
    assert!(second.reply().await.answer.body.contains(&upid(2)));
}

#[tokio::test]
async fn operators_see_the_jobs_that_hold_slots() {
    let manager = Manager::start().await;
    let (sidecar, addr) = manager.before(PROXMOX, SILENT).await;
    assert_eq!(clone(addr, "clone").await.status(), 200);
    let mut second = Peer::sending(addr, clone_request("clone")).await;
    reach_load(&sidecar, (1, 1), PATIENCE).await;
    let (_, now) = sidecar.get("/v1/now").await;
    let now: Value = serde_json::from_str(&now).expect("JSON");
    let notices = now["notices"].to_string();
    assert!(
        notices.contains(&format!("1 slot is held by job {} (`clone`,", upid(1))),
        "{notices}"
    );
    let job = &now["jobs"][0];
    assert_eq!(
        (&job["id"], &job["function"]),
        (&json!(upid(1)), &json!("clone")),
        "{job}"
    );
    assert_eq!(job["call"].as_str().map(str::len), Some(16), "{job}");
    assert!(job["left_seconds"].as_f64() > Some(0.0), "{job}");
    let waiting = now["oldest_calls"][0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let (_, explained) = sidecar.get(&format!("/v1/calls/{waiting}")).await;
    assert!(
        explained.contains(&format!("; its slot is held by job {}", upid(1))),
        "{explained}"
    );
    sidecar.reaches("tidegate_jobs", 1.0).await;
    manager.end(1);
    assert_eq!(poll(addr, 1).await.status(), 200);
    assert_eq!(second.reply().await.status(), 200);
    sidecar
        .reaches("tidegate_jobs_ended_total{end=\"done\"}", 1.0)
        .await;
    let mut from = 0;
    let line = loop {
        let (line, next) = access_line(&sidecar, from).await;
        from = next;
        if line["function"] == "clone" {
            break line;
        }
    };
    let (job, whole) = (line["job_ms"].as_f64(), line["backend_ms"].as_f64());
    assert!(job.is_some() && job <= whole, "{line}");
    assert_eq!(line["job"].as_str().map(str::len), Some(16), "{line}");
}
