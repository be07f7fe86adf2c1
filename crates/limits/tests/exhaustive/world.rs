//! A state of the search: a scheduler with its calls, and the oracle.

use std::time::Duration;

use tidegate_limits::call::{Backend, BucketId, ServerChoice, ServerNumber};
use tidegate_limits::digest::Digest;
use tidegate_limits::policy::{LimitRule, Scope as Calls, WhenFull};
use tidegate_limits::scheduler::{Outcome, Refusal, Supplier, Supply};
use tidegate_limits::{Call, Scheduler, Step, Ticket, Timestamp};

use super::scopes::Scope;
use crate::STEP;
use crate::oracle::{End, Oracle, Violation};

pub(crate) const BUCKET: BucketId = BucketId(1);
/// The backend that may have several servers.
pub(crate) const BACKEND: Backend = Backend(1);

/// Steps of a jump of the clock.
const JUMP: u64 = 4;

/// Decisions that may follow one action, before something is wrong.
const DECISIONS_MAX: usize = 100;

/// Something that happens to a scheduler. A call is named by its place among those that wait or run, in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Arrive(u8),
    Leave(u8),
    Sent(u8),
    Done(u8),
    GiveBack(u8),
    Requeue(u8),
    Suspend(u8),
    Resume(u8),
    Reload,
    /// An operator closes all limits, or opens them again.
    Pause,
    /// A server is down, or is up again. It is named by its place.
    Server(u8),
    Tick,
    Jump,
}

/// A fault that is made in the scheduler or in the search from outside, and that has to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    GivesBackTwice,
    AdmitsOneMore,
    RunsTheLast,
    ForgetsThatItLeft,
    NeverWakes,
    LosesRequeued,
    FixedWindows,
    OtherWeights,
    /// A server takes a call more than its limit.
    ServerAdmitsOneMore,
    /// Calls that any server may serve are bound to the first one when they arrive.
    BindsEarly,
    /// The search takes all past moments for the same.
    MergesMoments,
    /// The search does not look into the scheduler.
    MergesOrders,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallState {
    Waiting(Ticket),
    Suspended(Ticket),
    Running {
        /// Of its hold.
        place: u32,
        /// Of the oracle.
        run: usize,
    },
}

/// A call that waits or runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveCall {
    /// Calls are counted as they arrive.
    pub(crate) id: u32,
    pub(crate) kind: u8,
    pub(crate) state: CallState,
    /// Until when it waits.
    pub(crate) deadline: Option<u64>,
}

impl LiveCall {
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, CallState::Waiting(_))
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.state, CallState::Running { .. })
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match self.state {
            CallState::Waiting(ticket) | CallState::Suspended(ticket) => Some(ticket),
            CallState::Running { .. } => None,
        }
    }
}

/// The service that two that both wait got by weight since then: how far the difference is above its least, and below its most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Apart {
    pub(crate) above: i32,
    pub(crate) below: i32,
}

#[derive(Clone)]
pub(crate) struct World<'s> {
    pub(crate) scope: &'s Scope,
    pub(crate) scheduler: Scheduler<u32>,
    pub(crate) oracle: Oracle,
    /// In nanoseconds: a whole number of steps.
    pub(crate) now: u64,
    /// In the order of their arrival.
    pub(crate) calls: Vec<LiveCall>,
    /// When the scheduler is asked again, if nothing else happens.
    pub(crate) wake: Option<u64>,
    /// The place of the policy in force.
    pub(crate) policy: usize,
    pub(crate) is_paused: bool,
    /// The servers that are down, as bits.
    down: u8,
    arrived: u32,
    ticks: u8,
    requeued: u8,
    reloads: u8,
    /// For each pair of kinds that the scope compares.
    pub(crate) apart: Vec<Option<Apart>>,
    /// Events since the last action, in words, if that is wanted.
    pub(crate) told: Option<Vec<String>>,
}

pub(crate) fn at(now: u64) -> Timestamp {
    Timestamp::from_nanos(now)
}

/// The server that this limit is of.
fn server_of(rule: &LimitRule) -> Option<ServerNumber> {
    match rule.scope {
        Calls::Server(_, server) => Some(server),
        _ => None,
    }
}

impl<'s> World<'s> {
    pub(crate) fn new(scope: &'s Scope) -> Self {
        let mut world = Self {
            scope,
            scheduler: Scheduler::new(scope.given[0].clone()),
            oracle: Oracle::new(scope.policies[0].limits()),
            now: 0,
            calls: Vec::new(),
            wake: None,
            policy: 0,
            is_paused: false,
            down: 0,
            arrived: 0,
            ticks: 0,
            requeued: 0,
            reloads: 0,
            apart: vec![None; scope.pairs.len()],
            told: None,
        };
        if let Some(rule) = &scope.bucket {
            let set = world.scheduler.set_bucket(at(0), BUCKET, rule.clone());
            set.expect("there is room for one");
            world.oracle.bucket_set(BUCKET, rule, 0);
        }
        world
    }

    fn is(&self, broken: Broken) -> bool {
        self.scope.broken == Some(broken)
    }

    pub(crate) fn call_of(&self, call: &LiveCall) -> Call {
        let mut of = self.scope.kinds[call.kind as usize].call.clone();
        of.arrived = at(self.now);
        of.deadline = call.deadline.map(at);
        of
    }

    /// The servers of the policy in force, in its order.
    fn servers(&self) -> Vec<ServerNumber> {
        let limits = self.scope.policies[self.policy].limits().iter();
        let mut servers: Vec<_> = limits.filter_map(server_of).collect();
        servers.dedup();
        servers
    }

    /// The calls as which a call may leave: one for each server, if any may serve it.
    pub(crate) fn choices(&self, call: &Call) -> Vec<Call> {
        let servers = self.servers();
        if call.server != ServerChoice::ANY || call.backend != BACKEND || servers.is_empty() {
            return vec![call.clone()];
        }
        let bound = servers.into_iter().map(ServerChoice::only);
        bound.map(|server| call.clone().server(server)).collect()
    }

    /// Everything that can happen next.
    pub(crate) fn actions(&self, out: &mut Vec<Action>) {
        let Scope { may, .. } = self.scope;
        let within = |most: Option<u8>, so_far: u8| most.is_none_or(|most| so_far < most);
        out.clear();
        let all = may.arrivals.is_none_or(|most| self.arrived < most);
        if all && self.calls.len() < may.at_once {
            out.extend((0..self.scope.kinds.len() as u8).map(Action::Arrive));
        }
        for (call, place) in self.calls.iter().zip(0..) {
            match call.state {
                CallState::Waiting(_) => {
                    out.push(Action::Leave(place));
                    out.extend(may.suspend.map(|_| Action::Suspend(place)));
                }
                CallState::Suspended(_) => {
                    out.push(Action::Leave(place));
                    out.push(Action::Resume(place));
                }
                CallState::Running { run, .. } => {
                    if may.send && !self.oracle.is_sent(run) {
                        out.push(Action::Sent(place));
                    }
                    out.push(Action::Done(place));
                    out.extend(may.give_back.then_some(Action::GiveBack(place)));
                    let requeues = within(may.requeues, self.requeued);
                    out.extend(requeues.then_some(Action::Requeue(place)));
                }
            }
        }
        if self.scope.policies.len() > 1 && within(may.reloads, self.reloads) {
            out.push(Action::Reload);
        }
        out.extend(may.pause.then_some(Action::Pause));
        if may.servers {
            out.extend((0..self.servers().len() as u8).map(Action::Server));
        }
        if within(may.ticks, self.ticks) {
            out.push(Action::Tick);
            out.extend(may.jump.then_some(Action::Jump));
        }
    }

    /// An action happens, and the scheduler decides until it sleeps.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), Violation> {
        if let Some(told) = &mut self.told {
            told.clear();
        }
        match action {
            Action::Arrive(kind) => self.arrive(kind)?,
            Action::Leave(place) => self.leave(place)?,
            Action::Sent(place) => self.send(place as usize),
            Action::Done(place) => self.end(place, End::Finished(self.now))?,
            Action::GiveBack(place) => self.end(place, End::Undrawn(self.now))?,
            Action::Requeue(place) => self.requeue(place as usize)?,
            Action::Suspend(place) => self.suspend(place as usize)?,
            Action::Resume(place) => self.resume(place as usize)?,
            Action::Reload => self.reload(),
            Action::Pause => self.pause(),
            Action::Server(place) => self.turn_server(place),
            Action::Tick => self.pass(1),
            Action::Jump => self.pass(JUMP),
        }
        if !(self.is(Broken::NeverWakes) && matches!(action, Action::Tick)) {
            self.settle()?;
        }
        self.forget();
        Ok(())
    }

    fn pass(&mut self, steps: u64) {
        self.now += steps * STEP;
        if self.scope.may.ticks.is_some() {
            self.ticks += steps as u8;
        }
        if self.is(Broken::NeverWakes) {
            self.wake = None;
        }
    }

    fn arrive(&mut self, kind: u8) -> Result<(), Violation> {
        self.arrived += 1;
        let patience = self.scope.kinds[kind as usize].patience;
        let mut call = LiveCall {
            id: self.arrived,
            kind,
            state: CallState::Running { place: 0, run: 0 },
            deadline: patience.map(|steps| self.now + steps * STEP),
        };
        let mut submitted = self.call_of(&call);
        if self.is(Broken::BindsEarly) {
            submitted = self.choices(&submitted).swap_remove(0);
        }
        let policy = &self.scope.policies[self.policy];
        let door = match policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { door } => door,
        };
        let waiting = self.calls.iter().filter(|call| !call.runs()).count();
        let is_full = waiting as u64 >= u64::from(policy.capacity()) + u64::from(door);
        if self.scope.may.run_at_once {
            let at_once = self.scheduler.run_at_once(at(self.now), submitted.clone());
            if let Ok(hold) = at_once {
                self.calls.push(call);
                return self.start(self.calls.len() - 1, hold.place());
            }
        }
        match self
            .scheduler
            .submit(at(self.now), submitted.clone(), call.id)
        {
            Ok(_) if is_full => Err(format!("call {} waits, and there is no room", call.id)),
            Ok(ticket) => {
                call.state = CallState::Waiting(ticket);
                self.calls.push(call);
                Ok(())
            }
            Err((refusal, _)) => {
                self.tell(|| format!("call {} is refused: {}", call.id, refusal.reason.as_str()));
                self.check_refused(&submitted, &refusal, is_full)
            }
        }
    }

    fn leave(&mut self, place: u8) -> Result<(), Violation> {
        let call = self.calls.remove(place as usize);
        if self.is(Broken::ForgetsThatItLeft) {
            return Ok(());
        }
        let ticket = call.ticket().expect("it waits");
        match self.scheduler.cancel(at(self.now), ticket) {
            Some(id) if id == call.id => Ok(()),
            other => Err(format!(
                "call {} left, and {other:?} was taken out",
                call.id
            )),
        }
    }

    fn hold(&self, place: usize) -> (tidegate_limits::Hold, usize) {
        let CallState::Running { place, run } = self.calls[place].state else {
            unreachable!("it runs");
        };
        let hold = self.scheduler.hold_at(place);
        (hold.expect("a call that runs has a hold"), run)
    }

    fn send(&mut self, place: usize) {
        let (hold, run) = self.hold(place);
        self.scheduler.sent(at(self.now), &hold);
        self.oracle.sent(run, self.now);
    }

    fn end(&mut self, place: u8, end: End) -> Result<(), Violation> {
        let (hold, run) = self.hold(place as usize);
        match end {
            End::Finished(now) => {
                self.scheduler.finish(at(now), hold, Outcome::Served, None);
            }
            End::Undrawn(now) => self.scheduler.give_back(at(now), hold),
        }
        self.oracle.ended(run, end, None)?;
        self.calls.remove(place as usize);
        let other = self.calls.iter().position(LiveCall::runs);
        if let (true, Some(other)) = (self.is(Broken::GivesBackTwice), other) {
            let (hold, _) = self.hold(other);
            self.scheduler.give_back(at(self.now), hold);
        }
        Ok(())
    }

    fn requeue(&mut self, place: usize) -> Result<(), Violation> {
        let (hold, run) = self.hold(place);
        let id = self.calls[place].id;
        self.oracle.ended(run, End::Undrawn(self.now), None)?;
        if self.scope.may.requeues.is_some() {
            self.requeued += 1;
        }
        let ticket = self.scheduler.requeue(at(self.now), hold, id);
        if self.is(Broken::LosesRequeued) {
            self.scheduler.cancel(at(self.now), ticket);
        }
        self.calls[place].state = CallState::Waiting(ticket);
        Ok(())
    }

    fn suspend(&mut self, place: usize) -> Result<(), Violation> {
        let steps = self.scope.may.suspend.expect("calls may be suspended");
        let until = self.now + steps * STEP;
        let call = &mut self.calls[place];
        let ticket = call.ticket().expect("it waits");
        call.state = CallState::Suspended(ticket);
        call.deadline = Some(until);
        match self.scheduler.suspend(at(self.now), ticket, at(until)) {
            true => Ok(()),
            false => Err(format!("call {} waits and can't be suspended", call.id)),
        }
    }

    fn resume(&mut self, place: usize) -> Result<(), Violation> {
        let mut call = self.calls[place];
        let ticket = call.ticket().expect("it waits");
        let patience = self.scope.kinds[call.kind as usize].patience;
        call.deadline = patience.map(|steps| self.now + steps * STEP);
        let back = self.call_of(&call);
        match self
            .scheduler
            .resume(at(self.now), ticket, back.clone(), call.id)
        {
            Ok(ticket) => {
                call.state = CallState::Waiting(ticket);
                self.calls[place] = call;
                Ok(())
            }
            Err((refusal, _)) => {
                self.calls.remove(place);
                self.check_refused(&back, &refusal, false)
            }
        }
    }

    fn reload(&mut self) {
        self.policy = (self.policy + 1) % self.scope.policies.len();
        if self.scope.may.reloads.is_some() {
            self.reloads += 1;
        }
        let given = self.scope.given[self.policy].clone();
        self.scheduler.apply(at(self.now), given);
        let claims = self.scope.policies[self.policy].limits();
        self.oracle.applied(claims, self.now);
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        let supply = match self.is_paused {
            true => Supply::capacity(0),
            false => Supply::Configured,
        };
        for rule in self.scope.policies[self.policy].limits() {
            let (name, of) = (&rule.name, Supplier::Operator);
            self.scheduler.supply(at(self.now), name, of, supply);
            self.oracle.supplied(name, of, supply);
        }
    }

    /// A server is down, or is up again.
    fn turn_server(&mut self, place: u8) {
        self.down ^= 1 << place;
        let supply = match self.down >> place & 1 {
            0 => Supply::Configured,
            _ => Supply::capacity(0),
        };
        let server = self.servers()[place as usize];
        for rule in self.scope.policies[self.policy].limits() {
            if server_of(rule) == Some(server) {
                let (name, of) = (&rule.name, Supplier::Health);
                self.scheduler.supply(at(self.now), name, of, supply);
                self.oracle.supplied(name, of, supply);
            }
        }
    }

    /// Does what the scheduler decides until it sleeps.
    fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..DECISIONS_MAX {
            match self.scheduler.next(at(self.now), &mut || 0) {
                Step::Run { payload, hold, .. } => self.run(payload, hold.place())?,
                Step::Expired {
                    payload, refusal, ..
                } => self.expire(payload, &refusal)?,
                Step::SleepUntil(moment) => {
                    self.wake = Some(moment.as_nanos());
                    return self.compare();
                }
                Step::Idle => {
                    self.wake = None;
                    return self.compare();
                }
            }
        }
        Err("the scheduler does not come to rest".into())
    }

    fn place(&self, id: u32) -> Result<usize, Violation> {
        let mut calls = self.calls.iter();
        let place = calls.position(|call| call.id == id);
        place.ok_or_else(|| format!("call {id} has left or ended, and was decided about"))
    }

    fn run(&mut self, id: u32, place: u32) -> Result<(), Violation> {
        let mut index = self.place(id)?;
        if self.is(Broken::RunsTheLast) {
            let kind = self.calls[index].kind;
            let alike = |call: &LiveCall| call.kind == kind && call.waits();
            index = self.calls.iter().rposition(alike).unwrap_or(index);
        }
        let call = self.calls[index];
        let id = call.id;
        self.tell(|| format!("call {id} runs"));
        if !call.waits() {
            return Err(format!("call {id} runs and is {:?}", call.state));
        }
        if call.deadline.is_some_and(|deadline| deadline < self.now) {
            return Err(format!("call {id} runs after its deadline"));
        }
        let mut earlier = self.calls[..index].iter();
        let is_alike = |earlier: &&LiveCall| earlier.kind == call.kind && earlier.waits();
        if let Some(earlier) = earlier.find(is_alike) {
            return Err(format!("call {id} overtook call {}", earlier.id));
        }
        self.start(index, place)
    }

    /// A call leaves the queue, or never was there.
    fn start(&mut self, index: usize, place: u32) -> Result<(), Violation> {
        let call = self.calls[index];
        let mut left = self.call_of(&call);
        if let Some(server) = self.scheduler.server_at(place) {
            if left.server.named().is_some_and(|named| named != server) {
                return Err(format!(
                    "call {} goes to a server that may not take it",
                    call.id
                ));
            }
            left = left.server(ServerChoice::only(server));
        } else if left.backend == BACKEND {
            return Err(format!("call {} goes to no server", call.id));
        }
        let run = self.oracle.ran(&left, self.now)?;
        self.calls[index].state = CallState::Running { place, run };
        if !self.scope.may.send {
            self.send(index);
        }
        self.count_service(call.kind);
        Ok(())
    }

    fn expire(&mut self, id: u32, refusal: &Refusal) -> Result<(), Violation> {
        let place = self.place(id)?;
        self.tell(|| format!("call {id} is refused: {}", refusal.reason.as_str()));
        self.check_expired(place, refusal)?;
        self.calls.remove(place);
        Ok(())
    }

    fn tell(&mut self, text: impl Fn() -> String) {
        if let Some(told) = &mut self.told {
            told.push(text());
        }
    }

    /// Forgets what no limit remembers.
    fn forget(&mut self) {
        let remembers = self.scope.remembers.as_nanos() as u64;
        let Some(numbers) = self.oracle.forget(self.now, remembers) else {
            return;
        };
        for call in &mut self.calls {
            if let CallState::Running { run, .. } = &mut call.state {
                *run = numbers[*run].expect("the run of a call in flight is kept");
            }
        }
    }

    /// The number of this state. Two states with the same number differ in nothing that matters from now on: calls are named by the
    /// order of their arrival, and moments count from now.
    pub(crate) fn number(&self, digest: &mut Digest) -> u64 {
        digest.begin(at(self.now));
        if !self.is(Broken::MergesOrders) {
            self.scheduler.digest(digest);
        }
        let has_numbers = self.scope.may.arrivals.is_some();
        let counts = [
            if has_numbers { self.arrived } else { 0 },
            u32::from(self.ticks),
            u32::from(self.requeued),
            u32::from(self.reloads),
            self.policy as u32,
            u32::from(self.is_paused),
            u32::from(self.down),
            (self.now / STEP % self.scope.period) as u32,
        ];
        for count in counts {
            digest.word(u64::from(count));
        }
        for call in &self.calls {
            let LiveCall {
                id: _,
                kind,
                state,
                deadline,
            } = call;
            let state = match state {
                CallState::Waiting(_) => 0,
                CallState::Suspended(_) => 1,
                CallState::Running { .. } => 2,
            };
            digest.word(u64::from(*kind) << 2 | state);
            if let Some(deadline) = deadline.filter(|_| state < 2) {
                digest.coming(at(deadline));
            }
        }
        for apart in self.apart.iter().flatten() {
            digest.word(1 << 32 | u64::from(apart.above as u32));
            digest.word(u64::from(apart.below as u32));
        }
        let none = self.apart.iter().map(|apart| u64::from(apart.is_none()));
        digest.word(none.fold(1, |bits, none| bits << 1 | none));
        let running = self.calls.iter().filter_map(|call| match call.state {
            CallState::Running { run, .. } => Some(run),
            CallState::Waiting(_) | CallState::Suspended(_) => None,
        });
        let remembers = self.scope.remembers.as_nanos() as u64;
        self.oracle.digest(self.now, remembers, running, digest);
        digest.number()
    }

    /// An empty digest for states of this scope.
    pub(crate) fn digest(scope: &Scope) -> Digest {
        let remembers = match scope.broken {
            Some(Broken::MergesMoments) => Duration::ZERO,
            _ => scope.remembers,
        };
        let mut kinds = scope.kinds.iter();
        let has_deadlines =
            scope.may.suspend.is_some() || kinds.any(|kind| kind.patience.is_some());
        Digest::new(remembers, has_deadlines)
    }

    /// From now on no call comes, every call that runs ends, and nothing is closed: everything must end and come back.
    pub(crate) fn run_to_the_end(mut self) -> Result<(), Violation> {
        if self.is_paused {
            self.act(Action::Pause)?;
        }
        while self.down > 0 {
            self.act(Action::Server(self.down.trailing_zeros() as u8))?;
        }
        let most = 8 + 4 * self.calls.len() as u64 * self.scope.longest_wait;
        for _ in 0..most {
            while let Some(place) = self.calls.iter().position(LiveCall::runs) {
                self.act(Action::Done(place as u8))?;
                self.check()?;
            }
            if self.calls.is_empty() {
                break;
            }
            self.pass(1);
            self.settle()?;
            self.forget();
            self.check()?;
        }
        if let Some(call) = self.calls.first() {
            return Err(format!("call {} never ends: {call:?}", call.id));
        }
        self.now += self.scope.remembers.as_nanos() as u64;
        self.settle()?;
        if !self.scheduler.is_at_rest() {
            return Err("the scheduler is not at rest when every call has ended".into());
        }
        let limits = self.scheduler.limits_now(at(self.now));
        match limits.iter().find(|limit| limit.used > 0) {
            None => Ok(()),
            Some(limit) => Err(format!("{} of {} never comes back", limit.used, limit.name)),
        }
    }

    /// An action in plain words.
    pub(crate) fn describe(&self, action: Action) -> String {
        let id = |place: u8| self.calls[place as usize].id;
        match action {
            Action::Arrive(kind) => {
                let of = &self.scope.kinds[kind as usize];
                format!("call {} arrives ({})", self.arrived + 1, of.name)
            }
            Action::Leave(place) => format!("call {} leaves", id(place)),
            Action::Sent(place) => format!("call {} is sent", id(place)),
            Action::Done(place) => format!("call {} ends", id(place)),
            Action::GiveBack(place) => format!("call {} was never sent, and ends", id(place)),
            Action::Requeue(place) => format!("call {} was never sent, and waits again", id(place)),
            Action::Suspend(place) => format!("call {} is suspended", id(place)),
            Action::Resume(place) => format!("call {} comes back", id(place)),
            Action::Reload => "the other policy is loaded".into(),
            Action::Pause if self.is_paused => "the operator opens all limits".into(),
            Action::Pause => "the operator closes all limits".into(),
            Action::Server(place) if self.down >> place & 1 == 1 => {
                format!("server {} is up", place + 1)
            }
            Action::Server(place) => format!("server {} is down", place + 1),
            Action::Tick => "a second passes".into(),
            Action::Jump => format!("the clock jumps by {JUMP} seconds"),
        }
    }
}
