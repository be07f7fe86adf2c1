//! The crate against other readers of the same bytes, over inputs that no person has written.
//!
//! `inputs` makes messages and mutates them. `requests`, `responses` and `chunks` say what must hold, each
//! with a second reader of its own, and `through_hyper` asks hyper itself. An input that breaks a rule is a
//! finding. `faults` plants faults, to show that they would be found.
//!
//! `make fuzz` runs on from where the last run ended, and `make fuzz AGAIN=number` repeats one input.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod inputs;
mod differential {
    pub(crate) use super::inputs;
    pub(crate) mod chunks;
    pub(crate) mod faults;
    pub(crate) mod plain;
    pub(crate) mod record;
    pub(crate) mod requests;
    pub(crate) mod responses;
    pub(crate) mod subject;
    pub(crate) mod through_hyper;
}

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use differential::faults::Fault;
use differential::record::{self, Kept};
use differential::subject::{AsItIs, Checked, Effort, Reached, Subject, shown};
use differential::{chunks, requests, responses, through_hyper};
use inputs::record::{Record, asked, quoted};
use inputs::{Kind, Random, Seeds, random_of};

/// Inputs of every test run.
const INPUTS: u64 = 1_000_000;

/// How often hyper itself is asked, which takes a hundred times as long as all the rest.
const HYPER_ONE_IN: u64 = 1000;

/// Most inputs until a planted fault is found.
const FAULT_INPUTS: u64 = 200_000;

/// Makes an input of a kind, and the random numbers for the questions about it.
fn make(seeds: &Seeds, seed: u64, number: u64, into: &mut Vec<u8>) -> (Kind, Random) {
    let mut random = random_of(seed, number);
    let kind = match random.below(10) {
        0..=5 => Kind::Requests,
        6 | 7 => Kind::Responses,
        _ => Kind::Chunks,
    };
    inputs::write(kind, seeds, &mut random, into);
    (kind, random)
}

fn check(subject: &impl Subject, kind: Kind, bytes: &[u8], effort: &mut Effort) -> Checked {
    match kind {
        Kind::Requests => requests::check(subject, bytes, effort),
        Kind::Responses => responses::check(subject, bytes, effort),
        Kind::Chunks => chunks::check(subject, bytes, effort),
    }
}

/// Checks an input, where a panic is a finding, and hyper is asked, too.
fn check_all(kind: Kind, bytes: &[u8], effort: &mut Effort) -> Checked {
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let reached = check(&AsItIs, kind, bytes, effort)?;
        if effort.one_in(HYPER_ONE_IN) {
            through_hyper::check(kind, bytes, effort)?;
        }
        Ok(reached)
    }));
    checked.unwrap_or_else(|_| Err("it panics".to_owned()))
}

fn label(kind: Kind, reached: Reached) -> String {
    match kind {
        Kind::Requests => requests::label(reached),
        Kind::Responses => responses::label(reached),
        Kind::Chunks => chunks::label(reached),
    }
}

/// Every question about an input that is kept.
fn check_kept(kind: Kind, bytes: &[u8]) -> Checked {
    let mut reached = Err("it is not tried".to_owned());
    // Both questions of a kind, such as an answer to HEAD and to GET.
    for seed in 0..8 {
        let mut effort = Effort {
            random: random_of(seed, 0),
            is_full: true,
        };
        reached = Ok(check_all(kind, bytes, &mut effort)?);
    }
    reached
}

#[test]
fn every_case_of_the_corpus_is_read_as_others_read_it() {
    for (kind, bytes) in record::cases() {
        if let Err(why) = check_kept(kind, &bytes) {
            panic!("{} of {}: {why}", kind.name(), shown(&bytes));
        }
    }
}

#[test]
fn what_earlier_runs_found_is_read_as_others_read_it() {
    for kept in record::corpus() {
        if let Err(why) = check_kept(kept.kind, &kept.bytes) {
            panic!(
                "{} ({}): {}: {why}",
                kept.kind.name(),
                kept.reached,
                shown(&kept.bytes)
            );
        }
    }
}

#[test]
fn a_million_inputs_are_read_as_others_read_them() {
    let seeds = record::seeds();
    let seed = asked("TIDEGATE_SEED").unwrap_or(0);
    let mut bytes = Vec::new();
    for input in 0..INPUTS {
        let (kind, random) = make(&seeds, seed, input, &mut bytes);
        let mut effort = Effort {
            random,
            is_full: false,
        };
        if let Err(why) = check_all(kind, &bytes, &mut effort) {
            panic!("{}", finding(seed, input, kind, &bytes, &why));
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let seeds = record::seeds();
    let mut bytes = Vec::new();
    for fault in Fault::ALL {
        let found = (0..FAULT_INPUTS).find(|&input| {
            let (kind, random) = make(&seeds, 0, input, &mut bytes);
            let mut effort = Effort {
                random,
                is_full: false,
            };
            check(&fault, kind, &bytes, &mut effort).is_err()
        });
        let found = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        println!("{fault:?}: input {found}, {}", shown(&bytes));
    }
}

fn finding(seed: u64, input: u64, kind: Kind, bytes: &[u8], why: &str) -> String {
    format!(
        "{}: {why}\nkind = \"{}\"\nbytes = {}\nagain: make fuzz TIDEGATE_SEED={seed} AGAIN={input}",
        kind.name(),
        kind.name(),
        quoted(bytes)
    )
}

/// `make fuzz`: goes on from where the last run ended, for `INPUTS` or for `MINUTES`.
#[test]
#[ignore = "runs as long as it is asked to"]
fn the_long_run() {
    const AT_A_TIME: u64 = 100_000;
    let (seeds, path) = (record::seeds(), record::path());
    let mut record = Record::read(&path);
    if let Some(input) = asked("AGAIN") {
        return again(&seeds, asked("TIDEGATE_SEED").unwrap_or(record.seed), input);
    }
    let inputs = asked("INPUTS");
    let last = inputs.map_or(u64::MAX, |inputs| record.inputs.saturating_add(inputs));
    let minutes = asked("MINUTES").filter(|_| inputs.is_none());
    let until = Instant::now() + Duration::from_secs(60 * minutes.unwrap_or(60 * 24 * 365));
    let (first, began) = (record.inputs, Instant::now());
    let mut written = Instant::now();
    let mut corpus = Known::read();
    let mut bytes = Vec::new();
    while record.inputs < last && Instant::now() < until {
        let end = last.min(record.inputs + AT_A_TIME);
        while record.inputs < end {
            let input = record.inputs;
            let (kind, random) = make(&seeds, record.seed, input, &mut bytes);
            let mut effort = Effort {
                random,
                is_full: false,
            };
            record.inputs += 1;
            match check_all(kind, &bytes, &mut effort) {
                Ok(reached) => corpus.see(kind, reached, &bytes),
                Err(why) => {
                    record.findings += 1;
                    record.write(&path);
                    corpus.write();
                    panic!("{}", finding(record.seed, input, kind, &bytes, &why));
                }
            }
        }
        // A run that is stopped loses a minute.
        if written.elapsed() > Duration::from_secs(60) {
            written = Instant::now();
            record.write(&path);
            corpus.write();
        }
    }
    record.write(&path);
    corpus.write();
    let (tried, took) = (record.inputs - first, began.elapsed());
    println!(
        "{tried} inputs in {took:.0?}, {:.2} µs each; {} in all, {} verdicts",
        took.as_secs_f64() * 1e6 / tried.max(1) as f64,
        record.inputs,
        corpus.reached.len()
    );
}

fn again(seeds: &Seeds, seed: u64, input: u64) {
    let mut bytes = Vec::new();
    let (kind, random) = make(seeds, seed, input, &mut bytes);
    let mut effort = Effort {
        random,
        is_full: false,
    };
    match check_all(kind, &bytes, &mut effort) {
        Ok(reached) => println!(
            "{}: {}\nbytes = {}",
            kind.name(),
            label(kind, reached),
            quoted(&bytes)
        ),
        Err(why) => panic!("{}", finding(seed, input, kind, &bytes, &why)),
    }
}

/// The verdicts that were reached, and an input for each.
struct Known {
    reached: BTreeMap<String, ()>,
    kept: Vec<Kept>,
    seen: std::collections::HashSet<(Kind, Reached)>,
}

impl Known {
    fn read() -> Self {
        let mut kept = record::corpus();
        for it in &mut kept {
            // Words change with the tests. Those of a response depend on what was asked.
            let mut effort = Effort {
                random: random_of(0, 0),
                is_full: false,
            };
            match check(&AsItIs, it.kind, &it.bytes, &mut effort) {
                Ok(reached) if it.kind != Kind::Responses => it.reached = label(it.kind, reached),
                _ => {}
            }
        }
        let name = |it: &Kept| (format!("{}: {}", it.kind.name(), it.reached), ());
        Self {
            reached: kept.iter().map(name).collect(),
            kept,
            seen: Default::default(),
        }
    }

    fn see(&mut self, kind: Kind, reached: Reached, bytes: &[u8]) {
        if !self.seen.insert((kind, reached)) {
            return;
        }
        let label = label(kind, reached);
        let name = format!("{}: {label}", kind.name());
        if self.reached.insert(name, ()).is_none() {
            self.kept.push(Kept {
                kind,
                bytes: smallest(kind, reached, bytes),
                reached: label,
            });
        }
    }

    fn write(&self) {
        record::write_corpus(self.kept.clone());
    }
}

/// The input without all that it does not need to reach the same.
fn smallest(kind: Kind, reached: Reached, bytes: &[u8]) -> Vec<u8> {
    let reaches = |bytes: &[u8]| {
        // A seed that asks for a response to GET with many fields, and one for each other question.
        (0..8).any(|seed| {
            let mut effort = Effort {
                random: random_of(seed, 0),
                is_full: false,
            };
            check(&AsItIs, kind, bytes, &mut effort) == Ok(reached)
        })
    };
    let mut best = bytes.to_vec();
    let mut part = best.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at + part <= best.len() {
            let mut without = best.clone();
            without.drain(at..at + part);
            if reaches(&without) {
                best = without;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    best
}
