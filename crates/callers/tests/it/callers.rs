//! The table of callers, through its public face.

mod vectors;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::random::{Random, seeds};
use tidegate_callers::{
    AutoRegister, CallerId, CallerRow, CallerTable, Charge, FieldSet, Fold, Group, Identity,
    IdentityField, Ipv6Prefix, Label, LastCall, Matches, NewCaller, Notes, Patch, Pattern,
    PatternText, RateLimitId, Registration, RowKind, Specificity, TableError, TableSettings,
};
use tidegate_limits::Timestamp;
use vectors::{AUTO_REGISTRATION, CALLER_TABLE, Op, PATTERN_PARSE};

fn at_millis(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

fn groups(names: &[&str]) -> Vec<Group> {
    let group = |name: &&str| Group::new(name).expect("a group's name");
    names.iter().map(group).collect()
}

fn pattern(agent: &str, ip: &str) -> Pattern {
    let text = PatternText {
        user_agent: agent,
        ip,
        ..PatternText::default()
    };
    Pattern::parse(&text).expect("a pattern")
}

fn seen<'a>(agent: &'a str, ip: &str) -> Identity<'a> {
    Identity {
        user_agent: agent,
        ip: (!ip.is_empty()).then(|| ip.parse().expect("an address")),
        ..Identity::default()
    }
}

fn new_caller(name: &str, patterns: &[(&str, &str)], charge: Charge) -> NewCaller {
    NewCaller {
        label: label(name),
        groups: Vec::new(),
        notes: Notes::default(),
        patterns: patterns.iter().map(|(a, ip)| pattern(a, ip)).collect(),
        charge,
        weight: None,
    }
}

fn settings(auto_register: i64, per_second: u16) -> TableSettings {
    TableSettings {
        auto_register: AutoRegister::from_config(auto_register).expect("a number of rows"),
        auto_register_per_second: per_second,
        identify: IdentityField::ALL.into_iter().collect(),
        ipv6_prefix: Ipv6Prefix::default(),
    }
}

fn table(auto_register: i64, per_second: u16) -> CallerTable {
    CallerTable::new(settings(auto_register, per_second))
}

/// Adds a caller with one pattern.
fn make(table: &mut CallerTable, agent: &str, ip: &str, charge: Charge) -> CallerId {
    let new = new_caller(&format!("{agent} {ip}"), &[(agent, ip)], charge);
    table.insert(new).expect("a good caller").id
}

fn call(table: &mut CallerTable, now: Timestamp, agent: &str, ip: &str) -> (Registration, Matches) {
    let mut matches = Matches::default();
    let registration = table.classify_and_touch(now, &seen(agent, ip), &mut matches);
    (registration, matches)
}

/// The id of a caller that has just registered itself.
fn register(table: &mut CallerTable, now: Timestamp, agent: &str, ip: &str) -> CallerId {
    match call(table, now, agent, ip).0 {
        Registration::Registered { id, .. } => id,
        other => panic!("{agent} {ip}: {other:?}"),
    }
}

fn ids(matches: &Matches) -> Vec<CallerId> {
    matches
        .as_slice()
        .iter()
        .map(|found| found.caller())
        .collect()
}

fn names(table: &CallerTable) -> Vec<String> {
    table.rows().map(|row| row.name().into_owned()).collect()
}

fn charged(matches: &Matches) -> Option<(CallerId, Charge)> {
    let found = matches.charged()?;
    Some((found.caller(), found.charge()))
}

// ---- The vectors.

/// XAPI's order: fewer any fields, then fewer prefixes, then the agent before the address,
/// then the lesser text.
fn xapi_rank(agent: &str, ip: &str) -> impl Ord {
    let score = |text: &str| match text {
        "" | "*" => 2,
        prefix if prefix.ends_with('*') => 1,
        _ => 0,
    };
    let (of_agent, of_ip) = (score(agent), score(ip));
    (
        of_agent + of_ip,
        of_agent,
        of_ip,
        agent.to_owned(),
        ip.to_owned(),
    )
}

/// The order of XAPI's design document.
fn document_rank(agent: &str, ip: &str) -> impl Ord {
    let length = |text: &str| text.trim_end_matches('*').len();
    Reverse((length(agent) + length(ip), length(ip)))
}

#[test]
fn the_table_finds_the_callers_of_xapi_in_the_order_of_rule_2() {
    let (mut look_ups, mut differ) = (0, BTreeSet::new());
    for (what, history) in CALLER_TABLE {
        let mut table = table(0, 0);
        // The value of each id, and the text of each value's pattern.
        let (mut values, mut texts) = (HashMap::new(), HashMap::new());
        for op in *history {
            match *op {
                Op::Insert {
                    agent,
                    ip,
                    value,
                    accepted,
                } => {
                    let text = PatternText {
                        user_agent: agent,
                        ip,
                        ..PatternText::default()
                    };
                    let inserted = Pattern::parse(&text).ok().and_then(|pattern| {
                        let patterns = vec![pattern];
                        let blank = new_caller(&value.to_string(), &[], Charge::None);
                        table.insert(NewCaller { patterns, ..blank }).ok()
                    });
                    assert_eq!(inserted.is_some(), accepted, "{what}");
                    if let Some(inserted) = inserted {
                        values.insert(inserted.id, value);
                        texts.insert(value, (agent, ip));
                    }
                }
                Op::Delete { agent, ip } => {
                    if let Some(id) = table.holder(&pattern(agent, ip)) {
                        table.remove(id).expect("it is there");
                    }
                }
                Op::Get {
                    agent,
                    ip,
                    xapi,
                    document,
                    ours,
                } => {
                    let mut matches = Matches::default();
                    table.classify(&seen(agent, ip), &mut matches);
                    let mut found: Vec<u64> = ids(&matches)
                        .iter()
                        .filter_map(|id| values.get(id).copied())
                        .collect();
                    assert_eq!(found, ours, "{what}");
                    found.sort_by_key(|value| xapi_rank(texts[value].0, texts[value].1));
                    assert_eq!(found, xapi, "{what}, in XAPI's order");
                    found.sort_by_key(|value| document_rank(texts[value].0, texts[value].1));
                    assert_eq!(found, document, "{what}, in the document's order");
                    look_ups += 1;
                    if ours != xapi {
                        differ.insert((*what, ours.len()));
                    }
                }
            }
        }
    }
    assert_eq!(look_ups, 27);
    let expected = [
        ("a ladder of eight", 8),
        ("both exact come before one; then the weightier field", 2),
        ("both exact come before one; then the weightier field", 3),
        ("the longer prefix of the address", 2),
        ("the longer prefix of the agent", 3),
    ];
    assert_eq!(differ, expected.into_iter().collect());
}

#[test]
fn many_clients_of_one_caller_are_all_found_again() {
    let mut table = table(0, 0);
    let curl = make(&mut table, "curl", "", Charge::None);
    let mut matches = Matches::default();
    for last in (1..=150).chain(1..=10) {
        table.classify(&seen("curl", &format!("10.0.0.{last}")), &mut matches);
        assert_eq!(ids(&matches), [curl]);
    }
    table.classify(&seen("wget", "10.0.0.1"), &mut matches);
    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
}

#[test]
fn callers_register_themselves_as_in_xapi() {
    for case in AUTO_REGISTRATION {
        let mut table = table(case.limit, 10);
        for (agent, ip) in case.made {
            make(&mut table, agent, ip, Charge::None);
        }
        for (nth, (agent, ip)) in (0..).zip(case.calls) {
            call(&mut table, at_millis(nth), agent, ip);
        }
        let mut autos: Vec<&CallerRow> = table
            .rows()
            .filter(|row| row.kind == RowKind::Auto)
            .collect();
        autos.sort_by_key(|row| row.last_call);
        let agents: Vec<String> = autos
            .iter()
            .map(|row| row.patterns[0].written(IdentityField::UserAgent))
            .collect();
        assert_eq!(agents, case.registered, "{}", case.name);
        let made = table.rows().filter(|row| row.kind == RowKind::Made).count();
        assert_eq!(made, case.made.len(), "{}", case.name);
    }
}

#[test]
fn every_match_is_counted_for_its_groups() {
    let mut table = table(100, 10);
    for (agent, ip, of) in [
        ("a1", "10.0.0.1", &["g1"][..]),
        ("a2", "10.0.0.2", &["g1", "g2"]),
        ("a3", "10.0.0.3", &[]),
    ] {
        let new = NewCaller {
            groups: groups(of),
            ..new_caller(agent, &[(agent, ip)], Charge::None)
        };
        table.insert(new).expect("a good caller");
    }
    let mut calls: BTreeMap<String, u32> = BTreeMap::new();
    for (agent, ip) in [
        ("a1", "10.0.0.1"),
        ("a2", "10.0.0.2"),
        ("a2", "10.0.0.2"),
        ("a3", "10.0.0.3"),
    ] {
        let (registration, matches) = call(&mut table, at_millis(0), agent, ip);
        assert_eq!(registration, Registration::Known);
        for found in matches.as_slice() {
            for group in &table.get(found.caller()).expect("it matched").groups {
                *calls.entry(group.to_string()).or_default() += 1;
            }
        }
    }
    let expected = [("g1".to_owned(), 3), ("g2".to_owned(), 2)];
    assert_eq!(calls, expected.into_iter().collect());
}

#[test]
fn text_is_read_as_in_xapi() {
    for (written, literal, is_exact) in PATTERN_PARSE {
        // A listener beside it, so that a pattern of any is a pattern at all.
        let text = PatternText {
            user_agent: written,
            listener: "nova",
            ..PatternText::default()
        };
        let pattern = Pattern::parse(&text).expect("a pattern");
        let read = pattern
            .text(IdentityField::UserAgent)
            .expect("a field of text");
        assert_eq!(
            (read.literal(), read.is_exact()),
            (*literal, *is_exact),
            "{written}"
        );
    }
    let network = pattern("", "10.1.*");
    assert_eq!(network.written(IdentityField::Ip), "10.1.0.0/16");
}

#[test]
fn a_pattern_of_nothing_is_refused_by_name() {
    for (agent, ip) in [("", ""), ("*", ""), ("*", "*")] {
        let text = PatternText {
            user_agent: agent,
            ip,
            ..PatternText::default()
        };
        let mistakes = Pattern::parse(&text).expect_err("it matches everybody");
        assert_eq!((mistakes.len(), mistakes[0].field()), (1, "match"));
    }
}

#[test]
fn a_client_that_calls_itself_a_pattern_is_none() {
    let mut table = table(10, 10);
    let star = register(&mut table, at_millis(0), "foo*", "10.0.0.1");
    assert_eq!(
        call(&mut table, at_millis(1), "foo*", "10.0.0.1").0,
        Registration::Known
    );
    let other = register(&mut table, at_millis(2), "foobar", "10.0.0.1");
    let (_, matches) = call(&mut table, at_millis(3), "foobar", "10.0.0.1");
    assert_eq!(ids(&matches), [other]);
    let row = table.get(star).expect("it is there");
    assert_eq!(row.name(), r"ip=10.0.0.1 user_agent=foo\*");
}

// ---- Who is charged.

#[test]
fn the_most_specific_caller_with_a_limit_is_charged_and_all_are_counted() {
    let mut table = table(10, 10);
    let net = make(&mut table, "", "10.0.0.0/8", Charge::Limit(RateLimitId(1)));
    let agent = make(&mut table, "curl*", "10.0.0.0/8", Charge::None);
    let (registration, matches) = call(&mut table, at_millis(5), "curl/8", "10.0.0.1");
    let Registration::Registered { id: own, .. } = registration else {
        panic!("{registration:?}");
    };
    assert_eq!(ids(&matches), [own, agent, net]);
    assert_eq!(matches.caller(), own);
    assert_eq!(
        charged(&matches),
        Some((net, Charge::Limit(RateLimitId(1))))
    );
    for id in [own, agent, net] {
        let row = table.get(id).expect("it is there");
        assert_eq!(row.last_call, LastCall::At(at_millis(5)));
    }
    let widths: Vec<u16> = matches
        .as_slice()
        .iter()
        .map(|found| found.specificity().literal_bits())
        .collect();
    assert_eq!(widths, [80, 40, 8]);
}

#[test]
fn an_exempt_caller_ends_the_search_for_a_limit() {
    let mut table = table(0, 0);
    make(&mut table, "", "10.0.0.0/8", Charge::Limit(RateLimitId(1)));
    let exempt = make(&mut table, "", "10.1.0.0/16", Charge::Exempt);
    let inner = make(&mut table, "", "10.1.1.0/24", Charge::None);
    let (_, matches) = call(&mut table, at_millis(0), "", "10.1.1.1");
    assert_eq!(matches.caller(), inner);
    assert_eq!(charged(&matches), Some((exempt, Charge::Exempt)));
}

#[test]
fn an_unknown_caller_is_charged_to_the_unknown_row() {
    let mut table = table(0, 0);
    let limited = Patch {
        charge: Some(Charge::Limit(RateLimitId(9))),
        ..Default::default()
    };
    table
        .patch(CallerId::UNKNOWN, limited)
        .expect("it takes a limit");
    make(&mut table, "known", "", Charge::None);
    let (registration, matches) = call(&mut table, at_millis(0), "stranger", "10.0.0.1");
    assert_eq!(registration, Registration::Off);
    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
    assert_eq!(
        charged(&matches),
        Some((CallerId::UNKNOWN, Charge::Limit(RateLimitId(9))))
    );
    let (_, matches) = call(&mut table, at_millis(0), "known", "10.0.0.1");
    assert_eq!(charged(&matches), None);
    let (registration, matches) = call(&mut table, at_millis(0), "", "");
    assert_eq!(registration, Registration::NothingSeen);
    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
}

#[test]
fn a_limit_that_is_gone_is_gone_from_every_row() {
    let mut table = table(0, 0);
    let first = make(&mut table, "a", "", Charge::Limit(RateLimitId(1)));
    let second = make(&mut table, "b", "", Charge::Limit(RateLimitId(2)));
    let third = make(&mut table, "c", "", Charge::Limit(RateLimitId(1)));
    assert_eq!(table.detach(RateLimitId(1)), [first, third]);
    assert_eq!(table.detach(RateLimitId(1)), []);
    let charge = |id| table.get(id).map(|row| row.charge);
    assert_eq!(charge(first), Some(Charge::None));
    assert_eq!(charge(second), Some(Charge::Limit(RateLimitId(2))));
}

// ---- Registering.

#[test]
fn a_thousand_rotating_agents_a_second_stay_at_the_bound_and_touch_no_other() {
    let mut table = table(100, 10);
    let made = make(&mut table, "", "192.168.0.1", Charge::Limit(RateLimitId(1)));
    let regular = register(&mut table, at_millis(0), "regular", "192.168.0.2");
    let (mut forgotten, mut surplus) = (0, 0);
    let mut matches = Matches::default();
    // 20 s at 1,000 a second, each an agent that was never seen.
    for nth in 0..20_000 {
        let now = at_millis(1 + nth);
        let agent = format!("agent-{nth}");
        match table.classify_and_touch(now, &seen(&agent, "10.0.0.1"), &mut matches) {
            Registration::Registered { forgotten: of, .. } => {
                assert_ne!(of, Some(regular));
                forgotten += u64::from(of.is_some());
            }
            Registration::Surplus => {
                surplus += 1;
                assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
            }
            other => panic!("{other:?}"),
        }
        if nth % 100 == 0 {
            assert_eq!(
                call(&mut table, now, "regular", "192.168.0.2").0,
                Registration::Known
            );
        }
        assert!(table.registered() <= 100);
    }
    // Ten in each of twenty seconds, the first of them the regular, and one at 20 s.
    assert_eq!(surplus, 20_000 - 200);
    assert_eq!(forgotten, 101);
    assert_eq!(table.rows().count(), 102);
    assert!(table.get(made).is_some() && table.get(regular).is_some());
}

#[test]
fn the_surplus_is_charged_to_a_limit_that_it_matches_before_the_unknown_rows() {
    let mut table = table(100, 0);
    let limited = Patch {
        charge: Some(Charge::Limit(RateLimitId(9))),
        ..Default::default()
    };
    table
        .patch(CallerId::UNKNOWN, limited)
        .expect("it takes a limit");
    let net = make(&mut table, "", "10.0.0.0/8", Charge::Limit(RateLimitId(1)));
    let (registration, matches) = call(&mut table, at_millis(0), "x", "10.0.0.1");
    assert_eq!(registration, Registration::Surplus);
    assert_eq!(ids(&matches), [net, CallerId::UNKNOWN]);
    assert_eq!(
        charged(&matches),
        Some((net, Charge::Limit(RateLimitId(1))))
    );
    let (_, matches) = call(&mut table, at_millis(0), "x", "11.0.0.1");
    assert_eq!(
        charged(&matches),
        Some((CallerId::UNKNOWN, Charge::Limit(RateLimitId(9))))
    );
}

#[test]
fn only_the_fields_named_tell_callers_apart() {
    let mut table = CallerTable::new(TableSettings {
        identify: [IdentityField::Ip, IdentityField::Listener]
            .into_iter()
            .collect(),
        ..settings(10, 10)
    });
    let mut matches = Matches::default();
    let mut registers = |agent: &str, listener: &str| {
        let identity = Identity {
            listener,
            ..seen(agent, "10.0.0.1")
        };
        let registration = table.classify_and_touch(at_millis(0), &identity, &mut matches);
        matches!(registration, Registration::Registered { .. })
    };
    assert!(registers("a", "nova"));
    assert!(!registers("b", "nova"));
    assert!(registers("a", "poll"));
    let names: Vec<String> = names(&table).split_off(1);
    assert_eq!(
        names,
        ["ip=10.0.0.1 listener=nova", "ip=10.0.0.1 listener=poll"]
    );
}

#[test]
fn the_addresses_of_one_ipv6_prefix_are_one_caller() {
    let names_of = |ipv6_prefix: u8, addresses: &[&str]| {
        let mut table = CallerTable::new(TableSettings {
            ipv6_prefix: Ipv6Prefix::new(ipv6_prefix).expect("a prefix"),
            ..settings(100, 1000)
        });
        let mut matches = Matches::default();
        for address in addresses {
            let identity = seen("a", address);
            table.classify_and_touch(at_millis(0), &identity, &mut matches);
            assert_eq!(ids(&matches).len(), 1, "{address}");
        }
        names(&table).split_off(1)
    };
    let many: Vec<String> = (0..200).map(|it| format!("2001:db8:1:2::{it:x}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(names_of(64, &many), ["ip=2001:db8:1:2::/64 user_agent=a"]);
    assert_eq!(names_of(128, &many[..9]).len(), 9);
    let apart = [
        "2001:db8:1:2::1",
        "2001:db8:1:3::1",
        "::1",
        "10.0.0.1",
        "10.0.0.2",
    ];
    assert_eq!(names_of(64, &apart).len(), 5);
    assert_eq!(names_of(48, &apart).len(), 4);
}

#[test]
fn a_row_for_one_ipv6_address_or_for_the_prefix_is_the_caller_of_its_clients() {
    let mut table = table(10, 10);
    let row = |name: &str, ip: &str| {
        let pattern = PatternText {
            ip,
            user_agent: "a",
            ..PatternText::default()
        };
        let patterns = vec![Pattern::parse(&pattern).expect("a pattern")];
        NewCaller {
            patterns,
            ..new_caller(name, &[], Charge::None)
        }
    };
    table
        .insert(row("one", "2001:db8::7"))
        .expect("there is room");
    table
        .insert(row("net", "2001:db8:0:1::/64"))
        .expect("there is room");
    let mut caller = |ip: &str| {
        let (registration, matches) = call(&mut table, at_millis(0), "a", ip);
        (registration == Registration::Known, ids(&matches).len())
    };
    assert_eq!(caller("2001:db8::7"), (true, 1));
    assert_eq!(caller("2001:db8:0:1::7"), (true, 1));
    assert_eq!(caller("2001:db8:0:1::8"), (true, 1));
    // Beside it in its network: a caller of its own.
    assert_eq!(caller("2001:db8::8"), (false, 1));
}

#[test]
fn a_value_too_long_for_a_pattern_counts_for_the_unknown_row() {
    let mut table = table(10, 10);
    let long = "x".repeat(257);
    let (registration, matches) = call(&mut table, at_millis(0), &long, "10.0.0.1");
    assert!(
        matches!(registration, Registration::Unfit(mistake) if mistake.field() == "user_agent")
    );
    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
    assert_eq!(table.registered(), 0);
    register(&mut table, at_millis(0), &long[1..], "10.0.0.1");
}

#[test]
fn a_row_that_is_forgotten_for_the_very_call_that_it_matches_is_no_match() {
    let mut table = table(1, 10);
    let address = register(&mut table, at_millis(0), "", "10.0.0.1");
    let (registration, matches) = call(&mut table, at_millis(1), "curl", "10.0.0.1");
    let Registration::Registered { id, forgotten } = registration else {
        panic!("{registration:?}");
    };
    assert_eq!(forgotten, Some(address));
    assert_eq!(ids(&matches), [id]);
}

#[test]
fn a_caller_with_label_group_notes_or_limit_is_never_evicted() {
    let patches = [
        Patch {
            label: Some(label("mine")),
            ..Patch::default()
        },
        Patch {
            groups: Some(groups(&["g"])),
            ..Patch::default()
        },
        Patch {
            notes: Some(Notes::new("seen at night").expect("notes")),
            ..Patch::default()
        },
        Patch {
            charge: Some(Charge::Exempt),
            ..Patch::default()
        },
    ];
    for patch in patches {
        let mut table = table(1, 10);
        let kept = register(&mut table, at_millis(0), "kept", "10.0.0.1");
        table
            .patch(kept, Patch::default())
            .expect("nothing to change");
        assert_eq!(table.get(kept).map(|row| row.kind), Some(RowKind::Auto));
        table.patch(kept, patch.clone()).expect("a good patch");
        for nth in 0..5 {
            register(
                &mut table,
                at_millis(nth),
                &format!("agent-{nth}"),
                "10.0.0.2",
            );
        }
        let row = table.get(kept).expect("it is kept");
        assert_eq!(row.kind, RowKind::Made, "{patch:?}");
        assert_eq!(table.registered(), 1);
        assert_eq!(
            call(&mut table, at_millis(9), "kept", "10.0.0.1").0,
            Registration::Known
        );
    }
}

#[test]
fn fewer_rows_may_register_after_a_change_and_the_least_recently_called_go() {
    let mut table = table(10, 100);
    let rows: Vec<CallerId> = (0..10)
        .map(|nth| register(&mut table, at_millis(nth), &format!("agent-{nth}"), ""))
        .collect();
    call(&mut table, at_millis(20), "agent-0", "");
    assert_eq!(table.configure(settings(3, 100)), rows[1..8]);
    assert_eq!(table.registered(), 3);
    assert_eq!(
        table.configure(settings(0, 100)),
        [rows[8], rows[9], rows[0]]
    );
    assert_eq!(
        call(&mut table, at_millis(21), "agent-0", "").0,
        Registration::Off
    );
}

#[test]
fn auto_register_is_off_a_number_or_all_there_can_be() {
    let rows = |given| AutoRegister::from_config(given).map(AutoRegister::rows);
    assert_eq!(rows(0), Ok(0));
    assert_eq!(rows(100), Ok(100));
    assert_eq!(rows(10_000), Ok(10_000));
    assert_eq!((rows(-1), rows(i64::MIN)), (Ok(10_000), Ok(10_000)));
    for given in [10_001, i64::MAX] {
        let mistake = AutoRegister::from_config(given).expect_err("too many");
        assert_eq!(mistake.field(), "auto_register");
        assert!(mistake.to_string().ends_with(&format!("not {given}")));
    }
}

// ---- Changing rows.

#[test]
fn a_pattern_belongs_to_one_caller_and_the_error_names_it() {
    let mut table = table(0, 0);
    let first = make(&mut table, "curl*", "", Charge::None);
    let before = names(&table);
    let again = new_caller("again", &[("wget", ""), ("curl*", "")], Charge::None);
    let mistake = table.insert(again).expect_err("it is taken");
    assert!(matches!(&mistake, TableError::PatternExists { holder, .. } if *holder == first));
    assert_eq!(
        mistake.to_string(),
        "match: caller c1 has the pattern user_agent=curl*; change that caller, or merge the two"
    );
    assert_eq!(names(&table), before);
    let twice = new_caller("twice", &[("a", ""), ("a", "")], Charge::None);
    assert!(matches!(
        table.insert(twice),
        Err(TableError::PatternRepeated(_))
    ));
    let none = new_caller("none", &[], Charge::None);
    assert_eq!(table.insert(none), Err(TableError::NoPattern));
}

#[test]
fn a_caller_that_registered_itself_becomes_the_one_that_is_made() {
    let mut table = table(10, 10);
    let first = register(&mut table, at_millis(1), "a", "10.0.0.1");
    let second = register(&mut table, at_millis(2), "b", "10.0.0.1");
    let new = new_caller(
        "ours",
        &[("b", "10.0.0.1"), ("a", "10.0.0.1")],
        Charge::None,
    );
    let inserted = table.insert(new).expect("both are to be had");
    assert_eq!(inserted.id, first);
    assert_eq!(
        inserted.folded,
        [Fold {
            from: second,
            into: first
        }]
    );
    let row = table.get(first).expect("it is there");
    assert_eq!(
        (row.kind, row.last_call),
        (RowKind::Made, LastCall::At(at_millis(2)))
    );
    assert_eq!((table.registered(), table.get(second).is_none()), (0, true));
}

#[test]
fn merged_callers_are_alternatives_of_one() {
    let mut table = table(10, 10);
    let into = make(&mut table, "", "10.1.2.0/24", Charge::None);
    let auto = register(&mut table, at_millis(1), "python-requests/2.31", "10.1.3.4");
    let made = make(&mut table, "wget*", "", Charge::None);
    let patch = |names: &[&str]| Patch {
        groups: Some(groups(names)),
        ..Default::default()
    };
    table.patch(into, patch(&["g1"])).expect("a good patch");
    table
        .patch(made, patch(&["g2", "g1", "g2"]))
        .expect("a good patch");
    table
        .merge(into, &[auto, made])
        .expect("they can be merged");

    let row = table.get(into).expect("it is there");
    assert_eq!(
        *row.patterns,
        [
            pattern("", "10.1.2.0/24"),
            pattern("python-requests/2.31", "10.1.3.4"),
            pattern("wget*", "")
        ]
    );
    assert_eq!(*row.groups, groups(&["g1", "g2"]));
    assert_eq!(row.last_call, LastCall::At(at_millis(1)));
    assert_eq!(
        (table.get(auto).is_none(), table.get(made).is_none()),
        (true, true)
    );
    let of_groups: Vec<(String, u32)> = table.groups().map(|(g, n)| (g.to_string(), n)).collect();
    assert_eq!(of_groups, [("g1".to_owned(), 1), ("g2".to_owned(), 1)]);

    // One match however many of its patterns do, by the most specific of them.
    let mut matches = Matches::default();
    table.classify(&seen("wget/1", "10.1.2.3"), &mut matches);
    assert_eq!(ids(&matches), [into]);
    assert_eq!(
        matches.as_slice()[0].specificity(),
        pattern("wget*", "").specificity()
    );
    // What was registered is known by the row that has it now.
    let (registration, matches) =
        call(&mut table, at_millis(2), "python-requests/2.31", "10.1.3.4");
    assert_eq!(
        (registration, ids(&matches)),
        (Registration::Known, vec![into])
    );
    // Removed, all of its patterns are free again.
    table.remove(into).expect("it is there");
    make(&mut table, "wget*", "", Charge::None);
    assert_eq!(table.groups().count(), 0);
}

#[test]
fn a_merge_that_cannot_be_changes_nothing() {
    let mut table = table(10, 10);
    let into = make(&mut table, "into", "", Charge::Limit(RateLimitId(1)));
    let same = make(&mut table, "same", "", Charge::Limit(RateLimitId(1)));
    let free = make(&mut table, "free", "", Charge::None);
    let new = new_caller("poller", &[("static", "")], Charge::Limit(RateLimitId(1)));
    let fixed = table.replace_static(vec![new]).expect("a good config").ids[0];
    let before = names(&table);
    let gone = CallerId(99);
    let mut check = |from: &[CallerId], mistake: TableError| {
        assert_eq!(table.merge(into, from), Err(mistake), "{from:?}");
        assert_eq!(names(&table), before);
    };
    check(&[], TableError::MergeList);
    check(&[into], TableError::MergeList);
    check(&[same, same], TableError::MergeList);
    check(&[same, gone], TableError::Unknown(gone));
    check(&[same, fixed], TableError::IsStatic(fixed));
    check(&[same, CallerId::UNKNOWN], TableError::IsFixed);
    check(
        &[same, free],
        TableError::ChargesDiffer { into, from: free },
    );
    assert_eq!(table.merge(gone, &[same]), Err(TableError::Unknown(gone)));
    assert_eq!(
        table.merge(fixed, &[same]),
        Err(TableError::IsStatic(fixed))
    );
    assert_eq!(
        table.merge(CallerId::UNKNOWN, &[free]),
        Err(TableError::IsFixed)
    );
    assert_eq!(table.merge(into, &[same]), Ok(()));
}

#[test]
fn a_row_of_the_config_and_the_unknown_one_are_not_to_be_had() {
    let mut table = table(10, 10);
    let new = new_caller("poller", &[("static", "")], Charge::None);
    let fixed = table.replace_static(vec![new]).expect("a good config").ids[0];
    let named = Patch {
        label: Some(label("x")),
        ..Patch::default()
    };
    assert_eq!(
        table.patch(fixed, named.clone()),
        Err(TableError::IsStatic(fixed))
    );
    assert_eq!(table.remove(fixed).err(), Some(TableError::IsStatic(fixed)));
    assert_eq!(
        table.patch(CallerId::UNKNOWN, named.clone()),
        Err(TableError::IsFixed)
    );
    assert_eq!(
        table.remove(CallerId::UNKNOWN).err(),
        Some(TableError::IsFixed)
    );
    let gone = CallerId(99);
    assert_eq!(table.patch(gone, named), Err(TableError::Unknown(gone)));
    assert_eq!(table.remove(gone).err(), Some(TableError::Unknown(gone)));
    let said = TableError::IsStatic(fixed).to_string();
    assert_eq!(
        said,
        "id: caller c1 stands in the config file; change it there"
    );
}

#[test]
fn everything_has_a_bound() {
    let patterns = |from: usize, count: usize| -> Vec<Pattern> {
        (from..from + count)
            .map(|nth| pattern(&format!("agent-{nth}"), ""))
            .collect()
    };
    let blank = new_caller("many", &[], Charge::None);
    let many = |from, count| NewCaller {
        patterns: patterns(from, count),
        ..blank.clone()
    };
    let mut table = table(10, 10);
    let mistake = TableError::TooManyPatterns { given: 257 };
    assert_eq!(table.insert(many(0, 257)), Err(mistake));
    let caller = table.insert(many(0, 256)).expect("as many as may be").id;
    let one = make(&mut table, "one more", "", Charge::None);
    let mistake = TableError::TooManyPatterns { given: 257 };
    assert_eq!(table.merge(caller, &[one]), Err(mistake));

    for from in (256..9_984).step_by(256) {
        table.insert(many(from, 256)).expect("there is room");
    }
    table.insert(many(9_984, 15)).expect("there is room");
    let auto = register(&mut table, at_millis(0), "auto", "");
    assert_eq!(table.insert(many(20_000, 1)), Err(TableError::Full));
    let noted = Patch {
        notes: Some(Notes::default()),
        ..Patch::default()
    };
    assert_eq!(table.patch(auto, noted.clone()), Err(TableError::Full));
    assert_eq!(table.merge(one, &[auto]), Err(TableError::Full));
    assert_eq!(table.get(auto).map(|row| row.kind), Some(RowKind::Auto));
    table.remove(one).expect("it is there");
    assert_eq!(table.patch(auto, noted), Ok(()));

    let grouped = |names: Vec<String>| Patch {
        groups: Some(groups(
            &names.iter().map(String::as_str).collect::<Vec<_>>(),
        )),
        ..Patch::default()
    };
    let name = |nth: usize| format!("g{nth}");
    let mistake = TableError::TooManyGroups { given: 17 };
    assert_eq!(
        table.patch(auto, grouped((0..17).map(name).collect())),
        Err(mistake)
    );
    table.remove(caller).expect("it is there");
    let mut grouped_rows = Vec::new();
    for nth in 0..64 {
        let row = make(&mut table, &format!("row-{nth}"), "", Charge::None);
        let names = (16 * nth..16 * nth + 16).map(name).collect();
        table.patch(row, grouped(names)).expect("there is room");
        grouped_rows.push(row);
    }
    assert_eq!(table.groups().count(), 1024);
    let mistake = Err(TableError::TooManyDistinctGroups);
    assert_eq!(table.patch(auto, grouped(vec![name(1024)])), mistake);
    assert_eq!(table.patch(auto, grouped(vec![name(1023)])), Ok(()));
    table.remove(grouped_rows[0]).expect("it is there");
    assert_eq!(table.patch(auto, grouped(vec![name(1024)])), Ok(()));
}

// ---- The config.

#[test]
fn a_reload_keeps_the_ids_of_labels_and_says_who_is_gone() {
    let mut table = table(10, 10);
    let first = vec![
        new_caller(
            "poller",
            &[("", "10.0.0.0/8")],
            Charge::Limit(RateLimitId(1)),
        ),
        new_caller("deploy", &[("deploy*", "")], Charge::None),
    ];
    let reloaded = table.replace_static(first).expect("a good config");
    let [poller, deploy] = reloaded.ids[..] else {
        panic!("{reloaded:?}");
    };
    call(&mut table, at_millis(7), "deploy/1", "10.0.0.1");
    // The two have swapped what they match, and there is a third.
    let second = vec![
        new_caller("deploy", &[("", "10.0.0.0/8")], Charge::Exempt),
        new_caller("new", &[("new", "")], Charge::None),
    ];
    let reloaded = table.replace_static(second).expect("a good config");
    assert_eq!(reloaded.ids[0], deploy);
    assert!(reloaded.ids[1] > deploy);
    assert_eq!(reloaded.removed, [poller]);
    assert_eq!((reloaded.folded, reloaded.narrowed), (vec![], vec![]));
    let row = table.get(deploy).expect("it is there");
    assert_eq!(
        (row.charge, row.last_call),
        (Charge::Exempt, LastCall::At(at_millis(7)))
    );
    let mut matches = Matches::default();
    table.classify(&seen("deploy/1", "11.0.0.1"), &mut matches);
    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
}

#[test]
fn the_config_has_its_way_with_patterns_of_other_rows() {
    let mut table = table(10, 10);
    let auto = register(&mut table, at_millis(3), "auto", "");
    let one = make(&mut table, "one", "", Charge::None);
    let several = new_caller("several", &[("x", ""), ("y", ""), ("z", "")], Charge::None);
    let several = table.insert(several).expect("a good caller").id;
    let both = new_caller("both", &[("p", ""), ("q", "")], Charge::None);
    let both = table.insert(both).expect("a good caller").id;
    let config = vec![
        new_caller(
            "config",
            &[("auto", ""), ("one", ""), ("y", ""), ("p", "")],
            Charge::None,
        ),
        new_caller("rest", &[("q", "")], Charge::None),
    ];
    let reloaded = table.replace_static(config).expect("a good config");
    let [config, rest] = reloaded.ids[..] else {
        panic!("{reloaded:?}");
    };
    let fold = |from, into| Fold { from, into };
    assert_eq!(
        reloaded.folded,
        [fold(auto, config), fold(one, config), fold(both, rest)]
    );
    assert_eq!(reloaded.narrowed, [several]);
    let row = table.get(several).expect("it has patterns left");
    assert_eq!(*row.patterns, [pattern("x", ""), pattern("z", "")]);
    let row = table.get(config).expect("it is there");
    assert_eq!(row.last_call, LastCall::At(at_millis(3)));
    assert_eq!(table.registered(), 0);
}

#[test]
fn a_bad_config_changes_nothing_and_reports_every_mistake() {
    let mut table = table(10, 10);
    let good = new_caller("good", &[("good", "")], Charge::None);
    table.replace_static(vec![good]).expect("a good config");
    let before = names(&table);
    let crowd: Vec<String> = (0..17).map(|nth| format!("g{nth}")).collect();
    let crowd: Vec<&str> = crowd.iter().map(String::as_str).collect();
    let bad = vec![
        new_caller("a", &[("x", ""), ("y", "")], Charge::None),
        new_caller("b", &[("y", "")], Charge::None),
        new_caller("a", &[("z", ""), ("z", "")], Charge::None),
        new_caller("c", &[], Charge::None),
        NewCaller {
            groups: groups(&crowd),
            ..new_caller("d", &[("w", "")], Charge::None)
        },
    ];
    let mistakes = table.replace_static(bad).expect_err("it is bad");
    let said: Vec<String> = mistakes.iter().map(TableError::to_string).collect();
    assert_eq!(
        said,
        [
            "match: callers \"a\" and \"b\" have the same pattern user_agent=y; leave one out",
            "label \"a\" stands on two callers; give each its own",
            "match has the pattern user_agent=z twice; leave one out",
            "match must have at least one pattern",
            "groups has 17 names, at most 16 are taken",
        ]
    );
    assert_eq!(names(&table), before);
}

// ---- Restarts.

fn saved(row: &CallerRow) -> CallerRow {
    CallerRow {
        last_call: match row.last_call {
            LastCall::At(moment) => LastCall::Earlier(moment.as_nanos()),
            before => before,
        },
        ..row.clone()
    }
}

#[test]
fn a_table_comes_back_as_it_was() {
    let mut before = table(10, 10);
    let config = vec![new_caller("poller", &[("", "10.0.0.0/8")], Charge::Exempt)];
    before
        .replace_static(config.clone())
        .expect("a good config");
    let made = make(&mut before, "made*", "", Charge::Limit(RateLimitId(3)));
    let auto = register(&mut before, at_millis(1), "auto", "10.0.0.1");
    let charge = Some(Charge::Limit(RateLimitId(9)));
    let limited = Patch {
        charge,
        ..Default::default()
    };
    before
        .patch(CallerId::UNKNOWN, limited)
        .expect("it takes a limit");

    let mut after = table(10, 10);
    let restored = after.restore(before.rows().map(saved).collect());
    assert_eq!((restored.trimmed, restored.refused), (vec![], vec![]));
    let reloaded = after.replace_static(config).expect("a good config");
    assert_eq!(
        (reloaded.ids, reloaded.removed),
        (vec![CallerId(1)], vec![])
    );
    let rows = |table: &CallerTable| -> Vec<CallerRow> { table.rows().map(saved).collect() };
    assert_eq!(rows(&after), rows(&before));
    assert_eq!(after.get(CallerId::UNKNOWN).map(|row| row.charge), charge);
    assert_eq!(
        after.get(auto).map(|row| row.last_call),
        Some(LastCall::Earlier(1_000_000))
    );
    // No caller gets an id that was used before.
    assert!(make(&mut after, "next", "", Charge::None) > auto.max(made));
}

#[test]
fn a_smaller_table_keeps_the_most_recently_seen() {
    let auto = |id: u64, last_call: u64| CallerRow {
        id: CallerId(id),
        kind: RowKind::Auto,
        label: None,
        groups: Box::default(),
        notes: Notes::default(),
        patterns: [pattern(&format!("agent-{id}"), "")].into(),
        charge: Charge::None,
        last_call: match last_call {
            0 => LastCall::Never,
            moment => LastCall::Earlier(moment),
        },
        weight: None,
    };
    let mut table = table(3, 10);
    let rows = vec![
        auto(1, 50),
        auto(2, 10),
        auto(3, 40),
        auto(4, 0),
        auto(5, 30),
    ];
    let restored = table.restore(rows);
    assert_eq!(restored.trimmed, [CallerId(2), CallerId(4)]);
    assert_eq!(table.registered(), 3);
    // Of those, the least recently called is the first to go.
    let (registration, _) = call(&mut table, at_millis(0), "next", "");
    let forgotten = Some(CallerId(5));
    let id = CallerId(6);
    assert_eq!(registration, Registration::Registered { id, forgotten });
}

#[test]
fn a_saved_row_that_cannot_be_restored_is_reported_and_the_others_are_restored() {
    let row = |id: u64, agent: &str| CallerRow {
        id: CallerId(id),
        kind: RowKind::Made,
        label: Some(label(agent)),
        groups: Box::default(),
        notes: Notes::default(),
        patterns: [pattern(agent, "")].into(),
        charge: Charge::None,
        last_call: LastCall::Never,
        weight: None,
    };
    let mut table = table(3, 10);
    let bare = CallerRow {
        patterns: Box::default(),
        ..row(4, "d")
    };
    let restored = table.restore(vec![
        row(1, "a"),
        row(1, "b"),
        row(2, "a"),
        row(3, "c"),
        bare,
        row(u64::MAX, "e"),
    ]);
    let refused: Vec<(u64, String)> = restored
        .refused
        .iter()
        .map(|(id, mistake)| (id.0, mistake.to_string()))
        .collect();
    assert_eq!(
        refused,
        [
            (1, "id: there is a caller c1 already".to_owned()),
            (
                2,
                "match: caller c1 has the pattern user_agent=a; change that caller, or merge the two"
                    .to_owned()
            ),
            (4, "match must have at least one pattern".to_owned()),
            (
                u64::MAX,
                "id: c18446744073709551615 was never given to a caller".to_owned()
            ),
        ]
    );
    assert_eq!(names(&table), ["(unknown)", "a", "c"]);
    assert_eq!(make(&mut table, "next", "", Charge::None), CallerId(5));
}

#[test]
fn an_id_that_an_earlier_run_gave_is_not_given_again() {
    let mut before = table(3, 10);
    make(&mut before, "a", "", Charge::None);
    let gone = make(&mut before, "b", "", Charge::None);
    before.remove(gone).expect("it is there");
    assert_eq!(before.ids_given(), gone.0);

    let mut after = table(3, 10);
    after.count_ids_as_given(before.ids_given());
    after.count_ids_as_given(1);
    // It was never used, and no later one would exist.
    after.count_ids_as_given(u64::MAX);
    assert_eq!(after.ids_given(), gone.0);
    assert!(make(&mut after, "c", "", Charge::None) > gone);
}

// ---- Random histories, against a scan of all rows.

impl Random {
    fn pattern(&mut self) -> Pattern {
        loop {
            let text = PatternText {
                user: self.pick(&["", "", "ann", "a*"]),
                originator: "",
                ip: self.pick(&["", "10.0.0.1", "10.0.0.0/31", "10.0.0.0/8", "::1"]),
                user_agent: self.pick(&["", "a", "a*", "aa*", "ab", r"a\*"]),
                listener: self.pick(&["", "nova", "n*"]),
            };
            if let Ok(pattern) = Pattern::parse(&text) {
                return pattern;
            }
        }
    }

    fn identity(&mut self) -> Identity<'static> {
        let ip = self.pick(&["", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1", "::1"]);
        Identity {
            user: self.pick(&["", "ann", "abe"]),
            user_agent: self.pick(&["", "a", "aa", "aab", "ab", "a*"]),
            listener: self.pick(&["", "nova", "poll"]),
            ip: ip.parse().ok(),
            ..Identity::default()
        }
    }

    fn charge(&mut self) -> Charge {
        self.pick(&[
            Charge::None,
            Charge::None,
            Charge::Exempt,
            Charge::Limit(RateLimitId(1)),
        ])
    }

    /// A caller that exists, mostly.
    fn id(&mut self, table: &CallerTable) -> CallerId {
        let ids: Vec<CallerId> = table.rows().map(|row| row.id).collect();
        if self.one_in(20) {
            CallerId(self.below(1000))
        } else {
            self.pick(&ids)
        }
    }
}

/// The callers of a call, by asking every row.
fn scan(table: &CallerTable, identity: &Identity<'_>) -> Vec<(CallerId, Specificity)> {
    let mut found: Vec<(CallerId, Specificity)> = table
        .rows()
        .filter_map(|row| {
            let matching = row.patterns.iter().filter(|p| p.matches(identity));
            let best = matching.map(Pattern::specificity).max()?;
            Some((row.id, best))
        })
        .collect();
    found.sort_by_key(|(id, specificity)| (Reverse(*specificity), *id));
    found
}

/// Checks the laws that hold after any change.
fn check_laws(table: &CallerTable, auto_register: usize) {
    let autos = table.rows().filter(|row| row.kind == RowKind::Auto);
    let autos: Vec<&CallerRow> = autos.collect();
    assert_eq!(autos.len(), table.registered());
    assert!(autos.len() <= auto_register);
    for row in autos {
        assert!(row.label.is_none() && row.groups.is_empty());
        assert_eq!((row.charge, row.patterns.len()), (Charge::None, 1));
    }
    let mut of_groups: BTreeMap<&Group, u32> = BTreeMap::new();
    for row in table.rows() {
        for group in &row.groups {
            *of_groups.entry(group).or_default() += 1;
        }
        for pattern in &row.patterns {
            assert_eq!(table.holder(pattern), Some(row.id));
        }
    }
    assert!(of_groups.into_iter().eq(table.groups()));
}

/// Evicted callers were seen no later than those that stay.
fn check_forgotten(
    before: &BTreeMap<CallerId, LastCall>,
    forgotten: &[CallerId],
    table: &CallerTable,
) {
    let autos = table.rows().filter(|row| row.kind == RowKind::Auto);
    let stay = autos.filter_map(|row| before.get(&row.id)).min();
    for id in forgotten {
        assert!(
            stay.is_none_or(|stay| before[id] <= *stay),
            "{id} {before:?}"
        );
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let auto_register = random.pick(&[0, 1, 5, 100]);
    let identify: FieldSet = IdentityField::ALL
        .into_iter()
        .filter(|_| !random.one_in(3))
        .collect();
    let ipv6_prefix = Ipv6Prefix::new(random.pick(&[32, 64, 128])).expect("a prefix");
    let mut table = CallerTable::new(TableSettings {
        identify,
        ipv6_prefix,
        ..settings(auto_register, random.pick(&[1, 10, 1000]))
    });
    let (mut matches, mut now) = (Matches::default(), Timestamp::ZERO);
    for _ in 0..200 {
        now = now + Duration::from_millis(1 + random.below(200));
        match random.below(12) {
            0 | 1 => {
                let patterns = (0..=random.below(3)).map(|_| random.pattern()).collect();
                let blank = new_caller("made", &[], random.charge());
                let _ = table.insert(NewCaller { patterns, ..blank });
            }
            2 => {
                let (into, from) = (random.id(&table), [random.id(&table), random.id(&table)]);
                let _ = table.merge(into, &from[..1 + random.below(2) as usize]);
            }
            3 => {
                let _ = table.remove(random.id(&table));
            }
            4 => {
                let patch = Patch {
                    label: random.one_in(2).then(|| label("named")),
                    groups: random
                        .one_in(2)
                        .then(|| groups(&[random.pick(&["g", "h"])])),
                    notes: None,
                    charge: random.one_in(2).then(|| random.charge()),
                    weight: None,
                };
                let _ = table.patch(random.id(&table), patch);
            }
            5 => {
                let rows = (0..random.below(4)).map(|nth| NewCaller {
                    patterns: vec![random.pattern()],
                    ..new_caller(&format!("static-{nth}"), &[], random.charge())
                });
                let rows = rows.collect();
                let _ = table.replace_static(rows);
            }
            _ => {
                let identity = random.identity();
                let known = scan(&table, &identity);
                table.classify(&identity, &mut matches);
                let found: Vec<_> = matches.as_slice().iter().collect();
                let dry: Vec<_> = found
                    .iter()
                    .map(|m| (m.caller(), m.specificity()))
                    .collect();
                if known.is_empty() {
                    assert_eq!(ids(&matches), [CallerId::UNKNOWN]);
                } else {
                    assert_eq!(dry, known);
                }
                let last_calls = table.rows().map(|row| (row.id, row.last_call));
                let last_calls = last_calls.collect();
                let registration = table.classify_and_touch(now, &identity, &mut matches);
                if let Registration::Registered {
                    forgotten: Some(id),
                    ..
                } = registration
                {
                    check_forgotten(&last_calls, &[id], &table);
                }
                let after = scan(&table, &identity);
                let is_left_out = registration == Registration::Surplus || after.is_empty();
                let mut expected: Vec<CallerId> = after.iter().map(|(id, _)| *id).collect();
                if is_left_out {
                    expected.push(CallerId::UNKNOWN);
                }
                assert_eq!(ids(&matches), expected, "{registration:?}");
                if let Registration::Registered { id, .. } = registration {
                    let own = Pattern::identifying(&identity, identify, ipv6_prefix);
                    let own = own.expect("it was registered");
                    assert_eq!(table.holder(&own), Some(id));
                }
                for id in expected {
                    let row = table.get(id).expect("it matched");
                    assert_eq!(row.last_call, LastCall::At(now));
                }
            }
        }
        check_laws(&table, auto_register.try_into().expect("not negative"));
    }
}

#[test]
fn a_table_finds_what_a_scan_finds_whatever_was_done_to_it() {
    for seed in seeds(0..500) {
        run(seed);
    }
}
