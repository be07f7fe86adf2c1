//! TLS to servers beside the backend: options that every section with such servers has alike.

#[cfg(any(feature = "leases", feature = "quotas"))]
mod load;

#[cfg(any(feature = "leases", feature = "quotas"))]
pub use self::load::Inside;

use std::path::PathBuf;

use crate::options::kind::{line, pem};
use crate::options::options;

/// Longest name in a certificate.   bytes
const NAME_MAX: usize = 253;

options! {
    /// TLS to servers. A reload reads the files again, for later connections.
    pub struct ServerTlsSection {
        /// The authorities that sign the certificates of the servers; no other is trusted. Addresses
        /// with https:// or rediss:// need it. Addresses without a scheme use TLS if it is set.
        ca: Option<PathBuf> = pem("/etc/tidegate/store-ca.pem").optional()
            .example("\"/etc/tidegate/store-ca.pem\"");

        /// The client certificate, if the servers ask for one.
        cert: Option<PathBuf> = pem("/etc/tidegate/tls.crt").optional()
            .example("\"/etc/tidegate/tls.crt\"");

        /// Its key, without a passphrase.
        key: Option<PathBuf> = pem("/etc/tidegate/tls.key").optional()
            .example("\"/etc/tidegate/tls.key\"");

        /// The name in the certificates of the servers, if it is another than the host in their
        /// addresses.
        server_name: Option<String> = line(NAME_MAX, "store.example").optional()
            .example("\"store.example\"");
    }
}
