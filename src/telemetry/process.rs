//! The metrics of the process itself.

use tidegate_runtime::metric::Registry;

tidegate_runtime::metrics! {
    /// The process: what runs, and which lines it lost.
    pub struct ProcessMetrics: "tidegate_" {
        /// Access lines lost because stderr was read too slowly.
        access_lines_lost_total: Counter in "lines",
        /// Other log lines lost because stderr was read too slowly.
        log_events_lost_total: Counter in "lines",
        /// Always 1; the labels say what is running.
        build_info: Gauge(version, revision) in "1",
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
        #[cfg(target_os = "linux")]
        registry.show(
            module_path!(),
            OF_PROCESS,
            prometheus::process_collector::ProcessCollector::for_self(),
        );
        metrics
    }
}

/// What the crate `prometheus` counts of a process, under the names that all its users share.
#[cfg(target_os = "linux")]
const OF_PROCESS: &[tidegate_runtime::metric::Definition] = {
    const fn of(
        name: &'static str,
        kind: &'static str,
        unit: &'static str,
        help: &'static str,
    ) -> tidegate_runtime::metric::Definition {
        tidegate_runtime::metric::Definition {
            name,
            kind,
            labels: &[],
            unit,
            help,
        }
    }
    &[
        of(
            "process_cpu_seconds_total",
            "counter",
            "s",
            "User and system CPU time, in whole seconds.",
        ),
        of(
            "process_open_fds",
            "gauge",
            "descriptors",
            "Open file descriptors.",
        ),
        of(
            "process_max_fds",
            "gauge",
            "descriptors",
            "Open file descriptors allowed.",
        ),
        of(
            "process_virtual_memory_bytes",
            "gauge",
            "bytes",
            "Virtual memory.",
        ),
        of(
            "process_resident_memory_bytes",
            "gauge",
            "bytes",
            "Resident memory.",
        ),
        of(
            "process_start_time_seconds",
            "gauge",
            "Unix s",
            "When the process started.",
        ),
        of("process_threads", "gauge", "threads", "Threads."),
    ]
};
