//! A capacity server in this process, and a channel to one.

use std::net::SocketAddr;

use tidegate_lease_server::config;
use tidegate_lease_server::running::LeaseServer;
use tonic::transport::{Channel, Endpoint};

pub(crate) async fn started(text: &str) -> LeaseServer {
    let (config, _) = config::read(text, "leases.toml").unwrap_or_else(|it| panic!("{it}"));
    LeaseServer::start(&config).await.expect("it starts")
}

pub(crate) fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect_lazy()
}
