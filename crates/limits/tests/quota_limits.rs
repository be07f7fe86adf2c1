//! Quotas in the scheduler: several nodes, each with a scheduler of its own, share a store whose
//! replies take a while, all in virtual time.
//!
//! What is drawn and when is the ledger's business, and tested there. Here it is about calls: that
//! each draws from all that it names or from none, that no call waits while what it needs is held,
//! nor behind a key that is not its own, and that no window is spent beyond its total, whatever is
//! forgotten, reloaded or given back meanwhile.

#[path = "quota_limits/keys.rs"]
mod keys;
mod random;
#[path = "quota_limits/silent_store.rs"]
mod silent_store;
#[path = "quota_limits/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, WhenFull};
use tidegate_limits::quota::{
    DrawMode, OutagePolicy, QuestionId, RuleSettings, StoreReply, StoreTime, WindowRule,
};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, Outcome, QuotaAsk, QuotaQuestion, QuotaRef,
    QuotaRule, QuotaSpent, Refusal, RefusalReason, Settlement,
};
use tidegate_limits::{
    Burst, Call, Caller, Class, Fill, Limit, Policy, Scheduler, Ticket, Timestamp, Tokens,
};
use tidegate_replay::{Agenda, Decision, Ranked, RecordStore, Replay};

use random::seeds;
use world::World;

const USER: &str = "rate_limit:per_user";
const TOTAL: &str = "rate_limit:all";
/// The store's time when the local clocks of all nodes are at zero.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn settings(total: u64) -> RuleSettings {
    RuleSettings {
        away: OutagePolicy::Deny,
        ..RuleSettings::new(total, ms(1_000))
    }
}

fn quota(settings: RuleSettings) -> QuotaRule {
    QuotaRule {
        rule: WindowRule::check(settings).expect("a sound rule"),
        own: Arc::default(),
        on_excess: OnExcess::Delay,
    }
}

fn rejecting(settings: RuleSettings) -> QuotaRule {
    QuotaRule {
        on_excess: OnExcess::Reject,
        ..quota(settings)
    }
}

fn key(quota: &str, key: &str) -> QuotaKey {
    QuotaKey {
        quota: quota.into(),
        key: key.into(),
    }
}

fn of_user(user: &str) -> QuotaKey {
    key(USER, user)
}

/// A node, whose events are planned elsewhere.
type Node = Replay<u64, Infallible>;

fn policy(limits: Vec<LimitRule>, capacity: u32) -> Policy {
    let class = |name: &str| ClassShare::new(name, 1);
    let classes = vec![class("user"), class("polling")];
    Policy::new(
        limits,
        capacity,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes,
    )
    .expect("sound")
}

fn node(rules: &[(&str, QuotaRule)]) -> Node {
    let mut node = Replay::new(Scheduler::new(policy(Vec::new(), 1_000)));
    set(&mut node, rules, 1_000);
    node
}

fn set(node: &mut Node, rules: &[(&str, QuotaRule)], keys_max: usize) {
    let rules = rules
        .iter()
        .map(|(name, rule)| ((*name).into(), rule.clone()));
    let scheduler = node.scheduler_mut();
    scheduler.set_quotas(Timestamp::ZERO, rules.collect(), keys_max);
}

fn at(now: Duration) -> Timestamp {
    Timestamp::ZERO + now
}

fn call(now: Duration, quotas: &[QuotaKey]) -> Call {
    Call::new("guest_list", at(now)).quotas((!quotas.is_empty()).then(|| quotas.into()))
}

fn costing(tokens: f64, call: Call) -> Call {
    call.tokens(Tokens::new(tokens).expect("a cost"))
}

/// A node and its store, whose every reply comes at once.
struct Alone {
    node: Node,
    store: RecordStore,
    now: Duration,
    calls: u64,
    spent: BTreeMap<u64, Vec<QuotaSpent>>,
    refused: BTreeMap<u64, Refusal>,
    /// Who is to be told of changes.
    watches: BTreeSet<QuotaRef>,
    answers: bool,
    unanswered: Vec<QuotaQuestion>,
}

impl Alone {
    fn new(rules: &[(&str, QuotaRule)]) -> Self {
        let mut alone = Self {
            node: node(rules),
            store: RecordStore::default(),
            now: Duration::ZERO,
            calls: 0,
            spent: BTreeMap::new(),
            refused: BTreeMap::new(),
            watches: BTreeSet::new(),
            answers: true,
            unanswered: Vec::new(),
        };
        alone.go_to(ms(0));
        alone
    }

    /// The moment is this, in the middle of whatever the store's windows are then.
    fn go_to(&mut self, now: Duration) {
        self.now = now;
        let time = StoreTime::between(at(now), EPOCH + now, EPOCH + now);
        self.node.scheduler_mut().learn_store_time(at(now), time);
        self.run();
    }

    fn submit(&mut self, call: Call) -> Result<(u64, Ticket), Refusal> {
        let id = self.calls;
        self.calls += 1;
        self.node.advance(at(self.now));
        let submitted = self.node.submit(id, call);
        self.run();
        submitted.map(|ticket| (id, ticket))
    }

    fn call(&mut self, quotas: &[QuotaKey]) -> u64 {
        let call = call(self.now, quotas);
        self.submit(call).expect("it is taken in").0
    }

    fn went(&self, id: u64) -> bool {
        self.spent.contains_key(&id)
    }

    fn run(&mut self) {
        self.node.advance(at(self.now));
        loop {
            match self.node.decide(&mut || 0) {
                Some(Decision::Admitted { call, spent, .. }) => {
                    self.spent.insert(call, spent);
                }
                Some(Decision::Refused { call, refusal, .. }) => {
                    self.refused.insert(call, refusal);
                }
                None => {
                    self.node.scheduler_mut().audit();
                    let mut questions = self.node.scheduler_mut().quota_questions();
                    // This store configures nothing.
                    questions.retain(|question| question.ask != QuotaAsk::Settings);
                    if questions.is_empty() {
                        return;
                    }
                    if !self.answers {
                        self.unanswered.extend(questions);
                        return;
                    }
                    for question in questions {
                        self.answer(&question);
                    }
                }
            }
        }
    }

    fn answer(&mut self, question: &QuotaQuestion) {
        let answered = self.store.answer(&question.of, question.ask);
        let Some((of, came)) = answered else {
            self.watches.insert(question.at);
            return;
        };
        let now = at(self.now);
        self.node
            .scheduler_mut()
            .answer_quota(now, question.at, of, came, 0);
    }

    fn answer_now(&mut self) {
        self.answers = true;
        for question in std::mem::take(&mut self.unanswered) {
            self.answer(&question);
        }
        self.run();
    }

    fn held(&self, of: &QuotaKey) -> u64 {
        let quota = self.node.scheduler().quota_now(at(self.now), of);
        quota.expect("it was named").ledger.held
    }

    fn settle(&mut self, id: u64, tokens: f64) {
        self.node.advance(at(self.now));
        let measured = Tokens::new(tokens).ok();
        assert!(self.node.finish(id, Outcome::Served, measured), "it runs");
        self.run();
    }

    fn give_back(&mut self, id: u64) {
        self.node.advance(at(self.now));
        assert!(self.node.give_back(id), "it runs");
        self.run();
    }
}

fn one_by_user(total: u64) -> Alone {
    Alone::new(&[(USER, quota(settings(total)))])
}

#[test]
fn each_user_spends_its_own_tokens_and_waits_for_the_next_window() {
    let mut gate = one_by_user(3);
    let alice: Vec<_> = (0..5).map(|_| gate.call(&[of_user("alice")])).collect();
    let bob = gate.call(&[of_user("bob")]);
    let went = |gate: &Alone| alice.iter().filter(|&&id| gate.went(id)).count();
    assert_eq!(went(&gate), 3, "a window has three");
    assert!(gate.went(bob), "no call waits behind another key");
    gate.go_to(ms(999));
    assert_eq!(went(&gate), 3);
    gate.go_to(ms(1_000));
    assert_eq!(went(&gate), 5, "and so has the next");
    let first = &gate.spent[&alice[0]];
    assert_eq!(first[0].of, of_user("alice"));
    assert_eq!((first[0].total, first[0].cost), (3, 1));
    let window = |id: u64| gate.spent[&id][0].window.expect("it was drawn");
    assert_eq!(window(alice[4]), window(alice[0]) + 1);
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    let how = (counts.local, counts.drew, counts.waited);
    assert_eq!(
        how,
        (4, 0, 2),
        "a draw that is answered at once holds no call"
    );
}

#[test]
fn a_call_that_names_two_quotas_draws_from_both_or_from_none() {
    let all = key(TOTAL, "all");
    let mut gate = Alone::new(&[(USER, quota(settings(10))), (TOTAL, quota(settings(4)))]);
    let expensive = costing(4.0, call(gate.now, &[of_user("alice"), all.clone()]));
    gate.submit(expensive).expect("it is covered");
    let before = gate.held(&of_user("alice"));
    let waits = gate.call(&[of_user("alice"), all.clone()]);
    assert!(!gate.went(waits), "nothing is left for all");
    assert_eq!(
        gate.held(&of_user("alice")),
        before,
        "and nothing was taken of hers"
    );
    let only_hers = gate.call(&[of_user("alice")]);
    assert!(!gate.went(only_hers) || gate.held(&of_user("alice")) < before);
    gate.go_to(ms(1_000));
    assert!(gate.went(waits));
    let spent: Vec<_> = gate.spent[&waits]
        .iter()
        .map(|one| one.of.clone())
        .collect();
    assert_eq!(spent, [of_user("alice"), all]);
}

#[test]
fn a_quota_named_twice_is_drawn_once() {
    let mut gate = one_by_user(3);
    let id = gate.call(&[of_user("alice"), of_user("alice")]);
    assert_eq!(gate.spent[&id].len(), 1);
}

#[test]
fn part_of_a_token_counts_as_a_whole_one() {
    let mut gate = one_by_user(4);
    let half = costing(1.5, call(gate.now, &[of_user("alice")]));
    let (id, _) = gate.submit(half).expect("it is covered");
    assert_eq!(gate.spent[&id][0].cost, 2);
    let free = costing(0.0, call(gate.now, &[of_user("alice")]));
    let (id, _) = gate.submit(free).expect("it costs nothing");
    assert_eq!(gate.spent[&id][0].cost, 0);
}

#[test]
fn a_call_that_costs_more_than_a_window_is_refused_for_good() {
    let mut gate = one_by_user(3);
    let expensive = costing(4.0, call(gate.now, &[of_user("alice")]));
    let refusal = gate.submit(expensive).expect_err("it never fits");
    assert_eq!(refusal.reason, RefusalReason::NeverPossible);
    assert_eq!(refusal.limit.as_deref(), Some(USER));
}

#[test]
fn a_call_that_may_not_wait_is_refused_with_the_windows_end() {
    let mut gate = Alone::new(&[(USER, rejecting(settings(2)))]);
    gate.go_to(ms(400));
    for _ in 0..2 {
        let id = gate.call(&[of_user("alice")]);
        assert!(
            gate.went(id),
            "what a draw covers is not refused, though it has to be drawn"
        );
    }
    let third = call(gate.now, &[of_user("alice")]);
    let refusal = gate.submit(third).expect_err("nothing is left");
    assert_eq!(refusal.reason, RefusalReason::RateLimited);
    assert_eq!(refusal.limit.as_deref(), Some(USER));
    let until = gate.now + refusal.retry_after;
    assert!((ms(1_000)..ms(1_001)).contains(&until), "{until:?}");
    let bob = gate.call(&[of_user("bob")]);
    assert!(gate.went(bob));
    gate.go_to(ms(1_000));
    let id = gate.call(&[of_user("alice")]);
    assert!(gate.went(id));
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert_eq!((counts.local, counts.refused), (4, 1));
}

#[test]
fn a_waiting_call_that_may_not_wait_is_refused_once_no_tokens_are_left() {
    let mut gate = Alone::new(&[(USER, rejecting(settings(2)))]);
    gate.answers = false;
    let ids: Vec<_> = (0..4).map(|_| gate.call(&[of_user("alice")])).collect();
    assert!(
        gate.spent.is_empty() && gate.refused.is_empty(),
        "a draw is under way"
    );
    gate.now = ms(20);
    gate.answer_now();
    let went = ids.iter().filter(|&&id| gate.went(id)).count();
    assert_eq!((went, gate.refused.len()), (2, 2));
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert_eq!(
        (counts.drew, counts.refused),
        (2, 2),
        "they waited for the store"
    );
    assert!(
        gate.refused
            .values()
            .all(|it| it.reason == RefusalReason::RateLimited)
    );
}

#[test]
fn a_call_with_a_deadline_before_the_windows_end_is_refused_at_once() {
    let mut gate = one_by_user(1);
    gate.call(&[of_user("alice")]);
    let mut hurried = call(gate.now, &[of_user("alice")]);
    hurried.deadline = Some(at(ms(999)));
    let refusal = gate
        .submit(hurried.clone())
        .expect_err("it would be too late");
    assert_eq!(refusal.reason, RefusalReason::DeadlineUnreachable);
    assert_eq!(refusal.limit.as_deref(), Some(USER));
    hurried.deadline = Some(at(ms(1_002)));
    let (id, _) = gate.submit(hurried).expect("it can wait so long");
    gate.go_to(ms(1_001));
    assert!(gate.went(id));
}

#[test]
fn a_call_that_is_not_sent_returns_its_tokens() {
    let mut gate = one_by_user(1);
    let first = gate.call(&[of_user("alice")]);
    let second = gate.call(&[of_user("alice")]);
    assert!(!gate.went(second));
    gate.give_back(first);
    assert!(gate.went(second), "in the same window");
}

#[test]
fn a_call_put_back_keeps_its_turn_and_draws_anew() {
    let mut gate = one_by_user(1);
    let first = gate.call(&[of_user("alice")]);
    let second = gate.call(&[of_user("alice")]);
    gate.spent.remove(&first);
    gate.node.requeue(first).expect("it runs");
    gate.run();
    assert!(gate.went(first) && !gate.went(second));
}

#[test]
fn calls_that_wait_for_a_quota_that_is_taken_away_wait_for_the_rest() {
    let mut gate = Alone::new(&[(USER, quota(settings(1))), (TOTAL, quota(settings(2)))]);
    let all = key(TOTAL, "all");
    let named = [of_user("alice"), all.clone()];
    let ids: Vec<_> = (0..3).map(|_| gate.call(&named)).collect();
    let went = |gate: &Alone| ids.iter().filter(|&&id| gate.went(id)).count();
    assert_eq!(went(&gate), 1);
    set(&mut gate.node, &[(TOTAL, quota(settings(2)))], 1_000);
    gate.run();
    assert_eq!(went(&gate), 2, "the total still holds the third");
    assert!(
        gate.node
            .scheduler()
            .quota_now(at(gate.now), &named[0])
            .is_none()
    );
    assert!(gate.node.scheduler().quota_counts(USER).is_none());
    assert_eq!(gate.node.scheduler_mut().forgotten_quotas().len(), 1);
    set(
        &mut gate.node,
        &[(USER, quota(settings(1))), (TOTAL, quota(settings(2)))],
        1_000,
    );
    gate.run();
    gate.go_to(ms(1_000));
    assert_eq!(
        went(&gate),
        3,
        "a quota that comes back holds calls that name it"
    );
}

#[test]
fn a_changed_total_holds_from_the_next_window_on() {
    let mut gate = one_by_user(2);
    let ids: Vec<_> = (0..12).map(|_| gate.call(&[of_user("alice")])).collect();
    let went = |gate: &Alone| ids.iter().filter(|&&id| gate.went(id)).count();
    set(&mut gate.node, &[(USER, quota(settings(5)))], 1_000);
    gate.run();
    assert_eq!(went(&gate), 2);
    gate.go_to(ms(1_000));
    assert_eq!(went(&gate), 7);
}

#[test]
fn one_key_may_have_a_rule_of_its_own() {
    let mut gate = one_by_user(1);
    gate.answers = false;
    let ids: Vec<_> = (0..4).map(|_| gate.call(&[of_user("alice")])).collect();
    let alice = gate.unanswered[0].at;
    let own = quota(settings(3)).rule;
    assert!(
        gate.node
            .scheduler_mut()
            .set_quota_rule(at(gate.now), alice, Some(own))
    );
    gate.answer_now();
    let went = |gate: &Alone| ids.iter().filter(|&&id| gate.went(id)).count();
    assert_eq!(
        went(&gate),
        3,
        "it is there before the first window is opened"
    );
    let bob: Vec<_> = (0..2).map(|_| gate.call(&[of_user("bob")])).collect();
    assert!(
        gate.went(bob[0]) && !gate.went(bob[1]),
        "others have the common one"
    );
    assert!(
        gate.node
            .scheduler_mut()
            .set_quota_rule(at(gate.now), alice, None)
    );
    gate.run();
    gate.go_to(ms(1_000));
    assert_eq!(went(&gate), 4);
    let late = gate.call(&[of_user("alice")]);
    assert!(!gate.went(late), "hers is one again");
}

#[test]
fn a_rule_that_a_quota_has_for_a_key_holds_from_its_first_call() {
    let shared = |total| RuleSettings {
        away: OutagePolicy::Safe { percent: 50 },
        ..settings(total)
    };
    let own = |key: &str, total| (key.into(), quota(shared(total)).rule);
    let rule = QuotaRule {
        own: Arc::new([own("mallory", 0), own("alice", 4)].into()),
        ..rejecting(shared(100))
    };
    let mut gate = Alone::new(&[(USER, rule.clone())]);
    // From here on each new key has its own share, which needs no answer of the store.
    gate.answers = false;
    gate.go_to(ms(3_000));
    let submit = |gate: &mut Alone, user: &str| {
        let call = call(gate.now, &[of_user(user)]);
        gate.submit(call).map_err(|refusal| refusal.reason)
    };
    assert_eq!(
        submit(&mut gate, "mallory").err(),
        Some(RefusalReason::NeverPossible)
    );
    let went = |gate: &mut Alone, user: &str| {
        let ids: Vec<_> = (0..60).filter_map(|_| submit(gate, user).ok()).collect();
        ids.iter().filter(|&&(id, _)| gate.went(id)).count()
    };
    assert_eq!((went(&mut gate, "alice"), went(&mut gate, "bob")), (2, 50));
    // What overrules it goes, and what the quota has is back, also after a reload.
    let alice = gate.node.scheduler().quota_ref(&of_user("alice"));
    let alice = alice.expect("it is known");
    let total = |gate: &Alone| {
        let now = gate
            .node
            .scheduler()
            .quota_now(at(gate.now), &of_user("alice"));
        now.expect("it is known").rule.settings().total
    };
    for (overrules, expected) in [(Some(quota(shared(7)).rule), 7), (None, 4)] {
        gate.node
            .scheduler_mut()
            .set_quota_rule(at(gate.now), alice, overrules);
        assert_eq!(total(&gate), expected);
        set(&mut gate.node, &[(USER, rule.clone())], 1_000);
        assert_eq!(total(&gate), expected);
    }
}

#[test]
fn a_node_whose_past_is_known_spends_its_own_share_of_the_window_that_runs() {
    let shared = RuleSettings {
        away: OutagePolicy::Safe { percent: 50 },
        ..settings(100)
    };
    let check = |from: Duration, expected: usize| {
        let mut gate = Alone::new(&[(USER, rejecting(shared))]);
        gate.answers = false;
        let known = gate.call(&[of_user("alice")]);
        assert!(!gate.went(known), "it may have run before");
        gate.node.scheduler_mut().set_quota_past(at(gate.now), from);
        gate.run();
        assert_eq!(gate.went(known), expected > 0);
        let ids: Vec<_> = (0..60).map(|_| gate.call(&[of_user("bob")])).collect();
        let went = ids.iter().filter(|&&id| gate.went(id)).count();
        assert_eq!(went, expected, "from {from:?}");
        let until = gate.node.scheduler().quota_shares_until();
        let spent = if expected > 0 {
            EPOCH + ms(1_000)
        } else {
            ms(0)
        };
        assert_eq!(until, spent);
        // Not twice in this window.
        gate.go_to(ms(500));
        gate.node.scheduler_mut().set_quota_past(at(gate.now), from);
        gate.run();
        assert!(!gate.went(gate.calls - 1));
    };
    check(EPOCH, 50);
    check(ms(0), 50);
    check(EPOCH + ms(1_000), 0);
}

#[test]
fn a_call_that_costs_nothing_spends_no_share_before_the_stores_time_is_known() {
    let shared = RuleSettings {
        away: OutagePolicy::Safe { percent: 50 },
        ..settings(100)
    };
    let mut node = node(&[(USER, rejecting(shared))]);
    let free = costing(0.0, call(Duration::ZERO, &[of_user("alice")]));
    node.submit(0, free).expect("it is taken in");
    assert!(matches!(
        node.decide(&mut || 0),
        Some(Decision::Admitted { call: 0, .. })
    ));
    assert_eq!(node.scheduler().quota_shares_until(), Duration::ZERO);
}

#[test]
fn calls_wait_for_other_limits_and_draw_nothing_meanwhile() {
    let mut gate = one_by_user(10);
    let one = LimitRule::new("outstanding", Limit::Outstanding { max: 1 });
    gate.node
        .scheduler_mut()
        .apply(at(gate.now), policy(vec![one], 100));
    let first = gate.call(&[of_user("alice")]);
    let second = gate.call(&[of_user("alice")]);
    let held = gate.held(&of_user("alice"));
    assert!(gate.went(first) && !gate.went(second));
    gate.go_to(ms(1_200));
    assert_eq!(
        gate.held(&of_user("alice")),
        0,
        "{held} died with their window"
    );
    assert!(gate.node.finish(first, Outcome::Served, None));
    gate.run();
    assert!(gate.went(second));
    let window = |id: u64| gate.spent[&id][0].window.expect("it was drawn");
    assert_eq!(
        window(second),
        window(first) + 1,
        "it is spent where it is let go"
    );
}

#[test]
fn a_bucket_and_a_quota_are_drawn_together() {
    let mut gate = one_by_user(10);
    let bucket = BucketRule {
        name: "rate_limit:poller".into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(2.0).expect("a burst"),
            fill: Fill::new(1.0).expect("a fill"),
        },
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fair,
        settlement: Settlement::Estimate,
    };
    let id = BucketId(7);
    gate.node
        .scheduler_mut()
        .set_bucket(at(gate.now), id, bucket)
        .expect("one");
    let mut went = 0;
    for _ in 0..4 {
        let call = (call(gate.now, &[of_user("alice")])).bucket(id);
        let (id, _) = gate.submit(call).expect("it is taken in");
        went += u32::from(gate.went(id));
    }
    assert_eq!(went, 2, "the bucket has no more");
    gate.go_to(ms(900));
    assert_eq!(gate.spent.len(), 2);
    gate.go_to(ms(1_000));
    assert_eq!(gate.spent.len(), 3);
    gate.node
        .scheduler_mut()
        .remove_bucket(at(gate.now), id, |_| None);
    gate.run();
    assert_eq!(gate.spent.len(), 4);
}

#[test]
fn waiting_calls_get_tokens_that_another_node_returns() {
    let mut gate = one_by_user(4);
    assert_eq!(gate.store.get(&of_user("alice")), None);
    gate.call(&[of_user("alice")]);
    // Another node has drawn the rest.
    let (_, record) = gate.store.get(&of_user("alice")).expect("a record");
    let nothing = record.less(record.left()).expect("all of it");
    gate.store.put(&of_user("alice"), nothing);
    let mut ids: Vec<_> = (0..5).map(|_| gate.call(&[of_user("alice")])).collect();
    ids.retain(|&id| !gate.went(id));
    let waited = ids.len();
    assert!(waited > 0);
    assert_eq!(gate.watches.len(), 1, "it wants to be told");
    let back = nothing.more(1).expect("no more than was taken");
    gate.store.put(&of_user("alice"), back);
    let watch = *gate.watches.first().expect("one");
    gate.node.scheduler_mut().tell_quota(at(gate.now), watch);
    gate.run();
    ids.retain(|&id| !gate.went(id));
    assert!(ids.len() < waited, "one more went");
}

#[test]
fn nodes_that_share_a_store_keep_every_law() {
    let (mut went, mut refused, mut forgotten) = (0, 0, 0);
    let seeds = seeds(0..400);
    let count = seeds.len() as u64;
    for seed in seeds {
        let world = World::new(seed, true).live();
        let world = world.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        went += world.went;
        refused += world.refused;
        forgotten += world.forgotten;
    }
    assert!(
        went > 200 * count && refused > 10 * count && forgotten > count,
        "{went} {refused} {forgotten}"
    );
}

#[test]
fn what_a_settled_call_did_not_use_lets_the_next_one_go() {
    let mut gate = one_by_user(10);
    let reserving = |gate: &mut Alone| {
        let call = costing(5.0, call(gate.now, &[of_user("alice")])).is_settled(true);
        gate.submit(call).expect("it is taken in").0
    };
    let first = reserving(&mut gate);
    let second = reserving(&mut gate);
    let third = reserving(&mut gate);
    assert!(gate.went(first) && gate.went(second) && !gate.went(third));
    gate.settle(first, 1.0);
    assert!(
        !gate.went(third),
        "four tokens are back, and five are needed"
    );
    gate.settle(second, 3.5);
    assert!(gate.went(third));
    assert_eq!(
        gate.held(&of_user("alice")),
        0,
        "a part of a token is a whole one"
    );
}

#[test]
fn what_a_settled_call_used_beyond_is_a_debt_of_the_window_that_runs() {
    let mut gate = one_by_user(10);
    let reserving = |gate: &mut Alone, tokens| {
        let call = costing(tokens, call(gate.now, &[of_user("alice")])).is_settled(true);
        gate.submit(call).expect("it is taken in").0
    };
    let first = reserving(&mut gate, 2.0);
    gate.settle(first, 7.0);
    let beyond = reserving(&mut gate, 4.0);
    assert!(!gate.went(beyond), "three are left");
    let within = reserving(&mut gate, 3.0);
    assert!(!gate.went(within), "its turn is after the one that waits");
    gate.go_to(ms(1_000));
    assert!(gate.went(beyond) && gate.went(within));
    // More than a window has: the rest of the debt ends with the window.
    gate.settle(beyond, 40.0);
    let next = reserving(&mut gate, 1.0);
    assert!(!gate.went(next));
    gate.go_to(ms(2_000));
    assert!(gate.went(next));
    gate.settle(next, 1.0);
    let whole = reserving(&mut gate, 9.0);
    assert!(gate.went(whole), "nothing is owed any more");
    let overshot = |gate: &Alone| {
        let counts = gate.node.scheduler().quota_counts(USER);
        counts.expect("a quota").ledgers.overshot
    };
    assert_eq!(overshot(&gate), 33, "and it was counted");
}

#[test]
fn a_call_that_is_not_settled_keeps_to_its_draw() {
    let mut gate = one_by_user(10);
    let call = costing(5.0, call(gate.now, &[of_user("alice")]));
    let (id, _) = gate.submit(call).expect("it is taken in");
    gate.settle(id, 1.0);
    let six = costing(6.0, crate::call(gate.now, &[of_user("alice")]));
    let (id, _) = gate.submit(six).expect("it is taken in");
    assert!(!gate.went(id));
}

#[test]
fn nodes_with_a_store_each_are_found_to_spend_too_much() {
    let found = (0..50).filter(|&seed| {
        let world = World::new(seed, false).live();
        world.err().is_some_and(|error| error.contains("spent"))
    });
    assert!(found.count() > 40);
}

#[test]
fn the_same_seed_lets_the_same_calls_go_at_the_same_moments() {
    let once = || World::new(7, true).live().map(|world| world.history);
    assert_eq!(once(), once());
}

/// Calls of one caller, function and class stand in one line only if they draw from the same keys.
#[test]
fn calls_that_differ_only_in_their_keys_wait_apart_and_in_order() {
    let all = key(TOTAL, "all");
    let rules = [(USER, quota(settings(2))), (TOTAL, quota(settings(6)))];
    let mut gate = Alone::new(&rules);
    let alice: Vec<_> = (0..4).map(|_| gate.call(&[of_user("alice")])).collect();
    // None of these waits behind the two of alice that have nothing left.
    let bob = gate.call(&[of_user("bob")]);
    let both = gate.call(&[of_user("bob"), all.clone()]);
    let total = gate.call(std::slice::from_ref(&all));
    let none = gate.call(&[]);
    for id in [bob, both, total, none] {
        assert!(gate.went(id), "{id}");
    }
    // The keys are the same in another order: what is drawn is the same, and so is the limit.
    let others = [
        gate.call(&[of_user("alice"), all.clone()]),
        gate.call(&[all, of_user("alice")]),
    ];
    assert!(!others.iter().any(|&id| gate.went(id)));
    gate.go_to(ms(1_000));
    let went = |gate: &Alone| -> Vec<bool> {
        let ids = alice[2..].iter().chain(&others);
        ids.map(|&id| gate.went(id)).collect()
    };
    assert_eq!(went(&gate), [true, true, false, false], "by arrival");
    gate.go_to(ms(2_000));
    assert_eq!(went(&gate), [true; 4]);
}

#[test]
fn a_call_that_never_left_gives_its_caller_the_turn_at_the_quota_back() {
    let all = key(TOTAL, "all");
    let mut gate = Alone::new(&[(TOTAL, quota(settings(10)))]);
    let calls = [(1, 10.0), (1, 4.0), (1, 4.0), (2, 4.0), (2, 4.0)];
    for ((caller, tokens), id) in calls.into_iter().zip(0..) {
        let call =
            costing(tokens, call(gate.now, std::slice::from_ref(&all))).caller(Caller(caller));
        let submitted = gate.node.submit(id, call);
        submitted.expect("it is taken in");
    }
    gate.run();
    assert!(gate.went(0) && (1..5).all(|id| !gate.went(id)));
    gate.give_back(0);
    // The first caller has had nothing: there is enough for one call of each.
    let went = [1, 2, 3, 4].map(|id| gate.went(id));
    assert_eq!(went, [true, false, true, false]);
}
