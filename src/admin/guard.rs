//! Lets in requests that carry the token, and refuses what a browser sends for another page.
//!
//! Where there is no token, the address is a loopback one, and every program that can connect is
//! trusted. A browser on this machine can connect too, for any page that it shows. Where there
//! is a token, a browser that was given it as a password adds it to every request by itself.
//! So on every method, with a token or without:
//!
//! - `Host` must be an IP address, a name of loopback, or one of `admin.allowed_hosts`. A page
//!   whose own name was made to lead here (DNS rebinding) sends its own name.
//! - `Origin`, where there is one, must be this address.
//! - `Sec-Fetch-Site`, where there is one, must be `same-origin` or `none`, unless a user follows
//!   a link to here, which the page with the link cannot look at.
//!
//! A body has to say that it is JSON besides, which a browser sends to another origin only after
//! asking, and that question is never answered with yes.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;

use super::{Settings, api};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Names of loopback, as `/etc/hosts` has them. No DNS server decides where they lead.
const LOOPBACK: [&str; 3] = ["localhost", "ip6-localhost", "ip6-loopback"];

/// A secret that never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub Box<str>);

impl Token {
    /// Whether the headers carry it, as a bearer token or as the password of any user. How long
    /// that takes tells its length at most.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let Ok(Some(given)) = only(headers, &header::AUTHORIZATION) else {
            return false;
        };
        let given = given.as_bytes();
        let Some(space) = given.iter().position(|byte| *byte == b' ') else {
            return false;
        };
        let (scheme, secret) = (&given[..space], given[space..].trim_ascii());
        if scheme.eq_ignore_ascii_case(b"Bearer") {
            return self.is(secret);
        }
        if scheme.eq_ignore_ascii_case(b"Basic") {
            let decoded = BASE64.decode(secret).unwrap_or_default();
            let colon = decoded.iter().position(|byte| *byte == b':');
            return colon.is_some_and(|colon| self.is(&decoded[colon + 1..]));
        }
        false
    }

    fn is(&self, secret: &[u8]) -> bool {
        secret.ct_eq(self.0.as_bytes()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Passes a request on if it comes from this address and carries the token, if there is one.
pub(super) async fn check(
    State(settings): State<Arc<Settings>>,
    request: Request,
    next: Next,
) -> Response {
    if let Some(refusal) = foreign(&settings, &request) {
        return refusal;
    }
    match &settings.token {
        Some(token) if !token.is_in(request.headers()) => ask_for_the_token(),
        _ => next.run(request).await,
    }
}

/// Whether a request may see what only operators may.
#[derive(Clone, Copy)]
pub(super) struct Trusted(pub(super) bool);

/// Passes a probe on. One that asks for details must come from this address; the others tell no
/// more than a probe from anywhere may know.
pub(super) async fn check_probe(
    State(settings): State<Arc<Settings>>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().query().is_some()
        && let Some(refusal) = foreign(&settings, &request)
    {
        return refusal;
    }
    let token = settings.token.as_ref();
    let trusted = token.is_none_or(|token| token.is_in(request.headers()));
    request.extensions_mut().insert(Trusted(trusted));
    next.run(request).await
}

fn ask_for_the_token() -> Response {
    let mut response = api::error(
        StatusCode::UNAUTHORIZED,
        "the admin token is required: as \"Authorization: Bearer TOKEN\", or as the password of \
         basic auth, with any user name",
    );
    // A browser asks its user for the first. Each has a line of its own, because some browsers
    // read only one challenge of a line.
    for challenge in [
        "Basic realm=\"tidegate\", charset=\"UTF-8\"",
        "Bearer realm=\"tidegate\"",
    ] {
        let challenge = HeaderValue::from_static(challenge);
        response
            .headers_mut()
            .append(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// The refusal of a request that a browser sent for a page of another origin.
fn foreign(settings: &Settings, request: &Request) -> Option<Response> {
    let (field, reason) = foreign_field(settings, request.method(), request.headers())?;
    Some(api::refuse(
        StatusCode::FORBIDDEN,
        "FORBIDDEN",
        field,
        reason,
    ))
}

/// The header that shows it, and why.
fn foreign_field(
    settings: &Settings,
    method: &Method,
    headers: &HeaderMap,
) -> Option<(&'static str, &'static str)> {
    const HOST: (&str, &str) = (
        "host",
        "is not a name of this address; use the IP address, or add the name to admin.allowed_hosts",
    );
    const ORIGIN: (&str, &str) = ("origin", "must be this address: no page of another may ask");
    const SITE: (&str, &str) = (
        "sec-fetch-site",
        "must be same-origin or none: no page of another origin may ask",
    );
    // No browser leaves it out.
    let Ok(host) = text(headers, &header::HOST) else {
        return Some(HOST);
    };
    if host.is_some_and(|host| !settings.is_ours(host)) {
        return Some(HOST);
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
        _ => return Some(ORIGIN),
    }
    let follows_a_link = || {
        method.is_safe()
            && text(headers, &SEC_FETCH_MODE) == Ok(Some("navigate"))
            && text(headers, &SEC_FETCH_DEST) == Ok(Some("document"))
    };
    match text(headers, &SEC_FETCH_SITE) {
        Ok(None | Some("same-origin" | "none")) => None,
        Ok(Some(_)) if follows_a_link() => None,
        _ => Some(SITE),
    }
}

/// The one value of a header; an error if there are more.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(()),
    }
}

/// The same, as text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let value = only(headers, name)?;
    value.map(HeaderValue::to_str).transpose().map_err(drop)
}

impl Settings {
    /// Whether `Host` is a name that only leads here because it should: an IP address, which no
    /// DNS server decides, loopback, or one of the config.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
            _ => host,
        };
        if let Some(ip) = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            return ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let allowed = self.allowed_hosts.iter().map(|name| &**name);
        name.parse::<IpAddr>().is_ok()
            || LOOPBACK
                .into_iter()
                .chain(allowed)
                .any(|known| known.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).expect("a header value");
            map.append(*name, value);
        }
        map
    }

    #[track_caller]
    fn check(given: &[&str], admitted: bool) {
        let given: Vec<_> = given
            .iter()
            .map(|it| (&header::AUTHORIZATION, *it))
            .collect();
        let token = Token("s3cret".into());
        assert_eq!(token.is_in(&map(&given)), admitted, "{given:?}");
    }

    #[test]
    fn only_the_whole_token_given_once_lets_in() {
        check(&["Bearer s3cret"], true);
        check(&["bearer s3cret"], true);
        check(&["BEARER  s3cret"], true);
        check(&[], false);
        check(&["Bearer "], false);
        check(&["Bearer"], false);
        check(&["s3cret"], false);
        check(&["Basic s3cret"], false);
        check(&["Bearer s3cre"], false);
        check(&["Bearer s3crets"], false);
        check(&["Bearer S3CRET"], false);
        check(&["Bearer s3cret", "Bearer s3cret"], false);
        check(&["Bearer wrong", "Bearer s3cret"], false);
    }

    #[test]
    fn the_token_is_the_password_of_any_user() {
        let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
        check(&[&basic("admin:s3cret")], true);
        check(&[&basic(":s3cret")], true);
        check(&[&basic("admin:s3cret").replace("Basic", "basic")], true);
        check(&[&basic("s3cret")], false);
        check(&[&basic("s3cret:")], false);
        check(&[&basic("admin:s3cret:")], false);
        check(&[&basic("admin:s3cret"), &basic("admin:s3cret")], false);
        check(&["Basic !!!"], false);
        check(&["Basic"], false);
    }

    fn settings() -> Settings {
        Settings {
            bind: None,
            token: None,
            allowed_hosts: ["Gate.example".into()].into(),
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name_that_is_known() {
        let check = |host: &str, ours: bool| assert_eq!(settings().is_ours(host), ours, "{host}");
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
    fn a_page_of_another_origin_shows_in_one_of_its_headers() {
        let check = |headers: &[(&HeaderName, &str)], told: Option<&str>| {
            let field = foreign_field(&settings(), &Method::GET, &map(headers));
            assert_eq!(field.map(|(field, _)| field), told, "{headers:?}");
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

    #[test]
    fn a_token_does_not_show_itself() {
        assert_eq!(format!("{:?}", Token("s3cret".into())), "Token(…)");
    }
}
