//! Listening on a socket file.
//!
//! The file outlives a killed process. So a file in the way is tested: without a listener behind
//! it, it is a leftover and is replaced; with a listener it stays.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, access};
use socket2::{Domain, SockAddr, Socket, Type};

use super::BACKLOG;

/// A socket file, removed when dropped.
#[derive(Debug)]
pub struct SocketFile(SocketFileId);

impl SocketFile {
    pub(super) fn id(&self) -> &SocketFileId {
        &self.0
    }
}

impl SocketFile {
    /// The file of a socket that another process has handed over.
    pub(super) fn handed_over(path: &Arc<Path>) -> io::Result<Self> {
        Ok(Self(SocketFileId {
            path: Arc::clone(path),
            id: id(&fs::symlink_metadata(path)?),
        }))
    }

    /// Leaves the file to another process.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.0.is_there() {
            // If it is left behind, it does no harm: the next start finds no listener behind it.
            let _ = fs::remove_file(&self.0.path);
        }
    }
}

/// The identity of a socket's file.
#[derive(Clone, Debug)]
pub struct SocketFileId {
    path: Arc<Path>,
    /// Device and inode, which distinguish it from another file in its place.
    id: (u64, u64),
}

impl SocketFileId {
    /// Whether the file still exists, and is not another one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| id(&found) == self.id)
    }
}

fn id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Listens on a path, with these permissions of the file.
pub(super) fn bind(path: &Arc<Path>, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            make_room(path, &address)?;
            socket.bind(&address)?;
        }
        bound => bound?,
    }
    let file = SocketFile(SocketFileId {
        path: Arc::clone(path),
        id: id(&fs::symlink_metadata(path)?),
    });
    // No client can connect before it listens, so none gets in before this.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    Ok((socket, file))
}

/// Whether a socket file could be made there. Changes nothing.
pub(super) fn could_bind(path: &Path) -> io::Result<()> {
    let address = SockAddr::unix(path)?;
    match fs::symlink_metadata(path) {
        Ok(_) => is_leftover(path, &address)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Removes a socket file without a listener.
fn make_room(path: &Path, address: &SockAddr) -> io::Result<()> {
    is_leftover(path, address)?;
    fs::remove_file(path)
}

/// Whether a file is a socket without a listener; otherwise an error.
fn is_leftover(path: &Path, address: &SockAddr) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file that is no socket",
        ));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full backlog has a listener behind it. The test does not wait for it.
    probe.set_nonblocking(true)?;
    match probe.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn path_in(dir: &tempfile::TempDir) -> Arc<Path> {
        dir.path().join("t.sock").into()
    }

    #[test]
    fn the_file_has_its_mode_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&dir);
        for mode in [0o600, 0o666] {
            let bound = bind(&path, mode).expect("nothing is in the way");
            let file = fs::metadata(&path).expect("it is there");
            assert_eq!(file.permissions().mode() & 0o777, mode);
            UnixStream::connect(&path).expect("a server listens");
            drop(bound);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_leftover_makes_room_but_a_living_socket_or_another_file_stays() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&dir);
        let living = UnixListener::bind(&path).expect("nothing is in the way");
        let error = bind(&path, 0o600).expect_err("a server listens there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let error = could_bind(&path).expect_err("a server listens there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(living);
        assert!(path.exists(), "the standard library leaves it behind");
        could_bind(&path).expect("no server listens there any more");
        assert!(path.exists(), "it was only looked at");
        drop(bind(&path, 0o600).expect("no server listens there any more"));

        fs::write(&path, "a file").expect("it can be written to");
        let error = bind(&path, 0o600).expect_err("it is no socket");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("it is still there"), b"a file");
    }

    #[test]
    fn another_file_in_its_place_is_not_touched() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&dir);
        let first = bind(&path, 0o600).expect("nothing is in the way");
        fs::remove_file(&path).expect("it is there");
        let second = bind(&path, 0o600).expect("nothing is in the way");
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
