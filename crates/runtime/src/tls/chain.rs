//! The chain of certificates in a file: the one that is shown first, then the one that signed it, and so on.
//!
//! A peer gets the whole chain, and some follow it in this order alone. What does not belong to it, or is in a wrong
//! place, is no error here, since other peers can do without.

use std::fmt;

use spki::SubjectPublicKeyInfoRef;
use spki::der::asn1::{AnyRef, BitStringRef};
use spki::der::{Decode as _, Reader as _, Tag, TagNumber};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::key_kind::{KeyKind, fields_of};

/// The field of a certificate that has its version, if that is not the first.
const VERSION: Tag = Tag::ContextSpecific {
    constructed: true,
    number: TagNumber(0),
};

/// The fields of a certificate (RFC 5280, 4.1) that tell who signed it, as they stand there: a signature is of these
/// bytes.
pub(super) struct CertificateFields<'a> {
    /// The signed part.
    signed: &'a [u8],
    /// The algorithm of the signature, without its outer tag.
    algorithm: &'a [u8],
    signature: &'a [u8],
    issuer: &'a [u8],
    subject: &'a [u8],
    /// The public key with its algorithm, whole.
    pub(super) public_key: &'a [u8],
    /// The algorithm of that key, without its outer tag, and the key.
    key_parts: (&'a [u8], &'a [u8]),
}

impl<'a> CertificateFields<'a> {
    /// Takes a certificate apart. None if it is damaged.
    pub(super) fn of(der: &'a [u8]) -> Option<Self> {
        let mut certificate = fields_of(der)?;
        let signed = certificate.tlv_bytes().ok()?;
        let algorithm = sequence(certificate.decode().ok()?)?;
        let signature: BitStringRef<'_> = certificate.decode().ok()?;
        let mut inside = fields_of(signed)?;
        let mut skip = || {
            inside
                .decode::<AnyRef<'_>>()
                .ok()
                .map(|it| it.header().tag())
        };
        // The version, the serial number and, a second time, the algorithm.
        if skip()? == VERSION {
            skip()?;
        }
        skip()?;
        let issuer = inside.tlv_bytes().ok()?;
        // The validity.
        inside.tlv_bytes().ok()?;
        let subject = inside.tlv_bytes().ok()?;
        let public_key = inside.tlv_bytes().ok()?;
        let mut key = fields_of(public_key)?;
        let key_algorithm = sequence(key.decode().ok()?)?;
        let key: BitStringRef<'_> = key.decode().ok()?;
        Some(Self {
            signed,
            algorithm,
            signature: signature.as_bytes()?,
            issuer,
            subject,
            public_key,
            key_parts: (key_algorithm, key.as_bytes()?),
        })
    }

    /// The kind of its key.
    pub(super) fn key_kind(&self) -> Option<KeyKind> {
        let key = SubjectPublicKeyInfoRef::from_der(self.public_key).ok()?;
        KeyKind::of_public(&key)
    }

    /// Whether its key signed another certificate. Where that cannot be checked, the names decide.
    fn has_signed(&self, other: &CertificateFields<'_>) -> bool {
        if other.issuer != self.subject {
            return false;
        }
        let (algorithm, key) = self.key_parts;
        let known = ring::default_provider().signature_verification_algorithms;
        let mut fitting = known.all.iter().filter(|it| {
            it.signature_alg_id().as_ref() == other.algorithm
                && it.public_key_alg_id().as_ref() == algorithm
        });
        match fitting.next() {
            Some(check) => check
                .verify_signature(key, other.signed, other.signature)
                .is_ok(),
            None => true,
        }
    }
}

/// The content of a value that is a sequence.
fn sequence(value: AnyRef<'_>) -> Option<&[u8]> {
    (value.header().tag() == Tag::Sequence).then(|| value.value())
}

/// A certificate in a file that is not where the chain needs it, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainDoubt {
    /// A certificate occurs twice.
    Twice(usize),
    /// A certificate signed one that comes later.
    TooEarly(usize),
    /// A certificate signed none of the others.
    Foreign(usize),
}

impl fmt::Display for ChainDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice(number) => write!(f, "certificate {number} is in the file twice"),
            Self::TooEarly(number) => write!(
                f,
                "certificate {number} stands before the one that it signed, so the order of the \
                 chain is wrong"
            ),
            Self::Foreign(number) => write!(
                f,
                "certificate {number} signed none of the others, so it is no part of the chain"
            ),
        }
    }
}

impl ChainDoubt {
    /// The cure for the doubt.
    #[must_use]
    pub fn cure(self) -> &'static str {
        match self {
            Self::Twice(_) => "leave one of the two out",
            Self::TooEarly(_) | Self::Foreign(_) => {
                "begin with the certificate of the key, then the one that signed it, and so on, \
                 and leave others out"
            }
        }
    }
}

/// Every certificate but the first that did not sign one before it.
pub(super) fn doubts(chain: &[CertificateDer<'_>]) -> Vec<ChainDoubt> {
    let fields: Vec<_> = chain
        .iter()
        .filter_map(|it| CertificateFields::of(it))
        .collect();
    let mut doubts = Vec::new();
    for (at, one) in fields.iter().enumerate().skip(1) {
        let (before, after) = (&fields[..at], &fields[at + 1..]);
        if before.iter().any(|it| it.signed == one.signed) {
            doubts.push(ChainDoubt::Twice(at + 1));
        } else if !before.iter().any(|it| one.has_signed(it)) {
            let is_too_early = after.iter().any(|it| one.has_signed(it));
            doubts.push(match is_too_early {
                true => ChainDoubt::TooEarly(at + 1),
                false => ChainDoubt::Foreign(at + 1),
            });
        }
    }
    doubts
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    fn params(name: &str, is_ca: bool) -> CertificateParams {
        let mut params = CertificateParams::new([format!("{name}.example")]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params
    }

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn root(name: &str) -> Issuer {
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::self_signed(params(name, true), key).expect("it signs itself")
    }

    fn intermediate(name: &str, above: &Issuer) -> Issuer {
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::signed_by(params(name, true), key, above).expect("it is signed")
    }

    fn leaf(above: &Issuer) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        let made = params("leaf", false).signed_by(&key, above);
        made.expect("it is signed").der().clone()
    }

    #[test]
    fn a_chain_in_order_is_good_and_anything_else_is_named() {
        let root = root("root");
        let middle = intermediate("middle", &root);
        let leaf = leaf(&middle);
        let (middle_der, root_der) = (middle.der().clone(), root.der().clone());
        let check = |chain: &[&CertificateDer<'_>], expected: &[ChainDoubt]| {
            let chain: Vec<_> = chain.iter().map(|it| (*it).clone()).collect();
            assert_eq!(doubts(&chain), expected);
        };
        check(&[&leaf], &[]);
        check(&[&leaf, &middle_der], &[]);
        check(&[&leaf, &middle_der, &root_der], &[]);
        check(&[&leaf, &root_der, &middle_der], &[ChainDoubt::TooEarly(2)]);
        check(&[&leaf, &leaf, &middle_der], &[ChainDoubt::Twice(2)]);
        check(&[&leaf, &root_der], &[ChainDoubt::Foreign(2)]);
    }

    #[test]
    fn an_authority_that_was_renewed_under_its_name_with_another_key_signed_nothing() {
        let root = root("root");
        let (first, second) = (intermediate("middle", &root), intermediate("middle", &root));
        let leaf = leaf(&first);
        let chain = [leaf, second.der().clone()];
        assert_eq!(doubts(&chain), [ChainDoubt::Foreign(2)]);
    }

    #[test]
    fn whatever_is_cut_or_bent_is_read_without_a_panic() {
        let root = root("root");
        let der = root.der().to_vec();
        assert_eq!(
            CertificateFields::of(&der).and_then(|it| it.key_kind()),
            Some(KeyKind::Ecdsa("curve P-256"))
        );
        for at in 0..der.len() {
            assert!(CertificateFields::of(&der[..at]).is_none());
            for value in [0, 0x7f, 0x80, 0x81, 0x84, 0xff] {
                let mut bent = der.clone();
                bent[at] = value;
                let bent = [CertificateDer::from(bent), root.der().clone()];
                let _ = doubts(&bent);
                let _ = CertificateFields::of(&bent[0]).map(|it| it.key_kind());
            }
        }
    }
}
