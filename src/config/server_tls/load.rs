//! Reads the certificates for servers.

use tidegate_runtime::tls::{self, TlsClient, TlsIdentity};
use tokio_rustls::rustls::pki_types::ServerName;

use super::ServerTlsSection;
use crate::config::{identity_of, pem_mistake as mistake, read_pem};
use crate::options::shown::quoted;
use crate::options::{Mistake, Notes, OptionMark};

/// The protocols inside TLS, as a server may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// HTTP/2, as gRPC needs it.
    Http2,
    /// A protocol without a name of its own.
    Other,
}

impl ServerTlsSection {
    /// Reads the files. None inside if there is no TLS; none at all where something is wrong,
    /// which has been noted.
    pub fn load(&self, inside: Inside, notes: &Notes) -> Option<Option<TlsClient>> {
        let marks: [(_, &OptionMark); 4] = self.marks().try_into().expect("four options");
        if marks.iter().any(|(_, mark)| !mark.sound) {
            return None;
        }
        let Some(ca) = &self.ca.value else {
            for (_, mark) in marks.into_iter().filter(|(_, mark)| mark.given) {
                let cure = "leave it out, or add ca";
                notes.error(mark, "it has no effect without ca", cure);
            }
            return Some(None);
        };
        let (cert, key) = (&self.cert, &self.key);
        if cert.value.is_some() != key.value.is_some() {
            let (at, cause, cure) = match cert.value.is_some() {
                true => (cert, "there is no key to it", "add key"),
                false => (key, "there is no certificate to it", "add cert"),
            };
            notes.missing(at, cause, cure);
            return None;
        }
        let authorities = read_pem(ca)
            .and_then(|bytes| tls::authorities(&bytes).map_err(|error| mistake(ca, &error)));
        let authorities = notes.taken(&self.ca, authorities)?;
        let shows = match cert.value.as_ref().zip(key.value.as_ref()) {
            None => None,
            Some((cert_path, key_path)) => {
                let bytes = notes.taken(cert, read_pem(cert_path))?;
                Some((
                    (cert_path, bytes),
                    (key_path, notes.taken(key, read_pem(key_path))?),
                ))
            }
        };
        let own = match &shows {
            None => None,
            Some(((cert_path, cert_bytes), (key_path, key_bytes))) => {
                let identity = TlsIdentity {
                    cert: cert_bytes,
                    key: key_bytes,
                };
                Some(identity_of(
                    &identity, cert, cert_path, key, key_path, notes,
                )?)
            }
        };
        let mut config = tls::client_config(authorities, own);
        if inside == Inside::Http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        let name = self.server_name.value.as_ref().map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| {
                let cause = format!("{} is no name that a certificate can hold", quoted(name));
                Mistake::new(cause, "give a host name, such as \"store.example\"")
            })
        });
        let name = match name {
            None => None,
            Some(name) => Some(notes.taken(&self.server_name, name)?),
        };
        Some(Some(TlsClient::new(config, name)))
    }
}
