//! `tidegate check --probe` on set-ups that are broken in one way each: the cause is named, with its
//! cure and a page that exists. And on good ones, alone and beside a sidecar that runs.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate::tools::check::probe::CHECKS;
use tidegate_lab::backend::{Backend, Options, Running};
use tidegate_runtime::zookeeper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::Instant;

use crate::child::Process;
use crate::lease_mock::Mock;
use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::stores::{Etcd, Redis, ZooKeeper, free_ports};
use crate::support::{OK, PATIENCE, Scripted, closed_port};

/// A folder with a config, and a machine whose settings are good.
struct Setup {
    folder: TempDir,
    config: String,
}

/// What the command said, in both forms.
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
fn before(backend: &Running, sections: &str) -> String {
    let lines = format!(
        "kind = \"zvm\"\nsocket = \"{}\"\nhttp = \"http://{}\"",
        backend.socket_addr(),
        backend.http_addr()
    );
    config(&lines, sections)
}

async fn backend() -> Running {
    Backend::start(Options::on_free_ports())
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

/// Its words, with ports and sizes of this machine in place of those on the page.
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
async fn a_port_that_another_process_has() {
    let backend = backend().await;
    let setup = Setup::new(&before(&backend, ""));
    let bind = setup
        .config
        .lines()
        .find_map(|line| line.strip_prefix("bind = "));
    let bind: SocketAddr = bind
        .expect("a bind")
        .trim_matches('"')
        .parse()
        .expect("one");
    let _held = TcpListener::bind(bind).expect("it is free");
    let probed = setup.probe().await;
    probed.only(&[("listeners", "listener")]);
    let name = fs::read_to_string("/proc/self/comm").expect("Linux");
    let (name, pid) = (name.trim(), std::process::id());
    probed.says(
        ("listeners", "listener", "nova"),
        "failed",
        &format!("{bind} is in use"),
        &format!("{name}, pid {pid}, listens there"),
        "stop that process, or change listen[0].bind. sdkserver itself moves to another port: \
         packaging/sdkserver-behind-tidegate.conf",
    );
}

#[tokio::test]
async fn a_backend_that_is_not_there() {
    let (one, two) = (closed_port().await, closed_port().await);
    let setup = Setup::new(&config(
        &format!("kind = \"zvm\"\nsocket = \"{one}\"\nhttp = \"http://{two}\""),
        "",
    ));
    let probed = setup.probe().await;
    probed.only(&[("backend", "answer")]);
    for (about, address) in [("socket", one), ("http", two)] {
        probed.says(
            ("backend", "answer", about),
            "failed",
            &format!("{address} cannot be reached"),
            "nothing listens there: the connection was refused",
            &format!("start the backend, or correct backend.{about}"),
        );
    }
}

#[tokio::test]
async fn a_backend_that_never_answers() {
    let silent = Scripted::start(|_, stream| async move {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let addr = silent.addr;
    let setup = Setup::new(&config(
        &format!("kind = \"zvm\"\nsocket = \"{addr}\"\nhttp = \"http://{addr}\""),
        "",
    ));
    let probed = setup.probe().await;
    probed.only(&[("backend", "answer")]);
    for (about, question) in [("socket", "guest_list"), ("http", "GET /")] {
        probed.says(
            ("backend", "answer", about),
            "failed",
            &format!("{addr} does not answer"),
            &format!("it took the connection, and did not answer {question} within 300 ms"),
            "look at the backend: it may hang, or all of its workers may be busy",
        );
    }
    assert!(probed.took < Duration::from_secs(5), "{:?}", probed.took);
}

#[tokio::test]
async fn a_backend_that_speaks_another_protocol() {
    let sdkserver = answering(OK).await;
    let web = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
    let tls = answering(b"\x15\x03\x01\x00\x02\x02\x46").await;
    let lines = format!(
        "kind = \"zvm\"\nsocket = \"{}\"\nhttp = \"http://{}\"",
        web.addr, sdkserver.addr
    );
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer")]);
    probed.says(
        ("backend", "answer", "socket"),
        "failed",
        &format!("{} speaks another protocol", web.addr),
        "it speaks HTTP, not the protocol of sdkserver",
        "give its address as backend.http, and that of sdkserver as backend.socket",
    );
    probed.says(
        ("backend", "answer", "http"),
        "failed",
        &format!("{} speaks another protocol", sdkserver.addr),
        "it answers with JSON without HTTP, as sdkserver does: {\"overallRC\": 0, \"modID\": null, \"rc\": 0,…",
        "give its address as backend.socket, and that of sdkwsgi as backend.http",
    );
    let lines = format!("kind = \"http\"\nhttp = \"http://{}\"", tls.addr);
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer")]);
    let found = format!("{} speaks another protocol", tls.addr);
    let cause = "it speaks TLS, and the config does not";
    let cure = "lead backend.http to a port without TLS, or to the same one with https://";
    probed.says(("backend", "answer", "http"), "failed", &found, cause, cure);
    // Another HTTP server is no sdkwsgi. As a backend of its own kind it is good.
    let other = |kind: &str| config(&format!("{kind}http = \"http://{}\"", web.addr), "");
    let probed = Setup::new(&other("kind = \"zvm\"\n")).probe().await;
    let found = format!("{} answers GET / with 404, and not as sdkwsgi", web.addr);
    assert_eq!(probed.check("backend", "answer", "http")["found"], found);
    assert_eq!(probed.code, Some(0));
    Setup::new(&other("kind = \"http\"\n"))
        .probe()
        .await
        .only(&[]);
}

#[tokio::test]
async fn a_backend_that_is_in_trouble_or_has_another_clock() {
    let down = answering(
        b"HTTP/1.1 503 Down\r\nDate: Thu, 01 Jan 2015 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    let lines = format!("kind = \"http\"\nhttp = \"http://{}\"", down.addr);
    let probed = Setup::new(&config(&lines, "")).probe().await;
    probed.only(&[("backend", "answer"), ("backend", "clock")]);
    probed.says(
        ("backend", "answer", "http"),
        "warning",
        &format!("{} answers HEAD / with 503", down.addr),
        "it is up, and cannot serve this harmless request",
        "look at the log of the backend, and at what is behind it",
    );
    let clock = probed.check("backend", "clock", "http clock");
    assert!(
        clock["found"]
            .as_str()
            .is_some_and(|it| it.ends_with(" s behind this machine's"))
    );
    assert_eq!(probed.code, Some(0));
    let broken = answering(
        b"{\"overallRC\": 500, \"modID\": 100, \"rc\": 500, \"rs\": 1, \"errmsg\": \"no database\", \"output\": \"\"}",
    )
    .await;
    let probed = Setup::new(&config(&format!("socket = \"{}\"", broken.addr), ""))
        .probe()
        .await;
    probed.says(
        ("backend", "answer", "socket"),
        "warning",
        &format!("{} answers guest_list with overallRC 500", broken.addr),
        "sdkserver says: no database",
        "look at the log of sdkserver, /var/log/zvmsdk/zvmsdk.log",
    );
}

#[tokio::test]
async fn a_state_file_that_cannot_be_written() {
    let backend = backend().await;
    let setup = Setup::new("");
    let path = setup.path("missing/state.json");
    let text = before(&backend, &format!("[callers]\nstate_file = \"{path}\"\n"));
    let setup = Setup {
        config: text,
        ..setup
    };
    let probed = setup.probe().await;
    probed.only(&[("machine", "state_file")]);
    probed.says(
        ("machine", "state_file", "state file"),
        "failed",
        &format!("{path} cannot be written"),
        &format!(
            "{}: No such file or directory (os error 2)",
            setup.path("missing")
        ),
        "give the user that runs `tidegate serve` write access to the directory \
         (StateDirectory= in systemd), or change callers.state_file",
    );
}

/// In a mount namespace of its own, where a small disk is mounted with these options.
#[tokio::test]
async fn a_disk_that_is_full_or_read_only() {
    let may = std::process::Command::new("unshare")
        .args(["-rm", "true"])
        .status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("not tried: this user may not mount anything");
        return;
    }
    let backend = backend().await;
    let setup = Setup::new("");
    let disk = setup.path("disk");
    fs::create_dir(&disk).expect("made");
    let text = before(
        &backend,
        &format!("[callers]\nstate_file = \"{disk}/s.json\"\n"),
    );
    let setup = Setup {
        config: text,
        ..setup
    };
    let mounted = async |more: &str| {
        let mount = format!("mount -t tmpfs -o size=1m none {disk} {more} && exec \"$0\" \"$@\"");
        let command = || {
            let mut shell = Command::new("unshare");
            shell.args(["-rm", "sh", "-c", &mount, TIDEGATE]);
            shell
        };
        setup.probe_by(command).await
    };
    let check = ("machine", "state_file", "state file");
    mounted("").await.says(
        check,
        "failed",
        &format!("{disk}/s.json has 1024 KiB of free space"),
        "there is no room for the next state, so each change through the API is refused",
        "free space on this file system, or change callers.state_file",
    );
    mounted(&format!("&& mount -o remount,ro {disk}")).await.says(
        check,
        "failed",
        &format!("{disk}/s.json cannot be written"),
        &format!("{disk}: Read-only file system (os error 30)"),
        "mount that file system for writing (StateDirectory= or ReadWritePaths= in systemd), or \
         change callers.state_file",
    );
}

#[tokio::test]
async fn too_few_descriptors() {
    let backend = backend().await;
    let setup = Setup::new(&before(&backend, ""));
    let probed = setup
        .probe_by(|| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\"", TIDEGATE]);
            shell
        })
        .await;
    probed.only(&[("machine", "descriptors")]);
    let check = probed.check("machine", "descriptors", "descriptors");
    let text = |part: &str| check[part].as_str().expect("a text").to_owned();
    assert_eq!(check["status"], "warning");
    assert!(
        text("found").ends_with(" needed, 256 allowed to this user"),
        "{check}"
    );
    assert!(
        text("cause").contains("the process may open 256"),
        "{check}"
    );
    assert!(text("cure").contains("LimitNOFILE="), "{check}");
}

#[tokio::test]
async fn a_machine_that_is_set_for_less() {
    let backend = backend().await;
    let setup = Setup::new(&before(&backend, ""));
    setup.machine("proc/sys/net/core/somaxconn", "128\n");
    setup.machine("proc/sys/net/ipv4/ip_local_port_range", "61000\t61009\n");
    let probed = setup.probe().await;
    probed.only(&[("machine", "somaxconn"), ("machine", "local_ports")]);
    assert_eq!(probed.code, Some(0));
    probed.says(
        ("machine", "somaxconn", "somaxconn"),
        "warning",
        "128, and a listener asks for 4096",
        "the kernel keeps at most 128 connections of a storm until they are accepted; others are \
         dropped and tried again a second later",
        "sysctl -w net.core.somaxconn=4096, and keep it in /etc/sysctl.d/",
    );
}

#[tokio::test]
async fn an_apache_that_gives_up_while_a_call_waits() {
    let backend = backend().await;
    let waits = |seconds: u32| {
        let text = before(&backend, "");
        text.replace("seconds = 50", &format!("seconds = {seconds}"))
    };
    let setup = Setup::new(&waits(60));
    setup.machine(
        "etc/httpd/conf/httpd.conf",
        "ServerRoot \"/etc/httpd\"\nInclude conf.d/*.conf\n",
    );
    let proxy = "ProxyPass / uwsgi://127.0.0.1:35000/\n";
    setup.machine("etc/httpd/conf.d/zvmsdk.conf", proxy);
    let probed = setup.probe().await;
    probed.only(&[("machine", "apache")]);
    probed.says(
        ("machine", "apache", "apache"),
        "warning",
        "waits 60 s, and a call may wait 60 s here",
        "Timeout (not set in /etc/httpd/conf/httpd.conf, so 60 s) ends a call that waits, and its \
         client gets a page of Apache instead of an answer",
        "set smapi_request_postpone_threshold_seconds = 50 or less in [limits], or set Timeout to 70 \
         or more and reload Apache",
    );
    setup.machine(
        "etc/httpd/conf.d/zvmsdk.conf",
        &format!("Timeout 70\n{proxy}"),
    );
    setup.probe().await.only(&[]);
    let setup = Setup {
        config: waits(50),
        ..setup
    };
    setup.machine("etc/httpd/conf.d/zvmsdk.conf", proxy);
    setup.probe().await.only(&[]);
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

/// `[quota]` with these lines, and a quota.
fn quota(lines: &str) -> String {
    format!(
        "[quota]\n{lines}\nexpected_sidecars = 2\n[[rate_limit]]\nname = \"q\"\n\
         kind = \"quota\"\ntotal = 100\nrefresh_window = \"60s\"\napplies_to = \"user\"\n"
    )
}

fn redis_at(address: impl std::fmt::Display, more: &str) -> String {
    quota(&format!(
        "engine = \"redis\"\nservers = [\"redis://{address}\"]\n{more}"
    ))
}

#[tokio::test]
async fn a_store_that_is_not_there() {
    let backend = backend().await;
    for (engine, scheme, name) in [
        ("redis", "redis://", "Redis"),
        ("etcd", "http://", "etcd"),
        ("zookeeper", "", "ZooKeeper"),
    ] {
        let address = closed_port().await;
        let lines = format!("engine = \"{engine}\"\nservers = [\"{scheme}{address}\"]");
        let probed = Setup::new(&before(&backend, &quota(&lines))).probe().await;
        probed.only(&[("stores", "server")]);
        let about = match engine {
            "etcd" => format!("http://{address}"),
            _ => address.to_string(),
        };
        let check = probed.check("stores", "server", &about);
        assert_eq!(check["status"], "failed");
        assert_eq!(check["found"], format!("{name} cannot be used"));
        let cause = check["cause"].as_str().expect("a cause");
        assert!(cause.starts_with("the store is unavailable: "), "{cause}");
        let cure =
            format!("start {name} there, let packets through to it, or correct quota.servers");
        assert_eq!(check["cure"], cure);
    }
}

#[tokio::test]
async fn a_store_of_which_one_server_is_down() {
    let (backend, etcd) = (backend().await, Etcd::start(1));
    let closed = closed_port().await;
    let (good, bad) = (etcd.url(0), format!("http://{closed}"));
    let lines = format!("engine = \"etcd\"\nservers = [\"{bad}\", \"{good}\"]");
    let probed = Setup::new(&before(&backend, &quota(&lines))).probe().await;
    probed.only(&[("stores", "server")]);
    assert_eq!(probed.check("stores", "server", &good)["status"], "ok");
    let bad = probed.check("stores", "server", &bad);
    assert_eq!(bad["status"], "warning");
    let cause = bad["cause"].as_str().expect("a cause");
    assert!(cause.ends_with("; the others answer"), "{cause}");
    let left = etcd.control(&["get", "--prefix", "--keys-only", "/tidegate/"]);
    assert_eq!(left.trim(), "", "nothing is left behind");
}

#[tokio::test]
async fn a_redis_that_lets_the_sidecar_in_only_with_all_that_it_needs() {
    let backend = backend().await;
    let redis = Redis::start(&["--requirepass", "right"]);
    let address = redis.addr();
    let about = address.to_string();
    let control = async |command: &str| {
        let text = format!("AUTH right\r\n{command}\r\nQUIT\r\n");
        let answer = crate::support::ask(address, text).await;
        assert!(!answer.contains("-ERR"), "{command}: {answer}");
        answer
    };
    let probe = async |more: &str| {
        let setup = Setup::new(&before(&backend, &redis_at(address, more)));
        setup.probe().await
    };
    let none = probe("").await;
    let wrong = probe("password = \"wrong\"").await;
    for probed in [none, wrong] {
        probed.only(&[("stores", "server")]);
        let check = probed.check("stores", "server", &about);
        assert_eq!(check["found"], "cannot read tidegate:quota:record:.probe");
        let cause = check["cause"].as_str().expect("a cause");
        assert!(
            cause.starts_with("the store wants other credentials: "),
            "{cause}"
        );
        let cure = "set user and password in [quota] to those of a user of the store \
                    (TIDEGATE_QUOTA__PASSWORD in a container)";
        assert_eq!(check["cure"], cure);
        assert!(!probed.text.contains("wrong\"") && !probed.text.contains("right"));
    }
    probe("password = \"right\"").await.only(&[]);
    let user = "user = \"gate\"\npassword = \"secret\"";
    for (may, found) in [
        ("~other:* +@all", "cannot read tidegate:quota:record:.probe"),
        (
            "~tidegate:quota:* &* +@all -@write",
            "cannot write tidegate:quota:record:.probe",
        ),
        (
            "~tidegate:quota:record:* &* +@all",
            "cannot join the members in tidegate:quota:members",
        ),
        (
            "~tidegate:quota:* +@all",
            "cannot subscribe to tidegate:quota:changed:.probe",
        ),
    ] {
        control(&format!("ACL SETUSER gate reset on >secret {may}")).await;
        let probed = probe(user).await;
        probed.only(&[("stores", "server")]);
        let check = probed.check("stores", "server", &about);
        assert_eq!(check["found"], found, "{may}");
        let cause = check["cause"].as_str().expect("a cause");
        assert!(
            cause.starts_with("the store denies access to this key: "),
            "{cause}"
        );
        // What it says to do is enough.
        let cure = check["cure"].as_str().expect("a cure");
        let (_, cure) = cure.split_once("ACL SETUSER NAME ").expect("it says how");
        control(&format!("ACL SETUSER gate reset on >secret {cure}")).await;
        probe(user).await.only(&[]);
    }
    let keys = control("KEYS *").await;
    assert!(keys.contains("*0\r\n"), "nothing is left behind: {keys}");
}

#[tokio::test]
async fn a_zookeeper_and_an_etcd_that_deny_the_sidecar_access() {
    let backend = backend().await;
    let store = ZooKeeper::start(1).await;
    let mut owner = zookeeper::Settings::new(store.servers());
    owner.auth = Some(("digest".into(), b"owner:secret".to_vec()));
    let owner = zookeeper::Client::new(owner);
    owner.create("/quota", b"").await.expect("made");
    let lines = format!(
        "engine = \"zookeeper\"\nservers = [\"{}\"]",
        store.servers()
    );
    let probed = Setup::new(&before(&backend, &quota(&lines))).probe().await;
    probed.only(&[("stores", "server")]);
    probed.says(
        ("stores", "server", &store.servers()),
        "failed",
        "cannot write /quota",
        "the store denies access to this key: ZooKeeper denies it to these credentials: NoAuth",
        "let the user in: setAcl /quota with create, read, write and delete (cdrw), and the same \
         for the node of the members",
    );
    let lines = format!("{lines}\nuser = \"owner\"\npassword = \"secret\"");
    Setup::new(&before(&backend, &quota(&lines)))
        .probe()
        .await
        .only(&[]);

    let etcd = Etcd::start(1);
    for command in [
        "user add root:secret",
        "user add gate:secret",
        "role add gate",
        "role grant-permission gate readwrite --prefix=true /other/",
        "user grant-role gate gate",
        "user grant-role root root",
        "auth enable",
    ] {
        etcd.control(&command.split(' ').collect::<Vec<_>>());
    }
    let lines = format!("engine = \"etcd\"\nservers = [\"{}\"]", etcd.url(0));
    let text = |lines: &str| before(&backend, &quota(lines));
    let probed = Setup::new(&text(&lines)).probe().await;
    probed.only(&[("stores", "server")]);
    let check = probed.check("stores", "server", &etcd.url(0));
    assert!(
        check["found"]
            .as_str()
            .is_some_and(|it| it.starts_with("cannot read /tidegate/quota/"))
    );
    let lines = format!("{lines}\nuser = \"gate\"\npassword = \"secret\"");
    let probed = Setup::new(&text(&lines)).probe().await;
    let check = probed.check("stores", "server", &etcd.url(0));
    let cause = check["cause"].as_str().expect("a cause");
    assert!(
        cause.starts_with("the store denies access to this key: "),
        "{cause}"
    );
    let cure = "let the user in: etcdctl role grant-permission ROLE readwrite --prefix=true \
                /tidegate/quota/";
    assert_eq!(check["cure"], cure);
    let grant =
        "--user=root:secret role grant-permission gate readwrite --prefix=true /tidegate/quota/";
    etcd.control(&grant.split(' ').collect::<Vec<_>>());
    Setup::new(&text(&lines)).probe().await.only(&[]);
}

/// `[coordinate]` with these servers, and a shared limit.
fn coordinate(servers: &[&str]) -> String {
    let servers = servers.join("\", \"");
    format!(
        "[coordinate]\nservers = [\"{servers}\"]\nexpected_sidecars = 3\n\
         request_timeout = \"500ms\"\n[[coordinate.limit]]\nlimit = \"total\"\n\
         resource = \"zvm1/total\"\nsafe = 5\n"
    )
}

#[tokio::test]
async fn lease_servers_that_are_unreachable_or_not_the_master() {
    let backend = backend().await;
    let closed = closed_port().await.to_string();
    let probe = async |servers: &[&str]| {
        let setup = Setup::new(&before(&backend, &coordinate(servers)));
        setup.probe().await
    };
    let probed = probe(&[&closed]).await;
    probed.only(&[("leases", "server")]);
    probed.says(
        ("leases", "server", &closed),
        "failed",
        "does not answer",
        "Connection refused (os error 111)",
        "start `tidegate lease-server` there, let packets through to it, or correct \
         coordinate.servers",
    );
    // A server that holds no election yet, because the store of elections is down.
    let folder = tempfile::tempdir().expect("a folder");
    let [port, store] = free_ports(2)[..] else {
        unreachable!("two were asked for")
    };
    let server = format!("127.0.0.1:{port}");
    let text = format!(
        "bind = \"{server}\"\nstatus_bind = \"\"\n[election]\nkey = \"/tests/master\"\n\
         engine = \"etcd\"\n[etcd]\nendpoints = [\"http://127.0.0.1:{store}\"]\n\
         [[resource]]\nglob = \"*\"\ncapacity = 10\nsafe_capacity = 1\n\
         algorithm = {{ kind = \"fair_share\", lease = \"12s\", refresh = \"1s\" }}\n"
    );
    fs::write(folder.path().join("leases.toml"), text).expect("written");
    let mut command = std::process::Command::new(TIDEGATE);
    command
        .args(["lease-server", "--config"])
        .arg(folder.path().join("leases.toml"));
    let process = Process::start("lease-server", &mut command);
    process.stderr.until("ready", PATIENCE, |lines| {
        lines
            .iter()
            .any(|line| line.contains("leases: ready"))
            .then_some(())
    });
    let probed = probe(&[&server]).await;
    probed.only(&[("leases", "server")]);
    probed.says(
        ("leases", "server", &server),
        "failed",
        "is not the master, and knows none",
        "no server grants leases: an election is under way, or none can be held",
        "wait some seconds and check again; then look at its log and at the store of its \
         elections. Until then each sidecar has its safe share",
    );
    // A master takes the request for nothing, and keeps its capacity.
    let master = Mock::new();
    let (address, _serving) = master.serve().await;
    let probed = probe(&[&address]).await;
    probed.only(&[]);
    let found = "is the master, and grants leases";
    probed.says(("leases", "server", &address), "ok", found, "", "");
    assert!(
        master
            .lock()
            .asked
            .iter()
            .all(|(_, asked)| asked.resource.is_empty())
    );
    // With it, another one may be down; and it is found by the name that another one gives.
    let probed = probe(&[&closed, &address]).await;
    assert_eq!(
        probed.check("leases", "server", &closed)["status"],
        "warning"
    );
    let names = Mock::new();
    let (other, _serving) = names.serve().await;
    names.lock().names_master = Some(Some(address.clone()));
    let probed = probe(&[&other]).await;
    probed.only(&[]);
    let found = format!("answers, and is not the master; it names {address}");
    probed.says(("leases", "server", &other), "ok", &found, "", "");
    names.lock().names_master = Some(Some(closed.clone()));
    let probed = probe(&[&other]).await;
    let found = format!("is not the master; it names {closed}");
    assert_eq!(probed.check("leases", "server", &other)["found"], found);
    // Nor does a server of something else grant leases.
    let web = answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    let probed = probe(&[&web.addr.to_string()]).await;
    probed.only(&[("leases", "server")]);
    names.lock().hangs = true;
    let probed = probe(&[&other]).await;
    let cause = probed.check("leases", "server", &other)["cause"].clone();
    assert_eq!(cause, "it did not answer within 500 ms");
}
