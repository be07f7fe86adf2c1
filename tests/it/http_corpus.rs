//! The corpus of HTTP/1.1 messages of `tests/http_corpus`: each request through the real process, as
//! a recording backend and a strict client see it, and each response likewise.

mod cases;
mod client;
mod mutations;
pub(crate) mod peers;
mod recording;
mod responses;
mod strict;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_desync_guardian::request_analyzer::HttpRequestData;
use http_desync_guardian::{ClassificationReason, RequestSafetyTier};
use tokio::task::JoinSet;

use self::cases::{Case, Source};
use self::client::{Got, Until, exchange};
use self::recording::{Recording, Seen, echo};
use self::strict::{Message, latin};
use crate::sidecar::Sidecar;
use crate::support::Scripted;

/// Sidecars that work side by side. Each runs one case at a time, so what its backend sees belongs
/// to that case.
const SIDECARS: usize = 6;

/// A request that a client sends right behind a case, on the same connection.
const CANARY: &str = "GET /canary HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// A request of another client, after a case.
const FENCE: &str = "GET /fence HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// Up to this length, a case of the RFCs is cut at each byte.
const CUT_EVERYWHERE: usize = 120;

/// A proxy, and the backend behind it.
struct Post {
    proxy: SocketAddr,
    backend: Recording,
}

/// How the bytes of a case are sent.
#[derive(Clone, Copy, Debug)]
enum Variant {
    /// At once, and nothing behind them.
    Alone,
    /// At once, and the canary behind them.
    Canary,
    /// The request comes in two pieces.
    Cut(usize),
}

/// The result of one run of a case.
struct Run {
    seen: Vec<Seen>,
    got: Got,
    fence: Got,
}

fn config_of(backend: SocketAddr) -> String {
    format!(
        r#"
        [[listen]]
        name = "corpus"
        bind = "127.0.0.1:0"
        protocol = "http"
        [backend]
        kind = "http"
        http = "http://{backend}"
        [limits]
        per_window = "total:1000000"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

impl Post {
    /// Sends the bytes of a case, then the request of another client.
    async fn run(&self, bytes: &[u8], variant: Variant, until: Until) -> Run {
        let all = match variant {
            Variant::Alone => bytes.to_vec(),
            Variant::Canary | Variant::Cut(_) => [bytes, CANARY.as_bytes()].concat(),
        };
        let pieces = match variant {
            Variant::Cut(at) => vec![&all[..at], &all[at..]],
            Variant::Alone | Variant::Canary => vec![&all[..]],
        };
        let got = exchange(self.proxy, &pieces, until).await;
        let fence = exchange(self.proxy, &[FENCE.as_bytes()], Until::Closed).await;
        Run {
            seen: self.backend.take(),
            got,
            fence,
        }
    }
}

impl Run {
    /// The requests at the backend as a file writes them, without those of the runner.
    fn backend(&self) -> Vec<String> {
        let seen = self.seen.iter().filter_map(|seen| match seen {
            Seen::Request(request) => match request.first[1].as_str() {
                "/canary" | "/fence" => None,
                _ => Some(request.to_string()),
            },
            Seen::Bad { why, .. } => Some(format!("bad: {why}")),
            Seen::Part(_) => Some("part".to_owned()),
        });
        seen.collect()
    }

    /// How often the backend saw a request with this target.
    fn times(&self, target: &str) -> usize {
        let times = self.seen.iter().filter(|seen| match seen {
            Seen::Request(request) => request.first[1] == target,
            Seen::Bad { .. } | Seen::Part(_) => false,
        });
        times.count()
    }

    /// The answers to the client as a file writes them, without the one to the canary.
    fn answers(&self) -> Vec<&'static str> {
        let own = self
            .got
            .answers
            .iter()
            .filter(|it| it.body.bytes != b"GET /canary");
        own.map(|it| {
            if is_of_backend(it) {
                "answered"
            } else {
                "refused"
            }
        })
        .collect()
    }

    /// The faults of a run, whatever the case: the backend sees only requests with one meaning, each answer belongs
    /// to its request, and the next client is not affected.
    fn wrongs(&self) -> Vec<String> {
        let mut wrongs = Vec::new();
        wrongs.extend(self.seen.iter().filter_map(ambiguous));
        if let Some(bad) = &self.got.bad {
            wrongs.push(format!("the client got {bad}"));
        }
        let fences: Vec<_> = self
            .fence
            .answers
            .iter()
            .map(|it| latin(&it.body.bytes))
            .collect();
        if fences != ["GET /fence"] || self.times("/fence") != 1 || self.fence.bad.is_some() {
            wrongs.push(format!(
                "the next client got {fences:?}, {:?}",
                self.fence.bad
            ));
        }
        let requests = self.seen.iter().filter_map(|seen| match seen {
            Seen::Request(request) if request.first[1] != "/fence" => Some(echo(request)),
            _ => None,
        });
        let requests: Vec<_> = requests.collect();
        let answers = self.got.answers.iter().filter(|it| is_of_backend(it));
        for (answer, request) in answers.clone().zip(&requests) {
            let is_head = request.starts_with("HEAD ");
            if !is_head && latin(&answer.body.bytes) != *request {
                wrongs.push(format!(
                    "{request} was answered with {:?}",
                    latin(&answer.body.bytes)
                ));
            }
        }
        if answers.count() > requests.len() {
            wrongs.push("more answers than requests".to_owned());
        }
        wrongs
    }
}

fn is_of_backend(answer: &Message) -> bool {
    answer.header("x-backend").is_some()
}

/// Why a request at the backend could be read in two ways.
fn ambiguous(seen: &Seen) -> Option<String> {
    match seen {
        Seen::Request(request) => doubt(request).map(|why| format!("{request}: {why}")),
        Seen::Bad { why, bytes } => {
            let bytes = latin(bytes);
            Some(format!("the backend got {why}: {bytes:?}"))
        }
        // It has no meaning yet.
        Seen::Part(_) => None,
    }
}

/// The doubt of `http_desync_guardian` about a request.
fn doubt(request: &Message) -> Option<String> {
    let verdict = HttpRequestData::analyze_raw_request(&request.head);
    let is_sound = match verdict.tier {
        RequestSafetyTier::Compliant | RequestSafetyTier::Acceptable => true,
        // A body of a GET or HEAD has one framing as any other (RFC 9110, 9.3.1). Routes of the z/VM SDK
        // server take one.
        _ => matches!(
            verdict.reason,
            ClassificationReason::UndefinedContentLengthSemantics
                | ClassificationReason::UndefinedTransferEncodingSemantics
        ),
    };
    let message = verdict.message.unwrap_or_default();
    (!is_sound).then(|| format!("{:?}, {:?}: {message}", verdict.tier, verdict.reason))
}

/// The parts of what a client sees: the answers, and what becomes of its connection.
fn client_of(case: &Case) -> (Vec<&str>, &str) {
    let mut parts: Vec<&str> = case.client.split(", ").collect();
    let end = parts.pop().expect("a split has a part");
    assert!(
        ["open", "closed", "waits"].contains(&end)
            && parts.iter().all(|it| ["answered", "refused"].contains(it))
            && (end != "waits" || !parts.contains(&"refused")),
        "{}: {:?}",
        case.name,
        case.client
    );
    (parts, end)
}

fn variants(source: &Source, case: &Case, bytes: &[u8]) -> Vec<Variant> {
    let cuts: Vec<usize> = match source.name.as_str() {
        "rfc9112" | "rfc9110" if bytes.len() <= CUT_EVERYWHERE => (1..bytes.len()).collect(),
        "smuggler" => Vec::new(),
        _ => {
            let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
            let mut cuts = vec![1, head.map_or(bytes.len() / 2, |end| end + 3), bytes.len()];
            cuts.retain(|&at| at > 0 && at <= bytes.len());
            cuts.dedup();
            cuts
        }
    };
    let mut variants = vec![Variant::Canary];
    if source.name != "smuggler" || case.name.starts_with("line") {
        variants.push(Variant::Alone);
    }
    variants.extend(cuts.into_iter().map(Variant::Cut));
    variants
}

/// Runs a case in every variant. Returns what is not as it should be.
async fn check(post: &Post, source: &Source, case: &Case) -> Vec<String> {
    let (expected, end) = client_of(case);
    let bytes = case.bytes();
    let mut wrongs = Vec::new();
    for variant in variants(source, case, &bytes) {
        let is_alone = matches!(variant, Variant::Alone);
        let until = match end {
            // A client that has left gets no answer, so it waits for those of the backend.
            "waits" => {
                let answered = expected.iter().filter(|it| **it == "answered");
                Until::Answers(answered.count())
            }
            "open" if is_alone => Until::Answers(expected.len()),
            _ => Until::Closed,
        };
        let run = post.run(&bytes, variant, until).await;
        let mut found = run.wrongs();
        let may_be_cut = case.backend.iter().any(|it| it == "part");
        found.extend(run.seen.iter().filter_map(|seen| match seen {
            Seen::Part(bytes) if !may_be_cut => Some(format!(
                "the backend got part of a request: {:?}",
                latin(bytes)
            )),
            _ => None,
        }));
        let canaries = run.times("/canary");
        if end == "waits" && !is_alone {
            // The canary belongs to the message that was not whole, or is a request of its own.
            if canaries > 1 {
                found.push("the canary was seen twice".to_owned());
            }
        } else {
            let due = usize::from(end == "open" && !is_alone);
            let (backend, mut answers) = (run.backend(), run.answers());
            if end == "waits" {
                // A client that has left may or may not be refused.
                answers.retain(|it| *it == "answered");
            }
            if canaries != due {
                found.push(format!("the backend saw {canaries} canaries, not {due}"));
            }
            if backend != case.backend || answers != expected {
                found.push(format!("saw {backend:?}, answered {answers:?}"));
            }
        }
        let where_ = format!("{} / {} / {variant:?}", source.name, case.name);
        let why = case.why.as_deref().unwrap_or("no reason is given");
        wrongs.extend(
            found
                .into_iter()
                .map(|it| format!("{where_}: {it} ({why})")),
        );
    }
    wrongs
}

/// Sidecars, each before its own backend. They end when dropped.
async fn posts() -> (Vec<Post>, Vec<Sidecar>) {
    let (mut posts, mut sidecars) = (Vec::new(), Vec::new());
    for _ in 0..SIDECARS {
        let backend = Recording::start().await;
        let sidecar = Sidecar::start(&config_of(backend.addr)).await;
        let proxy = sidecar.listener("corpus").await;
        posts.push(Post { proxy, backend });
        sidecars.push(sidecar);
    }
    (posts, sidecars)
}

/// Runs something for every request case, on all posts side by side. Returns what it returned, in
/// the order of the cases.
async fn for_all<T, F, R>(posts: Vec<Post>, run: R) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
    R: Fn(Arc<Post>, Arc<Source>, Case) -> F + Copy + Send + 'static,
{
    let mut cases = Vec::new();
    for mut source in cases::sources() {
        let requests = std::mem::take(&mut source.requests);
        let source = Arc::new(source);
        cases.extend(requests.into_iter().map(|case| (Arc::clone(&source), case)));
    }
    let cases = Arc::new(Mutex::new(cases.into_iter().enumerate()));
    let mut workers = JoinSet::new();
    for post in posts {
        let (post, cases) = (Arc::new(post), Arc::clone(&cases));
        workers.spawn(async move {
            let mut done = Vec::new();
            loop {
                let next = cases.lock().expect("not poisoned").next();
                let Some((number, (source, case))) = next else {
                    return done;
                };
                done.push((number, run(Arc::clone(&post), source, case).await));
            }
        });
    }
    let done: BTreeMap<usize, T> = workers.join_all().await.into_iter().flatten().collect();
    done.into_values().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_has_one_meaning_behind_the_proxy_or_none() {
    let (posts, _sidecars) = posts().await;
    let wrongs: Vec<String> = for_all(posts, |post, source, case| async move {
        check(&post, &source, &case).await
    })
    .await
    .concat();
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}

#[test]
fn the_corpus_names_each_case_once_and_its_section() {
    for source in cases::sources() {
        assert!(!source.from.is_empty(), "{}", source.name);
        let requests = source
            .requests
            .iter()
            .map(|case| (&case.name, &case.section));
        let responses = source
            .responses
            .iter()
            .map(|case| (&case.name, &case.section));
        let mut names = std::collections::BTreeSet::new();
        for (name, section) in requests.chain(responses) {
            assert!(names.insert(name), "{}: {name} twice", source.name);
            assert!(section.starts_with("RFC "), "{}: {name}", source.name);
        }
        for case in &source.requests {
            let (answers, _) = client_of(case);
            let answered = answers.iter().filter(|it| **it == "answered").count();
            let whole = case.backend.iter().filter(|it| **it != "part").count();
            assert_eq!(whole, answered, "{}: {}", source.name, case.name);
        }
    }
}

/// A proxy that passes bytes as they come, as no HTTP proxy should.
async fn pass_through(backend: SocketAddr) -> Scripted {
    Scripted::start(move |_, mut client| async move {
        let mut server = tokio::net::TcpStream::connect(backend)
            .await
            .expect("it listens");
        // Either end may reset.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    })
    .await
}

#[tokio::test]
async fn the_runner_sees_a_request_that_was_smuggled() {
    let backend = Recording::start().await;
    let proxy = pass_through(backend.addr).await;
    let post = Post {
        proxy: proxy.addr,
        backend,
    };
    // What a proxy takes for the body is a request to the backend.
    let bytes = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\nGET /evil HTTP/1.1\r\nHost: t\r\n\r\n";
    let run = post.run(bytes, Variant::Canary, Until::Silence).await;
    assert_eq!(run.backend(), ["POST / length 0", "GET /evil none"]);
    assert_eq!(run.times("/canary"), 1);
    // Two framings reach the backend, and it closes.
    let bytes = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let run = post.run(bytes, Variant::Canary, Until::Silence).await;
    assert_eq!(run.backend().len(), 1);
    assert!(run.wrongs()[0].contains("codings"), "{:?}", run.wrongs());
    // A part of a request stays behind.
    let bytes = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nabc";
    let run = post.run(bytes, Variant::Alone, Until::Answers(0)).await;
    assert_eq!(run.backend(), ["part"]);
}

#[test]
fn the_guardian_finds_what_is_ambiguous() {
    let doubt_of = |bytes: &str| {
        let message = Message {
            first: Default::default(),
            head: bytes.as_bytes().to_vec(),
            framing: strict::Framing::None,
            body: Default::default(),
        };
        doubt(&message)
    };
    let sound = "POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\n";
    assert_eq!(doubt_of(sound), None);
    assert_eq!(
        doubt_of("GET / HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\n"),
        None
    );
    for (from, to) in [
        (
            "content-length: 5",
            "content-length: 5\r\ncontent-length: 5",
        ),
        ("content-length: 5", "content-length: +5"),
        (
            "content-length: 5",
            "content-length: 5\r\ntransfer-encoding: chunked",
        ),
        ("content-length: 5", "content_length: 5"),
        ("content-length: 5", "transfer-encoding : chunked"),
        ("\r\n\r\n", "\r\n content-length: 6\r\n\r\n"),
    ] {
        let bytes = sound.replace(from, to);
        assert!(doubt_of(&bytes).is_some(), "{bytes:?}");
    }
}
