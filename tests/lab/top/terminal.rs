//! A pseudo terminal for a program, and what its user sees.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// The bound of everything that a test waits for.
const BOUND: Duration = Duration::from_secs(20);

/// A pseudo terminal, and what was written to it.
pub(crate) struct Terminal {
    controller: File,
    user: OwnedFd,
    size: (u16, u16),
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn open(size: (u16, u16)) -> Self {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller).expect("it is granted");
        unlockpt(&controller).expect("it is unlocked");
        let name = ptsname(&controller, Vec::new()).expect("it has a name");
        let name = Path::new(name.to_str().expect("UTF-8"));
        let user: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name)
            .expect("it opens")
            .into();
        let cells = Winsize {
            ws_row: size.1,
            ws_col: size.0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&user, cells).expect("it has a size");
        let controller = File::from(controller);
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut reader = controller.try_clone().expect("a second descriptor");
        let into = Arc::clone(&written);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                let read = &bytes[..read];
                into.lock().expect("no panic").extend_from_slice(read);
            }
        });
        Self {
            controller,
            user,
            size,
            written,
        }
    }

    pub(super) fn run(&self, mut command: Command) -> Child {
        command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        self.run_as_it_is(command)
    }

    /// Runs a command in the environment that it has.
    pub(crate) fn run_as_it_is(&self, mut command: Command) -> Child {
        let end = || self.user.try_clone().expect("a descriptor");
        command.stdin(end()).stdout(end()).stderr(end());
        command.spawn().expect("it runs")
    }

    pub(super) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.user).expect("its modes").local_modes;
        !modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    pub(crate) fn written(&self) -> String {
        let written = self.written.lock().expect("no panic");
        String::from_utf8_lossy(&written).into_owned()
    }

    /// The text that the user sees where the cursor was moved to. A program on a screen writes only what changes.
    pub(super) fn seen(&self) -> String {
        let (columns, rows) = (usize::from(self.size.0), usize::from(self.size.1));
        let mut cells = vec![vec![' '; columns]; rows];
        let (mut row, mut column) = (0, 0);
        let written = self.written();
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            if c == '\u{1b}' {
                let mut text = String::new();
                for c in rest.by_ref() {
                    text.push(c);
                    if c.is_ascii_alphabetic() {
                        break;
                    }
                }
                if let Some(place) = text.strip_prefix('[').and_then(|it| it.strip_suffix('H')) {
                    let (y, x) = place.split_once(';').unwrap_or(("1", "1"));
                    row = y.parse::<usize>().map_or(0, |y| y - 1);
                    column = x.parse::<usize>().map_or(0, |x| x - 1);
                }
                continue;
            }
            if row < rows && column < columns && !c.is_control() {
                cells[row][column] = c;
                column += 1;
            }
        }
        let lines = cells.into_iter().map(String::from_iter);
        lines.collect::<Vec<String>>().join("\n")
    }

    /// Waits until a text is seen, or no longer.
    #[track_caller]
    pub(super) fn wait_seen(&self, what: &str, is_there: bool) {
        until(what, || {
            (self.seen().contains(what) == is_there).then_some(())
        });
    }

    #[track_caller]
    pub(super) fn wait(&self, what: &str) {
        until(what, || self.written().contains(what).then_some(()));
    }

    pub(super) fn type_in(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).expect("written");
    }

    /// Checks that the terminal is no screen any more, its cursor is shown, and it echoes.
    #[track_caller]
    pub(super) fn check_given_back(&self) {
        self.wait("\u{1b}[?1049l");
        let written = self.written();
        let left = written.rfind("\u{1b}[?1049l").expect("it was left");
        assert!(written[left..].contains("\u{1b}[?25h"), "{written:?}");
        assert!(!self.is_raw());
    }
}

/// Polls for a condition, within a bound.
#[track_caller]
pub(super) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < BOUND, "not within the bound: {what:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
pub(super) fn ended(child: &mut Child) -> ExitStatus {
    until("the process ends", || child.try_wait().expect("a child"))
}
