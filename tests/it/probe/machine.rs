//! Findings about this machine, and about the addresses to listen on.

use super::*;
use crate::support::cannot_run;

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
        return cannot_run("probe: full disks", "this user may not mount anything");
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

/// A machine with the user of the service. Only root can look with its rights.
fn with_service(setup: &Setup) -> bool {
    let passes = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(setup.folder.path(), passes).expect("ours");
    setup.machine(
        "etc/passwd",
        "tidegate:x:64123:64124::/:/usr/sbin/nologin\n",
    );
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let why = "only root can look with the rights of another user";
        cannot_run("probe: the user of the service", why);
    }
    is_root
}

#[tokio::test]
async fn root_looks_with_the_rights_of_the_user_of_the_service() {
    let backend = backend().await;
    let setup = Setup::new(&before(&backend, ""));
    if !with_service(&setup) {
        return;
    }
    let config = setup.path("config.toml");
    let mode = |mode: u32| {
        fs::write(&config, "").expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&config, mode).expect("ours");
    };
    mode(0o640);
    let probed = setup.probe().await;
    probed.says(
        ("config", "file", "file"),
        "failed",
        &format!("{config} cannot be read by tidegate"),
        "the service runs as that user, and does not start: Permission denied (os error 13)",
        &format!(
            "chgrp tidegate {config} && chmod 0640 {config}, and let that user pass its directories"
        ),
    );
    let user = probed.check("machine", "user", "user");
    assert_eq!(
        user["found"],
        "looked as tidegate, which the service runs as"
    );
    mode(0o644);
    setup.probe().await.only(&[]);
    // As root itself, everything can be read.
    mode(0o600);
    setup.machine("etc/passwd", "root:x:0:0::/:/bin/sh\n");
    setup.probe().await.only(&[]);
}

#[tokio::test]
async fn a_place_that_only_root_can_write_to_or_that_the_unit_makes() {
    let backend = backend().await;
    let setup = Setup::new("");
    let folder = setup.path("state");
    let with = |setup: Setup, path: &str, sections: &str| Setup {
        config: before(
            &backend,
            &format!("{sections}[callers]\nstate_file = \"{path}\"\n"),
        ),
        ..setup
    };
    let setup = with(setup, &format!("{folder}/callers.json"), "");
    if !with_service(&setup) {
        return;
    }
    fs::create_dir(&folder).expect("made");
    let probed = setup.probe().await;
    probed.only(&[("machine", "state_file")]);
    let check = probed.check("machine", "state_file", "state file");
    let found = format!("{folder}/callers.json cannot be written by tidegate");
    assert_eq!(check["found"], found);
    let owner = (Some(64123), Some(64124));
    std::os::unix::fs::chown(&folder, owner.0, owner.1).expect("root may");
    setup.probe().await.only(&[]);
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);

    // The directories of a unit that has not run yet.
    let setup = with(setup, "/var/lib/tidegate-not-yet/callers.json", "");
    let config = setup.config.replace(
        "[admin]\nbind = false\n",
        "[admin]\nbind = false\nsocket = \"unix:/run/tidegate-not-yet/admin.sock\"\n",
    );
    let setup = Setup { config, ..setup };
    let probed = setup.probe().await;
    probed.only(&[]);
    for (check, about) in [
        (("machine", "state_file"), "state file"),
        (("admin", "address"), "socket"),
    ] {
        let found = probed.check(check.0, check.1, about)["found"].to_string();
        assert!(found.contains("systemd makes its directory"), "{found}");
    }
}
