//! The backend: what comes to it is recorded when its first bytes are there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::plan::{WORK_MAX, Work};
use crate::world::World;

/// A backend that serves as long as it is not dropped.
pub(crate) struct Backend {
    _serving: DropGuard,
    accepting: JoinHandle<()>,
    world: Arc<World>,
}

/// A call at the backend, until it is dropped.
struct RunningCall {
    world: Arc<World>,
    call: usize,
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.world.record.look().done(self.call);
    }
}

impl Backend {
    /// Listens; needs a runtime.
    pub(crate) fn start(world: &Arc<World>) -> Self {
        let listener = UnixListener::bind(world.back()).expect("a free path");
        let stop = CancellationToken::new();
        let (shared, stopped) = (Arc::clone(world), stop.clone());
        let accepting = async move {
            loop {
                let (stream, _) = listener.accept().await.expect("it listens");
                let serving = serve(Arc::clone(&shared), stream);
                tokio::spawn(stopped.clone().run_until_cancelled_owned(async move {
                    // Each end of a connection is in order.
                    let _ = serving.await;
                }));
            }
        };
        Self {
            accepting: tokio::spawn(accepting),
            _serving: stop.drop_guard(),
            world: Arc::clone(world),
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = std::fs::remove_file(self.world.back());
    }
}

/// Answers the calls of one connection.
async fn serve(world: Arc<World>, mut stream: UnixStream) -> io::Result<()> {
    let mut read = Vec::new();
    // Some connections end a while after an answer. A call that comes on them meanwhile gets none.
    let mut ends_soon = None;
    loop {
        let ends = read
            .windows(4)
            .position(|bytes: &[u8]| bytes == b"\r\n\r\n");
        let Some(ends) = ends else {
            match ends_soon {
                Some(pause) => read_for(&mut stream, &mut read, pause).await?,
                None => read_more(&mut stream, &mut read).await?,
            }
            continue;
        };
        let head = String::from_utf8_lossy(&read[..ends]).to_lowercase();
        let call = number_in(&head);
        world.record.look().came(call);
        let running = RunningCall {
            world: Arc::clone(&world),
            call,
        };
        let whole = ends + 4 + length_in(&head);
        while read.len() < whole {
            read_more(&mut stream, &mut read).await?;
        }
        read.clear();
        let work = match ends_soon {
            Some(_) => Work::Closes { after: 0 },
            None => world.record.look().planned(call).work,
        };
        if !work_on(&world, work, &mut stream).await? {
            return Ok(());
        }
        drop(running);
        ends_soon = (call % 7 == 3).then(|| Duration::from_millis(call as u64 * 13 % 400));
    }
}

/// Reads what comes within a time, also at its end.
async fn read_for(from: &mut UnixStream, read: &mut Vec<u8>, time: Duration) -> io::Result<()> {
    match timeout(time, read_more(from, read)).await {
        Ok(ended) => ended,
        Err(_) => {
            let mut piece = vec![0; 65_536];
            let length = from.try_read(&mut piece)?;
            read.extend_from_slice(&piece[..length]);
            match length {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            }
        }
    }
}

async fn read_more(from: &mut UnixStream, read: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = vec![0; 65_536];
    match from.read(&mut piece).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length => {
            read.extend_from_slice(&piece[..length]);
            Ok(())
        }
    }
}

fn number_in(head: &str) -> usize {
    let path = head.split(' ').nth(1).expect("a path");
    let number = path.strip_prefix("/call/").expect("a call");
    number.parse().expect("a number")
}

fn length_in(head: &str) -> usize {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| *name == "content-length");
    found.map_or(0, |(_, value)| value.trim().parse().expect("a length"))
}

/// Works on a call, until it is done or no client waits for it. Returns whether the connection stays open.
async fn work_on(world: &Arc<World>, work: Work, stream: &mut UnixStream) -> io::Result<bool> {
    let (mut reads, mut writes) = stream.split();
    let mut nothing = [0; 1];
    tokio::select! {
        biased;
        // It sends nothing before it has its answer.
        ended = reads.read(&mut nothing) => {
            assert!(ended.is_err() || ended.is_ok_and(|read| read == 0), "a second request");
            if world.finishes && world.was_just_killed() {
                sleep(Duration::from_millis(WORK_MAX)).await;
            }
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        answered = answer(world, work, &mut writes) => answered,
    }
}

async fn answer(
    world: &World,
    work: Work,
    to: &mut tokio::net::unix::WriteHalf<'_>,
) -> io::Result<bool> {
    let pause = |pause| sleep(Duration::from_millis(pause));
    match work {
        Work::Answers { after, bytes } => {
            pause(after).await;
            world.flowing().await;
            let mut answer = head(&format!("Content-Length: {bytes}"));
            answer.resize(answer.len() + bytes, b'a');
            to.write_all(&answer).await?;
            Ok(true)
        }
        Work::Streams {
            after,
            chunks,
            every,
        } => {
            pause(after).await;
            world.flowing().await;
            to.write_all(&head("Transfer-Encoding: chunked")).await?;
            for _ in 0..chunks {
                pause(every).await;
                world.flowing().await;
                to.write_all(b"5\r\nchunk\r\n").await?;
            }
            to.write_all(b"0\r\n\r\n").await?;
            Ok(true)
        }
        Work::Cuts { after } => {
            pause(after).await;
            world.flowing().await;
            to.write_all(&head("Content-Length: 1000")).await?;
            to.write_all(b"it begins").await?;
            Ok(false)
        }
        Work::Closes { after } => {
            pause(after).await;
            world.flowing().await;
            Ok(false)
        }
        Work::Silent => std::future::pending().await,
    }
}

fn head(field: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n").into_bytes()
}
