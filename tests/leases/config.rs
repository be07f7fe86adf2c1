//! The config of the capacity server: both formats, and that every mistake is reported with its
//! place and cure.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate::config::{ConfigPlace, Problem, Problems};
use tidegate_lease_server::config::{self as config, LeaseServerSettings, Rules};
use tidegate_leases::book::Split;
use tidegate_leases::server::{Frees, Templates};

const EXAMPLE: &str = include_str!("../../config.lease-server.toml.example");

const RULE: &str = "[[resource]]\nglob = \"*\"\ncapacity = 100\n";

#[track_caller]
fn good(text: &str) -> LeaseServerSettings {
    match config::read(text, "leases.toml") {
        Ok((config, _)) => config,
        Err(problems) => panic!("{text}\n{problems}"),
    }
}

fn mistakes(text: &str) -> Problems {
    match config::read(text, "leases.toml") {
        Ok(_) => panic!("it was taken:\n{text}"),
        Err(problems) => problems,
    }
}

/// Exactly one error, at this line, that says these words.
#[track_caller]
fn wrong(text: &str, line: usize, words: &[&str]) {
    says(&mistakes(text), line, words);
}

#[track_caller]
fn says(problems: &Problems, line: usize, words: &[&str]) {
    let list: Vec<&Problem> = problems.iter().collect();
    assert_eq!(list.len(), 1, "{problems}");
    let found = match list[0].place {
        ConfigPlace::File { line, .. } => line,
        _ => 0,
    };
    assert_eq!(found, line, "{problems}");
    let told = problems.to_string();
    for word in words {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}

fn rules(config: &LeaseServerSettings) -> &Templates {
    match &config.rules {
        Rules::Here(templates) => templates,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_is_good_and_lists_every_option_with_its_default() {
    let example = good(EXAMPLE);
    let least = good(RULE);
    assert_eq!(example.shown, least.shown);
    let rule = &rules(&example).in_order()[0];
    let bare = &rules(&least).in_order()[0];
    assert_eq!(rule.algorithm, bare.algorithm);

    let mut section = String::new();
    let mut listed = BTreeSet::new();
    for line in EXAMPLE.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(header) = line.strip_prefix('[') {
            let name = header.trim_start_matches('[').split(']').next();
            section = format!("{}.", name.expect("a header"));
        } else if let Some((key, _)) = line.split_once(" = ") {
            let is_key = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            if is_key && !key.is_empty() {
                listed.insert(format!("{section}{key}"));
            }
        }
    }
    let options: BTreeSet<_> = config::options().into_keys().collect();
    assert_eq!(listed, options);
}

#[test]
fn the_shown_config_reads_back_as_the_same_without_the_password() {
    let config = good(&format!(
        "bind = \"127.0.0.1:9\"\nparent = [\"up:2\"]\n{RULE}\
         [election]\nengine = \"etcd\"\n\
         [etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\nuser = \"me\"\npassword = \"hush\"\n"
    ));
    assert!(!config.shown.contains("hush"), "{}", config.shown);
    assert!(
        config.shown.starts_with("bind = \"127.0.0.1:9\"\n"),
        "{}",
        config.shown
    );
    assert_eq!(
        good(&format!("{}\n{RULE}", config.shown)).shown,
        config.shown
    );
}

#[test]
fn a_rule_says_what_it_says() {
    let config = good(
        "bind = \"0.0.0.0:1\"\naddress = \"leases-1:1\"\nid = \"rack\"\nparent = [\"up:2\"]\n\
         [[resource]]\nglob = \"db/?\"\ncapacity = 7.5\nsafe_capacity = -1\n\
         algorithm = { kind = \"static\", lease = \"2m\", refresh = \"1m\", learning = \"0s\", \
         frees_after = \"1500ms\", priority_bands = false, reserved_clients = 3, \
         safe_share = 2.5, each = 4 }\n",
    );
    assert_eq!(config.parents, ["up:2"]);
    let rule = &rules(&config).in_order()[0];
    assert_eq!(rule.capacity.get(), 7.5);
    assert_eq!(rule.safe_capacity, Some(-1.0));
    let algorithm = &rule.algorithm;
    assert_eq!(algorithm.split, Split::Static);
    assert_eq!(algorithm.lease, Duration::from_secs(120));
    assert_eq!(algorithm.refresh, Duration::from_secs(60));
    assert_eq!(algorithm.learning, Duration::ZERO);
    assert_eq!(
        algorithm.frees,
        Frees::Confirmed(Duration::from_millis(1500))
    );
    assert!(!algorithm.by_priority);
    let reserve = algorithm.reserve.expect("set aside");
    assert_eq!((reserve.clients.get(), reserve.share.get()), (3, 2.5));
    assert_eq!(algorithm.each.map(|it| it.get()), Some(4.0));
}

#[test]
fn a_mistake_is_reported_with_its_line_and_cure() {
    wrong(
        &format!("{RULE}lease = \"60s\"\nalgorithm.kind = \"static\"\n"),
        4,
        &["lease belongs in [resource.algorithm]"],
    );
    wrong(
        &format!("{RULE}[limits]\nper_window = \"total:30\"\n"),
        4,
        &["of a sidecar", "`tidegate check --config"],
    );
    let rule = |line: &str| format!("[[resource]]\nglob = \"*\"\ncapacity = 100\n{line}\n");
    wrong(
        "bind = \"x\"\n[[resource]]\nglob = \"*\"\ncapacity = 1\n",
        1,
        &["bind"],
    );
    wrong(&format!("bindd = \"x\"\n{RULE}"), 1, &["\"bind\""]);
    wrong(
        &format!("bind = \"0.0.0.0:1\"\n{RULE}"),
        0,
        &["address", "leases-1:9190"],
    );
    wrong(
        &format!("colour = 1\n{RULE}"),
        1,
        &["config.lease-server.toml.example"],
    );
    wrong(
        &format!("parent = [\"up\"]\n{RULE}"),
        1,
        &["parent", "has no port"],
    );
    wrong(&format!("minimum_interval = 5\n{RULE}"), 1, &["no unit"]);
    wrong(&format!("unmatched = \"drop\"\n{RULE}"), 1, &["\"refuse\""]);
    wrong(&format!("resources = \"file:x\"\n{RULE}"), 2, &["either"]);
    wrong(
        &format!("resources = \"etcd:\"\n{RULE}"),
        1,
        &["names nothing"],
    );
    wrong("", 0, &["[[resource]]"]);
    wrong(
        &format!("[election]\nengine = \"etcd\"\n{RULE}"),
        0,
        &["[etcd]", "endpoints"],
    );
    wrong("resources = \"etcd:/key\"\n", 0, &["[etcd]"]);
    wrong(
        "resources = \"etcd:/key\"\n[etcd]\nendpoints = [\"https://a:1\"]\n",
        3,
        &["authorities", "add ca"],
    );
    wrong(
        &format!("[election]\nengine = \"zookeeper\"\n{RULE}"),
        0,
        &["[zookeeper]"],
    );
    wrong(
        &format!("[election]\ntime_to_live = \"1ms\"\n{RULE}"),
        2,
        &["1s to 1h"],
    );
    wrong(
        &format!("[etcd]\nendpoints = [\"x\"]\n{RULE}"),
        2,
        &["http://"],
    );
    wrong(&format!("[etcd]\nuser = \"x\"\n{RULE}"), 2, &["password"]);
    wrong(
        &format!("[zookeeper]\nservers = \"x\"\n{RULE}"),
        2,
        &["host and port"],
    );
    wrong(
        &format!("[bounds]\nleases = 0\n{RULE}"),
        2,
        &["bounds.leases"],
    );
    wrong(&rule("capacityy = 1"), 4, &["\"capacity\""]);
    wrong(
        "[[resource]]\nglob = \"[a\"\ncapacity = 1\n",
        2,
        &["glob", "class"],
    );
    wrong(
        "[[resource]]\ncapacity = 1\n",
        1,
        &["resource[0].glob", "missing"],
    );
    wrong("[[resource]]\nglob = \"*\"\n", 1, &["capacity", "missing"]);
    wrong(
        "[[resource]]\nglob = \"*\"\ncapacity = -5\n",
        3,
        &["capacity", "-5"],
    );
    wrong(
        "[[resource]]\nglob = \"*\"\ncapacity = nan\n",
        3,
        &["capacity", "NaN"],
    );
    wrong(
        "[[resource]]\nglob = \"*\"\ncapacity = \"5\"\n",
        3,
        &["not a number"],
    );
    wrong(&rule("safe_capacity = -2"), 4, &["safe_capacity", "-1"]);
    wrong(
        &rule("algorithm = { kind = \"fair\" }"),
        4,
        &["\"fair_share\""],
    );
    wrong(
        &rule("algorithm = { lease = \"5s\", refresh = \"9s\" }"),
        4,
        &["shorter than"],
    );
    wrong(
        &rule("algorithm = { lease = \"1500ms\", refresh = \"1s\" }"),
        4,
        &["whole seconds"],
    );
    wrong(
        &rule("algorithm = { decay_factor = 2 }"),
        4,
        &["decay_factor", "at most 1"],
    );
    wrong(
        &rule("algorithm = { reserved_clients = 3 }"),
        4,
        &["safe_share"],
    );
    wrong(
        &rule("algorithm = { reserved_clients = 30, safe_share = 4 }"),
        4,
        &["120", "lower one of them"],
    );
    wrong(&format!("{RULE}{RULE}"), 5, &["write each once"]);
}

#[test]
fn every_mistake_is_reported_at_once() {
    let problems = mistakes(
        "bind = 1\nunmatched = \"x\"\n[bounds]\nleases = 0\n[[resource]]\nglob = \"[\"\n\
         capacity = -1\nalgorithm = { lease = \"1s\" }\n",
    );
    let lines: Vec<_> = problems.iter().map(|problem| &problem.place).collect();
    let line = |place: &&ConfigPlace| match place {
        ConfigPlace::File { line, .. } => *line,
        _ => 0,
    };
    let lines: Vec<_> = lines.iter().map(line).collect();
    assert_eq!(lines, [1, 2, 4, 6, 7, 8], "{problems}");
}

#[test]
fn a_status_address_that_others_reach_is_doubted() {
    let (_, warnings) = config::read(
        &format!("status_bind = \"0.0.0.0:1\"\n{RULE}"),
        "leases.toml",
    )
    .expect("it is good");
    assert!(
        warnings.to_string().contains("who holds what"),
        "{warnings}"
    );
}

// Doorman's own form.

const YAML: &str = "\
resources:
- identifier_glob: disk-*
  capacity: 100
  safe_capacity: 10
  description: a disk
  algorithm:
    kind: PROPORTIONAL_SHARE
    lease_length: 60
    refresh_interval: 15
    learning_mode_duration: 0
- identifier_glob: '*'
  capacity: 0.5
  algorithm: {kind: 3, lease_length: 20, refresh_interval: 20,
    parameters: [{name: decay_factor, value: 0.25}]}
";

fn doorman(text: &str) -> Result<Templates, Problems> {
    config::templates(text, "resources.yaml")
}

#[test]
fn doormans_own_form_is_read_as_yaml_and_as_json() {
    let check = |text: &str| {
        let templates = doorman(text).unwrap_or_else(|problems| panic!("{problems}"));
        let [disk, rest] = templates.in_order() else {
            panic!("two rules");
        };
        assert_eq!(disk.glob.as_str(), "disk-*");
        assert_eq!(disk.capacity.get(), 100.0);
        assert_eq!(disk.safe_capacity, Some(10.0));
        assert_eq!(disk.description.as_deref(), Some("a disk"));
        assert_eq!(disk.algorithm.split, Split::Proportional);
        assert_eq!(disk.algorithm.lease, Duration::from_secs(60));
        assert_eq!(disk.algorithm.learning, Duration::ZERO);
        assert_eq!(rest.algorithm.split, Split::Fair);
        assert_eq!(rest.algorithm.learning, Duration::from_secs(20));
        assert_eq!(rest.algorithm.decay, 0.25);
    };
    check(YAML);
    let value: serde_json::Value = serde_yaml_ng::from_str(YAML).expect("YAML");
    check(&value.to_string());
    check(
        &serde_json::to_string_pretty(&value)
            .expect("JSON")
            .replace("  ", "\t"),
    );
}

#[test]
fn priorities_count_in_our_own_form_and_in_doormans_only_where_a_rule_says_so() {
    let ours = good(RULE);
    assert!(rules(&ours).in_order()[0].algorithm.by_priority);
    let by_priority = |text: &str| {
        let rules = doorman(text).unwrap_or_else(|it| panic!("{it}"));
        let rules = rules.in_order().iter();
        rules
            .map(|rule| rule.algorithm.by_priority)
            .collect::<Vec<_>>()
    };
    let share = "{kind: FAIR_SHARE, lease_length: 60, refresh_interval: 5";
    let text = format!(
        "resources:\n\
         - {{identifier_glob: a, capacity: 1}}\n\
         - {{identifier_glob: b, capacity: 1, algorithm: {share}, \
           parameters: [{{name: priority_bands, value: \"true\"}}]}}}}\n\
         - {{identifier_glob: '*', capacity: 1, algorithm: {share}}}}}\n"
    );
    assert_eq!(by_priority(&text), [false, true, false]);
}

#[test]
fn yaml_merge_keys_are_merged() {
    let text = "\
resources:
- identifier_glob: a
  capacity: 1
  algorithm: &share {kind: FAIR_SHARE, lease_length: 60, refresh_interval: 5}
- identifier_glob: '*'
  capacity: 2
  algorithm:
    <<: *share
    lease_length: 30
";
    let rules = doorman(text).unwrap_or_else(|it| panic!("{it}"));
    let [a, all] = rules.in_order() else {
        panic!("{rules:?}");
    };
    assert_eq!(all.algorithm.split, a.algorithm.split);
    assert_eq!(all.algorithm.refresh, Duration::from_secs(5));
    assert_eq!(
        all.algorithm.lease,
        Duration::from_secs(30),
        "its own stays"
    );
    // Several at once: the first wins.
    let list = text.replace("<<: *share", "<<: [{refresh_interval: 7}, *share]");
    let rules = doorman(&list).unwrap_or_else(|it| panic!("{it}"));
    let all = &rules.in_order()[1].algorithm;
    assert_eq!(all.refresh, Duration::from_secs(7));
    let wrong = text.replace("<<: *share", "<<: 5");
    let told = doorman(&wrong).expect_err("nothing to merge").to_string();
    assert!(told.contains("5 cannot be merged"), "{told}");
    assert!(told.contains("write <<: *name"), "{told}");
}

#[test]
fn a_key_that_only_holds_an_anchor_is_skipped() {
    let text = "\
x-share: &share {kind: FAIR_SHARE, lease_length: 60, refresh_interval: 5}
x-other: 7
resources:
- {identifier_glob: a, capacity: 1, algorithm: *share}
- {identifier_glob: '*', capacity: 2, algorithm: {<<: *share, lease_length: 30}}
";
    let rules = doorman(text).unwrap_or_else(|it| panic!("{it}"));
    let leases = rules.in_order().iter().map(|rule| rule.algorithm.lease);
    let leases: Vec<_> = leases.map(|lease| lease.as_secs()).collect();
    assert_eq!(leases, [60, 30]);
    // Only at the top, and only by that name: another one is probably a mistake.
    for (from, to) in [("x-other", "other"), ("capacity: 1", "capacity: 1, x-a: 1")] {
        let told = doorman(&text.replace(from, to)).expect_err("it is not known");
        assert!(told.to_string().contains("other") || told.to_string().contains("x-a"));
    }
}

#[test]
fn a_kind_that_is_not_given_is_none() {
    let text = YAML.replace("    kind: PROPORTIONAL_SHARE\n", "");
    let templates = doorman(&text).expect("it is good");
    assert_eq!(templates.in_order()[0].algorithm.split, Split::None);
}

#[test]
fn mistakes_that_doorman_ignores_are_reported() {
    let check = |from: &str, to: &str, line: usize, words: &[&str]| {
        let text = YAML.replacen(from, to, 1);
        assert_ne!(text, YAML, "{from}");
        let problems = doorman(&text).expect_err(to);
        says(&problems, line, words);
    };
    check(
        "  capacity: 100",
        "  capacty: 100\n  capacity: 100",
        3,
        &["did you mean \"capacity\"?"],
    );
    check(
        "  safe_capacity",
        "  safeCapacity",
        4,
        &["did you mean \"safe_capacity\"?"],
    );
    check(
        "    lease_length: 60",
        "    lease_length: 60\n    colour: 1",
        9,
        &["leave it out"],
    );
    check(
        "identifier_glob: disk-*",
        "identifier_glob: 'disk-['",
        2,
        &["class"],
    );
    check("capacity: 100", "capacity: -5", 3, &["capacity", "-5"]);
    check("capacity: 100", "capacity: .nan", 3, &["capacity", "NaN"]);
    check(
        "capacity: 100",
        "capacity: many",
        3,
        &["\"many\" is not a number"],
    );
    check("capacity: 100\n", "\n", 2, &["capacity", "missing"]);
    check(
        "PROPORTIONAL_SHARE",
        "PROPORTIONAL",
        7,
        &["PROPORTIONAL_SHARE or FAIR_SHARE"],
    );
    check("kind: 3", "kind: 4", 13, &["0 to 3"]);
    check(
        "lease_length: 60",
        "lease_length: 10",
        8,
        &["shorter than the refresh interval"],
    );
    check(
        "lease_length: 60",
        "lease_length: 60s",
        8,
        &["whole seconds"],
    );
    check(
        "    lease_length: 60\n",
        "",
        7,
        &["lease_length", "missing"],
    );
    check(
        "refresh_interval: 15",
        "refresh_interval: 0",
        9,
        &["refresh_interval", "from 1"],
    );
    check("'*'", "'?'", 0, &["has no template \"*\""]);
    check("decay_factor", "decay", 14, &["there is no such parameter"]);
    check(
        "  description: a disk",
        "  capacity: 9",
        5,
        &["stands twice"],
    );
    check(
        "  description: a disk",
        "  description: [a]",
        5,
        &["in quotes"],
    );
    check(
        "resources:\n",
        "resources:\n- 7\n",
        2,
        &["7 is not a table"],
    );
    check(
        "resources:\n",
        "more: 1\nresources:\n",
        1,
        &["leave it out"],
    );
}

#[test]
fn a_text_without_rules_is_reported_once() {
    let check = |text: &str, words: &[&str]| {
        let problems = doorman(text).expect_err(text);
        assert_eq!(problems.len(), 1, "{problems}");
        let told = problems.to_string();
        for word in words {
            assert!(told.contains(word), "no {word:?} in {told}");
        }
    };
    let proto = "# rules\nresources {\n  identifier_glob: \"*\"\n  capacity: 100\n}\n";
    check(proto, &["resources.yaml:2", "text protobuf", "YAML"]);
    check("", &["null stands where the rules belong"]);
    check("resources: 7", &["7 is not a list"]);
    check("{}", &["there are no resources"]);
    check("resources: [", &["neither YAML nor JSON"]);
    check("a: b: c", &["neither YAML nor JSON", ":1:"]);
    check("--- 1\n--- 2\n", &["neither YAML nor JSON"]);
    check("a: &a [*a, *a]\n", &["neither YAML nor JSON"]);
    check(&"[".repeat(10_000), &["neither YAML nor JSON"]);
}

#[test]
fn every_mistake_in_doormans_format_is_reported_at_once() {
    let text = YAML
        .replace("capacity: 100", "capacity: -1")
        .replace("kind: 3", "kind: X")
        .replace("  description", "  descriptoin");
    let problems = doorman(&text).expect_err("three mistakes");
    assert_eq!(problems.len(), 3, "{problems}");
}
