//! Tools to try and measure Tidegate: a backend behind it, a load in front of it, bare proxies to
//! compare it with, and a demonstration.
//!
//! None of this is the product, and none of it is linked with the product: the demonstration runs
//! `tidegate serve` as a process. [`tidegate_zvm`] reads and writes calls; HTTP is read here, so
//! that a mistake of the product shows. Only one of the bare proxies leaves it to hyper.
#![forbid(unsafe_code)]

#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod advise;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod audit;
pub mod backend;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod bench;
pub mod cli;
mod conn;
pub mod demo;
mod framing;
#[expect(
    clippy::disallowed_methods,
    reason = "for commands that serve no calls"
)]
mod logs;
pub mod model_server;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod plan;
mod random;
pub mod relay;
#[cfg(test)]
#[path = "../../limits/tests/random/seeds.rs"]
mod seeds;
#[expect(clippy::disallowed_methods, reason = "a command that serves no calls")]
pub mod simulate;
pub mod top;

use std::time::Duration;

/// The default arguments, so that each default is written once.
fn defaults<A: clap::Args>() -> A {
    let command = A::augment_args(clap::Command::new("defaults"));
    A::from_arg_matches(&command.get_matches_from(["defaults"]))
        .expect("every argument has a default")
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
    fn a_share_lies_between_nothing_and_everything() {
        assert_eq!(parse_share("0.25"), Ok(0.25));
        assert!(parse_share("1.1").is_err());
        assert!(parse_share("NaN").is_err());
    }
}
