//! The table takes a config, and comes back after a restart.

use super::*;

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
