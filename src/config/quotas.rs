//! Quotas: `[[rate_limit]]` of kind "quota", and `[quota]`, which says where they are kept; from
//! the file to the settings of those who keep them.

#[expect(
    clippy::disallowed_methods,
    reason = "a config is read at start and on threads that wait"
)]
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::bucket::TokenCount;
use tidegate_limits::quota::{self, Away, LENGTH_MAX, LENGTH_MIN, Mode, Rule, TOTAL_MAX};
use tidegate_limits::scheduler::OnExcess;
use tidegate_quota::{Engine, Key, QuotaLimit, Quotas};

use crate::call::claim::QUOTA_KEY_BYTES_MAX;
use crate::callers::settings::{Costs, QUOTAS_MAX, Quota, QuotaBy};
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

use super::callers::costs_of;
use super::classes::exempt_names;
use super::effective::{Toml, quoted as toml_text};
use super::functions::Functions;
use super::rate_limits::RawRateLimit;
use super::raw::Raw;
use super::reader::{At, Notes, Section, Setting};
use super::tree::{Node, Value, quoted, shortened};
use super::value::{Kind, Mistake, choice, duration, integer, show_duration, text};

pub(super) use self::store::{RawStore, read};

/// Most keys with a total of their own.
const TOTALS_MAX: usize = 10_000;
/// Longest namespace.   bytes
const NAMESPACE_BYTES_MAX: usize = 64;

// Whatever a claim calls a key, a store takes.
const _: () = assert!(QUOTA_KEY_BYTES_MAX <= Key::BYTES_MAX);

const MS: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// `when_store_away`, without the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenAway {
    Deny,
    Allow,
    Safe,
}

const WHEN_AWAY: &[(&str, WhenAway)] = &[
    ("deny", WhenAway::Deny),
    ("allow", WhenAway::Allow),
    ("safe", WhenAway::Safe),
];

/// What a `[[rate_limit]]` says only if it is a quota.
pub(super) struct RawQuota {
    total: Setting<Option<u64>>,
    base: Setting<Option<u64>>,
    refresh_window: Setting<Option<Duration>>,
    totals: Setting<Vec<OwnTotal>>,
    /// Empty for none.
    namespace: Setting<Option<String>>,
    prefetch: Setting<u32>,
    ask: Setting<u32>,
    relinquish_every: Setting<Duration>,
    relinquish_above: Setting<u32>,
    draw_timeout: Setting<Duration>,
    when_store_away: Setting<WhenAway>,
    safe: Setting<u32>,
}

/// One of `totals`.
struct OwnTotal {
    key: String,
    total: u64,
    at: At,
}

/// Reads what stands in a `[[rate_limit]]`.
pub(super) fn read_quota(section: &mut Section<'_>) -> RawQuota {
    let usual = quota::RuleSettings::new(1, MINUTE);
    let Away::Safe { percent } = usual.away else {
        unreachable!("each node has a share of its own by default");
    };
    RawQuota {
        total: section.read("total", None, integer(1..=TOTAL_MAX).optional()),
        base: section.read("base", None, integer(1..=TOTAL_MAX).optional()),
        refresh_window: section.read(
            "refresh_window",
            None,
            duration(LENGTH_MIN..=LENGTH_MAX).optional(),
        ),
        totals: totals(section),
        namespace: section.read("namespace", None, namespace().optional()),
        prefetch: section.read("prefetch", usual.prefetch_percent, integer(0..=100)),
        ask: section.read("ask", usual.ask_percent, integer(1..=100)),
        relinquish_every: section.read(
            "relinquish_every",
            usual.relinquish_every,
            duration(MS..=DAY),
        ),
        relinquish_above: section.read(
            "relinquish_above",
            usual.relinquish_above,
            integer(1..=1000),
        ),
        draw_timeout: section.read("draw_timeout", usual.draw_timeout, duration(MS..=MINUTE)),
        when_store_away: section.read("when_store_away", WhenAway::Safe, choice(WHEN_AWAY)),
        safe: section.read("safe", percent, integer(1..=100)),
    }
}

fn namespace() -> Kind<String> {
    const ALLOWED: &str = "up to 64 letters, digits, _ or -, or \"\" for none";
    text(ALLOWED, "hourly", |given| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if given.len() > NAMESPACE_BYTES_MAX || !given.chars().all(plain) {
            return Err(Mistake::new(
                format!("{} can't be a namespace", quoted(given)),
                format!("give {ALLOWED}, such as \"hourly\""),
            ));
        }
        Ok(given.to_owned())
    })
}

fn totals(section: &mut Section<'_>) -> Setting<Vec<OwnTotal>> {
    let notes = section.notes();
    let (node, at, trusted) = section.bare("totals", "{ key = tokens, … }");
    let mut totals = Setting {
        value: Vec::new(),
        given: node.is_some(),
        sound: trusted,
        at,
    };
    let Some(node) = node.filter(|_| trusted) else {
        return totals;
    };
    let Value::Table(table) = &node.value else {
        let told = format!("{} is not a table", node.told());
        let cure = "write it as totals = { alice = 50000, \"bob@example.com\" = 20000 }";
        notes.error(&totals.at, Mistake::new(told, cure));
        totals.sound = false;
        return totals;
    };
    if table.len() > TOTALS_MAX {
        let told = format!("{} keys have a total of their own", table.len());
        let mistake = Mistake::new(told, format!("give at most {TOTALS_MAX}"));
        notes.error(&totals.at, mistake);
        totals.sound = false;
    }
    for (key, node) in table {
        let at = At {
            key: format!("{}.{}", totals.at.key, shortened(key)),
            place: node.place.clone(),
        };
        match own_total(key, node) {
            Ok(total) => totals.value.push(OwnTotal {
                key: key.clone(),
                total,
                at,
            }),
            Err(mistake) => {
                notes.error(&at, mistake);
                totals.sound = false;
            }
        }
    }
    totals
}

fn own_total(key: &str, node: &Node) -> Result<u64, Mistake> {
    if key.len() > QUOTA_KEY_BYTES_MAX {
        let told = format!("a key of {} bytes", key.len());
        let cure = format!("give at most {QUOTA_KEY_BYTES_MAX} bytes");
        return Err(Mistake::new(told, cure));
    }
    (integer(0..=TOTAL_MAX).read)(node)
}

impl RawQuota {
    /// What only a quota says, each with whether it is said and its name.
    fn all(&self) -> [(&At, bool, &'static str); 12] {
        let Self {
            total,
            base,
            refresh_window,
            totals,
            namespace,
            prefetch,
            ask,
            relinquish_every,
            relinquish_above,
            draw_timeout,
            when_store_away,
            safe,
        } = self;
        [
            (&total.at, total.given, "total"),
            (&base.at, base.given, "base"),
            (&refresh_window.at, refresh_window.given, "refresh_window"),
            (&totals.at, totals.given, "totals"),
            (&namespace.at, namespace.given, "namespace"),
            (&prefetch.at, prefetch.given, "prefetch"),
            (&ask.at, ask.given, "ask"),
            (
                &relinquish_every.at,
                relinquish_every.given,
                "relinquish_every",
            ),
            (
                &relinquish_above.at,
                relinquish_above.given,
                "relinquish_above",
            ),
            (&draw_timeout.at, draw_timeout.given, "draw_timeout"),
            (
                &when_store_away.at,
                when_store_away.given,
                "when_store_away",
            ),
            (&safe.at, safe.given, "safe"),
        ]
    }

    /// Tells what stands in a rate limit of another kind, and belongs to a quota.
    pub(super) fn is_foreign_to(&self, kind: &str, notes: &Notes) {
        for (at, _, what) in self.all().into_iter().filter(|(_, given, _)| *given) {
            let told = format!("{kind} has no {what}");
            let cure = "leave it out, or write kind = \"quota\"";
            notes.error(at, Mistake::new(told, cure));
        }
    }

    /// The rule of a key with this total, as far as everything it is made of could be read.
    fn rule(&self, total: u64, store: &RawStore, mode: Mode) -> Option<Rule> {
        let away = match self.when_store_away.meant()? {
            WhenAway::Deny => Away::Deny,
            WhenAway::Allow => Away::Allow,
            WhenAway::Safe => Away::Safe {
                percent: *self.safe.meant()?,
            },
        };
        let settings = quota::RuleSettings {
            total,
            length: (*self.refresh_window.meant()?)?,
            base: self.base.meant()?.filter(|_| total > 0),
            nodes_expected: store.sidecars()?,
            prefetch_percent: *self.prefetch.meant()?,
            ask_percent: *self.ask.meant()?,
            relinquish_every: *self.relinquish_every.meant()?,
            relinquish_above: *self.relinquish_above.meant()?,
            draw_timeout: *self.draw_timeout.meant()?,
            mode,
            away,
        };
        Rule::check(settings).ok()
    }
}

/// What depends on two options at once, of all quotas and of where they are kept.
pub(super) fn check(raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    let quotas: Vec<&RawRateLimit> = of_kind(raw).collect();
    let store = &raw.quota;
    match (store.given, quotas.first()) {
        (false, Some(first)) => {
            let told = "it is not said where quotas are kept";
            let cure = "add a section [quota]: with engine = \"zookeeper\", \"etcd\" or \
                        \"redis\", servers and expected_sidecars; or empty, for this sidecar alone";
            notes.missing(first.kind_at(), Mistake::new(told, cure));
        }
        (true, None) if all_kinds_are_read(raw) => {
            let told = "nothing is kept here: no rate limit is a quota";
            let cure = "leave [quota] out, or add a [[rate_limit]] with kind = \"quota\"";
            notes.warn(&store.at, Mistake::new(told, cure));
        }
        _ => {}
    }
    if let Some(ninth) = quotas.get(QUOTAS_MAX) {
        let told = format!("there are {} quotas", quotas.len());
        let cure = format!("give at most {QUOTAS_MAX}: a call may meet all of them");
        notes.error(ninth.kind_at(), Mistake::new(told, cure));
    }
    for limit in &quotas {
        is_whole(limit, notes);
        base_fits(&limit.quota, notes);
        let safe = &limit.quota.safe;
        if safe.given
            && limit
                .quota
                .when_store_away
                .meant()
                .is_some_and(|it| *it != WhenAway::Safe)
        {
            let told = "it has no effect unless when_store_away is \"safe\"";
            let cure = "leave it out, or write when_store_away = \"safe\"";
            notes.warn(&safe.at, Mistake::new(told, cure));
        }
        totals_belong(limit, functions, notes);
        dearest_can_pass(limit, raw, notes);
    }
    namespaces_are_apart(&quotas, notes);
    if !quotas.is_empty() {
        costs_are_whole(raw, notes);
    }
}

fn of_kind(raw: &Raw) -> impl Iterator<Item = &RawRateLimit> {
    raw.rate_limits.iter().filter(|limit| limit.is_quota())
}

fn all_kinds_are_read(raw: &Raw) -> bool {
    raw.rate_limits.iter().all(RawRateLimit::kind_is_read)
}

fn is_whole(limit: &RawRateLimit, notes: &Notes) {
    let quota = &limit.quota;
    for (is_missing, told, cure) in [
        (
            quota.total.is_missing(),
            "the quota has no total",
            "add total = 10000, what all sidecars together may spend in a window",
        ),
        (
            quota.refresh_window.is_missing(),
            "the quota has no window",
            "add refresh_window = \"60s\", after which the whole total is there again",
        ),
        (
            limit.applies_to_is_missing(),
            "it is not said for whom or what there is a quota each",
            "add applies_to = \"user\", \"caller\", \"function\", or \"total\" for one of all calls",
        ),
    ] {
        if is_missing {
            notes.missing(limit.at(), Mistake::new(told, cure));
        }
    }
}

fn base_fits(quota: &RawQuota, notes: &Notes) {
    let Some(Some(base)) = quota.base.meant().copied() else {
        return;
    };
    let total = quota.total.meant().copied().flatten();
    if let Some(total) = total
        && base > total
    {
        let told = format!("the smallest draw of {base} is more than the total of {total}");
        let cure = format!("give at most {total}, or leave it out");
        notes.error(&quota.base.at, Mistake::new(told, cure));
        return;
    }
    let own = quota.totals.value.iter();
    for own in own.filter(|own| own.total > 0 && base > own.total) {
        let told = format!(
            "a total of {} is less than the smallest draw, base = {base}",
            own.total
        );
        let cure = format!("give {base} or more, or a smaller base");
        notes.error(&own.at, Mistake::new(told, cure));
    }
}

fn totals_belong(limit: &RawRateLimit, functions: &Functions<'_>, notes: &Notes) {
    let totals = &limit.quota.totals;
    if !totals.given {
        return;
    }
    match limit.quota_by() {
        Some(QuotaBy::Total) => {
            let told = "all calls have one quota: there are no keys with a total of their own";
            let cure = "give the number as total, or write applies_to = \"user\"";
            notes.error(&totals.at, Mistake::new(told, cure));
        }
        Some(QuotaBy::Function(Some(_))) => {
            let told = "one function has this quota: there are no keys with a total of their own";
            let cure = "give the number as total, or leave function out";
            notes.error(&totals.at, Mistake::new(told, cure));
        }
        Some(QuotaBy::Function(None)) => {
            for own in &totals.value {
                functions.limit(&own.key, &own.at, notes);
            }
        }
        _ => {}
    }
}

/// A call that costs more than its quota ever holds could never pass, and a safe share of nothing
/// is none.
fn dearest_can_pass(limit: &RawRateLimit, raw: &Raw, notes: &Notes) {
    let quota = &limit.quota;
    let (Some(by), Some(sidecars)) = (limit.quota_by(), raw.quota.sidecars()) else {
        return;
    };
    if !raw.costs.is_read() {
        return;
    }
    let costs = costs_of(&raw.costs);
    let exempt = exempt_names(raw);
    let total = quota.total.meant().copied().flatten();
    let general = total.map(|total| (None, total, &quota.total.at));
    let own = quota.totals.value.iter();
    let own = own.map(|own| (Some(own.key.as_str()), own.total, &own.at));
    for (key, total, at) in general.into_iter().chain(own) {
        // A total of 0 blocks its key.
        let rule = quota.rule(total, &raw.quota, limit.quota_mode());
        let Some(rule) = rule.filter(|rule| !rule.blocks()) else {
            continue;
        };
        let rule = match raw.quota.is_memory() {
            true => rule.without_safe_share(),
            false => rule,
        };
        let dearest = match (&by, key) {
            (QuotaBy::Function(Some(function)), _) => costs.of(function),
            (QuotaBy::Function(None), Some(function)) => costs.of(function),
            _ => dearest(&costs, &exempt),
        };
        let dearest = whole_tokens(dearest);
        if dearest > rule.costliest() {
            let told = match rule.safe_share() {
                0 => format!("a call of {dearest} tokens never passes: a window has {total}"),
                share => format!(
                    "a call of {dearest} tokens never passes: of {total}, each of {sidecars} \
                     sidecars owns {share}, and one can spend {} at most",
                    rule.costliest()
                ),
            };
            let cure = "give a higher total or a smaller safe, or lower the cost in [costs]";
            notes.error(at, Mistake::new(told, cure));
        }
        if matches!(rule.settings().away, Away::Safe { .. }) && rule.safe_share() == 0 {
            let told = format!(
                "nothing passes while the store is away: shared among {sidecars} sidecars, the \
                 safe share of {total} is no whole token"
            );
            let cure = "give a higher total, or say what you want in when_store_away";
            notes.warn(at, Mistake::new(told, cure));
        }
    }
}

/// What the dearest call costs that meets limits.
fn dearest(costs: &Costs, exempt: &[&str]) -> TokenCount {
    let functions = costs.functions.iter();
    let meets = |(name, _): &&(Arc<str>, TokenCount)| !exempt.contains(&&**name);
    let functions = functions.filter(meets).map(|(_, cost)| *cost);
    functions.fold(costs.default, TokenCount::max)
}

/// What a quota counts for a call of this cost.   tokens
fn whole_tokens(cost: TokenCount) -> u64 {
    cost.tokens().ceil() as u64
}

/// A quota counts whole tokens.
fn costs_are_whole(raw: &Raw, notes: &Notes) {
    let fraction = |cost: &TokenCount| cost.tokens().fract() != 0.0;
    let costs = &raw.costs;
    let default = costs.default.value;
    let mut functions = costs.functions.value.iter();
    let (at, what, cost) = if fraction(&default) {
        (&costs.default.at, "a call".to_owned(), default)
    } else if let Some((function, cost)) = functions.find(|(_, cost)| fraction(cost)) {
        (&costs.functions.at, quoted(function), *cost)
    } else {
        return;
    };
    let told = format!(
        "quotas count whole tokens: for {what} they count {}, not {}",
        whole_tokens(cost),
        cost.tokens()
    );
    let cure = "give whole numbers, such as ten times as many, and totals to match";
    notes.warn(at, Mistake::new(told, cure));
}

fn namespaces_are_apart(quotas: &[&RawRateLimit], notes: &Notes) {
    let mut seen: Vec<(Option<&str>, &str)> = Vec::new();
    for limit in quotas {
        let (Some(by), Some(name)) = (limit.quota_by(), limit.name.meant()) else {
            continue;
        };
        let given = &limit.quota.namespace;
        if !given.sound {
            continue;
        }
        let name = name.as_deref().unwrap_or_default();
        let own = namespace_of(given.value.as_deref(), &by);
        if let Some((_, other)) = seen.iter().find(|(namespace, _)| *namespace == own) {
            let at = if given.given { &given.at } else { limit.at() };
            let told = format!("its keys are those of {} too", quoted(other));
            let cure = "give each quota a namespace of its own, such as namespace = \"hourly\"";
            notes.error(at, Mistake::new(told, cure));
        }
        seen.push((own, name));
    }
}

/// What the keys of a quota begin with, unless it says so itself. Those of users begin with
/// nothing, so that in ZooKeeper they are the nodes of the design that this follows.
fn namespace_of<'a>(given: Option<&'a str>, by: &QuotaBy) -> Option<&'a str> {
    match (given, by) {
        (Some(""), _) | (None, QuotaBy::User) => None,
        (Some(given), _) => Some(given),
        (None, QuotaBy::Caller) => Some("caller"),
        (None, QuotaBy::Function(_)) => Some("function"),
        (None, QuotaBy::Total) => Some("total"),
    }
}

/// The quotas and where they are kept, of a config that has no error.
pub(super) fn settings(raw: &Raw) -> Option<Quotas> {
    let mut quotas = of_kind(raw).peekable();
    quotas.peek()?;
    let store = &raw.quota;
    let sidecars = store.sidecars();
    let sidecars = sidecars.expect("a store without a number of sidecars is an error");
    let limits = quotas.map(|limit| {
        let quota = &limit.quota;
        let by = by_of(limit);
        let rule = |total| {
            let rule = quota.rule(total, store, limit.quota_mode());
            rule.expect("a quota that can't be is an error")
        };
        let total = quota.total.value;
        let own = quota.totals.value.iter();
        QuotaLimit {
            name: in_metrics(limit),
            rule: rule(total.expect("a quota without a total is an error")),
            on_excess: limit.on_excess(),
            totals: own
                .map(|own| (own.key.as_str().into(), rule(own.total)))
                .collect::<BTreeMap<_, _>>(),
            namespace: namespace_of(quota.namespace.value.as_deref(), &by).map(Arc::from),
        }
    });
    let engine = store.engine.clone();
    Some(Quotas {
        engine: engine.expect("a store that can't be reached is an error"),
        keys_max: store.keys_max.value as usize,
        expected_sidecars: sidecars,
        limits: limits.collect(),
    })
}

/// What a claim needs to know of them, of a config that has no error.
pub(super) fn of_claims(raw: &Raw) -> Vec<Quota> {
    let quotas = of_kind(raw).map(|limit| Quota {
        name: in_metrics(limit),
        by: by_of(limit),
    });
    quotas.collect()
}

fn in_metrics(limit: &RawRateLimit) -> Arc<str> {
    format!("{RATE_LIMIT_PREFIX}{}", limit.is_named()).into()
}

fn by_of(limit: &RawRateLimit) -> QuotaBy {
    limit.quota_by().expect("a quota of nobody is an error")
}

/// Writes them as the config that says them. The password is hidden.
pub(super) fn write(out: &mut Toml, quotas: &Quotas, claims: &[Quota]) {
    out.header("[quota]");
    store::write(out, &quotas.engine);
    if quotas.engine != Engine::Memory {
        out.bare("expected_sidecars", quotas.expected_sidecars);
    }
    out.bare("keys_max", quotas.keys_max);
    for limit in &quotas.limits {
        let claim = claims.iter().find(|claim| claim.name == limit.name);
        let claim = claim.expect("claims know every quota");
        out.header("[[rate_limit]]");
        write_limit(out, limit, &claim.by);
    }
}

fn write_limit(out: &mut Toml, limit: &QuotaLimit, by: &QuotaBy) {
    let settings = limit.rule.settings();
    let name = limit.name.strip_prefix(RATE_LIMIT_PREFIX);
    out.text("name", name.unwrap_or(&limit.name));
    out.text("kind", "quota");
    out.text(
        "applies_to",
        match by {
            QuotaBy::Total => "total",
            QuotaBy::Function(_) => "function",
            QuotaBy::Caller => "caller",
            QuotaBy::User => "user",
        },
    );
    if let QuotaBy::Function(Some(function)) = by {
        out.text("function", function);
    }
    out.bare("total", settings.total);
    if let Some(base) = settings.base {
        out.bare("base", base);
    }
    out.text("refresh_window", &show_duration(settings.length));
    if !limit.totals.is_empty() {
        let totals = limit.totals.iter();
        let totals =
            totals.map(|(key, rule)| format!("{} = {}", toml_text(key), rule.settings().total));
        let totals: Vec<_> = totals.collect();
        out.bare("totals", format_args!("{{ {} }}", totals.join(", ")));
    }
    out.text("namespace", limit.namespace.as_deref().unwrap_or_default());
    out.bare("prefetch", settings.prefetch_percent);
    out.bare("ask", settings.ask_percent);
    out.text(
        "relinquish_every",
        &show_duration(settings.relinquish_every),
    );
    out.bare("relinquish_above", settings.relinquish_above);
    out.text("draw_timeout", &show_duration(settings.draw_timeout));
    out.text(
        "mode",
        match settings.mode {
            Mode::Drawn => "enforce",
            Mode::Optimistic => "optimistic",
        },
    );
    out.text(
        "on_excess",
        match limit.on_excess {
            OnExcess::Delay => "wait",
            OnExcess::Reject => "reject",
        },
    );
    match settings.away {
        Away::Deny => out.text("when_store_away", "deny"),
        Away::Allow => out.text("when_store_away", "allow"),
        Away::Safe { percent } => {
            out.text("when_store_away", "safe");
            out.bare("safe", percent);
        }
    }
}
