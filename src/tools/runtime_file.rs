//! The file in which a running sidecar writes its admin address. So `healthcheck` asks the
//! running process and not the config, which may have changed since.

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;

use super::client::Address;

/// The variable that names the directory.
const DIR_VARIABLE: &str = "TIDEGATE_RUNTIME_DIR";
/// systemd's, from `RuntimeDirectory=`.
const SYSTEMD_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// The default without both.
const DEFAULT_DIR: &str = "/run/tidegate";
/// The part of the config's path that is kept in the name, below the limit of file systems.
/// bytes
const PATH_BYTES_KEPT: usize = 200;
/// The content if there is no admin address.
const OFF: &str = "off";
/// More than an address needs: the path of a socket file has at most 107.   bytes
const SIZE_MAX: u64 = 128;

/// A written admin address; the file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct RuntimeFile {
    path: PathBuf,
    /// Device and inode, which distinguish it from the file of a later process.
    id: (u64, u64),
}

impl RuntimeFile {
    /// Writes the admin address of the sidecar with this config, or that it has none.
    ///
    /// # Errors
    ///
    /// If the directory does not exist and cannot be created, or cannot be written to.
    pub(super) fn write(config: &Path, admin: Option<&Address>) -> io::Result<Self> {
        let path = path(config);
        if let Some(dir) = path.parent() {
            // It usually exists. If it cannot be created, the next step fails.
            let _ = fs::create_dir(dir);
        }
        let text = admin.map_or(OFF.to_owned(), Address::to_string);
        // A reader sees all of it or nothing. A link in the way is never followed.
        let new = path.with_extension(process::id().to_string());
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&new)?;
        writeln!(file, "{text}")?;
        let found = file.metadata()?;
        fs::rename(&new, &path)?;
        Ok(Self {
            path,
            id: (found.dev(), found.ino()),
        })
    }
}

impl Drop for RuntimeFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.id);
        if is_ours {
            // If it is left behind, it names an address that does not answer.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The directory, if an operator chose it. Then a failure deserves a warning.
pub(super) fn chosen() -> Option<OsString> {
    let mut dirs = [DIR_VARIABLE, SYSTEMD_VARIABLE]
        .iter()
        .filter_map(env::var_os);
    dirs.find(|dir| !dir.is_empty())
}

/// The file of the sidecar with this config. Several sidecars of one machine have configs at
/// different paths, so each has its own file.
pub(super) fn path(config: &Path) -> PathBuf {
    let dir = chosen().map_or(DEFAULT_DIR.to_owned(), |dir| {
        let dir = dir.to_string_lossy().into_owned();
        // systemd lists all directories of a unit. The first is the one for this file.
        dir.split(':').next().unwrap_or_default().to_owned()
    });
    let config = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
    let name: String = config
        .to_string_lossy()
        .chars()
        .map(|c| match c {
            '/' => '+',
            c if c.is_ascii_alphanumeric() || "._-".contains(c) => c,
            _ => '_',
        })
        .collect();
    let from = name.len().saturating_sub(PATH_BYTES_KEPT);
    PathBuf::from(dir).join(format!("{}.admin", &name[from..]))
}

/// The written address of the sidecar with this config, or `None` inside if it has none.
///
/// # Errors
///
/// If there is no file, or it cannot be read.
pub(super) fn read(config: &Path) -> io::Result<Option<Address>> {
    let mut text = String::new();
    fs::File::open(path(config))?
        .take(SIZE_MAX)
        .read_to_string(&mut text)?;
    match text.trim() {
        OFF => Ok(None),
        text => {
            let address = text.parse().map_err(|_| io::ErrorKind::InvalidData)?;
            Ok(Some(address))
        }
    }
}
