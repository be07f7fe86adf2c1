//! Quotas in the config: accepted values and reported mistakes.

mod stores;

use std::time::Duration;

use tidegate::callers::settings::{Quota, QuotaBy};
use tidegate::config::{self, Config, Severity};
use tidegate::tools;
use tidegate_limits::quota::{DrawMode, OutagePolicy};
use tidegate_limits::scheduler::OnExcess;
use tidegate_quota::{Engine, QuotaLimit, QuotaSettings};

use super::{read, with};
use crate::certificates::Files;

/// A store, to which lines can be added, and the least that is a quota.
const ETCD: &str = "[quota_store]
engine = \"etcd\"
servers = [\"http://10.0.0.1:2379\"]
expected_sidecars = 4
";
const LEAST: &str = "[[quota]]
name = \"per_user\"
applies_to = \"user\"
total = 1000
refresh_window = \"60s\"
";
const MEMORY: &str = "[quota_store]\n";

#[track_caller]
fn good(more: &str) -> Config {
    let read = read(&with(more));
    read.unwrap_or_else(|problems| panic!("{more}\n{problems}"))
        .config
}

#[track_caller]
fn quotas(more: &str) -> QuotaSettings {
    good(more).quotas.expect("there is a quota")
}

#[track_caller]
fn limit(more: &str) -> QuotaLimit {
    let mut quotas = quotas(more);
    assert_eq!(quotas.limits.len(), 1);
    quotas.limits.remove(0)
}

/// A config with exactly one error, which names this key, the place of the last line that holds
/// `line`, and says these words.
#[track_caller]
fn wrong(more: &str, line: &str, key: &str, words: &[&str]) {
    told(more, Severity::Error, line, key, words);
}

/// A config that is taken with exactly one warning that says all of that.
#[track_caller]
fn doubted(more: &str, line: &str, key: &str, words: &[&str]) {
    good(more);
    told(more, Severity::Warning, line, key, words);
}

#[track_caller]
fn told(more: &str, severity: Severity, line: &str, key: &str, words: &[&str]) {
    let text = with(more);
    let problems = match read(&text) {
        Ok(checked) => checked.warnings,
        Err(problems) => problems,
    };
    let list: Vec<_> = problems
        .iter()
        .filter(|it| it.severity == severity)
        .collect();
    assert_eq!(list.len(), 1, "{more}\n{problems}");
    let told = problems.plain(list[0]);
    let number = text.lines().collect::<Vec<_>>();
    let number = number.iter().rposition(|it| it.contains(line));
    let place = format!(
        "config.toml:{}:",
        number.expect("the line stands there") + 1
    );
    let subject = format!(" {key}: ");
    for word in [place.as_str(), &subject].iter().chain(words) {
        assert!(told.contains(word), "{more}: no {word:?} in\n{told}");
    }
}

/// The least quota, with lines added to it.
fn in_memory(lines: &str) -> String {
    format!("{MEMORY}{LEAST}{lines}\n")
}

/// The least quota, with a line instead of one that begins the same.
fn instead(line: &str) -> String {
    let key = line.split(' ').next().expect("a key");
    let lines = LEAST.lines().map(|it| match it.starts_with(key) {
        true => line,
        false => it,
    });
    format!("{MEMORY}{}\n", lines.collect::<Vec<_>>().join("\n"))
}

#[test]
fn the_least_that_is_a_quota_gets_the_documented_defaults() {
    let quotas = quotas(&in_memory(""));
    assert_eq!(quotas.engine, Engine::Memory);
    assert_eq!((quotas.keys_max, quotas.expected_sidecars), (10_000, 1));
    let limit = &quotas.limits[0];
    assert_eq!(&*limit.name, "rate_limit:per_user");
    assert_eq!(limit.on_excess, OnExcess::Delay);
    assert_eq!(limit.namespace, None);
    assert!(limit.totals.is_empty());
    let usual = tidegate_limits::quota::RuleSettings::new(1000, Duration::from_secs(60));
    assert_eq!(*limit.rule.settings(), usual);
    let config = good(&in_memory(""));
    let known = Quota {
        name: "rate_limit:per_user".into(),
        by: QuotaBy::User,
    };
    assert_eq!(config.callers.quotas, [known]);
    let reserved: Vec<&str> = config.callers.reserved.iter().map(|it| &**it).collect();
    assert_eq!(reserved, ["per_user"]);
    assert!(config.callers.rate_limits.is_empty() && config.admit.paced.is_empty());
    assert_eq!(good("").quotas, None);
}

#[test]
fn everything_that_can_be_said_of_a_quota_is_understood() {
    let limit = limit(&format!(
        "{ETCD}[[quota]]
        name = \"hourly\"
        applies_to = \"caller\"
        total = 50_000
        base = 7
        refresh_window = \"1h\"
        totals = {{ alice = 60000, \"bob @ home\" = 200 }}
        namespace = \"by-hour\"
        prefetch = 0
        ask = 100
        relinquish_every = \"1s\"
        relinquish_above = 3
        draw_timeout = \"1500ms\"
        mode = \"optimistic\"
        on_excess = \"reject\"
        when_store_away = \"safe\"
        safe = 10"
    ));
    let settings = *limit.rule.settings();
    assert_eq!((settings.total, settings.base), (50_000, Some(7)));
    assert_eq!(settings.length, Duration::from_secs(3600));
    assert_eq!(settings.nodes_expected, 4);
    assert_eq!((settings.prefetch_percent, settings.ask_percent), (0, 100));
    assert_eq!(settings.relinquish_every, Duration::from_secs(1));
    assert_eq!(settings.relinquish_above, 3);
    assert_eq!(settings.draw_timeout, Duration::from_millis(1500));
    assert_eq!(settings.mode, DrawMode::Optimistic);
    assert_eq!(settings.away, OutagePolicy::Safe { percent: 10 });
    assert_eq!(limit.on_excess, OnExcess::Reject);
    assert_eq!(limit.namespace.as_deref(), Some("by-hour"));
    let totals = limit.totals.iter();
    let totals: Vec<_> = totals
        .map(|(key, rule)| (&**key, rule.settings().total))
        .collect();
    assert_eq!(totals, [("alice", 60_000), ("bob @ home", 200)]);
    for rule in limit.totals.values() {
        let mut own = *rule.settings();
        own.total = settings.total;
        assert_eq!(own, settings, "only the total is its own");
    }
}

#[test]
fn words_for_a_missing_store_and_a_spent_total_are_read() {
    let away = |line: &str| limit(&in_memory(line)).rule.settings().away;
    assert_eq!(away("when_store_away = \"deny\""), OutagePolicy::Deny);
    assert_eq!(away("when_store_away = \"allow\""), OutagePolicy::Allow);
    assert_eq!(away("safe = 100"), OutagePolicy::Safe { percent: 100 });
    let excess = |line: &str| limit(&in_memory(line)).on_excess;
    assert_eq!(excess("on_excess = \"delay\""), OnExcess::Delay);
    assert_eq!(excess("on_excess = \"reject\""), OnExcess::Reject);
    let enforce = limit(&in_memory("mode = \"enforce\""));
    assert_eq!(enforce.rule.settings().mode, DrawMode::Drawn);
}

#[test]
fn each_keying_has_a_namespace_of_its_own_unless_another_is_given() {
    let check = |applies_to: &str, more: &str, by: QuotaBy, namespace: Option<&str>| {
        let line = format!("applies_to = \"{applies_to}\"\n{more}");
        let config = good(&instead(&line));
        assert_eq!(config.callers.quotas[0].by, by);
        let limit = &config.quotas.expect("there is one").limits[0];
        assert_eq!(limit.namespace.as_deref(), namespace, "{line}");
    };
    check("user", "", QuotaBy::User, None);
    check("user", "namespace = \"u\"", QuotaBy::User, Some("u"));
    check("caller", "", QuotaBy::Caller, Some("caller"));
    check("caller", "namespace = \"\"", QuotaBy::Caller, None);
    check("total", "", QuotaBy::Total, Some("total"));
    check("function", "", QuotaBy::Function(None), Some("function"));
    let one = QuotaBy::Function(Some("guest_list".into()));
    check(
        "function",
        "function = \"guest_list\"",
        one,
        Some("function"),
    );
}

#[test]
fn a_quota_and_where_it_is_kept_belong_together() {
    wrong(
        LEAST,
        "[[quota]]",
        "quota[0]",
        &["store of the quotas is missing", "[quota_store]"],
    );
    doubted(
        "[quota_store]",
        "[quota_store]",
        "quota_store",
        &["there is no quota"],
    );
    let store = |lines: &str| format!("[quota_store]\n{lines}\n{LEAST}");
    for (engine, server) in [
        ("zookeeper", "10.0.0.1:2181"),
        ("etcd", "http://10.0.0.1:2379"),
        ("redis", "redis://10.0.0.1:6379"),
    ] {
        let named = format!("engine = \"{engine}\"\nservers = [\"{server}\"]");
        wrong(
            &store(&named),
            "[quota_store]",
            "quota_store",
            &["number of sidecars", "expected_sidecars"],
        );
        let counted = format!("engine = \"{engine}\"\nexpected_sidecars = 3");
        wrong(
            &store(&counted),
            "[quota_store]",
            "quota_store",
            &["address of", "missing", server],
        );
        let user = format!("{named}\nexpected_sidecars = 3\nuser = \"u\"");
        wrong(
            &store(&user),
            "user = ",
            "quota_store.user",
            &["without a password"],
        );
    }
    wrong(
        &store("engine = \"zookeper\""),
        "engine",
        "quota_store.engine",
        &["\"zookeeper\""],
    );
    wrong(
        &store("engin = \"etcd\""),
        "engin",
        "quota_store.engin",
        &["\"engine\""],
    );
}

#[test]
fn an_impossible_quota_is_reported_with_a_cure() {
    let check = |text: &str, line: &str, key: &str, words: &[&str]| {
        wrong(text, line, &format!("quota[0].{key}"), words);
    };
    let without = |key: &str| {
        let lines = LEAST.lines().filter(|line| !line.starts_with(key));
        format!("{MEMORY}{}\n", lines.collect::<Vec<_>>().join("\n"))
    };
    let whole = |key: &str, words: &[&str]| {
        wrong(
            &without(key),
            "[[quota]]",
            &format!("quota[0].{key}"),
            words,
        );
    };
    whole("total", &["no total", "total = 10000"]);
    whole("refresh_window", &["no window", "refresh_window = \"60s\""]);
    whole("applies_to", &["who or what", "\"user\""]);
    let name = "quota[0].name";
    wrong(&without("name"), "[[quota]]", name, &["no name"]);

    check(
        &instead("total = 0"),
        "total",
        "total",
        &["out of range", "1 to 1000000000000000"],
    );
    check(
        &instead("total = 1.5"),
        "total",
        "total",
        &["not an integer"],
    );
    check(
        &instead("refresh_window = \"0s\""),
        "refresh",
        "refresh_window",
        &["100ms to 8784h"],
    );
    check(
        &instead("refresh_window = 60"),
        "refresh",
        "refresh_window",
        &["60 has no unit"],
    );
    check(
        &in_memory("base = 1001"),
        "base",
        "base",
        &["1001", "total of 1000", "at most 1000"],
    );
    check(&in_memory("base = 0"), "base", "base", &["out of range"]);
    check(
        &in_memory("prefetch = 101"),
        "prefetch",
        "prefetch",
        &["0 to 100"],
    );
    check(&in_memory("ask = 0"), "ask", "ask", &["1 to 100"]);
    check(&in_memory("safe = 0"), "safe", "safe", &["1 to 100"]);
    check(
        &in_memory("draw_timeout = \"2m\""),
        "draw",
        "draw_timeout",
        &["1ms to 1m"],
    );
    check(
        &in_memory("namespace = \"a:b\""),
        "namespace",
        "namespace",
        &["can't be a namespace"],
    );
    check(
        &in_memory("namespace = \".a\""),
        "namespace",
        "namespace",
        &["can't be a namespace"],
    );
    let away = "when_store_away = \"saef\"";
    check(&in_memory(away), away, "when_store_away", &["\"safe\""]);
}

#[test]
fn an_option_of_another_section_is_reported_with_its_section() {
    let check = |line: &str, words: &[&str]| {
        let key = line.split(' ').next().expect("a key");
        let key = format!("quota[0].{key}");
        wrong(&in_memory(line), line, &key, words);
    };
    check("on_excess = \"wait\"", &["\"delay\""]);
    for line in ["burst = 3", "fill = 3", "profile = \"poller\""] {
        check(line, &["no option", "belongs in [[bucket]]"]);
    }
    for line in ["rate = 3", "ratio = 2"] {
        check(line, &["no option", "belongs in [[pace]]"]);
    }
    check("order = \"fifo\"", &["no option \"order\""]);
    check("deadline = \"none\"", &["no option \"deadline\""]);
    check(
        "function = \"guest_list\"",
        &["does not apply alone", "\"function\""],
    );
    let callers = instead("applies_to = \"callers\"");
    wrong(
        &callers,
        "applies_to",
        "quota[0].applies_to",
        &["\"caller\""],
    );
    let other = |section: &str, line: &str, words: &[&str]| {
        let key = line.split(' ').next().expect("a key");
        let (header, size) = match section {
            "bucket" => ("[[bucket]]", "burst = 3\nfill = 1"),
            _ => ("[[pace]]", "rate = 3"),
        };
        let text = format!("{header}\nname = \"x\"\n{size}\n{line}");
        wrong(&text, line, &format!("{section}[0].{key}"), words);
    };
    for section in ["bucket", "pace"] {
        for line in [
            "base = 3",
            "refresh_window = \"60s\"",
            "totals = { alice = 3 }",
            "namespace = \"x\"",
            "when_store_away = \"safe\"",
        ] {
            other(section, line, &["no option", "belongs in [[quota]]"]);
        }
        other(section, "mode = \"optimistic\"", &["\"enforce\""]);
        other(section, "on_excess = \"wait\"", &["\"delay\""]);
    }
    other("pace", "applies_to = \"user\"", &["\"callers\""]);
    other("bucket", "applies_to = \"user\"", &["belongs in"]);
}

#[test]
fn totals_of_single_keys_are_checked_as_the_others() {
    let check = |text: &str, key: &str, words: &[&str]| wrong(text, "totals", key, words);
    let key = "quota[0].totals";
    check(
        &in_memory("totals = [1]"),
        key,
        &["an array is not a table"],
    );
    check(
        &in_memory("totals = { alice = \"3\" }"),
        &format!("{key}.alice"),
        &["not an integer"],
    );
    check(
        &in_memory("totals = { alice = -1 }"),
        &format!("{key}.alice"),
        &["out of range"],
    );
    // Blocks its key, with any base.
    good(&in_memory("base = 10\ntotals = { alice = 0 }"));
    let long = "x".repeat(257);
    let told = "a key of 257 bytes";
    let text = in_memory(&format!("totals = {{ {long} = 3 }}"));
    let problems = read(&with(&text)).expect_err("a long key").to_string();
    assert!(
        problems.contains(told) && problems.contains("at most 256"),
        "{problems}"
    );
    let base = in_memory("base = 10\ntotals = { alice = 9, bob = 10 }");
    check(
        &base,
        &format!("{key}.alice"),
        &["base = 10", "give 10 or more"],
    );
    let of_all = format!(
        "{}totals = {{ alice = 9 }}\n",
        instead("applies_to = \"total\"")
    );
    check(&of_all, key, &["one quota"]);
    let function = "applies_to = \"function\"\nfunction = \"guest_list\"";
    let of_one = format!("{}totals = {{ guest_list = 9 }}\n", instead(function));
    check(&of_one, key, &["one function"]);
    let functions = format!(
        "{}totals = {{ guest_lst = 9 }}\n",
        instead("applies_to = \"function\"")
    );
    wrong(
        &functions,
        "totals",
        &format!("{key}.guest_lst"),
        &["\"guest_list\""],
    );
    // Calls without a user share one quota, which may be smaller.
    assert_eq!(limit(&in_memory("totals = { \"\" = 9 }")).totals.len(), 1);
}

#[test]
fn the_most_expensive_call_must_be_able_to_pass() {
    let costs = "[costs]\ndefault = 2\nfunctions = { guest_deploy = 300, guest_list = 600 }\n";
    let total = |total: u64, store: &str| {
        format!(
            "{store}{}{costs}",
            LEAST.replace("total = 1000", &format!("total = {total}"))
        )
    };
    let key = "quota[0].total";
    let told = ["600 tokens never passes", "[costs]"];
    wrong(&total(599, MEMORY), "total = ", key, &told);
    good(&total(600, MEMORY));
    // Half of it is owned, an eighth by each of four sidecars: 5 of 8 can be spent by one.
    wrong(
        &total(952, ETCD),
        "total = ",
        key,
        &["each of 4 sidecars owns 119", "595 at most"],
    );
    good(&total(960, ETCD));
    let function = |function: &str| {
        let lines = format!("applies_to = \"function\"\nfunction = \"{function}\"");
        total(300, MEMORY).replace("applies_to = \"user\"", &lines)
    };
    good(&function("guest_deploy"));
    wrong(&function("guest_list"), "total = ", key, &told);
    let own = "totals = { guest_list = 600, guest_deploy = 299 }\n[costs]";
    let own = total(600, MEMORY)
        .replace("\"user\"", "\"function\"")
        .replace("[costs]", own);
    let key = "quota[0].totals.guest_deploy";
    wrong(&own, "totals", key, &["a call of 300 tokens never passes"]);
    // An exempt function is never charged.
    let exempt = with("exempt = [\"guest_list\"]") + &total(300, MEMORY);
    assert!(read(&exempt).is_ok());
    // Unreadable costs are reported, without any assumption about them.
    let unread = total(1, MEMORY).replace("guest_list = 600", "guest_list = \"x\"");
    wrong(
        &unread,
        "functions = ",
        "costs.functions.guest_list",
        &["not a number"],
    );
}

#[test]
fn a_safe_share_of_nothing_and_parts_of_tokens_are_doubted() {
    let few = format!("{ETCD}{}", LEAST.replace("total = 1000", "total = 7"));
    let words = [
        "nothing passes while the store is unavailable",
        "4 sidecars",
    ];
    doubted(&few, "total = ", "quota[0].total", &words);
    good(&format!("{few}when_store_away = \"deny\""));
    let away = in_memory("when_store_away = \"deny\"\nsafe = 20");
    doubted(&away, "safe = ", "quota[0].safe", &["no effect"]);
    let half = in_memory("[costs]\ndefault = 0.5");
    doubted(
        &half,
        "default",
        "costs.default",
        &["count 1, not 0.5", "whole numbers"],
    );
    let part = in_memory("[costs]\nfunctions = { guest_list = 2.25 }");
    let words = ["\"guest_list\"", "count 3, not 2.25"];
    doubted(&part, "functions", "costs.functions", &words);
    good("[costs]\ndefault = 0.5");
}

#[test]
fn two_quotas_never_share_a_key() {
    let second = LEAST.replace("per_user", "hourly");
    let two = |first: &str, more: &str| format!("{MEMORY}{LEAST}{first}\n{second}{more}\n");
    let key = "quota[1]";
    let words = ["keys are those of \"per_user\"", "namespace = \"hourly\""];
    wrong(&two("", ""), "[[quota]]", key, &words);
    good(&two("", "namespace = \"hourly\""));
    let same = two("namespace = \"a\"", "namespace = \"a\"");
    wrong(&same, "namespace", &format!("{key}.namespace"), &words);
    let caller = two("", "namespace = \"caller\"").replace(
        "name = \"per_user\"\napplies_to = \"user\"",
        "name = \"per_user\"\napplies_to = \"caller\"",
    );
    wrong(
        &caller,
        "namespace",
        &format!("{key}.namespace"),
        &words[..1],
    );
}

#[test]
fn there_are_eight_quotas_at_most() {
    let many = |count: usize| {
        let limits = (0..count).map(|n| {
            LEAST.replace("per_user", &format!("q{n}")) + &format!("namespace = \"n{n}\"\n")
        });
        format!("{MEMORY}{}", limits.collect::<String>())
    };
    assert_eq!(quotas(&many(8)).limits.len(), 8);
    let problems = read(&with(&many(9))).expect_err("nine").to_string();
    for word in ["quota: there are 9 of them", "at most 8"] {
        assert!(problems.contains(word), "{problems}");
    }
}

#[test]
fn a_quota_is_neither_a_callers_nor_leased() {
    let caller =
        in_memory("[[caller]]\nlabel = \"x\"\nmatch = { user = \"x\" }\nrate_limit = \"per_user\"");
    let words = ["not for callers", "applies_to says there"];
    wrong(&caller, "rate_limit = ", "caller[0].rate_limit", &words);
    for given in ["per_user", "rate_limit:per_user"] {
        let shared = in_memory(&format!(
            "[coordinate]\nservers = [\"a:1\"]\nexpected_sidecars = 2\n[[coordinate.limit]]\n\
             limit = \"{given}\"\nresource = \"r\"\nsafe = 1"
        ));
        let words = ["is a quota", "share it already"];
        wrong(&shared, "limit = ", "coordinate.limit[0].limit", &words);
    }
    let named = format!("{MEMORY}[[bucket]]\nname = \"per_user\"\nburst = 1\nfill = 1\n{LEAST}");
    let words = ["\"per_user\" is the name of another"];
    wrong(&named, "name = ", "quota[0].name", &words);
}

#[test]
fn the_environment_sets_options_of_quotas() {
    let text = with(&format!(
        "[quota_store]\nengine = \"etcd\"\nservers = [\"http://a:1\"]\nuser = \"u\"\npassword = \"p\"\n\
         expected_sidecars = 2\n{LEAST}"
    ));
    let env = [
        // As from a Secret that was made from a file.
        ("TIDEGATE_QUOTA_STORE__PASSWORD", "s3cret\n"),
        ("TIDEGATE_QUOTA_STORE__SERVERS", "[\"http://b:2\"]"),
        ("TIDEGATE_QUOTA_STORE__EXPECTED_SIDECARS", "5"),
        ("TIDEGATE_QUOTA_STORE__KEYS_MAX", "77"),
        ("TIDEGATE_QUOTA__0__TOTAL", "2000"),
        ("TIDEGATE_QUOTA__0__TOTALS", "{ alice = 3000 }"),
        ("TIDEGATE_QUOTA__0__REFRESH_WINDOW", "10s"),
    ];
    let config = super::read_with(&text, &env).unwrap_or_else(|told| panic!("{told}"));
    let quotas = config.config.quotas.expect("there is a quota");
    let Engine::Etcd(etcd) = &quotas.engine else {
        panic!("it is etcd");
    };
    let known = etcd.store.credentials.get();
    let known = (*known).as_ref().expect("they are given");
    assert_eq!((&*known.user, &*known.password), ("u", "s3cret"));
    assert_eq!(etcd.store.endpoints[0].to_string(), "http://b:2");
    assert_eq!((quotas.expected_sidecars, quotas.keys_max), (5, 77));
    let settings = quotas.limits[0].rule.settings();
    assert_eq!((settings.total, settings.nodes_expected), (2000, 5));
    assert_eq!(settings.length, Duration::from_secs(10));
    assert_eq!(quotas.limits[0].totals["alice"].settings().total, 3000);
    let number = [("TIDEGATE_QUOTA_STORE__PASSWORD", "123456")];
    super::read_with(&text, &number).expect("digits are a password");
}

#[test]
fn effective_quotas_read_back_as_the_same() {
    let files = Files::new();
    let dir = files.dir.path().display();
    let again = |more: &str| {
        let config = good(more);
        let written = config::effective(&config);
        let back = read(&written).unwrap_or_else(|told| panic!("{written}\n{told}"));
        assert_eq!(back.config, config, "{written}");
    };
    again(&in_memory(""));
    again(&in_memory(
        "base = 3\ntotals = { \"a \\\"b\\\"\" = 5, \"\" = 6 }\nnamespace = \"x\"\nprefetch = 1\n\
         ask = 2\nrelinquish_every = \"1s\"\nrelinquish_above = 9\ndraw_timeout = \"1s\"\n\
         mode = \"optimistic\"\non_excess = \"reject\"\nwhen_store_away = \"allow\"",
    ));
    again(&instead(
        "applies_to = \"function\"\nfunction = \"guest_list\"",
    ));
    again(&instead("applies_to = \"function\""));
    again(&instead("applies_to = \"caller\"\nnamespace = \"\""));
    again(&instead(
        "applies_to = \"total\"\nwhen_store_away = \"deny\"",
    ));
    again(&format!(
        "{ETCD}root = \"/q/\"\nsession_timeout = \"3s\"\nkeys_max = 5\n{LEAST}"
    ));
    let https = ETCD.replace("http:", "https:");
    again(&format!(
        "{https}ca = \"{dir}/clients.crt\"\ncert = \"{dir}/tls.crt\"\nkey = \"{dir}/tls.key\"\n\
         {LEAST}"
    ));
    let other = |engine: &str, servers: &str| {
        let store = format!("[quota_store]\nengine = \"{engine}\"\nservers = {servers}\n");
        format!("{store}expected_sidecars = 2\n{LEAST}")
    };
    again(&other("zookeeper", "[\"a:1\", \"[::1]:2\"]\nroot = \"/x\""));
    again(&other(
        "redis",
        "[\"redis://[::1]:1/2\"]\nsession_timeout = \"1m\"",
    ));
}

#[test]
fn check_says_what_each_quota_allows_and_where_it_is_kept() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("config.toml");
    let report = |more: &str| {
        std::fs::write(&path, with(more)).expect("written");
        let report = tools::check::report(&path, false);
        assert!(report.good, "{report:?}");
        report.settings
    };
    let check = |more: &str, name: &str, value: &str| {
        let told = report(more);
        let mut lines = told.lines();
        let is_it = |line: &&str| line.trim_start().starts_with(name) && line.ends_with(value);
        assert!(
            lines.any(|line| is_it(&line)),
            "no {name} … {value} in\n{told}"
        );
    };
    let name = "rate_limit:per_user";
    check(
        &in_memory(""),
        name,
        "  1000 tokens for each user in each 60 s",
    );
    check(
        &in_memory(""),
        "kept",
        "  in memory, for this sidecar alone",
    );
    let more = in_memory("totals = { a = 5 }\nmode = \"optimistic\"\non_excess = \"reject\"");
    let told =
        "in each 60 s, one key has a total of its own, optimistic, refused at once beyond it";
    check(&more, name, told);
    let etcd = format!("{ETCD}{LEAST}");
    let told = "in etcd, for 4 sidecars; while it is unavailable 125 tokens for each sidecar";
    check(&etcd, "kept", told);
    let one = instead("applies_to = \"function\"\nfunction = \"guest_list\"");
    check(&one, name, "  1000 tokens for guest_list in each 60 s");
    check(
        &instead("applies_to = \"total\""),
        name,
        "tokens for all calls in each 60 s",
    );
}
