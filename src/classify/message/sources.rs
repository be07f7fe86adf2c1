//! Places of names in a request.

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;
use tidegate_message::{JsonPointer, PointersError, XmlPath};

/// A place in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyPlace {
    /// A value of JSON.
    Json(JsonPointer),
    /// The text of an element of XML.
    Xml(XmlPath),
}

impl BodyPlace {
    /// A place in JSON, by a pointer of our own.
    pub(super) fn json(pointer: &str) -> Self {
        Self::Json(pointer.parse().expect("it is a pointer"))
    }

    /// A place in XML, by a path of our own.
    pub(super) fn xml(path: &str) -> Self {
        Self::Xml(path.parse().expect("it is a path"))
    }
}

/// A place in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePlace {
    /// In the body.
    Body(BodyPlace),
    /// The value of a header.
    Header(HeaderName),
    /// The value of a parameter of the query.
    Query(Box<str>),
}

/// A text that another value of the body must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The other value.
    pub place: BodyPlace,
    /// The text.
    pub is: Box<str>,
}

/// A place of a name, and when it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSource {
    /// The place.
    pub place: NamePlace,
    /// When it counts; `None` for always.
    pub condition: Option<Condition>,
    /// Beginnings that are no part of the name; the first that a name has is left out.
    pub without: Vec<Box<str>>,
}

/// Why places cannot be looked for together.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// Places of JSON and of XML.
    #[error("one route reads JSON or XML, and not both")]
    TwoForms,
    /// A set that a reader does not keep apart.
    #[error(transparent)]
    Body(#[from] PointersError),
}

impl fmt::Display for NameSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ {}", self.place)?;
        if let Some(Condition { place, is }) = &self.condition {
            let (_, place) = place.parts();
            write!(f, ", if = {{ {place:?} = {is:?} }}")?;
        }
        match &self.without[..] {
            [] => {}
            [one] => write!(f, ", without = {one:?}")?,
            list => write!(f, ", without = {list:?}")?,
        }
        f.write_str(" }")
    }
}

/// As in a config: `json = "/method"`.
impl fmt::Display for NamePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = match self {
            Self::Body(place) => place.parts(),
            Self::Header(name) => ("header", name.as_str()),
            Self::Query(name) => ("query", &**name),
        };
        write!(f, "{key} = {value:?}")
    }
}

impl NamePlace {
    /// The pointer of a place in JSON.
    pub(super) fn pointer(&self) -> Option<&str> {
        match self {
            Self::Body(BodyPlace::Json(pointer)) => Some(pointer.as_str()),
            _ => None,
        }
    }
}

impl BodyPlace {
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Json(pointer) => ("json", pointer.as_str()),
            Self::Xml(path) => ("xml", path.as_str()),
        }
    }
}

/// A name without the first of these beginnings that it has.
pub(super) fn without<'a>(name: Cow<'a, str>, beginnings: &[Box<str>]) -> Cow<'a, str> {
    let rest = |name: &'_ str| {
        let mut rests = beginnings.iter().map(|it| name.strip_prefix(&**it));
        rests.find_map(|rest| rest.map(|rest| name.len() - rest.len()))
    };
    match (rest(&name), name) {
        (None, name) => name,
        (Some(at), Cow::Borrowed(name)) => Cow::Borrowed(&name[at..]),
        (Some(at), Cow::Owned(name)) => Cow::Owned(name[at..].to_owned()),
    }
}

/// The value of a parameter of a query.
///
/// # Errors
/// If servers read different values: the parameter is there twice, or in another spelling.
pub(super) fn in_query<'a>(
    query: &'a str,
    name: &str,
) -> Result<Option<Cow<'a, str>>, &'static str> {
    const UNCLEAR: &str = "servers read its query differently";
    let mut found = None;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        // Some servers separate parameters with a semicolon.
        let mut parted = key.split(';').skip(1).chain(value.split(';').skip(1));
        let is_named = |part: &str| {
            let (key, _) = part.split_once('=').unwrap_or((part, ""));
            key.eq_ignore_ascii_case(name)
        };
        if parted.any(is_named)
            || key
                .split(';')
                .next()
                .is_some_and(|it| it != key && is_named(it))
        {
            return Err(UNCLEAR);
        }
        if !key.eq_ignore_ascii_case(name) {
            continue;
        }
        // Some do not tell capitals from small letters.
        if found.is_some() || key != name {
            return Err(UNCLEAR);
        }
        found = Some(value);
    }
    Ok(found)
}
