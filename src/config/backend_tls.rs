//! `[backend.tls]`: how the backends are checked whose address begins with https:// or tls://, and
//! what they are shown.

use crate::forward::BackendTls;
use crate::forward::options::{self, BackendSection, BackendTarget, BackendTlsSection};
use crate::options::{Notes, Section, Setting, Toml};

use super::certificates;
use super::part::ConfigPart;

/// `[backend.tls]`, with what its files hold.
pub(super) struct BackendTlsFiles {
    section: BackendTlsSection,
    /// The loaded files; `None` for a backend without TLS, and where something is wrong, which has been noted.
    pub(super) loaded: options::TlsByBackend,
}

impl ConfigPart for BackendTlsFiles {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        Self {
            section: root.section(key).section("tls").aside().read(),
            loaded: options::TlsByBackend::default(),
        }
    }

    fn write_under(&self, key: &str, out: &mut Toml) {
        if self.section.section.given {
            self.section.write_under(&format!("{key}.tls"), out);
        }
    }
}

impl BackendTlsFiles {
    /// The section of the config.
    pub(super) fn section(&self) -> &BackendTlsSection {
        &self.section
    }

    /// Reads the files, if a backend needs them, and notes what is wrong.
    pub(super) fn load(&mut self, backend: &BackendSection, notes: &Notes) {
        let targets = [&backend.socket, &backend.http, &backend.tcp];
        let given = &self.section;
        let Some(first) = first_with_tls(backend) else {
            if given.section.given && targets.iter().all(|target| target.sound) {
                let cause = "it has no effect: no backend is spoken to with TLS";
                let cure = "write http = \"https://host:port\", or socket or tcp with tls://, or leave \
                            [backend.tls] out";
                notes.error(&given.section, cause, cure);
            }
            return;
        };
        if !fits_together(given, notes) {
            return;
        }
        let Some(made) = certificates::for_backends(given, first, notes) else {
            return;
        };
        let tls =
            |setting: &Setting<Option<BackendTarget>>, alpn: &[&[u8]]| -> Option<BackendTls> {
                let target = setting.said().filter(|target| target.is_tls)?;
                certificates::of_backend(&made, target, setting, given, alpn, notes)
            };
        self.loaded = options::TlsByBackend {
            socket: tls(&backend.socket, &[]),
            http: tls(&backend.http, &[b"http/1.1"]),
            tcp: tls(&backend.tcp, &[]),
        };
    }
}

/// The first backend whose address asks for TLS.
pub(super) fn first_with_tls(backend: &BackendSection) -> Option<&Setting<Option<BackendTarget>>> {
    let targets = [&backend.socket, &backend.http, &backend.tcp];
    targets.into_iter().find(|target| speaks_tls(target))
}

fn speaks_tls(target: &Setting<Option<BackendTarget>>) -> bool {
    target.said().is_some_and(|target| target.is_tls)
}

/// Whether the options can be used together, as far as they could be read.
fn fits_together(given: &BackendTlsSection, notes: &Notes) -> bool {
    if let (Some(_), Some(true)) = (given.ca.said(), given.accept_any_certificate.meant()) {
        let cause = "it has no effect: accept_any_certificate accepts any authority";
        notes.error(&given.ca, cause, "leave one of the two out");
        return false;
    }
    let (has_cert, has_key) = (!given.cert.is_missing(), !given.key.is_missing());
    if has_cert != has_key {
        let (at, cause, cure) = match has_cert {
            true => (&given.cert, "there is no key to it", "add key"),
            false => (&given.key, "there is no certificate to it", "add cert"),
        };
        notes.missing(at, cause, cure);
        return false;
    }
    if given.accept_any_certificate.meant() == Some(&true) {
        let cause = "the backend's certificate is not checked: any server that answers there gets \
                     the calls, with their passwords and tokens";
        let cure = "leave it out, and give ca";
        notes.warn(&given.accept_any_certificate, cause, cure);
    }
    given.ca.sound && given.cert.sound && given.key.sound && given.server_name.sound
}
