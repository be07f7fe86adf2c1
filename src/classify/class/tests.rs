use super::*;

fn settings() -> ClassSettings {
    let known = |name: &str, may_rise| KnownClass {
        name: name.into(),
        may_rise,
    };
    let listener = |listener: &str, class: Option<&str>, header| FromListener {
        listener: listener.into(),
        class: class.map(Arc::from),
        class_header: header,
    };
    ClassSettings {
        classes: vec![
            known(USER, false),
            known("long", false),
            known("sync", true),
            known("capped", false),
            known(POLLING, true),
        ],
        functions: vec![
            ("guest_get_info".into(), "sync".into()),
            ("vswitch_grant_user".into(), POLLING.into()),
            ("report_get".into(), USER.into()),
        ],
        efforts: vec![(Effort::Minutes, "long".into())],
        listeners: vec![
            listener("ceilometer", Some("sync"), false),
            listener("terraform", Some(USER), false),
            listener("capped", Some("capped"), false),
            listener("patched", None, true),
        ],
        header: HeaderName::from_static(HEADER),
    }
}

fn headers(values: &[&str]) -> Headers {
    let mut headers = Headers::default();
    for value in values {
        let value = value.parse().expect("a header's value");
        headers.append(&HeaderName::from_static(HEADER), &value);
    }
    headers
}

/// `listener function`, followed by a header, if there is one, or by several.
#[track_caller]
fn check(call: &str, class: &str, role: Role) {
    let mut words = call.split(' ');
    let listener = words.next().expect("a listener");
    let function = words.next().expect("a function");
    let headers = headers(&words.collect::<Vec<_>>());
    let clues = Clues {
        function,
        listener,
        headers: Some(&headers),
        is_write: false,
    };
    let found = Classes::new(BackendKind::default(), &settings()).find(&clues);
    assert_eq!(found, (class.into(), role), "{call}");
}

#[test]
fn writes_are_user_work_and_all_else_is_polling() {
    check("nova guest_start", USER, Role::Acts);
    check("nova get_volume_connector", USER, Role::Acts);
    check("nova guest_get_power_state", POLLING, Role::Follows);
    check("nova guest_list", POLLING, Role::Follows);
    check("nova not_in_the_table", POLLING, Role::Follows);
}

#[test]
fn a_write_that_no_table_knows_is_urgent_and_promotes_no_read() {
    let clues = Clues {
        function: "other",
        listener: "nova",
        headers: None,
        is_write: true,
    };
    let found = Classes::new(BackendKind::default(), &settings()).find(&clues);
    assert_eq!(found, (USER.into(), Role::Apart));
}

#[test]
fn a_listener_has_a_class_for_reads_and_a_write_stays_user_work() {
    check("ceilometer guest_inspect_stats", "sync", Role::Follows);
    check("ceilometer guest_start", USER, Role::Acts);
    check("terraform guest_get_power_state", USER, Role::Acts);
    check("terraform not_in_the_table", USER, Role::Acts);
}

#[test]
fn a_class_from_the_config_wins_over_the_table_and_the_listener() {
    check("nova guest_get_info", "sync", Role::Apart);
    check("terraform guest_get_info", "sync", Role::Apart);
    check("nova report_get", USER, Role::Acts);
    check("nova guest_deploy", "long", Role::Acts);
    check("ceilometer guest_deploy", "long", Role::Acts);
    // The operator put this write into polling, so it is not user work.
    check("nova vswitch_grant_user", POLLING, Role::Apart);
}

#[test]
fn a_class_with_a_limit_of_its_own_is_not_left() {
    check("capped guest_get_power_state", "capped", Role::Apart);
}

#[test]
fn a_header_comes_first_where_it_is_believed_and_names_one_class_that_there_is() {
    check("patched guest_get_info user", USER, Role::Acts);
    check("patched guest_start polling", POLLING, Role::Apart);
    check("patched guest_start long", "long", Role::Acts);
    check("patched guest_get_power_state sync", "sync", Role::Apart);
    check("patched guest_start root", USER, Role::Acts);
    check("patched guest_list user polling", POLLING, Role::Follows);
    check("nova guest_list user", POLLING, Role::Follows);
}

#[test]
fn the_method_decides_only_for_unknown_functions() {
    let classes = Classes::new(BackendKind::default(), &settings());
    let check = |function, expected: &str| {
        let clues = Clues {
            function,
            listener: "nova",
            headers: None,
            is_write: true,
        };
        assert_eq!(&*classes.find(&clues).0, expected, "{function:?}");
    };
    check("not_in_the_table", USER);
    check("guest_list", POLLING);
}
