//! Shipped files other than the source: the Docker context, the units of systemd, the process's
//! reports to a service manager, and what the packages contain. `make packages` and
//! `make try-packages` build and try them; here is what needs no build.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use tokio::process::Command;

use crate::manual;
use crate::sidecar::{Sidecar, TIDEGATE, run};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether Docker would send this path, relative to the root, to the build. Knows the two kinds
/// of patterns that .dockerignore uses: `*` for everything, and `!path` for exceptions.
fn is_in_docker_context(path: &Path, dockerignore: &str) -> bool {
    let patterns = dockerignore
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut is_in = true;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            None => {
                assert_eq!(pattern, "*", "a pattern that this test does not know");
                is_in = false;
            }
            Some(sent) => {
                assert!(!sent.contains('*'), "{sent}: this test knows no wildcards");
                is_in |= path.starts_with(sent);
            }
        }
    }
    is_in
}

/// Every file below a folder, relative to the root.
fn files_below(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read") {
            let path = entry.expect("an entry that can be read").path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    folders.push(path);
                }
            } else {
                let relative = path.strip_prefix(root()).expect("below the root");
                found.push(relative.to_owned());
            }
        }
    }
    found
}

/// The files that the product's own sources include at compile time, relative to the root.
fn included_files() -> BTreeSet<PathBuf> {
    let mut included = BTreeSet::new();
    let sources = [files_below("src"), files_below("crates")].concat();
    for source in sources {
        let is_rust = source.extension().is_some_and(|it| it == "rs");
        let is_product = source.components().any(|it| it.as_os_str() == "src");
        if !is_rust || !is_product {
            continue;
        }
        let text = read(&source);
        for call in ["include_str!(\"", "include_bytes!(\"", "include!(\""] {
            for (at, _) in text.match_indices(call) {
                // What only tests include is not built into the image.
                let is_test = text[..at].contains("#[cfg(test)]") || is_test_file(&source);
                if is_test {
                    continue;
                }
                let rest = &text[at + call.len()..];
                let name = rest.split('"').next().expect("split gives one at least");
                let folder = source.parent().expect("a file is in a folder");
                let path = root().join(folder).join(name);
                let path = path
                    .canonicalize()
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let root = root().canonicalize().expect("the root exists");
                included.insert(path.strip_prefix(root).expect("below the root").to_owned());
            }
        }
    }
    included
}

/// Whether a file is a module that only tests compile.
fn is_test_file(source: &Path) -> bool {
    let name = source.file_stem().and_then(|it| it.to_str()).unwrap_or("");
    let folder = source.parent().expect("a file is in a folder");
    let parents = [
        folder.with_extension("rs"),
        folder.join("mod.rs"),
        folder.join("lib.rs"),
    ];
    parents.iter().any(|parent| {
        fs::read_to_string(root().join(parent))
            .is_ok_and(|text| text.contains(&format!("#[cfg(test)]\nmod {name};")))
    })
}

#[test]
fn every_file_that_the_build_reads_is_in_the_docker_context() {
    let dockerignore = read(".dockerignore");
    let included = included_files();
    assert!(
        included.contains(Path::new("docs/reference/openapi.json")),
        "the search finds what is known to be included: {included:?}"
    );
    let read_by_cargo = [
        "Cargo.toml",
        "Cargo.lock",
        "build.rs",
        "src/main.rs",
        "benches/quota.rs",
    ];
    let needed = read_by_cargo.map(PathBuf::from).into_iter().chain(included);
    for path in needed {
        assert!(
            is_in_docker_context(&path, &dockerignore),
            "{} is not sent to `docker build`: add it to .dockerignore",
            path.display()
        );
    }
    // The context of a released version lacked this one, and no image could be built.
    let before = dockerignore.replace("!docs/reference/openapi.json", "");
    assert!(!is_in_docker_context(
        Path::new("docs/reference/openapi.json"),
        &before
    ));
}

#[test]
fn the_docker_file_copies_the_manifest_of_every_member() {
    let docker = read("Dockerfile");
    let manifest = read("Cargo.toml");
    let members = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = ["))
        .expect("the workspace lists its members");
    let members = members
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|it| *it != ".");
    for member in members {
        let line = format!("COPY {member}/Cargo.toml {member}/Cargo.toml");
        assert!(docker.contains(&line), "no `{line}` in Dockerfile");
    }
}

#[test]
fn the_units_of_systemd_name_commands_and_paths_that_exist() {
    let units: Vec<_> = files_below("packaging")
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "service"))
        .collect();
    assert_eq!(units.len(), 4, "{units:?}");
    for unit in units {
        let text = read(&unit);
        let says = |line: &str| {
            assert!(
                text.lines().any(|it| it == line),
                "no {line} in {}",
                unit.display()
            );
        };
        says("Type=notify");
        // No start is given up, and the clock is set first where a service waits for that.
        let (of_unit, _) = text.split_once("[Service]").expect("a section");
        let tries = of_unit.lines().any(|it| it == "StartLimitIntervalSec=0");
        assert!(tries, "{}", unit.display());
        let mut lines = of_unit.lines();
        let after = lines
            .find_map(|it| it.strip_prefix("After="))
            .expect("it has one");
        assert!(
            after.split(' ').any(|it| it == "time-sync.target"),
            "{after}"
        );
        assert!(!text.contains("Wants=time-sync"), "only where it is there");
        for line in text.lines().filter(|line| line.starts_with("Exec")) {
            let Some((_, arguments)) = line.split_once("/usr/bin/") else {
                assert_eq!(line, "ExecReload=/bin/kill -HUP $MAINPID");
                continue;
            };
            let mut words = arguments.split(' ');
            let program = words.next().expect("split gives one at least");
            let command = words.next().expect("a command");
            let mut definitions = manual::programs().into_iter();
            let definition = definitions.find(|it| it.get_name() == program);
            let definition = definition.unwrap_or_else(|| panic!("{line}: no such program"));
            let help = definition.find_subcommand(command).cloned();
            let help = help.map(|mut it| it.render_long_help().to_string());
            let help = help.unwrap_or_else(|| panic!("{line}: no such command"));
            for option in arguments.split(' ').filter(|it| it.starts_with("--")) {
                assert!(help.contains(option), "{line}: {command} has no {option}");
            }
        }
        let Ok(scored) = process::Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=12"])
            .arg(root().join(&unit))
            .output()
        else {
            continue;
        };
        let told = String::from_utf8_lossy(&scored.stdout);
        assert!(
            scored.status.success(),
            "{} is exposed more than 1.2: {}",
            unit.display(),
            told.lines().last().unwrap_or("")
        );
    }
    let text = read("packaging/tidegate.service");
    for (example, directive) in [
        ("/var/lib/tidegate/callers.json", "StateDirectory=tidegate"),
        ("unix:/run/tidegate/", "RuntimeDirectory=tidegate"),
        (
            "/run/credentials/tidegate.service/",
            "#LoadCredential=tls.key:/etc/tidegate/tls.key",
        ),
    ] {
        assert!(text.contains(example), "no {example}");
        assert!(text.lines().any(|it| it == directive), "no {directive}");
    }
    let instance = read("packaging/tidegate@.service");
    assert_eq!(of_instance(below_head(&text)), below_head(&instance));
    assert!(read("docs/reference/options.md").contains("/var/lib/tidegate/callers.json"));
    // The user that the packages make is the one that the unit asks for.
    assert!(text.lines().any(|it| it == "User=tidegate"));
    let users = read("packaging/sysusers.conf");
    assert!(users.lines().any(|it| it.starts_with("u tidegate ")));
}

/// A unit without its comment at the top.
fn below_head(unit: &str) -> &str {
    let start = unit.find("[Unit]").expect("it has a section");
    &unit[start..]
}

/// The unit of the packages as that of an instance.
fn of_instance(unit: &str) -> String {
    let mut unit = unit.to_owned();
    for (whole, of_instance) in [
        ("Description=Tidegate:", "Description=Tidegate %i:"),
        ("/etc/tidegate/environment", "/etc/tidegate/%i.environment"),
        ("/etc/tidegate/config.toml", "/etc/tidegate/%i.toml"),
        ("/etc/tidegate/tls.key", "/etc/tidegate/%i.key"),
        ("/run/tidegate/", "/run/tidegate-%i/"),
        ("/var/lib/tidegate/", "/var/lib/tidegate-%i/"),
        ("/tidegate.service/", "/tidegate@%i.service/"),
        ("Directory=tidegate\n", "Directory=tidegate-%i\n"),
    ] {
        assert!(unit.contains(whole), "no {whole}");
        unit = unit.replace(whole, of_instance);
    }
    unit
}

/// Calls `check` with every command of a program and below it, by the name of its manual page.
fn each_command(command: &clap::Command, check: &mut dyn FnMut(&str, &clap::Command)) {
    let name = command.get_display_name().unwrap_or(command.get_name());
    check(name, command);
    for below in command.get_subcommands() {
        each_command(below, check);
    }
}

#[test]
fn every_command_has_a_manual_page_and_completions() {
    let folder = tempfile::tempdir().expect("a folder");
    manual::write(folder.path()).expect("written");
    let page = |name: &str| fs::read_to_string(folder.path().join(format!("man/{name}.1"))).ok();
    let mut pages = 0;
    for program in manual::programs() {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        let name = program.get_name();
        let completions = [
            format!("{name}.bash"),
            format!("_{name}"),
            format!("{name}.fish"),
        ];
        let completions =
            completions.map(|file| read(folder.path().join("completions").join(file)));
        each_command(&program, &mut |name, command| {
            let page = page(name).unwrap_or_else(|| panic!("no page {name}"));
            assert!(
                page.contains(&format!(".TH {} 1", name.to_uppercase())),
                "{page}"
            );
            let shown = command.get_arguments().filter(|it| !it.is_hide_set());
            for option in shown.filter_map(clap::Arg::get_long) {
                let written = format!("\\-\\-{}", option.replace('-', "\\-"));
                assert!(page.contains(&written), "{name} has no {written}: {page}");
                for completion in &completions {
                    assert!(
                        completion.contains(option),
                        "no completion of {name} --{option}"
                    );
                }
            }
            pages += 1;
        });
        let bash = process::Command::new("bash")
            .arg("-n")
            .arg(folder.path().join(format!("completions/{name}.bash")))
            .status()
            .expect("bash runs");
        assert!(bash.success(), "the completion for bash");
    }
    let written = fs::read_dir(folder.path().join("man"))
        .expect("pages")
        .count();
    assert_eq!(pages, written, "a page for each command, and no other");
    assert!(pages >= 25, "{pages} pages");
    assert!(
        page("tidegate-demo").expect("a page").contains("calls"),
        "with its options"
    );
    assert!(page("tidegate-nothing").is_none());
}

/// A line of `packaging/pack.py --list`.
#[derive(Debug)]
struct Installed {
    package: String,
    path: String,
    mode: String,
    is_config: bool,
    source: PathBuf,
}

/// The contents of the packages of a kind.
fn installed(kind: &str, manual: &Path) -> Vec<Installed> {
    let listed = python()
        .arg("packaging/pack.py")
        .args(["--list", kind, "--manual"])
        .arg(manual)
        .output()
        .expect("python3 runs");
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let lines = listed.lines().map(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        let [package, path, mode, kind, source] = fields[..] else {
            panic!("{line}");
        };
        Installed {
            package: package.to_owned(),
            path: path.to_owned(),
            mode: mode.to_owned(),
            is_config: kind == "config",
            source: source.into(),
        }
    });
    lines.collect()
}

/// python3 that leaves no compiled files behind.
fn python() -> process::Command {
    let mut command = process::Command::new("python3");
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    command
}

#[test]
fn the_packages_contain_what_the_units_and_the_shells_look_for() {
    let folder = tempfile::tempdir().expect("a folder");
    manual::write(folder.path()).expect("written");
    for package in ["deb", "rpm", "tar"] {
        let installed = installed(package, folder.path());
        let at = |path: &str| {
            let found = installed.iter().find(|file| file.path == path);
            found.unwrap_or_else(|| panic!("no {path} in the {package}"))
        };
        for file in &installed {
            let is_built = file.source.starts_with("bin");
            assert!(is_built || file.source.is_file(), "{file:?} does not exist");
            assert_eq!(file.is_config, file.path.starts_with("/etc/"), "{file:?}");
        }
        assert_eq!(at("/usr/bin/tidegate").mode, "0755");
        assert_eq!(at("/etc/tidegate/environment").mode, "0600");
        let units = files_below("packaging")
            .into_iter()
            .filter(|path| path.extension().is_some_and(|it| it == "service"));
        for unit in units {
            let name = unit.file_name().expect("a name").to_string_lossy();
            let unit = at(&format!("/usr/lib/systemd/system/{name}"));
            for line in read(&unit.source).lines() {
                let Some((_, rest)) = line.split_once("/usr/bin/") else {
                    continue;
                };
                let program = rest.split(' ').next().expect("split gives one at least");
                if !line.starts_with('#') {
                    let program = at(&format!("/usr/bin/{program}"));
                    assert_eq!(program.mode, "0755");
                    assert_eq!(program.package, unit.package, "{line}");
                }
            }
        }
        // Its addresses are those of the config that is installed beside it, and the admin address.
        let socket = read(&at("/usr/lib/systemd/system/tidegate.socket").source);
        let addresses = socket
            .lines()
            .filter_map(|line| line.strip_prefix("ListenStream="));
        let config = read("packaging/config.toml");
        for address in addresses {
            let is_admin = address == "127.0.0.1:9180";
            let bound = config.contains(&format!("bind = \"{address}\""));
            assert!(is_admin || bound, "{address}");
        }
        let sources: BTreeSet<_> = installed.iter().map(|file| file.source.clone()).collect();
        for made in ["man", "completions"] {
            for entry in fs::read_dir(folder.path().join(made)).expect("made above") {
                let path = entry.expect("an entry that can be read").path();
                assert!(
                    sources.contains(&path),
                    "{} is not in the {package}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn the_scripts_of_the_packages_can_be_read_and_start_nothing() {
    let spec = read("packaging/tidegate.spec");
    let sections = spec
        .split("\n%")
        .filter(|it| it.starts_with("p"))
        .map(str::to_owned);
    let scripts = ["postinst", "prerm", "postrm"].map(|name| read(format!("packaging/deb/{name}")));
    let mut commands = 0;
    for script in scripts.into_iter().chain(sections) {
        for line in script
            .lines()
            .filter(|line| line.contains("systemctl --system"))
        {
            let words: Vec<_> = line.split_whitespace().collect();
            let allowed = ["daemon-reload", "try-restart", "stop", "disable"];
            assert!(words.iter().any(|word| allowed.contains(word)), "{line}");
            assert!(
                !words
                    .iter()
                    .any(|word| ["start", "enable", "restart"].contains(word)),
                "{line}"
            );
            commands += 1;
        }
    }
    assert!(commands >= 8, "{commands} commands were found");
    for script in ["deb/postinst", "deb/prerm", "deb/postrm", "twice.sh"] {
        let path = root().join("packaging").join(script);
        let read = process::Command::new("sh").arg("-n").arg(&path).status();
        assert!(read.expect("sh runs").success(), "{}", path.display());
    }
    for tool in [
        "archive.py",
        "build.py",
        "core_tests.py",
        "image.py",
        "machine.py",
        "pack.py",
        "pages.py",
        "try.py",
    ] {
        let path = format!("packaging/{tool}");
        let compiled = python()
            .args([
                "-c",
                "import ast, sys; ast.parse(open(sys.argv[1]).read())",
                &path,
            ])
            .status();
        assert!(compiled.expect("python3 runs").success(), "{path}");
    }
}

#[test]
fn the_config_of_the_packages_is_good() {
    let check = |path: &str| {
        let checked = process::Command::new(TIDEGATE)
            .args(["check", "--config", path])
            .current_dir(root())
            .output()
            .expect("the binary runs");
        (
            checked.status.success(),
            String::from_utf8_lossy(&checked.stderr).into_owned(),
        )
    };
    assert_eq!(check("packaging/config.toml"), (true, String::new()));
    assert!(!check("packaging/environment").0, "it is no config");
}

#[test]
fn a_program_that_needs_more_than_the_packages_promise_is_refused() {
    let needs = |architecture: &str| {
        let script =
            "import build, sys; build.needs(build.ARCHITECTURES[sys.argv[1]], sys.argv[2])";
        let checked = python()
            .args(["-c", script, architecture, TIDEGATE])
            .env("PYTHONPATH", root().join("packaging"))
            .output()
            .expect("python3 runs");
        assert!(!checked.status.success(), "{checked:?}");
        String::from_utf8(checked.stderr).expect("text")
    };
    // The binary of the tests is linked with the C library of this machine.
    let told = needs("x86_64");
    assert!(told.contains("is not static"), "{told}");
    let told = needs("s390x");
    assert!(told.contains("above (2, 28)"), "{told}");
}

const PLAIN: &str = "[[listen]]\nname = \"front\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
                     [backend]\nsocket = \"127.0.0.1:9\"\n[limits]\n\
                     per_window = \"total:30\"\n[admin]\nbind = \"127.0.0.1:0\"\n";

/// Receives what a process reports to its service manager.
async fn next_report(socket: UnixDatagram) -> (UnixDatagram, String) {
    tokio::task::spawn_blocking(move || {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).expect("a report in time");
        let report = String::from_utf8(buffer[..length].to_vec()).expect("text");
        (socket, report)
    })
    .await
    .expect("no panic")
}

#[tokio::test]
async fn the_service_manager_learns_when_it_is_ready_reloads_and_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout");
    let sidecar = Sidecar::start_with(PLAIN, |binary| {
        let mut command = Command::new(binary);
        command.env("NOTIFY_SOCKET", &path);
        command
    })
    .await;
    let (socket, report) = next_report(socket).await;
    assert_eq!(report.trim(), "READY=1");
    // A refused config ends a reload just as well: the old one serves.
    for (config, outcome) in [(PLAIN, "config reloaded"), ("x", "config refused")] {
        sidecar.write_config(config);
        sidecar.hang_up(outcome).await;
    }
    let mut socket = socket;
    for _ in 0..2 {
        let report;
        (socket, report) = next_report(socket).await;
        assert!(
            report.starts_with("RELOADING=1\nMONOTONIC_USEC="),
            "{report}"
        );
        let report;
        (socket, report) = next_report(socket).await;
        assert_eq!(report.trim(), "READY=1");
    }
    sidecar.signal("TERM");
    let (_, report) = next_report(socket).await;
    assert_eq!(report.trim(), "STOPPING=1");
    let (status, _) = sidecar.ended().await;
    assert!(status.success());
}

#[tokio::test]
async fn check_warns_of_a_state_file_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("missing/callers.json");
    let config = folder.path().join("config.toml");
    let text = format!("{PLAIN}[callers]\nstate_file = \"{}\"\n", state.display());
    fs::write(&config, text).expect("written");
    let mut check = Command::new(TIDEGATE);
    check.arg("check").arg("--config").arg(&config);
    let said = run(&mut check).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    let warning = format!("warning: cannot write the state file {}", state.display());
    assert!(said.err.contains(&warning), "{}", said.err);
    assert!(said.err.contains("StateDirectory="), "{}", said.err);
}
