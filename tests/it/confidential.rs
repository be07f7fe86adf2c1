//! No output shows a secret: a mark is put into every kind of secret, in files, variables, arguments and requests,
//! and looked for in everything that the programs write and answer.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tempfile::TempDir;
use tidegate::config::LoadError;
use tidegate::tools;
use tokio::process::Command;

use crate::certificates::Files;
use crate::sidecar::{Sidecar, run, with_programs};
use crate::support::{Scripted, ask, closed_port};

/// Part of every secret but keys.
const MARK: &str = "Zq7hunter2mark";

/// The forms in which a text may show: as it is, as the decimal bytes of Rust's `Debug`, in base64.
fn forms(secret: &str) -> [String; 3] {
    let numbers = format!("{:?}", secret.as_bytes());
    [
        secret.to_owned(),
        numbers.trim_matches(['[', ']']).to_owned(),
        // Without the ends, which depend on what stands beside it.
        BASE64.encode(secret)[..secret.len() * 4 / 3 - 4].to_owned(),
    ]
}

/// Secrets, and how many outputs were looked at.
struct Watch {
    forms: Vec<String>,
    outputs: usize,
}

impl Watch {
    fn of<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            forms: secrets.into_iter().flat_map(forms).collect(),
            outputs: 0,
        }
    }

    /// The mark, and pieces of each line of a key.
    fn with_key(pem: &str) -> Self {
        let body = pem.lines().filter(|line| !line.starts_with('-'));
        let pieces = body.filter_map(|line| line.get(4..20));
        Self::of(pieces.chain([MARK]))
    }

    #[track_caller]
    fn hides(&mut self, output: &str, of: &str) {
        self.outputs += 1;
        for form in &self.forms {
            assert!(!output.contains(form), "{of} shows {form}:\n{output}");
        }
    }

    /// Every output of a command.
    async fn hides_in(&mut self, command: &mut Command, of: &str) {
        let said = run(command).await;
        self.hides(&format!("{}\n{}", said.out, said.err), of);
    }

    /// Every output of the commands that read a config, and of one that serves it if it is bad.
    async fn hides_in_commands(&mut self, path: &Path, of: &str, env: &[(&str, &str)]) {
        let tidegate = |arguments: &[&str]| {
            let mut command = Command::new(with_programs());
            command.args(arguments).arg("--config").arg(path);
            command.envs(env.iter().copied());
            command.env("TIDEGATE_RUNTIME_DIR", path.with_extension("run"));
            command
        };
        let mut is_bad = false;
        for arguments in [
            &["check"][..],
            &["check", "--json"],
            &["check", "--quiet"],
            &["check", "--probe"],
            &["check", "--probe", "--json"],
            &["limits"],
            &["callers", "--json"],
            &["top", "--once"],
            &["lease-server", "--check"],
        ] {
            let said = run(&mut tidegate(arguments)).await;
            is_bad |= arguments == ["check"] && said.code == Some(1);
            self.hides(
                &format!("{}\n{}", said.out, said.err),
                &format!("{of}: {arguments:?}"),
            );
        }
        if is_bad {
            self.hides_in(&mut tidegate(&["serve"]), &format!("{of}: serve"))
                .await;
        }
        // Drawn, as on a terminal.
        let report = tools::check::report(path, true);
        self.hides(&format!("{}{}", report.problems, report.settings), of);
        let Err(error) = tidegate::config::load(path) else {
            return;
        };
        self.hides(&format!("{error:?}"), of);
        if let LoadError::Wrong(problems) = error {
            self.hides(&format!("{problems:?}"), of);
        }
    }
}

/// A config with sections of its own; what is in `[backend]` may be replaced.
fn config(backend: &str, sections: &str) -> String {
    format!(
        "[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
         [backend]\n{backend}\n[limits]\nper_window = \"total:30\"\n{sections}\n"
    )
}

fn socket() -> String {
    format!("socket = \"{}\"", closed_port())
}

fn write(dir: &TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("config.toml");
    fs::write(&path, text).expect("it can be written to");
    path
}

/// A key in every form that people and tools make of one by mistake.
fn bent(key: &str) -> Vec<String> {
    let body: Vec<_> = key.lines().filter(|line| !line.starts_with('-')).collect();
    let body = body.concat();
    vec![
        key.replace('\n', "\\n"),
        key.replace('\n', " "),
        key.replace('\n', ""),
        format!("\u{feff}{key}"),
        key.replace("-----END PRIVATE KEY-----\n", ""),
        key.replace("KEY-----\n", "KEY----- "),
        key.replace("PRIVATE", &body),
        key.replacen(&body[..8], "!", 1),
        key.replace("-----", "--"),
        body,
        key.replace("PRIVATE KEY", "EC PRIVATE KEY"),
        key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"),
        key.replace("PRIVATE KEY", "CERTIFICATE"),
        format!("{key}{}", key.trim_end()).replace("\n-----BEGIN", "-----BEGIN"),
    ]
}

#[tokio::test]
async fn no_output_shows_a_key_however_its_file_is_damaged() {
    let files = Files::new();
    let (cert, key) = (files.read("tls.crt"), files.read("tls.key"));
    let mut watch = Watch::with_key(&key);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let name = |name: &str| files.path(name).display().to_string();
    for (number, bent) in bent(&key).into_iter().enumerate() {
        files.write("bent.pem", &bent);
        files.write("combined.pem", &format!("{cert}{bent}"));
        for (cert, key, ca) in [
            ("tls.crt", "bent.pem", "clients.crt"),
            ("bent.pem", "tls.key", "clients.crt"),
            ("combined.pem", "combined.pem", "clients.crt"),
            ("tls.crt", "tls.key", "bent.pem"),
        ] {
            let (cert, key, ca) = (name(cert), name(key), name(ca));
            let tls = format!(
                "tls = {{ cert = \"{cert}\", key = \"{key}\", client_ca = \"{ca}\", client_auth = \"required\" }}"
            );
            let listener = config(&socket(), "").replace("[backend]", &format!("{tls}\n[backend]"));
            let of = format!("{number}: {cert} {key} {ca}");
            let report = tools::check::report(&write(&dir, &listener), true);
            watch.hides(&report.problems, &of);
            let backend = format!(
                "tcp = \"tls://127.0.0.1:1\"\n[backend.tls]\nca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\""
            );
            let listener = config(&backend, "").replace("\"socket\"", "\"tcp\"");
            let report = tools::check::report(&write(&dir, &listener), true);
            watch.hides(&report.problems, &of);
            let store = format!(
                "[quota_store]\nengine = \"etcd\"\nservers = [\"https://127.0.0.1:1\"]\nexpected_sidecars = 2\n\
                 ca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\""
            );
            let report = tools::check::report(&write(&dir, &config(&socket(), &store)), true);
            watch.hides(&report.problems, &of);
        }
        let (bent, combined) = (name("bent.pem"), name("combined.pem"));
        let tls = format!("tls = {{ cert = \"{combined}\", key = \"{bent}\" }}");
        let listener = config(&socket(), "").replace("[backend]", &format!("{tls}\n[backend]"));
        let of = format!("way {number}");
        watch
            .hides_in_commands(&write(&dir, &listener), &of, &[])
            .await;
        let leases = format!(
            "bind = \"127.0.0.1:0\"\nstatus_bind = \"\"\n[tls]\ncert = \"{combined}\"\nkey = \"{bent}\"\n\
             [[resource]]\nglob = \"*\"\ncapacity = 1\n[resource.algorithm]\nkind = \"fair_share\"\n"
        );
        let path = write(&dir, &leases);
        for arguments in [&["lease-server", "--check"][..], &["lease-server"]] {
            let mut command = Command::new(with_programs());
            command.args(arguments).arg("--config").arg(&path);
            if arguments.len() == 1 && number > 3 {
                continue;
            }
            let said = run(&mut command).await;
            watch.hides(&format!("{}{}", said.out, said.err), &of);
        }
        let mut agent = Command::new(with_programs());
        agent.args([
            "lease-agent",
            "--server",
            "127.0.0.1:1",
            "--bind",
            "127.0.0.1:0",
        ]);
        agent.args([
            "--ca",
            &name("clients.crt"),
            "--cert",
            &combined,
            "--key",
            &bent,
        ]);
        watch.hides_in(&mut agent, &of).await;
        // A key where the path of one belongs, and as the config itself.
        let inside = files.read("bent.pem");
        let escaped = inside.replace('\\', "\\\\").replace('\n', "\\n");
        for line in [
            format!("tls = {{ cert = \"/c\", key = \"{escaped}\" }}"),
            format!("tls = {{ cert = \"/c\", key = {inside} }}"),
            format!("no_such_option = \"{escaped}\""),
            format!(
                "[listen.tls]\ncert = \"/c\"\nkey = \"\"\"\n{inside}\"\"\"\nno_such_option = 1"
            ),
        ] {
            let listener =
                config(&socket(), "").replace("[backend]", &format!("{line}\n[backend]"));
            let report = tools::check::report(&write(&dir, &listener), true);
            watch.hides(&report.problems, &line);
        }
        watch
            .hides_in_commands(&files.path("bent.pem"), "the key as the config", &[])
            .await;
        let env = [
            ("TIDEGATE_LISTEN__0__TLS__KEY", &*inside),
            ("TIDEGATE_LISTEN__0__TLS__CERT", "/c"),
        ];
        let path = write(&dir, &config(&socket(), ""));
        watch
            .hides_in_commands(&path, "the key as a variable", &env)
            .await;
    }
    assert!(watch.outputs > 500, "{}", watch.outputs);
}

#[tokio::test]
async fn no_output_of_a_running_sidecar_shows_a_secret_also_when_a_reload_is_refused() {
    let backend = Scripted::in_both_dialects().await;
    let files = Files::new();
    let (cert, key) = (files.read("tls.crt"), files.read("tls.key"));
    let mut watch = Watch::with_key(&key);
    let tls = format!(
        "tls = {{ cert = \"{}\", key = \"{}\" }}\n",
        files.path("tls.crt").display(),
        files.path("tls.key").display()
    );
    let text = |admin: &str| {
        let backend = format!("socket = \"{}\"", backend.addr);
        config(
            &backend,
            &format!(
                "[admin]\nbind = \"127.0.0.1:0\"\n{admin}\n[log]\nlevel = \"trace\"\n\
                 [quota_store]\nengine = \"redis\"\nservers = [\"redis://{}\"]\nexpected_sidecars = 2\n\
                 user = \"u\"\npassword = \"{MARK}\"\n\
                 [[quota]]\nname = \"q\"\ntotal = 100\nrefresh_window = \"60s\"\n\
                 applies_to = \"user\"\n",
                closed_port()
            ),
        )
        .replace("[backend]", &format!("{tls}[backend]"))
    };
    let sidecar = Sidecar::start(&text("")).await;
    // Each makes the reload fail.
    let mistakes = [
        format!("token = \"{MARK} {MARK}\""),
        format!("token = {MARK} {MARK}"),
        format!("tokens = [\"{MARK}\"]"),
        format!("tokens = [\"ann:{MARK} b\", \"{MARK}\", {MARK}]"),
        format!("tokne = {MARK}"),
        format!("token = [\"{MARK}\"]"),
    ];
    let mut refused = 0;
    for mistake in &mistakes {
        sidecar.write_config(&text(mistake));
        let log = sidecar.hang_up("config refused").await;
        refused += 1;
        watch.hides(&log.join("\n"), mistake);
        pages(&sidecar, &mut watch, mistake).await;
    }
    sidecar.write_config(&text(""));
    for bent in bent(&key) {
        files.write("tls.key", &bent);
        files.write("tls.crt", &format!("{cert}{bent}"));
        let log = sidecar.hang_up("config refused").await;
        refused += 1;
        watch.hides(&log.join("\n"), &bent);
        pages(&sidecar, &mut watch, &bent).await;
    }
    assert!(refused > 15);
    // What clients of the API say in confidence.
    let basic = BASE64.encode(format!("ann:{MARK}"));
    for header in [
        format!("Authorization: Bearer {MARK}"),
        format!("Authorization: {MARK}"),
        format!("Authorization: Basic {basic}"),
        format!("Authorization: Basic {MARK}"),
        format!("X-Auth-Token: {MARK}"),
        format!("Cookie: {MARK}"),
    ] {
        for (method, path, body) in [
            ("GET", "/v1/now", ""),
            ("GET", "/v1/nowhere", ""),
            ("POST", "/v1/backend/pause", "{\"hold_seconds\": \"x\"}"),
            ("POST", "/v1/classify", "no json"),
        ] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let answer = ask(sidecar.admin, request).await;
            watch.hides(&answer, &header);
        }
    }
    let sidecar_path = sidecar.config_path().to_owned();
    files.write("tls.key", &key);
    files.write("tls.crt", &cert);
    let env = [("TIDEGATE_ADMIN__TOKEN", MARK)];
    watch
        .hides_in_commands(&sidecar_path, "a good config", &env)
        .await;
    sidecar.signal("TERM");
    let (_, log) = sidecar.ended().await;
    watch.hides(&log.join("\n"), "the log");
    assert!(log.len() > 50 && watch.outputs > 300, "{}", watch.outputs);
}

/// Every page of the admin address that a GET returns.
async fn pages(sidecar: &Sidecar, watch: &mut Watch, of: &str) {
    for path in [
        "/",
        "/errors",
        "/quotas",
        "/metrics",
        "/healthz",
        "/healthz?verbose",
        "/readyz",
        "/readyz?verbose",
        "/livez?verbose",
        "/v1/now",
        "/v1/config",
        "/v1/callers",
        "/v1/limits",
        "/v1/quotas",
        "/v1/rate-limits",
        "/v1/profiles",
        "/v1/usage",
        "/v1/costs",
        "/v1/queue",
        "/v1/acts",
        "/v1/backend",
        "/v1/series?span=10m",
        "/v1/debug/limiters",
        "/v1/debug/queues",
        "/v1/debug/requests",
    ] {
        let (_, body) = sidecar.get(path).await;
        watch.hides(&body, &format!("{path} after {of}"));
    }
}

#[tokio::test]
async fn no_output_shows_what_an_address_holds_before_its_host() {
    let mut watch = Watch::of([MARK]);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let user = format!("me:{MARK}@");
    let mut texts = Vec::new();
    for address in [
        format!("http = \"http://{user}127.0.0.1:1\""),
        format!("http = \"https://{user}127.0.0.1:1\""),
        format!("http = http://{user}127.0.0.1:1"),
        format!("socket = \"{user}127.0.0.1:1\""),
        format!("tcp = \"tls://{user}h:1\""),
        format!("http = \"http://{MARK}@127.0.0.1:1\""),
        format!("http = “http://{user}127.0.0.1:1”"),
    ] {
        texts.push(config(&address, ""));
    }
    for (engine, servers) in [
        ("redis", format!("[\"redis://{user}h:1\"]")),
        ("redis", format!("[\"redis://:{MARK}@h:1\"]")),
        (
            "redis",
            format!("[\"rediss://{user}h:x\", redis://{user}h]"),
        ),
        ("redis", format!("\"redis://{user}h:1\"")),
        ("etcd", format!("[\"http://{user}h:1\"]")),
        ("zookeeper", format!("[\"{user}h:1\"]")),
    ] {
        let store = format!(
            "[quota_store]\nengine = \"{engine}\"\nservers = {servers}\nexpected_sidecars = 2\n"
        );
        texts.push(config(&socket(), &store));
    }
    texts.push(config(
        &socket(),
        &format!("[trace]\notlp = \"http://{user}127.0.0.1:4318\""),
    ));
    texts.push(config(
        &socket(),
        &format!("[trace]\notlp = \"{user}127.0.0.1\""),
    ));
    texts.push(config(
        &socket(),
        &format!("[coordinate]\nservers = [\"http://{user}h:1\"]\nexpected_sidecars = 2"),
    ));
    texts.push(format!(
        "[etcd]\nendpoints = [\"http://{user}h:1\"]\nuser = \"u\"\npassword = {MARK} 1"
    ));
    texts.push(format!(
        "parent = [\"{user}h:1\"]\n[zookeeper]\nservers = \"{user}h\"\nauth = {MARK}"
    ));
    for text in &texts {
        watch.hides_in_commands(&write(&dir, text), text, &[]).await;
    }
    let path = write(&dir, &config(&socket(), ""));
    for (name, value) in [
        (
            "TIDEGATE_BACKEND__HTTP",
            format!("http://{user}127.0.0.1:1"),
        ),
        ("TIDEGATE_BACKEND__SOCKET", format!("{user}h")),
        (
            "TIDEGATE_QUOTA_STORE__SERVERS",
            format!("[\"redis://{user}h:1\"]"),
        ),
        (
            "TIDEGATE_QUOTA_STORE__SERVERS",
            format!("redis://{user}h:1"),
        ),
        ("TIDEGATE_QUOTA_STORE__PASSWORD", MARK.to_owned()),
        ("TIDEGATE_QUOTA_PASSWORD", MARK.to_owned()),
        ("TIDEGATE_QUOTA_STORE__PASWORD", format!("{MARK}\n")),
        ("TIDEGATE_ADMIN__TOKEN", format!("{MARK} {MARK}")),
        ("TIDEGATE_ADMIN__TOKEN__X", MARK.to_owned()),
        ("TIDEGATE_ADMIN__TOKENS__0", MARK.to_owned()),
        ("TIDEGATE_ADMIN__TOKNE", MARK.to_owned()),
        ("TIDEGATE_TOKEN", MARK.to_owned()),
        ("TIDEGATE_ADMIN__BIND", format!("http://{user}127.0.0.1:1")),
    ] {
        watch
            .hides_in_commands(&path, name, &[(name, &value)])
            .await;
        let mut health = Command::new(with_programs());
        health.arg("healthcheck").env(name, &value);
        health.env("TIDEGATE_RUNTIME_DIR", "/dev/null/nowhere");
        watch.hides_in(&mut health, name).await;
    }
    for address in [
        format!("http://{user}127.0.0.1:1"),
        format!("https://{user}127.0.0.1:1"),
        format!("{user}127.0.0.1:1"),
        format!("http://{MARK}@127.0.0.1"),
    ] {
        for command in ["limits", "healthcheck", "callers", "top"] {
            let mut by_argument = Command::new(with_programs());
            by_argument.args([command, "--admin", &address]);
            watch.hides_in(&mut by_argument, &address).await;
            let mut by_variable = Command::new(with_programs());
            by_variable.arg(command).env("TIDEGATE_ADMIN", &address);
            watch.hides_in(&mut by_variable, &address).await;
        }
    }
    assert!(watch.outputs > 300, "{}", watch.outputs);
}

#[tokio::test]
async fn no_output_shows_what_a_file_of_secrets_for_another_purpose_holds() {
    let mut watch = Watch::of([MARK]);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("it can be written to");
        path
    };
    for (number, token) in [
        MARK.to_owned(),
        format!("{MARK}\n{MARK}\n"),
        format!("{MARK} \u{7f} b"),
        format!("token = \"{MARK}\""),
    ]
    .into_iter()
    .enumerate()
    {
        let path = file("token", &token);
        let mut command = Command::new(with_programs());
        command
            .args(["limits", "--admin", "127.0.0.1:1", "--token-file"])
            .arg(path);
        watch
            .hides_in(&mut command, &format!("token file {number}"))
            .await;
    }
    for text in [
        format!("[DEFAULT]\npassword = a%({MARK})s\n"),
        format!("[sdkserver]\npassword = {MARK}%\nbind_port = 2000\n"),
        format!("{MARK}\n"),
        format!("[sdkserver]\nbind_port = 1\n{MARK}\n"),
        format!("[sdkserver]\nbind_port = {MARK} 1\n[{MARK}]\n"),
    ] {
        let path = file("zvmsdk.conf", &text);
        let mut command = Command::new(with_programs());
        command
            .args(["init", "--yes", "--out", "-", "--zvmsdk-conf"])
            .arg(path);
        let said = run(&mut command).await;
        // The port is no secret: a wrong one is quoted.
        if !text.contains("bind_port = Zq7") {
            watch.hides(&format!("{}{}", said.out, said.err), &text);
        }
    }
    assert!(watch.outputs >= 8, "{}", watch.outputs);
}
