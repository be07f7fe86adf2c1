//! Findings about the stores of quotas and about lease servers.

use super::*;

/// `[quota_store]` with these lines, and a quota.
fn quota(lines: &str) -> String {
    format!(
        "[quota_store]\n{lines}\nexpected_sidecars = 2\n[[quota]]\nname = \"q\"\n\
         total = 100\nrefresh_window = \"60s\"\napplies_to = \"user\"\n"
    )
}

fn redis_at(address: impl std::fmt::Display, more: &str) -> String {
    quota(&format!(
        "engine = \"redis\"\nservers = [\"redis://{address}\"]\n{more}"
    ))
}

#[tokio::test]
async fn a_store_that_is_not_there() {
    let backend = backend().await;
    for (engine, scheme, name) in [
        ("redis", "redis://", "Redis"),
        ("etcd", "http://", "etcd"),
        ("zookeeper", "", "ZooKeeper"),
    ] {
        let address = closed_port();
        let lines = format!("engine = \"{engine}\"\nservers = [\"{scheme}{address}\"]");
        let probed = Setup::new(&before(&backend, &quota(&lines))).probe().await;
        probed.only(&[("stores", "server")]);
        let about = match engine {
            "etcd" => format!("http://{address}"),
            _ => address.to_string(),
        };
        let check = probed.check("stores", "server", &about);
        assert_eq!(check["status"], "failed");
        assert_eq!(check["found"], format!("{name} cannot be used"));
        let cause = check["cause"].as_str().expect("a cause");
        assert!(cause.starts_with("the store is unavailable: "), "{cause}");
        let cure = format!(
            "start {name} there, let packets through to it, or correct quota_store.servers"
        );
        assert_eq!(check["cure"], cure);
    }
}

#[tokio::test]
async fn a_store_of_which_one_server_is_down() {
    let (backend, etcd) = (backend().await, Etcd::start(1));
    let closed = closed_port();
    let (good, bad) = (etcd.url(0), format!("http://{closed}"));
    let lines = format!("engine = \"etcd\"\nservers = [\"{bad}\", \"{good}\"]");
    let probed = Setup::new(&before(&backend, &quota(&lines))).probe().await;
    probed.only(&[("stores", "server")]);
    assert_eq!(probed.check("stores", "server", &good)["status"], "ok");
    let bad = probed.check("stores", "server", &bad);
    assert_eq!(bad["status"], "warning");
    let cause = bad["cause"].as_str().expect("a cause");
    assert!(cause.ends_with("; the others answer"), "{cause}");
    let left = etcd.control(&["get", "--prefix", "--keys-only", "/tidegate/"]);
    assert_eq!(left.trim(), "", "nothing is left behind");
}

#[tokio::test]
async fn a_redis_that_lets_the_sidecar_in_only_with_all_that_it_needs() {
    let backend = backend().await;
    let redis = Redis::start(&["--requirepass", "right"]);
    let address = redis.addr();
    let about = address.to_string();
    let control = async |command: &str| {
        let text = format!("AUTH right\r\n{command}\r\nQUIT\r\n");
        let answer = crate::support::ask(address, text).await;
        assert!(!answer.contains("-ERR"), "{command}: {answer}");
        answer
    };
    let probe = async |more: &str| {
        let setup = Setup::new(&before(&backend, &redis_at(address, more)));
        setup.probe().await
    };
    let none = probe("").await;
    let wrong = probe("password = \"wrong\"").await;
    for probed in [none, wrong] {
        probed.only(&[("stores", "server")]);
        let check = probed.check("stores", "server", &about);
        assert_eq!(check["found"], "cannot read tidegate:quota:record:.probe");
        let cause = check["cause"].as_str().expect("a cause");
        assert!(
            cause.starts_with("the store wants other credentials: "),
            "{cause}"
        );
        let cure = "set user and password in [quota_store] to those of a user of the store \
                    (TIDEGATE_QUOTA_STORE__PASSWORD in a container)";
        assert_eq!(check["cure"], cure);
        assert!(!probed.text.contains("wrong\"") && !probed.text.contains("right"));
    }
    probe("password = \"right\"").await.only(&[]);
    let user = "user = \"gate\"\npassword = \"secret\"";
    for (may, found) in [
        ("~other:* +@all", "cannot read tidegate:quota:record:.probe"),
        (
            "~tidegate:quota:* &* +@all -@write",
            "cannot write tidegate:quota:record:.probe",
        ),
        (
            "~tidegate:quota:record:* &* +@all",
            "cannot join the members in tidegate:quota:members",
        ),
        (
            "~tidegate:quota:* +@all",
            "cannot subscribe to tidegate:quota:changed:.probe",
        ),
    ] {
        control(&format!("ACL SETUSER gate reset on >secret {may}")).await;
        let probed = probe(user).await;
        probed.only(&[("stores", "server")]);
        let check = probed.check("stores", "server", &about);
        assert_eq!(check["found"], found, "{may}");
        let cause = check["cause"].as_str().expect("a cause");
        assert!(
            cause.starts_with("the store denies access to this key: "),
            "{cause}"
        );
        // What it says to do is enough.
        let cure = check["cure"].as_str().expect("a cure");
        let (_, cure) = cure.split_once("ACL SETUSER NAME ").expect("it says how");
        control(&format!("ACL SETUSER gate reset on >secret {cure}")).await;
        probe(user).await.only(&[]);
    }
    let keys = control("KEYS *").await;
    assert!(keys.contains("*0\r\n"), "nothing is left behind: {keys}");
}

#[tokio::test]
async fn a_zookeeper_and_an_etcd_that_deny_the_sidecar_access() {
    let backend = backend().await;
    let store = ZooKeeper::start(1).await;
    let mut owner = zookeeper::ZooKeeperSettings::new(store.servers());
    owner.auth = Some(("digest".into(), b"owner:secret".to_vec())).into();
    let owner = zookeeper::ZooKeeperClient::new(owner);
    owner.create("/quota", b"").await.expect("made");
    let lines = format!(
        "engine = \"zookeeper\"\nservers = [\"{}\"]",
        store.servers()
    );
    let probed = Setup::new(&before(&backend, &quota(&lines))).probe().await;
    probed.only(&[("stores", "server")]);
    probed.says(
        ("stores", "server", &store.servers()),
        "failed",
        "cannot write /quota",
        "the store denies access to this key: ZooKeeper denies it to these credentials: NoAuth",
        "let the user in: setAcl /quota with create, read, write and delete (cdrw), and the same \
         for the node of the members",
    );
    let lines = format!("{lines}\nuser = \"owner\"\npassword = \"secret\"");
    Setup::new(&before(&backend, &quota(&lines)))
        .probe()
        .await
        .only(&[]);

    let etcd = Etcd::start(1);
    for command in [
        "user add root:secret",
        "user add gate:secret",
        "role add gate",
        "role grant-permission gate readwrite --prefix=true /other/",
        "user grant-role gate gate",
        "user grant-role root root",
        "auth enable",
    ] {
        etcd.control(&command.split(' ').collect::<Vec<_>>());
    }
    let lines = format!("engine = \"etcd\"\nservers = [\"{}\"]", etcd.url(0));
    let text = |lines: &str| before(&backend, &quota(lines));
    let probed = Setup::new(&text(&lines)).probe().await;
    probed.only(&[("stores", "server")]);
    let check = probed.check("stores", "server", &etcd.url(0));
    assert!(
        check["found"]
            .as_str()
            .is_some_and(|it| it.starts_with("cannot read /tidegate/quota/"))
    );
    let lines = format!("{lines}\nuser = \"gate\"\npassword = \"secret\"");
    let probed = Setup::new(&text(&lines)).probe().await;
    let check = probed.check("stores", "server", &etcd.url(0));
    let cause = check["cause"].as_str().expect("a cause");
    assert!(
        cause.starts_with("the store denies access to this key: "),
        "{cause}"
    );
    let cure = "let the user in: etcdctl role grant-permission ROLE readwrite --prefix=true \
                /tidegate/quota/";
    assert_eq!(check["cure"], cure);
    let grant =
        "--user=root:secret role grant-permission gate readwrite --prefix=true /tidegate/quota/";
    etcd.control(&grant.split(' ').collect::<Vec<_>>());
    Setup::new(&text(&lines)).probe().await.only(&[]);
}

/// `[coordinate]` with these servers, and a shared limit.
fn coordinate(servers: &[&str]) -> String {
    let servers = servers.join("\", \"");
    format!(
        "[coordinate]\nservers = [\"{servers}\"]\nexpected_sidecars = 3\n\
         request_timeout = \"500ms\"\n[[coordinate.limit]]\nlimit = \"total\"\n\
         resource = \"zvm1/total\"\nsafe = 5\n"
    )
}

#[tokio::test]
async fn lease_servers_that_are_unreachable_or_not_the_master() {
    let backend = backend().await;
    let closed = closed_port().to_string();
    let probe = async |servers: &[&str]| {
        let setup = Setup::new(&before(&backend, &coordinate(servers)));
        setup.probe().await
    };
    let probed = probe(&[&closed]).await;
    probed.only(&[("leases", "server")]);
    probed.says(
        ("leases", "server", &closed),
        "failed",
        "does not answer",
        "Connection refused (os error 111)",
        "start `tidegate lease-server` there, let packets through to it, or correct \
         coordinate.servers",
    );
    // A server that holds no election yet, because the store of elections is down.
    let folder = tempfile::tempdir().expect("a folder");
    let [port, store] = free_ports(2)[..] else {
        unreachable!("two were asked for")
    };
    let server = format!("127.0.0.1:{port}");
    let text = format!(
        "bind = \"{server}\"\nstatus_bind = \"\"\n[election]\nkey = \"/tests/master\"\n\
         engine = \"etcd\"\n[etcd]\nendpoints = [\"http://127.0.0.1:{store}\"]\n\
         [[resource]]\nglob = \"*\"\ncapacity = 10\nsafe_capacity = 1\n\
         algorithm = {{ kind = \"fair_share\", lease = \"12s\", refresh = \"1s\" }}\n"
    );
    fs::write(folder.path().join("leases.toml"), text).expect("written");
    let mut command = std::process::Command::new(with_programs());
    command
        .args(["lease-server", "--config"])
        .arg(folder.path().join("leases.toml"));
    let process = Process::start("lease-server", &mut command);
    process.stderr.until("ready", PATIENCE, |lines| {
        lines
            .iter()
            .any(|line| line.contains("leases: ready"))
            .then_some(())
    });
    let probed = probe(&[&server]).await;
    probed.only(&[("leases", "server")]);
    probed.says(
        ("leases", "server", &server),
        "failed",
        "is not the master, and knows none",
        "no server grants leases: an election is under way, or none can be held",
        "wait some seconds and check again; then look at its log and at the store of its \
         elections. Until then each sidecar has its safe share",
    );
    // A master takes the request for nothing, and keeps its capacity.
    let master = Mock::new();
    let (address, _serving) = master.serve().await;
    let probed = probe(&[&address]).await;
    probed.only(&[]);
    let found = "is the master, and grants leases";
    probed.says(("leases", "server", &address), "ok", found, "", "");
    assert!(
        master
            .lock()
            .asked
            .iter()
            .all(|(_, asked)| asked.resource.is_empty())
    );
    // With it, another one may be down; and it is found by the name that another one gives.
    let probed = probe(&[&closed, &address]).await;
    assert_eq!(
        probed.check("leases", "server", &closed)["status"],
        "warning"
    );
    let names = Mock::new();
    let (other, _serving) = names.serve().await;
    names.lock().names_master = Some(Some(address.clone()));
    let probed = probe(&[&other]).await;
    probed.only(&[]);
    let found = format!("answers, and is not the master; it names {address}");
    probed.says(("leases", "server", &other), "ok", &found, "", "");
    names.lock().names_master = Some(Some(closed.clone()));
    let probed = probe(&[&other]).await;
    let found = format!("is not the master; it names {closed}");
    assert_eq!(probed.check("leases", "server", &other)["found"], found);
    // Nor does a server of something else grant leases.
    let web = answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    let probed = probe(&[&web.addr.to_string()]).await;
    probed.only(&[("leases", "server")]);
    names.lock().hangs = true;
    let probed = probe(&[&other]).await;
    let cause = probed.check("leases", "server", &other)["cause"].clone();
    assert_eq!(cause, "it did not answer within 500 ms");
}

#[tokio::test]
async fn a_redis_that_evicts_records_is_named_with_its_policy() {
    let backend = backend().await;
    let redis = Redis::start(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"]);
    let probed = Setup::new(&before(&backend, &redis_at(redis.addr(), "")))
        .probe()
        .await;
    let check = probed.check("stores", "server", &redis.addr().to_string());
    assert_eq!(check["status"], "warning", "{check}");
    let cause = check["cause"].as_str().expect("a cause");
    assert!(cause.contains("maxmemory-policy allkeys-lru"), "{cause}");
    let cure = check["cure"].as_str().expect("a cure");
    assert!(
        cure.starts_with("set maxmemory-policy noeviction"),
        "{cure}"
    );
}

#[tokio::test]
async fn a_node_of_a_redis_cluster_is_refused_by_name() {
    let backend = backend().await;
    let redis = Redis::start(&["--cluster-enabled", "yes"]);
    let probed = Setup::new(&before(&backend, &redis_at(redis.addr(), "")))
        .probe()
        .await;
    let check = probed.check("stores", "server", &redis.addr().to_string());
    assert_eq!(check["status"], "failed", "{check}");
    let cause = check["cause"].as_str().expect("a cause");
    assert!(cause.contains("node of a Redis Cluster"), "{cause}");
    let cure = check["cure"].as_str().expect("a cure");
    assert!(cure.starts_with("name a Redis without a cluster"), "{cure}");
}
