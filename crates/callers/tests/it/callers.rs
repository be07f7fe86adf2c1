//! The table of callers, through its public face.

mod random_changes;
mod registration;
mod reload;
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
