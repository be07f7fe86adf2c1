//! `docs/how-to/several-servers.md`: several servers behind one queue, through the real process. The servers' own records
//! decide.

mod farm;
mod table;

use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_lab::audit::{self, Assumptions, AuditReport, AuditVerdict, Log};
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;

use self::farm::{Farm, storm};
use crate::coming_from::call;
use crate::sidecar::{Sidecar, get};
use crate::support::{PATIENCE, closed_port, until, within_limits};

/// Calls at once of each server.
const AT_ONCE: u32 = 4;
const MS: Duration = Duration::from_millis(1);

/// The lines in `[backend]` for these servers, each with its name, address and further lines.
fn servers(options: &str, servers: &[(&str, SocketAddr, &str)]) -> String {
    let mut lines = format!("kind = \"http\"\non_client_left = \"finish\"\n{options}\n");
    for (name, addr, more) in servers {
        lines +=
            &format!("[[backend.server]]\nname = \"{name}\"\nhttp = \"http://{addr}\"\n{more}\n");
    }
    lines
}

/// A config with these lines in `[backend]`, in which only the servers limit calls at once.
fn unshared(backend: &str) -> String {
    within_limits(backend, "", "").replace("[limits]", "[limits]\noutstanding = 0")
}

fn request(path: &str, header: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\n{header}Connection: close\r\n\r\n")
}

async fn server(at: Option<SocketAddr>, delay: Duration) -> RunningBackend {
    let mut options = StandInOptions {
        delay,
        ..StandInOptions::on_free_ports()
    };
    if let Some(at) = at {
        options.http = at;
    }
    StandInBackend::start(options).await.expect("it listens")
}

/// Makes this many calls at once, and returns their statuses.
async fn calls(addr: SocketAddr, count: usize, header: &str) -> Vec<Option<u16>> {
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let request = request("/a", header);
        clients.spawn(async move {
            let called = tokio::time::timeout(PATIENCE, call(addr, &request));
            called.await.ok().flatten()
        });
    }
    clients.join_all().await
}

/// The report of `tidegate audit` about a limit of these servers.
fn audited(sidecar: &Sidecar, servers: &[&str], most: u32) -> AuditReport {
    let limits = servers.iter().map(|server| {
        let limit = format!("server:{server}={most}");
        limit.parse().expect("a limit")
    });
    let lines = Cursor::new(sidecar.log().lines().join("\n"));
    let log = Log::new("access".to_owned(), lines).expect("it is read");
    let assumptions = Assumptions {
        clock_error: Duration::from_millis(10),
        reorder: 1_000_000,
        ignore_missing: true,
    };
    let report = audit::audit(vec![log], limits.collect(), &assumptions);
    report.expect("one sidecar")
}

async fn now(sidecar: &Sidecar) -> serde_json::Value {
    let (_, body) = get(sidecar.admin, "/v1/now").await;
    serde_json::from_str(&body).expect("JSON")
}

/// A number of a limit, as `/v1/now` shows it.
fn of_limit(now: &serde_json::Value, limit: &str, number: &str) -> f64 {
    let limits = now["limits"].as_array().expect("a list");
    let found = limits.iter().find(|it| it["name"] == limit);
    found.map_or(0.0, |it| it[number].as_f64().expect("a number"))
}

/// Waits until a server is up, or down for as long, as `/v1/now` shows it.
async fn until_server(sidecar: &Sidecar, name: &str, is_up: bool, lasts: Duration) {
    let shown = async {
        loop {
            let now = now(sidecar).await;
            let backends = now["backends"].as_array().expect("a list");
            let server = backends.iter().find(|it| it["server"] == name);
            let server = server.expect("it is shown");
            let since = server["since_unix_ms"].as_u64().expect("a number");
            let by_now = SystemTime::now().duration_since(UNIX_EPOCH);
            let by_now = by_now.expect("after 1970").as_millis() as u64;
            if server["up"] == is_up && by_now >= since + lasts.as_millis() as u64 {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    let shown = tokio::time::timeout(PATIENCE, shown).await;
    shown.unwrap_or_else(|_| panic!("{name} is not up: {is_up}"));
}

#[tokio::test]
async fn one_server_of_three_dies_and_returns_twenty_times_and_costs_the_calls_that_were_there() {
    let farm = Farm::start(3, 60 * MS).await;
    let each = farm
        .addrs()
        .map(|(name, addr)| (name, addr, "outstanding = 4"));
    let each: Vec<_> = each.collect();
    let sidecar = Sidecar::start(&unshared(&servers("pick = \"least\"", &each))).await;
    let seen = storm(farm, sidecar.listener("test").await, (20, 8)).await;
    assert!(seen.most_at_once <= AT_ONCE, "{seen:?}");
    assert_eq!(seen.lost, 0, "{seen:?}");
    // Those that were there, also in its backlog.
    assert!(seen.failed <= u64::from(AT_ONCE) * 20, "{seen:?}");
    // The table has the figure of a quiet machine, with longer calls.
    assert!(seen.used >= 0.8, "{seen:?}");
    // A limit that is too small is the control.
    for (most, expected) in [(AT_ONCE, false), (AT_ONCE - 1, true)] {
        let report = audited(&sidecar, &["a", "b", "c"], most);
        let is_exceeded = report.verdict == AuditVerdict::Exceeded;
        assert_eq!(is_exceeded, expected, "{}", report.render());
    }
    let up = sidecar.get("/metrics").await.1;
    for (name, _, _) in each {
        let metric = format!("tidegate_server_up{{server=\"{name}\"}}");
        assert!(up.contains(&metric), "{up}");
    }
}

#[tokio::test]
async fn while_all_servers_are_down_the_queue_holds_and_it_goes_on_when_one_is_back() {
    let [first, second] = [closed_port(), closed_port()];
    let each = [("a", first, "outstanding = 2"), ("b", second, "")];
    let config = within_limits(&servers("pick = \"first\"", &each), "", "");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let waiting = tokio::spawn(calls(addr, 5, ""));
    let is_down = async {
        loop {
            let now = now(&sidecar).await;
            let backends = now["backends"].as_array().expect("a list").clone();
            let down = backends.iter().filter(|it| it["up"] == false).count();
            if down == 2 && now["queue"]["waiting"] == 5 {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    let is_down = tokio::time::timeout(PATIENCE, is_down).await;
    is_down.expect("both are down, and all wait");
    let back = server(Some(second), MS).await;
    assert_eq!(waiting.await.expect("no panic"), [Some(200); 5]);
    assert_eq!(back.report().answered, 5);
}

#[tokio::test]
async fn the_limits_of_a_server_that_is_back_grow_from_a_tenth_to_full() {
    let (a, later) = (server(None, MS).await, closed_port());
    let each = [
        ("a", a.http_addr(), "outstanding = 20"),
        ("b", later, "outstanding = 20\nper_window = 1000"),
    ];
    let backend = servers("ramp = \"2s\"\npick = \"least\"", &each);
    let sidecar = Sidecar::start(&unshared(&backend)).await;
    let addr = sidecar.listener("test").await;
    // Calls find that it is down, and go to the other one.
    assert_eq!(calls(addr, 4, "").await, [Some(200); 4]);
    until_server(&sidecar, "b", false, Duration::from_millis(1100)).await;
    let back = server(Some(later), MS).await;
    // One call at a time is enough to find that it is back.
    let found = async {
        while back.report().answered == 0 {
            assert_eq!(calls(addr, 1, "").await, [Some(200)]);
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    found.expect("a probe goes to it");
    until_server(&sidecar, "b", true, Duration::ZERO).await;
    let first = now(&sidecar).await;
    for (limit, full) in [("server:b", 20.0), ("server:b:window", 1000.0)] {
        let allowed = of_limit(&first, limit, "allowed");
        assert!((full / 10.0..full).contains(&allowed), "{limit}: {first}");
    }
    assert_eq!(of_limit(&first, "server:a", "allowed"), 20.0);
    until_server(&sidecar, "b", true, Duration::from_millis(2100)).await;
    let full = now(&sidecar).await;
    assert_eq!(of_limit(&full, "server:b", "allowed"), 20.0, "{full}");
}

#[tokio::test]
async fn a_reload_adds_and_removes_servers_and_the_calls_of_a_removed_one_end() {
    let [a, b, c] = [
        server(None, 200 * MS).await,
        server(None, 200 * MS).await,
        server(None, 200 * MS).await,
    ];
    let lines = "outstanding = 2";
    let with = |each: &[(&str, SocketAddr, &str)]| within_limits(&servers("", each), "", "");
    let both = [("a", a.http_addr(), lines), ("b", b.http_addr(), lines)];
    let sidecar = Sidecar::start(&with(&both)).await;
    let addr = sidecar.listener("test").await;
    let running = tokio::spawn(calls(addr, 4, ""));
    a.wait_until(|seen| seen.in_flight == 2).await;
    let after = [("b", b.http_addr(), lines), ("c", c.http_addr(), lines)];
    sidecar.reload(&with(&after)).await;
    let later = calls(addr, 8, "").await;
    assert_eq!(later, [Some(200); 8]);
    assert_eq!(running.await.expect("no panic"), [Some(200); 4]);
    assert_eq!(a.report().calls, 2, "no new call went there");
    assert!(c.report().answered > 0);
    for seen in [a.report(), b.report(), c.report()] {
        assert!(seen.peak_in_flight <= 2, "{seen:?}");
    }
}

#[tokio::test]
async fn calls_with_one_key_go_to_one_server_and_to_another_only_if_it_is_full() {
    let [a, b] = [server(None, 50 * MS).await, server(None, 50 * MS).await];
    let each = [
        ("a", a.http_addr(), "outstanding = 1"),
        ("b", b.http_addr(), "outstanding = 1"),
    ];
    let sticky = "pick = \"sticky\"\nsticky_by = \"header:X-Session\"\nsticky_wait = \"2s\"";
    let config = within_limits(&servers(sticky, &each), "", "");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    assert_eq!(calls(addr, 4, "X-Session: one\r\n").await, [Some(200); 4]);
    let answered = [a.report().answered, b.report().answered];
    assert!(answered.contains(&4), "{answered:?}");
    // Calls without a key go to any.
    assert_eq!(calls(addr, 6, "").await, [Some(200); 6]);
    let by_now = [a.report().answered, b.report().answered];
    assert!(by_now.iter().zip(answered).all(|(now, then)| *now > then));
}

#[tokio::test]
async fn the_next_process_holds_the_calls_of_each_server() {
    let [a, b] = [server(None, PATIENCE).await, server(None, PATIENCE).await];
    let each = [
        ("a", a.http_addr(), "outstanding = 1"),
        ("b", b.http_addr(), "outstanding = 3"),
    ];
    let config = within_limits(&servers("after_crash = \"60s\"", &each), "", "");
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let first = Sidecar::start_in(Arc::clone(&dir), &config, |it| Command::new(it)).await;
    let addr = first.listener("test").await;
    let mut clients: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        use tokio::io::AsyncWriteExt as _;
        let mut client = TcpStream::connect(addr).await.expect("it listens");
        let request = request("/a", "");
        client
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        clients.push(client);
    }
    a.wait_until(|seen| seen.calls == 1).await;
    b.wait_until(|seen| seen.calls == 3).await;
    first.signal("KILL");
    first.exited().await;
    let next = Sidecar::start_in(dir, &config, |it| Command::new(it)).await;
    let now = now(&next).await;
    assert_eq!(of_limit(&now, "server:a", "used"), 1.0, "{now}");
    assert_eq!(of_limit(&now, "server:b", "used"), 3.0, "{now}");
}

#[test]
fn mistakes_about_servers_are_named() {
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let check = |options: &str, each: &[(&str, SocketAddr, &str)], expected: &str| {
        let text = within_limits(&servers(options, each), "", "");
        let read = tidegate::config::read(&text, "test.toml", std::iter::empty());
        let found = match read {
            Ok(loaded) => loaded.warnings.render(false),
            Err(problems) => problems.render(false),
        };
        assert!(found.contains(expected), "{expected}: {found}");
    };
    let (a, b) = (("a", address(1), ""), ("b", address(2), ""));
    check(
        "",
        &[a, ("a", address(2), "")],
        "is another server's name too",
    );
    check(
        "",
        &[a, ("b", address(1), "")],
        "is another server's address too",
    );
    check(
        "http = \"http://127.0.0.1:9\"",
        &[a, b],
        "is one address here, and several",
    );
    check("pick = \"sticky\"", &[a, b], "has no key");
    let (most, some) = ("outstanding = 8", "outstanding = 4");
    check(
        "",
        &[("a", address(1), most), ("b", address(2), some)],
        "together, and outstanding in [limits] is 10 unless it is given",
    );
    check(
        "sticky_by = \"caller\"",
        &[a, b],
        "it has no effect without pick",
    );
    check("pick = \"first\"", &[], "there is no [[backend.server]]");
    let tls = "outstanding = 1\n[[backend.server]]\nname = \"t\"\nhttp = \"https://127.0.0.1:3\"";
    check(
        "",
        &[("a", address(1), tls)],
        "TLS to one of several servers",
    );
}

#[tokio::test]
async fn a_process_with_several_servers_does_not_hand_over() {
    let each = [("a", closed_port(), ""), ("b", closed_port(), "")];
    let config = within_limits(&servers("", &each), "", "");
    let dir = Arc::new(tempfile::tempdir().expect("a folder"));
    let first = Sidecar::start_in(Arc::clone(&dir), &config, |it| Command::new(it)).await;
    let path = first.config_path().to_owned();
    let mut second = Command::new(crate::sidecar::TIDEGATE);
    second.args(["serve", "--take-over", "--config"]).arg(&path);
    second.env("TIDEGATE_RUNTIME_DIR", path.with_extension("run"));
    let said = crate::sidecar::run(&mut second).await;
    assert!(
        said.err.contains("several servers"),
        "{}{}",
        said.out,
        said.err
    );
    until(|| !first.log().lines().is_empty(), String::new).await;
}
