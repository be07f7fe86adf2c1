//! The user that the service runs as, beside the user that runs a command.
//!
//! An operator works as root, and root may read everything. So a config that root writes and checks
//! can still be unreadable for the service. Commands give their files to the group of that user, and
//! `check --probe` looks with that user's rights.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;
use std::{panic, process, thread};

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The user that the packages make (packaging/sysusers.conf), and that the units name.
pub const NAME: &str = "tidegate";

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    uid: u32,
    gid: u32,
    /// The groups besides the first one.
    groups: Vec<u32>,
}

impl User {
    /// The user of this name in the files below `root`, which is `/` for this machine.
    pub fn find(root: &Path, name: &str) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(root.join("etc").join(file)).unwrap_or_default();
        let (users, groups) = (read("passwd"), read("group"));
        let rows = users.lines().map(|row| row.split(':').collect::<Vec<_>>());
        let row = rows.into_iter().find(|row| row.first() == Some(&name))?;
        let number = |at: usize| row.get(at)?.parse().ok();
        let lists_it = |row: &[&str]| {
            row.last()
                .is_some_and(|all| all.split(',').any(|it| it == name))
        };
        let others = groups.lines().filter_map(|row| {
            let row: Vec<_> = row.split(':').collect();
            (row.len() == 4 && lists_it(&row)).then(|| row[2].parse().ok())?
        });
        Some(Self {
            name: name.to_owned(),
            uid: number(2)?,
            gid: number(3)?,
            groups: others.collect(),
        })
    }

    /// Does some work with the rights of this user, on a thread of its own. Only root can do that.
    ///
    /// # Errors
    ///
    /// If the system does not allow it. Then no work was done.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let acting = || {
            // These calls change the thread alone, and threads that it starts inherit the change.
            let gid = Gid::from_raw(self.gid);
            let groups = std::iter::once(&self.gid).chain(&self.groups);
            let groups: Vec<Gid> = groups.map(|it| Gid::from_raw(*it)).collect();
            set_thread_groups(&groups)?;
            set_thread_res_gid(gid, gid, gid)?;
            let uid = Uid::from_raw(self.uid);
            set_thread_res_uid(uid, uid, uid)?;
            Ok(work())
        };
        let done = thread::scope(|scope| scope.spawn(acting).join());
        done.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }
}

/// Whether root runs this command.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Who can read a config that a command wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigReaders {
    /// The user that ran the command, and perhaps its group.
    Owner,
    /// The group of the service too.
    Service,
    /// Every user.
    Everyone,
}

/// Whether a config may contain a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No secret.
    Open,
    /// A secret, perhaps.
    Secret,
}

/// Writes a config that the service can read, if root writes it. Without a user of the service, a
/// config without a secret becomes readable for every user, because the user that systemd makes is
/// in no group beforehand.
///
/// # Errors
///
/// If it cannot be written, or is there and not to be replaced. Then nothing is left of it.
pub fn write_config(
    path: &Path,
    text: &str,
    content: Content,
    replaces: bool,
) -> io::Result<ConfigReaders> {
    let service = is_root().then(|| User::find(Path::new("/"), NAME));
    write_for(
        path,
        text,
        content,
        replaces,
        service.as_ref().map(Option::as_ref),
    )
}

/// Writes a config as [`write_config`] does. `service` is `None` if another user than root writes.
fn write_for(
    path: &Path,
    text: &str,
    content: Content,
    replaces: bool,
    service: Option<Option<&User>>,
) -> io::Result<ConfigReaders> {
    let new = match replaces {
        true => path.with_extension(format!("new-{}", process::id())),
        false => path.to_owned(),
    };
    let mode = match content {
        Content::Open => 0o640,
        Content::Secret => 0o600,
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(&new)?;
    let written = fill(file, text, content, service).and_then(|readers| {
        if replaces {
            fs::rename(&new, path)?;
        }
        Ok(readers)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn fill(
    mut file: File,
    text: &str,
    content: Content,
    service: Option<Option<&User>>,
) -> io::Result<ConfigReaders> {
    file.write_all(text.as_bytes())?;
    match (service, content) {
        (Some(Some(user)), _) => {
            fchown(&file, None, Some(user.gid))?;
            file.set_permissions(Permissions::from_mode(0o640))?;
            Ok(ConfigReaders::Service)
        }
        (Some(None), Content::Open) => {
            file.set_permissions(Permissions::from_mode(0o644))?;
            Ok(ConfigReaders::Everyone)
        }
        (Some(None), Content::Secret) | (None, _) => Ok(ConfigReaders::Owner),
    }
}

/// Whether this user of the service can read a file.
///
/// # Errors
///
/// The error of the system for that user.
pub fn can_read(user: &User, path: &Path) -> io::Result<()> {
    user.act(|| File::open(path).map(drop))?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("etc")).expect("made");
        let users = "root:x:0:0:root:/root:/bin/sh\nmydate:x:1:1::/:\n\
                     tidegate:x:64123:64124:Tidegate:/:/usr/sbin/nologin\nbad:x::7\n";
        fs::write(root.path().join("etc/passwd"), users).expect("written");
        let groups =
            "root:x:0:\ntidegate:x:64124:\nssl-cert:x:64125:postfix,tidegate\nadm:x:4:tidegater\n";
        fs::write(root.path().join("etc/group"), groups).expect("written");
        root
    }

    #[test]
    fn a_user_has_the_numbers_and_the_groups_of_the_files() {
        let root = machine();
        let user = User {
            name: "tidegate".to_owned(),
            uid: 64123,
            gid: 64124,
            groups: vec![64125],
        };
        assert_eq!(User::find(root.path(), "tidegate"), Some(user));
        for unknown in ["date", "bad", "not-here"] {
            assert_eq!(User::find(root.path(), unknown), None, "{unknown}");
        }
        assert_eq!(User::find(Path::new("/no/such/root"), NAME), None);
    }

    #[test]
    fn a_config_that_root_writes_is_for_the_group_of_the_service_and_for_no_other_user() {
        if !is_root() {
            eprintln!("not tried: only root can give a file to a group");
            return;
        }
        let root = machine();
        // Every user may pass: the service's user must get there.
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).expect("ours");
        let user = User::find(root.path(), NAME).expect("it is there");
        let path = root.path().join("config.toml");
        for (content, service, readers, mode, group) in [
            (
                Content::Open,
                Some(Some(&user)),
                ConfigReaders::Service,
                0o640,
                64124,
            ),
            (
                Content::Secret,
                Some(Some(&user)),
                ConfigReaders::Service,
                0o640,
                64124,
            ),
            (Content::Open, Some(None), ConfigReaders::Everyone, 0o644, 0),
            (Content::Secret, Some(None), ConfigReaders::Owner, 0o600, 0),
        ] {
            let done = write_for(&path, "x", content, true, service).expect("written");
            assert_eq!(done, readers);
            let found = fs::metadata(&path).expect("it is there");
            assert_eq!(
                (found.mode() & 0o777, found.gid()),
                (mode, group),
                "{content:?}"
            );
            let is_readable = can_read(&user, &path).is_ok();
            assert_eq!(
                is_readable,
                readers != ConfigReaders::Owner,
                "{content:?} {service:?}"
            );
        }
        let before = fs::read_dir(root.path()).expect("a folder").count();
        let error = write_for(&path, "y", Content::Open, false, None).expect_err("it is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("it is there"), b"x", "it stays");
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), before);
    }

    #[test]
    fn work_is_done_with_the_rights_of_the_user_and_the_command_keeps_its_own() {
        if !is_root() {
            eprintln!("not tried: only root can act as another user");
            return;
        }
        let user = User::find(machine().path(), NAME).expect("it is there");
        let own = geteuid();
        let of_user = user.act(|| (geteuid().as_raw(), thread::spawn(geteuid).join()));
        let (of_thread, of_child) = of_user.expect("root may");
        assert_eq!(of_thread, 64123);
        assert_eq!(of_child.expect("no panic").as_raw(), 64123);
        assert_eq!(geteuid(), own);
    }
}
