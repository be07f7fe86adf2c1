//! Reads the files that `tls` of a listener names, so that a bad one is a mistake in the
//! config like any other: told by line and key, and never in place of a good one.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::call::Protocol;
use crate::call::listener::{ClientAuth, TlsSection};
use crate::options::shown::quoted;
use crate::options::{Mistake, Notes};

/// Largest file that is read.   bytes
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The authorities of clients, and whether each client needs a certificate.
struct Clients<'a> {
    client_ca: &'a Path,
    client_auth: ClientAuth,
}

/// In which file something is wrong.
enum In {
    Cert,
    Key,
    ClientCa,
}

/// Reads the files that a listener names. None where one is missing or bad, which is noted.
pub(super) fn load(
    tls: &TlsSection,
    protocol: Protocol,
    notes: &Notes,
) -> Option<Arc<ServerConfig>> {
    let (cert, key) = (tls.cert.value.as_ref()?, tls.key.value.as_ref()?);
    let client_auth = tls.client_auth.value;
    let client_ca = tls.client_ca.value.as_deref();
    let clients = client_ca.filter(|_| client_auth != ClientAuth::Off);
    let clients = clients.map(|client_ca| Clients {
        client_ca,
        client_auth,
    });
    match server_config(cert, key, clients.as_ref(), protocol) {
        Ok(loaded) => Some(loaded),
        Err((file, mistake)) => {
            let at = match file {
                In::Cert => &tls.cert,
                In::Key => &tls.key,
                In::ClientCa => &tls.client_ca,
            };
            notes.mistake(at, mistake);
            None
        }
    }
}

/// Reads the files and puts them together.
fn server_config(
    cert: &Path,
    key: &Path,
    clients: Option<&Clients<'_>>,
    protocol: Protocol,
) -> Result<Arc<ServerConfig>, (In, Mistake)> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(cert).map_err(|mistake| (In::Cert, mistake))?;
    let key_der = private_key(key).map_err(|mistake| (In::Key, mistake))?;
    let own = CertifiedKey::from_der(chain, key_der, &provider).map_err(|error| {
        let told = format!(
            "{} is not the key of the certificate in {}: {error}",
            shown(key),
            shown(cert)
        );
        let cure = "give the key that the certificate was made for, and that certificate first \
                    in its file";
        (In::Key, Mistake::new(told, cure))
    })?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.2 and 1.3");
    let builder = match clients {
        Some(clients) => {
            let verifier =
                verifier(clients, provider).map_err(|mistake| (In::ClientCa, mistake))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    if matches!(protocol, Protocol::Http | Protocol::Auto) {
        // A client that speaks HTTP/2 alone learns it in the handshake.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Ok(Arc::new(config))
}

fn verifier(
    clients: &Clients<'_>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Mistake> {
    let mut roots = RootCertStore::empty();
    for root in certificates(clients.client_ca)? {
        roots.add(root).map_err(|error| {
            let told = format!(
                "{} holds what can't sign certificates: {error}",
                shown(clients.client_ca)
            );
            Mistake::new(told, "give the certificates of the authorities alone")
        })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match clients.client_auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional | ClientAuth::Off => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|error| {
        let told = format!("{} can't be used: {error}", shown(clients.client_ca));
        Mistake::new(told, "give the certificates of the authorities alone")
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Mistake> {
    const CURE: &str = "give a PEM file that holds -----BEGIN CERTIFICATE-----";
    let bytes = read(path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(Mistake::new(
            format!("there is no certificate in {}", shown(path)),
            CURE,
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(Mistake::new(
            format!("{} is no PEM: {error}", shown(path)),
            CURE,
        )),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Mistake> {
    let bytes = read(path)?;
    // What is wrong in it is not quoted: it is a secret.
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let is_encrypted = memchr::memmem::find(&bytes, b"ENCRYPTED").is_some();
        let cure = if is_encrypted {
            "a key with a passphrase can't be read: take that off with `openssl pkey`, and let \
             no other user read the file"
        } else {
            "give a PEM file that holds -----BEGIN PRIVATE KEY-----"
        };
        Mistake::new(
            format!("there is no key in {} that can be read", shown(path)),
            cure,
        )
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Mistake> {
    let read = || -> io::Result<Vec<u8>> {
        // Whatever else a path may lead to could keep its reader waiting.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other("it is larger than 1 MiB"));
        }
        Ok(bytes)
    };
    read().map_err(|error| {
        let told = format!("cannot read {}: {error}", shown(path));
        Mistake::new(told, "give the path of a PEM file that tidegate may read")
    })
}

fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}
