//! Shipped files other than the source: the Docker context, the units of systemd, and the
//! process's reports to a service manager.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use tokio::process::Command;

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
        included.contains(Path::new("docs/openapi.json")),
        "the search finds what is known to be included: {included:?}"
    );
    let read_by_cargo = [
        "Cargo.toml",
        "Cargo.lock",
        "build.rs",
        "link/order.txt",
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
    let before = dockerignore.replace("!docs/openapi.json", "");
    assert!(!is_in_docker_context(
        Path::new("docs/openapi.json"),
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
    assert_eq!(units.len(), 3, "{units:?}");
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
        for line in text.lines().filter(|line| line.starts_with("Exec")) {
            let Some((_, arguments)) = line.split_once("/usr/local/bin/tidegate ") else {
                assert_eq!(line, "ExecReload=/bin/kill -HUP $MAINPID");
                continue;
            };
            let command = arguments
                .split(' ')
                .next()
                .expect("split gives one at least");
            let help = process::Command::new(TIDEGATE)
                .args([command, "--help"])
                .output()
                .expect("the binary runs");
            assert!(help.status.success(), "{line}: no such command");
            let help = String::from_utf8(help.stdout).expect("text");
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
    assert!(read("config.toml.example").contains("/var/lib/tidegate/callers.json"));
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
