//! Whether each server of the store of the quotas answers, and lets this sidecar in.

use std::time::{Duration, Instant};

use tidegate_quota::{Engine, Obstacle, QuotaSettings, StoreError, StoreStep};
use tidegate_runtime::Clock;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::kinds::STORE;
use super::{Finding, in_words};

/// The bound of all that is tried at one server. Each call has a second.
const BOUND: Duration = Duration::from_secs(8);

/// A finding for each server.
pub(super) async fn check(quotas: &QuotaSettings) -> Vec<Finding> {
    let engine = &quotas.engine;
    let servers = engine.servers();
    if servers.is_empty() {
        return vec![STORE.ok("memory", "in this process, for this sidecar alone")];
    }
    let mut trials = JoinSet::new();
    for (order, (address, alone)) in servers.into_iter().enumerate() {
        trials.spawn(async move {
            let began = Instant::now();
            let tried = timeout(BOUND, alone.try_out(Clock::start())).await;
            (order, address, tried, began.elapsed())
        });
    }
    let mut tried = trials.join_all().await;
    tried.sort_by_key(|(order, ..)| *order);
    let some_answer = tried
        .iter()
        .any(|(_, _, tried, _)| matches!(tried, Ok(Ok(_))));
    let findings = tried
        .into_iter()
        .map(|(_, address, tried, took)| match tried {
            Ok(Ok(danger)) => {
                let found = format!("{} reads and writes in {}", engine.name(), in_words(took));
                match danger
                    .as_deref()
                    .and_then(|danger| danger.rsplit_once(": "))
                {
                    None => STORE.ok(address, found),
                    Some((cause, cure)) => STORE.warning(address, found, cause, cure),
                }
            }
            Ok(Err(obstacle)) => finding(quotas, address, &obstacle, some_answer),
            Err(_) => STORE.failed(
                address,
                "it does not answer",
                format!(
                    "{} did not answer within {}",
                    engine.name(),
                    in_words(BOUND)
                ),
                "look at its log",
            ),
        });
    findings.collect()
}

fn finding(
    quotas: &QuotaSettings,
    address: String,
    obstacle: &Obstacle,
    some_answer: bool,
) -> Finding {
    let engine = &quotas.engine;
    let place = &obstacle.place;
    let tried = match obstacle.step {
        StoreStep::Read => format!("cannot read {place}"),
        StoreStep::Write => format!("cannot write {place}"),
        StoreStep::Join => format!("cannot join the members in {place}"),
        StoreStep::Subscribe => format!("cannot subscribe to {place}"),
    };
    let cause = obstacle.error.with_cause();
    match &obstacle.error {
        StoreError::Unavailable(_) | StoreError::Unknown(_) => {
            let cure = format!(
                "start {} there, let packets through to it, or correct quota_store.servers",
                engine.name()
            );
            let found = format!("{} cannot be used", engine.name());
            match some_answer {
                true => STORE.warning(address, found, format!("{cause}; the others answer"), cure),
                false => STORE.failed(address, found, cause, cure),
            }
        }
        StoreError::Unauthenticated(_) => STORE.failed(
            address,
            tried,
            cause,
            "set user and password in [quota_store] to those of a user of the store \
             (TIDEGATE_QUOTA_STORE__PASSWORD in a container)",
        ),
        StoreError::Unsuitable(cause) => {
            let cause = cause.to_string();
            let (cause, cure) = cause.rsplit_once(": ").expect("it comes with its cure");
            STORE.failed(address, "it cannot hold quotas", cause, cure)
        }
        StoreError::Denied(_) => STORE.failed(address, tried, cause, allow(engine)),
        StoreError::Refused(_) | StoreError::Garbage(_) => STORE.failed(
            address,
            tried,
            cause,
            format!(
                "make sure that {} listens there, and look at its log",
                engine.name()
            ),
        ),
    }
}

/// How to give the user what it needs.
fn allow(engine: &Engine) -> String {
    let root = engine.root();
    match engine.word() {
        "redis" => format!(
            "let the user in: ACL SETUSER NAME ~{root}* &{root}* +@connection +@read +@write \
             +@scripting +@pubsub +time +info"
        ),
        "etcd" => format!(
            "let the user in: etcdctl role grant-permission ROLE readwrite --prefix=true {root}"
        ),
        _ => format!(
            "let the user in: setAcl {root} with create, read, write and delete (cdrw), and the \
             same for the node of the members"
        ),
    }
}
