//! The tests of quotas on real stores.

use tidegate_runtime::zookeeper::{ZooKeeperClient, ZooKeeperSettings};

use super::*;

use crate::child::Process;
use crate::sidecar;
use crate::stores::{Etcd, Redis, ZooKeeper};

/// Two sidecars with the store of this config spend one budget exactly.
pub(super) async fn shares_exactly(quota: &str) {
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("all", "total", 200, LONG, REJECT);
    let text = text(backend.addr, &format!("{quota}\n{TWO}"), &limits);
    let [a, b] = [Sidecar::with_store(&text), Sidecar::with_store(&text)];
    for sidecar in [&a, &b] {
        eventually(async || {
            let store = sidecar.quotas().await["store"].clone();
            let ready = store["members"] == 2 && !store["time_uncertainty_seconds"].is_null();
            ready.then_some(())
        })
        .await;
    }
    spend_exactly(&a, &b, "all", "all", 200).await;
    let engine = a.quotas().await["store"]["engine"].clone();
    let engine = engine.as_str().expect("a name");
    let up = format!("tidegate_quota_store_up{{engine=\"{engine}\"}}");
    assert_eq!(a.metric(&up).await, 1.0);
}

fn on_zookeeper(zookeeper: &ZooKeeper) -> String {
    let addr = zookeeper.addr(0);
    format!("engine = \"zookeeper\"\nservers = [\"{addr}\"]\nsession_timeout = \"2s\"")
}

fn on_etcd(etcd: &Etcd) -> String {
    format!("engine = \"etcd\"\nservers = [\"{}\"]", etcd.url(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_zookeeper() {
    let zookeeper = ZooKeeper::start(1).await;
    shares_exactly(&on_zookeeper(&zookeeper)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_etcd() {
    let etcd = Etcd::start(1);
    shares_exactly(&on_etcd(&etcd)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_redis() {
    let redis = Redis::start(&[]);
    let addr = redis.addr();
    shares_exactly(&format!(
        "engine = \"redis\"\nservers = [\"redis://{addr}\"]"
    ))
    .await;
}

/// Calls within the safe share need no draw, so no call asks the store about the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_total_in_zookeeper_reaches_a_key_that_spends_only_the_sidecars_own_share() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let made = client.create("/quota/eve/total", b"0").await;
    made.expect("it is up").expect("it is new");
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 100_000, "1s", "");
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    sidecar.call("other").await;
    let is_whole = |key: &Value| key["safe"] == 50_000;
    sidecar.until_key("per_user", "other", is_whole).await;
    eventually(async || {
        let answer = sidecar.call("eve").await;
        answer.body.contains("never_possible").then_some(())
    })
    .await;
    let key = sidecar.key("per_user", "eve").await.expect("it is known");
    assert!(
        key["record"].is_null() && key["window_total"].is_null(),
        "{key}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_total_in_zookeeper_holds_before_the_first_draw_and_changes_live() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let made = client.create("/quota/alice/total", b"7").await;
    let mut version = made.expect("it is up").expect("it is new").version;
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 3, "1s", REJECT);
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    let until = async |user: &str, is_so: &dyn Fn(&Value) -> bool| {
        eventually(async || {
            // Each window is opened by a call.
            sidecar.call(user).await;
            sidecar.key("per_user", user).await.filter(is_so)
        })
        .await
    };
    let first = until("alice", &|key| !key["window_total"].is_null()).await;
    assert_eq!(
        first["window_total"], 7,
        "no window was opened by the config's total"
    );
    let first = until("bob", &|key| !key["window_total"].is_null()).await;
    assert_eq!(first["window_total"], 3);
    for (text, total, trouble) in [
        ("12", 12, ""),
        ("many", 12, "must be a number"),
        ("4", 4, ""),
    ] {
        let set = client
            .set("/quota/alice/total", text.as_bytes(), version)
            .await;
        version = set
            .expect("it is up")
            .expect("no other client writes")
            .version;
        until("alice", &|key| {
            let said = key["trouble"].to_string();
            let as_it_should = match trouble {
                "" => said == "[]",
                trouble => said.contains(trouble),
            };
            as_it_should && key["total"] == total && key["window_total"] == total
        })
        .await;
    }
    // Another program that writes the design's own nodes spends tokens that no sidecar knows of.
    client
        .create("/quota/alice/usable", b"5")
        .await
        .expect("it is up")
        .expect("it is new");
    until("alice", &|key| {
        key["trouble"].to_string().contains("/quota/alice/usable")
    })
    .await;
    // A user whose name is no name of a node.
    until("a/b", &|key| key["window_total"] == 3).await;
    let record = client
        .get("/quota/a%2Fb/window")
        .await
        .expect("it is up")
        .expect("it was made");
    assert!(QuotaRecord::parse(&record.data).is_ok());
}

/// A store whose one member stands still for longer than a session lasts, and goes on.
async fn stalls(quota: &str, member: &Process) {
    let backend = Scripted::in_both_dialects().await;
    let deny = "on_excess = \"reject\"\nwhen_store_away = \"deny\"";
    let limits = limit("per_user", "user", 1000, LONG, deny);
    let sidecar = Sidecar::with_store(&text(backend.addr, &format!("{quota}\n{ALONE}"), &limits));
    eventually(async || (sidecar.call("alice").await.status == 200).then_some(())).await;
    member.signal("STOP");
    // Its knowledge of the sidecar is gone when it comes back.
    let stopped = Instant::now();
    let mut users = 0;
    eventually(async || (sidecar.quotas().await["store"]["up"] == false).then_some(())).await;
    while stopped.elapsed() < Duration::from_secs(4) {
        users += 1;
        assert_eq!(sidecar.call(&format!("u{users}")).await.status, 503);
    }
    member.signal("CONT");
    eventually(async || (sidecar.call("carol").await.status == 200).then_some(())).await;
    eventually(async || {
        let store = sidecar.quotas().await["store"].clone();
        (store["up"] == true && store["members"] == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_stalls_is_reported_and_recovery_is_automatic() {
    let mut zookeeper = ZooKeeper::start(1).await;
    let quota = on_zookeeper(&zookeeper);
    stalls(&quota, zookeeper.member(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_stalls_is_reported_and_recovery_is_automatic() {
    let mut etcd = Etcd::start(1);
    let quota = format!("{}\nsession_timeout = \"2s\"", on_etcd(&etcd));
    stalls(&quota, etcd.member(0)).await;
}

/// Calls of N users, one each, over 32 connections; returns how many got each status.
async fn one_call_each(address: SocketAddr, users: std::ops::Range<usize>) -> (usize, usize) {
    const CONNECTIONS: usize = 32;
    let next = Arc::new(AtomicUsize::new(users.start));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (next, end) = (Arc::clone(&next), users.end);
        clients.spawn(async move {
            let (mut passed, mut others) = (0, 0);
            loop {
                let user = next.fetch_add(1, Ordering::SeqCst);
                if user >= end {
                    return (passed, others);
                }
                match call(address, &format!("user-{user}")).await.status {
                    200 => passed += 1,
                    _ => others += 1,
                }
            }
        });
    }
    let counted = clients.join_all().await;
    counted
        .into_iter()
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hiccup_of_zookeeper_under_thousands_of_new_users_is_over_when_it_is_over() {
    const USERS: usize = 6_000;
    let mut zookeeper = ZooKeeper::start(1).await;
    let backend = Scripted::in_both_dialects().await;
    let deny = "on_excess = \"reject\"\nwhen_store_away = \"deny\"";
    let limits = limit("per_user", "user", 1_000_000, "1s", deny);
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    let address = sidecar.address;
    eventually(async || (sidecar.call("alice").await.status == 200).then_some(())).await;
    let load = tokio::spawn(one_call_each(address, 0..USERS));
    tokio::time::sleep(Duration::from_millis(500)).await;
    zookeeper.member(0).signal("STOP");
    tokio::time::sleep(Duration::from_secs(1)).await;
    zookeeper.member(0).signal("CONT");
    let back = Instant::now();
    eventually(async || (sidecar.call("alice").await.status == 200).then_some(())).await;
    let known = back.elapsed();
    // While the others go on.
    eventually(async || (sidecar.call("new").await.status == 200).then_some(())).await;
    let new = back.elapsed();
    let (passed, others) = load.await.expect("no client panics");
    println!("used before {known:?}, new {new:?}, {passed} passed, {others} did not");
    assert!(known < Duration::from_secs(3), "{known:?}, new {new:?}");
    assert!(new < Duration::from_secs(5), "{new:?}");
    // From then on there is no fault, so no call is refused.
    let (passed, others) = one_call_each(address, USERS..USERS + 1_000).await;
    assert_eq!((passed, others), (1_000, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_zookeeper_takes_at_most_4_kilobytes() {
    const USERS: usize = 4_000;
    let zookeeper = ZooKeeper::start(1).await;
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 1_000, LONG, REJECT);
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = sidecar::Sidecar::start(&text(backend.addr, &quota, &limits)).await;
    let address = sidecar.listener("test").await;
    let kilobytes = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let words = line.expect("Linux tells it").split_whitespace().next();
        words
            .and_then(|word| word.parse::<usize>().ok())
            .expect("a number")
    };
    eventually(async || (call(address, "alice").await.status == 200).then_some(())).await;
    one_call_each(address, 0..1_000).await;
    let before = kilobytes();
    one_call_each(address, 1_000..1_000 + USERS).await;
    let grown = kilobytes() - before;
    println!("{} bytes a key", grown * 1024 / USERS);
    assert!(grown <= 4 * USERS, "{} bytes a key", grown * 1024 / USERS);
}

#[tokio::test]
async fn a_store_that_wants_a_password_is_reported_in_log_and_page() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let backend = Scripted::in_both_dialects().await;
    let servers = format!(
        "engine = \"redis\"\nservers = [\"redis://{}\"]",
        redis.addr()
    );
    let limits = limit("all", "total", 5, LONG, REJECT) + &limit("beside", "user", 5, LONG, REJECT);
    let text = |password: &str| {
        text(
            backend.addr,
            &format!("{servers}\n{password}\n{ALONE}"),
            &limits,
        ) + "\n[log]\naccess = true"
    };
    for password in ["", "password = \"wrong\""] {
        let sidecar = sidecar::Sidecar::start(&text(password)).await;
        let address = sidecar.listener("test").await;
        eventually(async || (call(address, "").await.status == 503).then_some(())).await;
        let refused = sidecar
            .log()
            .wait(&["\"reason\":\"quota_store_away\""])
            .await;
        assert!(refused.contains("rate_limit:all"), "{refused}");
        let logged = sidecar
            .log()
            .wait(&["the store wants other credentials"])
            .await;
        assert!(!logged.contains("wrong\""), "{logged}");
        eventually(async || {
            let (_, page) = sidecar.get("/quotas").await;
            page.contains("the store wants other credentials")
                .then_some(())
        })
        .await;
    }
}

/// A Secret of Kubernetes often ends with the newline of the file that it was made from.
#[tokio::test]
async fn a_password_that_rotates_takes_effect_by_a_reload_and_its_line_end_does_not_count() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("all", "total", 1_000, LONG, REJECT);
    let text = |password: &str, root: &str| {
        let servers = format!(
            "engine = \"redis\"\nservers = [\"redis://{}\"]\npassword = \"{password}\"{root}",
            redis.addr()
        );
        text(backend.addr, &format!("{servers}\n{ALONE}"), &limits)
    };
    let sidecar = sidecar::Sidecar::start(&text("old", "")).await;
    let address = sidecar.listener("test").await;
    eventually(async || (call(address, "").await.status == 503).then_some(())).await;
    sidecar.write_config(&text("right\\n", ""));
    let lines = sidecar.hang_up("config reloaded").await;
    let waits = |line: &String| line.contains("only after a restart");
    assert!(!lines.iter().any(waits), "{lines:#?}");
    eventually(async || (call(address, "").await.status == 200).then_some(())).await;
    // Another place of the records is another budget, and takes effect only after a restart.
    sidecar.write_config(&text("right", "\nroot = \"other:\""));
    let lines = sidecar.hang_up("config reloaded").await;
    let warned = |line: &String| waits(line) && line.contains("\"quota_store.root\"");
    assert!(lines.iter().any(warned), "{lines:#?}");
    assert_eq!(call(address, "").await.status, 200);
}

#[tokio::test]
async fn a_store_that_answers_nonsense_is_reported_and_the_limits_hold() {
    let backend = Scripted::in_both_dialects().await;
    let nonsense = Scripted::start(|_, mut stream| async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut request = [0; 1024];
        while stream.read(&mut request).await.unwrap_or(0) > 0 {
            if stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\n???")
                .await
                .is_err()
            {
                return;
            }
        }
    })
    .await;
    let addr = nonsense.addr;
    for quota in [
        format!("engine = \"zookeeper\"\nservers = [\"{addr}\"]"),
        format!("engine = \"etcd\"\nservers = [\"http://{addr}\"]"),
        format!("engine = \"redis\"\nservers = [\"redis://{addr}\"]"),
    ] {
        let limits = limit("all", "total", 5, LONG, REJECT);
        let sidecar =
            Sidecar::with_store(&text(backend.addr, &format!("{quota}\n{ALONE}"), &limits));
        assert_eq!(sidecar.call("").await.status, 503, "{quota}");
        eventually(async || {
            let told = sidecar.quotas().await["store"].clone();
            told["trouble"]["text"].is_string().then_some(())
        })
        .await;
        // The admin address and calls of no quota go on.
        assert_eq!(sidecar.get("/livez").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_two_processes_show_the_audit_that_no_window_was_exceeded() {
    const TOTAL: u64 = 60;
    let redis = Redis::start(&[]);
    let backend = Scripted::in_both_dialects().await;
    let quota = format!(
        "engine = \"redis\"\nservers = [\"redis://{}\"]\n{TWO}",
        redis.addr()
    );
    let limits = limit("all", "total", TOTAL, "1s", "on_excess = \"reject\"")
        + &limit("per_user", "user", TOTAL, "1s", REJECT);
    let text = text(backend.addr, &quota, &limits) + "\n[log]\naccess = true";
    let sidecars = [
        sidecar::Sidecar::start(&text).await,
        sidecar::Sidecar::start(&text).await,
    ];
    let mut load = JoinSet::new();
    for (number, sidecar) in sidecars.iter().enumerate() {
        let address = sidecar.listener("test").await;
        for client in 0..4 {
            let user = format!("u{}", (number + client) % 3);
            load.spawn(async move {
                let started = Instant::now();
                let mut passed = 0;
                while started.elapsed() < Duration::from_secs(4) {
                    passed += u64::from(call(address, &user).await.status == 200);
                }
                passed
            });
        }
    }
    let passed: u64 = load.join_all().await.into_iter().sum();
    // Four windows and the parts of two; half of each window is safe shares.
    assert!((TOTAL..=6 * TOTAL).contains(&passed), "{passed}");
    let folder = tempfile::tempdir().expect("there is room");
    let mut audit = tokio::process::Command::new(sidecar::with_programs());
    audit.arg("audit");
    let mut drawn = 0;
    for (number, sidecar) in sidecars.into_iter().enumerate() {
        sidecar.signal("TERM");
        let (status, lines) = sidecar.ended().await;
        assert!(status.success(), "{status}");
        drawn += lines
            .iter()
            .filter(|line| line.contains("\"quota\":[{"))
            .count();
        let log = folder.path().join(format!("{number}.log"));
        std::fs::write(&log, lines.join("\n")).expect("it can be written to");
        audit.arg(log);
    }
    assert_eq!(
        drawn as u64, passed,
        "each call that passed says what it drew"
    );
    let said = sidecar::run(&mut audit).await;
    assert_eq!(said.code, Some(0), "{}\n{}", said.out, said.err);
    assert!(said.out.contains("rate_limit:all"), "{}", said.out);
    assert!(said.out.contains("rate_limit:per_user"), "{}", said.out);
}

#[tokio::test]
async fn a_store_with_nothing_listening_is_unavailable_before_any_call() {
    let backend = Scripted::in_both_dialects().await;
    let [port] = crate::stores::free_ports(1)[..] else {
        panic!("it is one port")
    };
    for quota in [
        format!("engine = \"zookeeper\"\nservers = [\"127.0.0.1:{port}\"]"),
        format!("engine = \"etcd\"\nservers = [\"http://127.0.0.1:{port}\"]"),
        format!("engine = \"redis\"\nservers = [\"redis://127.0.0.1:{port}\"]"),
    ] {
        let limits = limit("all", "total", 5, LONG, REJECT);
        let sidecar =
            Sidecar::with_store(&text(backend.addr, &format!("{quota}\n{ALONE}"), &limits));
        let store = eventually(async || {
            let store = sidecar.quotas().await["store"].clone();
            assert_ne!(store["up"], true, "{store}");
            (store["up"] == false).then_some(store)
        })
        .await;
        assert!(store["trouble"]["text"].is_string(), "{store}");
        let engine = store["engine"].as_str().expect("a name");
        let up = format!("tidegate_quota_store_up{{engine=\"{engine}\"}}");
        assert_eq!(sidecar.metric(&up).await, 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_zookeeper_denies_is_shown_with_the_cause_and_others_are_served() {
    let zookeeper = ZooKeeper::start(1).await;
    let mut owner = ZooKeeperSettings::new(zookeeper.servers());
    owner.auth = Some(("digest".into(), b"owner:secret".to_vec())).into();
    let owner = ZooKeeperClient::new(owner);
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 10, LONG, REJECT);
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    // Makes the nodes above with rights for all clients.
    eventually(async || (sidecar.call("bob").await.status == 200).then_some(())).await;
    let made = owner.create("/quota/alice", b"").await;
    made.expect("it is up").expect("it is new");
    let refused = sidecar.call("alice").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("quota_store_away"), "{refused:?}");
    let alice = sidecar
        .until_key("per_user", "alice", |key| {
            key["trouble"].to_string().contains("denies access")
        })
        .await;
    for user in 0..20 {
        assert_eq!(
            sidecar.call(&format!("u{user}")).await.status,
            200,
            "{alice}"
        );
        assert_eq!(sidecar.call("alice").await.status, 503);
    }
    let store = sidecar.quotas().await["store"].clone();
    assert_eq!(store["up"], true, "{store}");
    let troubled = r#"tidegate_quota_keys_in_trouble{limit="rate_limit:per_user"}"#;
    assert_eq!(sidecar.metric(troubled).await, 1.0);
}

/// The user may log in, and nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_store_that_denies_access_is_unavailable_and_no_call_waits_for_it() {
    let redis = Redis::start(&[]);
    let poor = "acl setuser poor on >pw ~* &* +hello";
    let mut cli = std::process::Command::new("redis-cli");
    cli.args(["-p", &redis.addr().port().to_string()]);
    assert!(
        cli.args(poor.split(' '))
            .status()
            .is_ok_and(|it| it.success())
    );
    let zookeeper = ZooKeeper::start(1).await;
    let mut owner = ZooKeeperSettings::new(zookeeper.servers());
    owner.auth = Some(("digest".into(), b"owner:secret".to_vec())).into();
    let made = ZooKeeperClient::new(owner).create("/quota", b"").await;
    made.expect("it is up").expect("it is new");
    let etcd = Etcd::with(1, "http", |_, _| vec!["--bcrypt-cost=4".into()]);
    etcd.control(&["user", "add", "root:secret"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", "poor:pw"]);
    etcd.control(&["auth", "enable"]);
    let user = "user = \"poor\"\npassword = \"pw\"";
    let backend = Scripted::in_both_dialects().await;
    for store in [
        format!(
            "engine = \"redis\"\nservers = [\"redis://{}\"]\n{user}",
            redis.addr()
        ),
        on_zookeeper(&zookeeper),
        format!("{}\n{user}", on_etcd(&etcd)),
    ] {
        for (away, status) in [("allow", 200), ("deny", 503)] {
            let more = format!("on_excess = \"reject\"\nwhen_store_away = \"{away}\"");
            let limits = limit("per_user", "user", 5, LONG, &more);
            let text = text(backend.addr, &format!("{store}\n{ALONE}"), &limits);
            let sidecar = Sidecar::with_store(&text);
            let unavailable = async || {
                sidecar.call("bob").await;
                let told = sidecar.quotas().await["store"].clone();
                (told["up"] == false).then_some(told)
            };
            let told = eventually(unavailable).await;
            for user in 0..10 {
                let answer = sidecar.call(&format!("u{user}")).await;
                assert_eq!(answer.status, status, "{away}, {told}: {answer:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_base_in_zookeeper_leaves_a_good_total() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    for (user, base) in [("above", "50"), ("nothing", "0"), ("word", "x")] {
        for (name, text) in [("total", "20"), ("base", base)] {
            let path = format!("/quota/{user}/{name}");
            let made = client.create(&path, text.as_bytes()).await;
            made.expect("it is up").expect("it is new");
        }
    }
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 100, LONG, REJECT);
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    for user in ["above", "nothing", "word"] {
        assert_eq!(sidecar.calls(user, 30).await, 20, "{user}");
        let key = sidecar.key("per_user", user).await.expect("it is known");
        assert_eq!(
            (&key["total"], &key["window_total"]),
            (&20.into(), &20.into())
        );
        let trouble = key["trouble"].to_string();
        assert!(trouble.contains("base must"), "{trouble}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_answers_late_is_not_unavailable() {
    let redis = Redis::start(&[]);
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 10, LONG, REJECT);
    let quota = format!(
        "engine = \"redis\"\nservers = [\"redis://{}\"]\n{ALONE}",
        redis.addr()
    );
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    eventually(async || (sidecar.call("alice").await.status == 200).then_some(())).await;
    let address = sidecar.address;
    for round in 0..3 {
        redis.signal("STOP");
        let waits = tokio::spawn(async move { call(address, &format!("u{round}")).await.status });
        tokio::time::sleep(Duration::from_millis(300)).await;
        redis.signal("CONT");
        assert_eq!(waits.await.expect("a call ends"), 200);
        let store = sidecar.quotas().await["store"].clone();
        assert_eq!(
            (&store["up"], &store["trouble"]),
            (&true.into(), &Value::Null),
            "{store}"
        );
    }
}
