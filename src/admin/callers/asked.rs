//! Bodies of requests as read and checked: each value from this module is valid on its own, and only
//! the current state can be an obstacle.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::{
    CallerId, Charge, CostModel, CostUnit, GROUPS_PER_CALLER_MAX, Group, Headroom, Identity, Label,
    NameError, NewCaller, Notes, PATTERNS_PER_CALLER_MAX, Patch, Pattern, UsageSpan,
};
use tidegate_limits::bucket::{OutOfRange, TokenCount};
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::{Burst, Fill, Weight};

use super::json::{LocatedValue, ObjectFields};
use super::refused::ApiRefusal;
use super::state::RateLimitKind;
use crate::call::costs::Costs;
use crate::call::identity::TEXT_BYTES_MAX;
use crate::call::rate_limit::{
    Allowance, Derive, Handling, HandlingPatch, NewRateLimit, RateLimitPatch, Size, SizePatch,
};
use crate::call::sdk::FUNCTION_NAME_BYTES_MAX;
use crate::options::{Words, json};

/// The maximum number of callers in one request.
const CALLERS_MAX: usize = 10_000;
/// The maximum number of functions with their own cost.
const FUNCTIONS_MAX: usize = 1_024;

pub(super) type ApiResult<T> = Result<T, ApiRefusal>;

/// A request that is read from the fields of a body, or from the parameters of a query.
pub(super) trait FromFields: Sized {
    /// The names of all fields, in parts.
    const FIELDS: &[&[&str]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self>;
}

// Bodies.

/// `POST /v1/callers`
impl FromFields for NewCaller {
    const FIELDS: &[&[&str]] = &[&["label", "match", "groups", "notes", "weight"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            label: fields.need("label", named(Label::new))?,
            patterns: fields.need("match", patterns)?,
            groups: fields.optional("groups", groups)?.unwrap_or_default(),
            notes: fields
                .optional("notes", named(Notes::new))?
                .unwrap_or_default(),
            charge: Charge::None,
            weight: fields.optional("weight", weight)?.flatten(),
        })
    }
}

/// `PATCH /v1/callers/{id}`
impl FromFields for Patch {
    const FIELDS: &[&[&str]] = &[&["label", "groups", "notes", "weight"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            label: fields.optional("label", named(Label::new))?,
            groups: fields.optional("groups", groups)?,
            notes: fields.optional("notes", named(Notes::new))?,
            charge: None,
            weight: fields.optional("weight", weight)?,
        })
    }
}

/// A merge of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The caller that remains.
    pub into: CallerId,
    /// The callers whose patterns and figures it takes over.
    pub from: Vec<CallerId>,
    /// The caller's new label.
    pub label: Option<Label>,
}

/// `POST /v1/callers/merge`
impl FromFields for Merge {
    const FIELDS: &[&[&str]] = &[&["into", "from", "label"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        let from = fields.need("from", callers)?;
        let into = fields.need("into", caller)?;
        let label = fields.optional("label", named(Label::new))?;
        if from.is_empty() {
            return Err(ApiRefusal::invalid("from", "must name one caller or more"));
        }
        // Each value is valid, as the OpenAPI document describes it; only the combination is not.
        if from.contains(&into) {
            return Err(ApiRefusal::Conflict {
                field: "from".to_owned(),
                reason: "a caller cannot be merged with itself; leave `into` out of `from`"
                    .to_owned(),
            });
        }
        Ok(Self { into, from, label })
    }
}

/// `POST /v1/rate-limits`
impl FromFields for NewRateLimit {
    const FIELDS: &[&[&str]] = &[
        &["label", "kind", "profile", "burst", "fill", "rate", "ratio"],
        &["derive", "exempt", "callers"],
        HandlingPatch::FIELDS,
    ];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            label: fields.optional("label", named(Label::new))?,
            size: size(fields)?,
            callers: fields.optional("callers", callers)?.unwrap_or_default(),
            handling: handling(fields)?.of(Handling::default()),
        })
    }
}

/// `PATCH /v1/rate-limits/{id}`
impl FromFields for RateLimitPatch {
    const FIELDS: &[&[&str]] = &[
        &["label", "kind", "profile", "burst", "fill", "rate", "ratio"],
        &["exempt"],
        HandlingPatch::FIELDS,
    ];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            label: fields.optional("label", named(Label::new))?,
            size: size_patch(fields)?,
            handling: handling(fields)?,
        })
    }
}

/// `PUT /v1/costs`
impl FromFields for Costs {
    const FIELDS: &[&[&str]] = &[&["default", "unit_seconds", "settle", "functions"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            default: fields.need("default", tokens)?,
            unit: fields.need("unit_seconds", unit)?,
            settle: fields.need("settle", flag)?,
            functions: fields.need("functions", function_costs)?,
        })
    }
}

/// A possible call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRunRequest {
    /// The user of its client; empty for none.
    pub user: String,
    /// The originator; empty for none.
    pub originator: String,
    /// The address.
    pub ip: Option<IpAddr>,
    /// The agent; empty for none.
    pub user_agent: String,
    /// The listener; empty for none.
    pub listener: String,
    /// The function of the call; without one it has the default cost.
    pub function: Option<String>,
}

impl DryRunRequest {
    /// The client's identity as the table of callers sees it.
    #[must_use]
    pub fn identity(&self) -> Identity<'_> {
        Identity {
            user: &self.user,
            originator: &self.originator,
            ip: self.ip,
            user_agent: &self.user_agent,
            listener: &self.listener,
        }
    }
}

/// `POST /v1/classify`
impl FromFields for DryRunRequest {
    const FIELDS: &[&[&str]] = &[&["ip", "user_agent", "originator", "user", "listener", "call"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        let ip = fields.optional("ip", address)?.flatten();
        let names = ["user", "originator", "user_agent", "listener"];
        let [user, originator, user_agent, listener] = texts(fields, names, seen)?;
        Ok(Self {
            user,
            originator,
            ip,
            user_agent,
            listener,
            function: fields.optional("call", |it| it.text(function))?,
        })
    }
}

// Values.

/// Several texts; an absent one is empty.
fn texts<const N: usize>(
    fields: &mut ObjectFields,
    names: [&str; N],
    read: impl Fn(LocatedValue) -> ApiResult<String>,
) -> ApiResult<[String; N]> {
    let mut found = [const { String::new() }; N];
    for (text, name) in found.iter_mut().zip(names) {
        *text = fields.optional(name, &read)?.unwrap_or_default();
    }
    Ok(found)
}

/// Reads a text as `new` takes it.
pub(super) fn named<T>(
    new: fn(&str) -> Result<T, NameError>,
) -> impl Fn(LocatedValue) -> ApiResult<T> {
    move |value| value.text(new)
}

fn groups(value: LocatedValue) -> ApiResult<Vec<Group>> {
    value.list(GROUPS_PER_CALLER_MAX, named(Group::new))
}

pub(super) fn word<T: Words>(value: LocatedValue) -> ApiResult<T> {
    value.read(json::choice)
}

fn weight(value: LocatedValue) -> ApiResult<Option<Weight>> {
    value.or_null(|value| {
        value.number(|number| {
            let is_whole = (1.0..=1e6).contains(&number) && number.fract() == 0.0;
            let weight = is_whole.then(|| Weight::new(number as u32)).flatten();
            weight.ok_or("must be a whole number from 1 to 1000000")
        })
    })
}

/// The number of an id, which has only one spelling.
pub(super) fn numbered(text: &str, letter: char) -> Option<u64> {
    let digits = text.strip_prefix(letter)?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

fn caller(value: LocatedValue) -> ApiResult<CallerId> {
    value.text(|text| {
        let number = numbered(text, 'c').map(CallerId);
        number.ok_or("must be a caller's id such as c7")
    })
}

fn callers(value: LocatedValue) -> ApiResult<Vec<CallerId>> {
    let path = value.path().to_owned();
    let callers = value.list(CALLERS_MAX, caller)?;
    let mut sorted = callers.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(callers),
        Some(pair) => Err(ApiRefusal::invalid(path, format!("has {} twice", pair[0]))),
    }
}

/// Reads one pattern, or a list of alternatives.
fn patterns(value: LocatedValue) -> ApiResult<Vec<Pattern>> {
    if value.is_object() {
        return Ok(vec![pattern(value)?]);
    }
    let path = value.path().to_owned();
    let patterns = value.list(PATTERNS_PER_CALLER_MAX, pattern)?;
    if patterns.is_empty() {
        return Err(ApiRefusal::invalid(path, "must have at least one pattern"));
    }
    Ok(patterns)
}

fn pattern(value: LocatedValue) -> ApiResult<Pattern> {
    let path = value.path().to_owned();
    let names = ["user", "originator", "ip", "user_agent", "listener"];
    let any = |it: LocatedValue| it.text(|text| Ok::<_, String>(text.to_owned()));
    let given: [String; 5] = texts(&mut value.object(&names)?, names, any)?;
    Pattern::parse(&given.each_ref().map(String::as_str).into()).map_err(|mistakes| {
        let first = mistakes.first().expect("what is refused has a mistake");
        ApiRefusal::pattern(&path, first)
    })
}

fn handling(fields: &mut ObjectFields) -> ApiResult<HandlingPatch> {
    let mut patch = HandlingPatch::default();
    for name in HandlingPatch::FIELDS {
        fields.optional(name, |it| it.read(|given| patch.set(name, given)))?;
    }
    Ok(patch)
}

/// Exactly one way to give the figures.
fn size(fields: &mut ObjectFields) -> ApiResult<Size> {
    const WAYS: &str = "give one of profile, burst and fill, rate, derive, exempt";
    let is_exempt = fields.optional("exempt", flag)?.unwrap_or(false);
    let kind = fields.optional("kind", word)?;
    let has_bucket = fields.has("burst") || fields.has("fill");
    let has_pace = fields.has("rate") || fields.has("ratio");
    let given = [
        ("exempt", is_exempt),
        ("profile", fields.has("profile")),
        ("derive", fields.has("derive")),
        ("burst", has_bucket),
        ("rate", has_pace),
    ];
    let way = the_only(&given, WAYS)?;
    let figures = way.filter(|_| !is_exempt).map(|way| match way {
        "rate" => RateLimitKind::Paced,
        _ => RateLimitKind::Bucket,
    });
    agrees(kind, is_exempt, figures)?;
    Ok(match way {
        Some("exempt") => Size::Given(Allowance::Exempt),
        Some("profile") => Size::Profile(fields.need("profile", name)?),
        Some("derive") => Size::Derived(fields.need("derive", derived)?),
        Some("rate") => Size::Given(Allowance::Paced {
            rate: fields.need("rate", in_range(Rate::new))?,
            ratio: fields
                .optional("ratio", in_range(BurstRatio::new))?
                .unwrap_or_default(),
        }),
        Some(_) => Size::Given(Allowance::Bucket {
            burst: fields.need("burst", in_range(Burst::new))?,
            fill: fields.need("fill", in_range(Fill::new))?,
        }),
        None => {
            let first = match kind {
                Some(RateLimitKind::Paced) => "rate",
                Some(RateLimitKind::Bucket) | None => "burst",
            };
            let cause = format!("must be given; {WAYS}");
            return Err(ApiRefusal::invalid(first, cause));
        }
    })
}

fn size_patch(fields: &mut ObjectFields) -> ApiResult<Option<SizePatch>> {
    const WAYS: &str = "give one of profile, burst and fill, rate and ratio, exempt";
    let kind = fields.optional("kind", word)?;
    let is_exempt = fields.optional("exempt", flag)?.unwrap_or(false);
    let profile = fields.optional("profile", name)?;
    let burst = fields.optional("burst", in_range(Burst::new))?;
    let fill = fields.optional("fill", in_range(Fill::new))?;
    let rate = fields.optional("rate", in_range(Rate::new))?;
    let ratio = fields.optional("ratio", in_range(BurstRatio::new))?;
    let has_bucket = burst.is_some() || fill.is_some();
    let has_pace = rate.is_some() || ratio.is_some();
    let given = [
        ("exempt", is_exempt),
        ("profile", profile.is_some()),
        ("burst", has_bucket),
        ("rate", has_pace),
    ];
    the_only(&given, WAYS)?;
    let cause = if has_pace {
        Some(RateLimitKind::Paced)
    } else if has_bucket || profile.is_some() {
        Some(RateLimitKind::Bucket)
    } else {
        None
    };
    agrees(kind, is_exempt, cause)?;
    Ok(match (is_exempt, profile, cause.or(kind)) {
        (true, ..) => Some(SizePatch::Exempt),
        (_, Some(profile), _) => Some(SizePatch::Profile(profile)),
        (_, None, Some(RateLimitKind::Bucket)) => Some(SizePatch::Bucket { burst, fill }),
        (_, None, Some(RateLimitKind::Paced)) => Some(SizePatch::Paced { rate, ratio }),
        (_, None, None) => None,
    })
}

/// The way in which figures are given, if they are; a second one is refused.
fn the_only(given: &[(&'static str, bool)], ways: &str) -> ApiResult<Option<&'static str>> {
    let mut given = given.iter().filter(|(_, given)| *given);
    match (given.next(), given.next()) {
        (_, Some((second, _))) => Err(ApiRefusal::invalid(*second, ways)),
        (first, None) => Ok(first.map(|(way, _)| *way)),
    }
}

/// Whether figures are of the named kind.
fn agrees(
    kind: Option<RateLimitKind>,
    is_exempt: bool,
    figures: Option<RateLimitKind>,
) -> ApiResult<()> {
    let cause = match (kind, figures) {
        (Some(_), _) if is_exempt => "what lets everything through is of no kind; leave it out",
        (Some(RateLimitKind::Paced), Some(RateLimitKind::Bucket)) => {
            "the figures are those of a bucket; give rate and ratio, or kind \"bucket\""
        }
        (Some(RateLimitKind::Bucket), Some(RateLimitKind::Paced)) => {
            "the figures are those of a pace; give burst and fill, or kind \"paced\""
        }
        _ => return Ok(()),
    };
    Err(ApiRefusal::invalid("kind", cause))
}

fn derived(value: LocatedValue) -> ApiResult<Derive> {
    let mut fields = value.object(&["caller", "window", "headroom"])?;
    let number = |it: LocatedValue| it.number(headroom);
    Ok(Derive {
        caller: fields.need("caller", caller)?,
        span: window(&mut fields)?,
        headroom: fields
            .optional("headroom", number)?
            .unwrap_or(Headroom::DEFAULT),
    })
}

pub(super) fn window(fields: &mut ObjectFields) -> ApiResult<UsageSpan> {
    Ok(fields.optional("window", word)?.unwrap_or(UsageSpan::Hour))
}

pub(super) fn headroom(number: f64) -> Result<Headroom, &'static str> {
    Headroom::new(number).ok_or("must be a number from 1 to 100")
}

fn flag(value: LocatedValue) -> ApiResult<bool> {
    value.read(json::flag)
}

fn tokens(value: LocatedValue) -> ApiResult<TokenCount> {
    in_range(CostModel::rounded)(value)
}

/// Reads a number in the range of `new`.
fn in_range<T>(new: fn(f64) -> Result<T, OutOfRange>) -> impl Fn(LocatedValue) -> ApiResult<T> {
    move |value| {
        value.number(|number| {
            new(number).map_err(|it| {
                let OutOfRange {
                    min, max, given, ..
                } = it;
                format!("must be a number from {min:?} to {max:?}, not {given:?}")
            })
        })
    }
}

fn unit(value: LocatedValue) -> ApiResult<CostUnit> {
    value.number(|seconds| {
        let is_within = (1e-6..=3600.0).contains(&seconds);
        let time = is_within.then(|| Duration::from_secs_f64(seconds));
        time.and_then(CostUnit::new).ok_or_else(|| {
            format!("must be a number of seconds from 0.000001 to 3600, not {seconds:?}")
        })
    })
}

fn function_costs(value: LocatedValue) -> ApiResult<BTreeMap<Arc<str>, TokenCount>> {
    let path = value.path().to_owned();
    let functions = value.entries()?;
    let given = functions.len();
    if given > FUNCTIONS_MAX {
        let cause = format!("has {given} values, at most {FUNCTIONS_MAX} are taken");
        return Err(ApiRefusal::invalid(path, cause));
    }
    let cost = |(name, value): (String, LocatedValue)| {
        function(&name).map_err(|cause| ApiRefusal::invalid(value.path(), cause))?;
        Ok((name.into(), tokens(value)?))
    };
    functions.into_iter().map(cost).collect()
}

fn function(text: &str) -> Result<String, String> {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || text.len() > FUNCTION_NAME_BYTES_MAX || !is_visible {
        return Err(format!(
            "must be the name of a function: 1 to {FUNCTION_NAME_BYTES_MAX} visible characters"
        ));
    }
    Ok(text.to_owned())
}

/// The name of a profile.
fn name(value: LocatedValue) -> ApiResult<Arc<str>> {
    value.text(|text| {
        if text.is_empty()
            || text.len() > FUNCTION_NAME_BYTES_MAX
            || text.chars().any(char::is_control)
        {
            return Err(format!(
                "must be a name of 1 to {FUNCTION_NAME_BYTES_MAX} bytes without control characters"
            ));
        }
        Ok(text.into())
    })
}

/// A value as on the wire; an empty one is absent.
fn seen(value: LocatedValue) -> ApiResult<String> {
    value.text(|text| {
        if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(format!(
                "must be a text of at most {TEXT_BYTES_MAX} bytes without control characters"
            ));
        }
        Ok(text.to_owned())
    })
}

fn address(value: LocatedValue) -> ApiResult<Option<IpAddr>> {
    value.text(|text| match text {
        "" => Ok(None),
        _ => text
            .parse()
            .map(Some)
            .map_err(|_| "must be an address such as 10.1.2.9"),
    })
}
