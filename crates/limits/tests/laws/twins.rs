//! Two schedulers live through the same: one runs calls at once if it can, the other has each of them wait first.

use tidegate_limits::call::Backend;
use tidegate_limits::scheduler::{Outcome, Refusal, SupplyShare};
use tidegate_limits::{Call, Caller, Class, Cost, Hold, Scheduler, Step, Ticket};

use crate::at;
use crate::laws::policies::{Shape, random_policy};
use crate::oracle::Violation;
use crate::random::Random;

/// A scheduler and the calls that it knows.
struct Twin {
    scheduler: Scheduler<usize>,
    waiting: Vec<Option<Ticket>>,
    holds: Vec<Option<Hold>>,
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
    fn settle(&mut self, now: u64, answered: &mut Answered) {
        loop {
            let entropy = &mut self.entropy;
            match self.scheduler.next(at(now), &mut || entropy.next()) {
                Step::Run { payload, hold, .. } => self.run(payload, hold, answered),
                Step::Expired {
                    payload, refusal, ..
                } => {
                    self.waiting[payload] = None;
                    answered.expired.push((payload, refusal));
                }
                Step::SleepUntil(until) => {
                    answered.sleeps = Some(until.as_nanos());
                    return;
                }
                Step::Idle => return,
            }
        }
    }

    fn run(&mut self, number: usize, hold: Hold, answered: &mut Answered) {
        self.waiting[number] = None;
        self.holds[number] = Some(hold);
        answered.ran.push(number);
    }

    fn arrives(&mut self, now: u64, call: Call, may_run: bool, answered: &mut Answered) {
        let number = self.waiting.len();
        self.waiting.push(None);
        self.holds.push(None);
        let call = match may_run {
            true => match self.scheduler.run_at_once(at(now), call) {
                Ok(hold) => {
                    self.at_once += 1;
                    return self.run(number, hold, answered);
                }
                Err(call) => call,
            },
            false => call,
        };
        match self.scheduler.submit(at(now), call, number) {
            Ok(ticket) => self.waiting[number] = Some(ticket),
            Err((refusal, _)) => answered.refused = Some(refusal),
        }
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
        scheduler: Scheduler::with_seed(policy.clone(), seed),
        waiting: Vec::new(),
        holds: Vec::new(),
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
            let running: Vec<_> = (0..twin.holds.len())
                .filter(|&number| twin.holds[number].is_some())
                .collect();
            let running = running.get((chosen % running.len().max(1) as u64) as usize);
            let scheduler = &mut twin.scheduler;
            match (event, running) {
                (Event::Arrives, _) => {
                    let call = match differ && may_run && step == 60 {
                        true => call.clone().cost(Cost::new(5).expect("above zero")),
                        false => call.clone(),
                    };
                    twin.arrives(now, call, may_run, &mut answered);
                }
                (Event::Leaves, _) => {
                    let waiting: Vec<_> = twin.waiting.iter().flatten().copied().collect();
                    if let Some(&ticket) = waiting.get((chosen % 7) as usize)
                        && let Some(number) = scheduler.cancel(at(now), ticket)
                    {
                        twin.waiting[number] = None;
                    }
                }
                (Event::Share, _) => scheduler.set_share(at(now), share),
                (Event::Nothing, _) | (_, None) => {}
                (Event::Sent, Some(&number)) => {
                    let hold = twin.holds[number].as_ref().expect("it runs");
                    scheduler.sent(at(now), hold);
                }
                (Event::Replied, Some(&number)) => {
                    let hold = twin.holds[number].as_ref().expect("it runs");
                    scheduler.replied(at(now), hold);
                }
                (Event::Finished, Some(&number)) => {
                    let hold = twin.holds[number].take().expect("it runs");
                    scheduler.finish(at(now), hold, Outcome::Served, None);
                }
                (Event::GivenBack, Some(&number)) => {
                    let hold = twin.holds[number].take().expect("it runs");
                    scheduler.give_back(at(now), hold);
                }
                (Event::Requeued, Some(&number)) => {
                    let hold = twin.holds[number].take().expect("it runs");
                    twin.waiting[number] = Some(scheduler.requeue(at(now), hold, number));
                }
            }
            twin.settle(now, &mut answered);
            twin.scheduler.audit();
            let limits = twin.scheduler.limits_now(at(now));
            let queue = twin.scheduler.queue_now(at(now));
            answers.push((answered, limits, queue, twin.scheduler.asked_count()));
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
