//! Limits hold for what an operator thinks they hold for: which backend is behind, how a path
//! is spelled, and which calls meet no limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::call::BackendKind;
use tidegate::config::{self, LoadedConfig, Problems};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Held, OK, Scripted, Stack, array, ask};

fn read(text: &str) -> Result<LoadedConfig, Problems> {
    config::read(text, "config.toml", std::iter::empty())
}

/// A config with these lines in `[backend]` and these in `[limits]` and after it.
fn text(backend: &str, more: &str) -> String {
    format!(
        "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:0\"\n{}\n[backend]\n{backend}\n\
         [queue]\npostpone = \"in_turn\"\n[admin]\nbind = \"\"\n\
         [limits]\nper_window = \"total:100000\"\n\
         max_wait = \"50s\"\n{more}\n",
        match backend.contains("http =") {
            true => "protocol = \"http\"",
            false if backend.contains("socket =") => "protocol = \"socket\"",
            false => "protocol = \"tcp\"",
        }
    )
}

const HTTP: &str = "http = \"http://127.0.0.1:8080\"";
const SOCKET: &str = "socket = \"127.0.0.1:2001\"";
const TCP: &str = "tcp = \"127.0.0.1:9000\"";

#[test]
fn an_http_backend_without_a_kind_is_an_error_that_names_both_and_what_they_mean() {
    let problems = read(&text(HTTP, "")).expect_err("no kind");
    assert_eq!(problems.len(), 1, "{problems}");
    let told = problems.to_string();
    for word in [
        "backend.kind",
        "kind = \"zvm\"",
        "kind = \"http\"",
        "sdkwsgi",
        "any other HTTP server",
        "no limit",
        "every call meets the limits",
    ] {
        assert!(told.contains(word), "no {word:?} in\n{told}");
    }
    let both = format!("{SOCKET}\n{HTTP}");
    assert_eq!(read(&text(&both, "")).expect_err("no kind").len(), 1);
    let wrong = read(&text(&format!("kind = \"zmv\"\n{HTTP}"), "")).expect_err("no such kind");
    assert_eq!(wrong.len(), 1, "{wrong}");
    assert!(
        wrong.to_string().contains("did you mean \"zvm\"?"),
        "{wrong}"
    );
}

#[test]
fn a_socket_backend_alone_is_a_zvm_one_and_a_tunnel_alone_has_no_table() {
    let kind = |backend: &str| {
        let checked = read(&text(backend, "")).unwrap_or_else(|problems| panic!("{problems}"));
        let warned = checked.warnings.iter();
        let warned = warned
            .filter(|problem| problem.key == "backend.kind")
            .count();
        (checked.config.classify.kind, warned)
    };
    assert_eq!(kind(SOCKET), (BackendKind::Zvm, 0));
    assert_eq!(
        kind(&format!("kind = \"zvm\"\n{SOCKET}")),
        (BackendKind::Zvm, 0)
    );
    assert_eq!(
        kind(&format!("kind = \"zvm\"\n{HTTP}")),
        (BackendKind::Zvm, 0)
    );
    assert_eq!(
        kind(&format!("kind = \"http\"\n{HTTP}")),
        (BackendKind::Http, 0)
    );
    assert_eq!(kind(TCP), (BackendKind::Http, 0));
    // It works, and is probably not meant.
    assert_eq!(
        kind(&format!("kind = \"http\"\n{SOCKET}")),
        (BackendKind::Http, 1)
    );
    assert_eq!(
        kind(&format!("kind = \"zvm\"\n{TCP}")),
        (BackendKind::Zvm, 1)
    );
}

#[test]
fn names_of_the_table_are_doubted_for_a_backend_without_a_table() {
    let more = "exempt = [\"db\"]\n[[class]]\nname = \"long\"\neffort = \"minutes\"";
    let warned = |kind: &str| {
        let backend = format!("kind = \"{kind}\"\n{HTTP}");
        let checked = read(&text(&backend, more)).unwrap_or_else(|problems| panic!("{problems}"));
        let keys = checked.warnings.iter().map(|problem| problem.key.clone());
        let keys: Vec<_> = keys.filter(|key| key.contains("e")).collect();
        (keys, checked.config.classify.exempt.len())
    };
    let (keys, exempt) = warned("http");
    assert!(keys.contains(&"limits.exempt".to_owned()), "{keys:?}");
    assert!(keys.contains(&"class[0].effort".to_owned()), "{keys:?}");
    assert_eq!(exempt, 0);
    let (keys, exempt) = warned("zvm");
    assert!(!keys.contains(&"class[0].effort".to_owned()), "{keys:?}");
    assert!(exempt > 0);
}

/// A plain HTTP server that keeps each request for a moment and notes the most at once.
async fn slow(peak: &Arc<AtomicUsize>) -> Scripted {
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::clone(peak));
    Scripted::start(move |_, mut stream| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

/// A hundred of one request at once; returns the most that the backend had at once.
async fn most_at_once(kind: &str, method: &str, path: &str) -> usize {
    let peak = Arc::new(AtomicUsize::new(0));
    let backend = slow(&peak).await;
    let kind = match kind {
        "" => String::new(),
        kind => format!("kind = \"{kind}\"\n"),
    };
    let stack = Stack::start(&text(
        &format!("{kind}http = \"http://{}\"", backend.addr),
        "outstanding = 4",
    ));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    let calls: Vec<_> = (0..100)
        .map(|_| tokio::spawn(ask(stack.addr, request.clone())))
        .collect();
    for call in calls {
        let answer = call.await.expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    stack.at_rest().await;
    peak.load(Ordering::SeqCst)
}

const EXEMPT: [(&str, &str); 6] = [
    ("GET", "/"),
    ("POST", "/token"),
    ("POST", "/files"),
    ("PUT", "/files"),
    ("GET", "/smapi-healthy"),
    ("GET", "/smapi_health"),
];

#[tokio::test]
async fn on_a_plain_http_backend_every_route_meets_the_limits() {
    for (method, path) in EXEMPT {
        let peak = most_at_once("http", method, path).await;
        assert!(peak <= 4, "{method} {path}: {peak} at once");
    }
}

#[tokio::test]
async fn on_a_zvm_backend_what_never_reaches_smapi_still_meets_none() {
    for (method, path) in [EXEMPT[0], EXEMPT[1]] {
        let peak = most_at_once("zvm", method, path).await;
        assert!(peak > 4, "{method} {path}: {peak} at once");
    }
}

#[tokio::test]
async fn an_array_posted_to_a_plain_http_backend_is_only_a_body() {
    let mut held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let stack = Stack::start(&text(
        &format!("kind = \"http\"\nhttp = \"http://{}\"", held.backend.addr),
        "",
    ));
    // The first would be a call of a function, the second is refused by the socket protocol.
    for (number, body) in [r#"["guest_list", [], {}]"#, "[1, 2"]
        .into_iter()
        .enumerate()
    {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let asking = tokio::spawn(ask(stack.addr, request));
        assert!(held.next().await.ends_with(body));
        held.go.notify_one();
        let answer = asking.await.expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let facts = stack.seen.ended(number + 1).await;
        assert_eq!(&*facts[number].function, "other");
    }
}

#[test]
fn check_prints_every_exempt_route_and_what_bounds_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = |kind: &str, more: &str| {
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text(&format!("kind = \"{kind}\"\n{HTTP}"), more)).expect("written");
        let report = tidegate::tools::check::report(&path, false);
        assert!(report.good, "{}", report.problems);
        report.settings
    };
    let own = "exempt = [\"guest_list\"]\n[[route]]\nmethod = \"GET\"\npath = \"/static/{name}\"\n\
               [[route]]\nmethod = \"*\"\npath = \"/token\"\nfunction = \"token_create\"";
    let told = report("zvm", own);
    for (method, path) in EXEMPT.iter().filter(|(_, path)| *path != "/token") {
        assert!(
            told.contains(&format!("{method} {path} (built in")),
            "{told}"
        );
    }
    assert!(
        !told.contains("POST /token"),
        "a route of one's own limits it: {told}"
    );
    assert!(told.contains("GET /static/{name} (a [[route]]"), "{told}");
    assert!(told.contains("guest_list (exempt)"), "{told}");
    assert!(told.contains("at most 64 of these at once"), "{told}");
    let told = report("http", "");
    assert!(
        !told.contains("no limits") && !told.contains("/token"),
        "{told}"
    );
}

/// Ways to write `/guests` that a backend may read as `/guests`.
const SPELLED: [&str; 12] = [
    "/%67uests",
    "/guest%73",
    "//guests",
    "/guests//",
    "/./guests",
    "/guests/.",
    "/x/../guests",
    "/x/%2e%2E/guests",
    "/a/a/a/a/a/a/a/a/a/../../../../../../../../../guests",
    "/../guests",
    "/static/../guests",
    "/static/%2e%2e/guests",
];

/// A route that meets no limit, and one of guests.
const STATIC: &str = "[[route]]\nmethod = \"GET\"\npath = \"/static/{a}\"\n\
                      [[route]]\nmethod = \"GET\"\npath = \"/static/{a}/{b}\"\n";

/// The route that the built-in table has for guests.
const GUESTS: &str = "[[route]]\nmethod = \"GET\"\npath = \"/guests\"\nfunction = \"guest_list\"\n";

async fn get(stack: &Stack, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    stack.ask(head).await
}

#[tokio::test]
async fn a_path_that_is_spelled_oddly_evades_no_limit_and_is_refused_unless_the_config_forwards_it()
{
    for (kind, routes) in [("zvm", ""), ("http", GUESTS)] {
        let held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let backend = format!("kind = \"{kind}\"\nhttp = \"http://{}\"", held.backend.addr);
        let stack = Stack::start(&text(&backend, &format!("{routes}{STATIC}")));
        for (number, path) in SPELLED.iter().enumerate() {
            let answer = held.answer_until(get(&stack, path)).await;
            let facts = stack.seen.ended(number + 1).await;
            assert!(
                answer.starts_with("HTTP/1.1 400"),
                "{kind} {path}: {answer}"
            );
            let reason = ["(bad_request)", "\"reason\":\"bad_request\""];
            let has_reason = reason.iter().any(|it| answer.contains(it));
            assert!(has_reason, "{kind} {path}: {answer}");
            assert!(facts[number].limited, "{kind} {path}");
        }
        assert_eq!(held.done(), 0);
        for path in [
            "/guests",
            "/guests/",
            "/guests?a=//b/../%67",
            "/static/a.b/..c",
            "/static/%20%24",
        ] {
            let answer = held.answer_until(get(&stack, path)).await;
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{kind} {path}: {answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_path_whose_spelling_makes_no_difference_is_forwarded_as_it_came() {
    let anywhere = ["/~user/%7E", "/a//b", "//", "/a/./b/../c", "/%61"];
    let no_reports = ["//reports", "/%72eports", "/x/../reports", "/reports/"];
    let reports = "[[route]]\nmethod = \"GET\"\npath = \"/reports\"\nfunction = \"report_list\"\n";
    let of_others = "[[route]]\nmethod = \"POST\"\npath = \"/reports\"\nfunction = \"report\"\n";
    let (none, some): (&[&str], _) = (&[], &no_reports[..]);
    let cases = [
        ("http", "", some, none),
        ("http", of_others, some, none),
        ("http", reports, none, &no_reports[..3]),
        ("zvm", "", some, &["//guests", "/%67uests"]),
    ];
    for (kind, routes, forwarded, refused) in cases {
        let mut held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let backend = format!("kind = \"{kind}\"\nhttp = \"http://{}\"", held.backend.addr);
        let stack = Stack::start(&text(&backend, routes));
        let anywhere = anywhere.iter().filter(|it| kind == "http" || **it != "//");
        let mut ended = 0;
        for path in anywhere.chain(forwarded) {
            let answer = held.answer_until(get(&stack, path)).await;
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{kind} {path}: {answer}"
            );
            let sent = held.next().await;
            assert!(sent.starts_with(&format!("GET {path} ")), "{sent}");
            ended += 1;
            let facts = stack.seen.ended(ended).await;
            assert!(facts[ended - 1].limited, "{kind} {path}");
        }
        for path in refused {
            let answer = held.answer_until(get(&stack, path)).await;
            assert!(
                answer.starts_with("HTTP/1.1 400"),
                "{kind} {path}: {answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_path_that_one_kind_of_server_reads_as_a_route_is_refused() {
    let held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let backend = format!("kind = \"http\"\nhttp = \"http://{}\"", held.backend.addr);
    let stack = Stack::start(&text(&backend, &GUESTS.replace("/guests", "/x/guests")));
    // Only a server that leaves empty segments in place reads /x/guests.
    let paths = ["/x//../guests", "/y/%2e%2e/x/guests", "/x/a/../%67uests"];
    for path in paths.map(str::to_owned).into_iter().chain([
        // Too long to be compared.
        format!("/y/../{}", "z".repeat(4096)),
    ]) {
        let answer = held.answer_until(get(&stack, &path)).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{path}: {answer}");
    }
    let answer = held
        .answer_until(get(&stack, &format!("/{}", "z".repeat(4096))))
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn an_odd_path_that_is_forwarded_goes_as_it_came_and_is_the_function_that_the_backend_runs() {
    for (kind, routes) in [("zvm", ""), ("http", GUESTS)] {
        let mut held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let backend = format!("kind = \"{kind}\"\nhttp = \"http://{}\"", held.backend.addr);
        let more = format!("{routes}{STATIC}[client]\nodd_paths = \"forward\"\n");
        let stack = Stack::start(&text(&backend, &more));
        for (number, path) in SPELLED.iter().enumerate() {
            let answer = held.answer_until(get(&stack, path)).await;
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{kind} {path}: {answer}"
            );
            let facts = stack.seen.ended(number + 1).await;
            assert_eq!(&*facts[number].function, "guest_list", "{kind} {path}");
            assert!(facts[number].limited, "{kind} {path}");
            let sent = held.next().await;
            assert!(
                sent.starts_with(&format!("GET {path} HTTP/1.1\r\n")),
                "{sent}"
            );
        }
    }
}

#[tokio::test]
async fn an_unlimited_route_takes_no_path_that_changes_when_it_is_read() {
    let held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let backend = format!("kind = \"zvm\"\nhttp = \"http://{}\"", held.backend.addr);
    let more = format!("exempt = [\"guest_list\"]\n{STATIC}[client]\nodd_paths = \"forward\"\n");
    let stack = Stack::start(&text(&backend, &more));
    let plain = ["/static/a", "/", "/guests", "/smapi_health"];
    let odd = [
        "/static/%61",
        "/static//a",
        "//",
        "/.",
        "//guests",
        "/smapi%5fhealth",
        "/static%2Fa",
    ];
    for (number, path) in plain.iter().chain(&odd).enumerate() {
        let answer = held.answer_until(get(&stack, path)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        let facts = stack.seen.ended(number + 1).await;
        assert_eq!(facts[number].limited, number >= plain.len(), "{path}");
    }
}

#[tokio::test]
async fn json_that_only_python_accepts_keeps_its_function_name() {
    let mut held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let backend = format!("kind = \"zvm\"\nhttp = \"http://{}\"", held.backend.addr);
    let stack = Stack::start(&text(&backend, ""));
    let cases = [
        (
            "POST",
            "/guests/A/action",
            r#"{"action": "start", "x": NaN}"#,
            "guest_start",
        ),
        (
            "POST",
            "/guests/A/action",
            r#"{"x": [-Infinity, {"y": Infinity}], "action": "start"}"#,
            "guest_start",
        ),
        (
            "POST",
            "/guests/A/action",
            r#"{"\ud800": 1, "action": "start"}"#,
            "guest_start",
        ),
        (
            "PUT",
            "/guests/A/nic/1000",
            r#"{"info": {"couple": true, "x": NaN}}"#,
            "guest_nic_couple_to_vswitch",
        ),
        (
            "PUT",
            "/guests/A/nic/1000",
            r#"{"info": {"couple": "\u0074rue"}}"#,
            "guest_nic_couple_to_vswitch",
        ),
        (
            "PUT",
            "/vswitches/V",
            r#"{"vswitch": {"grant_userid": Infinity}}"#,
            "vswitch_grant_user",
        ),
        (
            "POST",
            "/",
            r#"["guest_list", [NaN], {"a": -Infinity}]"#,
            "guest_list",
        ),
        // What Python does not take either names nothing.
        (
            "POST",
            "/guests/A/action",
            r#"{"action": "start", "x": -NaN}"#,
            "other",
        ),
        (
            "POST",
            "/guests/A/action",
            r#"{"action": "start", "x": 1NaN}"#,
            "other",
        ),
    ];
    for (number, (method, path, body, function)) in cases.into_iter().enumerate() {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = held.answer_until(stack.ask(request)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{body}: {answer}");
        let facts = stack.seen.ended(number + 1).await;
        assert_eq!(&*facts[number].function, function, "{body}");
        assert!(held.next().await.ends_with(body), "{body}");
    }
}

#[tokio::test]
async fn json_that_only_python_accepts_passes_the_socket_unchanged() {
    let mut held = Held::start(OK).await;
    let stack = Stack::start(&text(&format!("socket = \"{}\"", held.backend.addr), ""));
    let call = r#"["guest_get_info", ["LINUX1", NaN, Infinity], {"x": -Infinity}]"#;
    let answer = held.answer_until(stack.ask(call)).await;
    assert_eq!(answer.as_bytes(), OK);
    assert_eq!(held.next().await, call);
    let facts = &stack.seen.ended(1).await[0];
    assert_eq!(&*facts.function, "guest_get_info");
    assert_eq!(facts.target.as_deref(), Some("LINUX1"));
    for wrong in [
        r#"["guest_list", [-NaN], {}]"#,
        r#"["guest_list", [nan], {}]"#,
        r#"["guest_list", [1NaN], {}]"#,
    ] {
        let answer = stack.ask(wrong).await;
        assert!(answer.contains("(bad_request)"), "{wrong}: {answer}");
    }
}

#[tokio::test]
async fn the_wildcard_of_ipv6_takes_ipv4_too_and_the_check_knows_it() {
    let beside = |first: &str, second: &str| {
        let text = text(SOCKET, "").replace("127.0.0.1:0", first);
        let second = format!(
            "[[listen]]\nname = \"b\"\nbind = \"{second}\"\nprotocol = \"socket\"\n[backend]"
        );
        read(&text.replace("[backend]", &second)).is_ok()
    };
    assert!(!beside("[::]:8081", "0.0.0.0:8081"));
    assert!(!beside("[::]:8081", "127.0.0.1:8081"));
    assert!(!beside("[::ffff:127.0.0.1]:8081", "127.0.0.1:8081"));
    assert!(beside("[::1]:8081", "127.0.0.1:8081"));
    let backend = Scripted::in_both_dialects().await;
    let both = text(
        &format!("kind = \"zvm\"\nhttp = \"http://{}\"", backend.addr),
        "",
    );
    let stack = Stack::start(&both.replace("127.0.0.1:0", "[::]:0"));
    let request = "GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    for host in ["127.0.0.1", "::1"] {
        let address =
            std::net::SocketAddr::new(host.parse().expect("an address"), stack.addr.port());
        let answer = ask(address, request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let facts = stack.seen.ended(2).await;
    let came: Vec<_> = facts.iter().map(|it| it.origin.identity.address).collect();
    let addresses = ["127.0.0.1", "::1"].map(|host| Some(host.parse().expect("an address")));
    assert_eq!(came, addresses);
}

#[test]
fn one_pair_of_ports_is_used_everywhere() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![];
    for name in ["README.md", "config.toml.example", "Dockerfile", "Makefile"] {
        files.push(root.join(name));
    }
    for folder in [
        "docs",
        "docs/tutorials",
        "docs/how-to",
        "docs/reference",
        "packaging",
    ] {
        let folder = std::fs::read_dir(root.join(folder)).expect("a folder");
        let paths = folder.map(|entry| entry.expect("an entry").path());
        files.extend(paths.filter(|path| path.is_file()));
    }
    // 8081 and 2000 are in front, 8080 and 2001 behind.
    let wrong = [
        ("bind", ":8080"),
        ("bind", ":2001"),
        ("http = ", ":8081"),
        ("socket = ", ":2000"),
        ("EXPOSE", " 8080"),
        ("docker run", "-p 8080:"),
        (" -p 8080:", ""),
    ];
    let mut lines = 0;
    for file in files.iter().filter(|file| file.is_file()) {
        let Ok(text) = std::fs::read_to_string(file) else {
            continue;
        };
        for line in text.lines() {
            let line = line.trim_start_matches(['#', ' ']);
            // sdkserver's own option, and a line that names both.
            if line.contains("bind_port") || line.contains(" and socket = ") {
                continue;
            }
            lines += 1;
            for (begin, port) in wrong {
                let found = line.starts_with(begin) && line.contains(port);
                assert!(!found, "{}: {line}", file.display());
            }
        }
    }
    assert!(lines > 1000);
}

#[test]
fn a_backend_that_is_this_sidecar_itself_is_refused() {
    let check = |bind: &str, backend: &str| {
        let text = text(backend, "[admin]\nbind = \"127.0.0.1:9180\"");
        let text = text.replace("[admin]\nbind = \"\"\n", "");
        match read(&text.replace("127.0.0.1:0", bind)) {
            Ok(checked) => {
                let warned = checked.warnings.iter();
                let mut told = warned.filter(|it| it.message.contains("lead back"));
                told.next().map_or("good", |_| "doubted")
            }
            Err(problems) => {
                let told = problems.to_string();
                assert!(told.contains("leads back to"), "{told}");
                assert!(
                    problems.iter().all(|it| it.key.starts_with("backend.")),
                    "{told}"
                );
                "refused"
            }
        }
    };
    for (bind, backend, verdict) in [
        ("127.0.0.1:8081", "socket = \"127.0.0.1:8081\"", "refused"),
        ("0.0.0.0:8081", "socket = \"127.0.0.1:8081\"", "refused"),
        ("0.0.0.0:8081", "socket = \"127.9.9.9:8081\"", "refused"),
        ("[::]:8081", "socket = \"127.0.0.1:8081\"", "refused"),
        ("[::]:8081", "socket = \"[::1]:8081\"", "refused"),
        ("127.0.0.1:8081", "socket = \"localhost:8081\"", "refused"),
        ("0.0.0.0:8081", "socket = \"LOCALHOST.:8081\"", "refused"),
        ("127.0.0.1:8081", "socket = \"0.0.0.0:8081\"", "refused"),
        ("127.0.0.1:8081", "tcp = \"127.0.0.1:8081\"", "refused"),
        (
            "127.0.0.1:8081",
            "kind = \"http\"\nhttp = \"http://127.0.0.1:8081\"",
            "refused",
        ),
        (
            "127.0.0.1:8081",
            "kind = \"http\"\nhttp = \"http://127.0.0.1:9180\"",
            "refused",
        ),
        ("127.0.0.1:8081", "socket = \"127.0.0.1:8080\"", "good"),
        ("127.0.0.1:8081", "socket = \"127.0.0.2:8081\"", "good"),
        ("127.0.0.1:8081", "socket = \"192.0.2.1:8081\"", "good"),
        ("0.0.0.0:8081", "socket = \"192.0.2.1:8081\"", "good"),
        ("0.0.0.0:8081", "socket = \"sdk.example:8081\"", "good"),
    ] {
        assert_eq!(check(bind, backend), verdict, "{bind} {backend}");
    }
}

#[tokio::test]
async fn a_name_that_leads_back_takes_no_second_slot() {
    // A name to the config, an address of this machine to the system.
    const BACK: &str = "0x7f000001";
    for dialect in ["socket", "http"] {
        let port = crate::support::closed_port().port();
        let backend = match dialect {
            "socket" => format!("socket = \"{BACK}:{port}\""),
            _ => format!("kind = \"http\"\nhttp = \"http://{BACK}:{port}\""),
        };
        let more = "max_wait = \"1s\"";
        let text = text(&backend, "").replace("max_wait = \"50s\"", more);
        let stack = Stack::start(&text.replace("127.0.0.1:0", &format!("127.0.0.1:{port}")));
        let answer = match dialect {
            "socket" => stack.ask(array("guest_list", "A")).await,
            _ => get(&stack, "/guests").await,
        };
        assert!(answer.contains("backend_unreachable"), "{answer}");
        stack.at_rest().await;
        // One call, and no call that came round.
        assert_eq!(stack.seen.all().len(), 1);
    }
}

#[test]
fn a_broken_header_hides_no_mistake_below_it() {
    let lines = |text: &str| {
        let problems = read(text).expect_err(text);
        let lines: Vec<_> = problems
            .iter()
            .filter_map(|it| match it.place {
                config::ConfigPlace::File { line, .. } => Some(line),
                _ => None,
            })
            .collect();
        (lines, problems.to_string())
    };
    let rest = "[backend]\nsocket = \"127.0.0.1:2001\"\n[limits]\n\
                per_window = \"total:30\"\n";
    for header in ["[[listen]", "[[listen", "[[listen]]"] {
        let text = format!("{header}\nname = nova\nbind = \"x\"\nprotocol = \"sockte\"\n{rest}");
        let (lines, told) = lines(&text);
        let header = usize::from(header != "[[listen]]");
        assert_eq!(lines.len(), 3 + header, "{told}");
        assert_eq!(&lines[header..], [2, 3, 4], "{told}");
    }
    let listen = "[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:0\"\n";
    for header in ["[que ue]", "[queue", "[queue # a comment", "[rate limit]"] {
        let text = format!("{listen}{rest}{header}\nworkers = 0\n[client]\nbuffer_bytes = 1\n");
        let (lines, told) = lines(&text);
        assert!(
            lines.contains(&8) && lines.contains(&11),
            "{header}: {told}"
        );
        assert_eq!(
            lines.contains(&9),
            header.starts_with("[queue"),
            "{header}: {told}"
        );
        assert!(!told.contains("not an array"), "{header}: {told}");
    }
}

#[test]
fn check_says_what_becomes_of_a_token_that_expires_while_its_call_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.toml");
    for (kind, says) in [("zvm", true), ("http", false)] {
        std::fs::write(&path, text(&format!("kind = \"{kind}\"\n{HTTP}"), "")).expect("written");
        let report = tidegate::tools::check::report(&path, false);
        let told = report.settings.contains("X-Auth-Token") && report.settings.contains("401");
        assert_eq!(told, says, "{}", report.settings);
    }
}
