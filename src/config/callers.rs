//! Callers and what calls cost: `[callers]`, `[[caller]]`, `[costs]` and `[profiles]`, from the
//! file to the settings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::CostModel;
use tidegate_callers::{
    AutoRegister, Field, FieldSet, Group, Label, NewCaller, Notes, Pattern, PatternText, Table,
    TableError,
};
use tidegate_limits::bucket::{OutOfRange, TokenCount};
use tidegate_limits::{Burst, Fill, Weight};

use crate::callers::rate_limit::{Allowance, Profile};
use crate::callers::settings::{Costs, Settings, StaticCaller};
use crate::classify::OTHER;

use super::effective::{Toml, quoted as toml_quoted};
use super::functions::Functions;
use super::nearest::nearest;
use super::per_window::function_name;
use super::quotas;
use super::rate_limits;
use super::raw::{Callers, Raw};
use super::reader::{At, Notes as Problems, Section, Setting};
use super::text::{name, state_file};
use super::tree::{self, Node, Value, quoted};
use super::value::{Kind, Mistake, flag, integer, number, text};

/// Most callers in the config; each has one pattern at least, and so many are kept.
const CALLERS_MAX: usize = 10_000;
/// Most rows that may register themselves in a second.
const PER_SECOND_MAX: u16 = 1000;
/// Most turns for one of an ordinary caller.
const WEIGHT_MAX: u32 = 1_000_000;
/// Most functions with a cost of their own; each is a label in the metrics.
const FUNCTIONS_MAX: usize = 1024;
/// Most profiles.
const PROFILES_MAX: usize = 256;

/// What stands in `[profiles]` unless the config says otherwise. Not measured: somewhere to
/// begin.
const PROFILES: [(&str, Option<(f64, f64)>); 5] = [
    ("unlimited", None),
    ("interactive", Some((200.0, 20.0))),
    ("poller", Some((30.0, 3.0))),
    ("batch", Some((600.0, 5.0))),
    ("quarantine", Some((5.0, 0.2))),
];

const PROFILE_FORM: &str = "{ burst = tokens, fill = tokens per second }, or { exempt = true }";

/// One `[[caller]]`.
pub(super) struct RawCaller {
    at: At,
    label: Setting<Option<Label>>,
    patterns: Setting<Vec<Pattern>>,
    groups: Setting<Vec<Group>>,
    rate_limit: Setting<Option<String>>,
    weight: Setting<Option<u32>>,
}

/// `[costs]`
pub(super) struct RawCosts {
    pub(super) default: Setting<TokenCount>,
    unit_seconds: Setting<Duration>,
    settle: Setting<bool>,
    /// By function, in the order of their names.
    pub(super) functions: Setting<Vec<(String, TokenCount)>>,
}

/// `[profiles]`
pub(super) struct RawProfiles {
    pub(super) list: Vec<(String, Allowance)>,
    /// Whether all of them could be read, so that a name that is none of them is a mistake.
    pub(super) sound: bool,
}

/// By which fields callers are told apart.
pub(super) fn identify() -> Kind<FieldSet> {
    let words: Vec<_> = Field::ALL.iter().map(|it| quoted(it.name())).collect();
    let allowed = format!("a list of {}", words.join(", "));
    let cure = format!("give {allowed}");
    Kind {
        allowed,
        read: Box::new(move |node| {
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, cure.clone()));
            };
            let field = |item: &Node| {
                let word = item.text().and_then(Field::from_name);
                word.ok_or_else(|| {
                    let told = format!("{} is not one of the words", item.told());
                    let near = item.text().and_then(|given| {
                        nearest(given, Field::ALL.iter().map(|field| field.name()))
                    });
                    match near {
                        Some(near) => Mistake::new(told, format!("did you mean {}?", quoted(near))),
                        None => Mistake::new(told, cure.clone()),
                    }
                })
            };
            list.iter().map(field).collect()
        }),
    }
}

/// How many callers may register themselves.
pub(super) fn auto_register() -> Kind<AutoRegister> {
    let whole = integer(-1..=i64::from(AutoRegister::MAX.rows()));
    Kind {
        allowed: whole.allowed,
        read: Box::new(move |node| {
            let given = (whole.read)(node)?;
            Ok(AutoRegister::from_config(given).expect("it is within the range"))
        }),
    }
}

/// How many of them in a second.
pub(super) fn auto_register_per_s() -> Kind<u16> {
    integer(0..=PER_SECOND_MAX)
}

pub(super) fn read_state_file(section: &mut Section<'_>) -> Setting<Option<PathBuf>> {
    section.read("state_file", None, state_file().optional())
}

impl RawCosts {
    /// Whether what calls cost is what the operator meant.
    pub(super) fn is_read(&self) -> bool {
        self.default.sound && self.functions.sound
    }
}

/// Every `[[caller]]`.
pub(super) fn callers(root: &mut Section<'_>) -> Vec<RawCaller> {
    let list = root.sections("caller", CALLERS_MAX).unwrap_or_default();
    list.into_iter().map(caller).collect()
}

fn caller(mut section: Section<'_>) -> RawCaller {
    let caller = RawCaller {
        at: section.at().clone(),
        label: section.read("label", None, label().optional()),
        patterns: patterns(&mut section),
        groups: section.read("groups", Vec::new(), groups()),
        rate_limit: section.read("rate_limit", None, rate_limit_name().optional()),
        weight: section.read("weight", None, integer(1..=WEIGHT_MAX).optional()),
    };
    section.finish();
    caller
}

fn label() -> Kind<Label> {
    text(
        "1 to 128 bytes without control characters",
        "nova's poller",
        |given| {
            Label::new(given).map_err(|mistake| {
                Mistake::new(
                    mistake.to_string(),
                    "give up to 128 bytes of text, such as \"nova's poller\"",
                )
            })
        },
    )
}

fn groups() -> Kind<Vec<Group>> {
    const CURE: &str = "give names of letters, digits, \"_\", \"-\" or \".\" in quotes, such as \
                        [\"monitoring\"]";
    Kind {
        allowed: "a list of up to 16 names".to_owned(),
        read: Box::new(|node| {
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, CURE));
            };
            let group = |item: &Node| {
                let text = item.text().ok_or_else(|| {
                    Mistake::new(format!("{} is not a string", item.told()), CURE)
                })?;
                Group::new(text).map_err(|mistake| Mistake::new(mistake.to_string(), CURE))
            };
            list.iter().map(group).collect()
        }),
    }
}

fn rate_limit_name() -> Kind<String> {
    let plain = name();
    Kind {
        allowed: "the name of a [[rate_limit]]".to_owned(),
        read: plain.read,
    }
}

/// `match`: one table of patterns, or several.
fn patterns(section: &mut Section<'_>) -> Setting<Vec<Pattern>> {
    const FORM: &str = "{ user, originator, ip, user_agent, listener } of patterns, or a list of \
                        such tables";
    const CURE: &str = "write it as { listener = \"nova-poll\" }, with any of user, originator, ip, \
                        user_agent, listener";
    let notes = section.notes();
    let (node, at, trusted) = section.bare("match", FORM);
    let mut patterns = Setting {
        value: Vec::new(),
        given: node.is_some(),
        sound: trusted,
        at,
    };
    let Some(node) = node.filter(|_| trusted) else {
        return patterns;
    };
    let tables: Vec<&Node> = match &node.value {
        Value::Table(_) => vec![node],
        Value::List(list) => list.iter().collect(),
        _ => Vec::new(),
    };
    if tables.is_empty() {
        let told = match &node.value {
            Value::List(_) => "the list is empty".to_owned(),
            _ => format!("{} is neither a table nor a list of tables", node.told()),
        };
        notes.error(&patterns.at, Mistake::new(told, CURE));
        patterns.sound = false;
    }
    for table in tables {
        match pattern(table, &patterns.at, CURE) {
            Ok(pattern) => patterns.value.push(pattern),
            Err(mistakes) => {
                patterns.sound = false;
                for (at, mistake) in mistakes {
                    notes.error(&at, mistake);
                }
            }
        }
    }
    patterns
}

fn pattern(node: &Node, at: &At, cure: &str) -> Result<Pattern, Vec<(At, Mistake)>> {
    let here = At {
        key: at.key.clone(),
        place: node.place.clone(),
    };
    let Value::Table(table) = &node.value else {
        let told = format!("{} is not a table", node.told());
        return Err(vec![(here, Mistake::new(told, cure))]);
    };
    let mut mistakes = Vec::new();
    let mut parts = [""; Field::ALL.len()];
    for (key, value) in table {
        let at = At {
            key: format!("{}.{}", at.key, tree::shortened(key)),
            place: value.place.clone(),
        };
        let Some(field) = Field::from_name(key) else {
            let told = format!("there is no field {} here", quoted(key));
            let cure = match xapi_name(key) {
                Some(ours) => format!("this is {ours} here"),
                None => match nearest(key, Field::ALL.iter().map(|field| field.name())) {
                    Some(near) => format!("did you mean {}?", quoted(near)),
                    None => cure.to_owned(),
                },
            };
            mistakes.push((at, Mistake::new(told, cure)));
            continue;
        };
        match value.text() {
            Some(text) => parts[field as usize] = text,
            None => {
                let told = format!("{} is not a string", value.told());
                mistakes.push((at, Mistake::new(told, "give a pattern in quotes")));
            }
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let [user, originator, ip, user_agent, listener] = parts;
    let text = PatternText {
        user,
        originator,
        ip,
        user_agent,
        listener,
    };
    Pattern::parse(&text).map_err(|wrong| {
        let mistake = |wrong: tidegate_callers::PatternError| {
            let field = table.get(wrong.field());
            let at = At {
                key: match field {
                    Some(_) => format!("{}.{}", at.key, wrong.field()),
                    None => at.key.clone(),
                },
                place: field.map_or_else(|| here.place.clone(), |it| it.place.clone()),
            };
            (at, Mistake::new(wrong.to_string(), cure))
        };
        wrong.into_iter().map(mistake).collect()
    })
}

/// What the fields are called where this design comes from.
fn xapi_name(name: &str) -> Option<&'static str> {
    match name {
        "host_ip" | "client_ip" => Some("ip"),
        "name_label" => Some("label, beside match"),
        _ => None,
    }
}

pub(super) fn burst() -> Kind<Burst> {
    number("0.000001 to 1000000000", |given| {
        Burst::new(given).map_err(|_: OutOfRange| ())
    })
}

pub(super) fn fill() -> Kind<Fill> {
    number("0.000001 to 1000000000", |given| {
        Fill::new(given).map_err(|_: OutOfRange| ())
    })
}

fn cost() -> Kind<TokenCount> {
    number("0 to 1000000", |given| {
        let cost = TokenCount::new(given).filter(|_| given <= CostModel::COST_MAX);
        cost.ok_or(())
    })
}

/// `[costs]`
pub(super) fn costs(mut section: Section<'_>) -> RawCosts {
    let unit = number("0.001 to 3600", |given| {
        let is_within = (0.001..=3600.0).contains(&given);
        is_within.then(|| Duration::from_secs_f64(given)).ok_or(())
    });
    let costs = RawCosts {
        default: section.read("default", TokenCount::ONE, cost()),
        unit_seconds: section.read("unit_seconds", CostModel::UNIT, unit),
        settle: section.read("settle", false, flag()),
        functions: function_costs(&mut section),
    };
    section.finish();
    costs
}

fn function_costs(section: &mut Section<'_>) -> Setting<Vec<(String, TokenCount)>> {
    let notes = section.notes();
    let (node, at, trusted) = section.bare("functions", "{ function = tokens, … }");
    let mut costs = Setting {
        value: Vec::new(),
        given: node.is_some(),
        sound: trusted,
        at,
    };
    let Some(node) = node.filter(|_| trusted) else {
        return costs;
    };
    let Value::Table(table) = &node.value else {
        let told = format!("{} is not a table", node.told());
        let cure = "write [costs.functions] on a line of its own, and below it lines such as \
                    guest_start = 20";
        notes.error(&costs.at, Mistake::new(told, cure));
        costs.sound = false;
        return costs;
    };
    if table.len() > FUNCTIONS_MAX {
        let told = format!("{} functions have a cost", table.len());
        let mistake = Mistake::new(told, format!("give at most {FUNCTIONS_MAX}"));
        notes.error(&costs.at, mistake);
        costs.sound = false;
    }
    for (name, node) in table {
        let at = At {
            key: format!("{}.{}", costs.at.key, tree::shortened(name)),
            place: node.place.clone(),
        };
        match function_name(name).and_then(|()| (cost().read)(node)) {
            Ok(cost) => costs.value.push((name.clone(), cost)),
            Err(mistake) => {
                notes.error(&at, mistake);
                costs.sound = false;
            }
        }
    }
    costs
}

/// `[profiles]`
pub(super) fn profiles(mut section: Section<'_>) -> RawProfiles {
    let mut profiles = RawProfiles {
        list: Vec::new(),
        sound: true,
    };
    for (name, size) in PROFILES {
        let default = match size {
            None => Allowance::Exempt,
            Some((burst, fill)) => Allowance::Bucket {
                burst: Burst::new(burst).expect("a burst"),
                fill: Fill::new(fill).expect("a fill rate"),
            },
        };
        let setting = section.read(name, default, profile());
        profiles.sound &= setting.sound;
        profiles.list.push((name.to_owned(), setting.value));
    }
    let notes = section.notes();
    let others = section.others();
    if others.len() > PROFILES_MAX {
        let told = format!("there are {} profiles", others.len());
        let mistake = Mistake::new(told, format!("give at most {PROFILES_MAX}"));
        notes.error(section.at(), mistake);
        profiles.sound = false;
    }
    for (key, node, at) in others {
        let read = || {
            let letters = Node {
                value: Value::Text(key.to_owned()),
                letters: None,
                ..node.clone()
            };
            let name = (name().read)(&letters)?;
            Ok((name, (profile().read)(node)?))
        };
        match read() {
            Ok(profile) => profiles.list.push(profile),
            Err(mistake) => {
                notes.error(&at, mistake);
                profiles.sound = false;
            }
        }
    }
    section.finish();
    profiles
}

fn profile() -> Kind<Allowance> {
    let read = |node: &Node| {
        let wrong = |told: String| Mistake::new(told, format!("write it as {PROFILE_FORM}"));
        let Value::Table(table) = &node.value else {
            return Err(wrong(format!("{} is not a table", node.told())));
        };
        if let Some(key) = table
            .keys()
            .find(|key| !["burst", "fill", "exempt"].contains(&key.as_str()))
        {
            return Err(wrong(format!("there is no {} in a profile", quoted(key))));
        }
        let exempt = match table.get("exempt") {
            Some(node) => (flag().read)(node)?,
            None => false,
        };
        match (exempt, table.get("burst"), table.get("fill")) {
            (true, None, None) => Ok(Allowance::Exempt),
            (true, ..) => Err(wrong("what is exempt has no bucket".to_owned())),
            (false, Some(burst), Some(fill)) => Ok(Allowance::Bucket {
                burst: (self::burst().read)(burst)?,
                fill: (self::fill().read)(fill)?,
            }),
            (false, None, _) => Err(wrong("burst is not given".to_owned())),
            (false, _, None) => Err(wrong("fill is not given".to_owned())),
        }
    };
    Kind {
        allowed: PROFILE_FORM.to_owned(),
        read: Box::new(read),
    }
}

/// What depends on two options at once.
pub(super) fn check(raw: &Raw, functions: &Functions<'_>, notes: &Problems) {
    for caller in &raw.caller {
        caller_is_whole(caller, notes);
        rate_limits::exists_for(&caller.rate_limit, &raw.rate_limits, notes);
        listeners_exist(caller, raw, notes);
    }
    callers_are_apart(&raw.caller, notes);
    costs_are_of_functions(raw, functions, notes);
}

fn caller_is_whole(caller: &RawCaller, notes: &Problems) {
    if caller.label.is_missing() {
        let cure = "add what people call it, such as label = \"nova's poller\"";
        notes.missing(&caller.at, Mistake::new("the caller has no label", cure));
    }
    if caller.patterns.sound && !caller.patterns.given {
        let cure = "add whom it stands for, such as match = { listener = \"nova-poll\" }";
        notes.missing(&caller.at, Mistake::new("the caller has no match", cure));
    }
}

fn listeners_exist(caller: &RawCaller, raw: &Raw, notes: &Problems) {
    let Some(listeners) = &raw.listen else {
        return;
    };
    if listeners.iter().any(|listener| !listener.name.sound) {
        return;
    }
    let names = || listeners.iter().filter_map(|it| it.name.value.as_deref());
    for pattern in &caller.patterns.value {
        let Some(listener) = pattern.text(Field::Listener) else {
            continue;
        };
        let literal = listener.literal();
        if listener.is_any() || !listener.is_exact() || names().any(|name| name == literal) {
            continue;
        }
        let told = format!("no listener is called {}", quoted(literal));
        let cure = match nearest(literal, names()) {
            Some(near) => format!("did you mean {}?", quoted(near)),
            None => "give the name of a [[listen]]".to_owned(),
        };
        notes.warn(&caller.patterns.at, Mistake::new(told, cure));
    }
}

fn callers_are_apart(callers: &[RawCaller], notes: &Problems) {
    let rows: Vec<(&RawCaller, NewCaller)> = callers
        .iter()
        .filter_map(|raw| {
            let label = raw.label.meant()?.clone()?;
            let patterns = raw.patterns.meant()?.clone();
            (!patterns.is_empty()).then(|| {
                let row = NewCaller {
                    label,
                    groups: raw.groups.value.clone(),
                    notes: Notes::default(),
                    patterns,
                    charge: tidegate_callers::Charge::None,
                };
                (raw, row)
            })
        })
        .collect();
    const CURE: &str = "change one of them";
    for (raw, row) in &rows {
        for mistake in Table::check_static(std::slice::from_ref(row)) {
            let at = match &mistake {
                TableError::TooManyGroups { .. } => &raw.groups.at,
                _ => &raw.patterns.at,
            };
            notes.error(at, Mistake::new(mistake.to_string(), "take some out"));
        }
    }
    let (raws, rows): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    for mistake in Table::check_static(&rows) {
        // The later of the two is the one that is too many.
        let last = |label: &Label| rows.iter().rposition(|row| row.label == *label);
        let at = match &mistake {
            TableError::LabelRepeated(label) => last(label).map(|at| &raws[at].label.at),
            TableError::PatternShared { other, .. } => last(other).map(|at| &raws[at].patterns.at),
            TableError::Full => raws.last().map(|raw| &raw.patterns.at),
            // Told above.
            _ => None,
        };
        if let Some(at) = at {
            notes.error(at, Mistake::new(mistake.to_string(), CURE));
        }
    }
}

fn costs_are_of_functions(raw: &Raw, functions: &Functions<'_>, notes: &Problems) {
    for (name, _) in &raw.costs.functions.value {
        if let Some(doubt) = functions.doubt(name, Some(OTHER)) {
            notes.warn(&raw.costs.functions.at, doubt);
        }
    }
}

/// The settings of a config that has no error. `functions` are those that are told apart.
pub(super) fn settings<'a>(raw: &Raw, functions: impl Iterator<Item = &'a str>) -> Settings {
    let profiles: Vec<Profile> = raw
        .profiles
        .list
        .iter()
        .map(|(name, allowance)| Profile {
            name: name.as_str().into(),
            allowance: *allowance,
        })
        .collect();
    let Callers {
        identify,
        auto_register,
        auto_register_per_s,
        state_file,
        ..
    } = &raw.callers;
    Settings {
        table: tidegate_callers::TableSettings {
            auto_register: auto_register.value,
            auto_register_per_second: auto_register_per_s.value,
            identify: identify.value,
        },
        callers: raw.caller.iter().map(static_caller).collect(),
        rate_limits: rate_limits::of_callers(&raw.rate_limits, &profiles),
        quotas: quotas::of_claims(raw),
        reserved: rate_limits::not_of_callers(&raw.rate_limits),
        profiles,
        costs: costs_of(&raw.costs),
        functions: functions.map(Arc::from).collect(),
        state_file: state_file.value.clone(),
    }
}

/// What calls cost.
pub(super) fn costs_of(raw: &RawCosts) -> Costs {
    let functions = raw.functions.value.iter();
    Costs {
        default: raw.default.value,
        functions: functions
            .map(|(name, cost)| (name.as_str().into(), *cost))
            .collect(),
        unit: raw.unit_seconds.value,
        settle: raw.settle.value,
    }
}

fn static_caller(raw: &RawCaller) -> StaticCaller {
    let label = raw.label.value.clone();
    StaticCaller {
        label: label.expect("a caller without a label is an error"),
        patterns: raw.patterns.value.clone(),
        groups: raw.groups.value.clone(),
        rate_limit: raw.rate_limit.value.as_deref().map(Arc::from),
        weight: raw.weight.value.and_then(Weight::new),
    }
}

/// Writes the settings as the config that says them, but for the section `[callers]`.
pub(super) fn write(out: &mut Toml, settings: &Settings) {
    out.header("[costs]");
    let costs = &settings.costs;
    out.bare("default", costs.default.tokens());
    out.bare("unit_seconds", costs.unit.as_secs_f64());
    out.bare("settle", costs.settle);
    if !costs.functions.is_empty() {
        out.header("[costs.functions]");
        for (name, cost) in &costs.functions {
            out.bare(&toml_quoted(name), cost.tokens());
        }
    }
    out.header("[profiles]");
    for profile in &settings.profiles {
        out.bare(&toml_quoted(&profile.name), allowance(profile.allowance));
    }
    for limit in &settings.rate_limits {
        out.header("[[rate_limit]]");
        rate_limits::write(out, limit);
    }
    for caller in &settings.callers {
        out.header("[[caller]]");
        write_caller(out, caller);
    }
}

/// Writes what stands in the section `[callers]`.
pub(super) fn write_section(out: &mut Toml, settings: &Settings) {
    let identify = settings.table.identify.iter();
    let identify: Vec<_> = identify.map(|field| toml_quoted(field.name())).collect();
    out.bare("identify", format_args!("[{}]", identify.join(", ")));
    out.bare("auto_register", settings.table.auto_register.rows());
    out.bare(
        "auto_register_per_s",
        settings.table.auto_register_per_second,
    );
    if let Some(path) = &settings.state_file {
        // What was read from a config is UTF-8.
        out.text("state_file", &path.to_string_lossy());
    }
}

fn allowance(allowance: Allowance) -> String {
    match allowance {
        Allowance::Exempt => "{ exempt = true }".to_owned(),
        Allowance::Paced { .. } => unreachable!("a profile is the size of a bucket"),
        Allowance::Bucket { burst, fill } => {
            format!("{{ burst = {}, fill = {} }}", burst.get(), fill.get())
        }
    }
}

fn write_caller(out: &mut Toml, caller: &StaticCaller) {
    out.text("label", caller.label.as_str());
    let patterns: Vec<_> = caller.patterns.iter().map(pattern_table).collect();
    out.bare("match", format_args!("[{}]", patterns.join(", ")));
    let groups = caller
        .groups
        .iter()
        .map(|group| toml_quoted(group.as_str()));
    let groups: Vec<_> = groups.collect();
    out.bare("groups", format_args!("[{}]", groups.join(", ")));
    if let Some(rate_limit) = &caller.rate_limit {
        out.text("rate_limit", rate_limit);
    }
    if let Some(weight) = caller.weight {
        out.bare("weight", weight.get());
    }
}

fn pattern_table(pattern: &Pattern) -> String {
    let fields = pattern.fields();
    let field = |field: Field| format!("{field} = {}", toml_quoted(&pattern.written(field)));
    let fields: Vec<_> = fields.iter().map(field).collect();
    format!("{{ {} }}", fields.join(", "))
}
