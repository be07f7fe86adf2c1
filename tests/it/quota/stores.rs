//! The same on real stores.

use super::*;
use tidegate::coordinate::zookeeper::{Client, Settings};

use crate::sidecar;
use crate::stores::{Etcd, Redis, ZooKeeper};

/// Two sidecars with the store of this config spend one budget exactly.
async fn shares_exactly(quota: &str) {
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

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_zookeeper() {
    let zookeeper = ZooKeeper::start(1).await;
    shares_exactly(&on_zookeeper(&zookeeper)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_etcd() {
    let etcd = Etcd::start(1);
    shares_exactly(&format!(
        "engine = \"etcd\"\nservers = [\"{}\"]",
        etcd.url(0)
    ))
    .await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_users_total_in_zookeeper_holds_before_the_first_draw_and_changes_live() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = Client::new(Settings::new(zookeeper.servers()));
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
        ("0", 12, "must be 1 to"),
        ("4", 4, ""),
    ] {
        let set = client
            .set("/quota/alice/total", text.as_bytes(), version)
            .await;
        version = set.expect("it is up").expect("nobody else writes").version;
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
    // Another program that writes the design's own nodes spends what nobody here knows of.
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
    assert!(Record::parse(&record.data).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_stands_still_is_told_and_gone_on_with_by_itself() {
    let mut zookeeper = ZooKeeper::start(1).await;
    let backend = Scripted::in_both_dialects().await;
    let deny = "on_excess = \"reject\"\nwhen_store_away = \"deny\"";
    let limits = limit("per_user", "user", 1000, LONG, deny);
    let quota = format!("{}\n{ALONE}", on_zookeeper(&zookeeper));
    let sidecar = Sidecar::with_store(&text(backend.addr, &quota, &limits));
    eventually(async || (sidecar.call("alice").await.status == 200).then_some(())).await;
    zookeeper.member(0).signal("STOP");
    // Longer than its session lasts: what it knew of us is gone when it comes back.
    let stopped = Instant::now();
    let mut users = 0;
    eventually(async || (sidecar.quotas().await["store"]["up"] == false).then_some(())).await;
    while stopped.elapsed() < Duration::from_secs(4) {
        users += 1;
        assert_eq!(sidecar.call(&format!("u{users}")).await.status, 429);
    }
    zookeeper.member(0).signal("CONT");
    eventually(async || (sidecar.call("carol").await.status == 200).then_some(())).await;
    eventually(async || {
        let store = sidecar.quotas().await["store"].clone();
        (store["up"] == true && store["members"] == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_store_that_wants_a_password_is_told_in_the_log_and_on_the_page() {
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
        )
    };
    for password in ["", "password = \"wrong\""] {
        let sidecar = sidecar::Sidecar::start(&text(password)).await;
        let address = sidecar.listener("test").await;
        eventually(async || (call(address, "").await.status == 429).then_some(())).await;
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
    let sidecar = sidecar::Sidecar::start(&text("password = \"right\"")).await;
    let address = sidecar.listener("test").await;
    eventually(async || (call(address, "").await.status == 200).then_some(())).await;
    // Another password, or whatever is said of the store, is taken only after a restart.
    sidecar.write_config(&text("password = \"wrong\""));
    let lines = sidecar.hang_up("config reloaded").await;
    let warned =
        |line: &String| line.contains("only after a restart") && line.contains("\"quota\"");
    assert!(lines.iter().any(warned), "{lines:#?}");
    assert_eq!(call(address, "").await.status, 200);
}

#[tokio::test]
async fn a_store_that_answers_nonsense_is_told_and_the_limits_hold() {
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
        assert_eq!(sidecar.call("").await.status, 429, "{quota}");
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
async fn what_two_processes_log_says_to_the_audit_that_no_window_was_exceeded() {
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
    let mut audit = tokio::process::Command::new(sidecar::TIDEGATE);
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
