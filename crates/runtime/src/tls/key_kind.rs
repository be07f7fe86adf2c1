//! The kind of a key, so that a kind that cannot be used is named as such.

use std::fmt;

use spki::der::asn1::{AnyRef, ObjectIdentifier, OctetStringRef, UintRef};
use spki::der::{Decode as _, Reader as _, SliceReader, Tag, TagNumber};
use spki::{AlgorithmIdentifierRef, SubjectPublicKeyInfoRef};

/// The fewest and the most bits of an RSA key that can sign. Signatures of others are checked up
/// to 8192 bits, which is the limit for authorities.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;
const RSA_BITS_OF_OTHERS: usize = 8192;

/// The algorithm of a key, with what decides whether it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// RSA, with the bits of its modulus.
    Rsa(usize),
    /// RSA that is bound to PSS.
    RsaPss,
    /// DSA.
    Dsa,
    /// ECDSA, with the name of the curve.
    Ecdsa(&'static str),
    /// Ed25519.
    Ed25519,
    /// Ed448.
    Ed448,
    /// Any other one.
    Other,
}

impl KeyKind {
    /// The kind of a private key in PKCS #8.
    pub(super) fn of_pkcs8(der: &[u8]) -> Option<Self> {
        let mut key = fields_of(der)?;
        let _version: UintRef<'_> = key.decode().ok()?;
        let algorithm: AlgorithmIdentifierRef<'_> = key.decode().ok()?;
        let inside: &OctetStringRef = key.decode().ok()?;
        match Self::of_algorithm(&algorithm) {
            Self::Rsa(_) => Self::of_pkcs1(inside.as_bytes()),
            kind => Some(kind),
        }
    }

    /// The kind of a private key in PKCS #1, which is always RSA.
    pub(super) fn of_pkcs1(der: &[u8]) -> Option<Self> {
        let mut key = fields_of(der)?;
        let _version: UintRef<'_> = key.decode().ok()?;
        Some(Self::Rsa(bits(key.decode().ok()?)))
    }

    /// The kind of a private key in SEC 1, which is always of an elliptic curve.
    pub(super) fn of_sec1(der: &[u8]) -> Option<Self> {
        let mut key = fields_of(der)?;
        let _version: UintRef<'_> = key.decode().ok()?;
        let _key: &OctetStringRef = key.decode().ok()?;
        let parameters: AnyRef<'_> = key.decode().ok()?;
        if parameters.header().tag() != PARAMETERS {
            return None;
        }
        let curve_id = ObjectIdentifier::from_der(parameters.value()).ok();
        Some(Self::Ecdsa(curve(curve_id)))
    }

    /// The kind of a public key, as a certificate has it.
    pub(super) fn of_public(key: &SubjectPublicKeyInfoRef<'_>) -> Option<Self> {
        match Self::of_algorithm(&key.algorithm) {
            Self::Rsa(_) => {
                let mut key = fields_of(key.subject_public_key.as_bytes()?)?;
                Some(Self::Rsa(bits(key.decode().ok()?)))
            }
            kind => Some(kind),
        }
    }

    /// The kind that an algorithm is for. RSA has no size yet.
    fn of_algorithm(algorithm: &AlgorithmIdentifierRef<'_>) -> Self {
        match algorithm.oid {
            RSA => Self::Rsa(0),
            RSA_PSS => Self::RsaPss,
            DSA => Self::Dsa,
            EC => Self::Ecdsa(curve(algorithm.parameters_oid().ok())),
            ED25519 => Self::Ed25519,
            ED448 => Self::Ed448,
            _ => Self::Other,
        }
    }

    /// Whether this sidecar can show a certificate with such a key.
    #[must_use]
    pub fn can_sign(self) -> bool {
        match self {
            Self::Rsa(bits) => RSA_BITS.contains(&bits),
            Self::Ecdsa(curve) => matches!(curve, P256 | P384),
            Self::Ed25519 => true,
            Self::RsaPss | Self::Dsa | Self::Ed448 | Self::Other => false,
        }
    }

    /// Whether what such a key signed can be checked here.
    #[must_use]
    pub fn can_be_checked(self) -> bool {
        match self {
            Self::Rsa(bits) => (*RSA_BITS.start()..=RSA_BITS_OF_OTHERS).contains(&bits),
            other => other.can_sign(),
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa(bits) => write!(f, "RSA with {bits} bits"),
            Self::RsaPss => f.write_str("RSA-PSS"),
            Self::Dsa => f.write_str("DSA"),
            Self::Ecdsa(curve) => write!(f, "ECDSA on {curve}"),
            Self::Ed25519 => f.write_str("Ed25519"),
            Self::Ed448 => f.write_str("Ed448"),
            Self::Other => f.write_str("another kind"),
        }
    }
}

// RFC 8017, RFC 3279, RFC 5480 and RFC 8410
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
const DSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10040.4.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const ED448: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.113");

/// The field of a key in SEC 1 that has its curve.
const PARAMETERS: Tag = Tag::ContextSpecific {
    constructed: true,
    number: TagNumber(0),
};

const P256: &str = "curve P-256";
const P384: &str = "curve P-384";

/// The name of a curve, by its identifier.
fn curve(id: Option<ObjectIdentifier>) -> &'static str {
    const CURVES: [(ObjectIdentifier, &str); 4] = [
        (ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7"), P256),
        (ObjectIdentifier::new_unwrap("1.3.132.0.34"), P384),
        (ObjectIdentifier::new_unwrap("1.3.132.0.35"), "curve P-521"),
        (
            ObjectIdentifier::new_unwrap("1.3.132.0.10"),
            "curve secp256k1",
        ),
    ];
    let mut known = CURVES.into_iter();
    let found = known.find(|(of, _)| Some(*of) == id);
    found.map_or("another curve", |(_, name)| name)
}

/// The fields of a value that is a sequence, one after the other. What follows the last that is read may be anything.
pub(super) fn fields_of(der: &[u8]) -> Option<SliceReader<'_>> {
    let whole = AnyRef::from_der(der).ok()?;
    (whole.header().tag() == Tag::Sequence)
        .then(|| SliceReader::new(whole.value()).ok())
        .flatten()
}

/// The bits of a number.
fn bits(number: UintRef<'_>) -> usize {
    let bytes = number.as_bytes();
    let unused = bytes.first().map_or(0, |it| it.leading_zeros() as usize);
    bytes.len() * 8 - unused
}
