//! A stand-in for a local model server with the HTTP of OpenAI's: it streams tokens, and dies when more generations run at
//! once than it can bear.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/chat/completions` | `max_tokens` tokens, one after the other; a stream of events with `"stream": true` |
//! | `GET /v1/models` | one model |
//! | `GET /stats` | counts, as JSON |

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tidegate_runtime::command::{executor, listen, note, parse_duration, print};
use tidegate_runtime::lock;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::framing::{BodyEnd, Http};

/// How much of a request is read.   bytes
const BODY_KEPT: usize = 1 << 20;
/// Most tokens of an answer.
const TOKENS_MAX: u64 = 100_000;
/// Generations of which the server keeps a record.
const RECORDS_MAX: usize = 100_000;
/// Tokens that each request has before its answer.
const PROMPT_TOKENS: u64 = 3;
/// Pause after a failed accept: without free descriptors, the next would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the model server behaves.
#[derive(Args, Clone, Debug)]
pub struct ModelServerOptions {
    /// Address of HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    pub http: SocketAddr,
    /// Dies when more generations than this run at once; 0 means never
    #[arg(long, value_name = "GENERATIONS", default_value_t = 4)]
    pub break_at_once: u32,
    /// How long it stays dead: all connections are reset, and new ones too
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub recover: Duration,
    /// How long a token takes
    #[arg(long, default_value = "20ms", value_parser = parse_duration)]
    pub token: Duration,
    /// Tokens of an answer whose request names no number
    #[arg(long, default_value_t = 50)]
    pub tokens: u32,
    /// Generates to the end when its client has left, as some servers do
    #[arg(long)]
    pub deaf: bool,
}

impl Default for ModelServerOptions {
    fn default() -> Self {
        crate::defaults()
    }
}

/// Counts of a model server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelServerStatistics {
    /// Generations that began.
    pub begun: u64,
    /// Generations whose answer was written whole.
    pub answered: u64,
    /// Generations whose client left before the end.
    pub left: u64,
    /// How often the server died.
    pub died: u64,
    /// The most generations at once.
    pub at_once_peak: u32,
    /// Tokens that were generated.
    pub tokens: u64,
    /// Tokens that were generated after the client of the call had left.
    pub wasted_tokens: u64,
}

/// A generation.
#[derive(Clone, Debug)]
pub struct GenerationRecord {
    /// The `user` of its request.
    pub user: String,
    /// When it began.
    pub begun: Instant,
    /// When its last token so far was generated.
    pub last_token: Instant,
    /// Tokens so far.
    pub tokens: u64,
}

/// The command: serves until ctrl-c, then prints the counts.
///
/// # Errors
/// An address that cannot be listened on.
pub fn main(options: ModelServerOptions) -> io::Result<ExitCode> {
    executor(1)?.block_on(async {
        let running = ModelServer::start(options)?;
        let addr = running.addr();
        note(format_args!(
            "model server: http://{addr}/v1, GET /stats; ctrl-c ends it\n"
        ));
        tokio::signal::ctrl_c().await?;
        let counts = serde_json::to_string(&running.statistics()).expect("it is numbers");
        print(&format!("{counts}\n"))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The stand-in server.
#[derive(Debug)]
pub struct ModelServer {
    options: ModelServerOptions,
    state: Mutex<ModelServerState>,
    /// The number of times that it died; a change ends every generation.
    deaths: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct ModelServerState {
    counts: ModelServerStatistics,
    running: u32,
    dead_until: Option<Instant>,
    generations: Vec<GenerationRecord>,
}

/// A running model server. A drop ends it.
#[derive(Debug)]
pub struct RunningModelServer {
    server: Arc<ModelServer>,
    addr: SocketAddr,
    _stop: DropGuard,
}

impl RunningModelServer {
    /// The address of its HTTP.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The counts so far.
    #[must_use]
    pub fn statistics(&self) -> ModelServerStatistics {
        lock(&self.server.state).counts.clone()
    }

    /// The generations so far, by their beginning.
    #[must_use]
    pub fn generations(&self) -> Vec<GenerationRecord> {
        lock(&self.server.state).generations.clone()
    }
}

impl ModelServer {
    /// Listens and serves in the current runtime.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub fn start(options: ModelServerOptions) -> io::Result<RunningModelServer> {
        let listener = listen(options.http, 1024)?;
        let addr = listener.local_addr()?;
        let server = Arc::new(Self {
            options,
            state: Mutex::default(),
            deaths: watch::Sender::default(),
        });
        let stop = CancellationToken::new();
        let accepting = Arc::clone(&server).accept(listener);
        tokio::spawn(stop.clone().run_until_cancelled_owned(accepting));
        Ok(RunningModelServer {
            server,
            addr,
            _stop: stop.drop_guard(),
        })
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let server = Arc::clone(&self);
            connections.spawn(async move {
                let mut deaths = server.deaths.subscribe();
                let Ok(mut client) = Http::new(stream) else {
                    return;
                };
                let is_dead = tokio::select! {
                    // What fails, its client sees.
                    _ = server.serve(&mut client) => false,
                    _ = deaths.changed() => true,
                };
                if is_dead || server.is_dead() {
                    let _ = client.stream.set_zero_linger();
                }
            });
            while connections.try_join_next().is_some() {}
        }
    }

    fn is_dead(&self) -> bool {
        lock(&self.state)
            .dead_until
            .is_some_and(|until| Instant::now() < until)
    }

    async fn serve(&self, client: &mut Http) -> io::Result<()> {
        while !self.is_dead() {
            let Some(head) = client.head().await? else {
                break;
            };
            if head.expects_continue {
                let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
                client.stream.write_all(go_on).await?;
            }
            let mut body = Vec::new();
            let end = head.body.unwrap_or(BodyEnd::Length(0));
            client.body(end, &mut body, BODY_KEPT).await?;
            let request = head
                .line
                .rsplit_once(' ')
                .map_or("", |(request, _)| request);
            match request {
                "POST /v1/chat/completions" => self.generate(client, &body).await?,
                "GET /v1/models" => {
                    let model =
                        json!({ "id": "stand-in", "object": "model", "owned_by": "tidegate" });
                    let models = json!({ "object": "list", "data": [model] });
                    client.stream.write_all(&answer(200, &models)).await?;
                }
                "GET /stats" => {
                    let counts = serde_json::to_value(&lock(&self.state).counts);
                    let counts = counts.expect("it is numbers");
                    client.stream.write_all(&answer(200, &counts)).await?;
                }
                _ => {
                    let error =
                        json!({ "error": { "message": "there is no such path", "code": null } });
                    client.stream.write_all(&answer(404, &error)).await?;
                }
            }
            if head.close {
                break;
            }
        }
        Ok(())
    }

    /// Generates an answer, token by token.
    async fn generate(&self, client: &mut Http, body: &[u8]) -> io::Result<()> {
        let Ok(asked) = serde_json::from_slice::<Value>(body) else {
            let error = json!({ "error": { "message": "the body is not JSON", "code": null } });
            return client.stream.write_all(&answer(400, &error)).await;
        };
        let most = [&asked["max_completion_tokens"], &asked["max_tokens"]];
        let most = most.into_iter().find_map(Value::as_u64);
        let wanted = most.unwrap_or(self.options.tokens.into()).min(TOKENS_MAX);
        let generating = self.begin(asked["user"].as_str().unwrap_or_default())?;
        let is_stream = asked["stream"] == true;
        let base = json!({ "id": "chatcmpl-1", "created": 1, "model": &asked["model"] });
        if is_stream {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.stream.write_all(head.as_bytes()).await?;
        }
        let mut has_left = false;
        for _ in 0..wanted {
            tokio::time::sleep(self.options.token).await;
            generating.token(has_left);
            has_left |= client.is_stale();
            if !has_left && is_stream {
                let choice =
                    json!({ "index": 0, "delta": { "content": "token " }, "finish_reason": null });
                let event = with(
                    &base,
                    "chat.completion.chunk",
                    &[("choices", json!([choice]))],
                );
                has_left |= client
                    .stream
                    .write_all(&chunk(&event.to_string()))
                    .await
                    .is_err();
            }
            if has_left && !self.options.deaf {
                break;
            }
        }
        if has_left {
            generating.end(GenerationEnd::Left);
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let usage = json!({
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": wanted,
            "total_tokens": PROMPT_TOKENS + wanted,
        });
        let last = match is_stream {
            true => {
                let event = with(
                    &base,
                    "chat.completion.chunk",
                    &[("choices", json!([])), ("usage", usage)],
                );
                let mut last = Vec::new();
                if asked["stream_options"]["include_usage"] == true {
                    last.extend(chunk(&event.to_string()));
                }
                last.extend(chunk("[DONE]"));
                last.extend(b"0\r\n\r\n");
                last
            }
            false => {
                let content = "token ".repeat(usize::try_from(wanted).unwrap_or_default());
                let message = json!({ "role": "assistant", "content": content });
                let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
                let whole = with(
                    &base,
                    "chat.completion",
                    &[("choices", json!([choice])), ("usage", usage)],
                );
                answer(200, &whole)
            }
        };
        // Before the last bytes leave: who has read them may send the next request at once.
        generating.end(GenerationEnd::Answered);
        client.stream.write_all(&last).await
    }

    /// Counts a generation that begins. One too many kills the server.
    fn begin(&self, user: &str) -> io::Result<Generating<'_>> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.running += 1;
        state.counts.begun += 1;
        state.counts.at_once_peak = state.counts.at_once_peak.max(state.running);
        let now = Instant::now();
        let number = state.generations.len();
        if number < RECORDS_MAX {
            state.generations.push(GenerationRecord {
                user: user.to_owned(),
                begun: now,
                last_token: now,
                tokens: 0,
            });
        }
        let most = self.options.break_at_once;
        let dies = most > 0 && state.running > most;
        if dies {
            state.counts.died += 1;
            state.dead_until = Some(now + self.options.recover);
        }
        drop(guard);
        let generating = Generating {
            server: self,
            number,
        };
        if dies {
            self.deaths.send_modify(|deaths| *deaths += 1);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(generating)
    }
}

/// A generation under way, which ends with this value.
struct Generating<'a> {
    server: &'a ModelServer,
    number: usize,
}

/// How a generation ended.
enum GenerationEnd {
    Answered,
    Left,
}

impl Generating<'_> {
    fn token(&self, is_wasted: bool) {
        let state = &mut *lock(&self.server.state);
        state.counts.tokens += 1;
        state.counts.wasted_tokens += u64::from(is_wasted);
        if let Some(generation) = state.generations.get_mut(self.number) {
            generation.tokens += 1;
            generation.last_token = Instant::now();
        }
    }

    fn end(self, how: GenerationEnd) {
        let counts = &mut lock(&self.server.state).counts;
        match how {
            GenerationEnd::Answered => counts.answered += 1,
            GenerationEnd::Left => counts.left += 1,
        }
    }
}

impl Drop for Generating<'_> {
    fn drop(&mut self) {
        lock(&self.server.state).running -= 1;
    }
}

/// An object with these fields too.
fn with(base: &Value, object: &str, fields: &[(&str, Value)]) -> Value {
    let mut whole = base.clone();
    whole["object"] = object.into();
    for (name, value) in fields {
        whole[*name] = value.clone();
    }
    whole
}

/// A whole answer in JSON.
fn answer(status: u16, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let reason = if status == 200 { "OK" } else { "Error" };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// An event of a stream, as a chunk of the body.
fn chunk(data: &str) -> Vec<u8> {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}
