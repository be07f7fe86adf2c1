//! The capacity server as a state machine: requests and the time in, answers out.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;

use crate::book::{Capacity, Split};

use super::checks::{CheckedRequest, check_client, check_server};
use super::rejected::Rejected;
use super::reply::ServerReply;
use super::resource::{CapacitySource, LeaseAnswer, LeaseRequest, Rules, ServerResource};
use super::roster::{MemberKind, RESOURCES_MADE_MAX, Roster, RosterMember};
use super::settings::{ServerSettings, TreePlace, Unmatched};
use super::status::{
    LeaseNow, ResourceNow, Resources, ServerCounts, ServerRole, ServerStatus, View,
};
use super::templates::{Algorithm, Reserve, Templates};
use crate::wire;

#[cfg(test)]
mod digest;

/// The time between two searches for ended leases.
const CLEAN_EVERY: Duration = Duration::from_secs(1);
/// With more resources than this, a view removes ended leases only once a second.
const CLEANED_AT_EACH_VIEW_MAX: usize = 1_000;
/// The most ids without a matching template that are kept for the status.
const UNMATCHED_SHOWN: usize = 64;

/// A capacity server without clock or socket. All methods that take `now` want it not to go back.
///
/// A server that is not the master answers every request with the master, if it knows it. It
/// starts so.
#[derive(Clone, Debug)]
pub struct CapacityServer {
    settings: ServerSettings,
    templates: Templates,
    pub(super) standing: ServerRole,
    resources: HashMap<Arc<str>, ServerResource>,
    /// Their ids in order, so that a page is found without a scan.
    ids: BTreeSet<Arc<str>>,
    roster: Roster,
    /// Over all resources.
    leases: usize,
    unmatched: VecDeque<(String, u64)>,
    counts: ServerCounts,
    cleaned: Timestamp,
    /// The current request to the server above, by its time.
    asking: Option<Timestamp>,
}

impl CapacityServer {
    /// A server that is not the master and knows nothing.
    #[must_use]
    pub fn new(settings: ServerSettings, templates: Templates, now: Timestamp) -> Self {
        Self {
            settings,
            templates,
            standing: ServerRole::Other { master: None },
            resources: HashMap::new(),
            ids: BTreeSet::new(),
            roster: Roster::default(),
            leases: 0,
            unmatched: VecDeque::new(),
            counts: ServerCounts::default(),
            cleaned: now,
            asking: None,
        }
    }

    /// Makes it the master, with an empty state, which it learns from requests.
    pub fn elected(&mut self, now: Timestamp) {
        self.forget();
        self.standing = ServerRole::Master { since: now };
        self.cleaned = now;
    }

    /// Another server is the master, or the master is unknown. All state is dropped.
    pub fn deposed(&mut self, master: Option<String>) {
        self.forget();
        self.standing = ServerRole::Other { master };
    }

    fn forget(&mut self) {
        self.resources.clear();
        self.ids.clear();
        self.roster = Roster::default();
        self.leases = 0;
        self.asking = None;
    }

    /// Whether it is the master.
    #[must_use]
    pub fn is_master(&self) -> bool {
        matches!(self.standing, ServerRole::Master { .. })
    }

    /// Answers a client.
    ///
    /// # Errors
    ///
    /// The mistake in the request, or the bound that it reaches; then nothing of it was done.
    pub fn get_capacity(
        &mut self,
        now: Timestamp,
        request: &wire::GetCapacityRequest,
    ) -> Result<wire::GetCapacityResponse, Rejected> {
        if let Some(master) = self.not_master() {
            return Ok(ServerReply::redirect(master));
        }
        let wishes = check_client(request, &self.settings.bounds);
        let decided = self.serve(now, MemberKind::Client, &request.client_id, wishes)?;
        let response = decided
            .into_iter()
            .map(|(id, answer)| wire::ResourceResponse {
                resource_id: id.to_owned(),
                gets: answer.gets,
                safe_capacity: answer.safe_capacity,
            });
        Ok(wire::GetCapacityResponse {
            response: response.collect(),
            mastership: None,
        })
    }

    /// Answers a server below.
    ///
    /// # Errors
    ///
    /// The mistake in the request, or the bound that it reaches; then nothing of it was done.
    pub fn get_server_capacity(
        &mut self,
        now: Timestamp,
        request: &wire::GetServerCapacityRequest,
    ) -> Result<wire::GetServerCapacityResponse, Rejected> {
        if let Some(master) = self.not_master() {
            return Ok(ServerReply::redirect(master));
        }
        let wishes = check_server(request, &self.settings.bounds);
        let decided = self.serve(now, MemberKind::Server, &request.server_id, wishes)?;
        let response = decided.into_iter().map(|(id, answer)| {
            let algorithm = match self.resources.get(id) {
                Some(resource) => resource.algorithm_answered(&answer),
                None => {
                    let algorithm = Algorithm {
                        split: Split::None,
                        ..Algorithm::default()
                    };
                    Some(algorithm.to_wire(Capacity::ZERO, Some(0)))
                }
            };
            wire::ServerCapacityResourceResponse {
                resource_id: id.to_owned(),
                gets: answer.gets,
                algorithm,
                safe_capacity: answer.safe_capacity,
            }
        });
        Ok(wire::GetServerCapacityResponse {
            response: response.collect(),
            mastership: None,
        })
    }

    /// Releases the leases of a client. Other ids, and empty ids, are ignored.
    pub fn release_capacity(
        &mut self,
        now: Timestamp,
        request: &wire::ReleaseCapacityRequest,
    ) -> wire::ReleaseCapacityResponse {
        if let Some(master) = self.not_master() {
            return ServerReply::redirect(master);
        }
        if let Some(member) = self.roster.find(MemberKind::Client, &request.client_id) {
            for id in &request.resource_id {
                if let Some(resource) = self.resources.get_mut(id.as_str())
                    && resource.release(now, member)
                {
                    self.leases -= 1;
                    if let Some(maker) = resource.disowned() {
                        self.roster.unmade(maker);
                    }
                    self.roster.lost(member);
                }
            }
        }
        wire::ReleaseCapacityResponse { mastership: None }
    }

    /// Returns the master.
    #[must_use]
    pub fn discovery(&self) -> wire::DiscoveryResponse {
        match self.not_master() {
            Some(master) => ServerReply::redirect(master),
            None => wire::DiscoveryResponse {
                is_master: true,
                mastership: wire::Mastership {
                    master_address: Some(self.settings.address.clone()),
                },
            },
        }
    }

    fn not_master(&self) -> Option<wire::Mastership> {
        match &self.standing {
            ServerRole::Master { .. } => None,
            ServerRole::Other { master } => Some(wire::Mastership {
                master_address: master.clone(),
            }),
        }
    }

    /// Decides about each resource, in order; for all or for none. Requests that come too soon are
    /// left out.
    fn serve<'a>(
        &mut self,
        now: Timestamp,
        kind: MemberKind,
        id: &str,
        wishes: Result<Vec<CheckedRequest<'a>>, Rejected>,
    ) -> Result<Vec<(&'a str, LeaseAnswer)>, Rejected> {
        let admitted = wishes.and_then(|wishes| {
            self.clean(now);
            self.admit(kind, id, &wishes)?;
            Ok(wishes)
        });
        self.counts.rejected += u64::from(admitted.is_err());
        let wishes = admitted?;
        let decided = wishes
            .iter()
            .filter_map(|wish| Some((wish.id, self.decide(now, kind, id, wish)?)));
        Ok(decided.collect())
    }

    /// Whether there is room for everything new in a request.
    fn admit(
        &self,
        kind: MemberKind,
        id: &str,
        wishes: &[CheckedRequest<'_>],
    ) -> Result<(), Rejected> {
        let bounds = &self.settings.bounds;
        let member = self.roster.find(kind, id);
        let (mut resources, mut leases, mut unnamed) = (0, 0, 0);
        for wish in wishes {
            match self.resources.get(wish.id) {
                Some(resource) => {
                    let known = member.is_some_and(|member| resource.is_held_by(member));
                    leases += usize::from(!known);
                }
                None if self.is_unmatched(wish.id) => {
                    if self.settings.unmatched == Unmatched::Refuse {
                        return Err(Rejected::Unmatched {
                            resource: wish.id.to_owned(),
                        });
                    }
                }
                None => {
                    resources += 1;
                    leases += 1;
                    unnamed += usize::from(!self.templates.names(wish.id));
                }
            }
        }
        let full = |what, max| Err(Rejected::Full { what, max });
        if resources > 0 && self.resources.len() + resources > bounds.resources {
            return full("resources", bounds.resources);
        }
        let made = member.map_or(0, |member| self.roster.entry(member).made.into());
        let per_client = bounds.resources_per_client.min(RESOURCES_MADE_MAX);
        if kind == MemberKind::Client && unnamed > 0 && made + unnamed > per_client {
            return full("resources that one client asks for", per_client);
        }
        if leases > 0 && self.leases + leases > bounds.leases {
            return full("leases", bounds.leases);
        }
        let own = member.map_or(0, |member| self.roster.entry(member).leases as usize);
        if kind == MemberKind::Client && leases > 0 && own + leases > bounds.leases_per_client {
            return full("leases of one client", bounds.leases_per_client);
        }
        Ok(())
    }

    /// Below the root every id is one for the server above.
    fn is_unmatched(&self, id: &str) -> bool {
        self.settings.place == TreePlace::Root && self.templates.of(id).is_none()
    }

    fn rules(&self) -> Rules {
        Rules {
            epoch: self.settings.epoch,
            minimum_interval: self.settings.minimum_interval,
        }
    }

    /// `None` where it is too soon to ask again.
    fn decide(
        &mut self,
        now: Timestamp,
        kind: MemberKind,
        id: &str,
        wish: &CheckedRequest<'_>,
    ) -> Option<LeaseAnswer> {
        let rules = self.rules();
        let is_new = !self.resources.contains_key(wish.id);
        if is_new && !self.make(now, wish.id) {
            return Some(self.unmatched(now, wish));
        }
        let resource = self
            .resources
            .get_mut(wish.id)
            .expect("it is there or has just been made");
        let member = self.roster.find_or_add(kind, id);
        if is_new && kind == MemberKind::Client && !self.templates.names(wish.id) {
            resource.maker = Some(member);
            self.roster.made(member);
        }
        let ask = LeaseRequest {
            member,
            kind,
            bands: &wish.bands,
            has: wish.has,
        };
        let known = resource.is_held_by(member);
        // Only a known client can be early.
        let answer = resource.ask(now, rules, &ask, &mut self.counts)?;
        if !known {
            self.roster.gained(member);
            self.leases += 1;
        }
        Some(answer)
    }

    /// Makes a resource. False if no template matches.
    fn make(&mut self, now: Timestamp, id: &str) -> bool {
        let ServerRole::Master { since } = self.standing else {
            unreachable!("only the master is asked")
        };
        let template = self.templates.of(id);
        let source = match (self.settings.place, template) {
            (TreePlace::Root, None) => return false,
            (TreePlace::Root, Some(template)) => CapacitySource::Template(template.capacity),
            (TreePlace::Below, _) => CapacitySource::Above(Default::default()),
        };
        let resource = ServerResource::new(id, now, since, template, source);
        self.ids.insert(Arc::clone(&resource.id));
        self.resources.insert(Arc::clone(&resource.id), resource);
        true
    }

    /// The demand, with the default length of leases.
    fn unmatched(&mut self, now: Timestamp, wish: &CheckedRequest<'_>) -> LeaseAnswer {
        self.counts.unmatched += 1;
        let shown = self.unmatched.iter().position(|(id, _)| id == wish.id);
        let times = match shown.and_then(|at| self.unmatched.remove(at)) {
            Some((_, times)) => times + 1,
            None => {
                if self.unmatched.len() >= UNMATCHED_SHOWN {
                    self.unmatched.pop_front();
                }
                1
            }
        };
        self.unmatched.push_back((wish.id.to_owned(), times));
        let default = Algorithm::default();
        let wants: f64 = wish.bands.iter().map(|band| band.wants.get()).sum();
        LeaseAnswer {
            gets: wire::Lease {
                expiry_time: self.settings.epoch.seconds(now + default.lease),
                refresh_interval: wire::seconds(default.refresh),
                capacity: wants,
            },
            safe_capacity: Some(wants),
            granted_until: None,
        }
    }

    /// Applies new templates. Leases stay unchanged; resources without a matching template are
    /// removed.
    pub fn apply(&mut self, now: Timestamp, templates: Templates) {
        self.templates = templates;
        let ServerRole::Master { since } = self.standing else {
            return;
        };
        let (mut lost, mut unmade) = (Vec::new(), Vec::new());
        let (templates, counts, ids) = (&self.templates, &mut self.counts, &mut self.ids);
        let place = self.settings.place;
        self.resources.retain(|id, resource| {
            match templates.of(id) {
                Some(template) => resource.apply(now, since, template, counts),
                None if place == TreePlace::Root => {
                    ids.remove(id);
                    lost.extend(resource.members());
                    unmade.extend(resource.maker);
                    return false;
                }
                None => {}
            }
            true
        });
        self.forget_members(lost, unmade);
    }

    /// Removes what has ended, at most once a second. A learning resource stays.
    pub fn clean(&mut self, now: Timestamp) {
        if now.since(self.cleaned) >= CLEAN_EVERY {
            self.clean_now(now);
        }
    }

    fn clean_now(&mut self, now: Timestamp) {
        self.cleaned = now;
        let (mut ended, mut unmade) = (Vec::new(), Vec::new());
        let (counts, ids) = (&mut self.counts, &mut self.ids);
        self.resources.retain(|id, resource| {
            if resource.is_learning(now) {
                resource.refill(now, counts);
                return true;
            }
            ended.extend(resource.clean(now, counts));
            unmade.extend(resource.disowned());
            let stays = !resource.is_spent();
            if !stays {
                ids.remove(id);
                unmade.extend(resource.maker);
            }
            stays
        });
        self.forget_members(ended, unmade);
    }

    /// Each of the first has lost a lease, each of the others a resource that counted for it.
    fn forget_members(&mut self, mut lost: Vec<RosterMember>, mut unmade: Vec<RosterMember>) {
        self.leases -= lost.len();
        // In an order that does not depend on the order of the tables.
        unmade.sort_unstable();
        for member in unmade {
            self.roster.unmade(member);
        }
        lost.sort_unstable();
        for member in lost {
            self.roster.lost(member);
        }
    }

    /// The request to the server above, if it is due: one request for everything that may be
    /// requested again. The sender reports the result, with [`CapacityServer::parent_answered`] or
    /// [`CapacityServer::parent_unanswered`]; a request made later replaces it.
    pub fn ask_parent(&mut self, now: Timestamp) -> Option<wire::GetServerCapacityRequest> {
        self.clean(now);
        if self.next_due()? > now {
            return None;
        }
        let rules = self.rules();
        let mut resource: Vec<_> = self
            .resources
            .values_mut()
            .filter(|resource| resource.ask_allowed(rules) <= now)
            .filter_map(|resource| resource.ask_above(now, rules))
            .collect();
        resource.sort_by(|one, other| one.resource_id.cmp(&other.resource_id));
        self.asking = Some(now);
        Some(wire::GetServerCapacityRequest {
            server_id: self.settings.id.clone(),
            resource,
        })
    }

    /// When [`CapacityServer::ask_parent`] next has a request. `None` at the root, without
    /// mastership, and without a demand. A request from below may make it earlier.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.settings.place == TreePlace::Root || !self.is_master() {
            return None;
        }
        let rules = self.rules();
        self.resources
            .values()
            .filter_map(|resource| {
                let due = resource.ask_due(rules)?;
                Some(due.max(resource.ask_allowed(rules)))
            })
            .min()
    }

    /// Applies the answer to the request of `sent_at`. An answer to an older request is ignored:
    /// the newer request told the server above that it was lost.
    ///
    /// `server_millis` is the time of that server when it decided, in milliseconds since 1970, if
    /// it sends it: leases then count from the moment of the request. Otherwise the clocks are
    /// assumed to agree.
    pub fn parent_answered(
        &mut self,
        now: Timestamp,
        sent_at: Timestamp,
        server_millis: Option<i64>,
        response: &wire::GetServerCapacityResponse,
    ) {
        let ServerRole::Master { since } = self.standing else {
            return;
        };
        if self.asking != Some(sent_at) || response.mastership.is_some() {
            self.counts.parent_strays += u64::from(response.mastership.is_none());
            return;
        }
        self.asking = None;
        let epoch = self.settings.epoch;
        for answer in &response.response {
            // A second of the server above, as the earliest and the latest possible moment here.
            let moment = |seconds: i64| match server_millis {
                Some(then) => {
                    let ahead = seconds.saturating_mul(1_000).saturating_sub(then);
                    let ahead = Duration::from_millis(u64::try_from(ahead).unwrap_or(0));
                    (sent_at + ahead, now + ahead)
                }
                None => {
                    let moment = epoch.timestamp(seconds);
                    (moment, moment + Duration::from_secs(1))
                }
            };
            let taken = self
                .resources
                .get_mut(answer.resource_id.as_str())
                .is_some_and(|resource| {
                    resource.answered(now, since, answer, moment, &mut self.counts)
                });
            self.counts.parent_strays += u64::from(!taken);
        }
    }

    /// The request of `sent_at` has no answer, and will get none.
    pub fn parent_unanswered(&mut self, sent_at: Timestamp) {
        if self.asking == Some(sent_at) {
            self.asking = None;
        }
    }

    /// The counts since the start, for any master.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        self.counts
    }

    /// The status: all resources, and the leases of [`View::default`].
    pub fn status(&mut self, now: Timestamp) -> ServerStatus {
        self.view(now, View::default())
    }

    /// The status in a view. O(n) in the shown resources and leases only.
    pub fn view(&mut self, now: Timestamp, view: View<'_>) -> ServerStatus {
        if self.resources.len() <= CLEANED_AT_EACH_VIEW_MAX {
            self.clean_now(now);
        } else {
            self.clean(now);
        }
        let after = |id| (Bound::Excluded(id), Bound::Unbounded);
        let rest: &mut dyn Iterator<Item = &Arc<str>> = match view.resources {
            Resources::All => &mut self.ids.iter(),
            Resources::After(id) => &mut self.ids.range::<str, _>(after(id)),
            Resources::One(id) => &mut self.ids.get(id).into_iter(),
        };
        let ids: Vec<Arc<str>> = rest.take(view.resources_max).cloned().collect();
        let resources_left_out = match view.resources {
            Resources::All => self.ids.len() - ids.len(),
            Resources::After(_) | Resources::One(_) if view.counts_rest => rest.count(),
            Resources::After(_) | Resources::One(_) => usize::from(rest.next().is_some()),
        };
        let mut room = view.leases_max;
        let mut shown = Vec::with_capacity(ids.len());
        for id in ids {
            let resource = self.resources.get_mut(&id).expect("its id is a key");
            let resource = resource_now(now, resource, &self.roster, &self.templates, room);
            room -= resource.leases.len();
            shown.push(resource);
        }
        ServerStatus {
            at: now,
            id: self.settings.id.clone(),
            standing: self.standing.clone(),
            resources: shown,
            resources_left_out,
            unmatched: self.unmatched.iter().cloned().collect(),
            counts: self.counts,
            holders: self.roster.len(),
        }
    }
}

fn resource_now(
    now: Timestamp,
    resource: &mut ServerResource,
    roster: &Roster,
    templates: &Templates,
    leases_max: usize,
) -> ResourceNow {
    let learning = resource.is_learning(now);
    let reserve = resource.algorithm.reserve;
    let share = reserve.map_or(0.0, |reserve| reserve.share.get());
    let mut leases: Vec<_> = resource
        .leases()
        .take(leases_max)
        .map(|(member, held, reserved)| {
            let own = if reserved { share } else { 0.0 };
            let holder = roster.entry(member);
            LeaseNow {
                holder: holder.name.to_string(),
                server: holder.kind == MemberKind::Server,
                clients: held.clients,
                capacity: held.lease.capacity.get() + own,
                wants: held.wants.get() + own,
                expires: held.lease.expires,
            }
        })
        .collect();
    leases.sort_by(|one, other| one.holder.cmp(&other.holder));
    let set_aside = reserve.as_ref().map_or(0.0, Reserve::total);
    ResourceNow {
        id: resource.id.to_string(),
        literal: templates.names(&resource.id),
        template: resource.template.clone(),
        capacity: resource.capacity(),
        reserved: Capacity::new(set_aside).unwrap_or_default(),
        reserved_clients: resource.reserved(),
        held: resource.book.held(),
        wanted: resource.book.wanted(),
        clients: resource.book.clients(),
        split: resource.algorithm.split,
        learning_until: resource.learning_until.filter(|_| learning),
        leased_until: resource.leased_until(),
        refresh: resource.algorithm.refresh,
        safe_capacity: resource.safe_capacity(),
        leases_total: resource.book.holders(),
        leases,
    }
}
