//! Claims of calls: the callers that count a call, its charge, and its final cost.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;
use tidegate_callers::{
    CallerId, CallerTable, Charge, FinalCharge, FunctionId, Group, Match, Matches, RateLimitId,
    Registration, Usage,
};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::BucketId;

use super::quotas::QuotaKeyParts;
use super::rate_limit::{self, RateLimit};
use super::{Account, Callers, CallersState, GroupUse, Meets};
use crate::call::claim::{Charged, Claim, CostRule, Counted, ReservedCost, SettledBy, Settling};
use crate::call::identity::fitting;
use crate::call::{Dialect, Facts, Identity, Verdict};

impl Callers {
    /// Says who makes a call and what is charged for it, and counts it.
    pub fn claim(
        &self,
        now: Timestamp,
        identity: &Arc<Identity>,
        function: &str,
        meets: Meets,
    ) -> Claim {
        let rule = CostRule::default();
        self.claim_batch(now, identity, (function, &[]), meets, &rule)
    }

    /// Says the same as [`claim`](Self::claim) of a message with several calls, whose costs add up, or whose cost this rule
    /// decides. An empty batch is one call.
    pub fn claim_batch(
        &self,
        now: Timestamp,
        identity: &Arc<Identity>,
        (function, batch): (&str, &[Box<str>]),
        meets: Meets,
        rule: &CostRule,
    ) -> Claim {
        let state = &mut *self.lock();
        state.find(now, identity);
        let function_name = function;
        let function = state.functions.find(function_name);
        let cost = match meets {
            Meets::Limits => state.reserved(function, batch, &rule.reserve),
            Meets::NoLimits => TokenCount::ZERO,
        };
        let counted = state.count(now, identity, function, cost);
        let limit = match meets {
            Meets::Limits => charged_to(&state.rate_limits, &state.matches),
            Meets::NoLimits => None,
        };
        let by_time = state.costs.settle;
        let (charged, settles, by_time) = match limit {
            Some(limit) => (
                charge(limit),
                limit.settles(),
                limit.settles_by_time(by_time),
            ),
            None => (Charged::Nothing, true, by_time),
        };
        let settled_by = match (meets, rule.is_answered) {
            (Meets::Limits, true) if settles => Some(SettledBy::Answer(None)),
            (Meets::Limits, false) if by_time => {
                Some(SettledBy::Time(Arc::clone(&state.cost_model)))
            }
            _ => None,
        };
        let settling = settled_by.map(|by| Settling {
            estimated: cost,
            by,
        });
        let asking = QuotaKeyParts {
            identity,
            function: function_name,
            functions: &state.functions,
            function_id: function,
            is_exempt: is_exempt(&charged, &state.matches),
        };
        let quotas = match meets {
            Meets::Limits => state.quotas.of(&asking, || {
                quota_key(&state.table, &mut state.accounts, &state.matches)
            }),
            Meets::NoLimits => None,
        };
        Claim {
            at: now,
            caller: state.matches.caller(),
            weight: state.matches.weight().unwrap_or_default(),
            function,
            cost,
            charged,
            quotas,
            settling,
            counted,
        }
    }

    /// Counts the result of a call. Evicted callers are skipped.
    pub fn ended(&self, now: Timestamp, facts: &Facts) {
        let Some(claim) = &facts.claim else {
            return;
        };
        let wait = facts.delayed_for();
        let is_refused = matches!(facts.verdict, Verdict::Refused | Verdict::Expired);
        // A call that gets the answer of another one draws nothing.
        let settled = match facts.shared {
            true => Some(FinalCharge {
                estimated: claim.cost,
                charged: TokenCount::ZERO,
            }),
            false => facts.rare().settled,
        };
        // A TCP connection lasts as long as its client likes, and an answer that failed says
        // nothing of the next one.
        let service = match facts.verdict {
            Verdict::Passed | Verdict::Delayed if facts.dialect != Dialect::Tcp => facts.service(),
            _ => None,
        };
        let has_result = wait.is_some() || is_refused || settled.is_some();
        let state = &mut *self.lock();
        if let Some(service) = service {
            state.service_times.count(now, claim.function, service);
        }
        if let Some(FinalCharge { charged, .. }) = facts.rare().settled
            && claim.is_settled_by_answer()
        {
            let class = Arc::clone(&facts.class);
            state.learned.count(claim.function, class, charged);
        }
        if !has_result && !state.table.has_groups() {
            return;
        }
        let count = |usage: &mut Usage| {
            if let Some(wait) = wait {
                usage.delayed(now, wait);
            }
            if is_refused {
                usage.refused(now);
            }
            if let Some(FinalCharge { estimated, charged }) = settled {
                usage.settle(now, claim.at, claim.function, estimated, charged);
            }
        };
        for id in &claim.counted {
            if let Some(account) = state.accounts.get_mut(id) {
                count(account.usage());
            }
        }
        each_group(&state.table, &claim.counted, |group| {
            let Some(group) = state.groups.get_mut(group) else {
                return;
            };
            count(&mut group.usage);
            group.calls += 1;
            if facts.admitted.is_some() {
                let cost = settled.map_or(claim.cost, |settled| settled.charged);
                group.tokens = group.tokens.saturating_add(cost);
            }
        });
    }

    /// The charge that a call of this identity would have if it came now. Nothing is counted.
    #[must_use]
    pub fn charged(&self, identity: &Identity) -> Charged {
        self.lock().would_charge(identity)
    }

    /// Where a call that waits for a removed rate limit is charged instead: the limit of the next
    /// match of the client that made its caller's latest call.
    #[must_use]
    pub fn reroute(&self, caller: CallerId) -> Option<BucketId> {
        let mut state = self.lock();
        let identity = Arc::clone(state.accounts.get(&caller)?.seen.as_ref()?);
        state.would_charge(&identity).bucket()
    }
}

impl CallersState {
    /// The draw of a call, or of a batch of them, when it goes.
    fn reserved(
        &self,
        function: FunctionId,
        batch: &[Box<str>],
        reserve: &ReservedCost,
    ) -> TokenCount {
        let learned = match reserve {
            ReservedCost::Tokens(tokens) => Some(*tokens),
            ReservedCost::Learned(class) => self.learned.reserve(function, Arc::clone(class)),
            ReservedCost::OfFunction => None,
        };
        learned.unwrap_or_else(|| match batch {
            [] => self.cost_model.cost(function),
            batch => batch.iter().fold(TokenCount::ZERO, |sum, name| {
                let cost = self.cost_model.cost(self.functions.find(name));
                sum.saturating_add(cost)
            }),
        })
    }

    /// The charge that a call of this identity would have. Nothing is counted.
    fn would_charge(&mut self, identity: &Identity) -> Charged {
        self.table.classify(&seen(identity), &mut self.matches);
        charged_to(&self.rate_limits, &self.matches).map_or(Charged::Nothing, charge)
    }

    /// Finds the callers that an identity matches, and registers it where it matches none exactly.
    fn find(&mut self, now: Timestamp, identity: &Identity) {
        let found = self
            .table
            .classify_and_touch(now, &seen(identity), &mut self.matches);
        if let Registration::Registered {
            forgotten: Some(id),
            ..
        } = found
        {
            self.accounts.remove(&id);
            self.evicted += 1;
        }
    }

    /// Counts a call for every caller that was found, and for their groups. Returns the callers.
    fn count(
        &mut self,
        now: Timestamp,
        identity: &Arc<Identity>,
        function: FunctionId,
        cost: TokenCount,
    ) -> Counted {
        let mut counted = Counted::new();
        for found in self.matches.as_slice() {
            let account = self.accounts.entry(found.caller()).or_default();
            account.usage().count(now, function, cost);
            // The most specific one.
            if counted.is_empty() {
                account.is_seen_as(identity);
            }
            counted.push(found.caller());
        }
        each_group(&self.table, &counted, |group| {
            // Looked up first: most groups are known, and their names need no copy.
            if !self.groups.contains_key(group) {
                self.groups.insert(group.clone(), GroupUse::default());
            }
            if let Some(group) = self.groups.get_mut(group) {
                group.usage.count(now, function, cost);
            }
        });
        counted
    }
}

/// The only rate limit that is charged.
pub(super) fn charged_to<'a>(
    rate_limits: &'a BTreeMap<RateLimitId, RateLimit>,
    matches: &Matches,
) -> Option<&'a RateLimit> {
    let id = matches.charged()?.charge().limit()?;
    let limit = rate_limits.get(&id);
    Some(limit.expect("a rate limit that goes is detached from every caller"))
}

pub(super) fn charge(limit: &RateLimit) -> Charged {
    match limit.rule.allowance {
        rate_limit::Allowance::Exempt => Charged::Exempt(limit.id),
        rate_limit::Allowance::Bucket { .. } | rate_limit::Allowance::Paced { .. } => {
            Charged::RateLimit {
                id: limit.id,
                label: Arc::clone(&limit.label),
                deadline: limit.rule.handling.deadline,
            }
        }
    }
}

/// Whether no rate limit is asked about its calls.
fn is_exempt(charged: &Charged, matches: &Matches) -> bool {
    let of_its_own = |found: &Match| found.charge() == Charge::Exempt;
    matches!(charged, Charged::Exempt(_)) || matches.charged().is_some_and(of_its_own)
}

/// The name of the caller in quotas: the most specific caller with a label. An auto-registered
/// caller has a quota of its own only if there is none: otherwise a labelled caller would get a
/// new one with each address that it comes from. `None` for the unknown caller.
fn quota_key(
    table: &CallerTable,
    accounts: &mut HashMap<CallerId, Account>,
    matches: &Matches,
) -> Option<Arc<str>> {
    let ids = || matches.as_slice().iter().map(Match::caller);
    let rows = || {
        ids()
            .filter(|id| *id != CallerId::UNKNOWN)
            .filter_map(|id| table.get(id))
    };
    let row = rows()
        .find(|row| row.label.is_some())
        .or_else(|| rows().next())?;
    let caller = row.id;
    let account = accounts.entry(caller).or_default();
    let key = account
        .quota_key
        .get_or_insert_with(|| fitting(row.name()).as_ref().into());
    Some(Arc::clone(key))
}

/// Every group that one of the callers is in, each once.
fn each_group(table: &CallerTable, callers: &[CallerId], mut tell: impl FnMut(&Group)) {
    if !table.has_groups() {
        return;
    }
    let groups_of = |id| table.get(id).map(|row| &*row.groups).unwrap_or_default();
    for (at, id) in callers.iter().enumerate() {
        for group in groups_of(*id) {
            let mut earlier = callers[..at].iter();
            if !earlier.any(|id| groups_of(*id).contains(group)) {
                tell(group);
            }
        }
    }
}

/// An identity as the table of callers takes it.
fn seen(identity: &Identity) -> tidegate_callers::Identity<'_> {
    tidegate_callers::Identity {
        user: identity.user.as_deref().unwrap_or_default(),
        originator: identity.originator.as_deref().unwrap_or_default(),
        ip: identity.address,
        user_agent: identity.user_agent.as_deref().unwrap_or_default(),
        listener: &identity.listener,
    }
}
