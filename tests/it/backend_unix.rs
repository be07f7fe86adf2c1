//! Backends on socket files, through the real process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::{OK, PATIENCE, Scripted, array, ask, cannot_run, connect};

const GET: &str = "GET /guests HTTP/1.1\r\nHost: t.example\r\nConnection: close\r\n\r\n";

fn config(backend: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [[listen]]
        name = "tunnel"
        bind = "127.0.0.1:0"
        protocol = "tcp"
        [backend]
        kind = "zvm"
        {backend}
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:10000"
        ledger_lost = "assume_empty"
        max_wait = "30s"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

fn at(path: &Path) -> String {
    let path = path.display();
    config(&format!(
        "socket = \"unix:{path}\"\nhttp = \"unix:{path}\"\ntcp = \"unix:{path}\""
    ))
}

/// Answers each call on a socket file: an HTTP one with the Host that it was asked for.
fn serve(path: &Path) -> DropGuard {
    let listener = UnixListener::bind(path).expect("a free path");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("it listens");
            let talk = async move {
                let mut request = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut request).await {
                    let text = String::from_utf8_lossy(&request[..read]).into_owned();
                    let answer = match text.starts_with('[') {
                        true => String::from_utf8(OK.to_vec()).expect("ASCII"),
                        false => {
                            let is_host = |line: &&str| line.to_lowercase().starts_with("host: ");
                            let host = text.lines().find(is_host).map_or("none", |line| &line[6..]);
                            let length = host.len();
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{host}")
                        }
                    };
                    stream
                        .write_all(answer.as_bytes())
                        .await
                        .expect("it is read");
                    if text.starts_with('[') {
                        return;
                    }
                }
            };
            tokio::spawn(stopped.clone().run_until_cancelled_owned(talk));
        }
    }));
    stop.drop_guard()
}

async fn all_are_answered(addr: SocketAddr, tunnel: SocketAddr) {
    let got = timeout(PATIENCE, ask(addr, GET)).await.expect("no hang");
    assert!(got.ends_with("\r\n\r\nt.example"), "{got}");
    let got = timeout(PATIENCE, ask(addr, array("guest_get_info", "X"))).await;
    assert_eq!(got.expect("no hang").as_bytes(), OK);
    let got = timeout(PATIENCE, ask(tunnel, array("guest_get_info", "X"))).await;
    assert_eq!(got.expect("no hang").as_bytes(), OK);
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a place");
    let path = dir.path().join("sdk.sock");
    (dir, path)
}

#[tokio::test]
async fn calls_of_each_protocol_are_answered_on_a_socket_file_also_after_it_was_made_again() {
    let (_dir, path) = place();
    let mut backend = serve(&path);
    let sidecar = Sidecar::start(&at(&path)).await;
    let addr = sidecar.listener("test").await;
    let tunnel = sidecar.listener("tunnel").await;
    for _ in 0..3 {
        all_are_answered(addr, tunnel).await;
        drop(backend);
        std::fs::remove_file(&path).expect("it is there");
        // A call that comes meanwhile waits.
        let waiting = tokio::spawn(async move { ask(addr, GET).await });
        let missing = sidecar
            .log()
            .wait(&["takes no connection", "No such file"])
            .await;
        let shown = format!("unix:{}", path.display());
        assert!(missing.contains(&shown), "{missing}");
        backend = serve(&path);
        let answer = waiting.await.expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    all_are_answered(addr, tunnel).await;
    let (_, state) = sidecar.get("/v1/now").await;
    assert!(state.contains("sdk.sock"), "{state}");
}

#[tokio::test]
async fn a_file_that_may_not_be_written_to_is_named_with_the_cause() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, path) = place();
    let backend = serve(&path);
    for folder in [dir.path(), &path] {
        let mode = std::fs::Permissions::from_mode(if folder == path { 0o600 } else { 0o755 });
        std::fs::set_permissions(folder, mode).expect("it is ours");
    }
    let another = || {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
    };
    let can = another().args([TIDEGATE, "--version"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        let why = format!("no other user can run {TIDEGATE}");
        return cannot_run("backend_unix: permissions of a socket file", &why);
    }
    let folder = tempfile::tempdir().expect("a place");
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), mode).expect("it is ours");
    let text = at(&path);
    let file = folder.path().join("config.toml");
    std::fs::write(&file, &text).expect("it can be written to");
    let sidecar = Sidecar::start_with(&text, |binary| {
        let mut command = tokio::process::Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "env"])
            .arg(format!("TIDEGATE_CONFIG={}", file.display()))
            .args(["sh", "-c", "exec \"$0\" serve", binary])
            .env("TIDEGATE_RUNTIME_DIR", folder.path());
        command
    })
    .await;
    let addr = sidecar.listener("test").await;
    let waiting = tokio::spawn(async move { ask(addr, GET).await });
    let line = sidecar
        .log()
        .wait(&["takes no connection", "Permission denied"])
        .await;
    assert!(line.contains(&format!("unix:{}", path.display())), "{line}");
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&path, mode).expect("it is ours");
    let answer = waiting.await.expect("it is answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(backend);
}

#[tokio::test]
async fn a_backend_moves_from_an_address_to_a_socket_file_and_back_by_reloads() {
    let (_dir, path) = place();
    let _backend = serve(&path);
    let plain = Scripted::in_both_dialects().await;
    let addr = plain.addr;
    let on_tcp = config(&format!(
        "socket = \"{addr}\"\nhttp = \"http://{addr}\"\ntcp = \"{addr}\""
    ));
    let sidecar = Sidecar::start(&on_tcp).await;
    let addr = sidecar.listener("test").await;
    let tunnel = sidecar.listener("tunnel").await;
    for _ in 0..3 {
        let got = ask(addr, GET).await;
        assert!(got.contains("overallRC"), "{got}");
        sidecar.reload(&at(&path)).await;
        all_are_answered(addr, tunnel).await;
        sidecar.reload(&on_tcp).await;
    }
}

#[tokio::test]
async fn a_client_that_half_closes_a_tunnel_to_a_socket_file_still_gets_the_rest() {
    let (_dir, path) = place();
    let listener = UnixListener::bind(&path).expect("a free path");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("it listens");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.expect("a whole end");
        stream.write_all(&all).await.expect("it is read");
    });
    let sidecar = Sidecar::start(&at(&path)).await;
    let mut client = connect(sidecar.listener("tunnel").await).await;
    client.write_all(b"all of it").await.expect("it is passed");
    client.shutdown().await.expect("it half-closes");
    assert_eq!(crate::support::read_all(&mut client).await, "all of it");
}

#[tokio::test]
async fn check_says_that_a_call_at_a_tcp_listener_is_a_connection() {
    let (dir, path) = place();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, at(&path)).expect("it can be written to");
    let mut command = tokio::process::Command::new(TIDEGATE);
    let said = run(command.arg("check").arg("--config").arg(&file)).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    let line = said
        .out
        .lines()
        .find(|line| line.starts_with("a call at tunnel"));
    assert!(
        line.is_some_and(|line| line.contains("one TCP connection")),
        "{}",
        said.out
    );
    assert!(!said.out.contains("a call at test"), "{}", said.out);
}
