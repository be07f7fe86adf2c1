//! The capacity server as a state machine: its answers and its refusals.

use std::time::Duration;

use tidegate_leases::server::{
    CapacityServer, Catchall, LeaseNow, RawAlgorithm, RawKind, RawTemplate, Rejected, Resources,
    ServerBounds, ServerRole, ServerSettings, TemplateMistake, Templates, TreePlace, Unmatched,
    View,
};
use tidegate_leases::wire::{
    Algorithm, Epoch, GetCapacityRequest, GetCapacityResponse, GetServerCapacityRequest,
    GetServerCapacityResponse, Lease, NamedParameter, PriorityBandAggregate,
    ReleaseCapacityRequest, ResourceRequest, ServerCapacityResourceRequest,
    ServerCapacityResourceResponse,
};
use tidegate_limits::Timestamp;

const UNIX: u64 = 1_700_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

fn settings(place: TreePlace) -> ServerSettings {
    ServerSettings {
        id: "job".to_owned(),
        address: "host:1".to_owned(),
        place,
        epoch: Epoch::new(Timestamp::ZERO, Duration::from_secs(UNIX)),
        minimum_interval: Duration::from_secs(5),
        unmatched: Unmatched::Grant,
        bounds: ServerBounds::default(),
    }
}

fn algorithm(kind: &str, parameters: &[(&str, &str)]) -> RawAlgorithm {
    RawAlgorithm {
        kind: Some(RawKind::Name(kind.to_owned())),
        lease_length: Some(60),
        refresh_interval: Some(16),
        learning_mode_duration: None,
        parameters: parameters
            .iter()
            .map(|(name, value)| NamedParameter {
                name: (*name).to_owned(),
                value: Some((*value).to_owned()),
            })
            .collect(),
    }
}

fn template(glob: &str, capacity: f64, algorithm: RawAlgorithm) -> RawTemplate {
    RawTemplate {
        identifier_glob: Some(glob.to_owned()),
        capacity: Some(capacity),
        algorithm: Some(algorithm),
        ..RawTemplate::default()
    }
}

fn templates(raw: Vec<RawTemplate>) -> Templates {
    Templates::new(raw, Catchall::Optional).expect("good templates")
}

/// A root that has been master for ten minutes and has no clients.
fn root(raw: Vec<RawTemplate>) -> CapacityServer {
    let mut server = CapacityServer::new(settings(TreePlace::Root), templates(raw), at(0));
    server.elected(at(0));
    server
}

const LATER: u64 = 600;

fn resource(id: &str, wants: f64, has: Option<Lease>) -> ResourceRequest {
    ResourceRequest {
        resource_id: id.to_owned(),
        priority: 0,
        has,
        wants,
    }
}

fn request(client: &str, resource: Vec<ResourceRequest>) -> GetCapacityRequest {
    GetCapacityRequest {
        client_id: client.to_owned(),
        resource,
    }
}

fn ask(
    server: &mut CapacityServer,
    seconds: u64,
    client: &str,
    wants: f64,
    has: Option<Lease>,
) -> GetCapacityResponse {
    let request = request(client, vec![resource("r", wants, has)]);
    server
        .get_capacity(at(seconds), &request)
        .expect("a good request")
}

/// The lease of an answer about one resource.
fn got(answer: &GetCapacityResponse) -> Lease {
    assert_eq!(answer.response.len(), 1, "{answer:?}");
    answer.response[0].gets
}

fn granted(server: &mut CapacityServer, seconds: u64, client: &str, wants: f64) -> f64 {
    got(&ask(server, seconds, client, wants, None)).capacity
}

#[test]
fn a_server_that_is_not_master_names_the_master() {
    let raw = vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))];
    let mut server = CapacityServer::new(settings(TreePlace::Root), templates(raw), at(0));
    let answer = ask(&mut server, 1, "a", 10.0, None);
    assert!(answer.response.is_empty());
    assert_eq!(answer.mastership.expect("said").master_address, None);

    server.deposed(Some("other:1".to_owned()));
    let answer = ask(&mut server, 3, "a", 10.0, None);
    let told = answer.mastership.expect("said").master_address;
    assert_eq!(told.as_deref(), Some("other:1"));
    // Also to what is wrong, and to a release.
    let bad = request("", Vec::new());
    assert!(
        server
            .get_capacity(at(3), &bad)
            .expect("told")
            .mastership
            .is_some()
    );
    let release = server.release_capacity(at(3), &ReleaseCapacityRequest::default());
    assert!(release.mastership.is_some());
    assert!(!server.discovery().is_master);

    server.elected(at(4));
    assert!(server.discovery().is_master);
    let told = server.discovery().mastership.master_address;
    assert_eq!(told.as_deref(), Some("host:1"));
    assert!(ask(&mut server, 5, "a", 10.0, None).mastership.is_none());
}

#[test]
fn a_new_master_echoes_until_every_old_lease_is_over_and_grants_after_that() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    let has = Lease {
        expiry_time: UNIX as i64 + 30,
        refresh_interval: 16,
        capacity: 80.0,
    };
    assert_eq!(
        got(&ask(&mut server, 1, "known", 90.0, Some(has))).capacity,
        80.0
    );
    assert_eq!(granted(&mut server, 2, "new", 50.0), 0.0);
    // A lease that is over counts for nothing.
    let over = Lease {
        expiry_time: UNIX as i64 - 1,
        ..has
    };
    assert_eq!(
        got(&ask(&mut server, 3, "late", 50.0, Some(over))).capacity,
        0.0
    );
    assert_eq!(server.counts().unrecorded, 0);
    // The learning lasts as long as a lease, the last moment included.
    assert_eq!(granted(&mut server, 60, "new", 50.0), 0.0);
    assert!(server.status(at(60)).resources[0].learning_until.is_some());
    assert!(granted(&mut server, 77, "new", 50.0) > 0.0);
    assert_eq!(server.status(at(77)).resources[0].learning_until, None);
}

#[test]
fn by_default_a_new_master_learns_for_a_lease_and_what_counts_after_it() {
    let check = |parameters: &[(&str, &str)], until: u64| {
        let algorithm = algorithm("FAIR_SHARE", parameters);
        let mut server = root(vec![template("r", 100.0, algorithm)]);
        granted(&mut server, 0, "a", 30.0);
        let learning_until = server.status(at(1)).resources[0].learning_until;
        assert_eq!(learning_until, Some(at(until)), "{parameters:?}");
    };
    check(&[], 60);
    check(&[("frees_after_ms", "5000")], 65);
    check(&[("frees_after_ms", "3005")], 64);
    check(&[("frees", "at_once")], 60);
}

#[test]
fn a_claim_beyond_the_capacity_is_believed_up_to_the_capacity() {
    let claims = |capacity| Lease {
        expiry_time: UNIX as i64 + 30,
        refresh_interval: 16,
        capacity,
    };
    let learned = |kind: &str, parameters: &[(&str, &str)]| {
        let mut server = root(vec![template("r", 100.0, algorithm(kind, parameters))]);
        let lease = got(&ask(&mut server, 1, "liar", 1e6, Some(claims(1e6))));
        (lease.capacity, server.counts().overclaimed)
    };
    assert_eq!(learned("FAIR_SHARE", &[]), (100.0, 1));
    assert_eq!(learned("PROPORTIONAL_SHARE", &[]), (100.0, 1));
    let reserve = [("reserved_clients", "2"), ("safe_share", "10")];
    assert_eq!(learned("FAIR_SHARE", &reserve), (100.0, 1));
    // Of these each may have as much; without a limit nothing is too much.
    assert_eq!(learned("STATIC", &[]), (100.0, 1));
    assert_eq!(learned("NO_ALGORITHM", &[]), (1e6, 0));
    // What can be is believed as before.
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    let lease = got(&ask(&mut server, 1, "honest", 1e6, Some(claims(99.0))));
    assert_eq!((lease.capacity, server.counts().overclaimed), (99.0, 0));
}

#[test]
fn a_resource_made_after_the_learning_or_without_one_never_learns() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    assert_eq!(granted(&mut server, 61, "a", 30.0), 30.0);
    let mut hasty = algorithm("FAIR_SHARE", &[]);
    hasty.learning_mode_duration = Some(0);
    let mut server = root(vec![template("r", 100.0, hasty)]);
    assert_eq!(
        granted(&mut server, 0, "a", 30.0),
        30.0,
        "it learns for no time at all"
    );
}

#[test]
fn a_newcomer_has_its_safe_share_at_once_while_learning_and_in_a_full_resource() {
    let reserve = [("reserved_clients", "3"), ("safe_share", "10")];
    let raw = || vec![template("r", 100.0, algorithm("FAIR_SHARE", &reserve))];
    let mut server = root(raw());
    assert_eq!(granted(&mut server, 1, "new", 50.0), 10.0);
    assert_eq!(granted(&mut server, 1, "modest", 4.0), 4.0);

    let mut server = root(raw());
    // 30 are set aside, 70 are shared, and the first has taken all of them.
    assert_eq!(granted(&mut server, LATER, "first", 500.0), 80.0);
    assert_eq!(granted(&mut server, LATER, "new", 500.0), 10.0);
    assert_eq!(granted(&mut server, LATER, "third", 500.0), 10.0);
    // There are more clients than configured. Nothing is set aside for this one, and its answer
    // says so.
    let answer = ask(&mut server, LATER, "fourth", 500.0, None);
    assert_eq!(got(&answer).capacity, 0.0);
    assert_eq!(answer.response[0].safe_capacity, Some(0.0));
    assert_eq!(server.counts().unreserved, 1);
    // A client that leaves makes room.
    let release = ReleaseCapacityRequest {
        client_id: "third".to_owned(),
        resource_id: vec![String::new(), "r".to_owned(), "unknown".to_owned()],
    };
    server.release_capacity(at(LATER + 1), &release);
    assert!(granted(&mut server, LATER + 16, "fourth", 500.0) >= 10.0);
    let status = server.status(at(LATER + 16));
    assert_eq!(status.resources[0].reserved_clients, 3);
    assert_eq!(status.resources[0].reserved.get(), 30.0);
}

#[test]
fn every_answer_says_what_is_safe() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    let safe = |answer: &GetCapacityResponse| answer.response[0].safe_capacity;
    assert_eq!(safe(&ask(&mut server, LATER, "a", 1.0, None)), Some(100.0));
    assert_eq!(safe(&ask(&mut server, LATER, "b", 1.0, None)), Some(50.0));

    for configured in [-1.0, 0.0, 7.5] {
        let mut raw = template("r", 100.0, algorithm("FAIR_SHARE", &[]));
        raw.safe_capacity = Some(configured);
        let mut server = root(vec![raw]);
        assert_eq!(
            safe(&ask(&mut server, LATER, "a", 1.0, None)),
            Some(configured)
        );
    }
}

#[test]
fn a_client_that_asks_too_early_gets_no_answer_and_keeps_its_lease() {
    let mut server = root(vec![template("*", 100.0, algorithm("FAIR_SHARE", &[]))]);
    assert_eq!(granted(&mut server, LATER, "a", 30.0), 30.0);
    assert!(
        ask(&mut server, LATER + 4, "a", 90.0, None)
            .response
            .is_empty()
    );
    // Another resource, or another client, is another matter.
    let both = request(
        "a",
        vec![resource("r", 90.0, None), resource("s", 5.0, None)],
    );
    let answer = server.get_capacity(at(LATER + 4), &both).expect("good");
    assert_eq!(answer.response.len(), 1);
    assert_eq!(answer.response[0].resource_id, "s");
    assert_eq!(granted(&mut server, LATER + 4, "b", 100.0), 70.0);
    assert_eq!(server.counts().early, 2);
    assert_eq!(granted(&mut server, LATER + 5, "a", 20.0), 20.0);
}

#[test]
fn freed_capacity_is_available_once_the_holder_confirms_the_lower_lease() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    let first = got(&ask(&mut server, LATER, "a", 100.0, None));
    assert_eq!(first.capacity, 100.0);
    assert_eq!(granted(&mut server, LATER, "b", 100.0), 0.0);
    let lowered = got(&ask(&mut server, LATER + 10, "a", 100.0, Some(first)));
    assert_eq!(lowered.capacity, 50.0);
    // The answer may have been lost: a still has the first lease, for all that is known.
    assert_eq!(granted(&mut server, LATER + 11, "b", 100.0), 0.0);
    let told = got(&ask(&mut server, LATER + 20, "a", 100.0, Some(first)));
    assert_eq!(told.capacity, 50.0);
    assert_eq!(granted(&mut server, LATER + 21, "b", 100.0), 0.0);
    ask(&mut server, LATER + 30, "a", 100.0, Some(told));
    assert_eq!(granted(&mut server, LATER + 31, "b", 100.0), 50.0);
}

#[test]
fn a_lease_of_which_there_is_no_record_is_counted() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    let claimed = Lease {
        expiry_time: UNIX as i64 + LATER as i64 + 30,
        refresh_interval: 5,
        capacity: 40.0,
    };
    assert_eq!(
        got(&ask(&mut server, LATER, "a", 90.0, Some(claimed))).capacity,
        90.0
    );
    assert_eq!(server.counts().unrecorded, 1);
}

#[test]
fn a_capacity_that_is_lowered_below_what_is_lent_is_a_shortfall() {
    let with = |capacity| vec![template("r", capacity, algorithm("FAIR_SHARE", &[]))];
    let mut server = root(with(100.0));
    let first = got(&ask(&mut server, LATER, "a", 60.0, None));
    server.apply(at(LATER + 1), templates(with(20.0)));
    let counts = server.counts();
    assert_eq!((counts.shortfalls, counts.shortfall_max), (1, 40.0));
    assert_eq!(
        got(&ask(&mut server, LATER + 5, "a", 60.0, Some(first))).capacity,
        20.0
    );
    server.apply(at(LATER + 6), templates(with(100.0)));
    assert_eq!(server.counts().shortfalls, 1);
    assert_eq!(granted(&mut server, LATER + 7, "b", 10.0), 10.0);
}

#[test]
fn an_id_that_nothing_matches_is_granted_counted_and_shown_but_not_kept() {
    let raw = || vec![template("known*", 100.0, algorithm("FAIR_SHARE", &[]))];
    let mut server = root(raw());
    for id in ["a/b", "\u{0}\n", "…", "known/1", "a/b"] {
        let asked = request("c", vec![resource(id, 12.0, None)]);
        let answer = server.get_capacity(at(LATER), &asked).expect("granted");
        assert_eq!(got(&answer).capacity, 12.0, "{id}");
        assert_eq!(answer.response[0].safe_capacity, Some(12.0));
    }
    let status = server.status(at(LATER));
    assert!(status.resources.is_empty());
    assert_eq!(status.holders, 0);
    assert_eq!(status.counts.unmatched, 5);
    assert_eq!(status.unmatched.len(), 4);
    assert_eq!(status.unmatched[3], ("a/b".to_owned(), 2));

    let strict = ServerSettings {
        unmatched: Unmatched::Refuse,
        ..settings(TreePlace::Root)
    };
    let mut server = CapacityServer::new(strict, templates(raw()), at(0));
    server.elected(at(0));
    let asked = request(
        "c",
        vec![resource("known", 1.0, None), resource("a/b", 1.0, None)],
    );
    let refused = server.get_capacity(at(LATER), &asked).expect_err("refused");
    assert_eq!(refused.to_string(), "no template matches resource \"a/b\"");
    assert!(
        server.status(at(LATER)).resources.is_empty(),
        "nothing of it was done"
    );
}

#[test]
fn expired_leases_are_removed_with_their_resource() {
    let mut server = root(vec![template("*", 100.0, algorithm("FAIR_SHARE", &[]))]);
    for client in ["a", "b"] {
        let many = (0..50)
            .map(|n| resource(&format!("r{n}"), 1.0, None))
            .collect();
        server
            .get_capacity(at(LATER), &request(client, many))
            .expect("good");
    }
    let status = server.status(at(LATER + 59));
    assert_eq!((status.resources.len(), status.holders), (50, 2));
    assert_eq!(status.resources[7].leases.len(), 2);
    // What was not free a moment ago is looked at once more a second later.
    server.clean(at(LATER + 60));
    let status = server.status(at(LATER + 62));
    assert_eq!((status.resources.len(), status.holders), (0, 0));
}

/// Every mistake is refused with its name, changes nothing, and harms no other client.
#[test]
fn a_bad_request_is_refused_with_its_mistake_and_harms_no_other() {
    let mut server = root(vec![template("*", 100.0, algorithm("FAIR_SHARE", &[]))]);
    assert_eq!(granted(&mut server, LATER, "good", 30.0), 30.0);
    let before = server.status(at(LATER));
    let has = |capacity| {
        Some(Lease {
            expiry_time: 1,
            refresh_interval: 1,
            capacity,
        })
    };
    let long = "x".repeat(1_025);
    let cases = [
        (request("", vec![]), "client_id is empty"),
        (
            request(&long, vec![]),
            "client_id has 1025 bytes, more than 1024",
        ),
        (
            request("c", vec![resource("r", -1.0, None)]),
            "wants of resource \"r\" is -1: it must be finite and not below 0",
        ),
        (
            request(
                "c",
                vec![resource("ok", 1.0, None), resource("r", f64::NAN, None)],
            ),
            "wants of resource \"r\" is NaN: it must be finite and not below 0",
        ),
        (
            request("c", vec![resource("r", f64::INFINITY, None)]),
            "wants of resource \"r\" is inf: it must be finite and not below 0",
        ),
        (
            request("c", vec![resource("r", 1.0, has(-0.5))]),
            "has.capacity of resource \"r\" is -0.5: it must be finite and not below 0",
        ),
        (
            request("c", vec![resource("r", 1.0, None), resource("", 1.0, None)]),
            "resource[1].resource_id is empty",
        ),
        (
            request(
                "c",
                vec![
                    resource("r", 1.0, None),
                    resource("s", 1.0, None),
                    resource("r", 2.0, None),
                ],
            ),
            "resource \"r\" is asked for twice in one request",
        ),
    ];
    for (bad, expected) in cases {
        let refused = server.get_capacity(at(LATER), &bad).expect_err(expected);
        assert_eq!(refused.to_string(), expected);
        assert!(!refused.is_exhausted());
    }
    let band = |num_clients, wants| PriorityBandAggregate {
        priority: 0,
        num_clients,
        wants,
    };
    for (wants, expected) in [
        (
            vec![],
            "resource \"r\" has no wants: a server asks for at least one band",
        ),
        (
            vec![band(1, 1.0), band(0, 1.0)],
            "wants[1].num_clients of resource \"r\" is 0: it must be at least 1",
        ),
        (
            vec![band(-3, 1.0)],
            "wants[0].num_clients of resource \"r\" is -3: it must be at least 1",
        ),
        (
            vec![band(1, f64::NEG_INFINITY)],
            "wants[0].wants of resource \"r\" is -inf: it must be finite and not below 0",
        ),
    ] {
        let bad = GetServerCapacityRequest {
            server_id: "s".to_owned(),
            resource: vec![ServerCapacityResourceRequest {
                resource_id: "r".to_owned(),
                has: None,
                wants,
            }],
        };
        let refused = server
            .get_server_capacity(at(LATER), &bad)
            .expect_err(expected);
        assert_eq!(refused.to_string(), expected);
    }
    let many = (0..100_000)
        .map(|n| resource(&n.to_string(), 1.0, None))
        .collect();
    let refused = server
        .get_capacity(at(LATER), &request("c", many))
        .expect_err("too many");
    assert_eq!(
        refused,
        Rejected::LongRequest {
            given: 100_000,
            max: 1_000
        }
    );
    assert!(refused.is_exhausted());

    let after = server.status(at(LATER));
    assert_eq!(after.resources, before.resources);
    assert_eq!(after.counts.rejected, 13);
}

#[test]
fn beyond_its_bounds_a_server_refuses_and_still_serves_known_clients() {
    let bounds = ServerBounds {
        resources: 3,
        leases: 4,
        leases_per_client: 2,
        ..ServerBounds::default()
    };
    let small = ServerSettings {
        bounds,
        ..settings(TreePlace::Root)
    };
    let raw = vec![template("*", 100.0, algorithm("FAIR_SHARE", &[]))];
    let mut server = CapacityServer::new(small, templates(raw), at(0));
    server.elected(at(0));
    let mut ask = |seconds, client: &str, ids: &[&str]| {
        let resources = ids.iter().map(|id| resource(id, 1.0, None)).collect();
        let answer = server.get_capacity(at(seconds), &request(client, resources));
        answer
            .map(|answer| answer.response.len())
            .map_err(|refused| {
                assert!(refused.is_exhausted());
                refused.to_string()
            })
    };
    assert_eq!(ask(LATER, "a", &["r", "s"]), Ok(2));
    let full = |what: &str| Err(format!("the server keeps no more than {what}"));
    assert_eq!(ask(LATER, "a", &["t"]), full("2 leases of one client"));
    assert_eq!(ask(LATER, "b", &["t", "u"]), full("3 resources"));
    assert_eq!(ask(LATER, "b", &["r", "s"]), Ok(2));
    assert_eq!(ask(LATER, "c", &["r"]), full("4 leases"));
    assert_eq!(ask(LATER + 16, "b", &["r", "s"]), Ok(2));
}

// ---- Below another server.

fn below() -> CapacityServer {
    let mut server = CapacityServer::new(settings(TreePlace::Below), Templates::default(), at(0));
    server.elected(at(0));
    server
}

fn answer_of(
    capacity: f64,
    expires: u64,
    parameters: &[(&str, &str)],
) -> GetServerCapacityResponse {
    GetServerCapacityResponse {
        response: vec![ServerCapacityResourceResponse {
            resource_id: "r".to_owned(),
            gets: Lease {
                expiry_time: (UNIX + expires) as i64,
                refresh_interval: 8,
                capacity,
            },
            algorithm: Some(Algorithm {
                kind: 3,
                lease_length: 60,
                refresh_interval: 8,
                parameters: parameters
                    .iter()
                    .map(|(name, value)| NamedParameter {
                        name: (*name).to_owned(),
                        value: Some((*value).to_owned()),
                    })
                    .collect(),
                learning_mode_duration: None,
            }),
            safe_capacity: Some(4.0),
        }],
        mastership: None,
    }
}

#[test]
fn a_server_asks_the_one_above_at_once_for_what_it_does_not_know() {
    let mut server = below();
    assert_eq!(server.next_due(), None);
    assert!(server.ask_parent(at(LATER)).is_none());
    for (client, wants, priority) in [("a", 10.0, 0), ("b", 20.0, 0), ("c", 5.0, 7)] {
        let mut asked = resource("r", wants, None);
        asked.priority = priority;
        let answer = server
            .get_capacity(at(LATER), &request(client, vec![asked]))
            .expect("good");
        let lease = got(&answer);
        assert_eq!(
            (lease.capacity, lease.refresh_interval),
            (0.0, 1),
            "comes back soon"
        );
        assert_eq!(
            answer.response[0].safe_capacity, None,
            "keeps what it was told before"
        );
    }
    assert_eq!(server.next_due(), Some(at(LATER)));
    let asked = server.ask_parent(at(LATER)).expect("due");
    assert_eq!(asked.server_id, "job");
    let bands: Vec<_> = asked.resource[0]
        .wants
        .iter()
        .map(|band| (band.priority, band.num_clients, band.wants))
        .collect();
    assert_eq!(bands, [(7, 1, 5.0), (0, 2, 30.0)]);
    assert_eq!(asked.resource[0].has, None);

    let told = answer_of(28.0, LATER + 60, &[("granted_until", "0")]);
    server.parent_answered(
        at(LATER),
        at(LATER),
        Some(((UNIX + LATER) * 1_000) as i64),
        &told,
    );
    let answer = ask(&mut server, LATER + 1, "a", 10.0, None);
    // A lease ends with the one that it is cut from, and half as long lies between two requests.
    let lease = got(&answer);
    assert_eq!(lease.capacity, 10.0);
    assert_eq!(lease.expiry_time, (UNIX + LATER + 60) as i64);
    assert_eq!(lease.refresh_interval, 4);
    assert_eq!(answer.response[0].safe_capacity, Some(4.0));
    let again = server.next_due().expect("the lease must be renewed");
    assert_eq!(again, at(LATER + 8));
    let asked = server.ask_parent(again).expect("due");
    let has = asked.resource[0].has.expect("said");
    assert_eq!(
        (has.capacity, has.expiry_time),
        (28.0, (UNIX + LATER + 60) as i64)
    );
}

#[test]
fn an_answer_to_an_older_question_is_not_taken() {
    let mut server = below();
    ask(&mut server, LATER, "a", 10.0, None);
    server.ask_parent(at(LATER)).expect("due");
    server.ask_parent(at(LATER + 5)).expect("due again");
    server.parent_answered(
        at(LATER + 6),
        at(LATER),
        None,
        &answer_of(50.0, LATER + 60, &[]),
    );
    assert_eq!(server.counts().parent_strays, 1);
    assert_eq!(granted(&mut server, LATER + 7, "a", 10.0), 0.0);
    server.parent_answered(
        at(LATER + 7),
        at(LATER + 5),
        None,
        &answer_of(50.0, LATER + 60, &[]),
    );
    assert_eq!(granted(&mut server, LATER + 8, "a", 10.0), 10.0);
    // Nor what is no answer at all.
    server.ask_parent(at(LATER + 20)).expect("due");
    for nonsense in [f64::NAN, f64::INFINITY] {
        let answer = answer_of(nonsense, LATER + 60, &[]);
        server.parent_answered(at(LATER + 20), at(LATER + 20), None, &answer);
    }
    assert_eq!(granted(&mut server, LATER + 20, "a", 10.0), 10.0);
}

#[test]
fn a_master_that_follows_another_learns_no_longer_than_the_old_leases_last() {
    let mut server = below();
    server.elected(at(LATER));
    let has = Lease {
        expiry_time: (UNIX + LATER + 9) as i64,
        refresh_interval: 4,
        capacity: 10.0,
    };
    let echoed = got(&ask(&mut server, LATER, "a", 25.0, Some(has)));
    assert_eq!(
        (echoed.capacity, echoed.expiry_time),
        (10.0, has.expiry_time)
    );
    server.ask_parent(at(LATER)).expect("due");
    let until = (UNIX + LATER + 10).to_string();
    let told = answer_of(50.0, LATER + 60, &[("granted_until", &until)]);
    server.parent_answered(at(LATER), at(LATER), None, &told);
    assert_eq!(
        granted(&mut server, LATER + 4, "b", 5.0),
        0.0,
        "still learning"
    );
    assert_eq!(granted(&mut server, LATER + 12, "b", 5.0), 5.0);
}

#[test]
fn when_its_own_lease_is_over_a_server_hands_on_nothing_but_safe_shares() {
    let mut server = below();
    ask(&mut server, LATER, "a", 10.0, None);
    server.ask_parent(at(LATER)).expect("due");
    let reserve = [("reserved_clients", "2"), ("safe_share", "3")];
    server.parent_answered(
        at(LATER),
        at(LATER),
        None,
        &answer_of(50.0, LATER + 20, &reserve),
    );
    let lease = got(&ask(&mut server, LATER + 2, "a", 10.0, None));
    assert_eq!(
        (lease.capacity, lease.expiry_time),
        (10.0, (UNIX + LATER + 20) as i64)
    );
    assert_eq!(granted(&mut server, LATER + 20, "a", 10.0), 3.0);
    assert_eq!(granted(&mut server, LATER + 20, "b", 10.0), 3.0);
    assert_eq!(
        server.status(at(LATER + 20)).resources[0].leased_until,
        None
    );
}

// ---- Templates.

fn mistakes(raw: Vec<RawTemplate>, catchall: Catchall) -> Vec<String> {
    let mistakes = Templates::new(raw, catchall).expect_err("mistakes");
    mistakes.iter().map(TemplateMistake::to_string).collect()
}

#[test]
fn the_literal_template_comes_first_and_then_the_order_of_the_config() {
    let raw = ["a*", "ab*", "a?c[xyz]", "abcx"];
    let raw = raw.map(|glob| template(glob, 1.0, algorithm("FAIR_SHARE", &[])));
    let templates = templates(raw.to_vec());
    let of = |id: &str| templates.of(id).map(|one| one.glob.as_str().to_owned());
    assert_eq!(of("abcd").as_deref(), Some("a*"));
    assert_eq!(of("abcx").as_deref(), Some("abcx"));
    assert_eq!(of("b"), None);
    assert_eq!(of("a/b"), None);
}

#[test]
fn a_template_without_an_algorithm_takes_the_default_one() {
    let mut bare = template("r", 100.0, RawAlgorithm::default());
    bare.algorithm = None;
    let mut server = root(vec![bare]);
    let lease = got(&ask(&mut server, LATER, "a", 500.0, None));
    assert_eq!(lease.capacity, 100.0);
    assert_eq!(lease.expiry_time, (UNIX + LATER + 60) as i64);
    assert_eq!(lease.refresh_interval, 16);
}

#[test]
fn every_mistake_in_templates_is_reported_at_once() {
    let raw = vec![
        template("[a", 1.0, algorithm("FAIR_SHARE", &[])),
        template(
            "*",
            -5.0,
            algorithm("FAIRSHARE", &[("decay_factor", "0"), ("colour", "red")]),
        ),
        RawTemplate {
            identifier_glob: Some("b".to_owned()),
            capacity: None,
            safe_capacity: Some(f64::NAN),
            description: None,
            algorithm: Some(RawAlgorithm {
                kind: Some(RawKind::Number(4)),
                lease_length: Some(5),
                refresh_interval: Some(16),
                ..RawAlgorithm::default()
            }),
        },
        template("b", f64::NAN, RawAlgorithm::default()),
        template(
            "c",
            10.0,
            algorithm("STATIC", &[("reserved_clients", "3"), ("safe_share", "4")]),
        ),
    ];
    let found = mistakes(raw, Catchall::Required);
    let expected = [
        "resources[0].identifier_glob \"[a\" opens a class",
        "resources[1].identifier_glob is \"*\" and matches what stands below it",
        "resources[1].capacity is -5: it must be finite and not below 0",
        "resources[1].algorithm.parameters.decay_factor is \"0\"",
        "resources[1].algorithm.parameters.colour is \"red\": there is no such parameter",
        "resources[1].algorithm.kind is \"FAIRSHARE\"",
        "resources[2].capacity is missing",
        "resources[2].safe_capacity is NaN",
        "resources[2].algorithm.kind is 4",
        "resources[2].algorithm.lease_length is 5 s, shorter than the refresh interval of 16 s",
        "resources[3].identifier_glob is \"b\", as that of resources[2]",
        "resources[3].capacity is NaN",
        "resources[3].algorithm.lease_length is missing",
        "resources[3].algorithm.refresh_interval is missing",
        "resources[4].algorithm.parameters.reserved_clients times safe_share is 12, more than",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            found.starts_with(expected),
            "{found:?} instead of {expected:?}"
        );
    }
    assert_eq!(
        mistakes(Vec::new(), Catchall::Required),
        ["resources has no template \"*\": add one with an algorithm at the end"]
    );
}

#[test]
fn a_server_that_was_deposed_and_elected_again_knows_nothing() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    assert_eq!(granted(&mut server, LATER, "a", 60.0), 60.0);
    server.deposed(None);
    assert!(server.status(at(LATER + 1)).resources.is_empty());
    server.elected(at(LATER + 2));
    let status = server.status(at(LATER + 2));
    assert_eq!(
        status.standing,
        ServerRole::Master {
            since: at(LATER + 2)
        }
    );
    assert_eq!(
        granted(&mut server, LATER + 3, "b", 60.0),
        0.0,
        "a may still have all of it"
    );
}

#[test]
fn a_new_holder_does_not_inherit_what_an_earlier_one_may_still_use() {
    let frees = [("frees", "confirmed"), ("frees_after_ms", "20000")];
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &frees))]);
    assert_eq!(granted(&mut server, LATER, "first", 500.0), 100.0);
    let release = ReleaseCapacityRequest {
        client_id: "first".to_owned(),
        resource_id: vec!["r".to_owned()],
    };
    server.release_capacity(at(LATER + 5), &release);
    assert_eq!(granted(&mut server, LATER + 6, "second", 500.0), 0.0);
    assert_eq!(granted(&mut server, LATER + 24, "second", 500.0), 0.0);
    assert_eq!(granted(&mut server, LATER + 30, "second", 500.0), 100.0);
}

#[test]
fn rows_are_used_again_while_clients_come_and_go() {
    let mut server = root(vec![template("r", 100.0, algorithm("FAIR_SHARE", &[]))]);
    for round in 0..20_u32 {
        for client in 0..50 {
            let client = format!("{round}-{client}");
            let wants = f64::from(round + 1);
            let got = granted(&mut server, LATER + 100 * u64::from(round), &client, wants);
            assert!(got <= wants);
        }
        let status = server.status(at(LATER + 100 * u64::from(round) + 1));
        let resource = &status.resources[0];
        assert_eq!((status.holders, resource.leases_total), (50, 50));
        assert_eq!(resource.wanted.get(), 50.0 * f64::from(round + 1));
        assert!(resource.held.get() <= 100.0);
        let all_of_this_round = |lease: &LeaseNow| lease.holder.starts_with(&format!("{round}-"));
        assert!(resource.leases.iter().all(all_of_this_round));
    }
}

#[test]
fn as_many_leases_are_shown_as_were_asked_for_and_all_are_counted() {
    let mut server = root(vec![template("*", 1e6, algorithm("FAIR_SHARE", &[]))]);
    for client in 0..700 {
        let both = ["a", "b"].map(|id| resource(id, 1.0, None));
        let request = request(&format!("client-{client}"), both.to_vec());
        server.get_capacity(at(LATER), &request).expect("good");
    }
    let mut check = |resources, leases_max, expected: &[(&str, usize)]| {
        let view = View {
            resources,
            resources_max: 1_000,
            counts_rest: true,
            leases_max,
        };
        let status = server.view(at(LATER), view);
        let shown: Vec<_> = status
            .resources
            .iter()
            .map(|one| {
                assert!(one.leases.is_sorted_by_key(|lease| &lease.holder));
                assert_eq!((one.leases_total, one.held.get()), (700, 700.0));
                (one.id.as_str(), one.leases.len())
            })
            .collect();
        assert_eq!(shown, expected, "{view:?}");
        assert_eq!(status.holders, 700);
    };
    check(Resources::All, 0, &[("a", 0), ("b", 0)]);
    check(Resources::All, 1_000, &[("a", 700), ("b", 300)]);
    check(Resources::After("a"), 1_000, &[("b", 700)]);
    check(Resources::One("b"), 3, &[("b", 3)]);
    check(Resources::One("c"), 3, &[]);
    let mut page = |resources| {
        let view = View {
            resources,
            resources_max: 1,
            counts_rest: true,
            leases_max: 0,
        };
        let status = server.view(at(LATER), view);
        let shown: Vec<_> = status.resources.into_iter().map(|one| one.id).collect();
        (shown, status.resources_left_out)
    };
    assert_eq!(page(Resources::All), (vec!["a".to_owned()], 1));
    assert_eq!(page(Resources::After("a")), (vec!["b".to_owned()], 0));
    assert_eq!(page(Resources::After("b")), (vec![], 0));
}
