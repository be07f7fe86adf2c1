//! The state that survives a restart: one JSON file, which is replaced as a whole.
//!
//! A state is written to a file beside it. That file is flushed to the disk and renamed, then the
//! directory is flushed. So the name always leads to one whole state. Once [`StateFile::save`]
//! has returned, it leads to the new one, even if the process or the power fails.
//!
//! A file that cannot be read is never overwritten, because it may be the only copy.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, FallocateFlags, FlockOperation, OFlags, access, fallocate, flock, statvfs,
};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use serde_json::value::RawValue;

/// A larger file is not read, and a larger state is not written.   bytes
const SIZE_MAX: usize = 64 << 20;
/// By how much one change may make the file larger.   bytes
pub const GROWTH_MAX: usize = 2 << 20;
/// Only the owner may read it: it identifies callers and their history.
const MODE: u32 = 0o600;
const CURE: &str = "put a backup in its place, or move it away to start without what was \
                    made through the API";

/// Why a state was not read or not written. Each has the path of the file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The state file cannot be read.
    #[error("cannot read the state file {0}: {1}")]
    Unreadable(String, #[source] io::Error),
    /// The state file, or the one beside it, cannot be written.
    #[error("cannot write the state file {0}: {1}")]
    Unwritable(String, #[source] io::Error),
    /// Another process uses the file.
    #[error("the state file {0} is another process's; give each a state_file of its own")]
    InUse(String),
    /// There is nothing in it.
    #[error("the state file {0} is empty; {CURE}")]
    Empty(String),
    /// The file is JSON, and no state of a sidecar.
    #[error("the state file {0} is JSON, and no state of a sidecar; it is left as it is: {CURE}")]
    Foreign(String),
    /// The content is not a state.
    #[error(
        "the state file {path} is damaged at byte {offset}: {reason}; it is left as it is: {CURE}"
    )]
    Damaged {
        /// The file.
        path: String,
        /// The first byte that cannot be read.   bytes
        offset: usize,
        /// The fault in words.
        reason: String,
    },
    /// The state file was written by another version.
    #[error(
        "the state file {path} has schema {found}, and this version knows {known}; run the \
         version that wrote it, or move it away"
    )]
    OtherSchema {
        /// The file.
        path: String,
        /// The version in the file.
        found: u32,
        /// The known version.
        known: u32,
    },
    /// The state file is too large.
    #[error("the state file {0} would have more than {SIZE_MAX} bytes")]
    TooLarge(String),
}

/// A file with the latest saved state. One process at a time has it.
#[derive(Debug)]
pub struct StateFile<T> {
    path: PathBuf,
    schema: u32,
    /// The size of the state that was read or saved last.   bytes
    size: usize,
    /// Locked while this exists. The system releases the lock when the process ends.
    _lock: File,
    state: PhantomData<fn(T) -> T>,
}

/// The form of the file around a state.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateEnvelope<S> {
    schema: u32,
    state: S,
}

impl<T: Serialize + DeserializeOwned> StateFile<T> {
    /// Takes the file, and reads its state; `None` if there is no file yet. `schema` is the version
    /// of the format of `T`.
    ///
    /// # Errors
    ///
    /// If another process has it, if it is damaged or of another schema, or if nothing can be read
    /// or written there. The file is not changed.
    pub fn open(path: &Path, schema: u32) -> Result<(Self, Option<T>), StateError> {
        let mut file = Self {
            path: path.to_owned(),
            schema,
            size: 0,
            _lock: lock(path)?,
            state: PhantomData,
        };
        let state = file.read()?;
        Ok((file, state))
    }

    fn read(&mut self) -> Result<Option<T>, StateError> {
        let unreadable = |cause| StateError::Unreadable(shown(&self.path), cause);
        let file = match opening().read(true).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(no_link(error))),
        };
        let mut bytes = Vec::new();
        let read = file.take(SIZE_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(unreadable)?;
        if bytes.len() > SIZE_MAX {
            return Err(StateError::TooLarge(shown(&self.path)));
        }
        if bytes.trim_ascii().is_empty() {
            return Err(StateError::Empty(shown(&self.path)));
        }
        let stored: StateEnvelope<&RawValue> = serde_json::from_slice(&bytes).map_err(|error| {
            // Whole JSON of another form is not damaged.
            match serde_json::from_slice::<IgnoredAny>(&bytes) {
                Ok(_) => StateError::Foreign(shown(&self.path)),
                Err(_) => self.damaged(&bytes, 0, &error),
            }
        })?;
        if stored.schema != self.schema {
            return Err(StateError::OtherSchema {
                path: shown(&self.path),
                found: stored.schema,
                known: self.schema,
            });
        }
        let text = stored.state.get();
        self.size = bytes.len();
        // The text is a slice of the bytes.
        let begins = text.as_ptr().addr() - bytes.as_ptr().addr();
        let state = serde_json::from_str(text)
            .map_err(|error| self.damaged(text.as_bytes(), begins, &error))?;
        Ok(Some(state))
    }

    fn damaged(&self, text: &[u8], begins: usize, error: &serde_json::Error) -> StateError {
        let lines = text.split_inclusive(|&byte| byte == b'\n');
        let before = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len);
        StateError::Damaged {
            path: shown(&self.path),
            offset: begins + before.sum::<usize>() + error.column().saturating_sub(1),
            reason: without_place(error),
        }
    }

    /// Makes room on the disk for a state that is a little larger than the last one. A later change
    /// is then saved, unless the disk itself fails. So a change is refused while that is still
    /// possible.
    ///
    /// # Errors
    ///
    /// If there is no room, or nothing can be written there.
    pub fn reserve(&mut self) -> Result<(), StateError> {
        let room = (self.size + GROWTH_MAX).min(SIZE_MAX);
        let unwritable = unwritable(&self.path);
        let file = make(&beside(&self.path, ".new")).map_err(unwritable)?;
        match fallocate(&file, FallocateFlags::empty(), 0, room as u64) {
            Ok(()) => Ok(()),
            // Some file systems cannot tell before a write.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(error) => Err(unwritable(error.into())),
        }
    }

    /// Replaces the state. Once this has returned, the state survives any failure.
    ///
    /// # Errors
    ///
    /// If it cannot be written. Then the file has the previous state. Only if the last step fails,
    /// the flush of the directory, it may have the new one.
    pub fn save(&mut self, state: &T) -> Result<(), StateError> {
        let unwritable = unwritable(&self.path);
        let schema = self.schema;
        let mut bytes = serde_json::to_vec(&StateEnvelope { schema, state })
            .map_err(|error| unwritable(error.into()))?;
        bytes.push(b'\n');
        if bytes.len() > SIZE_MAX {
            return Err(StateError::TooLarge(shown(&self.path)));
        }
        self.replace(&bytes).map_err(unwritable)?;
        self.size = bytes.len();
        Ok(())
    }

    /// Writes a file beside the state file, and renames it to that.
    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        // Into the reserved room; the rest of it is freed afterwards.
        let new = beside(&self.path, ".new");
        let mut file = make(&new)?;
        file.write_all(bytes)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        drop(file);
        fs::rename(new, &self.path)?;
        File::open(directory(&self.path))?.sync_all()
    }
}

/// The fault of the JSON, without line and column, which the offset replaces.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    // The library's description of our own types does not help an operator.
    if message.contains("expected struct") {
        return "it is not the object that this file holds".to_owned();
    }
    let message = match message.rfind(" at line ") {
        Some(end) => &message[..end],
        None => &message,
    };
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("{field} is missing");
    }
    match error.classify() {
        Category::Eof => "it ends too early".to_owned(),
        Category::Syntax => "it is not JSON".to_owned(),
        Category::Data | Category::Io => message.to_owned(),
    }
}

fn unwritable(path: &Path) -> impl Fn(io::Error) -> StateError + Copy {
    move |cause| StateError::Unwritable(shown(path), cause)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn lock(path: &Path) -> Result<File, StateError> {
    let unwritable = unwritable(path);
    // A separate file, because the state file itself is another one after each save.
    let lock = make(&beside(path, ".lock")).map_err(unwritable)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::InUse(shown(path))),
        Err(error) => Err(unwritable(error.into())),
    }
}

/// Opens no link. Otherwise, if other users can write to the directory, a link could redirect a
/// write or a read to any file of this user.
fn opening() -> OpenOptions {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2) is an int");
    let mut options = OpenOptions::new();
    options.mode(MODE).custom_flags(no_follow);
    options
}

/// Opens a file for writing, and makes it if there is none.
fn make(path: &Path) -> io::Result<File> {
    let mut options = opening();
    options.write(true).create(true).truncate(false);
    options.open(path).map_err(no_link)
}

/// The system reports a link that is not followed as a loop.
fn no_link(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(rustix::io::Errno::LOOP.raw_os_error()) {
        return error;
    }
    let message = "it, or the file beside it, is a symbolic link, which is not followed; give the \
                path of the file itself";
    io::Error::new(error.kind(), message)
}

/// Whether this user could keep a state there. Changes nothing.
///
/// # Errors
///
/// [`StateError::Unwritable`], with the obstacle.
pub fn check_writable(path: &Path) -> Result<(), StateError> {
    let unwritable = unwritable(path);
    let may = |path: &Path, wanted| access(path, wanted).map_err(io::Error::from);
    // Each save makes a new file and renames it.
    may(directory(path), Access::WRITE_OK | Access::EXEC_OK).map_err(|cause| {
        let place = directory(path).display();
        unwritable(io::Error::new(cause.kind(), format!("{place}: {cause}")))
    })?;
    for file in [path.to_owned(), beside(path, ".lock")] {
        match may(&file, Access::READ_OK | Access::WRITE_OK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unwritable(error)),
            Ok(()) if file.is_symlink() => {
                return Err(unwritable(no_link(rustix::io::Errno::LOOP.into())));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Writes a small file beside the state file, renames it and removes it, as a save does. The state
/// file itself and its lock are not touched. Returns the free space there, in bytes.
///
/// # Errors
///
/// [`StateError::Unwritable`], with the obstacle.
pub fn try_writing(path: &Path) -> Result<u64, StateError> {
    check_writable(path)?;
    let unwritable = unwritable(path);
    let id = std::process::id();
    let first = beside(path, &format!(".probe-{id}"));
    let second = beside(path, &format!(".probed-{id}"));
    let done = (|| {
        let mut file = make(&first)?;
        file.write_all(b"tidegate check --probe\n")?;
        file.sync_all()?;
        fs::rename(&first, &second)
    })();
    for file in [first, second] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unwritable(error)),
            _ => {}
        }
    }
    done.map_err(unwritable)?;
    let system = statvfs(directory(path)).map_err(|error| unwritable(error.into()))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// The path with a suffix added to its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type State = BTreeMap<String, u32>;

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            Self {
                folder: tempfile::tempdir().expect("a folder"),
            }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("callers.json")
        }

        fn open(&self) -> Result<(StateFile<State>, Option<State>), StateError> {
            StateFile::open(&self.path(), 1)
        }

        fn saved(&self) -> Option<State> {
            self.open().expect("it can be read").1
        }

        fn bytes(&self) -> Vec<u8> {
            fs::read(self.path()).expect("it is there")
        }
    }

    fn state(value: u32) -> State {
        [("a".to_owned(), value), ("b".to_owned(), value + 1)].into()
    }

    #[test]
    fn the_next_process_reads_the_last_saved_state() {
        let place = Place::new();
        let (mut file, before) = place.open().expect("a new one");
        assert_eq!(before, None);
        for value in 0..3 {
            file.save(&state(value)).expect("saved");
        }
        drop(file);
        assert_eq!(place.saved(), Some(state(2)));
    }

    #[test]
    fn a_link_in_place_of_a_file_is_not_followed() {
        for suffix in ["", ".lock", ".new"] {
            let place = Place::new();
            let target = place.folder.path().join("of-another");
            let content = br#"{"schema":1,"state":{"a":1}}"#;
            fs::write(&target, content).expect("written");
            std::os::unix::fs::symlink(&target, beside(&place.path(), suffix)).expect("linked");
            let error = match place.open() {
                Ok((mut file, read)) => {
                    assert_eq!((suffix, read), (".new", None));
                    file.save(&state(1)).expect_err("the new file is a link")
                }
                Err(error) => error,
            };
            let message = error.to_string();
            assert!(message.contains("symbolic link"), "{suffix}: {message}");
            assert_eq!(fs::read(&target).expect("read"), content, "{suffix}");
        }
    }

    #[test]
    fn an_unwritable_place_is_detected_beforehand() {
        let place = Place::new();
        check_writable(&place.path()).expect("an empty folder");
        let missing = place.folder.path().join("missing").join("callers.json");
        let message = check_writable(&missing).expect_err("no folder").to_string();
        assert!(message.contains("missing: No such file"), "{message}");
        std::os::unix::fs::symlink("/dev/null", place.path()).expect("linked");
        check_writable(&place.path()).expect_err("a link");
        assert_eq!(fs::read_dir(place.folder.path()).expect("read").count(), 1);
    }

    #[test]
    fn a_trial_leaves_nothing_behind_and_disturbs_no_process() {
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        file.save(&state(1)).expect("saved");
        let before = place.bytes();
        assert!(try_writing(&place.path()).expect("it is writable") > 0);
        let files = || fs::read_dir(place.folder.path()).expect("read").count();
        assert_eq!((place.bytes(), files()), (before, 2));
        let missing = place.folder.path().join("missing").join("callers.json");
        let message = try_writing(&missing).expect_err("no folder").to_string();
        assert!(message.contains("missing: No such file"), "{message}");
    }

    #[test]
    fn a_half_written_state_changes_nothing() {
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        file.save(&state(1)).expect("saved");
        drop(file);
        let whole = place.bytes();
        for end in 0..whole.len() {
            fs::write(beside(&place.path(), ".new"), &whole[..end]).expect("written");
            assert_eq!(place.saved(), Some(state(1)));
        }
        let (mut file, _) = place.open().expect("as it was");
        file.save(&state(7)).expect("saved over what was left");
        drop(file);
        assert_eq!(place.saved(), Some(state(7)));
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_offset_and_not_changed() {
        let place = Place::new();
        let check = |bytes: &[u8], offset: usize| {
            fs::write(place.path(), bytes).expect("written");
            let error = place.open().expect_err("it is damaged");
            let message = error.to_string();
            match error {
                StateError::Damaged { offset: at, .. } => assert_eq!(at, offset, "{message}"),
                other => panic!("{other}"),
            }
            let name = place.path().display().to_string();
            for word in [&name, "byte", "backup", "move it away"] {
                assert!(message.contains(word), "no {word:?} in {message}");
            }
            assert_eq!(place.bytes(), bytes);
        };
        check(b"{", 0);
        check(br#"{"schema":1,"state":{"a":1}"#, 26);
        check(br#"{"schema":1,"state":{"a":1}} x"#, 29);
        check(br#"{"schema":1,"state":{"a":-1}}"#, 26);
        check(b"{\"schema\":1,\n\"state\":{\n\"a\":x}}", 27);
    }

    #[test]
    fn a_file_that_holds_no_state_is_refused_in_our_own_words_and_not_changed() {
        let place = Place::new();
        let check = |bytes: &[u8], words: &str| {
            fs::write(place.path(), bytes).expect("written");
            let error = place.open().expect_err("it holds no state");
            let message = error.to_string();
            let name = place.path().display().to_string();
            for word in [&*name, words, "backup", "move it away"] {
                assert!(message.contains(word), "no {word:?} in {message}");
            }
            for word in ["byte", "field", "expected", "EOF", "struct"] {
                assert!(!message.contains(word), "{message}");
            }
            assert_eq!(place.bytes(), bytes);
        };
        check(b"", "is empty");
        check(b" \n", "is empty");
        for other in [
            "{}",
            "[]",
            "null",
            "1",
            r#"{"schema":1}"#,
            r#"{"schema":1,"state":{},"more":0}"#,
        ] {
            check(other.as_bytes(), "is JSON, and no state of a sidecar");
        }
    }

    #[test]
    fn every_prefix_is_refused_and_no_flipped_byte_panics() {
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        file.save(&state(1)).expect("saved");
        drop(file);
        let whole = place.bytes();
        // Without its last byte, a line feed, it is whole.
        for end in 0..whole.len() - 1 {
            fs::write(place.path(), &whole[..end]).expect("written");
            let error = place.open().expect_err("it is cut");
            assert_eq!(matches!(error, StateError::Empty(_)), end == 0, "{error}");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x80;
            fs::write(place.path(), &flipped).expect("written");
            assert!(place.open().is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_file_of_another_schema_is_refused_and_not_changed() {
        let place = Place::new();
        let bytes = br#"{"schema":2,"state":[1]}"#;
        fs::write(place.path(), bytes).expect("written");
        let error = place.open().expect_err("it is of another version");
        assert!(matches!(error, StateError::OtherSchema { found: 2, .. }));
        assert_eq!(place.bytes(), bytes);
    }

    #[test]
    fn two_processes_do_not_share_a_file() {
        let place = Place::new();
        let (file, _) = place.open().expect("a new one");
        assert!(matches!(place.open(), Err(StateError::InUse(_))));
        drop(file);
        assert_eq!(place.saved(), None);
    }

    #[test]
    fn a_missing_directory_is_reported_before_anything_is_saved() {
        let place = Place::new();
        let path = place.folder.path().join("nowhere/callers.json");
        let error = StateFile::<State>::open(&path, 1).expect_err("no directory");
        assert!(matches!(error, StateError::Unwritable(..)), "{error}");
    }

    #[test]
    fn a_save_that_fails_leaves_the_last_state() {
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        file.save(&state(1)).expect("saved");
        // A directory is in the place of the new file.
        fs::create_dir(beside(&place.path(), ".new")).expect("made");
        let error = file.save(&state(2)).expect_err("it cannot be written");
        assert!(matches!(error, StateError::Unwritable(..)), "{error}");
        drop(file);
        assert_eq!(place.saved(), Some(state(1)));
    }

    #[test]
    fn a_state_is_saved_into_the_reserved_room() {
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        for value in 0..3 {
            file.reserve().expect("there is room");
            assert_eq!(
                fs::metadata(beside(&place.path(), ".new"))
                    .expect("made")
                    .len(),
                { (file.size + GROWTH_MAX) as u64 }
            );
            file.save(&state(value)).expect("saved");
            assert_eq!(place.bytes().last(), Some(&b'\n'));
        }
        file.reserve().expect("there is room");
        drop(file);
        assert_eq!(place.saved(), Some(state(2)));
    }

    #[test]
    fn a_full_disk_is_reported_before_anything_is_changed() {
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        fs::create_dir(beside(&place.path(), ".new")).expect("made");
        let error = file.reserve().expect_err("nothing can be written there");
        assert!(matches!(error, StateError::Unwritable(..)), "{error}");
    }

    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = Place::new();
        let (mut file, _) = place.open().expect("a new one");
        file.save(&state(1)).expect("saved");
        let mode = fs::metadata(place.path())
            .expect("it is there")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
}
