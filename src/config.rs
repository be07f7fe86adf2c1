//! Reads config.toml into the settings of every stage.

use std::time::Duration;

/// Everything that the config decides, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data-plane threads.
    pub threads: usize,
    /// How long a drain may take.
    pub drain_timeout: Duration,
    /// Settings of the accept loop.
    pub listen: crate::listen::Settings,
    /// Settings of the protocols.
    pub protocol: crate::protocol::Settings,
    /// Settings of the classifier.
    pub classify: crate::classify::Settings,
    /// Settings of the gate.
    pub admit: crate::admit::Settings,
    /// Settings of the forwarder.
    pub forward: crate::forward::Settings,
    /// Settings of the admin address.
    pub admin: crate::admin::Settings,
    /// Settings of logs.
    pub telemetry: crate::telemetry::Settings,
}
