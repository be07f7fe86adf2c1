//! Reads JSON and reports every mistake with its path.
//!
//! A derived `Deserialize` reports a column, but the author of a request looks for a field. So
//! the text is first read into a tree, which knows the path of everything that is invalid or
//! duplicate. The values are then taken out of the tree by name.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

use super::refused::ApiRefusal;
use crate::options::json;

/// The maximum number of values in one request. A tree of small ones takes many times the bytes
/// of its text.
const VALUES_MAX: usize = 32_768;
/// The part of a name that an answer repeats.   bytes
const SHOWN_MAX: usize = 64;
/// The name of the request as a whole.
const WHOLE: &str = "body";

/// A value and its path.
#[derive(Debug)]
pub(super) struct LocatedValue {
    path: String,
    tree: Json,
}

/// Reads a whole request.
pub(super) fn read(bytes: &[u8]) -> Result<LocatedValue, ApiRefusal> {
    let mut place = JsonPath::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = place.deserialize(&mut reader);
    match read.and_then(|tree| reader.end().map(|()| tree)) {
        Ok(tree) => Ok(LocatedValue {
            path: WHOLE.to_owned(),
            tree,
        }),
        Err(error) => Err(ApiRefusal::invalid(place.to_string(), error.to_string())),
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
struct JsonPath {
    steps: Vec<PathStep>,
    values: usize,
}

#[derive(Debug)]
enum PathStep {
    Key(String),
    Index(usize),
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str(WHOLE);
        }
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                PathStep::Key(key) if index == 0 => f.write_str(cut(key))?,
                PathStep::Key(key) => write!(f, ".{}", cut(key))?,
                PathStep::Index(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

/// Reads one value. A failure leaves the path at its place, for the report.
impl<'de> DeserializeSeed<'de> for &mut JsonPath {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut JsonPath {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(flag.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        loop {
            self.count()?;
            self.steps.push(PathStep::Index(values.len()));
            let value = list.next_element_seed(&mut *self)?;
            self.steps.pop();
            let Some(value) = value else {
                return Ok(Json::Array(values));
            };
            values.push(value);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            self.count()?;
            self.steps.push(PathStep::Key(key.clone()));
            if fields.contains_key(&key) {
                return Err(A::Error::custom("is there twice"));
            }
            let value = object.next_value_seed(&mut *self)?;
            self.steps.pop();
            fields.insert(key, value);
        }
        Ok(Json::Object(fields))
    }
}

impl JsonPath {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(E::custom(format!("more than {VALUES_MAX} values")));
        }
        Ok(())
    }
}

impl LocatedValue {
    fn invalid(&self, reason: impl Into<String>) -> ApiRefusal {
        ApiRefusal::invalid(&*self.path, reason)
    }

    /// The path of the value: `match[0].ip`.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn is_object(&self) -> bool {
        self.tree.is_object()
    }

    /// Applies `read` to the value.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Json) -> Result<T, String>,
    ) -> Result<T, ApiRefusal> {
        read(&self.tree).map_err(|reason| self.invalid(reason))
    }

    /// Applies `read` to a text.
    pub(super) fn text<T, E: fmt::Display>(
        &self,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, ApiRefusal> {
        self.read(|tree| read(json::text(tree)?).map_err(|error| error.to_string()))
    }

    /// Applies `read` to a number.
    pub(super) fn number<T, E: fmt::Display>(
        &self,
        read: impl FnOnce(f64) -> Result<T, E>,
    ) -> Result<T, ApiRefusal> {
        self.read(|tree| read(json::number(tree)?).map_err(|error| error.to_string()))
    }

    /// Applies `read` to the value, unless it is null.
    pub(super) fn or_null<T>(
        self,
        read: impl FnOnce(Self) -> Result<T, ApiRefusal>,
    ) -> Result<Option<T>, ApiRefusal> {
        match self.tree {
            Json::Null => Ok(None),
            _ => read(self).map(Some),
        }
    }

    /// The values of a list, at most this number, as `read` reads each.
    pub(super) fn list<T>(
        self,
        max: usize,
        read: impl Fn(Self) -> Result<T, ApiRefusal>,
    ) -> Result<Vec<T>, ApiRefusal> {
        let Json::Array(list) = self.tree else {
            return Err(self.invalid(json::wrong("a list", &self.tree)));
        };
        let path = self.path;
        if list.len() > max {
            let cause = format!("has {} values, at most {max} are taken", list.len());
            return Err(ApiRefusal::invalid(path, cause));
        }
        let values = list.into_iter().enumerate().map(|(index, tree)| {
            let path = format!("{path}[{index}]");
            read(Self { path, tree })
        });
        values.collect()
    }

    /// The fields of an object; only these are allowed.
    pub(super) fn object(self, known: &[&str]) -> Result<ObjectFields, ApiRefusal> {
        let path = match &*self.path {
            WHOLE => String::new(),
            path => format!("{path}."),
        };
        let fields = self.entries()?;
        match fields.iter().find(|(key, _)| !known.contains(&&**key)) {
            None => Ok(ObjectFields { path, fields }),
            Some((_, value)) => Err(value.invalid(unknown(known))),
        }
    }

    /// The fields of an object, with any names.
    pub(super) fn entries(self) -> Result<Vec<(String, Self)>, ApiRefusal> {
        let Json::Object(fields) = self.tree else {
            return Err(self.invalid(json::wrong("an object", &self.tree)));
        };
        let fields = fields.into_iter().map(|(key, tree)| {
            let path = match &*self.path {
                WHOLE => cut(&key).to_owned(),
                path => format!("{path}.{}", cut(&key)),
            };
            (key, Self { path, tree })
        });
        Ok(fields.collect())
    }
}

fn unknown(known: &[&str]) -> String {
    format!("is unknown; known are {}", known.join(", "))
}

/// The fields of an object that were not taken yet.
#[derive(Debug)]
pub(super) struct ObjectFields {
    /// The prefix of their names in their paths.
    path: String,
    fields: Vec<(String, LocatedValue)>,
}

impl ObjectFields {
    /// The parameters of a query, each at most once and none but these.
    pub(super) fn of_query(
        given: Vec<(String, String)>,
        known: &[&str],
    ) -> Result<Self, ApiRefusal> {
        let path = String::new();
        let mut found = Self {
            path,
            fields: Vec::new(),
        };
        for (name, text) in given {
            if !known.contains(&&*name) {
                return Err(ApiRefusal::invalid(cut(&name), unknown(known)));
            }
            if found.has(&name) {
                return Err(ApiRefusal::invalid(name, "is there twice"));
            }
            let (path, tree) = (name.clone(), text.into());
            found.fields.push((name, LocatedValue { path, tree }));
        }
        Ok(found)
    }

    fn take(&mut self, name: &str) -> Option<LocatedValue> {
        let index = self.fields.iter().position(|(key, _)| key == name)?;
        Some(self.fields.swap_remove(index).1)
    }

    /// Whether a field is still present.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(key, _)| key == name)
    }

    /// A field, if present.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(LocatedValue) -> Result<T, ApiRefusal>,
    ) -> Result<Option<T>, ApiRefusal> {
        self.take(name).map(read).transpose()
    }

    /// A required field.
    pub(super) fn need<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(LocatedValue) -> Result<T, ApiRefusal>,
    ) -> Result<T, ApiRefusal> {
        match self.take(name) {
            Some(value) => read(value),
            None => {
                let path = format!("{}{name}", self.path);
                Err(ApiRefusal::invalid(path, "must be given"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, field: &str, reason: &str) {
        match read(text.as_bytes()).expect_err("it is wrong") {
            ApiRefusal::Invalid {
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
    fn a_body_that_takes_too_much_memory_or_stack_is_refused() {
        check(&"[".repeat(1_000), &"[0]".repeat(127), "recursion");
        let many = format!("[{}0]", "0,".repeat(VALUES_MAX));
        check(&many, "body", "more than 32768 values");
    }

    #[test]
    fn values_are_taken_by_name_and_kind() {
        let value = read(br#"{"a": 1.5, "b": ["x"], "c": {"d": true}}"#).expect("JSON");
        let mut fields = value.object(&["a", "b", "c"]).expect("an object");
        let number = |it: LocatedValue| it.number(Ok::<_, String>);
        assert_eq!(fields.optional("a", number).expect("a number"), Some(1.5));
        let text = |it: LocatedValue| {
            assert_eq!(it.path(), "b[0]");
            it.text(|text| Ok::<_, String>(text.to_owned()))
        };
        let b = fields.need("b", |it| it.list(1, text));
        assert_eq!(b.expect("a list"), ["x"]);
        let flag = |it: LocatedValue| {
            assert_eq!(it.path(), "c.d");
            it.read(json::flag)
        };
        let c = fields.need("c", |it| it.object(&["d"])?.need("d", flag));
        assert!(c.expect("a flag"));
        assert_eq!(fields.optional("a", number).expect("it is taken"), None);
        let missing = fields.need("a", number).expect_err("it is taken");
        assert_eq!(missing, ApiRefusal::invalid("a", "must be given"));
    }
}
