//! Requests from a page of another origin, by their headers.
//!
//! A browser on a machine that can reach an address for operators sends requests for any page that
//! it shows. So on every method:
//!
//! - `Host` must be an IP address, a name of loopback, or a name that the config allows. A page
//!   whose own name leads here (DNS rebinding) sends its own name.
//! - `Origin`, if present, must be this address.
//! - `Sec-Fetch-Site`, if present, must be `same-origin` or `none`, unless a user follows a link to
//!   here. The page with the link cannot read the answer.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Names of loopback, as in `/etc/hosts`. No DNS server decides where they lead.
const LOOPBACK: [&str; 3] = ["localhost", "ip6-localhost", "ip6-loopback"];

/// The header that shows another origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignSign {
    /// `Host` is not a name of this address.
    Host,
    /// `Origin` is another address.
    Origin,
    /// `Sec-Fetch-Site` is another site.
    Site,
}

impl ForeignSign {
    /// The name of the header.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::Site => "sec-fetch-site",
        }
    }

    /// The problem. `option` is the config option for further names.
    #[must_use]
    pub fn reason(self, option: &str) -> String {
        match self {
            Self::Host => format!(
                "is not a name of this address; use the IP address, or add the name to {option}"
            ),
            Self::Origin => "must be this address: pages of other origins are refused".to_owned(),
            Self::Site => {
                "must be same-origin or none: pages of other origins are refused".to_owned()
            }
        }
    }
}

/// The header of a request that shows another origin, if there is one. `allowed` are further names
/// that `Host` may have.
#[must_use]
pub fn foreign(method: &Method, headers: &HeaderMap, allowed: &[Box<str>]) -> Option<ForeignSign> {
    // Every browser sends it.
    let Ok(host) = text(headers, &header::HOST) else {
        return Some(ForeignSign::Host);
    };
    if host.is_some_and(|host| !is_ours(host, allowed)) {
        return Some(ForeignSign::Host);
    }
    let is_same = |origin: &str| {
        let origin = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        matches!((origin, host), (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host))
    };
    match text(headers, &header::ORIGIN) {
        Ok(None) => {}
        Ok(Some(origin)) if is_same(origin) => {}
        _ => return Some(ForeignSign::Origin),
    }
    let follows_a_link = || {
        method.is_safe()
            && text(headers, &SEC_FETCH_MODE) == Ok(Some("navigate"))
            && text(headers, &SEC_FETCH_DEST) == Ok(Some("document"))
    };
    match text(headers, &SEC_FETCH_SITE) {
        Ok(None | Some("same-origin" | "none")) => None,
        Ok(Some(_)) if follows_a_link() => None,
        _ => Some(ForeignSign::Site),
    }
}

/// The value of a header, if present.
///
/// # Errors
///
/// If the header is there more than once.
#[expect(clippy::result_unit_err, reason = "there is one error")]
pub fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(()),
    }
}

/// The value of a header as text, if present; an error if there are several, or it is not text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let value = only(headers, name)?;
    value.map(HeaderValue::to_str).transpose().map_err(drop)
}

/// Whether `Host` is a legitimate name of this address: an IP address, which no DNS server
/// decides, loopback, or a name in the config.
fn is_ours(host: &str, allowed: &[Box<str>]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    if let Some(ip) = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        return ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let allowed = allowed.iter().map(|name| &**name);
    name.parse::<IpAddr>().is_ok()
        || LOOPBACK
            .into_iter()
            .chain(allowed)
            .any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> [Box<str>; 1] {
        ["Gate.example".into()]
    }

    #[test]
    fn a_host_is_an_address_or_a_known_name() {
        let check = |host: &str, ours: bool| assert_eq!(is_ours(host, &allowed()), ours, "{host}");
        check("127.0.0.1:9180", true);
        check("10.1.2.3", true);
        check("localhost:9180", true);
        check("LocalHost", true);
        check("localhost.:9180", true);
        check("ip6-localhost:9180", true);
        check("[::1]:9180", true);
        check("[::1]", true);
        check("gate.example:9180", true);
        check("GATE.EXAMPLE.", true);
        check("", false);
        check(":9180", false);
        check("[evil.example]", false);
        check("[127.0.0.1]", false);
        check("evil.example:9180", false);
        check("a.gate.example", false);
        check("gate.example.evil.example", false);
        check("127.0.0.1.evil.example", false);
        check("localhost.evil.example", false);
    }

    #[test]
    fn one_header_reveals_a_page_of_another_origin() {
        let check = |given: &[(&HeaderName, &str)], expected: Option<&str>| {
            let value = |text| HeaderValue::from_str(text).expect("a header value");
            let headers = given
                .iter()
                .map(|&(name, text)| (name.clone(), value(text)));
            let field = foreign(&Method::GET, &headers.collect(), &allowed());
            assert_eq!(field.map(ForeignSign::field), expected, "{given:?}");
        };
        let (host, origin) = (&header::HOST, &header::ORIGIN);
        let (site, mode, dest) = (&SEC_FETCH_SITE, &SEC_FETCH_MODE, &SEC_FETCH_DEST);
        let here = (host, "127.0.0.1:9180");
        check(&[], None);
        check(&[here], None);
        check(&[here, here], Some("host"));
        check(&[(host, "evil.example")], Some("host"));
        check(&[here, (origin, "http://127.0.0.1:9180")], None);
        check(&[here, (origin, "http://127.0.0.1:80")], Some("origin"));
        check(&[here, (origin, "http://evil.example")], Some("origin"));
        check(&[here, (origin, "null")], Some("origin"));
        check(&[(origin, "http://127.0.0.1:9180")], Some("origin"));
        let gate = (host, "gate.example");
        check(&[gate, (origin, "https://gate.example")], None);
        check(&[here, (site, "same-origin")], None);
        check(&[here, (site, "none")], None);
        check(&[here, (site, "same-site")], Some("sec-fetch-site"));
        check(&[here, (site, "cross-site")], Some("sec-fetch-site"));
        let navigate = (mode, "navigate");
        check(
            &[here, (site, "cross-site"), navigate],
            Some("sec-fetch-site"),
        );
        check(
            &[here, (site, "cross-site"), navigate, (dest, "document")],
            None,
        );
        check(
            &[here, (site, "cross-site"), navigate, (dest, "iframe")],
            Some("sec-fetch-site"),
        );
    }
}
