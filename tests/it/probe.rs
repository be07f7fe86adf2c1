//! `tidegate check --probe` on set-ups that are broken in one way each: the cause is named, with its
//! cure and a page that exists. And on good ones, alone and beside a sidecar that runs.

mod backends;
mod certificates;
mod machine;
mod stores;

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate::tools::check::probe::CHECKS;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tidegate_runtime::zookeeper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::Instant;

use crate::child::Process;
use crate::lease_mock::Mock;
use crate::sidecar::{Sidecar, TIDEGATE, run, with_programs};
use crate::stores::{Etcd, Redis, ZooKeeper, free_ports};
use crate::support::{OK, PATIENCE, Scripted, closed_port};

/// A folder with a config, and a machine whose settings are good.
struct Setup {
    folder: TempDir,
    config: String,
}

/// The output of the command, in both forms.
struct Probed {
    json: Value,
    text: String,
    code: Option<i32>,
    took: Duration,
}

impl Setup {
    fn new(config: &str) -> Self {
        let setup = Self {
            folder: tempfile::tempdir().expect("a folder"),
            config: config.to_owned(),
        };
        setup.machine("proc/sys/net/core/somaxconn", "4096\n");
        setup.machine("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        setup.machine("run/systemd/timesync/synchronized", "");
        let source = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        setup.machine(source, "tsc\n");
        setup
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes a file of the machine.
    fn machine(&self, path: &str, text: &str) {
        let path = self.folder.path().join("root").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    async fn probe(&self) -> Probed {
        self.probe_by(|| Command::new(TIDEGATE)).await
    }

    /// By a command that runs the program.
    async fn probe_by(&self, command: impl Fn() -> Command) -> Probed {
        fs::write(self.path("config.toml"), &self.config).expect("written");
        self.probe_of(
            Path::new(&self.path("config.toml")),
            &self.path("run"),
            command,
        )
        .await
    }

    async fn probe_of(
        &self,
        config: &Path,
        runtime: &str,
        command: impl Fn() -> Command,
    ) -> Probed {
        let said = async |more: &str| {
            let mut command = command();
            command
                .args(["check", "--probe"])
                .arg("--config")
                .arg(config);
            command.arg("--root").arg(self.folder.path().join("root"));
            command.args(more.split_whitespace());
            command.env("TIDEGATE_RUNTIME_DIR", runtime);
            command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
            run(&mut command).await
        };
        let began = Instant::now();
        let text = said("").await;
        let took = began.elapsed();
        let json = said("--json").await;
        assert_eq!((&*text.err, &*json.err), ("", ""));
        assert_eq!(text.code, json.code);
        let quiet = said("--quiet").await;
        assert_eq!(quiet.code, text.code);
        let probed = Probed {
            json: serde_json::from_str(&json.out).expect("JSON"),
            text: text.out,
            code: text.code,
            took,
        };
        probed.is_sound(&quiet.out);
        probed
    }
}

/// The words of a text, however it is broken into lines.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Probed {
    fn checks(&self) -> &[Value] {
        self.json["checks"].as_array().expect("a list")
    }

    /// Both forms say the same, and no line is too long.
    fn is_sound(&self, quiet: &str) {
        assert!(self.took < Duration::from_secs(11), "{:?}", self.took);
        let count = |status: &str| {
            let checks = self.checks().iter();
            checks.filter(|check| check["status"] == status).count() as u64
        };
        for (status, mark, number) in [
            ("ok", "√", "ok"),
            ("skipped", "-", "skipped"),
            ("warning", "‼", "warnings"),
            ("failed", "×", "failed"),
        ] {
            let begins = format!("  {mark} ");
            let marks = self.text.lines().filter(|line| line.starts_with(&begins));
            assert_eq!(
                marks.count() as u64,
                count(status),
                "{status}: {}",
                self.text
            );
            assert_eq!(self.json[number], count(status), "{status}");
        }
        assert_eq!(self.json["good"], count("failed") == 0);
        assert_eq!(self.code, Some(i32::from(count("failed") > 0)));
        for line in self.text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let is_wrong = |check: &Value| check["cause"].is_string();
        let flat = words(&self.text);
        for check in self.checks() {
            let kind = CHECKS
                .iter()
                .find(|kind| check["group"] == kind.group.word() && check["check"] == kind.name);
            assert_eq!(check["page"], kind.expect("it is in the list").page);
            let wrong = ["warning", "failed"]
                .iter()
                .any(|it| check["status"] == *it);
            assert_eq!(is_wrong(check), wrong, "{check}");
            for part in ["cause", "cure"] {
                assert_eq!(check[part].is_string(), wrong, "{check}");
                let text = check[part].as_str().unwrap_or_default();
                // What a peer did to a connection may differ from one run to the next.
                let (text, _) = text.split_once(": ").unwrap_or((text, ""));
                assert!(flat.contains(&words(text)), "{text} in {}", self.text);
            }
        }
        match self.checks().iter().any(is_wrong) {
            true => assert!(!quiet.contains('√') && quiet.contains("cure: "), "{quiet}"),
            false => assert_eq!(quiet, ""),
        }
    }

    /// The check of this group, name and subject.
    #[track_caller]
    fn check(&self, group: &str, name: &str, about: &str) -> &Value {
        let mut checks = self.checks().iter();
        let is_it = |check: &&Value| {
            check["group"] == group && check["check"] == name && check["about"] == about
        };
        checks
            .find(is_it)
            .unwrap_or_else(|| panic!("no {group} {name} {about} in\n{}", self.text))
    }

    /// Asserts what a check says: its status, what it found, the cause and the cure.
    #[track_caller]
    fn says(&self, check: (&str, &str, &str), status: &str, found: &str, cause: &str, cure: &str) {
        let check = self.check(check.0, check.1, check.2);
        for (part, expected) in [
            ("status", status),
            ("found", found),
            ("cause", cause),
            ("cure", cure),
        ] {
            assert_eq!(check[part].as_str().unwrap_or_default(), expected, "{part}");
        }
    }

    /// Asserts that nothing but these checks is wrong.
    #[track_caller]
    fn only(&self, wrong: &[(&str, &str)]) {
        let wrongs = self
            .checks()
            .iter()
            .filter(|check| check["cause"].is_string());
        let found: BTreeSet<(&str, &str)> = wrongs
            .map(|check| {
                let text = |name: &str| check[name].as_str().expect("a text");
                (text("group"), text("check"))
            })
            .collect();
        assert_eq!(found, wrong.iter().copied().collect(), "{}", self.text);
    }
}

const LIMITS: &str = "[limits]\nsmapi_rate_limit_per_window = \"total:30\"\n\
                      smapi_request_postpone_threshold_seconds = 50\n[admin]\nbind = false\n";

/// A config with these lines in `[backend]` and these sections.
fn config(backend: &str, sections: &str) -> String {
    let port = free_ports(1)[0];
    let protocol = match backend.contains("socket = ") {
        true => "auto",
        false => "http",
    };
    format!(
        "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:{port}\"\nprotocol = \"{protocol}\"\n\
         [server]\nmax_connections = 500\n\
         [backend]\nconnect_timeout = \"300ms\"\n{backend}\n{LIMITS}{sections}"
    )
}

/// A config of these sections before a backend that answers.
fn before(backend: &RunningBackend, sections: &str) -> String {
    let lines = format!(
        "kind = \"zvm\"\nsocket = \"{}\"\nhttp = \"http://{}\"",
        backend.socket_addr(),
        backend.http_addr()
    );
    config(&lines, sections)
}

async fn backend() -> RunningBackend {
    StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("free ports")
}

/// A backend that answers each request with these bytes.
async fn answering(answer: &'static [u8]) -> Scripted {
    Scripted::start(move |_, mut stream| async move {
        let mut request = [0; 4096];
        if stream.read(&mut request).await.unwrap_or(0) > 0 {
            let _ = stream.write_all(answer).await;
        }
    })
    .await
}

#[test]
fn every_check_has_a_page_and_a_heading_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documented = fs::read_to_string(root.join("docs/how-to/check-probe.md")).expect("the page");
    for kind in CHECKS {
        let (page, anchor) = kind.page.split_once('#').expect("a heading");
        let text = fs::read_to_string(root.join(page)).expect("the page is there");
        let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
        let mut anchors = headings.map(|heading| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-")
        });
        assert!(
            anchors.any(|it| it == anchor),
            "{} has no heading {anchor}",
            page
        );
        let row = format!("| `{}` | `{}` |", kind.group.word(), kind.name);
        assert!(documented.contains(&row), "{row}");
    }
}

#[tokio::test]
async fn a_good_setup_has_no_finding_and_a_running_sidecar_is_not_in_the_way() {
    let backend = backend().await;
    let setup = Setup::new("");
    let sections = format!("[callers]\nstate_file = \"{}\"\n", setup.path("state.json"));
    let [listens, admin] = free_ports(2)[..] else {
        unreachable!("two were asked for")
    };
    let text = before(&backend, &sections)
        .replace("bind = false", &format!("bind = \"127.0.0.1:{admin}\""));
    let (first, _) = text.split_once("[server]").expect("it has one");
    let text = text.replace(
        first,
        &format!("[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:{listens}\"\n"),
    );
    let setup = Setup {
        config: text.clone(),
        ..setup
    };
    let probed = setup.probe().await;
    probed.only(&[]);
    assert!(probed.took < Duration::from_secs(3), "{:?}", probed.took);
    let found = format!("127.0.0.1:{listens} is free");
    probed.says(("listeners", "listener", "nova"), "ok", &found, "", "");
    let list = probed.check("backend", "answer", "socket")["found"].as_str();
    let begins = format!("{} answers guest_list", backend.socket_addr());
    assert!(list.is_some_and(|it| it.starts_with(&begins)), "{list:?}");
    let version = probed.check("backend", "answer", "http")["found"].as_str();
    let begins = format!("{} answers GET / with 200 in ", backend.http_addr());
    assert!(
        version.is_some_and(|it| it.starts_with(&begins)),
        "{version:?}"
    );
    let state = probed.check("machine", "state_file", "state file");
    assert_eq!(state["status"], "ok");
    // Nothing is left behind.
    let mut left = fs::read_dir(setup.folder.path()).expect("read").flatten();
    assert!(!left.any(|it| it.file_name().to_string_lossy().contains("state")));

    let sidecar = Sidecar::start(&text).await;
    let runtime = sidecar.config_path().with_extension("run");
    let runtime = runtime.to_str().expect("UTF-8").to_owned();
    let probed = setup
        .probe_of(sidecar.config_path(), &runtime, || Command::new(TIDEGATE))
        .await;
    probed.only(&[]);
    let pid = sidecar.pid;
    let found = format!("127.0.0.1:{listens} is in use by the running tidegate, pid {pid}");
    probed.says(("listeners", "listener", "nova"), "ok", &found, "", "");
    let found = format!("127.0.0.1:{admin} is in use by the running tidegate, pid {pid}");
    probed.says(("admin", "address", "bind"), "ok", &found, "", "");
    let found = format!("one runs, 127.0.0.1:{admin}, and takes calls");
    probed.says(("admin", "sidecar", "sidecar"), "ok", &found, "", "");

    // For another config, the same sidecar is in the way, also with its admin address.
    let other = setup.probe().await;
    let holder = format!("tidegate, pid {pid}, listens there");
    let in_use = other.check("listeners", "listener", "nova");
    let by_admin = format!("127.0.0.1:{listens} is in use by the running tidegate, pid {pid}");
    assert_eq!(
        in_use["found"], by_admin,
        "its admin address says that it has this listener"
    );
    let moved = Setup {
        config: text.replace(&format!("127.0.0.1:{admin}"), "127.0.0.1:0"),
        ..setup
    };
    let other = moved.probe().await;
    other.only(&[("listeners", "listener")]);
    assert_eq!(
        other.check("listeners", "listener", "nova")["cause"],
        holder
    );
}

/// The words of a text, with ports and sizes of this machine in place of those on the page.
fn normal(text: &str) -> Vec<String> {
    let normal = |word: &str| {
        if word.contains("127.0.0.1:") {
            return "ADDRESS".to_owned();
        }
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            "NUMBER".to_owned()
        } else {
            word.to_owned()
        }
    };
    text.split_whitespace().map(normal).collect()
}

#[tokio::test]
async fn the_example_on_the_page_is_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/how-to/check-probe.md")).expect("the page");
    let block = |language: &str| {
        let (_, rest) = page
            .split_once(&format!("```{language}\n"))
            .expect("a block");
        rest.split("```").next().expect("its end").to_owned()
    };
    let setup = Setup::new(&block("toml"));
    setup.machine("proc/sys/net/core/somaxconn", "128\n");
    let proxy = "ProxyPass / uwsgi://127.0.0.1:35000/\n";
    setup.machine("etc/httpd/conf/httpd.conf", proxy);
    fs::write(setup.path("config.toml"), &setup.config).expect("written");
    let ports = free_ports(3);
    let probed = setup
        .probe_of(Path::new("config.toml"), &setup.path("run"), || {
            let mut command = Command::new(TIDEGATE);
            command.current_dir(setup.folder.path());
            for (name, port) in [
                ("TIDEGATE_LISTEN__0__BIND", ports[0]),
                ("TIDEGATE_BACKEND__SOCKET", ports[1]),
                ("TIDEGATE_ADMIN__BIND", ports[2]),
            ] {
                command.env(name, format!("127.0.0.1:{port}"));
            }
            // So that it fits on any machine.
            command.env("TIDEGATE_SERVER__MAX_CONNECTIONS", "500");
            command
        })
        .await;
    assert_eq!(normal(&block("text")), normal(&probed.text));
}

#[tokio::test]
async fn a_mistake_in_the_config() {
    let backend = backend().await;
    let setup = Setup::new(&before(&backend, "[queue]\ncapacity = \"many\"\n"));
    let probed = setup.probe().await;
    probed.only(&[("config", "file"), ("config", "mistake")]);
    let line = setup
        .config
        .lines()
        .position(|line| line.starts_with("capacity"));
    let about = format!("line {}", line.expect("it is there") + 1);
    let mistake = probed.check("config", "mistake", &about);
    assert_eq!(mistake["found"], "queue.capacity");
    assert!(
        mistake["cause"]
            .as_str()
            .is_some_and(|it| it.contains("many")),
        "{mistake}"
    );
    assert_eq!(
        probed.check("backend", "answer", "backend")["status"],
        "skipped"
    );
}

#[tokio::test]
async fn a_setup_of_another_kind_is_described_without_a_word_of_z_vm() {
    let web = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let mail = answering(b"220 mail.example ready\r\n").await;
    let strangers = |http: SocketAddr| {
        let lines = format!("kind = \"http\"\nhttp = \"http://{http}\"\ntcp = \"{http}\"");
        let text = config(&lines, "");
        let limits =
            "[limits]\nper_window = \"total:30\"\nmax_wait = \"60s\"\n[admin]\nbind = false\n";
        let setup = Setup::new(&text.replace(LIMITS, limits));
        let port = setup.config.split("127.0.0.1:").nth(1).expect("a bind");
        let port = port.split('"').next().expect("a port");
        let proxy = format!("ProxyPass / http://127.0.0.1:{port}/\n");
        setup.machine("etc/apache2/apache2.conf", &proxy);
        setup
    };
    let probed = strangers(web.addr).probe().await;
    probed.only(&[("machine", "apache")]);
    let cure = &probed.check("machine", "apache", "apache")["cure"];
    let expected = "set max_wait = \"50s\" or less in [limits], or set Timeout to 70 or more and \
                    reload Apache";
    assert_eq!(cure, expected);
    let found = probed.check("backend", "answer", "tcp")["found"].as_str();
    assert!(
        found.is_some_and(|it| it.contains(" takes a connection in ")),
        "{found:?}"
    );
    let strange = strangers(mail.addr).probe().await;
    strange.says(
        ("backend", "answer", "http"),
        "failed",
        &format!("{} speaks another protocol", mail.addr),
        "it answers not with HTTP: 220 mail.example ready\\r\\n",
        "give the address of an HTTP server as backend.http",
    );
    for probed in [probed, strange] {
        let text = probed.text.to_lowercase();
        for word in ["zvm", "z/vm", "smapi", "sdk"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}
