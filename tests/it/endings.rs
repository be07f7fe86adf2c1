//! Was a message whole? Each way in which the backend's message can end, and each way to tell the
//! client: what each side must see, and what the access line says.
//!
//! Half a message never looks whole. To a client of HTTP/1.1 a reply is cut before its length or its last
//! chunk. A client of HTTP/1.0, and one of a tunnel, can take a FIN for a whole reply, so a cut reply ends
//! in a reset.

mod http;
mod tunnel;

/// The way to tell the client where a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// HTTP/1.1, with a length, held whole first.
    Small,
    /// HTTP/1.1, with a length, streamed.
    Large,
    /// HTTP/1.1, in chunks.
    Chunked,
    /// HTTP/1.0, streamed: with a length if it is known, otherwise up to the end of the connection.
    Http10,
    /// A connection of `protocol = "tcp"`.
    Tunnel,
    /// A connection that was switched to WebSocket.
    WebSocket,
}

/// The end that the client must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientSees {
    /// The whole message, with a clean end.
    Whole,
    /// A message that is not whole, by FIN or reset.
    Cut,
    /// A reset.
    Reset,
    /// A whole reply with this status, from Tidegate or the backend.
    Status(u16),
    /// The client sees no end, because it has left.
    Left,
}

/// The end that the backend must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackendSees {
    /// The next call on the same connection.
    Kept,
    /// The end of the connection, within a second.
    Closed,
    /// A reset, within a second.
    Reset,
    /// The backend sees no end, because it has ended the connection.
    Itself,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
struct Expected {
    client: ClientSees,
    backend: BackendSees,
    verdict: &'static str,
    /// Empty if there is none.
    reason: &'static str,
}

/// Makes a test of each cell. A cell that holds only a text is one that cannot occur, and why.
macro_rules! endings {
    ($($(#[doc = $about:literal])+ $row:ident = $ending:ident {
        small: $small:tt
        large: $large:tt
        chunked: $chunked:tt
        http_1_0: $http_1_0:tt
        tunnel: $tunnel:tt
        websocket: $websocket:tt
    })+) => {
        /// The way in which a message of the backend ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Ending {
            $($(#[doc = $about])+ $ending,)+
        }

        $(mod $row {
            endings!(@cell $ending, small, Small, $small);
            endings!(@cell $ending, large, Large, $large);
            endings!(@cell $ending, chunked, Chunked, $chunked);
            endings!(@cell $ending, http_1_0, Http10, $http_1_0);
            endings!(@cell $ending, tunnel, Tunnel, $tunnel);
            endings!(@cell $ending, websocket, WebSocket, $websocket);
        })+
    };
    (@cell $ending:ident, $name:ident, $told:ident, ($cannot_occur:literal)) => {};
    (@cell $ending:ident, $name:ident, $told:ident,
     ($client:ident $(($status:literal))?, $backend:ident, $verdict:literal, $reason:literal)) => {
        #[tokio::test]
        async fn $name() {
            use super::{BackendSees, ClientSees, Ending, Expected, Told};
            let expected = Expected {
                client: ClientSees::$client $(($status))?,
                backend: BackendSees::$backend,
                verdict: $verdict,
                reason: $reason,
            };
            super::check(Ending::$ending, Told::$told, expected).await;
        }
    };
}

async fn check(ending: Ending, told: Told, expected: Expected) {
    match told {
        Told::Tunnel | Told::WebSocket => tunnel::check(ending, told, expected).await,
        _ => http::check(ending, told, expected).await,
    }
}

endings! {
    /// All bytes of its length have come.
    length_complete = LengthComplete {
        small: (Whole, Kept, "passed", "")
        large: (Whole, Kept, "passed", "")
        chunked: ("a reply whose length is known has it on its way to the client")
        http_1_0: (Whole, Kept, "passed", "")
        tunnel: ("a tunnel has no framing")
        websocket: ("a tunnel has no framing")
    }

    /// The last chunk of the reply has come.
    chunks_complete = ChunksComplete {
        small: ("a reply of chunks has no length to give to the client")
        large: ("a reply of chunks has no length to give to the client")
        chunked: (Whole, Kept, "passed", "")
        http_1_0: (Whole, Kept, "passed", "")
        tunnel: ("a tunnel has no framing")
        websocket: ("a tunnel has no framing")
    }

    /// The reply has no framing, and its connection ends in a FIN.
    close = Close {
        small: ("a reply up to the end of its connection has no length to give to the client")
        large: ("a reply up to the end of its connection has no length to give to the client")
        chunked: (Whole, Itself, "passed", "")
        http_1_0: (Whole, Itself, "passed", "")
        tunnel: (Whole, Itself, "passed", "")
        websocket: (Whole, Itself, "passed", "")
    }

    /// The connection is reset in the middle. Without a length it has no framing.
    reset = Reset {
        small: (Status(502), Itself, "failed", "backend_cut")
        large: (Cut, Itself, "failed", "backend_cut")
        chunked: (Cut, Itself, "failed", "backend_cut")
        http_1_0: (Reset, Itself, "failed", "backend_cut")
        tunnel: (Reset, Itself, "failed", "backend_cut")
        websocket: (Reset, Itself, "failed", "backend_cut")
    }

    /// The connection ends in a FIN before the last chunk.
    chunks_cut = ChunksCut {
        small: ("a reply of chunks has no length to give to the client")
        large: ("a reply of chunks has no length to give to the client")
        chunked: (Cut, Itself, "failed", "backend_cut")
        http_1_0: (Reset, Itself, "failed", "backend_cut")
        tunnel: ("a tunnel has no framing")
        websocket: ("a tunnel has no framing")
    }

    /// The connection ends in a FIN before all bytes of the length.
    length_cut = LengthCut {
        small: (Status(502), Itself, "failed", "backend_cut")
        large: (Cut, Itself, "failed", "backend_cut")
        chunked: ("a reply whose length is known has it on its way to the client")
        http_1_0: (Reset, Itself, "failed", "backend_cut")
        tunnel: ("a tunnel has no framing")
        websocket: ("a tunnel has no framing")
    }

    /// The TLS connection is closed in the middle, without the alert that says so. Without a length it has no
    /// framing.
    tls_cut = TlsCut {
        small: (Status(502), Itself, "failed", "backend_cut")
        large: (Cut, Itself, "failed", "backend_cut")
        chunked: (Cut, Itself, "failed", "backend_cut")
        http_1_0: (Reset, Itself, "failed", "backend_cut")
        tunnel: (Reset, Itself, "failed", "backend_cut")
        websocket: (Reset, Itself, "failed", "backend_cut")
    }

    /// The backend answers in the middle of an upload of 20 MB, and closes with bytes unread.
    early_answer = EarlyAnswer {
        small: (Status(413), Itself, "passed", "")
        large: ("the kernel throws away what the backend has not sent when it closes: row reset")
        chunked: (Status(413), Itself, "passed", "")
        http_1_0: (Status(413), Itself, "passed", "")
        tunnel: (Reset, Itself, "failed", "backend_cut")
        websocket: ("a handshake has no body")
    }

    /// The client leaves in the middle, and the backend could continue.
    client_left = ClientLeft {
        small: (Left, Closed, "aborted", "client_left")
        large: (Left, Closed, "aborted", "client_left")
        chunked: (Left, Closed, "aborted", "client_left")
        http_1_0: (Left, Closed, "aborted", "client_left")
        tunnel: (Left, Reset, "aborted", "")
        websocket: (Left, Reset, "aborted", "")
    }

    /// The backend stops in the middle: `response_timeout` ends a reply, `tunnel_idle_timeout` a tunnel.
    deadline = Deadline {
        small: (Status(504), Closed, "failed", "backend_slow")
        large: (Cut, Closed, "failed", "backend_slow")
        chunked: (Cut, Closed, "failed", "backend_slow")
        http_1_0: (Reset, Closed, "failed", "backend_slow")
        tunnel: (Reset, Reset, "failed", "tunnel_idle")
        websocket: (Reset, Reset, "failed", "tunnel_idle")
    }

    /// Tidegate is stopped in the middle. What has a length is finished within `drain_timeout`; streams
    /// and tunnels, which may have no end, are cut after `drain_streams`. It exits with 0.
    drain = Drain {
        small: (Whole, Closed, "passed", "")
        large: (Whole, Closed, "passed", "")
        chunked: (Cut, Closed, "failed", "draining")
        http_1_0: (Reset, Closed, "failed", "draining")
        tunnel: (Reset, Reset, "failed", "draining")
        websocket: (Reset, Reset, "failed", "draining")
    }
}

/// The lines for this cell in `[backend]`, and its sections.
fn options(ending: Ending, told: Told) -> (&'static str, &'static str) {
    match ending {
        Ending::Deadline => (
            "response_timeout = \"300ms\"",
            "[client]\ntunnel_idle_timeout = \"300ms\"",
        ),
        Ending::Drain if matches!(told, Told::Small | Told::Large) => {
            ("", "[server]\ndrain_timeout = \"20s\"")
        }
        Ending::Drain => (
            "",
            "[server]\ndrain_timeout = \"20s\"\ndrain_streams = \"100ms\"",
        ),
        _ => ("", ""),
    }
}

/// Waits for the call's access line, and asserts its verdict and reason.
async fn check_line(sidecar: &crate::sidecar::Sidecar, expected: Expected) {
    let (line, _) = crate::raw_http::access_line(sidecar, 0).await;
    assert_eq!(line["verdict"], expected.verdict, "{line}");
    let reason = line["reason"].as_str().unwrap_or_default();
    assert_eq!(reason, expected.reason, "{line}");
}
