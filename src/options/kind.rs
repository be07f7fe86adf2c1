//! The kinds of values that options have. A kind says in words what it allows, reads a value
//! from the tree of a config, and writes it as TOML.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

mod measured;

pub use self::measured::{duration, parse_duration, show_duration, show_size, size};
use super::place::{ConfigPlace, LocatedKey};
use super::shown::{did_you_mean, is_content_of_pem, quoted, shortened};
use super::toml::string;
use super::tree::{ConfigValue, Node};

/// A millisecond.
pub const MS: Duration = Duration::from_millis(1);
/// A second.
pub const SECOND: Duration = Duration::from_secs(1);
/// A minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// An hour.
pub const HOUR: Duration = Duration::from_secs(3600);
/// A day.
pub const DAY: Duration = Duration::from_secs(24 * 3600);
pub(crate) const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// A mistake in a value, and its cure.
#[derive(Debug)]
pub struct Mistake {
    /// The mistake itself: what is wrong with the value.
    pub message: String,
    /// How to put it right.
    pub cure: String,
    /// The part of the value that is wrong: its key and its place.
    pub part: Option<LocatedKey>,
}

impl Mistake {
    /// A mistake and its cure.
    pub fn new(message: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            cure: cure.into(),
            part: None,
        }
    }

    /// A value of the wrong kind: it `is` "not a string".
    fn of(node: &Node, is: &str, cure: impl Into<String>) -> Self {
        Self::new(format!("{} is {is}", node.in_words()), cure)
    }

    /// The mistake, about one part of the value. An empty key is the key of the whole value.
    pub fn in_part(self, key: &str, place: &ConfigPlace) -> Self {
        let part = Some(LocatedKey::new(shortened(key), place));
        Self { part, ..self }
    }
}

impl From<Mistake> for Vec<Mistake> {
    fn from(mistake: Mistake) -> Self {
        vec![mistake]
    }
}

type ReadValue<T> = Box<dyn Fn(&Node) -> Result<T, Vec<Mistake>>>;
type ShowValue<T> = Box<dyn Fn(&T) -> Option<String>>;

/// How a value of one kind is read and written, and what it may be.
pub struct ValueKind<T> {
    /// In words, with the unit first: `threads, 1 to 64`.
    pub allowed: String,
    /// Reads a value, or returns what is wrong with it.
    pub read: ReadValue<T>,
    /// As TOML; none for a value that no config can contain.
    pub show: ShowValue<T>,
}

impl<T: 'static> ValueKind<T> {
    /// A kind whose values have at most one mistake.
    pub fn new(
        allowed: impl Into<String>,
        read: impl Fn(&Node) -> Result<T, Mistake> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self::of_parts(allowed, move |node| Ok(read(node)?), show)
    }

    /// A kind whose values have parts, each with mistakes of its own.
    pub fn of_parts(
        allowed: impl Into<String>,
        read: impl Fn(&Node) -> Result<T, Vec<Mistake>> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self {
            allowed: allowed.into(),
            read: Box::new(read),
            show: Box::new(move |value| Some(show(value))),
        }
    }

    /// Names the unit that the values count: `threads`, `tokens per second`.
    pub fn of(self, unit: &str) -> Self {
        let allowed = format!("{unit}, {}", self.allowed);
        Self { allowed, ..self }
    }

    /// Describes the values by other words.
    pub fn described(self, allowed: impl Into<String>) -> Self {
        let allowed = allowed.into();
        Self { allowed, ..self }
    }

    /// Converts the values to another type.
    pub fn map<U: 'static>(
        self,
        to: impl Fn(T) -> U + 'static,
        from: impl Fn(&U) -> T + 'static,
    ) -> ValueKind<U> {
        let (read, show) = (self.read, self.show);
        ValueKind {
            allowed: self.allowed,
            read: Box::new(move |node| read(node).map(&to)),
            show: Box::new(move |value| show(&from(value))),
        }
    }

    fn or_none(self) -> ValueKind<Option<T>> {
        let (read, show) = (self.read, self.show);
        ValueKind {
            allowed: self.allowed,
            read: Box::new(move |node| read(node).map(Some)),
            show: Box::new(move |value| value.as_ref().and_then(&show)),
        }
    }

    /// An option of this kind that has a default.
    pub fn or(self, default: T) -> OptionSpec<T> {
        OptionSpec {
            kind: self,
            default,
            key: None,
            alias: None,
            example: Example::Default,
            level: Level::Usual,
            restart: false,
            missing: None,
        }
    }

    /// An option of this kind that may be absent.
    pub fn optional(self) -> OptionSpec<Option<T>> {
        self.or_none().or(None)
    }

    /// An option of this kind that is required: the message if it is missing, and the cure.
    pub fn required(self, cause: &'static str, cure: &'static str) -> OptionSpec<Option<T>> {
        OptionSpec {
            missing: Some((cause, cure)),
            ..self.optional()
        }
    }
}

/// The value of an option in the example of a config.
#[derive(Clone, Copy)]
pub enum Example {
    /// The example shows the default.
    Default,
    /// A value, in a comment.
    Aside(&'static str),
    /// A value, as a line that counts.
    Line(&'static str),
}

/// How likely an operator is to change an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Most configs have it. The example shows it, at this place in the order of importance.
    First(u8),
    /// A certain need changes it.
    Usual,
    /// The default is right unless a measurement says otherwise.
    Expert,
}

impl Level {
    /// The word of the reference page.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::First(_) => "first",
            Self::Usual => "usual",
            Self::Expert => "expert",
        }
    }
}

/// A second name of an option, and what its value is under that name.
pub struct Alias<T> {
    pub(crate) key: &'static str,
    pub(crate) kind: ValueKind<T>,
}

/// An option: its kind, and everything about it but its name, its type and its text.
pub struct OptionSpec<T> {
    pub(crate) kind: ValueKind<T>,
    pub(crate) default: T,
    /// The name in the config, where that is not the name of its field.
    pub key: Option<&'static str>,
    pub(crate) alias: Option<Alias<T>>,
    pub(crate) example: Example,
    pub(crate) level: Level,
    /// Whether a change takes effect only after a restart.
    pub restart: bool,
    /// The message if it is missing, and the cure.
    pub missing: Option<(&'static str, &'static str)>,
}

impl<T> OptionSpec<T> {
    /// Sets the name in the config, where that is not the name of its field.
    pub fn key(self, key: &'static str) -> Self {
        let key = Some(key);
        Self { key, ..self }
    }

    /// A second name, under which the value is of this kind.
    pub fn alias(self, key: &'static str, kind: ValueKind<T>) -> Self {
        let alias = Some(Alias { key, kind });
        Self { alias, ..self }
    }

    /// A value for the example of a config, in TOML.
    pub fn example(self, value: &'static str) -> Self {
        let example = Example::Aside(value);
        Self { example, ..self }
    }

    /// A value that the example of a config has to give, in TOML.
    pub fn line(self, value: &'static str) -> Self {
        let example = Example::Line(value);
        Self { example, ..self }
    }

    /// An option that most configs have, with its place among them.
    pub(crate) fn first(self, place: u8) -> Self {
        let level = Level::First(place);
        Self { level, ..self }
    }

    /// An option whose default is right unless a measurement says otherwise.
    pub(crate) fn expert(self) -> Self {
        let level = Level::Expert;
        Self { level, ..self }
    }

    /// A change takes effect only after a restart.
    pub fn restart(self) -> Self {
        let restart = true;
        Self { restart, ..self }
    }
}

/// A type with one word for each of its values.
pub trait Words: Copy + PartialEq + 'static {
    /// Every value and its word.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for a value.
    fn word(self) -> &'static str {
        let mut words = Self::WORDS.iter();
        let word = words.find(|(_, value)| *value == self);
        word.expect("every value has a word").0
    }
}

/// A kind of one word of a few.
pub fn choice<T: Words>() -> ValueKind<T> {
    let list: Vec<_> = T::WORDS.iter().map(|(word, _)| quoted(word)).collect();
    let allowed = list.join(" | ");
    let words = allowed.clone();
    let read = move |node: &Node| {
        let given = match &node.value {
            ConfigValue::Text(given) => given.as_str(),
            _ => "",
        };
        if let Some((_, value)) = T::WORDS.iter().find(|(word, _)| *word == given) {
            return Ok(*value);
        }
        let near = did_you_mean(given, T::WORDS.iter().map(|(word, _)| *word));
        let give = near.map_or("give".to_owned(), |near| format!("{near} Give"));
        let cure = format!("{give} one of {words}");
        Err(Mistake::of(node, "not one of the words", cure))
    };
    ValueKind::new(allowed, read, |value| string(value.word()))
}

/// A whole number.
pub fn integer<T>(range: RangeInclusive<T>) -> ValueKind<T>
where
    T: Copy + Display + TryFrom<i128> + PartialOrd + 'static,
{
    let allowed = format!("{} to {}", range.start(), range.end());
    let words = allowed.clone();
    let read = move |node: &Node| {
        let ConfigValue::Integer(number) = node.value else {
            let cure = format!("give a number, {words}, without quotes");
            return Err(Mistake::of(node, "not an integer", cure));
        };
        let fits = T::try_from(number).ok().filter(|it| range.contains(it));
        fits.ok_or_else(|| Mistake::of(node, "out of range", format!("give {words}")))
    };
    ValueKind::new(allowed, read, T::to_string)
}

/// A number that may have a fraction; `take` returns none for a number that is not `allowed`.
pub fn number<T: 'static>(
    allowed: &'static str,
    take: impl Fn(f64) -> Option<T> + 'static,
    give: impl Fn(&T) -> f64 + 'static,
) -> ValueKind<T> {
    let read = move |node: &Node| {
        let given = match &node.value {
            // Whole numbers beyond 2^53 are out of every range.
            ConfigValue::Integer(number) => Some(*number as f64),
            ConfigValue::Other(text) => text.replace('_', "").parse::<f64>().ok(),
            _ => None,
        };
        let Some(given) = given else {
            let cure = format!("give a number, {allowed}, without quotes");
            return Err(Mistake::of(node, "not a number", cure));
        };
        take(given).ok_or_else(|| Mistake::of(node, "out of range", format!("give {allowed}")))
    };
    ValueKind::new(allowed, read, move |value| give(value).to_string())
}

/// `true` or `false`.
pub fn flag() -> ValueKind<bool> {
    let read = |node: &Node| match node.value {
        ConfigValue::Boolean(flag) => Ok(flag),
        _ => {
            let cure = "give true or false, without quotes";
            Err(Mistake::of(node, "neither true nor false", cure))
        }
    };
    ValueKind::new("true or false", read, bool::to_string)
}

/// A text that `parse` understands; `example` is one.
pub fn text<T: Display + 'static>(
    allowed: impl Into<String>,
    example: &'static str,
    parse: impl Fn(&str) -> Result<T, Mistake> + 'static,
) -> ValueKind<T> {
    let read = move |node: &Node| {
        let Some(text) = node.text() else {
            let cure = format!("give a string in quotes, such as {}", quoted(example));
            return Err(Mistake::of(node, "not a string", cure));
        };
        parse(text)
    };
    ValueKind::new(allowed, read, |value| string(&value.to_string()))
}

/// A text that `take` understands; any other one "is not the path of a file", say.
pub fn parsed<T: Display + 'static>(
    allowed: &'static str,
    example: &'static str,
    take: impl Fn(&str) -> Option<T> + 'static,
    (is_not, cure): (&'static str, &'static str),
) -> ValueKind<T> {
    text(allowed, example, move |given| {
        let wrong = || Mistake::new(format!("{} {is_not}", quoted(given)), cure);
        take(given).ok_or_else(wrong)
    })
}

/// A text from 1 to `max` bytes, without control characters.
pub fn line(max: usize, example: &'static str) -> ValueKind<String> {
    let allowed = format!("1 to {max} bytes");
    text(allowed.clone(), example, move |given| {
        if given.is_empty() || given.len() > max || given.contains(char::is_control) {
            let cause = "it is empty, too long, or has a control character";
            let cure = format!("give {allowed}, such as {}", quoted(example));
            return Err(Mistake::new(cause, cure));
        }
        Ok(given.to_owned())
    })
}

/// A secret. No message quotes it. A line end behind it belongs to the file that it came from, such as that of a
/// Kubernetes Secret, and not to the secret.
pub fn secret(name: &'static str, max: usize) -> ValueKind<String> {
    let allowed = format!("1 to {max} bytes");
    let cure = format!("give {allowed} in quotes");
    let read = move |node: &Node| match node.text().map(without_line_end) {
        Some(text) if (1..=max).contains(&text.len()) => Ok(text.to_owned()),
        _ => {
            let cause = format!("the {name} is not a string, or is empty or too long");
            Err(Mistake::new(cause, cure.clone()))
        }
    };
    ValueKind::new(allowed, read, |secret: &String| string(secret))
}

fn without_line_end(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// Longest name: one is a label of metrics, and part of replies.   bytes
pub const NAME_MAX: usize = 64;

/// Whether a text is made of letters, digits and these other characters.
pub fn is_plain(text: &str, others: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.chars().all(plain)
}

/// A name: a label of metrics.
pub fn name<T: Display + for<'a> From<&'a str> + 'static>(example: &'static str) -> ValueKind<T> {
    let allowed = "1 to 64 letters, digits, _, - or .";
    text(allowed, example, |given| {
        check_name(given).map(|()| given.into())
    })
}

fn is_name(given: &str) -> bool {
    (1..=NAME_MAX).contains(&given.len()) && is_plain(given, "_-.")
}

/// Whether a text can be a name.
pub fn check_name(given: &str) -> Result<(), Mistake> {
    if is_name(given) {
        return Ok(());
    }
    let cause = format!("{} can't be a name", quoted(given));
    let cure = "give 1 to 64 letters, digits, \"_\", \"-\" or \".\", such as \"nova\"";
    Err(Mistake::new(cause, cure))
}

/// The name of a function: a label of metrics, and part of replies.
pub fn function_name(name: &str) -> Result<(), Mistake> {
    if name.is_empty() {
        let cure = "write the name of a function before its number, such as \"guest_list:10\"";
        return Err(Mistake::new("a function's name is empty", cure));
    }
    if name.len() > NAME_MAX || !is_plain(name, "_-./:") {
        let cause = format!("{} is not the name of a function", quoted(name));
        let cure = "give up to 64 letters, digits, \"_\", \"-\", \".\", \"/\" or \":\"";
        return Err(Mistake::new(cause, cure));
    }
    Ok(())
}

/// A kind of option that is the name of a function.
pub fn function<T: Display + for<'a> From<&'a str> + 'static>() -> ValueKind<T> {
    text("the name of a function", "guest_list", |given| {
        function_name(given).map(|()| given.into())
    })
}

/// The path of a file; `is_whole` if it must begin with a slash.
pub fn path(allowed: &'static str, example: &'static str, is_whole: bool) -> ValueKind<PathBuf> {
    let kind = text(allowed, example, move |given| {
        let is_part = is_whole && (!given.starts_with('/') || given.ends_with('/'));
        if given.is_empty() || given.contains('\0') || is_part {
            let cause = format!("{} is not {allowed}", quoted(given));
            let cure = format!("give {allowed}, such as {}", quoted(example));
            return Err(Mistake::new(cause, cure));
        }
        Ok(given.to_owned())
    });
    // What was read from a config is UTF-8.
    kind.map(PathBuf::from, |path| path.to_string_lossy().into_owned())
}

/// The path of a PEM file to read.
pub fn pem(example: &'static str) -> ValueKind<PathBuf> {
    let kind = path("the path of a PEM file", example, false);
    let ValueKind {
        allowed,
        read,
        show,
    } = kind;
    let read = move |node: &Node| {
        // The content may be a key, so nothing of it is quoted.
        if node.text().is_some_and(is_content_of_pem) {
            let cause = "the content of a PEM file stands here, not its path";
            let cure = format!("write it to a file, and give its path, such as {example:?}");
            return Err(Mistake::new(cause, cure).into());
        }
        read(node)
    };
    ValueKind {
        allowed,
        read: Box::new(read),
        show,
    }
}

/// Up to `max` values of one kind; `example` shows a list of them.
pub fn list<T: 'static>(max: usize, example: &'static str, one: ValueKind<T>) -> ValueKind<Vec<T>> {
    let (read, show) = (one.read, one.show);
    let read = move |node: &Node| {
        let ConfigValue::List(list) = &node.value else {
            let cure = format!("give a list, such as {example}");
            return Err(Mistake::of(node, "not an array", cure).into());
        };
        parts(max, list.iter().map(|item| ("", item)), |_, item| {
            read(item)
        })
    };
    let allowed = format!("a list of up to {max}: {}", one.allowed);
    ValueKind::of_parts(allowed, read, move |values: &Vec<T>| {
        let values: Vec<_> = values.iter().filter_map(&show).collect();
        format!("[{}]", values.join(", "))
    })
}

/// A kind of list without a value twice.
pub fn distinct<T: PartialEq + 'static>(kind: ValueKind<Vec<T>>) -> ValueKind<Vec<T>> {
    let read = kind.read;
    ValueKind {
        read: Box::new(move |node| {
            let values = read(node)?;
            let repeated = |at: &usize| values[..*at].contains(&values[*at]);
            if let (Some(at), ConfigValue::List(list)) =
                ((0..values.len()).find(repeated), &node.value)
            {
                let cause = format!("{} is given twice", list[at].in_words());
                let mistake = Mistake::new(cause, "leave one of the two out");
                return Err(mistake.in_part("", &list[at].place).into());
            }
            Ok(values)
        }),
        ..kind
    }
}

/// A table from names to values of one kind; `check` looks at each name.
pub fn table<T: 'static>(
    allowed: &'static str,
    max: usize,
    cure: &'static str,
    check: impl Fn(&str) -> Result<(), Mistake> + 'static,
    one: ValueKind<T>,
) -> ValueKind<Vec<(String, T)>> {
    let (read, show) = (one.read, one.show);
    let read = move |node: &Node| {
        let ConfigValue::Table(table) = &node.value else {
            return Err(Mistake::of(node, "not a table", cure).into());
        };
        let items = table.iter().map(|(name, item)| (name.as_str(), item));
        parts(max, items, |name, item| {
            check(name)?;
            Ok((name.to_owned(), read(item)?))
        })
    };
    ValueKind::of_parts(allowed, read, move |values: &Vec<(String, T)>| {
        let entry =
            |(name, value): &(String, T)| Some(format!("{} = {}", string(name), show(value)?));
        let entries: Vec<_> = values.iter().filter_map(entry).collect();
        format!("{{ {} }}", entries.join(", "))
    })
}

/// Every part of a value as `read` takes it, or every mistake. A part has a name, which may be
/// empty.
fn parts<'a, T>(
    max: usize,
    items: impl ExactSizeIterator<Item = (&'a str, &'a Node)>,
    read: impl Fn(&str, &Node) -> Result<T, Vec<Mistake>>,
) -> Result<Vec<T>, Vec<Mistake>> {
    if items.len() > max {
        let cause = format!("there are {} of them", items.len());
        return Err(Mistake::new(cause, format!("give at most {max}")).into());
    }
    all(items.map(|(name, item)| {
        let in_part = |mistake: Mistake| mistake.in_part(name, &item.place);
        read(name, item).map_err(|wrong| wrong.into_iter().map(in_part).collect())
    }))
}

/// Every value, or every mistake.
pub fn all<T>(
    results: impl Iterator<Item = Result<T, Vec<Mistake>>>,
) -> Result<Vec<T>, Vec<Mistake>> {
    let (mut values, mut mistakes) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(wrong) => mistakes.extend(wrong),
        }
    }
    if mistakes.is_empty() {
        Ok(values)
    } else {
        Err(mistakes)
    }
}

/// Defines types with one word for each of their values:
/// `words! { pub enum Format { Auto = "auto", Text = "text" } }`. A type that is defined elsewhere
/// gets its words by `words!(Format { "auto" => Auto, "text" => Text })`.
#[macro_export]
macro_rules! words {
    ($(
        $(#[$meta:meta])*
        $vis:vis enum $Type:ident { $($(#[$about:meta])* $value:ident = $word:literal,)* }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $Type { $($(#[$about])* $value,)* }

        $crate::options::words!($Type { $($word => $value),* });
    )+};
    ($Type:ty { $($word:literal => $value:ident),* $(,)? }) => {
        impl $crate::options::Words for $Type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),*];
        }
    };
}

pub use words;
