//! Stands in for `certificates` in a build without the feature `tls`. `checks/features` notes what needs it.

use std::convert::Infallible;
use std::sync::Arc;

use crate::call::Protocol;
use crate::call::listener::TlsSection;
use crate::forward::BackendTls;
use crate::forward::options::{BackendTarget, BackendTlsSection};
use crate::options::{LocatedKey, Notes};

pub(super) fn load(_: &TlsSection, _: Protocol, _: &Notes) -> Option<Arc<Infallible>> {
    None
}

pub(super) struct ForBackends;

pub(super) fn for_backends(
    _: &BackendTlsSection,
    _: &LocatedKey,
    _: &Notes,
) -> Option<ForBackends> {
    None
}

pub(super) fn of_backend(
    _: &ForBackends,
    _: &BackendTarget,
    _: &LocatedKey,
    _: &BackendTlsSection,
    _: &[&[u8]],
    _: &Notes,
) -> Option<BackendTls> {
    None
}
