//! Elections on real stores: one leads, another follows it in time, and never two at once.
//!
//! A candidate that is killed or paused is a process of its own: this test binary, as
//! [`candidate_process`].

use std::io::Read;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tidegate_runtime::election::{ElectionSettings, ElectionStore, Mastership, TimeToLive};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::child::{Found, Process};
use crate::relay::{Mode, Relay};
use crate::stores::{self, Etcd};
use crate::support::PATIENCE;

use crate::stores::ZooKeeper;

/// Short enough for a test; etcd has none shorter.
const TTL: Duration = Duration::from_secs(2);
/// A hand-over takes no longer.
const HAND_OVER: Duration = Duration::from_secs(3);
/// The environment variable that makes a process a candidate: the store, its servers, the
/// address, one line each.
const CANDIDATE: &str = "TIDEGATE_TEST_CANDIDATE";

fn place(store: &str, servers: &str) -> ElectionStore {
    match store {
        "etcd" => ElectionStore::Etcd {
            store: stores::settings(&servers.split(',').map(str::to_owned).collect::<Vec<_>>()),
            key: "/tidegate/master".into(),
        },
        "zookeeper" => ElectionStore::ZooKeeper {
            store: tidegate_runtime::zookeeper::ZooKeeperSettings::new(servers),
            path: "/tidegate/master".into(),
        },
        other => panic!("no store {other}"),
    }
}

fn settings(place: ElectionStore, address: &str) -> ElectionSettings {
    ElectionSettings {
        address: address.into(),
        time_to_live: TimeToLive::new(TTL).expect("two seconds are allowed"),
        place,
    }
}

/// A candidate of this process.
struct Running {
    told: watch::Receiver<Mastership>,
    clock: Clock,
    shutdown: CancellationToken,
}

impl Running {
    fn start(place: ElectionStore, address: &str) -> Self {
        let (clock, shutdown) = (Clock::of_runtime(), CancellationToken::new());
        let told = settings(place, address).start(clock, shutdown.clone());
        Self {
            told,
            clock,
            shutdown,
        }
    }

    async fn until(&mut self, what: &str, is: impl FnMut(&Mastership) -> bool) -> Mastership {
        let told = tokio::time::timeout(PATIENCE, self.told.wait_for(is)).await;
        let told = told.unwrap_or_else(|_| panic!("never {what}"));
        told.expect("it has not resigned").clone()
    }

    async fn leads(&mut self) -> u64 {
        let is = |told: &Mastership| matches!(told, Mastership::Master { .. });
        let Mastership::Master { until, term } = self.until("master", is).await else {
            unreachable!("it was waited for");
        };
        assert!(until > self.clock.now(), "a fence that lies behind");
        assert!(until < self.clock.now() + TTL, "a fence beyond its time");
        term
    }

    async fn follows(&mut self, address: &str) {
        let master = Mastership::Other(address.into());
        self.until(address, |told| *told == master).await;
    }

    /// Resigns, and waits until the store knows.
    async fn resigns(mut self) {
        self.shutdown.cancel();
        let ended = async { while self.told.changed().await.is_ok() {} };
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        ended.expect("it ends when it is stopped");
        assert_eq!(*self.told.borrow(), Mastership::Unknown);
    }
}

#[tokio::test]
async fn the_only_server_is_the_master_at_once_until_it_resigns() {
    let (clock, shutdown) = (Clock::of_runtime(), CancellationToken::new());
    let mut told = settings(ElectionStore::OneNode, "a").start(clock, shutdown.clone());
    assert!(told.borrow_and_update().holds_at(clock.now()));
    shutdown.cancel();
    told.changed().await.expect("it says that it has resigned");
    assert_eq!(*told.borrow_and_update(), Mastership::Unknown);
    told.changed().await.expect_err("and says no more");
}

#[test]
fn a_fence_ends_at_its_moment_and_no_other_has_one() {
    let until = Timestamp::from_nanos(10);
    let master = Mastership::Master { until, term: 1 };
    assert!(master.holds_at(Timestamp::from_nanos(9)));
    assert!(!master.holds_at(until));
    assert!(!Mastership::Other("a".into()).holds_at(Timestamp::ZERO));
    assert!(!Mastership::Unknown.holds_at(Timestamp::ZERO));
}

#[test]
fn a_time_to_live_is_from_a_second_to_an_hour() {
    for wrong in [0, 999, 3_600_001].map(Duration::from_millis) {
        assert_eq!(TimeToLive::new(wrong), None);
    }
    for right in [1_000, 3_600_000].map(Duration::from_millis) {
        assert_eq!(TimeToLive::new(right).map(TimeToLive::get), Some(right));
    }
}

async fn one_leads_and_hands_over_at_once_when_it_resigns(place: impl Fn() -> ElectionStore) {
    let mut first = Running::start(place(), "a:1");
    let term = first.leads().await;
    let mut others = [
        Running::start(place(), "b:2"),
        Running::start(place(), "c:3"),
    ];
    for other in &mut others {
        other.follows("a:1").await;
    }
    let resigned = tokio::time::Instant::now();
    first.resigns().await;
    let [mut second, mut third] = others;
    let next = tokio::select! {
        term = second.leads() => term,
        term = third.leads() => term,
    };
    let took = resigned.elapsed();
    println!("hand-over by resigning: {took:?}");
    // Far below the time to live, which is what a death costs.
    assert!(took < TTL / 2, "{took:?}");
    assert!(next > term, "a later mastership has a greater term");
    let one_leads = second.told.borrow().holds_at(second.clock.now());
    let (leader, mut follower, address) = if one_leads {
        (second, third, "b:2")
    } else {
        (third, second, "c:3")
    };
    follower.follows(address).await;
    leader.resigns().await;
    follower.leads().await;
    follower.resigns().await;
}

#[tokio::test]
async fn on_etcd_one_leads_and_hands_over_at_once_when_it_resigns() {
    let etcd = Etcd::start(1);
    let urls = etcd.urls().join(",");
    one_leads_and_hands_over_at_once_when_it_resigns(|| place("etcd", &urls)).await;
}

#[tokio::test]
async fn on_zookeeper_one_leads_and_hands_over_at_once_when_it_resigns() {
    let zookeeper = ZooKeeper::start(1).await;
    let servers = zookeeper.servers();
    one_leads_and_hands_over_at_once_when_it_resigns(|| place("zookeeper", &servers)).await;
}

/// Cuts a master off from its store in one way: its fence ends in time, another leads, and no moment belongs to
/// both.
async fn cut_off(mode: Mode, relay: &Relay, near: ElectionStore, far: ElectionStore) {
    let mut near = Running::start(near, "near:1");
    near.leads().await;
    let mut far = Running::start(far, "far:2");
    far.follows("near:1").await;
    relay.set(mode);
    let cut = tokio::time::Instant::now();
    // Both clocks run at one rate: that of this process. One moment tells them apart.
    far.until("master", |told| matches!(told, Mastership::Master { .. }))
        .await;
    let took = cut.elapsed();
    println!("hand-over when the master's way is {mode:?}: {took:?}");
    assert!(took < HAND_OVER, "{mode:?}: {took:?}");
    let told = near.told.borrow().clone();
    assert!(!told.holds_at(near.clock.now()), "{mode:?}: {told:?}");
    relay.set(Mode::Open);
    near.follows("far:2").await;
    far.resigns().await;
    near.leads().await;
    near.resigns().await;
}

#[tokio::test]
async fn a_master_that_etcd_cannot_hear_is_followed_in_time() {
    let etcd = Etcd::start(1);
    let relay = Relay::start(etcd.addr(0)).await;
    for mode in [Mode::Cut, Mode::Stalled, Mode::Deaf] {
        let near = place("etcd", &format!("http://{}", relay.addr));
        cut_off(mode, &relay, near, place("etcd", &etcd.url(0))).await;
    }
}

#[tokio::test]
async fn a_master_that_zookeeper_cannot_hear_is_followed_in_time() {
    let zookeeper = ZooKeeper::start(1).await;
    let relay = Relay::start(zookeeper.addr(0)).await;
    for mode in [Mode::Cut, Mode::Stalled, Mode::Deaf] {
        let near = place("zookeeper", &relay.addr.to_string());
        let far = place("zookeeper", &zookeeper.servers());
        cut_off(mode, &relay, near, far).await;
    }
}

#[tokio::test]
async fn a_foreign_value_at_the_key_is_not_changed_and_there_is_no_master() {
    let etcd = Etcd::start(1);
    etcd.control(&["put", "/tidegate/master", "something else"]);
    let mut running = Running::start(place("etcd", &etcd.url(0)), "a:1");
    // Long enough to have taken over, were it a candidate's.
    let leads = running.told.changed();
    let waited = tokio::time::timeout(2 * TTL, leads).await;
    assert!(waited.is_err(), "{:?}", running.told.borrow());
    let kept = etcd.control(&["get", "--print-value-only", "/tidegate/master"]);
    assert_eq!(kept.trim(), "something else");
    etcd.control(&["del", "/tidegate/master"]);
    running.leads().await;
    running.resigns().await;
}

/// The wall clock, which all processes of one machine share.
fn wall() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is long after 1970").as_nanos()
}

/// Does nothing, unless another test starts this binary for it: then it is a candidate that
/// prints every fence it is given, as the wall clock's moments, until its stdin ends.
#[test]
#[ignore = "what other tests run as a process of its own"]
fn candidate_process() {
    let Ok(told) = std::env::var(CANDIDATE) else {
        return;
    };
    let told: Vec<&str> = told.lines().collect();
    let [store, servers, address] = told[..] else {
        panic!("{told:?}");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be built").block_on(async {
        let running = Running::start(place(store, servers), address);
        let shutdown = running.shutdown.clone();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            shutdown.cancel();
        });
        let mut told = running.told;
        while told.changed().await.is_ok() {
            match told.borrow_and_update().clone() {
                Mastership::Master { until, term } => {
                    // Both clocks at one moment: if the process stood still between the
                    // readings, they are read again.
                    let (from, left) = loop {
                        let before = wall();
                        let left = until.since(running.clock.now());
                        if wall() - before < 1_000_000 {
                            break (before, left);
                        }
                    };
                    println!("master {from} {} {term}", from + left.as_nanos());
                }
                Mastership::Other(address) => println!("other {} {address}", wall()),
                Mastership::Unknown => println!("unknown"),
            }
        }
        println!("resigned");
    });
}

/// A candidate that is a process.
struct Candidate {
    process: Process,
    address: String,
}

/// While one is the master, by the wall clock.
#[derive(Clone, Copy, Debug)]
struct Fence {
    from: u128,
    until: u128,
    term: u64,
}

fn fence(line: &str) -> Option<Fence> {
    // libtest writes the test's name before its first line.
    let (_, numbers) = line.split_once("master ")?;
    let mut numbers = numbers.split(' ');
    Some(Fence {
        from: numbers.next()?.parse().ok()?,
        until: numbers.next()?.parse().ok()?,
        term: numbers.next()?.parse().ok()?,
    })
}

impl Candidate {
    fn start(store: &str, servers: &str, number: usize) -> Self {
        let address = format!("127.0.0.1:{number}");
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command
            .args([
                "--exact",
                "election::candidate_process",
                "--ignored",
                "--nocapture",
            ])
            .env(CANDIDATE, format!("{store}\n{servers}\n{address}"));
        let process = Process::start(format!("candidate {number}"), &mut command);
        Self { process, address }
    }

    fn fences(&self) -> Vec<Fence> {
        let lines = self.process.stdout.all();
        lines.iter().filter_map(|line| fence(line)).collect()
    }

    /// Waits for a fence that was given after a moment.
    fn leads_after(&self, moment: u128) -> Fence {
        self.process.stdout.until("master", PATIENCE, |lines| {
            let mut fences = lines.iter().filter_map(|line| fence(line));
            fences.find(|fence| fence.from > moment)
        })
    }

    /// Waits until it knows, after a moment, a master that is not this one; by the address.
    fn learns_after(&self, moment: u128, not: &str) -> String {
        self.process.stdout.until("a master", PATIENCE, |lines| {
            lines.iter().find_map(|line| {
                if fence(line).is_some_and(|fence| fence.from > moment) {
                    return Some(self.address.clone());
                }
                let (_, told) = line.split_once("other ")?;
                let (at, address) = told.split_once(' ')?;
                let after = at.parse::<u128>().ok()? > moment;
                (after && address != not).then(|| address.to_owned())
            })
        })
    }
}

/// No moment belongs to two of them.
fn disjoint(candidates: &[Candidate]) {
    let mut all: Vec<(Fence, &str)> = candidates
        .iter()
        .flat_map(|candidate| {
            let fences = candidate.fences();
            fences
                .into_iter()
                .map(|fence| (fence, candidate.address.as_str()))
        })
        .collect();
    all.sort_by_key(|(fence, _)| fence.from);
    for (at, (one, whose)) in all.iter().enumerate() {
        for (other, others) in &all[at + 1..] {
            if whose != others {
                assert!(
                    one.until <= other.from,
                    "{whose} has {one:?} and {others} has {other:?}"
                );
                assert!(one.term < other.term, "{one:?} and then {other:?}");
            }
        }
    }
}

/// Three candidates, of which the master is killed, and the next one paused for longer than its
/// time to live.
fn masters_that_die_or_stand_still_are_followed_in_time(store: &str, servers: &str) {
    let start = |number| Candidate::start(store, servers, number);
    let mut candidates = vec![start(1)];
    candidates[0].leads_after(0);
    candidates.extend([start(2), start(3)]);
    for follower in &candidates[1..] {
        follower.learns_after(0, &follower.address);
    }

    candidates[0].process.kill();
    let killed = wall();
    let address = candidates[1].learns_after(killed, &candidates[0].address);
    let next = usize::from(address != candidates[1].address) + 1;
    let fence = candidates[next].leads_after(killed);
    let took = Duration::from_nanos((fence.from - killed) as u64);
    println!("{store}: hand-over after SIGKILL: {took:?}");
    assert!(took < HAND_OVER, "{took:?}");

    // The other one knows it before it stands still.
    let last = 3 - next;
    candidates[last].learns_after(killed, &candidates[0].address);
    candidates[next].process.signal("STOP");
    let stopped = wall();
    let fence = candidates[last].leads_after(stopped);
    let took = Duration::from_nanos((fence.from - stopped) as u64);
    println!("{store}: hand-over after SIGSTOP: {took:?}");
    assert!(took < HAND_OVER, "{took:?}");
    candidates[next].process.signal("CONT");
    candidates[next].learns_after(stopped, &candidates[next].address);
    disjoint(&candidates);
}

#[test]
fn on_etcd_a_dead_or_stalled_master_is_replaced_in_time() {
    let etcd = Etcd::start(1);
    masters_that_die_or_stand_still_are_followed_in_time("etcd", &etcd.url(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn on_zookeeper_a_dead_or_stalled_master_is_replaced_in_time() {
    let zookeeper = ZooKeeper::start(1).await;
    let servers = zookeeper.servers();
    tokio::task::block_in_place(|| {
        masters_that_die_or_stand_still_are_followed_in_time("zookeeper", &servers);
    });
}

/// The fate of the leader among a store's servers.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Killed,
    Stopped,
}

/// Three servers of a store, of which the leader ends or stands still: the masters go on, or one
/// does again, and never two at once.
fn a_store_that_loses_its_leader(store: &str, servers: &str, leader: &mut Process, fate: Fate) {
    let candidates = [1, 2].map(|number| Candidate::start(store, servers, number));
    candidates[0].learns_after(0, "");
    match fate {
        Fate::Killed => leader.kill(),
        Fate::Stopped => leader.signal("STOP"),
    }
    let lost = wall();
    // Whatever the old leader could have confirmed has ended by then.
    let mut fence = leads_after(&candidates, lost + TTL.as_nanos());
    let took = Duration::from_nanos((fence.from - lost) as u64);
    println!("{store}: leads {took:?} after the store's leader was {fate:?}");
    if let Fate::Stopped = fate {
        leader.signal("CONT");
        fence.from = wall();
        // Three renewals with the old leader awake again.
        for _ in 0..3 {
            fence = leads_after(&candidates, fence.from);
        }
    }
    disjoint(&candidates);
}

/// The first fence that any of them is given after a moment.
fn leads_after(candidates: &[Candidate], moment: u128) -> Fence {
    let (tell, told) = std::sync::mpsc::channel();
    for candidate in candidates {
        let (lines, tell) = (candidate.process.stdout.clone(), tell.clone());
        std::thread::spawn(move || {
            let found = lines.find(PATIENCE, |lines| {
                let mut fences = lines.iter().filter_map(|line| fence(line));
                fences.find(|fence| fence.from > moment)
            });
            if let Found::It(fence) = found {
                // Another was faster, and no task listens any more.
                let _ = tell.send(fence);
            }
        });
    }
    drop(tell);
    told.recv().expect("one of them leads")
}

#[test]
fn masters_outlive_the_leader_of_their_etcd() {
    for fate in [Fate::Killed, Fate::Stopped] {
        let mut etcd = Etcd::start(3);
        let (urls, leader) = (etcd.urls().join(","), etcd.leader());
        a_store_that_loses_its_leader("etcd", &urls, etcd.member(leader), fate);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn masters_outlive_the_leader_of_their_zookeeper() {
    for fate in [Fate::Killed, Fate::Stopped] {
        let mut zookeeper = ZooKeeper::start(3).await;
        let (servers, leader) = (zookeeper.servers(), zookeeper.leader());
        tokio::task::block_in_place(|| {
            a_store_that_loses_its_leader("zookeeper", &servers, zookeeper.member(leader), fate);
        });
    }
}
