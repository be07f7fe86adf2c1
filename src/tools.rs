//! The commands: the sidecar, what is asked of a running one, and what is put around it.

#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod audit;
pub mod callers;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod check;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod client;
pub mod explain;
pub mod healthcheck;
pub mod lab;
#[cfg(feature = "leases")]
pub mod lease_agent;
#[cfg(feature = "leases")]
pub mod lease_server;
pub mod limits;
#[expect(
    clippy::disallowed_methods,
    reason = "called on threads that wait, or by a command that serves no calls"
)]
mod runtime_file;
pub mod serve;
mod service_manager;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod simulate;

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// A runtime with everything switched on. One thread runs it in the caller, which is
/// cheapest; the machine is shared with what is being measured.
fn runtime(threads: usize) -> io::Result<Runtime> {
    let mut builder = if threads <= 1 {
        Builder::new_current_thread()
    } else {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads);
        builder
    };
    builder.enable_all().build()
}

/// Reads `50ms`, `1.5s`, `2m`, `250us`; `0` needs no unit.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as 50ms, 1.5s or 2m");
    let unit_at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "" if number == 0.0 => 1.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_carries_its_unit() {
        let check = |text, expected| assert_eq!(parse_duration(text).ok(), expected, "{text}");
        check("50ms", Some(Duration::from_millis(50)));
        check("1.5s", Some(Duration::from_millis(1500)));
        check("2m", Some(Duration::from_secs(120)));
        check("250us", Some(Duration::from_micros(250)));
        check("0", Some(Duration::ZERO));
        check("5", None);
        check("-1s", None);
        check("s", None);
        check("1h", None);
        check("1e30s", None);
    }
}
