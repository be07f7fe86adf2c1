//! Reads the files that `tls` of a listener and of backends names, so that a bad one is a mistake in
//! the config like any other: told by line and key, and never in place of a good one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_native_certs::ErrorKind;
use tidegate_runtime::tls::{self as pem, TlsIdentity};
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};

use super::{identity_of, pem_mistake, read_pem};
use crate::call::Protocol;
use crate::call::identity::fnv1a;
use crate::call::listener::{ClientAuth, TlsSection};
use crate::forward::options::{BackendTarget, BackendTlsSection};
use crate::forward::{BackendAddress, BackendTls};
use crate::options::shown::quoted;
use crate::options::{LocatedKey, Mistake, Notes, Setting};

/// The files of a server.
pub struct Files<'a> {
    /// The certificate, with those above it.
    pub cert: &'a Setting<Option<PathBuf>>,
    /// The key of the certificate.
    pub key: &'a Setting<Option<PathBuf>>,
    /// The authorities that sign the certificates of clients.
    pub client_ca: &'a Setting<Option<PathBuf>>,
    /// Whether clients must show a certificate.
    pub client_auth: &'a Setting<ClientAuth>,
    /// The protocol inside TLS, if clients may be told so.
    pub inside: Option<&'static [u8]>,
}

/// Reads the files that a listener names. None where one is missing or bad, which is noted.
pub(super) fn load(
    tls: &TlsSection,
    protocol: Protocol,
    notes: &Notes,
) -> Option<Arc<ServerConfig>> {
    let is_http = matches!(protocol, Protocol::Http | Protocol::Auto);
    let files = Files {
        cert: &tls.cert,
        key: &tls.key,
        client_ca: &tls.client_ca,
        client_auth: &tls.client_auth,
        // A client that speaks HTTP/2 alone learns it in the handshake.
        inside: is_http.then_some(b"http/1.1"),
    };
    read_files(&files, notes)
}

/// Reads the files of any server.
pub fn read_files(tls: &Files<'_>, notes: &Notes) -> Option<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let own = own(tls.cert, tls.key, notes)?.key;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.2 and 1.3");
    let client_auth = tls.client_auth.value;
    let client_ca = tls.client_ca.value.as_deref();
    let builder = match client_ca.filter(|_| client_auth != ClientAuth::Off) {
        Some(client_ca) => {
            let verifier = verifier(client_ca, client_auth, provider);
            builder.with_client_cert_verifier(notes.taken(tls.client_ca, verifier)?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = tls.inside.iter().map(|it| it.to_vec()).collect();
    Some(Arc::new(config))
}

/// A certificate of this sidecar.
struct OwnCertificate {
    key: CertifiedKey,
    /// The contents of the files.
    bytes: Vec<u8>,
}

/// Reads a certificate and its key. None where one is missing or bad, which is noted.
fn own(
    cert: &Setting<Option<PathBuf>>,
    key: &Setting<Option<PathBuf>>,
    notes: &Notes,
) -> Option<OwnCertificate> {
    let (cert_path, key_path) = (cert.value.as_ref()?, key.value.as_ref()?);
    let cert_bytes = notes.taken(cert, read_pem(cert_path));
    let key_bytes = notes.taken(key, read_pem(key_path));
    let (cert_bytes, key_bytes) = cert_bytes.zip(key_bytes)?;
    let identity = TlsIdentity {
        cert: &cert_bytes,
        key: &key_bytes,
    };
    let key = identity_of(&identity, cert, cert_path, key, key_path, notes)?;
    let bytes = [cert_bytes, key_bytes].concat();
    Some(OwnCertificate { key, bytes })
}

/// The certificates that all backends with TLS are checked by and shown.
pub(super) struct ForBackends {
    config: ClientConfig,
    /// A number of all that it was made from.
    made_from: u128,
}

/// Reads the files of `[backend.tls]`. None where one is bad, which is noted. `first` is the first
/// backend that needs them.
pub(super) fn for_backends(
    given: &BackendTlsSection,
    first: &LocatedKey,
    notes: &Notes,
) -> Option<ForBackends> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.2 and 1.3");
    let mut made_from = Vec::new();
    let builder = if given.accept_any_certificate.value {
        made_from.push(1);
        let any = Arc::new(AnyCertificate(Arc::clone(&provider)));
        builder.dangerous().with_custom_certificate_verifier(any)
    } else {
        let roots = match &given.ca.value {
            Some(ca) => {
                let bytes = notes.taken(&given.ca, read_pem(ca))?;
                let store = notes.taken(&given.ca, authorities(ca, &bytes))?;
                made_from.extend(bytes);
                store
            }
            None => {
                let roots = notes.taken(first, of_the_system())?;
                made_from.extend(roots.iter().flat_map(|it| it.to_vec()));
                let mut store = RootCertStore::empty();
                // The system's list may have old ones that cannot be used; the rest can.
                store.add_parsable_certificates(roots);
                store
            }
        };
        builder.with_root_certificates(roots)
    };
    let config = match given.cert.value {
        Some(_) => {
            let own = own(&given.cert, &given.key, notes)?;
            made_from.extend(own.bytes);
            let own = Arc::new(SingleCertAndKey::from(own.key));
            builder.with_client_cert_resolver(own)
        }
        None => builder.with_no_client_auth(),
    };
    Some(ForBackends {
        config,
        made_from: fnv1a(&made_from),
    })
}

/// The certificates of one backend. None if no certificate can be for its name, which is noted.
pub(super) fn of_backend(
    made: &ForBackends,
    target: &BackendTarget,
    at: &LocatedKey,
    given: &BackendTlsSection,
    alpn: &[&[u8]],
    notes: &Notes,
) -> Option<BackendTls> {
    let (at, name) = match (&given.server_name.value, &target.address) {
        (Some(name), _) => (&**given.server_name, ServerName::try_from(name.clone())),
        (None, BackendAddress::Ip(address)) => (at, Ok(ServerName::from(address.ip()))),
        (None, BackendAddress::Name(name, _)) => (at, ServerName::try_from(name.to_string())),
        (None, BackendAddress::Unix(_)) => unreachable!("a socket file has no TLS"),
    };
    let name = name.map_err(|_| {
        let cause = "no certificate can be for this name";
        Mistake::new(
            cause,
            "give a host name or an IP address as backend.tls.server_name",
        )
    });
    let mut config = made.config.clone();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    // Tickets of one backend are none for another.
    config.resumption = Resumption::default();
    Some(BackendTls {
        config: Arc::new(config),
        name: notes.taken(at, name)?,
        made_from: made.made_from,
    })
}

/// The authorities that the system knows.
fn of_the_system() -> Result<Vec<CertificateDer<'static>>, Mistake> {
    let found = rustls_native_certs::load_native_certs();
    if !found.certs.is_empty() {
        return Ok(found.certs);
    }
    let cause = match found.errors.first() {
        // Its own text may quote a file, which SSL_CERT_FILE names.
        Some(error) => {
            let why = match &error.kind {
                ErrorKind::Io { inner, path } => format!("{}: {inner}", shown(path)),
                ErrorKind::Pem(_) => "it is no PEM".to_owned(),
                _ => error.context.to_owned(),
            };
            format!("this system's list of authorities can't be read: {why}")
        }
        None => "this system has no list of authorities".to_owned(),
    };
    let cure = "give the authority of the backend as ca in [backend.tls], or install the package \
                ca-certificates";
    Err(Mistake::new(cause, cure))
}

/// Checks nothing but that the peer has the key of its certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The authorities that a file names.
fn authorities(path: &Path, bytes: &[u8]) -> Result<RootCertStore, Mistake> {
    pem::authorities(bytes).map_err(|error| pem_mistake(path, &error))
}

fn verifier(
    client_ca: &Path,
    client_auth: ClientAuth,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Mistake> {
    let roots = authorities(client_ca, &read_pem(client_ca)?)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match client_auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional | ClientAuth::Off => builder.allow_unauthenticated(),
    };
    let built = builder.build();
    built.map_err(|error| {
        let cause = format!("{} can't be used: {error}", shown(client_ca));
        Mistake::new(cause, "give the certificates of the authorities alone")
    })
}

fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}
