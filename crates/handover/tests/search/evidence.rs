//! The lines that searches and runs leave for docs/reference/evidence.md.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;

/// Adds a line of JSON to the file that `TIDEGATE_EVIDENCE` names, if it names one.
#[allow(clippy::disallowed_methods, reason = "tests serve no calls")]
pub(crate) fn add(line: impl Display) {
    let Some(path) = std::env::var_os("TIDEGATE_EVIDENCE") else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.expect("the evidence can be opened"), "{line}").expect("it can be written");
}
