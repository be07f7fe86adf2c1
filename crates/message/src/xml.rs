//! Finds the texts at a set of paths in a body of XML-RPC, in one pass.
//!
//! Only what a message needs is read: UTF-8, elements, attributes, text, comments, the five entities
//! and numeric references. A path names the elements below the root, whose name does not matter.
//!
//! Python's server takes `methodName` and values wherever they are, whatever their prefix, and counts
//! values without looking at `value` and `param`. So the elements that a path names must be where the
//! path has them, once, and with one value each, in its siblings too. If a path ends with `value`, no
//! element may be outside of the values but those of the path, the root and `methodName`.

mod reader;
mod text;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::json::{charset, check_mark};
use crate::pointer::{POINTERS_MAX, PointersError, STEPS_MAX, folded};
use crate::unreadable::Unreadable;
use crate::xml::reader::XmlReader;

/// A place in a message of XML: names of elements below the root, such as `methodName` or
/// `params/param/0/value`.
///
/// A number picks one of the elements with the name before it, from 0. Without a number there may be
/// only one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct XmlPath {
    text: Box<str>,
    pub(crate) steps: Box<[XmlStep]>,
}

/// An element on the way to a wanted one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct XmlStep {
    pub(crate) name: Box<str>,
    /// The name without its prefix and without case.
    folded: Box<str>,
    pub(crate) index: Option<usize>,
}

/// Why a text is not a path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum XmlPathError {
    /// A text with an empty step, or a number where a name belongs.
    #[error(
        "\"{given}\" is not a path; write names of elements below the root, such as params/param/0/value"
    )]
    NotAPath {
        /// The whole text.
        given: Box<str>,
    },
    /// A path that leads too deep.
    #[error("\"{given}\" names {names} elements, and at most {STEPS_MAX} are possible")]
    TooManySteps {
        /// The whole text.
        given: Box<str>,
        /// How many elements it names.
        names: usize,
    },
}

impl XmlPath {
    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the path ends with a value of XML-RPC.
    pub(crate) fn leads_to_value(&self) -> bool {
        self.steps.last().is_some_and(|step| &*step.name == "value")
    }
}

impl FromStr for XmlPath {
    type Err = XmlPathError;

    fn from_str(text: &str) -> Result<Self, XmlPathError> {
        let given = || Box::from(text);
        let mut steps: Vec<XmlStep> = Vec::new();
        for part in text.split('/') {
            if part.bytes().all(|byte| byte.is_ascii_digit()) {
                let index = part.parse().ok();
                let step = steps.last_mut().filter(|step| step.index.is_none());
                match (index, step) {
                    (Some(index), Some(step)) => step.index = Some(index),
                    _ => return Err(XmlPathError::NotAPath { given: given() }),
                }
            } else if reader::name(part) == Some(part) {
                steps.push(XmlStep {
                    name: part.into(),
                    folded: folded(without_prefix(part)).collect(),
                    index: None,
                });
            } else {
                return Err(XmlPathError::NotAPath { given: given() });
            }
        }
        match steps.len() {
            ..=STEPS_MAX => Ok(Self {
                text: text.into(),
                steps: steps.into(),
            }),
            names => Err(XmlPathError::TooManySteps {
                given: given(),
                names,
            }),
        }
    }
}

impl fmt::Display for XmlPath {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.text)
    }
}

impl XmlStep {
    /// Whether some parser takes an element's name for the one of this step. Needs the name without
    /// its prefix.
    pub(crate) fn is_like(&self, name: &str) -> bool {
        match name.is_ascii() {
            true => name.eq_ignore_ascii_case(&self.folded),
            false => folded(name).eq(self.folded.chars()),
        }
    }
}

pub(crate) fn without_prefix(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, name)| name)
}

/// At most [`POINTERS_MAX`] paths that a reader looks for in one pass.
#[derive(Clone, Debug)]
pub struct XmlPaths(pub(crate) Box<[XmlPath]>);

impl XmlPaths {
    /// Takes paths in the order in which their texts are handed out.
    ///
    /// # Errors
    /// `PointersError`, if there are too many, if two of them have elements that parsers confuse, or
    /// if one leads through the text of another.
    pub fn new(paths: impl IntoIterator<Item = XmlPath>) -> Result<Self, PointersError> {
        let paths: Box<[XmlPath]> = paths.into_iter().collect();
        if paths.len() > POINTERS_MAX {
            return Err(PointersError::TooMany { given: paths.len() });
        }
        for (number, one) in paths.iter().enumerate() {
            for other in &paths[..number] {
                check_pair(one, other)?;
            }
        }
        Ok(Self(paths))
    }

    /// Finds the text at each path of a message.
    ///
    /// # Errors
    /// `Unreadable`, if the body is not valid XML, or if servers could find other texts.
    pub fn find<'b>(&self, body: &'b [u8]) -> Result<FoundTexts<'b>, Unreadable> {
        check_mark(body)?;
        let text = str::from_utf8(body).map_err(|_| charset(body, Unreadable::NotUtf8))?;
        let read = XmlReader::new(self, text).read();
        read.map_err(|unreadable| charset(body, unreadable))
    }
}

/// Checks that no message is unreadable only because two paths are wanted.
fn check_pair(one: &XmlPath, other: &XmlPath) -> Result<(), PointersError> {
    for (left, right) in one.steps.iter().zip(&other.steps) {
        if left.name != right.name {
            return match left.folded == right.folded {
                true => Err(PointersError::DifferOnlyByCase {
                    one: left.name.clone(),
                    other: right.name.clone(),
                }),
                false => Ok(()),
            };
        }
    }
    match one.steps.len() == other.steps.len() {
        true => Ok(()),
        false => Err(PointersError::OneInsideAnother {
            one: one.text.clone(),
            other: other.text.clone(),
        }),
    }
}

/// A wanted element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XmlText<'a> {
    /// The text of the element. For a `value` with one simple type in it, the text of that.
    Text(Cow<'a, str>),
    /// A `value` that is a `struct`, an `array` or `nil`.
    Nested,
}

impl XmlText<'_> {
    /// The text, if the value has one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Nested => None,
        }
    }
}

/// The text at each path of a set, in the order of the paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTexts<'a> {
    texts: [Option<XmlText<'a>>; POINTERS_MAX],
    count: usize,
}

impl<'a> FoundTexts<'a> {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            texts: [const { None }; POINTERS_MAX],
            count,
        }
    }

    pub(crate) fn set(&mut self, path: usize, text: XmlText<'a>) {
        self.texts[path] = Some(text);
    }

    /// The text of the path with this number, from 0, if the message has one.
    ///
    /// # Panics
    /// If the set has no path with this number.
    #[must_use]
    pub fn get(&self, path: usize) -> Option<&XmlText<'a>> {
        self.texts[..self.count][path].as_ref()
    }

    /// The text of each path.
    pub fn iter(&self) -> impl Iterator<Item = Option<&XmlText<'a>>> {
        self.texts[..self.count].iter().map(Option::as_ref)
    }
}
