//! Reading a config never panics, whatever stands in the file or the environment, and a
//! config that is taken is one that the stages can be built from.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::admit::Gate;
use tidegate::classify::Classifier;
use tidegate::config;
use tidegate_runtime::Clock;

/// Rings of a window are as large as its limit; larger ones only make the run slow.
const LIMIT_MAX: u32 = 10_000;

// The file, and after a NUL byte each, variables as NAME=value.
fuzz_target!(|input: &str| {
    let mut parts = input.split('\0');
    let text = parts.next().unwrap_or_default();
    let variables = parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let checked = match config::read(text, "fuzz.toml", variables) {
        Ok(checked) => checked,
        Err(problems) => {
            assert!(problems.has_error());
            drop(problems.render(false) + &problems.render(true));
            return;
        }
    };
    drop(checked.warnings.render(true));
    let config = checked.config;
    // A secret is not written down, so it cannot be read back.
    if config.admin.token.is_none() {
        let effective = config::effective(&config);
        let again = config::read(&effective, "effective.toml", std::iter::empty());
        assert_eq!(again.expect("what was taken is taken again").config, config);
    }
    drop(Classifier::new(&config.classify));
    let is_small = config.admit.window.as_ref().is_none_or(|window| {
        let limits = window.functions.iter().map(|(_, max)| *max);
        limits.chain(window.total).all(|max| max <= LIMIT_MAX)
    });
    if is_small {
        drop(Gate::new(&config.admit, Clock::start()));
    }
});
