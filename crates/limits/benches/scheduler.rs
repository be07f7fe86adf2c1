//! The cost of the scheduler, alone and on one thread.
//!
//! `cargo bench -p tidegate-limits` prints nanoseconds per call: the median and the least of many
//! stretches of a millisecond or less, since a longer one is sure to be interrupted on a machine
//! that does other work too.
//!
//! For instruction counts, which no other work disturbs, run exactly N calls under valgrind and
//! take the difference of two N, so that the filling of the queue cancels out:
//!
//! ```text
//! valgrind --tool=callgrind <the bench's binary> --count 10000 [--waiting 0] [--callers 100 --classes 2]
//! valgrind --tool=callgrind <the bench's binary> --count 10000 --buckets 10000 [--waiting 10]
//! valgrind --tool=callgrind <the bench's binary> --count 10000 --quotas 1 [--users 10000]
//! ```

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_limits::bucket::TokenLimiter;
use tidegate_limits::call::{Backend, BucketId, QuotaKey};
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, Scope, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::quota::{
    QuotaRecord, RecordVersion, RuleSettings, StoreReply, StoreTime, StoredRecord, WindowRule,
};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, Outcome, QuotaAsk, QuotaQuestion, QuotaRule,
    Settlement,
};
use tidegate_limits::{
    Burst, Call, Caller, Class, Fill, Hold, Limit, Policy, Scheduler, Step, Timestamp, TokenBucket,
    Tokens,
};

const STRETCHES: usize = 400;
const ROUNDS: u64 = 500;
/// The time between two calls: a little more than the window of 30 a second allows.
const PACE: Duration = Duration::from_millis(34);

fn window(max: u32) -> Limit {
    Limit::Window {
        max,
        length: Duration::from_secs(1),
        guard: Duration::from_millis(5),
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    }
}

fn rule(name: &str, scope: Scope, limit: Limit) -> LimitRule {
    LimitRule::new(name, limit).scope(scope)
}

/// The limits of a sidecar before a z/VM host: everything, in flight, and two functions.
fn policy(list_max: u32) -> Policy {
    let limits = vec![
        rule("total", Scope::Every, window(30)),
        rule("outstanding", Scope::Every, Limit::Outstanding { max: 1 }),
        rule(
            "backend",
            Scope::Backend(Backend(0)),
            Limit::Outstanding { max: u32::MAX },
        ),
        rule(
            "list",
            Scope::Function("guest_list".into()),
            window(list_max),
        ),
        rule("create", Scope::Function("guest_create".into()), window(30)),
    ];
    let classes = [("user", 10), ("polling", 1)];
    let classes = classes
        .map(|(name, weight)| ClassShare::new(name, weight))
        .to_vec();
    Policy::new(
        limits,
        1_000_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes,
    )
    .expect("a policy")
}

/// So many at once, and one a second.
fn tokens(burst: f64) -> BucketLimit {
    BucketLimit::Bucket {
        burst: Burst::new(burst).expect("a burst"),
        fill: Fill::new(1.0).expect("a rate"),
    }
}

/// A rate limit that lets through one call of one token a second.
fn bucket() -> BucketRule {
    BucketRule {
        name: "bucket".into(),
        limit: tokens(1.0),
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fair,
        settlement: Settlement::Estimate,
    }
}

/// A policy with one class and no limit.
fn no_limits() -> Policy {
    let classes = vec![ClassShare::new("only", 1)];
    Policy::new(
        Vec::new(),
        1_000_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes,
    )
    .expect("a policy")
}

/// As many callers as buckets, each with calls waiting in its own; no other limit.
struct Limited {
    scheduler: Scheduler<u64>,
    function: Arc<str>,
    now: Timestamp,
}

impl Limited {
    fn new(buckets: u64, waiting_each: u64) -> Self {
        let mut limited = Self {
            scheduler: Scheduler::new(no_limits()),
            function: "guest_list".into(),
            now: Timestamp::ZERO,
        };
        for caller in 0..buckets {
            // So that they do not all open at one moment.
            limited.now = limited.now + Duration::from_micros(100);
            let id = BucketId(caller);
            let set = limited.scheduler.set_bucket(limited.now, id, bucket());
            set.expect("not too many");
            for _ in 0..waiting_each {
                limited.submit(caller);
            }
            // One runs and is replaced.
            limited.run_due();
        }
        limited
    }

    fn submit(&mut self, caller: u64) {
        let call = Call::new(self.function.clone(), self.now)
            .caller(Caller(caller))
            .bucket(BucketId(caller));
        let submitted = self.scheduler.submit(self.now, call, caller);
        black_box(submitted).expect("there is room");
    }

    /// Runs and replaces whatever may run now; returns until when to sleep, and how many ran.
    fn run_due(&mut self) -> (Timestamp, u64) {
        let mut ran = 0;
        loop {
            match self.scheduler.next(self.now, &mut || 0) {
                Step::Run { payload, hold, .. } => {
                    self.scheduler.sent(self.now, &hold);
                    self.scheduler.finish(self.now, hold, Outcome::Served, None);
                    self.submit(payload);
                    ran += 1;
                }
                Step::SleepUntil(moment) => return (moment, ran),
                Step::Expired { .. } | Step::Idle => unreachable!("a call always waits"),
            }
        }
    }

    fn rounds(&mut self, rounds: u64) {
        let mut ran = 0;
        while ran < rounds {
            let (moment, more) = self.run_due();
            (self.now, ran) = (moment, ran + more);
        }
    }
}

fn measure_limited() {
    for (buckets, waiting) in [(1, 10_000), (10_000, 1), (10_000, 10)] {
        let mut limited = Limited::new(buckets, waiting);
        let what = format!("a call through one of {buckets} buckets, {waiting} waiting for each");
        measure(&what, STRETCHES, ROUNDS, || {
            timed(|| limited.rounds(ROUNDS))
        });
    }
    for (waiting, name) in [(1_000, "1000"), (100_000, "100000")] {
        let mut limited = Limited::new(1, waiting);
        let mut burst = 1.0;
        measure(&format!("set_bucket, {name} waiting"), 21, 1, || {
            burst += 1.0;
            let rule = BucketRule {
                limit: tokens(burst),
                ..bucket()
            };
            timed(|| {
                let set = limited.scheduler.set_bucket(limited.now, BucketId(0), rule);
                set.expect("it is there");
            })
        });
        measure(&format!("remove_bucket, {name} waiting"), 21, 1, || {
            let mut limited = Limited::new(1, waiting);
            timed(|| {
                limited
                    .scheduler
                    .remove_bucket(limited.now, BucketId(0), |_| None);
            })
        });
    }
}

/// A scheduler with calls waiting in it and one running.
struct Crowd {
    scheduler: Scheduler<u64>,
    functions: Vec<Arc<str>>,
    callers: u64,
    classes: u64,
    submitted: u64,
    now: Timestamp,
    running: Option<Hold>,
}

impl Crowd {
    fn new(waiting: u64, callers: u64, classes: u64) -> Self {
        let functions = ["guest_list", "guest_create", "guest_get_info", "other"];
        let functions = functions.map(Arc::from).into();
        Self::under(policy(30), functions, waiting, callers, classes)
    }

    fn under(
        policy: Policy,
        functions: Vec<Arc<str>>,
        waiting: u64,
        callers: u64,
        classes: u64,
    ) -> Self {
        let mut crowd = Self {
            scheduler: Scheduler::new(policy),
            functions,
            callers,
            classes,
            submitted: 0,
            now: Timestamp::ZERO,
            running: None,
        };
        for _ in 0..=waiting {
            crowd.submit();
        }
        crowd.step();
        crowd
    }

    fn submit(&mut self) {
        let n = self.submitted;
        self.submitted += 1;
        let call = Call::new(
            self.functions[n as usize % self.functions.len()].clone(),
            self.now,
        )
        .class(Class((n % self.classes) as u32))
        .caller(Caller(n % self.callers))
        .deadline(self.now + Duration::from_secs(1_000_000));
        black_box(self.scheduler.submit(self.now, call, n)).expect("there is room");
    }

    /// Does what the scheduler says until it sleeps.
    fn step(&mut self) {
        loop {
            match self.scheduler.next(self.now, &mut || 0) {
                Step::Run { payload, hold, .. } => {
                    black_box(payload);
                    self.scheduler.sent(self.now, &hold);
                    self.running = Some(hold);
                }
                Step::Expired { .. } => unreachable!("no call waits that long"),
                Step::SleepUntil(_) | Step::Idle => return,
            }
        }
    }

    /// Ends a call, submits one, and runs one.
    fn round(&mut self) {
        self.now = self.now + PACE;
        if let Some(hold) = self.running.take() {
            self.scheduler.finish(self.now, hold, Outcome::Served, None);
        }
        self.submit();
        self.step();
        assert!(
            self.running.is_some(),
            "the pace lets one call through each time"
        );
    }
}

/// Calls of many users that draw from quotas, each from tokens that are held: the store answers at
/// once, between the stretches.
struct Drawn {
    scheduler: Scheduler<u64>,
    function: Arc<str>,
    named: Vec<Option<Arc<[QuotaKey]>>>,
    records: BTreeMap<QuotaKey, (RecordVersion, QuotaRecord)>,
    calls: u64,
    now: Timestamp,
}

impl Drawn {
    /// Each call draws from N quotas: none, its user's, or that of all besides.
    fn new(users: usize, quotas: usize) -> Self {
        let mut scheduler = Scheduler::new(no_limits());
        let rule = QuotaRule {
            rule: WindowRule::check(RuleSettings::new(1_000_000_000, Duration::from_secs(3_600)))
                .expect("a rule"),
            own: Arc::default(),
            on_excess: OnExcess::Delay,
        };
        let names = ["rate_limit:per_user", "rate_limit:all"].map(Arc::<str>::from);
        let rules = names
            .iter()
            .map(|name| (Arc::clone(name), rule.clone()))
            .collect();
        scheduler.set_quotas(Timestamp::ZERO, rules, users + 1);
        let epoch = Duration::from_secs(1_800_000_000);
        let time = StoreTime::between(Timestamp::ZERO, epoch, epoch);
        scheduler.learn_store_time(Timestamp::ZERO, time);
        let all: Arc<str> = "all".into();
        let named = (0..users).map(|user| {
            let user = (names[0].clone(), format!("user-{user:05}").into());
            let keys = [user, (names[1].clone(), all.clone())];
            let keys = keys.into_iter().take(quotas);
            let keys = keys.map(|(quota, key)| QuotaKey { quota, key });
            (quotas > 0).then(|| keys.collect())
        });
        let mut drawn = Self {
            named: named.collect(),
            function: "guest_list".into(),
            records: BTreeMap::new(),
            calls: 0,
            now: Timestamp::ZERO,
            scheduler,
        };
        (0..users * 2).for_each(|_| drawn.round());
        drawn
    }

    /// Submits, runs and ends a call.
    fn round(&mut self) {
        self.calls += 1;
        self.now = self.now + Duration::from_micros(1);
        let call = Call::new(self.function.clone(), self.now)
            .quotas(self.named[self.calls as usize * 7 % self.named.len()].clone());
        black_box(self.scheduler.submit(self.now, call, self.calls)).expect("there is room");
        loop {
            match self.scheduler.next(self.now, &mut || 0) {
                Step::Run { hold, .. } => {
                    self.scheduler.sent(self.now, &hold);
                    self.scheduler.finish(self.now, hold, Outcome::Served, None);
                }
                Step::Expired { .. } => unreachable!("no call waits that long"),
                Step::SleepUntil(_) | Step::Idle if self.scheduler.asks_of_quotas() => {
                    for question in self.scheduler.quota_questions() {
                        self.answer(&question);
                    }
                }
                Step::SleepUntil(_) | Step::Idle => return,
            }
        }
    }

    fn answer(&mut self, question: &QuotaQuestion) {
        let stands = self.records.get(&question.of);
        let (of, came) = match question.ask {
            QuotaAsk::Time(of) => (of, StoreReply::Time),
            QuotaAsk::Read(of) => {
                let standing = match stands {
                    None => StoredRecord::Absent,
                    Some(&(version, record)) => StoredRecord::Record { version, record },
                };
                (of, StoreReply::Stands(standing))
            }
            QuotaAsk::Write(of, write) => {
                let version = RecordVersion(self.calls);
                let written = (version, write.record);
                self.records.insert(question.of.clone(), written);
                (of, StoreReply::Written(version))
            }
            QuotaAsk::Watch(_) | QuotaAsk::Settings => return,
        };
        self.scheduler
            .answer_quota(self.now, question.at, of, came, 0);
    }
}

/// Measures the cost that a quota adds to a call whose tokens are here.
fn measure_quotas() {
    for (users, quotas) in [(1, 0), (1, 1), (10_000, 0), (10_000, 1), (10_000, 2)] {
        let mut drawn = Drawn::new(users, quotas);
        let what = format!("submit + next + sent + finish, {users} users, {quotas} quotas a call");
        measure(&what, STRETCHES, ROUNDS, || {
            timed(|| (0..ROUNDS).for_each(|_| drawn.round()))
        });
    }
}

/// The time per round: of the median stretch, and of the shortest.
fn measure(what: &str, stretches: usize, rounds: u64, mut stretch: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..stretches).map(|_| stretch()).collect();
    times.sort_unstable();
    let per_round = |time: Duration| time.as_nanos() as f64 / rounds as f64;
    let (median, least) = (per_round(times[stretches / 2]), per_round(times[0]));
    println!("{what:<72} {median:>10.1} ns, at least {least:>10.1} ns");
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Takes from a bucket that just allows it, and one that never does.
fn measure_buckets() {
    const TAKES: u64 = 100_000;
    let (burst, fill) = (Burst::new(10.0), Fill::new(1e9));
    let mut passing = TokenBucket::new(
        Timestamp::ZERO,
        burst.expect("a burst"),
        fill.expect("a rate"),
    );
    let mut barring = passing.clone();
    barring.set_parameters(
        Timestamp::ZERO,
        passing.burst(),
        Fill::new(1e-6).expect("a rate"),
    );
    barring.draw(Timestamp::ZERO, Tokens::MAX);
    let mut now = 0;
    let mut take = |bucket: &mut TokenBucket| {
        timed(|| {
            for _ in 0..TAKES {
                now += 1;
                let now = Timestamp::from_nanos(black_box(now));
                black_box(bucket.try_take(now, black_box(Tokens::ONE)).is_ok());
            }
        })
    };
    measure("bucket: take that passes", STRETCHES, TAKES, || {
        take(&mut passing)
    });
    measure("bucket: take that does not", STRETCHES, TAKES, || {
        take(&mut barring)
    });
}

/// Ends all calls that wait, as a drain does whose time is up.
fn measure_evict() {
    for callers in [1, 100, 65_536] {
        let what = format!("evict all, 65536 waiting, {callers} callers");
        measure(&what, 11, 1, || {
            let mut crowd = Crowd::new(65_536, callers, 2);
            timed(|| while crowd.scheduler.evict(crowd.now).is_some() {})
        });
    }
}

/// A limit for each of 400 functions and a pool for each of 20 classes, with no call waiting and with
/// a call of each function and class.
fn measure_memory() {
    let functions: Vec<Arc<str>> = (0..400).map(|id| format!("f{id}").into()).collect();
    let of_functions = functions.iter().map(|name| {
        let scope = Scope::Function(name.clone());
        rule(name, scope, window(10))
    });
    let of_classes = (0..20).map(|class| {
        let scope = Scope::Class(Class(class));
        rule(
            &format!("pool {class}"),
            scope,
            Limit::Outstanding { max: 1 },
        )
    });
    let classes = (0..20).map(|class| ClassShare::new(format!("class {class}"), 1));
    let policy = Policy::new(
        of_functions.chain(of_classes).collect(),
        1_000_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes.collect(),
    )
    .expect("a policy");
    for waiting in [0, 8_000] {
        let (before, began) = (resident(), Instant::now());
        let crowd = Crowd::under(policy.clone(), functions.clone(), waiting, 20, 20);
        let took = began.elapsed();
        println!(
            "400 functions, 20 pools, {} waiting: {} kB, {took:?}",
            crowd.scheduler.waiting(),
            resident().saturating_sub(before)
        );
    }
}

/// Memory of this process that is in use, in kB; 0 where there is no /proc.
#[expect(clippy::disallowed_methods, reason = "nothing else runs meanwhile")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str| -> Option<u64> {
        let position = arguments.iter().position(|argument| argument == name)?;
        let number = arguments.get(position + 1)?.parse().ok();
        Some(number.unwrap_or_else(|| panic!("{name} takes a number")))
    };
    if let (Some(count), Some(quotas)) = (number("--count"), number("--quotas")) {
        let mut drawn = Drawn::new(number("--users").unwrap_or(1) as usize, quotas as usize);
        (0..count).for_each(|_| drawn.round());
        println!("{count} rounds, {} records", drawn.records.len());
        return;
    }
    if let (Some(count), Some(buckets)) = (number("--count"), number("--buckets")) {
        let mut limited = Limited::new(buckets, number("--waiting").unwrap_or(1));
        limited.rounds(count);
        println!("{} waiting, {count} rounds", limited.scheduler.waiting());
        return;
    }
    if let Some(callers) = number("--evict") {
        let mut crowd = Crowd::new(65_536, callers, 2);
        while crowd.scheduler.evict(crowd.now).is_some() {}
        return;
    }
    if let Some(count) = number("--count") {
        let waiting = number("--waiting").unwrap_or(10_000);
        let callers = number("--callers").unwrap_or(1);
        let mut crowd = Crowd::new(waiting, callers, number("--classes").unwrap_or(1));
        (0..count).for_each(|_| crowd.round());
        println!(
            "{} waiting, {count} rounds, {} asked",
            crowd.scheduler.waiting(),
            crowd.scheduler.check_count()
        );
        return;
    }
    // First, as long as nothing that was freed hides what it takes.
    measure_memory();
    measure_evict();
    measure_buckets();
    measure_quotas();
    measure_limited();
    for (waiting, callers, classes) in
        [(0, 1, 1), (10_000, 1, 1), (10_000, 100, 2), (100_000, 1, 1)]
    {
        let mut crowd = Crowd::new(waiting, callers, classes);
        let what = format!(
            "submit + next + sent + finish, {waiting} waiting, {callers} callers, {classes} classes"
        );
        measure(&what, STRETCHES, ROUNDS, || {
            timed(|| (0..ROUNDS).for_each(|_| crowd.round()))
        });
    }
    let mut crowd = Crowd::new(100_000, 1, 1);
    measure(
        "next with everything closed, 100000 waiting",
        STRETCHES,
        ROUNDS,
        || timed(|| (0..ROUNDS).for_each(|_| crowd.step())),
    );
    for callers in [1, 1000, 65_536] {
        let what = format!("evict, each of 65536 waiting, {callers} callers");
        measure(&what, 11, 65_536, || {
            let mut crowd = Crowd::new(65_536, callers, 2);
            timed(|| while crowd.scheduler.evict(crowd.now).is_some() {})
        });
    }
    let mut lower = false;
    measure("apply, 100000 waiting, 1 caller", 21, 1, || {
        lower = !lower;
        let policy = policy(if lower { 5 } else { 30 });
        timed(|| crowd.scheduler.apply(crowd.now, policy))
    });
    let mut crowd = Crowd::new(100_000, 1000, 2);
    measure("apply, 100000 waiting, 1000 callers", 21, 1, || {
        lower = !lower;
        let policy = policy(if lower { 5 } else { 30 });
        timed(|| crowd.scheduler.apply(crowd.now, policy))
    });
}
