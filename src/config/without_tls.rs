//! Stands in for `certificates` in a build without the feature `tls`. `checks/features` notes what needs it.

use std::convert::Infallible;
use std::sync::Arc;

use crate::call::Protocol;
use crate::call::listener::TlsSection;
use crate::forward::BackendTls;
use crate::forward::options::{BackendTlsSection, Target};
use crate::options::{At, Notes};

pub(super) fn load(_: &TlsSection, _: Protocol, _: &Notes) -> Option<Arc<Infallible>> {
    None
}

pub(super) struct ForBackends;

pub(super) fn for_backends(_: &BackendTlsSection, _: &At, _: &Notes) -> Option<ForBackends> {
    None
}

pub(super) fn of_backend(
    _: &ForBackends,
    _: &Target,
    _: &At,
    _: &BackendTlsSection,
    _: &[&[u8]],
    _: &Notes,
) -> Option<BackendTls> {
    None
}
