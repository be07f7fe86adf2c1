//! The connection of two processes of a hand-over: messages in both directions, and sockets beside them.
//!
//! Each connection has one task, which reads one message ahead of the side that handles it: what that side does not take
//! stays in the kernel.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tidegate_handover::{FrameReader, SOCKETS_MAX, WireMessage};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Bytes that may wait to be written: the other process reads slowly, or not at all.
const UNSENT_MAX: usize = 16 << 20;
/// How long the last messages of a connection may take.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of one read.
const READ_BYTES: usize = 1 << 16;

/// Something that came through a connection.
#[derive(Debug)]
pub(super) enum Received<M> {
    /// A message, with the sockets that had come by then.
    Message(M, Vec<OwnedFd>),
    /// The connection is over, and nothing comes any more.
    Lost(String),
}

/// A message to send, and the sockets that go with it.
type OutgoingFrame = (Vec<u8>, Vec<OwnedFd>);

/// An end of a connection. When this is dropped, the connection closes after what was sent, or soon if that is not read.
#[derive(Debug)]
pub(super) struct Channel {
    outgoing: mpsc::UnboundedSender<OutgoingFrame>,
    unsent: Arc<AtomicUsize>,
}

impl Channel {
    /// Starts the task of a connection. Each thing that comes is passed on with this number.
    pub(super) fn start<M: WireMessage + Send + 'static, N: Copy + Send + 'static>(
        socket: UnixStream,
        number: N,
        received: mpsc::Sender<(N, Received<M>)>,
    ) -> Self {
        let (outgoing, to_send) = mpsc::unbounded_channel();
        let unsent = Arc::new(AtomicUsize::new(0));
        let task = ChannelTask {
            socket,
            unsent: Arc::clone(&unsent),
            queue: VecDeque::new(),
            written: 0,
        };
        tokio::spawn(async move {
            let ended = task.run(to_send, number, &received).await;
            let cause =
                ended.map_or_else(|error| error.to_string(), |()| "it was closed".to_owned());
            let _ = received.send((number, Received::Lost(cause))).await;
        });
        Self { outgoing, unsent }
    }

    /// Sends a message, and sockets with it. False if it cannot be sent: then the connection is of no use any more.
    pub(super) fn send(&self, message: &impl WireMessage, sockets: Vec<OwnedFd>) -> bool {
        let mut frame = Vec::new();
        if let Err(error) = message.write(&mut frame) {
            tracing::warn!(%error, "a message of a hand-over cannot be sent");
            return false;
        }
        let before = self.unsent.fetch_add(frame.len(), Ordering::Relaxed);
        if before > UNSENT_MAX {
            tracing::warn!("the other process of the hand-over reads too slowly");
            return false;
        }
        self.outgoing.send((frame, sockets)).is_ok()
    }
}

/// A connection, in its task.
struct ChannelTask {
    socket: UnixStream,
    unsent: Arc<AtomicUsize>,
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Bytes of the first frame that are written.
    written: usize,
}

impl ChannelTask {
    /// Runs until the connection is over.
    async fn run<M: WireMessage, N: Copy>(
        mut self,
        mut to_send: mpsc::UnboundedReceiver<OutgoingFrame>,
        number: N,
        received: &mpsc::Sender<(N, Received<M>)>,
    ) -> io::Result<()> {
        let mut reader = FrameReader::default();
        let mut sockets = Vec::new();
        let mut ends = None;
        let mut buffer = vec![0; READ_BYTES];
        // A message that came and is not taken yet.
        let mut next = None;
        loop {
            if next.is_none() {
                next = reader.next_message::<M>().map_err(io::Error::other)?;
            }
            if ends.is_some() && self.queue.is_empty() {
                return Ok(());
            }
            tokio::select! {
                permit = received.reserve(), if next.is_some() => {
                    let Ok(permit) = permit else { return Ok(()) };
                    if let Some(message) = next.take() {
                        permit.send((number, Received::Message(message, std::mem::take(&mut sockets))));
                    }
                }
                outgoing = to_send.recv(), if ends.is_none() => match outgoing {
                    Some(outgoing) => self.queue.push_back(outgoing),
                    None => ends = Some(Instant::now() + LAST_WORDS),
                },
                () = sleep_until(ends.unwrap_or_else(Instant::now)), if ends.is_some() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                written = self.socket.writable(), if !self.queue.is_empty() => {
                    written?;
                    self.write()?;
                }
                readable = self.socket.readable(), if next.is_none() => {
                    readable?;
                    match self.read(&mut buffer, &mut sockets) {
                        Ok(0) if reader.is_at_boundary() => return Ok(()),
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(read) => reader.push(&buffer[..read]),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    fn read(&self, buffer: &mut [u8], sockets: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.socket.try_io(Interest::READABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX as usize))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(buffer)];
            let came = recvmsg(&self.socket, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    sockets.extend(passed);
                }
            }
            Ok(came.bytes)
        })
    }

    /// Writes as much as the kernel takes.
    fn write(&mut self) -> io::Result<()> {
        while let Some((frame, sockets)) = self.queue.front() {
            let rest = &frame[self.written..];
            // They go with the first byte.
            let passed = if self.written == 0 { &sockets[..] } else { &[] };
            let sent = self.socket.try_io(Interest::WRITABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX as usize))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let passed: Vec<_> = passed.iter().map(|socket| socket.as_fd()).collect();
                if !passed.is_empty() {
                    ancillary.push(SendAncillaryMessage::ScmRights(&passed));
                }
                let flags = SendFlags::NOSIGNAL;
                let sent = sendmsg(&self.socket, &[IoSlice::new(rest)], &mut ancillary, flags)?;
                Ok(sent)
            });
            match sent {
                Ok(sent) => {
                    self.written += sent;
                    self.unsent.fetch_sub(sent, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.written == frame.len() {
                self.queue.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }
}
