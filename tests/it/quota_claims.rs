//! The quotas that a call draws from, and their keys.

use std::sync::Arc;

use tidegate::admit::Claimed;
use tidegate::call::Identity;
use tidegate::call::claim::{Claim, QUOTA_KEY_BYTES_MAX};
use tidegate::callers::rate_limit::Size;
use tidegate::callers::settings::{CallersSettings, Quota, QuotaBy};
use tidegate::callers::{Callers, Meets, NewRateLimit};
use tidegate_callers::{Label, Patch};
use tidegate_limits::Timestamp;

use crate::support;

/// A config whose rate limits are quotas of these keyings, by their names.
fn settings(quotas: &[(&str, &str)], more: &str) -> CallersSettings {
    let quotas = quotas.iter().enumerate().map(|(at, (name, applies_to))| {
        format!(
            "[[quota]]\nname = \"{name}\"\napplies_to = {applies_to}\n\
             namespace = \"n{at}\"\ntotal = 10\nrefresh_window = \"1m\"\n"
        )
    });
    let quotas: String = quotas.collect();
    let store = if quotas.is_empty() {
        ""
    } else {
        "[quota_store]\n"
    };
    let listen = "[[listen]]\nname = \"nova\"\nbind = \"127.0.0.1:0\"\n";
    let text = format!(
        "{listen}[backend]\nsocket = \"127.0.0.1:1\"\n[limits]\n\
         per_window = \"total:30\"\n{store}{quotas}{more}"
    );
    support::config(&text).callers
}

fn start(quotas: &[(&str, &str)], more: &str) -> Callers {
    let started = Callers::start(&settings(quotas, more), None);
    started.expect("there is room for them").value
}

/// A user of this name, if it is not empty.
fn user(name: &str) -> Arc<Identity> {
    let mut identity = Arc::unwrap_or_clone(support::identity("nova", ([10, 0, 0, 1], 1000)));
    identity.user = (!name.is_empty()).then(|| name.into());
    Arc::new(identity)
}

fn claim(callers: &Callers, identity: &Arc<Identity>, function: &str) -> Claim {
    callers.claim(Timestamp::ZERO, identity, function, Meets::Limits)
}

/// Quotas and keys, in their order.
fn drawn(claim: &Claim) -> Vec<(&str, &str)> {
    let keys = claim.quotas.iter().flat_map(|keys| keys.iter());
    keys.map(|key| (&*key.quota, &*key.key)).collect()
}

#[track_caller]
fn check(callers: &Callers, identity: &Arc<Identity>, function: &str, keys: &[(&str, &str)]) {
    assert_eq!(drawn(&claim(callers, identity, function)), keys);
}

const ALICE: &str = "[[caller]]\nlabel = \"alice's\"\nmatch = { user = \"alice\" }\n";
/// No caller is registered automatically.
const KNOWN_ONLY: &str = "[callers]\nauto_register = 0\n";

#[test]
fn a_call_draws_from_the_quota_of_its_user() {
    let callers = start(&[("q", "\"user\"")], "");
    check(
        &callers,
        &user("alice"),
        "guest_list",
        &[("rate_limit:q", "alice")],
    );
    check(
        &callers,
        &user("a:b/c"),
        "guest_list",
        &[("rate_limit:q", "a:b/c")],
    );
    // Calls without a user share one quota.
    check(&callers, &user(""), "guest_list", &[("rate_limit:q", "")]);
    let longest = "x".repeat(QUOTA_KEY_BYTES_MAX);
    check(
        &callers,
        &user(&longest),
        "guest_list",
        &[("rate_limit:q", &longest)],
    );
}

#[test]
fn a_call_draws_from_the_quota_of_its_caller_by_a_name_that_every_sidecar_gives() {
    let more = format!("{ALICE}[callers]\nidentify = [\"user\"]");
    let callers = start(&[("q", "\"caller\"")], &more);
    check(
        &callers,
        &user("alice"),
        "guest_list",
        &[("rate_limit:q", "alice's")],
    );
    check(
        &callers,
        &user("bob"),
        "guest_list",
        &[("rate_limit:q", "user=bob")],
    );
    check(&callers, &user(""), "guest_list", &[("rate_limit:q", "")]);
    // An auto-registered caller has no quota besides that of the wider caller it belongs to.
    let callers = start(&[("q", "\"caller\"")], ALICE);
    let key = [("rate_limit:q", "alice's")];
    check(&callers, &user("alice"), "guest_list", &key);
    let elsewhere = Arc::new(Identity {
        user_agent: Some("another".into()),
        ..Arc::unwrap_or_clone(user("alice"))
    });
    let claim = claim(&callers, &elsewhere, "guest_list");
    assert_eq!(drawn(&claim), key);
    let now = callers
        .get(Timestamp::ZERO, claim.caller)
        .expect("it is there");
    assert_eq!(now.row.label, None, "it has registered itself");
    // A caller without its own row is unknown.
    let callers = start(&[("q", "\"caller\"")], &format!("{ALICE}{KNOWN_ONLY}"));
    check(
        &callers,
        &user("alice"),
        "guest_list",
        &[("rate_limit:q", "alice's")],
    );
    check(
        &callers,
        &user("bob"),
        "guest_list",
        &[("rate_limit:q", "")],
    );
}

#[test]
fn the_addresses_of_one_ipv6_prefix_draw_from_one_quota() {
    let from = |address: &str| {
        let address: std::net::Ipv6Addr = address.parse().expect("an address");
        support::identity("nova", (address, 1000))
    };
    let callers = start(&[("q", "\"caller\"")], "");
    let key = "ip=2001:db8:1:2::/64 listener=nova";
    for number in 0..60 {
        let one = from(&format!("2001:db8:1:2::{number:x}"));
        check(&callers, &one, "guest_list", &[("rate_limit:q", key)]);
    }
    let whole = start(&[("q", "\"caller\"")], "[callers]\nipv6_prefix = 128\n");
    let key = "ip=2001:db8:1:2::7 listener=nova";
    let one = from("2001:db8:1:2::7");
    check(&whole, &one, "guest_list", &[("rate_limit:q", key)]);
}

#[test]
fn callers_with_names_too_long_for_a_key_have_a_quota_each_all_the_same() {
    let callers = start(&[("q", "\"caller\"")], "");
    let key = |agent: &str| {
        let mut identity = Arc::unwrap_or_clone(user(&"u".repeat(250)));
        identity.user_agent = Some(agent.into());
        let claim = claim(&callers, &Arc::new(identity), "guest_list");
        drawn(&claim)[0].1.to_owned()
    };
    let (one, other) = (key("one"), key("other"));
    assert!(
        one.starts_with("user=uuuu") && one.len() <= QUOTA_KEY_BYTES_MAX,
        "{one}"
    );
    assert_ne!(one, other);
    assert_eq!(one, key("one"));
}

#[test]
fn a_call_draws_from_the_quota_of_its_function_and_from_that_of_all() {
    let quotas = [
        ("each", "\"function\""),
        ("lists", "\"function\"\nfunction = \"guest_list\""),
        ("all", "\"total\""),
    ];
    let callers = start(&quotas, "");
    check(
        &callers,
        &user("alice"),
        "guest_list",
        &[
            ("rate_limit:each", "guest_list"),
            ("rate_limit:lists", "guest_list"),
            ("rate_limit:all", "all"),
        ],
    );
    // One that statistics do not tell apart has its exact name.
    check(
        &callers,
        &user(""),
        "no_such_function",
        &[
            ("rate_limit:each", "no_such_function"),
            ("rate_limit:all", "all"),
        ],
    );
    let callers = start(&quotas[1..2], "");
    let other = claim(&callers, &user("alice"), "guest_start");
    assert!(other.quotas.is_none(), "no memory is taken for nothing");
}

#[test]
fn keys_shared_by_many_calls_are_not_copied() {
    let quotas = [
        ("all", "\"total\""),
        ("each", "\"function\""),
        ("own", "\"user\""),
        ("whose", "\"caller\""),
    ];
    let callers = start(&quotas, ALICE);
    let alice = user("alice");
    let keys = |identity: &Arc<Identity>| {
        claim(&callers, identity, "guest_list")
            .quotas
            .expect("four keys")
    };
    let (first, second) = (keys(&alice), keys(&alice));
    for (first, second) in first.iter().zip(second.iter()) {
        assert!(Arc::ptr_eq(&first.quota, &second.quota), "{first:?}");
        assert!(Arc::ptr_eq(&first.key, &second.key), "{first:?}");
    }
    let of_user = alice.user.as_ref().expect("she has a name");
    assert!(Arc::ptr_eq(&first[2].key, of_user));
    let (unknown, again) = (keys(&user("")), keys(&user("")));
    assert!(Arc::ptr_eq(&unknown[2].key, &again[2].key));
}

#[test]
fn an_exempt_caller_draws_only_from_common_quotas() {
    let more = format!(
        "{ALICE}rate_limit = \"free\"\n[[bucket]]\nname = \"free\"\nprofile = \"unlimited\"\n"
    );
    let quotas = [
        ("own", "\"user\""),
        ("whose", "\"caller\""),
        ("each", "\"function\""),
        ("all", "\"total\""),
    ];
    let callers = start(&quotas, &more);
    let shared = [("rate_limit:each", "guest_list"), ("rate_limit:all", "all")];
    check(&callers, &user("alice"), "guest_list", &shared);
    assert_eq!(drawn(&claim(&callers, &user("bob"), "guest_list")).len(), 4);
    let callers = start(&quotas[..2], &more);
    assert!(
        claim(&callers, &user("alice"), "guest_list")
            .quotas
            .is_none()
    );
}

#[test]
fn a_call_that_meets_no_limits_draws_from_no_quota() {
    let callers = start(&[("own", "\"user\""), ("all", "\"total\"")], "");
    let claim = callers.claim(Timestamp::ZERO, &user("alice"), "token", Meets::NoLimits);
    assert!(claim.quotas.is_none());
}

#[test]
fn a_claim_without_quotas_has_no_keys() {
    let callers = start(&[], ALICE);
    assert!(
        claim(&callers, &user("alice"), "guest_list")
            .quotas
            .is_none()
    );
}

#[test]
fn a_rate_limit_of_the_caller_is_charged_beside_its_quotas() {
    let more =
        format!("{ALICE}rate_limit = \"slow\"\n[[bucket]]\nname = \"slow\"\nburst = 3\nfill = 1\n");
    let callers = start(&[("own", "\"user\"")], &more);
    let claim = claim(&callers, &user("alice"), "guest_list");
    assert_eq!(claim.rate_limit().map(|label| &**label), Some("slow"));
    assert_eq!(drawn(&claim), [("rate_limit:own", "alice")]);
    // What waits at the gate draws from the same.
    assert_eq!(Claimed::of(&claim).quotas, claim.quotas);
}

#[test]
fn a_reload_decides_about_the_calls_that_come_after_it() {
    let callers = start(&[("own", "\"user\"")], "");
    let reload = |quotas: &[(&str, &str)], more: &str| {
        let applied = callers.apply(&settings(quotas, more));
        drop(applied.expect("there is room for them"));
    };
    let alice = user("alice");
    check(
        &callers,
        &alice,
        "guest_list",
        &[("rate_limit:own", "alice")],
    );
    reload(&[("all", "\"total\""), ("whose", "\"caller\"")], ALICE);
    let both = [("rate_limit:all", "all"), ("rate_limit:whose", "alice's")];
    check(&callers, &alice, "guest_list", &both);
    let renamed = ALICE.replace("alice's", "hers");
    reload(&[("whose", "\"caller\"")], &renamed);
    check(
        &callers,
        &alice,
        "guest_list",
        &[("rate_limit:whose", "hers")],
    );
    reload(&[], "");
    assert!(claim(&callers, &alice, "guest_list").quotas.is_none());
}

#[test]
fn a_caller_that_is_renamed_draws_from_the_quota_of_its_new_name() {
    let callers = start(&[("q", "\"caller\"")], "[callers]\nidentify = [\"user\"]");
    let bob = user("bob");
    check(
        &callers,
        &bob,
        "guest_list",
        &[("rate_limit:q", "user=bob")],
    );
    let patch = Patch {
        label: Some(Label::new("robert").expect("a label")),
        ..Patch::default()
    };
    let caller = claim(&callers, &bob, "guest_list").caller;
    drop(callers.patch(caller, patch).expect("it is right"));
    check(&callers, &bob, "guest_list", &[("rate_limit:q", "robert")]);
}

#[test]
fn a_call_draws_from_eight_quotas_at_most() {
    let names: Vec<String> = (0..8).map(|at| format!("q{at}")).collect();
    let quotas: Vec<_> = names.iter().map(|name| (&**name, "\"user\"")).collect();
    let callers = start(&quotas, "");
    assert_eq!(
        drawn(&claim(&callers, &user("alice"), "guest_list")).len(),
        8
    );
    // Nor can another way of starting it give more.
    let quota = |at: usize| Quota {
        name: format!("rate_limit:q{at}").into(),
        by: QuotaBy::Total,
    };
    let nine = CallersSettings {
        quotas: (0..9).map(quota).collect(),
        ..settings(&[], "")
    };
    drop(callers.apply(&nine).expect("there is room for them"));
    assert_eq!(
        drawn(&claim(&callers, &user("alice"), "guest_list")).len(),
        8
    );
}

#[test]
fn no_rate_limit_is_made_under_the_name_of_a_quota() {
    let callers = start(&[("own", "\"user\"")], "");
    let profile = Size::Profile("poller".into());
    let mut new = NewRateLimit::of(profile);
    new.label = Some(Label::new("own").expect("a label"));
    let refused = callers.create_rate_limit(Timestamp::ZERO, new);
    assert_eq!(
        refused.map(drop).map_err(|error| error.field().to_owned()),
        Err("label".into())
    );
}
