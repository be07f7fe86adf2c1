//! The options of a `[[bucket]]`, a `[[pace]]` and a `[[quota]]`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::pace::{BurstRatio, PaceSpec, Rate, SpecError, SpecScope, Verb};
use tidegate_limits::quota::{self, LENGTH_MAX, LENGTH_MIN, OutagePolicy, TOTAL_MAX};
use tidegate_limits::scheduler::{BucketOrder, OnExcess};
use tidegate_limits::{Burst, Fill};

use super::profiles::{Profiles, burst, fill};
use super::{Allowance, Handling, QuotaBy, Rule};
use crate::call::LimitMode;
use crate::call::claim::{ClaimDeadline, QUOTA_KEY_BYTES_MAX};
use crate::options::kind::{
    DAY, MINUTE, MS, choice, duration, flag, function, integer, is_plain, name, number, parsed,
    table,
};
use crate::options::shown::quoted;
use crate::options::tree::{ConfigValue, Node};
use crate::options::{Mistake, OptionMark, ValueKind, options, words};

words! {
    /// `applies_to` of a pace.
    pub(crate) enum PaceScope {
        /// The callers that name it.
        Callers = "callers",
        Total = "total",
        Function = "function",
    }

    /// `applies_to` of a quota.
    pub(crate) enum QuotaScope {
        User = "user",
        Caller = "caller",
        Function = "function",
        Total = "total",
    }

    /// `mode` of a quota.
    pub(crate) enum QuotaMode {
        Enforce = "enforce",
        Observe = "observe",
        Optimistic = "optimistic",
    }

    /// `when_store_away`, without the share.
    pub(crate) enum WhenAway {
        Deny = "deny",
        Allow = "allow",
        Safe = "safe",
    }
}

options! {
    /// A bucket: tokens that the callers which name it share; one section for each. It fills at a steady
    /// rate, and each call takes its cost from it. After a silence, a caller may send a burst.
    pub struct BucketSection {
        /// The name for callers, refusals and metrics. Required.
        name: Option<Arc<str>> = name("poller").required(
            "the bucket has no name",
            "add a name for callers, logs and metrics, such as name = \"poller\"",
        ).example("\"poller\"");

        /// The most tokens at once, which is how much may come in one go after a silence. A call that
        /// costs more goes when the bucket is full, and closes it until fill has repaid the rest.
        burst: Option<Burst> = burst().of("tokens").optional().example("30");

        /// How fast it fills, which is how much may come in the long run.
        fill: Option<Fill> = fill().of("tokens per second").optional().example("3");

        /// The size, instead of burst and fill.
        profile: Option<Arc<str>> = name("poller").described("the name of one of [profiles]")
            .optional().example("\"poller\"");

        /// "observe" delays no call, and counts the calls that it would delay: to try a limit out. The
        /// default is mode in [limits].
        mode: LimitMode = choice().or(LimitMode::Enforce);

        /// How a call without tokens is treated. It waits for them ("delay"), or it is
        /// refused at once with rate_limited ("reject"), for clients that retry elsewhere.
        on_excess: OnExcess = choice().or(OnExcess::Delay);

        /// The order of waiting calls: callers in turn by weight and cost, or all calls by arrival,
        /// whatever their caller.
        order: BucketOrder = choice().or(BucketOrder::Fair);

        /// Whether a call is charged in the end by the time that it took. The default is settle in
        /// [costs].
        settle: Option<bool> = flag().optional().example("true");

        /// "none" lets its calls wait without a deadline, so that every one is served in the end;
        /// "ordinary" as long as any other call.
        max_wait: ClaimDeadline = choice().or(ClaimDeadline::Ordinary);
    }
}

options! {
    /// A pace: a steady rate of calls, which are a little faster while they are behind schedule; one
    /// section for each. A late caller catches up, and no caller sends a burst.
    pub struct PaceSection {
        /// The name for callers, refusals and metrics. Required.
        name: Option<Arc<str>> = name("steady").required(
            "the pace has no name",
            "add a name for callers, logs and metrics, such as name = \"steady\"",
        ).example("\"steady\"");

        /// How much may come, at any time. Required. A text may have rate and ratio, and units: "12K,1.1",
        /// "720000/m".
        rate: Option<Pacing> = pacing().of("tokens per second").required(
            "the pace has no rate",
            "add rate = 10, or rate = \"10,1.1\" for rate and ratio at once",
        ).example("10");

        /// How many times the rate late calls may go at. Raise it to catch up sooner. With 1, calls never
        /// catch up, and the rate that a pause left unused is lost.
        ratio: BurstRatio = number(
            "1 to 100", |given| BurstRatio::new(given).ok(), |ratio| ratio.get(),
        ).of("times").or(BurstRatio::default());

        /// The calls that meet it: those of callers that name it, all calls ("total"), or all calls of a function.
        /// The latter two apply beside [limits], and calls wait for them as postpone in [queue] says: use
        /// "in_turn".
        applies_to: PaceScope = choice().or(PaceScope::Callers);

        /// The function, with applies_to = "function".
        function: Option<Arc<str>> = function().optional().example("\"guest_list\"");

        /// "observe" delays no call, and counts the calls that it would delay: to try a limit out. The
        /// default is mode in [limits].
        mode: LimitMode = choice().or(LimitMode::Enforce);

        /// For callers: as on_excess of a [[bucket]].
        on_excess: OnExcess = choice().or(OnExcess::Delay);

        /// For callers: as order of a [[bucket]].
        order: BucketOrder = choice().or(BucketOrder::Fair);

        /// For callers: as settle of a [[bucket]].
        settle: Option<bool> = flag().optional().example("true");

        /// For callers: as max_wait of a [[bucket]].
        max_wait: ClaimDeadline = choice().or(ClaimDeadline::Ordinary);
    }
}

options! {
    /// A quota: an amount for each window that all sidecars share, through the store in [quota_store];
    /// one section for each. docs/how-to/quotas.md explains it.
    pub struct QuotaSection {
        /// The name in refusals and metrics. Required.
        name: Option<Arc<str>> = name("per_user").required(
            "the quota has no name",
            "add a name for logs and metrics, such as name = \"per_user\"",
        ).example("\"per_user\"");

        /// Who or what has one each: each "user", each "caller", each "function" (or only the one named
        /// below), or "total" for one quota of all calls. Required.
        applies_to: Option<QuotaScope> = choice().required(
            "who or what has the quota is missing",
            "add applies_to = \"user\", \"caller\", \"function\", or \"total\" for one of all calls",
        ).example("\"user\"");

        /// The function, with applies_to = "function".
        function: Option<Arc<str>> = function().optional().example("\"guest_list\"");

        /// The amount that all sidecars together may spend on each key in a window. Required. It counts
        /// whole tokens: the cost of a call is rounded up. In ZooKeeper, /quota/<key>/total wins.
        total: Option<u64> = integer(1..=TOTAL_MAX).of("tokens").required(
            "the quota has no total",
            "add total = 10000, the amount that all sidecars together may spend in a window",
        ).example("10000");

        /// The length of a window. Required.
        refresh_window: Option<Duration> = duration(LENGTH_MIN..=LENGTH_MAX).required(
            "the quota has no window",
            "add refresh_window = \"60s\", after which the whole total is available again",
        ).example("\"60s\"");

        /// Keys with a total of their own, which are users, labels of callers, or functions. 0 blocks a
        /// key.
        totals: Vec<(String, u64)> = table(
            "{ key = tokens, … }",
            10_000,
            "write it as totals = { alice = 50000, \"bob@example.com\" = 20000 }",
            quota_key,
            integer(0..=TOTAL_MAX),
        ).or(Vec::new()).example("{ alice = 50000, \"bob@example.com\" = 20000 }");

        /// "observe" holds no call, and counts the calls that it would hold. "optimistic" admits calls
        /// while a draw runs, and all sidecars together exceed a window by at most one base each. The
        /// default is mode in [limits].
        mode: QuotaMode = choice().or(QuotaMode::Enforce);

        /// How a call without tokens is treated. It waits for them ("delay"), or it is
        /// refused at once with rate_limited ("reject").
        on_excess: OnExcess = choice().or(OnExcess::Delay);

        /// The rule while the store is unavailable and the drawn tokens are spent. No call passes
        /// ("deny"), every call passes ("allow"), or each sidecar has a share of its own, which no other
        /// sidecar is ever granted ("safe"). With the engine "memory" no share is set aside: that store is
        /// always available.
        when_store_away: WhenAway = choice().or(WhenAway::Safe);

        /// The size of that share, as part of an equal share of the total. What a quiet sidecar does not
        /// spend of it stays unused.
        safe: u32 = integer(1..=100).of("percent").or(usual_share());

        /// The beginning of its keys in the store, so that two quotas by user differ. The default is
        /// nothing for users, else the word of applies_to.
        namespace: Option<String> = namespace().optional().example("\"hourly\"").restart();

        /// The smallest draw. Raise it for fewer draws. Lower it where little is left and many sidecars
        /// need some. The default is a hundredth of an equal share. In ZooKeeper, /quota/<key>/base wins.
        base: Option<u64> = integer(1..=TOTAL_MAX).of("tokens").optional().example("100").expert();

        /// How much of the last grant is left when the next is drawn. Raise it for a store far away.
        prefetch: u32 = integer(0..=100).of("percent").or(usual().prefetch_percent).expert();

        /// The part of an equal share of the rest that is drawn at once, beyond an equal share of the
        /// total. Raise it for fewer draws. Lower it to leave less unused at the end of a window.
        ask: u32 = integer(1..=100).of("percent").or(usual().ask_percent).expert();

        /// How often the part of a grant that is not needed is returned; at least four times a window.
        relinquish_every: Duration = duration(MS..=DAY).or(usual().relinquish_every).expert();

        /// The number of grants from which a part is returned.
        relinquish_above: u32 = integer(1..=1000).of("grants").or(usual().relinquish_above).expert();

        /// After this time without an answer, a draw counts as not granted. Set it above what the store
        /// takes on a bad day.
        draw_timeout: Duration = duration(MS..=MINUTE).or(usual().draw_timeout).expert();
    }
}

/// A rate, and a ratio if it is in the same line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pacing {
    pub(crate) rate: Rate,
    pub(crate) ratio: Option<BurstRatio>,
}

/// A number, or rate and ratio in one line.
fn pacing() -> ValueKind<Pacing> {
    const ALLOWED: &str = "0.0000001 to 1000000000";
    let plain = number(ALLOWED, |given| Rate::new(given).ok(), |rate| rate.get());
    let read = move |node: &Node| match &node.value {
        ConfigValue::Text(given) => Ok(one_line(given)?),
        _ => Ok(Pacing {
            rate: (plain.read)(node)?,
            ratio: None,
        }),
    };
    ValueKind::of_parts(
        format!("{ALLOWED}, or \"rate,ratio\""),
        read,
        |pacing| match pacing.ratio {
            None => pacing.rate.get().to_string(),
            Some(ratio) => format!("\"{},{}\"", pacing.rate.get(), ratio.get()),
        },
    )
}

fn one_line(given: &str) -> Result<Pacing, Mistake> {
    const CURE: &str = "give a rate and, after a comma, a ratio, such as \"12000,1.1\"";
    let spec: PaceSpec = given.parse().map_err(|mistake: SpecError| {
        let cause = mistake.source().map(|cause| format!(": {cause}"));
        Mistake::new(format!("{mistake}{}", cause.unwrap_or_default()), CURE)
    })?;
    // A limit of the config runs, and is one for all threads.
    if spec.verb != Verb::Start || spec.scope != SpecScope::Activity {
        let message = format!("{} says more than a rate and a ratio", quoted(given));
        return Err(Mistake::new(message, CURE));
    }
    Ok(Pacing {
        rate: spec.rate,
        ratio: Some(spec.ratio),
    })
}

/// A quota of which only the defaults count.
fn usual() -> quota::RuleSettings {
    quota::RuleSettings::new(1, MINUTE)
}

fn usual_share() -> u32 {
    match usual().away {
        OutagePolicy::Safe { percent } => percent,
        OutagePolicy::Deny | OutagePolicy::Allow => {
            unreachable!("each node has a share of its own by default")
        }
    }
}

fn namespace() -> ValueKind<String> {
    let fits = |given: &str| given.len() <= 64 && is_plain(given, "_-");
    let wrong = (
        "can't be a namespace",
        "give up to 64 letters, digits, _ or -, or \"\" for none, such as \"hourly\"",
    );
    let allowed = "up to 64 letters, digits, _ or -, or \"\" for none";
    parsed(
        allowed,
        "hourly",
        move |it| fits(it).then(|| it.to_owned()),
        wrong,
    )
}

fn quota_key(key: &str) -> Result<(), Mistake> {
    if key.len() <= QUOTA_KEY_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a key of {} bytes", key.len());
    Err(Mistake::new(
        message,
        format!("give at most {QUOTA_KEY_BYTES_MAX} bytes"),
    ))
}

impl BucketSection {
    /// Tokens a second, as far as the config says it.
    pub(crate) fn per_second(&self, profiles: &Profiles) -> Option<f64> {
        let Some(name) = &self.profile.value else {
            return self.fill.value.map(Fill::get);
        };
        match profiles.find(name)?.allowance {
            Allowance::Bucket { fill, .. } => Some(fill.get()),
            Allowance::Paced { rate, .. } => Some(rate.get()),
            Allowance::Exempt => None,
        }
    }

    /// The rule, of a config without an error.
    pub(crate) fn rule(&self, profiles: &Profiles) -> Rule {
        let profile = self.profile.value.as_deref().map(|name| {
            let profile = profiles.find(name);
            profile.expect("a profile that there is not is an error")
        });
        let allowance = match (profile, self.burst.value, self.fill.value) {
            (Some(profile), ..) => profile.allowance,
            (None, Some(burst), Some(fill)) => Allowance::Bucket { burst, fill },
            (None, ..) => unreachable!("a bucket without a size is an error"),
        };
        Rule {
            allowance,
            profile: profile.map(|profile| Arc::clone(&profile.name)),
            handling: Handling {
                mode: self.mode.value,
                on_excess: self.on_excess.value,
                order: self.order.value,
                settle: self.settle.value,
                deadline: self.max_wait.value,
            },
        }
    }
}

impl PaceSection {
    /// Mutes the options that have no effect, and gives rate and ratio an option each.
    pub(crate) fn fill_in(&mut self) {
        if let Some(ratio) = self.rate.value.as_mut().and_then(|it| it.ratio.take()) {
            self.ratio.value = ratio;
        }
        let is_of_callers = self.is_of_callers();
        for mark in self.marks_of_callers_mut() {
            mark.muted = !is_of_callers;
        }
    }

    /// The options that only a pace for callers has.
    pub(crate) fn marks_of_callers(&self) -> impl Iterator<Item = (&'static str, &OptionMark)> {
        let of_callers = |(name, _): &(_, _)| OF_CALLERS.contains(name);
        self.marks().into_iter().filter(of_callers)
    }

    fn marks_of_callers_mut(&mut self) -> impl Iterator<Item = &mut OptionMark> {
        let marks = self.marks_mut().into_iter();
        marks.filter_map(|(name, mark)| OF_CALLERS.contains(&name).then_some(mark))
    }

    /// The name of the function whose calls alone meet it.
    pub(crate) fn function_met(&self) -> Option<&Arc<str>> {
        let is_of_function = self.applies_to.value == PaceScope::Function;
        self.function.value.as_ref().filter(|_| is_of_function)
    }

    /// Whether callers have it, each group of callers a pace of its own.
    pub(crate) fn is_of_callers(&self) -> bool {
        self.applies_to.value == PaceScope::Callers
    }

    /// Rate and ratio, in whichever way they are given.
    pub(crate) fn pacing(&self) -> Option<(Rate, BurstRatio)> {
        let Pacing { rate, ratio } = self.rate.value?;
        Some((rate, ratio.unwrap_or(self.ratio.value)))
    }

    /// The rule of one that callers have, of a config without an error.
    pub(crate) fn rule(&self) -> Rule {
        let (rate, ratio) = self.pacing().expect("a pace without a rate is an error");
        Rule {
            handling: Handling {
                mode: self.mode.value,
                on_excess: self.on_excess.value,
                order: self.order.value,
                settle: self.settle.value,
                deadline: self.max_wait.value,
            },
            ..Rule::of(Allowance::Paced { rate, ratio })
        }
    }
}

/// The options that only a pace for callers has.
const OF_CALLERS: [&str; 4] = ["on_excess", "order", "settle", "max_wait"];

impl QuotaSection {
    /// Mutes the options that have no effect, and fills in defaults.
    pub(crate) fn fill_in(&mut self) {
        self.totals.mark.muted |= self.totals.value.is_empty();
        self.safe.mark.muted |= self.when_store_away.value != WhenAway::Safe;
        if let Some(by) = self.by() {
            self.namespace.value = Some(self.namespace(&by).unwrap_or_default().to_owned());
        }
    }

    /// Who or what has a quota each, if the config says it and it could be read.
    pub(crate) fn by(&self) -> Option<QuotaBy> {
        match self.applies_to.said()? {
            QuotaScope::Total => Some(QuotaBy::Total),
            QuotaScope::Function => Some(QuotaBy::Function(self.function.meant()?.clone())),
            QuotaScope::Caller => Some(QuotaBy::Caller),
            QuotaScope::User => Some(QuotaBy::User),
        }
    }

    /// The name of the function whose calls alone meet it.
    pub(crate) fn function_met(&self) -> Option<&Arc<str>> {
        let is_of_function = self.applies_to.value == Some(QuotaScope::Function);
        self.function.value.as_ref().filter(|_| is_of_function)
    }

    /// The beginning of its keys, unless the config says otherwise. Those of users begin with
    /// nothing, so that in ZooKeeper they are the nodes of the design that this follows.
    pub(crate) fn namespace(&self, by: &QuotaBy) -> Option<&str> {
        match (self.namespace.value.as_deref(), by) {
            (Some(""), _) | (None, QuotaBy::User) => None,
            (Some(given), _) => Some(given),
            (None, QuotaBy::Caller) => Some("caller"),
            (None, QuotaBy::Function(_)) => Some("function"),
            (None, QuotaBy::Total) => Some("total"),
        }
    }

    /// The rule of a key with this total, as far as everything it is made of could be read.
    pub(crate) fn rule(&self, total: u64, nodes: u32) -> Option<quota::WindowRule> {
        let away = match self.when_store_away.meant()? {
            WhenAway::Deny => OutagePolicy::Deny,
            WhenAway::Allow => OutagePolicy::Allow,
            WhenAway::Safe => OutagePolicy::Safe {
                percent: *self.safe.meant()?,
            },
        };
        let mode = match self.mode.value {
            QuotaMode::Enforce | QuotaMode::Observe => quota::DrawMode::Drawn,
            QuotaMode::Optimistic => quota::DrawMode::Optimistic,
        };
        let settings = quota::RuleSettings {
            total,
            length: *self.refresh_window.said()?,
            base: self.base.meant()?.filter(|_| total > 0),
            nodes_expected: nodes,
            prefetch_percent: *self.prefetch.meant()?,
            ask_percent: *self.ask.meant()?,
            relinquish_every: *self.relinquish_every.meant()?,
            relinquish_above: *self.relinquish_above.meant()?,
            draw_timeout: *self.draw_timeout.meant()?,
            mode,
            away,
        };
        quota::WindowRule::check(settings).ok()
    }
}
