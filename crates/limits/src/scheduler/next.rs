//! The next call: whose turn it is, and whether that call may go.

use alloc::vec::Vec;
use core::time::Duration;

use super::budgets::Budgets;
use super::hold::Hold;
use super::moved::Jitter;
use super::park::Candidate;
use super::quota::{self, QuotaSpent};
use super::refusal::{Refusal, RefusalReason};
use super::state::Scheduler;
use super::waited::WaitReport;
use crate::queue::{Budget, FlowId, QueuedCall};
use crate::slab::SlabKey;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// The scheduler's next step.
#[derive(Debug)]
pub enum Step<T> {
    /// Run this call; all its limits are drawn.
    Run {
        /// The payload that was submitted.
        payload: T,
        /// The draws of the call.
        hold: Hold,
        /// The causes of its wait.
        waited: WaitReport,
        /// The tokens that it drew from its quotas.
        spent: Vec<QuotaSpent>,
    },
    /// The call does not run, and has drawn nothing.
    Expired {
        /// The payload that was submitted.
        payload: T,
        /// Why, and when to come back.
        refusal: Refusal,
        /// The causes of its wait.
        waited: WaitReport,
    },
    /// No call can go before this moment, unless something else happens first.
    SleepUntil(Timestamp),
    /// No call can go until something happens.
    Idle,
}

impl<T> Step<T> {
    /// Until the first of these moments, if there is one.
    fn sleep<const N: usize>(moments: [Option<Timestamp>; N]) -> Self {
        let first = moments.into_iter().flatten().min();
        first.map_or(Self::Idle, Self::SleepUntil)
    }
}

impl<T> Scheduler<T> {
    /// The next step. Call it until it returns a moment to sleep until. `entropy` returns 64 random
    /// bits per call, and is used only to set a call aside.
    pub fn next(&mut self, now: Timestamp, entropy: &mut impl FnMut() -> u64) -> Step<T> {
        self.next_with(now, &mut |_, jitter| jitter.draw(now, entropy()))
    }

    /// Returns the next step, as [`Self::next`] does. `draw` chooses how long a call is set aside: [`Jitter::draw`]
    /// does so at random, and a replay returns what was drawn before. At least 1 ns passes, and at most the time to
    /// the call's deadline.
    pub fn next_with(
        &mut self,
        now: Timestamp,
        draw: &mut impl FnMut(&mut T, Jitter) -> Duration,
    ) -> Step<T> {
        let now = self.advance(now);
        if self.queue.calls.is_empty() {
            self.to_reject.clear();
            self.parking.forget_changes();
            self.settle_quotas(now);
            let expires_at = self.expiries.first().map(|&(moment, _)| moment);
            return Step::sleep([expires_at, self.budgets.quotas.wake()]);
        }
        if let Some(key) = self.overdue(|deadline| deadline < now) {
            return self.expire(now, key, RefusalReason::DeadlinePassed, None);
        }
        if let Some((key, bucket)) = self.next_to_reject() {
            self.budgets.buckets.all[bucket].counts.rejected += 1;
            return self.expire(
                now,
                key,
                RefusalReason::RateLimited,
                Some(Budget::Bucket(bucket)),
            );
        }
        self.rejoin_due(now);
        self.unbind_due(now);
        self.parking.open_due(now);
        if let Some(step) = self.ask_all(now, draw) {
            return step;
        }
        // Calls whose deadline is now have had their turn, if they had one.
        if let Some(key) = self.overdue(|deadline| deadline <= now) {
            return self.expire(now, key, RefusalReason::DeadlinePassed, None);
        }
        self.settle_quotas(now);
        if !self.parking.has_nothing_to_do() {
            return self.next_with(now, draw);
        }
        Step::sleep([
            self.budgets.quotas.wake(),
            self.queue.first_deadline().map(|(moment, _)| moment),
            self.queue.first_aside().map(|(moment, _)| moment),
            self.expiries.first().map(|&(moment, _)| moment),
            self.parking.next_opening(),
            self.bound.first().map(|&(until, _)| until),
        ])
    }

    /// Asks flows until a call leaves the queue.
    #[inline]
    fn ask_all(
        &mut self,
        now: Timestamp,
        draw: &mut impl FnMut(&mut T, Jitter) -> Duration,
    ) -> Option<Step<T>> {
        let mut parked = 0;
        while let Some(candidate) = self.next_candidate() {
            let Candidate { flow, key, .. } = candidate;
            let (budget, verdict) = match self.ask(now, candidate) {
                TurnCheck::Run if self.queue.calls[key].is_suspended => {
                    self.pass_suspended(now, flow, key);
                    continue;
                }
                TurnCheck::Run => return Some(self.run(now, candidate)),
                TurnCheck::Barred(budget, Verdict::Never) => {
                    return Some(self.expire(now, key, RefusalReason::NeverPossible, Some(budget)));
                }
                TurnCheck::Barred(budget, verdict) => (budget, verdict),
            };
            let stays = candidate.turn.is_some_and(|turn| turn.budget() == budget);
            if let Budget::Quota(quota) = budget {
                let tokens = self.queue.calls[key].call.tokens;
                let answer = self.budgets.quotas.peek(now, quota, tokens);
                let rejects = self.budgets.quotas.rejects(quota, answer);
                // A call that was already held here has been counted.
                if rejects || !stays {
                    self.budgets.quotas.held(quota, answer);
                }
                if rejects {
                    return Some(self.expire(now, key, quota::reason(answer), Some(budget)));
                }
            }
            let Some(jitter) = self.jitter(budget, key) else {
                parked += 1;
                debug_assert!(
                    parked <= 64 + 16 * self.parking.flows(),
                    "no flow is sent to and fro between two limits"
                );
                let front = self.pass_over(now, candidate, budget, verdict);
                let verdict = self.check_again(now, key, budget, verdict);
                self.parking.park(candidate, budget, verdict, front, now);
                continue;
            };
            let deadline = self.queue.calls[key].call.deadline;
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Some(self.expire(now, key, RefusalReason::DeadlinePassed, Some(budget)));
            }
            let aside = draw(&mut self.queue.calls[key].payload, jitter);
            self.set_aside(now, flow, key, budget, now + aside);
        }
        None
    }

    fn next_candidate(&mut self) -> Option<Candidate> {
        let budgets = &self.budgets;
        self.parking
            .next(|flow, budget| budgets.meets(&flow.meets, budget))
    }

    /// Asks the head of a flow whether it may run.
    fn ask(&mut self, now: Timestamp, candidate: Candidate) -> TurnCheck {
        let flow = candidate.flow;
        let waiting = &self.queue.calls[candidate.key];
        if let Some(turn) = candidate.turn {
            let budget = turn.budget();
            let mut verdict = self.peek_at(now, flow, waiting, budget);
            if self.budgets.has_servers() {
                verdict = verdict.max(self.peek_servers_at(now, flow, waiting, budget));
            }
            let is_barred = matches!(verdict, Verdict::NotBefore(_) | Verdict::OnChange);
            // A call that is to be refused is asked for it.
            let is_refused = match budget {
                Budget::Quota(quota) => {
                    let answer = self.budgets.quotas.peek(now, quota, waiting.call.tokens);
                    self.budgets.quotas.rejects(quota, answer)
                }
                Budget::Limit(_) | Budget::Bucket(_) => false,
            };
            if is_barred && !is_refused {
                return TurnCheck::Barred(budget, verdict);
            }
        }
        let QueuedCall { call, meets, .. } = waiting;
        let mut own = meets.own();
        if let Some(budget) = own.find(|&budget| self.parking.is_behind(flow, budget, || false)) {
            return TurnCheck::Barred(budget, Verdict::OnChange);
        }
        for budget in self.budgets.limits_as_bars(meets) {
            let is_kept_for_it = || self.budgets.is_kept_for(now, budget, call);
            if self.parking.is_behind(flow, budget, is_kept_for_it) {
                return TurnCheck::Barred(budget, Verdict::OnChange);
            }
        }
        self.turn_checks += 1;
        self.peek(now, flow, &self.queue.calls[candidate.key])
    }

    /// The verdict of everything that the head of a flow meets, and what bars it. A bucket that
    /// bars it comes first: its turn there keeps the tokens from other calls.
    fn peek(&self, now: Timestamp, flow: FlowId, waiting: &QueuedCall<T>) -> TurnCheck {
        if self.budgets.has_servers() {
            return self.peek_with_servers(now, flow, waiting);
        }
        Self::strictest(&self.budgets, waiting, |budget| {
            self.peek_at(now, flow, waiting, budget)
        })
    }

    #[cold]
    fn peek_with_servers(
        &self,
        now: Timestamp,
        flow: FlowId,
        waiting: &QueuedCall<T>,
    ) -> TurnCheck {
        Self::strictest(&self.budgets, waiting, |budget| {
            let verdict = self.peek_at(now, flow, waiting, budget);
            verdict.max(self.peek_servers_at(now, flow, waiting, budget))
        })
    }

    fn strictest(
        budgets: &Budgets,
        waiting: &QueuedCall<T>,
        verdict_of: impl Fn(Budget) -> Verdict,
    ) -> TurnCheck {
        let mut strictest = (Verdict::Ready, None);
        let limits = budgets.limits_as_bars(&waiting.meets);
        for budget in limits.chain(waiting.meets.quotas()) {
            let verdict = verdict_of(budget);
            if verdict > strictest.0 {
                strictest = (verdict, Some(budget));
            }
        }
        if strictest.0 != Verdict::Never
            && let Some(bucket) = waiting.meets.bucket
        {
            let verdict = verdict_of(Budget::Bucket(bucket));
            if verdict != Verdict::Ready {
                return TurnCheck::Barred(Budget::Bucket(bucket), verdict);
            }
        }
        match strictest {
            (Verdict::Ready, _) => TurnCheck::Run,
            (verdict, Some(budget)) => TurnCheck::Barred(budget, verdict),
            (_, None) => unreachable!("a verdict other than ready comes from a limit"),
        }
    }

    /// The verdict of one budget for the head of a flow, behind earlier claims.
    fn peek_at(
        &self,
        now: Timestamp,
        flow: FlowId,
        waiting: &QueuedCall<T>,
        budget: Budget,
    ) -> Verdict {
        let ahead = self.parking.ahead(flow, budget, now);
        self.budgets.peek(now, budget, &waiting.call, ahead)
    }

    /// The verdict of the servers for which the head of a flow waits at this limit.
    #[cold]
    fn peek_servers_at(
        &self,
        now: Timestamp,
        flow: FlowId,
        waiting: &QueuedCall<T>,
        budget: Budget,
    ) -> Verdict {
        let Budget::Limit(limit) = budget else {
            return Verdict::Ready;
        };
        let Some(group) = self.budgets.servers_at(limit, &waiting.call) else {
            return Verdict::Ready;
        };
        let claimed = |limit| self.parking.ahead(flow, Budget::Limit(limit), now);
        let (call, ahead) = (&waiting.call, claimed(limit));
        self.budgets.peek_servers(now, group, call, ahead, claimed)
    }

    /// When a call that this bars is asked again. The reserve of its class may cover it before the
    /// calls ahead of it have left.
    fn check_again(
        &self,
        now: Timestamp,
        key: SlabKey,
        budget: Budget,
        verdict: Verdict,
    ) -> Verdict {
        let (Budget::Limit(limit), Verdict::OnChange) = (budget, verdict) else {
            return verdict;
        };
        let call = &self.queue.calls[key].call;
        let limiter = &self.budgets.limits[limit as usize];
        let keeps_from = limiter.keeps_from(now, call);
        keeps_from.map_or(verdict, Verdict::NotBefore)
    }

    /// The turn of a call has come, and something else bars it. How much it claims there, if it goes
    /// to the front.
    pub(super) fn pass_over(
        &mut self,
        now: Timestamp,
        candidate: Candidate,
        budget: Budget,
        verdict: Verdict,
    ) -> Option<u64> {
        let turn = candidate.turn.filter(|turn| turn.budget() != budget)?;
        let QueuedCall { call, meets, .. } = &self.queue.calls[candidate.key];
        let opens = match verdict {
            Verdict::NotBefore(moment) => Some(moment),
            Verdict::Ready | Verdict::OnChange | Verdict::Never => None,
        };
        let claim = |budget| {
            (
                self.budgets.window(budget, meets),
                self.budgets.draw_of(budget, call),
            )
        };
        let claims = self
            .parking
            .pass_over(candidate.flow, turn, budget, opens, now, claim);
        claims.then(|| self.budgets.draw_of(budget, call))
    }

    /// For how long a call that this bars is set aside; `None` if it keeps its place.
    pub(super) fn jitter(&self, budget: Budget, key: SlabKey) -> Option<Jitter> {
        let (min, max) = match budget {
            Budget::Limit(_) => self.policy.jitter(self.queue.calls[key].call.class)?,
            Budget::Bucket(_) | Budget::Quota(_) => return None,
        };
        Some(Jitter { min, max })
    }

    fn overdue(&self, is_over: impl Fn(Timestamp) -> bool) -> Option<SlabKey> {
        let (deadline, key) = self.queue.first_deadline()?;
        is_over(deadline).then_some(key)
    }

    /// The actual reason of a refusal. If the store of quotas does not answer, the call did not
    /// wait for tokens that others used up.
    pub(super) fn because_of_the_store(
        &self,
        reason: RefusalReason,
        held_by: Option<Budget>,
    ) -> RefusalReason {
        match (reason, held_by) {
            (RefusalReason::DeadlinePassed, Some(Budget::Quota(quota)))
                if self.budgets.quotas.is_unanswered(quota) =>
            {
                RefusalReason::StoreAway
            }
            _ => reason,
        }
    }
}

/// The result for a call whose turn was checked.
enum TurnCheck {
    Run,
    /// The call may not go, because of this budget.
    Barred(Budget, Verdict),
}
