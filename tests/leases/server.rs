//! The capacity server over real sockets: the four calls, redirects, everything that no client
//! should send, and what there is to see.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut};
use prost::Message;
use tidegate_lease_server::running::LeaseServer;
use tidegate_leases::server::{
    CapacityService, Catchall, Metrics, NetworkBounds, RawAlgorithm, RawKind, RawTemplate,
    ServerBounds, ServerSettings, Templates, TreePlace, Unmatched, serve,
};
use tidegate_leases::wire::capacity_client::CapacityClient;
use tidegate_leases::wire::{self, Epoch, GetCapacityRequest, ResourceRequest};
use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tidegate_runtime::election::Mastership;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::started::{channel, started};
use crate::support::{Answer, PATIENCE, ask, connect};

/// No learning and no pause between requests, so that each answer is the split.
const ROOT: &str = "
bind = \"127.0.0.1:0\"
status_bind = \"127.0.0.1:0\"
minimum_interval = \"0s\"
[[resource]]
glob = \"*\"
capacity = 100
algorithm = { kind = \"fair_share\", lease = \"60s\", refresh = \"5s\", learning = \"0s\", frees = \"at_once\" }
[[resource]]
glob = \"dir/*\"
capacity = 50
algorithm = { learning = \"0s\" }
";

fn client(address: SocketAddr) -> CapacityClient<Channel> {
    CapacityClient::new(channel(address))
}

fn wish(resource: &str, wants: f64) -> ResourceRequest {
    ResourceRequest {
        resource_id: resource.to_owned(),
        priority: 0,
        has: None,
        wants,
    }
}

fn request(who: &str, resource: Vec<ResourceRequest>) -> GetCapacityRequest {
    GetCapacityRequest {
        client_id: who.to_owned(),
        resource,
    }
}

/// The grant of a client for a resource.
async fn granted(client: &mut CapacityClient<Channel>, who: &str, of: &str, wants: f64) -> f64 {
    let asked = request(who, vec![wish(of, wants)]);
    let answer = client.get_capacity(asked).await.expect("an answer");
    let answer = answer.into_inner();
    assert_eq!(answer.mastership, None);
    answer.response[0].gets.capacity
}

#[tokio::test]
async fn all_four_calls_are_answered() {
    let server = started(ROOT).await;
    let mut client = client(server.address());
    let found = client.discovery(wire::DiscoveryRequest {}).await;
    let found = found.expect("an answer").into_inner();
    assert!(found.is_master);
    let address = found.mastership.master_address;
    // The port of the config is 0, so this is what the operator wrote.
    assert_eq!(address.as_deref(), Some("127.0.0.1:0"));

    let before = unix_millis();
    let asked = request("a", vec![wish("disk", 70.0), wish("dir/x", 10.0)]);
    let answer = client.get_capacity(asked).await.expect("an answer");
    let millis = wire::server_millis(answer.metadata()).expect("it says when");
    assert!((before..=unix_millis()).contains(&millis), "{millis}");
    let answer = answer.into_inner();
    let gets = |id: &str| {
        let found = answer.response.iter().find(|it| it.resource_id == id);
        found.expect("answered").clone()
    };
    assert_eq!(gets("disk").gets.capacity, 70.0);
    assert_eq!(gets("disk").gets.refresh_interval, 5);
    assert_eq!(gets("disk").safe_capacity, Some(100.0));
    assert_eq!(gets("dir/x").gets.capacity, 10.0);
    let length = gets("disk").gets.expiry_time * 1000 - millis;
    assert!((59_000..=60_000).contains(&length), "{length}");

    let band = wire::PriorityBandAggregate {
        priority: 1,
        num_clients: 3,
        wants: 90.0,
    };
    let asked = wire::GetServerCapacityRequest {
        server_id: "below".into(),
        resource: vec![wire::ServerCapacityResourceRequest {
            resource_id: "disk".into(),
            has: None,
            wants: vec![band],
        }],
    };
    let answer = client.get_server_capacity(asked).await.expect("an answer");
    let answer = answer.into_inner();
    assert_eq!(answer.response[0].gets.capacity, 30.0);
    let algorithm = answer.response[0].algorithm.as_ref().expect("it says how");
    assert_eq!(algorithm.kind, wire::algorithm::Kind::FairShare as i32);

    let released = wire::ReleaseCapacityRequest {
        client_id: "a".into(),
        // As Doorman's client does: an empty id for each, before the real ones.
        resource_id: vec![String::new(), "disk".into(), "no-ones".into()],
    };
    let released = client.release_capacity(released).await.expect("an answer");
    assert_eq!(released.into_inner().mastership, None);
    assert_eq!(granted(&mut client, "b", "disk", 10.0).await, 10.0);
}

fn unix_millis() -> i64 {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(since.as_millis()).expect("not that long")
}

/// A server that says that another is the master.
pub(crate) async fn redirecting_to(master: SocketAddr) -> Directed {
    directed(
        Mastership::Other(master.to_string()),
        NetworkBounds::default(),
    )
    .await
}

/// A service whose mastership the test decides.
pub(crate) struct Directed {
    pub(crate) address: SocketAddr,
    mastership: watch::Sender<Mastership>,
    _stop: tokio_util::sync::DropGuard,
}

async fn directed(first: Mastership, reach: NetworkBounds) -> Directed {
    let clock = Clock::start();
    let rule = RawTemplate {
        identifier_glob: Some("*".into()),
        capacity: Some(100.0),
        algorithm: Some(RawAlgorithm {
            kind: Some(RawKind::Number(3)),
            lease_length: Some(60),
            refresh_interval: Some(5),
            learning_mode_duration: Some(0),
            parameters: Vec::new(),
        }),
        ..RawTemplate::default()
    };
    let settings = ServerSettings {
        id: "one".into(),
        address: "one:1".into(),
        place: TreePlace::Root,
        epoch: Epoch::new(Timestamp::ZERO, clock.phase()),
        minimum_interval: Duration::ZERO,
        unmatched: Unmatched::Grant,
        bounds: ServerBounds::default(),
    };
    let templates = Templates::new(vec![rule], Catchall::Optional).expect("good");
    let (mastership, told) = watch::channel(first);
    let service = CapacityService::new(settings, templates, clock, told);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("free");
    let address = listener.local_addr().expect("it has one");
    let stop = CancellationToken::new();
    tokio::spawn(service.clone().keep_following(stop.clone()));
    tokio::spawn(serve(
        listener,
        service,
        None,
        reach,
        Arc::new(Metrics::default()),
        stop.clone(),
    ));
    Directed {
        address,
        mastership,
        _stop: stop.drop_guard(),
    }
}

const FOR_EVER: Mastership = Mastership::Master {
    until: Timestamp::MAX,
    term: 1,
};

#[tokio::test]
async fn a_server_that_is_not_master_names_the_master_in_every_call() {
    let server = directed(Mastership::Other("two:2".into()), NetworkBounds::default()).await;
    let mut client = client(server.address);
    let two = Some(wire::Mastership {
        master_address: Some("two:2".into()),
    });
    let asked = request("a", vec![wish("disk", 1.0)]);
    let answer = client
        .get_capacity(asked)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!((answer.response.len(), answer.mastership), (0, two.clone()));
    let asked = wire::GetServerCapacityRequest {
        server_id: "s".into(),
        resource: Vec::new(),
    };
    let answer = client.get_server_capacity(asked).await.expect("an answer");
    assert_eq!(answer.into_inner().mastership, two);
    let asked = wire::ReleaseCapacityRequest {
        client_id: "a".into(),
        resource_id: Vec::new(),
    };
    let answer = client.release_capacity(asked).await.expect("an answer");
    assert_eq!(answer.into_inner().mastership, two);
    let answer = client
        .discovery(wire::DiscoveryRequest {})
        .await
        .expect("an answer");
    let answer = answer.into_inner();
    assert_eq!((Some(answer.mastership), answer.is_master), (two, false));

    server.mastership.send_replace(Mastership::Unknown);
    let asked = request("a", vec![wish("disk", 1.0)]);
    let answer = client
        .get_capacity(asked)
        .await
        .expect("an answer")
        .into_inner();
    let unknown = wire::Mastership {
        master_address: None,
    };
    assert_eq!(answer.mastership, Some(unknown));
}

#[tokio::test]
async fn a_master_whose_fence_has_passed_grants_nothing_and_forgets_nothing() {
    let server = directed(FOR_EVER, NetworkBounds::default()).await;
    let mut client = client(server.address);
    assert_eq!(granted(&mut client, "a", "disk", 60.0).await, 60.0);

    // Not renewed: the moment has passed, even if the channel says otherwise.
    server.mastership.send_replace(Mastership::Master {
        until: Timestamp::ZERO,
        term: 1,
    });
    let asked = request("a", vec![wish("disk", 60.0)]);
    let answer = client.get_capacity(asked).await;
    let answer = answer.expect("an answer").into_inner();
    assert_eq!(answer.response, []);
    let unknown = wire::Mastership {
        master_address: None,
    };
    assert_eq!(answer.mastership, Some(unknown.clone()));
    let found = client
        .discovery(wire::DiscoveryRequest {})
        .await
        .expect("an answer");
    let found = found.into_inner();
    assert_eq!((found.is_master, found.mastership), (false, unknown));

    // Renewed in the same term, it still knows all leases.
    server.mastership.send_replace(FOR_EVER);
    assert_eq!(granted(&mut client, "b", "disk", 100.0).await, 40.0);
    // In another term it knows nothing; this rule has no time to learn.
    server.mastership.send_replace(Mastership::Master {
        until: Timestamp::MAX,
        term: 2,
    });
    assert_eq!(granted(&mut client, "c", "disk", 100.0).await, 100.0);
}

// What no client should send.

/// Bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

async fn call(channel: &Channel, method: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("it is there");
    let path = format!("/doorman.Capacity/{method}");
    let path = path.parse().expect("a path");
    let answer = grpc.unary(tonic::Request::new(bytes), path, Raw).await?;
    Ok(answer.into_inner())
}

#[tokio::test]
async fn bytes_that_are_no_message_are_answered_as_doorman_answers_them() {
    let server = started(ROOT).await;
    let channel = channel(server.address());
    let check = async |method: &str, bytes: &[u8], code: Code, word: &str| {
        let answer = call(&channel, method, bytes.to_vec()).await;
        let status = answer.expect_err("refused");
        assert_eq!(status.code(), code, "{method} {bytes:?}: {status}");
        assert!(status.message().contains(word), "{status}");
    };
    for method in ["GetCapacity", "GetServerCapacity", "ReleaseCapacity"] {
        check(method, &[0xff; 64], Code::FailedPrecondition, "no protobuf").await;
        check(
            method,
            &[0x0a, 9, b'x'],
            Code::FailedPrecondition,
            "no protobuf",
        )
        .await;
    }
    check("Discovery", &[0x0f], Code::FailedPrecondition, "").await;
    // A text that is none.
    check(
        "ReleaseCapacity",
        &[0x0a, 1, 0xff],
        Code::FailedPrecondition,
        "no protobuf",
    )
    .await;
    check("GetCapacity", &[], Code::Unknown, "client_id is not set").await;
    check(
        "GetServerCapacity",
        &[],
        Code::Unknown,
        "server_id is not set",
    )
    .await;
    check(
        "ReleaseCapacity",
        &[],
        Code::Unknown,
        "client_id is not set",
    )
    .await;
    let no_wants = [0x0a, 1, b'c', 0x12, 5, 0x0a, 1, b'r', 0x10, 0];
    check("GetCapacity", &no_wants, Code::Unknown, "wants is not set").await;
    check("Nothing", &[], Code::Unimplemented, "").await;
    // An empty request has an empty answer.
    let empty = request("c", Vec::new()).encode_to_vec();
    let answer = call(&channel, "GetCapacity", empty).await;
    assert_eq!(answer.expect("answered"), Vec::<u8>::new());
    let mut client = CapacityClient::new(channel.clone());
    assert_eq!(granted(&mut client, "c", "disk", 5.0).await, 5.0);
}

#[tokio::test]
async fn an_impossible_request_is_refused_whole_and_harms_no_other_client() {
    let server = started(ROOT).await;
    let mut client = client(server.address());
    assert_eq!(granted(&mut client, "good", "disk", 40.0).await, 40.0);
    let good = || wish("other", 1.0);
    let refused = [
        (
            request("bad", vec![good(), wish("disk", f64::NAN)]),
            "wants",
        ),
        (
            request("bad", vec![good(), wish("disk", f64::INFINITY)]),
            "wants",
        ),
        (request("bad", vec![good(), wish("disk", -1.0)]), "wants"),
        (request("bad", vec![good(), good()]), "twice"),
        (request("bad", vec![good(), wish("", 1.0)]), "resource_id"),
        (request("", vec![good()]), "client_id"),
        (
            request("bad", vec![wish(&"x".repeat(1_025), 1.0)]),
            "1025 bytes",
        ),
    ];
    for (asked, word) in refused {
        let status = client.get_capacity(asked).await.expect_err(word);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(word), "{status}");
    }
    let bands = |num_clients: i64, wants: f64| wire::PriorityBandAggregate {
        priority: 0,
        num_clients,
        wants,
    };
    for wants in [
        vec![bands(0, 1.0)],
        vec![bands(-1, 1.0)],
        vec![bands(1, f64::NAN)],
        Vec::new(),
    ] {
        let asked = wire::GetServerCapacityRequest {
            server_id: "below".into(),
            resource: vec![wire::ServerCapacityResourceRequest {
                resource_id: "disk".into(),
                has: None,
                wants,
            }],
        };
        let status = client
            .get_server_capacity(asked)
            .await
            .expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    // None of them had an effect: "other" has its whole capacity, and "disk" its rest.
    assert_eq!(granted(&mut client, "next", "disk", 100.0).await, 60.0);
    assert_eq!(granted(&mut client, "next", "other", 100.0).await, 100.0);
}

#[tokio::test]
async fn odd_ids_are_ids_like_any_other() {
    let server = started(ROOT).await;
    let mut client = client(server.address());
    let long = "x".repeat(1_024);
    let odd = [
        "/",
        "a/b/c",
        "..",
        "\0",
        "\n\r\t",
        "\u{7f}\u{1b}[31m",
        "ü🦀",
        "{\"}",
        "*",
        "[",
        "<b>",
        &long,
    ];
    for id in odd {
        assert_eq!(granted(&mut client, id, id, 7.0).await, 7.0, "{id:?}");
        let released = wire::ReleaseCapacityRequest {
            client_id: id.to_owned(),
            resource_id: vec![id.to_owned()],
        };
        client.release_capacity(released).await.expect("an answer");
        assert_eq!(granted(&mut client, id, id, 7.0).await, 7.0, "{id:?}");
    }
    // And can be shown.
    for path in [
        "/",
        "/v1/leases",
        "/metrics",
        "/debug/resources?resource=%3Cb%3E",
    ] {
        let page = get(&server, path).await;
        page.is(200);
        assert!(!page.body.contains("<b>") || path == "/v1/leases" || path == "/metrics");
    }
}

#[tokio::test]
async fn a_hundred_thousand_resources_of_one_client_are_refused_and_cost_no_other() {
    let server = started(ROOT).await;
    let mut client = client(server.address());
    let many = |count: usize| (0..count).map(|it| wish(&format!("r{it}"), 1.0)).collect();
    let status = client.get_capacity(request("greedy", many(100_000))).await;
    let status = status.expect_err("too many");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // Larger than a message may be.
    let status = client.get_capacity(request("greedy", many(300_000))).await;
    assert_eq!(status.expect_err("too long").code(), Code::OutOfRange);
    // One at a time comes no further.
    client
        .get_capacity(request("greedy", many(250)))
        .await
        .expect("as many as one may have");
    let status = client
        .get_capacity(request("greedy", vec![wish("more", 1.0)]))
        .await;
    assert_eq!(
        status.expect_err("one too many").code(),
        Code::ResourceExhausted
    );
    assert_eq!(granted(&mut client, "modest", "disk", 5.0).await, 5.0);
}

/// Ten clients that each make up as many ids as they may leave room for others.
#[tokio::test]
async fn clients_that_make_up_ids_do_not_use_up_the_resources_of_others() {
    let bounds = "[bounds]\nresources = 100\nresources_per_client = 9\n";
    let server = started(&format!("{ROOT}\n{bounds}")).await;
    let mut client = client(server.address());
    for greedy in 0..10 {
        let who = format!("greedy-{greedy}");
        for id in 0..20 {
            let wish = vec![wish(&format!("{who}-{id}"), 1.0)];
            let answer = client.get_capacity(request(&who, wish)).await;
            match answer {
                Ok(_) => assert!(id < 9, "{who} made {id} before"),
                Err(status) => {
                    assert!(id >= 9, "{who} made only {id}: {status}");
                    assert_eq!(status.code(), Code::ResourceExhausted);
                    let told = "the server keeps no more than 9 resources that one client asks for";
                    assert_eq!(status.message(), told);
                }
            }
        }
    }
    assert_eq!(granted(&mut client, "modest", "one", 5.0).await, 5.0);
    // Clients share a resource that one of them made, and a client that leaves releases its part.
    for at in 0..9 {
        let id = format!("greedy-0-{at}");
        granted(&mut client, "modest", &id, 1.0).await;
    }
    let released = wire::ReleaseCapacityRequest {
        client_id: "greedy-0".to_owned(),
        resource_id: (0..9).map(|at| format!("greedy-0-{at}")).collect(),
    };
    client.release_capacity(released).await.expect("an answer");
    assert_eq!(granted(&mut client, "greedy-0", "again", 2.0).await, 2.0);
}

#[tokio::test]
async fn silent_connections_are_closed_counted_and_make_room_for_others() {
    let bounds = "connections = 20\nhandshake_timeout = \"500ms\"\nidle_timeout = \"1s\"\n";
    let server = started(&format!("{ROOT}\n[bounds]\n{bounds}")).await;
    // One speaks HTTP/2 and then asks for nothing; the others send no byte, or too few.
    let mut idle = client(server.address());
    idle.discovery(wire::DiscoveryRequest {})
        .await
        .expect("an answer");
    let mut silent = Vec::new();
    for at in 0..19 {
        let mut stream = connect(server.address()).await;
        if at % 2 == 0 {
            stream.write_all(b"PRI * HTTP").await.expect("sent");
        }
        silent.push(stream);
    }
    let mut another = client(server.address());
    let answer = another.discovery(wire::DiscoveryRequest {});
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    answer.expect("there is room in time").expect("an answer");
    for mut stream in silent {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        // A reset is an end, too: the sent bytes were not read.
        let _ = ended.expect("it is closed");
    }
    let expected = [
        "tidegate_lease_connections 0",
        "tidegate_lease_connections_closed_total{reason=\"handshake_timeout\"} 19",
        "tidegate_lease_connections_closed_total{reason=\"idle_timeout\"} 2",
    ];
    let counted = async {
        loop {
            let text = get(&server, "/metrics").await.body;
            let has = |line: &&str| text.lines().any(|it| it == *line);
            if expected.iter().all(has) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let text = tokio::time::timeout(PATIENCE, counted).await;
    let text = text.expect("they are counted");
    assert!(!text.contains("tidegate_lease_accept_waits_total 0"));
    // The closed connection is made again.
    let again = idle.discovery(wire::DiscoveryRequest {}).await;
    assert!(again.is_ok(), "{again:?}");
}

#[tokio::test]
async fn more_connections_than_there_may_be_wait() {
    let reach = NetworkBounds {
        connections: 1,
        ..NetworkBounds::default()
    };
    let server = directed(FOR_EVER, reach).await;
    let mut first = client(server.address);
    first
        .discovery(wire::DiscoveryRequest {})
        .await
        .expect("an answer");
    let mut second = client(server.address);
    let waiting = tokio::spawn(async move { second.discovery(wire::DiscoveryRequest {}).await });
    first
        .discovery(wire::DiscoveryRequest {})
        .await
        .expect("an answer");
    assert!(!waiting.is_finished());
    drop(first);
    let answer = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("its turn has come");
    answer.expect("no panic").expect("an answer");
}

#[tokio::test]
async fn a_connection_that_speaks_no_http2_is_closed() {
    let server = started(ROOT).await;
    // How it is turned away is the library's affair; that nothing comes of it is ours.
    let mut stream = connect(server.address()).await;
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
    let _ = ended.await.expect("it is closed");
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
    let mut client = client(server.address());
    assert_eq!(granted(&mut client, "c", "disk", 5.0).await, 5.0);
}

// What there is to see.

async fn get(server: &LeaseServer, path: &str) -> Answer {
    get_with(server, path, "Host: 127.0.0.1\r\n").await
}

/// Gets a page with these headers.
async fn get_with(server: &LeaseServer, path: &str, headers: &str) -> Answer {
    let address = server.status_address().expect("there is one");
    let asked = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    Answer::read(ask(address, asked).await.as_bytes())
}

#[tokio::test]
async fn a_page_of_another_origin_reads_nothing_of_the_lease_server() {
    let server = started(ROOT).await;
    for path in [
        "/",
        "/debug/resources?resource=x",
        "/v1/leases",
        "/v1/config",
        "/metrics",
    ] {
        for headers in [
            "Host: evil.example\r\n",
            "Host: evil.example:9191\r\n",
            "Host: localhost.evil.example\r\n",
            "Host: localhost\r\nOrigin: http://evil.example\r\n",
            "Host: localhost\r\nOrigin: null\r\n",
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
        ] {
            let answer = get_with(&server, path, headers).await;
            assert_eq!(answer.status, 403, "{path} with {headers}");
        }
    }
    for headers in [
        "Host: localhost:9191\r\n",
        "Host: [::1]\r\n",
        "Host: localhost\r\nOrigin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n",
    ] {
        get_with(&server, "/", headers).await.is(200);
    }
    // A probe reads nothing.
    let probe = get_with(&server, "/livez", "Host: evil.example\r\n").await;
    probe.is(200);
}

#[tokio::test]
async fn a_name_that_the_config_allows_reads_the_state_of_the_lease_server() {
    let server = started(&format!(
        "status_allowed_hosts = [\"Leases.example\"]\n{ROOT}"
    ))
    .await;
    for (host, expected) in [
        ("leases.example", 200),
        ("LEASES.EXAMPLE:9191", 200),
        ("a.leases.example", 403),
    ] {
        let headers = format!("Host: {host}\r\n");
        let answer = get_with(&server, "/metrics", &headers).await;
        assert_eq!(answer.status, expected, "{host}");
    }
}

#[tokio::test]
async fn the_state_can_be_read_by_people_and_machines() {
    let server = started(ROOT).await;
    let mut client = client(server.address());
    granted(&mut client, "a", "disk", 70.0).await;
    granted(&mut client, "b", "disk", 70.0).await;
    let state = get(&server, "/v1/leases").await.json();
    assert_eq!(state["mastership"]["is_master"], true);
    let disk = &state["resources"][0];
    assert_eq!(disk["resource_id"], "disk");
    assert_eq!(disk["capacity"], 100.0);
    assert_eq!(
        (&disk["has"], &disk["wants"]),
        (&100.0.into(), &140.0.into())
    );
    assert_eq!(disk["algorithm"], "FAIR_SHARE");
    assert_eq!(disk["leases"][1]["holder"], "b");
    assert_eq!(disk["leases"][1]["has"], 30.0);

    let page = get(&server, "/debug/status").await;
    page.is(200);
    for word in ["is the master", "disk", "FAIR_SHARE", "dir/*"] {
        assert!(page.body.contains(word), "no {word}");
    }
    let page = get(&server, "/debug/resources?resource=disk").await;
    assert!(
        page.body.contains("<th scope=\"row\">b</th>"),
        "{}",
        page.body
    );
    get(&server, "/debug/resources?resource=none").await.is(404);
    get(&server, "/livez").await.is(200);
    get(&server, "/readyz").await.is(200);
    get(&server, "/nothing").await.is(404);
    let rules = get(&server, "/v1/config").await.json();
    assert_eq!(rules["resources"][1]["identifier_glob"], "dir/*");
}

#[tokio::test]
async fn metrics_have_doormans_names_and_ours_and_promtool_has_nothing_to_say() {
    let server = started(ROOT).await;
    let mut client = client(server.address());
    granted(&mut client, "a", "disk", 70.0).await;
    granted(&mut client, "a", "other", 7.0).await;
    let bad = request("", Vec::new());
    client.get_capacity(bad).await.expect_err("refused");
    let garbage = call(&channel(server.address()), "GetCapacity", vec![0xff]).await;
    garbage.expect_err("refused");
    let text = get(&server, "/metrics").await.body;
    for line in [
        "doorman_server_requests{method=\"GetCapacity\"} 4",
        "doorman_server_request_errors{method=\"GetCapacity\"} 2",
        "doorman_server_request_durations_count{method=\"GetCapacity\"} 4",
        "doorman_server_has{resource=\"disk\"} 70",
        "doorman_server_wants{resource=\"disk\"} 70",
        "doorman_server_subclients{resource=\"disk\"} 1",
        // A client's own word is no other resource's label.
        "doorman_server_has{resource=\"other\"} 7",
        "tidegate_lease_requests_total{code=\"failed_precondition\",method=\"GetCapacity\"} 1",
        "tidegate_lease_requests_total{code=\"invalid_argument\",method=\"GetCapacity\"} 1",
        "tidegate_lease_master 1",
        "tidegate_lease_rejected_total 1",
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
    }
    crate::support::promtool_is_content(&text);
}

#[tokio::test]
async fn labels_are_bounded_however_many_resources_there_are() {
    let server = started(&format!("{ROOT}\n[bounds]\nresources_per_client = 900\n")).await;
    let mut client = client(server.address());
    for who in ["a", "b"] {
        let many = (0..900)
            .map(|it| wish(&format!("{who}{it}"), 1.0))
            .collect();
        client
            .get_capacity(request(who, many))
            .await
            .expect("an answer");
    }
    let text = get(&server, "/metrics").await.body;
    let labelled = text
        .lines()
        .filter(|line| line.starts_with("doorman_server_has{"));
    assert_eq!(labelled.count(), 101);
    let rest = "doorman_server_has{resource=\"other\"} 1700";
    assert!(text.contains(rest), "{text}");
    let state = get(&server, "/v1/leases").await.json();
    let shown = state["resources"].as_array().expect("a list").len();
    assert_eq!((shown, &state["resources_left_out"]), (1_000, &800.into()));
    let page = get(&server, "/").await;
    assert!(page.body.contains("next resources</a>, 800 more"));
}

// A tree over real sockets.

fn below(parent: SocketAddr) -> String {
    format!(
        "bind = \"127.0.0.1:0\"\nstatus_bind = \"127.0.0.1:0\"\nid = \"leaf\"\n\
         minimum_interval = \"0s\"\nparent = [\"{parent}\"]\n"
    )
}

/// Asks until something is granted: until the server has heard from the one above.
async fn granted_in_time(
    client: &mut CapacityClient<Channel>,
    who: &str,
    wants: f64,
    enough: f64,
) -> f64 {
    let asking = async {
        loop {
            let got = granted(client, who, "disk", wants).await;
            if got >= enough {
                return got;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("it is granted")
}

#[tokio::test]
async fn capacity_of_the_root_arrives_three_levels_below() {
    let root = started(ROOT).await;
    let middle = started(&below(root.address())).await;
    let leaf = started(&below(middle.address()).replace("leaf", "lower")).await;
    let mut client = client(leaf.address());
    let got = granted_in_time(&mut client, "c", 40.0, 40.0).await;
    assert_eq!(got, 40.0);
    let state = get(&root, "/v1/leases").await.json();
    let lease = &state["resources"][0]["leases"][0];
    assert_eq!(
        (&lease["holder"], &lease["is_server"]),
        (&"leaf".into(), &true.into())
    );
    assert_eq!(lease["has"], 40.0);
    let metrics = get(&leaf, "/metrics").await.body;
    assert!(
        !metrics.contains("parent_requests_total{outcome=\"answered\"} 0"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_server_below_follows_to_the_master_above() {
    let root = started(ROOT).await;
    let other = directed(
        Mastership::Other(root.address().to_string()),
        NetworkBounds::default(),
    )
    .await;
    let leaf = started(&below(other.address)).await;
    let mut client = client(leaf.address());
    assert_eq!(granted_in_time(&mut client, "c", 40.0, 40.0).await, 40.0);
    let metrics = get(&leaf, "/metrics").await.body;
    assert!(!metrics.contains("outcome=\"redirected\"} 0"), "{metrics}");
}
