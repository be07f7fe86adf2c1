//! Reads JSON and reports every mistake with its path.
//!
//! A derived `Deserialize` reports a column, but the author of a request looks for a field. So
//! the text is first read into a tree, which knows the path of everything that is invalid or
//! duplicate. The values are then taken out of the tree by name.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::Refused;

/// The maximum number of values in one request. A tree of small ones takes many times the bytes
/// of its text.
const VALUES_MAX: usize = 32_768;
/// The part of a name that an answer repeats.   bytes
const SHOWN_MAX: usize = 64;
/// The name of the request as a whole.
const WHOLE: &str = "body";

#[derive(Debug)]
enum Tree {
    Null,
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// A value and its path.
#[derive(Debug)]
pub(super) struct Value {
    path: String,
    tree: Tree,
}

/// Reads a whole request.
pub(super) fn read(bytes: &[u8]) -> Result<Value, Refused> {
    let mut place = Place::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Seed { place: &mut place };
    let read = seed.deserialize(&mut reader);
    match read.and_then(|tree| reader.end().map(|()| tree)) {
        Ok(tree) => Ok(Value {
            path: WHOLE.to_owned(),
            tree,
        }),
        Err(error) => Err(Refused::invalid(place.to_string(), error.to_string())),
    }
}

/// The part of a text that an answer repeats.
pub(super) fn cut(text: &str) -> &str {
    let mut end = text.len().min(SHOWN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The reader's path.
#[derive(Debug, Default)]
struct Place {
    steps: Vec<Step>,
    values: usize,
}

#[derive(Debug)]
enum Step {
    Key(String),
    Index(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str(WHOLE);
        }
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Key(key) if index == 0 => f.write_str(cut(key))?,
                Step::Key(key) => write!(f, ".{}", cut(key))?,
                Step::Index(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

/// Reads one value. A failure leaves the path at its place, for the report.
struct Seed<'a> {
    place: &'a mut Place,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree::Flag(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(Tree::Number(number as f64))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
        Ok(Tree::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
        Ok(Tree::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut values = Vec::new();
        loop {
            self.place.count()?;
            self.place.steps.push(Step::Index(values.len()));
            let seed = Seed { place: self.place };
            let Some(value) = list.next_element_seed(seed)? else {
                self.place.steps.pop();
                return Ok(Tree::List(values));
            };
            self.place.steps.pop();
            values.push(value);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Tree, A::Error> {
        let mut fields: Vec<(String, Tree)> = Vec::new();
        let mut keys = std::collections::HashSet::new();
        while let Some(key) = object.next_key::<String>()? {
            self.place.count()?;
            let is_new = keys.insert(key.clone());
            self.place.steps.push(Step::Key(key.clone()));
            if !is_new {
                return Err(A::Error::custom("is there twice"));
            }
            let value = object.next_value_seed(Seed { place: self.place })?;
            self.place.steps.pop();
            fields.push((key, value));
        }
        Ok(Tree::Object(fields))
    }
}

impl Place {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(E::custom(format!("more than {VALUES_MAX} values")));
        }
        Ok(())
    }
}

impl Value {
    fn wrong(&self, wanted: &str) -> Refused {
        Refused::invalid(
            &*self.path,
            format!("must be {wanted}, not {}", self.tree.kind()),
        )
    }

    /// Its path: `match[0].ip`.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn is_object(&self) -> bool {
        matches!(self.tree, Tree::Object(_))
    }

    pub(super) fn text(self) -> Result<String, Refused> {
        match self.tree {
            Tree::Text(text) => Ok(text),
            _ => Err(self.wrong("a text")),
        }
    }

    pub(super) fn number(self) -> Result<f64, Refused> {
        match self.tree {
            Tree::Number(number) => Ok(number),
            _ => Err(self.wrong("a number")),
        }
    }

    pub(super) fn flag(self) -> Result<bool, Refused> {
        match self.tree {
            Tree::Flag(flag) => Ok(flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    /// What `read` reads, or null.
    pub(super) fn or_null<T>(
        self,
        read: impl FnOnce(Self) -> Result<T, Refused>,
    ) -> Result<Option<T>, Refused> {
        match self.tree {
            Tree::Null => Ok(None),
            _ => read(self).map(Some),
        }
    }

    /// The values of a list, at most this number.
    pub(super) fn list(self, max: usize) -> Result<Vec<Self>, Refused> {
        let Tree::List(list) = self.tree else {
            return Err(self.wrong("a list"));
        };
        if list.len() > max {
            let told = format!("has {} values, at most {max} are taken", list.len());
            return Err(Refused::invalid(self.path, told));
        }
        let path = self.path;
        let values = list.into_iter().enumerate().map(|(index, tree)| Self {
            path: format!("{path}[{index}]"),
            tree,
        });
        Ok(values.collect())
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(self, words: &[(&str, T)]) -> Result<T, Refused> {
        let path = self.path.clone();
        let given = self.text()?;
        let found = words.iter().find(|(word, _)| *word == given);
        found.map(|(_, meant)| *meant).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            Refused::invalid(path, format!("must be one of {}", words.join(", ")))
        })
    }

    /// The fields of an object; only these are allowed.
    pub(super) fn fields(self, known: &[&str]) -> Result<Fields, Refused> {
        let fields = self.entries()?;
        match fields.iter().find(|(key, _)| !known.contains(&&**key)) {
            None => Ok(Fields(fields)),
            Some((_, value)) => Err(Refused::invalid(
                value.path(),
                format!("is unknown; known are {}", known.join(", ")),
            )),
        }
    }

    /// The fields of an object, with any names.
    pub(super) fn entries(self) -> Result<Vec<(String, Self)>, Refused> {
        let Tree::Object(fields) = self.tree else {
            return Err(self.wrong("an object"));
        };
        let path_of = |key: &str| {
            if self.path == WHOLE {
                cut(key).to_owned()
            } else {
                format!("{}.{}", self.path, cut(key))
            }
        };
        let fields = fields.into_iter().map(|(key, tree)| {
            let path = path_of(&key);
            (key, Self { path, tree })
        });
        Ok(fields.collect())
    }
}

/// The fields of an object that were not taken yet.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, Value)>);

impl Fields {
    /// A field, if present.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Whether a field is still present.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// A required field.
    pub(super) fn need(&mut self, name: &str) -> Result<Value, Refused> {
        self.take(name)
            .ok_or_else(|| Refused::invalid(name, "must be given"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, field: &str, reason: &str) {
        match read(text.as_bytes()).expect_err("it is wrong") {
            Refused::Invalid {
                field: at,
                reason: why,
            } => {
                assert_eq!(at, field, "{text}");
                assert!(why.contains(reason), "{why:?} for {text}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn invalid_json_is_reported_with_its_field() {
        check("", "body", "EOF");
        check("{", "body", "EOF");
        check("nothing", "body", "expected");
        check(r#"{"fill": NaN}"#, "fill", "expected value");
        check(r#"{"fill": Infinity}"#, "fill", "expected value");
        check(r#"{"fill": -Infinity}"#, "fill", "invalid number");
        check(r#"{"fill": 1e999}"#, "fill", "out of range");
        check(r#"{"match": [{"ip": 1,}]}"#, "match[0]", "trailing comma");
        check(r#"{"match": [{"ip": tru}]}"#, "match[0].ip", "expected");
        check(r#"{} {}"#, "body", "trailing characters");
        check("{\"label\": \"\u{1}\"}", "label", "control character");
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        check(r#"{"fill": 1, "fill": 2}"#, "fill", "twice");
        check(r#"{"a": {"b": 1, "b": 1}}"#, "a.b", "twice");
    }

    #[test]
    fn what_would_take_much_memory_or_stack_is_refused() {
        check(&"[".repeat(1_000), &"[0]".repeat(127), "recursion");
        let many = format!("[{}0]", "0,".repeat(VALUES_MAX));
        check(&many, "body", "more than 32768 values");
    }

    #[test]
    fn values_are_taken_by_name_and_kind() {
        let value = read(br#"{"a": 1.5, "b": ["x"], "c": {"d": true}}"#).expect("JSON");
        let mut fields = value.fields(&["a", "b", "c"]).expect("an object");
        let a = fields.take("a").expect("it is there");
        assert_eq!(a.number().expect("a number"), 1.5);
        let b = fields.need("b").expect("it is there").list(1);
        let b = b.expect("a list").pop().expect("one");
        assert_eq!(b.path(), "b[0]");
        assert_eq!(b.text().expect("a text"), "x");
        let c = fields.take("c").expect("it is there").fields(&["d"]);
        let d = c.expect("an object").take("d").expect("it is there");
        assert_eq!(d.path(), "c.d");
        assert!(d.flag().expect("a flag"));
        assert!(fields.take("a").is_none());
    }
}
