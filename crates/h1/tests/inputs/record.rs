//! How far a run has come that goes on with the next one: a file of `tests/fuzz`.

use std::path::Path;

use serde::Deserialize;

/// A count that is kept in the repository.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) seed: u64,
    /// Inputs that were tried. The next run begins with this number.
    pub(crate) inputs: u64,
    /// The number of wrong inputs, in all runs.
    pub(crate) findings: u64,
}

impl Record {
    pub(crate) fn read(path: &Path) -> Self {
        let name = path.display();
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn write(self, path: &Path) {
        let Self {
            seed,
            inputs,
            findings,
        } = self;
        let text = format!(
            "# How far `make fuzz` has come. It writes this file.\n\
             seed = {seed}\ninputs = {inputs}\nfindings = {findings}\n"
        );
        replace(path, &text);
    }
}

/// Writes a file at once, so that a run that is stopped leaves a whole one.
pub(crate) fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("the repository can be written to");
    std::fs::rename(&new, path).expect("both are in one folder");
}

/// A number that the environment asks for.
pub(crate) fn asked(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|it| !it.is_empty())?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, not {value:?}")))
}

/// Bytes as a text of TOML, in which each character is one byte.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            other => text.push_str(&format!("\\u{other:04x}")),
        }
    }
    text.push('"');
    text
}
