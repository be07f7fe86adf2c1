//! Every metric, as it is scraped and as it is documented.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use tidegate::telemetry::metrics::{
    CallersLevel, Charged, Durations, GroupLevel, LeaseLevel, Levels, LimiterLevel, Metrics,
    PaceLevel, QuotaLevel, QuotaStoreLevel, TasksLevel, WindowLevel,
};

/// Metrics of which each has at least one value.
fn exercised() -> Metrics {
    let metrics = Metrics::new("0.1.0", "abc1234");
    let took = Durations {
        total: Duration::from_millis(80),
        waited: Some(Duration::from_millis(20)),
        backend: Some(Duration::from_millis(50)),
    };
    metrics.call_ended("nova", "guest_get_info", "default", "delayed", &took);
    metrics.coalesced("guest_get_info");
    metrics.limit_hit("total");
    for (waited, rejected) in [
        (Some(Duration::from_millis(20)), None),
        (None, Some("rate_limited")),
    ] {
        metrics.charged(&Charged {
            limiter: "poller",
            waited,
            delayed: waited.is_some(),
            rejected,
        });
    }
    metrics.cost_settled("guest_get_info");
    metrics.refused(Some("total"), "deadline_passed");
    metrics.refused(None, "queue_full");
    metrics.backend_is_up("socket", true);
    // Counted until it is dropped, and here it never is.
    std::mem::forget(metrics.connection_opened("nova"));
    drop(metrics.connection_opened("nova"));
    metrics.connections_may_be(10_000);
    metrics.accept_failed();
    metrics.connect_is_short("socket");
    metrics.connection_rejected("nova", "tls_handshake");
    metrics.identity_unusable("user_agent");
    metrics.config_taken(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    metrics.config_refused();
    metrics.config_reloaded(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    metrics.access_line_lost();
    metrics.quota_drawn("rate_limit:per_user", Duration::from_millis(2));
    metrics.mirror(&Levels {
        queue_depth: 3,
        queue_capacity: 4096,
        queue_oldest: Duration::from_millis(1500),
        claims: 2,
        claims_idle: Duration::from_millis(250),
        outstanding: 7,
        outstanding_limit: 10,
        outstanding_peak: 9,
        coalesce_calls: 2,
        coalesce_kept_answers: 5,
        coalesce_held_bytes: 4321,
        tasks: TasksLevel {
            waiting: 6,
            running: 1,
            ended: 4,
            bytes: 1234,
            answered: 9,
            cancelled: 2,
            ..TasksLevel::default()
        },
        windows: vec![WindowLevel {
            limit: "total".into(),
            used: 12,
            configured: 30,
        }],
        limiters: vec![LimiterLevel {
            limiter: "poller".into(),
            tokens: -2.5,
            queued: 4,
            would_have_delayed: 6,
            pace: Some(PaceLevel {
                rate: 12.5,
                achieved: 13.75,
                wait: Duration::from_millis(2500),
                burst: Duration::from_millis(16),
            }),
        }],
        leases: vec![LeaseLevel {
            limit: "total".into(),
            capacity: 12.5,
            wants: 30.0,
            safe: 5.0,
            expires: Duration::from_millis(7250),
        }],
        quotas: vec![QuotaLevel {
            limit: "rate_limit:per_user".into(),
            local: 98,
            drew: 3,
            waited: 2,
            refused: 1,
            draws: 11,
            conflicts: 12,
            unknown: 13,
            unavailable: 14,
            relinquished: 15,
            allowed: 16,
            overshot: 17,
            keys: 18,
            forgotten: 19,
            troubled: 20,
        }],
        quota_store: Some(QuotaStoreLevel {
            engine: "zookeeper",
            up: Some(true),
            time_uncertainty: 0.0025,
            members: 3,
            unexpected_members: 1,
        }),
        groups: vec![GroupLevel {
            group: "monitoring".into(),
            calls: 5,
            tokens: 12.5,
        }],
        callers: CallersLevel {
            from_config: 2,
            made: 1,
            auto: 7,
            evicted: 3,
        },
        log_events_lost: 4,
    });
    metrics
}

#[test]
fn a_scrape_says_what_was_told() {
    let text = exercised().gather();
    for line in [
        r#"tidegate_refusals_total{limit="total",reason="deadline_passed"} 1"#,
        r#"tidegate_refusals_total{limit="none",reason="queue_full"} 1"#,
        r#"tidegate_backend_up{backend="socket"} 1"#,
        r#"tidegate_connections{listener="nova"} 1"#,
        "tidegate_connections_limit 10000",
        "tidegate_accept_errors_total 1",
        r#"tidegate_connections_rejected_total{listener="nova",reason="tls_handshake"} 1"#,
        r#"tidegate_identity_unusable_total{field="user_agent"} 1"#,
        "tidegate_access_lines_lost_total 1",
        "tidegate_config_last_reload_successful 1",
        "tidegate_config_last_reload_success_timestamp_seconds 1700000000",
        r#"tidegate_build_info{revision="abc1234",version="0.1.0"} 1"#,
        "tidegate_queue_depth 3",
        "tidegate_queue_capacity 4096",
        "tidegate_queue_oldest_seconds 1.5",
        "tidegate_claims_total 2",
        "tidegate_claims_idle_seconds_total 0.25",
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
        r#"tidegate_limiter_would_have_delayed_total{limiter="poller"} 6"#,
        r#"tidegate_limiter_rejected_total{limiter="poller",reason="rate_limited"} 1"#,
        r#"tidegate_quota_decisions_total{how="local",limit="rate_limit:per_user"} 98"#,
        r#"tidegate_quota_decisions_total{how="drew",limit="rate_limit:per_user"} 3"#,
        r#"tidegate_quota_decisions_total{how="waited",limit="rate_limit:per_user"} 2"#,
        r#"tidegate_quota_decisions_total{how="refused",limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_draws_total{limit="rate_limit:per_user"} 11"#,
        r#"tidegate_quota_draw_seconds_count{limit="rate_limit:per_user"} 1"#,
        r#"tidegate_quota_conflicts_total{limit="rate_limit:per_user"} 12"#,
        r#"tidegate_quota_unknown_total{limit="rate_limit:per_user"} 13"#,
        r#"tidegate_quota_unavailable_total{limit="rate_limit:per_user"} 14"#,
        r#"tidegate_quota_relinquished_total{limit="rate_limit:per_user"} 15"#,
        r#"tidegate_quota_allowed_tokens_total{limit="rate_limit:per_user"} 16"#,
        r#"tidegate_quota_overshot_tokens_total{limit="rate_limit:per_user"} 17"#,
        r#"tidegate_quota_keys{limit="rate_limit:per_user"} 18"#,
        r#"tidegate_quota_keys_forgotten_total{limit="rate_limit:per_user"} 19"#,
        r#"tidegate_quota_store_up{engine="zookeeper"} 1"#,
        r#"tidegate_quota_store_time_uncertainty_seconds{engine="zookeeper"} 0.0025"#,
        r#"tidegate_quota_keys_in_trouble{limit="rate_limit:per_user"} 20"#,
        r#"tidegate_quota_members{engine="zookeeper"} 3"#,
        r#"tidegate_quota_members_unexpected{engine="zookeeper"} 1"#,
        r#"tidegate_group_tokens_total{group="monitoring"} 12.5"#,
        r#"tidegate_group_calls_total{group="monitoring"} 5"#,
        r#"tidegate_callers_registered{kind="config"} 2"#,
        r#"tidegate_callers_registered{kind="made"} 1"#,
        r#"tidegate_callers_registered{kind="auto"} 7"#,
        "tidegate_callers_evicted_total 3",
        r#"tidegate_call_cost_settled_total{function="guest_get_info"} 1"#,
        r#"tidegate_queue_wait_seconds_bucket{class="default",function="guest_get_info",le="0.025"} 1"#,
        r#"tidegate_queue_wait_seconds_bucket{class="default",function="guest_get_info",le="0.01"} 0"#,
    ] {
        let found = text.lines().any(|given| given == line);
        assert!(found, "no {line} in\n{text}");
    }
}

#[test]
fn a_snapshot_adds_to_its_counters_only_what_is_new() {
    let metrics = exercised();
    let level = |calls, tokens, evicted, group: &str| Levels {
        groups: vec![GroupLevel {
            group: group.into(),
            calls,
            tokens,
        }],
        callers: CallersLevel {
            evicted,
            ..CallersLevel::default()
        },
        ..Levels::default()
    };
    metrics.mirror(&level(8, 20.0, 4, "monitoring"));
    metrics.mirror(&level(8, 20.0, 4, "monitoring"));
    let text = metrics.gather();
    for line in [
        r#"tidegate_group_tokens_total{group="monitoring"} 20"#,
        r#"tidegate_group_calls_total{group="monitoring"} 8"#,
        "tidegate_callers_evicted_total 4",
    ] {
        assert!(text.lines().any(|given| given == line), "{line}\n{text}");
    }
    metrics.mirror(&level(1, 1.0, 4, "other"));
    assert!(!metrics.gather().contains("monitoring"));
}

#[test]
fn a_rate_limit_that_is_gone_leaves_no_series_behind() {
    let metrics = exercised();
    metrics.limit_hit("rate_limit:poller");
    metrics.refused(Some("rate_limit:poller"), "rate_limited");
    metrics.mirror(&Levels::default());
    let text = metrics.gather();
    assert!(!text.contains("poller"), "{text}");
    assert!(text.contains(r#"tidegate_limit_hits_total{limit="total"} 1"#));
}

#[test]
fn promtool_finds_nothing_to_say() {
    promtool_is_content(&exercised().gather());
}

/// Fails if promtool has something to say about these metrics.
pub(crate) fn promtool_is_content(text: &str) {
    let spawned = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match spawned {
        Ok(promtool) => promtool,
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!(
                "SKIPPED, NOTHING CHECKED: promtool does not run ({error}); `make test` installs it"
            );
            return;
        }
        Err(error) => panic!("promtool does not run: {error}"),
    };
    let mut stdin = promtool.stdin.take().expect("piped");
    stdin.write_all(text.as_bytes()).expect("promtool reads");
    drop(stdin);
    let said = promtool.wait_with_output().expect("promtool ends");
    let words = [said.stdout, said.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    assert!(said.status.success() && words.is_empty(), "{words}\n{text}");
}

/// Type and labels of each metric.
type Table = BTreeMap<String, (String, BTreeSet<String>)>;

fn scraped() -> Table {
    let text = exercised().gather();
    let mut table = Table::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("name and type");
            table.insert(name.into(), (kind.into(), BTreeSet::new()));
        } else if let Some((series, labels)) = line.split_once('{') {
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| series.strip_suffix(part).filter(|n| table.contains_key(*n)))
                .unwrap_or(series);
            let (_, known) = table.get_mut(name).expect("a type stands before values");
            let labels = labels.split_once('}').expect("closed").0.split("\",");
            known.extend(
                labels
                    .map(|label| label.split_once('=').expect("label=value").0.to_owned())
                    .filter(|label| label != "le"),
            );
        }
    }
    table
}

/// The rows of the tables in docs/metrics.md: `| name | type | labels | … |`.
fn documented() -> Table {
    include_str!("../../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().trim_end_matches('`'));
            let mut cell = || cells.next().expect("four cells").to_owned();
            let (name, kind, labels) = (cell(), cell(), cell());
            let labels = labels
                .split(',')
                .map(|label| label.trim().trim_matches('`').to_owned())
                .filter(|label| !label.is_empty());
            (name, (kind, labels.collect()))
        })
        .collect()
}

#[test]
fn every_metric_is_exercised_here() {
    let scraped: Vec<String> = scraped().into_keys().collect();
    let mut declared = Metrics::new("", "").names().to_vec();
    declared.sort();
    assert_eq!(declared, scraped);
}

#[test]
fn every_metric_is_documented_with_its_type_and_labels_and_no_other_is() {
    assert_eq!(documented(), scraped());
}
