//! With whose rights the checks look: those of the user that runs the command, or those of the
//! service's user, if root runs it.
//!
//! The unit makes directories that other processes cannot pass (`StateDirectory=`), or that are there
//! only while it runs (`RuntimeDirectory=`). They are good although that user sees none of them here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Component, Path, PathBuf};

use super::Finding;
use super::kinds::USER;
use crate::call::Bind;
use crate::state::{self, StateError};
use crate::tools::service_user::{NAME, User, is_root};

/// Where the directories of the units are made: `tidegate`, and `tidegate-NAME` of an instance.
const STATE: &str = "/var/lib";
const RUNTIME: &str = "/run";

/// The user with whose rights the checks look; `None` for those of this process.
#[derive(Clone, Debug)]
pub(super) struct ProbeUser(Option<User>);

impl ProbeUser {
    /// The rights of this user, or of the service's user if root looks. Users are looked up in the
    /// files below `root`.
    ///
    /// # Errors
    ///
    /// If a user is named that there is not, or that this one cannot become.
    pub(super) fn of(root: &Path, name: Option<&str>) -> Result<Self, String> {
        let found = User::find(root, name.unwrap_or(NAME));
        let Some(name) = name else {
            let is_usable = |user: &User| is_root() && user.act(|| ()).is_ok();
            return Ok(Self(found.filter(is_usable)));
        };
        let user = found.ok_or_else(|| format!("there is no user {name} in /etc/passwd"))?;
        user.act(|| ()).map_err(|error| error.to_string())?;
        Ok(Self(Some(user)))
    }

    /// Looks with these rights.
    pub(super) fn look<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.0 {
            None => work(),
            Some(user) => user.act(work).expect("it was tried at the beginning"),
        }
    }

    /// The user that the service runs as, if the command runs as another one.
    pub(super) fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|user| &*user.name)
    }

    /// As the subject of a sentence.
    pub(super) fn in_words(&self) -> String {
        self.name()
            .map_or("this user".to_owned(), |name| format!("the user {name}"))
    }

    /// As the end of one.
    pub(super) fn by(&self) -> String {
        self.name()
            .map_or(String::new(), |name| format!(" by {name}"))
    }

    pub(super) fn finding(&self) -> Option<Finding> {
        let name = self.name()?;
        Some(USER.ok(
            "user",
            format!("looked as {name}, which the service runs as"),
        ))
    }

    /// Whether systemd makes the directory of this socket file when the service starts.
    pub(super) fn will_be_made(&self, bind: &Bind) -> bool {
        match bind {
            Bind::Unix(path) => self.0.is_some() && folder_of_unit(path, RUNTIME).is_some(),
            Bind::Tcp(_) => false,
        }
    }

    /// How to reach the place of the state file.
    pub(super) fn place_of_state(&self, path: &Path) -> PathAccess {
        let folder = self.0.as_ref().and_then(|_| folder_of_unit(path, STATE));
        let Some(folder) = folder else {
            return PathAccess::AsItIs;
        };
        match File::open(&folder) {
            Ok(open) => PathAccess::Through(Folder {
                open,
                folder,
                path: path.to_owned(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => PathAccess::MadeAtTheStart,
            Err(_) => PathAccess::AsItIs,
        }
    }
}

/// How to reach a place.
pub(super) enum PathAccess {
    /// By its path.
    AsItIs,
    /// Through a folder that root has opened.
    Through(Folder),
    /// Not before the service starts.
    MadeAtTheStart,
}

/// A folder that only root and the service reach, opened by root.
pub(super) struct Folder {
    open: File,
    folder: PathBuf,
    path: PathBuf,
}

impl Folder {
    /// As [`state::try_writing`], with the rights of this thread inside the folder.
    pub(super) fn try_writing(&self) -> Result<u64, StateError> {
        let inside = self
            .path
            .strip_prefix(&self.folder)
            .expect("it is in there");
        let opened = format!("/proc/self/fd/{}", self.open.as_raw_fd());
        let tried = state::try_writing(&Path::new(&opened).join(inside));
        tried.map_err(|error| match error {
            StateError::Unwritable(_, cause) => {
                let text = cause
                    .to_string()
                    .replace(&opened, &self.folder.display().to_string());
                let shown = self.path.display().to_string();
                StateError::Unwritable(shown, io::Error::new(cause.kind(), text))
            }
            error => error,
        })
    }
}

/// The directory of a unit that this path is in, if it is in one.
fn folder_of_unit(path: &Path, above: &str) -> Option<PathBuf> {
    let below = path.strip_prefix(above).ok()?;
    let mut parts = below.components();
    let Some(Component::Normal(first)) = parts.next() else {
        return None;
    };
    let name = first.to_str()?.strip_prefix(NAME)?;
    let is_of_unit = name.is_empty() || name.starts_with('-');
    let is_inside = parts.next().is_some() && below.components().all(is_name);
    (is_of_unit && is_inside).then(|| Path::new(above).join(first))
}

fn is_name(part: Component<'_>) -> bool {
    matches!(part, Component::Normal(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_the_units_are_known() {
        let check = |path: &str, expected: Option<&str>| {
            let found = folder_of_unit(Path::new(path), STATE);
            assert_eq!(found.as_deref(), expected.map(Path::new), "{path}");
        };
        check("/var/lib/tidegate/callers.json", Some("/var/lib/tidegate"));
        check(
            "/var/lib/tidegate-outer/a/b.json",
            Some("/var/lib/tidegate-outer"),
        );
        check("/var/lib/tidegate", None);
        check("/var/lib/tidegates/callers.json", None);
        check("/var/lib/tidegate/../x.json", None);
        check("/srv/tidegate/callers.json", None);
    }
}
