//! Whether the lease servers answer, and which of them grants leases. No capacity is taken.

use tidegate_leases::client::{ReportedRole, ServerAddress, Unanswered, standing};
use tidegate_leases::sharing::SharedServers;
use tokio::task::JoinSet;

use super::kinds::LEASE_SERVER;
use super::{Finding, STEP_MAX, in_words};
use crate::app::lease_options;

type RoleReport = (ServerAddress, Result<ReportedRole, Unanswered>);

/// A finding for each server, and one for a master that only they name.
pub(super) async fn check(servers: &SharedServers) -> Vec<Finding> {
    let mut answers = ask(servers, servers.addresses.clone()).await;
    let is_master = |(_, answer): &RoleReport| *answer == Ok(ReportedRole::Master);
    if !answers.iter().any(is_master) {
        let named = answers.iter().filter_map(|(_, answer)| match answer {
            Ok(ReportedRole::Other(Some(named))) => named.parse::<ServerAddress>().ok(),
            _ => None,
        });
        let mut named: Vec<ServerAddress> = named.collect();
        named.retain(|it| !servers.addresses.contains(it));
        named.sort();
        named.dedup();
        named.truncate(servers.addresses.len());
        answers.extend(ask(servers, named).await);
    }
    let has_master = answers.iter().any(is_master);
    let findings = answers.into_iter().map(|it| finding(it, has_master));
    findings.collect()
}

/// Asks all of them at once.
async fn ask(servers: &SharedServers, addresses: Vec<ServerAddress>) -> Vec<RoleReport> {
    let mut options = lease_options(servers);
    options.request_timeout = options.request_timeout.min(STEP_MAX);
    let mut asking = JoinSet::new();
    for (order, address) in addresses.into_iter().enumerate() {
        let options = options.clone();
        asking.spawn(async move {
            let answer = standing(&address, &options).await;
            (order, address, answer)
        });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|(order, ..)| *order);
    answers
        .into_iter()
        .map(|(_, address, answer)| (address, answer))
        .collect()
}

fn finding((server, answer): RoleReport, has_master: bool) -> Finding {
    let about = server.to_string();
    match answer {
        Ok(ReportedRole::Master) => LEASE_SERVER.ok(about, "is the master, and grants leases"),
        Ok(ReportedRole::Other(named)) if has_master => {
            let named = named.map_or(String::new(), |it| format!("; it names {it}"));
            LEASE_SERVER.ok(about, format!("answers, and is not the master{named}"))
        }
        Ok(ReportedRole::Other(None)) => LEASE_SERVER.failed(
            about,
            "is not the master, and knows none",
            "no server grants leases: an election is under way, or none can be held",
            "wait some seconds and check again; then look at its log and at the store of its \
             elections. Until then each sidecar has its safe share",
        ),
        Ok(ReportedRole::Other(Some(named))) => LEASE_SERVER.failed(
            about,
            format!("is not the master; it names {named}"),
            "the server that it names does not answer as the master",
            format!(
                "let this machine reach {named}, or correct the `address` by which that server is \
                 known to clients. Until then each sidecar has its safe share"
            ),
        ),
        Err(error) => {
            let (cause, cure) = match &error {
                Unanswered::NotReached(why) => (
                    why.clone(),
                    "start `tidegate lease-server` there, let packets through to it, or correct \
                     coordinate.servers",
                ),
                Unanswered::Late(bound) => (
                    format!("it did not answer within {}", in_words(*bound)),
                    "look for a firewall that drops packets, and at the log of the server",
                ),
                Unanswered::Refused { method, why } => (
                    format!("it answers {method} with an error: {why}"),
                    "make sure that it is the address of a lease server, not that of its status \
                     page, and that it admits this client",
                ),
            };
            match has_master {
                true => {
                    let cause = format!("{cause}; another server is the master");
                    LEASE_SERVER.warning(about, "does not answer", cause, cure)
                }
                false => LEASE_SERVER.failed(about, "does not answer", cause, cure),
            }
        }
    }
}
