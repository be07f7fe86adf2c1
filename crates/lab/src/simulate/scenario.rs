//! A scenario as its file describes it: settings, arrivals, events, and expectations.

use std::time::Duration;

use super::arrivals::{Group, groups};
use super::backend::{self, Fragile};
use super::expect::{self, Expectation};
use super::setup;
use super::times::time;
use tidegate::admit::GateSettings;
use tidegate::options::kind::{choice, integer, text};
use tidegate::options::tree::Table;
use tidegate::options::{ConfigReader, Problems, Section, options, syntax, words};

/// The page that explains every key.
const PAGE: &str = "docs/how-to/simulate.md";
/// The most events in one scenario.
const EVENTS_MAX: usize = 10_000;

/// A scenario, read and checked.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) about: String,
    pub(super) seed: u64,
    pub(super) settings: GateSettings,
    pub(super) groups: Vec<Group>,
    /// Without it, calls do not slow one another.
    pub(super) backend: Option<Fragile>,
    pub(super) events: Vec<ScenarioEvent>,
    pub(super) expectations: Vec<Expectation>,
}

/// An event.
#[derive(Debug)]
pub(super) struct ScenarioEvent {
    pub(super) at: Duration,
    pub(super) what: ScenarioChange,
}

#[derive(Debug)]
pub(super) enum ScenarioChange {
    /// The config is read again. The settings are all that are then in force.
    Reload(Box<GateSettings>),
    /// No connection is accepted any more, and calls at the backend are lost. A connect fails after
    /// this time.
    BackendDown {
        refuses_after: Duration,
    },
    BackendUp,
}

options! {
    /// The scenario as a whole.
    pub struct RootSection {
        /// A sentence on what the scenario shows.
        about: String = text("a sentence", "A greedy caller does not delay a modest one.", |given| {
            Ok(given.to_owned())
        })
        .or(String::new());
        /// The seed of random numbers.
        seed: u64 = integer(0..=i64::MAX.unsigned_abs()).or(1);
    }
}

options! {
    /// Something that happens at a moment.
    pub struct EventSection {
        /// When it happens.
        at: Option<Duration> = time().required("the time is missing", "add at = \"2s\"");
        /// Whether the backend goes down or comes back.
        backend: Option<BackendAvailability> = choice().optional();
        /// How long a connect to a backend that is down takes to fail.
        refuses_after: Option<Duration> = time().optional();
    }
}

words! {
    pub(crate) enum BackendAvailability {
        Down = "down",
        Up = "up",
    }
}

/// Reads a scenario.
///
/// # Errors
///
/// Every mistake in the file.
pub(super) fn read(origin: &str, file: &str) -> Result<Scenario, Problems> {
    let parsed = syntax::parse(file);
    // What a broken file seems to contain is not worth a second complaint.
    if !parsed.problems.is_empty() {
        return Err(Problems::new(origin, file, parsed.problems));
    }
    let mut reading = ConfigReader::of_tree(parsed.tree, PAGE);
    let scenario = read_root(&reading.root());
    let problems = reading.problems();
    match scenario {
        Some(scenario) if problems.is_empty() => Ok(scenario),
        _ => Err(Problems::new(origin, file, problems)),
    }
}

fn read_root(root: &Section<'_>) -> Option<Scenario> {
    let RootSection { about, seed, .. } = root.read();
    let config = root.section("config");
    config.about("The config of the sidecar, as far as it decides about waiting.");
    let settings = setup::read(&config);
    let events = events(root, settings.as_ref().and(config.table()));
    let reloads = events.iter().filter_map(|event| match &event.what {
        ScenarioChange::Reload(settings) => Some(&**settings),
        ScenarioChange::BackendDown { .. } | ScenarioChange::BackendUp => None,
    });
    let all: Vec<&GateSettings> = settings.iter().chain(reloads).collect();
    let groups = groups(root, &all);
    let backend = backend::read(&root.section("backend"));
    let expectations = expect::read(&root.section("expect"), &groups);
    Some(Scenario {
        about: about.value,
        seed: seed.value,
        settings: settings?,
        groups,
        backend,
        events,
        expectations,
    })
}

/// Reads the events, in the order of time: a reload builds on the one before it.
fn events(root: &Section<'_>, config: Option<&Table>) -> Vec<ScenarioEvent> {
    let sections = root.sections("events", EVENTS_MAX).unwrap_or_default();
    let mut timed: Vec<_> = sections
        .into_iter()
        .map(|section| (section.read::<EventSection>(), section))
        .collect();
    timed.sort_by_key(|(event, _)| event.at.value);
    let mut in_force = config.cloned();
    let mut events = Vec::new();
    for (event, section) in timed {
        let at = event.at.value.unwrap_or_default();
        let reload = section.section("reload");
        let refuses_after = event.refuses_after.value;
        let notes = section.notes();
        if !event.backend.given && !reload.mark().given {
            let cure = "add backend = \"down\", backend = \"up\" or reload = { limits = { … } }";
            notes.error(&event.section, "nothing happens", cure);
        }
        if refuses_after.is_some() && event.backend.value == Some(BackendAvailability::Up) {
            let cause = "a backend that is up refuses nothing";
            notes.error(&event.refuses_after, cause, "leave it out");
        }
        let mut happens = |what| events.push(ScenarioEvent { at, what });
        match event.backend.value {
            Some(BackendAvailability::Up) => happens(ScenarioChange::BackendUp),
            Some(BackendAvailability::Down) => happens(ScenarioChange::BackendDown {
                refuses_after: refuses_after.unwrap_or_default(),
            }),
            None => {}
        }
        // Without a config, there is nothing to lay it over.
        if let (Some(in_force), Some(given)) = (&mut in_force, reload.table())
            && let Some(settings) = setup::read_reload(&reload, given, in_force)
        {
            happens(ScenarioChange::Reload(Box::new(settings)));
        }
    }
    events
}
