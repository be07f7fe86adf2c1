//! Tools to try and measure Tidegate: a backend behind it, a load in front of it, and a
//! demonstration of both.
//!
//! None of this is the product, and none of it is linked with the product: the demonstration runs
//! `tidegate serve` as a process. [`tidegate_zvm`] reads and writes calls; HTTP is read here, so
//! that a mistake of the product shows.
#![forbid(unsafe_code)]

pub mod backend;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod bench;
mod conn;
pub mod demo;
mod framing;

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// A runtime with all features enabled. With one thread it runs in the caller, which costs least:
/// the measured program runs on the same machine.
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

/// The default arguments, so that each default is written once.
fn defaults<A: clap::Args>() -> A {
    let command = A::augment_args(clap::Command::new("defaults"));
    A::from_arg_matches(&command.get_matches_from(["defaults"]))
        .expect("every argument has a default")
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

/// Reads a number of seconds.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text);
    let wrong = || format!("`{text}` is not a number of seconds");
    let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Reads a share from 0 to 1.
fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("`{text}` is not a number from 0.0 to 1.0")),
    }
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

    #[test]
    fn a_share_lies_between_nothing_and_everything() {
        assert_eq!(parse_share("0.25"), Ok(0.25));
        assert!(parse_share("1.1").is_err());
        assert!(parse_share("NaN").is_err());
    }
}
