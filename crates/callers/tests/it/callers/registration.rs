//! Callers register themselves, and the least recently seen ones are evicted.

use super::*;

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
