//! Takes options out of the tree by name, notes every mistake on the way, and in the end
//! reports the names that are no option.

use std::cell::{RefCell, RefMut};
use std::ops::Deref;
use std::sync::Arc;

use super::catalogue::{Catalogue, Definition};
use super::kind::{Mistake, OptionSpec, ValueKind};
use super::notes::Notes;
use super::place::{ConfigPlace, LocatedKey, join};
use super::problem::Problem;
use super::shown::{did_you_mean, quoted, shortened};
use super::syntax;
use super::toml::Toml;
use super::tree::{ConfigValue, Node, Table};

/// The place of an option, and whether it was given and could be read.
#[derive(Clone, Debug)]
pub struct OptionMark {
    at: LocatedKey,
    /// Whether the config gives it.
    pub given: bool,
    /// Whether it could be read; if not, the value is the default.
    pub sound: bool,
    /// Whether the config in effect leaves it out, because it has no effect.
    pub muted: bool,
    /// Of a list, the places of its items.
    items: Vec<ConfigPlace>,
}

impl OptionMark {
    fn of(at: LocatedKey, node: Option<&Node>, sound: bool) -> Self {
        let items = match node.map(|node| &node.value) {
            Some(ConfigValue::List(list)) => list.iter().map(|item| item.place.clone()).collect(),
            Some(ConfigValue::Table(table)) => {
                table.values().map(|item| item.place.clone()).collect()
            }
            _ => Vec::new(),
        };
        Self {
            at,
            given: node.is_some(),
            sound,
            muted: false,
            items,
        }
    }

    /// The name in the config, without the section: the one that the operator gave, if it has two.
    pub fn name(&self) -> &str {
        self.at.key.rsplit('.').next().unwrap_or_default()
    }

    /// The place of the mark.
    pub fn at(&self) -> LocatedKey {
        self.at.clone()
    }

    /// The place of one entry of a table.
    pub fn entry(&self, key: &str, index: usize) -> LocatedKey {
        self.item(index).inside(&shortened(key))
    }

    /// The place of one item of a list.
    pub fn item(&self, index: usize) -> LocatedKey {
        LocatedKey::new(
            &*self.at.key,
            self.items.get(index).unwrap_or(&self.at.place),
        )
    }
}

impl Deref for OptionMark {
    type Target = LocatedKey;

    fn deref(&self) -> &LocatedKey {
        &self.at
    }
}

/// An option that has been read. It derefs to its [`OptionMark`].
#[derive(Clone, Debug)]
pub struct Setting<T> {
    /// The value that was given, or else the default.
    pub value: T,
    /// The place of the option, and whether it was given.
    pub mark: OptionMark,
}

impl<T> Deref for Setting<T> {
    type Target = OptionMark;

    fn deref(&self) -> &OptionMark {
        &self.mark
    }
}

impl<T> Setting<T> {
    /// The value, if it is what the operator meant.
    pub fn meant(&self) -> Option<&T> {
        self.sound.then_some(&self.value)
    }

    /// Writes it, unless it has no value or is muted.
    pub fn write(&self, field: &'static str, option: &OptionSpec<T>, out: &mut Toml) {
        let own = option.key.unwrap_or(field);
        if option.restart {
            out.needs_restart(own, (option.kind.show)(&self.value).as_deref());
        }
        // Under the name that the operator gave.
        let alias = option.alias.as_ref();
        let (key, kind) = match alias.filter(|alias| alias.key == self.name()) {
            Some(alias) => (alias.key, &alias.kind),
            None => (own, &option.kind),
        };
        let value = (kind.show)(&self.value);
        if let Some(value) = value.filter(|_| !self.muted) {
            out.line(key, &value);
        }
    }
}

impl<T> Setting<Option<T>> {
    /// Whether it was left out, which is not the same as given wrong.
    pub fn is_missing(&self) -> bool {
        self.sound && self.value.is_none()
    }

    /// The value, if there is one and it is what the operator meant.
    pub fn said(&self) -> Option<&T> {
        self.meant()?.as_ref()
    }

    /// The value of a required option, of a config without an error.
    pub fn required(&self) -> T
    where
        T: Clone,
    {
        let value = self.value.clone();
        value.expect("a required option that is missing is an error")
    }
}

/// Values that are read from one section of a config: a struct of options, or several of them.
pub trait Options {
    /// Takes its options out of a section, and notes every mistake.
    fn read(section: &Section<'_>) -> Self
    where
        Self: Sized;

    /// Writes its options as TOML.
    fn write(&self, out: &mut Toml);
}

/// A config while it is read.
pub struct ConfigReader {
    /// The mistakes so far.
    pub notes: Notes,
    tree: Table,
    /// Mistakes that were found before the tree was made.
    problems: Vec<Problem>,
    /// Variables that look like ours and have no path.
    pathless: Vec<Arc<str>>,
    /// Every option that was asked for.
    catalogue: RefCell<Catalogue>,
    form: ConfigForm,
}

/// A kind of config, as messages need it.
#[derive(Clone, Copy, Debug)]
pub struct ConfigForm {
    /// The page or file that lists every option.
    pub reference: &'static str,
    /// The keys that another kind of config has at its top.
    pub elsewhere: &'static [&'static str],
    /// The cure for a file that has them.
    pub cure: &'static str,
    /// Every option of this kind, also of sections that a config lacks.
    pub every: fn() -> Catalogue,
    /// Cures for an option or section of an earlier version, by its path; empty for all others.
    pub former: fn(&str, &Node) -> Vec<(LocatedKey, Mistake)>,
}

/// A config of which no other kind is known.
impl From<&'static str> for ConfigForm {
    fn from(reference: &'static str) -> Self {
        Self {
            reference,
            elsewhere: &[],
            cure: "",
            every: Catalogue::default,
            former: |_, _| Vec::new(),
        }
    }
}

impl ConfigReader {
    /// Begins with the text of a config.
    pub fn of(text: &str, form: impl Into<ConfigForm>) -> Self {
        let parsed = syntax::parse(text);
        Self {
            notes: Notes::new(parsed.broken, parsed.lost),
            tree: parsed.tree,
            problems: parsed.problems,
            pathless: Vec::new(),
            catalogue: RefCell::default(),
            form: form.into(),
        }
    }

    /// Begins with a tree.
    pub fn of_tree(tree: Table, form: impl Into<ConfigForm>) -> Self {
        let empty = Self::of("", form);
        Self { tree, ..empty }
    }

    /// Lays variables of the environment over the file.
    pub fn lay_over(&mut self, variables: impl Iterator<Item = (String, String)>) {
        let not_laid = super::environment::lay_over(&mut self.tree, variables);
        self.problems.extend(not_laid.misplaced);
        self.pathless.extend(not_laid.pathless);
    }

    /// The whole config.
    pub fn root(&self) -> Section<'_> {
        Section {
            reading: self,
            name: String::new(),
            at: LocatedKey::default(),
            table: Some(&self.tree),
        }
    }

    /// Every problem, unknown options among them. Asked when every option has been read.
    pub fn problems(&mut self) -> Vec<Problem> {
        for variable in std::mem::take(&mut self.pathless) {
            self.pathless(variable);
        }
        // What belongs below a broken header is found at the top, where it is not wrong.
        self.leftovers("", &LocatedKey::default(), &self.tree, self.notes.lost);
        let mut list = std::mem::take(&mut self.problems);
        // Quotes would not help a value that is wrong in quotes too.
        let is_wrong_anyway =
            |it: &Problem| it.message == syntax::UNQUOTED && self.notes.is_refused(&it.place);
        let wrong: Vec<_> = list.extract_if(.., |it| is_wrong_anyway(it)).collect();
        list.extend(self.notes.take());
        // The slip knows where the value ends in the file, which has other quotes.
        for problem in &mut list {
            let same = |it: &&Problem| it.place.start() == problem.place.start();
            if let Some(slip) = wrong
                .iter()
                .find(same)
                .filter(|it| it.place.start().is_some())
            {
                problem.place = slip.place.clone();
            }
        }
        list
    }

    /// Warns about a variable that looks like ours and names no option.
    fn pathless(&self, variable: Arc<str>) {
        let cure = match self.catalogue.borrow().nearest_variable(&variable) {
            Some(name) => format!("did you mean {name}?"),
            None => "write TIDEGATE_SECTION__KEY, with two underscores between, or leave it out"
                .to_owned(),
        };
        let at = LocatedKey::new("", &ConfigPlace::Variable(variable));
        let cause = "this variable looks like one of ours and names no option";
        self.notes.warn(&at, cause, cure);
    }

    /// Notes the names in a section, and in the sections inside it, that no reader asked for.
    fn leftovers(&self, section: &str, at: &LocatedKey, table: &Table, is_top_of_lost: bool) {
        let catalogue = self.catalogue.borrow();
        let any_name = is_top_of_lost || catalogue.takes_any_name(section);
        for (key, node) in table {
            let name = join(section, key);
            let at = at.inside(&shortened(key));
            if catalogue.asked_for.contains(&name) {
                for (at, item) in items(node, &at) {
                    if let Some(table) = item.table() {
                        self.leftovers(&name, &at, table, false);
                    }
                }
            } else if !any_name
                && !self.notes.is_broken(&node.name)
                && !self.is_former(&name, &at.key, node)
            {
                let (cause, cure) = self.unknown(&catalogue, section, key);
                self.notes
                    .error(&LocatedKey::new(at.key, &node.name), cause, cure);
            }
        }
    }

    /// Whether a name is of an earlier version, which is noted with what to write instead.
    fn is_former(&self, path: &str, key: &str, node: &Node) -> bool {
        let former = (self.form.former)(path, node);
        let is_former = !former.is_empty();
        for (part, mistake) in former {
            let at = LocatedKey::new(format!("{key}{}", part.key), &part.place);
            self.notes.mistake(&at, mistake);
        }
        is_former
    }

    /// Every option that was asked for.
    pub fn catalogue(self) -> Catalogue {
        self.catalogue.into_inner()
    }

    fn unknown(&self, catalogue: &Catalogue, section: &str, name: &str) -> (String, String) {
        let message = format!("there is no option {} here", quoted(name));
        if let Some(ours) = sdkserver_name(name) {
            return (message, format!("this is {ours} here"));
        }
        if section.is_empty() && self.form.elsewhere.contains(&name) {
            return (message, self.form.cure.to_owned());
        }
        let near = did_you_mean(name, catalogue.inside(section));
        let cure = near.unwrap_or_else(|| match (self.form.every)().section_of(name, section) {
            Some(section) => format!("{name} belongs in {section}"),
            None => format!("leave it out; {} lists every option", self.form.reference),
        });
        (message, cure)
    }
}

/// The name here of an option of sdkserver's.
fn sdkserver_name(name: &str) -> Option<&'static str> {
    match name {
        "bind_addr" | "bind_port" => Some("bind = \"address:port\" in [[listen]]"),
        "request_queue_size" => Some("capacity in [queue]"),
        "max_worker_count" => Some("workers in [queue]"),
        "sdkserver" => Some("[[listen]], [queue] and [limits]"),
        _ => None,
    }
}

/// A table of the config, present or not.
pub struct Section<'a> {
    reading: &'a ConfigReader,
    /// The path of the section without indices, as in the list of options.
    name: String,
    at: LocatedKey,
    table: Option<&'a Table>,
}

impl<'a> Section<'a> {
    /// The place of the section, to report something that is missing in it.
    pub fn mark(&self) -> OptionMark {
        let mark = OptionMark::of(self.at.clone(), None, true);
        let given = self.table.is_some();
        OptionMark { given, ..mark }
    }

    /// The notes of the file.
    pub fn notes(&self) -> &'a Notes {
        &self.reading.notes
    }

    /// Describes it. Only the first description counts.
    pub fn about(&self, text: &'static str) {
        let is_array = self.at.key.ends_with(']');
        self.catalogue().describe(&self.name, text, is_array);
    }

    /// Marks the section to be shown in comments in the example of a config.
    pub fn aside(self) -> Self {
        self.catalogue().section(&self.name).is_aside = true;
        self
    }

    /// The options of one struct; others may be in the same section.
    pub fn read<T: Options>(&self) -> T {
        T::read(self)
    }

    /// An option, or its default. What can't be read is an error and counts as its default.
    pub fn option<T>(
        &self,
        field: &'static str,
        text: &'static str,
        option: OptionSpec<T>,
    ) -> Setting<T> {
        let key = option.key.unwrap_or(field);
        self.define(key, text, &option);
        let (node, at, kind) = self.given(key, &option);
        let legible = node.filter(|node| !self.notes().is_broken(&node.place));
        let value = legible.and_then(|node| self.value(kind, node, &at));
        if node.is_none()
            && self.table.is_some()
            && let Some((cause, cure)) = option.missing
        {
            self.notes().missing(&at, cause, cure);
        }
        Setting {
            mark: OptionMark::of(at, node, node.is_none() || value.is_some()),
            value: value.unwrap_or(option.default),
        }
    }

    /// The value of an option in the config, under either of its names.
    fn given<'k, T>(
        &self,
        key: &str,
        option: &'k OptionSpec<T>,
    ) -> (Option<&'a Node>, LocatedKey, &'k ValueKind<T>) {
        let (node, at) = self.find(key);
        let own = (node, at, &option.kind);
        let Some(alias) = &option.alias else {
            return own;
        };
        let (node, at) = self.find(alias.key);
        let second = (node, at, &alias.kind);
        let (Some(first), Some(other)) = (own.0, second.0) else {
            return if second.0.is_some() { second } else { own };
        };
        let is_variable = |node: &Node| matches!(node.place, ConfigPlace::Variable(_));
        match (is_variable(first), is_variable(other)) {
            // A variable wins over the file, by either name.
            (true, false) => own,
            (false, true) => second,
            _ => {
                let cause = format!("{} is another name of {key}, which is given too", alias.key);
                self.notes()
                    .error(&second.1, cause, "leave one of the two out");
                own
            }
        }
    }

    /// The value of a node, or none with a note of every mistake in it.
    fn value<T>(&self, kind: &ValueKind<T>, node: &Node, at: &LocatedKey) -> Option<T> {
        let note = |mistake| self.notes().refuse(at, mistake);
        let wrong = |mistakes: Vec<_>| mistakes.into_iter().for_each(note);
        (kind.read)(node).map_err(wrong).ok()
    }

    fn define<T>(&self, key: &'static str, text: &'static str, option: &OptionSpec<T>) {
        self.catalogue().define(&self.name, key, || Definition {
            allowed: option.kind.allowed.clone(),
            text,
            alias: option
                .alias
                .as_ref()
                .map(|it| (it.key, it.kind.allowed.clone())),
            default: (option.kind.show)(&option.default),
            level: option.level,
            example: option.example,
            restart: option.restart,
            required: option.missing.is_some(),
        });
    }

    /// A table inside it.
    pub fn section(&self, key: &str) -> Section<'a> {
        let (node, at) = self.find(key);
        let table = node.and_then(Node::table);
        if let Some(node) = node.filter(|_| table.is_none()) {
            self.is_not("a table", node, &at, &format!("[{key}]"));
        }
        Section {
            reading: self.reading,
            name: join(&self.name, key),
            at,
            table,
        }
    }

    /// Notes a node that is no section, unless its TOML is broken.
    fn is_not(&self, what: &str, node: &Node, at: &LocatedKey, header: &str) {
        if !self.notes().is_broken(&node.place) {
            let cause = format!("{} is not {what}", node.in_words());
            let cure = format!("write {header} on a line of its own, and its options below");
            self.notes().error(at, cause, cure);
        }
    }

    /// The table of the section, for another reader: it reports the names that are no option.
    pub fn table(&self) -> Option<&'a Table> {
        self.catalogue().section(&self.name).takes_any_name = true;
        self.table
    }

    /// The keys of the table that were not asked for by name.
    fn others_than_asked_for(&self) -> impl Iterator<Item = (&'a str, &'a Node)> {
        let catalogue = self.reading.catalogue.borrow();
        let asked_for = |name: &str| catalogue.asked_for.contains(&join(&self.name, name));
        let all = self.table.into_iter().flatten();
        let others = all.filter(|(name, _)| !asked_for(name));
        let others: Vec<_> = others.map(|(name, node)| (name.as_str(), node)).collect();
        others.into_iter()
    }

    /// The tables inside it that were not asked for by name.
    pub fn other_sections(&self) -> Vec<(&'a str, Section<'a>)> {
        let others = self.others_than_asked_for();
        let tables = others.filter(|(_, node)| node.table().is_some());
        tables.map(|(name, _)| (name, self.section(name))).collect()
    }

    /// The tables of an array inside it. `None` where the array can't be read; empty where
    /// there is none.
    pub fn sections(&self, key: &'static str, max: usize) -> Option<Vec<Section<'a>>> {
        let (node, at) = self.find(key);
        let Some(node) = node else {
            return Some(Vec::new());
        };
        let name = join(&self.name, key);
        let wrong = |node: &Node, at: &LocatedKey| {
            self.is_not("an array of tables", node, at, &format!("[[{name}]]"));
        };
        let ConfigValue::List(list) = &node.value else {
            if !self.reading.is_former(&name, &at.key, node) {
                wrong(node, &at);
            }
            return None;
        };
        if list.len() > max {
            let cause = format!("there are {} of them", list.len());
            self.notes()
                .error(&at, cause, format!("give at most {max}"));
            return None;
        }
        let section = |(at, item): (LocatedKey, &'a Node)| {
            let table = item.table();
            if table.is_none() {
                wrong(item, &at);
            }
            Some(Section {
                reading: self.reading,
                name: name.clone(),
                at,
                table: Some(table?),
            })
        };
        items(node, &at).into_iter().map(section).collect()
    }

    /// Every table of an array, read. Empty where the array can't be read.
    pub fn each<T: Options>(&self, key: &'static str, max: usize) -> Vec<T> {
        let sections = self.sections(key, max).unwrap_or_default();
        sections.into_iter().map(|it| it.aside().read()).collect()
    }

    /// Everything that was not asked for by name, read as one kind: for a section where any
    /// name may be an option.
    pub fn others<T>(&self, kind: &ValueKind<T>) -> Vec<(&'a str, Setting<Option<T>>)> {
        let notes = self.notes();
        self.catalogue().section(&self.name).takes_any_name = true;
        let others = self.others_than_asked_for();
        let legible = others
            .filter(|(_, node)| !notes.is_broken(&node.name) && !notes.is_broken(&node.place));
        let read = |(name, node): (&'a str, &'a Node)| {
            let at = LocatedKey::new(self.at.inside(&shortened(name)).key, &node.place);
            let value = self.value(kind, node, &at);
            let mark = OptionMark::of(at, Some(node), value.is_some());
            (name, Setting { value, mark })
        };
        legible.map(read).collect()
    }

    fn catalogue(&self) -> RefMut<'a, Catalogue> {
        self.reading.catalogue.borrow_mut()
    }

    fn find(&self, key: &str) -> (Option<&'a Node>, LocatedKey) {
        self.catalogue().asked_for.insert(join(&self.name, key));
        let node = self.table.and_then(|table| table.get(key));
        let place = node.map_or(&self.at.place, |node| &node.place);
        (node, LocatedKey::new(join(&self.at.key, key), place))
    }
}

/// The items of an array with their places; anything else is one item.
fn items<'a>(node: &'a Node, at: &LocatedKey) -> Vec<(LocatedKey, &'a Node)> {
    let ConfigValue::List(list) = &node.value else {
        return vec![(at.clone(), node)];
    };
    let keyed = list.iter().enumerate();
    keyed
        .map(|(index, item)| {
            (
                LocatedKey::new(format!("{}[{index}]", at.key), &item.place),
                item,
            )
        })
        .collect()
}
