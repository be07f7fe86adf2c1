//! Socket files: both protocols over them, the identity of the other end, and the file itself.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidegate::call::Peer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::certificates::{Files, Shows};
use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::{Held, OK, Stack, array, read_all};

const GET: &str = "GET /guests/X/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// A directory of a test, with the path of a socket file in it.
struct Place {
    dir: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("t.sock");
        Self { dir, path }
    }

    fn text(&self, backend: impl ToString, listener: &str, more: &str) -> String {
        let addr = backend.to_string();
        let path = self.path.display();
        format!(
            r#"
            [[listen]]
            name = "test"
            bind = "unix:{path}"
            {listener}
            [backend]
            socket = "{addr}"
            kind = "zvm"
            http = "http://{addr}"
            tcp = "{addr}"
            [queue]
            postpone = "in_turn"
            [limits]
            per_window = "total:10000"
            outstanding = 1
            [admin]
            bind = "127.0.0.1:0"
            {more}
            "#
        )
    }

    /// The user of this process.
    fn uid(&self) -> u32 {
        fs::metadata(self.dir.path()).expect("it is there").uid()
    }
}

/// Connects; a stream socket is read and written like any other.
fn connect(path: &Path) -> TcpStream {
    let stream = UnixStream::connect(path).expect("a server listens");
    stream.set_nonblocking(true).expect("a socket takes it");
    let stream = std::net::TcpStream::from(OwnedFd::from(stream));
    TcpStream::from_std(stream).expect("there is a runtime")
}

async fn ask(path: &Path, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = connect(path);
    stream.write_all(bytes.as_ref()).await.expect("it reads");
    read_all(&mut stream).await
}

#[tokio::test]
async fn every_protocol_works_over_a_socket_file_and_the_kernel_names_the_user() {
    let backend = Held::start(OK).await;
    let call = array("guest_get_info", "X");
    for protocol in ["auto", "socket", "tcp"] {
        let place = Place::new();
        let listener = format!("protocol = \"{protocol}\"");
        let stack = Stack::start(&place.text(backend.backend.addr, &listener, ""));
        let answer = backend.answer_until(ask(&place.path, &call)).await;
        assert_eq!(answer.as_bytes(), OK, "{protocol}");
        let facts = stack.seen.ended(1).await.remove(0);
        let (identity, uid) = (facts.origin.identity, place.uid());
        assert_eq!(identity.peer, Peer::Unix { uid });
        assert_eq!(identity.user.as_deref(), Some(&*format!("uid:{uid}")));
        assert_eq!(identity.address, None);
        stack.at_rest().await;
    }
    let http = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    for protocol in ["auto", "http"] {
        let place = Place::new();
        let listener = format!("protocol = \"{protocol}\"");
        let stack = Stack::start(&place.text(http.backend.addr, &listener, ""));
        let answer = http.answer_until(ask(&place.path, GET)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let facts = stack.seen.ended(1).await.remove(0);
        let user = format!("uid:{}", place.uid());
        assert_eq!(facts.origin.identity.user.as_deref(), Some(&*user));
    }
}

#[tokio::test]
async fn forwarded_counts_over_a_socket_file_only_where_that_is_said() {
    let http = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let request = GET.replace("Host", "X-Forwarded-For: 192.0.2.1\r\nHost");
    for (trusted, address) in [("[\"unix\"]", Some("192.0.2.1")), ("[\"0.0.0.0/0\"]", None)] {
        let place = Place::new();
        let callers = format!("[callers]\ntrusted_proxies = {trusted}");
        let stack = Stack::start(&place.text(http.backend.addr, "", &callers));
        http.answer_until(ask(&place.path, &request)).await;
        let facts = stack.seen.ended(1).await.remove(0);
        let expected = address.map(|address| address.parse().expect("an address"));
        assert_eq!(facts.origin.identity.address, expected);
    }
}

#[tokio::test]
async fn a_proxy_header_and_tls_come_over_a_socket_file_too() {
    let (backend, files, place) = (Held::start(OK).await, Files::new(), Place::new());
    let listener = format!("proxy_protocol = \"required\"\n{}", files.section(""));
    let callers = "[callers]\ntrusted_proxies = [\"unix\"]";
    let stack = Stack::start(&place.text(backend.backend.addr, &listener, callers));
    let mut stream = connect(&place.path);
    let header = b"PROXY TCP4 192.0.2.1 203.0.113.7 4711 80\r\n";
    stream.write_all(header).await.expect("it reads");
    let stream = files.connect(stream, Shows::Nothing).await;
    let mut stream = stream.expect("the handshake");
    let call = array("guest_get_info", "X");
    stream.write_all(call.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    backend.answer_until(reading).await.expect("it is answered");
    assert_eq!(answer.as_bytes(), OK);
    let identity = stack.seen.ended(1).await.remove(0).origin.identity;
    assert_eq!(identity.address, "192.0.2.1".parse().ok());
}

#[tokio::test]
async fn a_socket_file_client_that_leaves_while_it_waits_is_never_sent() {
    let (mut backend, place) = (Held::start(OK).await, Place::new());
    let stack = Stack::start(&place.text(backend.backend.addr, "", ""));
    let mut first = connect(&place.path);
    let call = array("guest_get_info", "FIRST");
    first.write_all(call.as_bytes()).await.expect("it reads");
    assert_eq!(backend.next().await, call);
    for bytes in [&*array("guest_get_info", "GONE"), GET] {
        let mut second = connect(&place.path);
        second.write_all(bytes.as_bytes()).await.expect("it reads");
        stack.busy(1, 1).await;
        drop(second);
        stack.busy(1, 0).await;
    }
    backend.go.notify_one();
    assert_eq!(read_all(&mut first).await.as_bytes(), OK);
    stack.at_rest().await;
    assert_eq!(backend.done(), 1);
}

#[tokio::test]
async fn the_process_makes_its_socket_file_with_its_mode_and_removes_it_at_the_end() {
    let (backend, place) = (Held::start(OK).await, Place::new());
    let config = place.text(backend.backend.addr, "unix_mode = \"0622\"", "");
    let sidecar = Sidecar::start(&config).await;
    let file = fs::metadata(&place.path).expect("it is there");
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o777, 0o622);
    let call = array("guest_get_info", "X");
    let answer = backend.answer_until(ask(&place.path, &call)).await;
    assert_eq!(answer.as_bytes(), OK);
    let user = format!("\"user\":\"uid:{}\"", place.uid());
    let line = sidecar.log().wait(&["\"target\":\"access\"", &user]).await;
    assert!(line.contains("\"peer\":\"unix\",\"client\":null"), "{line}");
    sidecar.signal("TERM");
    let (status, _) = sidecar.ended().await;
    assert!(status.success(), "{status}");
    assert!(!place.path.exists());
}

#[tokio::test]
async fn a_file_left_by_a_process_that_was_killed_makes_room() {
    let (backend, place) = (Held::start(OK).await, Place::new());
    let config = place.text(backend.backend.addr, "", "");
    let killed = Sidecar::start(&config).await;
    killed.signal("KILL");
    killed.ended().await;
    assert!(place.path.exists(), "no process was left to remove it");
    let _sidecar = Sidecar::start(&config).await;
    let call = array("guest_get_info", "X");
    let answer = backend.answer_until(ask(&place.path, &call)).await;
    assert_eq!(answer.as_bytes(), OK);
}

/// Starts a process that must fail; returns its output.
async fn refused(config: &str, dir: &TempDir) -> String {
    let path = dir.path().join("config.toml");
    fs::write(&path, config).expect("it can be written to");
    let mut command = Command::new(TIDEGATE);
    command.arg("serve").arg("--config").arg(&path);
    let said = run(&mut command).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    said.err
}

#[tokio::test]
async fn a_socket_file_that_is_alive_or_no_socket_stays_and_the_start_says_why() {
    let (backend, place) = (Held::start(OK).await, Place::new());
    let config = place.text(backend.backend.addr, "", "");
    let living = UnixListener::bind(&place.path).expect("nothing is in the way");
    let said = refused(&config, &place.dir).await;
    assert!(said.contains("in use by a running process"), "{said}");
    UnixStream::connect(&place.path).expect("it still listens");
    drop(living);
    fs::remove_file(&place.path).expect("it is there");

    fs::write(&place.path, "a file").expect("it can be written to");
    let said = refused(&config, &place.dir).await;
    assert!(said.contains("no socket"), "{said}");
    assert_eq!(fs::read(&place.path).expect("it stays"), b"a file");

    let nowhere = config.replace("t.sock", "no/t.sock");
    let said = refused(&nowhere, &place.dir).await;
    assert!(said.contains("no such directory"), "{said}");
}

#[tokio::test]
async fn a_reload_takes_a_socket_file_in_and_gives_it_up() {
    let (backend, place) = (Held::start(OK).await, Place::new());
    let with = place.text(backend.backend.addr, "", "");
    let unix = format!("unix:{}", place.path.display());
    let without = with.replace(&unix, "127.0.0.1:0");
    let sidecar = Sidecar::start(&without).await;
    sidecar.reload(&with).await;
    let call = array("guest_get_info", "X");
    let answer = backend.answer_until(ask(&place.path, &call)).await;
    assert_eq!(answer.as_bytes(), OK);
    // The same again is the same listener.
    sidecar.reload(&with).await;
    let answer = backend.answer_until(ask(&place.path, &call)).await;
    assert_eq!(answer.as_bytes(), OK);
    sidecar.reload(&without).await;
    crate::support::until(|| !place.path.exists(), || "the file stays".into()).await;
}

/// Sends a request over a socket file, and returns the whole answer.
async fn ask_at(path: &Path, request: &str) -> String {
    let mut stream = tokio::net::UnixStream::connect(path)
        .await
        .expect("a server listens");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it takes it");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    answer
}

#[tokio::test]
async fn the_admin_socket_knows_its_user_and_a_named_token_its_owner() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("admin.sock");
    let config = format!(
        "[admin]\nbind = \"127.0.0.1:0\"\ntokens = [\"ann:s3cret\", \"bob:other\"]\n\
         socket = \"unix:{}\"\n\
         [limits]\nper_window = \"total:30\"\n\
         [backend]\nsocket = \"127.0.0.1:9\"\n\
         [[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:0\"\n",
        file.display()
    );
    let sidecar = Sidecar::start(&config).await;
    assert_eq!(sidecar.get("/v1/limits").await.0, 401);
    let effective = ask_at(&file, &request("GET", "/v1/config", "")).await;
    assert!(effective.contains("tokens = [\"(hidden)\"]"), "{effective}");
    assert!(!effective.contains("s3cret"), "{effective}");

    let put = |token: &str| request("POST", "/v1/rate-limits", token);
    ask_at(&file, &put("")).await;
    let uid = fs::metadata(&file).expect("it is there").uid();
    let by_user = format!("\"author\":\"uid {uid}\"");
    sidecar
        .log()
        .wait(&["asked to change", &by_user, "/v1/rate-limits"])
        .await;
    let other = ask_at(&file, &put("Authorization: Bearer other\r\n")).await;
    assert!(!other.contains(" 401 "), "{other}");
    sidecar
        .log()
        .wait(&["asked to change", "\"author\":\"token bob\""])
        .await;
    let no_token = sidecar.ask("POST", "/v1/rate-limits", "{}").await;
    assert_eq!(no_token.0, 401);
    // A reload and an idle while change nothing, and the file goes with the process.
    sidecar.reload(&config).await;
    let answer = ask_at(&file, &request("GET", "/v1/queue", "")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    sidecar.signal("TERM");
    assert!(sidecar.ended().await.0.success());
    assert!(!file.exists());
}

fn request(method: &str, path: &str, more: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    )
}
