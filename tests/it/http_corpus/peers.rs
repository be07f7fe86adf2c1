//! Sends the requests through HAProxy and nginx, and shows what reaches the backend behind each. Writes
//! `docs/reports/http-corpus.md`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::cases::Case;
use super::client::Until;
use super::recording::Recording;
use super::{Post, Run, SIDECARS, Variant, ambiguous, for_all, posts};
use crate::sidecar::run;
use crate::stores::free_port;
use crate::support::until;

/// The work of one proxy on one case.
#[derive(Clone)]
struct Observed {
    source: String,
    name: String,
    backend: Vec<String>,
    client: String,
    /// Why what reached the backend has more than one meaning.
    doubts: Vec<String>,
    /// Whether the next client got no right answer.
    next_is_hurt: bool,
}

/// Runs a case without an expectation.
async fn observe(post: &Post, source: String, case: &Case) -> Observed {
    let bytes = case.bytes();
    let alone = post.run(&bytes, Variant::Alone, Until::Silence).await;
    let canary = post.run(&bytes, Variant::Canary, Until::Silence).await;
    let is_answered = canary
        .got
        .answers
        .iter()
        .any(|it| it.body.bytes == b"GET /canary");
    let end = match (alone.got.closed, is_answered) {
        (true, _) => "closed",
        (false, true) => "open",
        (false, false) => "waits",
    };
    let mut client = alone.answers();
    client.retain(|it| end != "waits" || *it == "answered");
    client.push(end);
    let doubts = |run: &Run| -> Vec<String> { run.seen.iter().filter_map(ambiguous).collect() };
    let is_hurt = |run: &Run| {
        run.fence
            .answers
            .iter()
            .all(|it| it.body.bytes != b"GET /fence")
    };
    Observed {
        source,
        name: case.name.clone(),
        backend: alone.backend(),
        client: client.join(", "),
        doubts: [doubts(&alone), doubts(&canary)].concat(),
        next_is_hurt: is_hurt(&alone) || is_hurt(&canary),
    }
}

async fn observe_all(posts: Vec<Post>) -> Vec<Observed> {
    for_all(posts, |post, source, case| async move {
        observe(&post, source.name.clone(), &case).await
    })
    .await
}

/// The frontends of a peer: a port of its own for each backend.
async fn frontends() -> Vec<(u16, Recording)> {
    let mut all = Vec::new();
    for _ in 0..SIDECARS {
        all.push((free_port(), Recording::start().await));
    }
    all
}

fn haproxy_config(frontends: &[(u16, Recording)]) -> String {
    let mut config =
        "global\n maxconn 500\n nbthread 1\ndefaults\n mode http\n http-reuse always\n \
                      timeout connect 2s\n timeout client 3s\n timeout server 3s\n"
            .to_owned();
    for (port, backend) in frontends {
        let backend = backend.addr;
        write!(
            config,
            "listen p{port}\n bind 127.0.0.1:{port}\n server one {backend}\n"
        )
        .expect("a string takes it");
    }
    config
}

fn nginx_config(frontends: &[(u16, Recording)], dir: &Path) -> String {
    let dir = dir.display();
    let mut servers = String::new();
    for (port, backend) in frontends {
        let backend = backend.addr;
        write!(
            servers,
            "upstream u{port} {{ server {backend}; keepalive 8; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://u{port}; }} }}\n"
        )
        .expect("a string takes it");
    }
    format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;\n\
         events {{ worker_connections 500; }}\n\
         http {{ access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p;\n\
         fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
         proxy_http_version 1.1; proxy_set_header Connection '';\n\
         proxy_ignore_client_abort on; client_header_timeout 3s; client_body_timeout 3s;\n{servers}}}\n"
    )
}

/// Starts a peer, which ends when dropped, and waits until it listens.
pub(crate) async fn started(mut command: Command, ports: &[u16]) -> Child {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program is installed");
    for &port in ports {
        let listens =
            || std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_ok();
        until(listens, || format!("port {port}")).await;
    }
    child
}

/// The version that a program prints.
pub(crate) async fn version(program: &str, argument: &str) -> String {
    let said = run(Command::new(program).arg(argument)).await;
    let text = said.out + &said.err;
    let words = text.split(|it: char| it.is_whitespace() || it == '/');
    // Envoy also prints a hash.
    let number = words
        .map(|word| word.trim_start_matches('v'))
        .filter(|word| word.starts_with(|it: char| it.is_ascii_digit()) && word.contains('.'))
        .find_map(|word| word.split('-').next());
    number.expect("it has a version").to_owned()
}

/// The work of each proxy, and its name.
async fn all() -> Vec<(String, Vec<Observed>)> {
    let (posts, sidecars) = posts().await;
    let mut columns = vec![("Tidegate".to_owned(), observe_all(posts).await)];
    drop(sidecars);
    let dir = tempfile::tempdir().expect("a temporary directory");
    for peer in ["HAProxy", "nginx"] {
        let frontends = frontends().await;
        let ports: Vec<u16> = frontends.iter().map(|(port, _)| *port).collect();
        let path = dir.path().join(peer);
        let (config, program, flag) = match peer {
            "HAProxy" => (haproxy_config(&frontends), "haproxy", "-f"),
            _ => (nginx_config(&frontends, dir.path()), "nginx", "-c"),
        };
        std::fs::write(&path, config).expect("it can be written to");
        let mut command = Command::new(program);
        command.arg(flag).arg(&path);
        let _peer = started(command, &ports).await;
        let posts = frontends.into_iter().map(|(port, backend)| Post {
            proxy: SocketAddr::from(([127, 0, 0, 1], port)),
            backend,
        });
        let version = version(program, "-v").await;
        columns.push((
            format!("{peer} {version}"),
            observe_all(posts.collect()).await,
        ));
    }
    columns
}

/// Sources in the order of their first case.
fn sources_of(observed: &[Observed]) -> Vec<&str> {
    let mut sources: Vec<&str> = Vec::new();
    for it in observed {
        if !sources.contains(&it.source.as_str()) {
            sources.push(&it.source);
        }
    }
    sources
}

const HEAD: &str = "# What HTTP/1.1 proxies make of bad requests

`make corpus-peers` writes this page from a run of the [corpus](../../tests/http_corpus/README.md). Each request goes through each
proxy twice: alone, and with a second request behind it on the same connection. Behind the proxy is a server that records every
byte. Last, another client sends a request.

- *forwarded*: a request of the case reached the server.
- *ambiguous*: what reached it has no single meaning, by `http_desync_guardian` or by a reader that wants HTTP/1.0 or HTTP/1.1, one
  framing, one host in HTTP/1.1, lines that end in CRLF, and no NUL. A body of a GET or HEAD does not count.
- *hurt*: the request of the other client was not answered correctly.

HAProxy and nginx run with a config as short as possible: HTTP mode, connections to the server kept.

";

fn page(columns: &[(String, Vec<Observed>)]) -> String {
    let mut page = HEAD.to_owned();
    let mut line = |text: String| {
        page += &text;
        page.push('\n');
    };
    let titles = columns
        .iter()
        .map(|(proxy, _)| format!("{proxy}: forwarded, ambiguous, hurt"));
    line(format!(
        "| source | requests | {} |",
        titles.collect::<Vec<_>>().join(" | ")
    ));
    line(format!("|---|---:|{}", "---:|".repeat(columns.len())));
    let counts = |observed: &[&Observed]| {
        let count = |is_so: fn(&Observed) -> bool| observed.iter().filter(|it| is_so(it)).count();
        let forwarded = count(|it| !it.backend.is_empty());
        let ambiguous = count(|it| !it.doubts.is_empty());
        format!("{forwarded}, {ambiguous}, {}", count(|it| it.next_is_hurt))
    };
    let all = sources_of(&columns[0].1)
        .into_iter()
        .map(Some)
        .chain([None]);
    for source in all {
        let of_source = |observed: &'_ [Observed]| -> Vec<Observed> {
            let of = observed
                .iter()
                .filter(|it| source.is_none_or(|source| it.source == source));
            of.cloned().collect()
        };
        let cells = columns.iter().map(|(_, observed)| {
            let own = of_source(observed);
            counts(&own.iter().collect::<Vec<_>>())
        });
        let cells: Vec<String> = cells.collect();
        let requests = of_source(&columns[0].1).len();
        let title = source.unwrap_or("all");
        line(format!("| {title} | {requests} | {} |", cells.join(" | ")));
    }
    for (proxy, observed) in columns {
        let doubted: Vec<_> = observed.iter().filter(|it| !it.doubts.is_empty()).collect();
        line(format!("\n## Ambiguous behind {proxy}\n"));
        if doubted.is_empty() {
            line("None.".to_owned());
        }
        for source in sources_of(observed) {
            let names = doubted.iter().filter(|it| it.source == source);
            let names: Vec<String> = names.map(|it| format!("\"{}\"", it.name)).collect();
            if !names.is_empty() {
                line(format!("- {source}: {}", names.join(", ")));
            }
        }
    }
    page
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs HAProxy and nginx, and writes docs/reports/http-corpus.md: make corpus-peers"]
async fn the_table() {
    let columns = all().await;
    let mut lines = String::new();
    for (proxy, observed) in &columns {
        for it in observed {
            let line = serde_json::json!({
                "proxy": proxy, "source": it.source, "name": it.name, "backend": it.backend,
                "client": it.client, "doubts": it.doubts, "next_is_hurt": it.next_is_hurt,
            });
            writeln!(lines, "{line}").expect("a string takes it");
        }
    }
    // Every case, for a closer look.
    let every = Path::new(env!("CARGO_TARGET_TMPDIR")).join("http-corpus.jsonl");
    std::fs::write(every, lines).expect("the folder of the tests");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reports/http-corpus.md");
    std::fs::write(docs, page(&columns)).expect("the docs can be written to");
    let own = &columns[0].1;
    let ambiguous: Vec<_> = own.iter().filter(|it| !it.doubts.is_empty()).collect();
    assert!(ambiguous.is_empty(), "{} behind us", ambiguous.len());
}
