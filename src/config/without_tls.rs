//! Stands in for `certificates` in a build without the feature `tls`: no listener has one, and no
//! backend needs one.

use std::convert::Infallible;
use std::sync::Arc;

use crate::call::Protocol;
use crate::call::listener::TlsSection;
use crate::forward::Tls;
use crate::forward::options::{BackendTlsSection, Target};
use crate::options::{At, Notes};

/// Notes that TLS cannot be used.
pub(super) fn load(tls: &TlsSection, _: Protocol, notes: &Notes) -> Option<Arc<Infallible>> {
    if tls.section.given {
        let cure = "build it with --features tls, or leave tls out";
        notes.error(&tls.section, "this build has no TLS", cure);
    }
    None
}

pub(super) struct ForBackends;

/// Notes that TLS cannot be used.
pub(super) fn for_backends(
    _: &BackendTlsSection,
    first: &At,
    notes: &Notes,
) -> Option<ForBackends> {
    let cure = "build it with --features tls, or give an address without TLS";
    notes.error(first, "this build has no TLS", cure);
    None
}

pub(super) fn of_backend(
    _: &ForBackends,
    _: &Target,
    _: &At,
    _: &BackendTlsSection,
    _: &[&[u8]],
    _: &Notes,
) -> Option<Tls> {
    None
}
