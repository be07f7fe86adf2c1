//! Reads certificates and keys.
//!
//! No error quotes a file: one that holds a key may be named in place of another.

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{PemObject, SectionKind};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, RootCertStore};

use super::TlsIdentity;
use super::chain::{CertificateFields, ChainDoubt, doubts};
use super::key_kind::KeyKind;
use super::sections::{Flaw, PemSection, sections};

/// A file that TLS cannot use. Each completes a sentence that begins with the name of the file.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// There is PEM, or anything else, without a certificate.
    #[error("holds no certificate")]
    NoCertificate,
    /// The marks or the content of a section are not PEM, so something in it would be lost.
    #[error("{0}")]
    Flawed(Flaw),
    /// Certificates in another wrapping.
    #[error("holds a section in line {line} with the mark {label}, which is not taken")]
    OtherWrapping {
        /// The label of the mark.
        label: &'static str,
        /// The line of the mark.
        line: usize,
    },
    /// A certificate that is damaged.
    #[error("holds a certificate in line {line} that is damaged")]
    Damaged {
        /// The line of its mark.
        line: usize,
    },
    /// The first certificate is good for others and not for TLS here.
    #[error("holds a certificate of X.509 version 1 first, which is not taken")]
    Version1,
    /// The section cannot be used for TLS, for a reason that the library gives.
    #[error("holds a first certificate that TLS cannot use: {0}")]
    NotForTls(rustls::Error),
    /// The section is no key.
    #[error("holds no key that can be read")]
    NoKey,
    /// The key has a passphrase.
    #[error("holds a key with a passphrase")]
    Encrypted,
    /// The key is in the format of OpenSSH.
    #[error("holds a key in the format of OpenSSH")]
    OpenSsh,
    /// TLS here has no such keys.
    #[error("holds a key of a kind that is not supported: {0}")]
    UnsupportedKey(KeyKind),
    /// The kind is supported, and this key is not good.
    #[error("holds a key ({0}) that cannot be used: it is damaged, or lacks its public half")]
    UnusableKey(KeyKind),
    /// A certificate that no authority has.
    #[error("holds a certificate that signs no others: {0}")]
    NotAuthority(rustls::Error),
    /// The signatures of these authorities cannot be checked.
    #[error("holds only authorities with keys of a kind that is not supported: {0}")]
    UnsupportedAuthority(KeyKind),
    /// Both are good, and do not belong together.
    #[error(
        "is not the key of the certificate: the key is {key}, the certificate is for {certificate}"
    )]
    NotItsKey {
        /// The kind of the key.
        key: KeyKind,
        /// The kind of the certificate's key.
        certificate: String,
    },
    /// The certificate of the key is not the first of its file.
    #[error("is the key of certificate {0} in the file, not of the first")]
    NotFirst(usize),
}

impl PemError {
    /// The cure for the error.
    #[must_use]
    pub fn cure(&self) -> &'static str {
        match self {
            Self::NoCertificate => "give a PEM file that holds -----BEGIN CERTIFICATE-----",
            Self::Flawed(flaw) => flaw.cure(),
            Self::OtherWrapping { label, .. } => match *label {
                "PKCS7" | "CMS" => "unpack it with `openssl pkcs7 -print_certs`",
                _ => "write it with `openssl x509`, as -----BEGIN CERTIFICATE-----",
            },
            Self::Damaged { .. } => "copy the certificate anew; `openssl x509 -text` shows it",
            Self::Version1 => "issue one of version 3, such as with `openssl x509 -req -extfile`",
            Self::NotForTls(_) => "issue another one; `openssl x509 -text` shows it",
            Self::NoKey => "give a PEM file that holds -----BEGIN PRIVATE KEY-----",
            Self::Encrypted => {
                "a key with a passphrase can't be read: take that off with `openssl pkey`, and let \
                 no other user read the file"
            }
            Self::OpenSsh => "make a key with `openssl genpkey`, and a certificate for it",
            Self::UnsupportedKey(_) => {
                "make a key of ECDSA on curve P-256 or P-384, RSA with 2048 to 4096 bits, or \
                 Ed25519, and a certificate for it"
            }
            Self::UnusableKey(_) => "write it anew with `openssl pkey -in KEY -out NEW`",
            Self::NotAuthority(_) => "give the certificates of the authorities alone",
            Self::UnsupportedAuthority(_) => {
                "let an authority sign whose key is ECDSA on curve P-256 or P-384, RSA with 2048 \
                 to 8192 bits, or Ed25519"
            }
            Self::NotItsKey { .. } => "give the key that the certificate was made for",
            Self::NotFirst(_) => {
                "put the certificate of the key first in its file, then the one that signed it, \
                 and so on"
            }
        }
    }

    /// Whether the file of the key is meant.
    #[must_use]
    pub fn is_of_key(&self) -> bool {
        matches!(
            self,
            Self::NoKey
                | Self::Encrypted
                | Self::OpenSsh
                | Self::UnsupportedKey(_)
                | Self::UnusableKey(_)
                | Self::NotItsKey { .. }
                | Self::NotFirst(_)
        )
    }
}

/// Every certificate in a file, at least one. None is passed over.
///
/// # Errors
///
/// If one of them cannot be read, or there is none.
pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let mut found = Vec::new();
    for section in sections(bytes).map_err(PemError::Flawed)? {
        let line = section.line;
        let other = match section.label {
            b"CERTIFICATE" => {
                let der = content(&section)?;
                if CertificateFields::of(&der).is_none() {
                    return Err(PemError::Damaged { line });
                }
                found.push(CertificateDer::from(der));
                continue;
            }
            b"TRUSTED CERTIFICATE" => "TRUSTED CERTIFICATE",
            b"X509 CERTIFICATE" => "X509 CERTIFICATE",
            b"PKCS7" => "PKCS7",
            b"CMS" => "CMS",
            // Keys, parameters and requests beside certificates are common, and none of them.
            _ => continue,
        };
        return Err(PemError::OtherWrapping { label: other, line });
    }
    match found.is_empty() {
        true => Err(PemError::NoCertificate),
        false => Ok(found),
    }
}

/// The content of a section.
fn content(section: &PemSection<'_>) -> Result<Vec<u8>, PemError> {
    let read: Result<(SectionKind, Vec<u8>), _> = PemObject::from_pem_slice(section.bytes);
    // The error of the library may quote the file.
    read.map(|(_, der)| der)
        .map_err(|_| PemError::Flawed(Flaw::NoBase64(section.line)))
}

/// The first key in a file.
///
/// # Errors
///
/// If there is none without a passphrase.
pub fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    let all = sections(bytes).map_err(|flaw| {
        let is_key = bytes.windows(12).any(|it| it == b"PRIVATE KEY-");
        // A file of another kind is not a flawed key.
        match is_key || !matches!(flaw, Flaw::NoBegin(_)) {
            true => PemError::Flawed(flaw),
            false => PemError::NoKey,
        }
    })?;
    let mut other = PemError::NoKey;
    for section in &all {
        let is_encrypted = section.bytes.windows(9).any(|it| it == b"ENCRYPTED");
        other = match section.label {
            b"PRIVATE KEY" | b"RSA PRIVATE KEY" | b"EC PRIVATE KEY" if !is_encrypted => {
                let der = content(section)?;
                return Ok(match section.label {
                    b"PRIVATE KEY" => PrivatePkcs8KeyDer::from(der).into(),
                    b"RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der).into(),
                    _ => PrivateSec1KeyDer::from(der).into(),
                });
            }
            b"OPENSSH PRIVATE KEY" => PemError::OpenSsh,
            b"DSA PRIVATE KEY" if !is_encrypted => PemError::UnsupportedKey(KeyKind::Dsa),
            label if label.ends_with(b"PRIVATE KEY") && is_encrypted => PemError::Encrypted,
            _ => other,
        };
    }
    Err(other)
}

/// The authorities in a file, at least one.
///
/// # Errors
///
/// If it holds none, or anything else than authorities.
pub fn authorities(bytes: &[u8]) -> Result<RootCertStore, PemError> {
    let certificates = certificates(bytes)?;
    let kinds = certificates.iter();
    let kinds: Vec<_> = kinds
        .filter_map(|it| CertificateFields::of(it)?.key_kind())
        .collect();
    if let Some(first) = kinds
        .first()
        .filter(|_| !kinds.iter().any(|it| it.can_be_checked()))
    {
        return Err(PemError::UnsupportedAuthority(*first));
    }
    let mut roots = RootCertStore::empty();
    for root in certificates {
        roots.add(root).map_err(PemError::NotAuthority)?;
    }
    Ok(roots)
}

impl TlsIdentity<'_> {
    /// Reads the certificates and the key.
    ///
    /// # Errors
    ///
    /// If one of them cannot be used, or they do not belong together.
    pub fn certified(&self) -> Result<CertifiedKey, PemError> {
        let chain = certificates(self.cert)?;
        let key = private_key(self.key)?;
        let kind = match &key {
            PrivateKeyDer::Pkcs8(key) => KeyKind::of_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => KeyKind::of_pkcs1(key.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(key) => KeyKind::of_sec1(key.secret_sec1_der()),
            _ => None,
        };
        let kind = kind.ok_or(PemError::NoKey)?;
        if !kind.can_sign() {
            return Err(PemError::UnsupportedKey(kind));
        }
        let signing = ring::sign::any_supported_type(&key);
        let signing = signing.map_err(|_| PemError::UnusableKey(kind))?;
        let public = signing.public_key();
        let public = public.as_ref().map(AsRef::as_ref);
        let is_of = |der: &CertificateDer<'_>| {
            let own = CertificateFields::of(der).map(|fields| fields.public_key);
            public.is_some() && own == public
        };
        match chain.iter().position(is_of) {
            Some(0) => {}
            Some(at) => return Err(PemError::NotFirst(at + 1)),
            None => {
                let certificate = CertificateFields::of(&chain[0]).and_then(|it| it.key_kind());
                let certificate = match certificate {
                    Some(other) if other != kind => other.to_string(),
                    _ => "another one of the same kind".to_owned(),
                };
                let key = kind;
                return Err(PemError::NotItsKey { key, certificate });
            }
        }
        if let Err(error) = ParsedCertificate::try_from(&chain[0]) {
            return Err(match error.to_string().contains("UnsupportedCertVersion") {
                true => PemError::Version1,
                false => PemError::NotForTls(error),
            });
        }
        Ok(CertifiedKey::new(chain, signing))
    }

    /// Doubts about the chain of certificates: some peers may not be able to follow it.
    #[must_use]
    pub fn doubts(&self) -> Vec<ChainDoubt> {
        certificates(self.cert).map_or(Vec::new(), |chain| doubts(&chain))
    }
}

#[cfg(test)]
mod tests;
