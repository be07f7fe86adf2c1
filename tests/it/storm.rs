//! A storm for what operators look at: a slow backend, and more clients than its limits admit.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::support::{OK, Scripted, array, ask};

/// Clients at once.
const CLIENTS: usize = 24;

/// A backend that takes 300 ms for a call.
pub(crate) async fn slow_backend() -> Scripted {
    Scripted::start(|_, mut stream| async move {
        let mut request = [0; 4096];
        if stream.read(&mut request).await.unwrap_or(0) > 0 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            // The client may have left.
            let _ = stream.write_all(OK).await;
        }
    })
    .await
}

/// Clients that ask again and again, until they are dropped.
pub(crate) fn clients(addr: SocketAddr) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let function = ["guest_list", "image_query", "guest_get_info"][number % 3];
        clients.spawn(async move {
            loop {
                ask(addr, array(function, "X")).await;
            }
        });
    }
    clients
}
