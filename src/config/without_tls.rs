//! Stands in for `certificates` in a build without the feature `tls`: no listener has one.

use std::convert::Infallible;
use std::sync::Arc;

use crate::call::Protocol;
use crate::call::listener::TlsSection;
use crate::options::Notes;

/// Notes that TLS cannot be used.
pub(super) fn load(tls: &TlsSection, _: Protocol, notes: &Notes) -> Option<Arc<Infallible>> {
    if tls.section.given {
        let cure = "build it with --features tls, or leave tls out";
        notes.error(&tls.section, "this build has no TLS", cure);
    }
    None
}
