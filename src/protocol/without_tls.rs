//! Stands in for `tls` in a build without that feature. No listener has a certificate, so none of
//! this runs.

use std::time::Duration;

use super::wire::Wire;
use crate::call::Rejection;
use crate::call::identity::{Identity, Unusable};
use crate::call::listener::ListenerTls;

pub(super) type Session = Wire;

pub(super) fn below(session: &Session) -> &Wire {
    session
}

pub(super) fn below_mut(session: &mut Session) -> &mut Wire {
    session
}

pub(super) async fn accept(
    _: Wire,
    tls: &ListenerTls,
    _: Duration,
    _: &Identity,
) -> Result<Session, Rejection> {
    match *tls.loaded {}
}

pub(super) fn subject(_: &Session) -> Result<Option<std::sync::Arc<str>>, Unusable> {
    Ok(None)
}
