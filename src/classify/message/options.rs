//! The options of a route whose calls are named in their messages.

use http::HeaderName;

use super::{BodyPlace, Condition, NamePlace, NameSource};
use crate::options::kind::all;
use crate::options::shown::quoted;
use crate::options::tree::{ConfigValue, Node};
use crate::options::{Mistake, ValueKind};

/// Most sources of one name.
const SOURCES_MAX: usize = 4;

const CURE: &str = "write it as { json = \"/method\" }, { xml = \"methodName\" }, { header = \"X-Operation\" } or \
                    { query = \"op\" }";

/// A source of a name.
pub(in crate::classify) fn source() -> ValueKind<NameSource> {
    ValueKind::of_parts(
        "a table with json, xml, header or query, and maybe if",
        |node| Ok(source_of(node)?),
        NameSource::to_string,
    )
}

/// A source of a name, or a list of them, of which the first counts that applies.
pub(in crate::classify) fn sources() -> ValueKind<Vec<NameSource>> {
    let read = |node: &Node| {
        let list = match &node.value {
            ConfigValue::List(list) => &list[..],
            _ => std::slice::from_ref(node),
        };
        if list.len() > SOURCES_MAX {
            let cause = format!("there are {} sources", list.len());
            return Err(Mistake::new(cause, format!("give at most {SOURCES_MAX}")).into());
        }
        all(list.iter().map(|node| {
            let wrong = |mistake: Mistake| vec![mistake.in_part("", &node.place)];
            source_of(node).map_err(wrong)
        }))
    };
    let allowed = format!(
        "a table with json, xml, header or query, and maybe if; or a list of up to {SOURCES_MAX}"
    );
    ValueKind::of_parts(allowed, read, |sources: &Vec<NameSource>| {
        match &sources[..] {
            [one] => one.to_string(),
            list => {
                let list: Vec<_> = list.iter().map(NameSource::to_string).collect();
                format!("[{}]", list.join(", "))
            }
        }
    })
}

fn source_of(node: &Node) -> Result<NameSource, Mistake> {
    let wrong = |cause: String| Mistake::new(cause, CURE);
    let Some(table) = node.table() else {
        return Err(wrong(format!("{} is not a table", node.in_words())));
    };
    let mut place = None;
    let mut condition = None;
    for (key, node) in table {
        let found = match key.as_str() {
            "if" => {
                condition = Some(condition_of(node)?);
                continue;
            }
            "json" | "xml" => NamePlace::Body(body_place(key, text(key, node)?)?),
            "header" => NamePlace::Header(header(text(key, node)?)?),
            "query" => NamePlace::Query(text(key, node)?.into()),
            key => return Err(wrong(format!("{} is not known here", quoted(key)))),
        };
        if place.replace(found).is_some() {
            return Err(wrong("there are two places".to_owned()));
        }
    }
    let Some(place) = place else {
        return Err(wrong("there is no place".to_owned()));
    };
    Ok(NameSource { place, condition })
}

fn text<'a>(key: &str, node: &'a Node) -> Result<&'a str, Mistake> {
    let text = node.text().filter(|text| !text.is_empty());
    let cause = || format!("{key} has {}, and no text", node.in_words());
    text.ok_or_else(|| Mistake::new(cause(), CURE))
}

fn body_place(key: &str, text: &str) -> Result<BodyPlace, Mistake> {
    match key {
        "xml" => text
            .parse()
            .map(BodyPlace::Xml)
            .map_err(|error| Mistake::new(format!("{error}"), CURE)),
        _ => text
            .parse()
            .map(BodyPlace::Json)
            .map_err(|error| Mistake::new(format!("{error}"), CURE)),
    }
}

fn header(text: &str) -> Result<HeaderName, Mistake> {
    let cause = format!("{} is not the name of a header", quoted(text));
    text.parse().map_err(|_| Mistake::new(cause, CURE))
}

/// `{ "/method" = "tools/call" }`
fn condition_of(node: &Node) -> Result<Condition, Mistake> {
    const CURE: &str = "write it as if = { \"/method\" = \"tools/call\" }: one place, and the text that it must have";
    let wrong = |cause: &str| Mistake::new(cause, CURE);
    let table = node
        .table()
        .ok_or_else(|| wrong("the condition is not a table"))?;
    let mut entries = table.iter();
    let (Some((place, is)), None) = (entries.next(), entries.next()) else {
        return Err(wrong("the condition has not one place"));
    };
    let is = is
        .text()
        .ok_or_else(|| wrong("the condition has no text"))?;
    let key = if place.starts_with('/') {
        "json"
    } else {
        "xml"
    };
    Ok(Condition {
        place: body_place(key, place)?,
        is: is.into(),
    })
}
