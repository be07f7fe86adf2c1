//! A config as the scheduler takes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::BucketId;
use tidegate_limits::scheduler::{
    BucketLimit, BucketMode, BucketOrder, BucketRule, OnExcess, Settlement,
};
use tidegate_limits::{Burst, Class, Fill, Policy};

use super::line::{Gate, Rule};
use crate::admit::{POSTPONED_MAX, Settings, policy};
use crate::app::with_costs;
use crate::call::Destination;
use crate::callers::{BucketChange, Callers};
use crate::config::{Config, Problems, read};

/// Why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CannotReplay {
    /// The log contains no config of the process.
    #[error(
        "the log has neither the start of the process nor a checkpoint, which come every ten minutes, so its config is not known; give more of its log"
    )]
    NoStart,
    /// The config is not in the log.
    #[error("the config {0} is not in the log, because it is larger than 48 KiB")]
    UnknownConfig(String),
    /// The lines do not have all postponements.
    #[error(
        "{0} calls were set aside more often than a line shows, which is {POSTPONED_MAX} times, so their delays are not known"
    )]
    Cut(usize),
    /// The config in the log is not read as it was.
    #[error("the config in the log is not valid for this version: {0}")]
    Config(String),
}

/// The settings of the gate by one config.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) settings: Settings,
    /// The buckets of its rate limits, by name.
    buckets: BTreeMap<Arc<str>, BucketRule>,
}

impl Setup {
    /// Of a checked config.
    pub(super) fn of(config: &Config) -> Self {
        let mut buckets = BTreeMap::new();
        let started = Callers::start(&config.callers, None);
        let settings = match started {
            Ok(started) => {
                for change in started.buckets {
                    if let BucketChange::Set(_, rule) = change {
                        buckets.insert(Arc::clone(&rule.name), rule);
                    }
                }
                with_costs(&config.admit, &started.value)
            }
            // The config's check lets only callers through for which there is room.
            Err(_) => config.admit.clone(),
        };
        Self { settings, buckets }
    }

    /// Of a config in a log.
    ///
    /// # Errors
    ///
    /// If this version reads it otherwise than the one that wrote it.
    pub(super) fn logged(text: &str) -> Result<Self, Problems> {
        let checked = read(text, "the config in the log", std::iter::empty())?;
        Ok(Self::of(&checked.config))
    }

    /// The policy, for a clock that began to count `phase` past the epoch.
    pub(super) fn policy(&self, phase: Duration) -> Policy {
        policy::limited(&self.settings, phase)
    }

    /// How long its windows and paced limits remember a call.   ns
    pub(super) fn memory(&self) -> u64 {
        let windows = self.settings.window.iter();
        let windows = windows.map(|window| window.length + window.guard);
        // A pool that holds the most expensive call twice is full again after this.
        let paced = self.settings.paced.iter().map(|limit| {
            let seconds = 2.0 * limit.costs.most_expensive.get() / limit.rate.get();
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        });
        let longest = windows.chain(paced).max().unwrap_or_default();
        u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The class of this name; the last one if there is none.
    pub(super) fn class(&self, name: &str) -> Class {
        let mut classes = self.settings.classes.iter();
        let index = classes.position(|class| &*class.name == name);
        let index = index.unwrap_or(self.settings.classes.len() - 1);
        Class(u32::try_from(index).expect("the config bounds the classes"))
    }

    /// Whether it has a rate limit of this name.
    pub(super) fn has(&self, rule: &Rule) -> bool {
        self.buckets.contains_key(&*rule.name)
    }

    /// Its own rule for the rate limit of this name.
    pub(super) fn named(&self, rule: &Rule) -> Option<BucketRule> {
        self.buckets.get(&*rule.name).cloned()
    }

    /// The rule of a bucket in a log. A pace is taken from the config, because the line has only
    /// its rate.
    pub(super) fn rule(&self, rule: &Rule) -> Option<BucketRule> {
        let name: Arc<str> = rule.name.as_str().into();
        let Some(fill) = rule.limit.fill else {
            return self.buckets.get(&name).cloned();
        };
        let limit = BucketLimit::Bucket {
            burst: Burst::new(rule.limit.burst).ok()?,
            fill: Fill::new(fill).ok()?,
        };
        Some(BucketRule {
            name,
            limit,
            mode: if rule.observes {
                BucketMode::Observe
            } else {
                BucketMode::Enforce
            },
            on_excess: if rule.rejects {
                OnExcess::Reject
            } else {
                OnExcess::Delay
            },
            order: if rule.by_arrival {
                BucketOrder::Fifo
            } else {
                BucketOrder::Fair
            },
            settlement: if rule.settles {
                Settlement::Measured
            } else {
                Settlement::Estimate
            },
        })
    }
}

/// The settings of a config in a log.
pub(super) fn setup(gate: &Gate) -> Result<Setup, CannotReplay> {
    let Some(text) = &gate.config else {
        let fingerprint = gate.fingerprint.clone().unwrap_or_default();
        return Err(CannotReplay::UnknownConfig(fingerprint));
    };
    Setup::logged(text).map_err(|problems| CannotReplay::Config(problems.to_string()))
}

/// The number of a backend.
pub(super) fn backend(name: &str) -> Option<u8> {
    let mut all = Destination::BACKENDS.into_iter();
    all.find(|backend| backend.label() == name)
        .map(|backend| backend as u8)
}

/// The number of a bucket.
pub(super) fn bucket(number: Option<u64>) -> Option<BucketId> {
    number.map(BucketId)
}
