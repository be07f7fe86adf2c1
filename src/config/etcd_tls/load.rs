//! Reads the certificates for etcd.

use tidegate_runtime::etcd::Tls;

use super::EtcdTlsSection;
use crate::config::read_pem;
use crate::options::Notes;

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
            let (at, cause, cure) = match has_cert {
                true => (&self.cert, "there is no key to it", "add key"),
                false => (&self.key, "there is no certificate to it", "add cert"),
            };
            notes.missing(at, cause, cure);
            return None;
        }
        let files = [&self.ca, &self.cert, &self.key].map(|setting| match &setting.value {
            Some(path) => notes.taken(setting, read_pem(path)),
            None => Some(Vec::new()),
        });
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
