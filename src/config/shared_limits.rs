//! Limits that can be shared with other sidecars, and the settings of those that are.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use tidegate_leases::sharing::{Safe, SharedLimit, SharedServers, SharingSettings};

use super::coordinate::Coordinate;
use super::sections::Sections;
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

/// A limit that could be shared, with its number in the config.
pub(super) enum ShareableLimit {
    /// Calls, cost, or whole tokens a second.
    Whole(u32),
    /// Tokens a second.
    Rate(f64),
}

impl ShareableLimit {
    pub(super) fn configured(&self) -> f64 {
        match *self {
            Self::Whole(max) => f64::from(max),
            Self::Rate(per_second) => per_second,
        }
    }
}

/// Every limit that could be shared, by its name in metrics.
pub(super) fn known(all: &Sections) -> BTreeMap<String, ShareableLimit> {
    let limits = &all.limits;
    let mut known = BTreeMap::new();
    let mut count = |name: String, max: u32| {
        if max > 0 {
            known.insert(name, ShareableLimit::Whole(max));
        }
    };
    if !limits.window.value.is_zero() {
        let per_window = &limits.per_window.value;
        count("total".to_owned(), per_window.total.unwrap_or(0));
        for function in &per_window.functions {
            count(format!("function:{}", function.name), function.calls);
        }
    }
    count("outstanding".to_owned(), limits.outstanding.value);
    // A quota is shared already.
    let mut rate = |name: &Option<Arc<str>>, known_as: Option<ShareableLimit>| {
        if let (Some(name), Some(number)) = (name, known_as) {
            known.insert(format!("{RATE_LIMIT_PREFIX}{name}"), number);
        }
    };
    for bucket in &all.buckets {
        let per_second = bucket.per_second(&all.profiles);
        rate(&bucket.name.value, per_second.map(ShareableLimit::Rate));
    }
    for pace in &all.paces {
        let number = pace.pacing().map(|(rate, _)| match pace.is_of_callers() {
            true => ShareableLimit::Rate(rate.get()),
            // The gate counts whole tokens a second of those.
            false => ShareableLimit::Whole(rate.get() as u32),
        });
        rate(&pace.name.value, number);
    }
    known
}

/// The name in metrics of what the config calls by this name: that, or the name of a rate limit.
pub(super) fn in_metrics<'a>(
    known: &'a BTreeMap<String, ShareableLimit>,
    given: &str,
) -> Option<(&'a str, &'a ShareableLimit)> {
    let named = known.get_key_value(given);
    let named = named.or_else(|| known.get_key_value(&format!("{RATE_LIMIT_PREFIX}{given}")));
    named.map(|(name, known)| (name.as_str(), known))
}

/// The settings, of a config without an error.
pub(super) fn settings(all: &Sections) -> Option<SharingSettings> {
    let Coordinate {
        section, limits, ..
    } = &all.coordinate;
    if !section.section.given {
        return None;
    }
    let known = known(all);
    let limits = limits.iter().map(|shared| {
        let given = shared.limit.required();
        let (name, number) = in_metrics(&known, &given).expect("an unknown limit is an error");
        let safe = shared.safe.required();
        let whole = NonZeroU32::new(safe.get() as u32);
        SharedLimit {
            limit: name.into(),
            resource: shared.resource.required(),
            safe: match number {
                ShareableLimit::Whole(_) => Safe::Whole(whole.expect("less than 1 is an error")),
                ShareableLimit::Rate(_) => Safe::Rate(safe),
            },
        }
    });
    let sidecars = NonZeroU32::new(section.expected_sidecars.required());
    Some(SharingSettings {
        servers: SharedServers {
            addresses: section.servers.value.clone(),
            id: section.id.value.clone(),
            request_timeout: section.request_timeout.value,
            interval_min: section.minimum_interval.value,
            #[cfg(feature = "leases")]
            tls: all.coordinate.loaded.clone(),
        },
        expected_sidecars: sidecars.expect("it is within the range of the option"),
        limits: limits.collect(),
    })
}
