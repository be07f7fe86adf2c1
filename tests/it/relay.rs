//! A TCP relay that can be cut, stalled, or made to swallow what passes.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The treatment of bytes by a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Bytes pass.
    Open,
    /// Bytes wait, connections stay, and new ones are accepted.
    Stalled,
    /// Bytes of the far side are lost, those of the near side arrive.
    Deaf,
    /// Every connection is closed, and new ones are at once.
    Cut,
}

/// Between a client and one server. It lives on the runtime of its test.
pub(crate) struct Relay {
    pub(crate) addr: SocketAddr,
    mode: watch::Sender<Mode>,
    to: watch::Sender<SocketAddr>,
    _stop: DropGuard,
}

impl Relay {
    /// Opens one on a free port.
    pub(crate) async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback has a free port");
        let addr = listener.local_addr().expect("it is bound");
        let (mode, modes) = watch::channel(Mode::Open);
        let (to, target) = watch::channel(to);
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else {
                    continue;
                };
                if *modes.borrow() != Mode::Cut {
                    let to = *target.borrow();
                    tokio::spawn(relay(near, to, modes.clone()));
                }
            }
        }));
        Self {
            addr,
            mode,
            to,
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Leads new connections to another server, as a name does that was changed. Open ones stay.
    #[allow(dead_code, reason = "the tests of some crates move no server")]
    pub(crate) fn lead_to(&self, to: SocketAddr) {
        self.to.send_replace(to);
    }
}

async fn relay(near: TcpStream, to: SocketAddr, modes: watch::Receiver<Mode>) {
    let Ok(far) = TcpStream::connect(to).await else {
        return;
    };
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let mut cut = modes.clone();
    tokio::select! {
        () = pass(near_read, far_write, modes.clone(), false) => {}
        () = pass(far_read, near_write, modes, true) => {}
        // An error means that the relay itself is gone.
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut modes: watch::Receiver<Mode>,
    answers: bool,
) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if modes.wait_for(|mode| *mode != Mode::Stalled).await.is_err() {
            return;
        }
        if answers && *modes.borrow() == Mode::Deaf {
            continue;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
