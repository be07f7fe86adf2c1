//! A process that speaks another version of the hand-over: the old one drains, and the ledger goes on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tidegate_handover::{FrameReader, ToNew, ToOld, UpgradeRefusal, Versions, WireMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{Upgraded, config, socket_backend, stand_in};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, array, ask, closed_port};

/// Versions that no program speaks yet.
const LATER: Versions = Versions {
    oldest: 99,
    newest: 99,
};

/// A file beside the ledger of the sidecar whose config is in this folder.
pub(super) fn beside_the_ledger(dir: &Path, extension: &str) -> PathBuf {
    let files = std::fs::read_dir(dir.join("config.run")).expect("a folder");
    let mut paths = files.map(|file| file.expect("readable").path());
    let lock = paths.find(|path| path.extension().is_some_and(|it| it == "lock"));
    lock.expect("a lock").with_extension(extension)
}

/// An end of a hand-over, by hand.
pub(super) struct ByHand {
    stream: UnixStream,
    reader: FrameReader,
}

impl ByHand {
    fn new(stream: UnixStream) -> Self {
        let reader = FrameReader::default();
        Self { stream, reader }
    }

    /// A new process that has introduced itself to the sidecar whose config is in this folder.
    pub(super) async fn introduced(dir: &Path, versions: Versions) -> Self {
        let socket = beside_the_ledger(dir, "upgrade");
        let mut new = Self::new(UnixStream::connect(socket).await.expect("it listens"));
        new.send(&ToOld::Hello {
            versions,
            instance: "a process by hand".into(),
            config: "config.toml".into(),
        })
        .await;
        new
    }

    pub(super) async fn send(&mut self, message: &impl WireMessage) {
        let mut frame = Vec::new();
        message.write(&mut frame).expect("it is short");
        self.stream.write_all(&frame).await.expect("it is read");
    }

    pub(super) async fn next<M: WireMessage>(&mut self) -> M {
        let reading = async {
            loop {
                if let Some(message) = self.reader.next_message().expect("a message") {
                    return message;
                }
                let mut bytes = [0; 4096];
                let read = self.stream.read(&mut bytes).await.expect("it is open");
                assert!(read > 0, "it was closed");
                self.reader.push(&bytes[..read]);
            }
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("in time")
    }
}

#[tokio::test]
async fn an_old_process_drains_for_a_new_one_of_another_version() {
    let backend = stand_in(Duration::ZERO).await;
    let limits = "per_window = \"total:1000\"";
    let old = Upgraded::start(&socket_backend(&backend.socket_addr()), limits, "").await;
    let mut new = ByHand::introduced(old.dir.path(), LATER).await;
    let refused: ToNew = new.next().await;
    let expected = UpgradeRefusal::UnknownVersion(Versions::OWN);
    assert_eq!(refused, ToNew::Refused(expected));
    // It prepares itself, and nothing has changed meanwhile.
    assert!(
        ask(old.addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    new.send(&ToOld::Drain).await;
    let (status, lines) = old.sidecar.ended().await;
    assert!(status.success(), "{lines:#?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("speaks another version")),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn a_new_process_waits_for_an_old_one_of_another_version_to_drain() {
    let backend = stand_in(Duration::ZERO).await;
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let addr = closed_port();
    let backend_lines = socket_backend(&backend.socket_addr());
    let text = config(addr, &backend_lines, "per_window = \"total:1000\"", "");
    // A first life makes the files of the ledger.
    let first = Sidecar::start_in(Arc::clone(&dir), &text, |binary| {
        tokio::process::Command::new(binary)
    })
    .await;
    first.signal("TERM");
    first.exited().await;
    let lock = File::open(beside_the_ledger(dir.path(), "lock")).expect("it is there");
    flock(&lock, FlockOperation::LockExclusive).expect("it is free");
    let socket = beside_the_ledger(dir.path(), "upgrade");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("it is free");
    let starting = tokio::spawn(Sidecar::take_over(Arc::clone(&dir)));
    let (stream, _) = listener.accept().await.expect("it connects");
    let mut old = ByHand::new(stream);
    let hello: ToOld = old.next().await;
    assert!(matches!(hello, ToOld::Hello { .. }), "{hello:?}");
    old.send(&ToNew::Refused(UpgradeRefusal::UnknownVersion(LATER)))
        .await;
    let drain: ToOld = old.next().await;
    assert_eq!(drain, ToOld::Drain);
    assert!(!starting.is_finished(), "the old process has the ledger");
    drop((old, lock));
    let new = tokio::time::timeout(PATIENCE, starting)
        .await
        .expect("it starts");
    let new = new.expect("it serves");
    assert!(
        ask(addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    new.log()
        .wait(&["counts what the process before left"])
        .await;
}

/// Bytes that are no message, and a process that says nothing: neither changes anything.
#[tokio::test]
async fn what_is_not_a_hand_over_changes_nothing() {
    let backend = stand_in(Duration::ZERO).await;
    let limits = "per_window = \"total:1000\"";
    let old = Upgraded::start(&socket_backend(&backend.socket_addr()), limits, "").await;
    let socket = beside_the_ledger(old.dir.path(), "upgrade");
    let mut garbage = UnixStream::connect(&socket).await.expect("it listens");
    garbage.write_all(&[b'x'; 4096]).await.expect("it is read");
    // It is closed, also if not all was read.
    let _ = garbage.read_to_end(&mut Vec::new()).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(UnixStream::connect(&socket).await.expect("it listens"));
    }
    assert!(
        ask(old.addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    let new = old.succeeded().await;
    assert!(
        ask(old.addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    drop((new, silent));
}
