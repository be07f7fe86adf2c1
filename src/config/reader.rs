//! Takes options out of the tree by name, notes every mistake on the way, and in the end
//! reports what nobody asked for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::nearest::nearest;
use super::problem::{Place, Problem, Severity};
use super::tree::{Node, Table, Value, quoted, shortened};
use super::value::{Kind, Mistake};

/// Where an option stands: what a later check needs to complain about it.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) key: String,
    pub(super) place: Place,
}

/// An option that has been read.
#[derive(Clone, Debug)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    pub(super) at: At,
    /// Whether the config says it.
    pub(super) given: bool,
    /// Whether what it says could be read; if not, the value is the default.
    pub(super) sound: bool,
}

impl<T> Setting<T> {
    /// The value, if it is what the operator meant.
    pub(super) fn meant(&self) -> Option<&T> {
        self.sound.then_some(&self.value)
    }
}

impl<T> Setting<Option<T>> {
    /// Whether it was left out, which is not the same as given wrong.
    pub(super) fn is_missing(&self) -> bool {
        self.sound && self.value.is_none()
    }
}

/// What is noted while a config is read.
#[derive(Default)]
pub(super) struct Notes {
    problems: RefCell<Vec<Problem>>,
    /// Every option that was asked for, with what it allows.
    asked: RefCell<BTreeMap<String, String>>,
    leftovers: RefCell<Vec<Leftover>>,
    /// Lines whose TOML is broken: what was saved from them is not to be trusted, and has
    /// been complained about already.
    broken: BTreeSet<usize>,
    /// Whether whole sections may be lost, so that what is missing may not be missing.
    lost: bool,
    /// The file that lists every option.
    example: Example,
}

/// The file that lists every option.
struct Example(&'static str);

impl Default for Example {
    fn default() -> Self {
        Self("config.toml.example")
    }
}

/// Sections of which there can be several.
const ARRAYS: [&str; 6] = [
    "listen.",
    "route.",
    "class.",
    "caller.",
    "rate_limit.",
    "coordinate.limit.",
];

struct Leftover {
    section: String,
    name: String,
    at: At,
}

impl Notes {
    pub(super) fn new(broken: BTreeSet<usize>, lost: bool) -> Self {
        Self {
            broken,
            lost,
            ..Self::default()
        }
    }

    /// The same, for the config that another example lists.
    pub(super) fn of(example: &'static str, broken: BTreeSet<usize>, lost: bool) -> Self {
        Self {
            example: Example(example),
            ..Self::new(broken, lost)
        }
    }

    pub(super) fn add(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// An error in something that was said.
    pub(super) fn error(&self, at: &At, mistake: Mistake) {
        self.note(Severity::Error, at, mistake);
    }

    /// A warning. Where something may be lost, it could be about a default that nobody meant.
    pub(super) fn warn(&self, at: &At, mistake: Mistake) {
        if !self.lost {
            self.note(Severity::Warning, at, mistake);
        }
    }

    /// An error about something that was not said.
    pub(super) fn missing(&self, at: &At, mistake: Mistake) {
        if !self.lost {
            self.note(Severity::Error, at, mistake);
        }
    }

    /// A warning about a variable that looks like ours and names no option. Asked when every
    /// option has been.
    pub(super) fn pathless(&self, variable: Arc<str>) {
        let plain = |name: &str| {
            let words = name
                .split('_')
                .filter(|word| !word.is_empty() && !word.bytes().all(|byte| byte.is_ascii_digit()));
            words.collect::<Vec<_>>().join("_").to_lowercase()
        };
        let asked = self.asked.borrow();
        let options: Vec<_> = asked
            .keys()
            .map(|key| (plain(&key.replace('.', "_")), key))
            .collect();
        let given = plain(variable.strip_prefix("TIDEGATE_").unwrap_or(&variable));
        let found = nearest(&given, options.iter().map(|(name, _)| name.as_str()));
        let option = options
            .iter()
            .find(|(name, _)| Some(name.as_str()) == found);
        let cure = match option {
            Some((_, key)) => {
                let name = key.replace('.', "__").to_uppercase();
                match ARRAYS.iter().find(|array| key.starts_with(**array)) {
                    Some(array) => {
                        let (array, key) = (array.trim_end_matches('.'), &key[array.len()..]);
                        let (array, key) =
                            (array.to_uppercase(), key.replace('.', "__").to_uppercase());
                        let array = array.replace('.', "__");
                        format!("did you mean TIDEGATE_{array}__0__{key}?")
                    }
                    None => format!("did you mean TIDEGATE_{name}?"),
                }
            }
            None => "write TIDEGATE_SECTION__KEY, with two underscores between, or leave it out"
                .to_owned(),
        };
        drop(asked);
        let at = At {
            key: String::new(),
            place: Place::Variable(variable),
        };
        let told = "this variable looks like one of ours and names no option";
        self.warn(&at, Mistake::new(told, cure));
    }

    fn note(&self, severity: Severity, at: &At, mistake: Mistake) {
        self.add(Problem {
            severity,
            place: at.place.clone(),
            key: at.key.clone(),
            message: mistake.message,
            cure: mistake.cure,
        });
    }

    /// Whether the TOML itself is broken where this was said.
    fn is_broken(&self, place: &Place) -> bool {
        matches!(place, Place::File { line, .. } if self.broken.contains(line))
    }

    /// The problems, unknown options among them, and everything that was asked for.
    pub(super) fn finish(self) -> (Vec<Problem>, BTreeMap<String, String>) {
        for leftover in self.leftovers.take() {
            let mistake = self.unknown(&leftover);
            self.error(&leftover.at, mistake);
        }
        (self.problems.into_inner(), self.asked.into_inner())
    }

    fn unknown(&self, leftover: &Leftover) -> Mistake {
        let asked = self.asked.borrow();
        let message = format!("there is no option {} here", quoted(&leftover.name));
        if let Some(ours) = sdkserver_name(&leftover.name) {
            return Mistake::new(message, format!("this is {ours} here"));
        }
        let siblings = asked.keys().filter_map(|key| {
            let inside = match leftover.section.as_str() {
                "" => Some(key.as_str()),
                section => key.strip_prefix(section)?.strip_prefix('.'),
            };
            inside.and_then(|inside| inside.split('.').next())
        });
        if let Some(name) = nearest(&leftover.name, siblings) {
            return Mistake::new(message, format!("did you mean {}?", quoted(name)));
        }
        let elsewhere = asked
            .keys()
            .find(|key| key.rsplit('.').next() == Some(&leftover.name));
        let cure = match elsewhere.and_then(|key| key.split_once('.')) {
            Some((section, name)) => format!("{name} belongs in [{section}]"),
            None => format!("leave it out; {} lists every option", self.example.0),
        };
        Mistake::new(message, cure)
    }
}

/// What sdkserver's own options are called here.
fn sdkserver_name(name: &str) -> Option<&'static str> {
    match name {
        "bind_addr" | "bind_port" => Some("bind = \"address:port\" in [[listen]]"),
        "request_queue_size" => Some("capacity in [queue]"),
        "max_worker_count" => Some("workers in [queue]"),
        "sdkserver" => Some("[[listen]], [queue] and [limits]"),
        _ => None,
    }
}

/// One table of the config, present or not.
pub(super) struct Section<'a> {
    notes: &'a Notes,
    /// Its path without indices, as in the list of options.
    name: String,
    at: At,
    table: Option<&'a Table>,
    taken: BTreeSet<&'static str>,
    /// Whether any name is one.
    open: bool,
}

impl<'a> Section<'a> {
    /// The whole config.
    pub(super) fn root(table: &'a Table, notes: &'a Notes) -> Self {
        let at = At {
            key: String::new(),
            place: Place::Whole,
        };
        Self::new(notes, String::new(), at, Some(table))
    }

    fn new(notes: &'a Notes, name: String, at: At, table: Option<&'a Table>) -> Self {
        Self {
            notes,
            name,
            at,
            table,
            taken: BTreeSet::new(),
            open: false,
        }
    }

    /// Where it stands, to complain about something that is missing in it.
    pub(super) fn at(&self) -> &At {
        &self.at
    }

    /// Whether the config has it.
    pub(super) fn is_given(&self) -> bool {
        self.table.is_some()
    }

    pub(super) fn notes(&self) -> &'a Notes {
        self.notes
    }

    /// An option, or its default. What can't be read is an error and counts as its default.
    pub(super) fn read<T>(&mut self, key: &'static str, default: T, kind: Kind<T>) -> Setting<T> {
        let (node, at) = self.take(key, &kind.allowed);
        let (value, sound) = match node.map(|node| (self.notes.is_broken(&node.place), node)) {
            None => (default, true),
            Some((true, _)) => (default, false),
            Some((false, node)) => match (kind.read)(node) {
                Ok(value) => (value, true),
                Err(mistake) => {
                    self.notes.error(&at, mistake);
                    (default, false)
                }
            },
        };
        Setting {
            value,
            at,
            given: node.is_some(),
            sound,
        }
    }

    /// The bare value of an option, for one that no [`Kind`] fits; and whether it can be
    /// trusted.
    pub(super) fn bare(
        &mut self,
        key: &'static str,
        allowed: &str,
    ) -> (Option<&'a Node>, At, bool) {
        let (node, at) = self.take(key, allowed);
        let sound = !node.is_some_and(|node| self.notes.is_broken(&node.place));
        (node, at, sound)
    }

    /// A table inside it.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'a> {
        let (node, at) = self.find(key);
        let table = node.and_then(|node| match &node.value {
            Value::Table(table) => Some(table),
            _ if self.notes.is_broken(&node.place) => None,
            _ => {
                let cure = format!("write [{key}] on a line of its own, and its options below");
                let told = format!("{} is not a table", node.told());
                self.notes.error(&at, Mistake::new(told, cure));
                None
            }
        });
        Section::new(self.notes, self.path_of(key), at, table)
    }

    /// The tables of an array inside it. `None` where the array can't be read; empty where
    /// there is none.
    pub(super) fn sections(&mut self, key: &'static str, max: usize) -> Option<Vec<Section<'a>>> {
        let (node, at) = self.find(key);
        let Some(node) = node else {
            return Some(Vec::new());
        };
        let wrong = |node: &Node| {
            let path = self.path_of(key);
            let cure = format!("write [[{path}]] on a line of its own, and its options below");
            Mistake::new(format!("{} is not an array of tables", node.told()), cure)
        };
        let Value::List(list) = &node.value else {
            if !self.notes.is_broken(&node.place) {
                self.notes.error(&at, wrong(node));
            }
            return None;
        };
        if list.len() > max {
            let told = format!("there are {} of them", list.len());
            let mistake = Mistake::new(told, format!("give at most {max}"));
            self.notes.error(&at, mistake);
            return None;
        }
        let mut sections = Vec::new();
        for (index, item) in list.iter().enumerate() {
            let at = At {
                key: format!("{}[{index}]", self.path_of(key)),
                place: item.place.clone(),
            };
            match &item.value {
                Value::Table(table) => {
                    sections.push(Section::new(self.notes, self.path_of(key), at, Some(table)));
                }
                _ if self.notes.is_broken(&item.place) => return None,
                _ => {
                    self.notes.error(&at, wrong(item));
                    return None;
                }
            }
        }
        Some(sections)
    }

    /// Everything that was not asked for by name: for a section where any name may be one.
    pub(super) fn others(&mut self) -> Vec<(&'a str, &'a Node, At)> {
        self.open = true;
        let all = self.table.into_iter().flatten();
        let others = all.filter(|(name, node)| {
            let name: &str = name;
            !self.taken.contains(name)
                && !self.notes.is_broken(&node.name)
                && !self.notes.is_broken(&node.place)
        });
        let with_place = others.map(|(name, node)| {
            let at = At {
                key: join(&self.at.key, &shortened(name)),
                place: node.place.clone(),
            };
            (name.as_str(), node, at)
        });
        with_place.collect()
    }

    /// Ends the reading: whatever is left is unknown.
    pub(super) fn finish(self) {
        if self.open {
            return;
        }
        // What stands below a broken header is found at the top, where it is not wrong.
        if self.notes.lost && self.name.is_empty() {
            return;
        }
        for (name, node) in self.table.into_iter().flatten() {
            if self.taken.contains(name.as_str()) || self.notes.is_broken(&node.name) {
                continue;
            }
            self.notes.leftovers.borrow_mut().push(Leftover {
                section: self.name.clone(),
                name: name.clone(),
                at: At {
                    key: join(&self.at.key, &shortened(name)),
                    place: node.name.clone(),
                },
            });
        }
    }

    /// Finds an option and notes that it was asked for.
    fn take(&mut self, key: &'static str, allowed: &str) -> (Option<&'a Node>, At) {
        self.notes
            .asked
            .borrow_mut()
            .insert(self.path_of(key), allowed.to_owned());
        self.find(key)
    }

    fn find(&mut self, key: &'static str) -> (Option<&'a Node>, At) {
        self.taken.insert(key);
        let node = self.table.and_then(|table| table.get(key));
        let at = At {
            key: join(&self.at.key, key),
            place: node.map_or_else(|| self.at.place.clone(), |node| node.place.clone()),
        };
        (node, at)
    }

    fn path_of(&self, key: &str) -> String {
        join(&self.name, key)
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
