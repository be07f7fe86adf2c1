//! How a pause and a ramp begin, go on and end, under the lock of the gate.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::policy::Scope;
use tidegate_limits::scheduler::{LimitNow, Supplier, Supply, SupplyShare};
use tidegate_limits::{Scheduler, Ticket, Timestamp};

use super::Gate;
use super::acts::{
    AutomaticChange, AutomaticChangeKind, BackendControl, BackendControlNow, NotOverridden,
    OVERRIDES_MAX, Override, Pause, PauseFor, Ramp,
};
use super::decision::{Lane, WaitingCall};
use super::journal::SchedulerEvent;
use super::lock::GateState;
use super::policy;
use crate::call::steps::StepKind;
use crate::call::{Destination, Record};

/// A backend that was down for less time comes back without a ramp: one refused connect is no
/// reason for one.
pub(super) const DOWN_MIN: Duration = Duration::from_secs(1);

/// The records of calls whose deadlines were moved: the last owner of one must not drop it under the
/// lock, because that reports the call.
type Moved = Vec<Arc<Record>>;

impl Gate {
    /// Sends nothing new to any backend, until the hold is over or [`resume`](Self::resume). If it
    /// was paused already, this hold replaces the rest of the other. Calls that run end as usual.
    pub fn pause(&self, pause: PauseFor) -> BackendControlNow {
        let (acting, _moved) = self.lock.change(|state, now| {
            let PauseFor {
                hold,
                extends,
                why,
                author,
            } = pause;
            let since = state.acts.pause().map_or(now, |pause| pause.since);
            let pause = Pause {
                since,
                ends: now + hold,
                extends,
                why,
                author,
            };
            let moved = state.begin_pause(pause, now);
            (state.acting_now(now), moved)
        });
        acting
    }

    /// Sends calls again: at once by whole limits, or for the time of the ramp by a share that
    /// grows. `None` is the ramp of the settings. It also replaces the rest of a ramp.
    pub fn resume(
        &self,
        ramp: Option<Duration>,
        why: Arc<str>,
        author: Arc<str>,
    ) -> BackendControlNow {
        let (acting, _moved) = self.lock.change(|state, now| {
            let moved = state.end_pause(now);
            let ramp = ramp.unwrap_or(state.acts.usual_ramp);
            state.begin_ramp(now, ramp, why, author);
            (state.acting_now(now), moved)
        });
        acting
    }

    /// Takes up what an earlier process did. What has ended since is over.
    pub fn take_up(&self, acting: BackendControl) {
        let _moved = self.lock.change(|state, now| match acting {
            BackendControl::Paused(pause) if pause.ends > now => state.begin_pause(pause, now),
            BackendControl::Ramping(ramp) if ramp.ends > now => {
                state.continue_ramp(ramp, now);
                Moved::default()
            }
            BackendControl::Paused(_) | BackendControl::Ramping(_) | BackendControl::Running => {
                Moved::default()
            }
        });
    }

    /// Lets a limit give out at most `value` for a while, and returns that. A limit that had another
    /// value gets this one instead.
    ///
    /// # Errors
    /// If there is no such limit, if it only observes, or if the config allows less.
    pub fn override_limit(
        &self,
        name: &str,
        value: u32,
        time: Duration,
        why: Arc<str>,
        author: Arc<str>,
    ) -> Result<Override, NotOverridden> {
        self.lock.change(|state, now| {
            if state.observer.has(name) || state.observer.has(&format!("function:{name}")) {
                return Err(NotOverridden::Observes);
            }
            let limit = state.limit_named(name, now).ok_or(NotOverridden::Unknown)?;
            if value > limit.configured {
                return Err(NotOverridden::Above(limit.configured));
            }
            let overrides = &mut state.acts.overrides;
            overrides.retain(|it| it.limit != limit.name);
            if overrides.len() >= OVERRIDES_MAX {
                return Err(NotOverridden::TooMany);
            }
            let new = Override {
                limit: limit.name,
                value,
                ends: now + time,
                why,
                author,
            };
            overrides.push(new.clone());
            state.supply_limit(now, &new.limit, Supply::capacity(value));
            Ok(new)
        })
    }

    /// Gives a limit its own value again. Returns its name, and whether it had another value.
    ///
    /// # Errors
    /// If there is no such limit.
    pub fn end_override(&self, name: &str) -> Result<(Arc<str>, bool), NotOverridden> {
        self.lock.change(|state, now| {
            let named = |it: &&Override| {
                let function = it.limit.strip_prefix("function:");
                *it.limit == *name || function == Some(name)
            };
            // A reload may have removed the limit since.
            let overrides = state.acts.overrides.iter();
            let known = overrides
                .clone()
                .find(named)
                .map(|it| Arc::clone(&it.limit));
            let Some(limit) = known else {
                let limit = state.limit_named(name, now);
                return Ok((limit.ok_or(NotOverridden::Unknown)?.name, false));
            };
            state.acts.overrides.retain(|it| it.limit != limit);
            state.supply_limit(now, &limit, Supply::Configured);
            Ok((limit, true))
        })
    }

    /// The limits that have lower values now.
    #[must_use]
    pub fn overrides(&self) -> Vec<Override> {
        self.lock.lock().acts.overrides.clone()
    }

    /// The control of the backend, at this moment.
    #[must_use]
    pub fn acting_now(&self) -> BackendControlNow {
        self.lock.look(|state, now| state.acting_now(now))
    }

    /// Everything that has ended or begun by itself since the last time. Waits for the next if there is
    /// nothing.
    pub async fn by_itself(&self) -> Vec<AutomaticChange> {
        loop {
            let turned = self.lock.turned.notified();
            let taken = std::mem::take(&mut self.lock.lock().acts.by_itself);
            if !taken.is_empty() {
                return taken;
            }
            turned.await;
        }
    }
}

impl GateState {
    pub(super) fn acting_now(&self, now: Timestamp) -> BackendControlNow {
        BackendControlNow {
            acting: self.acts.acting.clone(),
            share: self.lanes[Lane::Limited as usize].share(),
            in_flight: self.lanes.iter().map(Scheduler::in_flight).sum(),
            now,
        }
    }

    /// Ends or goes on with what is due.
    pub(super) fn act(&mut self, now: Timestamp) {
        if !self.acts.is_due(now) {
            return;
        }
        let overrides = &mut self.acts.overrides;
        let ended: Vec<_> = overrides.extract_if(.., |it| it.ends <= now).collect();
        for Override { limit, .. } in ended {
            self.supply_limit(now, &limit, Supply::Configured);
            self.acts
                .note(now, AutomaticChangeKind::OverrideEnded { limit });
        }
        if !self.acts.is_acting_due(now) {
            return;
        }
        let acting = self.acts.acting.clone();
        match acting {
            BackendControl::Running => {}
            BackendControl::Paused(pause) => {
                // Nothing is left of the hold, so no deadline moves.
                let moved = self.end_pause(now);
                debug_assert!(moved.is_empty(), "the pause is over");
                let ramp = self.acts.usual_ramp;
                self.begin_ramp(now, ramp, pause.why, pause.author);
                self.acts
                    .note(now, AutomaticChangeKind::PauseEnded { ramp });
            }
            BackendControl::Ramping(ramp) if ramp.ends <= now => {
                self.end_ramp(now);
                self.acts.note(now, AutomaticChangeKind::RampEnded);
            }
            BackendControl::Ramping(ramp) => self.continue_ramp(ramp, now),
        }
    }

    fn begin_pause(&mut self, pause: Pause, now: Timestamp) -> Moved {
        let before = self.acts.extension(now);
        if let BackendControl::Ramping(_) = self.acts.acting {
            self.end_ramp(now);
        }
        let is_new = self.acts.pause().is_none();
        self.acts.acting = BackendControl::Paused(pause);
        self.tell_when_it_reopens();
        let moved = self.extend(before, now);
        if is_new {
            self.supply_backends(now, Supply::capacity(0));
        }
        moved
    }

    /// Sends calls again, if it was paused. Waiting calls lose the time that they do not need now.
    fn end_pause(&mut self, now: Timestamp) -> Moved {
        if self.acts.pause().is_none() {
            return Moved::default();
        }
        let before = self.acts.extension(now);
        self.acts.acting = BackendControl::Running;
        self.tell_when_it_reopens();
        let moved = self.extend(before, now);
        self.supply_backends(now, Supply::Configured);
        moved
    }

    /// Refusals go by the end of the pause.
    fn tell_when_it_reopens(&mut self) {
        let ends = self.acts.pause().map(|pause| pause.ends);
        for lane in &mut self.lanes {
            lane.set_reopens(ends);
        }
    }

    /// Waiting calls may wait as much longer as a pause takes, instead of `before`.
    fn extend(&mut self, before: Duration, now: Timestamp) -> Moved {
        let mut records = Moved::new();
        let after = self.acts.extension(now);
        if before == after {
            return records;
        }
        let moved = |deadline: Timestamp| match after.checked_sub(before) {
            Some(longer) => deadline + longer,
            None => Timestamp::ZERO + deadline.since(Timestamp::ZERO + (before - after)),
        };
        for lane in &mut self.lanes {
            lane.move_deadlines(|waiter: &mut WaitingCall, deadline| {
                let new = moved(deadline);
                if let Some(record) = waiter.record.upgrade() {
                    record.note(|facts| facts.step(now, StepKind::Deadline(Some(new.as_nanos()))));
                    records.push(record);
                }
                new
            });
        }
        self.observer.move_deadlines(now, moved);
        records
    }

    /// A call that could not be sent waits again, and may wait longer for the rest of the pause.
    /// Returns its new deadline, if that has moved.
    pub(super) fn extend_one(
        &mut self,
        lane: Lane,
        ticket: Ticket,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let lane = &mut self.lanes[lane as usize];
        let deadline = lane.deadline(ticket)??;
        let new = self.acts.extended(deadline, now);
        if new == deadline {
            return None;
        }
        lane.set_deadline(ticket, Some(new));
        Some(new)
    }

    /// A pause is another source than the health of a backend, so neither undoes the other.
    fn supply_backends(&mut self, now: Timestamp, supply: Supply) {
        let by = Supplier::Operator;
        for backend in Destination::BACKENDS {
            let limit = policy::backend_limit(backend);
            for lane in &mut self.lanes {
                lane.supply(now, &limit, by, supply);
            }
            let limit = &*limit;
            self.observe(now, SchedulerEvent::Supply { limit, by, supply });
        }
    }

    fn begin_ramp(&mut self, now: Timestamp, length: Duration, why: Arc<str>, author: Arc<str>) {
        if length.is_zero() {
            if let BackendControl::Ramping(_) = self.acts.acting {
                self.end_ramp(now);
            }
            return;
        }
        let ramp = Ramp {
            since: now,
            ends: now + length,
            why,
            author,
        };
        self.continue_ramp(ramp, now);
    }

    fn continue_ramp(&mut self, ramp: Ramp, now: Timestamp) {
        self.give_out(ramp.share(now), now);
        self.acts.step = Some((now + ramp.step()).min(ramp.ends));
        self.acts.acting = BackendControl::Ramping(ramp);
    }

    fn end_ramp(&mut self, now: Timestamp) {
        self.give_out(SupplyShare::FULL, now);
        self.acts.step = None;
        self.acts.acting = BackendControl::Running;
    }

    fn give_out(&mut self, share: SupplyShare, now: Timestamp) {
        for lane in &mut self.lanes {
            lane.set_share(now, share);
        }
        self.observe(now, SchedulerEvent::Share(share));
    }

    fn supply_limit(&mut self, now: Timestamp, limit: &str, supply: Supply) {
        let by = Supplier::Operator;
        for lane in &mut self.lanes {
            lane.supply(now, limit, by, supply);
        }
        self.observe(now, SchedulerEvent::Supply { limit, by, supply });
    }

    /// Limits that came with a reload get their lower values too.
    pub(super) fn override_again(&mut self, now: Timestamp) {
        for Override { limit, value, .. } in self.acts.overrides.clone() {
            self.supply_limit(now, &limit, Supply::capacity(value));
        }
    }

    /// The limit of this name in either lane, except those on the calls to one backend. A limit of a
    /// function may be named like the function.
    fn limit_named(&self, name: &str, now: Timestamp) -> Option<LimitNow> {
        let of_function = format!("function:{name}");
        let mut lanes = self.lanes.iter();
        let found = lanes.find_map(|lane| {
            let exact = lane.limit_now(now, name);
            exact.or_else(|| lane.limit_now(now, &of_function))
        });
        found.filter(|it| !matches!(it.scope, Scope::Backend(_)))
    }

    /// A backend takes no connection, as far as is known since now.
    pub(super) fn goes_down(&mut self, backend: Destination, now: Timestamp) {
        if let Some(down) = self.acts.down.get_mut(backend as usize) {
            down.get_or_insert(now);
        }
    }

    /// A backend takes connections again. After some time the limits grow slowly, if the settings
    /// say so.
    pub(super) fn comes_back(&mut self, backend: Destination, now: Timestamp) {
        let down = self.acts.down.get_mut(backend as usize);
        let Some(since) = down.and_then(Option::take) else {
            return;
        };
        let ramp = self.acts.usual_ramp;
        let is_paused = self.acts.pause().is_some();
        if ramp.is_zero() || is_paused || now.since(since) < DOWN_MIN {
            return;
        }
        let why = format!("the {} backend was down", backend.label());
        self.begin_ramp(now, ramp, why.into(), "tidegate".into());
        self.acts
            .note(now, AutomaticChangeKind::BackendBack { backend, ramp });
    }
}
