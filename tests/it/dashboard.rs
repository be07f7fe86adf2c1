//! The Grafana dashboard, which is made from the definitions of the metrics, and whether a real
//! Prometheus that scraped a storm answers its queries.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::app::metrics::Metrics;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tidegate_runtime::metric::Definition;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::child::Process;
use crate::sidecar::Sidecar;
use crate::support::{Answer, array, ask, cannot_run};

const DASHBOARD: &str = "packaging/grafana/tidegate.json";

/// The series of one sidecar, or of several.
const OF: &str = r#"job="tidegate", instance=~"$instance""#;

/// The time over which Grafana takes a rate.
const SPAN: &str = "$__rate_interval";

/// A panel of the first row: title, unit, and queries with their legends.
type Glance = (&'static str, &'static str, Vec<(String, &'static str)>);

/// The figures that an operator looks at first.
fn first_row() -> Vec<Glance> {
    let rate = |name: &str, by: &str| format!("sum by ({by}) (rate({name}{{{OF}}}[{SPAN}]))");
    let level = |name: &str| format!("sum by (instance) ({name}{{{OF}}})");
    vec![
        (
            "Waiting calls, and how many may wait",
            "short",
            vec![
                (level("tidegate_queue_depth"), "{{instance}}"),
                (level("tidegate_queue_capacity"), "{{instance}} capacity"),
            ],
        ),
        (
            "Wait of the oldest call, and how long a call may wait",
            "s",
            vec![
                (level("tidegate_queue_oldest_seconds"), "{{instance}}"),
                (
                    level("tidegate_queue_max_wait_seconds"),
                    "{{instance}} max_wait",
                ),
            ],
        ),
        (
            "Calls held by each limit, on average",
            "short",
            vec![(
                rate("tidegate_limit_held_seconds_total", "limit"),
                "{{limit}}",
            )],
        ),
        (
            "Calls that ended, by verdict",
            "ops",
            vec![(rate("tidegate_calls_total", "verdict"), "{{verdict}}")],
        ),
        (
            "Refused calls, by reason",
            "ops",
            vec![(
                rate("tidegate_refusals_total", "limit, reason"),
                "{{reason}} {{limit}}",
            )],
        ),
        (
            "Calls at the backend, and how many may be there",
            "short",
            vec![
                (level("tidegate_outstanding"), "{{instance}}"),
                (level("tidegate_outstanding_limit"), "{{instance}} limit"),
            ],
        ),
    ]
}

/// The queries of a metric, with their legends.
fn queries(metric: &Definition) -> Vec<(String, String)> {
    let name = metric.name;
    let legend = |of: &[&str]| {
        let labels: Vec<_> = of.iter().map(|it| format!("{{{{{it}}}}}")).collect();
        labels.join(" ")
    };
    let by = |extra: &'static str| {
        let labels = metric.labels.iter().copied();
        labels.chain([extra]).collect::<Vec<_>>()
    };
    match metric.kind {
        "histogram" => [("0.5", "p50"), ("0.99", "p99")]
            .map(|(quantile, word)| {
                let rate = format!(
                    "sum by ({}) (rate({name}_bucket{{{OF}}}[{SPAN}]))",
                    by("le").join(", ")
                );
                (
                    format!("histogram_quantile({quantile}, {rate})"),
                    format!("{word} {}", legend(metric.labels)),
                )
            })
            .to_vec(),
        "gauge" => vec![(format!("{name}{{{OF}}}"), legend(&by("instance")))],
        _ => {
            let labels = by("instance");
            let rate = format!(
                "sum by ({}) (rate({name}{{{OF}}}[{SPAN}]))",
                labels.join(", ")
            );
            vec![(rate, legend(&labels))]
        }
    }
}

/// The unit in the words of Grafana.
fn unit(metric: &Definition) -> &'static str {
    match (metric.kind, metric.unit) {
        ("counter", "s") => "short",
        (_, "s") => "s",
        (_, "Unix s") => "dateTimeAsIso",
        (_, "bytes") => "bytes",
        ("counter", _) => "ops",
        _ => "short",
    }
}

/// Panels from left to right and from top to bottom.
#[derive(Default)]
struct Panels {
    all: Vec<Value>,
    across: u32,
    down: u32,
}

impl Panels {
    /// The width of the page, the width of a panel and its height, in units of Grafana.
    const PAGE: u32 = 24;
    const WIDTH: u32 = 8;
    const HEIGHT: u32 = 8;

    fn row(&mut self, title: &str) {
        self.end_line();
        let place = json!({ "x": 0, "y": self.down, "w": Self::PAGE, "h": 1 });
        let id = self.all.len() + 1;
        self.all.push(json!({
            "id": id, "type": "row", "title": title, "collapsed": false, "gridPos": place, "panels": []
        }));
        self.down += 1;
    }

    fn add(&mut self, title: &str, help: &str, unit: &str, queries: Vec<(String, String)>) {
        if self.across + Self::WIDTH > Self::PAGE {
            self.end_line();
        }
        let letters = ["A", "B", "C", "D"];
        let targets: Vec<Value> = queries
            .into_iter()
            .zip(letters)
            .map(|((expr, legend), letter)| {
                json!({ "refId": letter, "expr": expr, "legendFormat": legend, "datasource": source() })
            })
            .collect();
        let place = json!({
            "x": self.across, "y": self.down, "w": Self::WIDTH, "h": Self::HEIGHT
        });
        let id = self.all.len() + 1;
        self.all.push(json!({
            "id": id,
            "type": "timeseries",
            "title": title,
            "description": help,
            "datasource": source(),
            "fieldConfig": { "defaults": { "unit": unit }, "overrides": [] },
            "gridPos": place,
            "targets": targets,
        }));
        self.across += Self::WIDTH;
    }

    fn end_line(&mut self) {
        if self.across > 0 {
            self.across = 0;
            self.down += Self::HEIGHT;
        }
    }
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${source}" })
}

/// The dashboard: what is looked at first, and then every metric, by the module that defines it.
fn dashboard() -> Value {
    let mut panels = Panels::default();
    panels.row("At a glance");
    for (title, unit, queries) in first_row() {
        let queries = queries
            .into_iter()
            .map(|(expr, legend)| (expr, legend.to_owned()));
        panels.add(title, "", unit, queries.collect());
    }
    let metrics = Metrics::new("", "");
    let mut last = "";
    for (module, of_module) in metrics.registry().definitions() {
        if module != last {
            let title = module.trim_start_matches("tidegate::").replace("::", ", ");
            panels.row(&title);
            last = module;
        }
        for metric in of_module {
            let title = metric.name.trim_start_matches("tidegate_");
            let help = metric.help.trim();
            panels.add(title, help, unit(metric), queries(metric));
        }
    }
    json!({
        "uid": "tidegate",
        "title": "Tidegate",
        "tags": ["tidegate"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            { "name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus" },
            {
                "name": "instance", "label": "Sidecar", "type": "query", "datasource": source(),
                "query": "label_values(tidegate_build_info{job=\"tidegate\"}, instance)",
                "refresh": 2, "multi": true, "includeAll": true, "allValue": ".*",
                "current": { "text": "All", "value": "$__all" }
            },
        ] },
        "panels": panels.all,
    })
}

fn written() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DASHBOARD);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[test]
fn the_dashboard_is_made_from_the_definitions() {
    let made = dashboard();
    if std::env::var_os("MAKE_DOCS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DASHBOARD);
        let text = serde_json::to_string_pretty(&made).expect("it is JSON");
        std::fs::write(path, text + "\n").expect("it can be written");
    } else {
        assert!(
            written() == made,
            "{DASHBOARD} is out of date: run `make docs`"
        );
    }
}

/// A Prometheus that scrapes a sidecar every second, with the rules that are installed with it.
struct Prometheus {
    _process: Process,
    addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    /// `None` if it is not installed and may be missing.
    fn start(sidecar: SocketAddr) -> Option<Self> {
        if let Err(error) = Command::new("prometheus").arg("--version").output() {
            let why = format!("Prometheus does not run ({error}); `make promtool` installs it");
            cannot_run("dashboard", &why);
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = free.local_addr().expect("it is bound");
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus");
        let rules = rules.display();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [\"{rules}/alerts.yml\", \"{rules}/rules.yml\"]\n\
             scrape_configs:\n\
             - job_name: tidegate\n  static_configs: [ {{ targets: [\"{sidecar}\"] }} ]\n"
        );
        let path = dir.path().join("prometheus.yml");
        std::fs::write(&path, config).expect("it can be written");
        drop(free);
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={addr}"));
        Some(Self {
            _process: Process::start("prometheus", &mut command),
            addr,
            _dir: dir,
        })
    }

    async fn get(&self, path: &str) -> Value {
        // HTTP/1.0, so that the answer is not in chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let answer = Answer::read(ask(self.addr, request).await.as_bytes());
        let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        assert_eq!(body["status"], "success", "{path}: {}", answer.body);
        body["data"].clone()
    }

    /// The values of a query.
    async fn values(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.get(&format!("/api/v1/query?query={encoded}")).await;
        let samples = data["result"].as_array().expect("samples").iter();
        let value = |sample: &Value| sample["value"][1].as_str().map(str::parse);
        samples
            .map(|it| value(it).expect("a value").expect("a number"))
            .collect()
    }

    /// Waits until it answers.
    async fn answers(&self, until: Instant) {
        while tokio::net::TcpStream::connect(self.addr).await.is_err() {
            assert!(Instant::now() < until, "Prometheus does not listen");
            tokio::task::yield_now().await;
        }
        loop {
            let request = "GET /-/ready HTTP/1.0\r\nHost: localhost\r\n\r\n";
            if Answer::read(ask(self.addr, request).await.as_bytes()).status == 200 {
                return;
            }
            assert!(Instant::now() < until, "Prometheus is not ready");
        }
    }
}

/// More calls than the limits admit within max_wait, so that some are refused.
fn config(backend: &RunningBackend) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:40, guest_list:4"
        outstanding = 10
        max_wait = "2s"
        [[bucket]]
        name = "all"
        burst = 20
        fill = 35
        [[caller]]
        label = "everybody"
        match = {{ listener = "test" }}
        rate_limit = "all"
        [admin]
        bind = "127.0.0.1:0"
        "#,
        backend.socket_addr()
    )
}

/// A client that asks again and again, at most ten times a second.
async fn client(addr: SocketAddr, number: usize) {
    let function = ["guest_get_info", "guest_list", "guest_start"][number % 3];
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    loop {
        pace.tick().await;
        ask(addr, array(function, &format!("U{number}"))).await;
    }
}

/// The series that a storm must show, above zero.
const SHOWN_BY_A_STORM: [&str; 9] = [
    "tidegate_queue_depth{",
    "tidegate_queue_oldest_seconds{",
    "tidegate_queue_max_wait_seconds{",
    "tidegate_limit_held_seconds_total{",
    "tidegate_calls_total{",
    "tidegate_refusals_total{",
    "tidegate_outstanding{",
    "tidegate_queue_wait_seconds_bucket{",
    "tidegate_backend_duration_seconds_bucket{",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_that_scraped_a_storm_answers_every_query() {
    let until = Instant::now() + Duration::from_secs(40);
    let options = StandInOptions {
        delay: Duration::from_millis(50),
        ..StandInOptions::on_free_ports()
    };
    let backend = StandInBackend::start(options).await.expect("free ports");
    let sidecar = Sidecar::start(&config(&backend)).await;
    let Some(prometheus) = Prometheus::start(sidecar.admin) else {
        return;
    };
    let addr = sidecar.listener("test").await;
    prometheus.answers(until).await;
    let mut storm = JoinSet::new();
    for number in 0..150 {
        storm.spawn(client(addr, number));
    }
    let scraped = r#"count_over_time(tidegate_queue_depth{job="tidegate"}[1m])"#;
    while prometheus.values(scraped).await.first() < Some(&10.0) {
        assert!(Instant::now() < until, "too few scrapes");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (_, metrics) = sidecar.get("/metrics").await;
    let types = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let with_values: BTreeSet<&str> = types.filter_map(|it| it.split(' ').next()).collect();
    assert!(with_values.len() > 30, "{with_values:?}");

    let dashboard = written();
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|it| it["targets"].as_array());
    let (mut asked, mut shown) = (0, BTreeSet::new());
    for target in targets.flatten() {
        let expr = target["expr"].as_str().expect("a query");
        let query = expr.replace("$instance", ".*").replace(SPAN, "10s");
        let values = prometheus.values(&query).await;
        let metric = query
            .split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'))
            .find(|word| word.starts_with("tidegate_") || word.starts_with("process_"))
            .expect("it is about a metric");
        let metric = metric.strip_suffix("_bucket").unwrap_or(metric);
        let has_value = with_values.contains(metric);
        assert!(!has_value || !values.is_empty(), "no answer to {query}");
        for must in SHOWN_BY_A_STORM {
            if query.contains(must) {
                let most = format!("max_over_time(({query})[10s:1s])");
                let most = prometheus.values(&most).await;
                assert!(most.iter().any(|it| *it > 0.0), "{query}: {most:?}");
                shown.insert(must);
            }
        }
        asked += 1;
    }
    assert!(asked > 60, "{asked} queries");
    assert_eq!(shown.len(), SHOWN_BY_A_STORM.len(), "{shown:?}");

    // The rules that are installed with it are taken, and the recorded ones have values.
    let rules = prometheus.get("/api/v1/rules").await;
    for group in rules["groups"].as_array().expect("groups") {
        for rule in group["rules"].as_array().expect("rules") {
            assert_eq!(rule["health"], "ok", "{rule}");
            if rule["type"] == "recording" {
                let name = rule["name"].as_str().expect("a name");
                assert!(!prometheus.values(name).await.is_empty(), "{name}");
            }
        }
    }
    storm.shutdown().await;
}
