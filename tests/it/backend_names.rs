//! A backend's name that moves, or has several addresses: calls follow it, a dead address costs one connect, and
//! operators see what the name means now.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::call::Destination;
use tidegate::forward::{Resolve, Resolving};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::pooled::{Deaf, LIMITED};
use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::{PATIENCE, Scripted, Stack, ask, cannot_run, in_turn, pass, settle, until};

const MS: Duration = Duration::from_millis(1);

fn by_name(more: &str) -> String {
    in_turn(
        &format!("http = \"http://sdk.example\"\npool_idle_timeout = \"1h\"\n{more}"),
        "",
    )
}

/// A name whose addresses can change. Without addresses, lookups fail.
struct MovingName(Mutex<Vec<SocketAddr>>);

impl MovingName {
    fn at(addresses: &[SocketAddr]) -> Arc<Self> {
        Arc::new(Self(Mutex::new(addresses.to_vec())))
    }

    fn move_to(&self, addresses: &[SocketAddr]) {
        *self.0.lock().expect("no panic") = addresses.to_vec();
    }
}

impl Resolve for MovingName {
    fn resolve(&self, _: &str, _: u16) -> Resolving {
        let addresses = self.0.lock().expect("no panic").clone();
        Box::pin(async move {
            match addresses.is_empty() {
                true => Err(io::Error::other("no server answered")),
                false => Ok(addresses),
            }
        })
    }
}

/// A backend that answers with its name, and counts its open connections. A request for `/slow` is answered when
/// the test says so.
struct NamedBackend {
    backend: Scripted,
    open: Arc<AtomicUsize>,
    slow: Arc<Notify>,
}

impl NamedBackend {
    async fn start(name: &'static str) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), name).await
    }

    async fn start_at(addr: SocketAddr, name: &'static str) -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let slow = Arc::new(Notify::new());
        let (count, go) = (Arc::clone(&open), Arc::clone(&slow));
        let backend = Scripted::start_at(addr, move |_, mut stream| {
            let (count, go) = (Arc::clone(&count), Arc::clone(&go));
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                let mut request = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut request).await {
                    if request[..read].starts_with(b"GET /slow") {
                        go.notified().await;
                    }
                    let length = name.len();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
                count.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await;
        Self {
            backend,
            open,
            slow,
        }
    }

    fn addr(&self) -> SocketAddr {
        self.backend.addr
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

/// Makes a call, and returns the name of the backend that answered.
async fn answered_by(stack: &Stack) -> String {
    let answer = timeout(PATIENCE, stack.ask(LIMITED))
        .await
        .expect("no hang");
    let name = answer.rsplit("\r\n\r\n").next();
    name.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn steady_calls_follow_a_name_that_moves_within_the_age_of_a_connection() {
    let (old, new) = (
        NamedBackend::start("old").await,
        NamedBackend::start("new").await,
    );
    let name = MovingName::at(&[old.addr()]);
    let stack = Stack::resolving(&by_name("pool_max_age = \"500ms\""), Arc::clone(&name) as _);
    for _ in 0..3 {
        assert_eq!(answered_by(&stack).await, "old");
    }
    name.move_to(&[new.addr()]);
    let moved = Instant::now();
    loop {
        let is_late = moved.elapsed() > 600 * MS;
        let by = answered_by(&stack).await;
        match is_late {
            false => assert!(["old", "new"].contains(&&*by), "{by}"),
            true => {
                assert_eq!(by, "new");
                break;
            }
        }
        pass(20 * MS).await;
    }
    stack.at_rest().await;
    until(|| old.open() == 0, || format!("{} open", old.open())).await;
}

#[tokio::test]
async fn without_a_limit_of_age_a_connection_is_used_on() {
    let (old, new) = (
        NamedBackend::start("old").await,
        NamedBackend::start("new").await,
    );
    let name = MovingName::at(&[old.addr()]);
    let stack = Stack::resolving(&by_name("pool_max_age = \"0s\""), Arc::clone(&name) as _);
    assert_eq!(answered_by(&stack).await, "old");
    stack.at_rest().await;
    name.move_to(&[new.addr()]);
    assert_eq!(answered_by(&stack).await, "old");
}

#[tokio::test]
async fn a_reload_without_a_change_follows_a_name_that_moved_at_once() {
    let (old, new) = (
        NamedBackend::start("old").await,
        NamedBackend::start("new").await,
    );
    let name = MovingName::at(&[old.addr()]);
    let config = by_name("pool_max_age = \"1h\"");
    let stack = Arc::new(Stack::resolving(&config, Arc::clone(&name) as _));
    // Idle and busy connections to the old address.
    let slow = tokio::spawn({
        let stack = Arc::clone(&stack);
        let request = LIMITED.replace("/guests", "/slow");
        async move { stack.ask(request).await }
    });
    stack.busy(1, 0).await;
    assert_eq!(answered_by(&stack).await, "old");
    until(|| old.open() == 2, || format!("{} open", old.open())).await;
    name.move_to(&[new.addr()]);
    assert_eq!(
        answered_by(&stack).await,
        "old",
        "nothing has said that it moved"
    );
    stack.move_backends(&config);
    until(|| old.open() == 1, || format!("{} open", old.open())).await;
    assert_eq!(answered_by(&stack).await, "new");
    // A call under way ends where it began, and its connection is not used again.
    old.slow.notify_one();
    assert!(slow.await.expect("no panic").ends_with("old"));
    until(|| old.open() == 0, || format!("{} open", old.open())).await;
    for _ in 0..4 {
        assert_eq!(answered_by(&stack).await, "new");
    }
    stack.at_rest().await;
    // Connections to an address that stays are kept.
    stack.move_backends(&config);
    settle().await;
    assert_eq!(new.open(), 1);
}

#[tokio::test]
async fn a_reload_whose_lookup_fails_keeps_all_connections() {
    let backend = NamedBackend::start("old").await;
    let name = MovingName::at(&[backend.addr()]);
    let config = by_name("pool_max_age = \"1h\"");
    let stack = Stack::resolving(&config, Arc::clone(&name) as _);
    assert_eq!(answered_by(&stack).await, "old");
    stack.at_rest().await;
    name.move_to(&[]);
    stack.move_backends(&config);
    let forwarder = &stack.pipeline.forwarder;
    let state = || {
        forwarder
            .name_state(Destination::Http)
            .expect("it has a name")
    };
    until(|| state().failure.is_some(), || format!("{:?}", state())).await;
    assert_eq!(state().failure.as_deref(), Some("no server answered"));
    assert_eq!(state().addresses[0].address, backend.addr());
    assert_eq!(answered_by(&stack).await, "old");
    assert_eq!(backend.open(), 1);
}

#[tokio::test]
async fn a_dead_address_costs_one_connect_and_not_each() {
    let dead = Deaf::start().await;
    let backend = NamedBackend::start("alive").await;
    let name = MovingName::at(&[dead.addr, backend.addr()]);
    let stack = Stack::resolving(&by_name("pool_max_idle = 0"), name);
    let first = Instant::now();
    assert_eq!(answered_by(&stack).await, "alive");
    assert!(first.elapsed() >= 100 * MS, "{:?}", first.elapsed());
    let others = Instant::now();
    for _ in 0..20 {
        assert_eq!(answered_by(&stack).await, "alive");
    }
    // Each would wait 100 ms for the dead address.
    assert!(others.elapsed() < 1900 * MS, "{:?}", others.elapsed());
    let state = stack.pipeline.forwarder.name_state(Destination::Http);
    let addresses = state.expect("it has a name").addresses;
    let shown: Vec<_> = addresses
        .iter()
        .map(|it| (it.address, it.is_in_use, it.failure.is_some()))
        .collect();
    assert_eq!(
        shown,
        [(dead.addr, false, true), (backend.addr(), true, false)]
    );
}

/// A config of the real process, whose backend is at a port of this host.
fn at_host(host: &str, port: u16, more: &str) -> String {
    format!(
        "[[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
         [backend]\nkind = \"http\"\nhttp = \"http://{host}:{port}\"\n{more}\n\
         [limits]\nper_window = \"total:1000\"\n[admin]\nbind = \"127.0.0.1:0\"\n"
    )
}

#[tokio::test]
async fn operators_see_the_addresses_of_a_name() {
    let backend = NamedBackend::start("here").await;
    let address = backend.addr().to_string();
    let config = at_host("localhost", backend.addr().port(), "");
    let sidecar = Sidecar::start(&config).await;
    let now = async || -> Value {
        let text = sidecar.get("/v1/now").await.1;
        let now: Value = serde_json::from_str(&text).expect("it is JSON");
        now["backends"][0].clone()
    };
    let before = now().await;
    assert_eq!(before["addresses"], json!([]));
    assert_eq!(before["looked_up_seconds_ago"], Value::Null);
    // A reload looks the name up, also without a call.
    sidecar.reload(&config).await;
    let mut seen = now().await;
    while seen["addresses"] == json!([]) {
        sleep(10 * MS).await;
        seen = now().await;
    }
    let answer = ask(sidecar.listener("test").await, LIMITED).await;
    assert!(answer.ends_with("here"), "{answer}");
    let seen = now().await;
    let addresses = seen["addresses"].as_array().expect("a list");
    let ours = json!({"address": address, "in_use": true, "failure": null});
    assert!(addresses.contains(&ours), "{seen}");
    assert!(seen["looked_up_seconds_ago"].is_number(), "{seen}");
    assert_eq!(seen["lookup_failure"], Value::Null);
    let path = sidecar.config_path().display().to_string();
    let mut command = Command::new(TIDEGATE);
    command.args(["check", "--probe", "--json", "--config", &path]);
    let report: Value = serde_json::from_str(&run(&mut command).await.out).expect("it is JSON");
    let checks = report["checks"].as_array().expect("a list");
    let name = checks
        .iter()
        .find(|it| it["group"] == "backend" && it["check"] == "name");
    let name = name.expect("the name is checked");
    assert_eq!(
        (&name["about"], &name["status"]),
        (&json!("http name"), &json!("ok"))
    );
    let found = name["found"].as_str().unwrap_or_default();
    assert!(found.contains(&format!("{address} (in use)")), "{found}");
}

/// Whether a process can have an `/etc/hosts` of its own here.
async fn can_have_its_own_hosts() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "true"]);
    let output = command.output().await;
    output.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn the_process_follows_a_name_that_moves_at_a_reload_and_by_the_age_of_its_connections() {
    if !can_have_its_own_hosts().await {
        return cannot_run(
            "backend_names: a name that moves",
            "no mount namespace can be made",
        );
    }
    let one = NamedBackend::start("one").await;
    let port = one.addr().port();
    let two = NamedBackend::start_at(([127, 0, 0, 2], port).into(), "two").await;
    let dir = tempfile::tempdir().expect("a place");
    let hosts = dir.path().join("hosts");
    // Written in place, because a new file would not be the mounted one.
    let move_to = |ip: &str| {
        let text = format!("{ip} sdk.example\n");
        std::fs::write(&hosts, text).expect("it can be written to");
    };
    move_to("127.0.0.1");
    let config = |age: &str| {
        let more = format!("pool_idle_timeout = \"1h\"\npool_max_age = \"{age}\"");
        at_host("sdk.example", port, &more)
    };
    let sidecar = Sidecar::start_with(&config("1h"), |binary| {
        let mut command = Command::new("unshare");
        // Without servers in its file, the resolver asks this machine, which refuses at once.
        let mounted = "mount --bind \"$0\" /etc/hosts && mount --bind /dev/null /etc/resolv.conf; \
                       exec \"$@\"";
        command.args(["--map-root-user", "--mount", "sh", "-c", mounted]);
        command.arg(&hosts).arg(binary);
        command
    })
    .await;
    let listener = sidecar.listener("test").await;
    let answered_by = async || -> String {
        let answer = ask(listener, LIMITED).await;
        answer
            .rsplit("\r\n\r\n")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(answered_by().await, "one");
    move_to("127.0.0.2");
    assert_eq!(answered_by().await, "one");
    let from = sidecar.log().lines().len();
    sidecar.hang_up("config reloaded").await;
    let closed = "closed idle connections to addresses";
    sidecar.log().wait_from(from, &[closed]).await;
    until(|| one.open() == 0, || format!("{} open", one.open())).await;
    assert_eq!(answered_by().await, "two");
    // A lookup that fails retires nothing.
    std::fs::write(&hosts, "").expect("it can be written to");
    let from = sidecar.log().lines().len();
    sidecar.hang_up("config reloaded").await;
    let failed = "was not looked up after the reload";
    let (line, _) = sidecar.log().wait_from(from, &[failed, "WARN"]).await;
    assert!(line.contains("cannot look up the backend's name"), "{line}");
    assert_eq!(answered_by().await, "two");
    move_to("127.0.0.2");
    // The age of the new config applies to the open connection too.
    sidecar.reload(&config("500ms")).await;
    move_to("127.0.0.1");
    let moved = Instant::now();
    loop {
        let is_late = moved.elapsed() > 600 * MS;
        let by = answered_by().await;
        if is_late {
            assert_eq!(by, "one");
            break;
        }
        sleep(20 * MS).await;
    }
    until(|| two.open() == 0, || format!("{} open", two.open())).await;
}
