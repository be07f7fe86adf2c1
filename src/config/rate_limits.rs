//! Rate limits: `[[rate_limit]]`, from the file to the settings of those who keep them. What
//! applies to callers is kept with the callers; what applies to all calls, or to those of a
//! function, is one of the gate's limits. What only a quota says is read in `quotas`.

use std::error::Error;
use std::sync::Arc;

use tidegate_limits::bucket::{DEBT_MAX_FILL, OutOfRange};
use tidegate_limits::pace::{BurstRatio, Pace, PaceSpec, Rate, SpecScope, Verb};
use tidegate_limits::scheduler::{BucketMode, BucketOrder, OnExcess, Settlement};
use tidegate_limits::{Burst, Cost, Fill, quota};

use crate::admit::PacedLimit;
use crate::call::claim::Deadline;
use crate::callers::rate_limit::{Allowance, Profile, RATE_LIMITS_MAX, Rule};
use crate::callers::settings::{Costs, QuotaBy, StaticRateLimit};

use super::callers::{RawProfiles, burst, fill};
use super::effective::Toml;
use super::functions::Functions;
use super::nearest::nearest;
use super::per_window::function_name;
use super::quotas::{self, RawQuota};
use super::raw::{PostponeBy, Raw};
use super::reader::{At, Notes, Section, Setting};
use super::text::name;
use super::tree::quoted;
use super::value::{Kind, Mistake, choice, flag, number, text};

/// One `[[rate_limit]]`.
pub(super) struct RawRateLimit {
    at: At,
    pub(super) name: Setting<Option<String>>,
    kind: Setting<Form>,
    burst: Setting<Option<Burst>>,
    fill: Setting<Option<Fill>>,
    profile: Setting<Option<String>>,
    rate: Setting<Option<Rate>>,
    ratio: Setting<BurstRatio>,
    pace: Setting<Option<PaceSpec>>,
    applies_to: Setting<AppliesTo>,
    pub(super) function: Setting<Option<String>>,
    mode: Setting<Mode>,
    on_excess: Setting<Option<Excess>>,
    order: Setting<BucketOrder>,
    settle: Setting<Option<bool>>,
    deadline: Setting<Deadline>,
    pub(super) quota: RawQuota,
}

/// `kind`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bucket,
    Paced,
    Quota,
}

/// `applies_to`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppliesTo {
    /// Those that name it.
    Callers,
    Total,
    Function,
    /// Each caller, of a quota.
    Caller,
    /// Each user, of a quota.
    User,
}

/// `mode`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Enforce,
    /// Of all but a quota.
    Observe,
    /// Of a quota.
    Optimistic,
}

/// `on_excess`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    /// Of all but a quota.
    Delay,
    /// Of a quota.
    Wait,
    Reject,
}

/// Every `[[rate_limit]]`.
pub(super) fn rate_limits(root: &mut Section<'_>) -> Vec<RawRateLimit> {
    let list = root.sections("rate_limit", RATE_LIMITS_MAX);
    list.unwrap_or_default()
        .into_iter()
        .map(rate_limit)
        .collect()
}

fn rate_limit(mut section: Section<'_>) -> RawRateLimit {
    const KINDS: &[(&str, Form)] = &[
        ("bucket", Form::Bucket),
        ("paced", Form::Paced),
        ("quota", Form::Quota),
    ];
    const APPLIES_TO: &[(&str, AppliesTo)] = &[
        ("callers", AppliesTo::Callers),
        ("total", AppliesTo::Total),
        ("function", AppliesTo::Function),
        ("caller", AppliesTo::Caller),
        ("user", AppliesTo::User),
    ];
    const MODES: &[(&str, Mode)] = &[
        ("enforce", Mode::Enforce),
        ("observe", Mode::Observe),
        ("optimistic", Mode::Optimistic),
    ];
    const EXCESSES: &[(&str, Excess)] = &[
        ("delay", Excess::Delay),
        ("reject", Excess::Reject),
        ("wait", Excess::Wait),
    ];
    const ORDERS: &[(&str, BucketOrder)] =
        &[("fair", BucketOrder::Fair), ("fifo", BucketOrder::Fifo)];
    const DEADLINES: &[(&str, Deadline)] =
        &[("ordinary", Deadline::Ordinary), ("none", Deadline::None)];
    let limit = RawRateLimit {
        at: section.at().clone(),
        name: section.read("name", None, name().optional()),
        kind: section.read("kind", Form::Bucket, choice(KINDS)),
        burst: section.read("burst", None, burst().optional()),
        fill: section.read("fill", None, fill().optional()),
        profile: section.read("profile", None, profile_name().optional()),
        rate: section.read("rate", None, rate().optional()),
        ratio: section.read("ratio", BurstRatio::default(), ratio()),
        pace: section.read("pace", None, pace().optional()),
        applies_to: section.read("applies_to", AppliesTo::Callers, choice(APPLIES_TO)),
        function: section.read("function", None, function().optional()),
        mode: section.read("mode", Mode::Enforce, choice(MODES)),
        on_excess: section.read("on_excess", None, choice(EXCESSES).optional()),
        order: section.read("order", BucketOrder::Fair, choice(ORDERS)),
        settle: section.read("settle", None, flag().optional()),
        deadline: section.read("deadline", Deadline::Ordinary, choice(DEADLINES)),
        quota: quotas::read_quota(&mut section),
    };
    section.finish();
    limit
}

fn profile_name() -> Kind<String> {
    Kind {
        allowed: "the name of one of [profiles]".to_owned(),
        read: name().read,
    }
}

fn rate() -> Kind<Rate> {
    number("0.0000001 to 1000000000", |given| {
        Rate::new(given).map_err(|_: OutOfRange| ())
    })
}

fn ratio() -> Kind<BurstRatio> {
    number("1 to 100", |given| {
        BurstRatio::new(given).map_err(|_: OutOfRange| ())
    })
}

/// Rate and ratio in one line.
fn pace() -> Kind<PaceSpec> {
    const CURE: &str = "give a rate and, after a comma, a ratio, such as \"12000,1.1\"";
    text("\"rate\" or \"rate,ratio\"", "12000,1.1", |given| {
        let spec: PaceSpec =
            given
                .parse()
                .map_err(|mistake: tidegate_limits::pace::SpecError| {
                    let cause = mistake.source().map(|cause| format!(": {cause}"));
                    Mistake::new(format!("{mistake}{}", cause.unwrap_or_default()), CURE)
                })?;
        // A limit of the config runs, and is one for all threads.
        if spec.verb != Verb::Start || spec.scope != SpecScope::Activity {
            let told = format!("{} says more than a rate and a ratio", quoted(given));
            return Err(Mistake::new(told, CURE));
        }
        Ok(spec)
    })
}

fn function() -> Kind<String> {
    text("the name of a function", "guest_list", |given| {
        function_name(given).map(|()| given.to_owned())
    })
}

impl RawRateLimit {
    /// The name of the function whose calls alone meet it.
    pub(super) fn function_met(&self) -> Option<&str> {
        match self.applies_to.value {
            AppliesTo::Function => self.function.value.as_deref(),
            AppliesTo::Callers | AppliesTo::Total | AppliesTo::Caller | AppliesTo::User => None,
        }
    }

    pub(super) fn at(&self) -> &At {
        &self.at
    }

    pub(super) fn kind_at(&self) -> &At {
        &self.kind.at
    }

    pub(super) fn kind_is_read(&self) -> bool {
        self.kind.sound
    }

    pub(super) fn is_quota(&self) -> bool {
        self.kind.value == Form::Quota
    }

    pub(super) fn applies_to_is_missing(&self) -> bool {
        self.applies_to.sound && !self.applies_to.given
    }

    /// For whom or what there is a quota each, if that is said and could be read.
    pub(super) fn quota_by(&self) -> Option<QuotaBy> {
        match self.applies_to.meant()? {
            AppliesTo::Callers => None,
            AppliesTo::Total => Some(QuotaBy::Total),
            AppliesTo::Function => {
                let function = self.function.meant()?;
                Some(QuotaBy::Function(function.as_deref().map(Arc::from)))
            }
            AppliesTo::Caller => Some(QuotaBy::Caller),
            AppliesTo::User => Some(QuotaBy::User),
        }
    }

    /// Whether calls of a quota may go before its draw is done.
    pub(super) fn quota_mode(&self) -> quota::Mode {
        match self.mode.value {
            Mode::Enforce | Mode::Observe => quota::Mode::Drawn,
            Mode::Optimistic => quota::Mode::Optimistic,
        }
    }

    pub(super) fn on_excess(&self) -> OnExcess {
        match self.on_excess.value {
            None | Some(Excess::Delay | Excess::Wait) => OnExcess::Delay,
            Some(Excess::Reject) => OnExcess::Reject,
        }
    }

    /// Rate and ratio, in whichever way they are given.
    fn figures(&self) -> Option<(Rate, BurstRatio)> {
        match (&self.pace.value, self.rate.value) {
            (Some(spec), _) => Some((spec.rate, spec.ratio)),
            (None, Some(rate)) => Some((rate, self.ratio.value)),
            (None, None) => None,
        }
    }

    /// Whether callers have it, each group a bucket of its own.
    pub(super) fn is_of_callers(&self) -> bool {
        // The words of a quota are told where another kind has them.
        let to_callers = !matches!(
            self.applies_to.value,
            AppliesTo::Total | AppliesTo::Function
        );
        to_callers && !self.is_quota()
    }

    /// Tokens a second, as far as that can be told.
    pub(super) fn per_second(&self, profiles: &RawProfiles) -> Option<f64> {
        if let Some((rate, _)) = self.figures() {
            return Some(rate.get());
        }
        if let Some(name) = &self.profile.value {
            let (_, allowance) = profiles.list.iter().find(|(known, _)| known == name)?;
            return match allowance {
                Allowance::Bucket { fill, .. } => Some(fill.get()),
                Allowance::Paced { rate, .. } => Some(rate.get()),
                Allowance::Exempt => None,
            };
        }
        self.fill.value.map(Fill::get)
    }

    /// Its name, of a config that has no error.
    pub(super) fn is_named(&self) -> &str {
        let name = self.name.value.as_deref();
        name.expect("a rate limit without a name is an error")
    }
}

/// What depends on two options at once.
pub(super) fn check(raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    let costs = costs(raw);
    for limit in &raw.rate_limits {
        if limit.name.is_missing() {
            let cure = "add a name for callers, logs and metrics, such as name = \"poller\"";
            notes.missing(&limit.at, Mistake::new("the rate limit has no name", cure));
        }
        match limit.kind.meant() {
            Some(Form::Bucket) => {
                bucket(limit, &raw.profiles, notes);
                is_closed_for_long(limit, &raw.profiles, &costs, notes);
                is_no_quota(limit, "a bucket", notes);
            }
            Some(Form::Paced) => {
                paced(limit, &costs, notes);
                is_no_quota(limit, "a paced rate limit", notes);
            }
            Some(Form::Quota) => quota(limit, notes),
            None => {}
        }
        function_is_known(limit, raw, functions, notes);
        goes_evenly(limit, raw, notes);
    }
    are_apart(&raw.rate_limits, notes);
}

/// Whoever a pace of everybody's holds is postponed like any other call.
fn goes_evenly(limit: &RawRateLimit, raw: &Raw, notes: &Notes) {
    let of_everybody = limit.applies_to.sound && !limit.is_of_callers() && !limit.is_quota();
    if of_everybody && raw.queue.postpone.meant() == Some(&PostponeBy::Jitter) {
        let told = "its calls do not go evenly while queue.postpone is \"jitter\": whoever it \
                    holds waits aside for a random time";
        let cure = "write postpone = \"in_turn\" in [queue]";
        notes.warn(&limit.at, Mistake::new(told, cure));
    }
}

fn bucket(limit: &RawRateLimit, profiles: &RawProfiles, notes: &Notes) {
    for (at, given, what) in [
        (&limit.rate.at, limit.rate.given, "rate"),
        (&limit.ratio.at, limit.ratio.given, "ratio"),
        (&limit.pace.at, limit.pace.given, "pace"),
    ] {
        if given {
            let told = format!("a bucket has no {what}");
            let cure = "add kind = \"paced\", or give burst and fill instead";
            notes.error(at, Mistake::new(told, cure));
        }
    }
    let has_pace = limit.rate.given || limit.ratio.given || limit.pace.given;
    if let Some(AppliesTo::Total | AppliesTo::Function) = limit.applies_to.meant() {
        let told = "a bucket applies to the callers that name it";
        let cure = "add kind = \"paced\", or leave applies_to out";
        notes.error(&limit.applies_to.at, Mistake::new(told, cure));
    } else if limit.function.given {
        let told = "a bucket is for callers, whatever they call";
        let cure = "add kind = \"paced\" and applies_to = \"function\", or leave function out";
        notes.error(&limit.function.at, Mistake::new(told, cure));
    }
    if let Some(Some(profile)) = limit.profile.meant() {
        if limit.burst.given || limit.fill.given {
            let told = "the size is given twice: as a profile, and in numbers";
            let cure = "leave profile out, or burst and fill";
            notes.error(&limit.profile.at, Mistake::new(told, cure));
        }
        let names = || profiles.list.iter().map(|(name, _)| name.as_str());
        if profiles.sound && !names().any(|name| name == profile) {
            let told = format!("there is no profile {}", quoted(profile));
            let cure = match nearest(profile, names()) {
                Some(near) => format!("did you mean {}?", quoted(near)),
                None => "add it to [profiles], or give burst and fill".to_owned(),
            };
            notes.error(&limit.profile.at, Mistake::new(told, cure));
        }
        return;
    }
    for (field, is_missing, example) in [
        ("burst", limit.burst.is_missing(), "burst = 30"),
        ("fill", limit.fill.is_missing(), "fill = 3"),
    ] {
        if is_missing && limit.profile.is_missing() && !has_pace {
            let told = format!("the rate limit has no {field}");
            let cure = format!("add {example}, or profile = \"poller\" instead of both");
            notes.missing(&limit.at, Mistake::new(told, cure));
        }
    }
}

/// One call can close a bucket for longer than its callers wait.
fn is_closed_for_long(limit: &RawRateLimit, profiles: &RawProfiles, costs: &Costs, notes: &Notes) {
    let (dearest, fill) = (costs.range(None).dearest.get(), limit.per_second(profiles));
    let closed = fill.map_or(0.0, |fill| dearest / fill);
    if closed > DEBT_MAX_FILL.as_secs_f64() && limit.mode.value == Mode::Enforce {
        let at = match limit.fill.given {
            true => &limit.fill.at,
            false => &limit.at,
        };
        let message = format!(
            "the most expensive call, of {dearest} tokens, closes it for {closed:.0} s, until fill has \
             repaid it"
        );
        let cure = "raise fill, or lower the cost in [costs]";
        notes.warn(at, Mistake::new(message, cure));
    }
}

fn paced(limit: &RawRateLimit, costs: &Costs, notes: &Notes) {
    for (at, given, what) in [
        (&limit.burst.at, limit.burst.given, "burst"),
        (&limit.fill.at, limit.fill.given, "fill"),
        (&limit.profile.at, limit.profile.given, "profile"),
    ] {
        if given {
            let told = format!("a paced rate limit has no {what}");
            let cure = "give rate and ratio instead, or leave kind out";
            notes.error(at, Mistake::new(told, cure));
        }
    }
    if limit.pace.given {
        for (at, given) in [
            (&limit.rate.at, limit.rate.given),
            (&limit.ratio.at, limit.ratio.given),
        ] {
            if given {
                let told = "the pace is given twice: in one line, and in numbers";
                let cure = "leave pace out, or rate and ratio";
                notes.error(at, Mistake::new(told, cure));
            }
        }
    } else if limit.rate.is_missing() {
        let told = "the rate limit has no rate";
        let cure = "add rate = 10, or pace = \"10,1.1\" for rate and ratio at once";
        notes.missing(&limit.at, Mistake::new(told, cure));
    }
    match limit.applies_to.meant() {
        Some(AppliesTo::Function) if limit.function.is_missing() => {
            let told = "the rate limit applies to a function, and names none";
            let cure = "add function = \"guest_list\", or what it is";
            notes.missing(&limit.at, Mistake::new(told, cure));
        }
        Some(to) if *to != AppliesTo::Function && limit.function.given => {
            let told = "a function is named that the rate limit does not apply to alone";
            let cure = "add applies_to = \"function\", or leave function out";
            notes.error(&limit.function.at, Mistake::new(told, cure));
        }
        _ => {}
    }
    if let Some(AppliesTo::Total | AppliesTo::Function) = limit.applies_to.meant() {
        waits_like_any_other(limit, notes);
    }
    dearest_takes_no_lifetime(limit, costs, notes);
}

/// What other kinds have, and a quota has not.
fn quota(limit: &RawRateLimit, notes: &Notes) {
    const SIZE: &str = "give total and refresh_window instead, or another kind";
    const OTHERS: &str = "leave it out, or give another kind";
    for (at, given, what, cure) in [
        (&limit.burst.at, limit.burst.given, "burst", SIZE),
        (&limit.fill.at, limit.fill.given, "fill", SIZE),
        (&limit.profile.at, limit.profile.given, "profile", SIZE),
        (&limit.rate.at, limit.rate.given, "rate", SIZE),
        (&limit.ratio.at, limit.ratio.given, "ratio", SIZE),
        (&limit.pace.at, limit.pace.given, "pace", SIZE),
        (&limit.order.at, limit.order.given, "order", OTHERS),
        (&limit.settle.at, limit.settle.given, "settle", OTHERS),
        (&limit.deadline.at, limit.deadline.given, "deadline", OTHERS),
    ] {
        if given {
            let told = format!("a quota has no {what}");
            notes.error(at, Mistake::new(told, cure));
        }
    }
    if let Some(AppliesTo::Callers) = limit.applies_to.meant()
        && limit.applies_to.given
    {
        let told = "callers do not name a quota: each has one";
        let cure = "write applies_to = \"caller\", or \"user\", \"function\" or \"total\"";
        notes.error(&limit.applies_to.at, Mistake::new(told, cure));
    }
    if limit.function.given
        && limit.applies_to.given
        && limit
            .applies_to
            .meant()
            .is_some_and(|to| *to != AppliesTo::Function)
    {
        let told = "a function is named that the quota does not apply to alone";
        let cure = "write applies_to = \"function\", or leave function out";
        notes.error(&limit.function.at, Mistake::new(told, cure));
    }
    if let Some(Mode::Observe) = limit.mode.meant() {
        let told = "a quota holds whom it meets: it can't be tried out";
        let cure = "write \"enforce\", or \"optimistic\" to let calls pass while a draw runs";
        notes.error(&limit.mode.at, Mistake::new(told, cure));
    }
    if let Some(Some(Excess::Delay)) = limit.on_excess.meant() {
        let told = "\"delay\" is the word of the other kinds";
        notes.error(&limit.on_excess.at, Mistake::new(told, "write \"wait\""));
    }
}

/// What a quota has, and other kinds have not.
fn is_no_quota(limit: &RawRateLimit, kind: &str, notes: &Notes) {
    limit.quota.is_foreign_to(kind, notes);
    if let Some(AppliesTo::Caller | AppliesTo::User) = limit.applies_to.meant() {
        let told = "only a quota is kept for each caller or each user";
        let cure = "write kind = \"quota\", or applies_to = \"callers\" for those that name it";
        notes.error(&limit.applies_to.at, Mistake::new(told, cure));
    }
    if let Some(Mode::Optimistic) = limit.mode.meant() {
        let told = "only a quota is optimistic";
        let cure = "write kind = \"quota\", or \"enforce\" or \"observe\"";
        notes.error(&limit.mode.at, Mistake::new(told, cure));
    }
    if let Some(Some(Excess::Wait)) = limit.on_excess.meant() {
        let told = "\"wait\" is the word of quotas";
        notes.error(&limit.on_excess.at, Mistake::new(told, "write \"delay\""));
    }
}

/// What is no caller's has no say in what else becomes of a call.
fn waits_like_any_other(limit: &RawRateLimit, notes: &Notes) {
    const QUEUE: &str = "leave it out: postpone in [queue] says how calls wait for such a limit";
    const DEADLINE: &str = "leave it out: smapi_request_postpone_threshold_seconds, and deadline in \
                            [[class]], say how long a call may wait";
    const ENFORCE: &str = "leave it out: a limit on callers can be tried out, one on all calls not";
    const SETTLE: &str = "leave it out: such a limit draws what a call is estimated to cost";
    for (at, given, what, cure) in [
        (&limit.mode.at, limit.mode.given, "mode", ENFORCE),
        (
            &limit.on_excess.at,
            limit.on_excess.given,
            "on_excess",
            QUEUE,
        ),
        (&limit.order.at, limit.order.given, "order", QUEUE),
        (&limit.settle.at, limit.settle.given, "settle", SETTLE),
        (
            &limit.deadline.at,
            limit.deadline.given,
            "deadline",
            DEADLINE,
        ),
    ] {
        if given {
            let told = format!("a rate limit that is not for callers has no {what}");
            notes.error(at, Mistake::new(told, cure));
        }
    }
}

fn dearest_takes_no_lifetime(limit: &RawRateLimit, costs: &Costs, notes: &Notes) {
    let Some((rate, ratio)) = limit.figures() else {
        return;
    };
    let dearest = costs.range(limit.function_met()).dearest.get();
    let largest = Cost::new(dearest.ceil() as u32).unwrap_or(Cost::ONE);
    if Pace::new(rate, ratio).with_largest(largest).is_err() {
        let at = match limit.pace.given {
            true => &limit.pace.at,
            false => &limit.rate.at,
        };
        let told = format!("at this rate the dearest call, of {dearest} tokens, takes a lifetime");
        let cure = "give a higher rate, or lower the cost in [costs]";
        notes.error(at, Mistake::new(told, cure));
    }
}

fn function_is_known(limit: &RawRateLimit, raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    let Some(name) = limit.function_met() else {
        return;
    };
    if super::classes::exempt_names(raw).contains(&name) {
        let told = format!("{} is exempt from every limit", quoted(name));
        let cure = "leave this limit out, or take the function out of exempt in [limits]";
        notes.error(&limit.function.at, Mistake::new(told, cure));
    }
    functions.limit(name, &limit.function.at, notes);
}

fn are_apart(limits: &[RawRateLimit], notes: &Notes) {
    let mut seen = std::collections::BTreeSet::new();
    for limit in limits {
        let Some(Some(name)) = limit.name.meant() else {
            continue;
        };
        if !seen.insert(name) {
            let told = format!("{} is the name of another rate limit too", quoted(name));
            let cure = "give each rate limit a name of its own";
            notes.error(&limit.name.at, Mistake::new(told, cure));
        }
        let number = name.strip_prefix('r').unwrap_or_default();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            let told = format!("{} reads as the id of a rate limit", quoted(name));
            let cure = "give a name that is not \"r\" and a number";
            notes.error(&limit.name.at, Mistake::new(told, cure));
        }
    }
}

/// Whether a caller can have the rate limit that it names.
pub(super) fn exists_for(named: &Setting<Option<String>>, limits: &[RawRateLimit], notes: &Notes) {
    let Some(Some(name)) = named.meant() else {
        return;
    };
    let of_callers = |limit: &&RawRateLimit| limit.is_of_callers();
    let names = |limits: &[RawRateLimit]| -> Vec<String> {
        let limits = limits.iter().filter(of_callers);
        limits.filter_map(|it| it.name.value.clone()).collect()
    };
    let all_read = limits.iter().all(|limit| limit.name.sound);
    let known = names(limits);
    if !all_read || known.contains(name) {
        return;
    }
    let mut others = limits.iter();
    if let Some(other) = others.find(|limit| limit.name.value.as_ref() == Some(name)) {
        let told = format!("the rate limit {} is not for callers", quoted(name));
        let cure = match other.is_quota() {
            true => "leave it out: applies_to says there whose calls draw from the quota",
            false => "leave applies_to out there, or name another here",
        };
        notes.error(&named.at, Mistake::new(told, cure));
        return;
    }
    let told = format!("there is no rate limit {}", quoted(name));
    let cure = match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {}?", quoted(near)),
        None => format!(
            "add a section: [[rate_limit]], and below it name = {}",
            quoted(name)
        ),
    };
    notes.missing(&named.at, Mistake::new(told, cure));
}

/// What calls cost, as far as it could be read.
fn costs(raw: &Raw) -> Costs {
    super::callers::costs_of(&raw.costs)
}

/// Those that callers have, of a config that has no error.
pub(super) fn of_callers(limits: &[RawRateLimit], profiles: &[Profile]) -> Vec<StaticRateLimit> {
    let limits = limits.iter();
    let limits = limits.filter(|limit| limit.is_of_callers());
    limits.map(|limit| of_caller(limit, profiles)).collect()
}

fn of_caller(raw: &RawRateLimit, profiles: &[Profile]) -> StaticRateLimit {
    let profile = raw.profile.value.as_deref().map(|name| {
        let profile = profiles.iter().find(|profile| *profile.name == *name);
        profile.expect("a profile that there is not is an error")
    });
    let allowance = match (raw.figures(), profile, raw.burst.value, raw.fill.value) {
        (Some((rate, ratio)), ..) => Allowance::Paced { rate, ratio },
        (None, Some(profile), ..) => profile.allowance,
        (None, None, Some(burst), Some(fill)) => Allowance::Bucket { burst, fill },
        (None, None, ..) => unreachable!("a rate limit without a size is an error"),
    };
    StaticRateLimit {
        name: raw.is_named().into(),
        rule: Rule {
            allowance,
            profile: profile.map(|profile| Arc::clone(&profile.name)),
            mode: match raw.mode.value {
                Mode::Enforce | Mode::Optimistic => BucketMode::Enforce,
                Mode::Observe => BucketMode::Observe,
            },
            on_excess: raw.on_excess(),
            order: raw.order.value,
            settlement: raw.settle.value.map(|settle| {
                if settle {
                    Settlement::Measured
                } else {
                    Settlement::Estimate
                }
            }),
            deadline: raw.deadline.value,
        },
    }
}

/// The names of the others.
pub(super) fn not_of_callers(limits: &[RawRateLimit]) -> Vec<Arc<str>> {
    let limits = limits.iter();
    let others = limits.filter(|limit| !limit.is_of_callers());
    others.map(|limit| limit.is_named().into()).collect()
}

/// Those of all calls, or of a function's, that are paced; of a config that has no error.
pub(super) fn of_the_gate(raw: &Raw) -> Vec<PacedLimit> {
    let costs = costs(raw);
    let limits = raw.rate_limits.iter();
    let others = limits.filter(|limit| !limit.is_of_callers() && !limit.is_quota());
    let paced = others.map(|limit| {
        let (rate, ratio) = limit
            .figures()
            .expect("a paced limit without a rate is an error");
        PacedLimit {
            name: limit.is_named().into(),
            function: limit.function_met().map(Arc::from),
            rate,
            ratio,
            costs: costs.range(limit.function_met()),
        }
    });
    paced.collect()
}

/// Writes one of the callers'.
pub(super) fn write(out: &mut Toml, limit: &StaticRateLimit) {
    let rule = &limit.rule;
    out.text("name", &limit.name);
    out.text(
        "kind",
        match rule.allowance {
            Allowance::Exempt | Allowance::Bucket { .. } => "bucket",
            Allowance::Paced { .. } => "paced",
        },
    );
    match (&rule.profile, rule.allowance) {
        (Some(profile), _) => out.text("profile", profile),
        (None, Allowance::Bucket { burst, fill }) => {
            out.bare("burst", burst.get());
            out.bare("fill", fill.get());
        }
        (None, Allowance::Paced { rate, ratio }) => write_pace(out, rate, ratio),
        (None, Allowance::Exempt) => unreachable!("only a profile makes one of the config exempt"),
    }
    if let Allowance::Paced { .. } = rule.allowance {
        out.text("applies_to", "callers");
    }
    out.text(
        "mode",
        match rule.mode {
            BucketMode::Enforce => "enforce",
            BucketMode::Observe => "observe",
        },
    );
    out.text(
        "on_excess",
        match rule.on_excess {
            OnExcess::Delay => "delay",
            OnExcess::Reject => "reject",
        },
    );
    out.text(
        "order",
        match rule.order {
            BucketOrder::Fair => "fair",
            BucketOrder::Fifo => "fifo",
        },
    );
    if let Some(settlement) = rule.settlement {
        out.bare("settle", settlement == Settlement::Measured);
    }
    out.text(
        "deadline",
        match rule.deadline {
            Deadline::Ordinary => "ordinary",
            Deadline::None => "none",
        },
    );
}

/// Writes one of the others.
pub(super) fn write_paced(out: &mut Toml, limit: &PacedLimit) {
    out.text("name", &limit.name);
    out.text("kind", "paced");
    write_pace(out, limit.rate, limit.ratio);
    match &limit.function {
        None => out.text("applies_to", "total"),
        Some(function) => {
            out.text("applies_to", "function");
            out.text("function", function);
        }
    }
}

fn write_pace(out: &mut Toml, rate: Rate, ratio: BurstRatio) {
    out.bare("rate", rate.get());
    out.bare("ratio", ratio.get());
}
