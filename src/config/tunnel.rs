//! What `[client]` says of TCP connections that are let through as they are.

use std::time::Duration;

use super::effective::Toml;
use super::raw::Raw;
use super::reader::{Section, Setting};
use super::value::duration;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The part of `[client]` that is about tunnels.
pub(super) struct RawTunnel {
    idle_timeout: Setting<Duration>,
}

pub(super) fn read(section: &mut Section<'_>) -> RawTunnel {
    RawTunnel {
        idle_timeout: section.read("tunnel_idle_timeout", HOUR, duration(MS..=24 * HOUR)),
    }
}

pub(super) fn idle_timeout(raw: &Raw) -> Duration {
    raw.client.tunnel.idle_timeout.value
}

pub(super) fn write(out: &mut Toml, idle_timeout: Duration) {
    out.duration("tunnel_idle_timeout", idle_timeout);
}
