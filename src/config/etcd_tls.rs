//! Certificates for etcd: options that `[quota]` and the lease server's `[etcd]` have alike.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_quota::etcd::Certificates;
use tidegate_runtime::etcd;
use tokio_rustls::rustls::ClientConfig;

use crate::options::kind::pem;
use crate::options::shown::quoted;
use crate::options::{Notes, Setting, options};

options! {
    /// TLS to etcd.
    pub struct EtcdTlsSection {
        /// The authorities that sign the certificates of etcd. Required for https.
        ca: Option<PathBuf> = pem("/etc/tidegate/etcd-ca.pem").optional().restart()
            .example("\"/etc/tidegate/etcd-ca.pem\"");

        /// The client certificate, if etcd asks for one.
        cert: Option<PathBuf> = pem("/etc/tidegate/tls.crt").optional().restart()
            .example("\"/etc/tidegate/tls.crt\"");

        /// Its key.
        key: Option<PathBuf> = pem("/etc/tidegate/tls.key").optional().restart()
            .example("\"/etc/tidegate/tls.key\"");
    }
}

/// What TLS to etcd needs.
pub(super) struct Tls {
    pub(super) certificates: Certificates,
    pub(super) client: Arc<ClientConfig>,
}

impl EtcdTlsSection {
    /// Reads the files. None inside if there is no TLS; none at all where something is wrong,
    /// which has been noted.
    pub(super) fn load(&self, notes: &Notes) -> Option<Option<Tls>> {
        if !(self.ca.sound && self.cert.sound && self.key.sound) {
            return None;
        }
        let Some(authority) = self.ca.value.clone() else {
            let without = [&self.cert, &self.key];
            for setting in without.into_iter().filter(|setting| setting.given) {
                let told = "it has no effect without ca";
                let cure = "leave it out, or add ca";
                notes.error(setting, told, cure);
            }
            return Some(None);
        };
        let identity = match (&self.cert.value, &self.key.value) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (cert, _) => {
                let (at, told, cure) = match cert {
                    Some(_) => (&self.cert, "there is no key to it", "add key"),
                    None => (&self.key, "there is no certificate to it", "add cert"),
                };
                notes.missing(at, told, cure);
                return None;
            }
        };
        let files = [&self.ca, &self.cert, &self.key].map(|setting| read(setting, notes));
        let [Some(ca), Some(cert), Some(key)] = files else {
            return None;
        };
        let own = identity.as_ref().map(|_| (&cert[..], &key[..]));
        match etcd::tls(&ca, own) {
            Ok(client) => Some(Some(Tls {
                certificates: Certificates {
                    authority,
                    identity,
                },
                client,
            })),
            Err(error) => {
                let cure = "give certificates and keys in PEM that belong together";
                notes.error(&self.ca, error.to_string(), cure);
                None
            }
        }
    }
}

/// The content of a file, empty if none is named; none where it can't be read.
#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
fn read(setting: &Setting<Option<PathBuf>>, notes: &Notes) -> Option<Vec<u8>> {
    let Some(path) = &setting.value else {
        return Some(Vec::new());
    };
    let read = std::fs::read(path).map_err(|error| {
        let told = format!("{} can't be read: {error}", quoted(&path.to_string_lossy()));
        notes.error(setting, told, "give a PEM file that can be read");
    });
    read.ok()
}
