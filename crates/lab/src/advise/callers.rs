//! The tokens of callers, as rate limits of the config.
//!
//! A log names callers by ids, and the config by labels. A process numbers the callers of its config
//! in order, so the labels of a log are known if all of it was made under one config, without a
//! reload and without a file of saved callers. Otherwise the tokens become comments.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_advice::advice::Advice;
use tidegate_advice::tokens::Bucket;
use tidegate_limits::Timestamp;

use super::config::{Change, OptionPlace, plain};
use tidegate::callers::{Callers, CallersSettings};
use tidegate::config::Config;

/// The labels of the callers of a config, by their ids.
pub(super) fn labels(config: &Config) -> BTreeMap<String, String> {
    if config.callers.state_file.is_some() {
        return BTreeMap::new();
    }
    let Ok(started) = Callers::start(&config.callers, None) else {
        return BTreeMap::new();
    };
    let rows = started.value.all(Timestamp::ZERO).into_iter();
    let labelled = rows.filter_map(|it| {
        let label = it.row.label.as_ref()?.as_str().to_owned();
        Some((it.row.id.to_string(), label))
    });
    labelled.collect()
}

/// The buckets of callers as changes of today's config, and what cannot be one as comments.
pub(super) fn buckets(
    advice: &Advice,
    today: Option<&Config>,
    labels: &BTreeMap<String, String>,
) -> (Vec<Change>, String) {
    let mut changes = Vec::new();
    let mut comments = String::new();
    for caller in &advice.callers {
        let Ok(bucket) = &caller.bucket else {
            continue;
        };
        let label = labels.get(&*caller.name).map(String::as_str);
        let known = today.zip(label);
        match known.map_or(Err("it is not in today's config"), |(today, label)| {
            of(&today.callers, label, bucket)
        }) {
            Ok(more) => changes.extend(more),
            Err(why) => {
                let shown = label.map_or(String::new(), |label| format!(" ({label})"));
                comments += &format!(
                    "# {}{shown}, {} calls; {why}:\n# [[bucket]]\n# name = \"{}\"\n# burst = {}\n# fill = {}\n",
                    caller.name,
                    caller.calls,
                    plain(&caller.name),
                    bucket.burst,
                    bucket.fill
                );
            }
        }
    }
    (changes, comments)
}

/// The changes that give a caller of the config its bucket.
fn of(today: &CallersSettings, label: &str, bucket: &Bucket) -> Result<Vec<Change>, &'static str> {
    let mut rows = today.callers.iter();
    let row = rows.find(|row| row.caller.label.as_str() == label);
    let row = row.ok_or("it is not in today's config")?;
    let part = format!("tokens of {label}");
    let figures = |place: OptionPlace| {
        [("burst", bucket.burst), ("fill", bucket.fill)].map(|(key, value)| Change {
            part: part.clone(),
            place: place.clone(),
            key,
            value: value.to_string(),
        })
    };
    if let Some(name) = &row.rate_limit {
        let others = today.callers.iter();
        let shares = others.filter(|other| other.rate_limit.as_ref() == Some(name));
        if shares.count() > 1 {
            return Err("it shares its bucket");
        }
        let limit = today.rate_limits.iter().find(|limit| limit.name == *name);
        let bucket = limit.and_then(|limit| limit.rule.allowance.bucket());
        return match bucket {
            Some(_) => Ok(figures(OptionPlace::RateLimit(name.to_string())).into()),
            None => Err("its limit is a pace"),
        };
    }
    let name = unused(today, &plain(label));
    let mut changes = figures(OptionPlace::NewRateLimit(name.clone())).to_vec();
    changes.push(Change {
        part,
        place: OptionPlace::Caller(label.to_owned()),
        key: "rate_limit",
        value: format!("\"{name}\""),
    });
    Ok(changes)
}

/// A name that no rate limit has.
fn unused(today: &CallersSettings, name: &str) -> String {
    let limits = today.rate_limits.iter().map(|limit| &limit.name);
    let taken: Vec<&Arc<str>> = limits.chain(&today.reserved).collect();
    let mut tried = name.to_owned();
    for number in 2.. {
        if !taken.iter().any(|taken| ***taken == *tried) {
            break;
        }
        tried = format!("{name}-{number}");
    }
    tried
}
