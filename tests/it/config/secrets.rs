//! No secret is ever shown: not by a message, not by the quoted lines of the file, not by the
//! effective config, with any spelling of its option.

use tidegate::config::{self, Problems};

use super::{LEAST, read, read_with};

const SECRET: &str = "hunter2";

/// Every secret option of the sidecar: its section, with required options, and its name.
const OPTIONS: [(&str, &str); 4] = [
    ("[admin]\nbind = \"127.0.0.1:9180\"", "token"),
    (
        "[quota_store]\nengine = \"zookeeper\"\nservers = [\"z:1\"]\nexpected_sidecars = 3\nuser = \"u\"",
        "password",
    ),
    (
        "[quota_store]\nengine = \"redis\"\nservers = [\"redis://h\"]\nexpected_sidecars = 3",
        "password",
    ),
    // Meant to be one.
    ("[quota_store]\nengine = \"memory\"", "pasword"),
];

/// Secrets of the capacity server.
const OF_LEASES: [(&str, &str); 2] = [
    (
        "[etcd]\nendpoints = [\"http://e:1\"]\nuser = \"u\"",
        "password",
    ),
    ("[zookeeper]\nservers = \"z:1\"", "auth"),
];

/// Ways to write an option, good and broken. `K` is its name.
const WAYS: [&str; 36] = [
    "K = \"hunter2\"",
    "K = hunter2",
    "K=hunter2",
    "K = hunter2 # a comment",
    "K = correct hunter2",
    "K = digest:u:hunter2",
    "K = \"hunter2",
    "K = 'hunter2",
    "K = hunter2\"",
    "K = \"hunter2\" hunter2",
    "K = \"hunter2\"hunter2\"",
    "K = \"a b\\qhunter2\"",
    "K = hunter2=",
    "K = =hunter2",
    "K hunter2",
    "K: hunter2",
    "K: \"hunter2\"",
    "\"K\" hunter2",
    "\"K\" = hunter2",
    "'K' = hunter2",
    "K = [\"hunter2\"]",
    "K = [\"hunter2\"",
    "K = [hunter2]",
    "K = { a = \"hunter2\" }",
    "K = { hunter2 = 1 }",
    "K = { a = hunter2",
    "K = \"\"\"hunter2\"\"\"",
    "K = \"\"\"\nhunter2 = 1\n\"\"\" x",
    "K = '''\nhunter2\n",
    "K =\nhunter2",
    "K =\nhunter2 = 1",
    "K =\n\"hunter2\"",
    "K = [\n  \"hunter2\",\n  hunter2\n]",
    "K = \"hunter2\"\nK = \"hunter2\"",
    "K.x = hunter2",
    "K = \"\thunter2\u{7}\"",
];

#[track_caller]
fn hides(problems: &Problems, text: &str) {
    let mut shown = vec![
        problems.to_string(),
        problems.render(false),
        problems.render(true),
        format!("{problems:?}"),
    ];
    shown.extend(problems.iter().map(|problem| problems.plain(problem)));
    shown.extend(problems.iter().map(|problem| format!("{problem:?}")));
    for shown in shown {
        assert!(!shown.contains(SECRET), "{text}\n---\n{shown}");
    }
}

#[test]
fn no_way_to_write_a_secret_shows_it_in_a_message() {
    let mut told = 0;
    for (section, key) in OPTIONS {
        for way in WAYS {
            let line = way.replace('K', key);
            // A second mistake near it has the lines around it drawn.
            let text = format!("{LEAST}{section}\n{line}\nno_such_option = 1\n");
            let Err(problems) = read(&text) else {
                panic!("there is a mistake: {text}");
            };
            told += problems.len();
            hides(&problems, &text);
        }
    }
    assert!(told > 200, "{told}");
}

#[test]
fn no_way_to_write_a_secret_of_the_capacity_server_shows_it() {
    for (section, key) in OF_LEASES {
        for way in WAYS {
            let line = way.replace('K', key);
            let text = format!(
                "[[resource]]\nglob = \"*\"\ncapacity = 1\n{section}\n{line}\nno_such_option = 1\n"
            );
            let Err(problems) = tidegate_lease_server::config::read(&text, "leases.toml") else {
                panic!("there is a mistake: {text}");
            };
            hides(&problems, &text);
        }
    }
}

#[test]
fn an_address_with_a_password_is_shown_without_it() {
    for line in [
        "http = \"http://me:hunter2@127.0.0.1\"",
        "http = \"me:hunter2@127.0.0.1\"",
        "http = http://me:hunter2@127.0.0.1",
        "socket = \"me:hunter2@127.0.0.1\"",
        "socket = me:hunter2@127.0.0.1:1",
        "tcp = \"hunter2:hunter2@a b\"",
    ] {
        let key = line.split_once(' ').expect("a key").0;
        let without: String = LEAST
            .lines()
            .filter(|line| !line.starts_with(key))
            .map(|line| format!("{line}\n"))
            .collect();
        let text = without.replace("[backend]\n", &format!("[backend]\n{line}\n"));
        hides(&read(&text).expect_err("no such address"), &text);
    }
    for servers in [
        "[\"redis://u:hunter2@h:x\"]",
        "\"redis://u:hunter2@h\"",
        "redis://u:hunter2@h",
        "[redis://u:hunter2@h]",
        "[\"redis://u:hunter2@h\", 1]",
    ] {
        let text = format!(
            "{LEAST}[quota_store]\nengine = \"redis\"\nexpected_sidecars = 3\nservers = {servers}\n"
        );
        hides(&read(&text).expect_err("no such servers"), &text);
    }
}

#[test]
fn a_variable_and_the_config_in_effect_show_no_secret() {
    for value in ["hunter2 hunter2", "[\"hunter2\"]", "{ hunter2 = 1 }"] {
        let problems = read_with(LEAST, &[("TIDEGATE_ADMIN__TOKEN", value)]);
        hides(&problems.expect_err("it is no token"), value);
    }
    for (section, key) in &OPTIONS[..3] {
        let limit = match section.starts_with("[quota_store]") {
            true => {
                "[[quota]]\nname = \"q\"\napplies_to = \"user\"\n\
                 total = 1000\nrefresh_window = \"10s\"\n"
            }
            false => "",
        };
        let text = format!("{LEAST}{section}\n{key} = \"hunter2\"\n{limit}");
        let checked = read(&text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
        let shown = config::effective(&checked.config);
        assert!(shown.contains(&format!("{key} = \"(hidden)\"")), "{shown}");
        for shown in [shown, format!("{:?}", checked.config)] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}
