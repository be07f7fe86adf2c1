//! Several nodes with a store, and every fault that a call can meet.

use super::random::Random;
use super::*;

/// The next event, and its time.
#[derive(Debug)]
enum Event {
    Arrives(usize),
    Asked(usize, QuotaQuestion),
    Answered(usize, QuotaRef, QuestionId, StoreReply),
    Ends(usize, u64),
    Leaves(usize, u64),
    Reloads(usize),
}

impl Ranked for Event {
    type Rank = ();

    fn rank(&self) {}
}

#[derive(Debug)]
struct Waits {
    quotas: Vec<QuotaKey>,
    cost: u64,
}

/// Nodes that share a store, or do not, to see that this would be found.
pub(super) struct World {
    random: Random,
    nodes: Vec<Node>,
    waiting: Vec<BTreeMap<u64, Waits>>,
    named: BTreeMap<u64, (Vec<QuotaKey>, u64)>,
    stores: Vec<RecordStore>,
    now: Timestamp,
    agenda: Agenda<Event>,
    calls: u64,
    spent: BTreeMap<(QuotaKey, u64), u64>,
    drawn: BTreeMap<u64, (u64, Vec<QuotaSpent>)>,
    totals: BTreeMap<String, u64>,
    /// The number of replies of which one is lost.
    loss: u64,
    pub(super) went: u64,
    pub(super) refused: u64,
    pub(super) forgotten: u64,
    pub(super) history: Vec<(u64, u64)>,
}

/// Calls that come to a world.
const CALLS: u64 = 400;
/// The time within which all events come.   nanoseconds
const SPAN: u64 = 4_000_000_000;

impl World {
    pub(super) fn new(seed: u64, shares: bool) -> Self {
        let mut random = Random::new(seed);
        let count = random.between(2, 3) as usize;
        let mut totals = BTreeMap::new();
        totals.insert(USER.to_owned(), random.between(4, 30));
        totals.insert(TOTAL.to_owned(), random.between(8, 60));
        let mut world = Self {
            nodes: Vec::new(),
            waiting: (0..count).map(|_| BTreeMap::new()).collect(),
            named: BTreeMap::new(),
            stores: (0..if shares { 1 } else { count })
                .map(|_| RecordStore::default())
                .collect(),
            now: Timestamp::ZERO,
            agenda: Agenda::default(),
            calls: 0,
            spent: BTreeMap::new(),
            drawn: BTreeMap::new(),
            totals,
            loss: if random.one_in(2) {
                1_000_000
            } else {
                random.between(3, 20)
            },
            went: 0,
            refused: 0,
            forgotten: 0,
            history: Vec::new(),
            random,
        };
        for node in 0..count {
            world.nodes.push(super::node(&[]));
            world.reload(node);
            let scheduler = world.nodes[node].scheduler_mut();
            scheduler.set_quota_nodes(count as u32);
            world.after(SPAN, Event::Reloads(node));
        }
        for _ in 0..CALLS {
            let node = world.random.below(count as u64);
            world.after(SPAN, Event::Arrives(node as usize));
        }
        world
    }

    fn after(&mut self, most: u64, event: Event) {
        let after = Duration::from_nanos(self.random.below(most));
        self.agenda.plan(self.now + after, event);
    }

    fn passed(&self) -> Duration {
        self.now.since(Timestamp::ZERO)
    }

    fn reload(&mut self, node: usize) {
        let nodes = self.waiting.len() as u32;
        let rule = |settings: RuleSettings, rejects: bool| {
            let settings = RuleSettings {
                nodes_expected: nodes,
                away: OutagePolicy::Safe { percent: 30 },
                draw_timeout: ms(50),
                ..settings
            };
            if rejects {
                rejecting(settings)
            } else {
                quota(settings)
            }
        };
        let rules = [
            (
                USER,
                rule(settings(self.totals[USER]), self.random.one_in(3)),
            ),
            (
                TOTAL,
                rule(settings(self.totals[TOTAL]), self.random.one_in(5)),
            ),
        ];
        let keys_max = self.random.between(4, 8) as usize;
        set(&mut self.nodes[node], &rules, keys_max);
    }

    /// The store's time, known to within a few milliseconds.
    fn store_time(&mut self) -> StoreTime {
        let true_time = EPOCH + self.passed();
        let (before, after) = (self.random.below(3_000_000), self.random.below(3_000_000));
        StoreTime::between(
            self.now,
            true_time - Duration::from_nanos(before),
            true_time + Duration::from_nanos(after),
        )
    }

    fn arrive(&mut self, node: usize) -> Result<(), String> {
        let users = ["alice", "bob", "carol", "dave", "eve", "frank"];
        let mut quotas = Vec::new();
        if !self.random.one_in(8) {
            quotas.push(of_user(self.random.pick(&users)));
        }
        if !self.random.one_in(3) {
            quotas.push(key(TOTAL, "all"));
        }
        let cost = self.random.between(1, 3);
        let now = self.passed();
        let mut call = costing(cost as f64, call(now, &quotas)).is_settled(true);
        call.class = Class(self.random.below(2) as u32);
        call.caller = Caller(self.random.below(3));
        if self.random.one_in(4) {
            call.deadline = Some(at(now + Duration::from_nanos(self.random.below(SPAN / 2))));
        }
        let id = self.calls;
        self.calls += 1;
        self.named.insert(id, (quotas.clone(), cost));
        match self.nodes[node].submit(id, call) {
            Ok(_) => {
                let waits = Waits { quotas, cost };
                self.waiting[node].insert(id, waits);
                if self.random.one_in(10) {
                    self.after(SPAN / 4, Event::Leaves(node, id));
                }
            }
            Err(refusal) => self.check_refusal(&refusal)?,
        }
        Ok(())
    }

    fn check_refusal(&mut self, refusal: &Refusal) -> Result<(), String> {
        self.refused += 1;
        let until = refusal.retry_after;
        if until > ms(1_100) || until.is_zero() {
            return Err(format!(
                "come back after {until:?}, a window is a second: {refusal:?}"
            ));
        }
        Ok(())
    }

    fn run(&mut self, node: usize) -> Result<(), String> {
        while let Some(decision) = self.nodes[node].decide(&mut || 0) {
            match decision {
                Decision::Admitted { call, spent, .. } => {
                    self.waiting[node].remove(&call);
                    self.let_go(node, call, spent)?;
                }
                Decision::Refused { call, refusal, .. } => {
                    self.waiting[node].remove(&call);
                    self.check_refusal(&refusal)?;
                }
            }
        }
        if self.nodes[node].wake().is_some_and(|wake| wake <= self.now) {
            return Err("it sleeps until a moment that is past".into());
        }
        let scheduler = self.nodes[node].scheduler_mut();
        scheduler.audit();
        self.forgotten += scheduler.forgotten_quotas().len() as u64;
        let questions = scheduler.quota_questions();
        // This store configures nothing.
        let asks = |question: &QuotaQuestion| question.ask != QuotaAsk::Settings;
        for question in questions.into_iter().filter(asks) {
            self.after(4_000_000, Event::Asked(node, question));
        }
        self.check_no_covered_call_waits(node)
    }

    fn let_go(&mut self, node: usize, id: u64, spent: Vec<QuotaSpent>) -> Result<(), String> {
        self.went += 1;
        self.history.push((self.now.as_nanos(), id));
        let (quotas, cost) = &self.named[&id];
        let of: Vec<_> = spent.iter().map(|one| one.of.clone()).collect();
        if of != *quotas {
            return Err(format!("call {id} names {quotas:?} and drew from {of:?}"));
        }
        let time = EPOCH + self.passed();
        for one in &spent {
            let paid = one.spent.drawn + one.spent.safe;
            if one.cost != *cost || paid != *cost {
                return Err(format!("call {id} costs {cost} and paid {one:?}"));
            }
            // Around a window's end the present window is not known. Of one's own share there is as
            // much in both.
            let window = match one.window {
                Some(window) => window,
                None if one.spent.drawn == 0 => time.as_secs(),
                None => return Err(format!("call {id} drew from no window: {one:?}")),
            };
            if time.as_secs() != window {
                return Err(format!("call {id} spent of {window} at {time:?}"));
            }
            *self.spent.entry((one.of.clone(), window)).or_default() += cost;
        }
        self.drawn.insert(id, (time.as_secs(), spent));
        self.after(200_000_000, Event::Ends(node, id));
        Ok(())
    }

    /// No call waits that is alone and covered.
    fn check_no_covered_call_waits(&self, node: usize) -> Result<(), String> {
        // When a window begins it is known to within the uncertainty of the store's time, and who
        // waits for that moment is not asked again each time that it is known better.
        if self.now.as_nanos() % 1_000_000_000 < 10_000_000 {
            return Ok(());
        }
        let scheduler = self.nodes[node].scheduler();
        let mut waiting_for: BTreeMap<&QuotaKey, u32> = BTreeMap::new();
        for waits in self.waiting[node].values() {
            for of in &waits.quotas {
                *waiting_for.entry(of).or_default() += 1;
            }
        }
        for (id, waits) in &self.waiting[node] {
            let is_covered = waits.quotas.iter().all(|of| {
                let quota = scheduler
                    .quota_now(self.now, of)
                    .expect("a call waits for it");
                waiting_for[of] == 1 && quota.ledger.held + quota.ledger.safe >= waits.cost
            });
            if is_covered {
                return Err(format!("call {id} waits for nothing: {waits:?}"));
            }
        }
        Ok(())
    }

    fn end(&mut self, node: usize, id: u64) -> Result<(), String> {
        if !self.random.one_in(6) {
            let settled = self.random.one_in(2).then(|| self.random.below(7));
            if let Some(settled) = settled {
                self.settle(id, settled)?;
            }
            let measured = settled.and_then(|it| Tokens::new(it as f64).ok());
            let ended = self.nodes[node].finish(id, Outcome::Served, measured);
            return ended.then_some(()).ok_or("it runs".into());
        }
        // It never left, so what it drew counts no more.
        let (window, drawn) = self.drawn.remove(&id).ok_or("it drew")?;
        for one in drawn {
            let spent = self
                .spent
                .get_mut(&(one.of, window))
                .ok_or("it was spent")?;
            *spent -= one.cost;
        }
        if self.random.one_in(2) {
            let ended = self.nodes[node].give_back(id);
            return ended.then_some(()).ok_or("it runs".into());
        }
        self.nodes[node].requeue(id).ok_or("it runs")?;
        let (quotas, cost) = self.named[&id].clone();
        self.waiting[node].insert(id, Waits { quotas, cost });
        Ok(())
    }

    /// A call has cost this. What it did not use of its reservation counts no more; what it used beyond is
    /// no part of the promise.
    fn settle(&mut self, id: u64, settled: u64) -> Result<(), String> {
        let (window, drawn) = self.drawn.get(&id).ok_or("it drew")?;
        for one in drawn {
            let spent = self.spent.get_mut(&(one.of.clone(), *window));
            *spent.ok_or("it was spent")? -= one.cost.saturating_sub(settled);
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let now = self.now;
        let node = match event {
            Event::Arrives(node) => {
                self.arrive(node)?;
                node
            }
            Event::Asked(node, question) => {
                self.ask(node, question);
                return Ok(());
            }
            Event::Answered(node, whose, question, came) => {
                let time = self.store_time();
                let entropy = self.random.next();
                let scheduler = self.nodes[node].scheduler_mut();
                scheduler.learn_store_time(now, time);
                scheduler.answer_quota(now, whose, question, came, entropy);
                node
            }
            Event::Ends(node, id) => {
                self.end(node, id)?;
                node
            }
            Event::Leaves(node, id) => {
                if self.waiting[node].remove(&id).is_some() {
                    self.nodes[node].cancel(id);
                }
                node
            }
            Event::Reloads(node) => {
                self.reload(node);
                node
            }
        };
        self.run(node)
    }

    fn ask(&mut self, node: usize, question: QuotaQuestion) {
        let (loses, before) = (self.random.one_in(self.loss), self.random.one_in(2));
        let lost = match question.ask {
            QuotaAsk::Write(asked, _) => Some((asked, StoreReply::Unknown)),
            QuotaAsk::Read(asked) => Some((asked, StoreReply::Unavailable)),
            QuotaAsk::Time(_) | QuotaAsk::Watch(_) | QuotaAsk::Settings => None,
        };
        let shared = node % self.stores.len();
        let lost = lost.filter(|_| loses);
        let came = match lost {
            Some(lost) if before => Some(lost),
            _ => {
                let came = self.stores[shared].answer(&question.of, question.ask);
                lost.or(came)
            }
        };
        if let Some((asked, came)) = came {
            self.after(4_000_000, Event::Answered(node, question.at, asked, came));
        }
    }

    pub(super) fn live(mut self) -> Result<Self, String> {
        for node in 0..self.nodes.len() {
            let time = self.store_time();
            let scheduler = self.nodes[node].scheduler_mut();
            scheduler.learn_store_time(Timestamp::ZERO, time);
        }
        loop {
            let wakes = self.nodes.iter().map(Replay::wake);
            let moments = wakes.chain([self.agenda.next_moment()]);
            let Some(now) = moments.flatten().min() else {
                break;
            };
            if now > at(ms(60_000)) {
                let waiting = &self.waiting;
                return Err(format!("they wait a minute later: {waiting:?}"));
            }
            self.now = now;
            self.nodes.iter_mut().for_each(|node| node.advance(now));
            if let Some(event) = self.agenda.pop_due(now) {
                let told = format!("{event:?}");
                let happened = self.happen(event);
                happened.map_err(|error| format!("at {now:?}: {error}, after {told}"))?;
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].wake() == Some(now) {
                    self.run(node)?;
                }
            }
            if self.calls == CALLS && self.agenda.next_moment().is_none() {
                // What waits, waits for a moment: that of the others was enough.
                self.loss = 1_000_000;
            }
        }
        for ((of, window), spent) in &self.spent {
            let total = self.totals[&*of.quota];
            if *spent > total {
                return Err(format!("{of:?} spent {spent} of {total} in {window}"));
            }
        }
        Ok(self)
    }
}
