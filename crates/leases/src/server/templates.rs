//! The rules for resources: ids, capacity, split.
//!
//! Every format of the config is read into [`RawTemplate`]s, and [`Templates::new`] either
//! accepts all of them or reports every mistake. Settings without a field in the original are
//! named parameters of the algorithm, so every format can contain them, and servers below get
//! them:
//!
//! | parameter | default | means |
//! |---|---|---|
//! | `lease_duration_secs` | 60 | how long a lease is, where `lease_length` is not given |
//! | `refresh_interval` | 16 | when to ask again, where the field is not given |
//! | `decay_factor` | 0.5 | what the refresh interval is multiplied by for each level below |
//! | `priority_bands` | `true`; `false` in Doorman's own form | the greater priority is served first |
//! | `frees` | `confirmed` | when a lowered share is free for others: once its holder said it has the lower one, or `at_once`, as in the original, where a lost answer breaks the bound |
//! | `frees_after_ms` | 0 | how long after that |
//! | `reserved_clients` | 0 | for how many clients a safe share is set aside |
//! | `safe_share` | `safe_capacity` | the share set aside for each |
//! | `capacity` | `capacity` | of a static split, what each client gets at most |
//! | `level` | 0 | how many servers stand above: sent by servers, never configured |
//! | `granted_until` | | when all that the asking server was given before has ended, in seconds since 1970; 0 is nothing: sent by servers, never configured |

mod parameters;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::book::{Capacity, Split};

use self::parameters::Parameters;
use super::glob::Glob;
use crate::wire::algorithm::Kind;
use crate::wire::{self, NamedParameter};

/// A template as it was read, unchecked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTemplate {
    /// `identifier_glob`.
    pub identifier_glob: Option<String>,
    /// `capacity`.
    pub capacity: Option<f64>,
    /// `safe_capacity`: -1 is no limit.
    pub safe_capacity: Option<f64>,
    /// `description`.
    pub description: Option<String>,
    /// `algorithm`; without it the default one.
    pub algorithm: Option<RawAlgorithm>,
}

/// An algorithm as it was read, unchecked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawAlgorithm {
    /// `kind`; without it none.
    pub kind: Option<RawKind>,
    /// `lease_length`.   seconds
    pub lease_length: Option<i64>,
    /// `refresh_interval`.   seconds
    pub refresh_interval: Option<i64>,
    /// `learning_mode_duration`; without it as long as a lease and what counts after it, 0 or less is none.   seconds
    pub learning_mode_duration: Option<i64>,
    /// `parameters`.
    pub parameters: Vec<NamedParameter>,
}

/// A kind of algorithm as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawKind {
    /// `FAIR_SHARE`, or our `fair_share`.
    Name(String),
    /// The number on the wire.
    Number(i64),
}

/// A checked template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The ids that the template applies to.
    pub glob: Glob,
    /// The capacity; for a static split, of each client.
    pub capacity: Capacity,
    /// The capacity that a client may use after it lost every server, if the operator set it: -1 is no limit.
    pub safe_capacity: Option<f64>,
    /// The operator's description.
    pub description: Option<String>,
    /// The algorithm.
    pub algorithm: Algorithm,
}

/// How a capacity is granted.
#[derive(Clone, Debug, PartialEq)]
pub struct Algorithm {
    /// How it is split.
    pub split: Split,
    /// How long a lease is.
    pub lease: Duration,
    /// The refresh interval for clients of this level.
    pub refresh: Duration,
    /// How long a new master only learns the current leases; zero means not at all.
    pub learning: Duration,
    /// The factor on `refresh` for each level below.   above 0, at most 1
    pub decay: f64,
    /// How many servers are above the one that applies this.
    pub level: u32,
    /// Whether the higher priority is served first.
    pub by_priority: bool,
    /// When a lowered share is free for others.
    pub frees: Frees,
    /// The reserve, so that no client ever has nothing.
    pub reserve: Option<Reserve>,
    /// For a static split below the root: the maximum of each client.
    pub each: Option<Capacity>,
}

/// When a lowered, ended or released share is free for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frees {
    /// At once, as in the original: until its holder learns of it, the capacity is exceeded.
    AtOnce,
    /// The capacity is free this long after its holder confirmed the lower one, or the old one ended.
    Confirmed(Duration),
}

/// A standing reservation: `clients` times `share` are never granted, so that each of that many
/// clients always owns its safe share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reserve {
    /// The expected maximum of clients.
    pub clients: NonZeroU64,
    /// The safe share of each.
    pub share: Capacity,
}

impl Reserve {
    /// The whole reserve.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.clients.get() as f64 * self.share.get()
    }
}

/// Whether a template "*" must stand at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Catchall {
    /// Yes, with an algorithm, as in Doorman's own config. Priorities count only if a rule says so:
    /// a Doorman of 2016 ignores them, its clients send 0 and its servers send 1.
    Required,
    /// No: an id that nothing matches is an unmatched one.
    Optional,
}

/// A mistake in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{key} {problem}", .template.map_or(String::new(), |at| format!("resources[{at}].")))]
pub struct TemplateMistake {
    /// The template, from 0; `None` if it concerns all of them.
    pub template: Option<usize>,
    /// The key, such as `algorithm.lease_length`.
    pub key: String,
    /// The mistake, and the cure.
    pub problem: String,
}

/// Longest lease, refresh interval or learning mode.   seconds: a year
const SECONDS_MAX: i64 = 366 * 24 * 3600;
/// Deepest tree.   servers
const LEVEL_MAX: u32 = 16;

/// All templates, in the order of the config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Templates {
    in_order: Vec<Template>,
    /// By the text of their globs, for ids that are equal to one.
    literal: HashMap<String, usize>,
}

impl Templates {
    /// Checks what was read.
    ///
    /// # Errors
    ///
    /// Every mistake, in the order of the config: those that the original checks, and those that
    /// end it later (a capacity or an algorithm that is missing, a negative capacity, NaN).
    pub fn new(raw: Vec<RawTemplate>, catchall: Catchall) -> Result<Self, Vec<TemplateMistake>> {
        let mut mistakes = Mistakes::default();
        let last = raw.len().checked_sub(1);
        let mut literal = HashMap::new();
        let mut in_order = Vec::with_capacity(raw.len());
        for (at, template) in raw.into_iter().enumerate() {
            mistakes.template = Some(at);
            if let Some(glob) = &template.identifier_glob {
                if let Some(first) = literal.insert(glob.clone(), at) {
                    mistakes.add(
                        "identifier_glob",
                        format!("is {glob:?}, as that of resources[{first}]: write each once"),
                    );
                }
                if glob == "*" && catchall == Catchall::Required {
                    if Some(at) != last {
                        mistakes.add(
                            "identifier_glob",
                            "is \"*\" and matches what stands below it: move it to the end",
                        );
                    }
                    if template.algorithm.is_none() {
                        mistakes.add("algorithm", "is missing: \"*\" must have one");
                    }
                }
            }
            let by_priority = catchall == Catchall::Optional;
            in_order.extend(check_template(template, by_priority, &mut mistakes));
        }
        mistakes.template = None;
        if catchall == Catchall::Required && !literal.contains_key("*") {
            mistakes.add(
                "resources",
                "has no template \"*\": add one with an algorithm at the end",
            );
        }
        if mistakes.found.is_empty() {
            Ok(Self { in_order, literal })
        } else {
            Err(mistakes.found)
        }
    }

    /// The template for an id: the one whose text it is, else the first that matches.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<&Template> {
        match self.literal.get(id) {
            Some(at) => self.in_order.get(*at),
            None => self.in_order.iter().find(|one| one.glob.matches(id)),
        }
    }

    /// All of them, in order.
    #[must_use]
    pub fn in_order(&self) -> &[Template] {
        &self.in_order
    }

    /// Whether this id is the text of a template.
    #[must_use]
    pub fn names(&self, id: &str) -> bool {
        self.literal.contains_key(id)
    }
}

impl Default for Algorithm {
    /// The algorithm of a template without one.
    fn default() -> Self {
        let lease = Duration::from_secs(60);
        Self {
            split: Split::Fair,
            lease,
            refresh: Duration::from_secs(16),
            learning: lease,
            decay: 0.5,
            level: 0,
            by_priority: true,
            frees: Frees::Confirmed(Duration::ZERO),
            reserve: None,
            each: None,
        }
    }
}

impl Algorithm {
    /// For a server below: the refresh interval is the server's own; its clients get that times
    /// `decay_factor`.
    #[must_use]
    pub fn to_wire(&self, each: Capacity, granted_until: Option<i64>) -> wire::Algorithm {
        let mut parameters = vec![
            NamedParameter::new("level", self.level + 1),
            NamedParameter::new("decay_factor", self.decay),
            NamedParameter::new("priority_bands", self.by_priority),
        ];
        match self.frees {
            Frees::AtOnce => parameters.push(NamedParameter::new("frees", "at_once")),
            Frees::Confirmed(after) => parameters.extend([
                NamedParameter::new("frees", "confirmed"),
                NamedParameter::new("frees_after_ms", after.as_millis()),
            ]),
        }
        if let Some(reserve) = &self.reserve {
            parameters.extend([
                NamedParameter::new("reserved_clients", reserve.clients),
                NamedParameter::new("safe_share", reserve.share.get()),
            ]);
        }
        parameters.extend(granted_until.map(|it| NamedParameter::new(GRANTED_UNTIL, it)));
        if self.split == Split::Static {
            parameters.push(NamedParameter::new("capacity", each.get()));
        }
        wire::Algorithm {
            kind: Kind::from(self.split).into(),
            lease_length: wire::seconds(self.lease),
            refresh_interval: wire::seconds(self.refresh),
            parameters,
            learning_mode_duration: Some(wire::seconds(self.learning)),
        }
    }

    /// From the server above. `None` if it cannot be applied: an unknown kind, or an invalid lease.
    /// Unknown parameters are ignored, because the server above may be newer, or of another make.
    #[must_use]
    pub fn from_wire(heard: &wire::Algorithm) -> Option<Self> {
        let raw = RawAlgorithm {
            kind: Some(RawKind::Number(heard.kind.into())),
            lease_length: Some(heard.lease_length),
            refresh_interval: Some(heard.refresh_interval.max(1)),
            learning_mode_duration: heard.learning_mode_duration,
            parameters: heard.parameters.clone(),
        };
        let mut mistakes = Mistakes::default();
        // A server above that does not mention priorities is a Doorman server, which ignores them.
        let default = Algorithm {
            by_priority: false,
            ..Self::default()
        };
        let from = TemplateSource::FromAbove;
        let mut algorithm = check_algorithm(raw, from, &default, None, &mut mistakes);
        if mistakes
            .found
            .iter()
            .any(|mistake| !mistake.key.starts_with("algorithm.parameters"))
        {
            return None;
        }
        // A server that does not mention levels is the only one above.
        algorithm.level = algorithm.level.max(1);
        let refresh = algorithm.refresh.mul_f64(algorithm.decay).as_secs().max(1);
        algorithm.refresh = Duration::from_secs(refresh);
        Some(algorithm)
    }
}

/// The parameter with the end of all earlier grants of a server.
const GRANTED_UNTIL: &str = "granted_until";

/// The end of all earlier grants, for a server.   seconds since 1970
pub(super) fn granted_until(heard: &wire::Algorithm) -> Option<i64> {
    let mut parameters = heard.parameters.iter();
    let told = parameters.find(|parameter| parameter.name == GRANTED_UNTIL)?;
    told.value.as_ref()?.parse().ok()
}

#[derive(Default)]
struct Mistakes {
    template: Option<usize>,
    found: Vec<TemplateMistake>,
}

impl Mistakes {
    fn add(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.found.push(TemplateMistake {
            template: self.template,
            key: key.into(),
            problem: problem.into(),
        });
    }

    /// Returns the value that was read, or notes the mistake and returns `None`.
    fn keep<T>(&mut self, key: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|problem| self.add(key, problem)).ok()
    }
}

/// `None` only if a mistake was added. `by_priority` is the default for rules without a setting
/// of priorities.
fn check_template(
    raw: RawTemplate,
    by_priority: bool,
    mistakes: &mut Mistakes,
) -> Option<Template> {
    let default = Algorithm {
        by_priority,
        ..Algorithm::default()
    };
    let missing = |problem: &str| problem.to_owned();
    let glob = raw
        .identifier_glob
        .ok_or_else(|| missing("is missing: it says which ids are meant"))
        .and_then(|text| Glob::new(&text).map_err(|bad| format!("{text:?} {bad}")));
    let glob = mistakes.keep("identifier_glob", glob);
    let capacity = raw
        .capacity
        .ok_or_else(|| missing("is missing: it says how much there is to lend"))
        .and_then(|given| {
            let wrong = |_| format!("is {given}: it must be finite and not below 0");
            Capacity::new(given).map_err(wrong)
        });
    let capacity = mistakes.keep("capacity", capacity);
    if let Some(given) = raw.safe_capacity
        && given != -1.0
        && Capacity::new(given).is_err()
    {
        mistakes.add(
            "safe_capacity",
            format!("is {given}: it must be finite and not below 0, or -1 for no limit"),
        );
    }
    let algorithm = match raw.algorithm {
        None => default,
        Some(algorithm) => {
            let from = TemplateSource::FromConfig;
            check_algorithm(algorithm, from, &default, raw.safe_capacity, mistakes)
        }
    };
    let (glob, capacity) = (glob?, capacity?);
    if let Some(reserve) = &algorithm.reserve
        && reserve.total() > capacity.get()
    {
        mistakes.add(
            "algorithm.parameters.reserved_clients",
            format!(
                "times safe_share is {}, more than the capacity of {}: lower one of them",
                reserve.total(),
                capacity.get()
            ),
        );
    }
    Some(Template {
        glob,
        capacity,
        safe_capacity: raw.safe_capacity,
        description: raw.description,
        algorithm,
    })
}

/// The source: an operator gets mistakes reported; of a server's values, the valid ones are used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TemplateSource {
    FromConfig,
    FromAbove,
}

fn check_algorithm(
    raw: RawAlgorithm,
    heard: TemplateSource,
    default: &Algorithm,
    safe_capacity: Option<f64>,
    mistakes: &mut Mistakes,
) -> Algorithm {
    let parameters = Parameters::read(raw.parameters, heard, mistakes);
    let split = split_of(raw.kind, mistakes).unwrap_or(default.split);
    let parameter = ("parameters.lease_duration_secs", parameters.lease);
    let lease = span(("lease_length", raw.lease_length), parameter, mistakes);
    let lease = lease.unwrap_or(default.lease);
    let parameter = ("parameters.refresh_interval", parameters.refresh);
    let refresh = span(
        ("refresh_interval", raw.refresh_interval),
        parameter,
        mistakes,
    );
    let refresh = refresh.unwrap_or(default.refresh);
    if lease < refresh {
        mistakes.add(
            "algorithm.lease_length",
            format!(
                "is {} s, shorter than the refresh interval of {} s: leases would end before \
                 they are renewed",
                lease.as_secs(),
                refresh.as_secs()
            ),
        );
    }
    let frees = match (parameters.at_once, parameters.frees_after) {
        (true, None) => Frees::AtOnce,
        (_, after) => Frees::Confirmed(after.unwrap_or(Duration::ZERO)),
    };
    // In whole seconds, as the wire has it, and never shorter.
    let whole = match frees {
        Frees::AtOnce => lease,
        Frees::Confirmed(after) => {
            let is_part = after.subsec_nanos() > 0;
            lease + Duration::from_secs(after.as_secs() + u64::from(is_part))
        }
    };
    let learning = match raw.learning_mode_duration {
        None => whole,
        Some(given) if given > SECONDS_MAX => {
            mistakes.add(
                "algorithm.learning_mode_duration",
                format!("is {given} s: it must be at most {SECONDS_MAX}"),
            );
            whole
        }
        Some(given) => Duration::from_secs(u64::try_from(given).unwrap_or(0)),
    };
    let reserve = parameters.clients.and_then(|clients| {
        let configured = safe_capacity.and_then(|given| Capacity::new(given).ok());
        let Some(share) = parameters.share.or(configured) else {
            mistakes.add(
                "algorithm.parameters.reserved_clients",
                "needs to know what to set aside for each: give safe_share or safe_capacity",
            );
            return None;
        };
        Some(Reserve { clients, share })
    });
    Algorithm {
        split,
        lease,
        refresh,
        learning,
        decay: parameters.decay.unwrap_or(default.decay),
        level: parameters.level.unwrap_or(0),
        by_priority: parameters.by_priority.unwrap_or(default.by_priority),
        frees,
        reserve,
        each: parameters.each,
    }
}

/// How the capacity is shared; none if what is said of it is a mistake.
fn split_of(kind: Option<RawKind>, mistakes: &mut Mistakes) -> Option<Split> {
    let kind = match kind.unwrap_or(RawKind::Number(0)) {
        RawKind::Name(name) => Kind::from_str_name(&name.to_ascii_uppercase()).ok_or_else(|| {
            format!(
                "is {name:?}: it must be NO_ALGORITHM, STATIC, PROPORTIONAL_SHARE or FAIR_SHARE"
            )
        }),
        RawKind::Number(number) => i32::try_from(number)
            .ok()
            .and_then(|number| Kind::try_from(number).ok())
            .ok_or_else(|| format!("is {number}: it must be a number from 0 to 3")),
    };
    mistakes.keep("algorithm.kind", kind).map(Split::from)
}

impl From<Kind> for Split {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::NoAlgorithm => Self::None,
            Kind::Static => Self::Static,
            Kind::ProportionalShare => Self::Proportional,
            Kind::FairShare => Self::Fair,
        }
    }
}

impl From<Split> for Kind {
    fn from(split: Split) -> Self {
        match split {
            Split::None => Self::NoAlgorithm,
            Split::Static => Self::Static,
            Split::Proportional => Self::ProportionalShare,
            Split::Fair => Self::FairShare,
        }
    }
}

/// A required span of at least a second: of a field, else of a parameter.
fn span(
    field: (&str, Option<i64>),
    parameter: (&str, Option<i64>),
    mistakes: &mut Mistakes,
) -> Option<Duration> {
    let (key, given) = if field.1.is_some() { field } else { parameter };
    let Some(given) = given else {
        let problem = "is missing: give it in whole seconds";
        mistakes.add(format!("algorithm.{}", field.0), problem);
        return None;
    };
    if !(1..=SECONDS_MAX).contains(&given) {
        mistakes.add(
            format!("algorithm.{key}"),
            format!("is {given} s: it must be from 1 to {SECONDS_MAX}"),
        );
        return None;
    }
    Some(Duration::from_secs(u64::try_from(given).unwrap_or(1)))
}
