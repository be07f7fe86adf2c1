//! Stands in for `tls` in a build without that feature: no backend speaks TLS.

use std::error::Error;
use std::time::Duration;

use tokio::net::TcpStream;

use super::tls_failure::TlsFailure;
use crate::call::Link;

/// TLS to one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendTls {}

impl BackendTls {
    pub(super) async fn shake_hands(&self, _: TcpStream, _: Duration) -> Result<Link, TlsFailure> {
        match *self {}
    }
}

pub(super) fn refused_after_the_handshake(_: &(dyn Error + 'static)) -> Option<TlsFailure> {
    None
}
