//! The metrics of the process itself.

use tidegate_runtime::metric::{Registry, SetTotal as _};

use super::losses::{LossCause, Losses};

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
    /// The metrics of a process that the crate `prometheus` counts, under the names that all its users share. Only
    /// the definitions are used: the crate has its own collector.
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
    /// Registers these, and on Linux those that every process has.
    #[must_use]
    pub fn start(registry: &Registry, version: &str, revision: &str) -> Self {
        let metrics = Self::new(registry);
        metrics
            .build_info(build_info { version, revision })
            .set(1.0);
        // An alert sees only the growth of a series that was there before.
        metrics.mirror_losses(&Losses::default());
        #[cfg(target_os = "linux")]
        registry.show(
            module_path!(),
            OfProcess::DEFINITIONS,
            prometheus::process_collector::ProcessCollector::for_self(),
        );
        metrics
    }

    /// Shows the lines that the log has lost.
    pub fn mirror_losses(&self, losses: &Losses) {
        for cause in LossCause::ALL {
            let label = cause.label();
            let lines = self.access_lines_lost_total(label);
            lines.reach(losses.access_lines(cause));
            let events = self.log_events_lost_total(label);
            events.reach(losses.events(cause));
        }
    }
}
