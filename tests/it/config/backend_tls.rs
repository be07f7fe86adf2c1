//! The configuration of TLS to backends.

use tidegate::config::Severity;

use super::{LEAST, doubted, good, read};
use crate::certificates::Authority;

/// The least config with TLS to the HTTP backend, and these lines in `[backend.tls]`.
fn secured(lines: &str) -> String {
    let text = LEAST.replace("http://", "https://");
    text.replace("[limits]", &format!("[backend.tls]\n{lines}\n[limits]"))
}

/// The config has exactly one error, at this place and with these words.
#[track_caller]
fn check(text: &str, words: &[&str]) {
    let problems = read(text).expect_err(text);
    let errors = problems.iter().filter(|p| p.severity == Severity::Error);
    let errors: Vec<_> = errors.map(|problem| problems.plain(problem)).collect();
    assert_eq!(errors.len(), 1, "{text}\n{problems}");
    for word in words {
        assert!(errors[0].contains(word), "no {word:?} in\n{}", errors[0]);
    }
}

#[test]
fn an_address_says_whether_a_backend_speaks_tls() {
    let authority = Authority::new();
    let ca = format!("ca = \"{}\"", authority.ca().display());
    let text = secured(&ca).replace("\"127.0.0.1:2000\"", "\"tls://sdk.example:2000\"");
    let forward = good(&text).forward;
    let shown = |remote: Option<tidegate::forward::Remote>| remote.expect("given").to_string();
    assert_eq!(shown(forward.http), "127.0.0.1:8081 (TLS)");
    assert_eq!(shown(forward.socket), "sdk.example:2000 (TLS)");
    let plain = good(&LEAST.replace("socket", "tcp = \"unix:/run/t.sock\"\nsocket")).forward;
    assert_eq!(shown(plain.http), "127.0.0.1:8081");
    assert_eq!(shown(plain.tcp), "unix:/run/t.sock");
    let usual = good(&secured(&ca).replace("127.0.0.1:8081", "sdk.example"));
    assert_eq!(shown(usual.forward.http), "sdk.example:443 (TLS)");
}

#[test]
fn what_cannot_be_together_is_one_mistake_with_its_cure() {
    let authority = Authority::new();
    let issued = authority.issue(&["sdk.example"]);
    let (ca, cert) = (authority.ca(), issued.cert.display());
    let ca = format!("ca = \"{}\"", ca.display());
    let plain = LEAST.replace("[limits]", &format!("[backend.tls]\n{ca}\n[limits]"));
    check(
        &plain,
        &[
            "config.toml:9:",
            "backend.tls",
            "no backend is spoken to with TLS",
            "https://host:port",
        ],
    );
    check(
        &secured(&format!("{ca}\ncert = \"{cert}\"")),
        &[
            "config.toml:11:",
            "backend.tls.cert",
            "no key to it",
            "add key",
        ],
    );
    check(
        &secured(&format!("{ca}\nkey = \"{cert}\"")),
        &["backend.tls.key", "no certificate to it", "add cert"],
    );
    check(
        &secured(&format!("{ca}\naccept_any_certificate = true")),
        &["backend.tls.ca", "no effect", "leave one of the two out"],
    );
    let other = authority.issue(&["sdk.example"]);
    let mixed = format!("{ca}\ncert = \"{cert}\"\nkey = \"{}\"", other.key.display());
    check(
        &secured(&mixed),
        &["backend.tls.key", "is not the key of the certificate"],
    );
    check(
        &secured("ca = \"/nowhere/ca.crt\""),
        &["backend.tls.ca", "cannot read \"/nowhere/ca.crt\""],
    );
    check(
        &secured(&format!("ca = \"{}\"", issued.key.display())),
        &["backend.tls.ca", "holds no certificate"],
    );
    check(
        &secured(&format!("{ca}\nserver_name = \"a b\"")),
        &[
            "backend.tls.server_name",
            "is no host name",
            "without a scheme or a port",
        ],
    );
    let scheme = |right: &str, wrong: &str| {
        let text = LEAST.replace("\"127.0.0.1:2000\"", &format!("\"{wrong}\""));
        check(&text, &["backend.socket", "another scheme", right]);
    };
    scheme("write \"tls://sdk:2000\"", "https://sdk:2000");
    scheme("write \"sdk:2000\"", "http://sdk:2000");
}

#[test]
fn to_check_no_certificate_is_a_warning() {
    doubted(
        &secured("accept_any_certificate = true"),
        &[
            "backend.tls.accept_any_certificate",
            "is not checked",
            "give ca",
        ],
    );
}

#[test]
fn files_that_changed_make_another_backend() {
    let authority = Authority::new();
    let (first, second) = (authority.issue(&["a"]), authority.issue(&["a"]));
    let text = |issued: &crate::certificates::Issued| {
        secured(&format!(
            "ca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"",
            authority.ca().display(),
            issued.cert.display(),
            issued.key.display()
        ))
    };
    let before = good(&text(&first)).forward.http;
    assert!(before == good(&text(&first)).forward.http);
    assert!(before != good(&text(&second)).forward.http);
    std::fs::copy(&second.cert, &first.cert).expect("it can be written to");
    std::fs::copy(&second.key, &first.key).expect("it can be written to");
    assert!(before != good(&text(&first)).forward.http);
}

#[test]
fn every_config_of_the_page_is_taken_where_its_files_exist() {
    let dir = tempfile::tempdir().expect("a place");
    let authority = Authority::new();
    let issued = authority.issue(&["sidecar.example"]);
    let files = [
        (&authority.ca(), "backend-ca.crt"),
        (&issued.cert, "client.crt"),
        (&issued.key, "client.key"),
    ];
    for (from, to) in files {
        std::fs::copy(from, dir.path().join(to)).expect("there is room");
    }
    let page = include_str!("../../../docs/how-to/backend-tls.md");
    let blocks: Vec<_> = page.split("```toml\n").skip(1).collect();
    for block in &blocks {
        let block = block.split("```").next().expect("a block");
        let own = format!("{}/", dir.path().display());
        let mut text = block.replace("/etc/tidegate/", &own);
        if !text.contains("[[listen]]") {
            text.push_str("[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:1\"\n");
            text.push_str("[limits]\nper_window = \"total:30\"\n");
        }
        good(&text);
    }
    assert!(blocks.len() >= 6, "{}", blocks.len());
}
