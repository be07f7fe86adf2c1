//! Reads the certificates for etcd.

use std::path::PathBuf;

use tidegate_runtime::etcd::Tls;

use super::EtcdTlsSection;
use crate::options::shown::quoted;
use crate::options::{Notes, Setting};

impl EtcdTlsSection {
    /// Reads the files. None inside if there is no TLS; none at all where something is wrong,
    /// which has been noted.
    pub(in crate::config) fn load(&self, notes: &Notes) -> Option<Option<Tls>> {
        if !(self.ca.sound && self.cert.sound && self.key.sound) {
            return None;
        }
        if self.ca.value.is_none() {
            let without = [&self.cert, &self.key];
            for setting in without.into_iter().filter(|setting| setting.given) {
                notes.error(
                    setting,
                    "it has no effect without ca",
                    "leave it out, or add ca",
                );
            }
            return Some(None);
        }
        let has_cert = self.cert.value.is_some();
        if has_cert != self.key.value.is_some() {
            let (at, told, cure) = match has_cert {
                true => (&self.cert, "there is no key to it", "add key"),
                false => (&self.key, "there is no certificate to it", "add cert"),
            };
            notes.missing(at, told, cure);
            return None;
        }
        let files = [&self.ca, &self.cert, &self.key].map(|setting| read(setting, notes));
        let [Some(ca), Some(cert), Some(key)] = files else {
            return None;
        };
        let own = has_cert.then_some((&cert[..], &key[..]));
        match Tls::new(&ca, own) {
            Ok(client) => Some(Some(client)),
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
