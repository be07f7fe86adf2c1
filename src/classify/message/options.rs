//! The options of a route whose calls are named in their messages.

use http::HeaderName;

use super::{BodyPlace, Condition, NamePlace, NameSource, Reservation};
use crate::call::AnswerPlace;
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
        "a table with json, xml, header or query, and maybe if and without",
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
        "a table with json, xml, header or query, and maybe if and without; or a list of up to {SOURCES_MAX}"
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
    let (mut place, mut condition, mut without) = (None, None, Vec::new());
    for (key, node) in table {
        let found = match key.as_str() {
            "if" => {
                condition = Some(condition_of(node)?);
                continue;
            }
            "without" => {
                without = beginnings(node)?;
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
    Ok(NameSource {
        place,
        condition,
        without,
    })
}

/// The beginnings in `without`: a text, or a list of them.
fn beginnings(node: &Node) -> Result<Vec<Box<str>>, Mistake> {
    let list = match &node.value {
        ConfigValue::List(list) => &list[..],
        _ => std::slice::from_ref(node),
    };
    if list.len() > SOURCES_MAX {
        let cause = format!("without has {} texts", list.len());
        return Err(Mistake::new(cause, format!("give at most {SOURCES_MAX}")));
    }
    let texts = list.iter().map(|node| text("without", node).map(Box::from));
    texts.collect()
}

const COST_CURE: &str = "write it as { json = \"/usage/total_tokens\" } or { header = \"X-Cost\" }";

/// The place of a cost in an answer.
pub(in crate::classify) fn cost_place() -> ValueKind<AnswerPlace> {
    let read = |node: &Node| {
        let source = source_of(node)?;
        let is_plain = source.condition.is_none() && source.without.is_empty();
        let place = match source.place {
            NamePlace::Body(BodyPlace::Json(pointer)) if is_plain => AnswerPlace::Json(pointer),
            NamePlace::Header(name) if is_plain => AnswerPlace::Header(name),
            _ => return Err(Mistake::new("an answer has no such place", COST_CURE).into()),
        };
        Ok(place)
    };
    ValueKind::of_parts("a table with json or header", read, |place| {
        let (key, value) = match place {
            AnswerPlace::Json(pointer) => ("json", pointer.as_str()),
            AnswerPlace::Header(name) => ("header", name.as_str()),
        };
        format!("{{ {key} = {value:?} }}")
    })
}

/// Most tokens that are reserved where a request names no number.
const RESERVE_MAX: u32 = 1_000_000;

const RESERVE_CURE: &str = "write it as \"learned\", or as { json = \"/max_tokens\", else = 500 }, where json may be a list";

/// The draw of a call until its answer is here.
pub(in crate::classify) fn reserve() -> ValueKind<Reservation> {
    let allowed = "\"learned\", or a table with json, header or query, and else";
    ValueKind::of_parts(
        allowed,
        |node| Ok(reserve_of(node)?),
        |reserve| match reserve {
            Reservation::Learned => "\"learned\"".to_owned(),
            Reservation::From(places, otherwise) => {
                let (json, others): (Vec<_>, Vec<_>) = places
                    .iter()
                    .partition(|place| matches!(place, NamePlace::Body(_)));
                let mut parts: Vec<_> = others.iter().map(ToString::to_string).collect();
                match &json[..] {
                    [] => {}
                    [one] => parts.push(one.to_string()),
                    many => {
                        let pointers = many.iter().filter_map(|it| it.pointer());
                        let pointers: Vec<_> = pointers.map(|it| format!("{it:?}")).collect();
                        parts.push(format!("json = [{}]", pointers.join(", ")));
                    }
                }
                parts.extend(otherwise.map(|tokens| format!("else = {tokens}")));
                format!("{{ {} }}", parts.join(", "))
            }
        },
    )
}

fn reserve_of(node: &Node) -> Result<Reservation, Mistake> {
    let wrong = |cause: String| Mistake::new(cause, RESERVE_CURE);
    if node.text() == Some("learned") {
        return Ok(Reservation::Learned);
    }
    let Some(table) = node.table() else {
        return Err(wrong(format!("{} is neither", node.in_words())));
    };
    let (mut places, mut otherwise) = (Vec::new(), None);
    for (key, node) in table {
        if key == "else" {
            let number = match node.value {
                ConfigValue::Integer(number) => u32::try_from(number).ok(),
                _ => None,
            };
            let number = number.filter(|it| *it <= RESERVE_MAX);
            let cause = || {
                format!(
                    "else has {}, and no number up to 1,000,000",
                    node.in_words()
                )
            };
            otherwise = Some(number.ok_or_else(|| wrong(cause()))?);
            continue;
        }
        places.push(match key.as_str() {
            "json" => {
                let list = match &node.value {
                    ConfigValue::List(list) => &list[..],
                    _ => std::slice::from_ref(node),
                };
                if list.len() > SOURCES_MAX {
                    return Err(wrong(format!("there are {} places", list.len())));
                }
                for node in list {
                    let place = body_place(key, text(key, node)?)?;
                    places.push(NamePlace::Body(place));
                }
                continue;
            }
            "header" => NamePlace::Header(header(text(key, node)?)?),
            "query" => NamePlace::Query(text(key, node)?.into()),
            key => return Err(wrong(format!("{} is not known here", quoted(key)))),
        });
    }
    match (places.is_empty(), otherwise) {
        (true, None) => Err(wrong("there is no place and no number".to_owned())),
        _ => Ok(Reservation::From(places, otherwise)),
    }
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
