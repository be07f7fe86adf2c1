//! Responses of a backend: what the client gets, and whether the connection is used again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::cases::{self, Response, Source};
use super::strict::{self, Read, latin};
use super::{SIDECARS, config_of};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, Scripted};

/// Up to this length, a response is cut at each byte.
const CUT_EVERYWHERE: usize = 160;

/// The answer of the backend to the next request.
struct Script {
    pieces: Vec<Vec<u8>>,
    later: Vec<u8>,
    closes: bool,
}

/// A backend that answers one request by a script, and every other with its target and the number
/// of its connection.
struct Backend {
    addr: SocketAddr,
    script: Arc<Mutex<Option<Script>>>,
    /// The connection that had the script.
    scripted: Arc<Mutex<Option<usize>>>,
    /// The client has its answer.
    go_on: Arc<Notify>,
    /// All that the script says is sent.
    sent: Arc<Notify>,
    _backend: Scripted,
}

impl Backend {
    async fn start() -> Self {
        let script = Arc::<Mutex<Option<Script>>>::default();
        let scripted = Arc::<Mutex<Option<usize>>>::default();
        let (go_on, sent) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let all = (
            Arc::clone(&script),
            Arc::clone(&scripted),
            Arc::clone(&go_on),
            Arc::clone(&sent),
        );
        let backend = Scripted::start(move |number, mut stream| {
            let (script, scripted, go_on, sent) = all.clone();
            async move {
                stream.set_nodelay(true).expect("a socket takes it");
                while let Some(target) = next_request(&mut stream).await {
                    let script = script.lock().expect("not poisoned").take();
                    let Some(script) = script else {
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\nX-Connection: {number}\r\nContent-Length: {}\r\n\r\n{target}",
                            target.len()
                        );
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                        continue;
                    };
                    *scripted.lock().expect("not poisoned") = Some(number);
                    play(&mut stream, &script, &go_on).await;
                    if script.closes {
                        drop(stream);
                        sent.notify_one();
                        return;
                    }
                    sent.notify_one();
                }
            }
        })
        .await;
        Self {
            addr: backend.addr,
            script,
            scripted,
            go_on,
            sent,
            _backend: backend,
        }
    }
}

/// Sends what a script says. The other end may close at any moment.
async fn play(stream: &mut TcpStream, script: &Script, go_on: &Notify) {
    for (number, piece) in script.pieces.iter().enumerate() {
        if number > 0 {
            // Sets the pace: the pieces are read one by one.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let _ = stream.write_all(piece).await;
    }
    if !script.later.is_empty() {
        go_on.notified().await;
        let _ = stream.write_all(&script.later).await;
    }
}

/// Reads a request without a body, and returns its target.
async fn next_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = stream.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&chunk[..read]);
        match strict::request(&bytes) {
            Read::Whole(request, _) => return Some(request.first[1].clone()),
            Read::Partial => {}
            Read::Bad(why) => panic!("{why}"),
        }
    }
}

/// Makes a request on a connection of its own, and returns all that comes back. None if there is no end of it.
async fn ask(proxy: SocketAddr, method: &str, target: &str) -> Option<Vec<u8>> {
    let request = format!("{method} {target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(proxy).await.expect("it listens");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .ok()?;
    Some(answer)
}

/// An answer as a file writes it.
fn shown(mut bytes: &[u8], is_head: bool) -> String {
    let mut interim = String::new();
    loop {
        match strict::response(bytes, is_head) {
            Read::Whole(answer, length) if answer.first[1].starts_with('1') => {
                interim += &format!("{}, ", answer.first[1]);
                bytes = &bytes[length..];
            }
            Read::Whole(answer, length) if length == bytes.len() => {
                let body = latin(&answer.body.bytes);
                let is_own = body.starts_with("{\"overallRC\"") || body.starts_with("{\"title\"");
                if is_own || is_head && answer.first[1] == "502" {
                    return format!("{interim}refused");
                }
                let body = match body.len() {
                    0..=60 => body,
                    long => format!("{long} bytes"),
                };
                return format!("{interim}{} {}: {body}", answer.first[1], answer.framing);
            }
            Read::Whole(_, length) => return format!("surplus {:?}", latin(&bytes[length..])),
            Read::Partial => return format!("{interim}cut"),
            Read::Bad(why) => return format!("bad: {why}"),
        }
    }
}

fn cuts(bytes: &[u8]) -> Vec<Option<usize>> {
    let cuts: Vec<usize> = match bytes.len() {
        0..=CUT_EVERYWHERE => (1..bytes.len()).collect(),
        long => {
            let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
            vec![1, head.map_or(long / 2, |end| end + 3), long - 1]
        }
    };
    std::iter::once(None)
        .chain(cuts.into_iter().map(Some))
        .collect()
}

async fn check(proxy: SocketAddr, backend: &Backend, source: &str, case: &Response) -> Vec<String> {
    let bytes = case.bytes();
    let method = case.to.as_deref().unwrap_or("GET");
    let mut wrongs = Vec::new();
    for cut in cuts(&bytes) {
        let (front, rest) = bytes.split_at(cut.unwrap_or(bytes.len()));
        *backend.script.lock().expect("not poisoned") = Some(Script {
            pieces: vec![front.to_vec(), rest.to_vec()],
            later: cases::bytes(&case.later, None),
            closes: case.closes,
        });
        let Some(answer) = ask(proxy, method, "/case").await else {
            wrongs.push(format!(
                "{source} / {} / {cut:?}: no end of the answer",
                case.name
            ));
            return wrongs;
        };
        backend.go_on.notify_one();
        timeout(PATIENCE, backend.sent.notified())
            .await
            .expect("it is sent");
        // This reaches no backend. It gives the proxy a turn, in which it notices that the backend has closed.
        ask(proxy, "GET", "*").await.expect("it is refused");
        let next = ask(proxy, "GET", "/next").await.unwrap_or_default();
        let got = shown(&answer, method == "HEAD");
        let kept = match strict::response(&next, false) {
            Read::Whole(next, _) if next.body.bytes == b"/next" => {
                let scripted = *backend.scripted.lock().expect("not poisoned");
                Some(next.header("x-connection") == scripted.map(|number| number.to_string()))
            }
            _ => None,
        };
        // A reply that breaks off in its body is refused as long as nothing of it has gone to the client.
        let fits = got == case.client || case.client == "cut" && got == "refused";
        if !fits || kept != Some(case.kept) {
            wrongs.push(format!(
                "{source} / {} / {cut:?}: got {got:?}, kept {kept:?}, next {:?} ({})",
                case.name,
                latin(&next),
                case.why.as_deref().unwrap_or("no reason is given")
            ));
        }
    }
    wrongs
}

async fn check_all() -> Vec<String> {
    let all = cases::sources().into_iter().flat_map(|source: Source| {
        let cases = source.responses.into_iter();
        cases.map(move |case| (source.name.clone(), case))
    });
    let all: Vec<_> = all.collect();
    assert!(!all.is_empty());
    let all = Arc::new(Mutex::new(all.into_iter()));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..SIDECARS {
        let backend = Backend::start().await;
        let sidecar = Sidecar::start(&config_of(backend.addr)).await;
        let proxy = sidecar.listener("corpus").await;
        let all = Arc::clone(&all);
        workers.spawn(async move {
            let mut wrongs = Vec::new();
            loop {
                let next = all.lock().expect("not poisoned").next();
                let Some((source, case)) = next else {
                    drop(sidecar);
                    return wrongs;
                };
                wrongs.extend(check(proxy, &backend, &source, &case).await);
            }
        });
    }
    workers.join_all().await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_response_has_one_meaning_to_the_client_or_is_refused() {
    let wrongs = check_all().await;
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}
