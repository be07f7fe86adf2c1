//! The model: jobs, clients, mishaps, and a clock of whole seconds.
//!
//! Each second begins with its events (changes of demand, mishaps, elections, the sample). Then
//! all clients and servers that are due act, in random order, until none is due. A message takes
//! no time and is never lost; the tests of the server check what the bound needs otherwise.

use std::time::Duration;

use tidegate_leases::server::{
    CapacityServer, ServerBounds, ServerSettings, Templates, TreePlace, Unmatched,
};
use tidegate_leases::wire::{Epoch, GetCapacityRequest, Lease, ResourceRequest};
use tidegate_limits::Timestamp;

use super::scenario::{CLIENTS_EACH, DoormanEvent, DoormanScenario};
use crate::random::Random;
use tidegate_lease_server::config;

/// The capacity.
pub(super) const CAPACITY: f64 = 500.0;
const SAFE: f64 = 10.0;
const RESOURCE: &str = "resource";
/// Doorman's simulation answers no client again within this time.
const MINIMUM_INTERVAL: Duration = Duration::from_secs(2);
/// A client that finds no master tries again after this.   seconds
const RETRY: u64 = 5;
/// The time between two changes of demand, and the most that it changes.   seconds, part of it
const WALK_EVERY: u64 = 10;
const WALK: f64 = 0.1;
/// The time between two samples, and the end of the learning time.   seconds
pub(super) const SAMPLE_EVERY: u64 = 5;
const LEARNING_UNTIL: u64 = 60;
const TASKS: u64 = 3;
/// The start of the simulation, since 1970.
const BEGIN: Duration = Duration::from_secs(1_000_000_000);

/// When a lowered lease is free for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rule {
    /// When its holder reports that it has the lower one.
    Confirmed,
    /// As soon as it is lowered, as in the original.
    AtOnce,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasesOutcome {
    /// The seed, to repeat the run.
    pub seed: u64,
    /// Every 5 s: the time, the demand of all clients, and what they have.
    pub samples: Vec<Sample>,
    /// Mishaps: elections, spikes, losses.
    pub mishaps: [u32; 3],
    /// How often the lease of a server fell below its grants.
    pub shortfalls: u64,
}

/// A sample of all clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Seconds since the start.
    pub at: u64,
    /// Their demand.
    pub wants: f64,
    /// The capacity that the clients have.
    pub has: f64,
}

impl LeasesOutcome {
    /// Samples after the first learning.
    pub fn later(&self) -> impl Iterator<Item = &Sample> + '_ {
        self.samples
            .iter()
            .filter(|sample| sample.at > LEARNING_UNTIL)
    }
}

struct Job {
    server: CapacityServer,
    above: Option<usize>,
    /// The task that is master.
    master: Option<u64>,
    /// The next request. A job that found no master above tries again then.
    retry_at: u64,
}

struct DoormanClient {
    id: String,
    job: usize,
    wants: f64,
    lease: Option<Lease>,
    next_at: u64,
}

struct LeasesModel {
    random: Random,
    jobs: Vec<Job>,
    clients: Vec<DoormanClient>,
    /// In the order of insertion; events of one second happen in this order.
    events: Vec<(u64, DoormanEvent)>,
    epoch: Epoch,
    /// Nanoseconds into the second: no two events happen at the same moment.
    ticks: u64,
    mishaps: [u32; 3],
}

/// Runs a scenario.
#[must_use]
pub fn run(
    scenario: &DoormanScenario,
    seed: u64,
    rule: Rule,
    reserved_clients: u64,
) -> LeasesOutcome {
    let mut world = LeasesModel::new(scenario, seed, rule, reserved_clients);
    let mut samples = Vec::new();
    for second in 0..=scenario.seconds {
        world.ticks = 0;
        world.happen(second);
        if second > 0 && second.is_multiple_of(SAMPLE_EVERY) {
            samples.push(world.sample(second));
        }
        world.everybody(second);
    }
    let shortfalls = world.jobs.iter().map(|job| job.server.counts().shortfalls);
    LeasesOutcome {
        seed,
        samples,
        mishaps: world.mishaps,
        shortfalls: shortfalls.sum(),
    }
}

fn templates(rule: Rule, reserved_clients: u64) -> Templates {
    let frees = match rule {
        Rule::Confirmed => "confirmed",
        Rule::AtOnce => "at_once",
    };
    let text = format!(
        r#"
resources:
- identifier_glob: "*"
  capacity: {CAPACITY}
  safe_capacity: {SAFE}
  algorithm:
    kind: PROPORTIONAL_SHARE
    lease_length: 60
    refresh_interval: 8
    parameters:
    - {{ name: decay_factor, value: "0.5" }}
    - {{ name: frees, value: {frees} }}
    - {{ name: reserved_clients, value: "{reserved_clients}" }}
"#
    );
    config::templates(&text, "simulation").expect("the simulation's own template")
}

impl LeasesModel {
    fn new(scenario: &DoormanScenario, seed: u64, rule: Rule, reserved_clients: u64) -> Self {
        let epoch = Epoch::new(Timestamp::ZERO, BEGIN);
        let mut random = Random::new(seed, 0);
        let jobs: Vec<Job> = scenario
            .above
            .iter()
            .enumerate()
            .map(|(at, above)| {
                let settings = ServerSettings {
                    id: format!("job-{at}"),
                    address: format!("job-{at}"),
                    place: above.map_or(TreePlace::Root, |_| TreePlace::Below),
                    epoch,
                    minimum_interval: MINIMUM_INTERVAL,
                    unmatched: Unmatched::Grant,
                    bounds: ServerBounds::default(),
                };
                let templates = match above {
                    None => templates(rule, reserved_clients),
                    Some(_) => Templates::default(),
                };
                let mut server = CapacityServer::new(settings, templates, Timestamp::ZERO);
                server.elected(Timestamp::ZERO);
                Job {
                    server,
                    above: *above,
                    master: Some(random.below(TASKS)),
                    retry_at: 0,
                }
            })
            .collect();
        let leaves: Vec<usize> = (0..jobs.len())
            .filter(|job| !scenario.above.contains(&Some(*job)))
            .collect();
        let clients = leaves
            .iter()
            .flat_map(|job| (0..CLIENTS_EACH).map(move |at| (*job, at)))
            .map(|(job, at)| DoormanClient {
                id: format!("client-{job}-{at}"),
                job,
                wants: scenario.wants,
                lease: None,
                next_at: 0,
            })
            .collect();
        let mishaps = (1..=scenario.mishaps).map(|minute| (minute * 60, DoormanEvent::Mishap));
        Self {
            random,
            jobs,
            clients,
            events: scenario.events.iter().copied().chain(mishaps).collect(),
            epoch,
            ticks: 0,
            mishaps: [0; 3],
        }
    }

    /// A new moment within this second.
    fn now(&mut self, second: u64) -> Timestamp {
        self.ticks += 1;
        Timestamp::from_nanos(second * 1_000_000_000 + self.ticks)
    }

    fn happen(&mut self, second: u64) {
        if second.is_multiple_of(WALK_EVERY) {
            for client in &mut self.clients {
                let step = 2.0 * self.random.unit() - 1.0;
                client.wants = (client.wants * (1.0 + WALK * step)).max(0.0);
            }
        }
        let is_due = |(at, _): &(u64, DoormanEvent)| *at == second;
        while let Some(next) = self.events.iter().position(is_due) {
            let (_, event) = self.events.remove(next);
            self.event(second, event);
        }
    }

    fn event(&mut self, second: u64, event: DoormanEvent) {
        match event {
            DoormanEvent::Lose(job) => self.lose(job),
            DoormanEvent::Elect(job) => self.elect(second, job),
            DoormanEvent::Spike => {
                let clients = self.clients.len() as u64;
                let first = self.random.below(clients) as usize;
                let mut second = first;
                while second == first {
                    second = self.random.below(clients) as usize;
                }
                self.clients[first].wants = 1_000.0;
                self.clients[second].wants = 1_000.0;
            }
            DoormanEvent::Mishap => {
                let outcome = self.random.below(15);
                let job = self.random.below(self.jobs.len() as u64) as usize;
                match outcome {
                    0 => {
                        self.mishaps[0] += 1;
                        self.elect(second, job);
                    }
                    1..=10 => {
                        self.mishaps[1] += 1;
                        let client = self.random.below(self.clients.len() as u64) as usize;
                        self.clients[client].wants += 100.0;
                    }
                    _ => {
                        self.mishaps[2] += 1;
                        self.lose(job);
                        let back = second + self.random.below(61);
                        self.events.push((back, DoormanEvent::Elect(job)));
                    }
                }
            }
        }
    }

    fn lose(&mut self, job: usize) {
        self.jobs[job].master = None;
        self.jobs[job].server.deposed(None);
    }

    /// Any task may win, also the current master: then nothing happens.
    fn elect(&mut self, second: u64, job: usize) {
        let winner = self.random.below(TASKS);
        if self.jobs[job].master == Some(winner) {
            return;
        }
        let now = self.now(second);
        self.jobs[job].master = Some(winner);
        self.jobs[job].server.elected(now);
        self.jobs[job].retry_at = 0;
    }

    fn sample(&mut self, second: u64) -> Sample {
        let now = self.now(second);
        let seconds = self.epoch.seconds(now);
        let live = |client: &DoormanClient| {
            let lease = client.lease.filter(|lease| seconds < lease.expiry_time);
            lease.map_or(0.0, |lease| lease.capacity)
        };
        Sample {
            at: second,
            wants: self.clients.iter().map(|client| client.wants).sum(),
            has: self.clients.iter().map(live).sum(),
        }
    }

    /// Lets all that are due act, in random order, until none is due.
    fn everybody(&mut self, second: u64) {
        loop {
            let mut due: Vec<usize> = (0..self.jobs.len())
                .filter(|job| self.is_due(second, *job))
                .chain(
                    (0..self.clients.len())
                        .filter(|client| self.clients[*client].next_at <= second)
                        .map(|client| self.jobs.len() + client),
                )
                .collect();
            if due.is_empty() {
                return;
            }
            for last in (1..due.len()).rev() {
                let other = self.random.below(last as u64 + 1) as usize;
                due.swap(last, other);
            }
            for who in due {
                match who.checked_sub(self.jobs.len()) {
                    Some(client) => self.client_asks(second, client),
                    None => self.server_asks(second, who),
                }
            }
        }
    }

    fn is_due(&self, second: u64, job: usize) -> bool {
        let end = Timestamp::from_nanos((second + 1) * 1_000_000_000 - 1);
        let job = &self.jobs[job];
        job.retry_at <= second && job.server.next_due().is_some_and(|due| due <= end)
    }

    fn server_asks(&mut self, second: u64, job: usize) {
        let Some(above) = self.jobs[job].above else {
            return;
        };
        if self.jobs[above].master.is_none() {
            self.jobs[job].retry_at = second + RETRY;
            return;
        }
        // A part that is due in this second may be due only later in it.
        let due = self.jobs[job].server.next_due().unwrap_or(Timestamp::ZERO);
        let into = due.since(Timestamp::from_nanos(second * 1_000_000_000));
        self.ticks = self.ticks.max(u64::from(into.subsec_nanos()));
        let sent_at = self.now(second);
        let Some(request) = self.jobs[job].server.ask_parent(sent_at) else {
            return;
        };
        let now = self.now(second);
        let above = &mut self.jobs[above].server;
        let response = above.get_server_capacity(now, &request);
        let response = response.expect("a server's own request is right");
        let now = self.now(second);
        let server = &mut self.jobs[job].server;
        server.parent_answered(now, sent_at, None, &response);
    }

    fn client_asks(&mut self, second: u64, client: usize) {
        let now = self.now(second);
        let seconds = self.epoch.seconds(now);
        let client = &mut self.clients[client];
        let job = &mut self.jobs[client.job];
        if job.master.is_none() {
            client.next_at = second + RETRY;
            return;
        }
        client.lease = client.lease.filter(|lease| seconds < lease.expiry_time);
        let request = GetCapacityRequest {
            client_id: client.id.clone(),
            resource: vec![ResourceRequest {
                resource_id: RESOURCE.to_owned(),
                priority: 1,
                has: client.lease,
                wants: client.wants,
            }],
        };
        let response = job
            .server
            .get_capacity(now, &request)
            .expect("a client's own request is right");
        if let Some(answer) = response.response.first() {
            client.lease = Some(answer.gets);
        }
        let refresh = client.lease.map_or(0, |lease| lease.refresh_interval);
        let refresh = u64::try_from(refresh).unwrap_or(0);
        client.next_at = second + if refresh == 0 { RETRY } else { refresh };
    }
}
