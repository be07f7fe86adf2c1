//! A second reader of messages, built on serde_json. The fuzz target `message` has it, too.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tidegate_message::{FoundValues, JsonPointers, JsonValue};

/// A key as bytes, because half a surrogate pair fits in no text.
struct RawKey(Vec<u8>);

struct RawKeyVisitor;

impl Visitor<'_> for RawKeyVisitor {
    type Value = RawKey;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a string")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<RawKey, E> {
        Ok(RawKey(bytes.to_vec()))
    }

    fn visit_str<E>(self, text: &str) -> Result<RawKey, E> {
        Ok(RawKey(text.as_bytes().to_vec()))
    }
}

impl<'de> Deserialize<'de> for RawKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(RawKeyVisitor)
    }
}

/// The members of an object in their order, with all that occur twice.
struct Members<'a>(Vec<(RawKey, &'a RawValue)>);

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MembersVisitor)
    }
}

/// The rest of a pointer: its number, and the steps that are still to go.
type Remainder<'p> = (usize, &'p [String]);

/// Pointers that are looked for with both readers.
pub(crate) struct BothReaders {
    pub(crate) own: JsonPointers,
    pointers: Vec<Vec<String>>,
}

impl BothReaders {
    pub(crate) fn new(texts: &[&str]) -> Self {
        let parsed = texts.iter().map(|text| text.parse().expect("a pointer"));
        let steps = texts.iter().map(|text| {
            let steps = text.split('/').skip(1);
            let step = |step: &str| step.replace("~1", "/").replace("~0", "~");
            steps.map(step).collect()
        });
        Self {
            own: JsonPointers::new(parsed).expect("a set"),
            pointers: steps.collect(),
        }
    }

    /// Compares the readers. Returns whether the body is readable, or why they disagree.
    pub(crate) fn compare(&self, body: &[u8]) -> Result<bool, String> {
        let own = self.own.find(body);
        let found = self.find(body);
        compare_values(own.as_ref().ok(), found.as_deref())
            .map_err(|reason| format!("{reason}: {own:?}"))?;
        let mut each = Vec::new();
        let own = self.own.find_each(body, 3, |values| each.push(values));
        let found = self.find_each(body);
        if own.ok() != found.as_ref().map(Vec::len) {
            return Err(format!("batch: {own:?}"));
        }
        for (own, found) in each.iter().zip(found.iter().flatten()) {
            compare_values(Some(own), Some(found))?;
        }
        Ok(self.own.find(body).is_ok())
    }

    /// The value of each pointer, or `None` if the body is unreadable by the rules.
    fn find<'b>(&self, body: &'b [u8]) -> Option<Vec<Option<&'b RawValue>>> {
        self.find_in(checked(body)?)
    }

    fn find_each<'b>(&self, body: &'b [u8]) -> Option<Vec<Vec<Option<&'b RawValue>>>> {
        let elements: Vec<&RawValue> = serde_json::from_str(checked(body)?.get()).ok()?;
        let are_objects = elements.iter().all(|it| it.get().starts_with('{'));
        let fits = matches!(elements.len(), 1..=3) && are_objects;
        let each = elements.into_iter().map(|element| self.find_in(element));
        fits.then(|| each.collect())?
    }

    fn find_in<'b>(&self, value: &'b RawValue) -> Option<Vec<Option<&'b RawValue>>> {
        let mut found = vec![None; self.pointers.len()];
        let remainders = self.pointers.iter().map(|steps| &**steps).enumerate();
        walk(value, &remainders.collect::<Vec<_>>(), &mut found)?;
        Some(found)
    }
}

fn compare_values(
    own: Option<&FoundValues<'_>>,
    found: Option<&[Option<&RawValue>]>,
) -> Result<(), String> {
    match (own, found) {
        (Some(own), Some(found)) => {
            let same = own
                .iter()
                .zip(found)
                .all(|(own, found)| match (own, found) {
                    (Some(own), Some(found)) => is_same(own, found),
                    (None, None) => true,
                    _ => false,
                });
            same.then_some(()).ok_or("other values".to_owned())
        }
        (None, None) => Ok(()),
        (Some(_), None) => Err("readable, but serde_json or a rule refuses it".to_owned()),
        (None, Some(_)) => Err("unreadable, but no rule refuses it".to_owned()),
    }
}

fn is_same(own: &JsonValue<'_>, found: &RawValue) -> bool {
    let raw = found.get();
    match own {
        JsonValue::Null => raw == "null",
        JsonValue::Bool(value) => raw == value.to_string(),
        JsonValue::Number(number) => {
            let whole: Option<u64> = raw.parse().ok();
            let is_number = raw.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            let agrees = whole.is_none_or(|it| it >= 1 << 63 || number.as_u64() == Some(it));
            is_number && agrees && number.as_str() == raw
        }
        JsonValue::String(text) => serde_json::from_str(raw).is_ok_and(|it: String| it == **text),
        JsonValue::Array => raw.starts_with('['),
        JsonValue::Object => raw.starts_with('{'),
    }
}

/// The value of a body that is valid JSON in UTF-8 and not too deep.
fn checked(body: &[u8]) -> Option<&RawValue> {
    let text = str::from_utf8(body).ok()?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    // Strings cannot have a bracket outside of quotes, and the text is valid.
    let (mut depth, mut in_string, mut escaped) = (0u32, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > 64 {
                    return None;
                }
            }
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
    }
    serde_json::from_str(text).ok()
}

fn walk<'b>(
    value: &'b RawValue,
    remainders: &[Remainder<'_>],
    found: &mut [Option<&'b RawValue>],
) -> Option<()> {
    let raw = value.get();
    for (number, steps) in remainders {
        if steps.is_empty() {
            if raw.starts_with('"') {
                wanted_text(raw)?;
            }
            found[*number] = Some(value);
        }
    }
    let steps: BTreeSet<&str> = remainders
        .iter()
        .filter_map(|(_, steps)| steps.first().map(|step| &**step))
        .collect();
    if steps.is_empty() {
        return Some(());
    }
    let behind = |step: &str| -> Vec<Remainder<'_>> {
        let taken = remainders.iter().filter_map(|(number, steps)| {
            let (first, rest) = steps.split_first()?;
            (first == step).then_some((*number, rest))
        });
        taken.collect()
    };
    if raw.starts_with('{') {
        let Members(members) = serde_json::from_str(raw).ok()?;
        let mut seen = BTreeSet::new();
        for (RawKey(key), value) in members {
            let key = String::from_utf8(key)
                .ok()
                .filter(|key| !key.contains('\0'))?;
            for step in &steps {
                if *step == key {
                    seen.insert(key.clone()).then_some(())?;
                    walk(value, &behind(step), found)?;
                } else if is_like(&key, step) {
                    return None;
                }
            }
        }
    } else if raw.starts_with('[') {
        let elements: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
        for step in steps {
            let index: Option<usize> = step.parse().ok();
            let index = index.filter(|index| index.to_string() == step);
            if let Some(element) = index.and_then(|index| elements.get(index)) {
                walk(element, &behind(step), found)?;
            }
        }
    }
    Some(())
}

/// A string that means the same to all parsers.
fn wanted_text(raw: &str) -> Option<String> {
    let text: String = serde_json::from_str(raw).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// Whether two keys differ only by case, for any parser.
fn is_like(one: &str, other: &str) -> bool {
    let one = one.replace('\u{130}', "i");
    one.to_lowercase() == other.to_lowercase() || one.to_uppercase() == other.to_uppercase()
}
