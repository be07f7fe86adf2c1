//! Takes options out of the tree by name, notes every mistake on the way, and in the end
//! reports the names that are no option.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::catalogue::{Catalogue, Definition};
use super::kind::{Kind, Opt};
use super::nearest::nearest;
use super::notes::{At, Notes};
use super::place::Place;
use super::problem::Problem;
use super::shown::{quoted, shortened};
use super::syntax;
use super::toml::Toml;
use super::tree::{Node, Table, Value};

/// Where an option stands, and what became of it.
#[derive(Clone, Debug)]
pub struct Mark {
    at: At,
    /// Whether the config says it.
    pub(crate) given: bool,
    /// Whether what it says could be read; if not, the value is the default.
    pub(crate) sound: bool,
    /// Whether the config in effect leaves it out, because it has no effect.
    pub(crate) muted: bool,
    /// Of a list, the places of its items.
    items: Vec<Place>,
}

impl Mark {
    /// Where something in it would stand.
    pub(crate) fn inside(&self, key: &str) -> At {
        let place = self.at.place.clone();
        let key = join(&self.at.key, key);
        At { key, place }
    }

    /// Where a part of its value stands.
    pub(crate) fn part(&self, (key, place): &(String, Place)) -> At {
        let place = place.clone();
        match key.as_str() {
            "" => At {
                key: self.at.key.clone(),
                place,
            },
            key => At {
                key: join(&self.at.key, key),
                place,
            },
        }
    }

    /// Where it stands.
    pub(crate) fn at(&self) -> At {
        self.at.clone()
    }

    /// The place of one entry of a table.
    pub(crate) fn entry(&self, key: &str, index: usize) -> At {
        let At { place, .. } = self.item(index);
        self.part(&(shortened(key), place))
    }

    /// The place of one item of a list.
    pub(crate) fn item(&self, index: usize) -> At {
        let key = self.at.key.clone();
        let place = self.items.get(index).unwrap_or(&self.at.place).clone();
        At { key, place }
    }
}

impl Deref for Mark {
    type Target = At;

    fn deref(&self) -> &At {
        &self.at
    }
}

/// An option that has been read. It derefs to its [`Mark`].
#[derive(Clone, Debug)]
pub struct Setting<T> {
    pub(crate) value: T,
    pub(crate) mark: Mark,
}

impl<T> Deref for Setting<T> {
    type Target = Mark;

    fn deref(&self) -> &Mark {
        &self.mark
    }
}

impl<T> Setting<T> {
    /// The value, if it is what the operator meant.
    pub(crate) fn meant(&self) -> Option<&T> {
        self.sound.then_some(&self.value)
    }
}

impl<T> Setting<T> {
    /// Writes it, unless it has no value or is muted.
    pub(crate) fn write(&self, field: &str, option: &Opt<T>, out: &mut Toml) {
        if !self.muted
            && let Some(value) = (option.kind.show)(&self.value)
        {
            out.line(option.key.unwrap_or(field), &value);
        }
    }
}

impl<T> Setting<Option<T>> {
    /// Whether it was left out, which is not the same as given wrong.
    pub(crate) fn is_missing(&self) -> bool {
        self.sound && self.value.is_none()
    }

    /// The value, if there is one and it is what the operator meant.
    pub(crate) fn said(&self) -> Option<&T> {
        self.meant()?.as_ref()
    }

    /// The value of a required option, of a config without an error.
    pub(crate) fn required(&self) -> T
    where
        T: Clone,
    {
        let value = self.value.clone();
        value.expect("a required option that is missing is an error")
    }
}

/// A struct of options that are read from one section of a config.
pub trait Options {
    /// Takes its options out of a section, and notes every mistake.
    fn read(section: &mut Section<'_>) -> Self
    where
        Self: Sized;

    /// Writes its options as TOML.
    fn write(&self, out: &mut Toml);

    /// Its options by the names of their fields.
    fn marks(&self) -> Vec<(&'static str, &Mark)>;

    /// The same, to mute options that have no effect.
    fn marks_mut(&mut self) -> Vec<(&'static str, &mut Mark)>;
}

/// Two structs of options that are read from the same section.
impl<A: Options, B: Options> Options for (A, B) {
    fn read(section: &mut Section<'_>) -> Self {
        (A::read(section), B::read(section))
    }

    fn write(&self, out: &mut Toml) {
        self.0.write(out);
        self.1.write(out);
    }

    fn marks(&self) -> Vec<(&'static str, &Mark)> {
        let first = self.0.marks().into_iter();
        first.chain(self.1.marks()).collect()
    }

    fn marks_mut(&mut self) -> Vec<(&'static str, &mut Mark)> {
        let first = self.0.marks_mut().into_iter();
        first.chain(self.1.marks_mut()).collect()
    }
}

/// Writes a section that consists of these options.
pub(crate) fn write_section(out: &mut Toml, header: &str, parts: &[&dyn Options]) {
    out.header(header);
    for part in parts {
        part.write(out);
    }
}

/// A config while it is read.
pub(crate) struct Reading {
    pub(crate) notes: Notes,
    tree: Table,
    /// What was found before the tree was there.
    problems: Vec<Problem>,
    /// Every option that was asked for.
    catalogue: RefCell<Catalogue>,
    leftovers: RefCell<Vec<Leftover>>,
    /// The file that lists every option.
    example: &'static str,
}

/// A name that no reader asked for.
struct Leftover {
    section: String,
    name: String,
    at: At,
}

impl Reading {
    /// Begins with the text of a config. `example` is the file that lists every option.
    pub(crate) fn of(text: &str, example: &'static str) -> Self {
        let parsed = syntax::parse(text);
        Self {
            notes: Notes::new(parsed.broken, parsed.lost),
            tree: parsed.tree,
            problems: parsed.problems,
            catalogue: RefCell::default(),
            leftovers: RefCell::default(),
            example,
        }
    }

    /// Begins with a tree.
    pub(crate) fn of_tree(tree: Table, example: &'static str) -> Self {
        let empty = Self::of("", example);
        Self { tree, ..empty }
    }

    /// Lays variables of the environment over the file. Those that look like ours and have no
    /// path are returned.
    pub(crate) fn lay_over(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Vec<Arc<str>> {
        let not_laid = super::environment::lay_over(&mut self.tree, variables);
        self.problems.extend(not_laid.misplaced);
        not_laid.pathless
    }

    /// The whole config.
    pub(crate) fn root(&self) -> Section<'_> {
        let at = At {
            key: String::new(),
            place: Place::Whole,
        };
        Section::new(self, String::new(), at, Some(&self.tree))
    }

    /// A warning about a variable that looks like ours and names no option. Asked when every
    /// option has been read.
    pub(crate) fn pathless(&self, variable: Arc<str>) {
        let cure = match self.catalogue.borrow().nearest_variable(&variable) {
            Some(name) => format!("did you mean {name}?"),
            None => "write TIDEGATE_SECTION__KEY, with two underscores between, or leave it out"
                .to_owned(),
        };
        let at = At {
            key: String::new(),
            place: Place::Variable(variable),
        };
        let told = "this variable looks like one of ours and names no option";
        self.notes.warn(&at, told, cure);
    }

    /// Every problem, unknown options among them.
    pub(crate) fn problems(&mut self) -> Vec<Problem> {
        for leftover in self.leftovers.take() {
            let (told, cure) = self.unknown(&leftover);
            self.notes.error(&leftover.at, told, cure);
        }
        let mut list = std::mem::take(&mut self.problems);
        list.extend(self.notes.take());
        list
    }

    /// Every option that was asked for.
    pub(crate) fn catalogue(self) -> Catalogue {
        self.catalogue.into_inner()
    }

    fn unknown(&self, leftover: &Leftover) -> (String, String) {
        let catalogue = self.catalogue.borrow();
        let message = format!("there is no option {} here", quoted(&leftover.name));
        if let Some(ours) = sdkserver_name(&leftover.name) {
            return (message, format!("this is {ours} here"));
        }
        if let Some(name) = nearest(&leftover.name, catalogue.inside(&leftover.section)) {
            return (message, format!("did you mean {}?", quoted(name)));
        }
        let cure = match catalogue.section_of(&leftover.name) {
            Some(section) => format!("{} belongs in [{section}]", leftover.name),
            None => format!("leave it out; {} lists every option", self.example),
        };
        (message, cure)
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
pub struct Section<'a> {
    reading: &'a Reading,
    /// Its path without indices, as in the list of options.
    name: String,
    at: At,
    table: Option<&'a Table>,
    taken: BTreeSet<&'static str>,
    /// Whether any name is an option.
    open: bool,
}

impl<'a> Section<'a> {
    fn new(reading: &'a Reading, name: String, at: At, table: Option<&'a Table>) -> Self {
        Self {
            reading,
            name,
            at,
            table,
            taken: BTreeSet::new(),
            open: false,
        }
    }

    /// Where it stands, to report something that is missing in it.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            at: self.at.clone(),
            given: self.table.is_some(),
            sound: true,
            muted: false,
            items: Vec::new(),
        }
    }

    pub(crate) fn notes(&self) -> &'a Notes {
        &self.reading.notes
    }

    /// Describes it. Only the first description counts.
    pub(crate) fn about(&self, text: &'static str) {
        let mut catalogue = self.reading.catalogue.borrow_mut();
        catalogue.describe(&self.name, text, self.at.key.ends_with(']'));
    }

    /// The same, which the example of a config shows in comments.
    pub(crate) fn aside(self) -> Self {
        self.reading.catalogue.borrow_mut().set_aside(&self.name);
        self
    }

    /// All of it, and nothing else.
    pub(crate) fn read<T: Options>(mut self) -> T {
        let options = T::read(&mut self);
        self.finish();
        options
    }

    /// An option, or its default. What can't be read is an error and counts as its default.
    pub(crate) fn option<T>(
        &mut self,
        field: &'static str,
        text: &'static str,
        option: Opt<T>,
    ) -> Setting<T> {
        let key = option.key.unwrap_or(field);
        self.define(key, text, &option);
        let (node, at) = self.find(key);
        let notes = self.notes();
        let (value, sound) = match node {
            None => (None, true),
            Some(node) if notes.is_broken(&node.place) => (None, false),
            Some(node) => match (option.kind.read)(node) {
                Ok(value) => (Some(value), true),
                Err(mistakes) => {
                    for mistake in mistakes {
                        notes.mistake(&at, mistake);
                    }
                    (None, false)
                }
            },
        };
        if node.is_none()
            && self.table.is_some()
            && let Some((told, cure)) = option.missing
        {
            notes.missing(&at, told, cure);
        }
        let items = match node.map(|node| &node.value) {
            Some(Value::List(list)) => list.iter().map(|item| item.place.clone()).collect(),
            Some(Value::Table(table)) => table.values().map(|item| item.place.clone()).collect(),
            _ => Vec::new(),
        };
        Setting {
            value: value.unwrap_or(option.default),
            mark: Mark {
                at,
                given: node.is_some(),
                sound,
                muted: false,
                items,
            },
        }
    }

    fn define<T>(&self, key: &'static str, text: &'static str, option: &Opt<T>) {
        let mut catalogue = self.reading.catalogue.borrow_mut();
        catalogue.define(&self.name, key, || Definition {
            allowed: option.kind.allowed.clone(),
            text,
            default: (option.kind.show)(&option.default),
            example: option.example,
            restart: option.restart,
            required: option.missing.is_some(),
        });
    }

    /// A table inside it.
    pub(crate) fn section(&mut self, key: &'static str) -> Section<'a> {
        let (node, at) = self.find(key);
        let table = node.and_then(|node| match &node.value {
            Value::Table(table) => Some(table),
            _ if self.notes().is_broken(&node.place) => None,
            _ => {
                let told = format!("{} is not a table", node.told());
                let cure = format!("write [{key}] on a line of its own, and its options below");
                self.notes().error(&at, told, cure);
                None
            }
        });
        Section::new(self.reading, join(&self.name, key), at, table)
    }

    /// The tables of an array inside it. `None` where the array can't be read; empty where
    /// there is none.
    pub(crate) fn sections(&mut self, key: &'static str, max: usize) -> Option<Vec<Section<'a>>> {
        let (node, at) = self.find(key);
        let Some(node) = node else {
            return Some(Vec::new());
        };
        let name = join(&self.name, key);
        let (notes, reading) = (self.notes(), self.reading);
        let wrong = |at: &At, node: &Node| {
            if !notes.is_broken(&node.place) {
                let told = format!("{} is not an array of tables", node.told());
                let cure = format!("write [[{name}]] on a line of its own, and its options below");
                notes.error(at, told, cure);
            }
        };
        let Value::List(list) = &node.value else {
            wrong(&at, node);
            return None;
        };
        if list.len() > max {
            let told = format!("there are {} of them", list.len());
            notes.error(&at, told, format!("give at most {max}"));
            return None;
        }
        let section = |(index, item): (usize, &'a Node)| {
            let at = At {
                key: format!("{name}[{index}]"),
                place: item.place.clone(),
            };
            match &item.value {
                Value::Table(table) => Some(Section::new(reading, name.clone(), at, Some(table))),
                _ => {
                    wrong(&at, item);
                    None
                }
            }
        };
        list.iter().enumerate().map(section).collect()
    }

    /// Every table of an array, read. Empty where the array can't be read.
    pub(crate) fn each<T: Options>(&mut self, key: &'static str, max: usize) -> Vec<T> {
        let sections = self.sections(key, max).unwrap_or_default();
        sections.into_iter().map(|it| it.aside().read()).collect()
    }

    /// Everything that was not asked for by name, read as one kind: for a section where any
    /// name may be an option.
    pub(crate) fn others<T>(&mut self, kind: &Kind<T>) -> Vec<(&'a str, Setting<Option<T>>)> {
        self.open = true;
        let notes = self.notes();
        let all = self.table.into_iter().flatten();
        let others = all.filter(|(name, node)| {
            let is_broken = notes.is_broken(&node.name) || notes.is_broken(&node.place);
            !self.taken.contains(name.as_str()) && !is_broken
        });
        let read = |(name, node): (&'a String, &'a Node)| {
            let at = At {
                key: join(&self.at.key, &shortened(name)),
                place: node.place.clone(),
            };
            let value = match (kind.read)(node) {
                Ok(value) => Some(value),
                Err(mistakes) => {
                    mistakes.into_iter().for_each(|it| notes.mistake(&at, it));
                    None
                }
            };
            let mark = Mark {
                at,
                given: true,
                sound: value.is_some(),
                muted: false,
                items: Vec::new(),
            };
            (name.as_str(), Setting { value, mark })
        };
        others.map(read).collect()
    }

    /// Ends the reading: whatever is left is unknown.
    pub(crate) fn finish(self) {
        // What stands below a broken header is found at the top, where it is not wrong.
        if self.open || self.notes().lost && self.name.is_empty() {
            return;
        }
        for (name, node) in self.table.into_iter().flatten() {
            if self.taken.contains(name.as_str()) || self.notes().is_broken(&node.name) {
                continue;
            }
            self.reading.leftovers.borrow_mut().push(Leftover {
                section: self.name.clone(),
                name: name.clone(),
                at: At {
                    key: join(&self.at.key, &shortened(name)),
                    place: node.name.clone(),
                },
            });
        }
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
}

/// A key inside of a section, as a path.
fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
