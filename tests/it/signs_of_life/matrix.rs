//! Real clients while their calls wait. What each does at interim answers is a row of
//! `docs/reference/signs-of-life.md`, and the reason for its row in `src/protocol/http/signs/agents.rs`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::{Duration, timeout};

use crate::generated;
use crate::raw_http::{Peer, limited, ok};
use crate::sidecar::Sidecar;
use crate::support::{Scripted, connect};

/// The longest time for all requests of one client.
const LONGEST: Duration = Duration::from_secs(60);

/// A client: its name for readers, the name of its product, and its program with the first arguments. `None` is the
/// client of this process.
struct Client {
    name: &'static str,
    agent: &'static str,
    program: Option<&'static [&'static str]>,
}

const CLIENTS: [Client; 15] = [
    client("curl", "curl", &["curl"]),
    client("wget", "Wget", &["wget"]),
    client(
        "requests, urllib3 (Python)",
        "python-requests",
        &[PYTHON, "wait.py", "requests"],
    ),
    client(
        "urllib (Python)",
        "Python-urllib",
        &[PYTHON, "wait.py", "urllib"],
    ),
    client(
        "httpx (Python)",
        "python-httpx",
        &[PYTHON, "wait.py", "httpx"],
    ),
    client(
        "aiohttp (Python)",
        "aiohttp",
        &[PYTHON, "wait.py", "aiohttp"],
    ),
    client(
        "fetch of Node.js (undici)",
        "node",
        &["node", "wait.mjs", "fetch"],
    ),
    client("http of Node.js", "none", &["node", "wait.mjs", "http"]),
    client("net/http (Go)", "Go-http-client", &[".venv-go/bin/wait"]),
    client(
        "HttpClient (Java)",
        "Java-http-client",
        &["java", "Wait.java", "client"],
    ),
    client(
        "HttpURLConnection (Java)",
        "Java",
        &["java", "Wait.java", "connection"],
    ),
    client(
        "HTTP::Tiny (Perl)",
        "HTTP-Tiny",
        &["perl", "wait.pl", "tiny"],
    ),
    client("LWP (Perl)", "libwww-perl", &["perl", "wait.pl", "lwp"]),
    client("Net::HTTP (Ruby)", "Ruby", &["ruby", "wait.rb"]),
    Client {
        name: "hyper (Rust)",
        agent: "none",
        program: None,
    },
];

const PYTHON: &str = ".venv-peers/bin/python";

const fn client(
    name: &'static str,
    agent: &'static str,
    program: &'static [&'static str],
) -> Client {
    Client {
        name,
        agent,
        program: Some(program),
    }
}

/// The listeners, with the method behind which a client says who it is, or does not.
const COLUMNS: [(&str, &str); 4] = [
    ("100", "!"),
    ("102", "!"),
    // The service sends them, while its call runs.
    ("test", ""),
    ("by-agent", ""),
];

/// The answer that a client saw.
#[derive(Debug, Deserialize)]
struct Seen {
    status: Option<u16>,
    #[serde(default)]
    body: String,
    error: Option<String>,
}

impl Seen {
    /// A cell of the table.
    fn in_words(&self) -> String {
        match (self.status, &self.error) {
            (Some(200), None) if self.body == "done" => "answered".to_owned(),
            (Some(status @ 100..=199), None) => format!("takes the {status} for its answer"),
            (None, Some(_)) => "fails".to_owned(),
            _ => format!("{self:?}"),
        }
    }
}

/// A sidecar with one departure a second, so that each call waits nearly that long, except the first.
async fn stage() -> (Scripted, Sidecar) {
    let backend = Scripted::start(|_, stream| async move {
        let mut peer = Peer::new(stream);
        while let Some(head) = peer.next_head().await {
            peer.body_of(&head).await;
            let interim = match head.contains(" /hints ") {
                true => "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n".repeat(5),
                false => String::new(),
            };
            peer.send(format!("{interim}{}", ok("done"))).await;
        }
    })
    .await;
    let limits = "window = \"1s\"\nwindow_guard = \"0s\"\nmax_wait = \"30s\"";
    let config = limited(limits, backend.addr, "", &super::listeners(""));
    let config = config.replace("total:100000", "total:1");
    (backend, Sidecar::start(&config).await)
}

/// Requests of one client, as its program takes them.
async fn asks(sidecar: &Sidecar) -> Vec<String> {
    // The first departure is at once.
    let mut asks = vec![format!("GET=http://{}/page", sidecar.listener("off").await)];
    for (listener, hides) in COLUMNS {
        let addr = sidecar.listener(listener).await;
        let path = match listener {
            "test" => "hints",
            _ => "page",
        };
        for method in ["GET", "POST"] {
            asks.push(format!("{method}{hides}=http://{addr}/{path}"));
        }
    }
    asks
}

/// The command of a client for these requests. curl and wget take one.
fn command(program: &[&str], asks: &[String]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_root = |name: &str| match name.starts_with('.') {
        true => root.join(name),
        false => name.into(),
    };
    let mut command = Command::new(in_root(program[0]));
    match program[0] {
        "java" => {
            command.args(["-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
        }
        "curl" => {
            command.args(["--silent", "--max-time", "20", "--write-out"]);
            command.arg("\n{\"status\":%{http_code},\"body\":\"done\"}\n");
        }
        "wget" => {
            command.args(["--quiet", "--tries=1", "--timeout=20", "-O", "-"]);
        }
        _ => {}
    }
    if let ["curl" | "wget"] = program {
        let (method, url) = asks[0].split_once('=').expect("METHOD=URL");
        let post = match program[0] {
            "curl" => "--data={\"name\":\"box\"}",
            _ => "--post-data={\"name\":\"box\"}",
        };
        if method.starts_with("POST") {
            command.args(
                post.split_once('=')
                    .map(|(flag, data)| [flag, data])
                    .expect("a flag"),
            );
        }
        if method.ends_with('!') {
            command.args(["--user-agent", "any"]);
        }
        command.arg(url);
    } else {
        if let Some(script) = program.get(1) {
            command.arg(root.join("tests/peers/http").join(script));
        }
        command.args(program.iter().skip(2)).args(asks);
    }
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a program, and returns what it printed.
async fn output(program: &[&str], asks: &[String]) -> String {
    let mut command = command(program, asks);
    let run = timeout(LONGEST, command.output()).await;
    let run = run.unwrap_or_else(|_| panic!("{program:?} does not end"));
    let run =
        run.unwrap_or_else(|error| panic!("`make clients` installs it: {error}: {program:?}"));
    String::from_utf8(run.stdout).expect("UTF-8")
}

/// Drives a client, and returns the answers in order.
async fn drive(client: &Client, asks: &[String]) -> Vec<Seen> {
    let mut seen = Vec::new();
    match client.program {
        None => {
            for ask in asks {
                seen.push(by_hyper(ask).await);
            }
        }
        Some(program @ ["wget"]) => {
            for ask in asks.chunks(1) {
                let body = output(program, ask).await;
                seen.push(match body.is_empty() {
                    true => Seen {
                        status: None,
                        body,
                        error: Some("it ended badly".to_owned()),
                    },
                    false => Seen {
                        status: Some(200),
                        body,
                        error: None,
                    },
                });
            }
        }
        Some(program @ ["curl"]) => {
            for ask in asks.chunks(1) {
                let printed = output(program, ask).await;
                let (body, line) = printed.split_once('\n').expect("two lines");
                let line: Seen = serde_json::from_str(line).expect("JSON");
                seen.push(Seen {
                    body: body.to_owned(),
                    ..line
                });
            }
        }
        Some(program) => {
            let printed = output(program, asks).await;
            seen.extend(printed.lines().map(|line| {
                serde_json::from_str::<Seen>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            }));
        }
    }
    assert_eq!(seen.len(), asks.len(), "{}: {seen:?}", client.name);
    seen
}

/// Asks with the client of hyper, which names no agent.
async fn by_hyper(ask: &str) -> Seen {
    let (method, url) = ask.split_once('=').expect("METHOD=URL");
    let uri: http::Uri = url.parse().expect("a URL");
    let authority = uri.authority().expect("an address").to_string();
    let addr: SocketAddr = authority.parse().expect("an address");
    let asking = async {
        let stream = TokioIo::new(connect(addr).await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(connection);
        let body = match method.starts_with("POST") {
            true => "{\"name\":\"box\"}",
            false => "",
        };
        let request = http::Request::builder()
            .method(method.trim_end_matches('!'))
            .uri(uri.path())
            .header("host", authority)
            .body(Full::new(bytes::Bytes::from(body)))
            .expect("a request");
        let reply = sender.send_request(request).await?;
        let status = reply.status().as_u16();
        let body = reply.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok::<_, hyper::Error>(Seen {
            status: Some(status),
            body,
            error: None,
        })
    };
    asking.await.unwrap_or_else(|error| Seen {
        status: None,
        body: String::new(),
        error: Some(error.to_string()),
    })
}

/// The answers in each column, and the signs that the client got by its own name.
struct Row {
    cells: Vec<String>,
    by_agent: [u64; 2],
    /// Whether each call has waited for long enough.
    has_waited: bool,
}

impl Row {
    async fn new(client: &Client) -> Self {
        let (_backend, sidecar) = stage().await;
        let asks = asks(&sidecar).await;
        let seen = drive(client, &asks).await;
        let cells = seen[1..].chunks(2).map(|pair| {
            let [get, post] = [&pair[0], &pair[1]].map(Seen::in_words);
            match get == post {
                true => get,
                false => format!("GET: {get}; POST: {post}"),
            }
        });
        let cells: Vec<_> = cells.collect();
        // It is there to prevent errors, and must cause none.
        assert_eq!(cells[3], "answered", "{}: {seen:?}", client.name);
        let (_, metrics) = sidecar.get("/metrics").await;
        let sent = |listener, sign| -> u64 {
            let name =
                format!("tidegate_signs_of_life_total{{listener=\"{listener}\",sign=\"{sign}\"}} ");
            let count = metrics.lines().find_map(|line| line.strip_prefix(&name));
            count.map_or(0, |count| count.parse().expect("a count"))
        };
        let by_agent = ["100", "102"].map(|sign| sent("by-agent", sign));
        let [most, least] = [by_agent[0].max(by_agent[1]), by_agent[0].min(by_agent[1])];
        assert_eq!(least, 0, "{}", client.name);
        let has_waited = ["100", "102"].iter().all(|sign| sent(sign, sign) >= 2)
            && matches!(most, 0 | 10 | 12..);
        Self {
            cells,
            by_agent,
            has_waited,
        }
    }
}

/// The row of a client in the table.
async fn row(client: &Client) -> String {
    let mut row = Row::new(client).await;
    // A busy machine may ask too late to wait.
    for _ in 0..2 {
        if row.has_waited {
            break;
        }
        row = Row::new(client).await;
    }
    assert!(row.has_waited, "{}: its calls do not wait", client.name);
    let signs = match row.by_agent {
        [0, 0] => "nothing is sent".to_owned(),
        [10, 0] => "`100`, at most 5".to_owned(),
        [0, 10] => "`102`, at most 5".to_owned(),
        [_, 0] => "`100`, any number".to_owned(),
        _ => "`102`, any number".to_owned(),
    };
    let agent = match client.agent {
        "none" => "none".to_owned(),
        agent => format!("`{agent}`"),
    };
    let cells = row.cells[..3].join(" | ");
    format!("| {} | {agent} | {cells} | {signs} |", client.name)
}

#[tokio::test]
async fn the_table_of_real_clients_is_what_they_do() {
    let rows = CLIENTS.iter().map(row);
    let rows = futures_of(rows).await;
    let mut table = String::from(
        "\n| client | `User-Agent` begins with | five times `100` | five times `102` | five times `103` of the service | with `\"by-agent\"` |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in rows {
        table += &row;
        table.push('\n');
    }
    generated::check_part("docs/reference/signs-of-life.md", "clients", &table);
}

/// Runs all at the same time, and returns their results in order.
async fn futures_of<F: Future<Output = String>>(all: impl Iterator<Item = F>) -> Vec<String> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done: Vec<Option<String>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (each, done) in all.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(row) = each.as_mut().poll(cx)
            {
                *done = Some(row);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
