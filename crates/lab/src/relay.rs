//! Proxies that do nothing of their own: points of reference for benchmarks.
//!
//! A proxy of persistent connections costs at least what [`RelayKind::Bytes`] costs on this runtime, and a
//! proxy of one call for each connection what [`RelayKind::Once`] costs. Both read nothing of what they
//! pass on. [`RelayKind::Hyper`] reads HTTP, and nothing else. None of them has limits, deadlines or a log:
//! what Tidegate takes above them is its own.
//!
//! They run on one thread.

mod hyper;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpStream as BareStream};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use rustix::net::sockopt::set_tcp_nodelay;
use tidegate_runtime::command::{executor, listen, note};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};

use self::hyper::HyperProxy;
use crate::conn::{self, Conn, connect_and_write, watched};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// Each direction of a connection has a buffer of this size.   bytes
const BUFFER_BYTES: usize = 4 * 1024;

/// The protocol that a proxy understands, of the bytes that it relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RelayKind {
    /// Bytes alone: every client's connection has its own connection at the backend
    Bytes,
    /// A call for each connection: what a client sends first, and the reply to its end
    Once,
    /// HTTP/1.1, with persistent connections to the backend
    Hyper,
}

/// Where the proxy is.
#[derive(Args, Clone, Copy, Debug)]
pub struct RelayOptions {
    /// What it understands
    #[arg(long = "as", value_enum)]
    pub kind: RelayKind,
    /// Its address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2000")]
    pub listen: SocketAddr,
    /// Address of the backend
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub to: SocketAddr,
}

/// The command: relays until ctrl-c.
///
/// # Errors
/// An address that cannot be listened on.
pub fn main(options: RelayOptions) -> io::Result<ExitCode> {
    executor(1)?.block_on(async {
        let listener = listen(options.listen, BACKLOG)?;
        let RelayOptions { kind, to, .. } = options;
        note(format_args!(
            "relay: {} to {to}; ctrl-c ends it\n",
            listener.local_addr()?
        ));
        tokio::select! {
            ended = relay(kind, listener, to) => match ended? {},
            stopped = tokio::signal::ctrl_c() => stopped?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Relays what comes in to a backend. A drop ends the proxy, but not the connections that it has.
///
/// # Errors
/// A failed accept.
pub async fn relay(
    kind: RelayKind,
    listener: TcpListener,
    to: SocketAddr,
) -> io::Result<Infallible> {
    // Accepted connections inherit it, which saves a system call for each.
    set_tcp_nodelay(&listener, true)?;
    let listener = watched(listener)?;
    let proxy = HyperProxy::new(to);
    loop {
        let client = listener.async_io(Interest::READABLE, conn::accept).await?;
        // A client sees its failure; there is no one to report it to.
        match kind {
            RelayKind::Bytes => tokio::spawn(async move {
                let _ = pass_on(client, to).await;
            }),
            RelayKind::Once => tokio::spawn(async move {
                let _ = pass_on_once(client, to).await;
            }),
            RelayKind::Hyper => {
                let client = TcpStream::from_std(client)?;
                let proxy = proxy.clone();
                tokio::spawn(async move {
                    let _ = proxy.serve(client).await;
                })
            }
        };
    }
}

/// Copies the bytes of both directions, and the end of each.
async fn pass_on(client: BareStream, to: SocketAddr) -> io::Result<()> {
    let mut client = TcpStream::from_std(client)?;
    let mut backend = connect(to).await?;
    copy_bidirectional_with_sizes(&mut client, &mut backend, BUFFER_BYTES, BUFFER_BYTES).await?;
    Ok(())
}

/// Sends what the client sends first, and copies the reply to its end. The runtime watches the client
/// only if it is slow.
async fn pass_on_once(client: BareStream, to: SocketAddr) -> io::Result<()> {
    let mut client = Conn::new(client);
    let mut bytes = Vec::with_capacity(BUFFER_BYTES);
    client.read_some(&mut bytes).await?;
    let (mut backend, written) = connect_and_write(to, &bytes).await?;
    backend.write_all(&bytes[written..]).await?;
    loop {
        bytes.clear();
        if backend.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        client.write_all(&bytes).await?;
    }
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let backend = TcpStream::connect(to).await?;
    backend.set_nodelay(true)?;
    Ok(backend)
}
