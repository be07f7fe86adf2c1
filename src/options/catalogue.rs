//! Every option that a reader asks for, and the pages that are made from that: the example of a
//! config, and the reference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::kind::{Example, Level};
use super::nearest::nearest;

/// The definition of an option, before a config is read.
pub(crate) struct Definition {
    /// In words, with the unit first.
    pub(crate) allowed: String,
    /// The purpose of the option, and why one would change it.
    pub(crate) text: &'static str,
    /// The second name, and what is allowed there, in words.
    pub(crate) alias: Option<(&'static str, String)>,
    /// In TOML.
    pub(crate) default: Option<String>,
    pub(crate) example: Example,
    pub(crate) level: Level,
    /// Whether a change takes effect only after a restart.
    pub(crate) restart: bool,
    pub(crate) required: bool,
}

/// A section and its options, in the order of their definitions.
#[derive(Default)]
pub(super) struct About {
    /// The path of the section: `coordinate.limit`. Empty for the top of the file.
    path: String,
    text: &'static str,
    /// Whether there can be several.
    is_array: bool,
    /// Whether the example shows it in comments.
    pub(super) is_aside: bool,
    /// Whether any name in it is an option.
    pub(super) takes_any_name: bool,
    options: Vec<(&'static str, Definition)>,
}

/// An option of the example: its place in the order of importance, its name, and what is known of it.
type Ranked<'a> = (u8, &'static str, &'a Definition);

/// Every section and option.
#[derive(Default)]
pub struct Catalogue {
    sections: Vec<About>,
    /// The paths of everything that was asked for, sections among them.
    pub(super) asked_for: BTreeSet<String>,
}

impl Catalogue {
    /// A section, which is added if it is new.
    pub(super) fn section(&mut self, path: &str) -> &mut About {
        let found = self.sections.iter().position(|it| it.path == path);
        let at = found.unwrap_or_else(|| {
            let (path, new) = (path.to_owned(), About::default());
            self.sections.push(About { path, ..new });
            self.sections.len() - 1
        });
        &mut self.sections[at]
    }

    pub(crate) fn describe(&mut self, path: &str, text: &'static str, is_array: bool) {
        let section = self.section(path);
        section.is_array |= is_array;
        if section.text.is_empty() {
            section.text = text;
        }
    }

    pub(crate) fn define(
        &mut self,
        path: &str,
        key: &'static str,
        definition: impl FnOnce() -> Definition,
    ) {
        let section = self.section(path);
        if section.options.iter().all(|(known, _)| *known != key) {
            section.options.push((key, definition()));
        }
    }

    /// Whether no name in a section is wrong: any is an option, or the section was not read.
    pub(crate) fn takes_any_name(&self, path: &str) -> bool {
        let mut sections = self.sections.iter();
        let found = sections.find(|it| it.path == path);
        found.map_or(!path.is_empty(), |section| section.takes_any_name)
    }

    fn all(&self) -> impl Iterator<Item = (String, &About, &'static str, &Definition)> {
        self.sections.iter().flat_map(|section| {
            let options = section.options.iter();
            options.map(move |(key, definition)| (section.path_of(key), section, *key, definition))
        })
    }

    /// Every option by its path, with what it allows in words.
    #[must_use]
    pub fn allowed(&self) -> BTreeMap<String, String> {
        let options = self.all();
        let allowed = options.map(|(path, .., definition)| (path, definition.allowed.clone()));
        allowed.collect()
    }

    /// The paths of the options whose change takes effect only after a restart.
    #[must_use]
    pub fn restart(&self) -> Vec<String> {
        let options = self.all().filter(|(.., definition)| definition.restart);
        options.map(|(path, ..)| path).collect()
    }

    /// The names of options and sections inside of a section.
    pub(crate) fn inside(&self, section: &str) -> Vec<&str> {
        let below = self.sections.iter().filter_map(move |other| {
            let rest = match section {
                "" => Some(other.path.as_str()),
                _ => other.path.strip_prefix(section)?.strip_prefix('.'),
            };
            rest.and_then(|rest| rest.split('.').next())
        });
        let own = self.sections.iter().filter(|other| other.path == section);
        let own = own.flat_map(|own| {
            let both = |(key, it): &(&'static str, Definition)| [Some(*key), it.alias_key()];
            own.options.iter().flat_map(both).flatten()
        });
        // An array of tables that is not there has been asked for, and none of its options.
        let asked = self.asked_for.iter().filter_map(move |path| {
            let rest = match section {
                "" => Some(path.as_str()),
                _ => path.strip_prefix(section)?.strip_prefix('.'),
            };
            rest.filter(|rest| !rest.contains('.'))
        });
        own.chain(below).chain(asked).collect()
    }

    /// A section that has an option of this name, as a config writes it. Preferably one within that in which it is.
    pub(crate) fn section_of(&self, name: &str, within: &str) -> Option<String> {
        let options = self.all().filter(|(_, section, key, it)| {
            (*key == name || it.alias_key() == Some(name)) && !section.path.is_empty()
        });
        let is_outside = |section: &About| {
            let rest = section.path.strip_prefix(within);
            !rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let (_, section, ..) = options.min_by_key(|(_, section, ..)| is_outside(section))?;
        section.header()
    }

    /// The variable that was probably meant.
    pub(crate) fn nearest_variable(&self, given: &str) -> Option<String> {
        let plain = |name: &str| {
            let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
            let words = name.split('_').filter(|word| !is_number(word));
            words.collect::<Vec<_>>().join("_")
        };
        let paths = self.all().flat_map(|(path, section, _, it)| {
            let alias = it.alias_key().map(|key| section.path_of(key));
            [Some(path), alias].into_iter().flatten()
        });
        let names = paths.map(|path| self.variable(&path));
        let names: Vec<_> = names
            .map(|name| (plain(&name).to_lowercase(), name))
            .collect();
        let given = plain(given).to_lowercase();
        let found = nearest(&given, names.iter().map(|(plain, _)| plain.as_str()))?;
        let (_, name) = names.iter().find(|(plain, _)| plain == found)?;
        Some(name.clone())
    }

    /// The variable of an option; of an array, for its first entry.
    fn variable(&self, path: &str) -> String {
        let (mut name, mut so_far) = ("TIDEGATE".to_owned(), String::new());
        for (index, part) in path.split('.').enumerate() {
            let separator = if index == 0 { "_" } else { "__" };
            let dot = if index == 0 { "" } else { "." };
            so_far = format!("{so_far}{dot}{part}");
            let mut sections = self.sections.iter();
            let is_array = sections.any(|it| it.is_array && it.path == so_far);
            let first = if is_array { "__0" } else { "" };
            write!(name, "{separator}{}{first}", part.to_uppercase()).expect(ALWAYS);
        }
        name
    }

    /// A config with every option, its text, its range and a value.
    #[must_use]
    pub fn every_option(&self, head: &str) -> String {
        let mut page = comment(head);
        for section in &self.sections {
            let aside = if section.is_aside { "# " } else { "" };
            if let Some(header) = section.header() {
                write!(page, "\n\n{}{aside}{header}\n", comment(section.text)).expect(ALWAYS);
            }
            for (key, definition) in &section.options {
                page.push('\n');
                definition.show(key, section.is_aside, &mut page);
            }
        }
        page
    }

    /// A config with the options that most configs have, in the order of their importance.
    #[must_use]
    pub fn example(&self, head: &str) -> String {
        let mut sections: Vec<(String, Vec<Ranked<'_>>)> = Vec::new();
        for section in &self.sections {
            let ranked = |(key, definition): &(&'static str, Definition)| match definition.level {
                Level::First(place) => Some((place, *key)),
                Level::Usual | Level::Expert => None,
            };
            let options = section.options.iter();
            let mut first: Vec<_> = options
                .filter_map(|option| ranked(option).map(|(place, key)| (place, key, &option.1)))
                .collect();
            first.sort_by_key(|(place, ..)| *place);
            if let Some(header) = section.header().filter(|_| !first.is_empty()) {
                sections.push((header, first));
            }
        }
        sections.sort_by_key(|(_, options)| options[0].0);
        let mut page = comment(head);
        for (header, options) in sections {
            write!(page, "\n{header}\n").expect(ALWAYS);
            for (_, key, definition) in options {
                definition.show(key, false, &mut page);
            }
        }
        page
    }

    /// The reference page: every option as Markdown.
    #[must_use]
    pub fn reference(&self, head: &str, has_variables: bool) -> String {
        let mut page = head.to_owned();
        let is_first = |(.., it): &(_, _, _, &Definition)| matches!(it.level, Level::First(_));
        let has_levels = self.all().any(|option| is_first(&option));
        for section in &self.sections {
            if let Some(header) = section.header() {
                let text = markdown(section.text);
                write!(page, "\n## `{header}`\n\n{text}").expect(ALWAYS);
            }
            for (key, definition) in &section.options {
                let path = section.path_of(key);
                let text = markdown(definition.text);
                write!(page, "\n### `{path}`\n\n{text}\n").expect(ALWAYS);
                let default = match (&definition.default, definition.required) {
                    (_, true) => "required".to_owned(),
                    (Some(default), _) => format!("default `{default}`"),
                    (None, _) => match definition.example {
                        Example::Aside(example) | Example::Line(example) => {
                            format!("no default; for example `{example}`")
                        }
                        Example::Default => "no default".to_owned(),
                    },
                };
                let allowed = &definition.allowed;
                writeln!(page, "- Value: {}; {default}", code(allowed)).expect(ALWAYS);
                if has_levels {
                    writeln!(page, "- Level: {}", definition.level.word()).expect(ALWAYS);
                }
                if let Some((alias, allowed)) = &definition.alias {
                    writeln!(page, "- Other name: `{alias}`, {}", code(allowed)).expect(ALWAYS);
                }
                if has_variables {
                    writeln!(page, "- Variable: `{}`", self.variable(&path)).expect(ALWAYS);
                }
                if definition.restart {
                    page.push_str("- A change takes effect only after a restart.\n");
                }
            }
        }
        page
    }
}

const ALWAYS: &str = "writing to a string does not fail";

impl About {
    fn path_of(&self, key: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("{}{dot}{key}", self.path)
    }

    /// As a config has it; none for the top of the file.
    fn header(&self) -> Option<String> {
        let path = &self.path;
        (!path.is_empty()).then(|| match self.is_array {
            true => format!("[[{path}]]"),
            false => format!("[{path}]"),
        })
    }
}

impl Definition {
    fn alias_key(&self) -> Option<&'static str> {
        self.alias.as_ref().map(|(key, _)| *key)
    }

    /// The lines of an option in a config: its text, its range and a value.
    fn show(&self, key: &str, is_aside: bool, page: &mut String) {
        let text = comment(self.text);
        let (aside, value) = self.line(is_aside);
        writeln!(page, "{text}#   {}\n{aside}{key} = {value}", self.allowed).expect(ALWAYS);
    }

    /// The line of the example: whether in a comment, and the value.
    fn line(&self, is_aside: bool) -> (&'static str, &str) {
        let default = || {
            self.default
                .as_deref()
                .expect("an option without a default has an example")
        };
        match self.example {
            Example::Line(value) => ("", value),
            Example::Aside(value) => ("# ", value),
            Example::Default if is_aside => ("# ", default()),
            Example::Default => ("", default()),
        }
    }
}

/// The lines of a text as comments.
fn comment(text: &str) -> String {
    let lines = text.lines().map(str::trim_end);
    let lines = lines.map(|line| match line.strip_prefix(' ').unwrap_or(line) {
        "" => "#\n".to_owned(),
        line => format!("# {line}\n"),
    });
    lines.collect()
}

/// The lines of a text as Markdown.
fn markdown(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(line));
    let lines = lines.map(|line| line.replace('<', "&lt;") + "\n");
    lines.collect()
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "or"))
}
