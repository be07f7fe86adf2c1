//! Certificates for etcd: options that `[quota]` and the lease server's `[etcd]` have alike.

#[cfg(any(feature = "leases", feature = "quotas"))]
mod load;

use std::path::PathBuf;

use crate::options::kind::pem;
use crate::options::options;

options! {
    /// TLS to etcd.
    pub struct EtcdTlsSection {
        /// The authorities that sign the certificates of etcd. Required for https.
        ca: Option<PathBuf> = pem("/etc/tidegate/etcd-ca.pem").optional().restart()
            .example("\"/etc/tidegate/etcd-ca.pem\"");

        /// The client certificate, if etcd asks for one.
        cert: Option<PathBuf> = pem("/etc/tidegate/tls.crt").optional().restart()
            .example("\"/etc/tidegate/tls.crt\"");

        /// Its key.
        key: Option<PathBuf> = pem("/etc/tidegate/tls.key").optional().restart()
            .example("\"/etc/tidegate/tls.key\"");
    }
}
