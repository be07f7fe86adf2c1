//! The rules of the lease server: `[[resource]]` of its config. A mistake in a rule that is
//! found by the whole of it is reported where its key stands.

use std::collections::BTreeMap;

use tidegate::options::{ConfigPlace, LocatedKey, Notes, OptionMark, Options, Section, Setting};
use tidegate_leases::server::{Catchall, RawTemplate, TemplateMistake, Templates};

use super::options::{AlgorithmSection, ParametersSection, ResourceSection, RuleSource};

/// Most rules; an id that is none literally is compared with each.
pub(super) const TEMPLATES_MAX: usize = 10_000;

/// Every `[[resource]]`. None where something was reported.
pub(super) fn read(
    section: &Section<'_>,
    source: &Setting<Option<RuleSource>>,
) -> Option<Templates> {
    let notes = section.notes();
    let list = section.sections("resource", TEMPLATES_MAX)?;
    if let Some(first) = list.first().filter(|_| source.value.is_some()) {
        let cause = "resources says that the rules are elsewhere";
        let cure = "leave out either resources or [[resource]]";
        notes.error(&first.mark(), cause, cure);
    }
    let rules = list.iter().map(rule);
    let (raw, keys): (Vec<_>, Vec<_>) = rules.unzip();
    checked(raw, Catchall::Optional, "resource", &keys, notes)
}

fn rule(section: &Section<'_>) -> (RawTemplate, RuleKeys) {
    let own = ResourceSection::read(section);
    let inner = section.section("algorithm");
    let (algorithm, parameters): (AlgorithmSection, ParametersSection) =
        (inner.read(), inner.read());
    let mut keys = RuleKeys::of(&own.section);
    keys.note("", own.marks());
    keys.note("algorithm.", algorithm.marks());
    keys.note("algorithm.parameters.", parameters.marks());
    let template = RawTemplate {
        identifier_glob: own.identifier_glob.value,
        capacity: own.capacity.value,
        safe_capacity: own.safe_capacity.value,
        description: own.description.value,
        algorithm: algorithm.section.given.then(|| algorithm.raw(&parameters)),
    };
    (template, keys)
}

/// Checks the rules as a whole. None where something was reported.
pub(super) fn checked(
    raw: Vec<RawTemplate>,
    catchall: Catchall,
    root: &str,
    keys: &[RuleKeys],
    notes: &Notes,
) -> Option<Templates> {
    let mistakes = match Templates::new(raw, catchall) {
        Ok(templates) => return Some(templates),
        Err(mistakes) => mistakes,
    };
    for TemplateMistake {
        template,
        key,
        problem,
    } in mistakes
    {
        let at = match template.and_then(|at| keys.get(at)) {
            Some(keys) => keys.find(&key),
            None => Some(LocatedKey {
                key: root.to_owned(),
                place: ConfigPlace::Whole,
            }),
        };
        if let Some(at) = at {
            let docs = (
                problem.as_str(),
                "docs/how-to/leases.md says what is allowed",
            );
            let (cause, cure) = problem.rsplit_once(": ").unwrap_or(docs);
            notes.error(&at, cause, cure);
        }
    }
    None
}

/// Where the keys of a rule stand, by the names that its mistakes have.
pub(super) struct RuleKeys {
    rule: LocatedKey,
    /// The place of each key; `None` for a key that could not be read, which has been reported.
    places: BTreeMap<String, Option<LocatedKey>>,
}

impl RuleKeys {
    pub(super) fn of(rule: &OptionMark) -> Self {
        Self {
            rule: rule.at(),
            places: BTreeMap::new(),
        }
    }

    pub(super) fn note(&mut self, prefix: &str, marks: Vec<(&'static str, &OptionMark)>) {
        for (name, mark) in marks {
            let at = mark.sound.then(|| mark.at());
            self.places.insert(format!("{prefix}{name}"), at);
        }
    }

    /// Notes one parameter.
    pub(super) fn note_parameter(&mut self, name: &str, at: LocatedKey) {
        self.places
            .insert(format!("algorithm.parameters.{name}"), Some(at));
    }

    /// Where a key stands, else what it stands in. None if that could not be read.
    fn find(&self, key: &str) -> Option<LocatedKey> {
        let parts = std::iter::successors(Some(key), |key| key.rsplit_once('.').map(|it| it.0));
        let mut found = parts.filter_map(|part| self.places.get(part));
        match found.next() {
            Some(at) => at.clone(),
            None => Some(LocatedKey {
                key: format!("{}.{key}", self.rule.key),
                place: self.rule.place.clone(),
            }),
        }
    }
}
