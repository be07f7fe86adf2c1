//! Requests as read and checked: each value from this module is valid on its own, and only the
//! current state can be an obstacle.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tidegate_callers::{
    CallerId, Charge, Group, Identity, IdentityBuf, Label, NewCaller, Notes, Patch, Pattern,
    PatternText,
};
use tidegate_callers::{Headroom, Span};
use tidegate_limits::bucket::OutOfRange;
use tidegate_limits::pace::BurstRatio;
use tidegate_limits::scheduler::{BucketMode, BucketOrder, OnExcess, Settlement};
use tidegate_limits::{Burst, Fill, Tokens, Weight};

use super::json::{self, Fields, Value, cut};
use super::state::{DEADLINES, EXCESSES, KINDS, MODES, ORDERS, RateLimitKind, SPANS};
use super::{CallId, Refused, What};
use crate::call::claim::{Deadline, RateLimitId};
use crate::call::sdk::NAME_MAX;

/// The maximum number of patterns of one caller.
const PATTERNS_MAX: usize = 256;
/// The maximum number of groups of one caller.
const GROUPS_MAX: usize = 16;
/// The maximum number of callers in one request.
const CALLERS_MAX: usize = 10_000;
/// The maximum number of functions with their own cost.
const FUNCTIONS_MAX: usize = 1_024;
/// The longest text that identifies a caller.   bytes
const SEEN_MAX: usize = 256;
/// The maximum number of rows in one answer, and the default.
const ROWS_MAX: usize = 10_000;
const ROWS: usize = 1_000;
/// The maximum number of keys of each quota in one answer, and the default.
const QUOTA_KEYS: usize = 100;

/// A change of a caller; `None` keeps a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerPatch {
    /// What to change of its row.
    pub row: Patch,
    /// Its turns for one turn of an ordinary caller; the inner `None` takes the weight of less
    /// specific callers.
    pub weight: Option<Option<Weight>>,
}

/// A merge of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The caller that remains.
    pub into: CallerId,
    /// The callers whose patterns and figures it takes over.
    pub from: Vec<CallerId>,
    /// Its new label.
    pub label: Option<Label>,
}

/// A new rate limit.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRateLimit {
    /// Its name in metrics and in refusals; its id if absent.
    pub label: Option<Label>,
    /// The source of its figures.
    pub rate: Rate,
    /// The callers that are charged to it.
    pub callers: Vec<CallerId>,
    /// How it works.
    pub rules: Rules,
}

/// The source of the figures of a rate limit.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// From a profile.
    Profile(String),
    /// These figures.
    Bucket {
        /// The most tokens at once.
        burst: Burst,
        /// Tokens a second.
        fill: Fill,
    },
    /// A pace.
    Paced {
        /// Tokens a second.
        rate: tidegate_limits::pace::Rate,
        /// The burst ratio: late calls are admitted at this many times the rate.
        ratio: BurstRatio,
    },
    /// From the usage of a caller.
    Derived(Derive),
    /// No figures: it admits everything.
    Exempt,
}

/// The basis of a derived limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Derive {
    /// The caller.
    pub caller: CallerId,
    /// The span.
    pub span: Span,
    /// The factor by which the limit fills faster.
    pub headroom: Headroom,
}

/// The settings of a rate limit other than its figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether it delays calls.
    pub mode: BucketMode,
    /// What happens to a call without tokens.
    pub on_excess: OnExcess,
    /// The order of its waiting calls.
    pub order: BucketOrder,
    /// Whether calls are charged their final cost; `None` uses the setting of the costs.
    pub settlement: Option<Settlement>,
    /// How long a call may wait.
    pub deadline: Deadline,
}

/// A change of a rate limit; `None` keeps a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimitPatch {
    /// Its name.
    pub label: Option<Label>,
    /// Its figures.
    pub rate: Option<RatePatch>,
    /// See [`Rules::mode`].
    pub mode: Option<BucketMode>,
    /// See [`Rules::on_excess`].
    pub on_excess: Option<OnExcess>,
    /// See [`Rules::order`].
    pub order: Option<BucketOrder>,
    /// See [`Rules::settlement`].
    pub settlement: Option<Option<Settlement>>,
    /// See [`Rules::deadline`].
    pub deadline: Option<Deadline>,
}

/// New figures for a rate limit.
#[derive(Clone, Debug, PartialEq)]
pub enum RatePatch {
    /// From a profile.
    Profile(String),
    /// One of these, or both; it no longer has a profile.
    Bucket {
        /// The most tokens at once.
        burst: Option<Burst>,
        /// Tokens a second.
        fill: Option<Fill>,
    },
    /// One of these, or both, of a pace; it no longer has a profile.
    Paced {
        /// Tokens a second.
        rate: Option<tidegate_limits::pace::Rate>,
        /// The burst ratio: late calls are admitted at this many times the rate.
        ratio: Option<BurstRatio>,
    },
    /// None: it admits everything.
    Exempt,
}

/// The new costs of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Of every other function.
    pub default: Tokens,
    /// The backend's time of one token; above 0, at most an hour.
    pub unit: Duration,
    /// Whether calls are charged their final cost, unless their rate limit says otherwise.
    pub settle: bool,
    /// By function.
    pub functions: BTreeMap<String, Tokens>,
}

/// A possible call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The identity of such a client's call.
    pub identity: IdentityBuf,
    /// Its function; without one it has the default cost.
    pub function: Option<String>,
}

/// The callers to list, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) sort: Sort,
    pub(super) auto: Option<bool>,
    pub(super) group: Option<String>,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

/// The sort order of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Id,
    Label,
    LastAccess,
    Calls(Column),
    Tokens(Column),
}

/// The figure of [`super::state::Spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    FiveMinutes,
    Hour,
    Day,
    Total,
}

const SORTS: [(&str, Sort); 11] = [
    ("id", Sort::Id),
    ("label", Sort::Label),
    ("last_access", Sort::LastAccess),
    ("calls_5m", Sort::Calls(Column::FiveMinutes)),
    ("calls_1h", Sort::Calls(Column::Hour)),
    ("calls_24h", Sort::Calls(Column::Day)),
    ("calls_total", Sort::Calls(Column::Total)),
    ("tokens_5m", Sort::Tokens(Column::FiveMinutes)),
    ("tokens_1h", Sort::Tokens(Column::Hour)),
    ("tokens_24h", Sort::Tokens(Column::Day)),
    ("tokens_total", Sort::Tokens(Column::Total)),
];

// Bodies.

/// `POST /v1/callers`
pub(super) fn new_caller(body: Value) -> Result<(NewCaller, Option<Weight>), Refused> {
    let mut fields = body.fields(&["label", "match", "groups", "notes", "weight"])?;
    let new = NewCaller {
        label: label(fields.need("label")?)?,
        patterns: patterns(fields.need("match")?)?,
        groups: optional(&mut fields, "groups", groups)?.unwrap_or_default(),
        notes: optional(&mut fields, "notes", notes)?.unwrap_or_default(),
        charge: Charge::None,
    };
    let weight = optional(&mut fields, "weight", |it| it.or_null(weight))?;
    Ok((new, weight.flatten()))
}

/// `PATCH /v1/callers/{id}`
pub(super) fn caller_patch(body: Value) -> Result<CallerPatch, Refused> {
    let mut fields = body.fields(&["label", "groups", "notes", "weight"])?;
    Ok(CallerPatch {
        row: Patch {
            label: optional(&mut fields, "label", label)?,
            groups: optional(&mut fields, "groups", groups)?,
            notes: optional(&mut fields, "notes", notes)?,
            charge: None,
        },
        weight: optional(&mut fields, "weight", |it| it.or_null(weight))?,
    })
}

/// `POST /v1/callers/merge`
pub(super) fn merge(body: Value) -> Result<Merge, Refused> {
    let mut fields = body.fields(&["into", "from", "label"])?;
    let from = fields.need("from")?;
    let path = from.path().to_owned();
    let merge = Merge {
        into: caller(fields.need("into")?)?,
        from: callers(from)?,
        label: optional(&mut fields, "label", label)?,
    };
    if merge.from.is_empty() {
        return Err(Refused::invalid(path, "must name one caller or more"));
    }
    // Each value is valid, as the OpenAPI document describes it; only the combination is not.
    if merge.from.contains(&merge.into) {
        return Err(Refused::Conflict {
            field: path,
            reason: "a caller cannot be merged with itself; leave `into` out of `from`".to_owned(),
        });
    }
    Ok(merge)
}

/// `POST /v1/rate-limits`
pub(super) fn new_rate_limit(body: Value) -> Result<NewRateLimit, Refused> {
    let mut fields = body.fields(&[
        "label",
        "kind",
        "profile",
        "burst",
        "fill",
        "rate",
        "ratio",
        "derive",
        "exempt",
        "callers",
        "mode",
        "on_excess",
        "order",
        "settle",
        "deadline",
    ])?;
    Ok(NewRateLimit {
        label: optional(&mut fields, "label", label)?,
        rate: rate(&mut fields)?,
        callers: optional(&mut fields, "callers", callers)?.unwrap_or_default(),
        rules: Rules {
            mode: optional(&mut fields, "mode", |it| it.choice(&MODES))?.unwrap_or_default(),
            on_excess: optional(&mut fields, "on_excess", |it| it.choice(&EXCESSES))?
                .unwrap_or_default(),
            order: optional(&mut fields, "order", |it| it.choice(&ORDERS))?.unwrap_or_default(),
            settlement: optional(&mut fields, "settle", |it| it.or_null(settlement))?.flatten(),
            deadline: optional(&mut fields, "deadline", |it| it.choice(&DEADLINES))?
                .unwrap_or_default(),
        },
    })
}

/// `PATCH /v1/rate-limits/{id}`
pub(super) fn rate_limit_patch(body: Value) -> Result<RateLimitPatch, Refused> {
    let mut fields = body.fields(&[
        "label",
        "kind",
        "profile",
        "burst",
        "fill",
        "rate",
        "ratio",
        "exempt",
        "mode",
        "on_excess",
        "order",
        "settle",
        "deadline",
    ])?;
    Ok(RateLimitPatch {
        label: optional(&mut fields, "label", label)?,
        rate: rate_patch(&mut fields)?,
        mode: optional(&mut fields, "mode", |it| it.choice(&MODES))?,
        on_excess: optional(&mut fields, "on_excess", |it| it.choice(&EXCESSES))?,
        order: optional(&mut fields, "order", |it| it.choice(&ORDERS))?,
        settlement: optional(&mut fields, "settle", |it| it.or_null(settlement))?,
        deadline: optional(&mut fields, "deadline", |it| it.choice(&DEADLINES))?,
    })
}

/// `PUT /v1/costs`
pub(super) fn costs(body: Value) -> Result<Costs, Refused> {
    let mut fields = body.fields(&["default", "unit_seconds", "settle", "functions"])?;
    Ok(Costs {
        default: tokens(fields.need("default")?)?,
        unit: unit(fields.need("unit_seconds")?)?,
        settle: fields.need("settle")?.flag()?,
        functions: function_costs(fields.need("functions")?)?,
    })
}

/// `POST /v1/classify`
pub(super) fn question(body: Value) -> Result<Question, Refused> {
    let mut fields =
        body.fields(&["ip", "user_agent", "originator", "user", "listener", "call"])?;
    let ip = optional(&mut fields, "ip", address)?.flatten();
    let mut text = |name| optional(&mut fields, name, seen);
    let (user, originator) = (text("user")?, text("originator")?);
    let (user_agent, listener) = (text("user_agent")?, text("listener")?);
    let mut identity = Identity::default()
        .with_user(user.as_deref().unwrap_or_default())
        .with_originator(originator.as_deref().unwrap_or_default())
        .with_user_agent(user_agent.as_deref().unwrap_or_default())
        .with_listener(listener.as_deref().unwrap_or_default());
    if let Some(ip) = ip {
        identity = identity.with_ip(ip);
    }
    Ok(Question {
        identity: identity.into(),
        function: optional(&mut fields, "call", function)?,
    })
}

// Queries.

/// The parameters of a query, each at most once and none but these.
pub(super) fn query<const N: usize>(
    given: Vec<(String, String)>,
    known: [&str; N],
) -> Result<[Option<String>; N], Refused> {
    let mut found = [const { None }; N];
    for (name, value) in given {
        let Some(place) = known.iter().position(|known| *known == name) else {
            let told = match N {
                0 => "is unknown; there are no parameters here".to_owned(),
                _ => format!("is unknown; known are {}", known.join(", ")),
            };
            return Err(Refused::invalid(cut(&name), told));
        };
        if found[place].replace(value).is_some() {
            return Err(Refused::invalid(name, "is there twice"));
        }
    }
    Ok(found)
}

/// `GET /v1/callers?…`
pub(super) fn listing(given: Vec<(String, String)>) -> Result<Listing, Refused> {
    let known = ["sort", "auto", "group", "offset", "limit"];
    let [sort, auto, group, offset, limit] = query(given, known)?;
    Ok(Listing {
        sort: chosen("sort", sort, &SORTS)?.unwrap_or(Sort::Id),
        auto: chosen("auto", auto, &[("true", true), ("false", false)])?,
        group: group.map(|it| group_name("group", &it)).transpose()?,
        offset: whole("offset", offset, 0, usize::from(u16::MAX))?,
        limit: whole("limit", limit, ROWS, ROWS_MAX)?,
    })
}

/// `GET /v1/quotas?…`: how many keys of each.
pub(super) fn quota_keys(given: Vec<(String, String)>) -> Result<usize, Refused> {
    let [limit] = query(given, ["limit"])?;
    whole("limit", limit, QUOTA_KEYS, QUOTA_KEYS)
}

/// A whole number up to `max`; `unless` if absent.
fn whole(name: &str, text: Option<String>, unless: usize, max: usize) -> Result<usize, Refused> {
    match text {
        None => Ok(unless),
        Some(text) => match text.parse() {
            Ok(number) if number <= max => Ok(number),
            _ => Err(Refused::invalid(
                name,
                format!("must be a whole number from 0 to {max}"),
            )),
        },
    }
}

/// `GET /v1/usage?…`
pub(super) fn usage(given: Vec<(String, String)>) -> Result<(Span, Option<Group>), Refused> {
    let [window, group] = query(given, ["window", "group"])?;
    let group = group
        .map(|name| Group::new(&name).map_err(|it| Refused::name("group", it)))
        .transpose()?;
    Ok((span(window)?, group))
}

/// `GET /v1/callers/{id}/suggest?…`
pub(super) fn derive(caller: CallerId, given: Vec<(String, String)>) -> Result<Derive, Refused> {
    let [window, headroom] = query(given, ["window", "headroom"])?;
    let headroom = match headroom {
        None => Headroom::DEFAULT,
        Some(text) => {
            let number = text.parse().ok().and_then(Headroom::new);
            number.ok_or_else(|| headroom_out_of_range("headroom"))?
        }
    };
    Ok(Derive {
        caller,
        span: span(window)?,
        headroom,
    })
}

fn span(window: Option<String>) -> Result<Span, Refused> {
    Ok(chosen("window", window, &SPANS)?.unwrap_or(Span::Hour))
}

/// One of some words, if present.
fn chosen<T: Copy>(
    name: &str,
    given: Option<String>,
    words: &[(&str, T)],
) -> Result<Option<T>, Refused> {
    let Some(given) = given else { return Ok(None) };
    match words.iter().find(|(word, _)| *word == given) {
        Some((_, meant)) => Ok(Some(*meant)),
        None => {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let told = format!("must be one of {}", words.join(", "));
            Err(Refused::invalid(name, told))
        }
    }
}

// Ids in paths: an invalid id does not exist.

/// The caller that a path names.
pub(super) fn caller_in_path(text: &str) -> Result<CallerId, Refused> {
    numbered(text, 'c')
        .map(CallerId)
        .ok_or_else(|| Refused::unknown(What::Caller, cut(text)))
}

/// The rate limit that a path names.
pub(super) fn rate_limit_in_path(text: &str) -> Result<RateLimitId, Refused> {
    numbered(text, 'r')
        .and_then(|number| number.try_into().ok())
        .map(RateLimitId)
        .ok_or_else(|| Refused::unknown(What::RateLimit, cut(text)))
}

/// The call that a path names.
pub(super) fn call_in_path(text: &str) -> Result<CallId, Refused> {
    let is_id = text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit());
    let number = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    number
        .map(CallId)
        .ok_or_else(|| Refused::unknown(What::Call, cut(text)))
}

/// The number of an id, which has only one spelling.
fn numbered(text: &str, letter: char) -> Option<u64> {
    let digits = text.strip_prefix(letter)?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

// Values.

fn optional<T>(
    fields: &mut Fields,
    name: &str,
    read: impl FnOnce(Value) -> Result<T, Refused>,
) -> Result<Option<T>, Refused> {
    fields.take(name).map(read).transpose()
}

fn label(value: Value) -> Result<Label, Refused> {
    let path = value.path().to_owned();
    Label::new(&value.text()?).map_err(|mistake| Refused::name(&path, mistake))
}

fn notes(value: Value) -> Result<Notes, Refused> {
    let path = value.path().to_owned();
    Notes::new(&value.text()?).map_err(|mistake| Refused::name(&path, mistake))
}

fn groups(value: Value) -> Result<Vec<Group>, Refused> {
    let group = |value: Value| {
        let path = value.path().to_owned();
        Group::new(&value.text()?).map_err(|mistake| Refused::name(&path, mistake))
    };
    value.list(GROUPS_MAX)?.into_iter().map(group).collect()
}

fn group_name(path: &str, text: &str) -> Result<String, Refused> {
    match Group::new(text) {
        Ok(group) => Ok(group.to_string()),
        Err(mistake) => Err(Refused::name(path, mistake)),
    }
}

fn weight(value: Value) -> Result<Weight, Refused> {
    let path = value.path().to_owned();
    let number = value.number()?;
    let is_whole = (1.0..=1e6).contains(&number) && number.fract() == 0.0;
    is_whole
        .then(|| Weight::new(number as u32))
        .flatten()
        .ok_or_else(|| Refused::invalid(path, "must be a whole number from 1 to 1000000"))
}

fn caller(value: Value) -> Result<CallerId, Refused> {
    let path = value.path().to_owned();
    let text = value.text()?;
    numbered(&text, 'c')
        .map(CallerId)
        .ok_or_else(|| Refused::invalid(path, "must be a caller's id such as c7"))
}

fn callers(value: Value) -> Result<Vec<CallerId>, Refused> {
    let path = value.path().to_owned();
    let callers = value.list(CALLERS_MAX)?.into_iter().map(caller);
    let callers: Vec<CallerId> = callers.collect::<Result<_, _>>()?;
    let mut sorted = callers.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(callers),
        Some(pair) => Err(Refused::invalid(path, format!("has {} twice", pair[0]))),
    }
}

/// One pattern, or a list of alternatives.
fn patterns(value: Value) -> Result<Vec<Pattern>, Refused> {
    if value.is_object() {
        return Ok(vec![pattern(value)?]);
    }
    let path = value.path().to_owned();
    let patterns = value.list(PATTERNS_MAX)?.into_iter().map(pattern);
    let patterns: Vec<Pattern> = patterns.collect::<Result<_, _>>()?;
    if patterns.is_empty() {
        return Err(Refused::invalid(path, "must have at least one pattern"));
    }
    Ok(patterns)
}

fn pattern(value: Value) -> Result<Pattern, Refused> {
    let path = value.path().to_owned();
    let mut fields = value.fields(&["user", "originator", "ip", "user_agent", "listener"])?;
    let mut text = |name| match fields.take(name) {
        Some(value) => value.text(),
        None => Ok(String::new()),
    };
    let (user, originator) = (text("user")?, text("originator")?);
    let (ip, user_agent) = (text("ip")?, text("user_agent")?);
    let listener = text("listener")?;
    let text = PatternText {
        user: &user,
        originator: &originator,
        ip: &ip,
        user_agent: &user_agent,
        listener: &listener,
    };
    Pattern::parse(&text).map_err(|mistakes| {
        let first = mistakes.first().expect("what is refused has a mistake");
        Refused::pattern(&path, first)
    })
}

/// Exactly one way to give the figures.
fn rate(fields: &mut Fields) -> Result<Rate, Refused> {
    const WAYS: &str = "give one of profile, burst and fill, rate, derive, exempt";
    let is_exempt = optional(fields, "exempt", Value::flag)?.unwrap_or(false);
    let has_bucket = fields.has("burst") || fields.has("fill");
    let has_pace = fields.has("rate") || fields.has("ratio");
    let given = [
        ("exempt", is_exempt, None),
        (
            "profile",
            fields.has("profile"),
            Some(RateLimitKind::Bucket),
        ),
        ("derive", fields.has("derive"), Some(RateLimitKind::Bucket)),
        ("burst", has_bucket, Some(RateLimitKind::Bucket)),
        ("rate", has_pace, Some(RateLimitKind::Paced)),
    ];
    let kind = optional(fields, "kind", |it| it.choice(&KINDS))?;
    let mut given = given.iter().filter(|(_, given, _)| *given);
    let (first, second) = (given.next(), given.next());
    if let Some((second, ..)) = second {
        return Err(Refused::invalid(*second, WAYS));
    }
    agrees(kind, is_exempt, first.and_then(|(.., kind)| *kind))?;
    match first.map(|(way, ..)| *way) {
        Some("exempt") => Ok(Rate::Exempt),
        Some("profile") => Ok(Rate::Profile(name(fields.need("profile")?)?)),
        Some("derive") => Ok(Rate::Derived(derived(fields.need("derive")?)?)),
        Some("rate") => Ok(Rate::Paced {
            rate: pace_rate(fields.need("rate")?)?,
            ratio: optional(fields, "ratio", ratio)?.unwrap_or_default(),
        }),
        Some(_) => Ok(Rate::Bucket {
            burst: burst(fields.need("burst")?)?,
            fill: fill(fields.need("fill")?)?,
        }),
        None => {
            let first = match kind {
                Some(RateLimitKind::Paced) => "rate",
                Some(RateLimitKind::Bucket) | None => "burst",
            };
            Err(Refused::invalid(first, format!("must be given; {WAYS}")))
        }
    }
}

fn rate_patch(fields: &mut Fields) -> Result<Option<RatePatch>, Refused> {
    const WAYS: &str = "give one of profile, burst and fill, rate and ratio, exempt";
    let kind = optional(fields, "kind", |it| it.choice(&KINDS))?;
    let is_exempt = optional(fields, "exempt", Value::flag)?.unwrap_or(false);
    let profile = optional(fields, "profile", name)?;
    let burst = optional(fields, "burst", burst)?;
    let fill = optional(fields, "fill", fill)?;
    let rate = optional(fields, "rate", pace_rate)?;
    let ratio = optional(fields, "ratio", ratio)?;
    let has_bucket = burst.is_some() || fill.is_some();
    let has_pace = rate.is_some() || ratio.is_some();
    let given = [
        ("exempt", is_exempt),
        ("profile", profile.is_some()),
        ("burst", has_bucket),
        ("rate", has_pace),
    ];
    if let Some((second, _)) = given.iter().filter(|(_, given)| *given).nth(1) {
        return Err(Refused::invalid(*second, WAYS));
    }
    let told = if has_pace {
        Some(RateLimitKind::Paced)
    } else if has_bucket || profile.is_some() {
        Some(RateLimitKind::Bucket)
    } else {
        None
    };
    agrees(kind, is_exempt, told)?;
    Ok(match (is_exempt, profile, told.or(kind)) {
        (true, ..) => Some(RatePatch::Exempt),
        (_, Some(profile), _) => Some(RatePatch::Profile(profile)),
        (_, None, Some(RateLimitKind::Bucket)) => Some(RatePatch::Bucket { burst, fill }),
        (_, None, Some(RateLimitKind::Paced)) => Some(RatePatch::Paced { rate, ratio }),
        (_, None, None) => None,
    })
}

/// Whether figures are of the named kind.
fn agrees(
    kind: Option<RateLimitKind>,
    is_exempt: bool,
    figures: Option<RateLimitKind>,
) -> Result<(), Refused> {
    match (kind, figures) {
        (Some(_), _) if is_exempt => Err(Refused::invalid(
            "kind",
            "what lets everything through is of no kind; leave it out",
        )),
        (Some(RateLimitKind::Paced), Some(RateLimitKind::Bucket)) => Err(Refused::invalid(
            "kind",
            "the figures are those of a bucket; give rate and ratio, or kind \"bucket\"",
        )),
        (Some(RateLimitKind::Bucket), Some(RateLimitKind::Paced)) => Err(Refused::invalid(
            "kind",
            "the figures are those of a pace; give burst and fill, or kind \"paced\"",
        )),
        _ => Ok(()),
    }
}

fn derived(value: Value) -> Result<Derive, Refused> {
    let path = value.path().to_owned();
    let mut fields = value.fields(&["caller", "window", "headroom"])?;
    let Some(of) = fields.take("caller") else {
        return Err(Refused::invalid(format!("{path}.caller"), "must be given"));
    };
    let headroom = |value: Value| {
        let path = value.path().to_owned();
        Headroom::new(value.number()?).ok_or_else(|| headroom_out_of_range(&path))
    };
    Ok(Derive {
        caller: caller(of)?,
        span: optional(&mut fields, "window", |it| it.choice(&SPANS))?.unwrap_or(Span::Hour),
        headroom: optional(&mut fields, "headroom", headroom)?.unwrap_or(Headroom::DEFAULT),
    })
}

fn headroom_out_of_range(path: &str) -> Refused {
    Refused::invalid(path, "must be a number from 1 to 100")
}

fn settlement(value: Value) -> Result<Settlement, Refused> {
    Ok(if value.flag()? {
        Settlement::Measured
    } else {
        Settlement::Estimate
    })
}

fn burst(value: Value) -> Result<Burst, Refused> {
    in_range(value, Burst::new)
}

fn fill(value: Value) -> Result<Fill, Refused> {
    in_range(value, Fill::new)
}

fn pace_rate(value: Value) -> Result<tidegate_limits::pace::Rate, Refused> {
    in_range(value, tidegate_limits::pace::Rate::new)
}

fn ratio(value: Value) -> Result<BurstRatio, Refused> {
    in_range(value, BurstRatio::new)
}

fn tokens(value: Value) -> Result<Tokens, Refused> {
    in_range(value, Tokens::new)
}

fn in_range<T>(value: Value, new: impl Fn(f64) -> Result<T, OutOfRange>) -> Result<T, Refused> {
    let path = value.path().to_owned();
    new(value.number()?).map_err(
        |OutOfRange {
             min, max, given, ..
         }| {
            let told = format!("must be a number from {min:?} to {max:?}, not {given:?}");
            Refused::invalid(path, told)
        },
    )
}

fn unit(value: Value) -> Result<Duration, Refused> {
    let path = value.path().to_owned();
    let seconds = value.number()?;
    if (1e-6..=3600.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let told = format!("must be a number of seconds from 0.000001 to 3600, not {seconds:?}");
    Err(Refused::invalid(path, told))
}

fn function_costs(value: Value) -> Result<BTreeMap<String, Tokens>, Refused> {
    let path = value.path().to_owned();
    let functions = value.entries()?;
    if functions.len() > FUNCTIONS_MAX {
        let told = format!(
            "has {} values, at most {FUNCTIONS_MAX} are taken",
            functions.len()
        );
        return Err(Refused::invalid(path, told));
    }
    let cost = |(function, value): (String, Value)| {
        check_function(value.path(), &function)?;
        Ok((function, tokens(value)?))
    };
    functions.into_iter().map(cost).collect()
}

fn function(value: Value) -> Result<String, Refused> {
    let path = value.path().to_owned();
    let text = value.text()?;
    check_function(&path, &text)?;
    Ok(text)
}

fn check_function(path: &str, text: &str) -> Result<(), Refused> {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || text.len() > NAME_MAX || !is_visible {
        let told = format!("must be the name of a function: 1 to {NAME_MAX} visible characters");
        return Err(Refused::invalid(path, told));
    }
    Ok(())
}

/// The name of a profile.
fn name(value: Value) -> Result<String, Refused> {
    let path = value.path().to_owned();
    let text = value.text()?;
    check_name(&path, &text)?;
    Ok(text)
}

fn check_name(path: &str, text: &str) -> Result<(), Refused> {
    if text.is_empty() || text.len() > NAME_MAX || text.chars().any(char::is_control) {
        let told = format!("must be a name of 1 to {NAME_MAX} bytes without control characters");
        return Err(Refused::invalid(path, told));
    }
    Ok(())
}

/// A value as on the wire; an empty one is absent.
fn seen(value: Value) -> Result<String, Refused> {
    let path = value.path().to_owned();
    let text = value.text()?;
    if text.len() > SEEN_MAX || text.chars().any(char::is_control) {
        let told = format!("must be a text of at most {SEEN_MAX} bytes without control characters");
        return Err(Refused::invalid(path, told));
    }
    Ok(text)
}

fn address(value: Value) -> Result<Option<IpAddr>, Refused> {
    let path = value.path().to_owned();
    let text = value.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    let address = text.parse();
    address
        .map(Some)
        .map_err(|_| Refused::invalid(path, "must be an address such as 10.1.2.9"))
}

/// Reads a body as one of the above.
pub(super) fn read<T>(
    bytes: &[u8],
    of: impl FnOnce(Value) -> Result<T, Refused>,
) -> Result<T, Refused> {
    of(json::read(bytes)?)
}
