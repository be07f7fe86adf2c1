//! The number of calls per window: both ways to write it, and the mistakes in others.

use std::time::Duration;

use tidegate::call::LimitMode;
use tidegate::config::{self, Severity};

use super::{LEAST, good, read, with, wrong};

#[test]
fn the_value_per_window_is_taken_in_both_spellings() {
    let check = |value: &str, total: Option<u32>, functions: &[(&str, u32)]| {
        let config = good(&LEAST.replace("\"total:30\"", value));
        let window = config.admit.window.expect("windows are on");
        assert_eq!(window.total, total, "{value}");
        let given: Vec<_> = window
            .functions
            .iter()
            .map(|(name, n)| (&**name, *n))
            .collect();
        assert_eq!(given, functions, "{value}");
    };
    check("\"total:30\"", Some(30), &[]);
    check(
        "\"total:30, guest_list:10\"",
        Some(30),
        &[("guest_list", 10)],
    );
    check(
        "\"guest_list:10,total:30\"",
        Some(30),
        &[("guest_list", 10)],
    );
    check(
        "\"  total : 30 ,  guest_list :10 \"",
        Some(30),
        &[("guest_list", 10)],
    );
    check("\"total\\t:\\t30\"", Some(30), &[]);
    check(
        "{ total = 30, guest_list = 10 }",
        Some(30),
        &[("guest_list", 10)],
    );
    check("\"total:0, guest_list:10\"", None, &[("guest_list", 10)]);
    check("\"total:30, guest_list:0\"", Some(30), &[]);
    check("\"total:1000000\"", Some(1_000_000), &[]);
}

#[test]
fn every_limit_has_the_mode_of_all_unless_it_gives_its_own() {
    let check = |modes: &str, class: &str, expected: [LimitMode; 4]| {
        let class = format!("{modes}\n[[class]]\nname = \"user\"\n{class}\n");
        let settings = good(&with(&class)).admit;
        let window = settings.window.expect("windows are on");
        let class = &settings.classes[0];
        let modes = [
            window.mode,
            settings.outstanding_mode,
            class.window_mode,
            class.outstanding_mode,
        ];
        assert_eq!(modes, expected, "{modes:?}");
    };
    const HOLDS: LimitMode = LimitMode::Enforce;
    const ONLY: LimitMode = LimitMode::Observe;
    check("", "", [HOLDS; 4]);
    check("mode = \"observe\"", "", [ONLY; 4]);
    check("window_mode = \"observe\"", "", [ONLY, HOLDS, ONLY, HOLDS]);
    check(
        "outstanding_mode = \"observe\"",
        "",
        [HOLDS, ONLY, HOLDS, ONLY],
    );
    let both = "mode = \"observe\"\noutstanding_mode = \"enforce\"";
    check(both, "", [ONLY, HOLDS, ONLY, HOLDS]);
    check("", "mode = \"observe\"", [HOLDS, HOLDS, ONLY, ONLY]);
    check(
        "mode = \"observe\"",
        "mode = \"enforce\"",
        [ONLY, ONLY, HOLDS, HOLDS],
    );
}

#[test]
fn a_config_that_does_not_protect_the_backend_says_so() {
    let warned = |line: &str| {
        let read = read(&with(line)).unwrap_or_else(|problems| panic!("{problems}"));
        let words = "nothing protects the backend";
        read.warnings.iter().any(|it| it.message.contains(words))
    };
    assert!(warned("mode = \"observe\""));
    assert!(warned("outstanding_mode = \"observe\""));
    assert!(!warned("window_mode = \"observe\""));
    assert!(!warned(
        "mode = \"observe\"\noutstanding_mode = \"enforce\""
    ));
}

#[test]
fn the_value_per_window_is_refused_with_a_cure() {
    let check = |value, words: &[&str]| wrong("per_window", value, words);
    check(
        "\"total:30,\"",
        &["config.toml:10:24: limits.per_window", "last comma"],
    );
    check("\"total:30,,guest_list:1\"", &["between two commas"]);
    check("\"\"", &["empty", "total:30, guest_list:10"]);
    check("\"total\"", &["\"total\" has no number", "total:30"]);
    check("\"30\"", &["\"30\"", "write \"total:30\""]);
    check(
        "\"total:30, guest_list\"",
        &["\"guest_list\" has no number", ":10:25:"],
    );
    check(
        "\"total:30, guest_list:\"",
        &["\"guest_list\" has no number"],
    );
    check("\"total:30, :10\"", &["name is empty"]);
    check("\"total:x\"", &["\"x\" of \"total\" is not an integer"]);
    check("\"total:3.5\"", &["\"3.5\" of \"total\" is not an integer"]);
    check("\"total:3 0\"", &["\"3 0\" of \"total\" is not an integer"]);
    check(
        "\"total:-1\"",
        &[
            "\"total\": -1 is out of range",
            "0 to 1000000",
            "switches the limit off",
        ],
    );
    check("\"total:1000001\"", &["out of range", "0 to 1000000"]);
    check("\"total:30, total:20\"", &["\"total\" is given twice"]);
    check(
        "\"total:30, guest_list:1, guest_list:2\"",
        &["\"guest_list\" is given twice"],
    );
    check(
        "\"total:30, guest list:1\"",
        &["\"guest list\" is not the name of a function"],
    );
    check("\"guest_list:10\"", &["\"total\" is not given", "total:30"]);
    check("{ guest_list = 10 }", &["\"total\" is not given"]);
    check(
        "{ total = \"30\" }",
        &[
            "per_window.total",
            "\"30\" is not an integer",
            "without quotes",
        ],
    );
    check(
        "{ total = 30, guest_list = -1 }",
        &["per_window.guest_list", "-1 is out of range"],
    );
    check("30", &["30 is neither a string nor a table", "total:30"]);
    check(
        "\"total:30, guest_list:31\"",
        &["more than the total of 30", "at most 30", ":10:25:"],
    );
    check(
        "{ total = 30, guest_list = 31 }",
        &["per_window.guest_list", "at most 30"],
    );
}

#[test]
fn several_mistakes_in_one_value_are_reported_one_by_one() {
    let text = LEAST.replace("\"total:30\"", "\"total:x, guest_list, :1,\"");
    let problems = read(&text).expect_err("four mistakes");
    let errors = problems
        .iter()
        .filter(|p| p.severity == Severity::Error)
        .count();
    assert_eq!(errors, 4, "{problems}");
}

/// The names that the design of sdkserver has, with their units.
const OF_SDKSERVER: &str = "smapi_rate_limit_window_size_seconds = 2
smapi_rate_limit_per_window = \"total:30, guest_list:10\"
smapi_max_outstanding_requests = 7
smapi_request_postpone_threshold_seconds = 50
";

#[test]
fn the_names_of_sdkserver_mean_the_same_and_stay_as_they_were_given() {
    let old = LEAST.replace("per_window = \"total:30\"\n", OF_SDKSERVER);
    let new = LEAST.replace(
        "per_window = \"total:30\"\n",
        "window = \"2s\"\nper_window = \"total:30, guest_list:10\"\noutstanding = 7\nmax_wait = \"50s\"\n",
    );
    assert_eq!(good(&old).admit, good(&new).admit);
    let shown = config::effective(&good(&old));
    for line in OF_SDKSERVER.lines() {
        assert!(shown.contains(&format!("{line}\n")), "{line}: {shown}");
    }
    assert!(
        !shown.contains("max_wait") && !shown.contains("\nper_window"),
        "{shown}"
    );
    assert_eq!(good(&shown), good(&old));
}

#[test]
fn two_names_of_one_option_are_a_mistake_unless_a_variable_gives_one() {
    wrong(
        "limits",
        "smapi_rate_limit_per_window = \"total:20\"",
        &[
            "limits.smapi_rate_limit_per_window",
            "another name of per_window",
            "leave one of the two out",
        ],
    );
    let check = |name: &str, file: &str| {
        let text = LEAST.replace("per_window", file);
        let variable = (name.to_owned(), "total:20".to_owned());
        let read = config::read(&text, "config.toml", [variable].into_iter());
        let read = read.unwrap_or_else(|problems| panic!("{problems}"));
        let total = read.config.admit.window.and_then(|it| it.total);
        assert_eq!(total, Some(20), "{name}");
    };
    let alias = "smapi_rate_limit_per_window";
    check("TIDEGATE_LIMITS__PER_WINDOW", alias);
    check("TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW", "per_window");
    check("TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW", alias);
}

#[test]
fn a_mistake_is_reported_under_the_name_that_was_given() {
    let seconds = format!("{LEAST}smapi_request_postpone_threshold_seconds = \"50s\"\n");
    let problems = read(&seconds).expect_err("it is in seconds").to_string();
    for words in [
        "limits.smapi_request_postpone_threshold_seconds",
        "not an integer",
    ] {
        assert!(problems.contains(words), "{problems}");
    }
    wrong(
        "limits",
        "smapi_rate_limit_window_size_seconds = 0.5",
        &["0.5 is not an integer"],
    );
    let beside = |name: &str| {
        let text = with(&format!(
            "{name} = 4\n[[class]]\nname = \"long\"\noutstanding_max = 5\nfunctions = [\"guest_create\"]"
        ));
        let problems = read(&text).expect_err("more than the total").to_string();
        assert!(
            problems.contains(&format!("more than the 4 of {name}")),
            "{problems}"
        );
    };
    beside("outstanding");
    beside("smapi_max_outstanding_requests");
}

#[test]
fn zero_switches_a_limit_off() {
    let config = good(&with("outstanding = 0"));
    assert_eq!(config.admit.outstanding_max, None);
    let off = LEAST.replace("per_window = \"total:30\"", "window = \"0s\"");
    assert_eq!(good(&off).admit.window, None);
    let max_wait = format!("{LEAST}max_wait = \"0s\"\n");
    assert_eq!(good(&max_wait).admit.max_wait, Duration::ZERO);
}

#[test]
fn the_per_window_value_is_obligatory_while_windows_are_on() {
    let none = LEAST.replace("per_window = \"total:30\"", "");
    let problems = read(&none).expect_err("no value");
    let told = problems.to_string();
    assert!(told.contains("the limit per window is not given"), "{told}");
    assert!(told.contains("window = \"0s\""), "{told}");
}

#[test]
fn a_value_pasted_without_quotes_is_shown_with_them() {
    let quoted = "per_window = \"total:30, guest_list:10\"";
    wrong(
        "per_window",
        "total:30, guest_list:10",
        &["config.toml:10:14: limits.per_window: ", quoted],
    );
    wrong("per_window", "total:30, guest_list:10 # pasted", &[quoted]);
    wrong("per_window", "total:30", &["per_window = \"total:30\""]);
    wrong("bind", "127.0.0.1:8080", &["bind = \"127.0.0.1:8080\""]);
    wrong(
        "client",
        "request_timeout = 30s",
        &["request_timeout = \"30s\""],
    );
    wrong("queue", "postpone = in_turn", &["postpone = \"in_turn\""]);
}
