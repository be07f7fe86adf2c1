//! An authority that signs certificates for tests: good ones, and those of each wrong set-up.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType, date_time_ymd,
};

/// Signs certificates, and keeps them in files of its own.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Issued {
    pub(crate) fn cert(&self) -> &str {
        text(&self.cert)
    }

    pub(crate) fn key(&self) -> &str {
        text(&self.key)
    }

    /// Takes the place of another one, in its files.
    pub(crate) fn replace(&self, other: &Self) {
        for (from, to) in [(&self.cert, &other.cert), (&self.key, &other.key)] {
            std::fs::copy(from, to).expect("there is room");
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a test is UTF-8")
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // As real ones, no two have one name.
        let name = format!("authority {:p}", &params);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let folder = tempfile::tempdir().expect("there is room");
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("there is room");
        Self { folder, issuer }
    }

    /// The file of its own certificate.
    pub(crate) fn ca(&self) -> String {
        text(&self.folder.path().join("ca.pem")).to_owned()
    }

    /// The certificate of the authority as text.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server or a client with these names, of which the first is its common
    /// name and the name of its files.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.write(names, Self::params(names))
    }

    /// Issues a certificate that is no longer valid.
    pub(crate) fn issue_expired(&self, names: &[&str]) -> Issued {
        let mut params = Self::params(names);
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.write(names, params)
    }

    fn params(names: &[&str]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, names[0]);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let names = names.iter().map(|name| match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*name).try_into().expect("a name in ASCII")),
        });
        params.subject_alt_names = names.collect();
        params
    }

    fn write(&self, names: &[&str], params: CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("it signs");
        let path = |kind: &str| self.folder.path().join(format!("{}.{kind}", names[0]));
        let issued = Issued {
            cert: path("crt"),
            key: path("key"),
        };
        std::fs::write(&issued.cert, cert.pem()).expect("there is room");
        std::fs::write(&issued.key, key.serialize_pem()).expect("there is room");
        issued
    }
}
