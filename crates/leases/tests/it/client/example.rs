use tidegate_leases::client::{ClientOptions, LeaseClient, ResourceOptions, SafeCapacity};

/// Does this many jobs, each when its turn has come. Returns how many were done.
pub(super) async fn send_all(server: &str, jobs: u32) -> Result<u32, Box<dyn std::error::Error>> {
    let client = LeaseClient::new(vec![server.parse()?], ClientOptions::default())?;
    let options = ResourceOptions {
        // Before there is a lease, and when no server answers any more: two.
        safe_capacity: Some(SafeCapacity::new(2.0)?),
        wants_at_first: f64::from(jobs),
        ..ResourceOptions::default()
    };
    let requests = client.rate("backend/requests", options)?;
    let connections = client.gauge("backend/connections", options)?;
    let mut done = 0;
    for _job in 0..jobs {
        requests.wait().await?;
        let _connection = connections.enter().await?;
        // Do it here: the place is given back when `_connection` is dropped.
        done += 1;
    }
    client.close().await;
    Ok(done)
}
