//! Callers, groups and costs change: by a reload, a restart, a merge and the API.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_ids_tokens_statistics_and_what_the_api_made() {
    let door = Door::open(POLLER);
    for _ in 0..8 {
        door.pass(&who("poll"), "guest_list").await;
    }
    let made = door.change(
        door.callers
            .create_rate_limit(door.clock.now(), NewRateLimit::of(size(5.0, 1.0))),
    );
    let caller = door.change(door.callers.create(named("mine", "mine", Some(made))));
    let again = POLLER
        .replace("fill = 40", "fill = 50")
        .replace("poll*", "poll/*");
    door.change(door.callers.apply(&config(&again).callers));
    assert_eq!(door.tokens(1), 2.0);
    let poller = door.callers.get(door.clock.now(), CallerId(1));
    let poller = poller.expect("it is there");
    assert_eq!(*poller.row.patterns, [agent("poll/*")]);
    assert_eq!(poller.usage.total.calls, 8);
    let mine = door.callers.get(door.clock.now(), caller);
    assert_eq!(mine.expect("it is there").row.charge.limit(), Some(made));

    door.change(door.callers.apply(&config("").callers));
    assert_eq!(door.gate.bucket_now(RateLimitId(1).bucket()), None);
    assert!(door.gate.bucket_now(made.bucket()).is_some());
    assert!(door.callers.get(door.clock.now(), CallerId(1)).is_err());
}

#[tokio::test(start_paused = true)]
async fn after_a_merge_a_group_has_used_what_its_caller_has() {
    let door = Door::open("");
    let watched: Group = Group::new("watched").expect("a name");
    let plain = door.change(door.callers.create(named("plain", "plain*", None)));
    let mut new = named("grouped", "grouped*", None);
    new.groups = vec![watched.clone()];
    let grouped = door.change(door.callers.create(new));
    let mut new = named("other", "other*", None);
    new.groups = vec![Group::new("others").expect("a name"), watched.clone()];
    let other = door.change(door.callers.create(new));
    for (agent, calls) in [("plain", 5), ("grouped", 3), ("other", 2)] {
        for _ in 0..calls {
            door.pass(&who(agent), "guest_list").await;
        }
    }
    let now = || door.clock.now();
    let of_group = |group: &str| {
        let used = door.callers.group_usage(now(), group).expect("a group");
        (used.total.calls, used.over(UsageSpan::Hour).tally.calls)
    };
    assert_eq!(of_group("watched"), (5, 5));
    // One that was in no group, and one that brings a group along.
    door.change(door.callers.merge(grouped, &[plain, other], None));
    let merged = door.callers.get(now(), grouped).expect("it stays");
    assert_eq!(merged.usage.total.calls, 10);
    assert_eq!(merged.row.groups.len(), 2);
    assert_eq!(of_group("watched"), (10, 10));
    assert_eq!(of_group("others"), (10, 10));
    door.pass(&who("other"), "guest_list").await;
    assert_eq!(of_group("watched"), (11, 11));
    assert_eq!(of_group("others"), (11, 11));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_joins_or_leaves_a_group_brings_or_takes_what_it_used() {
    let door = Door::open("");
    let watched: Group = Group::new("watched").expect("a name");
    let mut new = named("stays", "stays*", None);
    new.groups = vec![watched.clone()];
    door.change(door.callers.create(new));
    let joins = door.change(door.callers.create(named("joins", "joins*", None)));
    for (agent, calls) in [("stays", 3), ("joins", 8)] {
        for _ in 0..calls {
            door.pass(&who(agent), "guest_list").await;
        }
    }
    let of_group = |group: &str| {
        let used = door.callers.group_usage(door.clock.now(), group);
        used.map(|used| (used.total.calls, used.over(UsageSpan::Hour).tally.calls))
    };
    let regroup = |groups: &[&Group]| {
        let patch = Patch {
            groups: Some(groups.iter().copied().cloned().collect()),
            ..Patch::default()
        };
        door.change(door.callers.patch(joins, patch));
    };
    assert_eq!(of_group("watched"), Some((3, 3)));
    regroup(&[&watched]);
    assert_eq!(of_group("watched"), Some((11, 11)));
    // The same again changes nothing.
    regroup(&[&watched]);
    assert_eq!(of_group("watched"), Some((11, 11)));
    regroup(&[]);
    assert_eq!(of_group("watched"), Some((3, 3)));
    door.pass(&who("joins"), "guest_list").await;
    regroup(&[&watched]);
    assert_eq!(of_group("watched"), Some((12, 12)));
    door.change(door.callers.delete(joins));
    assert_eq!(of_group("watched"), Some((3, 3)));
    // A reload with a caller of the config in the group, before and after it calls.
    let row = |group: &str| {
        format!("[[caller]]\nlabel = \"file\"\nmatch = {{ user_agent = \"file*\" }}\n{group}\n")
    };
    door.change(door.callers.apply(&config(&row("")).callers));
    door.pass(&who("file"), "guest_list").await;
    assert_eq!(of_group("watched"), Some((3, 3)));
    let with_group = config(&row("groups = [\"watched\", \"new\"]")).callers;
    door.change(door.callers.apply(&with_group));
    door.change(door.callers.apply(&with_group));
    assert_eq!(of_group("watched"), Some((4, 4)));
    assert_eq!(of_group("new"), Some((1, 1)));
    door.change(door.callers.apply(&config(&row("")).callers));
    assert_eq!(of_group("watched"), Some((3, 3)));
    assert_eq!(of_group("new"), None);
}

#[test]
fn after_a_restart_a_group_has_the_totals_of_its_callers() {
    let now = tidegate_limits::Timestamp::ZERO;
    let settings = config("").callers;
    let callers = Callers::start(&settings, None)
        .expect("there is room")
        .value;
    let mut new = named("mine", "mine", None);
    new.groups = vec![Group::new("watched").expect("a name")];
    let _ = callers.create(new).expect("it is right");
    callers.claim(now, &who("mine"), "guest_list", Meets::Limits);
    let saved = callers.saved(|_| 1);
    let again = Callers::start(&settings, Some(saved)).expect("there is room");
    let used = again.value.group_usage(now, "watched").expect("a group");
    assert_eq!(used.total.calls, 1);
}

#[test]
fn saved_callers_are_restored_and_the_config_wins() {
    let now = tidegate_limits::Timestamp::ZERO;
    let start = |more: &str, saved| {
        Callers::start(&config(more).callers, saved)
            .expect("there is room for them")
            .value
    };
    let callers = start(POLLER, None);
    let mut new = NewRateLimit::of(Size::Profile("batch".into()));
    new.label = Some(Label::new("mine").expect("a label"));
    let limit = callers.create_rate_limit(now, new).expect("it is right");
    let caller = callers.create(named("mine", "mine", Some(limit.value)));
    let caller = caller.expect("it is right").value;
    callers.claim(now, &who("mine"), "guest_list", Meets::Limits);
    let saved = callers.saved(|_| 1);
    assert_eq!(saved.costs, None);

    let twice = POLLER.replace(
        "name = \"poller\"",
        "name = \"first\"\nburst = 1\nfill = 1\n[[bucket]]\nname = \"poller\"",
    );
    let again = start(&twice, Some(saved.clone()));
    let limits = again.limits();
    let names: Vec<_> = limits.iter().map(|it| (it.id.0, &*it.label)).collect();
    // The first one is new, and gets an unused number.
    assert_eq!(names, [(1, "poller"), (2, "mine"), (3, "first")]);
    let kept = again.get(now, caller).expect("it is there");
    assert_eq!(kept.row.charge.limit(), Some(limit.value));
    assert_eq!(kept.usage.total.calls, 1);
    let same = start(POLLER, Some(saved.clone()));
    assert_eq!(same.saved(|_| 1).callers.len(), saved.callers.len());
    assert_eq!(same.saved(|_| 1).rate_limits, saved.rate_limits);
}

#[test]
fn a_change_that_is_refused_names_its_field_and_changes_nothing() {
    let now = tidegate_limits::Timestamp::ZERO;
    let callers = Callers::start(&config(POLLER).callers, None)
        .expect("there is room for them")
        .value;
    let id =
        |changed: Result<ChangeResult<RateLimitId>, Error>| changed.expect("it is right").value;
    let limit = id(callers.create_rate_limit(now, NewRateLimit::of(size(1.0, 1.0))));
    let mine = callers
        .create(named("mine", "mine", None))
        .expect("right")
        .value;
    let before = callers.saved(|_| 0);
    let no_limit = RateLimitId(99);
    let label = |text: &str| Some(Label::new(text).expect("a label"));
    let labelled = |text| NewRateLimit {
        label: label(text),
        ..NewRateLimit::of(size(1.0, 1.0))
    };
    let with_callers = |callers: Vec<CallerId>| NewRateLimit {
        callers,
        ..NewRateLimit::of(size(1.0, 1.0))
    };
    let derived = NewRateLimit::of(Size::Derived(Derive {
        caller: mine,
        span: UsageSpan::Hour,
        headroom: tidegate_callers::Headroom::DEFAULT,
    }));
    let nothing = |error: Error| error.field().to_owned();
    let field =
        |result: Result<ChangeResult<RateLimitId>, Error>| result.map(drop).map_err(nothing);
    let unit = |result: Result<ChangeResult<()>, Error>| result.map(drop).map_err(nothing);
    let new = |result: Result<ChangeResult<CallerId>, Error>| result.map(drop).map_err(nothing);
    let attached = Patch {
        charge: Some(Charge::Limit(no_limit)),
        ..Patch::default()
    };
    for (result, wrong) in [
        (new(callers.create(named("x", "x", Some(no_limit)))), "id"),
        (new(callers.create(named("x", "mine", None))), "match"),
        (unit(callers.patch(mine, attached)), "id"),
        (unit(callers.patch(CallerId(99), Patch::default())), "id"),
        (unit(callers.delete(CallerId(1))), "id"),
        (unit(callers.merge(mine, &[mine], None)), "from"),
        (
            field(callers.create_rate_limit(now, labelled("poller"))),
            "label",
        ),
        (
            field(callers.create_rate_limit(now, labelled("r7"))),
            "label",
        ),
        (
            field(callers.create_rate_limit(now, with_callers(vec![mine, CallerId(99)]))),
            "id",
        ),
        (
            field(callers.create_rate_limit(now, with_callers(vec![mine, CallerId(1)]))),
            "id",
        ),
        (field(callers.create_rate_limit(now, derived)), "caller"),
        (
            field(callers.create_rate_limit(now, NewRateLimit::of(Size::Profile("p".into())))),
            "profile",
        ),
        (
            unit(callers.patch_rate_limit(no_limit, RateLimitPatch::default())),
            "id",
        ),
        (
            unit(callers.patch_rate_limit(RateLimitId(1), RateLimitPatch::default())),
            "id",
        ),
        (unit(callers.delete_rate_limit(RateLimitId(1))), "id"),
        (unit(callers.delete_rate_limit(no_limit)), "id"),
        (unit(callers.attach(limit, CallerId(1))), "id"),
        (unit(callers.attach(no_limit, mine)), "id"),
        (unit(callers.detach(limit, mine)), "callers"),
    ] {
        assert_eq!(result, Err(wrong.to_owned()));
        assert_eq!(callers.saved(|_| 0), before, "{wrong}");
    }
}

#[test]
fn costs_of_more_functions_than_have_names_are_refused_and_nothing_changes() {
    let callers = Callers::start(&config("").callers, None)
        .expect("there is no room")
        .value;
    let costs = |functions: u32| Costs {
        functions: (0..functions)
            .map(|number| (format!("f{number}").into(), TokenCount::ONE))
            .collect(),
        ..Costs::default()
    };
    let wrong = callers.put_costs(costs(4097)).expect_err("too many");
    assert_eq!(wrong.field(), "functions");
    assert_eq!(callers.costs(), Costs::default());
    // The names of the config's functions take some of the room.
    assert!(callers.put_costs(costs(3500)).is_ok());
}

#[test]
fn costs_of_the_api_stay_until_the_config_says_others() {
    let with = |cost: u32| config(&format!("[costs]\ndefault = {cost}")).callers;
    let callers = Callers::start(&with(2), None).expect("there is room").value;
    let cost = || {
        let now = tidegate_limits::Timestamp::ZERO;
        let claim = callers.claim(now, &who("a"), "new_one", Meets::Limits);
        claim.cost
    };
    let token = |tokens| TokenCount::new(tokens).expect("a count");
    assert_eq!(cost(), token(2.0));
    let given = Costs {
        default: token(5.0),
        functions: [("new_one".into(), token(7.5))].into(),
        unit: CostUnit::default(),
        settle: false,
    };
    let _ = callers.put_costs(given).expect("it is right");
    assert_eq!(cost(), token(7.5));
    let _ = callers.apply(&with(2)).expect("there is room");
    assert_eq!(cost(), token(7.5));
    let _ = callers.apply(&with(3)).expect("there is room");
    assert_eq!(cost(), token(3.0));
}

#[test]
fn a_change_of_a_rate_limit_lists_what_its_bucket_must_follow() {
    let now = tidegate_limits::Timestamp::ZERO;
    let callers = Callers::start(&config("").callers, None)
        .expect("there is no room")
        .value;
    let made = callers
        .create_rate_limit(now, NewRateLimit::of(Size::Profile("poller".into())))
        .expect("it is right");
    let [BucketChange::Set(bucket, rule, _)] = &made.buckets[..] else {
        panic!("{:?}", made.buckets);
    };
    assert_eq!(*bucket, made.value.bucket());
    assert_eq!(&*rule.name, "rate_limit:r1");
    assert_eq!((rule.limit.most(), rule.limit.per_second()), (30.0, 3.0));
    let patch = |patch| {
        callers
            .patch_rate_limit(made.value, patch)
            .expect("right")
            .buckets
    };
    assert_eq!(patch(RateLimitPatch::default()), []);
    let changed = patch(RateLimitPatch {
        handling: HandlingPatch {
            mode: Some(LimitMode::Observe),
            on_excess: Some(OnExcess::Reject),
            ..HandlingPatch::default()
        },
        label: Some(Label::new("new").expect("a label")),
        ..RateLimitPatch::default()
    });
    let [BucketChange::Set(_, rule, mode)] = &changed[..] else {
        panic!("{changed:?}");
    };
    assert_eq!(&*rule.name, "rate_limit:new");
    assert_eq!(
        (*mode, rule.on_excess),
        (LimitMode::Observe, OnExcess::Reject)
    );
    let exempt = patch(RateLimitPatch {
        size: Some(SizePatch::Exempt),
        ..RateLimitPatch::default()
    });
    assert_eq!(exempt, [BucketChange::Remove(made.value.bucket())]);
    let fill_alone = RateLimitPatch {
        size: Some(SizePatch::Bucket {
            burst: None,
            fill: Fill::new(1.0).ok(),
        }),
        ..RateLimitPatch::default()
    };
    let refused = callers.patch_rate_limit(made.value, fill_alone);
    assert_eq!(refused.expect_err("it has no burst").field(), "burst");
}
