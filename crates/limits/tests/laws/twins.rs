//! Two schedulers live through the same: one runs calls at once if it can, the other has each of them wait first.

use std::convert::Infallible;

use tidegate_limits::call::Backend;
use tidegate_limits::scheduler::{Outcome, Refusal, SupplyShare};
use tidegate_limits::{Call, Caller, Class, Cost, Scheduler};
use tidegate_replay::{Decision, Replay};

use crate::at;
use crate::laws::policies::{Shape, random_policy};
use crate::oracle::Violation;
use crate::random::Random;

/// A scheduler and the calls that it knows.
struct Twin {
    replay: Replay<usize, Infallible>,
    calls: usize,
    /// The random numbers by which calls are set aside.
    entropy: Random,
    at_once: u64,
}

/// The answers of a scheduler, with the numbers of the calls.
#[derive(Debug, Default, PartialEq)]
struct Answered {
    ran: Vec<usize>,
    expired: Vec<(usize, Refusal)>,
    refused: Option<Refusal>,
    sleeps: Option<u64>,
}

impl Twin {
    /// Asks until there is nothing to do.
    fn settle(&mut self, answered: &mut Answered) {
        let entropy = &mut self.entropy;
        while let Some(decision) = self.replay.decide(&mut || entropy.next()) {
            match decision {
                Decision::Admitted { call, .. } => answered.ran.push(call),
                Decision::Refused { call, refusal, .. } => answered.expired.push((call, refusal)),
            }
        }
        answered.sleeps = self.replay.wake().map(|wake| wake.as_nanos());
    }

    fn arrives(&mut self, call: Call, may_run: bool, answered: &mut Answered) {
        let number = self.calls;
        self.calls += 1;
        let call = match may_run {
            true => match self.replay.run_at_once(number, call) {
                Ok(()) => {
                    self.at_once += 1;
                    answered.ran.push(number);
                    return;
                }
                Err(call) => call,
            },
            false => call,
        };
        answered.refused = self.replay.submit(number, call).err();
    }

    /// The calls in a stage.
    fn calls(&self, is: impl Fn(&Replay<usize, Infallible>, usize) -> bool) -> Vec<usize> {
        let all = 0..self.calls;
        all.filter(|&number| is(&self.replay, number)).collect()
    }
}

/// An event that happens to both schedulers.
#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives,
    Sent,
    Replied,
    Finished,
    GivenBack,
    Requeued,
    Leaves,
    Share,
    Nothing,
}

const EVENTS: [Event; 12] = [
    Event::Arrives,
    Event::Arrives,
    Event::Arrives,
    Event::Sent,
    Event::Replied,
    Event::Finished,
    Event::Finished,
    Event::Finished,
    Event::GivenBack,
    Event::Requeued,
    Event::Leaves,
    Event::Nothing,
];

/// Lives through one seed. Returns how many calls ran at once.
pub(crate) fn live(seed: u64, differ: bool) -> Result<u64, Violation> {
    let mut random = Random::new(seed);
    let shape = Shape {
        classes: random.between(1, 3),
        callers: random.between(1, 3),
        calls: 0,
        buckets: 0,
        reserves: random.one_in(3),
        reloads: false,
        jitter: random.one_in(3),
        fixed_as_sliding: false,
        one_slot_more: false,
    };
    let policy = random_policy(&mut random, shape, None);
    let mut twins = [true, false].map(|_| Twin {
        replay: Replay::new(Scheduler::with_seed(policy.clone(), seed)),
        calls: 0,
        entropy: Random::new(seed),
        at_once: 0,
    });
    let mut now = 0;
    // Few calls at times, so that none waits when the next one arrives.
    let spread = random.between(1, 40);
    for step in 0..120 {
        now += random.below(spread);
        let event = match random.one_in(40) {
            true => Event::Share,
            false => random.pick(&EVENTS),
        };
        let call = arriving(&mut random, shape, now);
        let share = SupplyShare::of_thousandths(random.between(100, 1000) as u16);
        let chosen = random.next();
        let mut answers = Vec::new();
        for (twin, may_run) in twins.iter_mut().zip([true, false]) {
            let mut answered = Answered::default();
            twin.replay.advance(at(now));
            let running = twin.calls(Replay::is_running);
            let running = running.get((chosen % running.len().max(1) as u64) as usize);
            match (event, running) {
                (Event::Arrives, _) => {
                    let call = match differ && may_run && step == 60 {
                        true => call.clone().cost(Cost::new(5).expect("above zero")),
                        false => call.clone(),
                    };
                    twin.arrives(call, may_run, &mut answered);
                }
                (Event::Leaves, _) => {
                    let waiting = twin.calls(|replay, number| replay.ticket(number).is_some());
                    if let Some(&number) = waiting.get((chosen % 7) as usize) {
                        twin.replay.cancel(number);
                    }
                }
                (Event::Share, _) => twin.replay.scheduler_mut().set_share(at(now), share),
                (Event::Nothing, _) | (_, None) => {}
                (Event::Sent, Some(&number)) => drop(twin.replay.sent(number)),
                (Event::Replied, Some(&number)) => drop(twin.replay.replied(number)),
                (Event::Finished, Some(&number)) => {
                    twin.replay.finish(number, Outcome::Served, None);
                }
                (Event::GivenBack, Some(&number)) => drop(twin.replay.give_back(number)),
                (Event::Requeued, Some(&number)) => drop(twin.replay.requeue(number)),
            }
            twin.settle(&mut answered);
            twin.replay.scheduler_mut().audit();
            let scheduler = twin.replay.scheduler();
            let limits = scheduler.limits_now(at(now));
            let queue = scheduler.queue_now(at(now));
            answers.push((answered, limits, queue, scheduler.check_count()));
        }
        if answers[0] != answers[1] {
            let [one, other] = [&answers[0], &answers[1]];
            return Err(format!(
                "step {step}, {event:?} at {now}: at once\n{one:?}\nand after a wait\n{other:?}"
            ));
        }
    }
    Ok(twins[0].at_once)
}

fn arriving(random: &mut Random, shape: Shape, now: u64) -> Call {
    let functions = ["list", "create", "other", "more"];
    let deadline = match random.below(4) {
        0 => Some(at(now + random.below(60))),
        _ => None,
    };
    Call::new(random.pick(&functions), at(now))
        .backend(Backend(random.below(2) as u8))
        .class(Class(random.below(shape.classes) as u32))
        .caller(Caller(random.below(shape.callers)))
        .cost(Cost::new(random.between(1, 3) as u32).expect("above zero"))
        .deadline(deadline)
}
