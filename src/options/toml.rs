//! Writes TOML.

use super::shown;

/// A text as a TOML string.
pub(crate) fn string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// TOML under way.
#[derive(Default)]
pub struct Toml(String);

impl Toml {
    /// Begins a section: `[queue]`, or `[[listen]]` for one of several.
    pub(crate) fn header(&mut self, header: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(header);
        self.0.push('\n');
    }

    /// Writes a key and a value that is TOML already. A secret is hidden.
    pub(crate) fn line(&mut self, key: &str, value: &str) {
        let hidden = string(shown::HIDDEN);
        let value = if shown::is_secret(key) {
            &hidden
        } else {
            value
        };
        self.0.push_str(&format!("{key} = {value}\n"));
    }

    /// The text.
    pub(crate) fn finish(self) -> String {
        self.0
    }
}
