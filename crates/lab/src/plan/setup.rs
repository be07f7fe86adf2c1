//! A config as the scheduler takes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::Pattern;
use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::quota::{self, RuleSettings};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, QuotaRule, Settlement,
};
use tidegate_limits::{Burst, Class, Fill, Policy, Tokens};
use tidegate_quota::QuotaSettings;
use tidegate_record::kind::{BucketFields, PacedCost};

use super::given::{Configured, KeyFigures};
use tidegate::admit::{GateSettings, POSTPONED_MAX, policy};
use tidegate::app::with_costs;
use tidegate::call::Destination;
use tidegate::call::LimitMode;
use tidegate::call::pace::CostRange;
use tidegate::callers::{BucketChange, Callers};
use tidegate::classify::Classifier;
use tidegate::config::{Config, Problems, read};

/// Why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CannotReplay {
    /// The log contains no config of the process.
    #[error(
        "the log has neither the start of the process nor a checkpoint, which come every ten minutes, so its config is not known; give more of its log"
    )]
    NoStart,
    /// The config is not in the log.
    #[error(
        "the config {0} is not in the log, because a line with it would be larger than 48 KiB; give it with --config-of FILE"
    )]
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
    pub(super) settings: GateSettings,
    /// The buckets of its rate limits, by name.
    buckets: BTreeMap<Arc<str>, (BucketId, Option<BucketRule>)>,
    quotas: Option<QuotaSettings>,
    /// Rules for classes.
    pub(super) classify: tidegate::classify::ClassifierSettings,
    pub(super) classifier: Arc<Classifier>,
    /// Rules for callers; `None` if there is no room for them.
    pub(super) callers: Option<Callers>,
    /// How its callers are recognized.
    pub(super) patterns: Vec<Pattern>,
}

impl Setup {
    /// Of a checked config.
    pub(super) fn of(config: &Config) -> Self {
        let mut buckets = BTreeMap::new();
        // The config's check lets only callers through for which there is room.
        let started = Callers::start(&config.callers, None).ok();
        let callers = started.map(|started| {
            for change in started.buckets {
                if let BucketChange::Set(id, rule, mode) = change {
                    let name = Arc::clone(&rule.name);
                    buckets.insert(name, (id, (mode == LimitMode::Enforce).then_some(rule)));
                }
            }
            started.value
        });
        let settings = callers.as_ref().map_or_else(
            || config.admit.clone(),
            |callers| with_costs(&config.admit, callers),
        );
        let rows = config.callers.callers.iter();
        Self {
            settings,
            buckets,
            quotas: config.quotas.as_ref().map(QuotaSettings::in_force),
            classify: config.classify.clone(),
            classifier: Arc::new(Classifier::new(&config.classify)),
            callers,
            patterns: rows.flat_map(|row| row.caller.patterns.clone()).collect(),
        }
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

    /// Takes the costs that were in force of calls that meet paced limits.
    pub(super) fn take_costs(&mut self, costs: &[PacedCost]) {
        for of in costs {
            let mut limits = self.settings.paced.iter_mut();
            let limit = limits.find(|limit| *limit.name == *of.name);
            let range = Tokens::new(of.cheapest)
                .ok()
                .zip(Tokens::new(of.most_expensive).ok());
            if let Some((limit, (cheapest, most_expensive))) = limit.zip(range) {
                limit.costs = CostRange {
                    cheapest,
                    most_expensive,
                };
            }
        }
    }

    /// The rules of its quotas, and the most keys of all of them.
    pub(super) fn quotas(&self) -> (BTreeMap<Arc<str>, QuotaRule>, usize) {
        let Some(quotas) = &self.quotas else {
            return (BTreeMap::new(), 0);
        };
        let rule = |limit: &tidegate_quota::QuotaLimit| {
            let rule = QuotaRule {
                rule: limit.rule,
                own: Arc::new(limit.totals.clone()),
                on_excess: limit.on_excess,
            };
            (Arc::clone(&limit.name), rule)
        };
        // Those that only observe hold no call.
        let enforced = quotas.limits.iter().filter(|limit| !limit.observes);
        (enforced.map(rule).collect(), quotas.keys_max)
    }

    /// The rule of a key with this total and base.
    pub(super) fn quota_rule(
        &self,
        of: &QuotaKey,
        KeyFigures { total, base }: KeyFigures,
    ) -> Option<quota::WindowRule> {
        let mut limits = self.quotas.as_ref()?.limits.iter();
        let limit = limits.find(|limit| limit.name == of.quota)?;
        let own = limit.of(&of.key);
        let settings = RuleSettings {
            total,
            base,
            ..*own.settings()
        };
        quota::WindowRule::check(settings).ok()
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
    pub(super) fn has(&self, rule: &BucketFields) -> bool {
        self.buckets.contains_key(&*rule.name)
    }

    /// The config's own bucket for the rate limit of this name.
    pub(super) fn named(&self, rule: &BucketFields) -> Option<BucketId> {
        self.buckets.get(&*rule.name).map(|(id, _)| *id)
    }

    /// The buckets of its rate limits that hold calls.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (BucketId, &BucketRule)> {
        let buckets = self.buckets.values();
        buckets.filter_map(|(id, rule)| Some((*id, rule.as_ref()?)))
    }

    /// The rule of a bucket in a log; `None` if it holds no call. A pace is taken from the config, because the line has only
    /// its rate.
    pub(super) fn rule(&self, rule: &BucketFields) -> Option<BucketRule> {
        if rule.observes {
            return None;
        }
        let name: Arc<str> = rule.name.as_str().into();
        let Some(fill) = rule.limit.fill else {
            return self.buckets.get(&name)?.1.clone();
        };
        let limit = BucketLimit::Bucket {
            burst: Burst::new(rule.limit.burst).ok()?,
            fill: Fill::new(fill).ok()?,
        };
        Some(BucketRule {
            name,
            limit,
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

/// Configs that are given beside the logs, by their fingerprints: a log has only the fingerprint of
/// a large config.
#[derive(Clone, Default)]
pub(super) struct KnownConfigs(BTreeMap<String, Setup>);

impl KnownConfigs {
    /// Adds a config.
    pub(super) fn add(&mut self, config: &Config) {
        self.0.insert(config.fingerprint(), Setup::of(config));
    }
}

/// The settings of a config in a log.
///
/// # Errors
///
/// If it is not known, or is no longer valid.
pub(super) fn setup(known: &KnownConfigs, configured: &Configured) -> Result<Setup, CannotReplay> {
    let known = known.0.get(&configured.fingerprint);
    let mut setup = match (&configured.text, known) {
        (Some(text), _) => {
            Setup::logged(text).map_err(|problems| CannotReplay::Config(problems.to_string()))?
        }
        (None, Some(known)) => known.clone(),
        (None, None) => {
            let fingerprint = configured.fingerprint.clone();
            return Err(CannotReplay::UnknownConfig(fingerprint));
        }
    };
    if let Some(costs) = &configured.costs {
        setup.take_costs(costs);
    }
    Ok(setup)
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
