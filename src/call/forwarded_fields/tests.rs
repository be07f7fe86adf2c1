use super::*;
use FieldAction::{Append, Pass, Remove, Set};
use http::{HeaderName, HeaderValue};

/// The fields that are set for a client at 192.0.2.1 that asks `t` without TLS.
const PLAIN: [&str; 5] = [
    "X-Forwarded-For: 192.0.2.1",
    "X-Real-IP: 192.0.2.1",
    "X-Forwarded-Proto: http",
    "X-Forwarded-Host: t",
    "Forwarded: for=192.0.2.1;host=t;proto=http",
];

fn head(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.append(&name, &HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

fn fields(actions: [FieldAction; 5], client: &str, is_tls: bool) -> Option<Arc<ForwardedFields>> {
    let client = (client != "unix").then(|| client.parse().expect("an address"));
    ForwardedFields::new(actions, client, is_tls)
}

#[track_caller]
fn check_lines(fields: Option<Arc<ForwardedFields>>, head: &Headers, expected: &[&str]) {
    let mut lines = Vec::new();
    fields
        .expect("something changes")
        .write(head, |_| true, &mut lines);
    let lines = String::from_utf8(lines).expect("text");
    let lines: Vec<_> = lines.split_terminator("\r\n").collect();
    assert_eq!(lines, expected);
}

#[test]
fn set_writes_what_is_known_of_the_connection() {
    let plain = head(&[("host", "t")]);
    check_lines(fields([Set; 5], "192.0.2.1", false), &plain, &PLAIN);
    check_lines(
        fields([Set; 5], "2001:db8::1", true),
        &head(&[("host", "t:8443")]),
        &[
            "X-Forwarded-For: 2001:db8::1",
            "X-Real-IP: 2001:db8::1",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: t:8443",
            "Forwarded: for=\"[2001:db8::1]\";host=\"t:8443\";proto=https",
        ],
    );
}

#[test]
fn what_the_client_says_is_not_in_what_is_set() {
    let lies = head(&[
        ("host", "t"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-real-ip", "10.0.0.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
        ("forwarded", "for=10.0.0.3;proto=https"),
    ]);
    check_lines(fields([Set; 5], "192.0.2.1", false), &lies, &PLAIN);
    check_lines(fields([Remove; 5], "192.0.2.1", false), &lies, &[]);
}

#[test]
fn a_client_without_an_address_is_unknown() {
    let plain = head(&[("host", "t")]);
    let known = [
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: t",
        "Forwarded: for=unknown;host=t;proto=http",
    ];
    check_lines(fields([Set; 5], "unix", false), &plain, &known);
    check_lines(fields([Append; 5], "unix", false), &plain, &known);
    check_lines(
        fields([Append, Pass, Pass, Pass, Append], "unix", false),
        &head(&[
            ("host", "t"),
            ("x-forwarded-for", "192.0.2.7"),
            ("forwarded", "for=192.0.2.7"),
        ]),
        &[
            "X-Forwarded-For: 192.0.2.7",
            "Forwarded: for=192.0.2.7, for=unknown;host=t;proto=http",
        ],
    );
}

#[test]
fn append_adds_to_lists_and_keeps_single_values() {
    check_lines(
        fields([Append; 5], "10.0.0.9", false),
        &head(&[
            ("host", "t"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-for", ""),
            ("x-forwarded-for", "10.0.0.8, 10.0.0.7"),
            ("x-real-ip", "192.0.2.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop"),
            ("forwarded", "for=\"[2001:db8::7]:80\";proto=https"),
        ]),
        &[
            "X-Forwarded-For: 192.0.2.7, 10.0.0.8, 10.0.0.7, 10.0.0.9",
            "X-Real-IP: 192.0.2.7",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: shop",
            "Forwarded: for=\"[2001:db8::7]:80\";proto=https, for=10.0.0.9;host=t;proto=http",
        ],
    );
    check_lines(
        fields([Append; 5], "10.0.0.9", true),
        &head(&[("host", "t"), ("x-forwarded-proto", " "), ("x-real-ip", "")]),
        &[
            "X-Forwarded-For: 10.0.0.9",
            "X-Real-IP: 10.0.0.9",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: t",
            "Forwarded: for=10.0.0.9;host=t;proto=https",
        ],
    );
}

#[test]
fn a_value_that_ends_within_quotes_is_not_kept() {
    for open in ["for=\"x", "for=\"x\\\"", "\"", "for=a, for=\"b\";by=\""] {
        check_lines(
            fields([Pass, Pass, Pass, Pass, Append], "10.0.0.9", false),
            &head(&[("forwarded", open), ("forwarded", "for=\"a\\\"b\"")]),
            &["Forwarded: for=\"a\\\"b\", for=10.0.0.9;proto=http"],
        );
    }
}

#[test]
fn a_name_that_differs_in_its_signs_is_the_same_field() {
    for name in [
        "x-forwarded-for",
        "X-FORWARDED-FOR",
        "X_Forwarded_For",
        "x.forwarded-for",
    ] {
        let found = ForwardedField::of(name.as_bytes());
        assert_eq!(found, Some(ForwardedField::XForwardedFor), "{name}");
    }
    for field in ForwardedField::ALL {
        assert_eq!(ForwardedField::of(field.name().as_bytes()), Some(field));
    }
    for name in [
        "x-forwarded-port",
        "xaforwarded-for",
        "x-forwarded-fo",
        "forwarde-",
        "",
    ] {
        assert_eq!(ForwardedField::of(name.as_bytes()), None, "{name}");
    }
    let all = fields([Append; 5], "192.0.2.1", false).expect("something changes");
    assert!(all.replaces(b"X_Forwarded_For"));
    assert!(!all.replaces(b"X-Forwarded-Port"));
    check_lines(
        Some(all),
        &head(&[("host", "t"), ("x_forwarded_for", "1.1.1.1")]),
        &PLAIN,
    );
}

#[test]
fn where_all_is_passed_there_is_nothing_to_do() {
    assert_eq!(fields([Pass; 5], "192.0.2.1", false), None);
    let one = fields([Pass, Remove, Pass, Pass, Pass], "192.0.2.1", false);
    let one = one.expect("one is removed");
    assert!(one.replaces(b"x-real-ip"));
    assert!(!one.replaces(b"forwarded"));
}

#[test]
fn the_longest_addresses_fit() {
    let ones = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    for address in [ones, "::ffff:255.255.255.255", "255.255.255.255", "::"] {
        let address: IpAddr = address.parse().expect("an address");
        let text = AddressText::new(Some(address));
        assert_eq!(text.text(), address.to_string().as_bytes());
    }
}
