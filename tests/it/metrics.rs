//! Every metric, as it is scraped and as it is documented.

mod tables;

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use tidegate::admin::{QuotaStoreState, QuotasState};
use tidegate::admit::metrics::GateNow;
use tidegate::admit::{BackendControl, BackendControlNow, ObservedNow, TicketCounts};
use tidegate::app::metrics::{Metrics, ShareNow};
use tidegate::call::jobs::Jobs;
use tidegate::call::{Would, WouldEnd};
use tidegate::callers::metrics::{Charge, LimiterNow};
use tidegate::callers::shown::{CallerCounts, GroupNow};
use tidegate::coalesce::CoalesceNow;
use tidegate::forward::metrics::backend_tls_failures_total;
use tidegate::protocol::metrics::{connections_rejected_total, signs_of_life_total};
use tidegate::tasks::{EndedTaskCounts, TasksNow};
use tidegate::telemetry::calls::Durations;
use tidegate_callers::Group;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::pace::{BurstRatio, Pace, PoolsNow, Rate};
use tidegate_limits::policy::{LimitRule, WindowShape, WindowStamp};
use tidegate_limits::scheduler::{LimitNow, PacerNow, QueueNow, RefusalReason, SupplyShare};
use tidegate_limits::{Limit, Timestamp, Verdict};
use tidegate_runtime::metric::{SetLevel, SetTotal};

/// Metrics of which each has at least one value.
fn exercised() -> Metrics {
    let metrics = Metrics::new("0.1.0", "abc1234");
    metrics.config_taken(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    metrics.config_refused();
    metrics.config_reloaded(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    metrics
        .state
        .mirror(true, &[("total", true), ("workers", false)], [7, 2]);
    exercise_calls(&metrics);
    exercise_connections(&metrics);
    exercise_quotas(&metrics);
    exercise_observed(&metrics);
    let gate = GateNow {
        acting: BackendControlNow {
            acting: BackendControl::Running,
            share: SupplyShare::FULL,
            in_flight: 7,
            now: Timestamp::ZERO,
        },
        queue: QueueNow {
            waiting: 2,
            at_door: 1,
            capacity: 4096,
            oldest_waits: Duration::from_millis(1500),
            claims: 2,
            claims_idle: Duration::from_millis(250),
            ..QueueNow::default()
        },
        outstanding: 7,
        outstanding_peak: 9,
        limits: vec![window("total"), window("guest_list")],
        tickets: TicketCounts {
            given: 4,
            used: 2,
            lapsed: 1,
            taken: 3,
        },
    };
    metrics.admit.mirror(&gate, Some(10));
    let max_wait = metrics.admit.queue_max_wait_seconds();
    max_wait.show(Duration::from_secs(60));
    metrics.coalesce.mirror(&CoalesceNow {
        calls: 2,
        waiting: 0,
        kept: 5,
        bytes: 4321,
    });
    metrics.jobs.mirror(&Jobs::default());
    metrics.tasks.mirror(&TasksNow {
        waiting: 6,
        running: 1,
        ended: 4,
        bytes: 1234,
        counted: EndedTaskCounts {
            answered: 9,
            cancelled: 2,
            ..EndedTaskCounts::default()
        },
    });
    metrics.leases.mirror(&[ShareNow {
        limit: "total".into(),
        resource: "r".into(),
        safe: 5.0,
        wants: 30.0,
        lease: Some((12.5, Duration::from_millis(7250))),
    }]);
    metrics.callers.mirror_limiters(&[LimiterNow {
        limiter: "poller".into(),
        tokens: -2.5,
        queued: 4,
        pace: Some(PacerNow {
            pace: Pace::new(Rate::new(12.5).expect("a rate"), BurstRatio::default()),
            pools: PoolsNow {
                active: Duration::from_millis(4),
                burst: Duration::from_millis(16),
                waiting: Duration::from_millis(2490),
                debt: Duration::from_millis(10),
            },
            achieved: 13.75,
            drawn: 0.0,
        }),
    }]);
    metrics
        .callers
        .mirror_groups(&[group("monitoring", 5, 12.5)]);
    metrics.callers.mirror_callers(&CallerCounts {
        from_config: 2,
        made: 1,
        auto: 7,
        evicted: 3,
    });
    metrics
}

fn exercise_calls(metrics: &Metrics) {
    let took = Durations {
        total: Duration::from_millis(80),
        waited: Some(Duration::from_millis(20)),
        backend: Some(Duration::from_millis(50)),
    };
    let calls = &metrics.calls;
    calls.count("nova", "guest_get_info", "default", "delayed", &took);
    calls.limit_hit("total");
    calls.limit_held("total", Duration::from_millis(20));
    calls.refused(Some("total"), "deadline_passed");
    calls.refused(None, "queue_full");
    let coalesced = metrics.coalesce.coalesced_total("guest_get_info");
    coalesced.inc();
    for (waited, rejected) in [
        (Some(Duration::from_millis(20)), None),
        (None, Some("rate_limited")),
    ] {
        metrics.callers.charged(&Charge {
            limiter: "poller",
            waited,
            delayed: waited.is_some(),
            rejected,
        });
    }
    metrics.callers.cost_settled("guest_get_info");
}

fn exercise_connections(metrics: &Metrics) {
    metrics.forward.backend_up("socket").show(true);
    metrics.forward.server_up("a").show(true);
    metrics.forward.server_calls("a").show(1_u32);
    metrics.forward.connect_shortages_total("socket").inc();
    let failed = backend_tls_failures_total {
        backend: "http",
        cause: "expired",
    };
    metrics.forward.backend_tls_failures_total(failed).inc();
    // Counted until it is dropped, and here it never is.
    std::mem::forget(metrics.listen.opened("nova"));
    drop(metrics.listen.opened("nova"));
    metrics.listen.connections_limit().show(10_000_u32);
    metrics.listen.accept_errors_total().inc();
    let of = connections_rejected_total {
        listener: "nova",
        reason: "tls_handshake",
    };
    metrics.protocol.connections_rejected_total(of).inc();
    let of = signs_of_life_total {
        listener: "nova",
        sign: "100",
    };
    metrics.protocol.signs_of_life_total(of).inc_by(3);
    metrics.protocol.identity_unusable_total("user_agent").inc();
    metrics.process.access_lines_lost_total("disk_full").inc();
    metrics.process.log_events_lost_total("disk_full").reach(4);
    metrics.process.spans_sent_total().inc();
    metrics.process.spans_lost_total("queue_full").inc();
}

fn exercise_observed(metrics: &Metrics) {
    let would = |ending| Would {
        wait: Duration::from_millis(20),
        limit: Some("total".into()),
        ending,
    };
    let refused = WouldEnd::Refused(RefusalReason::DeadlinePassed);
    for ending in [WouldEnd::Runs, refused] {
        metrics.would_have.count("user", &would(ending));
    }
    metrics.would_have.mirror(Some(&ObservedNow {
        depth: 2,
        peak: 5,
        limits: Vec::new(),
    }));
}

fn exercise_quotas(metrics: &Metrics) {
    let drawn = metrics.quotas.quota_draw_seconds("rate_limit:per_user");
    drawn.observe(0.002);
    let store = QuotaStoreState {
        engine: "zookeeper",
        up: Some(true),
        since_seconds: 7.0,
        time_uncertainty_seconds: Some(0.0025),
        members: 3,
        expected_sidecars: 2,
        unexpected_members: 1,
        evictions: Some(3),
        trouble: None,
    };
    metrics.quotas.mirror(&QuotasState {
        store: Some(store),
        ..crate::admin::quotas(0)
    });
}

fn window(name: &str) -> (LimitRule, LimitNow) {
    let window = Limit::Window {
        max: 30,
        length: Duration::from_secs(1),
        guard: Duration::ZERO,
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    };
    let rule = LimitRule::new(name, window);
    let now = LimitNow {
        name: name.into(),
        scope: rule.scope.clone(),
        configured: 30,
        max: 30,
        used: 12,
        need: 12,
        opens: Verdict::Ready,
        waiting: 0,
        claimed: 0,
        idle: Duration::ZERO,
        paced: None,
    };
    (rule, now)
}

fn group(name: &str, calls: u64, tokens: f64) -> GroupNow {
    GroupNow {
        group: Group::new(name).expect("a good name"),
        callers: 1,
        calls,
        tokens: TokenCount::from_micros((tokens * 1e6) as u64),
    }
}

fn text(metrics: &Metrics) -> String {
    metrics.scrape(|_| ())
}

#[test]
fn a_scrape_shows_what_was_counted() {
    let text = text(&exercised());
    for line in [
        r#"tidegate_refusals_total{limit="total",reason="deadline_passed"} 1"#,
        r#"tidegate_refusals_total{limit="none",reason="queue_full"} 1"#,
        r#"tidegate_limit_held_seconds_total{limit="total"} 0.02"#,
        r#"tidegate_backend_up{backend="socket"} 1"#,
        r#"tidegate_connections{listener="nova"} 1"#,
        "tidegate_connections_limit 10000",
        "tidegate_accept_errors_total 1",
        r#"tidegate_connections_rejected_total{listener="nova",reason="tls_handshake"} 1"#,
        r#"tidegate_identity_unusable_total{field="user_agent"} 1"#,
        r#"tidegate_signs_of_life_total{listener="nova",sign="100"} 3"#,
        r#"tidegate_access_lines_lost_total{cause="disk_full"} 1"#,
        "tidegate_config_last_reload_successful 1",
        "tidegate_config_last_reload_success_timestamp_seconds 1700000000",
        r#"tidegate_build_info{revision="abc1234",version="0.1.0"} 1"#,
        "tidegate_queue_depth 3",
        "tidegate_queue_capacity 4096",
        "tidegate_queue_oldest_seconds 1.5",
        "tidegate_queue_max_wait_seconds 60",
        "tidegate_claims_total 2",
        "tidegate_claims_idle_seconds_total 0.25",
        "tidegate_ready 1",
        r#"tidegate_limit_overridden{limit="total"} 1"#,
        r#"tidegate_limit_overridden{limit="workers"} 0"#,
        "tidegate_outstanding 7",
        "tidegate_outstanding_limit 10",
        "tidegate_outstanding_peak 9",
        r#"tidegate_coalesced_total{function="guest_get_info"} 1"#,
        "tidegate_coalesce_calls 2",
        "tidegate_coalesce_kept_answers 5",
        "tidegate_coalesce_held_bytes 4321",
        r#"tidegate_tasks{state="waiting"} 6"#,
        r#"tidegate_tasks{state="running"} 1"#,
        r#"tidegate_tasks{state="ended"} 4"#,
        "tidegate_tasks_held_bytes 1234",
        r#"tidegate_tasks_ended_total{outcome="answered"} 9"#,
        r#"tidegate_tasks_ended_total{outcome="not_kept"} 0"#,
        r#"tidegate_window_used{limit="total"} 12"#,
        r#"tidegate_window_limit{limit="total"} 30"#,
        r#"tidegate_lease_capacity{limit="total"} 12.5"#,
        r#"tidegate_lease_wants{limit="total"} 30"#,
        r#"tidegate_lease_safe{limit="total"} 5"#,
        r#"tidegate_lease_expires_seconds{limit="total"} 7.25"#,
        r#"tidegate_limiter_tokens{limiter="poller"} -2.5"#,
        r#"tidegate_limiter_queued{limiter="poller"} 4"#,
        r#"tidegate_limiter_wait_seconds_count{limiter="poller"} 1"#,
        r#"tidegate_limiter_pace_rate{limiter="poller"} 12.5"#,
        r#"tidegate_limiter_pace_achieved_rate{limiter="poller"} 13.75"#,
        r#"tidegate_limiter_pace_wait_seconds{limiter="poller"} 2.5"#,
        r#"tidegate_limiter_pace_burst_seconds{limiter="poller"} 0.016"#,
        r#"tidegate_limiter_delayed_total{limiter="poller"} 1"#,
        r#"tidegate_limiter_rejected_total{limiter="poller",reason="rate_limited"} 1"#,
        r#"tidegate_quota_decisions_total{how="local",limit="rate_limit:per_user"} 98"#,
        r#"tidegate_quota_decisions_total{how="drew",limit="rate_limit:per_user"} 3"#,
        r#"tidegate_quota_decisions_total{how="waited",limit="rate_limit:per_user"} 2"#,
        r#"tidegate_quota_decisions_total{how="refused",limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_draws_total{limit="rate_limit:per_user"} 5"#,
        r#"tidegate_quota_draw_seconds_count{limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_conflicts_total{limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_unknown_total{limit="rate_limit:per_user"} 2"#,
        r#"tidegate_quota_unavailable_total{limit="rate_limit:per_user"} 3"#,
        r#"tidegate_quota_relinquished_total{limit="rate_limit:per_user"} 4"#,
        r#"tidegate_quota_allowed_tokens_total{limit="rate_limit:per_user"} 6"#,
        r#"tidegate_quota_overshot_tokens_total{limit="rate_limit:per_user"} 7"#,
        r#"tidegate_quota_keys{limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_keys_forgotten_total{limit="rate_limit:per_user"} 8"#,
        r#"tidegate_quota_store_up{engine="zookeeper"} 1"#,
        r#"tidegate_quota_store_time_uncertainty_seconds{engine="zookeeper"} 0.0025"#,
        r#"tidegate_quota_keys_in_trouble{limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_members{engine="zookeeper"} 3"#,
        r#"tidegate_quota_members_unexpected{engine="zookeeper"} 1"#,
        r#"tidegate_group_tokens_total{group="monitoring"} 12.5"#,
        r#"tidegate_group_calls_total{group="monitoring"} 5"#,
        r#"tidegate_callers_registered{kind="config"} 2"#,
        r#"tidegate_callers_registered{kind="made"} 1"#,
        r#"tidegate_callers_registered{kind="auto"} 7"#,
        "tidegate_callers_evicted_total 3",
        r#"tidegate_call_cost_settled_total{function="guest_get_info"} 1"#,
        r#"tidegate_queue_wait_seconds_bucket{class="default",function="guest_get_info",le="0.02"} 1"#,
        r#"tidegate_queue_wait_seconds_bucket{class="default",function="guest_get_info",le="0.01"} 0"#,
    ] {
        let found = text.lines().any(|given| given == line);
        assert!(found, "no {line} in\n{text}");
    }
}

#[test]
fn a_snapshot_adds_to_its_counters_only_what_is_new() {
    let metrics = exercised();
    let callers = &metrics.callers;
    for _ in 0..2 {
        callers.mirror_groups(&[group("monitoring", 8, 20.0)]);
        callers.mirror_callers(&CallerCounts {
            evicted: 4,
            ..CallerCounts::default()
        });
    }
    let shown = text(&metrics);
    for line in [
        r#"tidegate_group_tokens_total{group="monitoring"} 20"#,
        r#"tidegate_group_calls_total{group="monitoring"} 8"#,
        "tidegate_callers_evicted_total 4",
    ] {
        assert!(shown.lines().any(|given| given == line), "{line}\n{shown}");
    }
    callers.mirror_groups(&[group("other", 1, 1.0)]);
    assert!(!text(&metrics).contains("monitoring"));
}

#[test]
fn a_total_that_begins_again_resets_its_counter() {
    let metrics = exercised();
    for calls in [5, 2, 3] {
        let tokens = f64::from(u32::try_from(calls).expect("few"));
        metrics
            .callers
            .mirror_groups(&[group("monitoring", calls, tokens)]);
        let shown = text(&metrics);
        for name in ["calls", "tokens"] {
            let line = format!("tidegate_group_{name}_total{{group=\"monitoring\"}} {calls}");
            assert!(shown.lines().any(|given| given == line), "{line}\n{shown}");
        }
    }
}

#[test]
fn a_limit_that_a_reload_removed_leaves_no_series_behind() {
    let metrics = exercised();
    metrics.calls.limit_hit("rate_limit:poller");
    let held = Duration::from_secs(1);
    metrics.calls.limit_held("rate_limit:poller", held);
    metrics
        .calls
        .refused(Some("rate_limit:poller"), "rate_limited");
    metrics.callers.mirror_limiters(&[]);
    metrics
        .calls
        .retain_limits(|limit| limit == "total" || limit == "none");
    metrics.quotas.mirror(&QuotasState {
        store: None,
        quotas: Vec::new(),
    });
    let gate = GateNow {
        acting: BackendControlNow {
            acting: BackendControl::Running,
            share: SupplyShare::FULL,
            in_flight: 7,
            now: Timestamp::ZERO,
        },
        queue: QueueNow::default(),
        outstanding: 0,
        outstanding_peak: 0,
        limits: vec![window("total")],
        tickets: TicketCounts::default(),
    };
    metrics.admit.mirror(&gate, None);
    let text = text(&metrics);
    for gone in ["poller", "per_user", "zookeeper", "limit=\"guest_list"] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    assert!(text.contains(r#"tidegate_limit_hits_total{limit="total"} 1"#));
    assert!(text.contains(r#"tidegate_window_limit{limit="total"} 30"#));
}

#[test]
fn a_refused_config_keeps_the_time_of_the_last_good_one() {
    let metrics = Metrics::new("1", "r");
    metrics.config_taken(UNIX_EPOCH + Duration::from_secs(7));
    metrics.config_refused();
    let text = text(&metrics);
    for line in [
        "tidegate_config_last_reload_successful 0",
        "tidegate_config_last_reload_success_timestamp_seconds 7",
    ] {
        assert!(text.lines().any(|given| given == line), "{line}\n{text}");
    }
}

#[test]
fn promtool_finds_nothing_to_say() {
    crate::support::promtool_is_content(&text(&exercised()));
}

/// Every metric that the text has a value for.
fn with_values(text: &str) -> BTreeSet<&str> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .map(|declared| declared.split_once(' ').expect("name and type").0)
        .collect()
}

#[test]
fn every_metric_is_exercised_here() {
    let metrics = exercised();
    let text = text(&metrics);
    let definitions = metrics.registry().definitions();
    let defined = definitions.iter().flat_map(|(_, of_module)| *of_module);
    let names: BTreeSet<&str> = defined.map(|it| it.name).collect();
    assert_eq!(names, with_values(&text));
}
