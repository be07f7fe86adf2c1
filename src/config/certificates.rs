//! Reads the files that `tls` of a listener names, so that a bad one is a mistake in the
//! config like any other: told by line and key, and never in place of a good one.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::read_pem;
use crate::call::Protocol;
use crate::call::listener::{ClientAuth, TlsSection};
use crate::options::shown::quoted;
use crate::options::{Mistake, Notes};

/// Reads the files that a listener names. None where one is missing or bad, which is noted.
pub(super) fn load(
    tls: &TlsSection,
    protocol: Protocol,
    notes: &Notes,
) -> Option<Arc<ServerConfig>> {
    let (cert, key) = (tls.cert.value.as_ref()?, tls.key.value.as_ref()?);
    let provider = Arc::new(ring::default_provider());
    let chain = notes.taken(&tls.cert, certificates(cert))?;
    let key_der = notes.taken(&tls.key, private_key(key))?;
    let own = CertifiedKey::from_der(chain, key_der, &provider).map_err(|error| {
        let (cert, key) = (shown(cert), shown(key));
        let cause = format!("{key} is not the key of the certificate in {cert}: {error}");
        let cure = "give the key that the certificate was made for, and that certificate first \
                    in its file";
        Mistake::new(cause, cure)
    });
    let own = notes.taken(&tls.key, own)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.2 and 1.3");
    let client_auth = tls.client_auth.value;
    let client_ca = tls.client_ca.value.as_deref();
    let builder = match client_ca.filter(|_| client_auth != ClientAuth::Off) {
        Some(client_ca) => {
            let verifier = verifier(client_ca, client_auth, provider);
            builder.with_client_cert_verifier(notes.taken(&tls.client_ca, verifier)?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    if matches!(protocol, Protocol::Http | Protocol::Auto) {
        // A client that speaks HTTP/2 alone learns it in the handshake.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Some(Arc::new(config))
}

fn verifier(
    client_ca: &Path,
    client_auth: ClientAuth,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Mistake> {
    let wrong = |what: String| {
        let cause = format!("{} {what}", shown(client_ca));
        Mistake::new(cause, "give the certificates of the authorities alone")
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(client_ca)? {
        let added = roots.add(root);
        added.map_err(|error| wrong(format!("holds what can't sign certificates: {error}")))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match client_auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional | ClientAuth::Off => builder.allow_unauthenticated(),
    };
    let built = builder.build();
    built.map_err(|error| wrong(format!("can't be used: {error}")))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Mistake> {
    const CURE: &str = "give a PEM file that holds -----BEGIN CERTIFICATE-----";
    let bytes = read_pem(path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let cause = match found {
        Ok(found) if found.is_empty() => format!("there is no certificate in {}", shown(path)),
        Ok(found) => return Ok(found),
        Err(error) => format!("{} is no PEM: {error}", shown(path)),
    };
    Err(Mistake::new(cause, CURE))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Mistake> {
    let bytes = read_pem(path)?;
    // What is wrong in it is not quoted: it is a secret.
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let is_encrypted = memchr::memmem::find(&bytes, b"ENCRYPTED").is_some();
        let cure = if is_encrypted {
            "a key with a passphrase can't be read: take that off with `openssl pkey`, and let \
             no other user read the file"
        } else {
            "give a PEM file that holds -----BEGIN PRIVATE KEY-----"
        };
        let cause = format!("there is no key in {} that can be read", shown(path));
        Mistake::new(cause, cure)
    })
}

fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}
