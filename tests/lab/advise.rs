//! `tidegate advise` through the binary: logs of the real process, and logs of modelled backends.
//!
//! Advice needs half an hour of calls, which no test has. So a model runs calls in virtual time, and its
//! log is written as the sidecar writes it. `tidegate plan` finds the same decisions in each line of it,
//! as in a log of the real process.

mod written;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_backends::FinishedCall;
use tidegate_lab::backend::{StandInBackend, StandInOptions};
use tokio::process::Command;
use tokio::task::JoinSet;

use self::written::{calls, calls_that_leave, config, gate, log_of, slower, sufficient};
use crate::advice_worlds::{FAR, Kind, World};
use crate::sidecar::{Said, Sidecar, run, with_programs};
use crate::support::{array, ask};

/// Runs a command beside a log.
async fn beside(dir: &Path, arguments: &[&str]) -> Said {
    run(Command::new(with_programs())
        .current_dir(dir)
        .args(arguments))
    .await
}

/// The advice of a log.
async fn advise(log: &str, arguments: &[&str]) -> Said {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("access.log"), log).expect("it can be written to");
    let all = ["advise", "access.log"].iter().chain(arguments).copied();
    beside(dir.path(), &all.collect::<Vec<_>>()).await
}

fn parsed(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("no JSON: {}{}", said.out, said.err))
}

#[track_caller]
fn assert_has(said: &Said, texts: &[&str]) {
    for text in texts {
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains(text), "`{text}` is not in:\n{all}");
    }
}

#[tokio::test]
async fn a_sufficient_log_gives_values_with_intervals_evidence_a_diff_and_a_plan() {
    let (world, log) = sufficient();
    let said = advise(&log, &["--slo=p95=60s", "--json"]).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let report = parsed(&said);
    assert_eq!(report["evidence"]["calls"], log.lines().count() - 2);
    for name in ["outstanding", "window_seconds", "per_window", "capacity"] {
        let it = &report[name];
        let [low, value, high] = ["low", "value", "high"].map(|key| it[key].as_f64());
        assert!(
            low.is_some() && low <= value && value <= high,
            "{name}: {it}"
        );
        assert!(it["calls"].as_u64() > Some(0), "{name}: {it}");
    }
    let high = report["outstanding"]["high"].as_u64().expect("a number");
    assert!(high <= u64::from(world.bears), "{report}");
    let diff = report["diff"].as_str().expect("a diff");
    let limit = world.limit;
    assert!(
        diff.starts_with("--- the config in the log\n+++ advised\n@@ -"),
        "{diff}"
    );
    assert!(
        diff.contains(&format!("-outstanding = {limit}\n")),
        "{diff}"
    );
    let value = &report["outstanding"]["value"];
    assert!(
        diff.contains(&format!("+outstanding = {value}\n")),
        "{diff}"
    );
    let plan = &report["plan"]["open"];
    assert!(plan["after"]["calls"].as_u64() > Some(1_000), "{plan}");
    assert_eq!(plan["before"]["refused"], 0);
    assert_eq!(plan["service_times_drawn"], 0, "{plan}");
    assert_eq!(report["not_in_the_diff"], json!([]));

    // The share that is promised is what the backend then does, and more than today.
    let in_time = |limit: u64| {
        let done = calls(&world, u32::try_from(limit).expect("a limit"));
        let within = |it: &&FinishedCall| it.is_served() && it.ended - it.arrived <= 60_000_000_000;
        done.iter().filter(within).count() as f64 / done.len() as f64
    };
    let outstanding = &report["outstanding"];
    let value = outstanding["value"].as_u64().expect("a number");
    let promised = outstanding["in_time"]["share"].as_f64().expect("a share");
    let (kept, today) = (in_time(value), in_time(u64::from(world.limit)));
    assert!((kept - promised).abs() < 0.05, "{promised} became {kept}");
    assert!(kept >= today, "{kept} is less than today's {today}");

    // So are the refusals and waits by the curve; a plan has more of both.
    let curve = &report["by_curve"]["advised"];
    let patience = curve["max_wait_seconds"].as_f64().expect("a time");
    let limit = u32::try_from(value).expect("a limit");
    let done = calls_that_leave(&world, limit, Some((patience * 1e9) as u64));
    let refused = done.iter().filter(|it| it.started.is_none()).count() as f64 / done.len() as f64;
    let promised = curve["refused"].as_f64().expect("a share");
    assert!(
        (refused - promised).abs() < 0.03,
        "{promised} became {refused}"
    );
    let waits = done.iter().filter_map(|it| Some(it.started? - it.arrived));
    let mut waits: Vec<u64> = waits.collect();
    waits.sort_unstable();
    let p95 = waits[waits.len() * 95 / 100] as f64 / 1e9;
    let promised = curve["wait_seconds"]["p95"].as_f64().expect("a time");
    assert!(
        (p95 / promised - 1.0).abs() < 0.1,
        "{promised} s became {p95} s"
    );
    assert_eq!(report["plan_is_pessimistic"], true);
    let planned = plan["after"]["refused"].as_f64().expect("a number") / done.len() as f64;
    assert!(planned > refused, "{planned}, {refused}");

    let said = advise(&log, &["--slo=p95=60s"]).await;
    let hours = "hours that the log shows whole\nbusiest minute: ";
    let diff = "as a diff:\n\n--- the config in the log\n";
    let plan = "a plan of it:\n\nopen clients: calls arrive";
    // Calls take less with fewer at once, which a plan cannot know.
    let faster = "the plan keeps the time that each call took";
    assert_has(
        &said,
        &[hours, "as a config:\n\n[limits]\n", diff, plan, faster],
    );
}

#[tokio::test]
async fn a_short_log_gives_no_advice_and_names_what_it_lacks() {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("free ports");
    let address = backend.socket_addr().to_string();
    let sidecar = Sidecar::start(&format!(
        "[[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\n[backend]\nsocket = \"{address}\"\n\
         [limits]\nper_window = \"total:100\"\noutstanding = 3\n\
         [log]\naccess = true\nformat = \"json\"\n[admin]\nbind = \"127.0.0.1:0\"\n"
    ))
    .await;
    let addr = sidecar.listener("test").await;
    for number in 0..20 {
        ask(addr, array("guest_list", &format!("U{number}"))).await;
    }
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("access.log"), lines.join("\n")).expect("it can be written to");
    let said = beside(dir.path(), &["advise", "access.log", "--out=new.toml"]).await;
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    let lacks = [
        "20 calls, ",
        "not enough data: needs 200 calls at the backend",
        "30 minutes of calls",
        "new.toml is not written: the logs support no value",
    ];
    assert_has(&said, &lacks);
    assert!(!said.out.contains("as a config"), "{}", said.out);
    assert!(!dir.path().join("new.toml").exists());
    let report = parsed(&advise(&lines.join("\n"), &["--json"]).await);
    assert_eq!(report["outstanding"]["value"], Value::Null);
    assert_eq!(report["config"], "");
}

#[tokio::test]
async fn far_from_the_breaking_point_there_is_no_evidence_beyond_what_was_seen() {
    let world = World::new(FAR[0], 7_000);
    let done = calls(&world, 0);
    let log = log_of(&done, &config(1_000));
    let report = parsed(&advise(&log, &["--json"]).await);
    let seen = report["outstanding"]["no_evidence_beyond"].as_u64();
    let most = report["evidence"]["most_at_once"].as_u64();
    assert!(seen > Some(0) && seen <= most, "{report}");
    let pasted = report["config"].as_str().expect("text");
    assert!(!pasted.contains("outstanding"), "{pasted}");
    assert_has(&advise(&log, &[]).await, &["no evidence beyond"]);
}

#[tokio::test]
async fn a_breaking_point_that_the_log_crosses_is_named_and_never_advised() {
    let mut found = 0;
    for kind in [
        Kind::NoStrainBeforeItBreaks,
        Kind::SharingHeavyTail,
        Kind::ScalabilityLarge,
    ] {
        let world = World::new(kind, 7_000);
        // Above what it bears, which the log then shows.
        let limit = world.bears * 13 / 10 + 1;
        let log = log_of(
            &calls_that_leave(&world, limit, Some(world.within)),
            &config(limit),
        );
        let report = parsed(&advise(&log, &["--json"]).await);
        let high = report["outstanding"]["high"].as_u64();
        assert!(
            high <= Some(world.bears.into()),
            "{kind:?}, bears {}: {report}",
            world.bears
        );
        if let Some(breaks) = report["breaks_from"].as_u64() {
            println!(
                "{kind:?}: breaks from {breaks}, bears {}, {}",
                world.bears, report["outstanding"]
            );
            found += 1;
            assert!(high < Some(breaks), "{report}");
            assert_has(
                &advise(&log, &[]).await,
                &[&format!("it breaks from {breaks} at once: ")],
            );
        }
    }
    assert!(found > 0, "no log showed its breaking point");
}

#[tokio::test]
async fn todays_config_may_be_given_and_stays_as_it_is() {
    let (world, log) = sufficient();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("access.log"), &log).expect("it can be written to");
    let today = config(world.limit).replace("listener = \"test\"", "listener = \"test\" ");
    std::fs::write(file("today.toml"), &today).expect("it can be written to");
    let given = [
        "advise",
        "access.log",
        "--config=today.toml",
        "--out=new.toml",
    ];
    let said = beside(dir.path(), &given).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_has(&said, &["--- today.toml\n+++ advised\n", "a plan of it:"]);
    let read = |name| std::fs::read_to_string(file(name)).expect("it is there");
    assert_eq!(read("today.toml"), today);
    let new = read("new.toml");
    // Comments and everything that the advice says nothing about stay.
    assert!(new.starts_with("# Today's config.\n"), "{new}");
    assert!(
        new.contains("# a guess\n") && !new.contains("capacity = 9000"),
        "{new}"
    );
    let checked = beside(dir.path(), &["check", "--config=new.toml"]).await;
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);

    // A file that is there is not overwritten, not even today's.
    for name in ["new.toml", "today.toml"] {
        let before = read(name);
        let out = format!("--out={name}");
        let said = beside(
            dir.path(),
            &["advise", "access.log", "--config=today.toml", &out],
        )
        .await;
        assert_eq!(said.code, Some(2));
        assert_has(&said, &[&format!("{name} exists; name a new file")]);
        assert_eq!(read(name), before);
    }
    std::fs::write(file("bad.toml"), "nonsense").expect("it can be written to");
    let said = beside(dir.path(), &["advise", "access.log", "--config=bad.toml"]).await;
    assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
    assert_has(&said, &["bad.toml:1"]);
}

#[tokio::test]
async fn what_is_pasted_is_read_without_an_error() {
    let (_, log) = sufficient();
    let report = parsed(&advise(&log, &["--json"]).await);
    let pasted = report["config"].as_str().expect("text");
    assert!(
        pasted.contains("[limits]") && pasted.contains("[[bucket]]"),
        "{pasted}"
    );
    let minimal = "[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
                   [backend]\nsocket = \"127.0.0.1:1\"\n";
    let dir = tempfile::tempdir().expect("a temporary directory");
    let check = async |text: &str| {
        std::fs::write(dir.path().join("new.toml"), text).expect("it can be written to");
        beside(dir.path(), &["check", "--config=new.toml"]).await
    };
    let said = check(&format!("{minimal}{pasted}")).await;
    assert_eq!(said.code, Some(0), "{}{}\n{pasted}", said.out, said.err);
    let said = check(&format!("{minimal}{}", pasted.replace("total:", "totals:"))).await;
    assert_eq!(said.code, Some(1), "{}", said.out);
}

#[tokio::test]
async fn the_tokens_of_a_caller_of_the_config_are_a_rate_limit_of_its_own() {
    let (world, log) = sufficient();
    let said = advise(&log, &["--json"]).await;
    let report = parsed(&said);
    let caller = &report["callers"][0];
    assert_eq!(caller["caller"], "c1");
    assert!(caller["delayed"].as_f64() <= Some(0.001), "{caller}");
    let diff = report["diff"].as_str().expect("a diff");
    for added in [
        "+[[bucket]]\n+name = \"nova-s-computes\"\n",
        &format!(
            "+burst = {}\n",
            caller["burst"]["value"].as_f64().expect("a number")
        ),
        "+rate_limit = \"nova-s-computes\"\n",
    ] {
        assert!(diff.contains(added), "{added} is not in:\n{diff}");
    }

    // A rate limit that it has alone gets the figures; a shared one stays.
    let own = "rate_limit = \"polls\"\n[[bucket]]\nname = \"polls\"\nburst = 1\nfill = 1\n";
    let own = config(world.limit) + own;
    let given = parsed(&with_config(&log, &own).await);
    let diff = given["diff"].as_str().expect("a diff");
    assert!(
        diff.contains("-burst = 1\n") && diff.contains("-fill = 1\n"),
        "{diff}"
    );
    assert!(!diff.contains("nova-s-computes"), "{diff}");
    let other =
        "[[caller]]\nlabel = \"other\"\nmatch = { user_agent = \"x\" }\nrate_limit = \"polls\"\n";
    let given = parsed(&with_config(&log, &(own + other)).await);
    let diff = given["diff"].as_str().expect("a diff");
    assert!(!diff.contains("burst"), "{diff}");
    let pasted = given["config"].as_str().expect("text");
    assert!(pasted.contains("# c1 (Nova's computes), "), "{pasted}");
    assert!(
        pasted.contains("it shares its bucket:\n# [[bucket]]\n"),
        "{pasted}"
    );

    // With callers that were saved before, and after a reload, an id may be any caller's.
    let saved = "auto_register = 0\\nstate_file = \\\"/var/lib/x.json\\\"\\n";
    let saved = log.replace("auto_register = 0\\n", saved);
    assert_ne!(saved, log);
    let report = parsed(&advise(&saved, &["--json"]).await);
    let diff = report["diff"].as_str().expect("a diff");
    assert!(
        diff.contains("+capacity = ") && !diff.contains("bucket]]"),
        "{diff}"
    );
    let another = gate("start", 1, &config(world.limit + 1)).to_string();
    let reload = another.replace("\"start\"", "\"reload\"");
    let report = parsed(&advise(&format!("{log}{reload}\n"), &["--json"]).await);
    let diff = report["diff"].as_str().expect("a diff");
    assert!(!diff.contains("bucket]]"), "{diff}");
    let pasted = report["config"].as_str().expect("text");
    assert!(pasted.contains("# name = \"c1\"\n"), "{pasted}");
}

/// The advice as JSON, with today's config.
async fn with_config(log: &str, config: &str) -> Said {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("access.log"), log).expect("it can be written to");
    std::fs::write(dir.path().join("today.toml"), config).expect("it can be written to");
    beside(
        dir.path(),
        &["advise", "access.log", "--config=today.toml", "--json"],
    )
    .await
}

#[tokio::test]
async fn advice_on_a_real_log_is_what_its_calls_waited_at() {
    // Twelve calls at a time, of which three run: a real log of four seconds, each of which then counts as
    // fifteen minutes. The scheduler knows no other time than that of its lines.
    const TIMES: u64 = 900;
    let backend = StandInOptions {
        delay: Duration::from_millis(15),
        ..StandInOptions::on_free_ports()
    };
    let backend = StandInBackend::start(backend).await.expect("free ports");
    let address = backend.socket_addr().to_string();
    let sidecar = Sidecar::start(&format!(
        "[[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\n[backend]\nsocket = \"{address}\"\n\
         [queue]\npostpone = \"in_turn\"\n\
         [limits]\nper_window = \"total:0\"\noutstanding = 3\n\
         [log]\naccess = true\nreplay = true\nformat = \"json\"\n[admin]\nbind = \"127.0.0.1:0\"\n"
    ))
    .await;
    let addr = sidecar.listener("test").await;
    let mut all = JoinSet::new();
    let mut beat = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..40 {
        beat.tick().await;
        for number in 0..12 {
            let call = array("guest_get_info", &format!("U{number}"));
            all.spawn(async move { ask(addr, call).await });
        }
    }
    all.join_all().await;
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    let slow: Vec<String> = lines.iter().map(|line| slower(line, TIMES)).collect();
    let said = advise(&slow.join("\n"), &["--json"]).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let report = parsed(&said);
    let outstanding = &report["outstanding"];
    assert_eq!(outstanding["value"], 3, "{outstanding}");
    let why = outstanding["why"].as_str().expect("a reason");
    assert!(why.contains("no evidence beyond"), "{why}");
    assert_eq!(report["evidence"]["most_at_once"], 3);
    assert_eq!(report["no_plan"], Value::Null, "{report}");
    // Without the factor it is a short log.
    let said = advise(&lines.join("\n"), &[]).await;
    assert_eq!(said.code, Some(1), "{}", said.out);
}

#[tokio::test]
async fn several_sidecars_share_what_is_advised_for_all() {
    let (world, log) = sufficient();
    // The same calls once more, beside another sidecar with the same config.
    let other = log
        .replace(
            "\"started_us\":1795519722062733",
            "\"started_us\":1795519722062734",
        )
        .replace("\"id\":\"7b20", "\"id\":\"6b20");
    let report = parsed(&advise(&format!("{log}{other}"), &["--json"]).await);
    assert_eq!(report["evidence"]["sidecars"], 2, "{report}");
    assert_eq!(report["evidence"]["most_at_once"], 2 * world.limit);
    let all = report["outstanding"]["value"].as_u64().expect("a number");
    let each = format!("outstanding = {}\n", all / 2);
    let pasted = report["config"].as_str().expect("text");
    assert!(pasted.contains(&each), "{each} is not in {pasted}");
    assert_has(
        &advise(&format!("{log}{other}"), &[]).await,
        &["the logs are of 2 sidecars at once"],
    );
    let report = parsed(&advise(&log, &["--json"]).await);
    assert_eq!(report["evidence"]["sidecars"], 1);
}

#[tokio::test]
async fn a_limit_per_window_is_not_added_because_of_what_the_backend_has_taken() {
    let (world, log) = sufficient();
    let none = config(world.limit).replace("total:100", "total:0");
    let report = parsed(&with_config(&log, &none).await);
    assert!(report["per_window"]["value"].as_u64() > Some(0), "{report}");
    let pasted = report["config"].as_str().expect("text");
    assert!(
        pasted.contains("# today's config has no limit per window"),
        "{pasted}"
    );
    assert!(!pasted.contains("total:"), "{pasted}");
}

#[tokio::test]
async fn a_part_that_todays_config_does_not_take_is_left_out_and_named() {
    let (world, log) = sufficient();
    // More is reserved than is advised at once.
    let reserve = world.limit - 1;
    let class = format!("[[class]]\nname = \"user\"\nreserve_outstanding = {reserve}\n");
    let report = parsed(&with_config(&log, &(config(world.limit) + &class)).await);
    let left_out = &report["not_in_the_diff"];
    assert_eq!(left_out[0]["part"], "calls at once", "{report}");
    let why = left_out[0]["why"].as_str().expect("a reason");
    assert!(why.contains("reserve_outstanding"), "{why}");
    let diff = report["diff"].as_str().expect("a diff");
    assert!(!diff.contains("+outstanding"), "{diff}");
    assert!(diff.contains("+capacity = "), "{diff}");
}

#[tokio::test]
async fn a_damaged_log_is_used_as_far_as_it_can_be_read_and_is_not_planned() {
    let (_, log) = sufficient();
    let damaged = log.replacen("\"steps\":[[", "\"steps\":[{", 3);
    assert_ne!(damaged, log);
    let said = advise(&damaged, &[]).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let no_plan = "no plan: the replay does not explain the log";
    assert_has(&said, &["3 lines cannot be read\n", no_plan]);
    assert_has(&advise(&log, &[]).await, &["a plan of it"]);

    let lost =
        r#"{"level":"WARN","message":"access lines lost, stderr is read too slowly","lines":41}"#;
    let said = advise(&format!("{log}{lost}\n"), &[]).await;
    assert_eq!(said.code, Some(0));
    assert_has(
        &said,
        &["41 lines were lost", "values may be too low", no_plan],
    );

    // A version without steps, and what is no log.
    let old = log.replace("\"steps\":", "\"before\":");
    for (text, why) in [
        (&*old, "did not write when calls ended"),
        ("{\"target\":\"access\"}", "1 lines cannot be read"),
    ] {
        let said = advise(text, &[]).await;
        assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
        assert_has(&said, &[why]);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
    let said = advise("", &[]).await;
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
}

#[tokio::test]
async fn the_same_log_and_seed_give_the_same_report() {
    let world = World::new(Kind::TwoFunctions, 7_000);
    let log = log_of(&calls(&world, world.limit), &config(world.limit));
    let first = advise(&log, &["--seed=7", "--json"]).await;
    // Logs may overlap: a line counts once.
    let again = advise(&format!("{log}{log}"), &["--seed=7", "--json"]).await;
    let (first, again) = (parsed(&first), parsed(&again));
    assert_eq!(first, again);
    let names: Vec<_> = first["functions"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    assert_eq!(names.len(), 2, "{first}");
    for function in names {
        assert!(
            function["alone_seconds"]["p50"].as_f64() > Some(0.0),
            "{function}"
        );
        assert!(function["most_at_once"].as_u64() > Some(0), "{function}");
    }
}

/// Runs the commands of a page on the log that ships with the project, and looks for each line of their
/// output in the page.
#[tokio::test]
async fn the_page_about_tuning_shows_what_its_log_gives() {
    let root = env!("CARGO_MANIFEST_DIR");
    let page =
        std::fs::read_to_string(format!("{root}/docs/how-to/tune-the-limits.md")).expect("a page");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = Command::new("gzip")
        .args(["-dc", &format!("{root}/examples/yesterday.log.gz")])
        .output()
        .await
        .expect("gzip is there");
    std::fs::write(dir.path().join("yesterday.log"), log.stdout).expect("it can be written to");
    let said = async |arguments: &str| {
        let mut command = Command::new(with_programs());
        let command = command.current_dir(&dir).args(arguments.split(' '));
        let said = run(command).await;
        assert_eq!(said.code, Some(0), "{arguments}: {}", said.err);
        said.out
    };
    let identity = said("plan yesterday.log").await;
    let advice = said("advise yesterday.log --slo p95=5s --out advised.toml").await;
    let plan =
        said("plan yesterday.log --config advised.toml --max-refused 0.1% --max-p95-wait 2s").await;
    let values = advice
        .lines()
        .take_while(|line| !line.starts_with("times by"));
    let rows = plan
        .lines()
        .filter(|line| line.starts_with("all  "))
        .take(1);
    for line in identity.lines().chain(values).chain(rows) {
        assert!(page.contains(line.trim_end()), "not in the page: {line}");
    }
}
