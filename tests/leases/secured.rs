//! The lease server with TLS and client certificates, its health and reflection services, and its
//! clients: as processes, with grpcurl as a client of another stack.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::authority::{Authority, Issued};
use crate::child::Process;
use crate::sidecar::{Sidecar, with_programs};
use crate::stores::{Etcd, ZooKeeper, enable_users, free_ports, secured_etcd};
use crate::support::{Answer, PATIENCE, Scripted, ask, connect, until_read};

const RULES: &str = "[[resource]]\nglob = \"*\"\ncapacity = 10\nsafe_capacity = 1\n\
                     algorithm = { kind = \"fair_share\", lease = \"60s\", refresh = \"1s\", \
                     learning = \"0s\" }\n";

struct Server {
    process: Process,
    folder: TempDir,
    address: SocketAddr,
    status: SocketAddr,
}

impl Server {
    fn start(more: &str) -> Self {
        let ports = free_ports(2);
        let [address, status] = [0, 1].map(|at| SocketAddr::from(([127, 0, 0, 1], ports[at])));
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!(
            "bind = \"{address}\"\nstatus_bind = \"{status}\"\nminimum_interval = \"0s\"\n{more}"
        );
        let path = folder.path().join("leases.toml");
        std::fs::write(&path, text).expect("written");
        let mut command = Command::new(with_programs());
        command.args(["lease-server", "--config"]).arg(path);
        let process = Process::start("lease-server", &mut command);
        let server = Self {
            process,
            folder,
            address,
            status,
        };
        server.says("leases: ready");
        server
    }

    fn says(&self, words: &str) -> String {
        self.process.stderr.until(words, PATIENCE, |lines| {
            lines.iter().find(|line| line.contains(words)).cloned()
        })
    }

    async fn get(&self, path: &str) -> Answer {
        let asked = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        Answer::read(ask(self.status, asked).await.as_bytes())
    }

    /// Waits until it has said this of a client that does not get in, whatever others it has refused.
    fn says_of(&self, client: &[&str], words: &str) {
        assert!(!asked(client).0.status.success(), "{client:?}");
        self.says(words);
    }

    fn replace(&self, from: &str, to: &str) {
        let path = self.folder.path().join("leases.toml");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).expect("written");
    }
}

fn tls(own: &Issued, client_ca: &Authority) -> String {
    format!(
        "[tls]\ncert = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\nclient_auth = \"required\"\n",
        own.cert(),
        own.key(),
        client_ca.ca()
    )
}

/// The program that tests/peers/setup.sh installs.
fn grpcurl(arguments: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv-peers/bin/grpcurl");
    assert!(
        program.is_file(),
        "grpcurl is not installed: `make test` sets it up (or tests/peers/setup.sh)"
    );
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn asked(arguments: &[&str]) -> (Output, String) {
    let output = grpcurl(arguments).output().expect("it runs");
    let told = [&output.stdout[..], &output.stderr[..]].concat();
    let told = String::from_utf8(told).expect("text");
    (output, told)
}

/// The lines of the documents' example, each with its continuation.
fn documented() -> Vec<String> {
    let docs = include_str!("../../docs/how-to/leases.md");
    let block = docs
        .split("```sh\ntls=")
        .nth(1)
        .expect("there is an example");
    let block = block.split("```").next().expect("it ends");
    let lines = block.replace("\\\n", " ");
    let commands = lines.lines().filter(|line| line.starts_with("grpcurl"));
    commands.map(str::to_owned).collect()
}

#[tokio::test]
async fn the_documented_commands_work_and_certificates_are_renewed_by_a_reload() {
    let (ca, other) = (Authority::new(), Authority::new());
    let own = ca.issue(&["localhost", "127.0.0.1"]);
    let server = Server::start(&format!("{}{RULES}", tls(&own, &ca)));
    let shows = ca.issue(&["ops"]);
    let address = format!("localhost:{}", server.address.port());
    let flags = |ca: &str| format!("-cacert {ca} -cert {} -key {}", shows.cert(), shows.key());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv-peers/bin/grpcurl");
    let mut told = Vec::new();
    for command in documented() {
        let command = command.replacen("grpcurl", program.to_str().expect("UTF-8"), 1);
        let command = command.replace("leases-1:9190", &address);
        let command = command.replace("$tls", &flags(&ca.ca()));
        let done = Command::new("sh").args(["-c", &command]).output();
        let done = done.expect("it runs");
        assert!(done.status.success(), "{command}: {done:?}");
        told.push(String::from_utf8(done.stdout).expect("text"));
    }
    let has = |at: usize, words: &str| assert!(told[at].contains(words), "{}", told[at]);
    has(0, "doorman.Capacity");
    has(0, "grpc.health.v1.Health");
    has(1, "rpc GetCapacity");
    has(2, "\"isMaster\": true");
    has(3, "\"SERVING\"");
    has(4, "\"capacity\": 5");
    assert_eq!(told.len(), 6);

    // Wrong set-ups, as the server logs them.
    let ca_flag = ["-cacert", &ca.ca()];
    let bare = [&ca_flag[..], &["-connect-timeout", "3", &address, "list"]].concat();
    server.says_of(&bare, "the client shows no certificate: give it one");
    let forged = other.issue(&["ops"]);
    let shown = ["-cert", forged.cert(), "-key", forged.key()];
    let end = ["-connect-timeout", "3", &address, "list"];
    let stranger = [&ca_flag[..], &shown, &end].concat();
    server.says_of(&stranger, "signed by no authority in client_ca");
    let plain = ["-plaintext", "-connect-timeout", "3", &address, "list"];
    server.says_of(&plain, "the client speaks no TLS: let it connect with TLS");
    let metrics = server.get("/metrics").await.body;
    let refused = "tidegate_lease_connections_closed_total{reason=\"tls_handshake\"}";
    assert!(metrics.contains(refused), "{metrics}");

    // A reload takes a certificate of another authority, and not a broken one.
    let check = |ca: &Authority| {
        let ca = ca.ca();
        let shown = ["-cacert", &ca, "-cert", shows.cert(), "-key", shows.key()];
        let (output, _) = asked(&[&shown[..], &end].concat());
        output.status.success()
    };
    other.issue(&["localhost", "127.0.0.1"]).replace(&own);
    assert!(check(&ca), "before the reload");
    server.process.signal("HUP");
    server.says("rules were read anew");
    assert!(check(&other) && !check(&ca), "after the reload");
    std::fs::write(&own.key, "no key").expect("written");
    server.process.signal("HUP");
    server.says("holds no key that can be read");
    assert!(check(&other), "a bad file changes nothing");
    server.replace("required", "optional");
}

fn sidecar_text(backend: SocketAddr, server: SocketAddr, tls: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "http"
        [backend]
        kind = "http"
        http = "http://{backend}"
        [limits]
        smapi_rate_limit_per_window = "total:5"
        [admin]
        bind = "127.0.0.1:0"
        [coordinate]
        servers = ["localhost:{}"]
        expected_sidecars = 3
        request_timeout = "2s"
        minimum_interval = "250ms"
        {tls}
        [[coordinate.limit]]
        limit = "total"
        resource = "zvm/total"
        safe = 1
        [log]
        format = "json"
        "#,
        server.port()
    )
}

/// Each wrong set-up is a line in the sidecar's log, and calls pass meanwhile by the safe share.
#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_says_what_is_wrong_with_its_certificates_and_a_reload_cures_it() {
    let (ca, other) = (Authority::new(), Authority::new());
    let own = ca.issue(&["leases.example"]);
    let rules = RULES.replace("\"*\"", "\"*/*\"");
    let server = Server::start(&format!("{}{rules}", tls(&own, &ca)));
    let backend = Scripted::in_both_dialects().await;
    let files = |ca: &Authority, shows: Option<&Issued>, name: &str| {
        let shows = shows.map(|it| format!("cert = \"{}\"\nkey = \"{}\"\n", it.cert(), it.key()));
        let (ca, shows) = (ca.ca(), shows.unwrap_or_default());
        format!("ca = \"{ca}\"\n{shows}{name}")
    };
    let name = "server_name = \"leases.example\"";
    let shows = ca.issue(&["sidecar"]);
    let text = |tls: &str| sidecar_text(backend.addr, server.address, tls);
    let wrong = [
        (files(&other, Some(&shows), name), "no authority in ca"),
        (files(&ca, Some(&shows), ""), "not for localhost"),
        (files(&ca, None, name), "set cert and key"),
        (
            files(&ca, Some(&other.issue(&["sidecar"])), name),
            "it rejects our certificate",
        ),
    ];
    let sidecar = Sidecar::start(&text(&wrong[0].0)).await;
    let listener = sidecar.listener("test").await;
    let call = async || {
        let request = "GET /guests HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        Answer::read(ask(listener, request.to_owned()).await.as_bytes()).status
    };
    for (tls, words) in &wrong {
        sidecar.write_config(&text(tls));
        sidecar.hang_up("config reloaded").await;
        sidecar
            .log()
            .wait(&["capacity server does not answer", words])
            .await;
        assert_eq!(call().await, 200, "{words}");
    }
    let (_, from) = sidecar.log().wait_from(0, &[wrong[3].1]).await;
    sidecar.write_config(&text(&files(&ca, Some(&shows), name)));
    sidecar.hang_up("config reloaded").await;
    let back = &["capacity server answers again"];
    sidecar.log().wait_from(from, back).await;
    let leases = async {
        while !server.get("/v1/leases").await.body.contains("zvm/total") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let leased = tokio::time::timeout(PATIENCE, leases).await;
    leased.expect("it holds a lease");
    assert_eq!(call().await, 200);
}

/// Neither a client that stops within its handshake, nor one that says nothing, holds up a reload or another client.
#[tokio::test]
async fn a_stalled_handshake_holds_up_no_reload_and_is_closed_in_time() {
    let (ca, other) = (Authority::new(), Authority::new());
    let own = ca.issue(&["127.0.0.1"]);
    let bounds = "[bounds]\nhandshake_timeout = \"3s\"\n";
    let server = Server::start(&format!("{}{bounds}{RULES}", tls(&own, &ca)));
    let shows = ca.issue(&["ops"]);
    let address = server.address.to_string();
    let lists = |ca: &Authority| {
        let ca = ca.ca();
        let shown = ["-cacert", &ca, "-cert", shows.cert(), "-key", shows.key()];
        let end = ["-connect-timeout", "2", &address, "list"];
        asked(&[&shown[..], &end].concat()).0.status.success()
    };
    let began = Instant::now();
    let mut silent = connect(server.address).await;
    let mut stalled = connect(server.address).await;
    stalled.write_all(&[0x16, 3, 1]).await.expect("it reads");
    for stream in [&silent, &stalled] {
        until_read(stream).await;
    }
    other.issue(&["127.0.0.1"]).replace(&own);
    server.process.signal("HUP");
    server.says("rules were read anew");
    assert!(lists(&other) && !lists(&ca), "the new certificate is shown");
    for stream in [&mut silent, &mut stalled] {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 64])).await;
        let read = read.expect("it is closed in time");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert!(
        began.elapsed() >= Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    server.says("no TLS handshake in time");
    let closed = "tidegate_lease_connections_closed_total{reason=\"handshake_timeout\"} 2";
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains(closed), "{metrics}");
    assert!(lists(&other), "the last one is served");
}

/// Two candidates in a ZooKeeper with TLS and client certificates; then the certificates are renewed.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_candidates_in_a_secured_zookeeper_one_grants_and_the_other_takes_over() {
    let (ca, other) = (Authority::new(), Authority::new());
    let zookeeper = ZooKeeper::secured(&ca.issue(&["127.0.0.1"]), &ca.ca());
    let candidate = |ca: &Authority, shows: &Issued| {
        let servers = zookeeper.servers();
        let (ca, cert, key) = (ca.ca(), shows.cert(), shows.key());
        Server::start(&format!(
            "[election]\nengine = \"zookeeper\"\ntime_to_live = \"2s\"\n[zookeeper]\n\
             servers = \"{servers}\"\nca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"\n{RULES}"
        ))
    };
    let is_master = async |server: &Server| {
        let so = async {
            while !server
                .get("/metrics")
                .await
                .body
                .contains("tidegate_lease_master 1")
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let so = tokio::time::timeout(2 * PATIENCE, so).await;
        so.expect("it becomes the master");
    };
    // A certificate of another authority is refused, and the log says so.
    let wrong = candidate(&ca, &other.issue(&["wrong"]));
    wrong.says("our certificate");
    let first = candidate(&ca, &ca.issue(&["first"]));
    is_master(&first).await;
    let second = candidate(&ca, &ca.issue(&["second"]));
    first.process.signal("TERM");
    first.says("\"finished\":true");
    is_master(&second).await;
}

/// Two candidates in an etcd with TLS, client certificates and users, which holds their rules too.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_candidates_in_a_secured_etcd_both_are_healthy_and_one_grants() {
    let ca = Authority::new();
    let own = ca.issue(&["127.0.0.1"]);
    let etcd = Etcd::with(1, "https", |port, _| secured_etcd(port, &own, &ca.ca()));
    let shows = ca.issue(&["leases"]);
    let rules = "resources: [{identifier_glob: '*', capacity: 7, algorithm: {kind: FAIR_SHARE, \
                 lease_length: 60, refresh_interval: 16}}]";
    let secured = [
        "--cacert",
        &ca.ca(),
        "--cert",
        shows.cert(),
        "--key",
        shows.key(),
    ];
    etcd.control(&[&secured[..], &["put", "/tests/rules", rules]].concat());
    enable_users(&etcd, &shows, &ca.ca(), "/tests/");
    let candidate = || {
        Server::start(&format!(
            "resources = \"etcd:/tests/rules\"\n[election]\nengine = \"etcd\"\n\
             key = \"/tests/master\"\ntime_to_live = \"2s\"\n[etcd]\nendpoints = [\"{}\"]\n\
             user = \"tidegate\"\npassword = \"password\"\nca = \"{}\"\ncert = \"{}\"\n\
             key = \"{}\"\n",
            etcd.url(0),
            ca.ca(),
            shows.cert(),
            shows.key()
        ))
    };
    let health = |server: &Server, service: &str| {
        let address = server.address.to_string();
        let asks = format!("{{\"service\": \"{service}\"}}");
        let call = "grpc.health.v1.Health/Check";
        let (_, told) = asked(&["-plaintext", "-d", &asks, &address, call]);
        told
    };
    let until = async |what: &str, is_so: &dyn Fn() -> bool| {
        let so = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let so = tokio::time::timeout(PATIENCE, so).await;
        so.unwrap_or_else(|_| panic!("never: {what}"));
    };
    let serves = |server: &Server, service: &str| health(server, service).contains("\"SERVING\"");
    let first = candidate();
    until("it is the master", &|| serves(&first, "doorman.Capacity")).await;
    let second = candidate();
    until("it knows the master", &|| serves(&second, "")).await;
    assert!(health(&second, "doorman.Capacity").contains("\"NOT_SERVING\""));
    assert!(health(&second, "other").contains("NotFound"));
    assert!(first.get("/v1/config").await.body.contains('7'));

    // One that watches sees the end, and holds up no stop.
    let address = first.address.to_string();
    let watch = [
        "-plaintext",
        "-d",
        "{}",
        &address,
        "grpc.health.v1.Health/Watch",
    ];
    let watching = Process::start("grpcurl", &mut grpcurl(&watch));
    watching.stdout.until("SERVING", PATIENCE, |lines| {
        lines
            .iter()
            .any(|it| it.contains("\"SERVING\""))
            .then_some(())
    });
    first.process.signal("TERM");
    watching.stdout.until("NOT_SERVING", PATIENCE, |lines| {
        let mut lines = lines.iter();
        lines.any(|it| it.contains("\"NOT_SERVING\"")).then_some(())
    });
    first.says("\"finished\":true");
    until("the second is the master", &|| {
        serves(&second, "doorman.Capacity")
    })
    .await;
}

/// A server below one with TLS, and an agent, each with the certificate of a client.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_below_and_an_agent_connect_over_tls() {
    let ca = Authority::new();
    let own = ca.issue(&["localhost"]);
    let root = Server::start(&format!("{}{RULES}", tls(&own, &ca)));
    let shows = ca.issue(&["below"]);
    let port = root.address.port();
    let below = Server::start(&format!(
        "parent = [\"localhost:{port}\"]\n[parent_tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n",
        ca.ca(),
        shows.cert(),
        shows.key()
    ));
    let leased = async |what: &str| {
        let so = async {
            while !root.get("/v1/leases").await.body.contains(what) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let so = tokio::time::timeout(PATIENCE, so).await;
        so.unwrap_or_else(|_| panic!("the root never leased {what}"));
    };
    let asks = "{\"client_id\": \"a\", \"resource\": [{\"resource_id\": \"below-1\", \
                \"priority\": 0, \"wants\": 5}]}";
    let address = below.address.to_string();
    let call = "doorman.Capacity/GetCapacity";
    let (output, told) = asked(&["-plaintext", "-d", asks, &address, call]);
    assert!(output.status.success(), "{told}");
    leased("below-1").await;

    let mut command = Command::new(with_programs());
    let server = format!("localhost:{port}");
    command.args(["lease-agent", "--server", &server, "--bind", "127.0.0.1:0"]);
    command.args([
        "--ca",
        &ca.ca(),
        "--cert",
        shows.cert(),
        "--key",
        shows.key(),
    ]);
    let agent = Process::start("lease-agent", &mut command);
    let address: SocketAddr = agent.stderr.until("its address", PATIENCE, |lines| {
        let line = lines.iter().find_map(|line| line.split("http://").nth(1))?;
        line.split(';').next()?.parse().ok()
    });
    let request = "POST /v1/rate/agents-1/wait HTTP/1.1\r\nHost: localhost\r\n\
                   Content-Length: 0\r\nConnection: close\r\n\r\n";
    let answer = ask(address, request.to_owned()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    leased("agents-1").await;

    // A file that is no authority's ends the start with its cure.
    let mut command = Command::new(with_programs());
    command.args(["lease-agent", "--server", &server, "--ca", shows.key()]);
    let output = command.output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && told.contains("holds no certificate"),
        "{told}"
    );
    assert!(told.contains("-----BEGIN CERTIFICATE-----"), "{told}");
}
