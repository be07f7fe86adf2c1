//! A sidecar without calls: a real table of callers, and limits that are only remembered.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tidegate::admin::{
    ActKind, ActState, ActsSource, Author, BackendActing, BackendState, LimitName, OverrideAsked,
    OverrideState, PauseAsked, ResumeAsked, UpgradeState,
};
use tidegate::admin::{
    AdminSource, ApiRefusal, BucketState, CallDelay, CallId, CallState, CallerState, CallerUsage,
    CallerUsed, CallersSource, CostsState, DryRunRequest, DryRunState, Explained, Figures, Frame,
    HeldBy, LimitState, MatchState, Merge, Moment, NowState, ObjectKind, ObjectOrigin, Opens,
    PaceState, ProfileState, QueueRow, QueueState, QuotasState, RateLimitKind, RateLimitState,
    RequestRow, RequestState, SeriesSpan, SeriesState, Suggested, UsageTable, Used,
};
use tidegate::call::costs::{Costs, SuggestedCost};
use tidegate::call::rate_limit::{
    Allowance, Derive, NewRateLimit, RateLimitPatch, Size, SizePatch,
};
use tidegate_callers::{
    CallerId, CallerRow, CallerTable, Charge, DELAYED_MAX, FunctionId, Group, Identity,
    IdentityField, Label, LastCall, Matches, NewCaller, Notes, Patch, Pattern, PatternText,
    RateLimitId, TableSettings, Usage, UsageNow, UsageSpan,
};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use tokio::sync::watch;

use crate::support::{outstanding, window};

const GUEST_LIST: FunctionId = FunctionId(7);
const PROFILES: [(&str, f64, f64); 4] = [
    ("interactive", 200.0, 20.0),
    ("poller", 30.0, 3.0),
    ("batch", 600.0, 5.0),
    ("quarantine", 5.0, 0.2),
];
const AT_REST: PaceState = PaceState {
    achieved: 0.0,
    drawn: 0.0,
    wait_seconds: 0.0,
    burst_seconds: 0.0,
};
/// The calls that can be explained: one that has ended, and one that waits.
pub(crate) const CALL: CallId = CallId(0x0123_4567_89ab_cdef);
pub(crate) const WAITS: CallId = CallId(0x0123_4567_89ab_cdf0);

/// Has a caller of the config, `c1`, and one that registered itself, `c2`.
pub(crate) struct Fake {
    state: Mutex<State>,
}

struct State {
    table: CallerTable,
    limits: BTreeMap<RateLimitId, RateLimitState>,
    next_limit: u32,
    costs: CostsState,
    disk_is_full: bool,
    acts: Vec<ActState>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let mut table = CallerTable::new(TableSettings::default());
        let poller = NewCaller {
            label: Label::new("poller").expect("a label"),
            groups: vec![Group::new("polling").expect("a group")],
            notes: Notes::default(),
            patterns: vec![pattern("", "nova-poll")],
            charge: Charge::None,
            weight: None,
        };
        table.replace_static(vec![poller]).expect("it is right");
        let curl = Identity {
            user_agent: "curl/8.5",
            ip: Some([10, 9, 9, 9].into()),
            ..Identity::default()
        };
        let at = Timestamp::ZERO + Duration::from_secs(3600);
        table.classify_and_touch(at, &curl, &mut Matches::default());
        Self {
            state: Mutex::new(State {
                table,
                limits: BTreeMap::new(),
                next_limit: 1,
                costs: CostsState {
                    default: 1.0,
                    unit_seconds: 0.1,
                    settle: false,
                    functions: [("guest_start".to_owned(), 20.0)].into(),
                },
                disk_is_full: false,
                acts: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    /// From now on nothing can be saved.
    pub(crate) fn fill_the_disk(&self) {
        self.lock().disk_is_full = true;
    }

    /// Everything that can be changed, to be compared.
    pub(crate) fn everything(&self) -> String {
        let state = self.lock();
        let callers: Vec<CallerState> = state.table.rows().map(shown).collect();
        let State {
            limits,
            costs,
            acts,
            ..
        } = &*state;
        format!("{callers:?} {limits:?} {costs:?} {acts:?}")
    }
}

fn pattern(ip: &str, listener: &str) -> Pattern {
    Pattern::parse(&PatternText {
        ip,
        listener,
        ..PatternText::default()
    })
    .expect("a pattern")
}

fn wall(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_000_000) + at.since(Timestamp::ZERO)
}

/// A minute of use: 4, 6, 5, 30, 40, 35, 5, 4, 6, 5, 4, 5 tokens in slots of five seconds.
fn usage() -> Usage {
    let mut usage = Usage::default();
    for (slot, calls) in (0..).zip([4, 6, 5, 30, 40, 35, 5, 4, 6, 5, 4, 5]) {
        let at = Timestamp::ZERO + Duration::from_secs(3600 + 5 * slot);
        for _ in 0..calls {
            usage.count(at, GUEST_LIST, TokenCount::ONE);
        }
        usage.delayed(at, Duration::from_millis(180));
    }
    usage.refused(usage.snapshot(Timestamp::ZERO).last_access.expect("called"));
    usage
}

fn used() -> UsageNow {
    usage().snapshot(Timestamp::ZERO)
}

fn shown(row: &CallerRow) -> CallerState {
    let last_access = match row.last_call {
        LastCall::At(at) => Some(wall(at)),
        LastCall::Never | LastCall::Earlier(_) => None,
    };
    CallerState::new(row.clone(), last_access, &used())
}

impl State {
    fn may_save(&self) -> Result<(), ApiRefusal> {
        if self.disk_is_full {
            return Err(ApiRefusal::NotSaved {
                reason: "no space left on device".into(),
            });
        }
        Ok(())
    }

    fn row(&self, id: CallerId) -> Result<&CallerRow, ApiRefusal> {
        let row = self.table.get(id);
        row.ok_or_else(|| ApiRefusal::unknown(ObjectKind::Caller, id))
    }

    fn limit(&self, id: RateLimitId) -> Result<RateLimitState, ApiRefusal> {
        let unknown = || ApiRefusal::unknown(ObjectKind::RateLimit, id);
        let mut limit = self.limits.get(&id).cloned().ok_or_else(unknown)?;
        limit.callers = self.attached(id).collect();
        Ok(limit)
    }

    fn attached(&self, id: RateLimitId) -> impl Iterator<Item = CallerId> {
        let rows = self.table.rows();
        rows.filter(move |row| row.charge.limit() == Some(id))
            .map(|row| row.id)
    }

    fn label_is_free(&self, label: &Label, of: Option<RateLimitId>) -> Result<(), ApiRefusal> {
        let holder = self
            .limits
            .values()
            .find(|limit| limit.label == label.as_str() && Some(limit.id) != of);
        holder.map_or(Ok(()), |limit| {
            Err(ApiRefusal::LabelExists { holder: limit.id })
        })
    }

    fn charge(&mut self, caller: CallerId, charge: Charge) -> Result<(), ApiRefusal> {
        let patch = Patch {
            charge: Some(charge),
            ..Patch::default()
        };
        Ok(self.table.patch(caller, patch)?)
    }
}

fn profile(name: &str) -> Result<(f64, f64), ApiRefusal> {
    let found = PROFILES.iter().find(|(profile, ..)| *profile == name);
    found
        .map(|&(_, burst, fill)| (burst, fill))
        .ok_or_else(|| ApiRefusal::unknown(ObjectKind::Profile, name))
}

impl ActsSource for Fake {
    fn upgrade(&self, _: &Author) -> Result<UpgradeState, ApiRefusal> {
        Ok(UpgradeState {
            pid: 4711,
            milliseconds: 40,
        })
    }

    fn backend(&self) -> BackendState {
        match self.lock().acts.last() {
            Some(act) if act.act == ActKind::Pause => BackendState {
                state: BackendActing::Paused,
                share: 0.0,
                since: act.at,
                ends: act.at,
                why: Some(act.why.clone()),
                author: Some(act.author.clone()),
                extend_deadlines: true,
                ..running()
            },
            _ => running(),
        }
    }

    fn pause(&self, author: &Author, asked: PauseAsked) -> Result<BackendState, ApiRefusal> {
        let hold = asked.hold.as_secs_f64();
        Ok(self.act(author, ActKind::Pause, format!("for {hold} s"), &asked.why))
    }

    fn resume(&self, author: &Author, asked: ResumeAsked) -> Result<BackendState, ApiRefusal> {
        let ramp = asked.ramp.map_or(0.0, |ramp| ramp.as_secs_f64());
        let what = format!("in {ramp} s");
        Ok(self.act(author, ActKind::Resume, what, &asked.why))
    }

    fn override_limit(
        &self,
        author: &Author,
        limit: &LimitName,
        asked: OverrideAsked,
    ) -> Result<OverrideState, ApiRefusal> {
        let OverrideAsked { value, why, .. } = asked;
        if limit.0 != "total" {
            return Err(ApiRefusal::unknown(ObjectKind::Limit, &limit.0));
        }
        self.act(author, ActKind::Limit, format!("{value}"), &why);
        Ok(OverrideState {
            limit: limit.0.clone(),
            value,
            ends: Some(wall(Timestamp::ZERO)),
            author: author.to_string(),
            why: why.to_string(),
            survives_restart: true,
        })
    }

    fn end_override(&self, author: &Author, limit: &LimitName) -> Result<(), ApiRefusal> {
        if limit.0 != "total" {
            return Err(ApiRefusal::unknown(ObjectKind::Limit, &limit.0));
        }
        self.act(author, ActKind::LimitEnd, String::new(), "");
        Ok(())
    }

    fn overrides(&self) -> Vec<OverrideState> {
        Vec::new()
    }

    fn acts(&self) -> Vec<ActState> {
        self.lock().acts.clone()
    }
}

impl Fake {
    fn act(&self, author: &Author, act: ActKind, what: String, why: &str) -> BackendState {
        self.lock().acts.push(ActState {
            at: Some(wall(Timestamp::ZERO)),
            author: author.to_string(),
            act,
            what,
            why: why.to_owned(),
        });
        self.backend()
    }
}

fn running() -> BackendState {
    BackendState {
        state: BackendActing::Running,
        in_flight: 2,
        share: 1.0,
        since: None,
        ends: None,
        why: None,
        author: None,
        extend_deadlines: false,
        survives_restart: true,
    }
}

impl CallersSource for Fake {
    fn callers(&self) -> Vec<CallerState> {
        self.lock().table.rows().map(shown).collect()
    }

    fn caller(&self, id: CallerId) -> Result<CallerState, ApiRefusal> {
        self.lock().row(id).map(shown)
    }

    fn create_caller(&self, new: NewCaller) -> Result<CallerState, ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        let id = state.table.insert(new)?.id;
        state.row(id).map(shown)
    }

    fn patch_caller(&self, id: CallerId, patch: Patch) -> Result<CallerState, ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.table.patch(id, patch)?;
        state.row(id).map(shown)
    }

    fn delete_caller(&self, id: CallerId) -> Result<(), ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.table.remove(id)?;
        Ok(())
    }

    fn merge_callers(&self, merge: Merge) -> Result<CallerState, ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.table.merge(merge.into, &merge.from)?;
        if let Some(label) = merge.label {
            let patch = Patch {
                label: Some(label),
                ..Patch::default()
            };
            state.table.patch(merge.into, patch)?;
        }
        state.row(merge.into).map(shown)
    }

    fn caller_usage(&self, id: CallerId) -> Result<CallerUsage, ApiRefusal> {
        self.lock().row(id)?;
        let last = wall(Timestamp::ZERO + Duration::from_secs(3660));
        Ok(CallerUsage::new(id, Some(last), &used(), |_| {
            "guest_list".into()
        }))
    }

    fn usage(&self, span: UsageSpan, group: Option<&Group>) -> Result<UsageTable, ApiRefusal> {
        let state = self.lock();
        if let Some(group) = group
            && !state.table.groups().any(|(name, _)| name == group)
        {
            return Err(ApiRefusal::unknown(ObjectKind::Group, group));
        }
        let used = used();
        let rows = state.table.rows();
        let callers = rows
            .filter(|row| group.is_none_or(|group| row.groups.contains(group)))
            .map(|row| CallerUsed {
                id: row.id,
                label: row.label.clone(),
                used: Used::from(&used.over(span).tally),
            });
        Ok(UsageTable {
            window: span,
            group: group.map(ToString::to_string),
            total: group.map(|_| Used::from(&used.over(span).tally)),
            callers: callers.collect(),
        })
    }

    fn suggest(&self, derive: Derive) -> Result<Suggested, ApiRefusal> {
        self.lock().row(derive.caller)?;
        let now = used().last_access.expect("it was called");
        let suggestion = usage().suggest(now, derive.span, derive.headroom);
        let suggestion = suggestion.expect("tokens were used");
        let profiles = PROFILES.map(|(name, burst, fill)| (name, fill, burst));
        let profiles = profiles.into_iter().filter(|(_, fill, burst)| {
            let late = usage().would_delay(now, derive.span, *fill, *burst);
            late.is_some_and(|late| late <= DELAYED_MAX)
        });
        let nearest = suggestion.nearest(profiles);
        Ok(Suggested::new(suggestion.rounded_up(), nearest))
    }

    fn rate_limits(&self) -> Vec<RateLimitState> {
        let state = self.lock();
        let ids = state.limits.keys();
        ids.map(|&id| state.limit(id).expect("it is there"))
            .collect()
    }

    fn rate_limit(&self, id: RateLimitId) -> Result<RateLimitState, ApiRefusal> {
        self.lock().limit(id)
    }

    fn create_rate_limit(&self, new: NewRateLimit) -> Result<RateLimitState, ApiRefusal> {
        let suggested = match &new.size {
            Size::Derived(derive) => Some(self.suggest(*derive)?),
            _ => None,
        };
        let mut state = self.lock();
        state.may_save()?;
        if let Some(label) = &new.label {
            state.label_is_free(label, None)?;
        }
        for caller in &new.callers {
            state.row(*caller)?;
        }
        let bucket = |burst, fill| Figures {
            kind: Some(RateLimitKind::Bucket),
            exempt: false,
            burst: Some(burst),
            fill: Some(fill),
            rate: None,
            ratio: None,
        };
        let exempt = Figures {
            kind: None,
            exempt: true,
            burst: None,
            fill: None,
            rate: None,
            ratio: None,
        };
        let (figures, profile) = match new.size.clone() {
            Size::Profile(name) => {
                let (burst, fill) = profile(&name)?;
                (bucket(burst, fill), Some(name.to_string()))
            }
            Size::Given(Allowance::Bucket { burst, fill }) => {
                (bucket(burst.get(), fill.get()), None)
            }
            Size::Derived(_) => {
                let suggested = suggested.expect("it is derived");
                (bucket(suggested.burst, suggested.fill), None)
            }
            Size::Given(Allowance::Exempt) => (exempt, None),
            Size::Given(Allowance::Paced { rate, ratio }) => (
                Figures {
                    kind: Some(RateLimitKind::Paced),
                    exempt: false,
                    rate: Some(rate.get()),
                    ratio: Some(ratio.get()),
                    ..exempt
                },
                None,
            ),
        };
        let pace = figures.rate.map(|_| AT_REST);
        let id = RateLimitId(state.next_limit);
        for caller in &new.callers {
            state.charge(*caller, Charge::Limit(id))?;
        }
        state.next_limit += 1;
        let limit = RateLimitState {
            id,
            label: new
                .label
                .map_or_else(|| id.to_string(), |it| it.to_string()),
            origin: ObjectOrigin::Api,
            profile,
            figures,
            pace,
            tokens: figures.burst.or(pace.map(|_| 1.0)),
            handling: new.handling,
            callers: Vec::new(),
            queued: 0,
            queued_tokens: 0.0,
            charged: 0,
            would_have_delayed: 0,
            rejected: 0,
        };
        state.limits.insert(id, limit);
        state.limit(id)
    }

    fn patch_rate_limit(
        &self,
        id: RateLimitId,
        patch: RateLimitPatch,
    ) -> Result<RateLimitState, ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        let mut limit = state.limit(id)?;
        if let Some(label) = patch.label {
            state.label_is_free(&label, Some(id))?;
            limit.label = label.to_string();
        }
        match patch.size {
            None => {}
            Some(SizePatch::Profile(name)) => {
                let (burst, fill) = profile(&name)?;
                (limit.figures.rate, limit.figures.ratio, limit.pace) = (None, None, None);
                limit.figures.kind = Some(RateLimitKind::Bucket);
                (
                    limit.figures.burst,
                    limit.figures.fill,
                    limit.figures.exempt,
                ) = (Some(burst), Some(fill), false);
                limit.profile = Some(name.to_string());
            }
            Some(SizePatch::Bucket { burst, fill }) => {
                limit.figures.burst = burst.map(|it| it.get()).or(limit.figures.burst);
                limit.figures.fill = fill.map(|it| it.get()).or(limit.figures.fill);
                let missing = |field: &str| ApiRefusal::Conflict {
                    field: field.into(),
                    reason: "must be given; it had none".into(),
                };
                limit.figures.burst.ok_or_else(|| missing("burst"))?;
                limit.figures.fill.ok_or_else(|| missing("fill"))?;
                (limit.profile, limit.figures.exempt) = (None, false);
                (limit.figures.rate, limit.figures.ratio, limit.pace) = (None, None, None);
                limit.figures.kind = Some(RateLimitKind::Bucket);
            }
            Some(SizePatch::Paced { rate, ratio }) => {
                limit.figures.rate = rate.map(|it| it.get()).or(limit.figures.rate);
                limit.figures.ratio = ratio
                    .map(|it| it.get())
                    .or(limit.figures.ratio)
                    .or(Some(1.1));
                limit.figures.rate.ok_or_else(|| ApiRefusal::Conflict {
                    field: "rate".into(),
                    reason: "must be given; it had none".into(),
                })?;
                (limit.figures.burst, limit.figures.fill, limit.tokens) = (None, None, Some(1.0));
                (limit.profile, limit.figures.exempt) = (None, false);
                (limit.figures.kind, limit.pace) = (Some(RateLimitKind::Paced), Some(AT_REST));
            }
            Some(SizePatch::Exempt) => {
                (limit.figures.burst, limit.figures.fill, limit.tokens) = (None, None, None);
                (limit.profile, limit.figures.exempt) = (None, true);
                (
                    limit.figures.rate,
                    limit.figures.ratio,
                    limit.pace,
                    limit.figures.kind,
                ) = (None, None, None, None);
            }
        }
        limit.handling = patch.handling.of(limit.handling);
        state.limits.insert(id, limit);
        state.limit(id)
    }

    fn delete_rate_limit(&self, id: RateLimitId) -> Result<(), ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.limit(id)?;
        state.limits.remove(&id);
        state.table.detach(id);
        Ok(())
    }

    fn attach(&self, id: RateLimitId, caller: CallerId) -> Result<RateLimitState, ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.limit(id)?;
        state.charge(caller, Charge::Limit(id))?;
        state.limit(id)
    }

    fn detach(&self, id: RateLimitId, caller: CallerId) -> Result<(), ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.limit(id)?;
        if !state.attached(id).any(|attached| attached == caller) {
            return Err(ApiRefusal::unknown(ObjectKind::Caller, caller));
        }
        state.charge(caller, Charge::None)
    }

    fn profiles(&self) -> Vec<ProfileState> {
        let profiles = PROFILES.iter().map(|(name, burst, fill)| ProfileState {
            name: (*name).to_owned(),
            exempt: false,
            burst: Some(*burst),
            fill: Some(*fill),
        });
        profiles.collect()
    }

    fn costs(&self) -> CostsState {
        self.lock().costs.clone()
    }

    fn put_costs(&self, costs: Costs) -> Result<CostsState, ApiRefusal> {
        let mut state = self.lock();
        state.may_save()?;
        state.costs = costs.into();
        Ok(state.costs.clone())
    }

    fn suggested_costs(&self) -> Vec<SuggestedCost> {
        vec![SuggestedCost {
            call: "guest_start".into(),
            samples: 12,
            mean_seconds: 2.4,
            cost: 20.0,
            suggested: 25.0,
        }]
    }

    fn classify(&self, question: &DryRunRequest) -> DryRunState {
        let state = self.lock();
        let mut matches = Matches::default();
        state.table.classify(&question.identity(), &mut matches);
        let charged = matches.charged().and_then(|found| found.charge().limit());
        let charged = charged.and_then(|id| state.limits.get(&id));
        let cost = |name: &String| state.costs.functions.get(name).copied();
        let cost = question.function.as_ref().and_then(cost);
        DryRunState {
            matches: matches
                .as_slice()
                .iter()
                .map(|found| MatchState {
                    caller: found.caller(),
                    label: state
                        .row(found.caller())
                        .expect("it is there")
                        .label
                        .clone(),
                    exact_fields: found.specificity().exact_fields(),
                    literal_bits: found.specificity().literal_bits(),
                    limited: found.charge() != Charge::None,
                })
                .collect(),
            charged: charged.map(|limit| limit.id),
            exempt: charged.is_some_and(|limit| limit.figures.exempt),
            cost: cost.unwrap_or(state.costs.default),
            tokens: charged.and_then(|limit| limit.tokens),
            wait_ms: 0.0,
        }
    }

    fn queues(&self) -> Vec<QueueRow> {
        vec![
            QueueRow {
                class: "polling".into(),
                call: "guest_list".into(),
                waits_for: Some("total".into()),
                waiting: 290,
            },
            QueueRow {
                class: "user".into(),
                call: "guest_start".into(),
                waits_for: None,
                waiting: 1,
            },
        ]
    }

    fn requests(&self) -> Vec<RequestRow> {
        vec![RequestRow {
            state: RequestState::Waiting,
            call: "guest_list".into(),
            class: "polling".into(),
            listener: "=nova, \"poll\"".into(),
            caller: Some(CallerId(1)),
            rate_limit: None,
            arrived: Moment(wall(Timestamp::ZERO)),
            age_ms: 1500.0,
        }]
    }

    fn explain(&self, id: CallId) -> Result<Explained, ApiRefusal> {
        if id == WAITS {
            let limit = Some("total".into());
            return Ok(Explained {
                state: CallState::Waiting,
                sentence: "waits for `total`: 1.5 s so far, 12 calls ahead, starts in about 1.4 s"
                    .into(),
                waits_for: limit.clone(),
                ahead: Some(12),
                starts_in_seconds: Some(1.4),
                tokens: None,
                verdict: None,
                total_ms: 1500.0,
                backend_ms: None,
                held: vec![CallDelay {
                    cause: HeldBy::Limit,
                    limit,
                    ms: 1500.0,
                }],
                id,
                ..self.explain(CALL)?
            });
        }
        if id != CALL {
            let reason = "known are calls under way, and the last 10000 that ended";
            return Err(ApiRefusal::unknown_call(id, reason.into()));
        }
        Ok(Explained {
            id,
            state: CallState::Ended,
            sentence: "delayed: 1.5 s in the queue, 0.2 s at the backend".into(),
            waits_for: None,
            carried_slots: None,
            ahead: None,
            starts_in_seconds: None,
            arrived: Moment(wall(Timestamp::ZERO)),
            listener: "nova-poll".into(),
            call: "guest_list".into(),
            userid: None,
            class: "polling".into(),
            caller: Some(CallerId(1)),
            rate_limit: Some("monitoring".into()),
            tokens: Some(1.0),
            verdict: Some("delayed".into()),
            reason: None,
            total_ms: 1750.0,
            queued_ms: 1500.0,
            backend_ms: Some(240.5),
            held: vec![
                CallDelay {
                    cause: HeldBy::Limit,
                    limit: Some("rate_limit:monitoring".into()),
                    ms: 1200.0,
                },
                CallDelay {
                    cause: HeldBy::Turn,
                    limit: None,
                    ms: 300.0,
                },
            ],
        })
    }
}

/// The fields that distinguish callers.
pub(crate) fn fields() -> [&'static str; 5] {
    IdentityField::ALL.map(IdentityField::name)
}

impl AdminSource for Fake {
    fn buckets(&self) -> Vec<BucketState> {
        let state = self.lock();
        let limits = state.limits.values();
        let bucket = |limit: &RateLimitState| {
            Some(BucketState {
                name: format!("rate_limit:{}", limit.label),
                rate_limit: limit.id.to_string(),
                burst: limit.figures.burst,
                fill: limit.figures.fill,
                rate: limit.figures.rate,
                ratio: limit.figures.ratio,
                pace: limit.pace,
                tokens: limit.tokens?,
                queued: limit.queued,
                opens: Opens::Now,
                per_second: 2.5,
                shared: None,
            })
        };
        limits.filter_map(bucket).collect()
    }

    fn limits(&self) -> Vec<LimitState> {
        vec![
            window("total", 30, Opens::InSeconds(0.25)),
            outstanding(4, Opens::Now),
        ]
    }

    fn queue(&self) -> QueueState {
        QueueState {
            classes: Vec::new(),
            depth: 291,
            capacity: 4096,
            door: 0,
            oldest_seconds: 1.5,
            functions: Vec::new(),
            would_be: None,
        }
    }

    fn quotas(&self, keys_max: usize) -> QuotasState {
        crate::admin::quotas(keys_max)
    }

    fn config(&self) -> String {
        "[queue]\ncapacity = 4096\n".into()
    }

    fn metrics(&self) -> String {
        "# TYPE tidegate_queue_depth gauge\ntidegate_queue_depth 291\n".into()
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn connections_max(&self) -> usize {
        64
    }

    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    fn now(&self) -> NowState {
        NowState::default()
    }

    fn series(&self, span: SeriesSpan) -> SeriesState {
        SeriesState {
            step_seconds: span.step_seconds(),
            ..SeriesState::default()
        }
    }

    fn frame(&self) -> Frame {
        Frame::default()
    }

    fn frames(&self) -> watch::Receiver<Option<Bytes>> {
        watch::channel(None).1
    }
}
