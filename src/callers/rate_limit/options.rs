//! The options of a `[[rate_limit]]`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::pace::{BurstRatio, PaceSpec, Rate, SpecError, SpecScope, Verb};
use tidegate_limits::quota::{self, LENGTH_MAX, LENGTH_MIN, OutagePolicy, TOTAL_MAX};
use tidegate_limits::scheduler::{BucketMode, BucketOrder, OnExcess};
use tidegate_limits::{Burst, Fill};

use super::profiles::{Profiles, burst, fill};
use super::{Allowance, Handling, QuotaBy, Rule};
use crate::call::claim::{Deadline, QUOTA_KEY_BYTES_MAX};
use crate::options::kind::{
    DAY, MINUTE, MS, choice, duration, flag, function, integer, is_plain, name, number, parsed,
    table, text,
};
use crate::options::shown::quoted;
use crate::options::{Kind, Mistake, options, words};

words! {
    /// `kind`
    pub(crate) enum Form {
        Bucket = "bucket",
        Paced = "paced",
        Quota = "quota",
    }

    /// `applies_to`
    pub(crate) enum AppliesTo {
        /// The callers that name it.
        Callers = "callers",
        Total = "total",
        Function = "function",
        /// Each caller, of a quota.
        Caller = "caller",
        /// Each user, of a quota.
        User = "user",
    }

    /// `mode`
    pub(crate) enum Mode {
        Enforce = "enforce",
        /// Not for a quota.
        Observe = "observe",
        /// Only for a quota.
        Optimistic = "optimistic",
    }

    /// `on_excess`
    pub(crate) enum Excess {
        /// Not for a quota.
        Delay = "delay",
        Reject = "reject",
        /// Only for a quota.
        Wait = "wait",
    }

    /// `when_store_away`, without the share.
    pub(crate) enum WhenAway {
        Deny = "deny",
        Allow = "allow",
        Safe = "safe",
    }
}

options! {
    /// A rate limit: tokens that its callers share, or that each of them has; one section for each.
    pub struct RateLimitSection {
        /// Its name for callers, refusals and metrics. Required.
        name: Option<Arc<str>> = name("poller").required(
            "the rate limit has no name",
            "add a name for callers, logs and metrics, such as name = \"poller\"",
        ).example("\"poller\"");

        /// How it limits. A "bucket" fills at a steady rate, and each call takes its cost from it: after a
        /// silence, a caller may send a burst. "paced" calls go at a steady rate, and a little faster
        /// while they are behind schedule: a late caller catches up, and no caller sends a burst. A
        /// "quota" is an amount for each window, and several sidecars share it: docs/how-to/quotas.md, and
        /// [quota] below.
        kind: Form = choice().or(Form::Bucket);

        /// For a bucket: the most tokens at once, which is how much may come in one go after a silence.
        /// A call that costs more goes when the bucket is full, and closes it until fill has repaid the
        /// rest.
        burst: Option<Burst> = burst().of("tokens").optional().example("30");

        /// For a bucket: how fast it fills, which is how much may come in the long run.
        fill: Option<Fill> = fill().of("tokens per second").optional().example("3");

        /// The size, instead of burst and fill.
        profile: Option<Arc<str>> = name("poller").described("the name of one of [profiles]")
            .optional().example("\"poller\"");

        /// For a paced limit: how much may come, at any time. Required for it.
        rate: Option<Rate> = number(
            "0.0000001 to 1000000000", |given| Rate::new(given).ok(), |rate| rate.get(),
        ).of("tokens per second").optional().example("10");

        /// For a paced limit: how many times the rate late calls may go at. Raise it to catch up sooner.
        /// With 1, calls never catch up, and the rate that a pause left unused is lost.
        ratio: BurstRatio = number(
            "1 to 100", |given| BurstRatio::new(given).ok(), |ratio| ratio.get(),
        ).of("times").or(BurstRatio::default());

        /// For a paced limit: rate and ratio in one line, instead of both. A colon or a semicolon may
        /// separate the two, and the rate may be written as 12K, 1.2E4 or 720000/m.
        pace: Option<Pacing> = pace().optional().example("\"12000,1.1\"");

        /// The calls of a paced limit: those of the callers that name it, all calls, or all calls of a
        /// function. The latter two apply beside the limits below, and calls wait for them as postpone in
        /// [queue] says: use "in_turn". For a quota, who or what has one each: each "caller", each
        /// "user", each "function" (or only the one named below), or "total" for one quota of all calls.
        /// Required for a quota.
        applies_to: AppliesTo = choice().or(AppliesTo::Callers);

        /// The function, with applies_to = "function".
        function: Option<Arc<str>> = function().optional().example("\"guest_list\"");

        /// "observe" delays no call, and counts the calls that it would delay: to try a limit out. A
        /// quota that is "optimistic" admits calls while a draw runs, and all sidecars together exceed a
        /// window by at most one base each. The default is mode in [limits].
        mode: Mode = choice().or(Mode::Enforce);

        /// What happens to a call for which there are no tokens. It waits for them ("delay", for a quota
        /// "wait"), or it is refused at once with rate_limited ("reject"), for clients that retry
        /// elsewhere. The default is to wait.
        on_excess: Option<Excess> = choice().optional().example("\"delay\"");

        /// The order of waiting calls: callers in turn by weight and cost, or all calls by arrival,
        /// whatever their caller.
        order: BucketOrder = choice().or(BucketOrder::Fair);

        /// Whether a call is charged in the end by the time that it took. The default is settle in
        /// [costs].
        settle: Option<bool> = flag().optional().example("true");

        /// "none" lets its calls wait without a deadline, so that every one is served in the end;
        /// "ordinary" as long as any other call.
        deadline: Deadline = choice().or(Deadline::Ordinary);
    }
}

options! {
    /// What only a quota has.
    pub struct QuotaSection {
        /// For a quota: the amount that all sidecars together may spend on each key in a window. Required
        /// for it. It counts whole tokens: the cost of a call is rounded up. In ZooKeeper,
        /// /quota/<key>/total wins.
        total: Option<u64> = integer(1..=TOTAL_MAX).of("tokens").optional().example("10000");

        /// For a quota: the smallest draw. Raise it for fewer draws. Lower it where little is left and
        /// many sidecars need some. The default is a hundredth of an equal share. In ZooKeeper,
        /// /quota/<key>/base wins.
        base: Option<u64> = integer(1..=TOTAL_MAX).of("tokens").optional().example("100");

        /// For a quota: the length of a window. Required for it.
        refresh_window: Option<Duration> = duration(LENGTH_MIN..=LENGTH_MAX).optional()
            .example("\"60s\"");

        /// For a quota: keys with a total of their own, which are users, labels of callers, or functions.
        /// 0 blocks a key.
        totals: Vec<(String, u64)> = table(
            "{ key = tokens, … }",
            10_000,
            "write it as totals = { alice = 50000, \"bob@example.com\" = 20000 }",
            quota_key,
            integer(0..=TOTAL_MAX),
        ).or(Vec::new()).example("{ alice = 50000, \"bob@example.com\" = 20000 }");

        /// For a quota: the beginning of its keys in the store, so that two quotas by user differ. The
        /// default is nothing for users, else the word of applies_to.
        namespace: Option<String> = namespace().optional().example("\"hourly\"").restart();

        /// For a quota: how much of the last grant is left when the next is drawn. Raise it for a store
        /// far away.
        prefetch: u32 = integer(0..=100).of("percent").or(usual().prefetch_percent);

        /// For a quota: the part of an equal share of the rest that is drawn at once, beyond an equal
        /// share of the total. Raise it for fewer draws. Lower it to leave less unused at the end of a
        /// window.
        ask: u32 = integer(1..=100).of("percent").or(usual().ask_percent);

        /// For a quota: how often the part of a grant that is not needed is returned; at least four times
        /// a window.
        relinquish_every: Duration = duration(MS..=DAY).or(usual().relinquish_every);

        /// For a quota: the number of grants from which a part is returned.
        relinquish_above: u32 = integer(1..=1000).of("grants").or(usual().relinquish_above);

        /// For a quota: after this time without an answer, a draw counts as not granted. Set it above what
        /// the store takes on a bad day.
        draw_timeout: Duration = duration(MS..=MINUTE).or(usual().draw_timeout);

        /// For a quota: what happens when the store is unavailable and the drawn tokens are spent. No call
        /// passes ("deny"), every call passes ("allow"), or each sidecar has a share of its own, which no
        /// other sidecar is ever granted ("safe"). With the engine "memory" no share is set aside: that
        /// store is always available.
        when_store_away: WhenAway = choice().or(WhenAway::Safe);

        /// The size of that share, as part of an equal share of the total. What a quiet sidecar does not
        /// spend of it stays unused.
        safe: u32 = integer(1..=100).of("percent").or(usual_share());
    }
}

/// A rate and a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pacing {
    pub(crate) rate: Rate,
    pub(crate) ratio: BurstRatio,
}

impl std::fmt::Display for Pacing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", self.rate.get(), self.ratio.get())
    }
}

/// Rate and ratio in one line.
fn pace() -> Kind<Pacing> {
    const CURE: &str = "give a rate and, after a comma, a ratio, such as \"12000,1.1\"";
    text("\"rate\" or \"rate,ratio\"", "12000,1.1", |given| {
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
            ratio: spec.ratio,
        })
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

fn namespace() -> Kind<String> {
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

/// What only limits for callers have.
pub(crate) const OF_CALLERS: [&str; 4] = ["on_excess", "order", "settle", "deadline"];

impl Form {
    /// Whether limits of this kind have an option.
    pub(crate) fn has(self, option: &str) -> bool {
        match option {
            "burst" | "fill" | "profile" => self == Self::Bucket,
            "rate" | "ratio" | "pace" => self == Self::Paced,
            "order" | "settle" | "deadline" => self != Self::Quota,
            "applies_to" | "function" => self != Self::Bucket,
            _ => true,
        }
    }
}

impl RateLimitSection {
    /// Mutes the options that its kind does not have, and fills in defaults.
    pub(crate) fn fill_in(&mut self) {
        let kind = self.kind.value;
        let is_of_callers = self.is_of_callers() || self.is_quota();
        if let Some(Pacing { rate, ratio }) = self.pacing() {
            self.rate.value = Some(rate);
            self.ratio.value = ratio;
            self.pace.value = None;
        }
        let wait = if self.is_quota() {
            Excess::Wait
        } else {
            Excess::Delay
        };
        self.on_excess.value.get_or_insert(wait);
        for (name, mark) in self.marks_mut() {
            mark.muted = !kind.has(name) || !is_of_callers && OF_CALLERS.contains(&name);
        }
    }

    /// The name of the function whose calls alone meet it.
    pub(crate) fn function_met(&self) -> Option<&Arc<str>> {
        let is_of_function = self.applies_to.value == AppliesTo::Function;
        self.function.value.as_ref().filter(|_| is_of_function)
    }

    pub(crate) fn is_quota(&self) -> bool {
        self.kind.value == Form::Quota
    }

    /// Who or what has a quota each, if the config says it and it could be read.
    pub(crate) fn quota_by(&self) -> Option<QuotaBy> {
        match self.applies_to.meant()? {
            AppliesTo::Callers => None,
            AppliesTo::Total => Some(QuotaBy::Total),
            AppliesTo::Function => Some(QuotaBy::Function(self.function.meant()?.clone())),
            AppliesTo::Caller => Some(QuotaBy::Caller),
            AppliesTo::User => Some(QuotaBy::User),
        }
    }

    /// Whether calls of a quota may go before its draw is done.
    pub(crate) fn quota_mode(&self) -> quota::DrawMode {
        match self.mode.value {
            Mode::Enforce | Mode::Observe => quota::DrawMode::Drawn,
            Mode::Optimistic => quota::DrawMode::Optimistic,
        }
    }

    pub(crate) fn on_excess(&self) -> OnExcess {
        match self.on_excess.value {
            None | Some(Excess::Delay | Excess::Wait) => OnExcess::Delay,
            Some(Excess::Reject) => OnExcess::Reject,
        }
    }

    /// Rate and ratio, in whichever way they are given.
    pub(crate) fn pacing(&self) -> Option<Pacing> {
        let ratio = self.ratio.value;
        let in_numbers = self.rate.value.map(|rate| Pacing { rate, ratio });
        self.pace.value.or(in_numbers)
    }

    /// Whether callers have it, each group a bucket of its own.
    pub(crate) fn is_of_callers(&self) -> bool {
        // The words of a quota are reported where another kind has them.
        let to_all = matches!(
            self.applies_to.value,
            AppliesTo::Total | AppliesTo::Function
        );
        !to_all && !self.is_quota()
    }

    /// Tokens a second, as far as that can be told.
    pub(crate) fn per_second(&self, profiles: &Profiles) -> Option<f64> {
        if let Some(pacing) = self.pacing() {
            return Some(pacing.rate.get());
        }
        let Some(name) = &self.profile.value else {
            return self.fill.value.map(Fill::get);
        };
        match profiles.find(name)?.allowance {
            Allowance::Bucket { fill, .. } => Some(fill.get()),
            Allowance::Paced { rate, .. } => Some(rate.get()),
            Allowance::Exempt => None,
        }
    }

    /// The rule of one that callers have, of a config without an error.
    pub(crate) fn rule(&self, profiles: &Profiles) -> Rule {
        let profile = self.profile.value.as_deref().map(|name| {
            let profile = profiles.find(name);
            profile.expect("a profile that there is not is an error")
        });
        let allowance = match (self.pacing(), profile, self.burst.value, self.fill.value) {
            (Some(Pacing { rate, ratio }), ..) => Allowance::Paced { rate, ratio },
            (None, Some(profile), ..) => profile.allowance,
            (None, None, Some(burst), Some(fill)) => Allowance::Bucket { burst, fill },
            (None, None, ..) => unreachable!("a rate limit without a size is an error"),
        };
        Rule {
            allowance,
            profile: profile.map(|profile| Arc::clone(&profile.name)),
            handling: Handling {
                mode: match self.mode.value {
                    Mode::Enforce | Mode::Optimistic => BucketMode::Enforce,
                    Mode::Observe => BucketMode::Observe,
                },
                on_excess: self.on_excess(),
                order: self.order.value,
                settle: self.settle.value,
                deadline: self.deadline.value,
            },
        }
    }
}

impl QuotaSection {
    /// Mutes the options that a rate limit does not have, and fills in defaults.
    pub(crate) fn fill_in(&mut self, limit: &RateLimitSection) {
        for (_, mark) in self.marks_mut() {
            mark.muted = !limit.is_quota();
        }
        self.totals.mark.muted |= self.totals.value.is_empty();
        self.safe.mark.muted |= self.when_store_away.value != WhenAway::Safe;
        if let Some(by) = limit.quota_by().filter(|_| limit.is_quota()) {
            self.namespace.value = Some(self.namespace(&by).unwrap_or_default().to_owned());
        }
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
    pub(crate) fn rule(
        &self,
        total: u64,
        nodes: u32,
        mode: quota::DrawMode,
    ) -> Option<quota::WindowRule> {
        let away = match self.when_store_away.meant()? {
            WhenAway::Deny => OutagePolicy::Deny,
            WhenAway::Allow => OutagePolicy::Allow,
            WhenAway::Safe => OutagePolicy::Safe {
                percent: *self.safe.meant()?,
            },
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
