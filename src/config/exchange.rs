//! How fast an exchange with a backend must go, how many connections to it are kept, and
//! whether a read is sent again: from the file to the settings of forwarding.

use crate::forward::Settings;

use super::effective::Toml;
use super::reader::{Section, Setting};
use super::value::{flag, integer, size};

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

/// These options of `[backend]`.
pub(super) struct RawExchange {
    send_min_rate: Setting<u64>,
    reply_min_rate: Setting<u64>,
    max_slow_readers: Setting<Option<u32>>,
    pool_max_idle: Setting<Option<u32>>,
    retry_reads: Setting<bool>,
}

/// Reads the options; the section ends elsewhere.
pub(super) fn read(section: &mut Section<'_>) -> RawExchange {
    RawExchange {
        send_min_rate: section.read("send_min_rate", KIB, size(0..=GIB)),
        reply_min_rate: section.read("reply_min_rate", 256 * KIB, size(0..=GIB)),
        max_slow_readers: section.read("max_slow_readers", None, integer(0..=65536).optional()),
        pool_max_idle: section.read("pool_max_idle", None, integer(0..=65536).optional()),
        retry_reads: section.read("retry_reads", false, flag()),
    }
}

impl RawExchange {
    pub(super) fn send_min_rate(&self) -> u64 {
        self.send_min_rate.value
    }

    pub(super) fn reply_min_rate(&self) -> u64 {
        self.reply_min_rate.value
    }

    pub(super) fn retry_reads(&self) -> bool {
        self.retry_reads.value
    }

    /// A quarter of the slots, unless the config says otherwise.
    pub(super) fn slow_readers_max(&self, workers: u32) -> usize {
        let share = (workers / 4).max(1);
        self.max_slow_readers.value.unwrap_or(share) as usize
    }

    /// As many as can be busy at once, unless the config says otherwise.
    pub(super) fn pool_max_idle(&self, workers: u32) -> usize {
        self.pool_max_idle.value.unwrap_or(workers) as usize
    }
}

/// Writes them back.
pub(super) fn write(out: &mut Toml, settings: &Settings) {
    let bounds = &settings.bounds;
    out.size("send_min_rate", bounds.send_min_rate);
    out.size("reply_min_rate", bounds.reply_min_rate);
    out.bare("max_slow_readers", bounds.slow_readers_max);
    out.bare("pool_max_idle", bounds.pool_max_idle);
    out.bare("retry_reads", settings.retry_reads);
}
