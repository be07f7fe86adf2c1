//! Signs of life: what a client gets while its call waits, so that neither it nor a proxy between gives up.

use crate::options::words;

words! {
    /// The signs of life of a listener.
    pub enum SignsOfLife {
        /// Waiting clients get nothing.
        Off = "off",
        /// Interim answers with the status 100, except to agents that are known to fail on them.
        Continue = "100",
        /// Interim answers with the status 102, except to agents that are known to fail on them.
        Processing = "102",
        /// The client's `User-Agent` decides; an unknown one gets nothing.
        ByAgent = "by-agent",
    }
}

labels! {
    /// A sign of life.
    pub enum Sign {
        /// An interim answer `100 Continue`.
        Continue = "100",
        /// An interim answer `102 Processing`.
        Processing = "102",
    }
}
