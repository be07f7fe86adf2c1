//! Callers, rate limits and costs in the config: accepted values and reported mistakes.

use tidegate::call::LimitMode;
use tidegate::callers::rate_limit::Allowance;
use tidegate::callers::settings::StaticCaller;
use tidegate::config::{self, Config, Severity};
use tidegate_callers::{IdentityField, Label};
use tidegate_limits::Weight;
use tidegate_limits::scheduler::{BucketOrder, OnExcess};

use super::LEAST;

/// The added text begins below this.
const ABOVE: &str = "max_wait = \"50s\"\n";

fn read(more: &str) -> Result<config::LoadedConfig, config::Problems> {
    let text = format!("{LEAST}{ABOVE}{more}\n");
    config::read(&text, "config.toml", std::iter::empty())
}

fn good(more: &str) -> Config {
    read(more)
        .unwrap_or_else(|problems| panic!("{more}\n{problems}"))
        .config
}

/// A config with exactly one error, at this line of the added text, with this key and these
/// words.
#[track_caller]
fn wrong(more: &str, line: usize, key: &str, words: &[&str]) {
    let problems = read(more).expect_err(more);
    let errors: Vec<_> = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .collect();
    assert_eq!(errors.len(), 1, "{more}\n{problems}");
    let told = problems.plain(errors[0]);
    let above = LEAST.lines().count() + 1;
    let place = format!("config.toml:{}:", above + line);
    for word in [place.as_str(), &format!(" {key}: ")].iter().chain(words) {
        assert!(told.contains(word), "{more}: no {word:?} in\n{told}");
    }
}

/// A config that is taken with exactly one warning that says these words.
#[track_caller]
fn doubted(more: &str, words: &[&str]) {
    let told = read(more).unwrap_or_else(|problems| panic!("{more}\n{problems}"));
    let told = told.warnings;
    assert_eq!(told.len(), 1, "{more}\n{told}");
    for word in words {
        assert!(told.to_string().contains(word), "no {word:?} in\n{told}");
    }
}

const WHOLE: &str = r#"
[callers]
identify = ["ip", "user_agent"]
ipv6_prefix = 56
auto_register = -1
auto_register_per_s = 7
state_file = "/var/lib/tidegate/callers.json"
[costs]
default = 0.5
unit_seconds = 0.25
settle = true
[costs.functions]
guest_list = 2
guest_start = 20.25
[profiles]
poller = { burst = 31, fill = 3.5 }
mine = { burst = 1, fill = 1e-3 }
[[bucket]]
name = "slow"
burst = 1_000
fill = 0.2
mode = "observe"
on_excess = "reject"
order = "fifo"
settle = false
max_wait = "none"
[[bucket]]
name = "polls"
profile = "poller"
[[bucket]]
name = "free"
profile = "unlimited"
[[caller]]
label = "nova's \"poller\""
match = [{ listener = "nova", user_agent = 'foo\*' }, { ip = "10.1.2.0/24" }]
groups = ["monitoring", "nova"]
rate_limit = "polls"
weight = 4
[[caller]]
label = "ann"
match = { user = "ann*", originator = "nova-compute" }
"#;

#[test]
fn everything_that_can_be_said_is_understood() {
    let settings = good(WHOLE).callers;
    assert_eq!(
        settings.table.identify,
        [IdentityField::Ip, IdentityField::UserAgent]
            .into_iter()
            .collect()
    );
    assert_eq!(settings.table.ipv6_prefix.bits(), 56);
    assert_eq!(settings.table.auto_register.rows(), 10_000);
    assert_eq!(settings.table.auto_register_per_second, 7);
    assert_eq!(settings.costs.default.tokens(), 0.5);
    assert_eq!(settings.costs.unit.get().as_millis(), 250);
    let costs: Vec<_> = settings
        .costs
        .functions
        .iter()
        .map(|(name, cost)| (&**name, cost.tokens()))
        .collect();
    assert_eq!(costs, [("guest_list", 2.0), ("guest_start", 20.25)]);
    let [slow, polls, free] = &settings.rate_limits[..] else {
        panic!("{settings:?}");
    };
    let size = |allowance| match allowance {
        Allowance::Bucket { burst, fill } => Some((burst.get(), fill.get())),
        Allowance::Exempt | Allowance::Paced { .. } => None,
    };
    assert_eq!(size(slow.rule.allowance), Some((1000.0, 0.2)));
    let handling = slow.rule.handling;
    assert_eq!(handling.mode, LimitMode::Observe);
    assert_eq!(handling.on_excess, OnExcess::Reject);
    assert_eq!(handling.order, BucketOrder::Fifo);
    assert_eq!(handling.settle, Some(false));
    assert_eq!(size(polls.rule.allowance), Some((31.0, 3.5)));
    assert_eq!(polls.rule.profile.as_deref(), Some("poller"));
    assert_eq!(size(free.rule.allowance), None);
    let StaticCaller {
        caller: poller,
        rate_limit,
    } = &settings.callers[0];
    assert_eq!(Ok(poller.label.clone()), Label::new("nova's \"poller\""));
    let written = poller.patterns[0].written(IdentityField::UserAgent);
    assert_eq!((poller.patterns.len(), &*written), (2, r"foo\*"));
    assert_eq!(poller.groups.len(), 2);
    assert_eq!(rate_limit.as_deref(), Some("polls"));
    assert_eq!(poller.weight, Weight::new(4));
    let names = settings.profiles.iter().map(|profile| &*profile.name);
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "unlimited",
            "interactive",
            "poller",
            "batch",
            "quarantine",
            "mine"
        ]
    );
}

#[test]
fn the_effective_config_reads_back_as_the_same() {
    for more in ["", WHOLE] {
        let config = good(more);
        let written = config::effective(&config);
        let again = config::read(&written, "effective", std::iter::empty());
        let again = again.unwrap_or_else(|problems| panic!("{written}\n{problems}"));
        assert_eq!(again.config, config, "{written}");
    }
}

#[test]
fn invalid_numbers_are_reported_with_a_valid_range() {
    let range = "give 0.000001 to 1000000000";
    for given in ["0", "-1", "nan", "inf", "-inf", "1e10", "1e-7"] {
        let limit = format!("[[bucket]]\nname = \"a\"\nfill = 1\nburst = {given}");
        wrong(&limit, 4, "bucket[0].burst", &["is out of range", range]);
        let limit = format!("[[bucket]]\nname = \"a\"\nburst = 1\nfill = {given}");
        wrong(&limit, 4, "bucket[0].fill", &["is out of range", range]);
    }
    for given in ["true", "\"7\"", "[1]", "2026-01-01"] {
        let limit = format!("[[bucket]]\nname = \"a\"\nfill = 1\nburst = {given}");
        let words = ["is not a number", "without quotes"];
        wrong(&limit, 4, "bucket[0].burst", &words);
    }
    for given in ["-1", "1000001", "nan"] {
        let words = ["is out of range", "give 0 to 1000000"];
        wrong(
            &format!("[costs]\ndefault = {given}"),
            2,
            "costs.default",
            &words,
        );
        let one = format!("[costs.functions]\nguest_list = {given}");
        wrong(&one, 2, "costs.functions.guest_list", &words);
    }
    for given in ["0", "-0.1", "3601"] {
        let words = ["is out of range", "give 0.001 to 3600"];
        let unit = format!("[costs]\nunit_seconds = {given}");
        wrong(&unit, 2, "costs.unit_seconds", &words);
    }
    let words = ["-2 is out of range", "give -1 to 10000"];
    wrong(
        "[callers]\nauto_register = -2",
        2,
        "callers.auto_register",
        &words,
    );
    let words = ["1001 is out of range", "give 0 to 1000"];
    let rate = "[callers]\nauto_register_per_s = 1001";
    wrong(rate, 2, "callers.auto_register_per_s", &words);
    let words = ["129 is out of range", "give 1 to 128"];
    let prefix = "[callers]\nipv6_prefix = 129";
    wrong(prefix, 2, "callers.ipv6_prefix", &words);
    let caller = "[[caller]]\nlabel = \"a\"\nmatch = { ip = \"10.0.0.1\" }\nweight = 0";
    wrong(
        caller,
        4,
        "caller[0].weight",
        &["0 is out of range", "give 1 to 1000"],
    );
}

#[test]
fn a_bucket_has_one_size_and_a_name_of_its_own() {
    let key = "bucket[0]";
    let check = |lines: &str, line, key, words: &[&str]| {
        wrong(&format!("[[bucket]]\n{lines}"), line, key, words);
    };
    check(
        "name = \"a\"\nburst = 1",
        1,
        key,
        &["has no fill", "profile ="],
    );
    check(
        "name = \"a\"\nfill = 1",
        1,
        key,
        &["has no burst", "profile ="],
    );
    check(
        "burst = 1\nfill = 1",
        1,
        "bucket[0].name",
        &["has no name", "name = \"poller\""],
    );
    check(
        "name = \"a\"\nburst = 1\nprofile = \"poller\"",
        4,
        "bucket[0].profile",
        &["given twice", "leave profile out"],
    );
    check(
        "name = \"a\"\nprofile = \"pollers\"",
        3,
        "bucket[0].profile",
        &["no profile \"pollers\"", "did you mean \"poller\"?"],
    );
    check(
        "name = \"r7\"\nburst = 1\nfill = 1",
        2,
        "bucket[0].name",
        &["reads as the id"],
    );
    check(
        "name = \"a\"\nprofile = \"poller\"\n[[bucket]]\nname = \"a\"\nprofile = \"batch\"",
        5,
        "bucket[1].name",
        &["the name of another", "[[bucket]]"],
    );
    for (line, key, near) in [
        ("mode = \"enforced\"", "bucket[0].mode", "\"enforce\""),
        (
            "on_excess = \"rejects\"",
            "bucket[0].on_excess",
            "\"reject\"",
        ),
        ("order = \"fiffo\"", "bucket[0].order", "\"fifo\""),
        ("max_wait = \"nonee\"", "bucket[0].max_wait", "\"none\""),
        ("settle = 1", "bucket[0].settle", "true or false"),
        ("burst_size = 1", "bucket[0].burst_size", "burst"),
    ] {
        check(
            &format!("name = \"a\"\nprofile = \"poller\"\n{line}"),
            4,
            key,
            &[near],
        );
    }
}

#[test]
fn a_section_of_an_earlier_version_is_refused_with_the_one_to_write() {
    for (lines, words) in [
        (
            "name = \"a\"\nburst = 3\nfill = 1\ndeadline = \"none\"",
            [
                "write [[bucket]]",
                "burst, max_wait (for deadline), fill, name",
            ],
        ),
        (
            "name = \"a\"\nkind = \"paced\"\npace = \"10,1.1\"",
            ["write [[pace]]", "name, rate (for pace)"],
        ),
        (
            "name = \"a\"\nkind = \"quota\"\napplies_to = \"user\"\non_excess = \"wait\"\ntotal = 3",
            [
                "write [[quota]]",
                "applies_to, name, on_excess = \"delay\" (for \"wait\"), total",
            ],
        ),
    ] {
        let words = ["each kind has a section of its own", words[0], words[1]];
        wrong(
            &format!("[[rate_limit]]\n{lines}"),
            1,
            "rate_limit[0]",
            &words,
        );
    }
    wrong(
        "[quota]\nengine = \"memory\"",
        1,
        "quota",
        &["another name", "write [quota_store]"],
    );
}

#[test]
fn every_caller_has_a_pattern_of_its_own() {
    let check = |lines: &str, line, key, words: &[&str]| {
        wrong(&format!("[[caller]]\n{lines}"), line, key, words);
    };
    check(
        "match = { ip = \"10.0.0.1\" }",
        1,
        "caller[0].label",
        &["has no label"],
    );
    check("label = \"a\"", 1, "caller[0]", &["has no match"]);
    check(
        "label = \"\"\nmatch = { ip = \"10.0.0.1\" }",
        2,
        "caller[0].label",
        &["empty"],
    );
    let key = "caller[0].match";
    check(
        "label = \"a\"\nmatch = \"b\"",
        3,
        key,
        &["neither a table nor a list"],
    );
    check("label = \"a\"\nmatch = []", 3, key, &["the list is empty"]);
    check("label = \"a\"\nmatch = {}", 3, key, &["at least one field"]);
    check(
        "label = \"a\"\nmatch = { user = \"*\" }",
        3,
        key,
        &["at least one field"],
    );
    check(
        "label = \"a\"\nmatch = { ip = \"10.0.0.1/8\" }",
        3,
        "caller[0].match.ip",
        &["10.0.0.0/8"],
    );
    check(
        "label = \"a\"\nmatch = { ip = 7 }",
        3,
        "caller[0].match.ip",
        &["not a string"],
    );
    check(
        "label = \"a\"\nmatch = { useragent = \"x\" }",
        3,
        "caller[0].match.useragent",
        &["did you mean \"user_agent\"?"],
    );
    check(
        "label = \"a\"\nmatch = { host_ip = \"10.0.0.1\" }",
        3,
        "caller[0].match.host_ip",
        &["this is ip here"],
    );
    check(
        "label = \"a\"\nmatch = { ip = \"10.0.0.1\" }\nrate_limit = \"slow\"",
        4,
        "caller[0].rate_limit",
        &["no [[bucket]] or [[pace]] \"slow\"", "[[bucket]]"],
    );
    check(
        "label = \"a\"\nmatch = { ip = \"10.0.0.1\" }\ngroups = [\"a b\"]",
        4,
        "caller[0].groups",
        &["letters"],
    );
    check(
        "label = \"a\"\nmatch = { ip = \"10.0.0.1\" }\n\
         [[caller]]\nlabel = \"b\"\nmatch = { ip = \"10.0.0.1\" }",
        6,
        "caller[1].match",
        &["\"a\" and \"b\" have the same pattern"],
    );
    check(
        "label = \"a\"\nmatch = { ip = \"10.0.0.1\" }\n\
         [[caller]]\nlabel = \"a\"\nmatch = { ip = \"10.0.0.2\" }",
        5,
        "caller[1].label",
        &["stands on two callers"],
    );
    check(
        "label = \"a\"\nmatch = [{ ip = \"10.0.0.1\" }, { ip = \"10.0.0.1\" }]",
        3,
        key,
        &["twice"],
    );
}

#[test]
fn other_mistakes_are_reported_with_their_place() {
    wrong(
        "[callers]\nidentify = [\"ip\", \"agent\"]",
        2,
        "callers.identify",
        &["\"agent\" is not one of the words"],
    );
    wrong(
        "[callers]\nidentify = \"ip\"",
        2,
        "callers.identify",
        &["not an array"],
    );
    wrong(
        "[callers]\nstate_file = \"callers.json\"",
        2,
        "callers.state_file",
        &["not the whole path"],
    );
    wrong(
        "[costs]\nfunctions = 7",
        2,
        "costs.functions",
        &["is not a table"],
    );
    for (profile, word) in [
        ("7", "is not a table"),
        ("{ burst = 1 }", "fill is not given"),
        ("{ fill = 1 }", "burst is not given"),
        ("{ exempt = true, fill = 1 }", "has no bucket"),
        ("{ exempt = false }", "burst is not given"),
        ("{ rate = 1 }", "no \"rate\" in a profile"),
        ("{ burst = 0, fill = 1 }", "out of range"),
    ] {
        for name in ["poller", "mine"] {
            let key = format!("profiles.{name}");
            wrong(&format!("[profiles]\n{name} = {profile}"), 2, &key, &[word]);
        }
    }
    wrong(
        "[profiles]\n\"a b\" = { exempt = true }",
        2,
        "profiles.a b",
        &["can't be a name"],
    );
}

#[test]
fn a_probable_slip_is_a_warning() {
    doubted(
        "[costs.functions]\nguest_lists = 2",
        &["no function is known", "did you mean \"guest_list\"?"],
    );
    doubted(
        "[[caller]]\nlabel = \"a\"\nmatch = { listener = \"nowa\" }",
        &["no listener is called \"nowa\"", "did you mean \"nova\"?"],
    );
    let slow = "[costs.functions]\nguest_capture = 600\n\
                [[bucket]]\nname = \"slow\"\nburst = 30\nfill = ";
    doubted(
        &format!("{slow}0.1"),
        &["of 600 tokens, closes it for 6000 s", "raise fill"],
    );
    let example = read(&format!(
        "{slow}3\n[[bucket]]\nname = \"least\"\nprofile = \"quarantine\""
    ));
    assert!(example.expect("it is right").warnings.is_empty());
    let paced = "[[pace]]\nname = \"all\"\nrate = 5\napplies_to = \"total\"";
    doubted(paced, &["do not go evenly", "postpone = \"in_turn\""]);
    let evenly = read(&format!("{paced}\n[queue]\npostpone = \"in_turn\""));
    assert!(evenly.expect("it is right").warnings.is_empty());
}

#[test]
fn mistakes_in_several_sections_are_reported_together() {
    let problems = read(
        "[callers]\nauto_register = \"many\"\n[costs]\ndefault = nan\n\
         [[bucket]]\nname = \"a\"\nburst = -1\nfill = \"x\"\nmode = 7\n\
         [[caller]]\nlabel = \"\"\nmatch = { ip = \"x\", user = 7 }\nrate_limit = \"b\"\n\
         weight = 1.5\n[profiles]\npoller = 1",
    )
    .expect_err("much is wrong");
    let keys: Vec<_> = problems
        .iter()
        .map(|problem| problem.key.as_str())
        .collect();
    assert_eq!(
        keys,
        [
            "callers.auto_register",
            "costs.default",
            "bucket[0].burst",
            "bucket[0].fill",
            "bucket[0].mode",
            "caller[0].label",
            "caller[0].match.user",
            "caller[0].rate_limit",
            "caller[0].weight",
            "profiles.poller"
        ],
        "{problems}"
    );
}
