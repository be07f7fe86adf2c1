//! The journal of systemd behind stderr: each line carries its priority, so that
//! `journalctl -p warning` finds it.
//!
//! A line that begins with `<4>` has priority 4, and the journal removes those characters again
//! (sd-daemon(3)). So a line of JSON stays a line of JSON.

use std::io;

use rustix::fs::fstat;

/// The variable with the device and the inode of the journal's stream.
const STREAM: &str = "JOURNAL_STREAM";

/// A priority of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority(&'static str);

impl Priority {
    /// For someone now.
    pub const ERROR: Self = Self("<3>");
    /// For someone today.
    pub const WARNING: Self = Self("<4>");
    /// The life of the process, and calls.
    pub const INFO: Self = Self("<6>");
    /// Single events.
    pub const DEBUG: Self = Self("<7>");

    /// The beginning of a line with this priority.
    #[must_use]
    pub fn prefix(self) -> &'static [u8] {
        self.0.as_bytes()
    }
}

/// Whether stderr leads to the journal. A stderr that was redirected elsewhere does not, although
/// the variable is set.
#[must_use]
pub fn is_behind_stderr() -> bool {
    let stream = std::env::var(STREAM).unwrap_or_default();
    fstat(io::stderr()).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// A text for stderr, each line of it with this priority if stderr leads to the journal.
#[must_use]
pub fn with_priority(text: &str, priority: Priority) -> String {
    match is_behind_stderr() {
        true => each_line(text, priority),
        false => text.to_owned(),
    }
}

fn each_line(text: &str, priority: Priority) -> String {
    let lines = text.split_inclusive('\n');
    lines.flat_map(|line| [priority.0, line]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_text_has_the_priority() {
        assert_eq!(each_line("a\n\nb", Priority::ERROR), "<3>a\n<3>\n<3>b");
        assert_eq!(each_line("", Priority::ERROR), "");
    }
}
