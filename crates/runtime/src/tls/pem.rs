//! Reads certificates and keys.

use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, RootCertStore};

/// A file that TLS cannot use. Each completes a sentence that begins with the name of the file.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// There is PEM, or anything else, without a certificate.
    #[error("holds no certificate")]
    NoCertificate,
    /// It cannot be read as PEM.
    #[error("is no PEM: {0}")]
    NoPem(pem::Error),
    /// What is wrong is not quoted: it is a secret.
    #[error("holds no key that can be read")]
    NoKey,
    /// The key has a passphrase.
    #[error("holds a key with a passphrase")]
    Encrypted,
    /// A certificate that no authority has.
    #[error("holds a certificate that signs no others: {0}")]
    NotAuthority(rustls::Error),
    /// Both are good, and do not belong together.
    #[error("is not the key of the certificate: {0}")]
    NotItsKey(rustls::Error),
}

impl PemError {
    /// What to do about it.
    #[must_use]
    pub fn cure(&self) -> &'static str {
        match self {
            Self::NoCertificate | Self::NoPem(_) => {
                "give a PEM file that holds -----BEGIN CERTIFICATE-----"
            }
            Self::NoKey => "give a PEM file that holds -----BEGIN PRIVATE KEY-----",
            Self::Encrypted => {
                "a key with a passphrase can't be read: take that off with `openssl pkey`, and let \
                 no other user read the file"
            }
            Self::NotAuthority(_) => "give the certificates of the authorities alone",
            Self::NotItsKey(_) => {
                "give the key that the certificate was made for, and that certificate first in its \
                 file"
            }
        }
    }

    /// Whether the file of the key is meant.
    #[must_use]
    pub fn is_of_key(&self) -> bool {
        matches!(self, Self::NoKey | Self::Encrypted | Self::NotItsKey(_))
    }
}

/// Every certificate in a file, at least one.
///
/// # Errors
///
/// If it is no PEM, or holds none.
pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(PemError::NoCertificate),
        Ok(found) => Ok(found),
        Err(error) => Err(PemError::NoPem(error)),
    }
}

/// The key in a file.
///
/// # Errors
///
/// If there is none without a passphrase.
pub fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|_| {
        let is_encrypted = bytes.windows(9).any(|it| it == b"ENCRYPTED");
        match is_encrypted {
            true => PemError::Encrypted,
            false => PemError::NoKey,
        }
    })
}

/// The authorities in a file, at least one.
///
/// # Errors
///
/// If it holds none, or anything else than authorities.
pub fn authorities(bytes: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(bytes)? {
        roots.add(root).map_err(PemError::NotAuthority)?;
    }
    Ok(roots)
}
