//! Random limits, callers and streams of calls.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::pace::{BurstRatio, Pace, Rate};
use tidegate_limits::quota::{OutagePolicy, RuleSettings, WindowRule};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, QuotaRule, Settlement,
};
use tidegate_limits::{Burst, Fill, Limit};

use super::MS;
use super::met::{Kind, Lets, Met, Who};
use crate::random::Random;

pub(crate) const FUNCTIONS: [&str; 3] = ["list", "info", "start"];
/// How long the store may be silent: two questions in a row, of three kinds, each given up after
/// 100 ms and asked again after 1 s at most.
const SILENT: u64 = 2 * 3 * 1100 * MS;

/// Calls of one caller that are alike.
pub(crate) struct Stream {
    /// While its class is there.
    pub(crate) class: usize,
    pub(crate) caller: u64,
    pub(crate) weight: u32,
    pub(crate) function: usize,
    pub(crate) has_bucket: bool,
    pub(crate) has_quota: bool,
    /// Up to this many tokens.
    pub(crate) tokens: u64,
    /// Nanoseconds between two calls.
    pub(crate) every: u64,
}

impl Stream {
    pub(crate) fn kind(&self, class: usize) -> Kind {
        Kind {
            class,
            function: self.function,
            has_bucket: self.has_bucket,
            has_quota: self.has_quota,
        }
    }
}

/// The random settings of a run.
pub(crate) struct Made {
    pub(crate) streams: Vec<Stream>,
    /// Of the classes.
    pub(crate) weights: Vec<u32>,
    pub(crate) limits: Vec<Met>,
    pub(crate) bucket: Option<BucketRule>,
    pub(crate) quota: Option<QuotaRule>,
    /// The number of questions to the store of which one is not answered.
    pub(crate) silent: Option<u64>,
    /// The longest that a call runs.
    pub(crate) longest: u64,
    /// Places in the queue; more calls wait at the door.
    pub(crate) capacity: Option<u32>,
    pub(crate) in_turn: bool,
}

fn window(random: &mut Random, most: u64) -> (Limit, Lets) {
    let max = random.between(1, most);
    let length = random.between(2, 10) * 100 * MS;
    let limit = Limit::sliding(max as u32, Duration::from_nanos(length));
    let max = max as usize;
    (limit, Lets::Window { max, length })
}

fn slots(random: &mut Random, most: u64) -> (Limit, Lets) {
    let max = random.between(1, most) as usize;
    let limit = Limit::Outstanding { max: max as u32 };
    (limit, Lets::Outstanding { max })
}

fn pace(random: &mut Random) -> (Limit, Lets) {
    let rate = random.between(2, 8) as f64;
    let ratio = BurstRatio::new(1.1).expect("a ratio");
    let pace = Pace::new(Rate::new(rate).expect("a rate"), ratio);
    (Limit::Paced { pace }, Lets::Flow(rate))
}

fn limits(random: &mut Random, classes: usize) -> Vec<Met> {
    let mut limits = Vec::new();
    let mut add = |name: String, who, (limit, lets)| {
        limits.push(Met::new(name, who, lets, Some(limit)));
    };
    for (function, name) in FUNCTIONS.iter().enumerate() {
        if random.one_in(3) {
            continue;
        }
        let limit = if random.one_in(4) {
            pace(random)
        } else {
            window(random, 8)
        };
        add((*name).into(), Who::Function(function), limit);
    }
    for class in 0..classes {
        if random.one_in(2) {
            let limit = slots(random, 3);
            add(format!("pool {class}"), Who::Class(class), limit);
        }
        if random.one_in(4) {
            let limit = if random.one_in(3) {
                pace(random)
            } else {
                window(random, 6)
            };
            add(format!("window {class}"), Who::Class(class), limit);
        }
    }
    if random.one_in(2) {
        let limit = window(random, 12);
        add("total".into(), Who::Every, limit);
    }
    if random.one_in(2) {
        let limit = slots(random, 6);
        add("slots".into(), Who::Every, limit);
    }
    if random.one_in(8) {
        add("pace".into(), Who::Every, pace(random));
    }
    limits
}

/// Lets one limit of all keep something for a class, be it nothing.
fn keep(random: &mut Random, limits: &mut [Met], classes: usize) {
    let counts_calls = |met: &&mut Met| {
        let is_plain = matches!(met.lets, Lets::Window { .. } | Lets::Outstanding { .. });
        is_plain && met.who == Who::Every
    };
    if let Some(met) = limits.iter_mut().find(counts_calls) {
        let (Lets::Window { max, .. } | Lets::Outstanding { max }) = met.lets else {
            unreachable!("it counts calls");
        };
        let amount = random.below(max as u64) as usize;
        met.kept = Some((random.below(classes as u64) as usize, amount));
    }
}

fn bucket(random: &mut Random) -> (BucketRule, Met) {
    let rate = random.between(1, 6) as f64;
    let rule = BucketRule {
        name: "bucket".into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(5.0).expect("a burst"),
            fill: Fill::new(rate).expect("a fill"),
        },
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fair,
        settlement: Settlement::Estimate,
    };
    let met = Met::new("bucket", Who::Bucket, Lets::Flow(rate), None);
    (rule, met)
}

fn quota(random: &mut Random, silent: Option<u64>) -> (QuotaRule, Met) {
    let total = random.between(6, 20);
    let length = random.pick(&[500, 1000, 2000]) * MS;
    let mut settings = RuleSettings::new(total, Duration::from_nanos(length));
    settings.draw_timeout = Duration::from_millis(50);
    settings.away = random.pick(&[
        OutagePolicy::Deny,
        OutagePolicy::Safe { percent: 50 },
        OutagePolicy::Allow,
    ]);
    let rule = QuotaRule {
        rule: WindowRule::check(settings).expect("a rule"),
        own: Arc::default(),
        on_excess: OnExcess::Delay,
    };
    let silent = silent.map_or(0, |_| SILENT);
    let lets = Lets::Quota {
        total,
        length,
        silent,
    };
    (rule, Met::new("quota", Who::Quota, lets, None))
}

fn streams(random: &mut Random, limits: &[Met], classes: usize) -> Vec<Stream> {
    let costliest = if random.one_in(2) { 1 } else { 3 };
    let mut streams = Vec::new();
    let is_there = |who| limits.iter().any(|met| met.who == who);
    for caller in 0..random.between(1, 5) {
        let class = random.below(classes as u64) as usize;
        let weight = random.between(1, 3) as u32;
        for function in 0..FUNCTIONS.len() {
            if random.one_in(2) {
                streams.push(Stream {
                    class,
                    caller: caller + 1,
                    weight,
                    function,
                    has_bucket: is_there(Who::Bucket) && random.one_in(2),
                    has_quota: is_there(Who::Quota) && random.one_in(2),
                    tokens: random.between(1, costliest),
                    every: 0,
                });
            }
        }
    }
    // What a pace says is said for one token.
    let is_paced = |met: &&Met| matches!(met.limit, Some(Limit::Paced { .. }));
    for stream in &mut streams {
        // Its class may go, and then it has that of any other.
        let mut paced = limits.iter().filter(is_paced);
        if paced.any(|met| (0..classes).any(|class| met.meets(stream.kind(class)))) {
            stream.tokens = 1;
        }
    }
    streams
}

/// Each stream asks for its part of the load at the tightest limit that it meets.
fn load(random: &mut Random, streams: &mut [Stream], limits: &[Met], longest: u64) {
    let load = random.real(0.8, 3.0);
    let meets = |met: &Met, stream: &Stream| met.meets(stream.kind(stream.class));
    for place in 0..streams.len() {
        let mut every = 200.0 * MS as f64;
        for met in limits.iter().filter(|met| meets(met, &streams[place])) {
            let others = streams.iter().filter(|other| meets(met, other)).count();
            let mean = longest as f64 / 2.0;
            let tokens = streams[place].tokens as f64;
            let takes = match met.lets {
                Lets::Window { max, length } => length as f64 / max as f64,
                Lets::Outstanding { max } => mean / max as f64,
                Lets::Flow(rate) => tokens * 1e9 / rate,
                Lets::Quota { total, length, .. } => tokens * length as f64 / total as f64,
            };
            every = every.max(takes * others as f64 / load);
        }
        // Some ask for little.
        let rare = if random.one_in(4) { 8.0 } else { 1.0 };
        streams[place].every = (every * rare) as u64;
    }
}

impl Made {
    pub(crate) fn new(random: &mut Random) -> Self {
        let classes = random.between(1, 3) as usize;
        let weights = (0..classes).map(|_| random.between(1, 4) as u32).collect();
        let longest = random.between(100, 400) * MS;
        let in_turn = !random.one_in(6);
        let mut limits = limits(random, classes);
        if !in_turn || random.one_in(8) {
            keep(random, &mut limits, classes);
        }
        let bucket = random.one_in(2).then(|| bucket(random));
        let (bucket, met) = bucket.unzip();
        limits.extend(met);
        let silent = random.one_in(2).then(|| random.between(3, 12));
        let quota = random.one_in(3).then(|| quota(random, silent));
        let (quota, met) = quota.unzip();
        limits.extend(met);
        let mut streams = streams(random, &limits, classes);
        load(random, &mut streams, &limits, longest);
        let capacity = random.one_in(4).then(|| random.between(2, 16) as u32);
        Self {
            streams,
            weights,
            limits,
            bucket,
            quota,
            silent,
            longest,
            capacity,
            in_turn,
        }
    }
}
