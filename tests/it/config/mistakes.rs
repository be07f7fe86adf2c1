//! Every mistake is reported, with its place and cure, beside any other mistakes.

use std::fs;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::config::{self, ConfigPlace, LoadError, Severity};
use tidegate::tools;

use super::{EXAMPLE, LEAST, doubted, read, read_with, with, wrong};
use crate::seeds::any_seed;

#[test]
fn an_unknown_option_is_an_error_that_names_the_nearest() {
    wrong("queue", "worker = 3", &["queue.worker", "\"workers\""]);
    wrong("queue", "wrokers = 3", &["\"workers\""]);
    wrong(
        "queue",
        "request_queue_size = 128",
        &["capacity in [queue]"],
    );
    wrong("queue", "max_worker_count = 64", &["workers in [queue]"]);
    wrong("queue", "threads = 2", &["threads belongs in [server]"]);
    wrong(
        "queue",
        "colour = \"red\"",
        &["docs/reference/options.md lists every option"],
    );
    wrong("quee", "x = 1", &["\"queue\""]);
    wrong(
        "server",
        "user_from = 2",
        &["user_from belongs in [[listen]]"],
    );
    wrong(
        "etcd",
        "x = 1",
        &["of a lease server", "`tidegate lease-server --check"],
    );
    wrong(
        "sdkserver",
        "bind_addr = \"127.0.0.1\"",
        &["[[listen]], [queue] and [limits]"],
    );
    wrong(
        "limits",
        "smapi_max_outstanding_request = 3",
        &["smapi_max_outstanding_requests"],
    );
    wrong("listen", "bindd = \"x\"", &["listen[0].bindd", "\"bind\""]);
}

#[test]
fn a_probable_slip_is_a_warning() {
    let none = read(&with("")).expect("it is good").warnings;
    assert!(none.is_empty(), "{none}");
    // The max_wait of the sdkserver design, 60 s, is no reason for a warning.
    assert!(read(LEAST).expect("it is good").warnings.is_empty());
    let socket_only = LEAST.replace("[backend]", "protocol = \"socket\"\n[backend]");
    assert!(read(&socket_only).expect("it is good").warnings.is_empty());
    doubted(
        &with("[queue]\nworkers = 5"),
        &["config.toml:13:11: warning: queue.workers", "workers = 10"],
    );
    doubted(
        &with("outstanding = 65\n[queue]\nworkers = 65"),
        &["64 calls at once"],
    );
    doubted(
        &with("outstanding = 0\n[queue]\nworkers = 65"),
        &["queue.workers", "64 calls at once"],
    );
    doubted(
        &with("[client]\nmax_request_bytes = \"8KiB\""),
        &["reads 4096 bytes"],
    );
    doubted(
        &with("").replace("[limits]", "pool_idle_timeout = \"5s\"\n[limits]"),
        &["Apache closes"],
    );
    doubted(
        &with("[queue]\npostpone = \"in_turn\"\npostpone_jitter = [\"1s\", \"3s\"]"),
        &["no effect"],
    );
    doubted(
        &with("[queue]\npostpone_jitter = [\"50s\", \"60s\"]"),
        &["no postponed call comes back"],
    );
    doubted(
        &with("").replace("total:30", "total:30, guest_list:10, host_get_info:20"),
        &["sum", "below total"],
    );
    assert!(
        read(&with("").replace("total:30", "total:30, guest_list:10, host_get_info:19"))
            .expect("it is good")
            .warnings
            .is_empty()
    );
}

#[test]
fn a_message_is_never_longer_than_a_few_lines() {
    let long = "A__".repeat(20_000);
    let variable = format!("TIDEGATE_{long}A");
    let texts = [
        format!("{} = 1\n{LEAST}", "k".repeat(10_000)),
        with(&format!("[log]\nlevel = \"{}\"", "l".repeat(10_000))),
        LEAST.replace("total:30", &format!("total:30, {}:1", "f".repeat(10_000))),
        LEAST.replace("nova", &"n".repeat(10_000)),
        LEAST.replace("\"127.0.0.1:2000\"", &"h".repeat(10_000)),
    ];
    let cases = texts.iter().map(|text| read(text));
    for result in cases.chain([read_with(LEAST, &[(&variable, "1")])]) {
        let told = result.expect_err("something long").to_string();
        assert!(told.len() < 2000, "{} bytes: {:.500}", told.len(), told);
    }
}

#[test]
fn ten_mistakes_give_ten_messages_with_line_and_key() {
    let text = "\
[server]
threads = 0
[[listen]]
name = \"nova\"
bind = \"127.0.0.1\"
protocol = \"sockte\"
[client]
request_timeout = 30
buffer_bytes = \"64KB\"
[queue]
capacity = 0
worker = 3
[backend]
socket = 127.0.0.1:2000
kind = \"zvm\"
http = \"htps://127.0.0.1\"
[limits]
per_window = total:30, guest_list:10
";
    let problems = read(text).expect_err("ten mistakes");
    let lines: Vec<_> = problems
        .iter()
        .filter(|p| p.severity == Severity::Error)
        .map(|p| match p.place {
            ConfigPlace::File { line, .. } => line,
            _ => panic!("{}", problems.plain(p)),
        })
        .collect();
    assert_eq!(lines, [2, 5, 6, 8, 9, 11, 12, 14, 16, 18], "{problems}");
    let told = problems.to_string();
    assert_eq!(told.matches("\n  help: ").count(), 10, "{told}");
    assert!(
        told.contains(
            "config.toml:11:12: queue.capacity: 0 is out of range\n  help: give 1 to 1000000"
        ),
        "{told}"
    );
    let drawn = problems.render(true);
    assert!(
        drawn.contains("config.toml:11:12") && drawn.contains("capacity = 0"),
        "{drawn}"
    );
}

#[test]
fn a_broken_line_hides_no_other_mistake_and_makes_none_up() {
    let check = |text: &str, lines: &[usize]| {
        let problems = read(text).expect_err(text);
        let told: Vec<_> = problems
            .iter()
            .filter_map(|p| match p.place {
                ConfigPlace::File { line, .. } => Some(line),
                _ => None,
            })
            .collect();
        assert_eq!(told, lines, "{text}\n{problems}");
        assert_eq!(problems.len(), lines.len(), "{problems}");
    };
    check(&with("[queue]\nworkers =\ncapacity = 0"), &[13, 14]);
    check(&with("[queue]\nworkers = 3 4\ncapacity = 0"), &[13, 14]);
    check(
        &with("[queue]\nworkers = 30\nworkers = 31\ncapacity = 0"),
        &[14, 15],
    );
    check(
        &with("[queue\nworkers = 30\n[client]\nbuffer_bytes = 1"),
        &[12, 15],
    );
    check(&with("").replace("[limits]", "[limits"), &[9]);
    check(&with("").replace("[[listen]]", "[[listen]"), &[2]);
    check(&with("[queue]\nwhat is this\ncapacity = 0"), &[13, 14]);
    check(
        &with("").replace("\"127.0.0.1:8080\"", "\"127.0.0.1:8080"),
        &[4],
    );
}

#[test]
fn a_word_without_quotes_in_an_inline_table_hides_no_other_mistake() {
    let check = |text: &str, expected: &[(&str, &str)]| {
        let problems = read(text).expect_err(text);
        let told: Vec<String> = problems.iter().map(|it| problems.plain(it)).collect();
        let all = told.join("\n");
        assert_eq!(told.len(), expected.len(), "{text}\n{all}");
        for (place, words) in expected {
            let found = told
                .iter()
                .any(|it| it.starts_with(&format!("config.toml:{place}: ")) && it.contains(words));
            assert!(found, "no {place} {words} in\n{all}");
        }
    };
    check(
        &with(
            "[[caller]]\nlabel = \"a\"\nmatch = { user = nova, ipp = \"x\" }\ngroups = [\"a b\"]",
        ),
        &[
            ("14:18", "write it in quotes: user = \"nova\""),
            ("14:30", "ip"),
            ("15:11", "caller[0].groups"),
        ],
    );
    check(
        &with(
            "[[caller]]\nlabel = \"a\"\nmatch = [{ user = nova }, { user = é b, ip = 10.0.0.1/99 }]",
        ),
        &[
            ("14:19", "write it in quotes: user = \"nova\""),
            ("14:36", "write it in quotes: user = \"é b\""),
            ("14:46", "caller[0].match"),
        ],
    );
    check(
        &with("[callers]\nidentify = [user, \"ip\", agent]  # one line\nmax_registered = 0"),
        &[
            ("13:13", "write it in quotes: \"user\""),
            ("13:25", "callers.identify"),
            ("14:1", "max_registered"),
        ],
    );
    // What stands in strings and comments is no word.
    check(
        &with("[[caller]]\nlabel = \"a\"\nmatch = { user = \"{ a = b }\", ip = here } # { c = d }"),
        &[("14:36", "caller[0].match")],
    );
    // No secret is shown.
    let text = with("[etcd]\nx = { password = hunter2 }");
    let problems = read(&text).expect_err("a word");
    for told in [problems.to_string(), problems.render(true)] {
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[test]
fn wrong_shapes_of_sections_are_reported() {
    let check = |text: &str, word: &str| {
        let told = read(text).expect_err(text).to_string();
        assert!(told.contains(word), "no {word:?} in\n{told}");
    };
    check(
        &format!("queue = 3\n{LEAST}"),
        "write [queue] on a line of its own",
    );
    check(
        &format!("route = 3\n{LEAST}"),
        "write [[route]] on a line of its own",
    );
    check(
        &format!("route = [3]\n{LEAST}"),
        "3 is not an array of tables",
    );
    check("[listen]\nname = \"x\"\n", "write [[listen]]");
    let many: String = (0..65)
        .map(|n| {
            format!(
                "[[listen]]\nname = \"l{n}\"\nbind = \"127.0.0.1:{}\"\n",
                n + 1
            )
        })
        .collect();
    check(
        &format!("{many}[limits]\nper_window = \"total:1\"\n"),
        "at most 64",
    );
}

#[test]
fn no_mutation_of_the_example_makes_the_reader_panic() {
    let seed = any_seed();
    let mut random = StdRng::seed_from_u64(seed);
    let every = config::catalogue().every_option("");
    let lines: Vec<&str> = every
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .collect();
    let odd = [
        "=",
        "\"",
        "[",
        "]]",
        "{",
        "é",
        "\u{0}",
        "\r",
        "\n",
        "\t",
        "#",
        "'''",
        "1e9",
        "-",
        ".",
        ",",
        "\u{feff}",
        "\u{1f600}",
    ];
    let mut refused = 0;
    for round in 0..1000 {
        let mut text: Vec<char> = lines.join("\n").chars().collect();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..text.len());
            match random.random_range(0..4) {
                0 => drop(text.remove(at)),
                1 => drop(text.splice(at..at, odd[random.random_range(0..odd.len())].chars())),
                2 => text.swap(at, (at + 1) % lines.len()),
                _ => {
                    let end = (at + random.random_range(0..40)).min(text.len());
                    drop(text.drain(at..end));
                }
            }
        }
        let text: String = text.into_iter().collect();
        let env = [
            ("TIDEGATE_QUEUE__WORKERS", "7"),
            ("TIDEGATE_LISTEN__0__NAME", "é"),
        ];
        println!("round {round}");
        match read_with(&text, &env[..round % 3]) {
            Ok(checked) => drop(config::effective(&checked.config)),
            Err(problems) => {
                refused += 1;
                assert!(problems.has_error());
                drop(problems.to_string());
                drop(problems.render(round % 2 == 0));
            }
        }
    }
    assert!(
        refused > 300,
        "the mutations are too tame: {refused} of 1000 refused"
    );
}

#[test]
fn a_file_full_of_rubbish_is_reported_quickly() {
    let text = "x\n".repeat(1 << 16);
    let problems = read(&text).expect_err("rubbish");
    assert_eq!(
        problems
            .iter()
            .filter(|p| matches!(p.place, ConfigPlace::File { .. }))
            .count(),
        1 << 16
    );
    read(&"[".repeat(1 << 16)).expect_err("brackets");
    read(&"a.".repeat(1 << 16)).expect_err("dots");
    read(&format!("a = {}", "{a=".repeat(1 << 14))).expect_err("braces");
}

#[test]
fn a_file_that_cannot_be_read_is_one_line_that_says_which_and_why() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let missing = directory.path().join("missing.toml");
    let check = |path: &std::path::Path, why: &str| {
        let error = config::load(path).expect_err(why);
        assert!(matches!(error, LoadError::Unreadable { .. }), "{error:?}");
        let line = error.render(false);
        assert!(
            line.contains(&path.display().to_string()) && line.contains(why),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
        let report = tools::check::report(path, false);
        assert!(
            !report.good && report.problems == format!("{line}\n"),
            "{report:?}"
        );
    };
    check(&missing, "No such file");
    check(directory.path(), "directory");
    let latin = directory.path().join("latin.toml");
    fs::write(&latin, b"[log]\n# caf\xe9\n").expect("written");
    check(&latin, "line 2 is not UTF-8");
    let large = directory.path().join("large.toml");
    fs::write(&large, vec![b'\n'; (1 << 20) + 1]).expect("written");
    check(&large, "larger than 1 MiB");
}

#[test]
fn check_prints_the_limits_of_a_good_file_and_every_mistake_of_a_bad_one() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("config.toml");
    fs::write(
        &path,
        EXAMPLE.replace("\"total:30\"", "\"total:30, guest_list:10\""),
    )
    .expect("written");
    let report = tools::check::report(&path, false);
    assert!(report.good && report.problems.is_empty(), "{report:?}");
    for line in [
        "total          30 calls in any 1 s (sliding)",
        "guest_list     10 calls in any 1 s (sliding)",
        "outstanding    10 calls at once",
        "class user     weight 4",
        "class polling  weight 1",
        "a call waits   60 s from arrival at most",
        "per_window = \"total:30, guest_list:10\"",
        "config.toml is good",
    ] {
        assert!(
            report.settings.contains(line),
            "no {line:?} in\n{}",
            report.settings
        );
    }
    fs::write(&path, "[queue]\ncapacity = 0\n").expect("written");
    let report = tools::check::report(&path, false);
    assert!(!report.good && report.settings.is_empty(), "{report:?}");
    let first = format!("{}: listen: there is no listener", path.display());
    assert!(report.problems.starts_with(&first), "{report:?}");
    assert!(
        report.problems.contains("config.toml:2:12: queue.capacity"),
        "{report:?}"
    );
}

#[test]
fn check_has_a_form_for_machines_and_a_quiet_one() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("config.toml");
    let file = path.to_str().expect("a path in UTF-8").to_owned();
    let check = |config: &str, flag: &str| {
        fs::write(&path, config).expect("written");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["check", "--config", &file, flag]).output();
        let output = output.expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let good = EXAMPLE.replace("\"total:30\"", "\"total:30, guest_list:10\"");
    assert_eq!(
        check(&good, "--quiet"),
        (Some(0), String::new(), String::new())
    );
    let bad = "[queue]\ncapacity = 0\n";
    let (code, out, err) = check(bad, "--quiet");
    assert_eq!((code, &*out), (Some(1), ""));
    assert!(err.contains("config.toml:2:12: queue.capacity"), "{err}");

    let (code, out, err) = check(&good, "--json");
    assert_eq!((code, &*err), (Some(0), ""));
    let read: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(read["good"], true);
    assert_eq!(read["problems"], serde_json::json!([]));
    assert_eq!(
        read["limits"],
        serde_json::json!([
            {"name": "total", "kind": "window", "scope": "all", "calls": 30,
             "window_seconds": 1.0, "fixed": false},
            {"name": "function:guest_list", "kind": "window", "scope": "guest_list", "calls": 10,
             "window_seconds": 1.0, "fixed": false},
            {"name": "outstanding", "kind": "outstanding", "scope": "all", "calls": 10},
        ])
    );
    let (code, out, err) = check(bad, "--json");
    assert_eq!((code, &*err), (Some(1), ""));
    let read: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(read["limits"], serde_json::json!([]));
    let problems = read["problems"].as_array().expect("a list");
    let capacity = problems.iter().find(|it| it["key"] == "queue.capacity");
    let capacity = capacity.expect("the mistake in line 2");
    assert_eq!(capacity["file"], *file);
    assert_eq!(
        (&capacity["line"], &capacity["column"]),
        (&2.into(), &12.into())
    );
    assert_eq!(capacity["severity"], "error");
    for text in ["message", "cure"] {
        assert!(
            capacity[text].as_str().is_some_and(|it| !it.is_empty()),
            "{capacity}"
        );
    }
    assert!(problems.iter().any(|it| it["line"].is_null()), "{out}");
}
