use super::*;

const AT: u64 = 1_795_515_072 * SECOND;

#[track_caller]
fn read<'a>(template: &str, line: &'a str) -> LoggedRequest<'a> {
    let template = Template::new(template).expect("a format");
    template.read(line.as_bytes()).expect("it fits")
}

#[test]
fn apaches_time_is_the_start_and_its_durations_have_their_unit() {
    let check = |template: &str, line: &str, arrived: u64, took: u64, is_whole: bool| {
        let read = read(template, line);
        assert_eq!(
            (read.arrived, read.ended - read.arrived),
            (arrived, took),
            "{line}"
        );
        assert_eq!(read.is_whole, is_whole, "{line}");
    };
    check(
        "%t %D",
        "[24/Nov/2026:10:11:12 +0000] 1500",
        AT,
        1500 * US,
        true,
    );
    check(
        "%{usec}t %D",
        "1795515072000007 15",
        AT + 7 * US,
        15 * US,
        false,
    );
    check(
        "%{msec}t %{ms}T",
        "1795515072003 15",
        AT + 3 * MS,
        15 * MS,
        false,
    );
    check("%{sec}t %T/%D", "1795515072 0/1500", AT, 1500 * US, true);
    check(
        "%t.%{usec_frac}t %D",
        "[24/Nov/2026:10:11:12 +0000].000009 2",
        AT + 9 * US,
        2 * US,
        false,
    );
    check(
        "%{%F %T}t.%{msec_frac}t %{%z}t %D",
        "2026-11-24 11:11:12.005 +0100 2",
        AT + 5 * MS,
        2 * US,
        false,
    );
    check(
        "%{end:msec}t %D",
        "1795515072005 2000",
        AT + 3 * MS,
        2 * MS,
        false,
    );
}

#[test]
fn nginxs_time_is_the_end_and_attempts_at_the_backend_are_added_up() {
    let format = "$msec $request_time \"$upstream_response_time\" $status";
    let request = read(format, "1795515072.100 0.100 \"0.030, 0.040\" 200");
    assert_eq!(request.arrived, AT);
    assert_eq!(request.started, Some(AT));
    assert_eq!(request.ended, AT + 70 * MS);
    let request = read(format, "1795515072.100 0.100 \"-\" 503");
    assert_eq!(request.started, None);
    let local = read(
        "[${time_local}] $request_time",
        "[24/Nov/2026:10:11:12 +0000] 0.250",
    );
    assert_eq!((local.arrived, local.is_whole), (AT - 250 * MS, true));
}

#[test]
fn quotes_inside_of_a_request_do_not_end_it() {
    let line = r#"1.2.3.4 - - [24/Nov/2026:10:11:12 +0000] "GET /a\" 200 1 HTTP/1.1" 404 9 77"#;
    let request = read("%h %l %u %t \"%r\" %>s %b %D", line);
    assert_eq!(request.result, RequestOutcome::Status(404));
    assert_eq!(request.ended - request.arrived, 77 * US);
}

#[test]
fn the_caller_is_the_user_or_else_the_address() {
    let format = r#"%h %l %u %t \"%r\" %>s %b %D %X"#;
    let line = |user: &str| {
        format!("1.2.3.4 - {user} [24/Nov/2026:10:11:12 +0000] \"GET /a?b=c HTTP/1.1\" 200 - 77 X")
    };
    let nova = line("nova");
    let request = read(format, &nova);
    assert_eq!(request.caller, Some("nova"));
    assert_eq!(request.asked, Some(("GET", "/a".into())));
    assert_eq!(request.result, RequestOutcome::Left);
    assert_eq!(read(format, &line("-")).caller, Some("1.2.3.4"));
}

#[test]
fn a_wrong_format_is_refused_with_the_cure() {
    let check = |given: &str, says: &str| {
        let why = Template::new(given).expect_err(given);
        assert!(why.contains(says), "{given}: {why}");
    };
    check("%h %D", "%{usec}t");
    check("%h %t", "%D");
    check("%t %T", "add %D");
    check("%t %D %Z", "%Z");
    check("%{%A}t %D", "%{usec}t");
    check("%t %h%u %D", "no text between");
    check("$msec $status", "$request_time");
    check("$request_time", "$msec");
    check("%t %{end:usec}t %D", "name one");
    check("%{usect %D", "no }");
    check("%t %D %", "ends with %");
}

#[test]
fn no_bytes_make_it_panic() {
    let template = Template::new("%h %l %u %t \"%r\" %>s %b %D").expect("a format");
    let line = br#"1.2.3.4 - - [24/Nov/2026:10:11:12 +0000] "GET / HTTP/1.1" 200 9 77"#;
    for cut in 0..line.len() {
        assert!(template.read(&line[..cut]).is_none() || cut >= line.len() - 1);
        let mut changed = line.to_vec();
        changed[cut] = 0xff;
        let _: Option<LoggedRequest<'_>> = template.read(&changed);
    }
}
