//! `client.odd_paths`: what becomes of a request whose path a backend may read as another.

use crate::classify::OddPaths;

use super::Config;
use super::effective::Toml;
use super::reader::{Section, Setting};
use super::value::choice;

const WORDS: &[(&str, OddPaths)] = &[("refuse", OddPaths::Refuse), ("forward", OddPaths::Forward)];

/// Reads the option; the section ends elsewhere.
pub(super) fn read(section: &mut Section<'_>) -> Setting<OddPaths> {
    section.read("odd_paths", OddPaths::Refuse, choice(WORDS))
}

/// Writes it back.
pub(super) fn write(out: &mut Toml, config: &Config) {
    let mut words = WORDS.iter();
    let word = words.find(|(_, odd)| *odd == config.classify.odd_paths);
    out.text("odd_paths", word.expect("each has a word").0);
}
