//! Metrics of invalid requests.

tidegate_runtime::metrics! {
    /// Connections and identities that could not be used.
    pub struct ProtocolMetrics: "tidegate_" {
        /// Connections closed before their first request, by reason.
        connections_rejected_total: Counter(listener, reason) in "connections",
        /// Connections that were left to hyper, by the reason: the part of the request that is not in the
        /// usual form, or its size. None with http_engine = "hyper".
        http_fallback_total: Counter(reason) in "connections",
        /// Calls with a part of the identity that could not be used. It was malformed, too long or
        /// given twice, and is treated as absent.
        identity_unusable_total: Counter(field) in "calls",
    }
}
