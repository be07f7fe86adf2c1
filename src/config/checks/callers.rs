//! `[[caller]]` and `[costs]`.

use tidegate_callers::{
    CallerTable, Charge, IdentityField, Label, NewCaller, Notes as CallerNotes, TableError,
};

use crate::callers::options::CallerSection;
use crate::classify::OTHER;
use crate::options::shown::quoted;
use crate::options::{Notes, OptionMark, did_you_mean};

use super::super::sections::Sections;
use super::functions::KnownFunctions;
use super::rate_limits;

pub(super) fn check(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    for caller in &all.caller {
        if caller.patterns.sound && !caller.patterns.given {
            let cure = "add the clients that belong to it, such as match = { user = \"nova\" }";
            notes.missing(&caller.section, "the caller has no match", cure);
        }
        rate_limits::exists_for(&caller.rate_limit, all, notes);
        listeners_exist(caller, all, notes);
    }
    are_apart(&all.caller, notes);
    for (name, _) in &all.costs.functions.value {
        if let Some(doubt) = functions.doubt(name, Some(OTHER)) {
            notes.warn(&all.costs.functions, doubt.message, doubt.cure);
        }
    }
}

fn listeners_exist(caller: &CallerSection, all: &Sections, notes: &Notes) {
    let listeners = all.listen.iter().flatten();
    if all.listen.is_none() || listeners.clone().any(|it| !it.listen.name.sound) {
        return;
    }
    let names = || {
        listeners
            .clone()
            .filter_map(|it| it.listen.name.value.as_deref())
    };
    for pattern in &caller.patterns.value {
        let Some(listener) = pattern.text(IdentityField::Listener) else {
            continue;
        };
        let literal = listener.literal();
        if listener.is_any() || !listener.is_exact() || names().any(|name| name == literal) {
            continue;
        }
        let cause = format!("no listener is called {}", quoted(literal));
        let near = did_you_mean(literal, names());
        let cure = near.unwrap_or("give the name of a [[listen]]".to_owned());
        notes.warn(&caller.patterns, cause, cure);
    }
}

fn are_apart(callers: &[CallerSection], notes: &Notes) {
    let row = |section: &CallerSection| {
        let patterns = section
            .patterns
            .meant()
            .filter(|patterns| !patterns.is_empty())?;
        Some(NewCaller {
            label: section.label.said()?.clone(),
            groups: section.groups.value.clone(),
            notes: CallerNotes::default(),
            patterns: patterns.clone(),
            charge: Charge::None,
            weight: None,
        })
    };
    let rows = callers
        .iter()
        .filter_map(|section| Some((section, row(section)?)));
    let (sections, rows): (Vec<&CallerSection>, Vec<NewCaller>) = rows.unzip();
    for (section, row) in sections.iter().zip(&rows) {
        for mistake in CallerTable::check_static(std::slice::from_ref(row)) {
            let at: &OptionMark = match &mistake {
                TableError::TooManyGroups { .. } => &section.groups,
                _ => &section.patterns,
            };
            notes.error(at, mistake.to_string(), "take some out");
        }
    }
    for mistake in CallerTable::check_static(&rows) {
        // The later of the two is the one that is too many.
        let last = |label: &Label| rows.iter().rposition(|row| row.label == *label);
        let at: Option<&OptionMark> = match &mistake {
            TableError::LabelRepeated(label) => last(label).map(|at| &sections[at].label.mark),
            TableError::PatternShared { other, .. } => {
                last(other).map(|at| &sections[at].patterns.mark)
            }
            TableError::Full => sections.last().map(|section| &section.patterns.mark),
            // Reported above.
            _ => None,
        };
        if let Some(at) = at {
            notes.error(at, mistake.to_string(), "change one of them");
        }
    }
}
