//! The metrics of the process itself.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use tidegate_runtime::metric::{Registry, SetLevel as _, SetTotal as _};

use super::losses::{LineKind, LossCause, Losses};

tidegate_runtime::metrics! {
    /// The process: what runs, and which lines it lost.
    pub struct ProcessMetrics: "tidegate_" {
        /// Access lines lost: stderr was read too slowly (`slow_reader`), its disk was full (`disk_full`), its
        /// file had reached its size limit (`file_too_large`), it had no reader (`closed`), or it could not be
        /// written (`write_failed`).
        access_lines_lost_total: Counter(cause) in "lines",
        /// Other log lines lost, by the same causes.
        log_events_lost_total: Counter(cause) in "lines",
        /// Spans of sampled calls that the collector has taken.
        spans_sent_total: Counter in "spans",
        /// Spans lost: the queue was full (`queue_full`), the collector refused them (`refused`), it did not
        /// take them before the process ended (`ended`), or it was taken out of the config (`off`).
        spans_lost_total: Counter(reason) in "spans",
        /// Always 1; the labels say what is running.
        build_info: Gauge(version, revision) in "1",
    }
}

tidegate_runtime::metrics! {
    /// The process as the kernel sees it, under the names that every program with Prometheus's metrics has.
    pub struct OfProcess: "process_" {
        /// User and system CPU time, in whole seconds.
        cpu_seconds_total: Counter in "s",
        /// Open file descriptors.
        open_fds: Gauge in "descriptors",
        /// Open file descriptors allowed.
        max_fds: Gauge in "descriptors",
        /// Virtual memory.
        virtual_memory_bytes: Gauge in "bytes",
        /// Resident memory.
        resident_memory_bytes: Gauge in "bytes",
        /// When the process started.
        start_time_seconds: Gauge in "Unix s",
        /// Threads.
        threads: Gauge in "threads",
    }
}

impl ProcessMetrics {
    /// Registers the metrics, with the counts of lost lines at 0.
    #[must_use]
    pub fn start(registry: &Registry, version: &str, revision: &str) -> Self {
        let metrics = Self::new(registry);
        metrics
            .build_info(build_info { version, revision })
            .set(1.0);
        // An alert sees only the growth of a series that was there before.
        metrics.mirror_losses(&Losses::default());
        metrics
    }

    /// Shows the lines that the log has lost.
    pub fn mirror_losses(&self, losses: &Losses) {
        for cause in LossCause::ALL {
            let label = cause.label();
            let lines = self.access_lines_lost_total(label);
            lines.reach(losses.lines(LineKind::Access, cause));
            let events = self.log_events_lost_total(label);
            let others = [LineKind::Event, LineKind::Replay];
            events.reach(others.map(|kind| losses.lines(kind, cause)).iter().sum());
        }
    }
}

impl OfProcess {
    /// Reads the figures of the kernel. One that cannot be read stays as it was.
    #[expect(clippy::disallowed_methods, reason = "/proc is in memory")]
    pub fn measure(&self) {
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // The folder itself is one of them while it is read.
            self.open_fds().show(open.count().saturating_sub(1));
        }
        if let Some(max) = getrlimit(Resource::Nofile).current {
            self.max_fds().show(max);
        }
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let Some(stat) = Stat::read(&text("/proc/self/stat")) else {
            return;
        };
        let ticks = clock_ticks_per_second();
        self.cpu_seconds_total().reach(stat.ticks / ticks);
        self.virtual_memory_bytes().show(stat.virtual_bytes);
        self.resident_memory_bytes()
            .show(stat.resident_pages * page_size() as u64);
        self.threads().show(stat.threads);
        let boot = text("/proc/stat");
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "));
        if let Some(boot) = boot.and_then(|seconds| seconds.parse::<u64>().ok()) {
            self.start_time_seconds()
                .show(boot + stat.started_at / ticks);
        }
    }
}

/// The fields of `/proc/self/stat` that are shown (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// User and system time.
    ticks: u64,
    threads: u64,
    /// After the boot, in ticks.
    started_at: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn read(text: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything. The state behind it is field 3.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            ticks: field(14)? + field(15)?,
            threads: field(20)?,
            started_at: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read_behind_a_name_with_parentheses() {
        let line = "7 (a) b) c) S 1 7 7 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 4 0 1234 8192000 2000 18446744073709551615\n";
        let read = Stat {
            ticks: 300,
            threads: 4,
            started_at: 1234,
            virtual_bytes: 8_192_000,
            resident_pages: 2000,
        };
        assert_eq!(Stat::read(line), Some(read));
        assert_eq!(Stat::read(""), None);
        assert_eq!(Stat::read("7 (a) S 1 7"), None);
    }

    #[test]
    fn the_figures_of_this_process_are_shown() {
        let registry = Registry::default();
        let process = OfProcess::new(&registry);
        process.measure();
        let own = |line: &str| line.starts_with("process_") && !line.ends_with(" 0");
        let text = registry.text();
        for name in [
            "open_fds",
            "max_fds",
            "virtual_memory_bytes",
            "resident_memory_bytes",
            "start_time_seconds",
            "threads",
        ] {
            let shown = text
                .lines()
                .any(|line| own(line) && line[8..].starts_with(name));
            assert!(shown, "{name}: {text}");
        }
    }
}
