//! Certificates made for a test, in files of their own.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SignatureScheme};

/// The name that the server's certificate is for.
const HOST: &str = "tidegate.example";

/// An authority of backends, and what it signed, in files of their own.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let this = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            issuer: authority(),
        };
        fs::write(this.ca(), this.issuer.pem()).expect("it can be written to");
        this
    }

    /// The file of its own certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// Signs a certificate for these names.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    /// Issues a certificate that is changed before it is signed.
    pub(crate) fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).expect("names");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        self.written(&certificate.pem(), &key.serialize_pem())
    }

    /// A certificate that its own key signed, and that may sign others.
    pub(crate) fn self_signed(&self, name: &str) -> Issued {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("it signs");
        self.written(&certificate.pem(), &key.serialize_pem())
    }

    fn written(&self, cert: &str, key: &str) -> Issued {
        let number = fs::read_dir(self.dir.path()).expect("it is there").count();
        let path = |ending: &str| self.dir.path().join(format!("{number}.{ending}"));
        let issued = Issued {
            cert: path("crt"),
            key: path("key"),
        };
        fs::write(&issued.cert, cert).expect("it can be written to");
        fs::write(&issued.key, key).expect("it can be written to");
        issued
    }
}

/// An authority, a server's certificate with its key, and what clients show.
pub(crate) struct Files {
    pub(crate) dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// The name in a client's certificate.
#[derive(Clone, Copy)]
pub(crate) enum Shows<'a> {
    Nothing,
    /// A certificate with this common name.
    Name(&'a str),
    /// A certificate that no known authority has signed.
    Forged(&'a str),
    /// A certificate of X.509 version 1, with this common name.
    Version1(&'a str),
}

/// Always presents one certificate. The builder of the client would check it first.
#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesClientCert for Always {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "the authority");
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("a certificate")
}

impl Files {
    /// Writes tls.crt, tls.key and clients.crt.
    pub(crate) fn new() -> Self {
        let files = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            authority: authority(),
        };
        files.write("clients.crt", &files.authority.pem());
        files.renew("first");
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("it can be written to");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("it is text")
    }

    /// Writes another certificate of the server, by whose name clients know it.
    pub(crate) fn renew(&self, name: &str) {
        let mut params = CertificateParams::new([HOST.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("it signs");
        self.write("tls.crt", &certificate.pem());
        self.write("tls.key", &key.serialize_pem());
    }

    /// The lines of a listener's TLS, with more of them.
    pub(crate) fn section(&self, more: &str) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "[listen.tls]\ncert = \"{}\"\nkey = \"{}\"\n{more}\n",
            path("tls.crt"),
            path("tls.key")
        )
    }

    /// The config of a listener that asks clients for certificates.
    pub(crate) fn asking(&self, client_auth: &str, more: &str) -> String {
        let client_ca = self.path("clients.crt");
        self.section(&format!(
            "client_ca = \"{}\"\nclient_auth = \"{client_auth}\"\n{more}",
            client_ca.display()
        ))
    }

    /// Shakes hands as a client; the name in the server's certificate is checked.
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        shows: Shows<'_>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).expect("it signs");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("it knows them")
            .with_root_certificates(roots);
        let forger;
        let config = match shows {
            Shows::Nothing => builder.with_no_client_auth(),
            Shows::Name(name) | Shows::Forged(name) | Shows::Version1(name) => {
                let issuer = match shows {
                    Shows::Forged(_) => {
                        forger = authority();
                        &forger
                    }
                    _ => &self.authority,
                };
                let mut params = CertificateParams::default();
                params.distinguished_name.push(DnType::CommonName, name);
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                let key = KeyPair::generate().expect("a key");
                let certificate = params.signed_by(&key, issuer).expect("it signs");
                let key = PrivatePkcs8KeyDer::from(key.serialize_der());
                if matches!(shows, Shows::Version1(_)) {
                    let mut bytes = certificate.der().to_vec();
                    let version_3 = [0xa0, 3, 2, 1, 2];
                    let at = bytes.windows(5).position(|it| it == version_3);
                    bytes[at.expect("it says its version") + 4] = 0;
                    let key = ring::sign::any_supported_type(&PrivateKeyDer::from(key));
                    let key = CertifiedKey::new(vec![bytes.into()], key.expect("a key"));
                    let config = builder.with_client_cert_resolver(Arc::new(Always(Arc::new(key))));
                    return connect_with(config, stream).await;
                }
                builder
                    .with_client_auth_cert(
                        vec![certificate.der().clone()],
                        PrivateKeyDer::from(key),
                    )
                    .expect("the key is the certificate's")
            }
        };
        connect_with(config, stream).await
    }
}

async fn connect_with(
    config: ClientConfig,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(HOST).expect("a name");
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// The name in the server's certificate.
pub(crate) fn shown(stream: &TlsStream<TcpStream>) -> String {
    let (_, session) = stream.get_ref();
    let certificates = session.peer_certificates().expect("a server shows one");
    let name = tidegate::protocol::certificate::common_name(&certificates[0]);
    name.expect("it has one").into()
}
