//! Sections of earlier versions. Each is refused with the section and the keys to write.

use crate::options::shown::shortened;
use crate::options::tree::{ConfigValue, Node, Table};
use crate::options::{LocatedKey, Mistake};

/// Cures: what to write in place of a name that is no option any more, each with its place and the rest of its key. Empty for
/// all others.
pub(super) fn instead(path: &str, node: &Node) -> Vec<(LocatedKey, Mistake)> {
    let at_name = |cause: &str, cure: &str| {
        vec![(LocatedKey::new("", &node.name), Mistake::new(cause, cure))]
    };
    match (path, &node.value) {
        ("class.deadline", _) => {
            let cause = "there is no option \"deadline\" here";
            at_name(cause, "this is max_wait here, as in [limits]")
        }
        ("quota", ConfigValue::Table(_)) => {
            let cause = "the store of quotas has a section of another name";
            let cure = "write [quota_store] in place of [quota], with the same keys; each [[quota]] is a \
                        quota itself";
            at_name(cause, cure)
        }
        ("rate_limit", ConfigValue::List(limits)) => limits
            .iter()
            .enumerate()
            .filter_map(|(index, limit)| Some((index, limit, limit.table()?)))
            .map(|(index, limit, table)| {
                let part = LocatedKey::new(format!("[{index}]"), &limit.place);
                (part, of_rate_limit(table))
            })
            .collect(),
        ("rate_limit", ConfigValue::Table(table)) => {
            vec![(LocatedKey::new("", &node.name), of_rate_limit(table))]
        }
        _ => Vec::new(),
    }
}

/// The mistake of a `[[rate_limit]]`: its section now, with the keys that it has.
fn of_rate_limit(table: &Table) -> Mistake {
    let section = match table.get("kind").and_then(Node::text) {
        Some("paced") => "[[pace]]",
        Some("quota") => "[[quota]]",
        Some("bucket") => "[[bucket]]",
        _ if table.contains_key("total") => "[[quota]]",
        _ if table.contains_key("rate") || table.contains_key("pace") => "[[pace]]",
        _ => "[[bucket]]",
    };
    let keys: Vec<String> = table
        .iter()
        .filter(|(key, _)| *key != "kind")
        .map(|(key, node)| match (key.as_str(), node.text()) {
            ("deadline", _) => "max_wait (for deadline)".to_owned(),
            ("pace", _) => "rate (for pace)".to_owned(),
            ("on_excess", Some("wait")) => "on_excess = \"delay\" (for \"wait\")".to_owned(),
            _ => shortened(key),
        })
        .collect();
    let keys = match keys.is_empty() {
        true => "name".to_owned(),
        false => keys.join(", "),
    };
    let cure = format!("write {section}, with its keys: {keys}; there is no kind in it");
    Mistake::new(
        "there is no [[rate_limit]]: each kind has a section of its own",
        cure,
    )
}
