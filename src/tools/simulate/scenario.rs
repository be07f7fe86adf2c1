//! A scenario as its file describes it: settings, arrivals, events, and expectations.

use std::time::Duration;

use toml::{Table, Value};

use super::arrivals::{Group, groups};
use super::expect::{self, Expectation};
use super::reader::{Mistake, Problems, Section, choice, duration, integer, read_file, text};
use super::setup::{self, Setup};

/// One scenario.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) about: String,
    pub(super) seed: u64,
    pub(super) setup: Setup,
    pub(super) groups: Vec<Group>,
    pub(super) events: Vec<Event>,
    pub(super) expectations: Vec<Expectation>,
}

/// An event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// The config is read again. The setup is everything that is then in force.
    Reload(Box<Setup>),
    /// No connection is accepted any more, and calls at the backend are lost. A connect fails after
    /// this time.
    BackendDown {
        refuses_after: Duration,
    },
    BackendUp,
}

/// Reads a scenario.
///
/// # Errors
///
/// Every mistake in the file.
pub(super) fn read(origin: &str, file: &str) -> Result<Scenario, Problems> {
    read_file(origin, file, |mut root| {
        let about = root.read("about", text).unwrap_or_default();
        let seed = root.read("seed", integer(0..=i64::MAX)).unwrap_or(1);
        let plain: Table = toml::from_str(file).unwrap_or_default();
        let setup = setup::read(&mut root, file);
        let events = events(root.sections("events"), &plain, setup.as_ref());
        let reloads = events.iter().filter_map(|event| match &event.what {
            What::Reload(setup) => Some(&**setup),
            What::BackendDown { .. } | What::BackendUp => None,
        });
        let setups: Vec<&Setup> = setup.iter().chain(reloads).collect();
        let groups = groups(&mut root, &setups);
        let expectations = root
            .section("expect")
            .map(|section| expect::read(section, &groups))
            .unwrap_or_default();
        root.finish();
        Some(Scenario {
            about,
            seed: seed.unsigned_abs(),
            setup: setup?,
            groups,
            events,
            expectations,
        })
    })
}

/// Reads the events, in the order of time: a reload builds on the one before it.
fn events(sections: Vec<Section<'_>>, plain: &Table, first: Option<&Setup>) -> Vec<Event> {
    let given = plain.get("events").and_then(Value::as_array);
    let given = given.into_iter().flatten().map(|event| event.get("reload"));
    let mut timed: Vec<_> = sections
        .into_iter()
        .zip(given)
        .map(|(mut section, given)| {
            let at = section.read("at", duration);
            if at.is_none() && !section.has("at") {
                let mistake = Mistake::new("the time is missing", "add at = \"2s\"");
                section.complain("at", mistake);
            }
            (at.unwrap_or_default(), section, given)
        })
        .collect();
    timed.sort_by_key(|(at, ..)| *at);
    let config = plain.get("config").and_then(Value::as_table);
    let mut config = config.cloned().unwrap_or_default();
    let mut events = Vec::new();
    for (at, mut section, given) in timed {
        let backend = section.read("backend", choice(&[("down", false), ("up", true)]));
        let reload = section.section("reload");
        if backend.is_none() && !section.has("backend") && !section.has("reload") {
            let cure = "add backend = \"down\", backend = \"up\" or reload = { limits = { … } }";
            section.complain("at", Mistake::new("nothing happens", cure));
        }
        let refuses_after = section.read("refuses_after", duration);
        if refuses_after.is_some() && backend == Some(true) {
            let mistake = Mistake::new("a backend that is up refuses nothing", "leave it out");
            section.complain("refuses_after", mistake);
        }
        if let Some(is_up) = backend {
            let what = if is_up {
                What::BackendUp
            } else {
                let refuses_after = refuses_after.unwrap_or_default();
                What::BackendDown { refuses_after }
            };
            events.push(Event { at, what });
        }
        let given = given.and_then(Value::as_table);
        // Without a config, there is nothing to lay it over.
        if let (Some(reload), Some(given), Some(_)) = (reload, given, first)
            && let Some(setup) = setup::read_reload(reload, given, &mut config)
        {
            let what = What::Reload(Box::new(setup));
            events.push(Event { at, what });
        }
        section.finish();
    }
    events
}
