//! Paced rate limits through the stages, on paused time: a steady rate, and more for the late
//! until they have caught up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::admit::PacedLimit;
use tidegate::app;
use tidegate::call::costs::Costs;
use tidegate::callers::rate_limit::{Allowance, Size, SizePatch};
use tidegate::callers::{Error, NewRateLimit, RateLimitPatch};
use tidegate::config::{self, Severity};
use tidegate_callers::{CostUnit, Label, RateLimitId};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::scheduler::PacerNow;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::callers::{Came, Door, config_in_turn, named, size, who};
use crate::support;

/// Where a limit is found whose calls are those of one caller, all, or those of `guest_list`.
const FORMS: [&str; 3] = ["callers", "total", "function"];

/// A paced limit of this form, which every call of `guest_list` by `poll…` meets.
fn paced(form: &str, rate: f64, ratio: f64) -> String {
    let of = match form {
        "function" => "function = \"guest_list\"",
        _ => "",
    };
    let caller = match form {
        "callers" => {
            "[[caller]]\nlabel = \"poller\"\nmatch = { user_agent = \"poll*\" }\n\
             rate_limit = \"steady\""
        }
        _ => "",
    };
    format!(
        "[[pace]]\nname = \"steady\"\nrate = {rate}\n\
         ratio = {ratio}\napplies_to = \"{form}\"\n{of}\n{caller}"
    )
}

/// A door whose calls wait in turn.
fn door(more: &str) -> Arc<Door> {
    Arc::new(Door::open_in_turn(more))
}

/// The state of the limit, whichever form it has.
fn now(door: &Door) -> PacerNow {
    let bucket = door.gate.bucket_now(RateLimitId(1).bucket());
    let of_caller = bucket.and_then(|bucket| bucket.paced);
    of_caller.unwrap_or_else(|| {
        let (limits, _) = door.gate.limits_now();
        let mut limits = limits.into_iter();
        let found = limits.find(|(rule, _)| &*rule.name == "rate_limit:steady");
        found
            .and_then(|(_, state)| state.paced)
            .expect("there is a paced limit")
    })
}

/// Calls that come at once, and the moments at which they go, counted from `began`.
struct Going {
    calls: JoinSet<()>,
    went: Arc<Mutex<Vec<Duration>>>,
}

impl Going {
    fn start(door: &Arc<Door>, function: &'static str, count: usize, began: Instant) -> Self {
        let went = Arc::new(Mutex::new(Vec::new()));
        let mut calls = JoinSet::new();
        for number in 0..count {
            let (door, went) = (Arc::clone(door), Arc::clone(&went));
            // Two clients of one caller.
            let identity = who(["poll/1", "poll/2"][number % 2]);
            calls.spawn(async move {
                door.pass(&identity, function).await;
                went.lock().expect("no thread panics").push(began.elapsed());
            });
        }
        Self { calls, went }
    }

    async fn all(self) -> Vec<Duration> {
        self.calls.join_all().await;
        let mut went = self.went.lock().expect("no thread panics").clone();
        went.sort();
        went
    }

    fn so_far(&self) -> usize {
        self.went.lock().expect("no thread panics").len()
    }
}

fn seconds(it: Duration) -> f64 {
    it.as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn calls_go_at_the_rate_evenly_in_every_form() {
    for form in FORMS {
        let door = door(&paced(form, 100.0, 1.1));
        let went = Going::start(&door, "guest_list", 101, Instant::now());
        let went = went.all().await;
        for (number, at) in went.iter().enumerate() {
            let due = number as f64 / 100.0;
            assert!(
                (seconds(*at) - due).abs() < 0.0015,
                "{form}: call {number} went at {at:?}"
            );
        }
        assert_eq!(now(&door).drawn, 101.0, "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_holds_its_own_calls_and_no_others() {
    for form in FORMS {
        let door = door(&paced(form, 1.0, 1.0));
        let at = async |identity: &str, function: &str| {
            let began = Instant::now();
            door.pass(&who(identity), function).await;
            seconds(began.elapsed())
        };
        assert_eq!(at("poll", "guest_list").await, 0.0);
        let others = at("else", "guest_list").await;
        let functions = at("poll", "guest_get_info").await;
        let expected = match form {
            "callers" => (false, true),
            "total" => (true, true),
            _ => (true, false),
        };
        assert_eq!((others > 0.9, functions > 0.9), expected, "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_weigh_what_they_cost() {
    for form in FORMS {
        let costs = "[costs.functions]\nguest_list = 5\n";
        let door = door(&format!("{}\n{costs}", paced(form, 100.0, 1.1)));
        let went = Going::start(&door, "guest_list", 21, Instant::now())
            .all()
            .await;
        let took = seconds(*went.last().expect("there are some"));
        let pace = now(&door).pace;
        let (pool, last) = match form {
            // Two of its own calls fit into the pools. One token is there at the beginning: four
            // more are 40 ms away.
            "function" => (100.0, 1.04),
            // Two of the cheapest calls fit. The last call goes when the regular pool is full, and
            // leaves a debt.
            _ => (20.0, 1.008),
        };
        assert!((took - last).abs() < 0.002, "{form}: {took} s");
        assert_eq!(now(&door).drawn, 105.0, "{form}");
        assert_eq!(pace.largest().get(), 5, "{form}");
        // The regular pool and its burst, at a ratio of 1.1.
        let pools = millis(pace.pool() + pace.burst_pool());
        assert!((pools - pool).abs() < 0.001, "{form}: {pools} ms");
        assert!(
            (millis(pace.pool()) - pool / 1.1).abs() < 0.001,
            "{form}: {pace:?}"
        );
    }
}

fn millis(it: Duration) -> f64 {
    seconds(it) * 1e3
}

/// The costs of calls in the example config.
const EXAMPLE_COSTS: &str = "[costs.functions]\nguest_list = 2\nguest_start = 20\n\
     guest_delete = 50\nguest_deploy = 300\nguest_capture = 600\nguest_live_migrate = 600\n\
     image_import = 100\n";

#[tokio::test(start_paused = true)]
async fn expensive_functions_let_no_burst_of_cheap_calls_through() {
    for (form, ratio) in [
        ("callers", 1.1),
        ("total", 1.1),
        ("total", 1.5),
        ("total", 10.0),
    ] {
        let door = door(&format!("{}\n{EXAMPLE_COSTS}", paced(form, 10.0, ratio)));
        let fast = 10.0 * ratio;
        // No call arrives for 205 s.
        tokio::time::advance(Duration::from_secs(205)).await;
        let began = Instant::now();
        let calls = Going::start(&door, "guest_get_info", 100, began);
        let went = calls.all().await;
        let within = |limit: f64| went.iter().filter(|at| seconds(**at) < limit).count();
        assert_eq!(within(0.001), 2, "{form}, {ratio}: at once");
        let most = 2 + fast as usize;
        assert!(
            within(1.0) <= most,
            "{form}, {ratio}: {} in 1 s",
            within(1.0)
        );
        // No span of any length has more than the rate of the late and two calls.
        for (first, from) in went.iter().enumerate() {
            for (last, to) in went.iter().enumerate().skip(first) {
                // Above a ratio of 2 the regular pool holds less than one call, which goes on debt.
                let on_debt = if ratio > 2.0 { 1.0 } else { 0.0 };
                let most = 2.0 + on_debt + fast * (seconds(*to - *from) + 0.002);
                let went = (last - first + 1) as f64;
                assert!(went < most, "{form}, {ratio}: {from:?} to {to:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_expensive_call_goes_when_its_time_has_come_and_is_repaid_after_it() {
    for form in ["callers", "total"] {
        let door = door(&format!("{}\n{EXAMPLE_COSTS}", paced(form, 10.0, 1.0)));
        tokio::time::advance(Duration::from_secs(1)).await;
        let began = Instant::now();
        let expensive = Going::start(&door, "guest_delete", 1, began).all().await;
        assert!(seconds(expensive[0]) < 0.001, "{form}: {expensive:?}");
        // Two tokens were there, and 48 are owed: then two cheap calls fit again.
        let cheap = Going::start(&door, "guest_get_info", 21, began).all().await;
        assert!(
            (seconds(cheap[0]) - 4.9).abs() < 0.01,
            "{form}: {:?}",
            cheap[0]
        );
        let last = seconds(*cheap.last().expect("there are some"));
        assert!((last - 6.9).abs() < 0.01, "{form}: {last}");
    }
}

/// The late are repaid at the ratio also where each call leaves a debt of many pools.
#[tokio::test(start_paused = true)]
async fn expensive_calls_that_are_late_go_at_the_ratio() {
    for form in ["callers", "total"] {
        let door = door(&format!("{}\n{EXAMPLE_COSTS}", paced(form, 100.0, 1.5)));
        tokio::time::advance(Duration::from_secs(60)).await;
        let began = Instant::now();
        let went = Going::start(&door, "guest_delete", 31, began).all().await;
        // Thirty times 50 tokens at 150 a second.
        let took = seconds(*went.last().expect("there are some"));
        assert!((took - 10.0).abs() < 0.1, "{form}: {took} s");
    }
}

/// How long after a stall of two seconds calls go when they are due again, with as many
/// waiting as can be; and how many go in the first 5 ms. `None` if they still do not after
/// `most` seconds.
async fn repaid(form: &str, rate: f64, ratio: f64, most: f64) -> (Option<f64>, usize) {
    let door = door(&paced(form, rate, ratio));
    let began = Instant::now();
    let before = Going::start(&door, "guest_list", rate as usize, began);
    let mut went = before.all().await;
    tokio::time::advance(Duration::from_secs(3).saturating_sub(began.elapsed())).await;
    let count = rate * (2.0 + most);
    let after = Going::start(&door, "guest_list", count as usize, began);
    let after = after.all().await;
    let first = after.iter().filter(|at| seconds(**at) < 3.005).count();
    went.extend(after);
    let late = |number: usize, at: Duration| seconds(at) - number as f64 / rate;
    let mut numbered = went.iter().enumerate().skip(rate as usize);
    let on_time = numbered.find(|(number, at)| late(*number, **at) < 1.5 / rate);
    (on_time.map(|(_, at)| seconds(*at) - 3.0), first)
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_two_seconds_is_repaid_at_the_ratio_and_not_at_once() {
    for form in ["callers", "total"] {
        let (took, first) = repaid(form, 1000.0, 1.5, 4.2).await;
        let took = took.expect("it is repaid");
        println!("{form}: ratio 1.5 in {took} s, {first} in the first 5 ms");
        assert!((3.9..=4.2).contains(&took), "{form}: {took} s");
        assert!(first <= 10, "{form}: {first} in 5 ms");
        let (took, first) = repaid(form, 100.0, 1.1, 21.0).await;
        let took = took.expect("it is repaid");
        println!("{form}: ratio 1.1 in {took} s, {first} in the first 5 ms");
        assert!((19.5..=21.0).contains(&took), "{form}: {took} s");
        assert!(first <= 10, "{form}: {first} in 5 ms");
        // Strict: what a pause left unused is lost.
        let (took, first) = repaid(form, 100.0, 1.0, 10.0).await;
        assert_eq!((took, first), (None, 2), "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_leave_after_3_ms_draw_nothing_and_lose_no_rate() {
    for form in FORMS {
        let door = door(&paced(form, 1000.0, 1.1));
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..16 {
            let door = Arc::clone(&door);
            clients.spawn(async move {
                let identity = who("poll");
                let mut granted = 0;
                while began.elapsed() < Duration::from_secs(3) {
                    let call = door.pass(&identity, "guest_list");
                    let told = tokio::time::timeout(Duration::from_millis(3), call).await;
                    granted += u32::from(told.is_ok());
                }
                granted
            });
        }
        let granted: u32 = clients.join_all().await.into_iter().sum();
        assert!((2970..=3005).contains(&granted), "{form}: {granted}");
        assert_eq!(now(&door).drawn, f64::from(granted), "{form}");
    }
}

/// Takes another config, as a reload does.
fn reload(door: &Door, more: &str) {
    let config = config_in_turn(more);
    door.change(door.callers.apply(&config.callers));
    door.gate
        .apply(&app::with_costs(&config.admit, &door.callers));
}

#[tokio::test(start_paused = true)]
async fn a_reload_in_mid_wait_changes_the_pace_and_keeps_the_pools() {
    for form in FORMS {
        let door = door(&paced(form, 10.0, 1.1));
        let began = Instant::now();
        let going = Going::start(&door, "guest_list", 61, began);
        support::until(|| going.so_far() == 11, || going.so_far().to_string()).await;
        let before = now(&door);
        reload(&door, &paced(form, 100.0, 1.5));
        let after = now(&door);
        assert_eq!(after.drawn, before.drawn, "{form}");
        assert_eq!(after.pools.wait_time(), before.pools.wait_time(), "{form}");
        assert_eq!(after.pace.rate().get(), 100.0, "{form}");
        let reloaded = began.elapsed();
        let went = going.all().await;
        // Fifty more, at a hundred a second.
        let took = seconds(*went.last().expect("there are some") - reloaded);
        assert!((took - 0.5).abs() < 0.012, "{form}: {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_through_the_api_in_mid_wait_keeps_everybody() {
    let door = door("");
    let rate = |rate| Rate::new(rate).expect("a rate");
    let new = NewRateLimit::of(Size::Given(Allowance::Paced {
        rate: rate(10.0),
        ratio: BurstRatio::default(),
    }));
    let id = door.change(door.callers.create_rate_limit(door.clock.now(), new));
    door.change(door.callers.create(named("poller", "poll*", Some(id))));
    let began = Instant::now();
    let going = Going::start(&door, "guest_list", 111, began);
    support::until(|| going.so_far() == 11, || going.so_far().to_string()).await;
    let patch = |size| RateLimitPatch {
        size: Some(size),
        ..RateLimitPatch::default()
    };
    // The ratio stays.
    let faster = SizePatch::Paced {
        rate: Some(rate(100.0)),
        ratio: None,
    };
    let wait_time = now(&door).pools.wait_time();
    door.change(door.callers.patch_rate_limit(id, patch(faster)));
    assert_eq!(now(&door).pools.wait_time(), wait_time);
    assert_eq!(now(&door).pace.ratio(), BurstRatio::default());
    let changed = began.elapsed();
    support::until(|| going.so_far() == 61, || going.so_far().to_string()).await;
    let took = seconds(began.elapsed() - changed);
    assert!((took - 0.5).abs() < 0.012, "{took} s");
    // One of the other kind begins again, full.
    let bucket = SizePatch::Bucket {
        burst: Some(tidegate_limits::Burst::new(20.0).expect("a burst")),
        fill: Some(tidegate_limits::Fill::new(10.0).expect("a fill rate")),
    };
    let changed = began.elapsed();
    door.change(door.callers.patch_rate_limit(id, patch(bucket)));
    let went = going.all().await;
    let took = seconds(*went.last().expect("there are some") - changed);
    assert!((took - 3.0).abs() < 0.012, "{took} s");
    assert_eq!(went.len(), 111);
}

#[tokio::test(start_paused = true)]
async fn a_pace_needs_a_rate_and_a_bucket_has_none() {
    let door = door("");
    let now = door.clock.now();
    let id = door.change(
        door.callers
            .create_rate_limit(now, NewRateLimit::of(size(1.0, 1.0))),
    );
    let ratio = SizePatch::Paced {
        rate: None,
        ratio: Some(BurstRatio::STRICT),
    };
    let patch = RateLimitPatch {
        size: Some(ratio),
        ..RateLimitPatch::default()
    };
    let refused = door.callers.patch_rate_limit(id, patch);
    assert_eq!(refused.err(), Some(Error::SizeMissing("rate")));
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_all_calls_is_named_as_a_rate_limit_and_keeps_its_name_to_itself() {
    let door = door(&paced("total", 1.0, 1.0));
    let new = || {
        let mut new = NewRateLimit::of(size(1.0, 1.0));
        new.label = Some(Label::new("steady").expect("a label"));
        new
    };
    let refused = door.callers.create_rate_limit(door.clock.now(), new());
    assert_eq!(refused.err(), Some(Error::LabelInConfig("steady".into())));
    // Once it is gone the label is free; when it comes back, it has its way.
    reload(&door, "");
    let id = door.change(door.callers.create_rate_limit(door.clock.now(), new()));
    assert_eq!(&*door.callers.limits()[0].label, "steady");
    reload(&door, &paced("total", 1.0, 1.0));
    assert_eq!(*door.callers.limits()[0].label, id.to_string());
    // A call that waits for it is shown so, and one whose time is up is refused.
    door.pass(&who("a"), "guest_list").await;
    let waits = {
        let door = Arc::clone(&door);
        tokio::spawn(async move { door.call(&who("a"), "guest_list").await })
    };
    support::until(|| door.gate.busy().1 == 1, || "one waits".to_owned()).await;
    let queue = door.gate.queue_now();
    assert_eq!(
        queue.functions[0].held_by.as_deref(),
        Some("rate_limit:steady")
    );
    let (came, record) = waits.await.expect("it ends");
    assert!(matches!(came, Came::Through(_)));
    drop((came, record));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_could_go_only_too_late_is_refused_in_the_limits_name() {
    let door = door(&paced("total", 0.01, 1.0));
    door.pass(&who("a"), "guest_list").await;
    let (came, _record) = door.call(&who("a"), "guest_list").await;
    let Came::Refused(refusal) = came else {
        panic!("it went");
    };
    assert_eq!(refusal.limit.as_deref(), Some("rate_limit:steady"));
}

#[tokio::test(start_paused = true)]
async fn costs_that_are_changed_later_make_the_debts_larger_and_the_pools_smaller() {
    for form in ["callers", "total", "function"] {
        let text = paced(form, 100.0, 1.1);
        let door = door(&text);
        assert_eq!(now(&door).pace.largest().get(), 1, "{form}");
        let tokens = |tokens| TokenCount::new(tokens).expect("a count");
        let functions = [("guest_list", 2.5), ("guest_start", 20.0)];
        door.change(
            door.callers.put_costs(Costs {
                default: tokens(0.5),
                functions: functions
                    .map(|(name, cost)| (name.into(), tokens(cost)))
                    .into(),
                unit: CostUnit::default(),
                settle: false,
            }),
        );
        let admit = config_in_turn(&text).admit;
        door.gate.apply(&app::with_costs(&admit, &door.callers));
        let (largest, pool) = match form {
            // Its calls are all of one function.
            "function" => (3, 50.0),
            _ => (20, 10.0),
        };
        let pace = now(&door).pace;
        assert_eq!(pace.largest().get(), largest, "{form}");
        let pools = millis(pace.pool() + pace.burst_pool());
        assert!((pools - pool).abs() < 0.001, "{form}: {pools} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_time_burst_and_the_achieved_rate_are_measured() {
    for form in FORMS {
        let door = door(&paced(form, 100.0, 1.5));
        let began = Instant::now();
        Going::start(&door, "guest_list", 101, began).all().await;
        assert!(now(&door).pools.wait_time() < Duration::from_millis(2));
        tokio::time::advance(Duration::from_secs(9)).await;
        let idle = now(&door);
        let late = seconds(idle.pools.wait_time());
        assert!((late - 9.0).abs() < 0.002, "{form}: {late} s");
        // The pools are 20 ms, and a third of that is burst.
        let burst = millis(idle.pools.burst);
        assert!((burst - 20.0 / 3.0).abs() < 0.001, "{form}: {burst} ms");
        assert!(
            (idle.achieved - 10.1).abs() < 0.3,
            "{form}: {}",
            idle.achieved
        );
    }
}

// The config.

fn read(more: &str) -> Result<config::LoadedConfig, config::Problems> {
    let text = format!(
        "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:8080\"\n[backend]\n\
         socket = \"127.0.0.1:2000\"\nkind = \"zvm\"\nhttp = \"http://127.0.0.1:8081\"\n[limits]\n\
         per_window = \"total:30\"\n\
         max_wait = \"50s\"\n{more}\n"
    );
    config::read(&text, "config.toml", std::iter::empty())
}

/// The lines of a pace, of which exactly the last is a mistake that says these words.
#[track_caller]
fn wrong(lines: &str, key: &str, words: &[&str]) {
    let more = format!("[[pace]]\nname = \"a\"\n{lines}");
    let problems = read(&more).expect_err(&more);
    let errors: Vec<_> = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .collect();
    assert_eq!(errors.len(), 1, "{more}\n{problems}");
    let told = problems.plain(errors[0]);
    let line = 10 + more.lines().count();
    let place = format!("config.toml:{line}:");
    let key = format!(" pace[0].{key}: ");
    for word in [place.as_str(), &key].iter().chain(words) {
        assert!(told.contains(word), "{more}: no {word:?} in\n{told}");
    }
}

#[test]
fn a_check_prints_the_largest_burst_of_each_pace() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.toml");
    let text = format!(
        "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:8080\"\n[backend]\n\
         socket = \"127.0.0.1:2000\"\n[limits]\nper_window = \"total:30\"\n\
         [[pace]]\nname = \"all\"\nrate = 10\napplies_to = \"total\"\n\
         [[pace]]\nname = \"lists\"\nrate = 10\n\
         applies_to = \"function\"\nfunction = \"guest_list\"\n\
         [[pace]]\nname = \"own\"\nrate = 1000\nratio = 2\n{EXAMPLE_COSTS}"
    );
    std::fs::write(&path, text).expect("written");
    let report = tidegate::tools::check::report(&path, false);
    assert!(report.good, "{}", report.problems);
    let lines: Vec<&str> = report.settings.lines().collect();
    let burst_of = |name: &str| {
        let at = lines.iter().position(|line| line.starts_with(name));
        let line = lines[at.expect(name) + 1].trim_start();
        line.strip_prefix("largest burst")
            .expect(line)
            .trim()
            .to_owned()
    };
    assert_eq!(
        burst_of("rate_limit:all"),
        "2 calls of 1 token at once, or one call of 600 tokens, after which the next waits for up \
         to 59.9 s"
    );
    assert_eq!(burst_of("rate_limit:lists"), "2 calls of 2 tokens at once");
    assert_eq!(
        burst_of("rate_limit:own"),
        "4 calls of 1 token at once, or one call of 600 tokens, after which the next waits for up \
         to 0.597 s"
    );
}

#[test]
fn an_invalid_figure_is_reported_with_place_and_range() {
    for given in ["0", "-1", "nan", "inf", "-inf", "1e10", "0.0"] {
        let words = ["out of range", "give 0.0000001 to 1000000000"];
        wrong(&format!("rate = {given}"), "rate", &words);
    }
    for given in ["0", "-1", "nan", "inf", "0.99", "100.1"] {
        let words = ["out of range", "give 1 to 100"];
        let lines = format!("rate = 1\nratio = {given}");
        wrong(&lines, "ratio", &words);
    }
    for (given, word) in [
        ("", "a rate is missing"),
        ("abc", "must be a number"),
        ("0", "rate must be"),
        ("-1", "rate must be"),
        ("NaN", "rate must be"),
        ("inf", "rate must be"),
        ("10,0.9", "burst ratio must be"),
        ("10,0", "burst ratio must be"),
        ("10,NaN", "burst ratio must be"),
        ("10,1.1,restart", "says more than a rate and a ratio"),
        ("10,thread", "says more than a rate and a ratio"),
        ("10,1.1,fast", "not \"fast\""),
    ] {
        let lines = format!("rate = \"{given}\"");
        wrong(&lines, "rate", &[word, "such as \"12000,1.1\""]);
    }
    wrong("rate = true", "rate", &["not a number", "without quotes"]);
}

#[test]
fn a_key_of_another_section_is_reported_with_its_cure() {
    for (lines, key, words) in [
        (
            "rate = 1\nburst = 1",
            "burst",
            ["no option", "burst belongs in [[bucket]]"],
        ),
        (
            "rate = 1\nprofile = \"poller\"",
            "profile",
            ["no option", "profile belongs in [[bucket]]"],
        ),
        (
            "rate = \"1,1.5\"\nratio = 2",
            "ratio",
            ["given twice", "leave one of the two out"],
        ),
        (
            "rate = 1\nfunction = \"guest_list\"",
            "function",
            ["does not apply alone", "applies_to = \"function\""],
        ),
        (
            "rate = 1\napplies_to = \"totall\"",
            "applies_to",
            ["not one of the words", "did you mean \"total\"?"],
        ),
    ] {
        wrong(lines, key, &words);
    }
    for (line, key, cure) in [
        ("on_excess = \"reject\"", "on_excess", "postpone in [queue]"),
        ("order = \"fifo\"", "order", "postpone in [queue]"),
        ("settle = true", "settle", "estimated to cost"),
        ("max_wait = \"none\"", "max_wait", "max_wait in [limits]"),
    ] {
        let lines = format!("rate = 1\napplies_to = \"total\"\n{line}");
        wrong(&lines, key, &["not for callers", cure]);
        let fine = lines.replace("total", "callers");
        read(&format!("[[pace]]\nname = \"a\"\n{fine}")).expect("callers have it");
    }
}

#[test]
fn a_missing_key_is_reported_at_its_section() {
    let missing = |lines: &str, word: &str| {
        let more = format!("[[pace]]\nname = \"a\"\n{lines}");
        let told = read(&more).expect_err(&more).to_string();
        assert!(told.contains(word), "{more}: no {word:?} in\n{told}");
    };
    missing("", "has no rate");
    missing("ratio = 1.5", "has no rate");
    missing("rate = 1\napplies_to = \"function\"", "names none");
    // At a rate of one in 116 days, a million tokens are not to be waited for.
    missing(
        "rate = 0.0000001\n[costs]\ndefault = 1000000",
        "takes a lifetime",
    );
    missing(
        "rate = 1\napplies_to = \"total\"\n[[caller]]\nlabel = \"b\"\n\
         match = { ip = \"10.0.0.1\" }\nrate_limit = \"a\"",
        "is not for callers",
    );
    let exempt = read(
        "exempt = [\"guest_list\"]\n[[pace]]\nname = \"a\"\nrate = 1\n\
         applies_to = \"function\"\nfunction = \"guest_list\"",
    );
    let told = exempt.expect_err("it meets no limit").to_string();
    assert!(told.contains("is exempt from every limit"), "{told}");
}

#[test]
fn a_function_that_no_call_can_have_is_refused_with_the_nearest_name() {
    let told = read(
        "[[pace]]\nname = \"a\"\nrate = 1\napplies_to = \"function\"\n\
         function = \"guest_lits\"",
    )
    .expect_err("it would protect nothing");
    let told = told.to_string();
    assert!(told.contains("did you mean \"guest_list\"?"), "{told}");
}

#[test]
fn the_config_in_effect_says_the_same_again() {
    let more = "\
[[pace]]
name = \"polls\"
rate = \"1.2K,1.5\"
mode = \"observe\"
[[pace]]
name = \"all\"
rate = 0.25
applies_to = \"total\"
[[pace]]
name = \"lists\"
rate = 12
ratio = 1
applies_to = \"function\"
function = \"guest_list\"
[costs]
functions = { guest_list = 2.5, guest_start = 20 }
";
    let config = read(more).expect("it is good").config;
    let polls = &config.callers.rate_limits[0].rule;
    assert_eq!(
        polls.allowance,
        Allowance::Paced {
            rate: Rate::new(1200.0).expect("a rate"),
            ratio: BurstRatio::new(1.5).expect("a ratio"),
        }
    );
    let [all, lists] = &config.admit.paced[..] else {
        panic!("{:?}", config.admit.paced);
    };
    assert_eq!((all.rate.get(), all.ratio.get()), (0.25, 1.1));
    let range = |limit: &PacedLimit| (limit.costs.cheapest.get(), limit.costs.most_expensive.get());
    assert_eq!((&all.function, range(all)), (&None, (1.0, 20.0)));
    assert_eq!(lists.function.as_deref(), Some("guest_list"));
    assert_eq!((lists.ratio.get(), range(lists)), (1.0, (2.5, 2.5)));
    let text = config::effective(&config);
    let again = config::read(&text, "effective.toml", std::iter::empty());
    assert_eq!(again.expect("it can be read").config, config, "{text}");
}

#[test]
fn the_environment_says_it_too() {
    let text = "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:8080\"\n[backend]\n\
                socket = \"127.0.0.1:2000\"\n[limits]\nper_window = \"total:30\"\n\
                [[pace]]\nname = \"all\"\nrate = 5\napplies_to = \"total\"\n";
    let variables = [
        ("TIDEGATE_PACE__0__RATE", "7.5"),
        ("TIDEGATE_PACE__0__RATIO", "1.25"),
    ];
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    let config = config::read(text, "config.toml", variables.into_iter());
    let config = config.expect("it is good").config;
    let all = &config.admit.paced[0];
    assert_eq!((all.rate.get(), all.ratio.get()), (7.5, 1.25));
}
