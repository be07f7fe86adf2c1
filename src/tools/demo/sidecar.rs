//! The sidecar of the demonstration: the app itself, as `tidegate serve` runs it.

use std::io;

use super::{Postpone, Proxy, Wish};
use crate::app::App;
use crate::config;

/// Starts a sidecar that does what is wished, on a free port.
pub(super) async fn start(wish: Wish) -> io::Result<Proxy> {
    let text = text(&wish);
    let checked = config::read(&text, "the demo's config", std::iter::empty())
        .map_err(|problems| io::Error::other(problems.render(false)))?;
    let app =
        App::start(checked.config, None).map_err(|error| io::Error::other(error.to_string()))?;
    let listeners = app.listeners();
    let addr = listeners.iter().find_map(|(_, bind)| bind.tcp());
    let addr = addr.expect("the config above has one listener, on TCP");
    Ok(Proxy {
        addr,
        stop: Box::pin(async move {
            app.drain().await;
        }),
    })
}

fn text(wish: &Wish) -> String {
    let postpone = match wish.postpone {
        Postpone::InTurn => "in_turn",
        Postpone::Jitter => "jitter",
    };
    format!(
        r#"
        [[listen]]
        name = "demo"
        bind = "127.0.0.1:0"
        protocol = "socket"
        [backend]
        socket = "{}"
        [queue]
        postpone = "{postpone}"
        [limits]
        smapi_rate_limit_window_size_seconds = {}
        smapi_rate_limit_per_window = "total:{}"
        smapi_max_outstanding_requests = {}
        [admin]
        bind = ""
        "#,
        wish.backend,
        wish.limits.window.as_secs(),
        wish.limits.per_window,
        wish.limits.in_flight
    )
}
