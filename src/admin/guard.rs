//! Lets in who knows the token, and no page in a browser that does not come from here.
//!
//! Where there is no token, the address is a loopback one, and whoever can connect is trusted.
//! A browser on this machine can connect too, for any page that it shows. So a request that
//! changes something is refused if its `Origin` is not this address, and if its `Host` is a
//! name other than `localhost`: a page whose own name was made to lead here has its own name
//! for both. A body has to say that it is JSON besides, which a browser sends to another origin
//! only after asking, and that question is never answered with yes.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::api;

/// A secret that never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub Box<str>);

impl Token {
    /// Whether the headers carry it. How long that takes tells its length at most.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else {
            return false;
        };
        match given.as_bytes().split_at_checked("Bearer ".len()) {
            Some((scheme, secret)) if scheme.eq_ignore_ascii_case(b"Bearer ") => {
                secret.trim_ascii().ct_eq(self.0.as_bytes()).into()
            }
            _ => false,
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Passes a request on if no token is asked for or it carries the right one.
pub(super) async fn check(
    State(token): State<Option<Token>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = token else {
        if !request.method().is_safe() && is_from_elsewhere(request.headers()) {
            return api::refuse(
                StatusCode::FORBIDDEN,
                "FORBIDDEN",
                "origin",
                "no page of another origin may change anything here",
            );
        }
        return next.run(request).await;
    };
    if token.is_in(request.headers()) {
        return next.run(request).await;
    }
    let mut response = api::error(
        StatusCode::UNAUTHORIZED,
        "the admin token is asked for, as \"Authorization: Bearer TOKEN\"",
    );
    response.headers_mut().insert(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Bearer realm=\"tidegate\""),
    );
    response
}

/// Whether a browser sent it for a page that does not come from this address.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|it: &HeaderValue| it.to_str());
    let host = match text(header::HOST) {
        Some(Ok(host)) => host,
        Some(Err(_)) => return true,
        // No browser leaves it out.
        None => return false,
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_here = name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok();
    let origin = match text(header::ORIGIN) {
        Some(Ok(origin)) => Some(origin),
        Some(Err(_)) => return true,
        None => None,
    };
    !is_here || origin.is_some_and(|origin| origin.strip_prefix("http://") != Some(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(headers: &[&str], admitted: bool) {
        let mut map = HeaderMap::new();
        for value in headers {
            let value = HeaderValue::from_str(value).expect("a header value");
            map.append(header::AUTHORIZATION, value);
        }
        let token = Token("s3cret".into());
        assert_eq!(token.is_in(&map), admitted, "{headers:?}");
    }

    #[test]
    fn only_the_whole_token_given_once_as_bearer_lets_in() {
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
    fn a_page_of_another_origin_is_told_by_its_origin_and_by_its_host() {
        let check = |host: Option<&str>, origin: Option<&str>, elsewhere: bool| {
            let mut map = HeaderMap::new();
            for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
                if let Some(value) = value {
                    map.insert(name, HeaderValue::from_str(value).expect("a value"));
                }
            }
            assert_eq!(is_from_elsewhere(&map), elsewhere, "{host:?} {origin:?}");
        };
        check(Some("127.0.0.1:9180"), None, false);
        check(Some("localhost:9180"), None, false);
        check(Some("LocalHost"), None, false);
        check(Some("[::1]:9180"), None, false);
        check(None, None, false);
        check(Some("127.0.0.1:9180"), Some("http://127.0.0.1:9180"), false);
        check(Some("127.0.0.1:9180"), Some("http://evil.example"), true);
        check(Some("127.0.0.1:9180"), Some("http://127.0.0.1:80"), true);
        check(Some("127.0.0.1:9180"), Some("null"), true);
        check(Some("evil.example:9180"), None, true);
        check(Some("evil.example"), Some("http://evil.example"), true);
    }

    #[test]
    fn a_token_does_not_show_itself() {
        assert_eq!(format!("{:?}", Token("s3cret".into())), "Token(…)");
    }
}
