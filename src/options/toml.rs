//! Writes TOML.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::shown;

/// A text as a TOML string.
pub fn string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// TOML under way.
#[derive(Default)]
pub struct Toml {
    text: String,
    /// The header of the section that is being written.
    header: String,
    /// The part that distinguishes the entry from others with the same header.
    entry: String,
    restarts: Restarts,
}

/// The options whose change takes effect only after a restart: a hash of the value of each, by its
/// section, the entry of an array, and its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restarts(BTreeMap<(String, String, &'static str), u64>);

impl Restarts {
    /// The paths of the options with another value than before. What is in a section that was not
    /// there before needs no restart.
    pub fn changed(&self, before: &Self) -> Vec<String> {
        let is_changed = |option, value| before.0.get(option).is_some_and(|it| it != value);
        let changed = self
            .0
            .iter()
            .filter(|(option, value)| is_changed(*option, *value));
        let paths = changed.map(|((section, _, key), _)| format!("{section}.{key}"));
        paths.collect()
    }
}

impl Toml {
    /// Begins a section: `[queue]`, or `[[listen]]` for one of several. Further parts of the
    /// section that was begun last belong to it.
    pub fn header(&mut self, header: String) {
        if header == self.header && !header.starts_with("[[") {
            return;
        }
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(&header);
        self.text.push('\n');
        (self.header, self.entry) = (header, String::new());
    }

    /// Says what distinguishes this entry of an array from the others, for a reload.
    pub fn entry(&mut self, entry: Option<impl Display>) {
        self.entry = entry.map(|entry| entry.to_string()).unwrap_or_default();
    }

    /// Writes a key and a value that is TOML already. A secret is hidden.
    pub fn line(&mut self, key: &str, value: &str) {
        let hidden = string(shown::HIDDEN);
        let value = match value {
            _ if !shown::is_secret(key) => value,
            "[]" => value,
            list if list.starts_with('[') => &format!("[{hidden}]"),
            _ => &hidden,
        };
        self.text.push_str(&format!("{key} = {value}\n"));
    }

    /// Notes an option whose change takes effect only after a restart.
    pub(super) fn needs_restart(&mut self, key: &'static str, value: Option<&str>) {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        let section = self.header.trim_matches(['[', ']']).to_owned();
        let option = (section, self.entry.clone(), key);
        self.restarts.0.insert(option, hasher.finish());
    }

    /// The text, and the options that need a restart.
    pub fn finish(self) -> (String, Restarts) {
        (self.text, self.restarts)
    }
}
