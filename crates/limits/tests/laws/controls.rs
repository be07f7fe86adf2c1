//! Negative controls: small limiters that break a law, which the oracle has to notice.

use tidegate_limits::bucket::TokenLimiter;
use tidegate_limits::call::BucketId;
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::{BucketLimit, BucketRule};
use tidegate_limits::{Call, Limit, TokenBucket, Tokens};

use crate::laws::policies::{Shape, random_bucket};
use crate::oracle::{End, Oracle, Violation};
use crate::random::Random;
use crate::{at, nanos};

/// When a small limiter of its own, not ours, draws what it has found free.
#[derive(Clone, Copy)]
pub(crate) enum Model {
    /// At once, from a sliding window: as it should be.
    Exact,
    /// At once, from an aligned window.
    Fixed,
    /// Some time after it looked.
    CheckThenAct,
}

/// Lets random arrivals through the model and has the oracle look at what departed and what
/// was in flight.
pub(crate) fn model(seed: u64, model: Model) -> Result<(), Violation> {
    const MAX: u32 = 3;
    const LENGTH: u64 = 10;
    const TAKES: u64 = 5;
    let limit = Limit::sliding(MAX, nanos(LENGTH));
    let mut oracle = Oracle::new(&[
        LimitRule::new("window", limit),
        LimitRule::new("outstanding", Limit::Outstanding { max: MAX }),
    ]);
    let mut random = Random::new(seed);
    let mut arrivals: Vec<u64> = (0..60).map(|_| random.below(100)).collect();
    arrivals.sort_unstable();
    let mut drawn: Vec<u64> = Vec::new();
    for now in arrivals {
        let counts = |at: u64| match model {
            Model::Fixed => at / LENGTH == now / LENGTH,
            Model::Exact | Model::CheckThenAct => at <= now && now - at < LENGTH,
        };
        if drawn.iter().filter(|&&at| counts(at)).count() >= MAX as usize {
            continue;
        }
        let departs = match model {
            Model::Exact | Model::Fixed => now,
            Model::CheckThenAct => now + random.below(3),
        };
        drawn.push(departs);
        let call = Call::new("f", at(now));
        let run = oracle.ran_unasked(&call, departs);
        oracle.sent(run, departs);
        oracle.ended(run, End::Finished(departs + TAKES), None)?;
    }
    oracle.check_spans()?;
    oracle.check_peaks()
}

/// A small limiter's treatment of its bucket when the rule changes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Reload {
    InPlace,
    /// The limiter makes a new bucket, which is full.
    Refund,
}

/// Lets random arrivals through a bucket of its own whose rule changes now and then, and has
/// the oracle look at what was let through.
pub(crate) fn bucket_model(seed: u64, reload: Reload) -> Result<(), Violation> {
    let mut random = Random::new(seed);
    let shape = Shape {
        classes: 1,
        callers: 1,
        calls: 0,
        buckets: 1,
        reserves: false,
        reloads: false,
        jitter: false,
        fixed_as_sliding: false,
        one_slot_more: false,
    };
    let rule = |random: &mut Random| BucketRule {
        ..random_bucket(random, shape)
    };
    let first = rule(&mut random);
    let size = |rule: &BucketRule| match rule.limit {
        BucketLimit::Bucket { burst, fill } => (burst, fill),
        BucketLimit::Paced(_) => unreachable!("the random ones are buckets"),
    };
    let (burst, fill) = size(&first);
    let mut bucket = TokenBucket::new(at(0), burst, fill);
    let mut oracle = Oracle::new(&[]);
    let id = BucketId(0);
    oracle.bucket_set(id, &first, 0);
    let mut now = 0;
    for _ in 0..60 {
        now += random.below(4);
        if random.one_in(10) {
            let rule = rule(&mut random);
            oracle.bucket_set(id, &rule, now);
            let (burst, fill) = size(&rule);
            match reload {
                Reload::InPlace => bucket.set_parameters(at(now), burst, fill),
                Reload::Refund => bucket = TokenBucket::new(at(now), burst, fill),
            }
        }
        let tokens = Tokens::new(random.between(1, 20) as f64 / 4.0).expect("a cost");
        if bucket.try_take(at(now), tokens).is_ok() {
            let call = Call::new("f", at(now)).tokens(tokens).bucket(id);
            oracle.ran(&call, now)?;
        }
    }
    oracle.check_rates()
}
