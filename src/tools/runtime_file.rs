//! The file in which a running sidecar writes its admin address. So `healthcheck` asks the
//! running process and not the config, which may have changed since.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use super::address::AdminAddress;

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
    id: FileId,
}

/// Distinguishes a file from that of a later process, which may get the inode of one that was lost.
#[derive(Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    /// When it was made, if the file system keeps that.
    made: Option<SystemTime>,
}

impl FileId {
    fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            made: found.created().ok(),
        }
    }
}

impl RuntimeFile {
    /// Writes the admin address of the sidecar with this config, or that it has none.
    ///
    /// # Errors
    ///
    /// If the directory does not exist and cannot be created, or cannot be written to.
    pub(super) fn write(config: &Path, admin: Option<&AdminAddress>) -> io::Result<Self> {
        let path = places(config).swap_remove(0);
        if let Some(dir) = path.parent() {
            // It usually exists. If it cannot be created, the next step fails.
            let _ = fs::create_dir(dir);
        }
        let text = admin.map_or(OFF.to_owned(), AdminAddress::to_string);
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
            id: FileId::of(&found),
        })
    }

    /// Whether there is no file any more, neither this one nor that of a later process.
    pub(super) fn is_lost(&self) -> bool {
        let found = fs::symlink_metadata(&self.path);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

impl Drop for RuntimeFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        let is_ours = found.is_ok_and(|found| FileId::of(&found) == self.id);
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
    let places = places(config);
    let there = places.iter().find(|path| path.exists());
    there.unwrap_or(&places[0]).clone()
}

/// The ledger of the sidecar with this config, beside its runtime file.
pub(super) fn ledger(config: &Path) -> PathBuf {
    places(config).swap_remove(0).with_extension("ledger")
}

/// Where the file may be, best first. At least one.
fn places(config: &Path) -> Vec<PathBuf> {
    let config = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
    let folders = match chosen() {
        Some(folders) => {
            let folders = folders.to_string_lossy().into_owned();
            // systemd lists all directories of a unit. The first is the one for this file.
            vec![folders.split(':').next().unwrap_or_default().to_owned()]
        }
        None => default_folders(&config),
    };
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
    let file = format!("{}.admin", &name[from..]);
    let paths = folders.iter().map(|folder| Path::new(folder).join(&file));
    paths.collect()
}

/// The directory of the sidecar's unit, and that of `tidegate@NAME`, which reads NAME.toml.
fn default_folders(config: &Path) -> Vec<String> {
    let mut folders = vec![DEFAULT_DIR.to_owned()];
    if let Some(name) = config.file_stem().and_then(|name| name.to_str()) {
        folders.push(format!("{DEFAULT_DIR}-{name}"));
    }
    folders
}

/// The written address of the sidecar with this config, or `None` inside if it has none.
///
/// # Errors
///
/// If there is no file, or it cannot be read.
pub(super) fn read(config: &Path) -> io::Result<Option<AdminAddress>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_instance_is_in_the_directory_of_its_unit() {
        assert_eq!(
            default_folders(Path::new("/etc/tidegate/outer.toml")),
            ["/run/tidegate", "/run/tidegate-outer"]
        );
    }
}
