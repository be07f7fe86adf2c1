//! Scenario files: every one holds, a wrong one is reported, a broken promise is noticed.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::config::ConfigPlace;
use tidegate_lab::simulate::{
    ScenarioArguments, ScenarioReport, ScenarioVerdict, Style, simulate, write_reports,
};

/// Fewer files than this means that they were looked for in the wrong place.
const FILES_MIN: usize = 16;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).expect("the scenarios are there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("the directory can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .collect();
    files.sort();
    files
}

/// Runs a scenario that has no mistake.
fn report(text: &str) -> ScenarioReport {
    match simulate("scenario.toml", text, None) {
        Ok(report) => report,
        Err(problems) => panic!("{problems}"),
    }
}

#[test]
fn every_scenario_comes_as_expected() {
    let files = files();
    assert!(files.len() >= FILES_MIN, "only {} files", files.len());
    let mut broken = String::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a scenario can be read");
        let name = file.file_name().expect("a file has a name");
        match simulate(&name.to_string_lossy(), &text, None) {
            Ok(report) => {
                assert!(!report.about.is_empty(), "{name:?} says what it is about");
                assert!(
                    !report.expectations.is_empty(),
                    "{name:?} expects something"
                );
                if !report.holds() {
                    broken += &report.render(Style::Plain);
                }
            }
            Err(problems) => broken += &format!("{problems}\n"),
        }
    }
    assert!(broken.is_empty(), "\n{broken}");
}

/// The scenario before a backend that each call has for itself; `None` if it is that already.
fn without_model(text: &str) -> Option<String> {
    let mut scenario: toml::Table = text.parse().expect("a scenario is TOML");
    let mut changed = scenario.remove("backend").is_some();
    let arrivals = scenario["arrivals"].as_array_mut().expect("calls arrive");
    for group in arrivals {
        let group = group.as_table_mut().expect("a group is a table");
        changed |= group.remove("tail").is_some();
    }
    let text = toml::to_string(&scenario).expect("it was TOML");
    changed.then_some(text)
}

#[test]
fn every_scenario_with_a_model_of_the_backend_breaks_without_the_model() {
    let mut with_model = 0;
    for file in files() {
        let text = fs::read_to_string(&file).expect("a scenario can be read");
        if let Some(without) = without_model(&text) {
            with_model += 1;
            let report = report(&without);
            assert!(!report.holds(), "{}", report.render(Style::Plain));
        }
    }
    assert!(with_model >= 7, "{with_model} have a model");
}

#[test]
fn a_limit_at_the_peak_of_throughput_is_twice_as_fast_as_one_far_beyond() {
    let file = directory().join("beyond_the_peak_of_throughput.toml");
    let beyond = fs::read_to_string(file).expect("a scenario can be read");
    let makespan = |limit: &str| {
        let text = beyond.replace("outstanding = 30", &format!("outstanding = {limit}"));
        report(&text)
            .all
            .makespan_seconds
            .expect("calls are answered")
    };
    let (beyond, peak, below) = (makespan("30"), makespan("7"), makespan("2"));
    assert!(
        peak * 2.0 < beyond && peak < below,
        "{beyond} {peak} {below}"
    );
}

#[test]
fn a_pool_keeps_heavy_calls_below_the_breaking_point() {
    let file = directory().join("a_pool_for_heavy_calls.toml");
    let pool = fs::read_to_string(file).expect("a scenario can be read");
    let none = report(&pool.replace("outstanding_max = 1", ""));
    assert!(none.all.failed > 0, "{}", none.render(Style::Plain));
    let backend = none.backend.expect("it has a model");
    assert!(backend.times_broken > 0 && backend.most_at_once <= 5);
}

#[test]
fn a_call_that_is_on_its_way_when_the_backend_collapses_fails() {
    let report = report(
        "[config.limits]\nwindow = \"0s\"\n\
         [backend]\nbreaks_at = 1\nbreaks = \"collapse\"\nrecovers_after = \"1s\"\n\
         [[arrivals]]\nname = \"two\"\ncount = 2\ntakes = \"100ms\"\n\
         [[arrivals]]\nname = \"far\"\ncount = 1\nreaches_after = \"500ms\"\n\
         [[arrivals]]\nname = \"later\"\nat = \"200ms\"\ncount = 1\n\
         [expect.two]\nfailed = 2\nsent = 2\n[expect.far]\nfailed = 1\nsent = 1\n\
         [expect.later]\nanswered = 1\nwait_seconds_min = 0.8\nservice_seconds_max = 0.05",
    );
    assert!(report.holds(), "{}", report.render(Style::Plain));
}

/// 20 calls at once, 10 a window, 2 in flight, 100 ms each; one of two leavers is being served
/// already and one more call comes when the queue has gone.
const TWENTY: &str = r#"
[config.limits]
per_window = "total:10, guest_list:1"
outstanding = 2
[config.queue]
postpone = "in_turn"

[[arrivals]]
name = "early"
count = 18
takes = "100ms"

[[arrivals]]
name = "leavers"
count = 2
takes = "100ms"
leaves_after = "10ms"

[[arrivals]]
name = "late"
at = "10s"
function = "guest_list"
count = 1
takes = "100ms"
"#;

#[test]
fn an_expectation_holds_or_breaks_by_what_came() {
    let check = |expected: &str, holds: bool| {
        let report = report(&format!("{TWENTY}\n{expected}"));
        assert_eq!(
            report.holds(),
            holds,
            "{expected}\n{}",
            report.render(Style::Plain)
        );
    };
    // Each figure with the bound that is just met and the one just missed.
    for (met, missed) in [
        ("answered = 19", "answered = 20"),
        ("answered_min = 19", "answered_min = 20"),
        ("answered_max = 19", "answered_max = 18"),
        ("refused = 0", "refused = 1"),
        ("expired = 0", "expired_min = 1"),
        ("left = 2", "left = 0"),
        ("failed_max = 0", "failed = 1"),
        // A client that leaves is being served already, and its call runs on.
        ("sent = 20", "sent = 19"),
        (
            "makespan_seconds_max = 10.1",
            "makespan_seconds_max = 10.09",
        ),
        (
            "makespan_seconds_min = 10.1",
            "makespan_seconds_min = 10.11",
        ),
        ("wait_seconds_min = 0", "wait_seconds_min = 0.001"),
        ("wait_seconds_max = 1.405", "wait_seconds_max = 1.404"),
        ("densest_window = 10", "densest_window = 9"),
        ("densest_window_min = 10", "densest_window_min = 11"),
        ("densest_at_backend_max = 10", "densest_at_backend_max = 9"),
        ("in_flight = 2", "in_flight_max = 1"),
    ] {
        check(&format!("[expect]\n{met}"), true);
        check(&format!("[expect]\n{missed}"), false);
    }
    check("[expect]\norder = \"arrival\"", true);
    check("[expect.late]\nwait_seconds_max = 0", true);
    check("[expect.late]\nanswered = 2", false);
    check("[expect.function.guest_list]\nanswered = 1", true);
    check("[expect.function.guest_list]\nanswered = 0", false);
    check("[[expect.between]]\nfrom = \"10s\"\nsent = 1", true);
    check("[[expect.between]]\nto = \"10s\"\nsent = 20", false);
    check(
        "[[expect.between]]\nfrom = \"9s\"\ngroup = \"early\"\nsent = 0",
        true,
    );
}

#[test]
fn a_bound_on_something_unmeasured_does_not_hold() {
    // No call was refused.
    let report = report(&format!("{TWENTY}\n[expect]\ntold_no_seconds_max = 60"));
    assert!(!report.holds());
    assert_eq!(report.expectations[0].found, "none");
}

#[test]
fn a_fixed_window_is_seen_to_break_the_promise_of_a_sliding_one() {
    let file = directory().join("fixed_window_parity.toml");
    let fixed = fs::read_to_string(file).expect("a scenario can be read");
    let (setup, _) = fixed.split_once("[expect]").expect("it expects something");
    let promise = "[expect]\ndensest_window_max = 30\nanswered = 60";
    assert!(!report(&format!("{setup}{promise}")).holds());
    let sliding = setup.replace("window_shape = \"fixed\"", "window_shape = \"sliding\"");
    assert_ne!(sliding, setup);
    assert!(report(&format!("{sliding}{promise}")).holds());
}

#[test]
fn jitter_is_seen_to_break_the_order() {
    let file = directory().join("storm_in_turn.toml");
    let in_turn = fs::read_to_string(file).expect("a scenario can be read");
    assert!(report(&in_turn).holds());
    let report = report(&in_turn.replace("in_turn", "jitter"));
    let order = report
        .expectations
        .iter()
        .find(|checked| checked.expected.starts_with("order"));
    assert!(!order.expect("the storm expects an order").holds);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for name in [
        "storm_jitter.toml",
        "steady_poisson.toml",
        "replied_stamp.toml",
    ] {
        let text = fs::read_to_string(directory().join(name)).expect("a scenario can be read");
        let run = |seed| simulate(name, &text, Some(seed)).expect("the scenario is right");
        assert_eq!(run(3), run(3), "{name}");
        assert_ne!(run(3).all, run(4).all, "{name}");
    }
}

#[test]
fn time_is_charged_to_the_limit_that_was_closed() {
    let check = |setup: &str, arrivals: &str, expected: &[(&str, f64)]| {
        let report = report(&format!(
            "[config.limits]\nper_window = \"total:0\"\n{setup}\n\
             [config.queue]\npostpone = \"in_turn\"\n{arrivals}"
        ));
        let held: Vec<_> = report
            .held
            .iter()
            .map(|held| (held.limit.as_str(), held.call_seconds))
            .collect();
        assert_eq!(held, expected, "{setup} {arrivals}");
    };
    let three = "[[arrivals]]\ncount = 3\ntakes = \"2s\"";
    // The second waits 2 s, the third 4 s.
    check("outstanding = 1", three, &[("outstanding", 6.0)]);
    check("outstanding = 3", three, &[]);
    // A call at the door of a full queue waits for what the others wait for.
    check(
        "outstanding = 1",
        &format!("capacity = 1\n{three}"),
        &[("outstanding", 6.0)],
    );
    // Down from 1 s to 3 s: probed at random moments, so only the held calls are known.
    let report = report(&format!(
        "{TWENTY}\n[[events]]\nat = \"10s\"\nbackend = \"down\"\n[[events]]\nat = \"12s\"\nbackend = \"up\""
    ));
    let held = report
        .held
        .iter()
        .find(|held| held.limit == "backend:socket");
    let held = held.expect("the backend held the late call").call_seconds;
    assert!((2.0..=4.0).contains(&held), "{held} s");
}

#[test]
fn a_reload_gives_classes_anew() {
    const BATCH: &str = r#"
[config.limits]
per_window = "total:0"
outstanding = 1
[config.queue]
postpone = "in_turn"

[[arrivals]]
name = "polls"
count = 100
takes = "100ms"

[[arrivals]]
name = "batch"
class = "batch"
at = "1s"
count = 10
takes = "100ms"
"#;
    let batch = |reload: &str| {
        let event = format!("[[events]]\nat = \"500ms\"\nreload = {{ {reload} }}");
        report(&format!("{BATCH}\n{event}\n[expect]\nanswered = 110"))
    };
    let makespan = |reload: &str| {
        let report = batch(reload);
        assert!(report.holds(), "{}", report.render(Style::Plain));
        let group = report.groups.iter().find(|part| part.name == "batch");
        group.and_then(|group| group.figures.makespan_seconds)
    };
    // Its class has nine turns of ten from 500 ms on: it is done after the eleventh, and a poll before it.
    let heavy = makespan("class = [ { name = \"batch\", weight = 9 } ]");
    assert!(heavy.is_some_and(|seconds| seconds <= 1.3), "{heavy:?}");
    // A class that comes and goes, and one that is not named again.
    let gone = "class = [ { name = \"batch\", weight = 9 } ] }\n\
                [[events]]\nat = \"600ms\"\nreload = { class = []";
    let gone = makespan(gone);
    // Then it is among the polls, whose caller it shares, and goes last.
    assert!(gone.is_some_and(|seconds| seconds >= 9.9), "{gone:?}");
    // Another reload does not change the classes.
    let stays = "class = [ { name = \"batch\", weight = 9 } ] }\n\
                 [[events]]\nat = \"600ms\"\nreload = { queue = { capacity = 200 }";
    assert_eq!(makespan(stays), heavy);
}

#[test]
fn a_connect_that_fails_late_holds_what_the_call_has_drawn() {
    let report = report(
        "[config.limits]\nper_window = \"total:0\"\n\
         outstanding = 1\n[config.queue]\npostpone = \"in_turn\"\n\
         [[arrivals]]\nname = \"stays\"\nat = \"1s\"\ncount = 1\n\
         [[arrivals]]\nname = \"leaves\"\nat = \"500ms\"\ncount = 1\nleaves_after = \"300ms\"\n\
         [[events]]\nat = \"0s\"\nbackend = \"down\"\nrefuses_after = \"600ms\"\n\
         [[events]]\nat = \"1050ms\"\nbackend = \"up\"\n\
         [expect.stays]\nanswered = 1\nwait_seconds_min = 0.6\n[expect.leaves]\nleft = 1",
    );
    // The first call leaves at 800 ms, and its slot is free. The connect of the second one fails at 1.6 s,
    // though the backend is up at 1.05 s.
    assert!(report.holds(), "{}", report.render(Style::Plain));
}

#[test]
fn mistakes_are_reported_with_line_and_cure() {
    let check = |text: &str, expected: &str| {
        let problems = simulate("bad.toml", text, None).expect_err("the scenario has a mistake");
        assert_eq!(problems.to_string(), expected, "{text}");
    };
    let good = "[config.limits]\nper_window = \"total:30\"\n[[arrivals]]\nname = \"a\"\n";
    check(
        "",
        "bad.toml: config: there is no [config.limits]\n  help: add per_window = \"total:30\" to \
        [config.limits], or window = \"0s\" to do without windows\n\
        bad.toml: arrivals: no call arrives\n  help: add a section [[arrivals]], and below it count = 300",
    );
    check(
        &format!("{good}cuont = 3\ncount = 3"),
        "bad.toml:5:1: arrivals[0].cuont: there is no option \"cuont\" here\n  help: did you mean \"count\"?",
    );
    check(
        &format!("{good}count = 3\ntakes = 50"),
        "bad.toml:6:9: arrivals[0].takes: 50 has no unit\n  \
        help: write the unit (us, ms, s, m, h) in quotes, such as \"50s\"",
    );
    check(
        &format!("{good}count = 3\ntakes = [\"2s\", \"1s\"]"),
        "bad.toml:6:9: arrivals[0].takes: the first is longer than the second\n  \
        help: give the shortest and the longest, such as [\"40ms\", \"60ms\"]",
    );
    check(
        good,
        "bad.toml:3:1: arrivals[0].count: the number of calls is missing\n  \
        help: give count = 300, or per_second = 50 and for = \"5s\"",
    );
    check(
        &format!("{good}for = \"5s\""),
        "bad.toml:5:7: arrivals[0].for: the rate of arrivals is missing\n  \
        help: give per_second = 50, or every = \"20ms\"",
    );
    check(
        &format!("{good}per_second = 1000000\nfor = \"5s\""),
        "bad.toml:3:1: arrivals[0].count: the scenario has more than 1000000 calls\n  \
        help: let fewer arrive",
    );
    check(
        &format!("{good}count = 3\nclass = \"users\""),
        "bad.toml:6:9: arrivals[0].class: there is no class \"users\"\n  \
        help: add a section [[config.class]] with name = \"users\"",
    );
    check(
        &format!("{good}count = 3\n[expect.b]\nanswered = 3"),
        "bad.toml:6:9: expect.b: no group has this name\n  \
        help: name one of [[arrivals]]: a",
    );
    check(
        &format!("{good}count = 3\n[expect]\nanswerd = 3"),
        "bad.toml:7:11: expect.answerd: there is no figure \"answerd\"\n  help: did you mean \"answered\"?",
    );
    check(
        &format!("{good}count = 3\n[[events]]\nat = \"1s\"\nbackend = \"off\""),
        "bad.toml:8:11: events[0].backend: \"off\" is not one of the words\n  \
        help: give one of \"down\" | \"up\"",
    );
    check(
        &format!(
            "{good}count = 3\n[[events]]\nat = \"1s\"\nbackend = \"up\"\nrefuses_after = \"1s\""
        ),
        "bad.toml:9:17: events[0].refuses_after: a backend that is up refuses nothing\n  help: leave it out",
    );
    check(
        &format!(
            "{good}count = 3\n[[events]]\nat = \"1s\"\nreload = {{ class = [ {{ weight = 2 }} ] }}"
        ),
        "bad.toml:8:22: events[0].reload.class[0].name: the class has no name\n  \
        help: add a name, such as name = \"long\"; \"user\" and \"polling\" change the built-in ones",
    );
    let model = |backend: &str, expected: &str| {
        check(&format!("{good}count = 3\n[backend]\n{backend}"), expected);
    };
    model(
        "sigma = 0.1\nservers = 4",
        "bad.toml:7:9: backend.sigma: servers already say how calls slow one another\n  help: leave one of the two out",
    );
    model(
        "recovers_after = \"1s\"\nservers = 4",
        "bad.toml:7:18: backend.recovers_after: the backend never breaks\n  help: add breaks_at = 10",
    );
    model(
        "breaks_at = 4\n[[backend.step]]\nat = \"1s\"\ncapacity = 0.5",
        "bad.toml:8:1: backend.step[0]: calls do not slow one another, so the capacity does not matter\n  \
        help: add servers = 4, or sigma and kappa",
    );
    model(
        "servers = 4\nday = \"1s\"\n[[backend.step]]\nat = \"1s\"\ncapacity = 0.5",
        "bad.toml:6:2: backend: the period of a profile must be later than its last change\n  \
        help: let the moments of steps increase, and the day end after the last one",
    );
    check(
        &format!("{good}count = 3\ntakes = [\"1s\", \"2s\"]\ntail = 1"),
        "bad.toml:7:8: arrivals[0].tail: takes is already spread over a range\n  \
        help: leave it out, or give takes one time, the median",
    );
    check(
        "[config.limits]\nper_window = \"total:30, guest_list:31\"\n[[arrivals]]\ncount = 1",
        "bad.toml:2:25: \
        config.limits.per_window: \"guest_list\" may make 31 calls per window, more than the total of 30\n  \
        help: give \"guest_list\" at most 30, or raise total",
    );
    check(
        "about = unquoted",
        "bad.toml:1:9: about: a string stands here without its quotes\n  \
        help: write it in quotes: about = \"unquoted\"",
    );
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = "abuot = \"\"\n[config.limits]\nwindow_shape = \"round\"\n[[arrivals]]\nevery = 5\n[expect]\nanswered = \"all\"";
    let problems = simulate("bad.toml", text, None).expect_err("the scenario is full of mistakes");
    let told: Vec<_> = problems
        .iter()
        .map(|problem| match problem.place {
            ConfigPlace::File { line, .. } => (line, problem.key.as_str()),
            ConfigPlace::Whole | ConfigPlace::Variable(_) => panic!("{problem:?} has a line"),
        })
        .collect();
    assert_eq!(
        told,
        [
            (1, "abuot"),
            (2, "config.limits.per_window"),
            (3, "config.limits.window_shape"),
            (4, "arrivals[0].count"),
            (5, "arrivals[0].every"),
            (7, "expect.answered"),
        ]
    );
}

#[test]
fn the_worst_of_all_files_decides() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("a file can be written");
        path
    };
    let good = file("good.toml", &format!("{TWENTY}\n[expect]\nanswered = 19"));
    let broken = file("broken.toml", &format!("{TWENTY}\n[expect]\nanswered = 20"));
    let wrong = file("wrong.toml", "answered = 3");
    let missing = directory.path().join("missing.toml");
    let check = |files: &[&PathBuf], json: bool, expected: ScenarioVerdict| {
        let arguments = ScenarioArguments {
            files: files.iter().map(|file| file.to_path_buf()).collect(),
            json,
            seed: None,
        };
        let (mut out, mut complaints) = (Vec::new(), Vec::new());
        let verdict = write_reports(&arguments, Style::Plain, &mut out, &mut complaints);
        assert_eq!(
            verdict.expect("memory can be written to"),
            expected,
            "{files:?}"
        );
        let text = |bytes| String::from_utf8(bytes).expect("what is written is UTF-8");
        (text(out), text(complaints))
    };
    check(&[&good], false, ScenarioVerdict::Holds);
    let (out, complaints) = check(&[&broken, &good], false, ScenarioVerdict::Broken);
    assert!(out.contains("BROKEN  answered = 20, found 19"), "{out}");
    assert_eq!(complaints, "");
    let (out, complaints) = check(
        &[&wrong, &broken, &missing],
        true,
        ScenarioVerdict::Unusable,
    );
    let json: serde_json::Value = serde_json::from_str(&out).expect("the output is JSON");
    assert_eq!(json[0]["all"]["answered"], 19);
    assert_eq!(json[0]["expectations"][0]["holds"], false);
    assert_eq!(json.as_array().map(Vec::len), Some(1));
    assert!(
        complaints.contains("wrong.toml:1:1: answered: there is no option \"answered\" here"),
        "{complaints}"
    );
    assert!(complaints.contains("cannot read"), "{complaints}");
}

#[test]
fn the_example_in_the_page_about_scenarios_is_one_of_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/how-to/simulate.md")).expect("the page is there");
    let example = fs::read_to_string(directory().join("storm_in_turn.toml"));
    assert!(page.contains(&example.expect("a scenario can be read")));
}
