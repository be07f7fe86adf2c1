//! The same bytes through two engines of the real process, each before a backend of its own.
//!
//! Connections have several requests: good ones, and at the end one that may be anything. What the
//! backends saw, and what the clients got, must be the same. The engine under test may refuse more
//! than hyper, and never less.

mod responses;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::recording::{Recording, Seen};
use super::strict::{self, Message, Read, latin};
use super::{ENGINES, Engine, Got, ambiguous, cases, is_of_backend, pass_through};
use crate::h1_inputs::record::{Record, asked, quoted};
use crate::h1_inputs::{self, Kind, Random, Seeds, guardian, random_of};
use crate::sidecar::Sidecar;
use crate::support::PATIENCE;

/// Inputs of every test run.
const INPUTS: u64 = 20_000;

/// Connections of one sidecar at a time.
const AT_A_TIME: usize = 48;

/// Most inputs of a connection.
const OF_A_CONNECTION: u64 = 8;

/// Tries until a random request is a good one.
const TRIES: usize = 50;

/// A proxy, and the backend behind it.
struct Side {
    proxy: SocketAddr,
    backend: Recording,
    /// What ends the proxy when dropped.
    _process: Box<dyn std::any::Any + Send + Sync>,
}

/// A client that has sent all still reads, and no call waits for another.
fn config(engine: &Engine, backend: SocketAddr) -> String {
    engine
        .config_of(backend)
        .replace(
            "protocol = \"http\"",
            "protocol = \"http\"\ncancel_on_eof = false",
        )
        .replace(
            "[limits]",
            "[log]\naccess = false\n[limits]\noutstanding = 64",
        )
}

impl Side {
    async fn start(engine: &Engine) -> Self {
        let backend = Recording::start().await;
        let config = config(engine, backend.addr);
        let sidecar = Sidecar::start(&config).await;
        Self {
            proxy: sidecar.listener("corpus").await,
            backend,
            _process: Box::new(sidecar),
        }
    }

    /// A proxy that passes bytes as they come.
    async fn without_an_engine() -> Self {
        let backend = Recording::start().await;
        let proxy = pass_through(backend.addr).await;
        Self {
            proxy: proxy.addr,
            backend,
            _process: Box::new(proxy),
        }
    }

    /// Sends each connection's bytes, all at the same time. Returns what each client got, and what the
    /// backend saw of all.
    async fn run(&self, batch: &[Connection]) -> (Vec<Got>, Vec<String>) {
        let mut clients = JoinSet::new();
        for (number, connection) in batch.iter().enumerate() {
            let (proxy, connection) = (self.proxy, connection.clone());
            clients.spawn(async move { (number, connection.run(proxy, number).await) });
        }
        let mut got = clients.join_all().await;
        got.sort_by_key(|(number, _)| *number);
        let seen = self.backend.take();
        // A request without a host gets the address that it came to.
        let own = self.proxy.to_string();
        let requests = seen.iter().filter_map(request);
        let mut requests: Vec<_> = requests.map(|it| it.replace(&own, "proxy")).collect();
        requests.sort_unstable();
        (got.into_iter().map(|(_, got)| got).collect(), requests)
    }
}

/// A request at the backend with all that an engine decides about it: its end-to-end fields, sorted, its
/// framing and its body. What has more than one meaning is marked.
fn request(seen: &Seen) -> Option<String> {
    let request = match seen {
        Seen::Request(request) => request,
        // Part of a request has no meaning yet, and how much of it is here depends on when it was cut.
        Seen::Part(_) => return None,
        Seen::Bad { .. } => return ambiguous(seen).map(|why| format!("AMBIGUOUS: {why}")),
    };
    let head = latin(&request.head);
    let mut fields: Vec<_> = head
        .split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
        // A request of HTTP/1.0 gets the address of its listener.
        .filter(|(name, value)| name != "connection" && !value.starts_with("127.0.0.1:"))
        .collect();
    let is_alike = fields.iter().any(|it| guardian::is_alike(it.0.as_bytes()));
    if let Some(why) = ambiguous(seen).filter(|_| !is_alike) {
        return Some(format!("AMBIGUOUS: {why}"));
    }
    // The order of fields of one name counts.
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    let body = latin(&request.body.bytes);
    let [method, target, _] = &request.first;
    Some(format!("{method} {target} {request} {fields:?} {body:?}"))
}

/// What a client sends, and where it is cut.
#[derive(Clone, Debug)]
struct Connection {
    bytes: Arc<Vec<u8>>,
    cuts: Vec<usize>,
    inputs: u64,
}

impl Connection {
    /// The connection that begins with this input.
    fn make(seeds: &Seeds, seed: u64, input: u64) -> Self {
        let mut random = random_of(seed, input);
        let inputs = random.between(1, OF_A_CONNECTION);
        let mut bytes = Vec::new();
        for _ in 1..inputs {
            bytes.extend(good(seeds, &mut random));
        }
        let mut last = Vec::new();
        h1_inputs::write(Kind::Requests, seeds, &mut random, &mut last);
        bytes.extend(last);
        let mut cuts: Vec<_> = (0..random.below(4))
            .map(|_| random.below(bytes.len() as u64 + 1) as usize)
            .collect();
        cuts.sort_unstable();
        Self {
            bytes: Arc::new(bytes),
            cuts,
            inputs,
        }
    }

    async fn run(&self, proxy: SocketAddr, number: usize) -> Got {
        match timeout(PATIENCE, self.talk(proxy, number)).await {
            Ok(got) => got,
            Err(_) => Got {
                answers: Vec::new(),
                closed: false,
                bad: Some("the connection does not end".to_owned()),
            },
        }
    }

    async fn talk(&self, proxy: SocketAddr, number: usize) -> Got {
        let mut stream = connect(proxy, number).await;
        let mut from = 0;
        for &to in self.cuts.iter().chain([&self.bytes.len()]) {
            // It may have closed already.
            let _ = stream.write_all(&self.bytes[from..to]).await;
            tokio::task::yield_now().await;
            from = to;
        }
        let _ = stream.shutdown().await;
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut bytes).await;
        answers(&bytes)
    }
}

/// The answers of a connection that has ended.
fn answers(mut bytes: &[u8]) -> Got {
    let mut got = Got {
        answers: Vec::new(),
        closed: true,
        bad: None,
    };
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = bytes.split_at(end.map_or(bytes.len(), |end| end + 4));
        let head = latin(head);
        // A refusal says in its body why.
        // A name may come in another case, and a method is in its own.
        let to_head = match head.to_ascii_lowercase().contains("x-backend") {
            true => head.contains("ethod: HEAD\r\n"),
            false => !body.starts_with(b"{"),
        };
        match strict::response(bytes, to_head) {
            Read::Whole(answer, length) => {
                bytes = &bytes[length..];
                if !answer.first[1].starts_with('1') {
                    got.answers.push(answer);
                }
            }
            Read::Partial => {
                got.bad = Some(format!("part of an answer: {:?}", latin(bytes)));
                break;
            }
            Read::Bad(why) => {
                got.bad = Some(format!("an answer with {why}: {:?}", latin(bytes)));
                break;
            }
        }
    }
    got
}

/// Connects from one of several addresses: one alone runs out of ports.
async fn connect(proxy: SocketAddr, number: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = Ipv4Addr::new(127, 0, 1, 1 + (number % 200) as u8);
    socket.bind((from, 0).into()).expect("a free port");
    let stream = socket.connect(proxy).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket takes it");
    stream
}

/// A request that every engine passes on, and behind which the connection stays open.
fn good(seeds: &Seeds, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..TRIES {
        h1_inputs::write(Kind::Requests, seeds, random, &mut bytes);
        if let Read::Whole(request, length) = strict::request(&bytes)
            && length == bytes.len()
            && request.first[1].starts_with('/')
            && !has_control(&request.head)
            && request.header("connection").is_none()
            && request.header("expect").is_none()
        {
            return bytes;
        }
    }
    b"GET / HTTP/1.1\r\nHost: t\r\n\r\n".to_vec()
}

fn has_control(head: &[u8]) -> bool {
    head.iter()
        .any(|it| it.is_ascii_control() && !b"\r\n".contains(it))
}

/// What is different between the engine under test and hyper, for one connection.
fn difference(tested: &Got, hyper: &Got) -> Option<String> {
    let shown = |got: &Got| -> Vec<String> {
        let answers = got.answers.iter();
        answers.map(answer).collect()
    };
    if let Some(bad) = &tested.bad {
        // hyper's own answers to what it cannot parse are the same on both sides.
        if tested.bad != hyper.bad {
            return Some(format!(
                "the client got {bad}, and from hyper {:?}",
                hyper.bad
            ));
        }
    }
    let (one, other) = (shown(tested), shown(hyper));
    let is_stricter = one.len() <= other.len()
        && one
            .split_last()
            .is_some_and(|(last, before)| last.starts_with("refused") && other.starts_with(before));
    // A client that has sent part of a request and ends may or may not be refused.
    let answered = |all: &[String]| -> Vec<String> {
        let answered = all.iter().filter(|it| it.starts_with("answered"));
        answered.cloned().collect()
    };
    let is_late = one.len().abs_diff(other.len()) == 1 && answered(&one) == answered(&other);
    (one != other && !is_stricter && !is_late)
        .then(|| format!("the client got {one:?}, and from hyper {other:?}"))
}

fn answer(answer: &Message) -> String {
    let [_, status, _] = &answer.first;
    match is_of_backend(answer) {
        true => format!(
            "answered {status} {} {:?}",
            answer.framing,
            latin(&answer.body.bytes)
        ),
        false => format!("refused {status}"),
    }
}

/// Two engines side by side.
struct Pair {
    tested: Side,
    hyper: Side,
}

impl Pair {
    /// The last engine, and hyper, which is the first.
    async fn start() -> Self {
        let last = ENGINES.last().expect("there is one");
        Self {
            tested: Side::start(last).await,
            hyper: Side::start(&ENGINES[0]).await,
        }
    }

    /// Runs all of these at a time. Returns what is different.
    async fn run(&self, batch: &[Connection]) -> Vec<String> {
        let ((tested, seen), (hyper, seen_by_hyper)) =
            tokio::join!(self.tested.run(batch), self.hyper.run(batch));
        let mut found = Vec::new();
        let mut stricter = false;
        for ((tested, hyper), connection) in tested.iter().zip(&hyper).zip(batch) {
            stricter |= tested.answers.len() != hyper.answers.len()
                || tested
                    .answers
                    .iter()
                    .map(answer)
                    .ne(hyper.answers.iter().map(answer));
            if let Some(difference) = difference(tested, hyper) {
                found.push(format!("{difference}: {}", quoted(&connection.bytes)));
            }
        }
        found.extend(
            seen.iter()
                .filter(|it| it.starts_with("AMBIGUOUS"))
                .cloned(),
        );
        let more = without(&seen, &seen_by_hyper);
        let fewer = without(&seen_by_hyper, &seen);
        if !more.is_empty() || !fewer.is_empty() && !stricter {
            found.push(format!(
                "the backend saw {more:?}, and behind hyper {fewer:?}"
            ));
        }
        found
    }
}

/// What one list has that the other has not. Both are sorted.
fn without(one: &[String], other: &[String]) -> Vec<String> {
    let mut left = other.iter().peekable();
    let mut more = Vec::new();
    for it in one {
        while left.next_if(|next| *next < it).is_some() {}
        if left.next_if(|next| *next == it).is_none() {
            more.push(it.clone());
        }
    }
    more
}

/// Tries connections from this input on, up to `last` or `until`. Returns how far it came.
async fn run(
    pair: &Pair,
    seeds: &Seeds,
    seed: u64,
    from: u64,
    last: u64,
    until: Instant,
) -> (u64, Result<(), String>) {
    let mut input = from;
    while input < last && Instant::now() < until {
        let first = input;
        let mut batch = Vec::new();
        while batch.len() < AT_A_TIME && input < last {
            let connection = Connection::make(seeds, seed, input);
            input += connection.inputs;
            batch.push(connection);
        }
        if pair.run(&batch).await.is_empty() {
            continue;
        }
        // Which of them it is.
        let mut input = first;
        for connection in &batch {
            let found = pair.run(std::slice::from_ref(connection)).await;
            if !found.is_empty() {
                let why = format!(
                    "{}\nbytes = {}\nagain: make fuzz TARGET=engines TIDEGATE_SEED={seed} AGAIN={input}",
                    found.join("\n"),
                    quoted(&connection.bytes)
                );
                return (first, Err(why));
            }
            input += connection.inputs;
        }
        let found = pair.run(&batch).await;
        if !found.is_empty() {
            let why = format!(
                "only all of inputs {first} to {input} together: {}",
                found.join("\n")
            );
            return (first, Err(why));
        }
        println!("inputs {first} to {input} were different once, and then no more");
    }
    (input, Ok(()))
}

fn seeds() -> Seeds {
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    for source in cases::sources() {
        if source.name != "smuggler" {
            requests.extend(source.requests.iter().map(|case| case.bytes()));
        }
        responses.extend(source.responses.iter().map(|case| case.bytes()));
    }
    Seeds::of(requests, responses)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_inputs_mean_the_same_through_each_engine() {
    let seed = asked("TIDEGATE_SEED").unwrap_or(0);
    let forever = Instant::now() + Duration::from_secs(3600);
    let pair = Pair::start().await;
    let (_, found) = run(&pair, &seeds(), seed, 0, INPUTS, forever).await;
    if let Err(why) = found {
        panic!("{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_passes_bytes_as_they_come_is_found() {
    let pair = Pair {
        tested: Side::without_an_engine().await,
        hyper: Side::start(&ENGINES[0]).await,
    };
    let mut found = 0;
    let seeds = seeds();
    for input in 0..100 {
        let connection = Connection::make(&seeds, 0, input);
        found += usize::from(!pair.run(&[connection]).await.is_empty());
    }
    // Fields of one hop, and what hyper refuses.
    assert!(found > 20, "{found} of 100");
}

/// `make fuzz TARGET=engines`: goes on from where the last run ended, for `INPUTS` or for `MINUTES`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as long as it is asked to"]
async fn the_long_run() {
    /// Inputs between two writes of the record.
    const OF_A_PART: u64 = 20_000;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/engines.toml");
    let mut record = Record::read(&path);
    let (seeds, pair) = (seeds(), Pair::start().await);
    if let Some(input) = asked("AGAIN") {
        let seed = asked("TIDEGATE_SEED").unwrap_or(record.seed);
        let connection = Connection::make(&seeds, seed, input);
        println!("bytes = {}", quoted(&connection.bytes));
        let found = pair.run(&[connection]).await;
        assert!(found.is_empty(), "{}", found.join("\n"));
        return;
    }
    let inputs = asked("INPUTS");
    let last = inputs.map_or(u64::MAX, |inputs| record.inputs.saturating_add(inputs));
    let minutes = asked("MINUTES").filter(|_| inputs.is_none());
    let (first, began) = (record.inputs, Instant::now());
    let until = began + Duration::from_secs(60 * minutes.unwrap_or(60 * 24 * 365));
    while record.inputs < last && Instant::now() < until {
        let to = last.min(record.inputs + OF_A_PART);
        let (reached, found) = run(&pair, &seeds, record.seed, record.inputs, to, until).await;
        record.inputs = reached;
        if let Err(why) = found {
            // The next run begins behind it.
            record.inputs += 1;
            record.findings += 1;
            record.write(&path);
            panic!("{why}");
        }
        record.write(&path);
    }
    let (tried, took) = (record.inputs - first, began.elapsed());
    println!(
        "{tried} inputs in {took:.0?}, {:.0} a second; {} in all",
        tried as f64 / took.as_secs_f64(),
        record.inputs
    );
}
