use super::*;

#[test]
fn the_forms_of_the_real_file_are_read() {
    let text = "\
[DEFAULT]
base = 20
[zvm]
# a comment on its own line
disk_pool = ECKD:POOL1
[sdkserver]
Bind_Addr: 10.0.0.1
bind_port = %(base)s00
request_queue_size = 1_28
; another comment
max_worker_count = 32
smapi_rate_limit_per_window = total:30,
    guest_list:10
smapi_max_outstanding_requests=8
[logging]
log_dir = /var/log/100%%
";
    let read = SdkServer::read(text).expect("sdkserver reads it too");
    let expected = SdkServer {
        bind_addr: Some("10.0.0.1".into()),
        bind_port: Some(2000),
        request_queue_size: Some(128),
        max_worker_count: Some(32),
        window_seconds: None,
        per_window: Some("total:30,\nguest_list:10".into()),
        outstanding: Some(8),
        max_wait_seconds: None,
    };
    assert_eq!(read, expected);
    assert_eq!(SdkServer::read(""), Ok(SdkServer::default()));
}

#[test]
fn what_stops_sdkserver_is_refused_with_its_line() {
    let check = |text: &str, says: &str| {
        let why = SdkServer::read(text).expect_err(text);
        assert!(why.contains(says), "{text}: {why}");
    };
    check("[a]\nx = 1\nX = 2\n", "line 3: x is there twice");
    check("[a]\n[b]\n[a]\n", "line 3: the section [a]");
    check(
        "[logging]\npattern = 100%\n[sdkserver]\n",
        "line 2: the value of pattern has a %",
    );
    check("[a]\nx = %(y)s\n", "refers to a %(name)s that is not there");
    check("[a]\nx = %(x)s\n", "refers to itself");
    check("[a]\nx = %(y\n", "without its )s");
    check("x = 1\n", "before the first [section]");
    check("[a]\nnonsense\n", "line 2");
    check(
        "[sdkserver]\nbind_port = 2000 # no comment\n",
        "bind_port must be a whole number",
    );
    check("[sdkserver]\nbind_port = 70000\n", "bind_port");
}

/// Gives the same files to Python's own `configparser`: it and we accept the same, with the same values.
#[test]
fn python_reads_the_same() {
    const PROGRAM: &str = "
import configparser, json, sys
for text in json.load(sys.stdin):
    try:
        c = configparser.ConfigParser()
        c.read_string(text)
        print(json.dumps({s: {k: c.get(s, k) for k in c.options(s)} for s in c.sections()}))
    except configparser.Error:
        print('null')
";
    let pieces = [
        "[a]\n",
        "[b]\n",
        "[DEFAULT]\n",
        "x = 1\n",
        "y: 2\n",
        "x = %(y)s\n",
        "Y = 5%%\n",
        "  more\n",
        "\n",
        "# c\n",
        "z = 1 # c\n",
        "z =\n",
        "w = %\n",
        "v\n",
        "[a] tail\n",
        "  # c\n",
        " u = a:b=c\n",
        "t = %(v)s%(x)s\n",
        "= 1\n",
        "[]\n",
        "\t[c]\n",
    ];
    let mut state = 7_u64;
    let mut below = |end: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    let texts: Vec<String> = (0..3_000)
        .map(|_| {
            let count = 1 + below(8);
            let body: String = (0..count).map(|_| pieces[below(pieces.len())]).collect();
            if below(3) > 0 {
                format!("[a]\n{body}").replace("[a]\n[a]", "[a]")
            } else {
                body
            }
        })
        .collect();
    let mut python = std::process::Command::new("python3")
        .args(["-c", PROGRAM])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let given = serde_json::to_vec(&texts).expect("texts");
    let mut stdin = python.stdin.take().expect("it is piped");
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &given));
    let output = python.wait_with_output().expect("it ends");
    writing.join().expect("no panic").expect("it reads all");
    let output = String::from_utf8(output.stdout).expect("JSON");
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.len(), texts.len());
    let mut accepted = 0;
    for (text, line) in texts.iter().zip(lines) {
        let theirs: Option<BTreeMap<String, BTreeMap<String, String>>> =
            serde_json::from_str(line).expect("JSON");
        let ours = sections(text).ok().map(|all| {
            let values = |section: IniSection| {
                section
                    .into_iter()
                    .map(|(key, (_, value))| (key, value))
                    .collect()
            };
            all.into_iter()
                .map(|(name, section)| (name, values(section)))
                .collect()
        });
        accepted += usize::from(theirs.is_some());
        assert_eq!(ours, theirs, "{text}");
    }
    assert!(accepted > 300, "{accepted} were accepted");
}
