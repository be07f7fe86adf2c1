//! Stands in for `secured` in a build without the feature `tls`: there is no such connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

/// A connection on TLS.
pub enum TlsLink {}

impl TlsLink {
    pub(super) fn tcp(&self) -> &TcpStream {
        match *self {}
    }

    pub(super) fn has_decrypted(&self) -> bool {
        match *self {}
    }

    pub(super) fn breaks_off(&mut self, _: bool) {
        match *self {}
    }

    pub(crate) fn is_quiet(&mut self) -> bool {
        match *self {}
    }

    pub(super) fn poll_write(&mut self, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match *self {}
    }

    pub(super) fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

impl AsyncRead for TlsLink {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match *self {}
    }
}
