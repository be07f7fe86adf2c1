//! Clients: each makes its calls one after another, on a connection that it keeps as long as it can.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::plan::Patience;
use crate::record::Outcome;
use crate::world::World;

/// A client tries to connect again after this time.
const CONNECTS_AGAIN: Duration = Duration::from_millis(20);
/// A client that has closed its sending side closes the connection after this time.
const STAYS: Duration = Duration::from_millis(500);
/// A client tries to connect as many times.
const CONNECTS_MAX: usize = 200;

/// Makes these calls, each at its time or as soon as the one before has ended.
pub(crate) async fn make_calls(world: Arc<World>, calls: Vec<usize>) {
    let mut kept = None;
    for call in calls {
        let at = world.record.look().planned(call).at;
        world.until(at).await;
        kept = make_call(&world, call, kept).await;
    }
}

/// Makes one call. Returns the connection, if it can be used again.
async fn make_call(
    world: &Arc<World>,
    call: usize,
    kept: Option<UnixStream>,
) -> Option<UnixStream> {
    let is_first = kept.is_none();
    let mut connection = match kept {
        Some(connection) => connection,
        None => connect(world).await?,
    };
    if ask(world, call, &mut connection).await.is_err() {
        world.record.look().ended(call, Outcome::Broken);
        return None;
    }
    let planned = world.record.look().planned(call);
    let slowly = planned.patience == Patience::ReadsSlowly;
    let reading = read_answer(&mut connection, slowly);
    let answer = match planned.patience {
        Patience::Stays | Patience::ReadsSlowly => reading.await,
        Patience::Leaves { after, half } => {
            let patience = Duration::from_millis(after);
            match timeout(patience, reading).await {
                Ok(answer) => answer,
                Err(_) => {
                    leave(world, (call, is_first), connection, half).await;
                    return None;
                }
            }
        }
        Patience::HalfOpen { until } => {
            drop(reading);
            world.until(until).await;
            leave(world, (call, is_first), connection, false).await;
            return None;
        }
    };
    match answer {
        Ok(answer) => {
            world.record.look().ended(call, answer.outcome);
            (!answer.closes).then_some(connection)
        }
        Err(_) => {
            world.record.look().ended(call, Outcome::Broken);
            None
        }
    }
}

/// Gives up a call.
async fn leave(
    world: &World,
    (call, is_first): (usize, bool),
    mut connection: UnixStream,
    half: bool,
) {
    world.record.look().left(call, is_first);
    if half {
        // The process may have closed it.
        let _ = connection.shutdown().await;
        sleep(STAYS).await;
    }
}

async fn connect(world: &Arc<World>) -> Option<UnixStream> {
    for _ in 0..CONNECTS_MAX {
        match UnixStream::connect(world.front()).await {
            Ok(connection) => return Some(connection),
            Err(_) => sleep(CONNECTS_AGAIN).await,
        }
    }
    world.record.look().count("calls without a connection");
    None
}

/// Sends a request.
async fn ask(world: &Arc<World>, call: usize, to: &mut UnixStream) -> io::Result<()> {
    let planned = world.record.look().planned(call);
    let head = match planned.body {
        0 => format!("GET /call/{call} HTTP/1.1\r\nHost: simulation\r\n\r\n"),
        length => format!(
            "POST /call/{call} HTTP/1.1\r\nHost: simulation\r\nContent-Length: {length}\r\n\r\n"
        ),
    };
    let mut request = head.into_bytes();
    request.resize(request.len() + planned.body, b'b');
    if let Some(pause) = planned.pause {
        let rest = request.split_off(request.len() / 2);
        to.write_all(&request).await?;
        sleep(Duration::from_millis(pause)).await;
        request = rest;
    }
    to.write_all(&request).await?;
    world.record.look().asked(call);
    Ok(())
}

/// An answer that was read to its end.
struct Answer {
    outcome: Outcome,
    closes: bool,
}

/// The facts of an answer's head.
struct Head {
    status: u16,
    /// `None`: in chunks.
    length: Option<usize>,
    closes: bool,
}

async fn read_answer(from: &mut UnixStream, slowly: bool) -> io::Result<Answer> {
    let mut read = Vec::new();
    let (head, body_at) = loop {
        let ends = read.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        match ends.map(|at| (head_of(&read[..at]), at + 4)) {
            // One that is only a sign of life.
            Some((head, at)) if head.status < 200 => drop(read.drain(..at)),
            Some(found) => break found,
            None => read_more(from, &mut read, slowly).await?,
        }
    };
    loop {
        let body = &read[body_at..];
        let is_whole = match head.length {
            Some(length) => body.len() >= length,
            None => body.ends_with(b"0\r\n\r\n"),
        };
        if is_whole {
            let reason = reason_in(body);
            let outcome = Outcome::Whole {
                status: head.status,
                reason,
            };
            return Ok(Answer {
                outcome,
                closes: head.closes,
            });
        }
        read_more(from, &mut read, slowly).await?;
    }
}

async fn read_more(from: &mut UnixStream, read: &mut Vec<u8>, slowly: bool) -> io::Result<()> {
    let most = match slowly {
        true => {
            sleep(Duration::from_millis(3)).await;
            1_000
        }
        false => 65_536,
    };
    let mut piece = vec![0; most];
    match from.read(&mut piece).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length => {
            read.extend_from_slice(&piece[..length]);
            Ok(())
        }
    }
}

fn head_of(head: &[u8]) -> Head {
    let text = String::from_utf8_lossy(head).to_lowercase();
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    Head {
        status: status.expect("a status"),
        length: field("content-length").map(|value| value.parse().expect("a length")),
        closes: field("connection").is_some_and(|value| value.contains("close")),
    }
}

/// The reason in problem details, as only the process itself writes them.
fn reason_in(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(problem.get("reason")?.as_str()?.to_owned())
}
