//! The order of work within one turn of a thread's loop.

use std::future::poll_fn;
use std::mem;
use std::task::Poll;

/// Waits until what came to this thread at the same moment has been read too, and ends at once if nothing did.
///
/// A loop wakes for many connections at once. If each call were sent as soon as it is read, the backend would
/// wake for each of them, often on the processor of this thread, which has to stop for it. So all are read
/// first, and then leave close together. (docs/decisions/0033)
pub(super) fn yield_once() -> impl Future<Output = ()> + Send {
    let mut is_last = false;
    poll_fn(move |cx| {
        if mem::replace(&mut is_last, true) {
            return Poll::Ready(());
        }
        // The loop puts this task behind those that are ready.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn all_that_came_at_one_moment_is_read_before_the_first_goes_on() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
        for number in 0..3 {
            let (client, mut server) = duplex(8);
            clients.push(client);
            let order = Arc::clone(&order);
            tasks.spawn(async move {
                for _ in 0..2 {
                    server.read_u8().await.unwrap();
                    order.lock().unwrap().push(('r', number));
                    yield_once().await;
                    order.lock().unwrap().push(('s', number));
                }
            });
        }
        for client in &mut clients {
            client.write_all(b"..").await.unwrap();
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let order = order.lock().unwrap();
        let kinds: String = order.iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, "rrrsrsrsrsss", "{order:?}");
    }
}
