//! Where quotas are kept: accepted values and reported mistakes.

use super::*;

#[test]
fn every_store_is_understood_with_its_own_defaults() {
    let engine = |lines: &str| {
        let store = format!("[quota_store]\nexpected_sidecars = 2\n{lines}\n{LEAST}");
        quotas(&store).engine
    };
    let Engine::Etcd(etcd) = engine(
        "engine = \"etcd\"\nservers = [\"http://10.0.0.1:2379\", \"http://[::1]:2379\"]\n\
         user = \"root\"\npassword = \"se:cret\"\nroot = \"/q/\"\nsession_timeout = \"5s\"",
    ) else {
        panic!("it is etcd");
    };
    let endpoints: Vec<_> = etcd
        .store
        .endpoints
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(endpoints, ["http://10.0.0.1:2379", "http://[::1]:2379"]);
    let known = etcd.store.credentials.get();
    let known = (*known).as_ref().expect("they are given");
    assert_eq!((&*known.user, &*known.password), ("root", "se:cret"));
    assert_eq!(
        (&*etcd.prefix, etcd.time_to_live.get().as_secs()),
        ("/q/", 5)
    );
    let Engine::Etcd(plain) = engine("engine = \"etcd\"\nservers = [\"http://e:2379\"]") else {
        panic!("it is etcd");
    };
    assert!(plain.store.credentials.get().is_none() && plain.store.tls.is_none());
    assert_eq!(&*plain.prefix, "/tidegate/quota/");
    assert_eq!(plain.time_to_live.get().as_secs(), 10);
}

#[test]
fn zookeeper_is_understood_and_keeps_the_nodes_of_the_design() {
    let engine = |lines: &str| {
        let store = "[quota_store]\nengine = \"zookeeper\"\nexpected_sidecars = 2\n";
        let Engine::ZooKeeper(settings) = quotas(&format!("{store}{lines}\n{LEAST}")).engine else {
            panic!("it is ZooKeeper");
        };
        settings
    };
    let usual = engine("servers = [\"10.0.0.1:2181\", \"zk-2.example:2182\"]");
    assert_eq!(usual.store.servers, "10.0.0.1:2181,zk-2.example:2182");
    assert_eq!(
        (&*usual.records, &*usual.members),
        ("/quota", "/tidegate/quota/members")
    );
    assert_eq!(usual.store.session_timeout.as_secs(), 4);
    assert_eq!(*usual.store.auth.get(), None);
    let other = engine(
        "servers = [\"[::1]:2181\"]\nuser = \"u\"\npassword = \"p:q\"\nroot = \"/a/b\"\n\
         session_timeout = \"6s\"",
    );
    let auth = Some(("digest".to_owned(), b"u:p:q".to_vec()));
    assert_eq!(*other.store.auth.get(), auth);
    assert_eq!(
        (&*other.records, &*other.members),
        ("/a/b", "/a/b/.members")
    );
    assert_eq!(other.store.session_timeout.as_secs(), 6);
}

#[test]
fn redis_is_understood_with_a_password_alone_or_for_a_user() {
    let engine = |lines: &str| {
        let store = "[quota_store]\nengine = \"redis\"\nexpected_sidecars = 2\n";
        let Engine::Redis(settings) = quotas(&format!("{store}{lines}\n{LEAST}")).engine else {
            panic!("it is Redis");
        };
        settings
    };
    let usual = engine("servers = [\"redis://10.0.0.1:6379\"]");
    assert_eq!(usual.servers[0].to_string(), "10.0.0.1:6379");
    assert_eq!(
        (&*usual.prefix, usual.member_ttl.as_secs()),
        ("tidegate:quota:", 10)
    );
    assert_eq!(usual.login.get().0.password(), None);
    let other = engine(
        "servers = [\"redis://[::1]:6380/3\"]\npassword = \"p\"\nroot = \"q:\"\n\
         session_timeout = \"1m\"",
    );
    assert_eq!(other.servers[0].to_string(), "[::1]:6380");
    let redis = &other.login.get().0;
    assert_eq!((redis.db(), redis.username()), (3, None));
    assert_eq!(redis.password(), Some("p"));
    assert_eq!((&*other.prefix, other.member_ttl.as_secs()), ("q:", 60));
    let named = engine("servers = [\"redis://r:1\"]\nuser = \"u\"\npassword = \"p\"");
    let redis = &named.login.get().0;
    assert_eq!((redis.username(), redis.password()), (Some("u"), Some("p")));
    assert_ne!(named, other);
}

#[test]
fn tls_to_etcd_needs_an_authority_to_trust() {
    let files = Files::new();
    let path = |name: &str| files.dir.path().join(name).display().to_string();
    let (ca, cert, key) = (path("clients.crt"), path("tls.crt"), path("tls.key"));
    let store = |lines: &str| format!("{}{lines}\n{LEAST}", ETCD.replace("http://", "https://"));
    let Engine::Etcd(etcd) = quotas(&store(&format!("ca = \"{ca}\""))).engine else {
        panic!("it is etcd");
    };
    assert!(etcd.store.tls.is_some());
    let whole = format!("ca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"");
    let Engine::Etcd(etcd) = quotas(&store(&whole)).engine else {
        panic!("it is etcd");
    };
    assert!(etcd.store.tls.is_some());

    wrong(
        &store(""),
        "servers",
        "quota_store.servers",
        &["authorities", "add ca"],
    );
    wrong(
        &store("ca = \"/no/such\""),
        "ca = ",
        "quota_store.ca",
        &["cannot read"],
    );
    let no_key = format!("ca = \"{ca}\"\ncert = \"{cert}\"");
    wrong(&store(&no_key), "cert = ", "quota_store.cert", &["no key"]);
    let no_cert = format!("ca = \"{ca}\"\nkey = \"{key}\"");
    wrong(
        &store(&no_cert),
        "key = ",
        "quota_store.key",
        &["no certificate"],
    );
    let key_as_ca = format!("ca = \"{key}\"");
    wrong(&store(&key_as_ca), "ca = ", "quota_store.ca", &["PEM"]);
    let no_ca = format!("{ETCD}cert = \"{cert}\"\n{LEAST}");
    wrong(
        &no_ca,
        "cert = ",
        "quota_store.cert",
        &["no effect without ca"],
    );
}

/// Addresses of ZooKeeper have no scheme.
#[test]
fn zookeeper_is_reached_over_tls_if_there_is_an_authority_to_trust() {
    let files = Files::new();
    let ca = files.dir.path().join("clients.crt");
    let store = |lines: &str| {
        let text = format!(
            "[quota_store]\nengine = \"zookeeper\"\nexpected_sidecars = 2\nservers = [\"a:1\"]\n{lines}\n{LEAST}"
        );
        let Engine::ZooKeeper(settings) = quotas(&text).engine else {
            panic!("it is ZooKeeper");
        };
        settings.store.tls
    };
    assert!(store("").is_none());
    assert!(store(&format!("ca = \"{}\"", ca.display())).is_some());
}

#[test]
fn an_invalid_server_is_reported_at_its_place() {
    let check = |engine: &str, servers: &str, words: &[&str]| {
        let store = format!(
            "[quota_store]\nengine = \"{engine}\"\nexpected_sidecars = 2\nservers = {servers}\n{LEAST}"
        );
        wrong(&store, "servers = ", "quota_store.servers", words);
    };
    let wrong_at = |engine: &str, more: &str, option: &str, words: &[&str]| {
        let store =
            format!("[quota_store]\nengine = \"{engine}\"\nexpected_sidecars = 2\n{more}\n{LEAST}");
        let (line, key) = (format!("{option} = "), format!("quota_store.{option}"));
        wrong(&store, &line, &key, words);
    };
    check(
        "zookeeper",
        "[\"10.0.0.1\"]",
        &["has no port", "10.0.0.1:2181"],
    );
    check(
        "zookeeper",
        "[\"http://10.0.0.1:2181\"]",
        &["no host that could be looked up"],
    );
    check("zookeeper", "[\"a:1\", \"b:0\"]", &["\"b:0\"", "no port"]);
    check("zookeeper", "[\"a:1,b:2\"]", &["\"a:1,b:2\""]);
    check(
        "etcd",
        "[\"10.0.0.1:2379\"]",
        &["no address of etcd", "http://host:port"],
    );
    check("etcd", "[\"http://a:1/path\"]", &["no address of etcd"]);
    check(
        "redis",
        "[\"10.0.0.1:6379\"]",
        &["no address of Redis", "redis://host:port"],
    );
    check(
        "redis",
        "[\"rediss://10.0.0.1:6379\"]",
        &["authorities", "add ca"],
    );
    let sentinels = "[\"redis://a:1\", \"redis://b:1/3\"]\nsentinel = \"mymaster\"";
    check("redis", sentinels, &["another database", "same /database"]);
    let redis = "servers = [\"redis://a:1\"]";
    let alone = format!("{redis}\nsentinel_password = \"p\"");
    let words = &["no effect without sentinel", "add sentinel"];
    wrong_at("redis", &alone, "sentinel_password", words);
    let half = format!("{redis}\nsentinel = \"m\"\nsentinel_user = \"u\"");
    wrong_at("redis", &half, "sentinel_user", &["without a password"]);
    let etcd = "servers = [\"http://a:1\"]\nsentinel = \"m\"";
    wrong_at("etcd", etcd, "sentinel", &["etcd has no sentinel"]);
    let plain = format!("{redis}\nca = \"/etc/ssl/cert.pem\"");
    wrong_at("redis", &plain, "ca", &["no effect", "rediss://"]);
    check(
        "redis",
        "[\"redis://a:1\", \"redis://b:1\"]",
        &["one server", "primary"],
    );
    check(
        "etcd",
        "\"http://a:1\"",
        &["not an array", "give a list, such as ["],
    );
    check("etcd", "[1]", &["1 is not a string"]);
    check("etcd", "[\"http://a:1\", \"http://a:1\"]", &["given twice"]);
    let many: Vec<_> = (1..=65).map(|n| format!("\"http://a:{n}\"")).collect();
    check(
        "etcd",
        &format!("[{}]", many.join(", ")),
        &["65 of them", "at most 64"],
    );
}

#[test]
fn an_option_of_another_engine_is_reported() {
    let check = |store: &str, line: &str, key: &str, words: &[&str]| {
        wrong(
            &format!("[quota_store]\n{store}{line}\n{LEAST}"),
            line,
            key,
            words,
        );
    };
    let cure = "write engine = ";
    check(
        "",
        "servers = [\"a:1\"]",
        "quota_store.servers",
        &["in memory", cure],
    );
    check("", "user = \"u\"", "quota_store.user", &["in memory", cure]);
    check(
        "",
        "password = \"p\"",
        "quota_store.password",
        &["in memory", cure],
    );
    check(
        "",
        "root = \"/q\"",
        "quota_store.root",
        &["in memory", cure],
    );
    check(
        "",
        "session_timeout = \"4s\"",
        "quota_store.session_timeout",
        &["in memory", cure],
    );
    check(
        "",
        "expected_sidecars = 2",
        "quota_store.expected_sidecars",
        &["no other sidecar"],
    );
    check(
        "",
        "ca = \"/ca.pem\"",
        "quota_store.ca",
        &["in memory", cure],
    );
    good(&format!("[quota_store]\nexpected_sidecars = 1\n{LEAST}"));

    let zookeeper = "engine = \"zookeeper\"\nexpected_sidecars = 2\nservers = [\"a:1\"]\n";
    check(
        zookeeper,
        "cert = \"/t.crt\"",
        "quota_store.cert",
        &["no effect without ca"],
    );
    check(
        zookeeper,
        "key = \"/t.key\"",
        "quota_store.key",
        &["no effect without ca"],
    );
    for root in [
        "quota",
        "/",
        "/quota/",
        "/a//b",
        "/a/../b",
        "/zookeeper",
        "/zookeeper/quota",
    ] {
        let line = format!("root = \"{root}\"");
        check(
            zookeeper,
            &line,
            "quota_store.root",
            &["the node's whole path"],
        );
    }
    check(
        zookeeper,
        "password = \"p\"",
        "quota_store.password",
        &["the user of this password"],
    );
    let etcd = "engine = \"etcd\"\nexpected_sidecars = 2\nservers = [\"http://a:1\"]\n";
    check(
        etcd,
        "root = \"/quota\"",
        "quota_store.root",
        &["end with a slash"],
    );
    check(etcd, "root = \"\"", "quota_store.root", &["empty"]);
    check(
        etcd,
        "session_timeout = \"500ms\"",
        "quota_store.session_timeout",
        &["1s to 1h"],
    );
    check(
        etcd,
        "expected_sidecars_max = 3",
        "quota_store.expected_sidecars_max",
        &["did you mean"],
    );
}

#[test]
fn a_user_of_zookeeper_has_no_colon() {
    let store = "[quota_store]\nengine = \"zookeeper\"\nexpected_sidecars = 2\nservers = [\"a:1\"]\n\
                 password = \"p\"\nuser = \"a:b\"\n";
    wrong(
        &format!("{store}{LEAST}"),
        "user = ",
        "quota_store.user",
        &["no colon"],
    );
}

#[test]
fn a_password_is_never_shown() {
    let secret = "s3cr3t";
    let servers = [
        ("zookeeper", "a:1"),
        ("etcd", "http://a:1"),
        ("redis", "redis://a:1"),
    ];
    for (engine, server) in servers {
        let more = match engine {
            "redis" => format!("sentinel = \"m\"\nsentinel_password = \"{secret}\"\n"),
            _ => String::new(),
        };
        let text = format!(
            "[quota_store]\nengine = \"{engine}\"\nservers = [\"{server}\"]\nuser = \"ann\"\n\
             password = \"{secret}\"\n{more}expected_sidecars = 2\n{LEAST}"
        );
        let config = good(&text);
        let written = config::effective(&config);
        assert!(written.contains("password = \"(hidden)\""), "{written}");
        assert!(written.contains("user = \"ann\""), "{written}");
        let debug = format!("{config:?}{:#?}", config.quotas);
        assert!(
            !written.contains(secret) && !debug.contains(secret),
            "{engine}: {debug}"
        );

        // Nor in a drawing of the lines around a mistake, or where it does not belong.
        let wrong = text.replace("expected_sidecars = 2", "expected_sidecars = 0");
        let problems = read(&with(&wrong)).expect_err("a mistake");
        let drawn = problems.render(true);
        assert!(
            !drawn.contains(secret) && drawn.contains("password ="),
            "{drawn}"
        );
        let (scheme, rest) = server.split_once("//").unwrap_or(("", server));
        let inside = format!("{scheme}//ann:{secret}@{rest}");
        let inside = inside.trim_start_matches('/').to_owned();
        let text = format!(
            "[quota_store]\nengine = \"{engine}\"\nservers = [\"{inside}\"]\nexpected_sidecars = 2\n{LEAST}"
        );
        let problems = read(&with(&text)).expect_err("a password in an address");
        let plain = problems.to_string();
        assert!(
            plain.contains("user and password in [quota_store]"),
            "{plain}"
        );
        assert!(!plain.contains(secret), "{plain}");
        if server.contains("//") {
            assert!(!problems.render(true).contains(secret));
        }
    }
    let number = format!("{ETCD}user = \"u\"\npassword = {}\n{LEAST}", "[\"s3cr3t\"]");
    let told = read(&with(&number)).expect_err("a list").to_string();
    assert!(
        told.contains("quota_store.password") && !told.contains(secret),
        "{told}"
    );
}
