//! Fuzzes the sources of a client's identity: a PROXY header, `Forwarded`, a certificate. Nothing panics; more
//! bytes never undo what was read of a header; a header that can't be a client's word alone never names one.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use http::header::{FORWARDED, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tidegate::call::Headers;
use tidegate::protocol::certificate::common_name;
use tidegate::protocol::forwarded;
use tidegate::protocol::proxy_header::{V1_BYTES_MAX, V2_BYTES_MAX, parse};
use tidegate::protocol::trusted::TrustedProxies;
use tidegate_callers::Network;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fuzz_target!(|bytes: &[u8]| {
    header(bytes);
    forged(bytes);
    if let Some(name) = common_name(bytes) {
        assert!(name.len() < bytes.len());
    }
});

fn header(bytes: &[u8]) {
    let whole = parse(bytes);
    if let Ok(Some(header)) = whole {
        assert!(header.length <= bytes.len());
        assert_eq!(parse(&bytes[..header.length]), whole);
    }
    let most = bytes.len().min(V1_BYTES_MAX.max(V2_BYTES_MAX) + 1);
    let mut before = Ok(None);
    for end in 0..=most {
        let now = parse(&bytes[..end]);
        if before != Ok(None) {
            assert_eq!(now, before);
        }
        before = now;
    }
}

/// Whatever a client writes, what the trusted proxy adds behind it is what counts.
fn forged(bytes: &[u8]) {
    let trusted = TrustedProxies {
        networks: [Network::single(Ipv4Addr::LOCALHOST.into())].into(),
        unix: false,
    };
    for name in [FORWARDED, http::HeaderName::from_static("x-forwarded-for")] {
        let added = if name == FORWARDED {
            "for=192.0.2.1"
        } else {
            "192.0.2.1"
        };
        let line = [bytes, b", ", added.as_bytes()].concat();
        let Ok(value) = HeaderValue::from_bytes(&line) else {
            return;
        };
        let mut headers = Headers::default();
        headers.append(&name, &value);
        assert_eq!(forwarded::read(&headers, &trusted).address, Some(CLIENT));
    }
}
