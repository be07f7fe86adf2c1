//! The same response of a backend through two engines: what the client gets is the same, or the engine under
//! test refuses it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::strict::{self, Read, latin};
use super::{AT_A_TIME, ENGINES, config, connect, seeds};
use crate::h1_inputs::record::{asked, quoted};
use crate::h1_inputs::{self, Kind, Seeds, random_of};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, Scripted};

/// Inputs of every test run.
const INPUTS: u64 = 4_000;

/// A proxy, and a backend that answers a request for `/7` with response 7 and then closes.
struct Side {
    proxy: SocketAddr,
    _sidecar: Sidecar,
    _backend: Scripted,
}

impl Side {
    async fn start(engine: &super::Engine, seeds: &Arc<Seeds>, seed: u64) -> Self {
        let seeds = Arc::clone(seeds);
        let backend =
            Scripted::start(move |_, stream| answer(stream, Arc::clone(&seeds), seed)).await;
        // A connection that the backend is about to close is not used again.
        let config = config(engine, backend.addr)
            .replace("kind = \"http\"", "kind = \"http\"\npool_max_idle = 0");
        let sidecar = Sidecar::start(&config).await;
        Self {
            proxy: sidecar.listener("corpus").await,
            _sidecar: sidecar,
            _backend: backend,
        }
    }

    async fn run(&self, inputs: impl Iterator<Item = u64>) -> Vec<String> {
        let mut clients = JoinSet::new();
        for input in inputs {
            let proxy = self.proxy;
            clients.spawn(async move { (input, ask(proxy, input).await) });
        }
        let mut got = clients.join_all().await;
        got.sort_unstable();
        got.into_iter().map(|(_, got)| got).collect()
    }
}

fn response(seeds: &Seeds, seed: u64, input: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    h1_inputs::write(
        Kind::Responses,
        seeds,
        &mut random_of(seed, input),
        &mut bytes,
    );
    bytes
}

async fn answer(mut stream: TcpStream, seeds: Arc<Seeds>, seed: u64) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
    let head = latin(&head);
    let target = head.split(' ').nth(1).unwrap_or_default();
    let input = target[1..].parse().expect("the target is a number");
    // The proxy may have closed already.
    let _ = stream.write_all(&response(&seeds, seed, input)).await;
    let _ = stream.shutdown().await;
    let _ = stream.read(&mut [0; 16]).await;
}

/// What a client gets, without what is different for each call.
async fn ask(proxy: SocketAddr, input: u64) -> String {
    let to_head = input.is_multiple_of(4);
    let method = if to_head { "HEAD" } else { "GET" };
    let request = format!("{method} /{input} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let mut bytes = Vec::new();
    let talking = async {
        let mut stream = connect(proxy, input as usize).await;
        // It may have closed already.
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.read_to_end(&mut bytes).await;
    };
    if timeout(PATIENCE, talking).await.is_err() {
        return "bad: the connection does not end".to_owned();
    }
    let mut rest = &bytes[..];
    loop {
        match strict::response(rest, to_head) {
            Read::Whole(interim, length) if interim.first[1].starts_with('1') => {
                rest = &rest[length..];
            }
            Read::Whole(answer, length) if length == rest.len() => {
                if answer.header("x-tidegate-call").is_some() && answer.first[1] == "502" {
                    return "refused".to_owned();
                }
                let head = latin(&answer.head);
                let mut fields: Vec<_> = head
                    .split("\r\n")
                    .skip(1)
                    .filter_map(|line| line.split_once(':'))
                    .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
                    .filter(|(name, _)| !["date", "x-tidegate-call"].contains(&&name[..]))
                    .collect();
                fields.sort_by(|one, other| one.0.cmp(&other.0));
                let [_, status, reason] = &answer.first;
                let body = latin(&answer.body.bytes);
                return format!("{status} {reason} {fields:?} {body:?}");
            }
            Read::Whole(..) => return "bad: a surplus".to_owned(),
            Read::Partial => return "cut".to_owned(),
            Read::Bad(why) => return format!("bad: {why}"),
        }
    }
}

/// What is different. A reply that was refused, or that visibly broke off, is none.
fn difference(tested: &str, hyper: &str) -> Option<String> {
    // hyper passes on a bad length of a response without a body, such as one to HEAD.
    let is_wrong = tested != hyper && !["refused", "cut"].contains(&tested);
    is_wrong.then(|| format!("the client got {tested}, and through hyper {hyper}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_responses_mean_the_same_through_each_engine() {
    let seed = asked("TIDEGATE_SEED").unwrap_or(0);
    let seeds = Arc::new(seeds());
    let last = ENGINES.last().expect("there is one");
    let tested = Side::start(last, &seeds, seed).await;
    let hyper = Side::start(&ENGINES[0], &seeds, seed).await;
    let mut answered = 0;
    for first in (0..INPUTS).step_by(AT_A_TIME) {
        let inputs = first..first + AT_A_TIME as u64;
        let (got, through_hyper) =
            tokio::join!(tested.run(inputs.clone()), hyper.run(inputs.clone()));
        answered += got
            .iter()
            .filter(|it| it.starts_with(char::is_numeric))
            .count();
        for ((got, through_hyper), input) in got.iter().zip(&through_hyper).zip(inputs) {
            if let Some(why) = difference(got, through_hyper) {
                let bytes = quoted(&response(&seeds, seed, input));
                panic!("TIDEGATE_SEED={seed}, response {input}: {why}\nbytes = {bytes}");
            }
        }
    }
    assert!(answered > INPUTS as usize / 10, "{answered} of {INPUTS}");
}
