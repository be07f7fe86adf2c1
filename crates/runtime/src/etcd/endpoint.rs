//! The address of a member of etcd.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// One member: `http://host:port` or `https://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `host:port`, for the connect.
    pub(super) authority: Box<str>,
    pub(super) host: Box<str>,
    pub(super) https: bool,
}

/// An invalid endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an etcd endpoint is http://HOST:PORT or https://HOST:PORT, not {given:?}")]
pub struct EndpointError {
    /// The text as given.
    pub given: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError {
            given: text.to_owned(),
        };
        let uri: http::Uri = text.parse().map_err(|_| wrong())?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        // Without user and path: both would get lost silently.
        let plain = uri.path_and_query().is_none_or(|path| path == "/");
        if authority.port_u16().is_none() || authority.as_str().contains('@') || !plain {
            return Err(wrong());
        }
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Ok(Self {
            authority: authority.as_str().into(),
            host: bare.unwrap_or(host).into(),
            https,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl Endpoint {
    /// The name that its certificate must carry.
    pub(super) fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.host.to_string()).ok()
    }
}

/// Certificates that TLS cannot use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No PEM, or none of the expected kind.
    #[error("the {0} cannot be read as PEM")]
    Pem(&'static str, #[source] rustls::pki_types::pem::Error),
    /// Well formed, but not usable.
    #[error("TLS cannot be spoken with these certificates")]
    Unusable(#[from] rustls::Error),
}

/// The TLS settings of `https` endpoints. All are equal: certificates are not compared.
#[derive(Clone)]
pub struct Tls(pub(super) Arc<ClientConfig>);

impl PartialEq for Tls {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// The authority to trust, and our certificate and key if etcd requires them. All in PEM.
    ///
    /// # Errors
    ///
    /// If a text is not PEM, if it has no authority, or if certificate and key do not match.
    pub fn new(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut any = false;
        for authority in CertificateDer::pem_slice_iter(authorities) {
            roots.add(authority.map_err(|cause| TlsError::Pem("authority", cause))?)?;
            any = true;
        }
        if !any {
            let cause = rustls::pki_types::pem::Error::NoItemsFound;
            return Err(TlsError::Pem("authority", cause));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain)
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|cause| TlsError::Pem("certificate", cause))?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|cause| TlsError::Pem("key", cause))?;
                config.with_client_auth_cert(chain, key)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}
