//! The configuration of access and identity: socket files, TLS, proxies.

use tidegate::call::listener::{ClientAuth, ProxyProtocol};
use tidegate::call::{Listener, UserFrom};
use tidegate::config::{self, Config, Problems, Severity};

use crate::certificates::Files;

/// A config whose listener has these lines, and which has these sections.
fn text(bind: &str, listener: &str, sections: &str) -> String {
    format!(
        r#"
[[listen]]
name = "nova"
bind = "{bind}"
{listener}
[backend]
socket = "127.0.0.1:2000"
kind = "zvm"
http = "http://127.0.0.1:8081"
tcp = "127.0.0.1:9000"
[limits]
per_window = "total:30"
max_wait = "50s"
{sections}
"#
    )
}

fn read(text: &str) -> Result<config::LoadedConfig, Problems> {
    config::read(text, "config.toml", std::iter::empty())
}

#[track_caller]
fn good(text: &str) -> Config {
    let checked = read(text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
    assert!(checked.warnings.is_empty(), "{text}\n{}", checked.warnings);
    checked.config
}

#[track_caller]
fn listener(lines: &str) -> Listener {
    let config = good(&text("127.0.0.1:8080", lines, ""));
    config.listen.listeners[0].clone()
}

/// Exactly one mistake of this severity, that says these words in its key, message or cure.
#[track_caller]
fn told(text: &str, severity: Severity, words: &[&str]) {
    let problems = match read(text) {
        Ok(checked) => checked.warnings,
        Err(problems) => problems,
    };
    assert_eq!(problems.len(), 1, "{text}\n{problems}");
    let problem = problems.iter().next().expect("there is one");
    assert_eq!(problem.severity, severity, "{problems}");
    let told = problems.plain(problem);
    for word in words {
        assert!(told.contains(word), "no {word:?} in\n{told}");
    }
}

#[track_caller]
fn wrong(lines: &str, words: &[&str]) {
    told(&text("127.0.0.1:8080", lines, ""), Severity::Error, words);
}

#[test]
fn a_socket_file_is_named_by_its_whole_path() {
    let config = good(&text("unix:/run/t.sock", "unix_mode = \"0600\"", ""));
    let listener = &config.listen.listeners[0];
    assert_eq!(listener.bind.to_string(), "unix:/run/t.sock");
    assert_eq!(listener.unix_mode, 0o600);
    let longest = format!("unix:/{}", "x".repeat(106));
    good(&text(&longest, "", ""));
    let check = |bind: &str, words: &[&str]| {
        told(
            &text(bind, "", ""),
            Severity::Error,
            &[&["listen[0].bind"], words].concat(),
        );
    };
    check("unix:", &["not the whole path", "unix:/run/"]);
    check("unix:run/t.sock", &["not the whole path"]);
    check("unix:/run/", &["not the whole path"]);
    check("unix:/a\\u0000b", &["NUL"]);
    check(&format!("{longest}x"), &["at most 107 bytes"]);
    check("/run/t.sock", &["is a path", "unix:/run/t.sock"]);
}

#[test]
fn a_mode_is_octal_and_for_socket_files_alone() {
    for mode in ["0700", "666", "0000", "0777"] {
        good(&text("unix:/t", &format!("unix_mode = \"{mode}\""), ""));
    }
    for mode in ["\"0860\"", "\"1777\"", "\"66\"", "\"+660\"", "\"\""] {
        let lines = format!("unix_mode = {mode}");
        wrong(&lines, &["listen[0].unix_mode", "octal"]);
    }
    wrong("unix_mode = 660", &["660 is not a string", "0660"]);
    let on_tcp = text("127.0.0.1:8080", "unix_mode = \"0600\"", "");
    told(&on_tcp, Severity::Warning, &["unix_mode", "no effect"]);
}

#[test]
fn two_listeners_do_not_share_a_socket_file() {
    let second = "[[listen]]\nname = \"b\"\nbind = \"unix:/t\"";
    let words = [
        "listen[1].bind",
        "overlaps listen[0].bind",
        "path of its own",
    ];
    told(&text("unix:/t", second, ""), Severity::Error, &words);
    good(&text("unix:/u", second, ""));
}

#[test]
fn tls_is_required_unless_the_listener_detects_it() {
    let files = Files::new();
    let check = |lines: &str, tls: &str, required: bool| {
        let listener = listener(&format!("{lines}\n{}", files.section(tls)));
        let tls = listener.tls.expect("it has TLS");
        assert_eq!(tls.required, required);
        assert_eq!(tls.client_auth, ClientAuth::Off);
        let alpn = !lines.contains("socket") && !lines.contains("tcp");
        assert_eq!(tls.loaded.alpn_protocols.len(), usize::from(alpn));
    };
    check("", "", false);
    check("", "required = true", true);
    check("protocol = \"http\"", "", true);
    check("protocol = \"socket\"", "", true);
    check("protocol = \"tcp\"", "required = true", true);
    for protocol in ["http", "socket", "tcp"] {
        let lines = format!("protocol = \"{protocol}\"");
        wrong(
            &format!("{lines}\n{}", files.section("required = false")),
            &["listen[0].tls.required", "auto"],
        );
    }
}

#[test]
fn a_client_is_asked_for_a_certificate_only_where_that_can_work() {
    let files = Files::new();
    let listener = listener(&format!(
        "user_from = \"certificate\"\n{}",
        files.asking("required", "required = true")
    ));
    assert_eq!(listener.user_from, UserFrom::Certificate);
    assert_eq!(
        listener.tls.expect("it has TLS").client_auth,
        ClientAuth::Required
    );
    good(&text("127.0.0.1:8080", &files.asking("optional", ""), ""));
    wrong(
        &files.asking("required", ""),
        &["tls.client_auth", "without TLS", "required = true"],
    );
    wrong(
        &files.section("client_auth = \"optional\""),
        &["tls.client_auth", "client_ca"],
    );
    let idle = text("127.0.0.1:8080", &files.asking("off", ""), "");
    told(&idle, Severity::Warning, &["tls.client_ca", "no effect"]);
    wrong("user_from = \"certificate\"", &["user_from", "client_auth"]);
    wrong(
        &format!("user_from = \"certificate\"\n{}", files.section("")),
        &["user_from", "client_auth"],
    );
    wrong("user_from = \"password\"", &["user_from", "\"basic\""]);
    let no_user = "protocol = \"socket\"\nuser_from = \"basic\"";
    let no_user = text("127.0.0.1:8080", no_user, "");
    told(&no_user, Severity::Warning, &["user_from", "Basic"]);
}

#[test]
fn a_bad_file_is_reported_with_key_name_and_reason() {
    let files = Files::new();
    let good_section = files.section("");
    let swap = |from: &str, to: &str| good_section.replace(from, to);
    for file in ["cert", "key"] {
        let rest = good_section.lines().filter(|line| !line.starts_with(file));
        wrong(
            &rest.collect::<Vec<_>>().join("\n"),
            &["listen[0].tls", &format!("no {file}")],
        );
    }
    wrong(
        &swap("tls.crt", "gone.crt"),
        &["tls.cert", "gone.crt", "No such file"],
    );
    wrong(
        &swap("tls.key", "gone.key"),
        &["tls.key", "gone.key", "No such file"],
    );
    wrong(&swap("/tls.crt", ""), &["tls.cert", "it is no file"]);
    wrong(
        &swap("tls.crt", "tls.key"),
        &["tls.cert", "holds no certificate", "BEGIN CERTIFICATE"],
    );
    wrong(
        &swap("tls.key", "tls.crt"),
        &["tls.key", "holds no key", "BEGIN PRIVATE KEY"],
    );

    files.write("other.key", &Files::new().read("tls.key"));
    wrong(
        &swap("tls.key", "other.key"),
        &["tls.key", "other.key", "not the key", "of the same kind"],
    );
    files.write(
        "secret.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    wrong(
        &swap("tls.key", "secret.key"),
        &["tls.key", "passphrase", "openssl pkey"],
    );
    files.write("cut.crt", &files.read("tls.crt")[..200]);
    wrong(&swap("tls.crt", "cut.crt"), &["tls.cert", "cut.crt"]);
    files.write(
        "bent.crt",
        "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
    );
    wrong(
        &swap("tls.crt", "bent.crt"),
        &["tls.cert", "line 1", "not base64"],
    );
    files.write(
        "bent.crt",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    wrong(&swap("tls.crt", "bent.crt"), &["tls.", "bent.crt"]);
    files.write("large.crt", &"x".repeat((1 << 20) + 1));
    wrong(
        &swap("tls.crt", "large.crt"),
        &["tls.cert", "larger than 1 MiB"],
    );
    let asking = files.asking("optional", "");
    wrong(
        &asking.replace("clients.crt", "bent.crt"),
        &["tls.client_ca", "bent.crt"],
    );
    // No message shows what stands in a key's file.
    let secret = "S3CRETS3CRETS3CRETS3CRETS3CRET==";
    files.write(
        "odd.key",
        &format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n"),
    );
    let problems = read(&text("127.0.0.1:8080", &swap("tls.key", "odd.key"), ""));
    let problems = problems.expect_err("it is no key").to_string();
    assert!(!problems.contains("S3CRET"), "{problems}");
}

#[test]
fn trusted_proxies_are_a_list_of_networks() {
    let with = |list: &str| {
        text(
            "127.0.0.1:8080",
            "",
            &format!("[callers]\ntrusted_proxies = {list}"),
        )
    };
    let trusted = |list: &str| good(&with(list)).protocol.trusted_proxies;
    assert!(trusted("[]").networks.is_empty());
    let both = trusted("[\"10.0.0.0/8\", \"unix\", \"192.0.2.1\", \"2001:db8::/32\"]");
    let networks: Vec<_> = both.networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]);
    assert!(both.unix);
    let check = |list: &str, words: &[&str]| {
        told(
            &with(list),
            Severity::Error,
            &[&["callers.trusted_proxies"], words].concat(),
        );
    };
    check("\"10.0.0.0/8\"", &["not an array"]);
    check("[8]", &["8 is not a string"]);
    check("[\"10.1.2.3/8\"]", &["did you mean \"10.0.0.0/8\"?"]);
    check("[\"10.0.0.0/33\"]", &["no prefix length from 0 to 32"]);
    check("[\"lb.example\"]", &["neither an address nor a network"]);
    let many = format!("[{}]", "\"10.0.0.1\",".repeat(257));
    check(&many, &["257", "at most 256"]);
}

#[test]
fn a_proxy_header_needs_a_proxy_that_could_send_one() {
    let required = "proxy_protocol = \"required\"";
    let local = "[callers]\ntrusted_proxies = [\"127.0.0.1\"]";
    let config = good(&text("127.0.0.1:8080", required, local));
    let listener = &config.listen.listeners[0];
    assert_eq!(listener.proxy_protocol, ProxyProtocol::Required);
    // No proxy is trusted by default, not even one on this machine.
    let words_of_default = ["listen[0].proxy_protocol", "no client is admitted"];
    told(
        &text("127.0.0.1:8080", required, ""),
        Severity::Error,
        &words_of_default,
    );
    let words = [
        "listen[0].proxy_protocol",
        "no client is admitted",
        "trusted_proxies",
    ];
    told(&text("unix:/t", required, ""), Severity::Error, &words);
    let none = "[callers]\ntrusted_proxies = [\"unix\"]";
    let on_tcp = text("127.0.0.1:8080", required, none);
    told(&on_tcp, Severity::Error, &words);
    good(&text("unix:/t", required, none));
    wrong(
        "proxy_protocol = \"auto\"",
        &["proxy_protocol", "\"required\""],
    );
    wrong("proxy_protocol = true", &["proxy_protocol", "\"off\""]);
}

#[test]
fn the_effective_config_reads_back_as_the_same() {
    let files = Files::new();
    let again = |text: &str| {
        let config = good(text);
        let written = config::effective(&config);
        let back = read(&written).unwrap_or_else(|problems| panic!("{written}\n{problems}"));
        assert_eq!(back.config, config, "{written}");
    };
    let callers = "[callers]\ntrusted_proxies = [\"10.0.0.0/8\", \"unix\"]";
    again(&text("unix:/run/t.sock", "unix_mode = \"0640\"", callers));
    again(&text("unix:/t", "proxy_protocol = \"required\"", callers));
    again(&text("127.0.0.1:1", "user_from = \"basic\"", ""));
    again(&text(
        "127.0.0.1:1",
        "",
        "[callers]\ntrusted_proxies = []\n[client]\nhandshake_timeout = \"1500ms\"",
    ));
    again(&text("127.0.0.1:1", &files.section(""), ""));
    let second = "[[listen]]\nname = \"b\"\nbind = \"127.0.0.1:2\"";
    let both = format!(
        "user_from = \"certificate\"\n{}\n{second}",
        files.asking("required", "required = true")
    );
    again(&text("127.0.0.1:1", &both, ""));
}

#[test]
fn the_environment_can_name_the_files() {
    let files = Files::new();
    let path = |name: &str| files.path(name).display().to_string();
    let variables = [
        ("TIDEGATE_LISTEN__0__TLS__CERT", path("tls.crt")),
        ("TIDEGATE_LISTEN__0__TLS__KEY", path("tls.key")),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value));
    let text = text("127.0.0.1:8080", "", "");
    let checked = config::read(&text, "config.toml", variables.into_iter());
    let config = checked.expect("both are good").config;
    assert!(config.listen.listeners[0].tls.is_some());
}
