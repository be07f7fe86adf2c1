//! Clients, two servers and the messages between them, in whole seconds of true time.
//!
//! What the machines decide, production code decides. This file is the network, the clocks and the election, which has at
//! most one master at a time: that promise has a model of its own. A message that is late may arrive at any moment after,
//! in any order with others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;

use super::super::entitlement::{AfterExpiry, Allowance, Entitlement, SafeCapacity};
use super::super::leases::{Leases, RequestFailure, RequestId, ResourceOpening};
use super::super::route::{Route, RouteStep};
use crate::server::{
    CapacityServer, Catchall, RawAlgorithm, RawKind, RawTemplate, ServerBounds, ServerSettings,
    Templates, TreePlace, Unmatched,
};
use crate::sharing::ServerAddress;
use crate::wire::{self, Epoch, NamedParameter};

mod digest;

pub(crate) use digest::DigestGap;

const RESOURCE: &str = "calls";
const NAMES: [&str; 3] = ["a", "b", "c"];
const SERVERS: [&str; 2] = ["one:1", "two:1"];
pub(crate) const CAPACITY: f64 = 6.0;
/// The safe capacity of each client, which is reserved for three.
const SAFE: f64 = 1.0;
/// How long a pause is: beyond a lease and what counts after it.   s
const PAUSE: u64 = 5;
/// After this, a late message does not arrive any more: beyond a lease and what counts after it, too.   s
const LATE_MAX: u64 = 5;
/// How long there is no master at most.   s
const VACANT_MAX: u64 = 2;
/// True time begins here, so that clocks which are behind have begun too.   s
const START: u64 = 100;
const MESSAGES_MAX: usize = 3;

/// The size of what is searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) clients: usize,
    /// When time ends.   s
    pub(crate) ends: u64,
    /// How often something may happen: a master dies, a master loses its fence, a client dies.
    pub(crate) crashes: u8,
    pub(crate) resignations: u8,
    pub(crate) deaths: u8,
    /// Messages that are lost, late or doubled, and pauses of clients.
    pub(crate) faults: u8,
    /// Seconds that clients' clocks miss.
    pub(crate) slips: u8,
    /// Changes of demand.
    pub(crate) demands: u8,
    /// By how much the second server's time of day is ahead.   s
    pub(crate) ahead: u64,
    /// How long a lease is.   s
    pub(crate) lease: u64,
    /// How long a share counts after its end, and how far a client's clock may be behind.   s
    pub(crate) frees: u64,
    pub(crate) mistake: Mistake,
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} clients, 2 servers, {} s, leases of {} s, frees_after {} s, at most {} crashes and {} resignations of masters, \
             {} deaths of clients, {} messages lost, late or doubled or clients paused, {} s missed by clocks, {} changes of \
             demand, servers' clocks {} s apart",
            self.clients,
            self.ends,
            self.lease,
            self.frees,
            self.crashes,
            self.resignations,
            self.deaths,
            self.faults,
            self.slips,
            self.demands,
            self.ahead
        )
    }
}

/// A mistake of a machine or of its surroundings, for the checker to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    Without,
    /// A server frees a lowered share at once.
    FreesAtOnce,
    /// A new master grants at once.
    LearnsNothing,
    /// A new master learns for a lease, and not for what counts after it.
    LearnsOnlyLeases,
    /// A client counts a lease from its arrival.
    CountsFromArrival,
    /// A client's clock misses more than counts after a lease.
    ClockIsTooSlow,
    /// Two servers are the master at once.
    TwoMasters,
    /// A client takes an answer to an older request.
    TakesOldAnswers,
    /// Clients report to have the last lease that was granted to them, though it has not reached them.
    ReportsLostLeases,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A second passes.
    Tick,
    /// A second passes, which a client's clock misses.
    Slip(usize),
    Ask(usize),
    /// A message of this client arrives, at a server or at the client.
    Arrive(usize, usize),
    /// A message arrives, and another copy of it is late.
    Double(usize, usize),
    Lose(usize, usize),
    Delay(usize, usize),
    GiveUp(usize),
    /// A client's process is paused.
    Pause(usize),
    /// A client's process dies, and begins again.
    Die(usize),
    /// A client wants all or only its safe capacity.
    Demand(usize),
    /// The master's process dies.
    Crash,
    /// The master loses its fence.
    Resign,
    Elect(usize),
}

#[derive(Clone, Debug)]
struct Server {
    machine: Arc<CapacityServer>,
    is_up: bool,
}

#[derive(Clone, Debug)]
struct Client {
    machine: Arc<Leases>,
    route: Route,
    /// Deaths so far.
    life: u8,
    /// Messages sent so far.
    attempts: u32,
    wants_all: bool,
    /// By how much its clock is behind.   s
    behind: u64,
    /// Time at which it wakes.
    paused_until: u64,
    messages: Vec<Message>,
    /// When its lease ends at the server that granted it, and how many elections had been before.
    lease_ends: u64,
    lease_term: u8,
}

#[derive(Clone, Debug)]
struct Message {
    life: u8,
    request: RequestId,
    /// The one of the attempts of this request. Each is a call of its own, which the next one ends.
    attempt: u32,
    content: Content,
    /// Since when it is late.
    late_since: Option<u64>,
}

#[derive(Clone, Debug)]
enum Content {
    Request(usize, Arc<wire::GetCapacityRequest>),
    Redirect(Option<ServerAddress>, Arc<wire::GetCapacityRequest>),
    Answer(Arc<Granted>),
}

#[derive(Debug)]
struct Granted {
    response: wire::GetCapacityResponse,
    server_now_ms: i64,
    /// When the lease ends, by true time.
    ends: u64,
    term: u8,
}

/// A state, with what may still happen.
#[derive(Clone, Debug)]
pub(crate) struct World {
    now: u64,
    servers: [Server; 2],
    master: Option<usize>,
    /// Since when there is none.
    vacant_since: u64,
    /// Elections so far.
    term: u8,
    clients: Vec<Client>,
    crashes: u8,
    resignations: u8,
    deaths: u8,
    faults: u8,
    slips: u8,
    demands: u8,
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

fn epoch(server: usize, scope: &Scope) -> Epoch {
    let ahead = [0, scope.ahead][server];
    Epoch::new(Timestamp::ZERO, Duration::from_secs(1_700_000_000 + ahead))
}

fn templates(scope: &Scope) -> Templates {
    let mut parameters = vec![
        NamedParameter::new("reserved_clients", NAMES.len()),
        NamedParameter::new("safe_share", SAFE),
    ];
    parameters.push(if scope.mistake == Mistake::FreesAtOnce {
        NamedParameter::new("frees", "at_once")
    } else {
        NamedParameter::new("frees_after_ms", scope.frees * 1_000)
    });
    let learning = match scope.mistake {
        Mistake::LearnsNothing => Some(0),
        Mistake::LearnsOnlyLeases => Some(scope.lease as i64),
        // The default.
        _ => None,
    };
    let template = RawTemplate {
        identifier_glob: Some(RESOURCE.into()),
        capacity: Some(CAPACITY),
        algorithm: Some(RawAlgorithm {
            kind: Some(RawKind::Name("FAIR_SHARE".into())),
            lease_length: Some(scope.lease as i64),
            refresh_interval: Some(1),
            learning_mode_duration: learning,
            parameters,
        }),
        ..RawTemplate::default()
    };
    Templates::new(vec![template], Catchall::Optional).expect("a good template")
}

fn server(number: usize, now: u64, scope: &Scope) -> CapacityServer {
    let settings = ServerSettings {
        id: "servers".into(),
        address: SERVERS[number].into(),
        place: TreePlace::Root,
        epoch: epoch(number, scope),
        minimum_interval: Duration::from_secs(1),
        unmatched: Unmatched::Refuse,
        bounds: ServerBounds::default(),
    };
    CapacityServer::new(settings, templates(scope), at(now))
}

fn address(server: usize) -> ServerAddress {
    SERVERS[server].parse().expect("an address")
}

impl Client {
    fn new(number: usize, now: u64, wants_all: bool, behind: u64) -> Self {
        let mut machine = Leases::new(NAMES[number].into(), Duration::from_secs(1));
        let opening = ResourceOpening {
            priority: 0,
            wants: demand(wants_all),
            after_expiry: AfterExpiry::Safe,
            safe: Some(SafeCapacity::new(SAFE).expect("a safe capacity")),
        };
        machine.open(at(now - behind), &RESOURCE.into(), opening);
        Self {
            machine: Arc::new(machine),
            route: Route::new(vec![address(0), address(1)]),
            life: 0,
            attempts: 0,
            wants_all,
            behind,
            paused_until: 0,
            messages: Vec::new(),
            lease_ends: 0,
            lease_term: 0,
        }
    }

    fn entitlement(&self) -> Entitlement {
        self.machine.entitlement(RESOURCE)
    }

    fn usable(&self, now: u64) -> f64 {
        let now = at(now - self.behind);
        match self.entitlement().allowance(now, demand(self.wants_all)) {
            Allowance::UpTo(most) => most,
            Allowance::Unlimited => f64::INFINITY,
        }
    }

    fn has_lease(&self, now: u64) -> bool {
        self.entitlement().live(at(now - self.behind)).is_some()
    }

    fn is_awake(&self, now: u64) -> bool {
        self.paused_until <= now
    }

    fn is_due(&self, now: u64) -> bool {
        let due = self.machine.next_due();
        due.is_some_and(|due| due <= at(now - self.behind))
    }

    /// A request has taken as long as it may.
    fn is_unanswered(&self, now: u64) -> bool {
        let under_way = self.machine.under_way();
        under_way.is_some_and(|(_, sent)| sent < at(now - self.behind))
    }

    /// Whether the client waits for the answer to this request.
    fn waits_for(&self, request: RequestId) -> bool {
        let under_way = self.machine.under_way();
        under_way.is_some_and(|(current, _)| current == request)
    }

    /// Whether a message is the answer that the client waits for, or leads to it.
    fn awaits(&self, message: &Message) -> bool {
        message.life == self.life
            && message.attempt == self.attempts
            && self.waits_for(message.request)
    }
}

fn demand(wants_all: bool) -> f64 {
    if wants_all { CAPACITY } else { SAFE }
}

impl World {
    pub(crate) fn begin(scope: &Scope) -> Self {
        // It has learned already.
        let mut first = server(0, 0, scope);
        first.elected(at(0));
        let mut second = server(1, START, scope);
        second.deposed(Some(SERVERS[0].into()));
        let servers = [first, second].map(|machine| Server {
            machine: Arc::new(machine),
            is_up: true,
        });
        let clients = (0..scope.clients).map(|number| Client::new(number, START, true, 0));
        Self {
            now: START,
            servers,
            master: Some(0),
            vacant_since: 0,
            term: 0,
            clients: clients.collect(),
            crashes: scope.crashes,
            resignations: scope.resignations,
            deaths: scope.deaths,
            faults: scope.faults,
            slips: scope.slips,
            demands: scope.demands,
        }
    }

    /// The steps that can happen next.
    pub(crate) fn steps(&self, scope: &Scope, steps: &mut Vec<Step>) {
        if self.has_ended(scope) {
            return;
        }
        let mut is_urgent = false;
        for (number, client) in self.clients.iter().enumerate() {
            is_urgent |= self.steps_of(number, client, steps);
        }
        if let Some(master) = self.master {
            debug_assert!(self.servers[master].is_up, "a dead server is no master");
            if self.crashes > 0 {
                steps.push(Step::Crash);
            }
            if self.resignations > 0 {
                steps.push(Step::Resign);
            }
        } else {
            let up = (0..2).filter(|&server| self.servers[server].is_up);
            steps.extend(up.map(Step::Elect));
            is_urgent |= self.vacant_since + VACANT_MAX <= self.now;
        }
        if is_urgent {
            return;
        }
        steps.push(Step::Tick);
        if self.slips > 0 {
            let is_slower = scope.mistake == Mistake::ClockIsTooSlow;
            let may_slip = |client: &Client| client.behind < scope.frees || is_slower;
            let clients = self.clients.iter().zip(0..);
            let slow = clients.filter(|(client, _)| may_slip(client));
            steps.extend(slow.map(|(_, number)| Step::Slip(number)));
        }
    }

    /// The steps of one client and its messages. Whether one of them is urgent.
    fn steps_of(&self, number: usize, client: &Client, steps: &mut Vec<Step>) -> bool {
        let now = self.now;
        let mut is_urgent = false;
        for (place, message) in client.messages.iter().enumerate() {
            let to_client = !matches!(message.content, Content::Request(..));
            if to_client && !client.is_awake(now) {
                continue;
            }
            steps.push(Step::Arrive(number, place));
            let is_late = message.late_since.is_some();
            is_urgent |= !is_late;
            if self.faults > 0 && !is_late {
                steps.push(Step::Lose(number, place));
                steps.push(Step::Delay(number, place));
                if client.messages.len() < MESSAGES_MAX {
                    steps.push(Step::Double(number, place));
                }
            }
        }
        if self.deaths > 0 {
            steps.push(Step::Die(number));
        }
        if !client.is_awake(now) {
            return is_urgent;
        }
        if client.is_due(now) && client.messages.len() < MESSAGES_MAX {
            steps.push(Step::Ask(number));
            is_urgent = true;
        }
        if client.is_unanswered(now) {
            steps.push(Step::GiveUp(number));
            is_urgent = true;
        }
        if self.demands > 0 {
            steps.push(Step::Demand(number));
        }
        if self.faults > 0 {
            steps.push(Step::Pause(number));
        }
        is_urgent
    }

    pub(crate) fn take(&mut self, step: Step, scope: &Scope) {
        match step {
            Step::Tick => self.pass(None),
            Step::Slip(client) => {
                self.slips -= 1;
                self.pass(Some(client));
            }
            Step::Ask(number) => self.ask(number),
            Step::Arrive(number, place) => {
                let message = self.clients[number].messages.remove(place);
                self.arrive(number, message, scope);
            }
            Step::Double(number, place) => {
                self.faults -= 1;
                let now = self.now;
                let message = self.clients[number].messages[place].clone();
                self.clients[number].messages[place].late_since = Some(now);
                self.arrive(number, message, scope);
            }
            Step::Lose(number, place) => {
                self.faults -= 1;
                self.clients[number].messages.remove(place);
            }
            Step::Delay(number, place) => {
                self.faults -= 1;
                self.clients[number].messages[place].late_since = Some(self.now);
            }
            Step::GiveUp(number) => {
                let now = self.local(number);
                let client = &mut self.clients[number];
                client.route.failed();
                let (request, _) = client.machine.under_way().expect("it waits for an answer");
                let machine = Arc::make_mut(&mut client.machine);
                machine.failed(now, request, RequestFailure::Unknown, 0);
            }
            Step::Pause(number) => {
                self.faults -= 1;
                self.clients[number].paused_until = self.now + PAUSE;
            }
            Step::Die(number) => {
                self.deaths -= 1;
                let client = &mut self.clients[number];
                let mut next = Client::new(number, self.now, client.wants_all, client.behind);
                next.life = client.life + 1;
                // Its requests may still arrive; answers to them do not.
                next.messages = std::mem::take(&mut client.messages);
                let is_request = |it: &Message| matches!(it.content, Content::Request(..));
                next.messages.retain(is_request);
                *client = next;
            }
            Step::Demand(number) => {
                self.demands -= 1;
                let now = self.local(number);
                let client = &mut self.clients[number];
                client.wants_all = !client.wants_all;
                let wants = demand(client.wants_all);
                Arc::make_mut(&mut client.machine).set_wants(now, RESOURCE, wants);
            }
            Step::Crash => {
                self.crashes -= 1;
                let master = self.master.take().expect("there is a master");
                self.vacant_since = self.now;
                let machine = Arc::new(server(master, self.now, scope));
                let is_up = false;
                self.servers[master] = Server { machine, is_up };
            }
            Step::Resign => {
                self.resignations -= 1;
                let master = self.master.take().expect("there is a master");
                self.vacant_since = self.now;
                if scope.mistake != Mistake::TwoMasters {
                    let machine = &mut self.servers[master].machine;
                    Arc::make_mut(machine).deposed(None);
                }
            }
            Step::Elect(elected) => self.elect(elected, scope),
        }
    }

    fn local(&self, client: usize) -> Timestamp {
        at(self.now - self.clients[client].behind)
    }

    /// A second passes, but not on one client's clock.
    fn pass(&mut self, slow: Option<usize>) {
        self.now += 1;
        let now = self.now;
        if let Some(slow) = slow {
            self.clients[slow].behind += 1;
        }
        for client in &mut self.clients {
            let stays = |it: &Message| it.late_since.is_none_or(|late| now <= late + LATE_MAX);
            client.messages.retain(stays);
        }
        for server in &mut self.servers {
            server.is_up = true;
            if server.machine.is_master() {
                Arc::make_mut(&mut server.machine).clean(at(now));
            }
        }
    }

    fn elect(&mut self, elected: usize, scope: &Scope) {
        self.master = Some(elected);
        self.vacant_since = 0;
        self.term += 1;
        Arc::make_mut(&mut self.servers[elected].machine).elected(at(self.now));
        let other = 1 - elected;
        if scope.mistake != Mistake::TwoMasters {
            let master = Some(SERVERS[elected].to_owned());
            Arc::make_mut(&mut self.servers[other].machine).deposed(master);
        }
    }

    fn ask(&mut self, number: usize) {
        let now = self.local(number);
        let client = &mut self.clients[number];
        let machine = Arc::make_mut(&mut client.machine);
        let (request, message) = machine.ask(now).expect("it is due");
        self.send(number, request, Arc::new(message));
    }

    fn send(&mut self, number: usize, request: RequestId, body: Arc<wire::GetCapacityRequest>) {
        let client = &mut self.clients[number];
        let to = usize::from(*client.route.target() == address(1));
        client.attempts += 1;
        client.messages.push(Message {
            life: client.life,
            request,
            attempt: client.attempts,
            content: Content::Request(to, body),
            late_since: None,
        });
    }

    fn arrive(&mut self, number: usize, message: Message, scope: &Scope) {
        let client = &self.clients[number];
        let is_awaited = client.awaits(&message);
        let request = message.request;
        match &message.content {
            Content::Request(to, _) => self.reach(number, *to, message, scope),
            Content::Redirect(to, body) => {
                if is_awaited {
                    let next = self.clients[number].route.redirected(to.clone());
                    self.go_on(number, request, next, Arc::clone(body));
                }
            }
            Content::Answer(granted) => {
                if is_awaited || !client.waits_for(request) {
                    self.receive(number, request, granted, scope);
                }
            }
        }
    }

    /// A request arrives at a server.
    fn reach(&mut self, number: usize, to: usize, message: Message, scope: &Scope) {
        let client = &self.clients[number];
        let Content::Request(_, body) = &message.content else {
            unreachable!("only requests arrive at servers");
        };
        let mut body = Arc::clone(body);
        if !self.servers[to].is_up {
            if client.is_awake(self.now) && client.awaits(&message) {
                let next = self.clients[number].route.not_reached();
                self.go_on(number, message.request, next, body);
            }
            return;
        }
        let is_own = client.life == message.life;
        let now = at(self.now);
        let machine = Arc::make_mut(&mut self.servers[to].machine);
        if scope.mistake == Mistake::ReportsLostLeases {
            report_last_lease(
                Arc::make_mut(&mut body),
                machine,
                self.now,
                epoch(to, scope),
            );
        }
        let response = machine.get_capacity(now, &body);
        let response = response.expect("the request is a good one");
        let content = if let Some(master) = &response.mastership {
            let named = master.master_address.as_ref();
            let named = named.map(|address| address.parse().expect("an address"));
            Content::Redirect(named, body)
        } else {
            let server_now_ms = epoch(to, scope).millis(now);
            let lease = response.response.first().map(|answer| answer.gets);
            let left = lease.map_or(0, |lease| lease.expiry_time * 1_000 - server_now_ms);
            Content::Answer(Arc::new(Granted {
                response,
                server_now_ms,
                ends: self.now + left as u64 / 1_000,
                term: self.term,
            }))
        };
        if is_own {
            self.clients[number].messages.push(Message {
                content,
                late_since: None,
                ..message
            });
        }
    }

    /// A client goes on after a request that was not answered.
    fn go_on(
        &mut self,
        number: usize,
        request: RequestId,
        next: RouteStep,
        body: Arc<wire::GetCapacityRequest>,
    ) {
        let now = self.local(number);
        let machine = Arc::make_mut(&mut self.clients[number].machine);
        match next {
            RouteStep::AskAgain => {
                machine.sent_again(now, request);
                self.send(number, request, body);
            }
            RouteStep::GiveUp => machine.failed(now, request, RequestFailure::NotSeen, 0),
        }
    }

    /// An answer arrives at a client.
    fn receive(&mut self, number: usize, request: RequestId, granted: &Granted, scope: &Scope) {
        let now = self.local(number);
        let client = &mut self.clients[number];
        let mut request = request;
        if scope.mistake == Mistake::TakesOldAnswers {
            request = client.machine.under_way().map_or(request, |it| it.0);
        }
        if client.waits_for(request) {
            client.route.answered();
        }
        let machine = Arc::make_mut(&mut client.machine);
        if scope.mistake == Mistake::CountsFromArrival {
            machine.sent_again(now, request);
        }
        let before = machine.entitlement(RESOURCE).lease;
        machine.answered(now, request, &granted.response, granted.server_now_ms);
        if machine.entitlement(RESOURCE).lease != before {
            client.lease_ends = granted.ends;
            client.lease_term = granted.term;
        }
    }
}

/// Makes a request report the last lease that the server has granted, as if its answer had arrived.
fn report_last_lease(
    request: &mut wire::GetCapacityRequest,
    server: &mut CapacityServer,
    now: u64,
    epoch: Epoch,
) {
    let status = server.status(at(now));
    let leases = status.resources.iter().flat_map(|it| it.leases.iter());
    for lease in leases.filter(|lease| lease.holder == request.client_id) {
        request.resource[0].has = Some(wire::Lease {
            expiry_time: epoch.seconds(lease.expires),
            refresh_interval: 1,
            capacity: lease.capacity,
        });
    }
}

/// Answers for the properties.
impl World {
    pub(crate) fn has_ended(&self, scope: &Scope) -> bool {
        self.now >= START + scope.ends
    }

    /// The sum that all clients may use now.
    pub(crate) fn usable(&self) -> f64 {
        // Clients that are not there may begin at any time.
        let absent = NAMES.len() - self.clients.len();
        let clients = self.clients.iter();
        clients.map(|client| client.usable(self.now)).sum::<f64>() + SAFE * absent as f64
    }

    /// Clients that may use more than their safe capacity.
    pub(crate) fn sharers(&self) -> usize {
        let clients = self.clients.iter();
        clients
            .filter(|client| client.usable(self.now) > SAFE)
            .count()
    }

    pub(crate) fn every_lease_ends(&self, scope: &Scope) -> bool {
        let mut clients = self.clients.iter();
        clients
            .all(|client| !client.has_lease(self.now) || self.now < client.lease_ends + scope.frees)
    }

    pub(crate) fn is_safe_after_loss(&self, scope: &Scope) -> bool {
        let mut clients = self.clients.iter();
        clients.all(|client| {
            self.now < client.lease_ends + scope.frees || client.usable(self.now) <= SAFE
        })
    }

    pub(crate) fn has_lease_of_another_master(&self) -> bool {
        let mut clients = self.clients.iter();
        let is_older = |client: &Client| client.lease_term < self.term;
        self.master.is_some()
            && clients.any(|client| {
                is_older(client) && client.has_lease(self.now) && client.usable(self.now) > SAFE
            })
    }

    pub(crate) fn has_learned(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|client| {
            client.lease_term > 0 && client.has_lease(self.now) && client.usable(self.now) > SAFE
        })
    }

    pub(crate) fn grows_after_learning(&self) -> bool {
        self.has_learned() && self.usable() == CAPACITY && self.sharers() >= 2
    }

    pub(crate) fn has_fallen(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|client| client.lease_ends > 0 && !client.has_lease(self.now))
    }
}
