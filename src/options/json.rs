//! Reads single values of a JSON request. Each error completes a sentence that begins with the
//! name of the field.

use serde_json::Value;

use super::Words;

/// Describes a value that is not what was wanted.
pub(crate) fn wrong(wanted: &str, given: &Value) -> String {
    let kind = match given {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    format!("must be {wanted}, not {kind}")
}

pub(crate) fn text(given: &Value) -> Result<&str, String> {
    given.as_str().ok_or_else(|| wrong("a text", given))
}

pub(crate) fn number(given: &Value) -> Result<f64, String> {
    given.as_f64().ok_or_else(|| wrong("a number", given))
}

pub(crate) fn flag(given: &Value) -> Result<bool, String> {
    given.as_bool().ok_or_else(|| wrong("true or false", given))
}

/// A flag, or none for `null`.
pub(crate) fn flag_or_null(given: &Value) -> Result<Option<bool>, String> {
    (!given.is_null()).then(|| flag(given)).transpose()
}

/// Reads one word of a few.
pub(crate) fn choice<T: Words>(given: &Value) -> Result<T, String> {
    one_of(text(given)?)
}

/// The value of a word.
pub(crate) fn one_of<T: Words>(word: &str) -> Result<T, String> {
    let mut words = T::WORDS.iter();
    let found = words.find(|(known, _)| *known == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        format!("must be one of {}", words.join(", "))
    })
}
