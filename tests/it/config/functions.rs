//! Names of functions, in all places: limits, routes, coalescing.

use std::sync::Arc;
use std::time::Duration;

use tidegate::config;

use super::{LEAST, doubted, good, read, with, wrong};

#[test]
fn a_limit_for_an_unknown_function_is_an_error_with_the_nearest_known_one() {
    let text = with("").replace("total:30", "total:30, guest_lst:3, guest_list:3, report:3");
    let text = format!("{text}[[route]]\nmethod = \"GET\"\npath = \"/r\"\nfunction = \"report\"\n");
    let known = ["guest_list", "guest_get_info"];
    let checked = config::read_knowing(&text, "config.toml", std::iter::empty(), &known);
    let problems = checked.expect_err("it would protect nothing");
    assert_eq!(problems.len(), 1, "{problems}");
    let told = problems.to_string();
    for word in [
        "\"guest_lst\"",
        "did you mean \"guest_list\"?",
        "would protect nothing",
        "allow_unknown = true",
    ] {
        assert!(told.contains(word), "no {word:?} in\n{told}");
    }
    let allowed = text.replace("[limits]", "[limits]\nallow_unknown = true");
    let checked = config::read_knowing(&allowed, "config.toml", std::iter::empty(), &known);
    let checked = checked.unwrap_or_else(|problems| panic!("{problems}"));
    assert!(checked.warnings.is_empty(), "{}", checked.warnings);
    let window = checked.config.admit.window.expect("it is on");
    assert!(
        window
            .functions
            .iter()
            .any(|(name, _)| &**name == "guest_lst")
    );
}

#[test]
fn every_limit_that_names_a_function_is_held_to_it() {
    let paced = "[[pace]]\nname = \"a\"\nrate = 1\n\
                 applies_to = \"function\"\nfunction = \"guest_lst\"";
    let quota = "[quota_store]\nengine = \"memory\"\n[[quota]]\nname = \"q\"\napplies_to = \"function\"\ntotal = 5\nrefresh_window = \"10s\"\n\
                 totals = { guest_lst = 2 }";
    for lines in [paced, quota] {
        let told = read(&with(lines)).expect_err(lines).to_string();
        assert!(told.contains("would protect nothing"), "{told}");
        good(&with(&format!("allow_unknown = true\n{lines}")));
    }
}

#[test]
fn routes_are_read_and_their_functions_known() {
    let route = |lines: &str| with(&format!("[[route]]\n{lines}"));
    let config = good(&route(
        "method = \"GET\"\npath = \"/a/{b}\"\nfunction = \"a_get\"\n[[route]]\nmethod = \"*\"\npath = \"/free\"",
    ));
    assert_eq!(config.classify.routes[0].function.as_deref(), Some("a_get"));
    assert_eq!(config.classify.routes[1].function, None);
    assert_eq!(config.classify.functions, ["a_get"].map(Arc::<str>::from));
    let both = good(
        &route("method = \"GET\"\npath = \"/a\"\nfunction = \"x\"")
            .replace("total:30", "total:30, y:1, x:2")
            .replace("[limits]", "[limits]\nallow_unknown = true"),
    );
    assert_eq!(both.classify.functions, ["y", "x"].map(Arc::<str>::from));

    let check = |lines: &str, words: &[&str]| {
        let problems = read(&route(lines)).expect_err(lines);
        assert_eq!(problems.len(), 1, "{problems}");
        for word in words {
            assert!(
                problems.to_string().contains(word),
                "no {word:?} in\n{problems}"
            );
        }
    };
    check("method = \"GET\"", &["route[0].path", "has no path"]);
    check("path = \"/a\"", &["route[0].method", "has no method"]);
    check("method = \"get\"\npath = \"/a\"", &["\"GET\""]);
    check("method = \"G T\"\npath = \"/a\"", &["is not a method"]);
    check("method = \"GET\"\npath = \"a\"", &["does not begin with /"]);
    check("method = \"GET\"\npath = \"/a?b=1\"", &["query"]);
    check(
        "method = \"GET\"\npath = \"/a/x{b}\"",
        &["one whole segment"],
    );
    check(
        "method = \"GET\"\npath = \"/a\"\nfunction = \"total\"",
        &["all functions together"],
    );
    check(
        "method = \"GET\"\npath = \"/a\"\nfunction = \"a b\"",
        &["not the name of a function"],
    );
    let twice = "method = \"GET\"\npath = \"/a\"\n[[route]]\nmethod = \"GET\"\npath = \"/a\"";
    doubted(&route(twice), &["the first one wins"]);
    let no_http = route("method = \"GET\"\npath = \"/a\"")
        .replace("http = \"http://127.0.0.1:8081\"\n", "")
        .replace("[backend]", "protocol = \"socket\"\n[backend]");
    doubted(&no_http, &["routes are for the HTTP backend"]);
}

#[test]
fn only_reads_that_are_known_are_coalesced() {
    let lists = |names: &str| format!("functions = [{names}]");
    let config = good(&with(
        "[coalesce]\nfunctions = [\"host_get_info\", \"guest_list\"]\nfresh_for = \"2s\"\n\
         max_entries = 7\nmax_bytes = \"1MiB\"",
    ));
    let names: Vec<&str> = config
        .coalesce
        .functions
        .iter()
        .map(|name| &**name)
        .collect();
    assert_eq!(names, ["host_get_info", "guest_list"]);
    assert_eq!(config.coalesce.fresh_for, Duration::from_secs(2));
    assert_eq!(config.coalesce.entries_max, 7);
    assert_eq!(config.coalesce.bytes_max, 1 << 20);
    assert_eq!(good(LEAST).coalesce.functions.len(), 0);

    let check = |names: &str, words: &[&str]| wrong("coalesce", &lists(names), words);
    check(
        "\"guest_start\"",
        &["\"guest_start\" changes something", "only reads"],
    );
    check(
        "\"guest_list\", \"host_get_inof\"",
        &["\"host_get_inof\"", "did you mean \"host_get_info\"?"],
    );
    check("\"reports\"", &["no function is known", "[[route]]"]);
    check("\"guest_list\", \"guest_list\"", &["given twice"]);
    check("1", &["1 is not a string"]);
    wrong(
        "coalesce",
        "functions = \"guest_list\"",
        &["is not an array"],
    );
    let many: Vec<String> = (0..65).map(|n| format!("\"f{n}\"")).collect();
    check(&many.join(", "), &["there are 65 of them", "at most 64"]);
    wrong("coalesce", "max_entries = 0", &["1 to 1000000"]);
    wrong("coalesce", "fresh_for = \"2h\"", &["0s to 1h"]);

    doubted(
        &with("[coalesce]\nfresh_for = \"2s\""),
        &["coalesce.fresh_for", "no effect"],
    );
}

#[test]
fn a_function_of_ones_own_route_is_coalesced_if_its_method_says_that_it_is_a_read() {
    let with_route = |method: &str| {
        with(&format!(
            "[coalesce]\nfunctions = [\"report_get\"]\n[[route]]\nmethod = \"{method}\"\n\
             path = \"/reports\"\nfunction = \"report_get\""
        ))
    };
    assert_eq!(good(&with_route("GET")).coalesce.functions.len(), 1);
    for method in ["*", "POST"] {
        let problems = read(&with_route(method)).expect_err("it may change something");
        assert!(
            problems.to_string().contains("another method"),
            "{problems}"
        );
    }
}
