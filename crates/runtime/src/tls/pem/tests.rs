use base64_lines::pem_of;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;

/// Writes PEM.
mod base64_lines {
    /// A section with this label and content.
    pub(super) fn pem_of(label: &str, der: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for piece in der.chunks(3) {
            let bytes = [0, 1, 2].map(|at| piece.get(at).copied().unwrap_or(0));
            let bits = bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            for at in 0..4 {
                let digit = DIGITS[bits >> (18 - 6 * at) & 63];
                text.push(if at <= piece.len() {
                    char::from(digit)
                } else {
                    '='
                });
            }
        }
        let lines: Vec<_> = text
            .as_bytes()
            .chunks(64)
            .map(String::from_utf8_lossy)
            .collect();
        let lines = lines.join("\n");
        format!("-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
    }
}

/// A certificate and its key.
fn pair() -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(["a.example".to_owned()]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("it signs");
    (certificate.pem(), key.serialize_pem())
}

fn der(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let [high, low] = u16::try_from(content.len())
        .expect("it is short")
        .to_be_bytes();
    // The shortest form of a length is the only one in DER.
    let length = match (high, low) {
        (0, ..0x80) => vec![low],
        (0, _) => vec![0x81, low],
        _ => vec![0x82, high, low],
    };
    [&[tag][..], &length, &content].concat()
}

/// A key of RSA that is no key but in its form.
fn rsa_of(bits: usize) -> Vec<u8> {
    let mut modulus = vec![0xff; bits / 8];
    modulus.insert(0, 0);
    let key = der(
        0x30,
        &[
            &der(2, &[&[0]]),
            &der(2, &[&modulus]),
            &der(2, &[&[1, 0, 1]]),
        ],
    );
    let id = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    let algorithm = der(0x30, &[&der(6, &[&id]), &[5, 0]]);
    der(0x30, &[&der(2, &[&[0]]), &algorithm, &der(4, &[&key])])
}

#[track_caller]
fn check(cert: &str, key: &str, words: &[&str]) {
    let identity = TlsIdentity {
        cert: cert.as_bytes(),
        key: key.as_bytes(),
    };
    let error = identity.certified().expect_err("it cannot be used");
    let told = format!("the file {error}; {}", error.cure());
    for word in words {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}

#[test]
fn a_key_of_a_kind_that_is_not_supported_is_named_as_such() {
    let (cert, _) = pair();
    let unsupported = |key: &str, kind: &str| {
        check(
            &cert,
            key,
            &["a kind that is not supported", kind, "P-256 or P-384"],
        );
    };
    unsupported(include_str!("p521.pem"), "ECDSA on curve P-521");
    unsupported(include_str!("ed448.pem"), "Ed448");
    unsupported(include_str!("pss.pem"), "RSA-PSS");
    unsupported(&pem_of("PRIVATE KEY", &rsa_of(8192)), "RSA with 8192 bits");
    unsupported(&pem_of("PRIVATE KEY", &rsa_of(1024)), "RSA with 1024 bits");
    unsupported(
        "-----BEGIN DSA PRIVATE KEY-----\nAAAA\n-----END DSA PRIVATE KEY-----",
        "DSA",
    );
    check(
        &cert,
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
        &["OpenSSH", "openssl genpkey"],
    );
    check(
        &cert,
        &pem_of("PRIVATE KEY", &rsa_of(2048)),
        &["(RSA with 2048 bits) that cannot be used", "openssl pkey"],
    );
    check(
        &cert,
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----",
        &["passphrase"],
    );
    check(&cert, &cert, &["no key"]);
    check(&cert, "anything", &["no key"]);
}

#[test]
fn a_key_of_another_certificate_and_one_of_a_later_certificate_differ() {
    let ((first, first_key), (second, second_key)) = (pair(), pair());
    let good = |cert: &str, key: &str| {
        let (cert, key) = (cert.as_bytes(), key.as_bytes());
        let certified = TlsIdentity { cert, key }.certified();
        certified.expect("they belong together").cert.len()
    };
    assert_eq!(good(&first, &first_key), 1);
    assert_eq!(good(&format!("{first}{second}"), &first_key), 2);
    assert_eq!(
        good(
            &format!("{first_key}{first}"),
            &format!("{first}{first_key}")
        ),
        1
    );
    check(
        &first,
        &second_key,
        &[
            "not the key of the certificate",
            "another one of the same kind",
        ],
    );
    let both = format!("{first}{second}");
    check(&both, &second_key, &["certificate 2", "first in its file"]);
}

#[test]
fn every_certificate_of_a_file_is_used_or_the_file_is_refused() {
    let ((first, key), (second, _)) = (pair(), pair());
    check(
        &format!("{first}\u{feff}{second}"),
        &key,
        &["byte order mark", "sed -i"],
    );
    check(
        &format!("{}{second}", first.trim_end()),
        &key,
        &["newline is missing"],
    );
    check(
        &format!("{first}{}", &second[..second.len() / 2]),
        &key,
        &["no END mark"],
    );
    let line = second.lines().nth(3).expect("it is long");
    check(
        &format!("{first}{}", second.replace(line, "no base64")),
        &key,
        &["damaged"],
    );
    check(
        &format!("{first}{}", second.replace(&format!("{line}\n"), "")),
        &key,
        &["damaged"],
    );
    for label in ["TRUSTED CERTIFICATE", "X509 CERTIFICATE", "PKCS7"] {
        let other = second.replace("CERTIFICATE", label);
        check(
            &format!("{first}{other}"),
            &key,
            &[label, "not taken", "openssl"],
        );
    }
    check("", &key, &["no certificate"]);
    let marks =
        format!("text\n{first}-----BEGIN EC PARAMETERS-----\nBg==\n-----END EC PARAMETERS-----\n");
    assert_eq!(certificates(marks.as_bytes()).expect("it has one").len(), 1);
}

#[test]
fn no_error_quotes_the_file() {
    let (cert, key) = pair();
    let body: Vec<_> = key.lines().filter(|it| !it.starts_with('-')).collect();
    let bent = [
        key.replace('\n', "\\n"),
        key.replace('\n', " "),
        key.replace('\n', ""),
        format!("\u{feff}{key}"),
        key.replace("-----END PRIVATE KEY-----", ""),
        key.replace("-----BEGIN PRIVATE KEY-----", ""),
        key.replace("KEY-----\n", "KEY----- "),
        key.replace("PRIVATE", &body.concat()),
        key.replace(body[0], &format!("!{}", body[0])),
        key.replace(body[0], &format!("é{}", body[0])),
        key.replace("-----", "--"),
        body.concat(),
        key.replace("PRIVATE KEY", "EC PRIVATE KEY"),
        key.replace("PRIVATE KEY", "RSA PRIVATE KEY"),
        format!("{}{key}", cert.trim_end()),
    ];
    let mut refused = 0;
    for text in &bent {
        let combined = format!("{cert}{text}");
        for (cert, key) in [(&cert, text), (text, &key), (&combined, &combined)] {
            let identity = TlsIdentity {
                cert: cert.as_bytes(),
                key: key.as_bytes(),
            };
            let Err(error) = identity.certified() else {
                continue;
            };
            refused += 1;
            for told in [
                error.to_string(),
                error.cure().to_owned(),
                format!("{error:?}"),
            ] {
                // As it is, and as the decimal numbers of its bytes.
                for part in &body {
                    let numbers = format!("{:?}", &part.as_bytes()[..12]);
                    let numbers = numbers.trim_matches(['[', ']']);
                    assert!(
                        !told.contains(&part[..12]) && !told.contains(numbers),
                        "{told}"
                    );
                }
            }
        }
    }
    assert!(refused > 30, "{refused}");
}

#[test]
fn authorities_whose_signatures_cannot_be_checked_are_refused_by_their_kind() {
    let (cert, _) = pair();
    assert_eq!(authorities(cert.as_bytes()).expect("it is one").len(), 1);
    let p521 = include_str!("p521-authority.pem");
    let error = authorities(p521.as_bytes()).expect_err("no signature can be checked");
    assert!(error.to_string().contains("curve P-521"), "{error}");
    let both = format!("{p521}{cert}");
    assert_eq!(authorities(both.as_bytes()).expect("one is good").len(), 2);
}
