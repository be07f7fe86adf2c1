//! Sidecars while the store is unavailable, and their automatic recovery.

use serde_json::json;
use tokio::task::JoinSet;

use super::*;

const AT_ONCE: &str = "on_excess = \"reject\"";

/// Waits until a call finds the store without an answer, so that it is asked again.
async fn is_unavailable(sidecar: &Sidecar) {
    eventually(async || {
        let told = sidecar.quotas().await;
        (told["store"]["up"] == false).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_the_store_deny_lets_nothing_pass_and_goes_on_by_itself_when_it_is_back() {
    for mode in [
        Mode::Away,
        Mode::Hangs,
        Mode::Garbage,
        Mode::Unauthenticated,
        Mode::Denied,
        Mode::ReadsOnly,
    ] {
        let rig = Rig::start().await;
        let limits = limit("all", "total", 100, LONG, "when_store_away = \"deny\"");
        let sidecar = rig.sidecar(ALONE, &limits);
        sidecar.store().set(mode);
        let address = sidecar.address;
        let mut waits = JoinSet::new();
        for _ in 0..10 {
            waits.spawn(async move { call(address, "").await.status });
        }
        is_unavailable(&sidecar).await;
        assert!(waits.try_join_next().is_none(), "{mode:?}: a call passed");
        // The last of them may not have come yet.
        let all_wait = async {
            loop {
                let key = sidecar.key("all", "all").await.expect("it is known");
                assert_eq!(key["held"], 0, "{mode:?}");
                if key["waiting"] == 10 {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        let all_wait = tokio::time::timeout(PATIENCE, all_wait).await;
        all_wait.unwrap_or_else(|_| panic!("{mode:?}: not all calls wait"));
        sidecar.store().set(Mode::Answers);
        let goes_on = async {
            while let Some(status) = waits.join_next().await {
                assert_eq!(status.expect("a call ends"), 200, "{mode:?}");
            }
        };
        let goes_on = tokio::time::timeout(PATIENCE, goes_on).await;
        goes_on.unwrap_or_else(|_| panic!("{mode:?}: calls wait on"));
        let told = sidecar.quotas().await;
        assert_eq!(told["store"]["up"], true, "{told}");
        assert_eq!(told["quotas"][0]["used_last"][0]["trouble"], json!([]));
    }
}

/// A key whose calls are covered by the sidecar's own share asks the store nothing.
#[tokio::test]
async fn a_total_in_the_config_holds_from_the_first_call_with_and_without_the_store() {
    for mode in [Mode::Answers, Mode::Away, Mode::Hangs] {
        let rig = Rig::start().await;
        let totals = format!("{AT_ONCE}\ntotals = {{ a = 0, b = 5 }}");
        let sidecar = rig.sidecar(ALONE, &limit("per_user", "user", 100, "1s", &totals));
        sidecar.call("other").await;
        let is_whole = |key: &Value| key["safe"] == 50;
        sidecar.until_key("per_user", "other", is_whole).await;
        sidecar.store().set(mode);
        for _ in 0..5 {
            let answer = sidecar.call("a").await;
            assert!(
                answer.body.contains("never_possible"),
                "{mode:?}: {answer:?}"
            );
        }
        // Two windows, at the edge of one.
        let passed = sidecar.calls("b", 30).await;
        assert!((1..=10).contains(&passed), "{mode:?}: {passed} of 5");
        let key = sidecar.key("per_user", "b").await.expect("it is known");
        assert_eq!(key["total"], 5, "{mode:?}: {key}");
    }
}

/// Calls a user until this many calls have passed, and one more time; returns how many have.
async fn passes(sidecar: &Sidecar, user: &str, total: usize) -> usize {
    let passed = Cell::new(0);
    eventually(async || {
        passed.set(passed.get() + sidecar.calls(user, 10).await);
        (passed.get() >= total).then_some(())
    })
    .await;
    passed.get() + sidecar.calls(user, total + 1).await
}

/// The first day of a quota of a day is a whole one. After a crash, what was spent of the own share is
/// not known.
#[tokio::test]
async fn a_sidecar_that_is_alone_has_its_own_share_in_its_first_window_unless_one_before_crashed() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 100, LONG, AT_ONCE);
    let first = rig.sidecar(ALONE, &limits);
    assert_eq!(passes(&first, "alice", 100).await, 100);
    // Without a last word.
    drop(first);
    let second = rig.sidecar(ALONE, &limits);
    assert_eq!(passes(&second, "bob", 50).await, 50);
    // It does not know what the first has spent, so the third does not either.
    assert!(second.app.drain().await);
    let third = rig.sidecar(ALONE, &limits);
    assert_eq!(passes(&third, "carol", 50).await, 50);

    // Two that drain, of which the first spends nothing of its share, and the second does.
    let rig = Rig::start().await;
    let begun = async || {
        let key = RecordKey::of_sidecars();
        let node = rig.memory.node();
        let word = async || node.get(&key).await.expect("it is up").map(|it| it.text);
        eventually(async || word().await.filter(|word| word.ends_with(b"runs"))).await;
    };
    let first = rig.sidecar(ALONE, &limits);
    begun().await;
    assert!(first.app.drain().await);
    let second = rig.sidecar(ALONE, &limits);
    assert_eq!(passes(&second, "alice", 100).await, 100);
    begun().await;
    assert!(second.app.drain().await);
    let third = rig.sidecar(ALONE, &limits);
    assert_eq!(passes(&third, "bob", 50).await, 50);
    // In the next window it is known again.
    *rig.ahead.lock().expect("no test panics with it") = Duration::from_secs(7_200 * 3_600);
    third.store().tell_time();
    assert_eq!(passes(&third, "dora", 100).await, 100);
    drop(third);

    // Beside others nothing can be known, and for one that is alone later neither.
    let rig = Rig::start().await;
    let both = rig.sidecar(TWO, &limits);
    assert_eq!(passes(&both, "alice", 50).await, 50);
    drop(both);
    let alone = rig.sidecar(ALONE, &limits);
    assert_eq!(passes(&alone, "bob", 50).await, 50);
}

/// A window may be shorter than the time that the clock of a process has before its start.
#[tokio::test]
async fn a_crash_gives_no_second_own_share_of_an_hour_that_runs() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 100, "1h", AT_ONCE);
    for _ in 0..2 {
        let sidecar = rig.sidecar(TWO, &limits);
        // Nothing of its own half, which a process before may have spent.
        let passed = sidecar.calls("alice", 60).await;
        assert!(passed <= 50, "{passed}");
    }
}

#[tokio::test]
async fn an_uncovered_call_is_refused_during_an_outage_if_it_may_not_wait() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 100, LONG, REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    sidecar.store().set(Mode::Away);
    let refused = eventually(async || {
        let answer = sidecar.call("").await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert!(refused.body.contains("rate_limit:all"), "{refused:?}");
    assert!(refused.body.contains("quota_store_away"), "{refused:?}");
    let json = refused.json();
    assert_eq!((&json["rs"], &json["overallRC"]), (&24.into(), &503.into()));
    let name = r#"tidegate_refusals_total{limit="rate_limit:all",reason="quota_store_away"}"#;
    assert!(sidecar.metric(name).await >= 1.0);
    sidecar.store().set(Mode::Answers);
    eventually(async || (sidecar.call("").await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn without_the_store_allow_lets_everything_pass_and_counts_it() {
    let rig = Rig::start().await;
    let limits = limit(
        "all",
        "total",
        5,
        LONG,
        &format!("{AT_ONCE}\nwhen_store_away = \"allow\""),
    );
    let sidecar = rig.sidecar(ALONE, &limits);
    sidecar.store().set(Mode::Away);
    assert_eq!(sidecar.calls("", 50).await, 50);
    let name = r#"tidegate_quota_allowed_tokens_total{limit="rate_limit:all"}"#;
    assert_eq!(sidecar.metric(name).await, 50.0);
    let up = r#"tidegate_quota_store_up{engine="etcd"}"#;
    eventually(async || {
        // A call that passes without the store has the store asked again.
        assert_eq!(sidecar.calls("", 1).await, 1);
        (sidecar.metric(up).await == 0.0).then_some(())
    })
    .await;
    sidecar.store().set(Mode::Answers);
    // From then on what there is has an end.
    eventually(async || {
        sidecar.call("").await;
        let is_back = |key: &Value| key["trouble"] == json!([]) && key["window_total"] == 5;
        sidecar.key("all", "all").await.filter(is_back)
    })
    .await;
    while sidecar.call("").await.status == 200 {}
    assert_eq!(sidecar.calls("", 10).await, 0);
}

/// Before, a denial counted as an answer: no call passed, and nothing said that the store is of no use.
#[tokio::test]
async fn a_store_that_denies_everything_from_the_start_is_unavailable_and_allow_fails_open() {
    let rig = Rig::start().await;
    for (away, status) in [("allow", 200), ("deny", 503)] {
        let more = format!("{AT_ONCE}\nwhen_store_away = \"{away}\"");
        let limits = limit("per_user", "user", 5, LONG, &more);
        let sidecar = rig.sidecar_from(&rig.text(ALONE, &limits), Mode::Denied);
        for user in ["alice", "bob", "alice"] {
            let answer = sidecar.call(user).await;
            assert_eq!(answer.status, status, "{away}: {answer:?}");
        }
        is_unavailable(&sidecar).await;
        let up = r#"tidegate_quota_store_up{engine="etcd"}"#;
        assert_eq!(sidecar.metric(up).await, 0.0, "{away}");
        let told = sidecar.quotas().await["store"]["trouble"].clone();
        assert!(told["text"].to_string().contains("denies"), "{told}");
        sidecar.store().set(Mode::Answers);
        let back = async || (sidecar.metric(up).await == 1.0).then_some(());
        eventually(back).await;
        eventually(async || (sidecar.call("carol").await.status == 200).then_some(())).await;
    }
}

/// A good read must not hide that nothing can be drawn, or bring the store back again and again.
#[tokio::test]
async fn a_store_that_reads_and_does_not_write_is_not_up() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 5, LONG, REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    assert_eq!(sidecar.call("alice").await.status, 200);
    sidecar.store().set(Mode::ReadsOnly);
    eventually(async || {
        sidecar.call("bob").await;
        let told = sidecar.quotas().await;
        (told["store"]["up"] == false).then_some(())
    })
    .await;
    for user in 0..50 {
        assert_eq!(sidecar.call(&format!("u{user}")).await.status, 503);
        let store = sidecar.quotas().await["store"].clone();
        assert_eq!(store["up"], false, "{store}");
    }
    sidecar.store().set(Mode::Answers);
    eventually(async || (sidecar.call("dave").await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn without_the_store_safe_leaves_each_its_share_of_each_window() {
    let rig = Rig::start().await;
    // Half of an equal share of two.
    let limits = limit("all", "total", 20, "1s", AT_ONCE);
    let [a, b] = [rig.sidecar(TWO, &limits), rig.sidecar(TWO, &limits)];
    for sidecar in [&a, &b] {
        sidecar.calls("", 1).await;
        eventually(async || {
            sidecar.calls("", 1).await;
            let known = |key: &Value| key["window_total"] == 20;
            sidecar.key("all", "all").await.filter(known)
        })
        .await;
        // A node that starts has its share from the next window on.
        eventually(async || {
            let whole = |key: &Value| key["safe"] == 5;
            sidecar.key("all", "all").await.filter(whole)
        })
        .await;
        sidecar.store().set(Mode::Away);
    }
    // For any distribution of calls over windows, no window has more than the shares of both and
    // the earlier draws.
    let mut passed = std::collections::BTreeMap::new();
    let from = rig.now().as_secs() + 2;
    while rig.now().as_secs() < from + 3 {
        for sidecar in [&a, &b] {
            let before = rig.now().as_secs();
            let got = sidecar.calls("", 4).await;
            if rig.now().as_secs() == before && (from..from + 3).contains(&before) {
                *passed.entry(before).or_insert(0) += got;
            }
        }
    }
    assert_eq!(passed.len(), 3, "{passed:?}");
    for (window, got) in passed {
        assert!((5..=10).contains(&got), "{got} in window {window}");
    }
}

#[tokio::test]
async fn a_thousand_users_of_a_store_that_hangs_make_no_storm() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 10, LONG, REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    // A store that has never answered may only be slow to start.
    assert_eq!(sidecar.call("first").await.status, 200);
    sidecar.store().set(Mode::Hangs);
    let mut calls = JoinSet::new();
    for user in 0..1_000 {
        let address = sidecar.address;
        calls.spawn(async move { call(address, &format!("u{user}")).await.status });
        if calls.len() >= 200 {
            calls.join_next().await;
        }
    }
    while let Some(status) = calls.join_next().await {
        assert_eq!(status.expect("a call ends"), 503);
    }
    // As many as were under way when it was found out, and then one in each draw timeout.
    let asked = sidecar.store().asked();
    assert!((3..=150).contains(&asked), "{asked}");
    let away = sidecar.quotas().await["store"].clone();
    assert_eq!(away["up"], false, "{away}");
    sidecar.store().set(Mode::Answers);
    eventually(async || (sidecar.call("u7").await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn held_tokens_are_spent_without_the_store() {
    let rig = Rig::start().await;
    let limits = limit(
        "all",
        "total",
        1_000,
        LONG,
        "when_store_away = \"deny\"\nbase = 200\nrelinquish_every = \"1h\"",
    );
    let sidecar = rig.sidecar(ALONE, &limits);
    assert_eq!(sidecar.calls("", 1).await, 1);
    let key = sidecar
        .until_key("all", "all", |key| key["held"].as_u64() >= Some(100))
        .await;
    sidecar.store().set(Mode::Hangs);
    let before = sidecar.store().asked();
    assert_eq!(sidecar.calls("", 100).await, 100, "{key}");
    assert!(sidecar.store().asked() - before < 5);
    let waited = r#"tidegate_quota_decisions_total{how="local",limit="rate_limit:all"}"#;
    assert!(sidecar.metric(waited).await >= 100.0);
}

#[tokio::test]
async fn a_call_that_waited_for_the_store_in_vain_is_refused_for_that() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 100, LONG, "when_store_away = \"deny\"");
    let text = rig
        .text(ALONE, &limits)
        .replace("[limits]", "[limits]\nmax_wait = \"1s\"");
    let sidecar = rig.sidecar_of(&text);
    sidecar.store().set(Mode::Away);
    let answer = sidecar.call("").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("quota_store_away"), "{answer:?}");
    assert!(answer.body.contains("rate_limit:all"), "{answer:?}");
}

#[tokio::test]
async fn a_store_that_only_starts_slowly_is_waited_for_and_no_call_is_refused() {
    let rig = Rig::start().await;
    let deny = "on_excess = \"reject\"\nwhen_store_away = \"deny\"";
    let limits = limit("per_user", "user", 100, LONG, deny);
    let sidecar = rig.sidecar(ALONE, &limits);
    sidecar.store().set(Mode::Hangs);
    let mut waits = JoinSet::new();
    for user in 0..20 {
        let address = sidecar.address;
        waits.spawn(async move { call(address, &format!("u{user}")).await.status });
    }
    // Longer than it takes to find out that a store is unavailable.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let told = sidecar.quotas().await;
    assert!(waits.try_join_next().is_none(), "{told:#}");
    sidecar.store().set(Mode::Answers);
    while let Some(status) = waits.join_next().await {
        assert_eq!(status.expect("a call ends"), 200);
    }
    // A store that has answered once and then does not is unavailable.
    sidecar.store().set(Mode::Hangs);
    assert_eq!(sidecar.call("new").await.status, 503);
}

#[tokio::test]
async fn when_the_store_is_back_only_what_a_call_waits_for_is_asked() {
    const USERS: usize = 500;
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 10, LONG, REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    assert_eq!(sidecar.call("alice").await.status, 200);
    sidecar.store().set(Mode::Away);
    for user in 0..USERS {
        assert_eq!(sidecar.call(&format!("u{user}")).await.status, 503);
    }
    is_unavailable(&sidecar).await;
    let before = sidecar.store().asked();
    sidecar.store().set(Mode::Answers);
    // By itself: no call asks for it.
    eventually(async || (sidecar.quotas().await["store"]["up"] == true).then_some(())).await;
    for user in ["alice", "u7", "new"] {
        assert_eq!(sidecar.call(user).await.status, 200, "{user}");
    }
    let asked = sidecar.store().asked() - before;
    assert!(asked < 40, "{asked} questions for three calls");
}

#[tokio::test]
async fn a_sidecar_alone_with_its_quotas_in_memory_has_the_whole_of_its_first_window() {
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("all", "total", 20, LONG, "on_excess = \"reject\"");
    let sidecar = Sidecar::with_store(&text(backend.addr, "engine = \"memory\"", &limits));
    assert_eq!(sidecar.calls("", 40).await, 20);
    let told = sidecar.quotas().await;
    assert_eq!(told["store"]["up"], true, "{told}");
    assert_eq!(told["quotas"][0]["safe_share"], 0, "{told}");
}

#[tokio::test]
async fn a_total_of_zero_blocks_only_its_user() {
    let rig = Rig::start().await;
    let more = format!("{REJECT}\ntotals = {{ mallory = 0 }}");
    let limits = limit("per_user", "user", 5, LONG, &more);
    let sidecar = rig.sidecar(TWO, &limits);
    let refused = eventually(async || {
        let answer = sidecar.call("mallory").await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("never_possible"), "{refused:?}");
    assert_eq!(sidecar.calls("alice", 6).await, 5);
    assert!(rig.record(None, "mallory").await.is_none());
}

#[tokio::test]
async fn a_call_that_is_never_possible_gets_no_time_to_come_back() {
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("per_user", "user", 5, LONG, "totals = { mallory = 0 }");
    let sidecar = Sidecar::with_store(&text(backend.addr, "engine = \"memory\"", &limits));
    let refused = eventually(async || {
        let answer = sidecar.call("mallory").await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("never_possible"), "{refused:?}");
    assert!(!refused.body.contains("retry"), "{refused:?}");
    assert!(!refused.body.contains("come back"), "{refused:?}");
}

#[tokio::test]
async fn users_whose_names_are_too_long_for_a_key_do_not_share_one() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 1, LONG, REJECT);
    let sidecar = rig.sidecar(TWO, &limits);
    let named = |last: char| format!("{}{last}", "x".repeat(300));
    for last in ['a', 'b'] {
        assert_eq!(sidecar.calls(&named(last), 2).await, 1, "{last}");
    }
}
