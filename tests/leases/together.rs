//! The library, the agent and the Python example, each at a capacity server of ours.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tidegate_lease_server::running::LeaseServer;
use tidegate_leases::client::{
    Allowance, ClientOptions, GaugeResource, LeaseClient, ResourceOptions,
};

use crate::agent::{agent_of, asked};
use crate::example::{example, says};
use crate::started::started;
use crate::support::until;

/// Ten places for all; each of two clients always owns two of them.
fn rules(bind: &str, lease: &str) -> String {
    // A star matches no "/".
    let rule = |glob: &str| {
        format!(
            "[[resource]]\nglob = \"{glob}\"\ncapacity = 10\nsafe_capacity = 2\n\
             algorithm = {{ kind = \"fair_share\", lease = \"{lease}\", refresh = \"1s\", \
             learning = \"0s\" }}\n"
        )
    };
    let (one, every) = (rule("*/*"), rule("*"));
    format!("bind = \"{bind}\"\nstatus_bind = \"\"\nminimum_interval = \"0s\"\n{one}{every}")
}

async fn at(address: SocketAddr) -> LeaseClient {
    let options = ClientOptions {
        interval_min: Duration::from_millis(100),
        request_timeout: Duration::from_millis(500),
        ..ClientOptions::default()
    };
    let server = address.to_string().parse().expect("an address");
    LeaseClient::new(vec![server], options).expect("options are right")
}

fn wants(client: &LeaseClient, places: f64) -> GaugeResource {
    let gauge = client
        .gauge("disks", ResourceOptions::default())
        .expect("it opens");
    gauge.set_wants(Some(places)).expect("a capacity");
    gauge
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    until(is_so, || what.to_owned()).await;
}

fn may_use(gauge: &GaugeResource) -> f64 {
    match gauge.state().allowance {
        Allowance::UpTo(amount) => amount,
        Allowance::Unlimited => f64::INFINITY,
    }
}

#[tokio::test]
async fn two_clients_share_what_there_is_and_keep_the_safe_share_while_the_server_is_gone() {
    let server: LeaseServer = started(&rules("127.0.0.1:0", "2s")).await;
    let address = server.address();
    let (first, second) = (at(address).await, at(address).await);
    let greedy = wants(&first, 30.0);
    eventually("all is lent to the only one", || may_use(&greedy) == 10.0).await;
    let other = wants(&second, 3.0);
    eventually("the modest one has all it wants", || may_use(&other) == 3.0).await;
    assert_eq!(may_use(&greedy), 7.0);

    assert!(server.drain().await);
    eventually("both have the safe share", || {
        assert!(may_use(&greedy) <= 7.0 && may_use(&other) <= 3.0);
        may_use(&greedy) == 2.0 && may_use(&other) == 2.0
    })
    .await;

    let _again = started(&rules(&address.to_string(), "2s")).await;
    eventually("it is as before", || {
        assert!(may_use(&greedy) + may_use(&other) <= 10.0 + 2.0);
        may_use(&greedy) == 7.0 && may_use(&other) == 3.0
    })
    .await;
}

#[tokio::test]
async fn the_agent_lends_out_what_the_server_lends_it() {
    let server = started(&rules("127.0.0.1:0", "60s")).await;
    let agent = agent_of(&server.address().to_string(), &[]).await;
    let three = json!({"wants": 3}).to_string();
    let (status, _) = asked(&agent, "PUT /v1/gauge/a%2Fb/wants", &three).await;
    assert_eq!(status, 204);
    let enter = "POST /v1/gauge/a%2Fb/enter?timeout=20";
    for _ in 0..3 {
        let (status, body) = asked(&agent, enter, "").await;
        assert_eq!(status, 200, "{body}");
        assert!(body["token"].is_string(), "{body}");
    }
    let (status, _) = asked(&agent, "POST /v1/gauge/a%2Fb/enter?timeout=0", "").await;
    assert_ne!(status, 200, "a fourth place");
}

#[tokio::test]
async fn the_python_example_is_lent_what_it_wants() {
    let server = started(&rules("127.0.0.1:0", "2s")).await;
    let (mut child, mut lines) = example(&[&server.address().to_string()]);
    says(&mut lines, "back/end: 9.0").await;
    assert!(server.drain().await);
    says(&mut lines, "back/end: 2.0").await;
    child.kill().await.expect("it runs");
}
