//! Metrics of invalid requests.

tidegate_runtime::metrics! {
    /// Connections and identities that could not be used.
    pub struct ProtocolMetrics: "tidegate_" {
        /// Connections closed before their first request, by reason.
        connections_rejected_total: Counter(listener, reason) in "connections",
        /// Calls with a part of the identity that could not be used. It was malformed, too long or
        /// given twice, and is treated as absent.
        identity_unusable_total: Counter(field) in "calls",
        /// Signs of life that clients got while their calls waited, by listener and kind.
        signs_of_life_total: Counter(listener, sign) in "signs",
    }
}
