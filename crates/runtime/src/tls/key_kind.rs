//! Which kind a key is of, so that a kind that cannot be used is named as such.

use std::fmt;

use super::der::{
    BIT_STRING, Elements, FIELD_0, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, bits,
    of_bit_string,
};

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
        let mut key = Elements(der).enter(SEQUENCE)?;
        key.take(INTEGER)?;
        let algorithm = key.enter(SEQUENCE)?;
        let inside = key.take(OCTET_STRING)?.content;
        Some(match Self::of_algorithm(algorithm)? {
            Self::Rsa(_) => Self::of_pkcs1(inside)?,
            kind => kind,
        })
    }

    /// The kind of a private key in PKCS #1, which is always RSA.
    pub(super) fn of_pkcs1(der: &[u8]) -> Option<Self> {
        let mut key = Elements(der).enter(SEQUENCE)?;
        key.take(INTEGER)?;
        Some(Self::Rsa(bits(key.take(INTEGER)?.content)))
    }

    /// The kind of a private key in SEC 1, which is always of an elliptic curve.
    pub(super) fn of_sec1(der: &[u8]) -> Option<Self> {
        let mut key = Elements(der).enter(SEQUENCE)?;
        key.take(INTEGER)?;
        key.take(OCTET_STRING)?;
        Some(Self::Ecdsa(curve(key.enter(FIELD_0)?)))
    }

    /// The kind of a public key, as a certificate has it: the content of `SubjectPublicKeyInfo`.
    pub(super) fn of_public(mut info: Elements<'_>) -> Option<Self> {
        let algorithm = info.enter(SEQUENCE)?;
        let key = of_bit_string(info.take(BIT_STRING)?.content)?;
        Some(match Self::of_algorithm(algorithm)? {
            Self::Rsa(_) => {
                let mut key = Elements(key).enter(SEQUENCE)?;
                Self::Rsa(bits(key.take(INTEGER)?.content))
            }
            kind => kind,
        })
    }

    /// The kind that an algorithm is for. RSA has no size yet.
    fn of_algorithm(mut algorithm: Elements<'_>) -> Option<Self> {
        let id = algorithm.take(OBJECT_IDENTIFIER)?.content;
        Some(match id {
            // 1.2.840.113549.1.1.1 and .10
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1] => Self::Rsa(0),
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0a] => Self::RsaPss,
            // 1.2.840.10040.4.1
            [0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1] => Self::Dsa,
            // 1.2.840.10045.2.1
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1] => Self::Ecdsa(curve(algorithm)),
            // 1.3.101.112 and .113
            [0x2b, 0x65, 0x70] => Self::Ed25519,
            [0x2b, 0x65, 0x71] => Self::Ed448,
            _ => Self::Other,
        })
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

const P256: &str = "curve P-256";
const P384: &str = "curve P-384";

/// The name of a curve, by its identifier.
fn curve(mut parameters: Elements<'_>) -> &'static str {
    match parameters.take(OBJECT_IDENTIFIER).map(|it| it.content) {
        // 1.2.840.10045.3.1.7
        Some([0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]) => P256,
        // 1.3.132.0.34, .35 and .10
        Some([0x2b, 0x81, 4, 0, 0x22]) => P384,
        Some([0x2b, 0x81, 4, 0, 0x23]) => "curve P-521",
        Some([0x2b, 0x81, 4, 0, 0x0a]) => "curve secp256k1",
        _ => "another curve",
    }
}
