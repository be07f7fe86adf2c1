//! Places in a message of JSON, and the set of those that a reader looks for.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Most steps of a pointer or path.
pub const STEPS_MAX: usize = 8;
/// Most pointers or paths of a set.
pub const POINTERS_MAX: usize = 8;

/// A place in a message of JSON, in the form of RFC 6901: `/method`, `/params/name`, `/params/0`.
///
/// A step that is a number is the index of an element in an array, and a key in an object. The empty
/// text is the whole message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JsonPointer {
    text: Box<str>,
    /// Without escapes.
    steps: Box<[Box<str>]>,
}

/// Why a text is not a pointer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PointerError {
    /// A text that does not begin with a slash.
    #[error("a JSON pointer begins with a slash, such as /params/name, not \"{given}\"")]
    NoSlash {
        /// The whole text.
        given: Box<str>,
    },
    /// A tilde that is not part of an escape.
    #[error("\"{given}\" has a ~ without 0 or 1 behind it; write ~0 for ~ and ~1 for /")]
    BadEscape {
        /// The whole text.
        given: Box<str>,
    },
    /// A pointer that leads too deep.
    #[error("\"{given}\" has {steps} steps, and at most {STEPS_MAX} are possible")]
    TooManySteps {
        /// The whole text.
        given: Box<str>,
        /// How many it has.
        steps: usize,
    },
}

/// Why pointers or paths cannot be looked for together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PointersError {
    /// More than a reader keeps apart.
    #[error("{given} places are wanted, and at most {POINTERS_MAX} are possible")]
    TooMany {
        /// How many there are.
        given: usize,
    },
    /// Two steps of the same object that Go and other parsers take for one another.
    #[error(
        "\"{one}\" and \"{other}\" differ only by case, so no message with one of them is readable"
    )]
    DifferOnlyByCase {
        /// A step.
        one: Box<str>,
        /// Another step at the same place.
        other: Box<str>,
    },
    /// Two paths of XML of which one leads through the text of the other.
    #[error("\"{one}\" and \"{other}\" cannot both be wanted: one leads through the other")]
    OneInsideAnother {
        /// A path.
        one: Box<str>,
        /// Another path.
        other: Box<str>,
    },
}

impl JsonPointer {
    /// The pointer as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for JsonPointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        let given = || Box::from(text);
        let steps: Box<[Box<str>]> = match text.strip_prefix('/') {
            Some(rest) => rest.split('/').map(unescaped).collect::<Option<_>>(),
            None if text.is_empty() => Some(Box::default()),
            None => return Err(PointerError::NoSlash { given: given() }),
        }
        .ok_or_else(|| PointerError::BadEscape { given: given() })?;
        if steps.len() > STEPS_MAX {
            return Err(PointerError::TooManySteps {
                given: given(),
                steps: steps.len(),
            });
        }
        Ok(Self {
            text: text.into(),
            steps,
        })
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.text)
    }
}

/// A step without its escapes, if they are valid.
fn unescaped(step: &str) -> Option<Box<str>> {
    let mut parts = step.split('~');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (escape, rest) = part.split_at_checked(1)?;
        text.push(match escape {
            "0" => '~',
            "1" => '/',
            _ => return None,
        });
        text.push_str(rest);
    }
    Some(text.into())
}

/// At most [`POINTERS_MAX`] pointers that a reader looks for in one pass.
///
/// The pointers form a tree, so that each key of a message is compared only with the steps that
/// could come next. A message has each place of the tree at most once, because a key on the way that occurs
/// twice makes it unreadable.
#[derive(Clone, Debug)]
pub struct JsonPointers {
    /// The root is the first.
    pub(crate) nodes: Vec<PointerNode>,
    pub(crate) count: usize,
}

/// A place to which at least one pointer leads.
#[derive(Clone, Debug, Default)]
pub(crate) struct PointerNode {
    /// The pointers that end here, a bit for each.
    pub(crate) ending: u8,
    pub(crate) edges: Vec<PointerEdge>,
}

/// A step from one place to the next.
#[derive(Clone, Debug)]
pub(crate) struct PointerEdge {
    pub(crate) key: Box<str>,
    pub(crate) folded: Box<str>,
    /// The element, if the value is an array.
    pub(crate) index: Option<usize>,
    /// The place that it leads to, as an index of the nodes.
    pub(crate) to: usize,
}

impl JsonPointers {
    /// Takes pointers in the order in which their values are handed out.
    ///
    /// # Errors
    /// `PointersError`, if there are too many, or two of them lead to keys that parsers confuse.
    pub fn new(pointers: impl IntoIterator<Item = JsonPointer>) -> Result<Self, PointersError> {
        let pointers: Vec<_> = pointers.into_iter().collect();
        let count = pointers.len();
        if count > POINTERS_MAX {
            return Err(PointersError::TooMany { given: count });
        }
        let mut nodes = vec![PointerNode::default()];
        for (number, pointer) in pointers.iter().enumerate() {
            let mut at = 0;
            for step in &pointer.steps {
                at = take_step(&mut nodes, at, step)?;
            }
            nodes[at].ending |= 1 << number;
        }
        Ok(Self { nodes, count })
    }
}

/// Follows a step of the tree, or adds it.
fn take_step(
    nodes: &mut Vec<PointerNode>,
    from: usize,
    step: &str,
) -> Result<usize, PointersError> {
    let folded: Box<str> = folded(step).collect();
    let to = nodes.len();
    let edges = &mut nodes[from].edges;
    if let Some(edge) = edges.iter().find(|edge| edge.folded == folded) {
        if *edge.key == *step {
            return Ok(edge.to);
        }
        return Err(PointersError::DifferOnlyByCase {
            one: edge.key.clone(),
            other: step.into(),
        });
    }
    edges.push(PointerEdge {
        key: step.into(),
        folded,
        index: index(step),
        to,
    });
    nodes.push(PointerNode::default());
    Ok(to)
}

/// The index that a step is in an array: digits without a leading zero.
fn index(step: &str) -> Option<usize> {
    let is_index = step == "0" || !step.starts_with('0');
    let digits = step.bytes().all(|byte| byte.is_ascii_digit());
    (is_index && digits).then(|| step.parse().ok()).flatten()
}

/// A text with case removed, so that any two texts that some parser takes for one another become
/// equal.
///
/// Go folds each character alone, Java compares by upper and by lower case. All of their pairs are
/// pairs here: U+017F is `s`, U+212A is `k`, U+0130 and U+0131 are `i`.
pub(crate) fn folded(text: &str) -> impl Iterator<Item = char> {
    text.chars().flat_map(|character| {
        let character = match character {
            '\u{130}' => 'i',
            other => other,
        };
        let upper = character.to_lowercase().flat_map(char::to_uppercase);
        upper.flat_map(char::to_lowercase)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, steps: &[&str]) {
        let pointer: JsonPointer = text.parse().expect("a pointer");
        let read: Vec<_> = pointer.steps.iter().map(|step| &**step).collect();
        assert_eq!(read, steps);
        assert_eq!(pointer.to_string(), text);
    }

    #[test]
    fn a_pointer_is_read_as_rfc_6901_has_it() {
        check("", &[]);
        check("/", &[""]);
        check("/method", &["method"]);
        check("/params/0/a b", &["params", "0", "a b"]);
        check("/a~1b~0c~01/é", &["a/b~c~1", "é"]);
    }

    #[test]
    fn a_text_that_is_no_pointer_says_what_is_wrong() {
        let check = |text: &str, sentence: &str| {
            let error = text.parse::<JsonPointer>().expect_err(text);
            assert_eq!(error.to_string(), sentence);
        };
        check(
            "method",
            "a JSON pointer begins with a slash, such as /params/name, not \"method\"",
        );
        let tilde = " has a ~ without 0 or 1 behind it; write ~0 for ~ and ~1 for /";
        check("/a~2", &format!("\"/a~2\"{tilde}"));
        check("/a~", &format!("\"/a~\"{tilde}"));
        check("/a~é", &format!("\"/a~é\"{tilde}"));
        check(
            "/1/2/3/4/5/6/7/8/9",
            "\"/1/2/3/4/5/6/7/8/9\" has 9 steps, and at most 8 are possible",
        );
    }

    #[test]
    fn only_digits_without_a_leading_zero_are_an_index() {
        for (step, expected) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("01", None),
            ("-", None),
            ("", None),
            ("+1", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(index(step), expected, "{step}");
        }
    }

    #[test]
    fn characters_that_a_parser_takes_for_one_another_fold_to_the_same() {
        for (one, other) in [
            ("method", "METHOD"),
            ("params", "param\u{17f}"),
            ("kind", "\u{212a}ind"),
            ("id", "\u{130}d"),
            ("id", "\u{131}d"),
            ("straße", "stra\u{1e9e}e"),
            ("å", "\u{212b}"),
            ("ς", "σ"),
        ] {
            assert!(folded(one).eq(folded(other)), "{one} {other}");
        }
        assert!(!folded("name").eq(folded("nome")));
    }

    #[test]
    fn pointers_that_no_message_can_satisfy_are_refused() {
        let set = |texts: &[&str]| {
            JsonPointers::new(texts.iter().map(|text| text.parse().expect("a pointer")))
        };
        let error = set(&["/a/b", "/A/c"]).expect_err("they differ only by case");
        assert_eq!(
            error.to_string(),
            "\"a\" and \"A\" differ only by case, so no message with one of them is readable"
        );
        assert!(set(&["/a/b", "/a", "/a/b", "/b/A", ""]).is_ok());
        let error = set(&["/a"; 9]).expect_err("nine");
        let sentence = "9 places are wanted, and at most 8 are possible";
        assert_eq!(error.to_string(), sentence);
    }
}
