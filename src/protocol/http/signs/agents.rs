//! How many interim answers a client reads before its answer, by its `User-Agent`.
//!
//! Each row was learnt from the real client: `tests/it/signs_of_life/matrix.rs` drives it, and writes its table into
//! `docs/reference/signs-of-life.md`.

/// How many interim answers of one status a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MostInterims {
    /// The client takes the first one for its answer, or ends the connection.
    None,
    /// The client reads some, and some of its versions count all of them.
    Few,
    /// The client reads any number.
    Any,
}

/// A client that is known.
#[derive(Debug)]
pub(super) struct KnownAgent {
    /// The name of its product.
    name: &'static str,
    pub(super) of_continue: MostInterims,
    pub(super) of_processing: MostInterims,
}

const KNOWN: [KnownAgent; 15] = [
    both("curl", MostInterims::Any),
    both("Wget", MostInterims::Any),
    // `http.client` skips 100 in a loop, and returns any other status.
    only_continue("python-requests"),
    only_continue("python-urllib3"),
    only_continue("Python-urllib"),
    both("python-httpx", MostInterims::Any),
    both("aiohttp", MostInterims::Any),
    // Both are undici. It destroys the connection at a 100 that it has not asked for.
    only_processing("node"),
    only_processing("undici"),
    // Five with versions before 1.23, and a bound of bytes since then.
    both("Go-http-client", MostInterims::Few),
    // At most eight.
    both("Java-http-client", MostInterims::Few),
    // `HttpURLConnection` skips 100 alone.
    only_continue("Java"),
    both("HTTP-Tiny", MostInterims::Any),
    both("Ruby", MostInterims::Any),
    // LWP takes the first interim answer for its answer, also if it is a 100.
    both("libwww-perl", MostInterims::None),
];

const fn both(name: &'static str, most: MostInterims) -> KnownAgent {
    KnownAgent {
        name,
        of_continue: most,
        of_processing: most,
    }
}

const fn only_continue(name: &'static str) -> KnownAgent {
    KnownAgent {
        of_processing: MostInterims::None,
        ..both(name, MostInterims::Any)
    }
}

const fn only_processing(name: &'static str) -> KnownAgent {
    KnownAgent {
        of_continue: MostInterims::None,
        ..both(name, MostInterims::Any)
    }
}

/// The client with this `User-Agent`, if it is known. Its first product counts: products behind it may be those of
/// programs that it only resembles. aiohttp alone names Python first.
pub(super) fn find(user_agent: &str) -> Option<&'static KnownAgent> {
    let mut products = user_agent.split_ascii_whitespace().map(name_of);
    let first = match products.next()? {
        "Python" => products.next().filter(|it| *it == "aiohttp")?,
        first => first,
    };
    KNOWN.iter().find(|known| known.name == first)
}

/// The name of a product, without its version.
fn name_of(product: &str) -> &str {
    product.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_known_by_its_first_product() {
        let name = |user_agent| find(user_agent).map(|known| known.name);
        for (user_agent, expected) in [
            ("curl/8.5.0", Some("curl")),
            ("Python/3.11 aiohttp/3.14.5", Some("aiohttp")),
            ("python-requests/2.34.2", Some("python-requests")),
            ("node", Some("node")),
            ("Java/17.0.15", Some("Java")),
            ("Java-http-client/17.0.15", Some("Java-http-client")),
            ("Python/3.11 websockets/17.4", None),
            ("Mozilla/5.0 (X11) curl/8", None),
            ("curlish/1", None),
            ("CURL/8", None),
            ("", None),
        ] {
            assert_eq!(name(user_agent), expected, "{user_agent}");
        }
    }
}
